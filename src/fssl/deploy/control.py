"""The operator's access to a server: a credential, the `flwr` command, and the nodes that the server knows."""

import json
import secrets
import ssl
import subprocess
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any

from ..config import load_toml, to_toml
from ..engines.flower.identity import Node
from ..engines.flower.internals import (
    ACQUIRE_TASK,
    LIST_NODES,
    UNAUTHORIZED,
    UNAVAILABLE,
    credentials,
    lacks_connection,
    registered_nodes,
)
from ..engines.flower.superlink import OPEN, TOKEN
from ..errors import RunError, UserError
from ..system.files import write_atomic
from .home import ServerPart
from .programs import program, program_environment, require_file

CONNECTION = "deployment"
MOST = 300  # letters of an error message of Flower
NOT_STARTED = "the server has not been started yet; start it with `fssl deploy server`"


def close_gate(server: ServerPart) -> None:
    """Make a new credential for the operator, as at every start, and keep sites out until they are admitted."""
    server.flower.mkdir(mode=0o700, exist_ok=True)
    (server.flower / OPEN).unlink(missing_ok=True)
    write_atomic(server.flower / TOKEN, secrets.token_hex(32), mode=0o600)


def open_gate(server: ServerPart) -> None:
    """Let sites connect from now on."""
    (server.flower / OPEN).touch()


def connect(server: ServerPart, insecure: bool) -> None:
    """Write the server's address and the operator's credential into the `flwr` command's configuration."""
    table: dict[str, Any] = {"address": server.address}
    table |= {"insecure": True} if insecure else {"root-certificates": str(require_file(server.keys / "ca.crt"))}
    kept = json.dumps(credentials(table["address"], read_token(server)))  # Flower reads YAML, of which JSON is a part
    write_atomic(server.flower / "credentials.yaml", kept, mode=0o600)
    text = to_toml({"superlink": {"default": CONNECTION}, f"superlink.{CONNECTION}": table})
    write_atomic(server.flower / "config.toml", text)


def read_token(server: ServerPart) -> str:
    path = server.flower / TOKEN
    return path.read_text() if path.is_file() else ""


def check_gate(server: ServerPart, insecure: bool) -> None:
    """Try what only the operator and Flower's own programs may do; raise if the server allows it without credential."""
    trust = None if insecure else ssl.create_default_context(cafile=str(server.keys / "ca.crt"))
    for path in (LIST_NODES, ACQUIRE_TASK):
        code = answer_to_anyone(server, path, trust)
        if code != 401:
            raise RunError(f"the server does not reject strangers ({path}: status {code}), so it was stopped")


def answer_to_anyone(server: ServerPart, path: str, trust: ssl.SSLContext | None) -> int:
    """Return the status of the answer to a request without any credential."""
    host, _, port = server.address.rpartition(":")
    link = HTTPSConnection(host, int(port), timeout=30, context=trust) if trust else HTTPConnection(host, int(port), 30)
    try:
        link.request("POST", path, headers={"Content-Type": "application/protobuf"})
        return link.getresponse().status
    except (OSError, HTTPException) as error:
        raise RunError(f"the server does not answer at {server.address} ({error})") from None
    finally:
        link.close()


def flwr(server: ServerPart, *words: str, seconds: float = 120) -> dict[str, Any]:
    """Run the `flwr` command; return its JSON answer."""
    command = [program("flwr"), *words, "--format", "json"]
    try:
        done = subprocess.run(
            command,
            env=program_environment(server.folder),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"`flwr {' '.join(words)}` took more than {seconds:.0f} s") from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError:
        answer = {"success": False, "error-message": done.stdout + done.stderr}
    if answer.get("success", True):
        return answer
    reason = " ".join(str(answer.get("error-message", answer)).split())
    if UNAVAILABLE in reason:
        raise RunError(no_answer(server))
    if UNAUTHORIZED in reason:
        raise RunError(not_the_operator(server))
    if lacks_connection(reason, CONNECTION):
        raise RunError(NOT_STARTED)
    end = reason if len(reason) <= MOST else "… " + reason[-MOST:].partition(" ")[2]
    raise RunError(f"`flwr {' '.join(words[:2])}` failed: {end}")


def no_answer(server: ServerPart) -> str:
    return f"the server does not answer at {server.address}; is `fssl deploy server` running?"


def not_the_operator(server: ServerPart) -> str:
    return f"the server at {server.address} was not started from {server.folder}, so it rejects this command"


def nodes(server: ServerPart) -> list[Node]:
    """Return the nodes that the server knows."""
    root = None if is_insecure(server) else require_file(server.keys / "ca.crt").read_bytes()
    try:
        return registered_nodes(server.address, root, read_token(server))
    except PermissionError:
        raise RunError(not_the_operator(server)) from None
    except ConnectionError:
        raise RunError(no_answer(server)) from None


def is_insecure(server: ServerPart) -> bool:
    """Return whether the server was started without keys."""
    if not read_token(server):
        raise RunError(NOT_STARTED)
    table = load_toml(server.flower / "config.toml", "config.toml")["superlink"][CONNECTION]
    return bool(table.get("insecure"))


def check_security(server: ServerPart, insecure: bool) -> None:
    """Raise unless the server was started in the manner asked for, with or without keys."""
    if is_insecure(server) != insecure:
        there, here = ("with", "add") if is_insecure(server) else ("without", "remove")
        raise UserError(f"the server was started {there} --insecure; {here} --insecure here too")
