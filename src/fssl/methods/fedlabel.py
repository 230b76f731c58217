"""FedLabel (Cho et al., ICCV 2023) with one model: the more decided of the local and the global model labels."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ..label.accept import FixedThreshold
from ..label.assign import SCORES, Score, Winner, variance
from ..label.losses import kl_divergence
from ..models import Net
from ..types import Batch, Local, Payload, State
from .base import Source
from .fixmatch import FixMatch, Seen
from .shared_settings import MuU, Tau, Weight, WinnerBy


@dataclass(frozen=True)
class FedLabel(FixMatch):
    """FixMatch labeled by the winner, and where both models agree, a pull towards the loser's probabilities."""

    score: Score = variance
    kl_weight: float = 1.0
    extra_loss: ClassVar[str] = "l_kl"

    def extra(self, net: Net, payload: Payload, local: Local, batch: Batch, seen: Seen) -> tuple[Tensor, State]:
        return self.mu_u * self.agreement(seen.strong.logits, seen.votes), local.state

    def agreement(self, logits: Tensor, votes: State) -> Tensor:
        """Return kl_weight * 1/B_u * sum of rho KL(p_loser || p) over accepted images on which both models agree."""
        p_l, p_g = votes["p_l"], votes["p_g"]
        loser = torch.where((self.score(p_l) > self.score(p_g)).unsqueeze(-1), p_g, p_l)
        weight = rho(p_l, p_g, self.score) * agreed(votes)
        return self.kl_weight * (weight * kl_divergence(loser, logits)).mean()


def rho(p_l: Tensor, p_g: Tensor, score: Score) -> Tensor:
    """Return the loser's score over the winner's, at most 1."""
    s_l, s_g = score(p_l), score(p_g)
    return torch.minimum(s_l, s_g) / torch.maximum(s_l, s_g).clamp(min=1e-12)  # two flat predictions: 0


def agreed(votes: State) -> Tensor:
    """Return which accepted images both models put into the same class."""
    return votes["mask"] & (votes["p_l"].argmax(-1) == votes["p_g"].argmax(-1))


@Source("Cho et al. 2023", "reconstruction", label="FedLabel", look="purple solid triangle-down")
def fedlabel(
    tau: Tau = 0.95,
    mu_u: MuU = 1.0,
    kl_weight: Annotated[Weight, "weight of the pull towards the other model's probabilities where both agree"] = 1.0,
    winner: WinnerBy = "variance",
) -> FedLabel:
    """FixMatch labeled by the local or the global model, whichever has the more peaked prediction."""
    score = SCORES[winner]
    return FedLabel(accept=FixedThreshold(tau), assign=Winner(score), mu_u=mu_u, score=score, kl_weight=kl_weight)
