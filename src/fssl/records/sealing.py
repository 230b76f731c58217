"""Files that contain their own checksum: facts in JSON, and arrays in safetensors with facts in the metadata."""

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ..system.files import parse_json, read_json, short_sum, write_atomic

Arrays = Mapping[str, NDArray[np.float32]]
KEY = "fssl"  # of the facts in a file's metadata: a single key, because the order of several would vary


class Content(NamedTuple):
    """One array of a file."""

    name: str
    kind: str  # such as torch.float32
    shape: tuple[int, ...]
    data: memoryview


def metadata_of(contents: Iterable[Content], facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the metadata of a file of these arrays."""
    return {KEY: json.dumps({**facts, "sha256": content_sum(contents, facts)})}


def read_head(data: bytes) -> dict[str, str]:
    """Return the metadata of a file that the library has accepted."""
    head = parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return head.get("__metadata__") or {}  # the library accepts null as none


def checked_facts(contents: Iterable[Content], metadata: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the facts of a file; None if fssl did not write it. Raise ValueError if it is damaged."""
    text = metadata.get(KEY)
    try:
        facts = None if text is None else dict(parse_json(text.encode()))
    except TypeError as error:
        raise ValueError(str(error)) from None
    if facts is not None and facts.pop("sha256", None) != content_sum(contents, facts):
        raise ValueError("its checksum does not match")
    return facts


def content_sum(contents: Iterable[Content], facts: Mapping[str, Any]) -> str:
    """Return a checksum of contents, independent of their layout in the file."""
    total = sha256(json.dumps(facts, sort_keys=True).encode())
    for name, kind, shape, data in sorted(contents):
        total.update(f"\n{name} {kind} {[*shape]}\n".encode())
        total.update(data)
    return total.hexdigest()


# Facts in JSON files, with a checksum against changed digits.


def write_facts(path: Path, facts: Mapping[str, Any], indent: int | None = None) -> None:
    write_atomic(path, json.dumps({**facts, "check": sum_of(facts)}, indent=indent) + "\n")


def read_facts(path: Path) -> dict[str, Any]:
    """Return the facts in a file; `{}` if it is missing or damaged."""
    facts = read_json(path)
    return facts if facts.pop("check", None) == sum_of(facts) else {}


def sum_of(facts: Mapping[str, Any]) -> str:
    return short_sum(json.dumps(facts, sort_keys=True).encode())


# The probes of a round in a separate file: arrays by client, for figures that need more than sums.


def write_probes(path: Path, round: int, arrays: Arrays) -> None:
    write_atomic(path, save({**arrays}, metadata_of(typed_arrays(arrays), {"round": round})))


def read_probe(path: Path, name: str) -> NDArray[np.float64] | None:
    """Return an array of a round's probes, summed over clients; empty if there is none, None if damaged."""
    if not path.is_file():
        return np.zeros(0)
    try:
        data = path.read_bytes()
        arrays = load(data)  # raises if the head is damaged
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
    """Return the arrays under torch's names of their types, so that the file does not depend on the library."""
    return [Content(name, f"torch.{a.dtype}", a.shape, a.reshape(-1).view(np.uint8).data) for name, a in arrays.items()]
