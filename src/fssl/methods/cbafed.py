"""CBAFed (Li et al., CVPR 2023): class-balanced thresholds, and weights mixed with older ones."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from ..config import ByDataset, Range
from ..data.cards import Card
from ..label.assign import one_hot
from ..label.losses import soft_cross_entropy, supervised_loss
from ..models import Net
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
    choose,
    clone,
    packed,
    unpacked,
)
from .base import Method, Needs, Recipe, RunningMean, Source, Value, Watched, descend
from .roles import at_rate, mixed, shown_to
from .shared_settings import Share, Threshold, UnlabeledRate

# The classes that are trained with: on the server those of the last round, in a client's round those seen so far.
CLASSES, LABELED, ROUNDS = "cbafed.classes", "cbafed.labeled", "cbafed.rounds"
SEEN, SIZE, KNOWS = "cbafed.seen", "cbafed.size", "cbafed.knows"
OLDER = "cbafed.older."  # the older weights that newer ones are mixed with
EVERY = 5  # epochs of a client with labels, and rounds of the server
KEPT_BY_CLIENT, KEPT_BY_SERVER = 0.8, 0.5  # the share of the older weights


def class_shares(counts: Tensor) -> Tensor:
    """Return q: the classes' shares, in tenths of an even share; even shares if nothing is counted yet."""
    num_classes, total = len(counts), counts.sum()
    shares = torch.where(total > 0, counts / total.clamp(min=1e-12), 1 / num_classes)
    return shares * (num_classes / 10)


@dataclass(frozen=True)
class ClassBalance:
    """Accepts labels of the broadcast model: a class with fewer images in the whole federation is accepted earlier.

    T_c = min(q_c + base - std(q), cap); an image that is not accepted is given its second class if that is rare.
    """

    base: float = 0.84
    cap: float = 0.95
    rare: float = 0.03

    def thresholds(self, q: Tensor) -> Tensor:
        return (q + self.base - q.std()).clamp(max=self.cap)

    def __call__(self, p: Tensor, q: Tensor) -> PseudoLabels:
        (confidence, _), (first, second) = (t.unbind(-1) for t in p.topk(2))
        sure = confidence > self.thresholds(q)[first]  # strictly, as released
        helps = ~sure & (q < self.rare)[second]
        label = torch.where(helps, second, first)
        return PseudoLabels(one_hot(label, p), sure | helps)


@dataclass(frozen=True)
class CBAFed(Method):
    """A client with labels trains only on these; others train on labels of the broadcast model, in the same views.

    In the first `burn_in` rounds only clients with labels learn. State of a client lasts for one round.
    """

    accept: ClassBalance = ClassBalance()
    burn_in: int = 27
    labeled_epochs: int = 11
    unlabeled_rate: float = 2 / 3
    residual: bool = True

    @property
    def needs(self) -> Needs:
        return Needs(client_labels=True, burn_in=self.burn_in)

    def recipe(self, usual: Recipe) -> Recipe:
        """Return the recipe; clients with labels train only on these, independently of `train.labels_alone`."""
        views, epochs = ("x", "u_weak"), self.labeled_epochs
        return replace(usual, views=views, shuffles=True, labeled_epochs=epochs, labels_alone=False)

    @property
    def watched(self) -> Watched:
        return Watched(tau=self.accept.cap)

    def init(self, net: Net, weights: Weights, task: Task) -> Server:
        empty = weights.params[next(iter(weights.params))].new_zeros(task.num_classes)
        extras = {CLASSES: empty, LABELED: empty.clone(), ROUNDS: empty.new_zeros(())}
        return Server(weights, {**extras, **clone(packed(OLDER, weights))})

    def payload(self, server: Server, client: int) -> Payload:
        return Payload(server.weights, {CLASSES: server.extras[CLASSES]})

    def client_state(self, payload: Payload, task: Task, counts: Counts) -> State:
        size = torch.tensor(float(counts.pool))
        own = {CLASSES: torch.zeros(task.num_classes), SEEN: torch.zeros(()), SIZE: size}
        return {**own, **clone(packed(OLDER, payload.weights))}

    def keep(self, local: Local) -> State:
        """Return nothing, since each round starts with new counts."""
        return {}

    def vote(self, net: Net, payload: Payload, batch: Batch) -> State:
        """Return the broadcast model's votes on the unlabeled images, and those that a client without labels takes."""
        p = net.infer(payload.weights, batch.u_weak).logits.softmax(-1)
        target, mask = self.accept(p, class_shares(payload.extras[CLASSES]))
        mask = mask & (batch.has_labels == 0) & (batch.clock.round > self.burn_in)
        return {"p_l": p, "sure_l": mask, "target": target, "mask": mask}

    def step(self, net: Net, payload: Payload, local: Local, batch: Batch) -> tuple[Local, Trace]:
        votes = self.vote(net, payload, batch)
        images, y = shown_to(batch, "u_weak")

        def loss(weights: Weights, state: State) -> Value:
            buffers, (out,) = net.fit(weights, images)
            l_s = supervised_loss(out.logits, batch, y)
            l_u = soft_cross_entropy(out.logits, PseudoLabels(votes["target"], votes["mask"]))
            return l_s + l_u, (buffers, state, Trace({"l_s": l_s.detach(), "l_u": l_u.detach()}, votes))

        after, trace = descend(loss, at_rate(self.optimizer, batch, self.unlabeled_rate), local)
        learns = votes["mask"].any() | (batch.has_labels > 0)
        weights = Weights(*(choose(learns, *pair) for pair in zip(after.weights, local.weights, strict=True)))
        held = Local(weights, choose(learns, after.velocity, local.velocity), self.counted(votes, batch, local.state))
        return (self.connected(held, batch) if self.residual else held), trace

    def counted(self, votes: State, batch: Batch, state: State) -> State:
        """Return the state with the classes of the images that were trained on, and the number of images shown."""
        known = one_hot(batch.y, votes["target"]).sum(0)
        given = (votes["target"] * votes["mask"].unsqueeze(-1)).sum(0)
        classes = torch.where(batch.has_labels > 0, known, given)
        shown = torch.where(batch.has_labels > 0, float(len(batch.y)), float(len(votes["mask"])))
        return {**state, CLASSES: state[CLASSES] + classes, SEEN: state[SEEN] + shown}

    def connected(self, local: Local, batch: Batch) -> Local:
        """Mix after every fifth epoch of a client with labels: theta <- 0.8 older + 0.2 theta; older <- theta."""
        steps = torch.div(local.state[SIZE], len(batch.y), rounding_mode="floor").clamp(min=1)
        epoch = torch.div(batch.clock.step, steps, rounding_mode="floor")
        due = (torch.remainder(batch.clock.step + 1, steps) == 0) & (torch.remainder(epoch, EVERY) == 0)
        older = unpacked(OLDER, local.state)
        mixes = due & (epoch > 0) & (batch.has_labels > 0)
        trees = [
            choose(mixes, mixed(KEPT_BY_CLIENT, old, new), new) for old, new in zip(older, local.weights, strict=True)
        ]
        weights = Weights(*trees)
        newer = Weights(*(choose(due, *pair) for pair in zip(weights, older, strict=True)))
        return local._replace(weights=weights, state={**local.state, **packed(OLDER, newer)})

    def num_samples(self, counts: Counts) -> int:
        """Return the number of all images; without labels, of accepted ones. `train.labeled_weight` has no effect."""
        return counts.pool

    def upload(self, client: int, payload: Payload, local: Local, counts: Counts) -> Upload:
        """Return the model, and the classes of all images that it was trained on, each counted once."""
        state = local.state
        images = float(counts.labeled or counts.pool)
        classes = state[CLASSES] * (images / state[SEEN].clamp(min=1))
        knows = torch.full_like(state[SEEN], float(counts.labeled > 0))
        return super().upload(client, payload, local, counts)._replace(extras={CLASSES: classes, KNOWS: knows})

    def aggregate(self, net: Net, server: Server, uploads: Iterable[Upload], rng: np.random.Generator) -> Server:
        """Return the mean by images trained on, mixed with that of older rounds, and the classes of the round."""
        mean = RunningMean()
        labeled, given = (torch.zeros_like(server.extras[CLASSES]) for _ in range(2))
        for u in uploads:
            classes = u.extras[CLASSES]
            if u.extras[KNOWS].item():
                labeled = labeled + classes
                mean.add(packed("", u.weights), u.num_samples)
            else:
                given = given + classes
                mean.add(packed("", u.weights), classes.sum().item())
        weights = unpacked("", mean.value) if mean.value else server.weights  # else no client had data to learn from
        labeled = labeled if labeled.any() else server.extras[LABELED]
        weights, older = self.connected_to_older(server, weights)
        extras = {CLASSES: labeled + given, LABELED: labeled, ROUNDS: server.extras[ROUNDS] + 1}
        return server._replace(weights=weights, extras={**extras, **clone(packed(OLDER, older))})

    def connected_to_older(self, server: Server, weights: Weights) -> tuple[Weights, Weights]:
        """Mix after rounds 5, 10, ... of the second stage, from 0: theta <- (older + theta) / 2; older <- theta."""
        t, older = int(server.extras[ROUNDS].item()) - self.burn_in, unpacked(OLDER, server.extras)
        if t < 0:
            return weights, weights  # the second stage starts with the model of the first as the older one
        if not self.residual or t == 0 or t % EVERY:
            return weights, older
        joined = Weights(*(mixed(KEPT_BY_SERVER, old, new) for old, new in zip(older, weights, strict=True)))
        return joined, joined


def first_stage(card: Card) -> int:
    """Return the rounds of the first stage.

    Clients with labels get as many epochs as the run has rounds, at 11 epochs a round: 501 and 501."""
    return card.rounds // 11


@Source(
    "Li et al. 2023",
    "released code",
    server="model of older rounds, class counts",
    note="sends class counts both ways; for federations in which some clients know all labels and the others none",
    label="CBAFed",
    look="sky dot diamond",
)
def cbafed(
    burn_in: Annotated[
        int, Range(0, 1e6), ByDataset(first_stage), "rounds in which only clients with labels learn"
    ] = 27,
    base: Annotated[Share, "a class's threshold: its share of labels, plus base, minus the shares' spread"] = 0.84,
    cap: Annotated[Threshold, ByDataset(lambda card: 0.9 if card.name == "svhn" else 0.95), "largest threshold"] = 0.95,
    rare: Annotated[Share, "label share below which a class is also accepted as second-likeliest"] = 0.03,
    labeled_epochs: Annotated[
        int, Range(1, 10_000), "epochs of a client with labels; others take train.local_epochs"
    ] = 11,
    unlabeled_rate: UnlabeledRate = 2 / 3,
    residual: Annotated[bool, "mix weights with those of older rounds"] = True,
) -> CBAFed:
    """Clients without labels train on what the broadcast model labels, with thresholds by class.

    burn_in is an eleventh of the dataset's rounds by default.
    """
    return CBAFed(
        accept=ClassBalance(base, cap, rare),
        burn_in=burn_in,
        labeled_epochs=labeled_epochs,
        unlabeled_rate=unlabeled_rate,
        residual=residual,
    )
