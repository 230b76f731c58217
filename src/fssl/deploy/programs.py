"""Flower's own programs, SuperLink and SuperNode, with this deployment's settings: started, watched and ended."""

import ctypes
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

from ..config import toml_text
from ..engines.flower.internals import ERROR
from ..errors import RunError, UserError
from .home import ServerPart, SitePart
from .keys import MAKES_KEYS

SUPERLINK, SUPERNODE = "fssl.engines.flower.superlink", "fssl.engines.flower.supernode"
SUPERLINK_LOG = "superlink.log"  # in the folder logs of the server
COLOR = re.compile(r"\x1b\[[0-9;]*m")
NEW_START = "---- a new start ----\n"  # in a log, which is kept from start to start
PR_SET_PDEATHSIG = 1  # of Linux's prctl


def require_flower() -> None:
    """Refuse to go on without the packages that a deployment needs."""
    missing = [name for name in ("flwr", "cryptography") if find_spec(name) is None]
    if missing:
        raise UserError(f"fssl deploy needs packages: pip install 'fssl[flower]' (missing: {', '.join(missing)})")


def search_path() -> str:
    """PATH with this Python's programs first, also for the programs that Flower starts by name."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def program(name: str) -> str:
    found = which(name, path=search_path())
    if found is None:
        raise UserError(f"'{name}' is not installed: pip install 'fssl[flower]'")
    return found


def program_environment(home: Path) -> dict[str, str]:
    """Environment variables, with Flower's files in the deployment's folder."""
    return {**os.environ, "FLWR_HOME": str(home / "flwr"), "PATH": search_path()}


def superlink(server: ServerPart, insecure: bool) -> list[str]:
    words = [sys.executable, "-m", SUPERLINK, str(server.flower), server.address]
    words += ["--host", server.listen, "--port", str(server.port)]
    words += ["--database", str(server.flower / "superlink.db"), "--disable-runtime-dependency-installation"]
    if insecure:
        return [*words, "--insecure"]
    files = {"--ssl-ca-certfile": "ca.crt", "--ssl-certfile": "server.pem", "--ssl-keyfile": "server.key"}
    for option, name in files.items():
        words += [option, str(require_file(server.keys / name))]
    return [*words, "--enable-supernode-auth"]


def supernode(site: SitePart, data: Path | None, insecure: bool) -> list[str]:
    facts: dict[str, Any] = {"partition-id": site.client, "num-partitions": site.clients, "folder": str(site.folder)}
    if data:
        facts["data"] = str(data)
    if any('"' in str(value) for value in facts.values()):
        raise UserError(f"a site's folders may have no double quote in their names: {site.folder}")
    config = " ".join(f"{key}={toml_text(value)}" for key, value in facts.items())
    words = [sys.executable, "-m", SUPERNODE, str(site.folder / "flwr"), str(site.port)]
    words += ["--superlink", site.server, "--node-config", config]
    if insecure:
        return [*words, "--insecure"]
    root, key = require_file(site.folder / "ca.crt"), require_file(site.folder / "key")
    return [*words, "--root-certificates", str(root), "--auth-supernode-private-key", str(key)]


def require_file(path: Path) -> Path:
    if not path.is_file():
        raise UserError(f"{path} is missing; {MAKES_KEYS}")
    return path


@contextmanager
def background_program(words: list[str], home: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program in the background, its output in a file; it ends with this context or process."""
    (home / "flwr").mkdir(parents=True, exist_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        output.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {NEW_START}".encode())
        output.flush()
        process = subprocess.Popen(
            words,
            env=program_environment(home),
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
    try:
        yield process
    finally:
        end(process)


def end_with_parent() -> None:
    """For a new process, on Linux: SIGTERM when its parent ends, even by SIGKILL. What Flower starts does so anyway."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process by SIGTERM, so that Flower signs off; kill it and its children if that fails."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # its children share its session


def wait_until_listening(process: subprocess.Popen[bytes], server: ServerPart, log: Path, seconds: float = 60) -> None:
    until, host = time.monotonic() + seconds, "127.0.0.1" if server.listen == "0.0.0.0" else server.listen
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RunError(f"the SuperLink ended: {last_words(log)}")
        with socket.socket() as probe:
            if probe.connect_ex((host, server.port)) == 0:
                return
        time.sleep(0.2)
    raise RunError(f"the SuperLink does not answer on port {server.port}: {last_words(log)}")


def check_port(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(
                f"port {port} on {host}: {error.strerror}; is it running already? (else: `port` in the settings)"
            ) from None


def wait_for(words: str, process: subprocess.Popen[bytes], log: Path, seconds: float = math.inf) -> bool:
    """Whether a program logs these words within a time."""
    until, growing = time.monotonic() + seconds, Growing(log)
    while time.monotonic() < until and process.poll() is None:
        if words in since_start(growing.news()):
            return True
        time.sleep(0.5)
    return False


class Growing:
    """A text file that another program writes: each look reads on from where the one before ended."""

    def __init__(self, path: Path) -> None:
        self.path, self.position = path, 0

    def news(self) -> str:
        """The complete lines that are new."""
        if not self.path.is_file():
            return ""
        with self.path.open("rb") as file:
            file.seek(self.position)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self.position += len(whole)
        return whole.decode(errors="replace")


def since_start(text: str) -> str:
    """The part of a log after the program's last start."""
    return COLOR.sub("", text).rpartition(NEW_START)[2]


def last_words(log: Path) -> str:
    """Why a program ended: its last error if the end of its log has one, else its last line; all is in the file."""
    said = since_start(log.read_text(errors="replace"))
    lines = [" ".join(line.split()) for line in said.splitlines()[-30:] if line.strip()]
    errors = [i for i, line in enumerate(lines) if line.startswith(ERROR)]
    words = lines[errors[-1] : errors[-1] + 3] if errors else lines[-1:]
    return f"{' '.join(words) or 'without a word'} (log: {log})"
