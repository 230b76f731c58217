"""Several models in one dict of tensors: each under a prefix of its own."""

from ..types import State


def put(prefix: str, tree: State) -> State:
    """The same tensors under longer names."""
    return {prefix + name: t for name, t in tree.items()}


def take(prefix: str, tree: State) -> State:
    """What lies under a prefix, by the names it had before."""
    return {name.removeprefix(prefix): t for name, t in tree.items() if name.startswith(prefix)}


def drop(prefix: str, tree: State) -> State:
    """Everything else."""
    return {name: t for name, t in tree.items() if not name.startswith(prefix)}
