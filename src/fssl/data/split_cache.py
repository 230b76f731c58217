"""A split of images from its files: decoded once, made to fit, cached; the half that all kinds of files share."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import UserError
from ..system.files import atomic
from .cache import Loading, cache_folder, cached_images, disk_errors, open_array
from .cards import Card
from .dataset import Split

SPLITS = ("train", "test")
CACHE_FORMAT = 1  # of the cache; raise it when decoding changes

Decoded = Callable[[str], Iterator[Split]]  # the batches of a split, checked before the first one


def num_images(facts: Card, split: str) -> int:
    return facts.num_train if split == "train" else facts.num_test


def fit_images(images: NDArray[np.uint8], facts: Card) -> NDArray[np.uint8]:
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


def cached_split(facts: Card, split: str, files: list[Path], decoded: Decoded, how: Loading) -> Split:
    """The split from its cache, which is built first where it is missing, damaged or half-written."""
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

    # Images go first and labels last, so labels without images, or the reverse, mean: not finished.
    labels = open_array(labels_file, (num,), np.int64)
    images = cached_images(images_file, (num, facts.size, facts.size, facts.channels), batches, afresh=labels is None)
    if built:
        labels = np.concatenate(built)
        with disk_errors(labels_file.parent, labels.nbytes), atomic(labels_file) as out:
            np.save(out, labels)
    assert labels is not None
    return Split(images, labels)


def _key(facts: Card, files: list[Path]) -> str:
    """Hash of the files' contents and of everything about the card that decoding depends on."""
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
