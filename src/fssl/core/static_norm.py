"""Static BatchNorm statistics: running means and variances of a model, measured on whole images.

SemiFL's rule (sBN): the plain mean, over batches of un-augmented images in a fixed order, of each batch's mean and
unbiased variance. All batches have the same weight, including a smaller last one, so sites send only sums.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..models import Net
from ..types import State, Weights
from .step import Pool

BATCH = 250


class NormSums(NamedTuple):
    """The summed statistics of some batches, and their number."""

    total: State  # by the names of the buffers
    batches: int


Statistics = Callable[[Weights, Tensor], State]  # of one batch of rows
Faster = Callable[[Any], Any]  # the same pure function of tensors, made faster
Measure = Callable[[Weights, Tensor], NormSums]  # of a model, on some rows of a pool
Collect = Callable[[Weights], NormSums]  # on rows that are fixed


def as_it_is(function: Any) -> Any:
    return function


def make_measure(net: Net, pool: Pool, faster: Faster = as_it_is) -> Measure:
    """Return a function that sums a model's statistics on rows of a pool, in order; `faster` speeds up full batches."""

    def statistics(weights: Weights, rows: Tensor) -> State:
        return net.statistics(weights, pool.normalize(pool.images[rows]))

    run: Statistics = faster(statistics)

    @torch.no_grad()
    def measure(weights: Weights, rows: Tensor) -> NormSums:
        batches = [
            batch for batch in rows.split(BATCH) if len(batch) > 1 or len(rows) == 1
        ]  # a single image has no variance
        total: State = {}
        for batch in batches:
            total = added(total, (run if len(batch) == BATCH else statistics)(weights, batch))
        return NormSums(total, len(batches))

    return measure


def mean_of(sums: Iterable[NormSums]) -> State:
    """Return a model's running statistics: every batch has the same weight, at any site."""
    total: State = {}
    batches = 0
    for each in sums:
        if each.batches:  # a site without images is skipped
            total, batches = added(total, each.total), batches + each.batches
    return {name: t / batches for name, t in total.items()}


def added(total: State, more: State) -> State:
    return {name: total[name] + t if total else t for name, t in more.items()}
