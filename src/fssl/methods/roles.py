"""Clients of two kinds, those with labels and those without: what each trains on, and at which rate."""

from dataclasses import replace

import torch
from torch import Tensor

from ..types import Batch, State
from .optimizers import Optimizer


def shown_to(batch: Batch, view: str, labeled: str = "x") -> tuple[Tensor, Tensor]:
    """Return the images that a client trains on, and their labels, which are meaningless for a client without labels.

    They are labeled images for a client that has some, else a view of its pool. Labeled ones are repeated until they
    are as many as the view shows: neither the mean over a batch nor its statistics change by that.
    """
    times = len(batch.views[view]) // len(batch.y)
    x, y = batch.views[labeled].repeat(times, 1, 1, 1), batch.y.repeat(times)
    return torch.where(batch.has_labels > 0, x, batch.views[view]), y


def at_rate(optimizer: Optimizer, batch: Batch, unlabeled_rate: float) -> Optimizer:
    """Return the optimizer of a client at this step; clients without labels have another rate."""
    here, factor = optimizer.at(batch.clock), batch.has_labels + (1 - batch.has_labels) * unlabeled_rate
    return replace(here, lr=here.lr * factor)


def mixed(share: float | Tensor, old: State, new: State) -> State:
    """Return share old + (1 - share) new; counters are the new ones."""
    return {name: torch.lerp(t, old[name], share) if t.is_floating_point() else t.clone() for name, t in new.items()}
