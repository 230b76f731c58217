"""The state of a run after a round, and how a checkpoint takes it apart and puts it together again."""

from typing import Any, NamedTuple

from ..errors import UserError
from ..records.checkpoint import Saved
from ..types import Server, State, Weights, take, unpacked
from .named_tensors import FormError, fill, named


class Snapshot(NamedTuple):
    """Everything a run needs to go on after a round; random streams are named, so they need no state."""

    round: int
    server: Server
    clients: dict[int, State]  # what clients keep; of those that keep it themselves, the round it is of
    velocity: State  # empty unless momentum is carried from client to client
    optimizer: State = {}  # what the server's optimizer remembers  # noqa: RUF012 (never changed in place)
    smooth: Weights = Weights({}, {})  # the smoothed model, if there is one
    training: State = {}  # what the server keeps of its own training: its momentum  # noqa: RUF012


def flat(snapshot: Snapshot) -> State:
    """What changes in every round."""
    server = snapshot.server._replace(memory={})
    trees = {name: tree for name, tree in snapshot._asdict().items() if name not in ("round", "clients")}
    return named(**trees | {"server": server})


def parts(snapshot: Snapshot) -> dict[str, State]:
    """What changes only when a client takes part: its own state, and what the server remembers of it."""
    groups = {"clients": snapshot.clients, "memory": snapshot.server.memory}
    return {f"{group}.{k}": state for group, states in groups.items() for k, state in states.items()}


def with_parts(snapshot: Snapshot, changed: dict[str, State]) -> Snapshot:
    """The snapshot with some of its parts replaced."""

    def group(name: str, states: dict[int, State]) -> dict[int, State]:
        return {k: changed.get(f"{name}.{k}", state) for k, state in states.items()}

    server = snapshot.server._replace(memory=group("memory", snapshot.server.memory))
    return snapshot._replace(server=server, clients=group("clients", snapshot.clients))


def restore(like: Snapshot, saved: Saved) -> Snapshot:
    """The snapshot that `flat` and `parts` took apart."""

    def group(name: str) -> dict[int, State]:
        return {int(k.partition(".")[2]): state for k, state in saved.parts.items() if k.startswith(f"{name}.")}

    known = {"server": like.server._replace(memory={}), "optimizer": like.optimizer, "smooth": like.smooth}
    found = fitted(known, saved.tensors, "the checkpoint does not fit")
    velocity, training = (take(f"{name}.", saved.tensors) for name in ("velocity", "training"))
    server = found["server"]._replace(memory=group("memory"))
    snapshot = Snapshot(saved.round, server, group("clients"), velocity, found["optimizer"], found["smooth"], training)
    unknown = saved.tensors.keys() - flat(snapshot).keys()
    if unknown:
        raise UserError(f"the checkpoint does not fit: nothing is called {min(unknown)} here (another version?)")
    return snapshot


def fitted(like: Any, tensors: State, refusal: str) -> Any:
    """Records of the same form as `like`; what does not fit is refused.

    Their order is that of `like`: files sort names, compiled steps expect the model's order.
    """
    try:
        return fill(like, tensors)
    except FormError as error:
        raise UserError(f"{refusal}: {error} (another version?)") from None


def models_in(tensors: State) -> tuple[Server, Weights]:
    """The server and the smoothed model of a checkpoint, as they are: it says nothing of their network."""
    server = Server(unpacked("server.weights.", tensors), take("server.extras.", tensors))
    return server, unpacked("smooth.", tensors)
