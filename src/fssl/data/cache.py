"""Decoded images on disk: built once by any number of processes, never half-written, then memory-mapped."""

import hashlib
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
from PIL import Image

from ..errors import UserError
from ..system.files import atomic, expand_home
from .cards import Card
from .dataset import Split

Progress = Callable[[str, int, int], None]  # stage, done, total
Images = NDArray[np.uint8]
Decoded = Callable[[str], Iterator[Split]]  # yields the batches of a split; files are checked before the first one
SPLITS = ("train", "test")
CACHE_FORMAT = 1  # of splits; raise it when decoding changes
ATTEMPTS = 2  # a process that finds a folder changed may remove a file that was just built
FULL = (ENOSPC, EDQUOT, EFBIG)
OURS = re.compile(r"[\w-]+-[0-9a-f]{32}\.(images\.npy|labels\.npy|images\.bad\.json)")


class Loading(NamedTuple):
    """How images are decoded: the cache, the progress callback and the number of processes.

    More than one worker forks processes for decoding, so the caller must not have started threads or a GPU yet, such as
    a command line.
    """

    cache: Path | None = None
    progress: Progress | None = None
    workers: int = 1


ALONE = Loading()


def cache_folder(given: Path | None = None) -> Path:
    """Return the given folder, otherwise $FSSL_CACHE, otherwise `fssl` in the user's cache folder."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return (
        given
        or from_environment("FSSL_CACHE")
        or expand_home(home / "fssl", "set FSSL_CACHE to the folder of the cache")
    )


def from_environment(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return expand_home(Path(value)) if value else None


def open_array(path: Path, shape: tuple[int, ...], kind: type = np.uint8) -> NDArray[Any] | None:
    """Return the cached array of that shape, images memory-mapped; None if the file is missing or invalid."""
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
    """Return the images in a file, written first if it is missing, damaged or half-written.

    Args:
        path: The file.
        shape: The shape of all images together, [N, H, W, C].
        batches: Decodes the images; if it raises, no file is left.
        is_private: Whether only the user may read the file.
        afresh: Whether to write it in any case.
    """
    found = None if afresh else open_array(path, shape)
    for _ in range(ATTEMPTS):
        if found is None:
            _write(path, shape, batches(), 0o600 if is_private else 0o666)
            found = open_array(path, shape)
    if found is None:
        raise UserError(f"the image cache '{path}' cannot be read after writing; delete it and try again")
    return found


def _write(path: Path, shape: tuple[int, ...], batches: Iterable[Images], mode: int) -> None:
    with disk_errors(path.parent, math.prod(shape)), atomic(path, mode) as out:
        # Plain writes: a memory map would raise a bus error on a full disk.
        np.lib.format.write_array_header_1_0(out, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for batch in batches:
            out.write(np.ascontiguousarray(batch).data)


@contextmanager
def disk_errors(folder: Path, num_bytes: int) -> Iterator[None]:
    """Make the cache's folder, and explain errors of writing there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        room = f"free {num_bytes / 1e6:.0f} MB, or " if error.errno in FULL else ""
        raise UserError(
            f"the image cache in '{folder}' cannot be written ({error.strerror or error}); {room}set FSSL_CACHE to"
            " another folder"
        ) from error


def cached_files() -> list[tuple[Path, int]]:
    """Return the files of decoded images in the cache, and their sizes in bytes."""
    folder = cache_folder()
    files = sorted(path for path in folder.iterdir() if OURS.fullmatch(path.name)) if folder.is_dir() else []
    return [(path, path.stat().st_size) for path in files]


def clear_cache() -> tuple[int, int]:
    """Remove all decoded images; return the number of files and bytes. A run that reads them keeps them."""
    files = cached_files()
    for path, _ in files:
        path.unlink()
    return len(files), sum(size for _, size in files)


# A split of images from its files, for files of any kind: decoded once, resized, cached.


def num_images(facts: Card, split: str) -> int:
    return facts.num_train if split == "train" else facts.num_test


def fit_images(images: NDArray[np.uint8], facts: Card) -> NDArray[np.uint8]:
    """Return images [N, H, W, C] of the card's size: unchanged, stretched, or centered in a black margin."""
    size = images.shape[1]
    if size == facts.size:
        return images
    if facts.fit == "pad":
        before = (facts.size - size) // 2
        margin = (before, facts.size - size - before)
        return np.pad(images, ((0, 0), margin, margin, (0, 0)))
    pixels = images[..., 0] if facts.channels == 1 else images
    made = [Image.fromarray(each).resize((facts.size, facts.size), Image.Resampling.BILINEAR) for each in pixels]
    return np.stack([np.asarray(each) for each in made]).reshape(-1, facts.size, facts.size, facts.channels)


def cached_split(facts: Card, split: str, files: list[Path], decoded: Decoded, how: Loading) -> Split:
    """Return the split from its cache, built first if it is missing, damaged or half-written."""
    num, stem = num_images(facts, split), f"{facts.name}-{split}-{_key(facts, files)}"
    images_file, labels_file = (cache_folder(how.cache) / f"{stem}.{name}.npy" for name in ("images", "labels"))
    built: list[NDArray[np.int64]] = []

    def batches() -> Iterator[NDArray[np.uint8]]:
        built.clear()
        for images, labels in decoded(split):
            yield images
            built.append(labels)
            if how.progress:
                how.progress(f"decoding {facts.name} {split}", sum(map(len, built)), num)

    # Images are written first and labels last, so either without the other means: not finished.
    labels = open_array(labels_file, (num,), np.int64)
    images = cached_images(images_file, (num, facts.size, facts.size, facts.channels), batches, afresh=labels is None)
    if built:
        labels = np.concatenate(built)
        with disk_errors(labels_file.parent, labels.nbytes), atomic(labels_file) as out:
            np.save(out, labels)
    assert labels is not None
    return Split(images, labels)


def _key(facts: Card, files: list[Path]) -> str:
    """Return a hash of the files' contents and of the card's facts that decoding depends on."""
    used = (CACHE_FORMAT, facts.size, facts.channels, facts.num_classes, facts.image_column, facts.label_column)
    made_to_fit = (facts.file_size, facts.fit) if facts.file_size is not None else ()
    digest = hashlib.sha256(repr((*used, *made_to_fit)).encode())
    for file in files:
        try:
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise UserError(f"'{file}' cannot be read ({error.strerror or error})") from error
    return digest.hexdigest()[:32]
