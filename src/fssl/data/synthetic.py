"""A generated image set that a small network can learn, but not at once: for tests, demos and benchmarks."""

from dataclasses import replace

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from ..errors import UserError
from .cards import CARDS, Card

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]

GRID = 4  # control points per side of a pattern: coarse enough to survive noise and small shifts
CHUNK = 64  # images drawn at a time: the buffers stay in the processor's cache


def make(
    num_classes: int = 10,
    size: int = 16,
    channels: int = 3,
    train_per_class: int = 100,
    test_per_class: int = 50,
    noise: float = 1.0,
    seed: int = 0,
) -> tuple[Card, tuple[Images, Labels], tuple[Images, Labels]]:
    """A card that fits, the training images and the test images, all fixed by the arguments."""
    counts = (num_classes, size, channels, train_per_class, test_per_class)
    if min(counts) < 1 or noise < 0 or seed < 0:
        raise UserError("synthetic images need positive counts, and noise and seed of at least 0")
    card = _card(num_classes, size, channels, train_per_class, test_per_class)
    patterns = _patterns(num_classes, size, channels, default_rng((seed, 0)))
    train = _draw(patterns, train_per_class, noise, default_rng((seed, 1)))
    test = _draw(patterns, test_per_class, noise, default_rng((seed, 2)))
    return card, train, test


def _card(num_classes: int, size: int, channels: int, train_per_class: int, test_per_class: int) -> Card:
    mean, std = (0.5,) * channels, (0.25,) * channels
    return replace(
        CARDS["synthetic"],
        num_classes=num_classes,
        size=size,
        channels=channels,
        num_train=num_classes * train_per_class,
        num_test=num_classes * test_per_class,
        per_class_base=train_per_class,
    ).normalized(mean, std)


def _patterns(num_classes: int, size: int, channels: int, random: Generator) -> NDArray[np.float32]:
    """One smooth pattern per class that wraps around, with unit deviation, [C, size, size, channels]."""
    points = random.standard_normal((num_classes, GRID, GRID, channels))
    at = np.arange(size)[:, None] * GRID / size - np.arange(GRID)  # [size, GRID]
    away = np.abs((at + GRID / 2) % GRID - GRID / 2)
    weight = np.where(away < 1, 0.5 + 0.5 * np.cos(np.pi * away), 0.0)
    smooth: NDArray[np.float64] = np.einsum("yi,xj,nijc->nyxc", weight, weight, points)
    smooth -= smooth.mean((1, 2), keepdims=True)
    smooth /= smooth.std((1, 2), keepdims=True) + 1e-6
    return smooth.astype(np.float32)


def _draw(patterns: NDArray[np.float32], per_class: int, noise: float, random: Generator) -> tuple[Images, Labels]:
    labels = random.permutation(np.repeat(np.arange(len(patterns)), per_class))
    images = np.empty((len(labels), *patterns.shape[1:]), np.uint8)
    for first in range(0, len(labels), CHUNK):
        part = slice(first, first + CHUNK)
        images[part] = _chunk(patterns, labels[part], noise, random)
    return images, labels


def _chunk(patterns: NDArray[np.float32], labels: Labels, noise: float, random: Generator) -> Images:
    """Each image: its class's pattern, moved and scaled, over a fainter one of any class, plus grain."""
    strength = random.uniform(0.6, 1.0, (len(labels), 1, 1, 1)).astype(np.float32)
    other = random.integers(len(patterns), size=len(labels))
    signal = strength * _moved(patterns, labels, random) + 0.3 * noise * _moved(patterns, other, random)
    # Two bytes added up make grain with a triangular shape, several times faster than normal draws.
    grain = random.integers(0, 256, (2, *signal.shape), np.uint8).sum(0, dtype=np.float32)
    signal *= 32
    signal += 127.5 + 0.32 * noise * (grain - 255)
    return signal.clip(0, 255).astype(np.uint8)


def _moved(patterns: NDArray[np.float32], which: Labels, random: Generator) -> NDArray[np.float32]:
    """The chosen patterns, each rolled by up to a quarter of the image in both directions."""
    size = patterns.shape[1]
    shift = random.integers(-(size // 4), size // 4 + 1, (2, len(which), 1))
    y, x = (np.arange(size) + shift) % size
    moved: NDArray[np.float32] = patterns[which[:, None, None], y[:, :, None], x[:, None, :]]
    return moved
