"""FedDure (Bai et al., AAAI 2024): the progress of a student on a label decides how the teacher changes."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from ..label.accept import FixedThreshold
from ..label.assign import VOTES, LocalOnly, hard
from ..label.losses import cross_entropy, soft_cross_entropy, supervised_loss
from ..models import Net
from ..types import Batch, Local, Payload, PseudoLabels, State, Trace, Weights, clone, drop, put, take
from .base import Needs, Source, Value, fit, gradient
from .fixmatch import FixMatch, Seen
from .shared_settings import MuU, Passes, Sign, StudentRate, Tau

STUDENT, PARAMS, VELOCITY = "student.", "student.params.", "student.velocity."


@dataclass(frozen=True)
class FedDure(FixMatch):
    """FixMatch for the teacher theta, which is uploaded, and a term weighed by the student phi's progress.

    The student starts as the broadcast in each round and is dropped after it. It runs in training mode only,
    so it needs no separate running statistics.
    """

    student_rate: float = 1.0  # its learning rate relative to the teacher's
    sign: Sign = "released"
    passes: Passes = "joint"  # of the student over labeled and unlabeled images
    extra_loss: ClassVar[str] = "l_d"

    @property
    def needs(self) -> Needs:
        return super().needs._replace(client_labels=True)  # the student is judged by them

    def start(self, payload: Payload, state: State) -> Local:
        local, phi = super().start(payload, state), payload.weights.params
        return local._replace(
            state={**local.state, **put(PARAMS, clone(phi)), **put(VELOCITY, self.optimizer.start(phi))}
        )

    def extra(self, net: Net, payload: Payload, local: Local, batch: Batch, seen: Seen) -> tuple[Tensor, State]:
        """Return d CE(f_theta(u_s), argmax f_theta(u_s)): towards or away from the teacher's own labels."""
        d, state = self.teach(net, local, batch, seen.votes)
        strong = seen.strong.logits
        return d * cross_entropy(strong, strong.detach().argmax(-1)), state

    def teach(self, net: Net, local: Local, batch: Batch, votes: State) -> tuple[Tensor, State]:
        """Return d and the student's state after its step on the teacher's labels, hard and unmasked, as released."""
        right = votes["target"].argmax(-1) == batch.truth["u"] if self.oracle else torch.ones_like(votes["mask"])
        return self.try_out(net, local, batch, batch.u_weak, PseudoLabels(hard(votes["target"]), right))

    def try_out(self, net: Net, local: Local, batch: Batch, view: Tensor, labels: PseudoLabels) -> tuple[Tensor, State]:
        """Return d, from the student's labeled loss before and after one step, and its state."""

        def loss(weights: Weights, state: State) -> Value:
            _, (x, u) = fit(net, weights, (batch.x, view), self.passes)
            l_0 = supervised_loss(x.logits, batch).detach()
            return soft_cross_entropy(u.logits, labels), ({}, state, Trace({"l_0": l_0}, {}))

        phi, velocity = take(PARAMS, local.state), take(VELOCITY, local.state)
        grads, (_, _, trace) = gradient(loss, Weights(phi, local.weights.buffers), {})
        optimizer = self.optimizer.at(batch.clock)
        phi, velocity = replace(optimizer, lr=optimizer.lr * self.student_rate).update(phi, velocity, grads)
        again = (batch.x, view) if self.passes == "joint" else (batch.x,)
        _, (x, *_) = net.fit(Weights(phi, local.weights.buffers), *again)
        gain = trace.losses["l_0"] - supervised_loss(x.logits, batch)
        d = gain.detach() if self.sign == "expected" else -gain.detach()
        return d, {**local.state, **put(PARAMS, phi), **put(VELOCITY, velocity)}

    def keep(self, local: Local) -> State:
        return clone(drop(STUDENT, local.state))


@Source("Bai et al. 2024", "reconstruction", label="FedDure", look="orange solid pentagon")
def feddure(
    tau: Tau = 0.95,
    mu_u: MuU = 1.0,
    target: Annotated[Literal["soft", "hard"], "labels are all probabilities, or the likeliest class"] = "soft",
    student_rate: StudentRate = 1.0,
    sign: Sign = "released",
    passes: Passes = "joint",
) -> FedDure:
    """FixMatch with a term weighted by a student: did one step on the labels help it on labeled images?

    passes='separate', of the student over labeled and unlabeled images, is as released.
    """
    return FedDure(
        accept=FixedThreshold(tau),
        assign=LocalOnly(VOTES[target]),
        mu_u=mu_u,
        student_rate=student_rate,
        sign=sign,
        passes=passes,
    )
