"""Flower's SuperLink behind a gate: the network reaches only what sites need.

A SuperLink of Flower 1.41 has one port for sites, for its operator and for its own programs, and no credential for the
operator: any client of the port could register a key under any name, and order runs of every site.

    python -m fssl.engines.flower.superlink FOLDER ADDRESS [options of flower-superlink]

FOLDER holds the operator's token, and a mark once sites are admitted. ADDRESS is the server's on this machine.
"""

import hmac
import ipaddress
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

from .internals import FOR_OPERATORS, FOR_PROGRAMS, FOR_SITES, run_superlink
from .superexec import isolated, start_superexec

TOKEN, OPEN = "operator", "open"  # files: the operator's token, and a mark once sites may come in
Scope = MutableMapping[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Rejection(NamedTuple):
    """An HTTP status, and a sentence."""

    code: int
    text: str


class Gate:
    """Passes requests to an ASGI app: sites' once it is open, others' from this machine, with a credential."""

    def __init__(self, app: Callable[..., Awaitable[None]], token: str, mark: Path) -> None:
        self.app, self.mark = app, mark
        self.expected = f"Bearer {token}".encode()
        self._is_open = False

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        rejection = None if scope["type"] == "lifespan" else self.rejection(scope)
        if rejection is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await reject(send, rejection)
        else:
            await send({"type": "websocket.close"})

    def rejection(self, scope: Scope) -> Rejection | None:
        """Return why a request is rejected, or None."""
        path = scope["path"] if scope["type"] == "http" else ""
        if path.startswith(FOR_SITES):
            return None if self.is_open else Rejection(503, "the server is admitting its sites")
        if not is_local(scope):
            return Rejection(404, "only sites are served here")
        if path.startswith(FOR_PROGRAMS):
            return None  # they show the secret, or a token that they got for it
        if not path.startswith(FOR_OPERATORS):
            return Rejection(404, "there is no such page")
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) == 1 and hmac.compare_digest(given[0], self.expected):
            return None
        return Rejection(401, "only the server's operator may do this")

    @property
    def is_open(self) -> bool:
        self._is_open = self._is_open or self.mark.exists()
        return self._is_open


def is_local(scope: Scope) -> bool:
    """Return whether a request comes from this machine: from a loopback address, or from the one it was sent to."""
    (peer, *_), (own, *_) = scope.get("client") or [""], scope.get("server") or [""]
    try:
        return ipaddress.ip_address(peer).is_loopback or peer == own
    except ValueError:
        return False


async def reject(send: Send, rejection: Rejection) -> None:
    body = f"{rejection.text}\n".encode()
    headers = [
        (b"content-type", b"text/plain"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": rejection.code, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    folder, address, words = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    token = (folder / TOKEN).read_text()
    root = words[words.index("--ssl-ca-certfile") + 1] if "--ssl-ca-certfile" in words else None
    start_superexec(folder, address, root)
    run_superlink([*words, *isolated(folder)], lambda app: Gate(app, token, folder / OPEN))


if __name__ == "__main__":
    main()
