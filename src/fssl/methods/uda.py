"""UDA (Xie et al., NeurIPS 2020) in a federation: sharpened labels, and training signal annealing."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

import torch
from torch import Tensor

from ..config import ByDataset, Range
from ..label.accept import FixedThreshold
from ..label.assign import Assign, LocalOnly, Sage
from ..label.losses import adjusted, cross_entropies
from ..models import Out
from ..types import Batch
from .base import Source
from .fixmatch import FixMatch
from .shared_settings import MuU, Tau

Tsa = Literal["none", "linear", "exp", "log"]
STEEP = 5.0  # of the curved schedules
LEAST = 1e-30  # probability, in a logarithm


@dataclass(frozen=True)
class Sharpened:
    """The sharpened probabilities: q_c ~ p_c^(1/T)."""

    temperature: float = 0.4

    def __call__(self, p: Tensor) -> Tensor:
        return p if self.temperature == 1 else (p.clamp(min=LEAST).log() / self.temperature).softmax(-1)


def signal(t: Tensor, tsa: Tsa, num_classes: int) -> Tensor:
    """Return eta = f(t) (1 - 1/C) + 1/C at t, the elapsed share of the rounds."""
    f = {"linear": t, "exp": torch.exp(STEEP * (t - 1)), "log": 1 - torch.exp(-STEEP * t)}[tsa]
    return f * (1 - 1 / num_classes) + 1 / num_classes


def annealed(logits: Tensor, batch: Batch, eta: Tensor) -> Tensor:
    """Return the mean of w_y CE over images to whose class the model gives at most eta; 0 if there is none."""
    y, w = batch.y, batch.class_weights
    kept = logits.detach().softmax(-1).gather(-1, y.unsqueeze(-1)).squeeze(-1) <= eta
    losses = cross_entropies(adjusted(logits, batch), y) * (1 if w is None else w[y])
    return (losses * kept).sum() / kept.sum().clamp(min=1)


@dataclass(frozen=True)
class UDA(FixMatch):
    """FixMatch with a sharpened vote, and training signal annealing (TSA) of the labeled loss.

    With TSA, labeled images that the model already predicts too well for the stage of the run do not count.
    """

    vote_of: Sharpened = Sharpened()
    tsa: Tsa = "none"
    tsa_rounds: float = 0

    def relabeled(self, assign: Assign) -> Self:
        """Return the method with a plug-in's vote sharpened, too."""
        return super().relabeled(replace(assign, vote=self.vote_of) if isinstance(assign, Sage) else assign)

    def supervised(self, x: Out, batch: Batch) -> Tensor:
        if self.tsa == "none":
            return super().supervised(x, batch)
        t = ((batch.clock.round - 1) / self.tsa_rounds).clamp(max=1)
        eta = signal(t, self.tsa, x.logits.shape[-1])
        return batch.has_labels * annealed(x.logits, batch, eta)


@Source("Xie et al. 2020", "released code", label="UDA")
def uda(
    tau: Tau = 0.8,
    mu_u: MuU = 1.0,
    temperature: Annotated[float, Range(1e-3, 1.0), "sharpens labels: each is p^(1/T), normalized"] = 0.4,
    tsa: Annotated[Tsa, "growth of the limit above which labeled images are dropped"] = "none",
    tsa_rounds: Annotated[
        float, Range(1.0, 1e9), ByDataset(lambda card: float(card.rounds)), "with tsa: rounds until all of them count"
    ] = 300.0,
) -> UDA:
    """FixMatch-LPL with sharpened soft labels; the threshold applies before sharpening.

    tsa_rounds is the dataset's number of rounds by default.
    """
    vote = Sharpened(temperature)
    rounds = 0 if tsa == "none" else tsa_rounds
    return UDA(accept=FixedThreshold(tau), assign=LocalOnly(vote), mu_u=mu_u, vote_of=vote, tsa=tsa, tsa_rounds=rounds)
