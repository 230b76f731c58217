"""A tally: many named sums kept in one flat vector, so that a step adds and a round copies only once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

STEPS = "steps"  # the sum that counts them


class Sums(NamedTuple):
    """A value per image; the tally keeps the sum."""

    values: Tensor  # [B]


class Bins(NamedTuple):
    """A value per image and its bin; the tally keeps a sum per bin."""

    bin: Tensor  # [B] integers
    values: Tensor  # [B]
    size: int


Measures = Mapping[str, Sums | Bins]


@dataclass(frozen=True)
class Layout:
    """The place of each named sum in the flat vector: single sums first, then the binned ones."""

    sums: tuple[str, ...]
    bins: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, measures: Measures) -> "Layout":
        sums = tuple(name for name, m in measures.items() if isinstance(m, Sums))
        bins = tuple((name, m.size) for name, m in measures.items() if isinstance(m, Bins))
        return cls(sums, bins)

    @property
    def size(self) -> int:
        return len(self.sums) + sum(size for _, size in self.bins)

    def pack(self, measures: Measures) -> Tensor:
        """Return the measures of one batch as a flat vector: one reduction and one scatter for all of them.

        Missing measures count as 0.
        """
        nothing = torch.zeros_like(next(iter(measures.values())).values, dtype=torch.float32)
        rows = [measures[name].values.float() if name in measures else nothing for name in self.sums]
        single = torch.stack(rows).sum(-1)
        if not self.bins:
            return single
        sizes = [size for _, size in self.bins]
        starts = {name: sum(sizes[:i]) for i, (name, _) in enumerate(self.bins)}
        binned = {name: m for name, m in measures.items() if isinstance(m, Bins)}
        sums = single.new_zeros(sum(sizes))
        if binned:
            index = torch.cat([m.bin.long() + starts[name] for name, m in binned.items()])
            sums = sums.scatter_add(0, index, torch.cat([m.values.float() for m in binned.values()]))
        return torch.cat([single, sums])

    def unpack(self, vector: NDArray[np.float32]) -> dict[str, NDArray[np.float64]]:
        """Return the named sums of a flat vector (any leading axes), in double precision; steps are whole numbers."""
        out = {name: vector[..., i].astype(np.float64) for i, name in enumerate(self.sums)}
        if STEPS in out:
            out[STEPS] = np.rint(out[STEPS])  # a step adds 1/B for each of its B images
        at = len(self.sums)
        for name, size in self.bins:
            out[name] = vector[..., at : at + size].astype(np.float64)
            at += size
        return out
