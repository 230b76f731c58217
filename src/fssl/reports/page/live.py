"""The same page while runs train: a server for this machine only, with two addresses."""

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
from ..runs import FoundRuns, Reader, choose_measure
from .content import News, content, for_page
from .write import page, page_title, plotly

LOOPBACK = "127.0.0.1"
FRESH = 1.0  # seconds for which several browsers share one reading of the folders
ASKING, ANSWERING = 10.0, 30.0  # seconds for a whole request and a whole answer, each of which occupies a thread


class Watcher:
    """Watches run folders, and rereads a folder only if one of its files has changed."""

    def __init__(self, paths: list[Path], measure: str = "") -> None:
        choose_measure([], measure)  # reject an unknown measure
        self.paths, self.title, self._wanted = paths, page_title(paths), measure
        self.version, self._looked = 0, float("-inf")
        self._reader, self._read, self._shown = Reader(for_page), FoundRuns([], {}), FoundRuns([], {})
        self._runs: dict[Path, int] = {}  # the version in which a run last changed
        self._lines: dict[tuple[Path, ...], int] = {}  # and a line of the table, by its runs
        self._lock = threading.Lock()

    def changes(self, since: int) -> dict[str, Any]:
        """Return the data that is newer than the page's version; only the version number if there is none."""
        with self._lock:
            if time.monotonic() - self._looked > FRESH:
                self._look()
                self._looked = time.monotonic()
            if since == self.version:
                return {"version": self.version}
            return {"version": self.version, **content(self._shown, self.title, self._news(since))}

    def _news(self, since: int) -> News | None:
        """Return what changed after a version; None, for everything, if the version is of another server."""
        if not 0 <= since < self.version:
            return None
        runs = {path for path, version in self._runs.items() if version > since}
        return News(runs, {paths[0] for paths, version in self._lines.items() if version > since})

    def _look(self) -> None:
        read = self._reader.read(path for path in self.paths if path.exists())
        if self.version and read == self._read:
            return
        shown = read.judged(choose_measure((run.config for run in read.runs), self._wanted))
        before = {run.path: (run.extras, run.measure) for run in self._shown.runs}
        changed = {run.path for run in shown.runs if before.get(run.path) != (run.extras, run.measure)}
        self.version += 1
        self._read, self._shown = read, shown
        self._date(changed)

    def _date(self, changed: set[Path]) -> None:
        """Set this version for changed runs, and for lines of the table that contain one or lost one."""
        lines = [[run.path for run in line] for line in repetitions(distinct(self._shown.runs)).values()]
        runs = [path for line in lines for path in line]
        self._runs = {p: self.version if p in changed else self._runs.get(p, self.version) for p in runs}
        dates = {tuple(line): max(self._runs[path] for path in line) for line in lines}
        self._lines = {line: max(date, self._lines.get(line, self.version)) for line, date in dates.items()}


class Arriving(io.RawIOBase):
    """The input of a connection until a deadline; a socket's timeout would restart with every byte."""

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
    """Answers `/` and `/data`; rejects any other address, and requests with another host name."""

    server: "PageServer"
    server_version, sys_version = "fssl", ""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(Arriving(self.connection, ASKING))

    def do_GET(self) -> None:
        if self.headers.get("Host", "") not in self.server.names:  # DNS rebinding: another page's name leads here
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
        self.connection.settimeout(ANSWERING)  # for the whole answer
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


class PageServer(ThreadingHTTPServer):
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
            raise UserError(f"there is no folder {path}; start `fssl run` first, or name the folder that it will write")
    plotly()
    try:
        server = PageServer(paths, port, measure)
    except OSError as error:
        raise UserError(f"--port {port}: {os.strerror(error.errno or 0)}; choose another, or remove it") from None
    with server:
        say(f"live report: {server.address} (Ctrl-C ends it)")
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            say("ended; `fssl report` without --watch writes the page into a file")
