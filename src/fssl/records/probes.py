"""The probes of a round in a file of their own: arrays by client, for figures that need more than sums."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ..system.files import write_atomic
from .sealing import Content, checked_facts, metadata_of, read_head

Arrays = Mapping[str, NDArray[np.float32]]


def write_probes(path: Path, round: int, arrays: Arrays) -> None:
    write_atomic(path, save({**arrays}, metadata_of(typed_arrays(arrays), {"round": round})))


def read_probe(path: Path, name: str) -> NDArray[np.float64] | None:
    """An array by bin or class of a round's probes, summed over clients; empty if there is none, None if damaged."""
    if not path.is_file():
        return np.zeros(0)
    try:
        data = path.read_bytes()
        arrays = load(data)  # refuses a damaged head
        facts = checked_facts(typed_arrays(arrays), read_head(data))
    except (OSError, SafetensorError, LookupError, ValueError):
        return None
    if not facts or facts.get("round") != int(path.stem):
        return None
    if name not in arrays:
        return np.zeros(0)
    total = arrays[name].astype(np.float64).sum(0)
    return total if total.ndim == 1 and np.isfinite(total).all() else None


def typed_arrays(arrays: Arrays) -> list[Content]:
    """Return the arrays under torch's names of their types: a file does not depend on the library that wrote it."""
    return [Content(name, f"torch.{a.dtype}", a.shape, a.reshape(-1).view(np.uint8).data) for name, a in arrays.items()]
