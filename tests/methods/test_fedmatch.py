"""FedMatch: two parts of a kernel, two phases of a step, helpers, and a server that remembers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fssl.core.client import at
from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.data.sources import load
from fssl.engines.local import LocalEngine
from fssl.methods.fedmatch import (
    EMBEDDING,
    HELPER,
    PRESENT,
    PROBE,
    PSI,
    ROUND,
    SIGMA,
    FedMatch,
    changes,
    compose,
    majority,
    nearest_clients,
    probe,
    without_small,
)
from fssl.methods.names import build_method
from fssl.methods.plateau import FACTOR, STEPS, TOTAL, measured, new_plateau, settled
from fssl.types import Local, Server, State, Weights, put, take
from helpers.small import host_lane, tiny_config

Make = Callable[..., Federation]


def begun(federation: Federation) -> Server:
    net = federation.net
    return federation.method.init(net, net.first, federation.task)


def moved(before: State, after: State) -> list[str]:
    return [name for name, t in after.items() if not torch.equal(t, before[name])]


def test_kernels_have_two_parts_and_the_rest_one(make_federation: Make) -> None:
    federation = make_federation("method.name=fedmatch")
    params, plain = begun(federation).weights.params, federation.net.first.params
    sigma, psi = take(SIGMA, params), take(PSI, params)
    assert set(sigma) == set(plain)
    assert set(psi) == {name for name in plain if name.endswith("weight") and plain[name].dim() > 1}
    assert all(torch.equal(t, 0.2 * plain[name]) for name, t in psi.items())
    assert compose({"w": torch.tensor(1.0), "b": torch.tensor(2.0)}, {"w": torch.tensor(0.5)})["w"].item() == 1.5


def test_small_entries_and_small_changes_by_hand() -> None:
    """|psi| of at most 5e-6 is zero; a change of at most 5e-5 is not sent and the server's value stays."""
    assert without_small({"w": torch.tensor([4.5e-6, -5.5e-6])})["w"].tolist() == pytest.approx([0, -5.5e-6])
    new, old = {"w": torch.tensor([1.000045, 1.000055])}, {"w": torch.tensor([1.0, 1.0])}
    assert changes(new, old)["w"].tolist() == pytest.approx([1.0, 1.000055], abs=1e-7)


def test_majority_by_hand() -> None:
    """Local 2, helpers 1 and 1: class 1. Local 2, helpers 0 and 1: a tie, the lowest class. Without helpers: 2."""
    p_l = torch.eye(3)[[2, 2]]
    p_h = [torch.eye(3)[[1, 0]], torch.eye(3)[[1, 1]]]
    assert majority(p_l, p_h, torch.ones(())).argmax(-1).tolist() == [1, 0]
    assert majority(p_l, p_h, torch.zeros(())).argmax(-1).tolist() == [2, 2]


def test_penalties_by_hand() -> None:
    """10 * ((3 - 1)^2 + (0 + 1)^2) + 0.5 * (1 + 1) = 51."""
    sigma, psi = {"w": torch.tensor([3.0, 0.0])}, {"w": torch.tensor([1.0, -1.0])}
    assert FedMatch(lam_l2=10, lam_l1=0.5).penalty(sigma, psi).item() == pytest.approx(51)


def test_nearest_others_that_were_seen() -> None:
    embeddings = {k: torch.tensor([at]) for k, at in ((4, 2.0), (2, 1.0), (1, 5.0), (0, 0.0))}
    assert nearest_clients(embeddings, 0, 2) == [2, 4]  # not 3: never seen; not 0 itself
    assert nearest_clients(embeddings, 3, 2) == []
    assert nearest_clients({0: torch.zeros(1), 1: torch.ones(1)}, 0, 2) == []  # only one other is known
    assert nearest_clients({k: torch.zeros(1) for k in (5, 3, 1, 2)}, 3, 2) == [
        1,
        2,
    ]  # equally near: the lowest numbers


def test_the_probe_is_truncated_noise() -> None:
    """N(125, 125^2) between 0 and 255, in units of 255: mean 0.4970, deviation 0.2690; cut off it would be 0.33, with
    a third of all values at the ends."""
    noise = probe(3, 32, 7)
    assert noise.shape == (1, 3, 32, 32)
    assert 0 < noise.min() < 0.01 < 0.99 < noise.max() < 1
    assert noise.mean().item() == pytest.approx(0.4970, abs=0.015)
    assert noise.std().item() == pytest.approx(0.2690, abs=0.01)
    assert torch.equal(noise, probe(3, 32, 7))
    assert not torch.equal(noise, probe(3, 32, 8))


def test_the_probe_is_as_large_as_the_images() -> None:
    """Some networks take no other size: the server could not ask them after the first round."""
    data = load("synthetic", num_classes=4, size=16, channels=3, train_per_class=16, test_per_class=4)
    config = tiny_config("method.name=fedmatch", "model.name=simple-cnn")
    engine = LocalEngine(Federation(prepare(config, data)))
    assert engine.snapshot.server.extras[PROBE].shape == (1, 3, 16, 16)
    list(engine.rounds(1))
    assert all(state[EMBEDDING].sum().item() == pytest.approx(1) for state in engine.snapshot.server.memory.values())


def test_records_count_votes_above_the_methods_own_threshold(make_federation: Make) -> None:
    """Without helpers a label is used where the local model is sure."""
    engine = LocalEngine(make_federation("method.name=fedmatch", "method.tau=0.4"))
    (result,) = engine.rounds(1)
    sums = engine.layout.unpack(result.tally[:, 0])
    assert sums["n_l"].sum() == sums["n_valid"].sum() > 0


def phases(federation: Federation, method: FedMatch) -> tuple[State, State, State, State]:
    """sigma and psi before, and after one step."""
    server = method.payload(begun(federation), 1)
    local = method.start(server, {})
    batch = federation.pool.batch(at(federation.plan(1, 1).draw, 0), federation.recipe.views, with_truth=False)
    with torch.no_grad():
        after, _ = method.step(federation.net, server, local, batch)
    return tuple(take(part, w.params) for w in (local.weights, after.weights) for part in (SIGMA, PSI))  # type: ignore[return-value]


def test_each_phase_moves_its_own_part(make_federation: Make) -> None:
    federation = make_federation("method.name=fedmatch")
    method: Any = federation.method
    sigma, psi, new_sigma, new_psi = phases(federation, method)
    assert moved(sigma, new_sigma) == list(sigma)
    assert moved(psi, new_psi) == list(psi)
    sigma, psi, new_sigma, new_psi = phases(federation, replace(method, lam_s=0.0))
    assert moved(sigma, new_sigma) == []
    assert moved(psi, new_psi) == list(psi)
    sigma, psi, new_sigma, new_psi = phases(federation, replace(method, lam_iccs=0.0, lam_l1=0.0, lam_l2=0.0))
    assert moved(sigma, new_sigma) == list(sigma)
    assert moved(psi, new_psi) == []


def test_the_pull_shrinks_the_difference_by_its_factor(make_federation: Make) -> None:
    """psi - sigma has the factor 1 - 2 * 0.01 * 10 = 0.8 where nothing else pulls."""
    federation = make_federation("method.name=fedmatch")
    method: Any = replace(federation.method, lam_s=0.0, lam_iccs=0.0, lam_l1=0.0)  # type: ignore[call-arg]
    sigma, psi, _, new_psi = phases(federation, method)
    for name, t in new_psi.items():
        torch.testing.assert_close(t - sigma[name], 0.8 * (psi[name] - sigma[name]), atol=1e-6, rtol=1e-5)


def trained(federation: Federation, server: Server) -> Local:
    payload = federation.method.payload(server, 1)
    with torch.no_grad():
        local, _ = host_lane(federation).run(payload, federation.method.start(payload, {}), federation.plan(1, 1).draw)
    return local


def test_without_psi_it_is_supervised(make_federation: Make) -> None:
    """psi = 0 and no unsupervised weight: plain SGD on labels, parameters and running statistics bit for bit."""
    weights = ("method.lam_iccs=0", "method.lam_l1=0", "method.lam_l2=0", "method.lam_s=1", "method.lr=0.1")
    federation = make_federation("method.name=fedmatch", *weights)
    server = begun(federation)
    params = {name: torch.zeros_like(t) if name.startswith(PSI) else t for name, t in server.weights.params.items()}
    local = trained(federation, server._replace(weights=server.weights._replace(params=params)))
    plain = make_federation("method.name=fedavg", "train.lr=0.1", "train.momentum=0", "train.weight_decay=0")
    host = trained(plain, begun(plain))
    sigma = take(SIGMA, local.weights.params)
    assert all(torch.equal(t, sigma[name]) for name, t in host.weights.params.items())
    assert all(torch.equal(t, local.weights.buffers[name]) for name, t in host.weights.buffers.items())


def remembered(federation: Federation, rounds: int) -> Server:
    """A server that has seen clients 0, 1 and 2."""
    method, net, server = federation.method, federation.net, begun(federation)
    uploads = []
    for k in range(3):
        local = method.start(method.payload(server, k), {})
        params = {n: t * (1 + k * k) if n.startswith(PSI) else t for n, t in local.weights.params.items()}
        local = local._replace(weights=local.weights._replace(params=params))
        uploads.append(method.upload(k, server, local, federation.counts(k)))
    with torch.no_grad():
        server = method.aggregate(net, server, uploads, np.random.default_rng(0))
    return server._replace(extras={**server.extras, ROUND: torch.tensor(float(rounds))})


def test_the_server_remembers_and_sends_helpers_when_they_are_due(make_federation: Make) -> None:
    """Rounds 10, 20, ...: after nine rounds the next one has helpers, for a client that was seen before."""
    federation = make_federation("method.name=fedmatch")
    method, server = federation.method, remembered(federation, 9)
    assert [server.memory[k][EMBEDDING].sum().item() for k in (0, 1, 2)] == pytest.approx([1, 1, 1])
    assert set(server.memory) == {0, 1, 2}
    payload = method.payload(server, 0)
    name = "body.0.weight"
    sent = [server.memory[k][PSI + name].norm().item() for k in (1, 2)]
    assert payload.extras[PRESENT].item() == 1
    assert sorted(payload.extras[HELPER + name].flatten(1).norm(dim=1).tolist()) == pytest.approx(sorted(sent))
    assert not hasattr(payload, "memory")  # what the server remembers of clients stays there
    assert set(payload.extras) == {PRESENT, *(HELPER + n for n in take(PSI, server.weights.params))}
    assert method.payload(server, 3).extras[PRESENT].item() == 0
    assert method.payload(remembered(federation, 8), 0).extras[PRESENT].item() == 0
    always = replace(method, helper_interval=1)  # type: ignore[call-arg]
    assert always.payload(remembered(federation, 8), 0).extras[PRESENT].item() == 1


def test_helpers_change_psi_and_only_when_present(make_federation: Make) -> None:
    federation = make_federation("method.name=fedmatch", "method.tau=0.26", "method.lam_iccs=10", "method.lam_l2=0")
    method, results = federation.method, []
    server = method.payload(remembered(federation, 9), 0)
    others = put(HELPER, {n: t.flip(0) * 3 for n, t in take(HELPER, server.extras).items()})
    for extras in ({}, others, {PRESENT: torch.zeros(())}, {PRESENT: torch.zeros(()), **others}):
        given = server._replace(extras={**server.extras, **extras})
        batch = federation.pool.batch(at(federation.plan(1, 0).draw, 0), federation.recipe.views, with_truth=False)
        with torch.no_grad():
            local, _ = method.step(federation.net, given, method.start(given, {}), batch)
        results.append(local.weights.params)
    assert not torch.equal(results[0]["psi.body.0.weight"], results[1]["psi.body.0.weight"])
    assert moved(results[2], results[3]) == []
    assert moved(take(SIGMA, results[0]), take(SIGMA, results[2])) == []


def test_means_are_uniform_and_the_deployed_model_is_the_sum(make_federation: Make) -> None:
    """psi of 1, 2 and 5 times the start, whatever the clients' sizes: 8/3 of it."""
    federation = make_federation("method.name=fedmatch", "partition.kind=dirichlet", "partition.alpha=1")
    assert len({federation.counts(k).pool for k in range(3)}) > 1
    start, server = begun(federation), remembered(federation, 1)
    name = "body.0.weight"
    torch.testing.assert_close(server.weights.params[PSI + name], start.weights.params[PSI + name] * 8 / 3)
    deployed = federation.method.deploy(federation.net, server)
    assert set(deployed.params) == set(federation.net.first.params)
    whole = server.weights.params[SIGMA + name] + server.weights.params[PSI + name]
    torch.testing.assert_close(deployed.params[name], whole, atol=1e-5, rtol=0)


def test_rounds_with_helpers_stay_finite(make_federation: Make) -> None:
    engine = LocalEngine(make_federation("method.name=fedmatch", "method.helper_interval=1", "method.tau=0.3"))
    list(engine.rounds(4))
    server = engine.snapshot.server
    assert server.extras[ROUND].item() == 4
    assert all(torch.isfinite(t).all() for t in (*server.weights.params.values(), *server.extras.values()))


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match=r"method.helpers = 0: expected a number from 1"):
        build_method("fedmatch", {"helpers": 0})
    with pytest.raises(ValueError, match=r"method.helper_interval = 1.5: expected a whole number"):
        build_method("fedmatch", {"helper_interval": 1.5})


def test_the_deployed_model_by_hand() -> None:
    """1 + 1 = 2 in every entry."""
    weights = Weights({**put(SIGMA, {"w": torch.ones(2, 2)}), **put(PSI, {"w": torch.ones(2, 2)})}, {})
    assert FedMatch().deploy(None, Server(weights, {})).params["w"].tolist() == [[2, 2], [2, 2]]


def test_a_plateau_by_hand() -> None:
    """Patience 2, mean losses 2, 1, 1, 3 (a third of the rate), 0.5, 1, 0.5 (a ninth); an unmeasured round is none."""
    state, factors = new_plateau(torch.ones(())), []
    for mean in (2.0, 1.0, 1.0, None, 3.0, 0.5, 1.0, 0.5):
        for loss in () if mean is None else (mean - 0.5, mean + 0.5):
            state = measured(state, torch.tensor(loss), torch.ones(()))
        state = settled(measured(state, torch.tensor(100.0), torch.zeros(())), patience=2)
        factors.append(state[FACTOR].item())
    assert factors == pytest.approx([1, 1, 1, 1, 1 / 3, 1 / 3, 1 / 3, 1 / 9])


def test_a_lowered_rate_is_a_smaller_lr(make_federation: Make) -> None:
    """A client at a third of the rate 0.03 steps as one with the rate 0.01; its loss is noted."""
    low = make_federation("method.name=fedmatch", "method.lr=0.03", "method.patience=5")
    plain = make_federation("method.name=fedmatch", "method.lr=0.01")
    after = []
    for federation in (low, plain):
        method = federation.method
        server = method.payload(begun(federation), 0)
        state = federation.new_state(begun(federation), 0)
        local = method.start(server, {**state, FACTOR: torch.tensor(1 / 3)} if state else {})
        draw = at(federation.plan(1, 0).draw, 0)
        tally = torch.zeros(2, federation.layout.size)
        after.append(federation.steps.step()(server, local, tally, draw))
    (a, _), (b, tally) = after
    for name, t in a.weights.params.items():
        assert torch.allclose(t, b.weights.params[name], atol=1e-6), name
    loss = tally[0, plain.layout.sums.index("l_s")]
    assert a.state[TOTAL].item() == pytest.approx(loss.item(), rel=1e-6)
    assert (a.state[STEPS].item(), b.state) == (1, {})


def test_each_client_has_its_own_plateau_and_others_none(make_federation: Make) -> None:
    engine = LocalEngine(
        make_federation("method.name=fedmatch", "method.patience=1", "method.lr=0", "method.helpers=1")
    )
    seen = [set(result.clients) for result in engine.rounds(4)]
    assert set(engine.snapshot.clients) == set.union(*seen)
    factor = {k: state[FACTOR].item() for k, state in engine.snapshot.clients.items()}
    rounds = {k: sum(k in clients for clients in seen) for k in factor}
    assert all(3.0 ** (1 - n) - 1e-6 <= factor[k] <= 1 for k, n in rounds.items())  # the first round is never stale
    assert all(engine.snapshot.clients[k][TOTAL] == 0 for k in factor)
