"""CDMAD (Lee and Kim, CVPR 2024) as a plug-in: subtracts a model's logits of a blank image from all others."""

from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from ..config import ByDataset, Range
from ..errors import UserError
from ..models import CLASSIFIER, Net, Out
from ..types import Batch, Payload, Server, State, Weights
from .base import Method, Source
from .fixmatch import FixMatch

BIAS = CLASSIFIER.replace("weight", "bias")
LEAST = 1e-30  # probability, in a logarithm


def debias(p: Tensor, z_blank: Tensor) -> Tensor:
    """Return softmax(z - z_blank), from p = softmax(z)."""
    return (p.clamp(min=LEAST).log() - z_blank).softmax(-1)


@dataclass(frozen=True)
class Debiased(FixMatch):
    """Removes the bias of both models' predictions after `start_rounds` rounds; the tested model never has it.

    The bias is a model's output for an image whose normalized values are all 1. This class is the first base class of a
    corrected method: see `with_cdmad`.
    """

    start_rounds: float = 0
    blank_bn: Literal["eval", "train"] = "eval"  # statistics under which the trained model sees the blank image

    def ask_local(self, net: Net, weights: Weights, weak: Out, batch: Batch) -> Tensor:
        blank = torch.ones_like(batch.u_weak[:1])
        (out,) = net.fit(weights, blank)[1] if self.blank_bn == "train" else [net.infer(weights, blank)]
        return self.corrected(super().ask_local(net, weights, weak, batch), out, batch)

    def ask_global(self, net: Net, payload: Payload, state: State, batch: Batch) -> Tensor:
        out = net.infer(payload.weights, torch.ones_like(batch.u_weak[:1]))
        return self.corrected(super().ask_global(net, payload, state, batch), out, batch)

    def corrected(self, p: Tensor, blank: Out, batch: Batch) -> Tensor:
        """Return the probabilities of a step, corrected from `start_rounds` on."""
        return torch.where(batch.clock.round > self.start_rounds, debias(p, blank.logits.detach()), p)

    def deploy(self, net: Net, server: Server) -> Weights:
        """Return the host's model with the bias in its last layer, which is an ordinary model."""
        weights = super().deploy(net, server)
        blank = torch.ones(1, net.channels, net.size, net.size, device=weights.params[BIAS].device)
        bias = weights.params[BIAS] - net.infer(weights, blank).logits[0]
        return weights._replace(params={**weights.params, BIAS: bias})


@cache
def debiased(host: type[FixMatch]) -> type[Debiased]:
    """Return a host's class with CDMAD as its first base class."""
    made: Any = type(f"{host.__name__}Debiased", (Debiased, host), {})
    kind: type[Debiased] = dataclass(frozen=True)(made)
    return kind


@Source("Lee and Kim 2024", "released code", page="cdmad", label="CDMAD", look="longdashdot")
def with_cdmad(
    base: Method,
    start_rounds: Annotated[
        float, Range(0.0, 1e9), ByDataset(lambda card: 0.2 * card.rounds), "rounds before labels are corrected"
    ] = 60.0,
    blank_bn: Annotated[
        Literal["eval", "train"], "the trained model sees the blank image with running statistics, or with its own"
    ] = "eval",
) -> FixMatch:
    """CDMAD as a plug-in: predictions less what the model says of a blank image, in labels and in the test.

    start_rounds is a fifth of the dataset's rounds by default.
    """
    if not isinstance(base, FixMatch):
        raise UserError("the plug-in 'cdmad' needs a method with pseudo-labels that it can correct, such as flexmatch")
    kept = {field.name: getattr(base, field.name) for field in fields(base)}
    host: Any = type(base)
    return debiased(host)(**kept, start_rounds=start_rounds, blank_bn=blank_bn)
