"""What keeps strangers out of a deployment, and what is said to those who stand before a closed door."""

import fcntl
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from shutil import copyfile

import pytest

from fssl.deploy import admission, sites
from fssl.deploy.control import check_gate, check_security, close_gate, connect, nodes, open_gate
from fssl.deploy.home import ServerPart, init, server_part, site_part
from fssl.deploy.orders import await_folder
from fssl.deploy.sites import await_server, server_security
from fssl.engines.flower.identity import Node, fingerprint
from fssl.engines.flower.internals import ACQUIRE_TASK, LIST_NODES, ONLINE, UNREGISTERED
from fssl.errors import RunError, UserError
from fssl.records.store import RunFolder
from helpers.command import Fssl

NEEDS = "cryptography is not installed: pip install 'fssl[flower]'"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    init(tmp_path / "home", 3)
    return tmp_path / "home"


@pytest.fixture
def server(home: Path) -> ServerPart:
    pytest.importorskip("cryptography", reason=NEEDS)
    from fssl.deploy.keys import make_keys

    make_keys(server_part(home), home)
    return server_part(home)


# Keys.


def test_sites_are_known_by_the_keys_in_the_servers_folder(server: ServerPart, home: Path) -> None:
    from cryptography.hazmat.primitives import serialization as form

    from fssl.deploy.keys import admitted_sites, make_keys

    before = admitted_sites(server)
    private = form.load_ssh_private_key((home / "site-2" / "key").read_bytes(), None)
    as_flower_keeps_it = private.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    assert [site.name for site in before] == ["site-1", "site-2", "site-3"]
    assert before[1].key == fingerprint(as_flower_keeps_it)
    for path in (server.keys / "site-2.pub", home / "site-2" / "key"):
        path.unlink()
    make_keys(server, home)  # a new key for site 2
    after = admitted_sites(server)
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, True]


def test_two_sites_with_one_key_are_rejected(server: ServerPart) -> None:
    from fssl.deploy.keys import admitted_sites

    copyfile(server.keys / "site-1.pub", server.keys / "site-3.pub")
    with pytest.raises(UserError, match=r"site-1 and site-3 have the same key: remove .*site-3\.pub"):
        admitted_sites(server)


@pytest.mark.parametrize(("text", "message"), [(None, "is missing; `fssl deploy keys`"), ("ssh-rsa x", "is damaged")])
def test_a_key_that_cannot_be_read_is_named(server: ServerPart, text: str | None, message: str) -> None:
    from fssl.deploy.keys import admitted_sites

    path = server.keys / "site-2.pub"
    path.unlink()
    if text:
        path.write_text(text)
    with pytest.raises(UserError, match=f"site-2.pub {message}"):
        admitted_sites(server)


@pytest.mark.parametrize("words", [("keys",), ("server",), ("site", "site-1"), ("start", "smoke"), ("status",)])
def test_without_flower_every_command_says_so_in_one_line(
    words: tuple[str, ...], home: Path, fssl: Fssl, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] in ("flwr", "cryptography")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    said = fssl("deploy", *words, "--home", home)
    line = "fssl: fssl deploy needs packages: pip install 'fssl[flower]' (missing: flwr, cryptography)\n"
    assert (said.code, said.out, said.err) == (2, "", line)


# The operator.


def test_every_start_has_a_credential_of_its_own_and_a_closed_door(server: ServerPart) -> None:
    tokens = set()
    for _ in range(2):
        close_gate(server)
        connect(server, insecure=False)
        assert server.flower.stat().st_mode & 0o777 == 0o700
        assert not (server.flower / "open").exists()
        open_gate(server)
        assert (server.flower / "open").exists()
        tokens.add((server.flower / "operator").read_text())
        for name in ("operator", "credentials.yaml"):
            assert (server.flower / name).stat().st_mode & 0o777 == 0o600
    assert [len(token) for token in tokens] == [64, 64]


def test_the_flwr_command_sends_the_credential(server: ServerPart, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own reader of credentials finds ours."""
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
    from flwr.cli import utils
    from flwr.supercore.credential_store import file_credential_store

    close_gate(server)
    connect(server, insecure=False)
    monkeypatch.setattr(file_credential_store, "CREDENTIAL_FILE_PATH", server.flower / "credentials.yaml")
    plugin = utils.load_cli_auth_plugin_from_connection(server.address)
    plugin.load_tokens()
    assert (server.flower / "operator").read_text() in dict(plugin.write_tokens_to_metadata([])).values()


class Door(BaseHTTPRequestHandler):
    code, below = 200, "/"

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        self.send_response(self.code if self.path.startswith(self.below) else 401)
        self.end_headers()

    def log_message(self, format: str, *words: object) -> None: ...


@contextmanager
def serving(server: ServerPart, code: int, is_encrypted: bool, port: int = 0, below: str = "/") -> Iterator[int]:
    """Something on a port of this machine that gives one answer to all requests below a path, and rejects others."""
    handler = type("Handler", (Door,), {"code": code, "below": below})
    with HTTPServer(("127.0.0.1", port), handler) as door:
        if is_encrypted:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(server.keys / "server.pem", server.keys / "server.key")
            door.socket = context.wrap_socket(door.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=door.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield door.server_port
        finally:
            door.shutdown()
            thread.join()


@pytest.mark.parametrize("insecure", [False, True])
def test_a_server_that_lets_anyone_register_keys_does_not_run(server: ServerPart, insecure: bool) -> None:
    with serving(server, 401, not insecure) as port:
        check_gate(server._replace(port=port), insecure)
    open_to_all = pytest.raises(RunError, match=r"does not reject strangers \(/v1/control/list-nodes: status 200\)")
    with serving(server, 200, not insecure) as port, open_to_all:
        check_gate(server._replace(port=port), insecure)
    with pytest.raises(RunError, match="does not answer"):
        check_gate(server._replace(port=port), insecure)


@pytest.mark.parametrize(("path", "code"), [(LIST_NODES, 404), (ACQUIRE_TASK, 200), (ACQUIRE_TASK, 503)])
def test_every_answer_except_a_rejection_opens_the_gate(server: ServerPart, path: str, code: int) -> None:
    opened = pytest.raises(RunError, match=rf"does not reject strangers \({path}: status {code}\), so it was stopped")
    with serving(server, code, True, below=path) as port, opened:
        check_gate(server._replace(port=port), False)


@pytest.mark.parametrize(
    ("started", "message"),
    [
        (True, "the server was started with --insecure; add --insecure here too"),
        (False, "the server was started without --insecure; remove --insecure here too"),
    ],
)
def test_a_run_is_ordered_as_the_server_was_started(server: ServerPart, started: bool, message: str) -> None:
    with pytest.raises(RunError, match="has not been started yet"):
        check_security(server, started)
    close_gate(server)
    connect(server, started)
    check_security(server, started)
    with pytest.raises(UserError, match=message):
        check_security(server, not started)


def test_a_credential_of_another_server_is_said_so(server: ServerPart) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
    with pytest.raises(RunError, match="has not been started yet"):
        nodes(server)
    close_gate(server)
    with serving(server, 401, is_encrypted=True) as port:
        other = server._replace(port=port)
        connect(other, insecure=False)
        with pytest.raises(RunError, match=r"was not started from .*, so it rejects this command"):
            nodes(other)
    with pytest.raises(RunError, match="does not answer at"):
        nodes(other)


def known_to(server: ServerPart, monkeypatch: pytest.MonkeyPatch, *there: Node) -> list[tuple[str, ...]]:
    """A server that knows these nodes; what is asked of its `flwr` command."""
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(admission, "nodes", lambda part: [*there])
    monkeypatch.setattr(admission, "flwr", lambda part, *words: asked.append(words))
    close_gate(server)
    connect(server, insecure=False)
    return asked


def keys_of(server: ServerPart) -> list[str]:
    from fssl.deploy.keys import admitted_sites

    return [site.key for site in admitted_sites(server)]


def test_sites_are_admitted_and_keys_that_have_gone_are_withdrawn(
    server: ServerPart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Site 1 is known already; site 3 takes no part now, and its key stays; the server's folder has none of node 40."""
    first, _, third = keys_of(server)
    there = (Node(10, first, status=ONLINE), Node(30, third), Node(40, "f" * 64), Node(50, "e" * 64, "", UNREGISTERED))
    said, asked = list[str](), known_to(server, monkeypatch, *there)
    admission.admit(server._replace(sites=["site-1", "site-2"]), said.append)
    register = ("register", str(server.keys / "site-2.pub"), "deployment", "--name", "site-2")
    assert asked == [("supernode", "unregister", "40", "deployment"), ("supernode", *register)]
    gone = f"withdrawn: node 40 (key {'f' * 16}), whose key is not in {server.keys}"
    assert said == [gone, "admitted: site-1, site-2"]


def test_a_key_that_was_withdrawn_is_rejected_before_any_other_is(
    server: ServerPart, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second, _ = keys_of(server)
    asked = known_to(server, monkeypatch, Node(20, second, status=UNREGISTERED), Node(40, "f" * 64))
    with pytest.raises(
        UserError, match=r"^site-2: this key was withdrawn, .*; remove .*/site-2\.pub and the site's key"
    ):
        admission.admit(server, print)
    assert asked == []


def test_the_operator_sees_every_site_and_every_stranger(server: ServerPart, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes claim site 1, site 2 and its double are away, site 3 was never admitted, and node 50 is withdrawn."""
    first, second, _ = keys_of(server)
    since = "2026-11-16 10:00"
    there = [Node(10, first, "site-1", ONLINE, since), Node(20, second, "site-2", "offline", since)]
    there += [Node(40, "f" * 64, "site-1", ONLINE, since), Node(50, "e" * 64, "", UNREGISTERED)]
    there += [Node(60, "d" * 64, "site-2", "offline", since)]
    known_to(server, monkeypatch, *there)
    rows, warnings = admission.look(server)
    assert rows == [
        ("site-1", "0", "DISPUTED", since),
        ("site-2", "1", "offline", since),
        ("site-3", "2", "not admitted", ""),
        ("STRANGER", "–", ONLINE, since),
        ("STRANGER", "–", "offline", since),
    ]
    assert warnings[0] == "client 0: 2 nodes claim site-1, so none of them is used"
    remedy = "The server withdraws keys that are not in its folder keys when it starts"
    assert warnings[1:] == [
        f"node {number} (key {letter * 16}, registered as '{name}') is not one of the sites, so it gets no messages."
        f" {remedy}"
        for number, letter, name in ((40, "f", "site-1"), (60, "d", "site-2"))
    ]


def test_without_keys_nodes_cannot_be_matched_to_sites(server: ServerPart, monkeypatch: pytest.MonkeyPatch) -> None:
    known_to(server, monkeypatch, Node(10, "", status=ONLINE, since="10:00"), Node(20, "", status="offline"))
    connect(server, insecure=True)
    rows, warnings = admission.look(server._replace(sites=["site-1"]))
    assert rows == [("site-1", "0", "", ""), ("without a key", "?", ONLINE, "10:00")]
    assert warnings == []


# A site before its server.


def test_a_site_sees_how_a_server_speaks(server: ServerPart) -> None:
    for is_encrypted, manner in ((True, "TLS"), (False, "plain")):
        with serving(server, 404, is_encrypted) as port:
            assert server_security(f"127.0.0.1:{port}") == manner
    assert server_security(f"127.0.0.1:{port}") is None
    assert server_security("no-such-name.invalid:1") is None


@pytest.mark.parametrize(
    ("is_encrypted", "hint"),
    [
        (True, "site-1: the server at .* is encrypted; start this site without --insecure"),
        (
            False,
            "site-1: the server at .* was started with --insecure; restart it without --insecure, or .*",
        ),
    ],
)
def test_a_site_that_speaks_otherwise_than_its_server_gets_a_hint(
    server: ServerPart, home: Path, is_encrypted: bool, hint: str
) -> None:
    with serving(server, 404, is_encrypted) as port:
        site, said = site_part(home, "site-1")._replace(server=f"localhost:{port}"), list[str]()
        await_server(site, not is_encrypted, said.append)
        with pytest.raises(UserError, match=hint):
            await_server(site, is_encrypted, said.append)
    assert said == []


@pytest.mark.slow
def test_a_site_waits_for_its_server_and_says_so_once(
    server: ServerPart, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sites, "LOOK", 0.1)
    with serving(server, 404, is_encrypted=True) as port:
        pass  # now it is free
    site, said = site_part(home, "site-1")._replace(server=f"127.0.0.1:{port}"), list[str]()
    waiting = threading.Thread(target=await_server, args=(site, False, said.append))
    waiting.start()
    time.sleep(0.5)
    assert waiting.is_alive()
    with serving(server, 404, True, port):
        waiting.join(30)
    assert not waiting.is_alive()
    assert said == [f"site-1: no server answers at 127.0.0.1:{port} yet, trying again every 0.1 s"]


# A run that has not ended.

HOLDER = """
import fcntl, sys, time
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


@contextmanager
def held(lock: Path, seconds: float) -> Iterator[None]:
    """Another process has the lock for a while."""
    words = [sys.executable, "-c", HOLDER, str(lock), str(seconds)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        try:
            yield
        finally:
            process.kill()


@pytest.mark.slow
def test_a_start_waits_for_the_run_before_it(tmp_path: Path) -> None:
    said: list[str] = []
    assert not RunFolder(tmp_path).lock.is_in_use
    await_folder(tmp_path, 60, said.append)
    with held(tmp_path / ".lock", 1.5):
        assert RunFolder(tmp_path).lock.is_in_use
        begin = time.monotonic()
        await_folder(tmp_path, 60, said.append)
        assert 0.5 < time.monotonic() - begin < 30
    assert said == [f"{tmp_path} is in use by a run that continues at the server; waiting up to 60 s for its end"]
    assert not RunFolder(tmp_path).lock.is_in_use


def test_a_start_does_not_wait_for_ever(tmp_path: Path) -> None:
    with (
        held(tmp_path / ".lock", 60),
        pytest.raises(
            RunError, match=r"the run that writes there is not finished; waited 0 s\. .*--resume once it has ended"
        ),
    ):
        await_folder(tmp_path, 0, lambda text: None)


def test_looking_at_a_folder_takes_nothing_from_it(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    assert not RunFolder(tmp_path).lock.is_in_use
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
