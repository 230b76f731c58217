"""The identity of nodes behind Flower: their keys, and a gate that rejects requests without a credential."""

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fssl.engines.flower.identity import AdmittedSite, Node, assign, fingerprint
from fssl.engines.flower.internals import FOR_OPERATORS, FOR_PROGRAMS, FOR_SITES
from fssl.engines.flower.superexec import SECRET, isolated, start_superexec
from fssl.engines.flower.superlink import Gate

SITES = (AdmittedSite("site-1", "k1"), AdmittedSite("site-2", "k2"), AdmittedSite("site-3", "k3"))
MESSAGES = FOR_SITES + "pull-messages"
REGISTER = FOR_OPERATORS + "register-node"
ACQUIRE = FOR_PROGRAMS + "acquire-task"


# Keys.


def numbers(*nodes: Node) -> dict[int, int]:
    return {client: node.number for client, node in assign(SITES, nodes).nodes.items()}


def test_a_site_is_known_by_its_key_whatever_its_node_is_called() -> None:
    assert numbers(Node(11, "k1", "site-1"), Node(33, "k3", "")) == {0: 11, 2: 33}
    assert numbers(Node(11, "k1", "site-3"), Node(33, "k3", "site-1")) == {0: 11, 2: 33}


def test_an_unadmitted_node_is_ignored_whatever_its_name() -> None:
    evil, other = Node(66, "evil", "site-3"), Node(77, "other", "guest")
    found = assign(SITES, [Node(11, "k1", "site-1"), evil, other])
    assert {client: node.number for client, node in found.nodes.items()} == {0: 11}
    assert (found.strangers, found.disputed) == ([evil, other], {})
    assert str(evil) == "node 66 (key evil, registered as 'site-3')"


def test_of_two_nodes_that_claim_a_site_neither_is_used() -> None:
    named = assign(SITES, [Node(33, "k3", "site-3"), Node(66, "evil", "site-3"), Node(11, "k1")])
    twice = assign(SITES, [Node(33, "k3"), Node(34, "k3"), Node(11, "k1")])
    for found in (named, twice):
        assert {client: node.number for client, node in found.nodes.items()} == {0: 11}
        assert found.disputed == {2: "2 nodes claim site-3, so none of them is used"}


def test_fingerprints_distinguish_keys() -> None:
    """Of the text 'abc', from the standard that defines SHA-256."""
    assert fingerprint(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert fingerprint(b"abd") != fingerprint(b"abc")


class Grid:
    """As much of Flower's grid as shows nodes and asks them."""

    def __init__(self, nodes: list[Any], said: dict[int, Any]) -> None:
        self.nodes, self.said = nodes, said

    def get_nodes(self) -> list[Any]:
        return self.nodes

    def get_node_ids(self) -> list[int]:
        return list(self.said)

    def send_and_receive(self, messages: list[Any], timeout: float) -> list[Any]:
        from flwr.app import ConfigRecord, RecordDict

        def reply(node: int) -> Any:
            said = self.said[node]
            content = RecordDict({} if said is None else {"who": ConfigRecord(said)})
            return SimpleNamespace(metadata=SimpleNamespace(src_node_id=node), content=content, has_error=lambda: False)

        return [reply(m.metadata.dst_node_id) for m in messages]


@pytest.fixture
def flwr() -> Any:
    return pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")


@pytest.mark.usefixtures("flwr")
def test_the_keys_are_those_that_flower_vouches_for() -> None:
    from flwr.proto.node_pb2 import NodeInfo

    from fssl.engines.flower.nodes import AdmittedNodes

    nodes = [
        NodeInfo(node_id=11, public_key=b"one", name="site-1", status="online"),
        NodeInfo(node_id=66, public_key=b"evil", name="site-2", status="online"),
        NodeInfo(node_id=33, public_key=b"three", status="online"),
        NodeInfo(node_id=67, public_key=b"evil too", name="site-3", status="online"),
    ]
    grid: Any = Grid(nodes, {})
    keys = (fingerprint(key) for key in (b"one", b"two", b"three"))
    sites = [AdmittedSite(f"site-{number}", key) for number, key in enumerate(keys, 1)]
    there = AdmittedNodes(grid, sites).of([0, 1, 2])
    assert there.nodes == {0: 11}
    assert there.why_not(1) == "not connected"
    assert there.why_not(2) == "2 nodes claim site-3, so none of them is used"


@pytest.mark.usefixtures("flwr")
def test_without_keys_nonsense_is_ignored_and_duplicates_are_not_used() -> None:
    from flwr.supercore.task_identity import TaskIdentity

    from fssl.engines.flower.nodes import AskedNodes

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # messages want to know who sends them
    said = {7: {"client": 1}, 8: {"client": "x"}, 9: {}, 10: {"client": 99}, 11: None}
    grid: Any = Grid([], said)
    assert AskedNodes(grid).of([0, 1, 2]).nodes == {1: 7}
    grid.said = {**said, 12: {"client": 2}, 13: {"client": 1}}
    there = AskedNodes(grid).of([0, 1, 2])
    assert there.nodes == {2: 12}
    assert there.why_not(1) == "2 nodes say that they are client 1, so none of them is used"


@pytest.mark.usefixtures("flwr")
def test_in_a_simulation_clients_are_shared_out_among_the_nodes() -> None:
    from fssl.engines.flower.nodes import AnyNode

    grid: Any = Grid([], {9: None, 5: None})
    assert AnyNode(grid).of([0, 1, 2, 7]) == ({0: 5, 1: 9, 2: 5, 7: 9}, {})


# The gate.


def answered(gate: Gate, path: str, *headers: tuple[bytes, bytes], peer: str = "127.0.0.1", kind: str = "http") -> Any:
    """The status of the answer, or how the connection was closed."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": kind, "path": path, "headers": list(headers), "client": (peer, 4321), "server": ("10.0.0.5", 8443)}
    asyncio.run(gate(scope, None, send))
    return sent[0].get("status", sent[0]["type"])


async def passed(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(passed, "secret", tmp_path / "open")


RIGHT = (b"authorization", b"Bearer secret")


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "10.0.0.5"])
def test_the_operator_needs_the_credential_on_this_machine_too(gate: Gate, peer: str) -> None:
    assert answered(gate, REGISTER, RIGHT, peer=peer) == 200
    wrong = [(), ((b"authorization", b"Bearer secre"),), ((b"authorization", b"secret"),), (RIGHT, RIGHT)]
    assert [answered(gate, REGISTER, *headers, peer=peer) for headers in wrong] == [401] * 4


@pytest.mark.parametrize("path", [REGISTER, FOR_OPERATORS + "start-run", ACQUIRE, "/docs", "/openapi.json", "/", ""])
@pytest.mark.parametrize("peer", ["10.0.0.6", "203.0.113.9", "2001:db8::1", "", "localhost"])
def test_the_network_gets_nothing_but_what_sites_need(gate: Gate, path: str, peer: str) -> None:
    assert answered(gate, path, RIGHT, peer=peer) == 404
    assert answered(gate, path, RIGHT, (b"x-forwarded-for", b"127.0.0.1"), peer=peer) == 404


def test_sites_come_in_once_they_are_admitted(gate: Gate) -> None:
    assert answered(gate, MESSAGES, peer="203.0.113.9") == 503  # for which a SuperNode tries again
    gate.mark.touch()
    assert answered(gate, MESSAGES, peer="203.0.113.9") == 200
    gate.mark.unlink()
    assert answered(gate, MESSAGES, peer="203.0.113.9") == 200  # until the program ends


def test_other_pages_and_kinds_of_connection_are_closed(gate: Gate) -> None:
    gate.mark.touch()
    assert answered(gate, ACQUIRE) == 200  # Flower asks its own programs for their secret
    assert [answered(gate, path, RIGHT) for path in ("/docs", "/v1/fleet", "/v1/control", "/V1/CONTROL/x")] == [404] * 4
    assert answered(gate, MESSAGES, kind="websocket") == "websocket.close"
    assert answered(gate, "", kind="lifespan") == 200


@pytest.mark.parametrize(("root", "how"), [("ca.crt", ["--root-certificates", "ca.crt"]), (None, ["--insecure"])])
def test_what_starts_apps_shows_a_secret_that_its_owner_alone_can_read(
    root: str | None, how: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("fssl.engines.flower.superexec.subprocess.Popen", started.append)
    secrets = set()
    for _ in range(2):
        start_superexec(tmp_path, "127.0.0.1:9091", root)
        assert (tmp_path / SECRET).stat().st_mode & 0o777 == 0o600
        secrets.add((tmp_path / SECRET).read_bytes())
    assert [len(secret) for secret in secrets] == [32, 32]
    shown = ["--superexec-auth-secret-file", str(tmp_path / SECRET)]
    where = ["--runtime-api-address", "127.0.0.1:9091", "--parent-pid", str(os.getpid())]
    assert [words[3:] for words in started] == [[*how, *where, *shown]] * 2
    assert isolated(tmp_path) == ["--isolation", "process", *shown]
