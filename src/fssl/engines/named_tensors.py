"""Nested records of tensors: moved between devices, and flattened under dotted names."""

from typing import Any

import torch
from torch.utils._pytree import tree_map

from ..types import State


def to(tree: Any, device: torch.device | str) -> Any:
    """Nested records with their tensors on a device; nothing waits for it."""
    return tree_map(lambda t: t.to(device, non_blocking=True) if isinstance(t, torch.Tensor) else t, tree)


def pinned(tree: Any) -> Any:
    return tree_map(lambda t: t if t is None else t.pin_memory(), tree)


def named(**trees: Any) -> State:
    """Tensors of nested records under dotted names."""
    flat: State = {}
    for name, tree in trees.items():
        if isinstance(tree, torch.Tensor):
            flat[name] = tree.clone(memory_format=torch.contiguous_format)
            continue
        items = tree.items() if isinstance(tree, dict) else tree._asdict().items()
        for key, value in items:
            flat |= named(**{f"{name}.{key}": value})
    return flat


class FormError(ValueError):
    """Tensors that are not of the expected names, shapes or types, and why."""


def fill(like: Any, flat: State, name: str = "") -> Any:
    """Nested records of the same form as `like`, with tensors by their dotted names and in the order of `like`.

    A transport may reorder names; sums over a model's tensors depend on their order in the last bit.
    """
    if isinstance(like, torch.Tensor):
        given = flat.get(name)
        if given is None:
            raise FormError(f"{name} is missing")
        if given.shape != like.shape or given.dtype != like.dtype:
            raise FormError(
                f"{name} is {given.dtype} of shape {list(given.shape)}, expected {like.dtype} of {list(like.shape)}"
            )
        return given
    dot = f"{name}." if name else ""
    if isinstance(like, dict):
        return {key: fill(value, flat, dot + key) for key, value in like.items()}
    return type(like)(*(fill(value, flat, dot + key) for key, value in like._asdict().items()))
