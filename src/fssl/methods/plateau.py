"""A client's learning rate that falls when its loss does not: the measured losses, and the factor of the rate."""

import torch
from torch import Tensor

from ..types import State

FACTOR, BEST, STALE = "plateau.factor", "plateau.best", "plateau.stale"
TOTAL, STEPS = "plateau.total", "plateau.steps"
DIVISOR = 3.0


def new_plateau(like: Tensor) -> State:
    """Return the initial state: nothing measured yet, and a factor of 1."""
    zero = torch.zeros((), device=like.device)
    return {FACTOR: zero + 1, BEST: zero + torch.inf, STALE: zero, TOTAL: zero.clone(), STEPS: zero.clone()}


def measured(state: State, loss: Tensor, counts: Tensor) -> State:
    """Return the state with one more step's loss; `counts` is 0 where nothing was measured."""
    return {**state, TOTAL: state[TOTAL] + loss * counts, STEPS: state[STEPS] + counts}


def settled(state: State, patience: int) -> State:
    """Return the state after a round; the rate falls to a third after `patience` rounds without a lower mean loss."""
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
