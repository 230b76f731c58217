"""FedDure with both regulators, as its abstract describes it; the formulas are a reconstruction."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from ..label.accept import FixedThreshold
from ..label.assign import LocalOnly, hard
from ..label.losses import soft_cross_entropy, supervised_loss
from ..models import Net
from ..seeds import stream
from ..types import Batch, Counts, Local, Payload, PseudoLabels, State, Task, Weights, put, take
from .base import Source
from .feddure import PARAMS, FedDure
from .fixmatch import Seen
from .shared_settings import MuU, RateFactor, Sign, StudentRate

REGULATOR = "regulator."
HIDDEN = 100


def image_weights(w: State, p: Tensor) -> Tensor:
    """Return h_w: class probabilities to a weight in (0, 1) for each image, through one hidden layer."""
    hidden = (p @ w["in"] + w["in_bias"]).relu()
    return (hidden @ w["out"] + w["out_bias"]).sigmoid().squeeze(-1)


@dataclass(frozen=True)
class FedDureFull(FedDure):
    """A fine-grained regulator w, kept by the client, weighs each image's label for student and teacher.

    Every label counts, so nothing is masked; `mu_u` of FixMatch is 0 and `weight` scales the weighed term instead.
    """

    weight: float = 1.0
    meta_lr: float = 0.01

    def client_state(self, payload: Payload, task: Task, counts: Counts) -> State:
        return {**super().client_state(payload, task, counts), **put(REGULATOR, new_regulator(task))}

    def extra(self, net: Net, payload: Payload, local: Local, batch: Batch, seen: Seen) -> tuple[Tensor, State]:
        """Return (1/B) sum m_i CE(f_theta(u_s), y_i) + d (1/B) sum CE(f_theta(u_s), y_i), and the state."""
        labels = PseudoLabels(hard(seen.votes["target"]), seen.votes["mask"])
        w, m = self.regulate(net, local, batch, labels)
        weighed = labels._replace(mask=labels.mask * m)
        local = local._replace(state={**local.state, **put(REGULATOR, w)})
        d, state = self.try_out(net, local, batch, batch.u_strong, weighed)
        strong = seen.strong.logits
        return self.weight * soft_cross_entropy(strong, weighed) + d * soft_cross_entropy(strong, labels), state

    def regulate(self, net: Net, local: Local, batch: Batch, labels: PseudoLabels) -> tuple[State, Tensor]:
        """Train w by one step on the labeled loss after a virtual step of the student; return w and weights m_i."""
        phi, w, buffers = take(PARAMS, local.state), take(REGULATOR, local.state), local.weights.buffers
        eta = self.optimizer.at(batch.clock).lr * self.student_rate

        def student_loss(phi: State, buffers: State, w: State) -> tuple[Tensor, Tensor]:
            _, (_, u) = net.fit(Weights(phi, buffers), batch.x, batch.u_strong)
            p = u.logits.detach().softmax(-1)
            return soft_cross_entropy(u.logits, labels._replace(mask=labels.mask * image_weights(w, p))), p

        def labeled_loss(w: State, buffers: State) -> tuple[Tensor, Tensor]:
            grads, p = torch.func.grad(student_loss, has_aux=True)(phi, buffers, w)
            virtual = {name: t - eta * grads[name] for name, t in phi.items()}
            _, (x, _) = net.fit(Weights(virtual, buffers), batch.x, batch.u_strong)
            return supervised_loss(x.logits, batch), p

        grads, p = torch.func.grad(labeled_loss, has_aux=True)(w, buffers)
        w = {name: (t - self.meta_lr * grads[name]).detach() for name, t in w.items()}
        return w, image_weights(w, p).detach()


def new_regulator(task: Task) -> State:
    """Return the usual initialization of linear layers: U(-1/sqrt(n), 1/sqrt(n)) for n inputs everywhere."""
    c, rng = task.num_classes, stream(task.seed, "feddure regulator")
    shapes = {
        "in": (c, (c, HIDDEN)),
        "in_bias": (c, (HIDDEN,)),
        "out": (HIDDEN, (HIDDEN, 1)),
        "out_bias": (HIDDEN, (1,)),
    }
    draws = {name: rng.uniform(-(n**-0.5), n**-0.5, shape) for name, (n, shape) in shapes.items()}
    return {name: torch.from_numpy(t.astype(np.float32)) for name, t in draws.items()}


@Source(
    "Bai et al. 2024", "reconstruction", page="feddure", client="regulator", label="FedDure-full", look="orange dot x"
)
def feddure_full(
    mu_u: MuU = 1.0,
    meta_lr: Annotated[RateFactor, "learning rate of the network that weighs images"] = 0.01,
    student_rate: StudentRate = 1.0,
    sign: Sign = "expected",
) -> FedDureFull:
    """FedDure with both regulators: a small network, trained through the student's step, weighs each image."""
    return FedDureFull(
        accept=FixedThreshold(0.0),
        assign=LocalOnly(),
        mu_u=0.0,
        weight=mu_u,
        meta_lr=meta_lr,
        student_rate=student_rate,
        sign=sign,
    )
