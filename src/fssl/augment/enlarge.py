"""Enlarged images, from which views may be cut: bilinear interpolation equal to Pillow's value for value."""

import math

import numpy as np
import torch
from torch import Tensor

__all__ = ["enlarged"]

BITS = 22  # of a weight: Pillow rounds weights to whole numbers of 2^-22, and each of two passes to uint8
AT_ONCE = 2**20  # values of the images that are computed together, 32-bit each while they are


def enlarged(images: Tensor, length: int) -> Tensor:
    """The images `[N, H, W, C]` with this many pixels both ways, no fewer than they have; columns first, then lines."""
    made = images.new_empty(len(images), length, length, images.shape[3])
    number = max(1, AT_ONCE // (length * length * images.shape[3]))
    for part, to in zip(images.split(number), made.split(number), strict=True):
        to.copy_(_stretched(_stretched(part, 2, length), 1, length))
    return made


def _stretched(images: Tensor, dim: int, length: int) -> Tensor:
    """The images along one axis: each new value is the weighted mean of the two nearest ones."""
    places, weights = (table.to(images.device) for table in _sources(images.shape[dim], length))
    weights = weights.repeat_interleave(math.prod(images.shape[dim + 1 :]), 1)  # the axes behind in one
    near, far = (images.index_select(dim, place) for place in places.unbind())
    total = near.flatten(dim).int() * weights[0] + far.flatten(dim).int() * weights[1]
    return ((total + (1 << BITS - 1)) >> BITS).to(torch.uint8).view_as(near)


def _sources(size: int, length: int) -> tuple[Tensor, Tensor]:
    """The two pixels of `size` that each of `length` lies between, `[2, length]`, and their weights of 2^-22.

    At an edge there is one pixel, which has all the weight.
    """
    center = (np.arange(length) + 0.5) * (size / length)
    first = np.maximum(center - 0.5, 0).astype(np.int64)
    place = np.stack((first, first + 1))
    share = np.maximum(1 - np.abs(place - center + 0.5), 0) * (place < size)
    weight = (share / share.sum(0) * (1 << BITS) + 0.5).astype(np.int32)
    return torch.from_numpy(np.minimum(place, size - 1)), torch.from_numpy(weight)
