"""FedMatch (Jeong et al., ICLR 2021), labels at the clients: labels train sigma, agreement with helpers trains psi."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from ..config import Range
from ..label.accept import Accept, FixedThreshold, sure_from
from ..label.assign import hard
from ..label.losses import kl_divergence, soft_cross_entropy, squared_distance, supervised_loss
from ..models import Net, Out
from ..seeds import stream
from ..types import Batch, Counts, Local, Payload, PseudoLabels, Server, State, Task, Trace, Upload, Weights, put, take
from .base import Method, Needs, Recipe, Source, Value, Watched, gradient, mean_weights
from .optimizers import Sgd
from .plateau import FACTOR, measured, new_plateau, settled
from .shared_settings import RateFactor, Tau, Weight

SIGMA, PSI, HELPER = "sigma.", "psi.", "helper.psi."
PRESENT, ROUND, PROBE = "helper.present", "fedmatch.round", "fedmatch.probe"
EMBEDDING = "embedding"  # in the server's memory, with a client's psi: its model's output for the probe
PSI_SHARE = 0.2  # psi starts as this multiple of sigma
SMALLEST_PSI, SMALLEST_CHANGE = 5e-6, 5e-5  # below these an entry counts as zero, or is not sent


def compose(sigma: State, psi: State) -> State:
    """Return theta = sigma + psi; biases and BatchNorm have only a sigma."""
    return {name: t + psi[name] if name in psi else t for name, t in sigma.items()}


def without_small(psi: State) -> State:
    return {name: torch.where(t.abs() > SMALLEST_PSI, t, torch.zeros_like(t)) for name, t in psi.items()}


def changes(new: State, old: State) -> State:
    """Return the result of sending only the changes that matter."""
    return {name: torch.where((t - old[name]).abs() > SMALLEST_CHANGE, t, old[name]) for name, t in new.items()}


def model_of(weights: Weights) -> Weights:
    sigma, psi = take(SIGMA, weights.params), take(PSI, weights.params)
    return weights._replace(params=compose(sigma, without_small(psi)))


@dataclass(frozen=True)
class FedMatch(Method):
    """Two parts of every kernel, two steps in one, and a server that remembers each client's last upload."""

    lr: float = 0.01
    accept: Accept = FixedThreshold()  # noqa: RUF009 (a frozen value)
    lam_s: float = 10.0
    lam_iccs: float = 0.01
    lam_l2: float = 10.0
    lam_l1: float = 1e-4
    helpers: int = 2
    helper_interval: int = 10
    patience: int = 0

    @property
    def needs(self) -> Needs:
        """Return that the method needs at least a client and its helpers."""
        return Needs(min_clients=1 + self.helpers, client_labels=True, all_weights=True, own_optimizer=True)

    def recipe(self, usual: Recipe) -> Recipe:
        return replace(usual, views=("x", "u_weak", "u_strong"))

    @property
    def watched(self) -> Watched:
        return Watched(tau=sure_from(self.accept))

    @property
    def plain_sgd(self) -> Sgd:
        """Return the method's own optimizer."""
        return Sgd(self.lr, momentum=0.0, weight_decay=0.0)

    def init(self, net: Net, weights: Weights, task: Task) -> Server:
        psi = {name: PSI_SHARE * t for name, t in weights.params.items() if t.dim() > 1}
        device = next(iter(psi.values())).device
        extras = {ROUND: torch.zeros((), device=device), PROBE: probe(net.channels, task.size, task.seed).to(device)}
        return Server(Weights({**put(SIGMA, weights.params), **put(PSI, psi)}, weights.buffers), extras)

    def client_state(self, payload: Payload, task: Task, counts: Counts) -> State:
        return new_plateau(next(iter(payload.weights.params.values()))) if self.patience else {}

    def payload(self, server: Server, client: int) -> Payload:
        """Return the model, the psi of the nearest other clients, and whether to use these in this round."""
        near = nearest_clients({k: s[EMBEDDING] for k, s in server.memory.items()}, client, self.helpers)
        is_due = (server.extras[ROUND] + 1) % self.helper_interval == 0
        psi = {  # [H, ...]; zeros where too few clients are known, since shapes are fixed
            name: torch.stack([server.memory[k][PSI + name] for k in near]).to(t.device, non_blocking=True)
            if near
            else t.new_zeros(self.helpers, *t.shape)
            for name, t in take(PSI, server.weights.params).items()
        }
        return Payload(server.weights, {PRESENT: is_due.float() * bool(near), **put(HELPER, psi)})

    def step(self, net: Net, payload: Payload, local: Local, batch: Batch) -> tuple[Local, Trace]:
        sigma, psi = take(SIGMA, local.weights.params), take(PSI, local.weights.params)
        grads, buffers, l_s = self.learn_sigma(net, Weights(sigma, local.weights.buffers), psi, batch)
        sigma = self.update(sigma, grads, local.state)
        grads, trace = self.learn_psi(net, payload, Weights(sigma, buffers), psi, batch)
        psi = self.update(psi, grads, local.state)
        weights = Weights({**put(SIGMA, sigma), **put(PSI, psi)}, buffers)
        state = measured(local.state, l_s, batch.has_labels) if self.patience else local.state
        losses = {"l_s": l_s, "l_u": trace.losses["l_u"]}
        return Local(weights, local.velocity, state), Trace(losses, trace.votes)

    def learn_sigma(self, net: Net, weights: Weights, psi: State, batch: Batch) -> tuple[State, State, Tensor]:
        """Return sigma's gradient on labeled images with psi fixed (phase 1), running statistics and L_s."""

        def loss(weights: Weights, state: State) -> Value:
            buffers, (x,) = net.fit(Weights(compose(weights.params, psi), weights.buffers), batch.x)
            l_s = supervised_loss(x.logits, batch)
            return self.lam_s * l_s, (buffers, state, Trace({"l_s": l_s.detach()}, {}))

        grads, (buffers, _, trace) = gradient(loss, weights, {})
        return grads, buffers, trace.losses["l_s"]

    def learn_psi(self, net: Net, payload: Payload, frozen: Weights, psi: State, batch: Batch) -> tuple[State, Trace]:
        """Return psi's gradient on unlabeled images with sigma fixed (phase 2), and the trace."""
        p_h = [softmax(net.infer(model, batch.u_weak)) for model in helper_models(payload, frozen)]
        present, sigma = payload.extras[PRESENT], {name: frozen.params[name] for name in psi}

        def loss(weights: Weights, state: State) -> Value:
            theta = Weights(compose(frozen.params, weights.params), weights.buffers)
            _, (weak, strong) = net.fit(theta, batch.u_weak, batch.u_strong)
            p_l = softmax(weak).detach()
            sure = self.accept.sure(p_l, {})
            labels = PseudoLabels(majority(p_l, p_h, present), sure)
            share = len(sure) / sure.sum().clamp(min=1)  # means over accepted images
            agree = sum((kl_divergence(p, weak.logits) * sure).mean() for p in p_h) * (present / len(p_h))
            l_u = share * (soft_cross_entropy(strong.logits, labels) + agree)
            total = self.lam_iccs * l_u + self.penalty(sigma, weights.params)
            votes = {"p_l": p_l, "sure_l": sure, "target": labels.target, "mask": labels.mask}
            return total, ({}, state, Trace({"l_u": l_u.detach()}, votes))

        grads, (_, _, trace) = gradient(loss, Weights(psi, frozen.buffers), {})
        return grads, trace

    def penalty(self, sigma: State, psi: State) -> Tensor:
        """Return lam_l2 ||sigma - psi||^2 + lam_l1 ||psi||_1, both sums."""
        size = torch.stack([t.abs().sum() for t in psi.values()]).sum()
        return self.lam_l2 * squared_distance(psi, sigma) + self.lam_l1 * size

    def update(self, params: State, grads: State, state: State) -> State:
        if self.patience:
            grads = {name: g * state[FACTOR] for name, g in grads.items()}
        zeros = {name: torch.zeros_like(t) for name, t in params.items()}
        return self.plain_sgd.update(params, zeros, grads)[0]

    def upload(self, client: int, payload: Payload, local: Local, counts: Counts) -> Upload:
        """Return the upload without entries that hardly changed, of which the server keeps its copies."""
        params = local.weights.params
        new = {**params, **put(PSI, without_small(take(PSI, params)))}
        weights = Weights(changes(new, payload.weights.params), local.weights.buffers)
        return super().upload(client, payload, local._replace(weights=weights), counts)

    def keep(self, local: Local) -> State:
        return settled(local.state, self.patience) if self.patience else {}

    def aggregate(self, net: Net, server: Server, uploads: Iterable[Upload], rng: np.random.Generator) -> Server:
        """Return the server with uniform means, then store each upload in the memory of its client."""
        extras, memory = {**server.extras, ROUND: server.extras[ROUND] + 1}, dict(server.memory)

        def noted() -> Iterator[Upload]:
            for u in uploads:
                memory[u.client] = remembered(net, u, extras[PROBE])
                yield u

        return Server(mean_weights(noted(), share=lambda u: 1.0), extras, memory)

    def deploy(self, net: Net, server: Server) -> Weights:
        return model_of(server.weights)


def softmax(out: Out) -> Tensor:
    return out.logits.softmax(-1)


def probe(channels: int, size: int, seed: int) -> Tensor:
    """Return one noise image to compare clients by their predictions: N(125, 125^2) truncated to 0 .. 255, over 255.

    It has the size of the images, since some networks take no other size.
    """
    gauss, shape = NormalDist(125, 125), (1, channels, size, size)
    quantile = stream(seed, "fedmatch probe").uniform(gauss.cdf(0), gauss.cdf(255), shape)
    return torch.from_numpy((np.vectorize(gauss.inv_cdf)(quantile) / 255).astype(np.float32))


def remembered(net: Net, upload: Upload, probe: Tensor) -> State:
    """Return what the server keeps of a client until its next upload."""
    said = softmax(net.infer(model_of(upload.weights), probe)).squeeze(0)
    return {EMBEDDING: said, **{name: t for name, t in upload.weights.params.items() if name.startswith(PSI)}}


def nearest_clients(embeddings: dict[int, Tensor], client: int, number: int) -> list[int]:
    """Return the other clients with the closest embeddings; none if the client or too many others are still unseen."""
    others = sorted(k for k in embeddings if k != client)
    if client not in embeddings or len(others) < number:
        return []
    distance = (torch.stack([embeddings[k] for k in others]) - embeddings[client]).square().sum(-1)
    return [others[i] for i in distance.argsort(stable=True)[:number].tolist()]


def helper_models(payload: Payload, frozen: Weights) -> list[Weights]:
    """Return models of this client's sigma with the psi of each helper."""
    psi = take(HELPER, payload.extras)
    number = len(next(iter(psi.values())))
    parts = [{name: t[h] for name, t in psi.items()} for h in range(number)]
    return [frozen._replace(params=compose(frozen.params, part)) for part in parts]


def majority(p_l: Tensor, p_h: list[Tensor], present: Tensor) -> Tensor:
    """Return the one-hot label with most votes, ties to the lowest class; without helpers, the local vote."""
    return hard(hard(p_l) + present * torch.stack([hard(p) for p in p_h]).sum(0))


@Source(
    "Jeong et al. 2021",
    "reconstruction",
    server="psi per client",
    note="two parts per kernel; half of the download are helpers, used only every 10th round",
    label="FedMatch",
    look="purple dash star",
)
def fedmatch(
    lr: Annotated[RateFactor, "learning rate of plain SGD; train.lr does not apply"] = 0.01,
    tau: Tau = 0.95,
    lam_s: Annotated[Weight, "weight of the labeled loss"] = 10.0,
    lam_iccs: Annotated[Weight, "weight of pseudo-labels and agreement"] = 0.01,
    lam_l2: Annotated[Weight, "weight of ||sigma - psi||^2"] = 10.0,
    lam_l1: Annotated[Weight, "weight of ||psi||_1"] = 1e-4,
    helpers: Annotated[int, Range(1, 100), "number of similar clients whose psi is sent"] = 2,
    helper_interval: Annotated[int, Range(1, 1e6), "rounds from one choice of helpers to the next"] = 10,
    patience: Annotated[
        int, Range(0, 1e6), "divide a client's lr by 3 after this many rounds without a lower labeled loss; 0: never"
    ] = 0,
) -> FedMatch:
    """Kernels as sums of sigma (from labels) and psi (from agreement with similar clients).

    Authors' constants: lr=0.001, tau=0.75, patience=5.
    """
    return FedMatch(
        lr=lr,
        accept=FixedThreshold(tau),
        lam_s=lam_s,
        lam_iccs=lam_iccs,
        lam_l2=lam_l2,
        lam_l1=lam_l1,
        helpers=helpers,
        helper_interval=helper_interval,
        patience=patience,
    )
