"""Tensors as bytes of a file, and whether a file still holds the bytes that were written."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

Tensors = dict[str, Tensor]


def packed(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors of any device as bytes in safetensors format."""
    return save({name: t.detach().cpu().contiguous() for name, t in tensors.items()})


def checksum(data: bytes) -> str:
    return sha256(data).hexdigest()


def read_intact(path: Path, expected: object) -> bytes | None:
    """The bytes of a file; None if it is missing or its checksum differs."""
    data = path.read_bytes() if path.is_file() else b""
    return data if checksum(data) == expected else None
