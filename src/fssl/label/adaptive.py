"""FreeMatch (Wang et al., ICLR 2023): thresholds and class fairness from running means of the predictions."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..types import Counts, State, Task
from .accept import Accept
from .assign import hard

# Running means: of the largest probability, of all probabilities, and of the classes voted for.
TAU, P_TILDE, H_TILDE = "free.tau", "free.p", "free.hist"


@dataclass(frozen=True)
class FreeThreshold(Accept):
    """Sure where the largest probability reaches tau_t p~_t(c) / max p~_t: a class expected less is accepted earlier.

    All means start at 1/C as in the paper, so that at first everything is accepted.
    """

    ema: float = 0.999
    lowest: float = 0.0  # of a threshold, and the highest
    highest: float = 1.0

    def init(self, task: Task, counts: Counts) -> State:
        flat = torch.full((task.num_classes,), 1 / task.num_classes)
        return {TAU: flat[0].clone(), P_TILDE: flat, H_TILDE: flat.clone()}

    def observe(self, p: Tensor, state: State) -> State:
        """The means after one more batch."""
        batch = {TAU: p.amax(-1).mean(), P_TILDE: p.mean(0), H_TILDE: hard(p).mean(0)}
        return {name: self.ema * state[name] + (1 - self.ema) * new for name, new in batch.items()}

    def sure(self, p: Tensor, state: State) -> Tensor:
        thresholds = (state[TAU] * state[P_TILDE] / state[P_TILDE].amax()).clamp(self.lowest, self.highest)
        confidence, best = p.max(-1)
        return confidence >= thresholds[best]

    def update(self, votes: State, u_slot: Tensor, state: State) -> State:
        return self.observe(votes["p_l"], state)


def fairness(logits: Tensor, mask: Tensor, state: State) -> Tensor:
    """L_f = sum_c SumNorm(p~/h~)_c log SumNorm(p-/h-)_c, where p- and h- are the mean probabilities
    and the votes on the strong views of accepted images; 0 if there are none."""
    q, counted = logits.softmax(-1), mask.unsqueeze(-1).to(logits.dtype)
    p_bar = _balanced((q * counted).sum(0), (hard(q) * counted).sum(0))
    target = _balanced(state[P_TILDE], state[H_TILDE])
    return counted.amax() * (target * (p_bar + 1e-12).log()).sum()


def _balanced(p: Tensor, h: Tensor) -> Tensor:
    """SumNorm(p / h); a class without votes gets 0, as in the released code."""
    ratio = torch.where(h > 0, p / torch.where(h > 0, h, 1), 0)
    return ratio / ratio.sum().clamp(min=1e-12)
