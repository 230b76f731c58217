"""The same page while runs go on: a server for this machine only, with two addresses and nothing else."""

import gzip
import io
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from ...errors import UserError
from ..groups import distinct, repetitions
from ..runs import choose_measure, run_folders
from .content import content
from .reading import Reading, judge_by
from .write import page, page_title, plotly

LOOPBACK = "127.0.0.1"
FRESH = 1.0  # seconds within which several browsers share one look at the folders
ASKING, ANSWERING = 10.0, 30.0  # seconds for a whole request and a whole answer: each holds a thread


class Watcher:
    """Run folders looked at again and again; each look reads only what was added."""

    def __init__(self, paths: list[Path], measure: str = "") -> None:
        self.paths, self.title = paths, page_title(paths)
        self._wanted, self._measure = measure, choose_measure([], measure)  # that is asked for, and that is shown
        self.version, self._looked = 0, float("-inf")
        self._readings: dict[Path, Reading] = {}
        self._lines: set[tuple[Path, ...]] = set()  # the runs of each line of the table
        self._lock = threading.Lock()

    def changes(self, since: int) -> dict[str, Any]:
        """The data that is newer than the page's version; only the version number if there is none."""
        with self._lock:
            if time.monotonic() - self._looked > FRESH:
                self._look()
                self._looked = time.monotonic()
            if since == self.version:
                return {"version": self.version}
            known = since if 0 <= since < self.version else -1
            return {"version": self.version, **content(list(self._readings.values()), self.title, known)}

    def _look(self) -> None:
        folders = list(run_folders(path for path in self.paths if path.exists()))
        gone = self._readings.keys() - set(folders)
        self._readings = {folder: self._readings.get(folder) or Reading(folder) for folder in folders}
        changed = {folder for folder, reading in self._readings.items() if reading.update()}
        if self.version and not changed and not gone:
            return
        before, self._measure = self._measure, judge_by(self._readings.values(), self._wanted)
        if self._measure != before:  # then every number is another one
            changed = {*self._readings}
        self.version += 1
        self._date(changed)

    def _date(self, changed: set[Path]) -> None:
        """Give this version to runs with news, and to lines of the table that hold one or lost one."""
        shown = {path for line in self._lines for path in line}
        runs = distinct(reading for reading in self._readings.values() if reading.is_shown)
        lines = {tuple(run.path for run in line): line for line in repetitions(runs).values()}
        for paths, line in lines.items():
            news = [run for run in line if run.path in changed or run.path not in shown]  # a copy may count now
            for run in news:
                run.version = self.version
            if news or paths not in self._lines:
                line[0].line_version = self.version
        self._lines = set(lines)


class Arriving(io.RawIOBase):
    """What comes in on a connection, until a deadline: a timeout of the socket begins anew with every byte."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self.connection, self.until = connection, time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.connection.settimeout(left)
        return self.connection.recv_into(buffer)


class Handler(BaseHTTPRequestHandler):
    """Answers `/` and `/data`; anything else, and anyone who came under another name, is refused."""

    server: "Server"
    server_version, sys_version = "fssl", ""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(Arriving(self.connection, ASKING))

    def do_GET(self) -> None:
        if self.headers.get("Host", "") not in self.server.names:  # a page elsewhere whose name leads here
            return self._answer(403, "text/plain", b"this address answers to its own name only\n")
        path, _, query = self.path.partition("?")
        if path == "/":
            return self._answer(200, "text/html; charset=utf-8", self.server.page)
        if path == "/data":
            data = self.server.watcher.changes(version_in(query))
            text = json.dumps(data, separators=(",", ":"), allow_nan=False)
            return self._answer(200, "application/json", gzip.compress(text.encode(), 1), "gzip")
        self._answer(404, "text/plain", b"only the report is here: /\n")

    def _answer(self, code: int, kind: str, body: bytes, encoding: str | None = None) -> None:
        self.connection.settimeout(ANSWERING)  # of all of it
        self.send_response(code)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Content-Encoding": encoding,
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
        }
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *words: object) -> None:
        """Print nothing to the terminal."""


def version_in(query: str) -> int:
    text = parse_qs(query).get("since", [""])[0]
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, paths: list[Path], port: int, measure: str = "") -> None:
        super().__init__((LOOPBACK, port), Handler)
        self.watcher = Watcher(paths, measure)
        self.page = page(self.watcher.title, None).encode()
        self.names = {f"{name}:{self.server_port}" for name in (LOOPBACK, "localhost")}

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that closed its connection."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def watch(paths: list[Path], port: int, say: Callable[[str], None], measure: str = "") -> None:
    """Serve until Ctrl-C."""
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path} is no folder; start `fssl run` first, or give the folder that it will write")
    plotly()
    try:
        server = Server(paths, port, measure)
    except OSError as error:
        raise UserError(f"--port {port}: {os.strerror(error.errno or 0)}; choose another, or leave it out") from None
    with server:
        say(f"live report: {server.address} (Ctrl-C ends it)")
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            say("ended; `fssl report` without --watch writes the page into a file")
