"""Named datasets as arrays: embedded, generated, or read from files.

Readers are imported when there are files to read: pyarrow alone takes a quarter of a second.
"""

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from ..errors import UserError, unknown
from .cache import ALONE, Loading
from .cards import CARDS, Agreed, Card, Fit, card
from .dataset import Dataset, Split

__all__ = ["Dataset", "Split", "lacking", "load", "missing"]

DIGITS = Path(__file__).with_name("digits.npz")
GRID = 4  # control points per side of a generated pattern: coarse enough to survive noise and small shifts
CHUNK = 64  # images drawn at a time: the buffers stay in the processor's cache
Labels = NDArray[np.int64]


def load(
    name: str,
    dir: Path | None = None,
    how: Loading = ALONE,
    fit: Fit = "resize",
    revision: str | None = None,
    **options: Any,
) -> Dataset:
    """Load a dataset by name, from files in `dir` if it has any. `options` are those of `synthetic` or `Agreed`.

    `revision` is the commit of the hub's repository for a download; by default the newest.
    """
    facts = replace(card(name), fit=fit)
    if name == "synthetic":
        known = inspect.signature(synthetic).parameters
        if strange := next((option for option in options if option not in known), None):
            raise unknown("synthetic option", strange, known)
        return synthetic(**options)
    if facts.is_folder:
        if dir is None:
            raise UserError(
                f"data.name = '{name}' needs a folder: set data.dir (or pass dataset= in Python)", "data.dir"
            )
        from .folder.load import load_classes, load_federation

        read = load_classes if facts.is_dealt else load_federation
        return read(dir, Agreed(**{"dataset": name, **options}), how)
    if facts.package:
        from .elpv import load_elpv

        return load_elpv(replace(facts, **options), dir, how)
    if options:
        raise UserError(
            f"dataset '{name}' has no options; only synthetic and folders have (given: {', '.join(options)})"
        )
    if name == "digits":
        return _digits(facts)
    from .idx import find_idx, load_idx
    from .parquet import load_parquet

    files = find_idx(facts, dir)
    return load_idx(facts, files, how) if files else load_parquet(facts, dir, how, revision)


def lacking(name: str, dir: Path | None = None) -> str:
    """Describe in one line the missing files of a dataset, without a download; empty if nothing is missing."""
    try:
        return missing(name, dir)
    except UserError as error:
        return str(error)


def missing(name: str, dir: Path | None = None) -> str:
    """Return the source of a download; empty if the files are here. Raise UserError if there is no way to get them."""
    facts = card(name)
    if facts.is_embedded or facts.is_folder:
        return ""
    if facts.package:
        from .elpv import lacking_elpv

        return lacking_elpv(dir)
    from .idx import find_idx
    from .parquet import lacking_files

    return "" if find_idx(facts, dir) else lacking_files(facts, dir)


def _digits(facts: Card) -> Dataset:
    """Return the images of scikit-learn's `load_digits`; the file names their authors."""
    with np.load(DIGITS) as stored:
        images = np.rint(stored["images"] * (255 / 16)).astype(np.uint8)[..., None]
        labels = stored["labels"].astype(np.int64)
    random = np.random.RandomState(0)
    rows = [random.permutation(np.flatnonzero(labels == c)) for c in range(facts.num_classes)]
    is_test = np.zeros(len(labels), bool)
    is_test[np.concatenate([r[: facts.num_test // facts.num_classes] for r in rows])] = True
    return Dataset(facts, Split(images[~is_test], labels[~is_test]), Split(images[is_test], labels[is_test]))


# A generated image set that a small network can learn, but not at once: for tests, demos and benchmarks.


def synthetic(
    num_classes: int = 10,
    size: int = 16,
    channels: int = 3,
    train_per_class: int = 100,
    test_per_class: int = 50,
    noise: float = 1.0,
    seed: int = 0,
) -> Dataset:
    """Generate images that depend only on the arguments, with a matching card."""
    counts = (num_classes, size, channels, train_per_class, test_per_class)
    if min(counts) < 1 or noise < 0 or seed < 0:
        raise UserError("synthetic images need positive counts, and noise and seed of at least 0")
    facts = replace(
        CARDS["synthetic"],
        num_classes=num_classes,
        size=size,
        channels=channels,
        num_train=num_classes * train_per_class,
        num_test=num_classes * test_per_class,
        per_class_base=train_per_class,
    ).normalized((0.5,) * channels, (0.25,) * channels)
    patterns = _patterns(num_classes, size, channels, default_rng((seed, 0)))
    train = _draw(patterns, train_per_class, noise, default_rng((seed, 1)))
    return Dataset(facts, train, _draw(patterns, test_per_class, noise, default_rng((seed, 2))))


def _patterns(num_classes: int, size: int, channels: int, random: Generator) -> NDArray[np.float32]:
    """Return one smooth pattern per class that wraps around, with unit deviation, [C, size, size, channels]."""
    points = random.standard_normal((num_classes, GRID, GRID, channels))
    at = np.arange(size)[:, None] * GRID / size - np.arange(GRID)  # [size, GRID]
    away = np.abs((at + GRID / 2) % GRID - GRID / 2)
    weight = np.where(away < 1, 0.5 + 0.5 * np.cos(np.pi * away), 0.0)
    smooth: NDArray[np.float64] = np.einsum("yi,xj,nijc->nyxc", weight, weight, points)
    smooth -= smooth.mean((1, 2), keepdims=True)
    smooth /= smooth.std((1, 2), keepdims=True) + 1e-6
    return smooth.astype(np.float32)


def _draw(patterns: NDArray[np.float32], per_class: int, noise: float, random: Generator) -> Split:
    labels = random.permutation(np.repeat(np.arange(len(patterns)), per_class))
    images = np.empty((len(labels), *patterns.shape[1:]), np.uint8)
    for first in range(0, len(labels), CHUNK):
        part = slice(first, first + CHUNK)
        images[part] = _chunk(patterns, labels[part], noise, random)
    return Split(images, labels)


def _chunk(patterns: NDArray[np.float32], labels: Labels, noise: float, random: Generator) -> NDArray[np.uint8]:
    """Draw images: the class's pattern, moved and scaled, over a fainter one of any class, plus grain."""
    strength = random.uniform(0.6, 1.0, (len(labels), 1, 1, 1)).astype(np.float32)
    other = random.integers(len(patterns), size=len(labels))
    signal = strength * _moved(patterns, labels, random) + 0.3 * noise * _moved(patterns, other, random)
    # Two bytes added up make grain with a triangular shape, several times faster than normal draws.
    grain = random.integers(0, 256, (2, *signal.shape), np.uint8).sum(0, dtype=np.float32)
    signal *= 32
    signal += 127.5 + 0.32 * noise * (grain - 255)
    return signal.clip(0, 255).astype(np.uint8)


def _moved(patterns: NDArray[np.float32], which: Labels, random: Generator) -> NDArray[np.float32]:
    """Return the chosen patterns, each rolled by up to a quarter of the image in both directions."""
    size = patterns.shape[1]
    shift = random.integers(-(size // 4), size // 4 + 1, (2, len(which), 1))
    y, x = (np.arange(size) + shift) % size
    moved: NDArray[np.float32] = patterns[which[:, None, None], y[:, :, None], x[:, None, :]]
    return moved
