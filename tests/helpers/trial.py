"""A deployment of real processes on this machine, for trials: started, hurt, watched and ended."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .processes import children

COMMAND = [sys.executable, "-m", "fssl"]
TINY = (  # seconds of work, so that what is measured is Flower and the reaction to faults
    "partition.kind=dirichlet",
    "partition.alpha=1",
    "train.clients_per_round=3",
    "train.steps_per_round=2",
    "train.batch=8",
    "compute.device=cpu",
)

# What a site's owner can do to the code there: Python imports it first, and it replaces the client's app.
SITECUSTOMIZE = """
import importlib.util, sys
from pathlib import Path

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "fssl.engines.flower.client_app":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            sys.modules[name] = module
            changed = {}
            exec(Path(__file__).with_name("changed.py").read_text(), changed)
            module.app = changed["app"]

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""


class Program:
    """One `fssl` command in the background, its output in a file."""

    def __init__(self, log: Path, *words: str, code: Path | None = None) -> None:
        self.log = log
        more = {"PYTHONPATH": os.pathsep.join([str(code), os.environ.get("PYTHONPATH", "")])} if code else {}
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [*COMMAND, *words], stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **more}
            )

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def until(self, pattern: str, seconds: float = 240) -> str:
        """Wait for a line; returns it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for line in self.said.splitlines():
                if re.search(pattern, line):
                    return line
            if self.process.poll() is not None:
                break
            time.sleep(0.2)
        raise AssertionError(f"no line like {pattern!r} ({self.process.poll()}):\n{self.said}")

    def ends(self, seconds: float = 300) -> int:
        return self.process.wait(seconds)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(60)

    def kill(self) -> list[int]:
        """SIGKILL for the command alone; what it had started."""
        below = children(self.process.pid)
        self.stop(signal.SIGKILL)
        return below

    def kill_flower(self) -> None:
        """SIGKILL for what the command started, with everything below it."""
        for child in children(self.process.pid):
            os.killpg(child, signal.SIGKILL)
        self.process.wait(60)


class Trial:
    """A deployment in a folder: a server, three sites, and runs one after another."""

    def __init__(self, folder: Path, sites: int = 3) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.home = folder, folder / "home"
        self.programs: dict[str, Program] = {}
        for words in (("init", str(self.home), "--sites", str(sites)), ("keys", "--home", str(self.home))):
            subprocess.run([*COMMAND, "deploy", *words], check=True, capture_output=True)

    def setting(self, key: str, value: int) -> None:
        path = self.home / "server" / "server.toml"
        path.write_text(re.sub(rf"^{key} = \d+", f"{key} = {value}", path.read_text(), flags=re.MULTILINE))

    def server(self) -> Program:
        server = self.program("server", "deploy", "server", "--home", str(self.home))
        server.until("^admitted: site-1")
        return server

    def site(self, number: int, *more: str, changed: str = "") -> Program:
        """Start a site; its owner may have changed the client's app there."""
        name, code = f"site-{number}", self.folder / "changed"
        if changed:
            code.mkdir(exist_ok=True)
            (code / "sitecustomize.py").write_text(SITECUSTOMIZE)
            (code / "changed.py").write_text(changed)
        words = ("deploy", "site", name, "--home", str(self.home), *more)
        return self.program(name, *words, code=code if changed else None)

    def program(self, name: str, *words: str, code: Path | None = None) -> Program:
        log = self.folder / f"{name}.out"
        log.unlink(missing_ok=True)
        self.programs[name] = Program(log, *words, code=code)
        return self.programs[name]

    def start(self, out: str, *settings: str, resume: bool = False, more: Sequence[str] = ()) -> Program:
        words = ["deploy", "start", "smoke", "--home", str(self.home), "--out", str(self.folder / out)]
        words += [word for s in (*TINY, "partition.clients=3", *settings) for word in ("--set", s)]
        log = self.folder / f"{out}{'-again' if resume else ''}.out"
        self.programs[out] = Program(log, *words, *(["--resume"] if resume else []), *more)
        return self.programs[out]

    def local(self, out: str, *settings: str) -> Path:
        """The same run in the local engine."""
        words = ["run", "smoke", "--out", str(self.folder / out)]
        words += [word for s in (*TINY, "partition.clients=3", *settings) for word in ("--set", s)]
        subprocess.run([*COMMAND, *words], check=True, capture_output=True)
        return self.folder / out

    def status(self) -> str:
        words = [*COMMAND, "deploy", "status", "--home", str(self.home)]
        return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True).stdout

    def connected(self, number: int, seconds: float = 120) -> None:
        """Wait until so many sites are online."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if (said := self.status()).count(" online ") == number:
                return
            time.sleep(1)
        raise AssertionError(said)

    def end(self) -> None:
        for program in reversed(self.programs.values()):
            program.stop()


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (run / "rounds.jsonl").read_text().splitlines()]


def without_time(run: Path) -> list[dict[str, Any]]:
    aside = ("timing", "after", "check")
    return [{k: v for k, v in line.items() if k not in aside} for line in lines(run)]


def states(run: Path) -> dict[str, str]:
    """Checksums of the global state after the newest two rounds, as the run's own checkpoints vouch for them."""
    return {p.stem: json.loads(p.read_text())["sha256"] for p in sorted((run / "checkpoint").glob("round-*.json"))}
