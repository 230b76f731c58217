"""RSCFed (Liang et al., CVPR 2022): a mean of means over random groups, in which models far from it count less."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from ..config import Range
from ..label.losses import supervised_loss
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
    choose,
    clone,
    drop,
    packed,
    unpacked,
)
from .base import Method, Needs, Recipe, RunningMean, Source, Value, descend
from .roles import at_rate, mixed, shown_to
from .shared_settings import MuU, Share, UnlabeledRate, Weight

TEACHER, STEPS = "rscfed.teacher.", "rscfed.steps"  # stay with a client
IN, MEMBER, KNOWS = "rscfed.group", "rscfed.member", "rscfed.knows"  # of a round: its models by group, and the groups
AGAIN = "u_again"  # a second weak view


def sharpened(p: Tensor) -> Tensor:
    """Return q_c = p_c^2 / sum p^2: temperature 1/2."""
    q = p.square()
    return q / q.sum(-1, keepdim=True)


def teacher_share(steps: Tensor, most: float) -> Tensor:
    """Return alpha = min(1 - 1 / (i + 1), most) at a client's step i, from 0; alpha = 0 copies the student."""
    return (1 - 1 / (steps + 1)).clamp(max=most)


def distance(model: State, mean: State) -> float:
    """Return d: the sum over tensors of their distances."""
    return float(torch.stack([torch.linalg.vector_norm(t - mean[name]) for name, t in model.items()]).sum())


@dataclass(frozen=True)
class Member:
    """One client's part in a group."""

    weights: Weights
    size: int
    knows: bool


@dataclass(frozen=True)
class RSCFed(Method):
    """Mean teacher at clients without labels; `groups` groups of clients train in a round, and may share clients.

    A client starts in each of its groups with the broadcast model, and keeps its momentum and its teacher.
    """

    groups: int = 3
    mu_u: float = 0.02
    ema: float = 0.999
    beta: float = 100.0
    beta_unlabeled: float = 1e4
    boost: float = 6.0
    unlabeled_rate: float = 0.7

    @property
    def needs(self) -> Needs:
        return Needs(groups=self.groups, client_labels=True)

    def recipe(self, usual: Recipe) -> Recipe:
        """Return the recipe; clients with labels train only on these, independently of `train.labels_alone`."""
        return replace(usual, views=("x", "u_weak", AGAIN), shuffles=True, labels_alone=False)

    def client_state(self, payload: Payload, task: Task, counts: Counts) -> State:
        """Return the teacher, which starts as the client's first broadcast; its buffers never change."""
        return {STEPS: torch.zeros(()), **clone(packed(TEACHER, payload.weights))}

    def start(self, payload: Payload, state: State) -> Local:
        local = super().start(payload, state)
        models = [clone(packed(group_name(m), payload.weights)) for m in range(self.groups)]
        member = state[STEPS].new_zeros(self.groups)
        return local._replace(
            state={**local.state, MEMBER: member, **{k: t for model in models for k, t in model.items()}}
        )

    def keep(self, local: Local) -> State:
        return clone(drop(IN, drop(MEMBER, local.state)))

    def step(self, net: Net, payload: Payload, local: Local, batch: Batch) -> tuple[Local, Trace]:
        begins = batch.clock.step == 0  # a group's steps
        model = Weights(*(choose(begins, *pair) for pair in zip(payload.weights, local.weights, strict=True)))
        teacher = unpacked(TEACHER, local.state)
        p = net.infer(teacher, batch.u_weak).logits.softmax(-1)
        q = sharpened(p)
        images, y = shown_to(batch, AGAIN)

        def loss(weights: Weights, state: State) -> Value:
            buffers, (out,) = net.fit(weights, images)
            l_s = supervised_loss(out.logits, batch, y)
            l_u = (1 - batch.has_labels) * (out.logits.softmax(-1) - q).square().sum(-1).mean()
            every = torch.ones_like(p[:, 0]) * (1 - batch.has_labels)
            votes = {"p_l": p, "sure_l": every, "target": q, "mask": every}
            trace = Trace({"l_s": l_s.detach(), "l_u": l_u.detach()}, votes)
            return l_s + self.mu_u * l_u, (buffers, state, trace)

        optimizer = at_rate(self.optimizer, batch, self.unlabeled_rate)
        after, trace = descend(loss, optimizer, local._replace(weights=model))
        return after._replace(state=self.remembered(after, teacher, batch)), trace

    def remembered(self, after: Local, teacher: Weights, batch: Batch) -> State:
        """Return the state after a step: the teacher follows the student, and the model is stored for the group."""
        state = after.state
        params = mixed(teacher_share(state[STEPS], self.ema), teacher.params, after.weights.params)
        models: State = {}
        for m in range(self.groups):
            models |= choose(batch.clock.group == m, packed(group_name(m), after.weights), state)
        places = torch.arange(self.groups, device=state[MEMBER].device)
        member = torch.where(places == batch.clock.group, 1.0, state[MEMBER])
        own = {STEPS: state[STEPS] + 1, **packed(TEACHER, teacher._replace(params=params))}
        return {**state, **own, **models, MEMBER: member}

    def num_samples(self, counts: Counts) -> int:
        """Return the number of all images: `boost` replaces `train.labeled_weight`."""
        return counts.pool

    def upload(self, client: int, payload: Payload, local: Local, counts: Counts) -> Upload:
        """Return a model for each group, with the first group's as the model itself; the broadcast where not drawn."""
        state, first = local.state, group_name(0)
        others = {name: t.clone() for name, t in drop(first, state).items() if name.startswith(IN)}
        knows = torch.full_like(state[STEPS], float(counts.labeled > 0))
        made = super().upload(client, payload, local._replace(weights=unpacked(first, state)), counts)
        return made._replace(extras={**others, MEMBER: state[MEMBER].clone(), KNOWS: knows})

    def aggregate(self, net: Net, server: Server, uploads: Iterable[Upload], rng: np.random.Generator) -> Server:
        """Return the plain mean of the groups' means."""
        groups: list[list[Member]] = [[] for _ in range(self.groups)]
        for u in uploads:
            for m, takes_part in enumerate(u.extras[MEMBER].tolist()):
                if takes_part:
                    weights = unpacked(group_name(m), u.extras) if m else u.weights
                    groups[m].append(Member(weights, u.num_samples, bool(u.extras[KNOWS].item())))
        mean = RunningMean()
        for made in map(self.group_mean, groups):
            if made:  # with boost = 0 all members may weigh nothing
                mean.add(made, 1.0)
        return server._replace(weights=unpacked("", mean.value)) if mean.value else server

    def group_mean(self, members: Sequence[Member]) -> State:
        """Return theta = sum of w_i theta_i."""
        mean = RunningMean()
        for member, weight in zip(members, self.group_weights(members), strict=True):
            mean.add(packed("", member.weights), weight)
        return mean.value

    def group_weights(self, members: Sequence[Member]) -> list[float]:
        """Return w_i ~ n_i exp(-beta d_i / n_i), d_i the distance to the mean; `boost` raises clients with labels."""
        if not members:
            return []
        by_size = RunningMean()
        for member in members:
            by_size.add(member.weights.params, member.size)
        beta = self.beta if any(member.knows for member in members) else self.beta_unlabeled
        sizes = np.array([member.size for member in members], dtype=np.float64)
        far = beta * np.array([distance(member.weights.params, by_size.value) for member in members]) / sizes
        shares = sizes * np.exp(far.min() - far)  # the nearest counts fully, which prevents underflow
        return [float(w * (self.boost if member.knows else 1)) for w, member in zip(shares, members, strict=True)]


def group_name(group: int) -> str:
    return f"{IN}{group}."


@Source(
    "Liang et al. 2022",
    "released code",
    client="teacher",
    note="sends a model for each group; for federations in which some clients know all labels and the others none",
    label="RSCFed",
    look="green dot pentagon",
)
def rscfed(
    groups: Annotated[int, Range(1, 100), "groups of train.clients_per_round clients in a round"] = 3,
    mu_u: MuU = 0.02,
    ema: Annotated[Share, "largest decay of the teacher per step"] = 0.999,
    beta: Annotated[Weight, "how much less a far model counts in a group with labels"] = 100.0,
    beta_unlabeled: Annotated[Weight, "the same in a group without labels"] = 1e4,
    boost: Annotated[float, Range(0.0, 1e6), "how much more a client with labels counts"] = 6.0,
    unlabeled_rate: UnlabeledRate = 0.7,
) -> RSCFed:
    """Clients without labels follow their own teacher; the model is a mean of means over random groups.

    Who is in several groups trains once for each.
    """
    return RSCFed(
        groups=groups,
        mu_u=mu_u,
        ema=ema,
        beta=beta,
        beta_unlabeled=beta_unlabeled,
        boost=boost,
        unlabeled_rate=unlabeled_rate,
    )
