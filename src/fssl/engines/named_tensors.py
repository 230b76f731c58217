"""Nested records of tensors: moved between devices, and flattened under dotted names."""

from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from ..types import State

APART = 256  # bytes between the beginnings of tensors in one piece: kernels read several numbers at a time


def to(tree: Any, device: torch.device | str) -> Any:
    """Return nested records with their tensors on a device, without waiting for the copies."""
    return tree_map(lambda t: t.to(device, non_blocking=True) if isinstance(t, torch.Tensor) else t, tree)


def pinned(tree: Any) -> Any:
    return tree_map(lambda t: t if t is None else t.pin_memory(), tree)


def overwrite(target: Any, source: Any, known: Any = None) -> None:
    """Overwrite nested records of tensors with others, matching entries by name.

    The sources may lie on the host, and a client's draws may be shorter than the buffers.

    Args:
        target: The records to overwrite.
        source: The records to copy; nothing is copied if this is the target.
        known: The records copied there before; the same object is not copied again.
    """
    if source is target or source is known:
        return
    if isinstance(target, torch.Tensor):
        part = target[: len(source)] if target.dim() and len(target) != len(source) else target
        part.copy_(source, non_blocking=True)
    elif isinstance(target, dict):
        for name, value in target.items():
            overwrite(value, source[name], known and known[name])
    else:
        for i, value in enumerate(target):
            overwrite(value, source[i], known and known[i])


class InOnePiece:
    """Nested records of tensors in one piece of memory, so that one copy from the host updates them all."""

    def __init__(self, like: Any, device: torch.device) -> None:
        """Allocate memory for records like these, which must be the largest."""
        leaves, self._form = tree_flatten(like)
        *self._starts, size = accumulate((-(-t.nbytes // APART) * APART for t in leaves), initial=0)
        self._piece = torch.zeros(size, dtype=torch.uint8, device=device)
        parts = (self._piece[start:][: t.nbytes] for start, t in zip(self._starts, leaves, strict=False))
        views = [part.view(t.dtype).view(t.shape) for part, t in zip(parts, leaves, strict=True)]
        self.tree = tree_unflatten(views, self._form)

    def fill(self, tree: Any) -> None:
        """Copy records, which may have fewer rows, without waiting for the device if all of them lie on the host."""
        leaves = self._form.flatten_up_to(tree)
        if not all(leaf.is_cpu for leaf in leaves):
            overwrite(self.tree, tree)
            return
        host = torch.empty(self._piece.shape, dtype=torch.uint8, pin_memory=True)
        numbers = host.numpy()
        for start, leaf in zip(self._starts, leaves, strict=True):
            numbers[start : start + leaf.nbytes] = leaf.contiguous().numpy().reshape(-1).view(np.uint8)
        self._piece.copy_(host, non_blocking=True)


def named(**trees: Any) -> State:
    """Return the tensors of nested records under dotted names."""
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
    """Tensors lack an expected name, shape or type."""


def fill(like: Any, flat: State, name: str = "") -> Any:
    """Return nested records structured and ordered like `like`, with tensors by their dotted names."""
    # A transport may reorder names, and the last bit of a sum over a model's tensors depends on their order.
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
