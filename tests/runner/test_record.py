"""What a line of the record says of losses and steps."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

from fssl.config import override, parse, read_toml
from fssl.console import Quiet
from fssl.core.device import forget_peaks, peak_memory
from fssl.core.experiment import Experiment, prepare
from fssl.core.federation import Federation
from fssl.engines.local import LocalEngine
from fssl.runner.conduct import run_experiment
from fssl.runner.record import Choice, describe, labeled_steps
from fssl.system.machine import forget_peak, memory, peak_of_process
from helpers.small import StopAfter, tiny_config

Make = Callable[..., Federation]
FEW = ("partition.clients=6", "partition.labeled_clients=2", "train.clients_per_round=6", "train.batch=10")


@pytest.mark.parametrize("method", ["sage", "fedavg", "fedavg-sl"])
def test_the_loss_on_labels_is_a_mean_over_clients_that_have_some(method: str, make_federation: Make) -> None:
    federation = make_federation(f"method.name={method}", *FEW)
    engine = LocalEngine(federation)
    (result,) = engine.rounds(1)
    line, arrays = describe(federation, engine.layout, result)
    number = 6 if method == "fedavg-sl" else 2
    steps = [federation.num_steps(client) for client in range(6)]
    assert arrays["steps"].tolist() == [taken if method == "sage" or k < number else 0 for k, taken in enumerate(steps)]
    assert line["loss_s"] == pytest.approx(arrays["l_s"].sum() / sum(steps[:number]))
    assert line["loss_s"] > 1  # near log 10: the first round of ten classes


def test_a_round_without_labels_has_no_loss_on_them(make_federation: Make) -> None:
    federation = make_federation("method.name=sage", *FEW[:2], "train.clients_per_round=1", "seed=3")
    engine = LocalEngine(federation)
    lines = [describe(federation, engine.layout, result)[0] for result in engine.rounds(16)]
    assert {line["clients"][0] < 2 for line in lines} == {True, False}
    assert all((line["loss_s"] is None) == (line["clients"][0] >= 2) for line in lines)
    assert all(line["loss_u"] is not None for line in lines)


def test_steps_are_whole_numbers(make_federation: Make) -> None:
    """Thirds and tenths do not add up to one in binary numbers."""
    federation = make_federation("partition.labels=server", "train.batch=3", "server.batch=10", "method.name=sage")
    engine = LocalEngine(federation)
    (result,) = engine.rounds(1)
    line, arrays = describe(federation, engine.layout, result)
    assert line["sums"]["steps"] == sum(federation.num_steps(client) for client in result.clients)
    assert arrays["server.steps"] == line["server_steps"]


def test_a_client_with_a_single_label_counts(make_federation: Make) -> None:
    """Three of four clients have one label each, and one has none."""
    settings = ("partition.labeled_clients=3", "data.labels_per_class=1", "train.clients_per_round=4")
    federation = make_federation("method.name=sage", "partition.kind=iid", *settings)
    labeled = [federation.counts(client).labeled for client in range(4)]
    steps = np.array([3.0, 5.0, 7.0, 11.0])
    sums = {"steps": steps, "l_s": np.ones(4)}
    assert 1 in labeled
    assert 0 in labeled
    expected = sum(taken for taken, number in zip(steps, labeled, strict=True) if number)
    assert labeled_steps(federation, [0, 1, 2, 3], sums) == expected


def test_a_line_has_a_rate_only_where_it_is_not_the_full_one(make_federation: Make) -> None:
    """Four rounds, the last two on the line down: 1, 1, 1, 1/2."""
    federation = make_federation("train.rounds=4", "train.cooldown=2", "train.steps_per_round=1")
    engine = LocalEngine(federation)
    lines = [describe(federation, engine.layout, result)[0] for result in engine.rounds(4)]
    assert [line.get("rate") for line in lines] == [None, None, None, 0.5]


def test_the_best_model_is_taken_over_from_a_checkpoint() -> None:
    """Of all its parts; the states of clients are others."""
    best, state = {"params.w": torch.ones(2)}, {"table": torch.zeros(3)}
    settings = tiny_config("data.validation=0.25", "records.keep_best=true")
    lines = [{"round": n, "validation": {"accuracy": value}} for n, value in ((1, 20.0), (2, 30.0), (3, 10.0))]
    choice = Choice(settings, lines, {"clients.0": state, "best.2": best, "clients.1": state})
    assert choice.parts == {"best.2": best}
    assert choice.model is best
    assert choice.progress.best == (2, 30.0)
    assert Choice(settings, [], {}).model is None


def smoke() -> Experiment:
    words = ["train.rounds=2", "train.steps_per_round=1", "compute.device=cpu"]
    return prepare(parse(override(read_toml("smoke"), words)))


@pytest.mark.slow
def test_a_run_records_its_peak_memory_and_traffic(tmp_path: Path) -> None:
    """On a CPU the process's; the summary has the largest, also of a run that was resumed."""
    experiment = smoke()
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, tmp_path, StopAfter(1))
    summary = run_experiment(smoke(), tmp_path, Quiet(), resume=True)
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    peaks = [line["timing"]["process_memory"] for line in lines]
    assert all(10**7 < peak < memory() for peak in peaks)
    assert summary["timing"]["process_memory"] == max(peaks)
    first, second = json.loads((tmp_path / "env.json").read_text())["sessions"]
    weights = sum(t.nbytes for t in tree_leaves(experiment.net.first))
    assert first["traffic"] == second["traffic"] == {"down": weights, "up": weights}


def test_the_peak_starts_anew() -> None:
    """Where Linux allows it: 200 MB that were freed no longer count."""
    held = bytearray(200 * 2**20)
    high = peak_of_process()
    del held
    forget_peak()
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the system keeps the peak")
    assert peak_of_process() < high - 150 * 2**20


def test_of_several_gpus_the_fullest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = {torch.device("cuda", 0): 5, torch.device("cuda", 1): 7}
    forgotten: list[torch.device] = []
    monkeypatch.setattr("torch.cuda.max_memory_allocated", peaks.__getitem__)
    monkeypatch.setattr("torch.cuda.reset_peak_memory_stats", forgotten.append)
    assert peak_memory([*peaks]) == {"gpu_memory": 7}
    assert {*peak_memory([torch.device("cpu")])} == {"process_memory"}
    forget_peaks([*peaks, torch.device("cpu")])
    assert forgotten == [*peaks]
