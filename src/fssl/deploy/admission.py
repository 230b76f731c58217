"""Admission of sites: the server's operator admits keys, and gets a report of every node with another key."""

from collections.abc import Callable
from typing import NamedTuple

from ..engines.flower.identity import Node, assign
from ..engines.flower.internals import ONLINE, UNREGISTERED
from ..errors import UserError
from ..records.audit import TRAIL, append
from .control import CONNECTION, flwr, is_insecure, nodes
from .home import ServerPart
from .keys import admitted_sites, kept_keys

REMEDY = "The server withdraws keys that are not in its folder keys when it starts"


def admit(part: ServerPart, say: Callable[[str], None]) -> None:
    """Register the sites' keys that the server does not know, and withdraw those that were removed from its folder."""
    sites, kept, known = admitted_sites(part), kept_keys(part), nodes(part)
    there = {node.key: node for node in known if node.status != UNREGISTERED}
    gone = {node.key for node in known} - set(there)
    for site in sites:  # before anything is withdrawn, which cannot be undone
        if site.key in gone:
            again = (
                f"remove {part.keys / site.name}.pub and the site's key, call `fssl deploy keys`, hand the new key over"
            )
            raise UserError(
                f"{site.name}: this key was withdrawn, and Flower never accepts a withdrawn key again; {again}"
            )
    for node in there.values():
        if node.key not in kept:
            append(part.folder / TRAIL, "withdrawn", site=node.name, key=node.key)
            flwr(part, "supernode", "unregister", str(node.number), CONNECTION)
            say(f"withdrawn: {node}, whose key is not in {part.keys}")
    for site in sites:
        if site.key not in there:
            public = str(part.keys / f"{site.name}.pub")
            append(part.folder / TRAIL, "admitted", site=site.name, key=site.key)
            flwr(part, "supernode", "register", public, CONNECTION, "--name", site.name)
    say(f"admitted: {', '.join(part.sites)}")


class AdmittedSite(NamedTuple):
    """A line of the list of sites."""

    site: str
    client: str
    status: str
    since: str


def look(part: ServerPart) -> tuple[list[AdmittedSite], list[str]]:
    """Return the sites and their connections, and notices about other nodes."""
    there = [node for node in nodes(part) if node.status != UNREGISTERED]
    if is_insecure(part):
        keyless = [
            AdmittedSite("without a key", "?", node.status, node.since) for node in there if node.status == ONLINE
        ]
        return [AdmittedSite(name, str(client), "", "") for client, name in enumerate(part.sites)] + keyless, []
    sites = admitted_sites(part)
    online = assign(sites, (node for node in there if node.status == ONLINE))
    by_key = {node.key: node for node in there}
    rows = []
    for client, site in enumerate(sites):
        node = by_key.get(site.key, Node(0, site.key, status="not admitted"))
        rows.append(
            AdmittedSite(site.name, str(client), "DISPUTED" if client in online.disputed else node.status, node.since)
        )
    strangers = assign(sites, there).strangers
    rows += [AdmittedSite("STRANGER", "–", node.status, node.since) for node in strangers]
    warnings = [f"client {client}: {why}" for client, why in online.disputed.items()]
    warnings += [f"{node} is not one of the sites, so it gets no messages. {REMEDY}" for node in strangers]
    return rows, warnings
