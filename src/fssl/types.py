"""Records that cross borders: tuples of tensors (or of dicts of tensors) without behavior."""

from typing import NamedTuple

import torch
from torch import Tensor

State = dict[str, Tensor]
CLASS_WEIGHTS, HAS_UNLABELED = "class_weights", "has_unlabeled"  # in the extras of a batch


class Weights(NamedTuple):
    """One model: trained parameters and the buffers (BatchNorm statistics) that training updates."""

    params: State
    buffers: State


class Payload(NamedTuple):
    """What goes down to one client: the global model and, for some methods, further tensors."""

    weights: Weights
    extras: State


class Server(NamedTuple):
    """What the server holds: the global model, for some methods further tensors, and its memory of single clients.

    `memory` lies on the host, with nothing of clients that the server has not seen. A method puts a new dict there
    for a client that uploaded, and leaves the others as they are.
    """

    weights: Weights
    extras: State
    memory: dict[int, State] = {}  # noqa: RUF012 (never changed in place)


class Local(NamedTuple):
    """What a client carries from step to step. `state` outlives the round, the rest does not."""

    weights: Weights
    velocity: State  # what the optimizer remembers; kept, carried or broadcast where a run asks for it
    state: State


class Clock(NamedTuple):
    """Where in the run a step is, as 0-d float tensors, for ramps and for counting only at the end."""

    round: Tensor
    step: Tensor
    last_epoch: Tensor  # 1 in the last local epoch of the round, else 0
    rate: Tensor = torch.ones(())  # the factor that the schedule gives the learning rate
    rounds: Tensor = torch.ones(())  # that the run is to have; a resumed run may have more than it was begun with
    group: Tensor = torch.zeros(())  # of the round's, where a method asks for several; `step` begins anew in each


class Draw(NamedTuple):
    """Which images and which random numbers a step uses; a client's round is one Draw with a leading axis."""

    x_row: Tensor  # [B] rows of the training pool
    u_row: Tensor  # [B_u]
    u_slot: Tensor  # [B_u] the same images as positions in the client's own pool
    noise: State  # per view: [B, K] small integers, see augment.policies
    has_labels: Tensor  # 0 for a client without labeled images; its x is then filled from its pool
    clock: Clock
    extras: State = {}  # what only some methods ask for, see Batch  # noqa: RUF012 (never changed in place)


class Sweep(NamedTuple):
    """A walk over a client's whole pool in weak views, in batches of one size, before it trains."""

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
    """What a method may see. True labels of `u` are not in it, except for an oracle whose `needs.truth` asks."""

    views: State  # [B, C, H, W] float; only the views the method named
    y: Tensor  # [B]
    u_slot: Tensor  # [B_u]
    has_labels: Tensor
    clock: Clock
    truth: State  # {} or {"u": [B_u]}
    # Where a method asks: "m_slot" [B_u] of images drawn with replacement, "numbers" of its own, and "real" [B_u] for
    # one that chooses its images: 1 for those, 0 for all others. Where the run asks: CLASS_WEIGHTS [C]
    # and HAS_UNLABELED, 0 for a client that knows every label of its images.
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
        """[C] how much a labeled image of each class counts in L_s; None: all the same."""
        return self.extras.get(CLASS_WEIGHTS)

    @property
    def has_unlabeled(self) -> Tensor | None:
        """Where `train.labels_alone` asks: 0 for a client that is to train on its labels alone, else 1."""
        return self.extras.get(HAS_UNLABELED)


class PseudoLabels(NamedTuple):
    """Soft targets [B, C], and which rows count, or how much [B]."""

    target: Tensor
    mask: Tensor


class Trace(NamedTuple):
    """What a step computed, for probes: its losses, and p_l, p_g, sure_l, sure_g, target, mask if it labels."""

    losses: State
    votes: State


class Task(NamedTuple):
    """Fixed facts of a run that shape a method's state."""

    num_classes: int
    max_slots: int  # the largest client pool: every client's table has this many rows
    seed: int = 0  # of the run, for what a method initializes beside the network
    size: int = 32  # pixels of an image, both ways


class Counts(NamedTuple):
    """Images of one client; the pool holds its labeled images too."""

    labeled: int
    pool: int


class Upload(NamedTuple):
    """What a client sends back."""

    client: int
    weights: Weights
    num_samples: int
    extras: State


def clone(tree: State) -> State:
    return {name: t.clone() for name, t in tree.items()}


def zeros_like(tree: State) -> State:
    return {name: torch.zeros_like(t) for name, t in tree.items()}


def choose(first: Tensor, a: State, b: State) -> State:
    """One of two dicts of tensors, without looking which on the host."""
    return {name: torch.where(first, t, b[name]) for name, t in a.items()}


# Several models in one dict of tensors: each under a prefix of its own.


def put(prefix: str, tree: State) -> State:
    """The same tensors under longer names."""
    return {prefix + name: t for name, t in tree.items()}


def take(prefix: str, tree: State) -> State:
    """What lies under a prefix, by the names it had before."""
    return {name.removeprefix(prefix): t for name, t in tree.items() if name.startswith(prefix)}


def drop(prefix: str, tree: State) -> State:
    """Everything else."""
    return {name: t for name, t in tree.items() if not name.startswith(prefix)}


def packed(prefix: str, weights: Weights) -> State:
    """A model among other tensors, under a prefix."""
    return {**put(f"{prefix}params.", weights.params), **put(f"{prefix}buffers.", weights.buffers)}


def unpacked(prefix: str, tree: State) -> Weights:
    """The model under a prefix."""
    return Weights(take(f"{prefix}params.", tree), take(f"{prefix}buffers.", tree))
