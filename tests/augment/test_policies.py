"""Whole views against Pillow, eager and captured, and the random numbers they are made from."""

from functools import partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from fssl.augment.ops import OPS
from fssl.augment.pillow import strong_pil, weak_pil
from fssl.augment.policies import (
    STRONG_NOISE,
    WEAK_NOISE,
    Normalize,
    crop_room,
    draw_strong,
    draw_weak,
    enlarged,
    strong,
    weak,
)
from fssl.engines.compiler import as_traced, compiled

SHAPES = [(32, 3), (32, 1), (16, 3), (8, 3), (8, 1)]


def make_pool(rng: np.random.Generator, num: int, size: int, channels: int) -> NDArray[np.uint8]:
    """Smooth images of several contrasts with noise on top, and a few of one value."""
    wave = np.sin(np.arange(size) * rng.uniform(0.1, 1, (num, 2, 1)) + rng.uniform(0, 6, (num, 2, 1)))
    smooth = rng.uniform(0, 120, (num, 1, 1)) * wave[:, 0, :, None] * wave[:, 1, None, :]
    colors = rng.uniform(30, 225, (num, 1, 1, channels))
    noise = rng.normal(0, 8, (num, size, size, channels))
    pool = (smooth[..., None] + colors + noise).clip(0, 255).astype(np.uint8)
    pool[::10] = pool[::10, :1, :1]
    return pool


def draw_views(size: int, channels: int, num: int) -> tuple[Tensor, Tensor, Tensor]:
    rng = np.random.default_rng([size, channels])
    pool, rows = make_pool(rng, 200, size, channels), rng.integers(0, 200, num)
    return torch.from_numpy(pool), torch.from_numpy(rows), torch.from_numpy(draw_strong(rng, (num,), size))


def by_pillow(view: str, images: Tensor, rows: Tensor, noise: Tensor, enlarge: bool = False) -> Tensor:
    make = weak_pil if view == "weak" else strong_pil
    pictures = [Image.fromarray(image.numpy()) for image in images.squeeze(3)]
    made = [np.asarray(make(pictures[r], n, enlarge)) for r, n in zip(rows.tolist(), noise.tolist(), strict=True)]
    return torch.from_numpy(np.stack(made)).view(len(rows), *images.shape[1:])


@pytest.mark.parametrize(("size", "channels"), SHAPES)
def test_views_equal_pillow(size: int, channels: int) -> None:
    images, rows, noise = draw_views(size, channels, 600)
    assert torch.equal(weak(images, rows, noise), by_pillow("weak", images, rows, noise))
    assert torch.equal(strong(images, rows, noise), by_pillow("strong", images, rows, noise))


@pytest.mark.parametrize(("size", "channels"), [*SHAPES, (29, 3), (13, 1)])
def test_views_of_enlarged_images_equal_pillow(size: int, channels: int) -> None:
    images, rows, noise = draw_views(size, channels, 600)
    larger = enlarged(images, crop_room(size))
    assert torch.equal(weak(larger, rows, noise, size), by_pillow("weak", images, rows, noise, enlarge=True))
    assert torch.equal(strong(larger, rows, noise, size), by_pillow("strong", images, rows, noise, enlarge=True))


@pytest.mark.slow
@pytest.mark.parametrize(("size", "channels"), [(32, 3), (8, 1)])
def test_captured_views_equal_eager_ones(size: int, channels: int) -> None:
    images, rows, noise = draw_views(size, channels, 500)
    for view in (weak, strong):
        captured = as_traced(view, images, rows, noise)
        assert torch.equal(captured(images, rows, noise), view(images, rows, noise))
        larger, of_size = enlarged(images, crop_room(size)), partial(view, size=size)
        captured = as_traced(of_size, larger, rows, noise)
        assert torch.equal(captured(larger, rows, noise), of_size(larger, rows, noise))


@pytest.mark.slow
def test_compiled_views_equal_eager_ones() -> None:
    images, rows, noise = draw_views(8, 3, 400)
    for pool, view in ((images, strong), (enlarged(images, crop_room(8)), partial(strong, size=8))):
        assert torch.equal(compiled(view, pool, rows, noise)(pool, rows, noise), view(pool, rows, noise))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("size", "channels"), SHAPES)
def test_views_are_the_same_on_a_gpu(size: int, channels: int) -> None:
    views = draw_views(size, channels, 2000)
    on_gpu = [tensor.cuda() for tensor in views]
    for view in (weak, strong):
        assert torch.equal(view(*on_gpu).cpu(), view(*views))
        assert torch.equal(compiled(view, *on_gpu)(*on_gpu).cpu(), view(*views))


def test_shapes_that_depend_on_data_are_rejected() -> None:
    def masked(x: Tensor) -> Tensor:
        return x[x > 0]

    with pytest.raises(DynamicOutputShapeException):
        as_traced(masked, torch.arange(4))


def test_weak_view_by_hand() -> None:
    """8 pixels, a margin of 1: a crop moved into it begins or ends with the pixel next to the edge."""
    row = torch.arange(8, dtype=torch.uint8)
    images = row.expand(1, 8, 8)[..., None].contiguous()
    noise = torch.tensor([[0, 1, 1], [1, 1, 1], [0, 1, 0], [0, 1, 2], [1, 1, 0]], dtype=torch.uint8)
    views = weak(images, torch.zeros(5, dtype=torch.int64), noise)
    assert views[:, 0, :, 0].tolist() == [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [7, 6, 5, 4, 3, 2, 1, 0],
        [1, 0, 1, 2, 3, 4, 5, 6],
        [1, 2, 3, 4, 5, 6, 7, 6],
        [6, 7, 6, 5, 4, 3, 2, 1],
    ]
    lines = weak(images.transpose(1, 2).contiguous(), torch.zeros(1, dtype=torch.int64), torch.tensor([[0, 0, 1]]))
    assert lines[0, :, 0, 0].tolist() == [1, 0, 1, 2, 3, 4, 5, 6]


def test_unused_layers_leave_the_weak_view_but_for_the_cutout() -> None:
    images, rows, noise = draw_views(32, 3, 100)
    noise[:, [5, 9]] = 0
    plain, cut = weak(images, rows, noise), strong(images, rows, noise)
    kept = (cut == plain).all(3)
    assert (cut[~kept] == 127).all()
    assert 0.70 < kept.float().mean() < 0.80  # 24.6 % erased


def test_noise_ranges_and_frequencies() -> None:
    noise = draw_strong(np.random.default_rng(0), (500, 100), 32)
    assert noise.shape == (500, 100, STRONG_NOISE)
    assert noise.dtype == np.uint8
    layer = [(0, len(OPS) - 1), (1, 9), (0, 1), (0, 1)]
    ranges = [(0, 1), (0, 8), (0, 8), *layer, *layer, (0, 31), (0, 31)]
    for field, (low, high) in enumerate(ranges):
        counts = np.bincount(noise[..., field].ravel())
        assert counts[:low].sum() == 0
        assert len(counts) == high + 1
        expected = noise[..., field].size / (high - low + 1)
        assert np.abs(counts[low:] - expected).max() < 5 * np.sqrt(expected), f"field {field} is not uniform"


def test_noise_fields_are_independent() -> None:
    noise = draw_strong(np.random.default_rng(1), (50000,), 32).astype(float)
    assert np.abs(np.corrcoef(noise.T) - np.eye(STRONG_NOISE)).max() < 0.025  # five standard errors


def test_noise_depends_on_the_generator_alone() -> None:
    first, again, other = (draw_weak(np.random.default_rng(seed), (4, 5), 16) for seed in (7, 7, 8))
    assert first.shape == (4, 5, WEAK_NOISE)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert first[..., 1:].max() <= 4


def test_without_flips_all_other_numbers_stay() -> None:
    for draw in (draw_weak, draw_strong):
        flips, none = (draw(np.random.default_rng(2), (64,), 32, flip) for flip in (True, False))
        assert flips[:, 0].sum() > 16
        assert none[:, 0].sum() == 0
        assert np.array_equal(flips[:, 1:], none[:, 1:])


def test_normalize_values_and_memory() -> None:
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).expand(2, 8, 8, 3).contiguous()
    floats = Normalize((0.5, 0.2, 0.4), (0.25, 0.5, 0.2), "cpu")(images)
    assert floats.shape == (2, 3, 8, 8)
    assert floats.is_contiguous(memory_format=torch.channels_last)
    assert floats.dtype == torch.float32
    torch.testing.assert_close(floats[1, :, 3, 4], torch.tensor([-2.0, 0.0, 3.0]))
