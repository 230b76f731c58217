"""Decoded images on disk: built once by any number of processes, never half-written, mapped afterwards."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from ..system.files import at_home, atomic

Progress = Callable[[str, int, int], None]  # stage, done, total
DEFAULT = Path("~/.cache/fssl")


def cache_folder(given: Path | None) -> Path:
    return given or from_environment("FSSL_CACHE") or at_home(DEFAULT, "set FSSL_CACHE to the folder of the cache")


def from_environment(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return at_home(Path(value)) if value else None


def open_images(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
    """The cached images of that shape; None if the file is missing, truncated or not an array."""
    try:
        images: NDArray[np.uint8] = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return None
    return images if images.shape == shape and images.dtype == np.uint8 else None


@contextmanager
def new_images(
    path: Path, shape: tuple[int, ...], private: bool = False
) -> Iterator[Callable[[NDArray[np.uint8]], object]]:
    """Yield a function that writes the next batch; the file appears once all batches are written."""
    with disk_errors(path.parent, math.prod(shape)):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path, 0o600 if private else 0o666) as out:
            # Plain writes: a memory map would die of a bus error on a full disk.
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(out, header)
            yield lambda batch: out.write(batch.data)


@contextmanager
def disk_errors(folder: Path, num_bytes: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"the image cache in '{folder}' cannot be written ({error.strerror or error}): it needs"
            f" {num_bytes / 1e6:.0f} MB; free some room, or set FSSL_CACHE to another folder"
        ) from error
