"""ProxyFL (Chen and Wang, CVPR 2026): classifier rows as class proxies, in a contrast and on the server."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import ByDataset, Range
from ..data.cards import Card
from ..label.accept import FixedThreshold
from ..label.assign import Constant, GlobalOnly, Sage, hard, one_hot
from ..models import CLASSIFIER, Net
from ..seeds import stream
from ..types import Batch, Counts, Local, Payload, Server, State, Task, Upload, Weights, clone, drop
from .base import Source
from .fixmatch import FixMatch, Seen
from .shared_settings import MuU, RateFactor, Share, Tau, Weight
from .tuning import Tuning

FEATURES, PROXIES = "feat_proj.", "proxy_proj."  # two linear heads that only the contrast uses
PRIOR, COUNTS = "proxyfl.prior", "proxyfl.counts"
LEAST_SIMILARITY = 1e-6  # a negative must be at least this close (released code; the paper keeps all)


class Sets(NamedTuple):
    """The classes that a row may belong to [N, C], and how much each proxy counts."""

    s: Tensor
    weight: Tensor


def category_sets(p: Tensor, sure: Tensor, prior: Tensor) -> Sets:
    """Return sets: for a sure row its likeliest class; for an undecided one every class likelier than the prior."""
    likeliest, likelier = hard(p), (p > prior).to(p.dtype)
    s = torch.where(sure.unsqueeze(-1), likeliest, likelier)
    return Sets(s, torch.where(sure.unsqueeze(-1), likeliest, p * likelier))


def icpl(f: Tensor, omega: Tensor, sets: Sets, num_labeled: int) -> Tensor:
    """Return the mean over the unlabeled rows of log(e^s + sum over negatives of e^(f_i f_j)) - s.

    f [N, d] are features, omega [C, d] proxies. Labeled rows come first and only serve as negatives: rows whose
    set shares no class with row i's, which is (S S^T)_ij = 0.
    """
    positive = (sets.weight * (f @ omega.T)).sum(-1)[num_labeled:]
    similarity = (f @ f.T)[num_labeled:]
    is_negative = ((sets.s @ sets.s.T)[num_labeled:] == 0) & (similarity >= LEAST_SIMILARITY)
    scores = torch.where(is_negative, similarity, -torch.inf)
    return (torch.cat([positive.unsqueeze(-1), scores], -1).logsumexp(-1) - positive).mean()


@dataclass(frozen=True)
class ProxyFL(FixMatch):
    """FixMatch with the global label where either model is sure, a contrast, and a server that tunes."""

    assign: Sage | GlobalOnly = Sage(Constant(0.0))  # noqa: RUF009 (a frozen value)
    beta: float = 1.0
    ema: float = 0.99
    tuning: Tuning = Tuning()  # noqa: RUF009
    icpl_labels: Literal["global", "given"] = "global"
    space: Literal["heads", "raw"] = "heads"
    extra_loss: ClassVar[str] = "l_c"

    def init(self, net: Net, weights: Weights, task: Task) -> Server:
        like = weights.params[CLASSIFIER]
        heads = new_heads(like, task.seed) if self.space == "heads" else {}
        prior = torch.full((task.num_classes,), 1 / task.num_classes, device=like.device)
        return Server(weights._replace(params={**weights.params, **heads}), {PRIOR: prior})

    def start(self, payload: Payload, state: State) -> Local:
        return super().start(payload, {**state, COUNTS: torch.zeros_like(payload.extras[PRIOR])})

    def extra(self, net: Net, payload: Payload, local: Local, batch: Batch, seen: Seen) -> tuple[Tensor, State]:
        mask, target = seen.votes["mask"], seen.votes["target"]
        counted = (hard(target) * mask.unsqueeze(-1)).sum(0) + batch.has_labels * one_hot(batch.y, target).sum(0)
        counts = local.state[COUNTS] + batch.clock.last_epoch * counted
        return self.beta * self.contrast(net, payload, local, batch, seen), {**local.state, COUNTS: counts}

    def contrast(self, net: Net, payload: Payload, local: Local, batch: Batch, seen: Seen) -> Tensor:
        """Return L_c over labeled, weak and strong rows; both views of an image have the weak view's probabilities."""
        p_x, sure_x = self.labeled_sets(net, payload, local.state, batch)
        p_g, mask = seen.votes["p_g"], seen.votes["mask"]
        sets = category_sets(torch.cat([p_x, p_g, p_g]), torch.cat([sure_x, mask, mask]), payload.extras[PRIOR])
        feature = torch.cat([seen.x.feature, seen.weak.feature, seen.strong.feature])
        return icpl(*self.embed(local.weights.params, feature), sets, len(batch.y))

    def embed(self, params: State, feature: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and classifier rows: each behind a head and normalized (released), or unchanged (paper)."""
        if self.space == "raw":
            return feature, params[CLASSIFIER]
        f = F.linear(feature, params[f"{FEATURES}weight"], params[f"{FEATURES}bias"])
        omega = F.linear(params[CLASSIFIER], params[f"{PROXIES}weight"])
        return F.normalize(f, dim=-1), F.normalize(omega, dim=-1)

    def labeled_sets(self, net: Net, payload: Payload, state: State, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return probabilities and sureness of labeled rows: the global model's (released) or the truth (paper)."""
        p = net.infer(payload.weights, batch.x).logits.softmax(-1)
        sure = self.accept.sure(p, state)
        if self.icpl_labels == "global":
            return p, sure
        known = (batch.has_labels > 0).expand(len(p))  # a client without labels must not learn them here
        return torch.where(known.unsqueeze(-1), one_hot(batch.y, p), p), known | sure

    def upload(self, client: int, payload: Payload, local: Local, counts: Counts) -> Upload:
        extras = {COUNTS: local.state[COUNTS].clone()}
        return super().upload(client, payload, local, counts)._replace(extras=extras)

    def keep(self, local: Local) -> State:
        return clone(drop(COUNTS, local.state))

    def aggregate(self, net: Net, server: Server, uploads: Iterable[Upload], rng: np.random.Generator) -> Server:
        rows: list[Tensor] = []
        counts: list[Tensor] = []

        def noted() -> Iterator[Upload]:
            for u in uploads:
                rows.append(u.weights.params[CLASSIFIER])
                counts.append(u.extras[COUNTS])
                yield u

        weights = super().aggregate(net, server, noted(), rng).weights
        omega = self.tuning(weights.params[CLASSIFIER], rows, rng)
        prior = self.new_prior(server.extras[PRIOR], torch.stack(counts).sum(0))
        tuned = weights._replace(params={**weights.params, CLASSIFIER: omega})
        return server._replace(weights=tuned, extras={**server.extras, PRIOR: prior})

    def new_prior(self, prior: Tensor, counts: Tensor) -> Tensor:
        """Return pi <- ema pi + (1 - ema) pooled counts; unchanged if a round counted nothing."""
        total = counts.sum()
        histogram = torch.where(total > 0, counts / total.clamp(min=1), prior)
        return prior + (1 - self.ema) * (histogram - prior)

    def deploy(self, net: Net, server: Server) -> Weights:
        return server.weights._replace(params=drop(FEATURES, drop(PROXIES, server.weights.params)))


def new_heads(classifier: Tensor, seed: int) -> State:
    """Return a linear layer's usual initialization, U(-1/sqrt(d), 1/sqrt(d))."""
    d = classifier.shape[-1]
    rng = stream(seed, "proxyfl heads")
    shapes = {f"{FEATURES}weight": (d, d), f"{FEATURES}bias": (d,), f"{PROXIES}weight": (d, d)}
    draws = {name: rng.uniform(-(d**-0.5), d**-0.5, shape) for name, shape in shapes.items()}
    return {name: torch.from_numpy(t.astype(np.float32)).to(classifier) for name, t in draws.items()}


def epochs_for(card: Card) -> int | None:
    """Return the epochs over 8 clients' rows, 4 at a time, for 2000 steps; None without classes."""
    return max(1, 1000 // card.num_classes) if card.num_classes else None


@Source(
    "Chen and Wang 2026",
    "released code",
    server="class prior",
    note="also sends two heads both ways, the prior down and class counts up",
    label="ProxyFL",
    look="vermilion dash square",
)
def proxyfl(
    tau: Tau = 0.95,
    mu_u: MuU = 1.0,
    beta: Annotated[Weight, "weight of the contrast"] = 1.0,
    ema: Annotated[Share, "decay of the class prior per round"] = 0.99,
    tuning_epochs: Annotated[
        int, Range(0, 1e6), ByDataset(epochs_for), "epochs in which the server tunes classifier rows"
    ] = 100,
    tuning_lr: Annotated[RateFactor, "learning rate of that tuning"] = 0.005,
    tuning_batch: Annotated[int, Range(1, 1e6), "classifier rows per step of that tuning"] = 4,
    margin: Annotated[bool, "tune with a margin between classes"] = True,
    mask: Annotated[Literal["union", "global"], "which model must be sure: either, or the global one"] = "union",
    icpl_labels: Annotated[
        Literal["global", "given"], "classes of labeled images in the contrast: the global model's, or their own"
    ] = "global",
    space: Annotated[
        Literal["heads", "raw"], "what the contrast compares: outputs of two linear heads, or features and rows"
    ] = "heads",
) -> ProxyFL:
    """Global labels, a contrast with classifier rows for undecided images, and rows that the server tunes.

    tuning_epochs makes 2000 steps with 8 clients by default.
    """
    return ProxyFL(
        accept=FixedThreshold(tau),
        assign=Sage(Constant(0.0)) if mask == "union" else GlobalOnly(),
        mu_u=mu_u,
        beta=beta,
        ema=ema,
        tuning=Tuning(tuning_epochs, tuning_lr, tuning_batch, margin),
        icpl_labels=icpl_labels,
        space=space,
    )
