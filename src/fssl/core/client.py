"""One client's round: what it gets, its steps, what it gives back."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ..data.plan import ClientPlan
from ..methods.base import Method
from ..types import Draw, Local, Payload, State, Sweep, Upload
from .step import Step, Visit

Run = Callable[[Payload, Local, Draw], tuple[Local, Tensor]]  # all steps of one client: -> local, tally


class Trainer(Protocol):
    """Where a client's steps run: on the host one after another, or captured on a device."""

    @property
    def run(self) -> Run: ...
    @property
    def visit(self) -> Visit: ...


class ClientResult(NamedTuple):
    upload: Upload
    state: State
    velocity: State  # only the released code's carried-over momentum reads it
    tally: Tensor


class StepError(Exception):
    """A training step that failed, with its inputs; its cause says why."""

    def __init__(self, payload: Payload, local: Local, draw: Draw) -> None:
        super().__init__("a training step failed")
        self.payload, self.local, self.draw = payload, local, draw


T = TypeVar("T", Draw, Sweep)


def at(draws: T, step: int | Tensor) -> T:
    """One step's part of a client's round."""
    pick = (lambda t: t[step]) if isinstance(step, int) else (lambda t: t.index_select(0, step).squeeze(0))
    out: T = tree_map(pick, draws)
    return out


def loop(step: Step, tally_size: int, device: torch.device) -> Run:
    """Run steps one after another from the host."""

    def run(payload: Payload, local: Local, draw: Draw) -> tuple[Local, Tensor]:
        draw = tree_map(lambda t: t.to(device), draw)
        tally = torch.zeros(2, tally_size, device=device)
        for i in range(len(draw.x_row)):
            now = at(draw, i)
            try:
                local, tally = step(payload, local, tally, now)
            except (MemoryError, torch.OutOfMemoryError):
                raise  # nothing is wrong with the step
            except Exception as error:
                raise StepError(payload, local, now) from error
        return local, tally

    return run


def client_round(
    trainer: Trainer, method: Method, payload: Payload, state: State, plan: ClientPlan, velocity: State | None = None
) -> ClientResult:
    """Payload in, upload out. `velocity` overrides the fresh momentum a client starts with."""
    local = method.start(payload, state)
    if velocity is not None:
        local = local._replace(velocity={name: velocity[name] for name in local.velocity})  # files sort names
    if plan.sweep is not None:
        for i in range(len(plan.sweep.u_row)):
            local = trainer.visit(payload, local, at(plan.sweep, i))
    local, tally = trainer.run(payload, local, plan.draw)
    upload = method.upload(plan.client, payload, local, plan.counts)
    return ClientResult(upload, method.keep(local), local.velocity, tally)
