"""A client's optimizers: from gradients to the next parameters, as pure functions on dicts of tensors.

Both give what their namesakes in torch.optim give. Nothing is read back from a device, and a rate that changes is a
tensor, so that a captured graph computes with the one of its step.
"""

from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from ..errors import UserError
from ..types import Clock, State

TensorList = list[Tensor]
Rate = float | Tensor
DecayOn = Literal["all", "weights"]
SQUARE, STEPS = "@square", "@steps"  # stored with each parameter's first moment: Adam's second one and number of steps
EPSILON = 1e-8  # Adam's
NO_NORM = 1e-6  # added to a gradient's norm before it divides, as torch does


@dataclass(frozen=True)
class Optimizer:
    """The common part of SGD and AdamW. A step calls `at(batch.clock)` and uses the result.

    Attributes:
        lr: The learning rate; after `at`, the rate of the step, in compiled steps a 0-d tensor if it changes.
        momentum: Momentum, or AdamW's beta_1.
        weight_decay: Weight decay.
        decay_on: "all", or "weights": only tensors with two or more axes, so neither biases nor scales of norms.
        clip: The largest norm of all gradients together.
        scheduled: Whether the rate follows a schedule and is not known yet.
    """

    lr: Rate = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    decay_on: DecayOn = "all"
    clip: float | None = None
    scheduled: bool = False

    def at(self, clock: Clock) -> Self:
        """Return the optimizer with the rate of a step."""
        return replace(self, lr=self.lr * at_hand(clock.rate), scheduled=False) if self.scheduled else self

    @property
    def rate(self) -> Rate:
        """Return the rate of this step; raise if the place in the schedule is unknown."""
        if self.scheduled:
            raise UserError(
                "train.schedule or train.cooldown has no effect: its step never calls self.optimizer.at(batch.clock)"
            )
        return self.lr

    def start(self, params: State, velocity: State | None = None) -> State:
        """Return the optimizer's memory before its first step: empty, or a given velocity."""
        given = velocity or {}
        return {name: given[name].clone() if name in given else torch.zeros_like(p) for name, p in params.items()}

    def update(self, params: State, velocity: State, grads: State) -> tuple[State, State]:
        """Return the new parameters and the optimizer's memory after one step."""
        raise NotImplementedError

    def clipped(self, grads: TensorList) -> TensorList:
        return grads if self.clip is None else clip_norm(grads, self.clip)

    def decays(self, p: Tensor) -> bool:
        return self.decay_on == "all" or p.dim() > 1


@dataclass(frozen=True)
class Sgd(Optimizer):
    """SGD with momentum; weight decay is part of the gradient.

    Attributes:
        lr: The learning rate.
        momentum: The momentum.
        weight_decay: Weight decay.
        decay_on: "all", or "weights": all tensors except biases and the scales and shifts of norms.
        clip: The largest norm of all gradients together.
        nesterov: Whether to use Nesterov momentum.

    Examples:
        >>> Sgd(lr=0.1).update({"w": torch.ones(1)}, {"w": torch.zeros(1)}, {"w": torch.ones(1)})[0]["w"].item()
        0.8999900221824646
    """

    nesterov: bool = False

    def update(self, params: State, velocity: State, grads: State) -> tuple[State, State]:
        names = list(params)
        p, v, g = ([tree[name] for name in names] for tree in (params, velocity, grads))
        decayed = self.decayed(p, self.clipped(g))
        new_v = torch._foreach_mul(v, self.momentum)
        torch._foreach_add_(new_v, decayed)  # in place, to allocate no more memory: no other code has new_v yet
        slope = torch._foreach_add(decayed, new_v, alpha=self.momentum) if self.nesterov else new_v
        new_p = stepped(p, list(slope), self.rate)
        return dict(zip(names, new_p, strict=True)), dict(zip(names, new_v, strict=True))

    def decayed(self, p: TensorList, g: TensorList) -> TensorList:
        """Return g + weight_decay p, where parameters decay."""
        if self.decay_on == "all":
            return list(torch._foreach_add(g, p, alpha=self.weight_decay))
        return [g_i + self.weight_decay * p_i if self.decays(p_i) else g_i for p_i, g_i in zip(p, g, strict=True)]


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay; each parameter counts its own steps.

    Attributes:
        lr: The learning rate.
        momentum: beta_1.
        weight_decay: Weight decay.
        decay_on: "all", or "weights": all tensors except biases and the scales and shifts of norms.
        clip: The largest norm of all gradients together.
        beta2: beta_2.

    Examples:
        >>> adam, w = AdamW(lr=0.1, weight_decay=0.0), {"w": torch.ones(1)}
        >>> round(adam.update(w, adam.start(w), {"w": torch.ones(1)})[0]["w"].item(), 4)
        0.9
    """

    beta2: float = 0.999

    def start(self, params: State, velocity: State | None = None) -> State:
        squares = {name + SQUARE: torch.zeros_like(p) for name, p in params.items()}
        return super().start(params, velocity) | squares | {name + STEPS: p.new_zeros(()) for name, p in params.items()}

    def update(self, params: State, velocity: State, grads: State) -> tuple[State, State]:
        names = list(params)
        p, g = ([tree[name] for name in names] for tree in (params, grads))
        m, v, t = ([velocity[name + end] for name in names] for end in ("", SQUARE, STEPS))
        g = self.clipped(g)
        m = list(torch._foreach_lerp(m, g, 1 - self.momentum))
        v = list(torch._foreach_addcmul(torch._foreach_mul(v, self.beta2), g, g, 1 - self.beta2))
        t = list(torch._foreach_add(t, 1.0))
        new = [self.moved(*each) for each in zip(p, m, v, t, strict=True)]
        kept = {
            name + end: x for end, xs in (("", m), (SQUARE, v), (STEPS, t)) for name, x in zip(names, xs, strict=True)
        }
        return dict(zip(names, new, strict=True)), kept

    def moved(self, p: Tensor, m: Tensor, v: Tensor, t: Tensor) -> Tensor:
        """Return p (1 - lr weight_decay) - lr m^ / (sqrt(v^) + epsilon), both moments without their bias to zero."""
        if self.decays(p):
            p = p * (1 - self.rate * self.weight_decay)
        size = self.rate / (1 - self.momentum**t)
        return p - size * m / (v.sqrt() / (1 - self.beta2**t).sqrt() + EPSILON)


def at_hand(factor: Tensor) -> Rate:
    """Return a schedule's factor as a number if it can be read at once: a factor of 1 then changes no bit of a step.

    A GPU would have to synchronize, and compiled code would be compiled anew for every number.
    """
    if not factor.is_cpu or isinstance(factor, FakeTensor):
        return factor
    try:
        return factor.item()
    except RuntimeError:  # a step that is traced on shapes only has no values
        return factor


def stepped(p: TensorList, slope: TensorList, lr: Rate) -> TensorList:
    """Return p - lr slope."""
    if isinstance(lr, Tensor):
        return list(torch._foreach_sub(p, torch._foreach_mul(slope, lr.to(slope[0].dtype))))
    return list(torch._foreach_add(p, slope, alpha=-lr))


def clip_norm(grads: TensorList, most: float) -> TensorList:
    """Return gradients scaled so that their norm, taken over all of them, is at most `most`."""
    norm = torch.stack(torch._foreach_norm(grads)).norm()
    return list(torch._foreach_mul(grads, (most / (norm + NO_NORM)).clamp(max=1.0)))
