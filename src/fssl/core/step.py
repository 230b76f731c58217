"""The training step: gather, augment, learn, measure, as one pure function, or in two halves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..augment.policies import Normalize, shows_drawn, shows_labeled, shows_strongly, strong, weak
from ..methods.base import Method
from ..models import Net
from ..probes.tally import STEPS, Layout
from ..probes.training import Probe
from ..training.plan import Recipe
from ..types import DROPOUT, Batch, Draw, Local, Payload, State, Sweep, Trace


class Shown(NamedTuple):
    """The input of a step, and the true labels that only probes read."""

    batch: Batch
    truth: Tensor  # [B_u]


Step = Callable[[Payload, Local, Tensor, Draw], tuple[Local, Tensor]]
Show = Callable[[Draw], Shown]  # of one step, or of several along a leading axis
Learn = Callable[[Payload, Local, Tensor, Shown], tuple[Local, Tensor]]
Start = Callable[[Payload, State], Local]
Visit = Callable[[Payload, Local, Sweep], Local]
Look = Callable[[Local, Tensor, Sweep], Tensor]


class Pool:
    """All training images and labels on the device, the size of their views, and their normalization."""

    def __init__(self, images: Tensor, labels: Tensor, normalize: Normalize, size: int) -> None:
        self.images, self.labels, self.normalize, self.size = images, labels, normalize, size

    def view(self, augment: Callable[..., Tensor], rows: Tensor, noise: Tensor) -> Tensor:
        """Return inputs of a network: `weak` or `strong` views of the images at `rows`."""
        return self.normalize(augment(self.images, rows, noise, self.size))

    def batch(self, draw: Draw, views: Sequence[str], with_truth: bool) -> Batch:
        """Return the batch that a draw describes; for several steps, with their axis first."""
        tensors = {}
        for view in views:
            rows, noise = rows_of(view, draw), draw.noise[view]
            augment = strong if shows_strongly(view) else weak
            made = self.view(augment, rows.flatten(), noise.flatten(0, -2))
            tensors[view] = made.unflatten(0, rows.shape)
        truth = {"u": self.labels[draw.u_row]} if with_truth else {}
        labels = self.labels[draw.x_row]
        return Batch(tensors, labels, draw.u_slot, draw.has_labels, draw.clock, truth, draw.extras)


def rows_of(view: str, draw: Draw) -> Tensor:
    """Return the rows of the images in a view."""
    if shows_drawn(view):
        return draw.extras["m_row"]
    return draw.x_row if shows_labeled(view) else draw.u_row


@dataclass(frozen=True)
class StepMaker:
    """Makes the functions of a client's round for a device; each call returns a new one, for one thread."""

    net: Net
    method: Method
    recipe: Recipe
    probe: Probe
    layout: Layout
    pool: Pool

    def visit(self) -> Visit:
        """Return (payload, local, sweep) -> local, for one batch of the sweep."""
        net, method, pool = self.net.copy(), self.method, self.pool

        def visit(payload: Payload, local: Local, sweep: Sweep) -> Local:
            return method.visit(net, payload, local, pool.view(weak, sweep.u_row, sweep.noise), sweep)

        return visit

    def step(self) -> Step:
        """Return (payload, local, tally, draw) -> (local, tally): both halves of a step in one function."""
        show, learn = self.show(), self.learn()

        def step(payload: Payload, local: Local, tally: Tensor, draw: Draw) -> tuple[Local, Tensor]:
            return learn(payload, local, tally, show(draw))

        return step

    def show(self) -> Show:
        """Return draw -> shown: the first half of a step, integer arithmetic and lookups."""
        pool, views, with_truth = (
            self.pool,
            self.recipe.views,
            self.method.needs.truth,
        )  # read once, outside of compiled code

        def show(draw: Draw) -> Shown:
            return Shown(pool.batch(draw, views, with_truth), pool.labels[draw.u_row])

        return show

    def learn(self) -> Learn:
        """Return (payload, local, tally, shown) -> (local, tally); the tally is [2, P]: whole round, last epoch."""
        net, method, probe, layout, chooses = self.net.copy(), self.method, self.probe, self.layout, self.recipe.chooses

        def learn(payload: Payload, local: Local, tally: Tensor, shown: Shown) -> tuple[Local, Tensor]:
            batch, truth = shown
            net.masks.begin(batch.extras.get(DROPOUT))
            local, trace = method.step(net, payload, local, batch)
            net.masks.begin(None)
            if chooses:  # `look` measures labels, on the whole pool
                trace = trace._replace(votes={})
            new = layout.pack(probe(trace, truth))
            return local, tally + torch.stack([new, new * batch.clock.last_epoch])

        return learn

    def look(self) -> Look:
        """Return (local, chosen, sweep) -> [P]: measures of the labels of a client's pool, each image once."""
        method, probe, layout, pool = self.method, self.probe, self.layout, self.pool

        def look(local: Local, chosen: Tensor, sweep: Sweep) -> Tensor:
            slot, row, real = (t.flatten() for t in (sweep.u_slot, sweep.u_row, sweep.real))
            measures = probe(Trace({}, votes_at(slot, method.votes(local), chosen)), pool.labels[row])
            weights = {STEPS: torch.zeros_like(real)}  # `look` takes no step
            return layout.pack(
                {name: m._replace(values=m.values * weights.get(name, real)) for name, m in measures.items()}
            )

        return look


def votes_at(slot: Tensor, votes: State, chosen: Tensor) -> State:
    """Return the votes for the given slots as a step on these images returns them; an empty dict if there are none."""
    return {**{name: t[slot] for name, t in votes.items()}, "mask": chosen[slot].float()} if votes else {}
