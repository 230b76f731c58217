"""SemiFL: who is chosen and when, the loss of a step by hand, and its limits."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves

from fssl.augment.policies import weak
from fssl.core.client import at, chosen_first
from fssl.core.experiment import Experiment
from fssl.core.federation import Federation
from fssl.engines.local import LocalEngine
from fssl.methods.base import Method
from fssl.methods.semifl import TABLE, USED, SemiFL
from fssl.training.plan import Recipe, Site, plan_client
from fssl.types import Batch, Local, Orders, Weights
from helpers.small import host_lane

Make = Callable[..., Federation]
SERVER = ("partition.labels=server", "data.labels_per_class=4", "train.unlabeled_ratio=1")
AT = (*SERVER, "train.local_epochs=1")


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tree_flatten(a)[0], tree_flatten(b)[0], strict=True))


def with_method(federation: Federation, **fields: Any) -> Federation:
    """The federation with other fields of its method, also such as no setting allows."""
    method = replace(federation.method, **fields)  # type: ignore[arg-type]
    old = federation.experiment
    return Federation(Experiment(old.config, method, old.defaults, old.dataset))


def swept(federation: Federation, client: int = 0) -> Local:
    """A client after its sweep."""
    method, plan = federation.method, federation.plan(1, client)
    payload = federation.payload(federation.first_server(), {}, client)
    local, lane = method.start(payload, federation.new_state(payload, client)), host_lane(federation)
    assert plan.sweep is not None
    with torch.no_grad():
        return lane.sweep(payload, local, plan.sweep)


def shown(federation: Federation, step: int = 0, **extras: Tensor) -> Batch:
    draw = at(federation.plan(1, 0).draw, step)
    batch = federation.steps.show()(draw).batch
    return batch._replace(extras={**batch.extras, **extras})


def stepped(method: Method, federation: Federation, local: Local, batch: Batch) -> tuple[Local, Any]:
    with torch.no_grad():
        return method.step(federation.net, federation.payload(federation.first_server(), {}, 0), local, batch)


def slope(federation: Federation, local: Local, loss: Callable[[Weights], Tensor]) -> dict[str, Tensor]:
    """The gradient of a loss by hand."""
    params = {name: p.clone().requires_grad_() for name, p in local.weights.params.items()}
    grads = torch.autograd.grad(loss(Weights(params, local.weights.buffers)), list(params.values()))
    return dict(zip(params, grads, strict=True))


# Which images, in which steps.


def test_the_chosen_images_come_first_in_every_epoch() -> None:
    """Seven images in batches of two, of which three are chosen: two steps of four, the second half full."""
    recipe = Recipe(2, 1, 2, "pool", None, ("u_strong",), 8, True, sweep=True, chooses=True)
    site = Site(np.arange(0), np.arange(100, 107))
    plan = plan_client(site, recipe, 7, 1, 0)
    assert plan.draw.u_slot.shape == (8, 2)  # two epochs of four steps
    assert plan.orders is not None
    for epoch in plan.orders.u_slot.tolist():
        assert sorted(epoch[:7]) == list(range(7))
    chosen = torch.tensor([False, True, False, False, True, False, True, False, False])  # a table may have more rows
    draw = chosen_first(plan.draw, plan.orders, chosen)
    assert torch.equal(draw.u_row, draw.u_slot + 100)
    assert len(draw.u_slot) == 4
    for epoch in range(2):
        slots, real = (t[2 * epoch : 2 * epoch + 2] for t in (draw.u_slot, draw.extras["real"]))
        assert real.tolist() == [[1, 1], [1, 0]]
        order = [slot for slot in plan.orders.u_slot[epoch, :7].tolist() if chosen[slot]]
        assert slots.flatten().tolist() == [*order, order[0]]  # a chosen image fills the batch up
    assert not torch.equal(*plan.orders.u_slot)


@pytest.mark.parametrize(("number", "batches"), [(0, 0), (1, 1), (4, 2), (7, 4)])
def test_as_many_steps_as_the_chosen_images_fill(number: int, batches: int) -> None:
    recipe = Recipe(2, 1, 1, "pool", None, ("u_strong",), 8, True, sweep=True, chooses=True)
    plan = plan_client(Site(np.arange(0), np.arange(7)), recipe, 7, 1, 0)
    assert isinstance(plan.orders, Orders)
    draw = chosen_first(plan.draw, plan.orders, torch.arange(7) < number)
    assert len(draw.u_slot) == batches
    assert {len(leaf) for leaf in tree_leaves(draw)} == {batches}
    with_labels = plan.draw._replace(has_labels=torch.ones(4))  # all of its steps have something to learn from
    all_steps = chosen_first(with_labels, plan.orders, torch.arange(7) < number)
    assert (all_steps.extras["real"].amax(-1) > 0).tolist() == [True] * batches + [False] * (4 - batches)
    assert draw.extras["real"].sum() == number
    assert sorted(draw.u_slot[draw.extras["real"] > 0].tolist()) == list(range(number))


def test_the_broadcast_model_labels_a_weak_view_of_every_image(make_federation: Make) -> None:
    federation = make_federation("method.name=semifl", *AT)
    table, sweep = swept(federation).state[TABLE], federation.plan(1, 0).sweep
    assert sweep is not None
    n = federation.counts(0).pool
    rows, noise = sweep.u_row.flatten()[:n], sweep.noise.flatten(0, 1)[:n]
    with torch.no_grad():
        images = federation.pool.normalize(weak(federation.pool.images, rows, noise))
        expected = federation.net.infer(federation.net.first, images).logits.softmax(-1)
    torch.testing.assert_close(table[:n], expected)
    assert noise.float().std() > 0  # the view is a random one
    assert table[n:].abs().sum() == 0
    assert isinstance(federation.method, SemiFL)
    most = replace(federation.method, tau=float(table.amax(-1)[:n].median()))
    assert most.chosen(swept(federation)).sum() == (table.amax(-1) >= most.tau).sum()


# A step.


def test_a_step_by_hand(make_federation: Make) -> None:
    """Three separate passes would be four with the unused weak one; the mean is over the real images alone."""
    federation = make_federation("method.name=semifl", *AT, "train.weight_decay=0", "train.lr=1", "train.momentum=0")
    local, real = swept(federation), torch.tensor([1.0] * 5 + [0.0] * 3)
    lam, net = torch.tensor(0.3), federation.net
    batch = shown(federation, real=real, numbers=lam)
    y_f, y_m = (local.state[TABLE][slot].argmax(-1) for slot in (batch.u_slot, batch.extras["m_slot"]))

    def loss(weights: Weights) -> Tensor:
        _, (strong,) = net.fit(weights, batch.u_strong)
        _, (mixed,) = net.fit(weights, 0.3 * batch.u_weak + 0.7 * batch.views["m_weak"])
        fix = F.cross_entropy(strong.logits[:5], y_f[:5])
        return fix + 0.3 * F.cross_entropy(mixed.logits[:5], y_f[:5]) + 0.7 * F.cross_entropy(mixed.logits[:5], y_m[:5])

    expected = slope(federation, local, loss)
    after, trace = stepped(federation.method, federation, local, batch)
    for name, g in expected.items():
        torch.testing.assert_close(local.weights.params[name] - after.weights.params[name], g, rtol=1e-4, atol=1e-6)
    assert {*trace.losses} == {"l_s", "l_u", "l_m"}


def test_all_of_lambda_and_no_fix_is_cross_entropy_on_weak_views(make_federation: Make) -> None:
    federation = make_federation("method.name=semifl", "method.mu_fix=0", *AT, "train.weight_decay=0", "train.lr=1")
    local = swept(federation)
    batch = shown(federation, numbers=torch.tensor(1.0))

    def loss(weights: Weights) -> Tensor:
        _, (weak,) = federation.net.fit(weights, batch.u_weak)
        return F.cross_entropy(weak.logits, local.state[TABLE][batch.u_slot].argmax(-1))

    after, _ = stepped(federation.method, federation, local, batch)
    for name, g in slope(federation, local, loss).items():
        torch.testing.assert_close(local.weights.params[name] - after.weights.params[name], g, rtol=1e-4, atol=1e-6)


def test_lambda_is_drawn_for_each_step_from_a_beta_distribution(make_federation: Make) -> None:
    draw = make_federation("method.name=semifl", *SERVER, "train.steps_per_round=4000").plan(1, 0).draw
    lam = draw.extras["numbers"].double()
    assert lam.shape == (4000,)
    assert lam.mean().item() == pytest.approx(0.5, abs=0.02)
    assert lam.var().item() == pytest.approx(0.25 / 2.5, abs=0.005)  # ab / ((a + b)^2 (a + b + 1))
    assert (lam < 0.5).any()  # not its larger half
    drawn = draw.extras["m_slot"]
    assert torch.bincount(drawn.flatten()).float().std() > 0  # with replacement


def test_a_step_without_a_chosen_image_does_nothing(make_federation: Make) -> None:
    """Neither decay nor momentum moves anything, and no step is counted."""
    federation = with_method(make_federation("method.name=semifl", *AT), tau=1.1)
    engine = LocalEngine(federation)
    (result,) = engine.rounds(1)
    assert engine.layout.unpack(result.tally[:, 0])["steps"].tolist() == [0, 0]
    assert engine.layout.unpack(result.tally[:, 0])["n"].min() > 0  # images that were looked at


def test_only_steps_with_a_chosen_image_are_taken(make_federation: Make) -> None:
    federation = make_federation("method.name=semifl", "method.tau=0.2735", *AT, "train.local_epochs=2")
    plan, local = federation.plan(1, 0), swept(federation)
    assert plan.orders is not None
    chosen = federation.method.chosen(local)
    draw = chosen_first(plan.draw, plan.orders, chosen)
    batches = -(-int(chosen.sum()) // 8)
    assert 0 < batches < len(plan.draw.x_row) // 2
    assert len(draw.x_row) == 2 * batches
    each = len(plan.draw.x_row) // 2
    taken = [*range(batches), *range(each, each + batches)]  # the first of both epochs, with their own random numbers
    for name, noise in plan.draw.noise.items():
        assert torch.equal(draw.noise[name], noise[taken])
    assert draw.clock.step.tolist() == taken
    assert draw.extras["real"].sum() == 2 * chosen.sum()


def test_labels_are_measured_once_for_each_image_of_the_pool(make_federation: Make) -> None:
    """Whatever fills batches up, and however few steps there are."""
    for length in ("train.local_epochs=1", "train.local_epochs=3", "train.steps_per_round=1"):
        federation = make_federation("method.name=semifl", "method.tau=0.2735", *SERVER, "train.batch=7", length)
        engine, n = LocalEngine(federation), [federation.counts(client).pool for client in federation.drawn_clients(1)]
        tables = [
            swept(federation, client).state[TABLE][:k] for client, k in zip(federation.drawn_clients(1), n, strict=True)
        ]
        labels = federation.pool.labels
        truths = [labels[federation.sites[client].pool] for client in federation.drawn_clients(1)]
        (result,) = engine.rounds(1)
        for part in (0, 1):  # of the round, and of its last epoch
            sums = engine.layout.unpack(result.tally[:, part])
            assert sums["n"].tolist() == n
            sure = [t.amax(-1) >= 0.2735 for t in tables]
            assert sums["n_valid"].tolist() == [int(s.sum()) for s in sure]
            right = [int(((t.argmax(-1) == y) & s).sum()) for t, y, s in zip(tables, truths, sure, strict=True)]
            assert sums["correct_valid"].tolist() == right
            assert sums["confidence_l"].sum(-1).tolist() == n


# Rounds.


def test_without_confident_clients_only_the_server_trains(make_federation: Make) -> None:
    settings = (*AT, "train.keep_momentum=true", "server.optimizer=momentum", "server.momentum=0.5")
    alone = LocalEngine(make_federation("method.name=fedavg", *settings))
    nobody = LocalEngine(with_method(make_federation("method.name=semifl", *settings), tau=1.1))
    for _ in range(2):
        for engine in (alone, nobody):
            engine.round(until=2)
        assert same(alone.snapshot.server.weights, nobody.snapshot.server.weights)
        assert same(alone.snapshot.training, nobody.snapshot.training)


def test_the_mean_is_uniform_over_clients_that_trained(make_federation: Make) -> None:
    federation = make_federation("method.name=semifl", *AT)
    method, net = federation.method, federation.net
    server, uploads = federation.first_server(), []
    for client, used in enumerate((3.0, 0.0, 40.0)):
        local = method.start(federation.payload(server, {}, client), federation.new_state(server, client))
        upload = method.upload(client, server, local, federation.counts(client))
        moved = {name: p + client for name, p in upload.weights.params.items()}
        extras = {USED: torch.tensor(used)}
        uploads.append(upload._replace(weights=upload.weights._replace(params=moved), extras=extras))
    after = method.aggregate(net, server, uploads, np.random.default_rng(0))
    for name, p in server.weights.params.items():
        torch.testing.assert_close(after.weights.params[name], p + 1)  # the mean of + 0 and + 2
    nobody = [u._replace(extras={USED: torch.tensor(0.0)}) for u in uploads]
    assert method.aggregate(net, server, nobody, np.random.default_rng(0)) is server
    fresh = method.upload(0, server, method.start(server, federation.new_state(server, 0)), federation.counts(0))
    assert fresh.extras[USED] == 0


@pytest.mark.slow
def test_without_server_momentum_it_is_the_mean(make_federation: Make) -> None:
    settings = ("method.name=semifl", "method.tau=0.26", *AT)
    momentum = ("server.optimizer=momentum", "server.momentum=0")
    ends = []
    for more in ((), momentum):
        engine = LocalEngine(make_federation(*settings, *more))
        list(engine.rounds(2))
        ends.append(engine.snapshot.server.weights)
    assert same(*ends)


def test_labels_of_clients_count_where_they_have_some(make_federation: Make) -> None:
    """At the server no view of labeled images is made."""
    assert make_federation("method.name=semifl", *AT).recipe.views == ("u_strong", "u_weak", "m_weak")
    federation = with_method(make_federation("method.name=semifl", "train.steps_per_round=2"), tau=1.1)
    engine = LocalEngine(federation)
    before = engine.snapshot.server.weights
    (result,) = engine.rounds(1)
    assert engine.layout.unpack(result.tally[:, 0])["steps"].tolist() == [2, 2]
    assert not same(before, engine.snapshot.server.weights)
