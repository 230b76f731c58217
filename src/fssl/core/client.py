"""One client's round: from the payload over all steps to the upload."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ..errors import is_out_of_memory
from ..methods.base import Method
from ..training.plan import ClientPlan
from ..types import Draw, Local, Orders, Payload, State, Sweep, Upload
from .step import Learn, Look, Show, Start, Visit

RunSteps = Callable[[Payload, Local, Draw], tuple[Local, Tensor]]  # all steps of one client: -> local, tally


class Trainer(Protocol):
    """Runs a client's steps: one after another from the host, or captured on a device."""

    @property
    def start(self) -> Start: ...
    @property
    def run(self) -> RunSteps: ...
    @property
    def sweep(self) -> Visit: ...  # of all batches, along a leading axis
    @property
    def look(self) -> Look: ...


class ClientResult(NamedTuple):
    upload: Upload
    state: State
    velocity: State  # of the last step, for runs that carry or keep momentum
    tally: Tensor


class StepError(Exception):
    """A failed training step with its inputs; the cause holds the reason."""

    def __init__(self, payload: Payload, local: Local, draw: Draw) -> None:
        super().__init__("a training step failed")
        self.payload, self.local, self.draw = payload, local, draw


T = TypeVar("T", Draw, Sweep)


def at(draws: T, step: int | Tensor) -> T:
    """Return one step of a client's round."""
    pick = (lambda t: t[step]) if isinstance(step, int) else (lambda t: t.index_select(0, step).squeeze(0))
    out: T = tree_map(pick, draws)
    return out


def part(draws: T, start: int, stop: int) -> T:
    """Return some steps of a client's round."""
    out: T = tree_map(lambda t: t[start:stop], draws)
    return out


def each(tree: Any, steps: int) -> Sequence[Any]:
    """Split a record with an axis of steps into records of single steps; three times as fast as `at`."""
    if isinstance(tree, Tensor):
        return tree.unbind(0)
    if isinstance(tree, dict):
        rows = zip(*(each(value, steps) for value in tree.values()), strict=True) if tree else [()] * steps
        return [dict(zip(tree, row, strict=True)) for row in rows]
    return [type(tree)(*row) for row in zip(*(each(value, steps) for value in tree), strict=True)]


def loop(learn: Learn, show: Show, tally_size: int, device: torch.device) -> RunSteps:
    """Return a function that runs steps one after another from the host.

    It makes the views of several steps at once, because operations on a few small images are mostly overhead. Views are
    not compiled: on a CPU, compiled lookups of bytes are slower than eager ones.
    """
    turns = Turns(show)

    def run(payload: Payload, local: Local, draw: Draw) -> tuple[Local, Tensor]:
        draw = tree_map(lambda t: t.to(device), draw)
        tally = torch.zeros(2, tally_size, device=device)
        for i, shown in enumerate(turns(draw)):
            try:
                local, tally = learn(payload, local, tally, shown)
            except Exception as error:
                if is_out_of_memory(error):
                    raise  # the step itself is not at fault
                raise StepError(payload, local, at(draw, i)) from error
        return local, tally.clone()  # compiled steps write the next client's over it

    return run


def visit_all(visit: Visit) -> Visit:
    """Return a function that visits all batches of a sweep, one after another from the host."""

    def sweep(payload: Payload, local: Local, batches: Sweep) -> Local:
        for batch in each(batches, len(batches.u_row)):
            local = visit(payload, local, batch)
        return local

    return sweep


def chosen_first(draw: Draw, orders: Orders, chosen: Tensor) -> Draw:
    """Reorder a client's steps: in every epoch the chosen images come first, otherwise in the epoch's order.

    An incomplete last batch is filled with repeated images of weight 0. A client without labels keeps only the steps
    with a chosen image, so this waits for the device's result.

    Args:
        draw: All steps of the round.
        orders: The pool in the order of each epoch.
        chosen: Whether a slot of the pool is chosen [slots].
    """
    wanted = chosen[orders.u_slot] & orders.real  # [epochs, P]
    first = (~wanted).int().argsort(dim=-1, stable=True)
    number, place = wanted.sum(-1, keepdim=True), torch.arange(wanted.shape[1], device=wanted.device)
    batch = draw.u_slot.shape[1]
    fills = (place >= number) & (place < -(-number // batch) * batch)
    index = first.gather(-1, torch.where(fills, place % number.clamp(min=1), place))

    def steps(tree: Tensor) -> Tensor:
        return tree.reshape(-1, batch)[: len(draw.u_slot)]

    return learning_steps(
        draw._replace(
            u_row=steps(orders.u_row.gather(-1, index)),
            u_slot=steps(orders.u_slot.gather(-1, index)),
            extras={**draw.extras, "real": steps((place < number).float())},
        )
    )


def learning_steps(draw: Draw) -> Draw:
    """Return the steps that can learn: every step of a client with labels, otherwise those with a chosen image."""
    if draw.has_labels[0] > 0:
        return draw
    left = draw.extras["real"].any(-1).nonzero().squeeze(-1).cpu()
    out: Draw = tree_map(lambda t: t[left.to(t.device)], draw)
    return out


SHOWN_AT_ONCE = 2**20  # numbers in the views made at once: more would not stay in a processor's cache


class Turns:
    """Makes the inputs of the steps, several steps at a time."""

    def __init__(self, show: Show) -> None:
        self.show, self.at_once = show, 1  # until the size of a step's views is known

    def __call__(self, draw: Draw) -> Iterator[Any]:
        steps, start = len(draw.x_row), 0
        while start < steps:
            stop = min(start + self.at_once, steps)
            shown = self.show(part(draw, start, stop))
            size = max(1, sum(view[0].numel() for view in shown.batch.views.values()))
            self.at_once = max(1, SHOWN_AT_ONCE // size)
            yield from each(shown, stop - start)
            start = stop


def client_round(
    trainer: Trainer, method: Method, payload: Payload, state: State, plan: ClientPlan, velocity: State | None = None
) -> ClientResult:
    """Train one client; return its upload. `velocity` is the first momentum, by default zero."""
    local = trainer.start(payload, state)
    if velocity is not None:
        local = local._replace(velocity={name: velocity[name] for name in local.velocity})  # files sort names
    if plan.sweep is not None:
        local = trainer.sweep(payload, local, plan.sweep)
    if plan.orders is None or plan.sweep is None:
        counts_nothing = (
            method.num_samples(plan.counts) == 0
        )  # without a weight in the mean its steps would have no effect
        local, tally = trainer.run(payload, local, part(plan.draw, 0, 0) if counts_nothing else plan.draw)
    else:
        chosen = method.chosen(local)
        labels = trainer.look(local, chosen, plan.sweep)
        local, tally = trainer.run(payload, local, chosen_first(plan.draw, plan.orders, chosen))
        tally = tally + labels
    upload = method.upload(plan.client, payload, local, plan.counts)
    return ClientResult(upload, method.keep(local), local.velocity, tally)
