"""Who labels, what is kept, what is carried: each definition pinned by a value that another one would not give."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_structure

from fssl.core.client import Turns, at, client_round
from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.engines.capture import make_tick
from fssl.engines.compiler import as_traced
from fssl.engines.local import LocalEngine
from fssl.label.accept import UNSEEN
from fssl.seeds import stream
from fssl.training.plan import epochs
from fssl.types import Counts
from helpers.small import host_lane

Make = Callable[..., Federation]


def test_the_global_label_comes_from_the_broadcast_model_in_evaluation_mode(make_federation: Make) -> None:
    """After a step the local weights differ; p_g must still be that of the broadcast ones."""
    federation = make_federation("method.name=fixmatch-gpl")
    method, net = federation.method, federation.net
    server = method.init(net, net.first, federation.task)
    draw = federation.plan(1, 1).draw
    local = method.start(server, {})
    with torch.no_grad():
        batches = [federation.pool.batch(at(draw, i), federation.recipe.views, False) for i in range(2)]
        local, _ = method.step(net, server, local, batches[0])
        _, trace = method.step(net, server, local, batches[1])
        expected = net.infer(server.weights, batches[1].u_weak).logits.softmax(-1)
        moved = net.infer(local.weights, batches[1].u_weak).logits.softmax(-1)
    torch.testing.assert_close(trace.votes["p_g"], expected)
    assert not torch.allclose(moved, expected, atol=1e-3)


def test_the_local_label_comes_from_the_joint_batch_in_training_mode(make_federation: Make) -> None:
    federation = make_federation("method.name=fixmatch-lpl")
    method, net = federation.method, federation.net
    server = method.init(net, net.first, federation.task)
    with torch.no_grad():
        batch = federation.pool.batch(at(federation.plan(1, 1).draw, 0), federation.recipe.views, False)
        _, trace = method.step(net, server, method.start(server, {}), batch)
        _, (_, weak, _) = net.fit(server.weights, batch.x, batch.u_weak, batch.u_strong)
    torch.testing.assert_close(trace.votes["p_l"], weak.logits.softmax(-1))


@pytest.mark.slow
def test_a_flexmatch_table_resumes_from_where_it_was(make_federation: Make) -> None:
    """All clients take part; the learning rate is 0, so only the table changes: what is labeled stays labeled."""
    settings = ("method.name=flexmatch", "method.tau=0.26", "train.clients_per_round=4", "train.steps_per_round=1")
    engine = LocalEngine(make_federation(*settings, "train.lr=0"))
    seen = []
    for _ in engine.rounds(3):
        seen.append({k: (s["flex.table"] != UNSEEN) for k, s in engine.snapshot.clients.items()})
    assert [len(clients) for clients in seen] == [4, 4, 4]
    for client in seen[0]:
        first, last = seen[0][client], seen[2][client]
        assert (last | ~first).all()
        assert last.sum() > first.sum()  # other images were drawn later, and the early ones are still there


def test_authors_momentum_crosses_clients_and_rounds(make_federation: Make) -> None:
    """Replayed by hand: each client starts with the velocity its predecessor ended with, round after round."""
    federation = make_federation("protocol=authors")
    engine = LocalEngine(federation)
    list(engine.rounds(2))
    method, net = federation.method, federation.net
    server = method.init(net, net.first, federation.task)
    lane, velocity = host_lane(federation), None
    for round in (1, 2):
        results = []
        for client in federation.drawn_clients(round):
            with torch.no_grad():
                result = client_round(lane, method, server, {}, federation.plan(round, client), velocity)
            velocity = result.velocity
            results.append(result)
        uploads = sorted((r.upload for r in results), key=lambda u: u.client)
        server = method.aggregate(net, server, uploads, stream(7, "server", round))
    for name, value in server.weights.params.items():
        assert torch.equal(engine.model().params[name], value)


def test_authors_average_with_the_released_counts(make_federation: Make) -> None:
    federation = make_federation("protocol=authors")
    counts = federation.counts(0)
    assert federation.method.num_samples(counts) == counts.pool + 2000 * counts.labeled


def test_the_two_normalizations_are_the_cards(make_federation: Make) -> None:
    federation = make_federation()
    card = federation.dataset.card
    federation.dataset = federation.dataset._replace(card=replace(card, test_mean=(0.4,) * 3, test_std=(0.2,) * 3))
    other = Federation(prepare(federation.config, federation.dataset))
    images = torch.full((1, 8, 8, 3), 255, dtype=torch.uint8)
    assert other.norms["train_norm"](images)[0, 0, 0, 0].item() == pytest.approx((1 - 0.5) / 0.25)
    assert other.norms["authors_norm"](images)[0, 0, 0, 0].item() == pytest.approx((1 - 0.4) / 0.2)


def test_the_upper_bound_trains_on_every_label(make_federation: Make) -> None:
    federation = make_federation("method.name=fedavg-sl")
    assert all(site.counts.labeled == site.counts.pool for site in federation.sites)
    rows = federation.plan(1, 0).draw.x_row
    assert len(rows.unique()) > 8 * 4  # more images than the few labels of all clients together hold


def test_permutations_start_anew_with_each_epoch(make_federation: Make) -> None:
    """Pool of 20 and batches of 8: an epoch of 2 steps of a permutation's 2; then a new one, not its rest."""
    recipe = replace(make_federation().recipe, batch=8, unlabeled_ratio=1, local_epochs=3, sweep=False)
    rows = epochs(np.random.default_rng(0), 20, 8, recipe, Counts(8, 20))
    assert rows.shape == (6, 8)
    for epoch in range(3):
        assert len(np.unique(rows[2 * epoch : 2 * epoch + 2])) == 16
    one = replace(recipe, batch=16)  # one step an epoch, one whole batch a permutation of 20
    first = epochs(np.random.default_rng(0), 20, 16, one, Counts(8, 20))
    assert [len(np.unique(row)) for row in first] == [16, 16, 16]


def test_a_round_without_any_label_keeps_the_model(make_federation: Make) -> None:
    federation = make_federation("method.name=fedavg")
    method, net = federation.method, federation.net
    server = method.init(net, net.first, federation.task)
    local = method.start(server, {})
    uploads = [method.upload(k, server, local, Counts(labeled=0, pool=30)) for k in (0, 1)]
    assert method.aggregate(net, server, uploads, stream(7, "server", 1)) is server


@pytest.mark.parametrize("method", ["sage", "flexmatch"])
@pytest.mark.slow
def test_a_tick_over_fixed_buffers_is_the_step(method: str, make_federation: Make) -> None:
    """What a GPU captures, traced here without one: in place, and counting by itself."""
    federation = make_federation(f"method.name={method}")
    server = federation.method.init(federation.net, federation.net.first, federation.task)
    draw = federation.plan(1, 1).draw
    step = federation.steps.step()
    with torch.no_grad():
        local = federation.method.start(server, federation.new_state(server, 1))
        tally = torch.zeros(2, federation.layout.size)
        fixed, fixed_tally, i = (
            federation.method.start(server, federation.new_state(server, 1)),
            tally.clone(),
            torch.zeros(1).long(),
        )
        tick = as_traced(make_tick(step), server, fixed, fixed_tally, draw, i)
        for k in range(3):
            local, tally = step(server, local, tally, at(draw, k))
            tick(server, fixed, fixed_tally, draw, i)
    assert i.item() == 3
    assert torch.equal(fixed_tally, tally)
    for name, value in local.weights.params.items():
        assert torch.equal(fixed.weights.params[name], value)
    for name, value in local.state.items():
        assert torch.equal(fixed.state[name], value)


@pytest.mark.parametrize("name", ["sage+oracle", "fedmatch", "fedavg"])
@pytest.mark.parametrize("at_once", [1, 5000, 2**20])
def test_views_made_for_many_steps_are_those_of_each_step(
    name: str, at_once: int, make_federation: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fssl.core.client.SHOWN_AT_ONCE", at_once)
    federation = make_federation(f"method.name={name}")
    draw, show = federation.plan(1, 1).draw, federation.steps.show()
    shown = list(Turns(show)(draw))
    assert len(shown) == len(draw.x_row) > 3
    for i, step in enumerate(shown):
        alone = show(at(draw, i))
        assert tree_structure(step) == tree_structure(alone)
        for a, b in zip(tree_leaves(step), tree_leaves(alone), strict=True):
            assert (a.dtype, a.stride()) == (b.dtype, b.stride())
            assert torch.equal(a, b)
