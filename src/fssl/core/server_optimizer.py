"""The server's step: from the clients' mean to the next global model, as pure functions on tensors."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..methods.base import BROADCAST
from ..types import Payload, State, Weights, put, take, zeros_like

MOMENTUM, SQUARE, VELOCITY = "momentum.", "square.", "velocity."  # keys in the server optimizer's memory
NO_MOVE = 1e-12  # a client's rate times steps if the rate is 0


def smooth(before: Weights, model: Weights, decay: float, round: int) -> Weights:
    """Return the exponential mean of all rounds' models: a model of n rounds ago has weight decay^n, normalized.

    Running statistics are smoothed like parameters. The first round's mean is its model.
    """
    share = decay * (1 - decay ** (round - 1)) / (1 - decay**round)  # the total weight of all earlier rounds
    pairs = zip(before, model, strict=True)
    return Weights(*({name: t + share * (old[name] - t) for name, t in new.items()} for old, new in pairs))


@dataclass(frozen=True)
class ServerOptimizer:
    """Treats the difference between the global model w and the mean w' as a gradient, d = w - w'.

    - `mean`: w <- w'.
    - `momentum` (Hsu et al. 2019): u <- momentum u + d; w <- w - lr u.
    - `adam` (Reddi et al. 2021): m and v are Adam's moments of d, v starts at epsilon^2, without bias
      correction; w <- w - lr m / (sqrt(v) + epsilon).

    Only parameters take the step. Buffers are those of the mean, because running statistics are averages already.
    """

    kind: Literal["mean", "momentum", "adam"] = "mean"
    lr: float = 1.0
    momentum: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-3
    broadcasts: bool = False  # clients start with the velocity below

    def start(self, params: State) -> State:
        """Return the server's memory, in addition to the model, before the first round."""
        state = put(MOMENTUM, zeros_like(params)) if self.kind != "mean" else {}
        if self.kind == "adam":
            state |= put(SQUARE, {name: torch.full_like(p, self.epsilon**2) for name, p in params.items()})
        return state | (put(VELOCITY, zeros_like(params)) if self.broadcasts else {})

    def step(self, old: State, mean: State, state: State, reach: Tensor) -> tuple[State, State]:
        """Return the parameters after a round, and the new memory.

        Args:
            old: The parameters that clients started with.
            mean: The mean of their uploads.
            state: The server's memory.
            reach: The distance that a client with velocity 1 moves in a round: its rate times its steps.
        """
        if not state:
            return mean, {}
        d = {name: p - mean[name] for name, p in old.items()}
        new, kept = self.moved(old, mean, d, state)
        if self.broadcasts:
            kept |= put(VELOCITY, self.update_velocity(take(VELOCITY, state), d, reach.clamp(min=NO_MOVE)))
        return new, kept

    def moved(self, old: State, mean: State, d: State, state: State) -> tuple[State, State]:
        if self.kind == "mean":
            return mean, {}
        before = take(MOMENTUM, state)
        if self.kind == "momentum":
            u = {name: self.momentum * before[name] + t for name, t in d.items()}
            return {name: self.carried(mean[name], t, before[name]) for name, t in d.items()}, put(MOMENTUM, u)
        m = {name: self.momentum * before[name] + (1 - self.momentum) * t for name, t in d.items()}
        squares = take(SQUARE, state)
        v = {name: self.beta2 * squares[name] + (1 - self.beta2) * t.square() for name, t in d.items()}
        new = {name: p - self.lr * m[name] / (v[name].sqrt() + self.epsilon) for name, p in old.items()}
        return new, {**put(MOMENTUM, m), **put(SQUARE, v)}

    def carried(self, mean: Tensor, d: Tensor, u: Tensor) -> Tensor:
        """Return w - lr (momentum u + d), in a form that equals the mean bit for bit at lr 1 and momentum 0."""
        return mean + (1 - self.lr) * d - (self.lr * self.momentum) * u

    def update_velocity(self, before: State, d: State, reach: Tensor) -> State:
        """Update b <- momentum b + (1 - momentum) d / reach, in the unit of a client's velocity.

        A client that keeps a velocity b for all its steps moves by -rate steps b = -reach b. So d / reach is the
        round's mean velocity, and b averages such velocities, with more weight on later rounds.
        """
        share = (1 - self.momentum) / reach
        return {name: self.momentum * before[name] + share * t for name, t in d.items()}

    def broadcast(self, payload: Payload, state: State) -> Payload:
        """Return the payload with the velocity that clients start with; unchanged if it is zero."""
        velocity = take(VELOCITY, state)
        return payload._replace(extras={**payload.extras, **put(BROADCAST, velocity)}) if velocity else payload
