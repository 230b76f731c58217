"""Clients on several devices: the same results as on one, shared by the work they are."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fssl.config import Config
from fssl.console import Quiet
from fssl.core.device import allowed_devices, choose_devices
from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.engines.devices import Spread, deal
from fssl.engines.lanes import num_lanes
from fssl.engines.local import LocalEngine
from fssl.errors import UserError
from fssl.records.store import RunFolder
from fssl.runner.conduct import run_experiment
from fssl.runner.planned import share_of
from helpers.command import SMALL, Fssl, outcome
from helpers.small import tiny_config

Make = Callable[..., Federation]
TWICE = 'compute.devices=["cpu", "cpu"]'


def with_gpus(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)


def names(config: Config) -> list[str]:
    return [str(device) for device in choose_devices(config)]


def test_shares_have_about_the_same_work_and_keep_the_order() -> None:
    work = {0: 5, 1: 9, 2: 5, 3: 4, 4: 1}
    assert deal([0, 1, 2, 3, 4], work.__getitem__, 2) == [[1, 3], [0, 2, 4]]  # 13 and 11 steps
    assert deal([3, 0], work.__getitem__, 3) == [[0], [3], []]


@pytest.mark.parametrize(
    ("method", "more"),
    [
        *((method, ()) for method in ("sage", "flexmatch", "fedmatch", "fedloke")),
        ("flexmatch", ("train.keep_momentum=true",)),
        ("sage", ("server.broadcast_momentum=true", "server.optimizer=momentum")),
    ],
)
@pytest.mark.slow
def test_two_devices_give_the_bits_of_one(method: str, more: tuple[str, ...], make_federation: Make) -> None:
    """Methods without a state, with one at clients, and with a memory of clients at the server; momentum of both."""
    settings = (f"method.name={method}", "train.clients_per_round=3", "compute.processes=off", *more)
    one, two = (LocalEngine(make_federation(*settings, *devices)) for devices in ((), (TWICE,)))
    assert isinstance(two.fleet, Spread)
    for a, b in zip(one.rounds(3), two.rounds(3), strict=True):
        assert (a.clients, a.tests) == (b.clients, b.tests)
        assert (a.tally == b.tally).all()
    for name, tensor in one.model().params.items():
        assert torch.equal(two.model().params[name], tensor)


def test_clients_that_take_no_step_are_no_work(make_federation: Make) -> None:
    """The two that train are on a device each; by planned steps they would be on one: 12 + 6 and 8 + 10."""
    knowing = ("partition.labels=knowing-clients", "partition.labeled_clients=2", "partition.kind=dirichlet")
    settings = (*knowing, "partition.alpha=1", "partition.seed=9", "method.name=fedavg", "train.clients_per_round=4")
    one, two = (LocalEngine(make_federation(*settings, *more)) for more in (["compute.processes=off"], [TWICE]))
    assert [one.federation.num_steps(k) for k in range(4)] == [8, 10, 12, 6]
    assert [one.federation.work(k) for k in range(4)] == [8, 10, 0, 0]
    assert isinstance(two.fleet, Spread)
    assert [share for _, share in two.fleet._shares([0, 1, 2, 3])] == [[1], [0, 2, 3]]
    (a,), (b,) = one.rounds(1), two.rounds(1)
    assert (a.clients, a.tests) == (b.clients, b.tests)
    assert a.tally[:, 0, one.layout.sums.index("steps")].tolist() == [8, 10, 0, 0]
    assert (a.tally == b.tally).all()
    assert all(torch.equal(two.model().params[name], tensor) for name, tensor in one.model().params.items())


def test_a_run_resumes_with_another_number_of_devices(fssl: Fssl) -> None:
    flexmatch = [*SMALL, "--set", "method.name=flexmatch"]
    fssl("run", "smoke", *flexmatch, "--out", "whole")
    said = fssl("run", "smoke", *flexmatch, "--set", "train.rounds=1", "--set", TWICE, "--out", "parts")
    assert "clients are shared by cpu, cpu" in said.out
    assert fssl("run", "smoke", *flexmatch, "--out", "parts", "--resume").code == 0
    assert outcome("parts") == outcome("whole")


def test_all_gpus_are_used_where_clients_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 4)
    config = tiny_config("compute.device=auto", "train.clients_per_round=3")
    assert names(config) == ["cuda:0", "cuda:1", "cuda:2"]  # a fourth would have no client
    assert names(replace(config, protocol="authors")) == ["cuda:0"]
    assert names(replace(config, compute=replace(config.compute, devices=("cuda:3", "cuda:1")))) == ["cuda:3", "cuda:1"]
    assert names(replace(config, compute=replace(config.compute, engine="flower"))) == ["cuda:0"]
    assert names(tiny_config("compute.device=cpu")) == ["cpu"]


def test_runs_side_by_side_have_devices_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 4)

    def places(workers: int, *settings: str) -> list[list[str]]:
        config = tiny_config("compute.device=auto", *settings)
        shares = [replace(config, compute=share_of(config, place, workers)) for place in range(workers)]
        return [[str(device) for device in allowed_devices(shared)] for shared in shares]

    assert places(1) == [["cuda:0", "cuda:1", "cuda:2", "cuda:3"]]
    assert places(2) == [["cuda:0", "cuda:2"], ["cuda:1", "cuda:3"]]
    assert places(3, "protocol=authors") == [["cuda:0", "cuda:3"], ["cuda:1"], ["cuda:2"]]
    assert places(6) == [[f"cuda:{i % 4}"] for i in range(6)]
    assert places(2, 'compute.devices=["cuda:2", "cuda:3"]') == [["cuda:2"], ["cuda:3"]]


@pytest.mark.slow
def test_a_share_of_the_machine_is_used_and_not_recorded(tmp_path: Path) -> None:
    """A run that was one of several may resume alone, or with other devices."""
    for rounds, resume in ((1, False), (2, True)):
        experiment = prepare(tiny_config("compute.lanes=2", f"train.rounds={rounds}"))
        experiment.share = replace(experiment.config.compute, lanes=1)
        assert num_lanes(Federation(experiment)) == 1
        run_experiment(experiment, tmp_path / "run", Quiet(), resume)
        assert RunFolder(tmp_path / "run").config().compute.lanes == 2


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (['compute.devices=["cuda:9"]'], "'cuda:9' is not available; available: cpu"),
        (['compute.devices=["gpu"]'], "'gpu' is not available; available: cpu"),
        (['compute.devices=["cpu"]', "compute.device=cuda"], "'cpu' conflicts with compute.device = 'cuda'"),
    ],
)
def test_devices_that_are_not_there_are_rejected(settings: list[str], reason: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has others")
    with pytest.raises(UserError, match=f"compute.devices: {reason}"):
        choose_devices(tiny_config("compute.device=auto", *settings))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (['compute.devices=["cpu", "cuda:0"]'], "expected devices of one type"),
        (['compute.devices=["cpu:0", "cuda:0"]'], "expected devices of one type"),
        (["compute.devices=[]"], r"compute.devices = \[\]: expected a list of strings"),
        (
            [TWICE, "compute.engine=flower"],
            "has no effect with compute.engine = 'flower': Flower uses all GPUs of its cluster",
        ),
    ],
)
def test_devices_that_make_no_sense_together_are_rejected(settings: list[str], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        tiny_config(*settings)
