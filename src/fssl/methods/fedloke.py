"""FedLoKe (Zhang et al., CIKM 2023): the global model and one that stays with the client label for each other."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from ..config import ByDataset, Range
from ..label.accept import Accept, EntropyThreshold, FixedThreshold, sure_from
from ..label.losses import soft_cross_entropy, supervised_loss
from ..models import Net
from ..types import (
    Batch,
    Counts,
    Local,
    Payload,
    PseudoLabels,
    State,
    Task,
    Trace,
    Upload,
    Weights,
    clone,
    packed,
    part,
    put,
    rest,
    unpacked,
)
from .base import Method, Recipe, Source, Value, Watched, broadcast_velocity, descend, fit
from .shared_settings import MuU, Passes, Share, Tau

OWN = "own."


@dataclass(frozen=True)
class FedLoKe(Method):
    """Two trained models: a copy of the broadcast (`g`, uploaded) and the client's own (`l`, never uploaded).

    In a round the own model is stored with the copy under the prefix `own.`; between rounds it is client state.
    """

    accept: Accept = EntropyThreshold()  # noqa: RUF009 (a frozen value)
    mu_own: float = 0.9
    mu_u: float = 1.0
    ramp_rounds: float = 120
    passes: Passes = "separate"  # of each model, over labeled images, weak and strong views

    def recipe(self, usual: Recipe) -> Recipe:
        return replace(usual, views=("x", "x_strong", "u_weak", "u_strong"))

    @property
    def watched(self) -> Watched:
        return Watched(tau=sure_from(self.accept))

    def client_state(self, payload: Payload, task: Task, counts: Counts) -> State:
        """Return the own model, which starts as the first broadcast that the client gets."""
        return kept(payload.weights)

    def start(self, payload: Payload, state: State) -> Local:
        """Set theta_l <- mu theta_l + (1 - mu) theta_g, running statistics included, and start both there."""
        old = unpacked(OWN, state)
        trees = [
            {**clone(new), **put(OWN, {name: torch.lerp(t, known[name], self.mu_own) for name, t in new.items()})}
            for new, known in zip(payload.weights, old, strict=True)
        ]
        return Local(Weights(*trees), self.optimizer.start(trees[0], broadcast_velocity(payload)), {})

    def step(self, net: Net, payload: Payload, local: Local, batch: Batch) -> tuple[Local, Trace]:
        def loss(weights: Weights, state: State) -> Value:
            unlabeled = (batch.u_weak, batch.u_strong)
            # Labeled images are weak for the own model and strong for the one that is uploaded.
            new_l, (x_l, weak_l, strong_l) = fit(net, part(OWN, weights), (batch.x, *unlabeled), self.passes)
            views = (batch.views["x_strong"], *unlabeled)
            new_g, (x_g, weak_g, strong_g) = fit(net, rest(OWN, weights), views, self.passes)
            votes = self.vote(weak_l.logits, weak_g.logits)
            l_s = supervised_loss(x_l.logits, batch) + supervised_loss(x_g.logits, batch)
            from_g = soft_cross_entropy(strong_l.logits, PseudoLabels(votes["p_g"], votes["sure_g"]))
            from_l = soft_cross_entropy(strong_g.logits, PseudoLabels(votes["p_l"], votes["sure_l"]))
            l_u = from_g + from_l
            trace = Trace({"l_s": l_s.detach(), "l_u": l_u.detach()}, votes)
            return l_s + self.ramp(batch) * l_u, ({**new_g, **put(OWN, new_l)}, state, trace)

        return descend(loss, self.optimizer.at(batch.clock), local)

    def vote(self, weak_l: Tensor, weak_g: Tensor) -> State:
        """Return each model's soft labels for the other; target and mask are those of the uploaded model."""
        p_l, p_g = (logits.detach().softmax(-1) for logits in (weak_l, weak_g))
        sure_l, sure_g = (self.accept.sure(p, {}) for p in (p_l, p_g))
        return {"p_l": p_l, "p_g": p_g, "sure_l": sure_l, "sure_g": sure_g, "target": p_l, "mask": sure_l}

    def ramp(self, batch: Batch) -> Tensor | float:
        """Return mu_u min(1, t / T_u), rounds counted from 0, as released: the first round learns only from labels."""
        if self.ramp_rounds == 0:
            return self.mu_u
        return self.mu_u * ((batch.clock.round - 1) / self.ramp_rounds).clamp(max=1)

    def upload(self, client: int, payload: Payload, local: Local, counts: Counts) -> Upload:
        return super().upload(client, payload, local._replace(weights=rest(OWN, local.weights)), counts)

    def keep(self, local: Local) -> State:
        return clone(kept(part(OWN, local.weights)))


def kept(weights: Weights) -> State:
    """Return an own model in the form of client state."""
    return packed(OWN, weights)


@Source("Zhang et al. 2023", "released code", client="own model", label="FedLoKe", look="orange dash triangle-up")
def fedloke(
    mu_own: Annotated[Share, "share of the client's own model that is kept at a broadcast"] = 0.9,
    filter: Annotated[
        Literal["entropy", "confidence"], "accept labels by entropy (below delta) or by confidence (at least tau)"
    ] = "entropy",
    delta: Annotated[float, Range(1e-9, 1e9), "entropy below which a label is accepted"] = 0.1,
    tau: Tau = 0.95,
    mu_u: MuU = 1.0,
    ramp_rounds: Annotated[
        float,
        Range(0.0, 1e9),
        ByDataset(lambda card: 0.4 * card.rounds),
        "rounds until pseudo-labels have weight mu_u; 0: from the start",
    ] = 120,
    passes: Passes = "separate",
) -> FedLoKe:
    """The uploaded model and one that stays with the client train together and label for each other.

    passes='separate' is as released. ramp_rounds is 0.4 of the dataset's rounds by default.
    """
    accept = EntropyThreshold(delta) if filter == "entropy" else FixedThreshold(tau)
    return FedLoKe(accept=accept, mu_own=mu_own, mu_u=mu_u, ramp_rounds=ramp_rounds, passes=passes)
