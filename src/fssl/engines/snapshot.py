"""The state of a run after a round, and its conversion to and from a checkpoint."""

from typing import Any, NamedTuple

from ..errors import UserError
from ..records.checkpoint import Saved
from ..types import Server, State, Weights, take, unpacked
from .named_tensors import FormError, fill, named


class Snapshot(NamedTuple):
    """Everything a run needs to resume after a round; random streams are named, so they need no state."""

    round: int
    server: Server
    clients: dict[int, State]  # what clients keep; for clients that store it themselves, only its round
    velocity: State  # empty unless momentum is carried from client to client
    optimizer: State = {}  # state of the server's optimizer  # noqa: RUF012 (never changed in place)
    smooth: Weights = Weights({}, {})  # the smoothed model, if there is one
    training: State = {}  # the momentum of the server's training  # noqa: RUF012


def flat(snapshot: Snapshot) -> State:
    """Return the tensors that change in every round, under dotted names."""
    server = snapshot.server._replace(memory={})
    trees = {name: tree for name, tree in snapshot._asdict().items() if name not in ("round", "clients")}
    return named(**trees | {"server": server})


def parts(snapshot: Snapshot) -> dict[str, State]:
    """Return what changes only when a client participates: its state, and the server's memory of it."""
    groups = {"clients": snapshot.clients, "memory": snapshot.server.memory}
    return {f"{group}.{k}": state for group, states in groups.items() for k, state in states.items()}


def with_parts(snapshot: Snapshot, changed: dict[str, State]) -> Snapshot:
    """Return the snapshot with some of its parts replaced."""

    def group(name: str, states: dict[int, State]) -> dict[int, State]:
        return {k: changed.get(f"{name}.{k}", state) for k, state in states.items()}

    server = snapshot.server._replace(memory=group("memory", snapshot.server.memory))
    return snapshot._replace(server=server, clients=group("clients", snapshot.clients))


def restore(like: Snapshot, saved: Saved) -> Snapshot:
    """Return the snapshot that `flat` and `parts` saved."""

    def group(name: str) -> dict[int, State]:
        return {int(k.partition(".")[2]): state for k, state in saved.parts.items() if k.startswith(f"{name}.")}

    known = {"server": like.server._replace(memory={}), "optimizer": like.optimizer, "smooth": like.smooth}
    found = fitted(known, saved.tensors, "the checkpoint does not fit")
    velocity, training = (take(f"{name}.", saved.tensors) for name in ("velocity", "training"))
    server = found["server"]._replace(memory=group("memory"))
    snapshot = Snapshot(saved.round, server, group("clients"), velocity, found["optimizer"], found["smooth"], training)
    unknown = saved.tensors.keys() - flat(snapshot).keys()
    if unknown:
        raise UserError(f"the checkpoint does not fit: this version does not know {min(unknown)}")
    return snapshot


def fitted(like: Any, tensors: State, problem: str) -> Any:
    """Return records structured and ordered like `like`; reject tensors that do not fit."""
    # Files sort names, but compiled steps expect the model's order.
    try:
        return fill(like, tensors)
    except FormError as error:
        raise UserError(f"{problem}: {error} (another version?)") from None


def models_in(tensors: State) -> tuple[Server, Weights]:
    """Return the server and the smoothed model of a checkpoint, without checking them against a network."""
    server = Server(unpacked("server.weights.", tensors), take("server.extras.", tensors))
    return server, unpacked("smooth.", tensors)
