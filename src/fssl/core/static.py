"""Static BatchNorm statistics: running means and variances that belong to a model, measured on whole images.

SemiFL's rule (sBN): the plain mean, over batches of un-augmented images in a fixed order, of each batch's mean and
unbiased variance. All batches count the same, also a smaller last one.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..models import Net
from ..types import State, Weights
from .step import Pool

BATCH = 250
Collect = Callable[[Weights], State]  # -> running statistics by the names of the buffers


def make_collect(net: Net, pool: Pool, rows: Tensor, compile: bool = False) -> Collect:
    """Statistics of a model on these rows of a pool."""

    def measure(weights: Weights, rows: Tensor) -> State:
        return net.statistics(weights, pool.normalize(pool.images[rows]))

    run = torch.compile(measure, fullgraph=True, dynamic=False) if compile else measure
    batches = [batch for batch in rows.split(BATCH) if len(batch) > 1 or len(rows) == 1]  # one image has no variance

    @torch.no_grad()
    def collect(weights: Weights) -> State:
        total: State = {}
        for batch in batches:
            found = (run if len(batch) == BATCH else measure)(weights, batch)
            total = {name: total[name] + t if total else t for name, t in found.items()}
        return {name: t / len(batches) for name, t in total.items()}

    return collect
