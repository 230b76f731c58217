"""The interface of a federated method: a frozen value with a few functions, each a pure function on tensors."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..config import Source as Source  # builders take it from here
from ..label.assign import ConfidenceGap, Weigh
from ..models import Net, Out
from ..training.plan import Recipe as Recipe  # so do methods with their own recipe
from ..types import (
    Batch,
    Counts,
    Local,
    Payload,
    Server,
    State,
    Sweep,
    Task,
    Trace,
    Upload,
    Weights,
    clone,
    packed,
    take,
    unpacked,
)
from .optimizers import Optimizer, Sgd
from .shared_settings import Passes

Value = tuple[Tensor, tuple[State, State, Trace]]  # the loss, then (buffers, state, trace)
Loss = Callable[[Weights, State], Value]
BROADCAST = "server.velocity."  # in the extras of a payload, where a run broadcasts momentum


def descend(loss: Loss, optimizer: Optimizer, local: Local) -> tuple[Local, Trace]:
    """Take one gradient step, optimizer included.

    Args:
        loss: A function of (weights, state) that returns the loss and (buffers, state, trace).
        optimizer: Usually `self.optimizer.at(batch.clock)`: the method's, with the rate of this step.
        local: The client's weights, momentum and state before the step.

    Returns:
        The new `local` and the trace, as `Method.step` returns them.
    """
    grads, (buffers, state, trace) = gradient(loss, local.weights, local.state)
    params, velocity = optimizer.update(local.weights.params, local.velocity, grads)
    return Local(Weights(params, buffers), velocity, state), trace


def fit(net: Net, weights: Weights, views: Sequence[Tensor], passes: Passes) -> tuple[State, list[Out]]:
    """Return the outputs in training mode: of one joint batch, or of a pass per view with separate statistics."""
    if passes == "joint":
        return net.fit(weights, *views)
    buffers, outs = weights.buffers, []
    for view in views:
        buffers, (out,) = net.fit(Weights(weights.params, buffers), view)
        outs.append(out)
    return buffers, outs


def gradient(loss: Loss, weights: Weights, state: State) -> tuple[State, tuple[State, State, Trace]]:
    """Return the loss's gradient by parameter, and the other values that the loss returned."""
    with torch.enable_grad():
        leaves = {name: p.detach().requires_grad_() for name, p in weights.params.items()}
        total, (buffers, state, trace) = loss(Weights(leaves, weights.buffers), state)
        grads = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
    aux = detached(buffers), detached(state), Trace(*map(detached, trace))
    return dict(zip(leaves, grads, strict=True)), aux


def detached(tree: State) -> State:
    return {name: t.detach() for name, t in tree.items()}


def weighted_mean(trees: Iterable[tuple[State, float]]) -> State:
    """Return the mean of dicts of tensors, taken one after another so that only two are ever held.

    The running form also returns equal inputs unchanged, bit for bit.
    """
    mean = RunningMean()
    for tree, weight in trees:
        mean.add(tree, weight)
    return mean.value


class RunningMean:
    """The weighted mean of the dicts of tensors seen so far."""

    def __init__(self) -> None:
        self.value: State = {}
        self._total = 0.0

    def add(self, tree: State, weight: float) -> None:
        if weight <= 0:
            return
        self._total += weight
        share = weight / self._total
        if not self.value:
            self.value = clone(tree)
            return
        mean = list(self.value.values())  # m + (t - m) share, all tensors in one call: there are many small ones
        away = torch._foreach_mul(torch._foreach_sub([tree[name] for name in self.value], mean), share)
        self.value = dict(zip(self.value, torch._foreach_add(mean, away), strict=True))


def mean_weights(uploads: Iterable[Upload], share: Callable[[Upload], float] = lambda u: u.num_samples) -> Weights:
    """Return the mean of parameters and buffers, weighted by `share`; by default by size (FedAvg)."""
    return unpacked("", weighted_mean((packed("", u.weights), share(u)) for u in uploads))


def broadcast_velocity(payload: Payload) -> State:
    """Return the momentum by parameter that the server sends for clients to start with; empty if it is zero."""
    return take(BROADCAST, payload.extras)


class Needs(NamedTuple):
    """The facts about a method that a run needs before it starts, to reject settings that do not fit."""

    labels: Literal["few", "all"] = "few"  # clients have the labels of the settings, or those of all images
    truth: bool = False  # the true labels of unlabeled images are in the batch: for oracles only
    client_labels: bool = False  # the method needs labels at clients
    min_clients: int = 1  # the method needs at least this many
    groups: int = 1  # groups of clients, each drawn anew in a round; a client in several trains once for each
    burn_in: int = 0  # rounds of a first stage; a run that ends within it reports so
    own_optimizer: bool = False  # its steps have their own update rule, whatever the run's optimizer is


class Watched(NamedTuple):
    """The values that probes take from a method, so that records show its settings."""

    weigh: Weigh = ConfidenceGap()  # the weight of the local vote against the global one
    tau: float = 0.95  # the confidence from which a prediction counts as sure


@dataclass(frozen=True)
class Method:
    """The functions that a run calls on a method, with FedAvg's as defaults; every method defines `step`.

    A round calls them in this order, for each client: `payload`, `start`, (`visit` for each batch of a sweep over the
    client's whole pool, if the recipe has `sweep`, then `chosen`, if it has `chooses`), `step` for each step, `upload`,
    `keep`; then, once, `aggregate` and `deploy`. `fssl docs adding-a-method` has an example of each.

    A run sets the fields below from its settings.
    """

    optimizer: Optimizer = Sgd()  # noqa: RUF009 (a frozen value)
    labeled_weight: int = 0  # the released code counts each labeled image 2000 times more when averaging
    guard: float = 0.0  # added to probabilities in the logarithm of L_u; 1e-10 in the released code
    watch: bool = True  # also compute values that only the probes read
    labels_at_clients: bool = True  # False: the server has all labels, and no client's batch has a labeled image
    hooks: ClassVar[tuple[str, ...]] = ()  # functions of its step whose results are checked before a run

    @property
    def needs(self) -> Needs:
        """Return the facts about the method that a run needs before it starts."""
        return Needs()

    def recipe(self, usual: Recipe) -> Recipe:
        """Return how a client walks through its images in a round.

        Args:
            usual: The recipe of the run's settings: only labeled images in weak views, `("x",)`.

        Returns:
            The recipe with the method's changes, such as `replace(usual, views=("x", "u_weak"), sweep=True)`.
        """
        return usual

    @property
    def watched(self) -> Watched:
        """Return the values that probes take from the method."""
        return Watched()

    def init(self, net: Net, weights: Weights, task: Task) -> Server:
        """Return the server before the first round.

        Args:
            net: The network, to be called with explicit weights.
            weights: Its first weights.
            task: The number of classes, the size of the largest pool and the run's seed.
        """
        return Server(weights, {})

    def client_state(self, payload: Payload, task: Task, counts: Counts) -> State:
        """Return the tensors that stay with a client, when it takes part for the first time.

        A run also asks in later rounds, for the names: what `keep` returns has all of them, or none.

        Args:
            payload: The first payload that the client gets.
            task: The number of classes, and the size of the largest pool for tables with a row per image.
            counts: How many labeled images the client has, and how many in all.
        """
        return {}

    def payload(self, server: Server, client: int) -> Payload:
        """Return the payload for one client."""
        return Payload(server.weights, server.extras)

    def start(self, payload: Payload, state: State) -> Local:
        """Return weights, momentum and state of a client before its first step of a round.

        The weights are a fresh copy of the payload's: a step must not share tensors with it.
        """
        weights = Weights(clone(payload.weights.params), clone(payload.weights.buffers))
        return Local(weights, self.optimizer.start(weights.params, broadcast_velocity(payload)), clone(state))

    def visit(self, net: Net, payload: Payload, local: Local, u_weak: Tensor, sweep: Sweep) -> Local:
        """Return the client after one batch of the sweep, given its weak views and their places in the pool."""
        raise NotImplementedError("a method whose recipe has sweep=True must define `visit`")

    def chosen(self, local: Local) -> Tensor:
        """Return the images of its pool that the client trains on, as booleans by slot; called after the sweep."""
        raise NotImplementedError("a method whose recipe has chooses=True must define `chosen`")

    def votes(self, local: Local) -> State:
        """Return the votes on each image of the pool, by slot; for the probes, of a method that chooses.

        Returns:
            "p_l" [slots, C], the probabilities that it chose by, and "target" [slots, C], the labels; or nothing,
            and then records contain no label quality. A step's trace is not used: it has only the chosen images.
        """
        return {}

    def step(self, net: Net, payload: Payload, local: Local, batch: Batch) -> tuple[Local, Trace]:
        """Return the client after one training step; a pure function that changes nothing in place and draws nothing.

        Args:
            net: The network: `net.fit` in training mode, `net.infer` with running statistics.
            payload: What the client got; `payload.weights` is the global model.
            local: The client's weights, momentum and state.
            batch: The views that the recipe names, labels, and where in the run the step is.

        Returns:
            The new `local`, and a trace of losses and votes for the probes. `descend` makes both from a loss.
        """
        raise NotImplementedError

    def num_samples(self, counts: Counts) -> int:
        """Return a client's weight in the mean; a client of weight 0 takes no step."""
        return counts.pool + self.labeled_weight * counts.labeled

    def upload(self, client: int, payload: Payload, local: Local, counts: Counts) -> Upload:
        """Return what the client sends to the server after the last step."""
        weights = Weights(clone(local.weights.params), clone(local.weights.buffers))
        return Upload(client, weights, self.num_samples(counts), {})

    def keep(self, local: Local) -> State:
        """Return the state that stays with the client until it is drawn again."""
        return clone(local.state)

    def share(self, upload: Upload) -> float:
        """Return an upload's weight in the mean."""
        return upload.num_samples

    def aggregate(self, net: Net, server: Server, uploads: Iterable[Upload], rng: np.random.Generator) -> Server:
        """Return the server after a round.

        Args:
            net: The network.
            server: What the server held before.
            uploads: What the clients sent, in client order; an iterator that gives each once.
            rng: The server's own random numbers of this round.
        """
        weights = mean_weights(uploads, self.share)
        return server._replace(weights=weights) if weights.params else server  # else no client had data to learn from

    def deploy(self, net: Net, server: Server) -> Weights:
        """Return the model that is evaluated and saved."""
        return server.weights
