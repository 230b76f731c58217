"""Assignment rules: map two models' predictions to training targets (SAGE, Sec. 4.2 and 4.3)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from ..types import PseudoLabels
from .losses import entropy

KAPPA_STAR = math.log(2) / 0.05  # both models weigh the same at a gap of 1 - 0.95 (App. C.4)

Vote = Callable[[Tensor], Tensor]
Weigh = Callable[[Tensor, Tensor], Tensor]
Score = Callable[[Tensor], Tensor]
Order = Literal["local-first", "global-first"]


def one_hot(y: Tensor, like: Tensor) -> Tensor:
    """Return classes [B] as votes [B, C], with the number of classes and the precision of `like`."""
    return (y.unsqueeze(-1) == torch.arange(like.shape[-1], device=y.device)).to(like.dtype)


def hard(p: Tensor) -> Tensor:
    """Return a one-hot vote for the likeliest class."""
    return one_hot(p.argmax(-1), p)


def soft(p: Tensor) -> Tensor:
    """Return the probabilities unchanged (Tab. 5)."""
    return p


VOTES: dict[str, Vote] = {"hard": hard, "soft": soft}


class Assign(Protocol):
    """A rule for targets: maps two models' predictions to labels."""

    @property
    def uses_global(self) -> bool:
        """Return whether the rule reads p_g; if it does not, the global model need not run."""
        ...

    def __call__(self, p_l: Tensor, p_g: Tensor, sure_l: Tensor, sure_g: Tensor) -> PseudoLabels:
        """Return targets, and which of them count.

        Args:
            p_l: Probabilities [B, C] of the local model.
            p_g: Probabilities [B, C] of the global model.
            sure_l: Whether `accept` finds p_l sure, booleans [B].
            sure_g: Whether `accept` finds p_g sure, booleans [B].

        Returns:
            Targets [B, C], and a mask [B] of booleans or of weights.
        """
        ...


@dataclass(frozen=True)
class LocalOnly:
    """FixMatch-LPL: the model being trained labels for itself."""

    vote: Vote = hard
    uses_global: ClassVar[bool] = False

    def __call__(self, p_l: Tensor, p_g: Tensor, sure_l: Tensor, sure_g: Tensor) -> PseudoLabels:
        return PseudoLabels(self.vote(p_l), sure_l)


@dataclass(frozen=True)
class GlobalOnly:
    """FixMatch-GPL: the broadcast model labels for the whole round."""

    vote: Vote = hard
    uses_global: ClassVar[bool] = True

    def __call__(self, p_l: Tensor, p_g: Tensor, sure_l: Tensor, sure_g: Tensor) -> PseudoLabels:
        return PseudoLabels(self.vote(p_g), sure_g)


@dataclass(frozen=True)
class ConfidenceGap:
    """The weight of the local vote: 1 when both models are equally sure, less the further they differ."""

    kappa: float = KAPPA_STAR

    def __call__(self, p_l: Tensor, p_g: Tensor) -> Tensor:
        delta_c = (p_l.amax(-1) - p_g.amax(-1)).abs()  # Eq. 2
        return torch.exp(-self.kappa * delta_c)  # Eq. 3


@dataclass(frozen=True)
class Constant:
    """The same weight for every image: the fixed lambda of Fig. 5; 1 is CPG only."""

    lam: float

    def __call__(self, p_l: Tensor, p_g: Tensor) -> Tensor:
        return torch.full_like(p_l[..., 0], self.lam)


@dataclass(frozen=True)
class Sage:
    """CPG and CDSC. An ablation is another value of a field: weigh=Constant(1.0) is CPG only,
    supplement=False is CDSC only, vote=soft is the soft-label row of Tab. 5.

    Examples:
        >>> p_l, p_g = torch.tensor([[0.96, 0.04]]), torch.tensor([[0.01, 0.99]])
        >>> sure = torch.tensor([True])
        >>> Sage(Constant(0.75))(p_l, p_g, sure, sure).target
        tensor([[0.7500, 0.2500]])
    """

    weigh: Weigh = ConfidenceGap()
    supplement: bool = True
    vote: Vote = hard
    order: Order = "local-first"  # "global-first" lets the models change places: not in the paper
    uses_global: ClassVar[bool] = True

    def __call__(self, p_l: Tensor, p_g: Tensor, sure_l: Tensor, sure_g: Tensor) -> PseudoLabels:
        if self.order == "global-first":
            p_l, p_g, sure_l, sure_g = p_g, p_l, sure_g, sure_l
        delta_l, delta_g = self.vote(p_l), self.vote(p_g)  # Eqs. 4, 5
        lam = self.weigh(p_l, p_g).unsqueeze(-1)  # weighs the local vote, as Eq. 6 says; some prose swaps it
        y_tilde = lam * delta_l + (1 - lam) * delta_g  # Eq. 6
        y_hat = torch.where(sure_l.unsqueeze(-1), y_tilde, delta_g)  # Eq. 7
        return PseudoLabels(y_hat, sure_l | sure_g if self.supplement else sure_l)

    def weigh_local(self, p_l: Tensor, p_g: Tensor) -> Tensor:
        """Return the weight of the local vote against the global one, in either order."""
        lam = self.weigh(p_l, p_g)
        return lam if self.order == "local-first" else 1 - lam


def weight_in(assign: Assign) -> Weigh:
    """Return the weight of the local vote that records show: the rule's, or SAGE's if the rule has none."""
    if isinstance(assign, Sage) and assign.order == "global-first":
        return assign.weigh_local
    weigh: Weigh = getattr(assign, "weigh", ConfidenceGap())
    return weigh


def weights_of(assign: Assign, p_l: Tensor, p_g: Tensor, w_l: Tensor, w_g: Tensor) -> Tensor:
    """Return how much each label counts [B] if the models' labels have these weights instead of being sure or not.

    It is the mean over t from 0 to 1 of the mask that `assign` gives if a weight of at least t is sure: w_l if only the
    local model is asked, and the larger weight if either model is enough.
    """
    low, high = torch.minimum(w_l, w_g), torch.maximum(w_l, w_g)
    both, one = (assign(p_l, p_g, w_l >= t, w_g >= t).mask for t in (low, high))
    return low * both + (high - low) * one


def variance(p: Tensor) -> Tensor:
    """Return the variance of the probabilities: 0 where all classes are equally likely."""
    return p.var(-1)


def inverse_entropy(p: Tensor) -> Tensor:
    """Return 1 / H in nats; the small number is the released code's and keeps a certain prediction finite."""
    return 1 / (entropy(p) + 1e-5)


def confidence(p: Tensor) -> Tensor:
    return p.amax(-1)


SCORES: dict[str, Score] = {"variance": variance, "entropy": inverse_entropy, "max": confidence}


@dataclass(frozen=True)
class Winner:
    """FedLabel: the model with the higher score labels, if it is sure; in a tie the global one."""

    score: Score = variance
    uses_global: ClassVar[bool] = True

    def __call__(self, p_l: Tensor, p_g: Tensor, sure_l: Tensor, sure_g: Tensor) -> PseudoLabels:
        wins_l = self.score(p_l) > self.score(p_g)
        p = torch.where(wins_l.unsqueeze(-1), p_l, p_g)
        return PseudoLabels(hard(p), torch.where(wins_l, sure_l, sure_g))
