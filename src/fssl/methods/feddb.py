"""FedDB (Zhu et al., IJCAI 2024): labels and aggregation corrected by the classes a model expects of each client."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..label.accept import FixedThreshold
from ..label.assign import GlobalOnly, LocalOnly
from ..models import Net, Out
from ..types import Batch, Counts, Local, Payload, Server, State, Sweep, Task, Upload, Weights
from .base import Recipe, Source, fit, mean_weights
from .fixmatch import FixMatch
from .shared_settings import MuU, Passes, Share, Tau

# Client state of one round: the broadcast model's probabilities of each image of the pool, their mean, the number of
# images in the mean, and the prior that follows the local model.
TABLE, PRIOR, SEEN, PI = "feddb.table", "feddb.prior", "feddb.seen", "feddb.pi"

Shares = NDArray[np.float64]


def debias(p: Tensor, pi: Tensor) -> Tensor:
    """Return p_c / pi_c, normalized."""
    q = p / pi.clamp(min=1e-12)  # a class without images has p = 0 as well
    return q / q.sum(-1, keepdim=True).clamp(min=1e-12)  # a row that no sweep has filled stays 0: never sure


@dataclass(frozen=True)
class FedDB(FixMatch):
    """FixMatch whose global votes are given once per round, by the broadcast model in a sweep over the pool.

    p_g is read from that table and divided by the prior of the sweep, p_l is divided by the running prior; by
    default only p_g labels.
    """

    ema: float = 0.5
    dma: Literal["exact", "released", "off"] = "released"
    passes: Passes = "separate"  # over labeled images, weak and strong views

    def recipe(self, usual: Recipe) -> Recipe:
        return replace(super().recipe(usual), sweep=True)

    def look(self, net: Net, weights: Weights, batch: Batch) -> tuple[State, Sequence[Out]]:
        return fit(net, weights, (batch.x, batch.u_weak, batch.u_strong), self.passes)

    def client_state(self, payload: Payload, task: Task, counts: Counts) -> State:
        flat = torch.full((task.num_classes,), 1 / task.num_classes)
        own = {
            TABLE: torch.zeros(task.max_slots, task.num_classes),
            PRIOR: flat,
            SEEN: torch.zeros(()),
            PI: flat.clone(),
        }
        return {**super().client_state(payload, task, counts), **own}

    def keep(self, local: Local) -> State:
        """Return nothing, since the next round's sweep starts with a new table."""
        return {}

    def visit(self, net: Net, payload: Payload, local: Local, u_weak: Tensor, sweep: Sweep) -> Local:
        p = net.infer(payload.weights, u_weak).logits.softmax(-1)
        before, real = local.state, sweep.real.unsqueeze(-1)
        # Adding to a table of zeros: an image that only fills the batch may have the slot of a real one in it.
        table = before[TABLE].index_add(0, sweep.u_slot, real * p)
        seen = before[SEEN] + real.sum()
        prior = before[PRIOR] + (real * (p - before[PRIOR])).sum(0) / seen
        return local._replace(state={**before, TABLE: table, PRIOR: prior, SEEN: seen, PI: prior.clone()})

    def ask_global(self, net: Net, payload: Payload, state: State, batch: Batch) -> Tensor:
        return debias(state[TABLE][batch.u_slot], state[PRIOR])

    def vote(self, p_l: Tensor, p_g: Tensor, payload: Payload, state: State, batch: Batch) -> State:
        return {**super().vote(debias(p_l, state[PI]), p_g, payload, state, batch), "raw_l": p_l}

    def remember(self, votes: State, batch: Batch, state: State) -> State:
        pi = self.ema * state[PI] + (1 - self.ema) * votes["raw_l"].mean(0)
        return {**super().remember(votes, batch, state), PI: pi}

    def upload(self, client: int, payload: Payload, local: Local, counts: Counts) -> Upload:
        return super().upload(client, payload, local, counts)._replace(extras={PI: local.state[PI].clone()})

    def aggregate(self, net: Net, server: Server, uploads: Iterable[Upload], rng: np.random.Generator) -> Server:
        if self.dma == "off":
            return super().aggregate(net, server, uploads, rng)
        made = list(uploads)
        pi = torch.stack([u.extras[PI] for u in made]).double().cpu().numpy()
        solve = exact_shares if self.dma == "exact" else released_shares
        shares = dict(zip((u.client for u in made), solve(pi).tolist(), strict=True))
        return server._replace(weights=mean_weights(made, lambda u: shares[u.client]))


def exact_shares(pi: Shares) -> Shares:
    """Return the a of the simplex that minimizes ||sum_k a_k pi_k - 1/C||^2, by Wolfe's active-set method.

    A tiny multiple of ||a||^2 makes it unique: of equally good answers the most even one.
    """
    v = pi - 1 / pi.shape[1]
    gram = v @ v.T + 1e-8 * np.eye(len(v))
    a: Shares = np.eye(len(v))[gram.diagonal().argmin()]
    for _ in range(10 * len(v)):
        slope = gram @ a
        if slope.min() >= a @ slope - 1e-13:  # no client would improve it
            break
        a = _within(gram, a, (a > 0) | (np.arange(len(v)) == slope.argmin()))
    return a


def _within(gram: Shares, a: Shares, support: NDArray[np.bool_]) -> Shares:
    """Return the best point whose support lies in the given one, without clients that would get a negative share."""
    while True:
        best = np.zeros_like(a)
        solved = np.linalg.solve(gram[np.ix_(support, support)], np.ones(support.sum()))
        best[support] = solved / solved.sum()
        leaving = support & (best <= 0)
        if not leaving.any():
            return best
        ratio = np.where(leaving, a / np.maximum(a - best, 1e-300), np.inf)  # how far until its share is 0
        a = a + ratio.min() * (best - a)
        support = support & (np.arange(len(a)) != ratio.argmin())


def released_shares(pi: Shares) -> Shares:
    """Return what the released code computes: 100 times a step of SGD on the mean squared error, then a softmax.

    Its optimizer is new in every step, so that Nesterov's momentum of 0.9 only multiplies the step by 1.9; its
    weight decay is 0.9. Softmax of numbers near 1/K is close to 1/K: the shares end up nearly uniform.
    """
    k, c = pi.shape
    a: Shares = np.full(k, 1 / k)
    for _ in range(100):
        slope = 2 / c * pi @ (a @ pi - 1 / c) + 0.9 * a
        up = np.exp(a - 1.9 * slope)
        a = up / up.sum()
    return a


@Source("Zhu et al. 2024", "released code", note="clients also send their prior", label="FedDB", look="green dash x")
def feddb(
    tau: Tau = 0.95,
    mu_u: MuU = 1.0,
    ema: Annotated[Share, "with online: decay per step of the local model's running prior"] = 0.5,
    dma: Annotated[
        Literal["exact", "released", "off"],
        "clients weigh so that their priors add up to a uniform one (exact), nearly so (released), or by size (off)",
    ] = "released",
    online: Annotated[bool, "label with the local model, divided by its running prior"] = False,
    passes: Passes = "separate",
) -> FedDB:
    """The broadcast model labels each pool once per round, its probabilities divided by its mean prediction.

    passes='separate' is as released.
    """
    assign = LocalOnly() if online else GlobalOnly()
    return FedDB(accept=FixedThreshold(tau), assign=assign, mu_u=mu_u, ema=ema, dma=dma, passes=passes)
