"""Tensors and facts as files that tell whether they are still what was written."""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save
from torch import Tensor

from ..system.files import parse_json

Tensors = dict[str, Tensor]
KEY = "fssl"  # of the facts among a file's metadata: a single one, because several would come in any order


def as_bytes(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Tensors of any device as bytes in safetensors format."""
    return save({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, metadata)


def checksum(data: bytes) -> str:
    return sha256(data).hexdigest()


def read_intact(path: Path, expected: object) -> bytes | None:
    """The bytes of a file; None if it is missing or its checksum differs."""
    data = path.read_bytes() if path.is_file() else b""
    return data if checksum(data) == expected else None


def mapped(path: Path) -> Tensors:
    """The tensors of a file, which the system reads when they are looked at; at once, if its name is not UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError:  # the library opens no such name
        return load(path.read_bytes())
    return load_file(path)


def sealed(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> bytes:
    """A safetensors file that holds its own checksum, and facts about its tensors, in its metadata."""
    held = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    return as_bytes(held, {KEY: json.dumps({**facts, "sha256": content_sum(held, facts)})})


def read_tensors(path: Path) -> tuple[Tensors, dict[str, str]]:
    """The tensors and the metadata of a safetensors file, whatever its name: the library opens only names in UTF-8."""
    data = path.read_bytes()
    tensors = load(data)  # refuses a damaged head
    head = parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return tensors, head.get("__metadata__") or {}  # the library takes null for none


class Unsealed(NamedTuple):
    """A file's tensors and facts; the facts are None if it has no checksum, as files of earlier versions."""

    tensors: Tensors
    facts: dict[str, Any] | None


def unseal(path: Path) -> Unsealed:
    """Read a safetensors file; raise ValueError if it is damaged."""
    try:
        tensors, metadata = read_tensors(path)
        text = metadata.get(KEY)
        facts = None if text is None else dict(parse_json(text.encode()))
    except (SafetensorError, ValueError, TypeError) as error:
        raise ValueError(str(error).partition("\n")[0]) from None
    if facts is not None and facts.pop("sha256", None) != content_sum(tensors, facts):
        raise ValueError("its checksum is wrong")
    return Unsealed(tensors, facts)


def content_sum(tensors: Tensors, facts: Mapping[str, Any]) -> str:
    """A checksum of contents, whatever their layout in the file."""
    total = sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(tensors):
        t = tensors[name]
        total.update(f"\n{name} {t.dtype} {list(t.shape)}\n".encode())
        total.update(t.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
