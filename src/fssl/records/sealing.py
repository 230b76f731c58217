"""A checksum of arrays and of facts about them, which a safetensors file holds among its metadata."""

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from ..system.files import parse_json

KEY = "fssl"  # of the facts among a file's metadata: a single one, because several would come in any order


class Content(NamedTuple):
    """One array of a file."""

    name: str
    kind: str  # such as torch.float32
    shape: tuple[int, ...]
    data: memoryview


def metadata_of(contents: Iterable[Content], facts: Mapping[str, Any]) -> dict[str, str]:
    """The metadata of a file of these arrays."""
    return {KEY: json.dumps({**facts, "sha256": content_sum(contents, facts)})}


def read_head(data: bytes) -> dict[str, str]:
    """The metadata of a file that the library has accepted."""
    head = parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return head.get("__metadata__") or {}  # the library takes null for none


def checked_facts(contents: Iterable[Content], metadata: Mapping[str, str]) -> dict[str, Any] | None:
    """The facts of a file, None of one that fssl did not write; ValueError if it is damaged."""
    text = metadata.get(KEY)
    try:
        facts = None if text is None else dict(parse_json(text.encode()))
    except TypeError as error:
        raise ValueError(str(error)) from None
    if facts is not None and facts.pop("sha256", None) != content_sum(contents, facts):
        raise ValueError("its checksum is wrong")
    return facts


def content_sum(contents: Iterable[Content], facts: Mapping[str, Any]) -> str:
    """A checksum of contents, whatever their layout in the file."""
    total = sha256(json.dumps(facts, sort_keys=True).encode())
    for name, kind, shape, data in sorted(contents):
        total.update(f"\n{name} {kind} {[*shape]}\n".encode())
        total.update(data)
    return total.hexdigest()
