"""Nested records of tensors: moved between devices, and flattened under dotted names."""

from typing import Any

import torch
from torch.utils._pytree import tree_map

from ..types import State


def to(tree: Any, device: torch.device | str) -> Any:
    """On the device the engine computes on; nothing waits for it."""
    return tree_map(lambda t: t if t is None else t.to(device, non_blocking=True), tree)


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
