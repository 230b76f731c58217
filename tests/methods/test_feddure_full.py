"""FedDure with both regulators: weights by hand, and gradients through the student's step by differences."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fssl.core.client import at
from fssl.core.federation import Federation
from fssl.engines.local import LocalEngine
from fssl.label.losses import cross_entropy, soft_cross_entropy
from fssl.methods.feddure import PARAMS
from fssl.methods.feddure_full import REGULATOR, FedDureFull, feddure_full, image_weights
from fssl.methods.names import build_method
from fssl.types import Batch, Local, PseudoLabels, State, Weights, take

Make = Callable[..., Federation]


def prepared(federation: Federation, method: FedDureFull) -> tuple[Local, Batch, PseudoLabels]:
    """A start, a batch, and its true labels."""
    net = federation.net
    server = method.init(net, net.first, federation.task)
    local = method.start(server, method.client_state(server, federation.task, federation.counts(1)))
    batch = federation.pool.batch(at(federation.plan(1, 1).draw, 0), federation.recipe.views, with_truth=True)
    truth = batch.truth["u"]
    return local, batch, PseudoLabels(torch.eye(4)[truth], torch.ones(len(truth), dtype=torch.bool))


def test_image_weights_by_hand() -> None:
    """Hidden: relu(0.75 * 2 - 1) = 0.5 and relu(0.25 - 1) = 0; sigmoid(0.5 * 4 - 2) = 0.5, then sigmoid(-2)."""
    w = {
        "in": torch.tensor([[2.0, 0.0], [0.0, 1.0]]),
        "in_bias": torch.tensor([-1.0, -1.0]),
        "out": torch.tensor([[4.0], [4.0]]),
        "out_bias": torch.tensor([-2.0]),
    }
    p = torch.tensor([[0.75, 0.25], [0.5, 0.5]])
    torch.testing.assert_close(image_weights(w, p), torch.tensor([0.5, 0.119203]))


def after_virtual(federation: Federation, method: FedDureFull, w: State) -> float:
    """The labeled loss after the student's virtual step, in plain autograd."""
    local, batch, labels = prepared(federation, method)
    phi, buffers = take(PARAMS, local.state), local.weights.buffers
    leaves = {name: t.clone().requires_grad_() for name, t in phi.items()}
    _, (_, u) = federation.net.fit(Weights(leaves, buffers), batch.x, batch.u_strong)
    m = image_weights(w, u.logits.detach().softmax(-1))
    grads = torch.autograd.grad(soft_cross_entropy(u.logits, PseudoLabels(labels.target, m)), list(leaves.values()))
    eta = method.optimizer.lr * method.student_rate
    moved = {name: t - eta * g for (name, t), g in zip(phi.items(), grads, strict=True)}
    _, (x, _) = federation.net.fit(Weights(moved, buffers), batch.x, batch.u_strong)
    return cross_entropy(x.logits, batch.y).item()


def test_the_regulator_follows_the_gradient_through_the_students_step(make_federation: Make) -> None:
    """w moves by -eta_w times the slope, here of the last bias, compared with a central difference."""
    federation = make_federation("method.name=feddure-full", "train.lr=0.5")
    method: Any = replace(federation.method, meta_lr=1.0)  # type: ignore[call-arg]
    local, batch, labels = prepared(federation, method)
    before = take(REGULATOR, local.state)
    with torch.no_grad():
        after, m = method.regulate(federation.net, local, batch, labels)
    step = 0.05
    losses = [after_virtual(federation, method, {**before, "out_bias": before["out_bias"] + s}) for s in (step, -step)]
    slope = (losses[0] - losses[1]) / (2 * step)
    assert abs(slope) > 1e-4
    assert (before["out_bias"] - after["out_bias"]).item() == pytest.approx(slope, rel=0.05)
    assert m.shape == batch.u_slot.shape
    assert ((m > 0) & (m < 1)).all()


def test_a_student_that_cannot_move_teaches_the_regulator_nothing(make_federation: Make) -> None:
    federation = make_federation("method.name=feddure-full")
    method: Any = replace(federation.method, student_rate=0.0)  # type: ignore[call-arg]
    local, batch, labels = prepared(federation, method)
    with torch.no_grad():
        after, m = method.regulate(federation.net, local, batch, labels)
        d, _ = method.try_out(federation.net, local, batch, batch.u_strong, labels._replace(mask=m))
    assert all(torch.equal(t, after[name]) for name, t in take(REGULATOR, local.state).items())
    assert d.item() == 0


@pytest.mark.slow
def test_the_regulator_stays_with_the_client_and_the_student_does_not(make_federation: Make) -> None:
    engine = LocalEngine(make_federation("method.name=feddure-full"))
    list(engine.rounds(2))
    states = list(engine.snapshot.clients.values())
    assert all(set(take(REGULATOR, s)) == {"in", "in_bias", "out", "out_bias"} for s in states)
    assert all(len(s) == 4 for s in states)
    assert not torch.equal(states[0]["regulator.out"], states[1]["regulator.out"])
    assert set(engine.model().params) == set(engine.federation.net.first.params)


def test_settings() -> None:
    assert build_method("feddure-full", {"mu_u": 0.5, "meta_lr": 0.1}) == feddure_full(mu_u=0.5, meta_lr=0.1)
    assert feddure_full(mu_u=0.5).weight == 0.5
    assert feddure_full().sign == "expected"
    with pytest.raises(ValueError, match=r"method.student_rate = 0: expected a number from 1e-09"):
        build_method("feddure-full", {"student_rate": 0})
