"""A split of images from its files: decoded once, made to fit, cached; the half that all kinds of files share."""

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import UserError
from ..system.files import atomic
from .cache import Progress, disk_errors, new_images, open_images
from .cards import Card
from .dataset import Split

SPLITS = ("train", "test")
FORMAT = 1  # of the cache; raise it when decoding changes

Decoded = Callable[[str], Iterator[Split]]  # the batches of a split, checked before the first one


def num_images(facts: Card, split: str) -> int:
    return facts.num_train if split == "train" else facts.num_test


def fitted(images: NDArray[np.uint8], facts: Card) -> NDArray[np.uint8]:
    """Images [N, H, W, C] of the card's size: as they are, stretched, or in the middle of a black margin."""
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


def cached_split(
    facts: Card, split: str, files: list[Path], folder: Path, decoded: Decoded, progress: Progress | None
) -> Split:
    """The split from its cache, which is built first where it is missing, damaged or half-written."""
    stem = f"{facts.name}-{split}-{_key(facts, files)}"
    # Images go first and labels last, so labels without images, or the reverse, mean: not finished.
    paths = folder / f"{stem}.images.npy", folder / f"{stem}.labels.npy"
    shape = (num_images(facts, split), facts.size, facts.size, facts.channels)
    found = _open(*paths, shape)
    if found is None:
        tick = partial(progress, f"decoding {facts.name} {split}") if progress else None
        _build(decoded(split), *paths, shape, tick)
        found = _open(*paths, shape)
    if found is None:
        raise UserError(f"the image cache '{paths[0]}' cannot be read back; delete it and try again")
    return found


def _key(facts: Card, files: list[Path]) -> str:
    """Hash of the files' contents and of everything about the card that decoding depends on."""
    used = (FORMAT, facts.size, facts.channels, facts.num_classes, facts.image_column, facts.label_column)
    made_to_fit = (facts.file_size, facts.fit) if facts.file_size is not None else ()
    digest = hashlib.sha256(repr((*used, *made_to_fit)).encode())
    for file in files:
        try:
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise UserError(f"'{file}' cannot be read ({error.strerror or error})") from error
    return digest.hexdigest()[:32]


def _open(images_path: Path, labels_path: Path, shape: tuple[int, ...]) -> Split | None:
    images = open_images(images_path, shape)
    try:
        labels = np.load(labels_path)
    except (OSError, ValueError, EOFError):  # absent, cut short, or not an array
        return None
    fits = images is not None and labels.shape == shape[:1] and labels.dtype == np.int64
    return Split(images, labels) if images is not None and fits else None


def _build(
    batches: Iterator[Split],
    images_path: Path,
    labels_path: Path,
    shape: tuple[int, ...],
    tick: Callable[[int, int], None] | None,
) -> None:
    labels: list[NDArray[np.int64]] = []
    done = 0
    with new_images(images_path, shape) as write:
        for batch in batches:
            write(np.ascontiguousarray(batch.images))
            labels.append(batch.labels)
            done += len(batch.labels)
            if tick:
                tick(done, shape[0])
    with disk_errors(labels_path.parent, 8 * shape[0]), atomic(labels_path) as out:
        np.save(out, np.concatenate(labels))
