"""The node of each client: any node in a simulation; in a deployment the one with the site's key."""

import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from .identity import AdmittedSite, assign
from .internals import as_node


class Connected(NamedTuple):
    """The nodes of connected clients, and the reasons why other nodes are not used."""

    nodes: dict[int, int]
    disputed: dict[int, str]

    def why_not(self, client: int) -> str:
        return self.disputed.get(client, "not connected")


class Nodes(Protocol):
    """Finds the node that trains each of these clients."""

    def of(self, clients: list[int]) -> Connected: ...


class AnyNode:
    """In a simulation every node can train every client."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def of(self, clients: list[int]) -> Connected:
        while not (ids := sorted(self.grid.get_node_ids())):
            time.sleep(0.05)  # nodes are being registered
        return Connected({client: ids[client % len(ids)] for client in clients}, {})


class AdmittedNodes:
    """Sites whose keys the server's operator admitted: Flower lets no node in without its key."""

    def __init__(self, grid: Grid, sites: Sequence[AdmittedSite]) -> None:
        self.grid, self.sites = grid, sites

    def of(self, clients: list[int]) -> Connected:
        found = assign(self.sites, map(as_node, self.grid.get_nodes()))
        return Connected({k: found.nodes[k].number for k in clients if k in found.nodes}, found.disputed)


class AskedNodes:
    """Without keys, each node is asked once which client it is."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._clients: dict[int, int] = {}

    def of(self, clients: list[int]) -> Connected:
        ids = list(self.grid.get_node_ids())
        new = [
            Message(RecordDict(), dst_node_id=i, message_type=MessageType.QUERY) for i in ids if i not in self._clients
        ]
        for reply in self.grid.send_and_receive(new, timeout=120) if new else []:
            if not reply.has_error():
                self._clients[reply.metadata.src_node_id] = claimed_client(reply.content)
        claims = {client: [i for i in ids if self._clients.get(i) == client] for client in clients}
        disputed = {
            client: f"{len(nodes)} nodes say that they are client {client}, so none of them is used"
            for client, nodes in claims.items()
            if len(nodes) > 1
        }
        return Connected({client: nodes[0] for client, nodes in claims.items() if len(nodes) == 1}, disputed)


def claimed_client(content: RecordDict) -> int:
    """Return the client that a node claims to be, or -1 if it claims none."""
    said = content["who"].get("client") if "who" in content else None
    return said if type(said) is int else -1


def numbers(clients: set[int]) -> str:
    return f"client{'s' if len(clients) > 1 else ''} {', '.join(map(str, sorted(clients)))}"
