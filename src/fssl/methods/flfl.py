"""(FL)^2 (Lee et al., NeurIPS 2024): SemiFL with adaptive thresholds, a flat minimum and weights by confidence."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from ..config import ByDataset
from ..label.losses import cross_entropies, kl_divergence, masked_mean
from ..models import Net
from ..types import Batch, Counts, Local, Payload, State, Trace, Upload, Weights
from .base import Source, Value, gradient
from .semifl import TABLE, USED, SemiFL
from .shared_settings import Tau, Weight

TAU = "flfl.tau"  # in an upload: the client's threshold
ETA, NO_NORM = 0.01, 1e-16  # of ASAM: added to |w|, and to the norm that divides
NO_WEIGHT = 1e-12  # of a client whose model is sure of everything


def thresholds(table: Tensor) -> tuple[Tensor, Tensor]:
    """Return tau, and tau_c of each class, from the broadcast model's probabilities [slots, C]; empty slots are all 0.

    tau = mean_i max q_i, p_c = mean_i q_i(c), tau_c = tau p_c / max p. Means are taken in double precision: of equal
    probabilities they are these, so that an image is not below its own mean.
    """
    n = (table.amax(-1) > 0).sum().clamp(min=1)
    tau, p = table.amax(-1).double().sum() / n, table.double().sum(0) / n
    return tau, tau * p / p.amax().clamp(min=NO_NORM)


def asam(params: State, g: State, rho: float) -> State:
    """Return w* = w + rho t^2 g / (||t g|| + 1e-16), with t = |w| + 0.01 for weights and 1 for biases."""
    t = {name: p.abs() + ETA if name.endswith("weight") else torch.ones_like(p) for name, p in params.items()}
    norm = torch.stack([(t[name] * g[name]).square().sum() for name in params]).sum().sqrt()
    return {name: p + rho * t[name].square() * g[name] / (norm + NO_NORM) for name, p in params.items()}


@dataclass(frozen=True)
class FLFL(SemiFL):
    """SemiFL without its mixtures: A are the images above their class's threshold, H those above tau."""

    mu_mix: float = 0.0
    rho: float = 0.1
    accept: Literal["adaptive", "fixed"] = "adaptive"
    shares: Literal["threshold", "uniform"] = "threshold"
    extra_loss: ClassVar[str] = "l_c"

    def accepted(self, table: Tensor) -> Tensor:
        if self.accept == "fixed":
            return super().accepted(table)
        _, tau_c = thresholds(table)
        confidence, best = table.max(-1)
        return (confidence.double() >= tau_c[best]) & (confidence > 0)

    def step(self, net: Net, payload: Payload, local: Local, batch: Batch) -> tuple[Local, Trace]:
        def learning(weights: Weights, state: State) -> Value:
            l_s, buffers = self.labeled_loss(net, weights, batch)
            l_a, buffers = self.fix(net, Weights(weights.params, buffers), state, batch)  # the whole batch is in A
            losses = {"l_s": l_s.detach(), "l_u": l_a.detach(), self.extra_loss: torch.zeros_like(l_a)}
            return l_s + self.mu_fix * l_a, (buffers, state, Trace(losses, {}))

        params, state = local.weights.params, local.state
        grads, (buffers, _, trace) = gradient(learning, local.weights, state)
        if self.rho > 0:
            flat, l_cs = self.flatness(net, local, batch)
            grads = {name: g + flat[name] for name, g in grads.items()}
            trace = trace._replace(losses={**trace.losses, self.extra_loss: l_cs})
        params, velocity = self.optimizer.at(batch.clock).update(params, local.velocity, grads)
        return Local(Weights(params, buffers), velocity, state), trace

    def flatness(self, net: Net, local: Local, batch: Batch) -> tuple[State, Tensor]:
        """Return L_cs and its gradient at w*, L_cs = 1/|u| sum_{u in H} KL(softmax s_0 || softmax f_{w*}(S(u)))."""
        weights, q, real = local.weights, local.state[TABLE][batch.u_slot], batch.extras["real"]
        sure = real * (q.amax(-1) >= self.tau)  # H

        def perturbing(weights: Weights, state: State) -> Value:
            """Return L_p: CE over H; its logits are s_0."""
            _, (strong,) = net.fit(weights, batch.u_strong)
            l_p = masked_mean(cross_entropies(strong.logits, q.argmax(-1)), sure)
            return l_p, ({}, {"s_0": strong.logits}, Trace({}, {}))

        g, (_, said, _) = gradient(perturbing, weights, {})
        p_0 = said["s_0"].softmax(-1)

        def agreeing(weights: Weights, state: State) -> Value:
            _, (strong,) = net.fit(weights, batch.u_strong)
            l_cs = (kl_divergence(p_0, strong.logits) * sure).sum() / real.sum().clamp(min=1)
            return l_cs, ({}, {}, Trace({"l_c": l_cs.detach()}, {}))

        there = Weights(asam(weights.params, g, self.rho), weights.buffers)
        grads, (_, _, trace) = gradient(agreeing, there, {})
        return grads, trace.losses["l_c"]

    def upload(self, client: int, payload: Payload, local: Local, counts: Counts) -> Upload:
        upload = super().upload(client, payload, local, counts)
        tau, _ = thresholds(local.state[TABLE])
        return upload._replace(extras={**upload.extras, TAU: tau.float()})

    def share(self, upload: Upload) -> float:
        """Return 1 - tau_k: a less sure client counts more."""
        if self.shares == "uniform" or not upload.extras[USED] > 0:
            return super().share(upload)
        return max(1 - float(upload.extras[TAU]), NO_WEIGHT)


@Source(
    "Lee et al. 2024",
    "released code",
    note="clients also send a threshold and the number of images used",
    label="(FL)²",
    look="vermilion dot triangle-down",
)
def flfl(
    tau: Annotated[Tau, "least confidence of an image in the flatness term; with accept='fixed' of every label"] = 0.95,
    rho: Annotated[
        Weight,
        ByDataset(lambda card: 1.0 if card.num_classes == 100 else 0.1),
        "how far ASAM moves the weights; 0: no flatness term",
    ] = 0.1,
    accept: Annotated[
        Literal["adaptive", "fixed"], "thresholds by class that follow the model's confidence, or tau"
    ] = "adaptive",
    shares: Annotated[
        Literal["threshold", "uniform"], "clients weigh 1 minus their threshold, or all the same"
    ] = "threshold",
) -> FLFL:
    """SemiFL's labels, with thresholds that follow the model's confidence and a loss that favors flat minima.

    For labels at the server.
    """
    return FLFL(tau=tau, rho=rho, accept=accept, shares=shares)
