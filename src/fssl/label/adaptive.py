"""Rules that follow running means of the predictions: FreeMatch's thresholds and fairness, SoftMatch's weights."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..types import Counts, State, Task
from .accept import Accept
from .assign import hard

# Running means: of the largest probability, of all probabilities, and of the classes voted for.
TAU, P_TILDE, H_TILDE = "free.tau", "free.p", "free.hist"
# SoftMatch's means of all probabilities (and whether there is one yet) and of the largest one, and that one's variance.
PI, BEGUN, MU, SIGMA2 = "soft.pi", "soft.begun", "soft.mu", "soft.sigma2"
LEAST_VARIANCE = 1e-30  # of equal confidences, which all count fully


@dataclass(frozen=True)
class FreeThreshold(Accept):
    """Accepts where the largest probability reaches tau_t p~_t(c) / max p~_t: a rarer class is accepted earlier.

    All means start at 1/C as in the paper, so that at first everything is accepted.
    """

    ema: float = 0.999
    lowest: float = 0.0  # of a threshold, and the highest
    highest: float = 1.0

    def init(self, task: Task, counts: Counts) -> State:
        flat = torch.full((task.num_classes,), 1 / task.num_classes)
        return {TAU: flat[0].clone(), P_TILDE: flat, H_TILDE: flat.clone()}

    def observe(self, p_l: Tensor, state: State) -> State:
        """Return the means after one more batch; its thresholds already use them, as in the paper and its code."""
        batch = {TAU: p_l.amax(-1).mean(), P_TILDE: p_l.mean(0), H_TILDE: hard(p_l).mean(0)}
        return {name: self.ema * state[name] + (1 - self.ema) * new for name, new in batch.items()}

    def sure(self, p: Tensor, state: State) -> Tensor:
        thresholds = (state[TAU] * state[P_TILDE] / state[P_TILDE].amax()).clamp(self.lowest, self.highest)
        confidence, best = p.max(-1)
        return confidence >= thresholds[best]


def fairness(logits: Tensor, mask: Tensor, state: State) -> Tensor:
    """Return L_f = sum_c SumNorm(p~/h~)_c log SumNorm(p-/h-)_c; 0 if no image is accepted.

    p- and h- are the mean probabilities and the votes on the strong views of accepted images.
    """
    q, counted = logits.softmax(-1), mask.unsqueeze(-1).to(logits.dtype)
    p_bar = _balanced((q * counted).sum(0), (hard(q) * counted).sum(0))
    target = _balanced(state[P_TILDE], state[H_TILDE])
    return counted.amax() * (target * (p_bar + 1e-12).log()).sum()


def _balanced(p: Tensor, h: Tensor) -> Tensor:
    """Return SumNorm(p / h); a class without votes gets 0, as in the released code."""
    ratio = torch.where(h > 0, p / torch.where(h > 0, h, 1), 0)
    return ratio / ratio.sum().clamp(min=1e-12)


@dataclass(frozen=True)
class SoftWeight(Accept):
    """SoftMatch: a label counts fully from the mean confidence mu on, and with a Gaussian weight below it.

    Confidences are those of probabilities divided by their running mean, if `align`.
    """

    ema: float = 0.999
    n_sigma: float = 2.0
    align: bool = True
    weighs: ClassVar[bool] = True

    def init(self, task: Task, counts: Counts) -> State:
        flat = torch.full((task.num_classes,), 1 / task.num_classes)
        return {PI: flat, BEGUN: torch.zeros(()), MU: flat[0].clone(), SIGMA2: torch.ones(())}

    def observe(self, p_l: Tensor, state: State) -> State:
        pi = torch.where(state[BEGUN] > 0, self._mixed(state[PI], p_l.mean(0)), p_l.mean(0))
        c = self.confidence(p_l, {PI: pi})
        mu, sigma2 = self._mixed(state[MU], c.mean()), self._mixed(state[SIGMA2], c.var(correction=min(1, len(c) - 1)))
        return {PI: pi, BEGUN: torch.ones_like(state[BEGUN]), MU: mu, SIGMA2: sigma2}

    def confidence(self, p: Tensor, state: State) -> Tensor:
        """Return c~: the largest of p~_c ~ p_c (1/C + 1e-6) / (pi_c + 1e-6), or of p itself."""
        if not self.align:
            return p.amax(-1)
        q = p * (1 / p.shape[-1] + 1e-6) / (state[PI] + 1e-6)
        return q.amax(-1) / q.sum(-1)

    def sure(self, p: Tensor, state: State) -> Tensor:
        return self.confidence(p, state) >= state[MU]

    def weight(self, p: Tensor, state: State) -> Tensor:
        """Return w = exp(-min(c~ - mu, 0)^2 n^2 / (2 sigma^2))."""
        below = (self.confidence(p, state) - state[MU]).clamp(max=0)
        return torch.exp(-((self.n_sigma * below).square()) / (2 * state[SIGMA2].clamp(min=LEAST_VARIANCE)))

    def _mixed(self, old: Tensor, new: Tensor) -> Tensor:
        return self.ema * old + (1 - self.ema) * new
