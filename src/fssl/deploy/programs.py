"""Flower's own programs, SuperLink and SuperNode, with this deployment's settings: start, monitor and end them."""

import ctypes
import logging
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
from logging.handlers import RotatingFileHandler
from pathlib import Path
from shutil import which
from threading import Thread
from typing import Any

from ..config import toml_text
from ..engines.flower.internals import ERROR
from ..errors import RunError, UserError
from .home import ServerPart, SitePart
from .keys import MAKES_KEYS

SUPERLINK, SUPERNODE = "fssl.engines.flower.superlink", "fssl.engines.flower.supernode"
SUPERLINK_LOG = "superlink.log"  # in the folder logs of the server
COLOR, STAMP = re.compile(r"\x1b\[[0-9;]*m"), re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", re.MULTILINE)
LOG_BYTES, OLDER_LOGS = 10 * 2**20, 5  # of a log before the next one starts; they are kept as superlink.log.1 and so on
LAST_WORDS = 2  # seconds to read the last output of an ended program
NEW_START = "---- a new start ----\n"  # in a log, which is kept from start to start
PR_SET_PDEATHSIG = 1  # of Linux's prctl


def require_flower() -> None:
    """Raise UserError without the packages that a deployment needs."""
    missing = [name for name in ("flwr", "cryptography") if find_spec(name) is None]
    if missing:
        raise UserError(f"fssl deploy needs packages: pip install 'fssl[flower]' (missing: {', '.join(missing)})")


def search_path() -> str:
    """Return PATH with this Python's programs first, also for the programs that Flower starts by name."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def program(name: str) -> str:
    found = which(name, path=search_path())
    if found is None:
        raise UserError(f"'{name}' is not installed: pip install 'fssl[flower]'")
    return found


def program_environment(home: Path) -> dict[str, str]:
    """Return environment variables, with Flower's files in the deployment's folder."""
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
        raise UserError(f"a site's path must not contain a double quote: {site.folder}")
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
    process = Logged(words, program_environment(home), log)
    try:
        yield process
    finally:
        end(process)


class Logged(subprocess.Popen[bytes]):
    """A program whose output goes to a log: each line with its time in UTC and without colors, rotated by size."""

    def __init__(self, words: list[str], environment: dict[str, str], log: Path) -> None:
        self._log = RotatingFileHandler(log, maxBytes=LOG_BYTES, backupCount=OLDER_LOGS, encoding="utf-8")
        self._log.setFormatter(UtcFormatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%SZ"))
        self._write(NEW_START.rstrip())
        super().__init__(
            words,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        self._copying = Thread(target=self._copy, daemon=True)
        self._copying.start()

    def _copy(self) -> None:
        assert self.stdout is not None
        for line in self.stdout:
            self._write(COLOR.sub("", line.decode(errors="replace")).rstrip())
        self._log.close()

    def _write(self, line: str) -> None:
        self._log.handle(logging.makeLogRecord({"msg": line}))

    def poll(self) -> int | None:
        """Return the exit status, once the last output is in the log; None while it runs."""
        code = super().poll()
        if code is not None:
            self._copying.join(LAST_WORDS)
        return code


class UtcFormatter(logging.Formatter):
    converter = staticmethod(time.gmtime)


def end_with_parent() -> None:
    """Send a new process on Linux SIGTERM when its parent ends, even by SIGKILL; Flower's processes do so anyway."""
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
            raise RunError(f"the SuperLink ended: {exit_reason(log)}")
        with socket.socket() as probe:
            if probe.connect_ex((host, server.port)) == 0:
                return
        time.sleep(0.2)
    raise RunError(f"the SuperLink does not answer on port {server.port}: {exit_reason(log)}")


def check_port(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(
                f"port {port} on {host}: {error.strerror}; stop the program that uses it, or change `port`"
            ) from None


def wait_for(words: str, process: subprocess.Popen[bytes], log: Path, seconds: float = math.inf) -> bool:
    """Return whether a program logs these words in time."""
    until, growing = time.monotonic() + seconds, TailedFile(log)
    while time.monotonic() < until and process.poll() is None:
        if words in since_start(growing.news()):
            return True
        time.sleep(0.5)
    return False


class TailedFile:
    """A text file that another program writes: each call reads on from where the last one ended."""

    def __init__(self, path: Path) -> None:
        self.path, self.position = path, 0

    def news(self) -> str:
        """Return the complete lines that are new."""
        if not self.path.is_file():
            return ""
        if self.path.stat().st_size < self.position:  # the log was rotated
            self.position = 0
        with self.path.open("rb") as file:
            file.seek(self.position)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self.position += len(whole)
        return STAMP.sub("", whole.decode(errors="replace"))


def since_start(text: str) -> str:
    """Return the part of a log after the program's last start."""
    return STAMP.sub("", COLOR.sub("", text)).rpartition(NEW_START)[2]


def exit_reason(log: Path) -> str:
    """Return why a program ended: its last error at the end of its log, or else its last line."""
    said = since_start(log.read_text(errors="replace"))
    lines = [" ".join(line.split()) for line in said.splitlines()[-30:] if line.strip()]
    errors = [i for i, line in enumerate(lines) if line.startswith(ERROR)]
    words = lines[errors[-1] : errors[-1] + 3] if errors else lines[-1:]
    return f"{' '.join(words) or 'without a message'} (log: {log})"
