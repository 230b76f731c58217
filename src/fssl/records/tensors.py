"""Files of tensors and facts that detect changes by a checksum."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save
from torch import Tensor

from .sealing import Content, checked_facts, metadata_of, read_head

Tensors = dict[str, Tensor]


def as_bytes(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Return tensors of any device as bytes in safetensors format."""
    return save({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, metadata)


def mapped(path: Path) -> Tensors:
    """Return the tensors of a file, read on access; immediately if its name is not UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError:  # the library cannot open such a name
        return load(path.read_bytes())
    return load_file(path)


def sealed(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> bytes:
    """Return a safetensors file with its own checksum, and facts about its tensors, in its metadata."""
    held = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    return as_bytes(held, metadata_of(contents(held), facts))


def read_tensors(path: Path) -> tuple[Tensors, dict[str, str]]:
    """Read the tensors and the metadata of a safetensors file; the library itself opens only names in UTF-8."""
    data = path.read_bytes()
    return load(data), read_head(data)  # the first rejects a damaged head


class Unsealed(NamedTuple):
    """A file's tensors and facts; the facts are None if it has no checksum, since fssl did not write it."""

    tensors: Tensors
    facts: dict[str, Any] | None


def unseal(path: Path) -> Unsealed:
    """Read a safetensors file; raise ValueError if it is damaged."""
    try:
        tensors, metadata = read_tensors(path)
        return Unsealed(tensors, checked_facts(contents(tensors), metadata))
    except (SafetensorError, ValueError) as error:
        raise ValueError(str(error).partition("\n")[0]) from None


def contents(tensors: Mapping[str, Tensor]) -> list[Content]:
    return [
        Content(name, str(t.dtype), tuple(t.shape), t.reshape(-1).view(torch.uint8).numpy().data)
        for name, t in tensors.items()
    ]
