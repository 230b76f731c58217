"""Let the server learn the class shares of the clients' pools: clients upload more than a model, the server keeps it.

fssl run smoke --set method.name=examples/own_server.py:shares --out runs/shares
fssl show runs/shares
"""

from dataclasses import dataclass, replace

import torch

from fssl.methods.fixmatch import FixMatch
from fssl.types import Server

SUM, SHARES = "shares.sum", "shares.mean"


@dataclass(frozen=True)
class Shares(FixMatch):
    @property
    def needs(self):
        return super().needs._replace(min_clients=2)

    def recipe(self, usual):
        return replace(super().recipe(usual), sweep=True)

    def init(self, net, weights, task):
        return Server(weights, {SHARES: torch.full((task.num_classes,), 1 / task.num_classes)})

    def client_state(self, payload, task, counts):
        return {**super().client_state(payload, task, counts), SUM: torch.zeros(task.num_classes)}

    def start(self, payload, state):
        return super().start(payload, {**state, SUM: torch.zeros_like(state[SUM])})  # sum anew in each round

    def visit(self, net, payload, local, u_weak, sweep):
        p = net.infer(payload.weights, u_weak).logits.softmax(-1)
        total = local.state[SUM] + (p * sweep.real.unsqueeze(-1)).sum(0)
        return local._replace(state={**local.state, SUM: total})

    def num_samples(self, counts):
        return counts.labeled

    def upload(self, client, payload, local, counts):
        made = super().upload(client, payload, local, counts)
        return made._replace(extras={SHARES: local.state[SUM] / counts.pool})

    def keep(self, local):
        return {}  # nothing stays with the client

    def aggregate(self, net, server, uploads, rng):
        made = list(uploads)
        mean = torch.stack([u.extras[SHARES] for u in made]).mean(0)
        after = super().aggregate(net, server, made, rng)  # an unchanged model if all weights are 0
        return after._replace(extras={SHARES: mean})


def shares() -> Shares:
    """FixMatch whose server learns the class shares of the clients' pools."""
    return Shares()
