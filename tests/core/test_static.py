"""Static BatchNorm: what PyTorch's cumulative average gives, and which models of a run have it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from fssl.config import as_tables
from fssl.core.assembly import make_module
from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.core.static_norm import NormSums, as_it_is, make_measure, mean_of
from fssl.data.sources import Dataset
from fssl.engines.compiler import ForShapes, compiled
from fssl.engines.local import LocalEngine
from fssl.errors import UserError
from fssl.types import Weights
from helpers.small import refusal, tiny_config

Make = Callable[..., Federation]
AT = ("partition.labels=server", "data.labels_per_class=5", "train.steps_per_round=2", "method.name=fixmatch-gpl")


def cumulative(federation: Federation, weights: Weights, batches: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """BatchNorm with momentum None, as PyTorch has it: the plain average over batches since a reset."""
    module = make_module(federation.config, federation.dataset.card)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum, layer.num_batches_tracked = None, torch.tensor(0)
            layer.reset_running_stats()
    module.load_state_dict(weights.params, strict=False)
    module.train()
    with torch.no_grad():
        for rows in batches:
            module(federation.pool.normalize(federation.pool.images[rows]))
    return {name: b for name, b in module.named_buffers() if "running" in name}


@pytest.mark.parametrize(("number", "size"), [(7, 250), (160, 64), (129, 64)])
def test_it_is_the_plain_average_over_batches(
    number: int, size: int, make_federation: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch: its own statistics. Several: each counts the same; a last image that is alone has none."""
    monkeypatch.setattr("fssl.core.static_norm.BATCH", size)
    federation = make_federation(*AT)
    rows = torch.randperm(160, generator=torch.Generator().manual_seed(0))[:number]
    found = mean_of([make_measure(federation.net, federation.pool)(federation.net.first, rows)])
    expected = cumulative(federation, federation.net.first, [b for b in rows.split(size) if len(b) > 1])
    assert found.keys() == expected.keys() == {*federation.net.running}
    for name, t in found.items():
        torch.testing.assert_close(t, expected[name], rtol=1e-5, atol=1e-6)


def test_a_batch_has_250_images(make_federation: Make) -> None:
    """SemiFL's number, which all sites share. Of 501 images two batches count: the last image is alone."""
    federation = make_federation(*AT)
    rows = torch.randint(160, (501,), generator=torch.Generator().manual_seed(0))
    sums = make_measure(federation.net, federation.pool)(federation.net.first, rows)
    expected = cumulative(federation, federation.net.first, [rows[:250], rows[250:500]])
    assert sums.batches == 2
    for name, t in mean_of([sums]).items():
        torch.testing.assert_close(t, expected[name], rtol=1e-5, atol=1e-6)


def statistics(federation: Federation, weights: Weights) -> dict[str, torch.Tensor]:
    """What a run measures, in one process."""
    sites, measure = federation.config.server.static_norm == "sites", federation.make_client_measure()
    own, clients = federation.make_collect(), range(len(federation.sites) if sites else 0)
    return mean_of([*(measure(weights, client) for client in clients), *([own(weights)] if own else [])])


BEFORE = "server.when=before"


@pytest.mark.parametrize(
    "settings",
    [
        (*AT, "server.static_norm=server"),
        (*AT, "server.static_norm=all", BEFORE),
        (*AT, "server.static_norm=sites"),
        (*AT, "server.static_norm=sites", BEFORE),
        (*AT[1:], "server.static_norm=sites"),
    ],
)
def test_a_run_tests_and_sends_models_with_their_own_statistics(
    settings: tuple[str, ...], make_federation: Make
) -> None:
    federation = make_federation(*settings)
    engine = LocalEngine(federation)
    sent: list[Weights] = []
    payload = federation.payload
    federation.payload = lambda server, *rest: sent.append(server.weights) or payload(server, *rest)  # type: ignore
    for _ in engine.rounds(3):
        weights = engine.model()
        assert all(torch.equal(t, weights.buffers[name]) for name, t in statistics(federation, weights).items())
    assert len(sent) == 6
    for weights in sent:
        assert all(torch.equal(t, weights.buffers[name]) for name, t in statistics(federation, weights).items())


def by_hand(federation: Federation, weights: Weights, batches: list[list[int]]) -> dict[str, torch.Tensor]:
    """The first norm's statistics in double precision, from the definition: the mean over batches of Σx / n and of
    Σ(x - x̄)² / (n - 1), n counting images and pixels."""
    means, variances = [], []
    for rows in batches:
        images = federation.pool.normalize(federation.pool.images[torch.tensor(rows)]).double()
        x = nn.functional.conv2d(images, weights.params["body.0.weight"].double(), padding=1)
        x = x.transpose(0, 1).flatten(1)
        mean = x.sum(1) / x.shape[1]
        means.append(mean)
        variances.append(((x - mean[:, None]) ** 2).sum(1) / (x.shape[1] - 1))
    number = len(batches)
    return {"body.1.running_mean": sum(means) / number, "body.1.running_var": sum(variances) / number}  # type: ignore


@pytest.mark.parametrize(
    ("shares", "batches"),
    [
        (((0, 7), (7, 12)), [(0, 4), (4, 7), (7, 11)]),  # 4 and 3 images; 4, and the fifth is alone
        (((0, 2), (2, 11)), [(0, 2), (2, 6), (6, 10)]),  # as many batches at another site make another mean
        (((0, 1), (1, 5)), [(0, 1), (1, 5)]),  # a site with one image counts with it
    ],
)
def test_sites_add_up_their_own_batches(
    shares: tuple[tuple[int, int], ...],
    batches: list[tuple[int, int]],
    make_federation: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two sites with unequal numbers of images; a site's rows may come in any order."""
    monkeypatch.setattr("fssl.core.static_norm.BATCH", 4)
    federation = make_federation(*AT[1:], "server.static_norm=sites", "partition.clients=2")
    pools = [np.arange(*share)[::-1].copy() for share in shares]
    federation.sites = [site._replace(pool=p) for site, p in zip(federation.sites, pools, strict=True)]
    found = statistics(federation, federation.net.first)
    expected = by_hand(federation, federation.net.first, [list(range(*batch)) for batch in batches])
    for name, t in expected.items():
        torch.testing.assert_close(found[name].double(), t, rtol=1e-5, atol=1e-6)


def test_the_mean_counts_batches_and_not_sites() -> None:
    one, three = torch.tensor([6.0]), torch.tensor([30.0])
    found = mean_of([NormSums({"m": one}, 1), NormSums({"m": three}, 3)])
    assert found["m"].item() == 9.0  # of (6, 10, 10, 10); that of the sites' means would be 8
    assert (one.item(), three.item()) == (6.0, 30.0)


@pytest.mark.parametrize("where", ["at one client", "at the server"])
def test_one_site_with_everything_is_all(where: str, make_federation: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fssl.core.static_norm.BATCH", 64)  # 160 images: two whole batches and a smaller one
    everything, nothing = np.arange(160), np.zeros(0, np.int64)
    federations = {kind: make_federation(*AT, f"server.static_norm={kind}") for kind in ("all", "sites")}
    sites = federations["sites"]
    mine = (0,) if where == "at one client" else ()
    sites.sites = [s._replace(pool=everything if k in mine else nothing) for k, s in enumerate(sites.sites)]
    server = sites.holdings.server._replace(labeled=nothing if mine else everything)
    sites.holdings = replace(sites.holdings, server=server)
    found, expected = (statistics(federations[kind], sites.net.first) for kind in ("sites", "all"))
    assert found.keys() == expected.keys() == {*sites.net.running}
    assert all(torch.equal(t, expected[name]) for name, t in found.items())


def test_images_of_the_validation_part_are_not_measured(make_federation: Make) -> None:
    federation = make_federation(*AT, "server.static_norm=all", "data.validation=0.4")
    others, first = np.setdiff1d(np.arange(160), federation.holdings.held_out), federation.net.first
    assert len(others) == 160 - 8
    expected = mean_of([make_measure(federation.net, federation.pool)(first, torch.from_numpy(others))])
    assert all(torch.equal(t, expected[name]) for name, t in statistics(federation, first).items())


def test_sites_measure_no_image_of_the_validation_part(make_federation: Make) -> None:
    """Whatever it shows: an image that is held out may be anything."""
    federation = make_federation(*AT, "server.static_norm=sites", "data.validation=0.4")
    before = statistics(federation, federation.net.first)
    federation.pool.images[torch.from_numpy(federation.holdings.held_out)] = 255
    assert len(federation.holdings.held_out) == 8
    assert all(torch.equal(t, before[name]) for name, t in statistics(federation, federation.net.first).items())
    federation.pool.images[torch.from_numpy(federation.holdings.server.labeled[:1])] = 255
    assert not torch.equal(
        *(each["body.1.running_mean"] for each in (before, statistics(federation, federation.net.first)))
    )


@pytest.mark.slow
def test_whole_batches_of_all_sites_share_one_compiled_graph(
    make_federation: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Smaller last batches are not compiled: each site's would be a graph of its own."""
    monkeypatch.setattr("fssl.core.static_norm.BATCH", 16)
    federation = make_federation(*AT, "server.static_norm=sites")
    made = Mock(side_effect=compiled)
    first, sites = federation.net.first, range(len(federation.sites))
    fast, eager = (federation.make_client_measure(faster) for faster in (partial(ForShapes, faster=made), as_it_is))
    for client in sites:
        ours, theirs = fast(first, client), eager(first, client)
        assert (ours.batches, len(federation.sites[client].pool) % 16 > 1) == (theirs.batches, True)
        for name, t in ours.total.items():
            torch.testing.assert_close(t, theirs.total[name], rtol=1e-4, atol=1e-5)
    assert (len(sites), made.call_count) == (4, 1)


LANES = {
    "threads": ("compute.lanes=2", "compute.processes=off"),
    "processes": ("compute.lanes=2", "compute.processes=on"),
    "devices": ('compute.devices=["cpu", "cpu"]',),
}


@pytest.mark.parametrize("lanes", LANES)
def test_lanes_of_any_kind_measure_the_same(lanes: str, make_federation: Make) -> None:
    given = (*AT, "server.static_norm=sites", "train.clients_per_round=3")
    one, other = (LocalEngine(make_federation(*given, *more)) for more in (("compute.lanes=1",), LANES[lanes]))
    try:
        for _ in zip(one.rounds(2), other.rounds(2), strict=True):
            assert all(torch.equal(t, other.model().buffers[name]) for name, t in one.model().buffers.items())
    finally:
        other.close()


def test_what_has_no_statistics_is_rejected(tiny_data: Dataset) -> None:
    assert "the server has no images" in refusal(["server.static_norm=server"], tiny_data)
    assert "other norms have no running statistics" in refusal(
        [*AT, "server.static_norm=all", "model.norm=group"], tiny_data
    )
    with pytest.raises(UserError, match="static_norm = 'all' has no effect: network 'simple-cnn' has no BatchNorm"):
        prepare(tiny_config("server.static_norm=all", "data.name=cifar10", "model.name=simple-cnn", "model.width=4"))
    for kind in ("all", "sites"):
        refused = refusal([f"server.static_norm={kind}", "method.name=fedmatch"], tiny_data)
        assert "splits its model into parts" in refused


def test_sums_of_sites_are_rejected_with_masks(tiny_data: Dataset) -> None:
    masks = ["privacy.aggregation=secagg+", "compute.engine=flower", "train.clients_per_round=3"]
    refused = refusal([*masks, "server.static_norm=sites"], tiny_data)
    assert "with privacy.aggregation = 'secagg+': the sums that sites send would not be masked" in refused


def test_a_deployment_does_not_see_the_images_of_its_sites() -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
    from fssl.deploy.server_app import parse_run

    with pytest.raises(
        UserError,
        match=r"server.static_norm = 'all' does not work with Flower's app: images stay at their sites; use 'sites'",
    ):
        parse_run(as_tables(tiny_config("server.static_norm=all")))
    assert parse_run(as_tables(tiny_config("server.static_norm=sites"))).server.static_norm == "sites"
