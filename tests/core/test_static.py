"""Static BatchNorm: what PyTorch's cumulative average gives, and which models of a run have it."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from conftest import refusal, tiny_config
from fssl.config import as_tables
from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.core.network import make_module
from fssl.core.static import make_collect
from fssl.data.sources import Dataset
from fssl.engines.local import LocalEngine
from fssl.errors import UserError
from fssl.types import Weights

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
    monkeypatch.setattr("fssl.core.static.BATCH", size)
    federation = make_federation(*AT)
    rows = torch.randperm(160, generator=torch.Generator().manual_seed(0))[:number]
    found = make_collect(federation.net, federation.pool, rows)(federation.net.first)
    expected = cumulative(federation, federation.net.first, [b for b in rows.split(size) if len(b) > 1])
    assert found.keys() == expected.keys() == {*federation.net.running}
    for name, t in found.items():
        torch.testing.assert_close(t, expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("settings", [["server.static_norm=server"], ["server.static_norm=all", "server.when=before"]])
def test_a_run_tests_and_sends_models_with_their_own_statistics(settings: list[str], make_federation: Make) -> None:
    federation = make_federation(*AT, *settings)
    engine = LocalEngine(federation)
    collect = federation.make_collect(False)
    assert collect is not None
    sent: list[Weights] = []
    payload = federation.payload
    federation.payload = lambda server, *rest: sent.append(server.weights) or payload(server, *rest)  # type: ignore
    for _ in engine.rounds(3):
        weights = engine.model()
        assert all(torch.equal(t, weights.buffers[name]) for name, t in collect(weights).items())
    assert len(sent) == 6
    for weights in sent:
        assert all(torch.equal(t, weights.buffers[name]) for name, t in collect(weights).items())


def test_images_of_the_validation_part_are_not_measured(make_federation: Make) -> None:
    federation = make_federation(*AT, "server.static_norm=all", "data.validation=0.4")
    collect, others = federation.make_collect(False), np.setdiff1d(np.arange(160), federation.held_out)
    assert collect is not None
    assert len(others) == 160 - 8
    found, first = collect(federation.net.first), federation.net.first
    expected = make_collect(federation.net, federation.pool, torch.from_numpy(others))(first)
    assert all(torch.equal(t, expected[name]) for name, t in found.items())


def test_what_has_no_statistics_is_refused(tiny_data: Dataset) -> None:
    assert "the server has no images" in refusal(["server.static_norm=server"], tiny_data)
    assert "has no running statistics" in refusal([*AT, "server.static_norm=all", "model.norm=group"], tiny_data)
    with pytest.raises(UserError, match="network 'simple-cnn' has no BatchNorm; leave it out"):
        prepare(tiny_config("server.static_norm=all", "data.name=cifar10", "model.name=simple-cnn", "model.width=4"))
    assert "keeps its model in parts" in refusal(["server.static_norm=all", "method.name=fedmatch"], tiny_data)


def test_a_deployment_does_not_see_the_images_of_its_sites() -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
    from fssl.deploy.server_app import parse_run

    with pytest.raises(UserError, match="images of sites stay there"):
        parse_run(as_tables(tiny_config("server.static_norm=all")))
