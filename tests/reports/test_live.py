"""The live page: new rounds without reading old ones again, and a server that serves this and nothing else."""

import contextlib
import http.client
import json
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fssl.errors import UserError
from fssl.reports.page import live
from fssl.reports.page.live import PageServer, Watcher, version_in, watch
from helpers.command import start
from helpers.handmade import append, write_run

pytest.importorskip("plotly")
SAGE = 'method.name="sage"'


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(live, "FRESH", 0.0)
    for seed in (7, 8):
        write_run(tmp_path / f"runs/seed{seed}", [50.0, 60.0], SAGE, f"seed={seed}")
    (tmp_path / "secret.txt").write_text("secret")
    return tmp_path / "runs"


@pytest.fixture
def server(runs: Path) -> Iterator[PageServer]:
    with PageServer([runs], 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: PageServer, path: str, host: str | None = None, method: str = "GET") -> tuple[int, bytes, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", f"127.0.0.1:{server.server_port}" if host is None else host)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body, answer.headers


def test_the_page_hears_of_new_rounds_only(runs: Path) -> None:
    watcher = Watcher([runs])
    first = watcher.changes(-1)
    assert sorted(first["runs"]) == [str(runs / "seed7"), str(runs / "seed8")]
    assert watcher.changes(first["version"]) == {"version": first["version"]}
    append(runs / "seed8", 3, 70.0)
    second = watcher.changes(first["version"])
    assert list(second["runs"]) == [str(runs / "seed8")]
    ((first_of_line, curves),) = second["curves"].items()
    assert first_of_line == str(runs / "seed7")
    assert curves["accuracy"] == {"mean": [50.0, 60.0, 70.0], "std": [0.0, 0.0, None], "seeds": [2, 2, 1]}
    (line,) = second["tasks"][0]["groups"]
    assert line["result"][0] == (55.0 + 60.0) / 2
    assert len(watcher.changes(-1)["runs"]) == 2
    assert len(watcher.changes(999)["runs"]) == 2  # a page of a server that ran here before


def test_a_folder_that_is_named_twice_is_shown_once(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)
    watcher = Watcher([runs, Path("seed7"), runs / "gone"])
    assert sorted(watcher.changes(-1)["runs"]) == [str(runs / "seed7"), str(runs / "seed8")]


def test_a_copy_counts_once_the_original_is_gone(runs: Path) -> None:
    watcher = Watcher([runs])
    first = watcher.changes(-1)
    write_run(runs / "copy", [40.0], SAGE, "seed=7", "train.rounds=2")
    second = watcher.changes(first["version"])
    assert (list(second["runs"]), len(second["notes"])) == ([], 1)
    (runs / "seed7").rename(runs.parent / "gone")
    assert str(runs / "copy") in watcher.changes(second["version"])["runs"]


def test_a_copy_counts_while_the_original_is_behind_it(runs: Path) -> None:
    """A run that is resumed from an older checkpoint gets shorter."""
    original, copy = runs / "seed7", runs / "copy"
    write_run(copy, [40.0], SAGE, "seed=7", "train.rounds=2")
    append(original, 3, 70.0)
    append(copy, 2, 45.0)
    watcher = Watcher([runs])
    first = watcher.changes(-1)
    assert str(copy) not in first["runs"]
    lines = (original / "rounds.jsonl").read_text().splitlines(keepends=True)
    (original / "rounds.jsonl").write_text(lines[0])
    second = watcher.changes(first["version"])
    assert sorted(second["tasks"][0]["groups"][0]["runs"]) == [str(copy), str(runs / "seed8")]
    assert list(second["runs"]) == [str(copy)]
    (original / "rounds.jsonl").write_text("".join(lines))
    assert list(watcher.changes(second["version"])["runs"]) == [str(original)]


def test_runs_come_and_go(runs: Path) -> None:
    watcher = Watcher([runs / "new"])
    (runs / "new").mkdir()
    assert watcher.changes(-1)["tasks"] == []
    folder = write_run(runs / "new/a", [50.0], SAGE)
    data = watcher.changes(1)
    assert list(data["runs"]) == [str(folder)]
    folder.rename(runs.parent / "gone")
    assert watcher.changes(data["version"])["tasks"] == []


def test_the_server_serves_the_page_and_its_data(server: PageServer) -> None:
    code, body, headers = ask(server, "/")
    assert (code, headers["X-Frame-Options"], headers["Cache-Control"]) == (200, "DENY", "no-store")
    assert b'<body data-mode="live">' in body
    assert b"connect-src &#x27;self&#x27;" in body
    code, body, headers = ask(server, "/data?since=-1")
    assert (code, headers["Content-Encoding"], headers["Access-Control-Allow-Origin"]) == (200, "gzip", None)
    import gzip

    assert len(json.loads(gzip.decompress(body))["runs"]) == 2


@pytest.mark.parametrize(
    "path",
    [
        *("/secret.txt", "/../secret.txt", "/runs/seed7/config.toml", "/seed7/rounds.jsonl", "/data/"),
        *("/%2e%2e/secret.txt", "/data/../../secret.txt", "/..%2f..%2fetc/passwd", "/etc/passwd", "/index.html"),
        *("http://127.0.0.1/secret.txt", "/page.js", "*", "/\\..\\secret.txt", "http://[", "//[/", "?"),
    ],
)
def test_nothing_else_is_served(server: PageServer, path: str) -> None:
    code, body, _ = ask(server, path)
    assert (code, body) == (404, b"only the report is here: /\n")


def test_other_names_and_other_methods_are_rejected(server: PageServer) -> None:
    """A page elsewhere may make its own name lead here; its requests still carry that name."""
    port = server.server_port
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", ""):
        code, body, _ = ask(server, "/data", host)
        assert (code, b"seed7" in body) == (403, False)
    assert ask(server, "/", f"localhost:{port}")[0] == 200
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
        assert ask(server, "/", method=method)[0] == 501


def working() -> int:
    """Threads that answer a request, in addition to the server's own."""
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def ends_within(seconds: float) -> bool:
    until = time.monotonic() + seconds
    while working() and time.monotonic() < until:
        time.sleep(0.02)
    return not working()


@pytest.mark.slow
@pytest.mark.parametrize("asked", [b"GET / HT", b"GET / HTTP/1.1\r\nHost: "])
def test_a_request_that_trickles_in_holds_no_thread(
    asked: bytes, server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "ASKING", 0.5)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as slow:
        slow.sendall(asked)
        begin = time.monotonic()
        with contextlib.suppress(ConnectionError):  # the server hung up
            while time.monotonic() - begin < 5:
                slow.sendall(b"x")
                time.sleep(0.05)
        assert 0.4 < time.monotonic() - begin < 4
        assert ends_within(2)


def test_an_answer_that_is_not_read_holds_no_thread(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "ANSWERING", 0.5)
    server.page = bytes(50_000_000)  # more than the buffers on the way
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as slow:
        slow.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode())
        time.sleep(0.2)
        assert working() == 1
        assert ends_within(4)


def test_only_this_machine_can_reach_it(server: PageServer) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("query", "version"), [("since=3", 3), ("since=-1", -1), ("", -1), ("since=x", -1), ("since=9" + "9" * 99, -1)]
)
def test_versions_in_an_address(query: str, version: int) -> None:
    assert version_in(query) == version


def test_a_port_in_use_is_rejected(runs: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"--port {port}: Address already in use"):
            watch([runs], port, lambda text: None)


@pytest.mark.slow
def test_ctrl_c_ends_the_server_cleanly(runs: Path) -> None:
    with start("report", runs, "--watch") as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.fullmatch(r"live report: http://127\.0\.0\.1:(\d+)/ \(Ctrl-C ends it\)\n", said)
        assert found
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=30)
        connection.request("GET", "/data")
        assert connection.getresponse().status == 200
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    assert out.startswith("ended;")
