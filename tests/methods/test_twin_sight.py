"""Twin-sight's contrast and neighbors by hand, its two networks, and what each kind of client learns from."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fssl.core.federation import Federation
from fssl.methods.twin_sight import contrast, divisor, neighbors, twin_sight
from fssl.models import build_net
from fssl.types import Counts, Task
from helpers.matrix import equal, trained
from helpers.small import KNOWING, LABELING

Make = Callable[..., Federation]
NAME = "method.name=twin-sight"


def test_neighbors_by_hand() -> None:
    """3 xor 2 is 1, as the released code divides."""
    f_u, f_s = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    assert neighbors(f_u, f_s, "released").item() == pytest.approx(2.0, abs=1e-6)
    assert neighbors(f_u, f_s, "mean").item() == pytest.approx(0.222222, abs=1e-6)
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]])
    scaled = torch.tensor([[2.0], [3.0], [0.5]]) * f_u @ turn
    assert neighbors(scaled, f_s, "released").item() == pytest.approx(2.0, abs=1e-5)
    same = f_u.clone().requires_grad_()
    distance = neighbors(same, f_u, "mean")
    distance.backward()  # type: ignore[no-untyped-call]
    assert distance.item() == 0
    assert same.grad is not None
    assert not same.grad.any()


def test_the_released_divisor_is_exclusive_or() -> None:
    assert [divisor(n, "released") for n in (64, 63, 32, 3)] == [66, 61, 34, 1]
    assert divisor(64, "mean") / divisor(64, "released") == pytest.approx(62.060606, abs=1e-6)
    assert divisor(2, "released") == 4  # not 0


def test_the_contrast_by_hand() -> None:
    first, second = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.8, 0.6], [0.0, 1.0]])
    assert contrast(torch.cat([first, second]), 0.07).item() == pytest.approx(0.028836, abs=1e-6)
    assert contrast(torch.cat([3 * first, second]), 0.5).item() == pytest.approx(0.527587, abs=1e-6)


def test_an_upload_has_both_networks_without_the_twins_head() -> None:
    net, method = build_net("resnet18", 3, 10, 4), twin_sight()
    server = method.init(net, net.first, Task(10, 8))
    payload = method.payload(server, 0)
    made = method.upload(0, payload, method.start(payload, {}), Counts(1, 8))
    assert sum(t.numel() for t in made.weights.params.values()) == 32_842_890
    assert {*method.deploy(net, server).params} == {*net.first.params}
    first = next(name for name, t in net.first.params.items() if t.ndim == 4)
    assert not torch.equal(server.weights.params[first], server.weights.params[f"twin.{first}"])


def test_without_the_twins_terms_only_labels_teach(make_federation: Make) -> None:
    """A client with labels is FedAvg's; one without has no gradient, so that nothing but decay moves its model."""
    words = (NAME, *KNOWING, "train.weight_decay=0", "train.unlabeled_ratio=1", "method.contrast=0")
    federation = make_federation(*words, "method.neighbors=0")
    without = trained(federation)  # client 1
    sent = federation.method.init(federation.net, federation.net.first, federation.task).weights.params
    assert equal(without, sent)
    taught = trained(make_federation(*words))
    assert not equal(taught, sent)


@pytest.mark.parametrize("setting", ["pseudo=0.5", "scale=mean", "temperature=0.5", "contrast=1"])
def test_each_setting_changes_a_round(setting: str, make_federation: Make) -> None:
    words = (NAME, *KNOWING, "train.steps_per_round=2")
    assert not equal(trained(make_federation(*words, f"method.{setting}")), trained(make_federation(*words)))


def test_which_view_labels(make_federation: Make) -> None:
    words = (NAME, *LABELING["twin-sight"], "train.steps_per_round=2")
    assert not equal(trained(make_federation(*words, "method.swap=false")), trained(make_federation(*words)))


def test_the_first_draw_of_the_twin_follows_the_seed(make_federation: Make) -> None:
    def first(*words: str) -> Any:
        federation = make_federation(NAME, *KNOWING, *words)
        return federation.method.init(federation.net, federation.net.first, federation.task).weights.params

    assert equal(first(), first())
    assert not torch.equal(first()["twin.project.0.weight"], first("seed=8")["twin.project.0.weight"])
