"""FedLabel (Cho et al., ICCV 2023) as released: one model learns from labels, a second one from pseudo-labels."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from ..config import Range
from ..label.accept import FixedThreshold
from ..label.assign import SCORES, Winner
from ..label.losses import image_cross_entropy, kl_divergence, masked_mean, supervised_loss
from ..models import Net
from ..types import (
    Batch,
    Counts,
    Local,
    Payload,
    Server,
    State,
    Task,
    Trace,
    Upload,
    Weights,
    packed,
    part,
    put,
    unpacked,
)
from .base import Needs, RunningMean, Source, Value, descend, fit
from .fedlabel import FedLabel, agreed, rho
from .shared_settings import MuU, Passes, Tau, Weight, WinnerBy

A, B = "A.", "B."  # the supervised and the unsupervised model, both in one set of weights
COUNT = "fedlabel.count"  # number of pseudo-labels that B got this round


@dataclass(frozen=True)
class FedLabel2M(FedLabel):
    """Both models start from the broadcast one; A and the broadcast model label for B, and only A teaches it.

    Until round `burn_in` is over B stays what it was. In every step both models learn; the released code
    first trains A for 30 steps and then B for 10.
    """

    burn_in: int = 50
    pull: float = 10.0
    passes: Passes = "separate"  # of B over strong and weak views

    @property
    def needs(self) -> Needs:
        return super().needs._replace(burn_in=self.burn_in)

    def client_state(self, payload: Payload, task: Task, counts: Counts) -> State:
        return {**super().client_state(payload, task, counts), COUNT: torch.zeros(())}

    def keep(self, local: Local) -> State:
        """Return nothing, since each round starts with new counts of pseudo-labels."""
        return {}

    def start(self, payload: Payload, state: State) -> Local:
        a, b = super().start(payload, state), super().start(payload, state)
        weights = pair(a.weights, b.weights)
        both = pair(Weights(a.velocity, {}), Weights(b.velocity, {})).params
        return Local(weights, both, a.state)

    def step(self, net: Net, payload: Payload, local: Local, batch: Batch) -> tuple[Local, Trace]:
        def loss(weights: Weights, state: State) -> Value:
            a, b = part(A, weights), part(B, weights)
            p_a = self.ask_local(net, a, net.infer(a, batch.u_weak), batch)
            buffers_a, (x,) = net.fit(a, batch.x)
            state = self.meet(x, p_a, batch, state)
            votes = self.votes_on(p_a, self.ask_global(net, payload, state, batch), payload, state, batch)
            votes["mask"] = votes["mask"] & (batch.clock.round > self.burn_in)  # B is idle until then
            state = {**self.remember(votes, batch, state), COUNT: state[COUNT] + votes["mask"].sum()}
            buffers_b, (strong, weak) = fit(net, b, (batch.u_strong, batch.u_weak), self.passes)
            l_s = supervised_loss(x.logits, batch)
            l_u = pseudo_loss(strong.logits, votes)
            extra_terms = self.agreement(weak.logits, votes) + self.pull * drift(b.params, payload.weights.params)
            buffers = pair(Weights({}, buffers_a), Weights({}, buffers_b)).buffers
            trace = Trace({"l_s": l_s.detach(), "l_u": l_u.detach()}, votes)
            return l_s + self.mu_u * (l_u + extra_terms), (buffers, state, trace)

        after, trace = descend(loss, self.optimizer.at(batch.clock), local)
        return hold(local, after, batch.clock.round <= self.burn_in), trace

    def agreement(self, logits: Tensor, votes: State) -> Tensor:
        """Return kl_weight * mean of rho KL(p_A || p_B) over accepted images where both labelers agree, weak views."""
        counts = agreed(votes)
        kl = rho(votes["p_l"], votes["p_g"], self.score) * kl_divergence(votes["p_l"], logits)
        return self.kl_weight * (counts * kl).sum() / counts.sum().clamp(min=1)

    def upload(self, client: int, payload: Payload, local: Local, counts: Counts) -> Upload:
        return super().upload(client, payload, local, counts)._replace(extras={COUNT: local.state[COUNT].clone()})

    def aggregate(self, net: Net, server: Server, uploads: Iterable[Upload], rng: np.random.Generator) -> Server:
        """Return half the plain mean of all A plus half the mean of all B by numbers of pseudo-labels (at least 1)."""
        mean_a, mean_b = RunningMean(), RunningMean()
        for u in uploads:
            mean_a.add(packed("", part(A, u.weights)), 1.0)
            mean_b.add(packed("", part(B, u.weights)), max(1.0, u.extras[COUNT].item()))
        a, b = unpacked("", mean_a.value), unpacked("", mean_b.value)
        halves = ({name: 0.5 * (t + of_b[name]) for name, t in of_a.items()} for of_a, of_b in zip(a, b, strict=True))
        return server._replace(weights=Weights(*halves))


def pair(a: Weights, b: Weights) -> Weights:
    return Weights(*({**put(A, of_a), **put(B, of_b)} for of_a, of_b in zip(a, b, strict=True)))


def pseudo_loss(logits: Tensor, votes: State) -> Tensor:
    """Return the cross-entropy on accepted images, divided by their number: the released code drops the others."""
    per_image = image_cross_entropy(logits, votes["target"])
    return masked_mean(per_image, votes["mask"])


def drift(params: State, reference: State) -> Tensor:
    """Return the sum over tensors of the mean squared distance."""
    return torch.stack([(p - reference[name]).square().mean() for name, p in params.items()]).sum()


def hold(before: Local, after: Local, idle: Tensor) -> Local:
    """Return the step; while B is idle, without its changes to B."""

    def held(old: State, new: State) -> State:
        return {name: torch.where(idle, old[name], t) if name.startswith(B) else t for name, t in new.items()}

    (params, buffers), (new_params, new_buffers) = before.weights, after.weights
    weights = Weights(held(params, new_params), held(buffers, new_buffers))
    return Local(weights, held(before.velocity, after.velocity), after.state)


@Source("Cho et al. 2023", "released code", note="two models go up", label="FedLabel-2M", look="purple dot triangle-up")
def fedlabel_2m(
    tau: Tau = 0.3,
    mu_u: MuU = 1.0,
    kl_weight: Annotated[Weight, "weight of B's pull towards A's probabilities where both labelers agree"] = 0.05,
    pull: Annotated[Weight, "weight that holds B near the broadcast model"] = 10.0,
    burn_in: Annotated[int, Range(0, 1e6), "rounds in which only A learns"] = 50,
    winner: WinnerBy = "variance",
    passes: Passes = "separate",
) -> FedLabel2M:
    """FedLabel with two models per client, as its framework runs it: A learns from labels, B from pseudo-labels.

    passes='separate' is B's as released.
    """
    score = SCORES[winner]
    return FedLabel2M(
        accept=FixedThreshold(tau),
        assign=Winner(score),
        mu_u=mu_u,
        score=score,
        kl_weight=kl_weight,
        burn_in=burn_in,
        pull=pull,
        passes=passes,
    )
