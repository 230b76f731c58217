"""A client's learning rate that falls when its loss does not: what it measured, and the factor that it lowers."""

import torch
from torch import Tensor

from ..types import State

FACTOR, BEST, STALE = "plateau.factor", "plateau.best", "plateau.stale"
TOTAL, STEPS = "plateau.total", "plateau.steps"
DIVISOR = 3.0


def new_plateau(like: Tensor) -> State:
    """Nothing measured yet, and the whole rate."""
    zero = torch.zeros((), device=like.device)
    return {FACTOR: zero + 1, BEST: zero + torch.inf, STALE: zero, TOTAL: zero.clone(), STEPS: zero.clone()}


def measured(state: State, loss: Tensor, counts: Tensor) -> State:
    """One step's loss more; `counts` is 0 where there was nothing to measure."""
    return {**state, TOTAL: state[TOTAL] + loss * counts, STEPS: state[STEPS] + counts}


def settled(state: State, patience: int) -> State:
    """After a round: a third of the rate once `patience` rounds of the client in a row had no lower mean loss."""
    mean = state[TOTAL] / state[STEPS]  # nan, which is neither lower nor stale, if nothing was measured
    is_lower, is_stale = mean < state[BEST], mean >= state[BEST]
    stale = torch.where(is_lower, 0.0, state[STALE] + is_stale)
    is_due = stale >= patience
    return {
        FACTOR: torch.where(is_due, state[FACTOR] / DIVISOR, state[FACTOR]),
        BEST: torch.where(is_lower, mean, state[BEST]),
        STALE: torch.where(is_due, 0.0, stale),
        TOTAL: torch.zeros_like(state[TOTAL]),
        STEPS: torch.zeros_like(state[STEPS]),
    }
