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
    """The requirements of a method; before a run starts, fssl rejects settings that do not meet them.

    Attributes:
        labels: "few": clients have the labels of the settings; "all": they have the true label of every image.
        truth: A step reads the true labels of unlabeled images; only for oracles.
        client_labels: The method needs labels at clients.
        min_clients: The smallest number of clients.
        groups: Groups of clients per round; a client trains once for each of its groups (`batch.clock.group`).
        burn_in: Rounds of a first stage; a run that ends within it prints a warning.
        all_weights: The method is defined by all weights of its network; no part of them can be frozen.
        own_optimizer: Steps use their own update rule. Of the run's optimizer only `train.lr`, `train.momentum` and
            `train.weight_decay` are accepted.
    """

    labels: Literal["few", "all"] = "few"
    truth: bool = False
    client_labels: bool = False
    min_clients: int = 1
    groups: int = 1
    burn_in: int = 0
    all_weights: bool = False
    own_optimizer: bool = False


class Watched(NamedTuple):
    """The values that probes take from a method, so that records show its settings.

    Attributes:
        weigh: The rule for the weight of the local vote; by default SAGE's.
        tau: The confidence from which a prediction counts as sure.
    """

    weigh: Weigh = ConfidenceGap()
    tau: float = 0.95


@dataclass(frozen=True)
class Method:
    """The functions that a run calls on a method, with FedAvg's as defaults; every method defines `step`.

    A round calls them in this order, for each client: `payload`, `start`, (`visit` for each batch of a sweep over the
    client's whole pool, if the recipe has `sweep`, then `chosen`, if it has `chooses`), `step` for each step, `upload`,
    `keep`; then, once, `aggregate` and `deploy`. `fssl docs adding-a-method` has examples.

    The run sets the first five attributes from its settings.

    Attributes:
        optimizer: The optimizer of clients; `optimizer.at(batch.clock)` has the rate of the step.
        labeled_weight: Additional weight of a labeled image in the mean; the released code uses 2000.
        guard: A number added to probabilities in the logarithm of L_u; 1e-10 in the released code.
        watch: Whether to compute values that only probes read.
        labels_at_clients: False if the server has all labels, so that no client's batch has a labeled image.
        hooks: Names of the step's functions whose results are checked before a run.
    """

    optimizer: Optimizer = Sgd()  # noqa: RUF009 (a frozen value)
    labeled_weight: int = 0
    guard: float = 0.0
    watch: bool = True
    labels_at_clients: bool = True
    hooks: ClassVar[tuple[str, ...]] = ()

    @property
    def needs(self) -> Needs:
        """Return the method's requirements; by default none."""
        return Needs()

    def recipe(self, usual: Recipe) -> Recipe:
        """Return which images a client's steps get, and how many.

        Args:
            usual: The recipe of the run's settings, with only weak views of labeled images, `("x",)`.

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
        """Return a client's initial state: the tensors that it keeps between rounds.

        `keep` must return all of these names, or none; a run calls this function in later rounds, too, for the names.

        Args:
            payload: The first payload that the client receives.
            task: The number of classes, and the size of the largest pool for tables with a row per image.
            counts: The client's numbers of labeled images and of all images.
        """
        return {}

    def payload(self, server: Server, client: int) -> Payload:
        """Return the download of one client: by default the model and the server's extras."""
        return Payload(server.weights, server.extras)

    def start(self, payload: Payload, state: State) -> Local:
        """Return a client's weights, momentum and state before its first step of a round.

        The weights are copies, because a step must not share tensors with the payload. Tensors that `keep` does not
        return last for one round.
        """
        weights = Weights(clone(payload.weights.params), clone(payload.weights.buffers))
        return Local(weights, self.optimizer.start(weights.params, broadcast_velocity(payload)), clone(state))

    def visit(self, net: Net, payload: Payload, local: Local, u_weak: Tensor, sweep: Sweep) -> Local:
        """Return the client after one batch of the sweep, given weak views and their positions in the pool."""
        raise NotImplementedError("a method whose recipe has sweep=True must define `visit`")

    def chosen(self, local: Local) -> Tensor:
        """Return which images of its pool the client trains on: a boolean for each. Called after the sweep."""
        raise NotImplementedError("a method whose recipe has chooses=True must define `chosen`")

    def votes(self, local: Local) -> State:
        """Return the votes on each image of the pool, for the records of a method that chooses images.

        Returns:
            "p_l" [slots, C], the probabilities used for the choice, and "target" [slots, C], the labels. With an empty
            dict, records contain no label quality, because a step's trace covers only the chosen images.
        """
        return {}

    def step(self, net: Net, payload: Payload, local: Local, batch: Batch) -> tuple[Local, Trace]:
        """Return the client after one training step; a pure function that changes nothing in place and draws nothing.

        Args:
            net: The network: `net.fit` in training mode, `net.infer` with running statistics.
            payload: The client's download; `payload.weights` is the global model.
            local: The client's weights, momentum and state.
            batch: The views of the recipe, labels, and the step's place in the run (`batch.clock`).

        Returns:
            The new `local`, and a trace for the records: detached scalars whose names start with `l_` (`l_s` becomes
            `loss_s`), and votes. `descend` computes both from a loss.
        """
        raise NotImplementedError

    def num_samples(self, counts: Counts) -> int:
        """Return a client's weight in the mean; a client of weight 0 takes no step."""
        return counts.pool + self.labeled_weight * counts.labeled

    def upload(self, client: int, payload: Payload, local: Local, counts: Counts) -> Upload:
        """Return the client's upload after its last step."""
        weights = Weights(clone(local.weights.params), clone(local.weights.buffers))
        return Upload(client, weights, self.num_samples(counts), {})

    def keep(self, local: Local) -> State:
        """Return the state that the client keeps until it is drawn again."""
        return clone(local.state)

    def share(self, upload: Upload) -> float:
        """Return an upload's weight in the mean."""
        return upload.num_samples

    def aggregate(self, net: Net, server: Server, uploads: Iterable[Upload], rng: np.random.Generator) -> Server:
        """Return the server after a round.

        Args:
            net: The network.
            server: The server's state before. `server.memory` holds tensors per client that are never broadcast.
            uploads: The clients' uploads, in client order, as an iterator.
            rng: The server's random numbers for this round.
        """
        weights = mean_weights(uploads, self.share)
        return server._replace(weights=weights) if weights.params else server  # else no client had data to learn from

    def deploy(self, net: Net, server: Server) -> Weights:
        """Return the model that is tested and saved."""
        return server.weights
