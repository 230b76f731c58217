"""Weak and strong views: from rows of a pool and pre-drawn random numbers to uint8 images `[B, H, W, C]`.

Also the steps before and after: some images are enlarged once, and all are normalized for the network.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .ops import IDENTITY, NUM_LEVELS, OPS, apply_op, cutout

BITS = 22  # of a weight: Pillow rounds weights to whole numbers of 2^-22, and each of two passes to uint8
AT_ONCE = 2**20  # values of images that are computed together; intermediate values have 32 bits
NUM_LAYERS = 2
WEAK_NOISE = 3  # flip (0 or 1), top and left of the crop (0..2 * pad)
STRONG_NOISE = WEAK_NOISE + NUM_LAYERS * 4 + 2  # per layer: op, level, use, negative; then the cutout's center


def shows_labeled(view: str) -> bool:
    """Return whether a view, by its name, shows the labeled images (`x...`) or the pool (`u...`, `m...`)."""
    return view.startswith("x")


def shows_drawn(view: str) -> bool:
    """Return whether a view, by its name, shows images of the pool drawn with replacement (`m...`, for mixing)."""
    return view.startswith("m")


def shows_strongly(view: str) -> bool:
    """Return whether a view, by its name, is a strong one (`..._strong`) or a weak one."""
    return view.endswith("strong")


def padding(size: int) -> int:
    """Return how far a crop may move each way from the middle: 4 pixels of 32."""
    return size // 8


def crop_room(size: int) -> int:
    """Return the size of images from which crops of this size are taken: 40 for 32."""
    return size + 2 * padding(size)


def draw_weak(rng: np.random.Generator, shape: tuple[int, ...], size: int, flip: bool = True) -> NDArray[np.uint8]:
    """Draw the random numbers of weak views: `[*shape, 3]`. Without flips, all other numbers stay the same."""
    return _draw(rng, shape, _weak_ranges(size), flip)


def draw_strong(rng: np.random.Generator, shape: tuple[int, ...], size: int, flip: bool = True) -> NDArray[np.uint8]:
    """Draw the random numbers of strong views: `[*shape, 13]`."""
    layer = [(0, len(OPS)), (1, NUM_LEVELS + 1), (0, 2), (0, 2)]
    return _draw(rng, shape, [*_weak_ranges(size), *layer * NUM_LAYERS, (0, size), (0, size)], flip)


def _weak_ranges(size: int) -> list[tuple[int, int]]:
    crop = (0, 2 * padding(size) + 1)
    return [(0, 2), crop, crop]


def _draw(
    rng: np.random.Generator, shape: tuple[int, ...], ranges: Sequence[tuple[int, int]], flip: bool
) -> NDArray[np.uint8]:
    noise = np.stack([rng.integers(low, high, shape, dtype=np.uint8) for low, high in ranges], axis=-1)
    if not flip:
        noise[..., 0] = 0
    return noise


def weak(images: Tensor, rows: Tensor, noise: Tensor, size: int | None = None) -> Tensor:
    """Flip, then crop to `size`, the pool's images at `rows`.

    Images of the crop's size, as without `size`, get a reflected margin; enlarged ones, of `room(size)`, need none.
    """
    size = size or images.shape[2]
    lines, x = _crop(images, rows, noise, size)
    channels = images.shape[3]
    column = (x[:, :, None] * channels + torch.arange(channels, device=x.device)).view(-1, 1, size * channels)
    return lines.gather(2, column.expand(-1, size, -1)).view(-1, size, size, channels)


def _weak_planes(images: Tensor, rows: Tensor, noise: Tensor, size: int) -> Tensor:
    """Return the same view as planes, `[B, C, H, W]`."""
    lines, x = _crop(images, rows, noise, size)
    channels = images.shape[3]
    column = x[:, None, None, :] * channels + torch.arange(channels, device=x.device)[:, None, None]
    return lines[:, None].expand(-1, channels, -1, -1).gather(3, column.expand(-1, -1, size, -1))


def _crop(images: Tensor, rows: Tensor, noise: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the crops' lines `[B, size, W * C]` at full width, and the columns to take, `[B, size]`.

    Lines first and columns second is twice as fast on a CPU as a lookup per pixel, and one kernel either way.
    """
    length = images.shape[2]
    flip, top, left = noise[:, :WEAK_NOISE, None].long().unbind(1)  # [B, 1] each
    line = rows.long()[:, None] * length + _reflected(top, size, length)
    x = _reflected(left, size, length)
    lines = images.flatten(2).flatten(0, 1).index_select(0, line.flatten())
    return lines.view(*line.shape, -1), x + flip * (length - 1 - 2 * x)


def _reflected(shift: Tensor, size: int, length: int) -> Tensor:
    """Return source coordinates of a shifted crop, `[B, size]`; the edge pixel itself is not repeated."""
    margin = (crop_room(size) - length) // 2
    at = torch.arange(size, device=shift.device) + shift - margin
    return (length - 1) - ((length - 1) - at.abs()).abs()


def strong(images: Tensor, rows: Tensor, noise: Tensor, size: int | None = None) -> Tensor:
    """Return a new weak view with two layers of RandAugment and cutout."""
    planes = _weak_planes(images, rows, noise, size or images.shape[2])
    for first in range(WEAK_NOISE, STRONG_NOISE - 2, 4):
        op, level, use, negative = noise[:, first : first + 4].int().unbind(1)
        planes = apply_op(planes, IDENTITY + use * (op - IDENTITY), level, negative)
    return cutout(planes, noise[:, -2], noise[:, -1]).permute(0, 2, 3, 1).contiguous()


# Enlarged images, from which views may be cut: bilinear interpolation equal to Pillow's value for value.


def enlarged(images: Tensor, length: int) -> Tensor:
    """Enlarge images `[N, H, W, C]` to this many pixels both ways; columns first, then lines."""
    made = images.new_empty(len(images), length, length, images.shape[3])
    number = max(1, AT_ONCE // (length * length * images.shape[3]))
    for part, to in zip(images.split(number), made.split(number), strict=True):
        to.copy_(_stretched(_stretched(part, 2, length), 1, length))
    return made


def _stretched(images: Tensor, dim: int, length: int) -> Tensor:
    """Stretch images along one axis: each new value is the weighted mean of the two nearest ones."""
    places, weights = (table.to(images.device) for table in _sources(images.shape[dim], length))
    weights = weights.repeat_interleave(math.prod(images.shape[dim + 1 :]), 1)  # the axes behind in one
    near, far = (images.index_select(dim, place) for place in places.unbind())
    total = near.flatten(dim).int() * weights[0] + far.flatten(dim).int() * weights[1]
    return ((total + (1 << BITS - 1)) >> BITS).to(torch.uint8).view_as(near)


def _sources(size: int, length: int) -> tuple[Tensor, Tensor]:
    """Return the two of `size` pixels around each of `length`, `[2, length]`, and their weights of 2^-22.

    At an edge one pixel has all the weight.
    """
    center = (np.arange(length) + 0.5) * (size / length)
    first = np.maximum(center - 0.5, 0).astype(np.int64)
    place = np.stack((first, first + 1))
    share = np.maximum(1 - np.abs(place - center + 0.5), 0) * (place < size)
    weight = (share / share.sum(0) * (1 << BITS) + 0.5).astype(np.int32)
    return torch.from_numpy(np.minimum(place, size - 1)), torch.from_numpy(weight)


# From pixels to the network's units.


class Normalize:
    """uint8 [B, H, W, C] to float32 [B, C, H, W]; the memory stays channels-last.

    The constants are tensors made once: a step that is being captured on a GPU cannot copy from the host.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], device: torch.device | str) -> None:
        self.scale = torch.tensor([1 / (255 * s) for s in std], device=device)
        self.shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device)

    def __call__(self, images: Tensor) -> Tensor:
        return (images * self.scale + self.shift).permute(0, 3, 1, 2)
