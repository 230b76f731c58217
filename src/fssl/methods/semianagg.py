"""SemiAnAgg (Elbatel et al., TMLR 2024): weighs clients by how unlike a random network they see the images."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from ..config import Range
from ..label.accept import FlexThreshold
from ..label.assign import hard
from ..label.losses import soft_cross_entropy, supervised_loss
from ..models import CLASSIFIER, Net
from ..seeds import stream
from ..types import (
    Batch,
    Counts,
    Local,
    Payload,
    PseudoLabels,
    Server,
    State,
    Task,
    Trace,
    Upload,
    Weights,
    packed,
    unpacked,
)
from .base import Method, Needs, Recipe, RunningMean, Source, Value, Watched, descend, fit
from .roles import at_rate, shown_to
from .shared_settings import Tau, UnlabeledRate

ANCHOR = "anchor."  # a random network, the same for all clients, that is never trained
SUMS, NUMBERS = "semianagg.sums", "semianagg.numbers"  # sums of cosines by class, and their numbers of images
LIKENESS, KNOWS = "semianagg.likeness", "semianagg.knows"


@dataclass(frozen=True)
class SemiAnAgg(Method):
    """A client with labels trains only on these, others on labels of the broadcast model.

    Until round `burn_in` is over only clients with labels count. State of a client lasts for one round.
    """

    accept: FlexThreshold = FlexThreshold(0.9, count="global")  # noqa: RUF009 (a frozen value)
    burn_in: int = 0
    unlabeled_rate: float = 2 / 3

    @property
    def needs(self) -> Needs:
        return Needs(client_labels=True, all_weights=True, burn_in=self.burn_in)

    def recipe(self, usual: Recipe) -> Recipe:
        """Return the recipe; clients with labels train only on these, independently of `train.labels_alone`."""
        return replace(usual, views=("x", "x_strong", "u_weak", "u_strong"), shuffles=True, labels_alone=False)

    @property
    def watched(self) -> Watched:
        return Watched(tau=self.accept.tau)

    def init(self, net: Net, weights: Weights, task: Task) -> Server:
        """Return the server with a separately drawn anchor, independent of the model's first weights."""
        seed, device = int(stream(task.seed, "semianagg").integers(2**31)), weights.params[CLASSIFIER].device
        anchor = {name: t.to(device) for name, t in packed(ANCHOR, net.drawn(seed)).items()}
        return Server(weights, anchor)

    def client_state(self, payload: Payload, task: Task, counts: Counts) -> State:
        by_class = torch.zeros(task.num_classes)
        return {**self.accept.init(task, counts), SUMS: by_class, NUMBERS: by_class.clone()}

    def keep(self, local: Local) -> State:
        """Return nothing, since each round starts with new counts."""
        return {}

    def step(self, net: Net, payload: Payload, local: Local, batch: Batch) -> tuple[Local, Trace]:
        seen = net.infer(payload.weights, batch.u_weak)
        p_g = seen.logits.softmax(-1)
        idle = (batch.has_labels > 0) | (batch.clock.round <= self.burn_in)
        votes = {"p_l": p_g, "p_g": p_g, "target": hard(p_g), "mask": self.accept.sure(p_g, local.state) & ~idle}
        votes["sure_l"] = votes["mask"]
        weak, y = shown_to(batch, "u_weak")
        strong, _ = shown_to(batch, "u_strong", "x_strong")

        def loss(weights: Weights, state: State) -> Value:
            buffers, (of_weak, of_strong) = fit(net, weights, (weak, strong), "separate")
            l_s = (supervised_loss(of_weak.logits, batch, y) + supervised_loss(of_strong.logits, batch, y)) / 2
            l_u = soft_cross_entropy(of_strong.logits, PseudoLabels(votes["target"], votes["mask"]))
            shown = {name: votes[name] for name in ("p_l", "sure_l", "target", "mask")}
            return l_s + l_u, (buffers, state, Trace({"l_s": l_s.detach(), "l_u": l_u.detach()}, shown))

        after, trace = descend(loss, at_rate(self.optimizer, batch, self.unlabeled_rate), local)
        anchor = net.infer(unpacked(ANCHOR, payload.extras), batch.u_weak).feature
        cosine = torch.nn.functional.cosine_similarity(seen.feature, anchor)
        return after._replace(state=self.counted(votes, cosine, idle, batch, local.state)), trace

    def counted(self, votes: State, cosine: Tensor, idle: Tensor, batch: Batch, state: State) -> State:
        """Return the state after a batch: its table, and the cosines of images that reach tau itself."""
        selected = (votes["p_g"].amax(-1) >= self.accept.tau) & ~idle
        of = votes["target"] * selected.unsqueeze(-1)
        sums, numbers = state[SUMS] + (of * cosine.unsqueeze(-1)).sum(0), state[NUMBERS] + of.sum(0)
        return {**state, **self.accept.update(votes, batch.u_slot, state), SUMS: sums, NUMBERS: numbers}

    def num_samples(self, counts: Counts) -> int:
        """Return the number of all images, independently of `train.labeled_weight`."""
        return counts.pool

    def upload(self, client: int, payload: Payload, local: Local, counts: Counts) -> Upload:
        """Return the model, its likeness to the anchor by class, and the number of images behind it."""
        sums, numbers = local.state[SUMS], local.state[NUMBERS]
        likeness = torch.where(numbers > 0, sums / numbers.clamp(min=1), 1.0)
        knows = torch.full_like(sums[0], float(counts.labeled > 0))
        extras = {LIKENESS: likeness, NUMBERS: numbers.clone(), KNOWS: knows}
        return super().upload(client, payload, local, counts)._replace(extras=extras)

    def aggregate(self, net: Net, server: Server, uploads: Iterable[Upload], rng: np.random.Generator) -> Server:
        """Return half the mean of clients with labels plus half that of the others by unlikeness to the anchor."""
        with_labels, without = RunningMean(), list[Upload]()
        for u in uploads:
            if u.extras[KNOWS].item():
                with_labels.add(packed("", u.weights), u.num_samples)
            else:
                without.append(u)
        others = RunningMean()
        if any(u.extras[NUMBERS].any() for u in without):
            for u, share in zip(without, unlikeness([u.extras[LIKENESS] for u in without]), strict=True):
                others.add(packed("", u.weights), share)
        both = RunningMean()
        for mean in (with_labels, others):
            if mean.value:
                both.add(mean.value, 0.5)
        return server._replace(weights=unpacked("", both.value)) if both.value else server


def unlikeness(likeness: Sequence[Tensor]) -> list[float]:
    """Return a_i ~ sum over classes of 1 - s_ic / sum_j s_jc; 1 for a single client."""
    if len(likeness) == 1:
        return [1.0]
    s = torch.stack([*likeness]).double()
    a = (1 - s / s.sum(0).clamp(min=1e-12)).sum(-1)
    shares: list[float] = (a / a.sum()).tolist()
    return shares


@Source(
    "Elbatel et al. 2024",
    "released code",
    server="a random network",
    note="a random network goes down; by class, cosines of features and counts of labels go up; for federations"
    " in which some clients know all labels and the others none",
    label="SemiAnAgg",
)
def semianagg(
    tau: Tau = 0.9,
    burn_in: Annotated[int, Range(0, 1e6), "rounds in which only clients with labels learn"] = 0,
    unlabeled_rate: UnlabeledRate = 2 / 3,
) -> SemiAnAgg:
    """Clients without labels weigh by how unlike a random network they see the images that they label.

    The released labeled loss is train.logit_adjustment=1.
    """
    return SemiAnAgg(accept=FlexThreshold(tau, count="global"), burn_in=burn_in, unlabeled_rate=unlabeled_rate)
