"""The training step: gather, augment, learn, measure, as one pure function."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..augment.normalize import Normalize
from ..augment.policies import shows_labeled, shows_strongly, strong, weak
from ..methods.base import Method
from ..models import Net
from ..probes.tally import Layout
from ..probes.training import Probe
from ..types import Batch, Draw, Local, Payload, Sweep

Step = Callable[[Payload, Local, Tensor, Draw], tuple[Local, Tensor]]
Visit = Callable[[Payload, Local, Sweep], Local]


class Pool:
    """All training images and labels on the device, and how pixels become inputs."""

    def __init__(self, images: Tensor, labels: Tensor, normalize: Normalize) -> None:
        self.images, self.labels, self.normalize = images, labels, normalize

    def batch(self, draw: Draw, views: Sequence[str], with_truth: bool) -> Batch:
        """The batch a draw stands for."""
        tensors = {}
        for view in views:
            rows = draw.x_row if shows_labeled(view) else draw.u_row
            augment = strong if shows_strongly(view) else weak
            tensors[view] = self.normalize(augment(self.images, rows, draw.noise[view]))
        truth = {"u": self.labels[draw.u_row]} if with_truth else {}
        return Batch(tensors, self.labels[draw.x_row], draw.u_slot, draw.has_labels, draw.clock, truth)


def make_visit(net: Net, method: Method, pool: Pool) -> Visit:
    """(payload, local, sweep) -> local, for one batch of the sweep."""

    def visit(payload: Payload, local: Local, sweep: Sweep) -> Local:
        u_weak = pool.normalize(weak(pool.images, sweep.u_row, sweep.noise))
        return method.visit(net, payload, local, u_weak, sweep)

    return visit


def make_step(net: Net, method: Method, probe: Probe, layout: Layout, pool: Pool) -> Step:
    """(payload, local, tally, draw) -> (local, tally); the tally is [2, P]: whole round, last epoch."""
    needs = method.needs  # asked once, outside of what is compiled

    def step(payload: Payload, local: Local, tally: Tensor, draw: Draw) -> tuple[Local, Tensor]:
        batch = pool.batch(draw, needs.views, needs.truth)
        local, trace = method.step(net, payload, local, batch)
        new = layout.pack(probe(trace, pool.labels[draw.u_row]))
        return local, tally + torch.stack([new, new * draw.clock.last_epoch])

    return step
