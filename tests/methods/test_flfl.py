"""(FL)^2: thresholds, ASAM and a step by hand, and the limits in which it is SemiFL without mixtures."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_semifl import AT, same, shown, slope, stepped, swept, with_method
from torch import Tensor

from fssl.core.federation import Federation
from fssl.engines.local import LocalEngine
from fssl.methods.flfl import FLFL, TAU, asam, thresholds
from fssl.methods.semifl import TABLE, USED
from fssl.types import Weights

Make = Callable[..., Federation]
PLAIN = ("train.weight_decay=0", "train.lr=1", "train.momentum=0")


def test_thresholds_by_hand() -> None:
    """tau = (0.8 + 0.6 + 0.7) / 3 = 0.7; p = (1.7, 1.3) / 3; tau_c = 0.7 (1, 13/17)."""
    table = torch.tensor([[0.8, 0.2], [0.6, 0.4], [0.3, 0.7], [0.0, 0.0]])  # the last slot has no image
    tau, tau_c = thresholds(table)
    assert tau.item() == pytest.approx(0.7)
    assert tau_c.tolist() == pytest.approx([0.7, 0.7 * 13 / 17])
    assert FLFL().accepted(table).tolist() == [True, False, True, False]
    assert FLFL(accept="fixed", tau=0.75).accepted(table).tolist() == [True, False, False, False]


def test_equal_predictions_are_all_accepted() -> None:
    """One probability everywhere: tau_c = tau for all classes, and nothing is below its own mean."""
    q = torch.tensor([0.1, 0.2, 0.7]).repeat(1001, 1)
    tau, tau_c = thresholds(q)
    assert tau == q[0, 2].double()
    assert FLFL().accepted(q).all()
    tau, tau_c = thresholds(torch.full((7, 4), 0.25))
    assert (tau_c == tau).all()


def test_asam_by_hand() -> None:
    """t = (2.01, 1), t g = (2.01, 3), norm 3.6110...; eps = 0.1 (4.0401, 3) / norm."""
    params = {"a.weight": torch.tensor([-2.0]), "a.bias": torch.tensor([5.0])}
    there = asam(params, {"a.weight": torch.tensor([1.0]), "a.bias": torch.tensor([3.0])}, 0.1)
    norm = (2.01**2 + 9) ** 0.5
    assert there["a.weight"].item() == pytest.approx(-2 + 0.1 * 2.01**2 / norm)
    assert there["a.bias"].item() == pytest.approx(5 + 0.1 * 3 / norm)
    assert same(asam(params, {name: torch.zeros(1) for name in params}, 0.1), params)


def test_a_step_by_hand(make_federation: Make) -> None:
    federation = make_federation("method.name=flfl", *AT, *PLAIN)
    local, net = swept(federation), federation.net
    real = torch.tensor([1.0] * 6 + [0.0] * 2)
    batch = shown(federation, real=real)
    q = local.state[TABLE][batch.u_slot]
    y, confidence = q.argmax(-1), q.amax(-1)
    tau = float(confidence[:6].median())
    federation = with_method(federation, tau=tau, rho=0.5)
    high = (confidence >= tau) & (real > 0)
    assert 0 < high.sum() < 6

    def logits(weights: Weights) -> Tensor:
        return net.fit(weights, batch.u_strong)[1][0].logits

    g = slope(federation, local, lambda w: F.cross_entropy(logits(w)[high], y[high]))
    with torch.no_grad():
        p_0 = logits(local.weights).softmax(-1)
    there = local._replace(weights=local.weights._replace(params=asam(local.weights.params, g, 0.5)))
    sum_of = {"reduction": "sum"}
    l_cs = slope(federation, there, lambda w: F.kl_div(logits(w)[high].log_softmax(-1), p_0[high], **sum_of) / 6)
    l_a = slope(federation, local, lambda w: F.cross_entropy(logits(w)[:6], y[:6]))
    after, trace = stepped(federation.method, federation, local, batch)
    for name, p in local.weights.params.items():
        torch.testing.assert_close(p - after.weights.params[name], l_a[name] + l_cs[name], rtol=1e-3, atol=1e-6)
    assert trace.losses["l_c"] > 0


def test_without_rho_or_without_high_confidence_there_is_no_flatness_term(make_federation: Make) -> None:
    federation = make_federation("method.name=flfl", *AT)
    local, batch, method = swept(federation), shown(federation), federation.method
    assert isinstance(method, FLFL)
    none = stepped(replace(method, rho=0.0), federation, local, batch)[0]
    empty = stepped(replace(method, tau=1.1), federation, local, batch)[0]  # H has no image
    some = stepped(replace(method, tau=0.26), federation, local, batch)[0]
    assert same(none, empty)
    assert not same(none.weights.params, some.weights.params)


def test_its_limit_is_semifl_without_mixtures(make_federation: Make) -> None:
    limits = {
        "flfl": ("method.rho=0", "method.accept=fixed", "method.shares=uniform", "method.tau=0.26"),
        "semifl": ("method.mu_mix=0", "method.tau=0.26"),
    }
    ends = []
    for name, settings in limits.items():
        engine = LocalEngine(make_federation(f"method.name={name}", *settings, *AT))
        list(engine.rounds(2))
        ends.append(engine.snapshot.server.weights)
    assert same(*ends)


def test_clients_weigh_one_minus_their_threshold(make_federation: Make) -> None:
    federation = make_federation("method.name=flfl", *AT)
    method, server = federation.method, federation.first_server()
    local = swept(federation)
    upload = method.upload(0, server, local, federation.counts(0))
    assert upload.extras[TAU].item() == pytest.approx(thresholds(local.state[TABLE])[0].item())
    assert upload.extras[USED] == method.chosen(local).sum()
    uploads = []
    for client, (tau, used) in enumerate([(0.9, 5), (0.6, 5), (0.1, 0)]):
        moved = {name: p + client for name, p in upload.weights.params.items()}
        extras = {TAU: torch.tensor(tau), USED: torch.tensor(float(used))}
        uploads.append(upload._replace(client=client, weights=upload.weights._replace(params=moved), extras=extras))
    after = method.aggregate(federation.net, server, uploads, np.random.default_rng(0))
    for name, p in upload.weights.params.items():
        torch.testing.assert_close(after.weights.params[name], p + 0.8)  # shares 0.1 and 0.4
    even = [u._replace(extras={TAU: torch.tensor(0.7), USED: torch.ones(())}) for u in uploads]
    after = method.aggregate(federation.net, server, even, np.random.default_rng(0))
    for name, p in upload.weights.params.items():
        torch.testing.assert_close(after.weights.params[name], p + 1)
