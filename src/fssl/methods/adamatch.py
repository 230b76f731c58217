"""AdaMatch (Berthelot et al., ICLR 2022) in a federation: labels aligned with predictions on labeled images."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from ..config import Range
from ..label.accept import Accept
from ..label.losses import supervised_loss
from ..models import Net, Out
from ..types import Batch, Clock, Counts, Local, Payload, Server, State, Task, Upload, Weights, clone, drop
from .base import Needs, Recipe, Source, weighted_mean
from .fixmatch import FixMatch
from .shared_settings import Ema, MuU, Tau

# Of a client: running means of predictions on labeled and on unlabeled images (and whether the latter has started), the
# threshold of the last step, and, over the round, the sum of confidences on labeled images and the number of steps.
PI_X, PI_U, BEGUN, KAPPA = "ada.px", "ada.pu", "ada.begun", "ada.cut"
SUM, STEPS = "ada.confidence", "ada.steps"
SHARED = "ada.shared."  # what the server sends to clients without labels
MEAN_X, MEAN_C, LABELS = f"{SHARED}px", f"{SHARED}confidence", "ada.labels"
TOO_SMALL = 1e-6


def aligned(p: Tensor, state: State) -> Tensor:
    """Return p~_c ~ p_c pi_x,c / pi_u,c."""
    q = p * (state[PI_X] + TOO_SMALL) / (state[PI_U] + TOO_SMALL)
    return q / q.sum(-1, keepdim=True)


@dataclass(frozen=True)
class RelativeThreshold(Accept):
    """Accepts predictions from kappa on: tau times the mean confidence on the labeled images of the same step."""

    tau: float = 0.95

    def sure(self, p: Tensor, state: State) -> Tensor:
        return p.amax(-1) >= state[KAPPA]


@dataclass(frozen=True)
class AdaMatch(FixMatch):
    """FixMatch on aligned predictions.

    Clients without labels have no predictions on labeled images: they take the mean over clients with labels.
    """

    accept: RelativeThreshold = RelativeThreshold()
    ema: float = 0.999
    interpolate: bool = False
    strong_labels: bool = False
    ramp_rounds: float = 0
    sends_means: bool = True

    @property
    def needs(self) -> Needs:
        return super().needs._replace(client_labels=True)

    def recipe(self, usual: Recipe) -> Recipe:
        views = ("x", "x_strong") if self.strong_labels else ("x",)
        shape = (len(views) * usual.batch, usual.classes)
        numbers = (lambda rng, steps: rng.random((steps, *shape))) if self.interpolate else None
        return replace(usual, views=(*views, "u_weak", "u_strong"), numbers=numbers)

    def init(self, net: Net, weights: Weights, task: Task) -> Server:
        even = torch.full((task.num_classes,), 1 / task.num_classes, device=next(iter(weights.params.values())).device)
        return Server(weights, {MEAN_X: even, MEAN_C: torch.ones_like(even[0])})

    def client_state(self, payload: Payload, task: Task, counts: Counts) -> State:
        even, zero = torch.full((task.num_classes,), 1 / task.num_classes), torch.zeros(())
        return {
            PI_X: even,
            PI_U: even.clone(),
            BEGUN: zero,
            KAPPA: zero.clone(),
            SUM: zero.clone(),
            STEPS: zero.clone(),
        }

    def start(self, payload: Payload, state: State) -> Local:
        local = super().start(payload, state)
        fresh = {name: torch.zeros_like(state[name]) for name in (SUM, STEPS)}
        sent = {name: payload.extras[name].clone() for name in (MEAN_X, MEAN_C)}
        return local._replace(state={**local.state, **fresh, **sent})

    def keep(self, local: Local) -> State:
        return clone(drop(SHARED, local.state))

    def look(self, net: Net, weights: Weights, batch: Batch) -> tuple[State, Sequence[Out]]:
        """Return one joint batch's outputs; logits of labeled images may be mixed with those of a separate pass."""
        labeled = [batch.x, batch.views["x_strong"]] if self.strong_labels else [batch.x]
        buffers, (*xs, weak, strong) = net.fit(weights, *labeled, batch.u_weak, batch.u_strong)
        x = Out(*(torch.cat(parts) for parts in zip(*xs, strict=True)))
        if self.interpolate:
            _, alone = net.fit(weights, *labeled)  # whose running statistics are dropped
            z = torch.cat([out.logits for out in alone])
            x = x._replace(logits=x.logits + batch.extras["numbers"] * (z - x.logits))
        return buffers, (x, weak, strong)

    def meet(self, x: Out, p_l: Tensor, batch: Batch, state: State) -> State:
        """Update both means and the threshold before the batch is labeled; labeled images count in weak views."""
        p_x, knows = x.logits[: len(batch.y)].detach().softmax(-1), batch.has_labels > 0
        confidence = p_x.amax(-1).mean()
        pi_u = torch.where(state[BEGUN] > 0, self.mixed(state[PI_U], p_l.mean(0)), p_l.mean(0))
        return {
            **super().meet(x, p_l, batch, state),
            PI_X: torch.where(knows, self.mixed(state[PI_X], p_x.mean(0)), state[MEAN_X]),
            PI_U: pi_u,
            BEGUN: torch.ones_like(state[BEGUN]),
            KAPPA: self.accept.tau * torch.where(knows, confidence, state[MEAN_C]),
            SUM: state[SUM] + confidence,
            STEPS: state[STEPS] + 1,
        }

    def mixed(self, old: Tensor, new: Tensor) -> Tensor:
        return self.ema * old + (1 - self.ema) * new

    def vote(self, p_l: Tensor, p_g: Tensor, payload: Payload, state: State, batch: Batch) -> State:
        return super().vote(aligned(p_l, state), aligned(p_g, state), payload, state, batch)

    def supervised(self, x: Out, batch: Batch) -> Tensor:
        return supervised_loss(x.logits, batch, batch.y.repeat(len(x.logits) // len(batch.y)))

    def weight_at(self, clock: Clock) -> Tensor | float:
        """Return mu_u (1 - cos(pi t)) / 2, where t is the elapsed share of `ramp_rounds`."""
        if self.ramp_rounds == 0:
            return self.mu_u
        t = ((clock.round - 1) / self.ramp_rounds).clamp(max=1)
        return self.mu_u * (0.5 - 0.5 * torch.cos(math.pi * t))

    def upload(self, client: int, payload: Payload, local: Local, counts: Counts) -> Upload:
        """Return the model and, for a client with labels, its two means, weighted by its number of labels."""
        made, state = super().upload(client, payload, local, counts), local.state
        if not self.sends_means:
            return made
        mean = state[SUM] / state[STEPS].clamp(min=1)
        labels = torch.full_like(mean, float(counts.labeled))
        return made._replace(extras={MEAN_X: state[PI_X].clone(), MEAN_C: mean, LABELS: labels})

    def aggregate(self, net: Net, server: Server, uploads: Iterable[Upload], rng: np.random.Generator) -> Server:
        means: list[tuple[State, float]] = []

        def noted() -> Iterator[Upload]:
            for u in uploads:
                if self.sends_means:
                    means.append(({name: u.extras[name] for name in (MEAN_X, MEAN_C)}, u.extras[LABELS].item()))
                yield u

        after = super().aggregate(net, server, noted(), rng)
        return after._replace(extras={**after.extras, **weighted_mean(means)})


@Source(
    "Berthelot et al. 2022",
    "released code",
    client="running means",
    server="means of predictions",
    note="clients also send mean predictions, the mean confidence on labeled images, and their number",
    label="AdaMatch",
)
def adamatch(
    tau: Tau = 0.95,
    mu_u: MuU = 1.0,
    ema: Ema = 0.999,
    interpolate: Annotated[bool, "mix logits of labeled images with those of a separate pass over them"] = False,
    strong_labels: Annotated[bool, "also show strong views of labeled images"] = False,
    ramp_rounds: Annotated[
        float, Range(0.0, 1e9), "rounds until pseudo-labels have weight mu_u; 0: from the start"
    ] = 0.0,
    share: Annotated[bool, "clients send the means that clients without labels use"] = True,
) -> AdaMatch:
    """FixMatch-LPL on predictions aligned with those on labeled images, above a threshold relative to theirs.

    Without share, clients without labels align with even shares above tau.
    """
    return AdaMatch(
        accept=RelativeThreshold(tau),
        mu_u=mu_u,
        ema=ema,
        interpolate=interpolate,
        strong_labels=strong_labels,
        ramp_rounds=ramp_rounds,
        sends_means=share,
    )
