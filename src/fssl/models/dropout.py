"""Dropout and stochastic depth whose masks come from the run's plan, as views do.

The plan draws one number for each step. A mask is a hash of this number, of the mask's number within the step, and of
the place in the mask. So lanes, processes, compiled code and resumed runs make the same masks.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor, nn

WORD = 0xFFFFFFFF  # a hash has 32 bits, in signed numbers of 64 bits: no product overflows
FACTORS = (0x21F0AAAD, 0x735A2D97)
STREAM = 0x1E3779B9  # between the numbers of two masks of a step
# The leading axes in which a layer drops one by one, by type: 2 for whole channels, None for single values.
AXES: dict[type, int | None] = {nn.Dropout: None, nn.Dropout1d: 2, nn.Dropout2d: 2, nn.Dropout3d: 2}
PATH, IMAGES = "DropPath", 1  # stochastic depth has this name in many libraries; it drops whole images


class Masks:
    """The masks of a step: the number that the plan drew, and how many masks were made of it."""

    def __init__(self) -> None:
        self.number: Tensor | None = None  # None outside of steps: nothing is dropped
        self.made = 0

    def begin(self, number: Tensor | None) -> None:
        self.number, self.made = number, 0

    def keep(self, number: Tensor, p: float, shape: tuple[int, ...]) -> Tensor:
        """Return the next mask of the step: booleans, each False with probability p."""
        self.made += 1
        place = torch.arange(prod(shape), device=number.device)
        bits = mixed(mixed(place) + mixed(number + self.made * STREAM))
        return (bits >= round(p * (WORD + 1))).view(shape)


def mixed(numbers: Tensor) -> Tensor:
    """Return a 32-bit hash of whole numbers."""
    bits = numbers & WORD
    bits = ((bits ^ (bits >> 16)) * FACTORS[0]) & WORD
    bits = ((bits ^ (bits >> 15)) * FACTORS[1]) & WORD
    return bits ^ (bits >> 15)


class PlannedDropout(nn.Module):
    """Sets values to 0 by masks of the plan, and divides the others by 1 - p.

    Args:
        masks: Those of the network's steps.
        p: The probability to drop a value.
        axes: The leading axes in which values are dropped one by one: 2 for whole channels; None: all axes.
        scales: Whether to divide.
    """

    def __init__(self, masks: Masks, p: float, axes: int | None, scales: bool = True) -> None:
        super().__init__()
        self.masks, self.p, self.axes = masks, p, axes
        self.factor = 1 / (1 - p) if scales and p < 1 else 1.0

    def forward(self, x: Tensor) -> Tensor:
        number, p = self.masks.number, self.p
        if number is None or p == 0 or not self.training:
            return x
        axes = x.ndim if self.axes is None else self.axes
        keep = self.masks.keep(number, p, (*x.shape[:axes], *[1] * (x.ndim - axes)))
        return (x * self.factor).masked_fill(~keep, 0.0)


class DropPath(nn.Module):
    """Stochastic depth: drops a block's branch of whole images, with probability `drop_prob`.

    A network replaces it, like `nn.Dropout`, by one with planned masks.
    """

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        return x


def with_planned_masks(module: nn.Module) -> tuple[nn.Module, Masks]:
    """Replace dropout and stochastic depth (timm's too) in a module in training mode; return it and its masks."""
    masks = Masks()
    for parent in [*module.modules()]:
        for name, layer in parent._modules.items():
            if isinstance(layer, nn.Module) and (planned := as_planned(layer, masks)):
                setattr(parent, name, planned.train(layer.training))
    return module, masks


def as_planned(layer: nn.Module, masks: Masks) -> PlannedDropout | None:
    """Return the layer with planned masks; None if it is neither dropout nor stochastic depth."""
    facts: Any = layer
    if type(layer).__name__ == PATH:
        return PlannedDropout(masks, facts.drop_prob or 0.0, IMAGES, getattr(layer, "scale_by_keep", True))
    return PlannedDropout(masks, facts.p, AXES[type(layer)]) if type(layer) in AXES else None
