"""The state of a run after a round, and how a checkpoint takes it apart and puts it together again."""

from typing import NamedTuple

from ..errors import UserError
from ..records.checkpoint import Saved
from ..types import Server, State, Weights, take
from .tensors import named


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

    params, buffers = (take(f"server.weights.{kind}.", saved.tensors) for kind in Weights._fields)
    weights = Weights(in_order(like.server.weights.params, params), in_order(like.server.weights.buffers, buffers))
    server = Server(weights, in_order(like.server.extras, take("server.extras.", saved.tensors)), group("memory"))
    optimizer = in_order(like.optimizer, take("optimizer.", saved.tensors))
    smooth = Weights(
        *(in_order(tree, take(f"smooth.{kind}.", saved.tensors)) for kind, tree in like.smooth._asdict().items())
    )
    velocity, training = (take(f"{name}.", saved.tensors) for name in ("velocity", "training"))
    snapshot = Snapshot(saved.round, server, group("clients"), velocity, optimizer, smooth, training)
    unknown = saved.tensors.keys() - flat(snapshot).keys()
    if unknown:
        raise UserError(f"the checkpoint does not fit: nothing is called {min(unknown)} here (another version?)")
    return snapshot


def in_order(like: State, tree: State, refusal: str = "the checkpoint does not fit") -> State:
    """The same entries in the order of another dict: files sort names, compiled steps expect the model's order."""
    for name, tensor in like.items():
        if name not in tree or tree[name].shape != tensor.shape:
            raise UserError(f"{refusal}: {name} is missing or has another shape (another version?)")
        if tree[name].dtype != tensor.dtype:
            raise UserError(f"{refusal}: {name} is {tree[name].dtype}, expected {tensor.dtype}")
    return {name: tree[name] for name in like}
