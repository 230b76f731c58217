"""The identity of nodes: a node is a site by its admitted key, never by what it claims."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class AdmittedSite(NamedTuple):
    """A site that the server's operator admitted."""

    name: str
    key: str  # fingerprint


class Node(NamedTuple):
    """Flower's facts about a node. Only the key is verified."""

    number: int
    key: str  # fingerprint
    name: str = ""  # chosen when the key was registered
    status: str = ""
    since: str = ""

    def __str__(self) -> str:
        named = f", registered as '{self.name}'" if self.name else ""
        return f"node {self.number} (key {self.key[:16]}{named})"


class Assignment(NamedTuple):
    """The node of each client that has one, clients that two nodes claim, and nodes whose key is not admitted."""

    nodes: dict[int, Node]
    disputed: dict[int, str]
    strangers: list[Node]


def fingerprint(key: bytes) -> str:
    """Return a short name of a public key; two keys never share one."""
    return hashlib.sha256(key).hexdigest()


def assign(sites: Sequence[AdmittedSite], nodes: Iterable[Node]) -> Assignment:
    """Return the clients' nodes. If two nodes claim one site, neither is used."""
    nodes = list(nodes)
    admitted = {site.key for site in sites}
    strangers = [node for node in nodes if node.key not in admitted]
    used, disputed = {}, {}
    for client, site in enumerate(sites):
        own = [node for node in nodes if node.key == site.key]
        claims = own + [node for node in strangers if node.name == site.name]
        if own and len(claims) > 1:
            disputed[client] = f"{len(claims)} nodes claim {site.name}, so none of them is used"
        elif own:
            used[client] = own[0]
    return Assignment(used, disputed, strangers)
