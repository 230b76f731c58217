"""SemiFL (Diao et al., NeurIPS 2022): the broadcast model labels a client's whole pool once, before it trains."""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..config import Range
from ..label.assign import hard
from ..label.losses import cross_entropies, masked_mean, supervised_loss
from ..models import Net
from ..types import Batch, Counts, Local, Payload, State, Sweep, Task, Trace, Upload, Weights
from .base import Method, Recipe, Source, Value, Watched, descend
from .shared_settings import Tau, Weight

# Client state of one round: the broadcast model's probabilities of each image of the pool. Upload: the number of
# images that the client trained on.
TABLE, USED = "semifl.table", "semifl.used"


@dataclass(frozen=True)
class SemiFL(Method):
    """Trains on images of the pool with sure labels, F, and on mixtures of them with any image of the pool, M."""

    tau: float = 0.95
    mu_fix: float = 1.0
    mu_mix: float = 1.0
    beta: float = 0.75

    def recipe(self, usual: Recipe) -> Recipe:
        views = (*["x"] * self.labels_at_clients, "u_strong", *["u_weak", "m_weak"] * self.mixes)
        numbers = self.lambdas if self.mixes else None
        return replace(usual, views=views, sweep=True, chooses=True, numbers=numbers)

    @property
    def watched(self) -> Watched:
        return Watched(tau=self.tau)

    @property
    def mixes(self) -> bool:
        return self.mu_mix > 0

    def lambdas(self, rng: np.random.Generator, steps: int) -> NDArray[np.float64]:
        """Return lambda ~ Beta(beta, beta) of each step, not its larger half."""
        return rng.beta(self.beta, self.beta, size=steps)

    # Labels, once per round.

    def client_state(self, payload: Payload, task: Task, counts: Counts) -> State:
        return {TABLE: torch.zeros(task.max_slots, task.num_classes)}

    def keep(self, local: Local) -> State:
        """Return nothing, since the next model labels in the next round."""
        return {}

    def visit(self, net: Net, payload: Payload, local: Local, u_weak: Tensor, sweep: Sweep) -> Local:
        q = net.infer(payload.weights, u_weak).logits.softmax(-1)
        # Adding to a table of zeros: an image that only fills the batch may have the slot of a real one in it.
        table = local.state[TABLE].index_add(0, sweep.u_slot, sweep.real.unsqueeze(-1) * q)
        return local._replace(state={**local.state, TABLE: table})

    def chosen(self, local: Local) -> Tensor:
        return self.accepted(local.state[TABLE])

    def accepted(self, table: Tensor) -> Tensor:
        """Return whether max q >= tau; a slot without an image has q = 0."""
        return table.amax(-1) >= self.tau

    # A client's steps.

    def step(self, net: Net, payload: Payload, local: Local, batch: Batch) -> tuple[Local, Trace]:
        def loss(weights: Weights, state: State) -> Value:
            l_s, buffers = self.labeled_loss(net, weights, batch)
            l_fix, buffers = self.fix(net, Weights(weights.params, buffers), state, batch)
            total, losses = l_s + self.mu_fix * l_fix, {"l_s": l_s.detach(), "l_u": l_fix.detach()}
            if self.mixes:
                l_mix, buffers = self.mix(net, Weights(weights.params, buffers), state, batch)
                total, losses = total + self.mu_mix * l_mix, {**losses, "l_m": l_mix.detach()}
            return total, (buffers, state, Trace(losses, {}))

        return descend(loss, self.optimizer.at(batch.clock), local)

    def labeled_loss(self, net: Net, weights: Weights, batch: Batch) -> tuple[Tensor, State]:
        """Return L_s of a client that has labels; with labels at the server no client has any."""
        if not self.labels_at_clients:
            return torch.zeros_like(batch.has_labels), weights.buffers
        buffers, (x,) = net.fit(weights, batch.x)
        return supervised_loss(x.logits, batch), buffers

    def fix(self, net: Net, weights: Weights, state: State, batch: Batch) -> tuple[Tensor, State]:
        """Return CE(strong(f), y_f)."""
        buffers, (strong,) = net.fit(weights, batch.u_strong)
        y_f = state[TABLE][batch.u_slot].argmax(-1)
        return masked_mean(cross_entropies(strong.logits, y_f), batch.extras["real"]), buffers

    def mix(self, net: Net, weights: Weights, state: State, batch: Batch) -> tuple[Tensor, State]:
        """Return lambda CE(x_mix, y_f) + (1 - lambda) CE(x_mix, y_m), x_mix = lambda weak(f) + (1 - lambda) weak(m)."""
        lam, table = batch.extras["numbers"], state[TABLE]
        x_mix = lam * batch.u_weak + (1 - lam) * batch.views["m_weak"]
        buffers, (mixed,) = net.fit(weights, x_mix)
        y_f, y_m = (table[slot].argmax(-1) for slot in (batch.u_slot, batch.extras["m_slot"]))  # y_m is not filtered
        per_image = lam * cross_entropies(mixed.logits, y_f) + (1 - lam) * cross_entropies(mixed.logits, y_m)
        return masked_mean(per_image, batch.extras["real"]), buffers

    def votes(self, local: Local) -> State:
        """Return the broadcast model's probabilities and labels, which hold for the whole round."""
        q = local.state[TABLE]
        return {"p_l": q, "target": hard(q)}

    # The mean.

    def upload(self, client: int, payload: Payload, local: Local, counts: Counts) -> Upload:
        used = self.chosen(local).sum().float() + counts.labeled
        return super().upload(client, payload, local, counts)._replace(extras={USED: used})

    def share(self, upload: Upload) -> float:
        """Return the same share for all clients; 0 for one without an image to train on."""
        return float(upload.extras[USED] > 0)


@Source(
    "Diao et al. 2022",
    "released code",
    note="clients also send their number of training images",
    label="SemiFL",
    look="blue dot pentagon",
)
def semifl(
    tau: Tau = 0.95,
    mu_fix: Annotated[Weight, "weight of the loss on sure images"] = 1.0,
    mu_mix: Annotated[Weight, "weight of the loss on mixtures; 0: off"] = 1.0,
    beta: Annotated[float, Range(0.01, 100.0), "parameter of the Beta distribution of mixing shares"] = 0.75,
) -> SemiFL:
    """The broadcast model labels each pool once per round; clients train on sure images and on mixtures of them.

    For labels at the server.
    """
    return SemiFL(tau=tau, mu_fix=mu_fix, mu_mix=mu_mix, beta=beta)
