"""What later methods need of the engine, tried with small ones: a sweep, payloads, uploads, a server that draws."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fssl.core.federation import Federation
from fssl.engines.local import LocalEngine
from fssl.methods.base import Recipe
from fssl.methods.fixmatch import FixMatch
from fssl.models import Net
from fssl.types import Counts, Local, Payload, Server, State, Sweep, Task, Upload, Weights

Make = Callable[..., Federation]


@dataclass(frozen=True)
class Surveyor(FixMatch):
    """Estimates the class prior of each pool with the broadcast model, sends it, and keeps a table by slot."""

    def recipe(self, usual: Recipe) -> Recipe:
        return replace(super().recipe(usual), sweep=True)

    def init(self, net: Net, weights: Weights, task: Task) -> Server:
        return Server(
            weights, {"prior": torch.full((task.num_classes,), 1 / task.num_classes), "luck": torch.zeros(())}
        )

    def client_state(self, payload: Payload, task: Task, counts: Counts) -> State:
        return {"sum": torch.zeros(task.num_classes), "n": torch.zeros(()), "seen": torch.zeros(task.max_slots)}

    def payload(self, server: Server, client: int) -> Payload:
        return Payload(server.weights, {**server.extras, "luck": torch.tensor(float(client))})

    def visit(self, net: Net, payload: Payload, local: Local, u_weak: Tensor, sweep: Sweep) -> Local:
        p = net.infer(payload.weights, u_weak).logits.softmax(-1) * sweep.real[:, None]
        seen = local.state["seen"].scatter_add(0, sweep.u_slot, sweep.real)
        state = {"sum": local.state["sum"] + p.sum(0), "n": local.state["n"] + sweep.real.sum(), "seen": seen}
        return local._replace(state=state)

    def upload(self, client: int, payload: Payload, local: Local, counts: Counts) -> Upload:
        prior = local.state["sum"] / local.state["n"]
        extras = {"prior": prior, "luck": payload.extras["luck"].clone()}
        return super().upload(client, payload, local, counts)._replace(extras=extras)

    def aggregate(self, net: Net, server: Server, uploads: Iterable[Upload], rng: np.random.Generator) -> Server:
        made = list(uploads)
        assert [u.extras["luck"].item() for u in made] == [u.client for u in made]  # each got its own payload
        prior = torch.stack([u.extras["prior"] for u in made]).mean(0)
        luck = torch.tensor(rng.random(), dtype=torch.float32)
        return super().aggregate(net, server, made, rng)._replace(extras={"prior": prior, "luck": luck})


def surveyed(make: Make) -> LocalEngine:
    federation = make("partition.kind=dirichlet", "partition.alpha=1", "train.clients_per_round=3")
    federation.method = Surveyor(optimizer=federation.method.optimizer)
    federation.recipe = federation.method.recipe(federation.recipe)
    return LocalEngine(federation)


def test_a_sweep_shows_every_image_of_the_pool_exactly_once(make_federation: Make) -> None:
    engine = surveyed(make_federation)
    (result,) = engine.rounds(1)
    for client in result.clients:
        state, n = engine.snapshot.clients[client], engine.federation.counts(client).pool
        assert state["n"].item() == n
        assert state["seen"][:n].unique().tolist() == [1.0]
        assert state["seen"][n:].sum().item() == 0
        assert state["sum"].sum().item() == pytest.approx(n, rel=1e-5)  # probabilities of n images


def test_the_server_keeps_extras_and_draws_from_its_own_stream(make_federation: Make) -> None:
    first, second = (surveyed(make_federation) for _ in range(2))
    list(first.rounds(2))
    list(second.rounds(2))
    extras = first.snapshot.server.extras
    assert extras["prior"].sum().item() == pytest.approx(1, abs=1e-5)
    assert 0 < extras["luck"].item() < 1
    assert extras["luck"].item() == second.snapshot.server.extras["luck"].item()
