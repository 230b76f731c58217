"""A server that has the labels: its images, its own steps, and that nothing of the clients changes with them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_flatten

from fssl.config import as_tables, parse
from fssl.console import Quiet
from fssl.core.experiment import prepare
from fssl.core.federation import OWN_NUMBER, Federation
from fssl.data.sources import Dataset
from fssl.engines.local import LocalEngine
from fssl.engines.server_training import OwnRound
from fssl.engines.snapshot import Snapshot, flat, parts, restore
from fssl.methods import METHODS
from fssl.records.checkpoint import Saved
from fssl.runner.conduct import run_experiment
from helpers.command import records
from helpers.small import refusal, tiny_config

Make = Callable[..., Federation]
AT = ("partition.labels=server", "data.labels_per_class=5")
SHORT = ("train.steps_per_round=2",)
KEPT = ("train.keep_momentum=true", "train.nesterov=true", "train.clip=1")


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tree_flatten(a)[0], tree_flatten(b)[0], strict=True))


def course(federation: Federation, rounds: int = 3) -> list[Snapshot]:
    engine = LocalEngine(federation)
    try:
        return [engine.snapshot for _ in engine.rounds(rounds)]
    finally:
        engine.close()


def test_the_server_has_the_labels_and_clients_have_the_other_images(make_federation: Make) -> None:
    federation = make_federation(*AT)
    own = federation.holdings.server.labeled
    assert federation.holdings.at_server is not None
    assert federation.holdings.at_server.tolist() == [5, 5, 5, 5]
    assert all(len(site.labeled) == 0 for site in federation.sites)
    held = np.concatenate([site.pool for site in federation.sites])
    assert not {*own.tolist()} & {*held.tolist()}
    assert sorted([*own.tolist(), *held.tolist()]) == list(range(160))


def test_its_steps_are_epochs_over_its_images_with_a_stream_of_its_own(make_federation: Make) -> None:
    federation = make_federation(*AT, "server.batch=10", "server.epochs=3")
    server = federation.of_server()
    plan = server.plan(2, OWN_NUMBER)
    assert plan.draw.x_row.shape == (6, 10)  # 3 epochs of 20 images in tens
    for epoch in plan.draw.x_row.reshape(3, 20).tolist():
        assert sorted(epoch) == sorted(federation.holdings.server.labeled.tolist())
    assert not torch.equal(server.plan(1, OWN_NUMBER).draw.x_row, plan.draw.x_row)
    assert same(federation.plan(2, 1).draw, make_federation(*AT, "server.epochs=0").plan(2, 1).draw)


def test_a_round_is_the_clients_and_then_plain_sgd_on_the_servers_labels(make_federation: Make) -> None:
    """Its steps by hand: cross-entropy on weak views, the run's optimizer, momentum that is kept."""
    settings = (*AT, *SHORT, *KEPT, "server.batch=10", "server.epochs=2", "method.name=fedavg", "train.rounds=2")
    federation = make_federation(*settings, "train.schedule=cosine")
    got = course(federation, 2)[-1].server.weights
    net, pool = federation.net, federation.pool
    params = {name: p.clone().requires_grad_() for name, p in net.first.params.items()}
    buffers = net.first.buffers
    rule = torch.optim.SGD(params.values(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    for round, rate in ((1, 0.1), (2, 0.05)):
        draw = federation.of_server().plan(round, OWN_NUMBER).draw
        rule.param_groups[0]["lr"] = rate
        for i in range(4):
            step = type(draw)(*(d[i] if isinstance(d, torch.Tensor) else d for d in draw))
            batch = pool.batch(step._replace(noise={"x": draw.noise["x"][i]}), ["x"], False)
            buffers, (out,) = net.fit(type(net.first)(params, buffers), batch.x)
            rule.zero_grad()
            torch.nn.functional.cross_entropy(out.logits, batch.y).backward()
            torch.nn.utils.clip_grad_norm_(params.values(), 1.0)
            rule.step()
            buffers = {name: b.detach() for name, b in buffers.items()}
    for name, p in params.items():
        torch.testing.assert_close(got.params[name], p.detach(), rtol=1e-5, atol=1e-6)
    for name, b in buffers.items():
        torch.testing.assert_close(got.buffers[name], b, rtol=1e-5, atol=1e-6)


def test_a_server_that_trains_before_sends_what_it_learned(make_federation: Make) -> None:
    """The first round of `before` is the server's training and then clients; that of `after` has them the other way."""
    settings = (*AT, *SHORT, "method.name=fedavg", "server.epochs=2")
    before, after, none = (
        course(make_federation(*settings, *more), 2) for more in (["server.when=before"], [], ["server.epochs=0"])
    )
    assert same(before[0].server, after[0].server)  # FedAvg's clients learn nothing without labels
    pull = ("method.name=fixmatch-gpl", "method.tau=0.3")
    before, after = (course(make_federation(*settings, *pull, *more), 1) for more in (["server.when=before"], []))
    assert not same(before[0].server, after[0].server)
    assert same(none[1].server.weights, make_federation(*settings).first_server().weights)


def test_a_server_that_warms_up_trains_before_the_first_round_alone(make_federation: Make) -> None:
    """Its first round, with clients that learn nothing: three times its epochs, with three draws of its own."""
    settings = (*AT, *SHORT, *KEPT, "method.name=fedavg")
    warm, cold = (make_federation(*settings, f"server.warmup={times}") for times in (2, 0))
    server = warm.of_server()
    rows = [server.plan(1, OWN_NUMBER - times).draw.x_row for times in range(3)]
    assert not torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[1], rows[2])
    engine = LocalEngine(cold)
    assert engine.own is not None
    state = OwnRound(engine.snapshot.server, {}, None)
    engine.own.lanes.federation.sites = server.sites
    for number in (-2, -3, -1):
        state = engine.own.train(1, state.server, state.kept, number)
    assert same(course(warm, 1)[0].server.weights, state.server.weights)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("fedavg-sl", "fedmatch")])
@pytest.mark.slow
def test_methods_run_with_labels_at_the_server(name: str, make_federation: Make, tiny_data: Dataset) -> None:
    settings = (f"method.name={name}", *AT, *SHORT)
    if name.startswith("feddure") or name in ("cbafed", "rscfed", "adamatch", "twin-sight", "semianagg"):
        assert "trains on labels of clients" in refusal(settings, tiny_data)
        return
    engine = LocalEngine(make_federation(*settings))
    first, *_, last = engine.rounds(4)
    assert all(torch.isfinite(t).all() for t in tree_flatten(engine.snapshot.server)[0])
    assert last.own_sums["l_s"] < first.own_sums["l_s"]
    assert last.own_sums["steps"] == pytest.approx(10)  # 5 epochs of 20 images in tens


@pytest.mark.parametrize(
    "settings",
    [
        ["method.name=sage", *KEPT],
        ["method.name=proxyfl", "server.optimizer=momentum", "server.when=before"],
        ["method.name=flexmatch", "train.optimizer=adamw", "train.lr=0.01", "train.keep_momentum=true"],
    ],
)
def test_a_checkpoint_has_all_of_it(settings: list[str], make_federation: Make) -> None:
    federation = make_federation(*AT, *SHORT, *settings)
    whole = course(federation)
    assert ("train.keep_momentum=true" in settings) == bool(whole[0].training)
    engine = LocalEngine(federation)
    tensors = dict(sorted(flat(whole[0]).items()))
    engine.snapshot = restore(engine.snapshot, Saved(1, tensors, parts(whole[0])))
    list(engine.rounds(3))
    assert same(engine.snapshot[1:], whole[2][1:])


@pytest.mark.slow
def test_neither_lanes_nor_compiled_steps_change_it(make_federation: Make) -> None:
    settings = (*AT, *SHORT, *KEPT, "server.epochs=2")
    one = course(make_federation(*settings, "compute.lanes=1"), 2)[-1]
    for more in (["compute.lanes=2"], ["compute.lanes=2", "compute.processes=on"]):
        assert same(course(make_federation(*settings, *more), 2)[-1][1:], one[1:])
    compiled = course(make_federation(*settings, "compute.compile=on"), 2)[-1]
    for name, p in compiled.server.weights.params.items():
        torch.testing.assert_close(p, one.server.weights.params[name], rtol=1e-3, atol=1e-4)


def test_records_describe_the_server(tmp_path: Path, tiny_data: Dataset) -> None:
    config = tiny_config(*AT, *SHORT, "server.epochs=2")
    run_experiment(prepare(config, tiny_data), tmp_path / "run", Quiet(), False, make=LocalEngine)
    lines = records(tmp_path / "run")
    assert [line["server_steps"] for line in lines] == [4, 4]
    assert all(0 < line["server_loss"] < 5 for line in lines)
    partition = json.loads((tmp_path / "run/partition.json").read_text())
    assert partition["server"] == [5, 5, 5, 5]
    assert np.sum(partition["labeled"]) == 0
    recorded = parse(as_tables(prepare(config, tiny_data).config))
    assert (recorded.server.epochs, recorded.server.batch, recorded.partition.labels) == (2, 10, "server")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["partition.labels=server", "partition.labeled_clients=2"], "has no effect with partition.labels = 'server'"),
        ([*AT, "train.labeled_weight=5"], "train.labeled_weight = 5 does not work with partition.labels = 'server'"),
        ([*AT, "protocol=authors"], "protocol = 'authors' does not work with partition.labels = 'server'"),
        ([*AT, "method.name=fedavg-sl"], "gives clients the true label of every image"),
        ([*AT, "method.name=fedmatch"], "trains on labels of clients"),
        (
            ["server.epochs=5"],
            "server.epochs = 5 has no effect with partition.labels = 'all-clients'; remove it, or use 'server'",
        ),
        (["server.when=before"], "server.when = 'before' has no effect with partition.labels = 'all-clients'"),
        (
            [*AT, "server.epochs=0", "server.warmup=2"],
            "server.warmup = 2 does not work with server.epochs = 0: the server does not train",
        ),
    ],
)
def test_what_makes_no_sense_is_rejected(settings: list[str], message: str, tiny_data: Dataset) -> None:
    assert message in refusal(settings, tiny_data)


def test_frozen_tensors_on_a_device_do_not_meet_the_shapes_of_a_step() -> None:
    """Shapes are on the CPU; another device is without values here, and a GPU in a run."""
    federation = Federation(prepare(tiny_config("partition.labels=server", "model.trainable=head")))
    there = federation.of_server()
    there.net = there.net.on(torch.device("meta"))
    assert there.layout == federation.of_server().layout
