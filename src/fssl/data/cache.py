"""Decoded images on disk: built once by any number of processes, never half-written, mapped afterwards."""

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from ..system.files import at_home, atomic

Progress = Callable[[str, int, int], None]  # stage, done, total
Images = NDArray[np.uint8]
ATTEMPTS = 2  # a process that finds a folder changed may remove what was just built
FULL = (ENOSPC, EDQUOT, EFBIG)
OURS = re.compile(r"[\w-]+-[0-9a-f]{32}\.(images\.npy|labels\.npy|images\.bad\.json)")


class Loading(NamedTuple):
    """How images are decoded: the cache, the progress callback and the number of processes.

    More than one worker forks decoding processes: only for callers that have not started threads or a GPU yet, such as
    a command line.
    """

    cache: Path | None = None
    progress: Progress | None = None
    workers: int = 1


ALONE = Loading()


def cache_folder(given: Path | None = None) -> Path:
    """The given folder, else $FSSL_CACHE, else `fssl` in the user's folder for caches."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return (
        given or from_environment("FSSL_CACHE") or at_home(home / "fssl", "set FSSL_CACHE to the folder of the cache")
    )


def from_environment(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return at_home(Path(value)) if value else None


def open_array(path: Path, shape: tuple[int, ...], kind: type = np.uint8) -> NDArray[Any] | None:
    """The cached array of that shape, images mapped; None if the file is missing, truncated or something else."""
    try:
        found: NDArray[Any] = np.load(path, mmap_mode="r" if kind is np.uint8 else None)
    except (OSError, ValueError, EOFError):
        return None
    return found if found.shape == shape and found.dtype == kind else None


def cached_images(
    path: Path,
    shape: tuple[int, ...],
    batches: Callable[[], Iterable[Images]],
    is_private: bool = False,
    afresh: bool = False,
) -> Images:
    """The images in a file, which is written first where it is missing, damaged or half-written.

    Args:
        path: The file.
        shape: Of all images together, [N, H, W, C].
        batches: Decodes them; an error on the way leaves no file.
        is_private: Whether only the user may read the file.
        afresh: Whether to write it anyway.
    """
    found = None if afresh else open_array(path, shape)
    for _ in range(ATTEMPTS):
        if found is None:
            _write(path, shape, batches(), 0o600 if is_private else 0o666)
            found = open_array(path, shape)
    if found is None:
        raise UserError(f"the image cache '{path}' cannot be read back; delete it and try again")
    return found


def _write(path: Path, shape: tuple[int, ...], batches: Iterable[Images], mode: int) -> None:
    with disk_errors(path.parent, math.prod(shape)), atomic(path, mode) as out:
        # Plain writes: a memory map would die of a bus error on a full disk.
        np.lib.format.write_array_header_1_0(out, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for batch in batches:
            out.write(np.ascontiguousarray(batch).data)


@contextmanager
def disk_errors(folder: Path, num_bytes: int) -> Iterator[None]:
    """Make the folder of the cache, and explain what hinders writing there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        room = f"free {num_bytes / 1e6:.0f} MB, or " if error.errno in FULL else ""
        raise UserError(
            f"the image cache in '{folder}' cannot be written ({error.strerror or error}); {room}set FSSL_CACHE to"
            " another folder"
        ) from error


def clear_cache() -> tuple[int, int]:
    """Remove all decoded images; returns how many files and bytes these were. A run that reads them keeps them."""
    folder = cache_folder()
    files = [path for path in folder.iterdir() if OURS.fullmatch(path.name)] if folder.is_dir() else []
    num_bytes = sum(path.stat().st_size for path in files)
    for path in files:
        path.unlink()
    return len(files), num_bytes
