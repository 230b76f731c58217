"""Training on labels only: FedAvg (McMahan et al., 2017), FedProx (Li et al., 2020), and the upper bound."""

from dataclasses import dataclass, replace
from typing import Literal

import torch

from ..label.losses import supervised_loss
from ..models import Net
from ..types import Batch, Counts, Local, Payload, State, Trace, Weights
from .base import Method, Needs, Recipe, Source, Value, descend
from .shared_settings import MuProx, Steps
from .terms import Proximal, Term, add_terms


@dataclass(frozen=True)
class Supervised(Method):
    """Cross-entropy on weak views of labeled images."""

    terms: tuple[Term, ...] = ()
    labels: Literal["few", "all"] = "few"
    steps: Steps = "pool"

    @property
    def needs(self) -> Needs:
        return Needs(labels=self.labels)

    def recipe(self, usual: Recipe) -> Recipe:
        """Return a recipe of labeled images only, independently of `train.labels_alone`."""
        return replace(usual, epoch=self.steps, labels_alone=False)

    def num_samples(self, counts: Counts) -> int:
        return counts.labeled

    def step(self, net: Net, payload: Payload, local: Local, batch: Batch) -> tuple[Local, Trace]:
        def loss(weights: Weights, state: State) -> Value:
            buffers, (x,) = net.fit(weights, batch.x)
            l_s = supervised_loss(x.logits, batch)
            total = add_terms(l_s, self.terms, weights, payload)
            trace = Trace({"l_s": l_s.detach(), "l_u": torch.zeros_like(l_s)}, {})
            return total, (buffers, state, trace)

        return descend(loss, self.optimizer.at(batch.clock), local)


@Source("McMahan et al. 2017", "paper", label="FedAvg", look="grey dash circle")
def fedavg(steps: Steps = "pool") -> Supervised:
    """FedAvg on the labeled images only.

    steps='pool' is the fair baseline; 'labeled', with incomplete batches dropped, may be what the paper ran.
    """
    return Supervised(steps=steps)


@Source("Li et al. 2020", "released code", page="fedavg", label="FedProx", look="grey dot square")
def fedprox(mu_prox: MuProx = 1e-3, steps: Steps = "pool") -> Supervised:
    """FedAvg with a pull of the local model towards the broadcast one."""
    return Supervised(terms=(Proximal(mu_prox),), steps=steps)


@Source("McMahan et al. 2017", "reconstruction", page="fedavg", label="FedAvg-SL", look="grey solid star")
def fedavg_sl() -> Supervised:
    """FedAvg with the true label of every image: the upper bound."""
    return Supervised(labels="all", steps="labeled")
