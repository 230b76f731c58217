"""Records that several packages share: tuples of tensors (or of dicts of tensors) without behavior."""

from typing import NamedTuple

import torch
from torch import Tensor

State = dict[str, Tensor]
# In the extras of a batch; those of BY_CLASS [C] are for the loss of labeled images, each with the setting it needs.
CLASS_WEIGHTS, LOG_PRIOR, HAS_UNLABELED = "class_weights", "log_prior", "has_unlabeled"
DROPOUT = "dropout"  # the number [] of which a step's masks are made, for networks that may have dropout
BY_CLASS = {CLASS_WEIGHTS: "train.class_weights", LOG_PRIOR: "train.logit_adjustment"}


class Weights(NamedTuple):
    """One model: trained parameters and the buffers (BatchNorm statistics) that training updates."""

    params: State
    buffers: State


class Payload(NamedTuple):
    """What one client receives: the global model and, for some methods, further tensors."""

    weights: Weights
    extras: State


class Server(NamedTuple):
    """The server's state: the global model, further tensors of some methods, and a memory of each client.

    `memory` is on the host and contains only clients that the server has seen. A method replaces the dict of a client
    that uploaded, and keeps the others unchanged.
    """

    weights: Weights
    extras: State
    memory: dict[int, State] = {}  # noqa: RUF012 (never changed in place)


class Local(NamedTuple):
    """A client's state between steps. Only `state` is kept after the round."""

    weights: Weights
    velocity: State  # the optimizer's memory; kept, carried or broadcast if a run asks for it
    state: State


class Clock(NamedTuple):
    """The place of a step in the run, as 0-d float tensors, for ramps and for counting only at the end."""

    round: Tensor
    step: Tensor
    last_epoch: Tensor  # 1 in the last local epoch of the round, else 0
    rate: Tensor = torch.ones(())  # the schedule's factor of the learning rate
    rounds: Tensor = torch.ones(())  # planned rounds of the run; a resumed run may have more than at its start
    group: Tensor = torch.zeros(())  # of the round, if a method asks for several; `step` starts again in each


class Draw(NamedTuple):
    """The images and random numbers of a step; a client's round is one Draw with a leading axis."""

    x_row: Tensor  # [B] rows of the training pool
    u_row: Tensor  # [B_u]
    u_slot: Tensor  # [B_u] the same images as positions in the client's own pool
    noise: State  # per view: [B, K] small integers, see augment.policies
    has_labels: Tensor  # 0 for a client without labeled images; then its pool fills x
    clock: Clock
    extras: State = {}  # for some methods only, see Batch  # noqa: RUF012 (never changed in place)


class Sweep(NamedTuple):
    """A pass over a client's whole pool in weak views, in batches of one size, before training."""

    u_row: Tensor  # [B_u]
    u_slot: Tensor  # [B_u]
    noise: Tensor  # [B_u, 3]
    real: Tensor  # [B_u]: 0 where an image only fills the last batch


class Orders(NamedTuple):
    """The whole pool in a random order for each epoch, for a method that chooses images after the sweep."""

    u_row: Tensor  # [epochs, P]
    u_slot: Tensor  # [epochs, P]
    real: Tensor  # [epochs, P] booleans: False where an image only fills the last batch


class Batch(NamedTuple):
    """The data that a method may see. It contains no true labels of `u`, except for an oracle with `needs.truth`."""

    views: State  # [B, C, H, W] float; only the views the method named
    y: Tensor  # [B]
    u_slot: Tensor  # [B_u]
    has_labels: Tensor
    clock: Clock
    truth: State  # {} or {"u": [B_u]}
    # For methods that need them: "m_slot" [B_u] of images drawn with replacement, random "numbers", and "real" [B_u]
    # for a method that chooses its images: 1 for those, 0 for all others. With the matching settings: those of
    # BY_CLASS [C], and HAS_UNLABELED, which is 0 for a client that knows every label of its images.
    extras: State = {}  # noqa: RUF012 (never changed in place)

    @property
    def x(self) -> Tensor:
        return self.views["x"]

    @property
    def u_weak(self) -> Tensor:
        return self.views["u_weak"]

    @property
    def u_strong(self) -> Tensor:
        return self.views["u_strong"]

    @property
    def class_weights(self) -> Tensor | None:
        """Return the [C] weights of labeled images in L_s, by class; None for equal weights."""
        return self.extras.get(CLASS_WEIGHTS)

    @property
    def log_prior(self) -> Tensor | None:
        """Return what L_s adds to the logits of labeled images to balance classes, [C]; None for nothing."""
        return self.extras.get(LOG_PRIOR)

    @property
    def has_unlabeled(self) -> Tensor | None:
        """Return 0 for a client that trains on labels only and 1 for others, with `train.labels_alone`; else None."""
        return self.extras.get(HAS_UNLABELED)


class PseudoLabels(NamedTuple):
    """Soft targets [B, C], and a mask or weights of the rows [B]."""

    target: Tensor
    mask: Tensor


class Trace(NamedTuple):
    """The values that a step computed, for probes: losses, and p_l, p_g, sure_l, sure_g, target, mask if it labels."""

    losses: State
    votes: State


class Task(NamedTuple):
    """Fixed facts of a run that shape a method's state."""

    num_classes: int
    max_slots: int  # the largest client pool: every client's table has this many rows
    seed: int = 0  # of the run, for tensors that a method initializes in addition to the network
    size: int = 32  # pixels of an image, both ways


class Counts(NamedTuple):
    """The numbers of images of one client; the pool includes its labeled images."""

    labeled: int
    pool: int


class Upload(NamedTuple):
    """The result that a client returns."""

    client: int
    weights: Weights
    num_samples: int
    extras: State


def clone(tree: State) -> State:
    return {name: t.clone() for name, t in tree.items()}


def zeros_like(tree: State) -> State:
    return {name: torch.zeros_like(t) for name, t in tree.items()}


def choose(first: Tensor, a: State, b: State) -> State:
    """Choose one of two dicts of tensors without copying the condition to the host."""
    return {name: torch.where(first, t, b[name]) for name, t in a.items()}


# Several models in one dict of tensors: each under its own prefix.


def put(prefix: str, tree: State) -> State:
    """Return the same tensors with prefixed names."""
    return {prefix + name: t for name, t in tree.items()}


def take(prefix: str, tree: State) -> State:
    """Return the tensors under a prefix, without the prefix."""
    return {name.removeprefix(prefix): t for name, t in tree.items() if name.startswith(prefix)}


def drop(prefix: str, tree: State) -> State:
    """Return the tensors that are not under the prefix."""
    return {name: t for name, t in tree.items() if not name.startswith(prefix)}


def part(prefix: str, weights: Weights) -> Weights:
    """Return the model whose parameters and buffers lie under a prefix."""
    return Weights(*(take(prefix, tree) for tree in weights))


def rest(prefix: str, weights: Weights) -> Weights:
    """Return the model without the tensors under a prefix."""
    return Weights(*(drop(prefix, tree) for tree in weights))


def packed(prefix: str, weights: Weights) -> State:
    """Return a model as tensors with prefixed names, to be packed with others."""
    return {**put(f"{prefix}params.", weights.params), **put(f"{prefix}buffers.", weights.buffers)}


def unpacked(prefix: str, tree: State) -> Weights:
    """Return the model under a prefix."""
    return Weights(take(f"{prefix}params.", tree), take(f"{prefix}buffers.", tree))
