"""The best model and early stopping: chosen by images that are not reported, the same after any number of kills."""

import json
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_resume
import torch
from rich.console import Console
from safetensors.torch import load_file

from fssl.config import Config, override, parse, read_toml
from fssl.console import Quiet, result_line
from fssl.core import evaluate
from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.data.sources import Dataset
from fssl.engines.engine import RoundResult
from fssl.engines.local import LocalEngine
from fssl.errors import UserError
from fssl.records.rounds import BestRound, Chosen, end_of_patience
from fssl.records.store import RunFolder
from fssl.records.writer import RunWriter
from fssl.reports.groups import seeds_text
from fssl.reports.runs import find_runs
from fssl.reports.show import print_run
from fssl.reports.verdicts import rivals
from fssl.runner.conduct import run_experiment
from fssl.runner.planned import PlannedRun, is_done, stopped_text
from helpers.command import outcome, records
from helpers.small import tiny_config

VALUES = [10.0, 30.0, 30.0, 20.0, 40.0, 40.0, 35.0, 39.0, 50.0]  # on the validation part, by round
CHOOSING = ("data.validation=0.2", "records.keep_best=true")


def config(*settings: str) -> Config:
    return parse(override(read_toml("smoke"), [f"train.rounds={len(VALUES)}", *CHOOSING, *settings]))


def lines(*values: float | None) -> list[dict[str, Any]]:
    return [{"round": r, "accuracy": 0.0, "validation": {"accuracy": v}} for r, v in enumerate(values, 1)]


# The rule by itself.


def test_the_first_of_equal_rounds_is_the_best() -> None:
    progress = BestRound(config(), lines(*VALUES[:8]))
    assert progress.best == Chosen(5, 40.0)
    assert not progress.is_over  # without patience
    assert progress.take({"round": 9, "validation": {"accuracy": 50.0}})
    assert progress.best == Chosen(9, 50.0)


def test_patience_counts_rounds_after_the_best() -> None:
    over = [BestRound(config("train.patience=3"), lines(*VALUES[:n])).is_over for n in range(len(VALUES))]
    assert over == [False] * 8 + [True]
    assert [BestRound(config("train.patience=2"), lines(*VALUES[:n])).is_over for n in (3, 4)] == [False, True]


def test_a_round_without_a_value_is_no_better() -> None:
    progress = BestRound(config("train.patience=2"), lines(None, 10.0, None, None))
    assert progress.best == Chosen(2, 10.0)
    assert progress.is_over


def test_the_tuning_half_is_chosen_by_where_there_is_no_validation_part() -> None:
    settings = parse(override(read_toml("smoke"), ["data.test=tuning", "train.patience=1", "records.metrics=macro_f1"]))
    progress = BestRound(settings, [{"round": 1, "macro_f1": 30.0}, {"round": 2, "macro_f1": 20.0}])
    assert progress.best == Chosen(1, 30.0)
    assert progress.is_over
    assert "on the tuning half of the test" in progress.facts(stops=True)["stopped"]["why"]


def test_a_run_would_have_ended_only_before_its_last_round() -> None:
    """Patience 3 ends it after round 8, patience 2 after round 4: where that is its last round, it has ended so."""
    ended = [end_of_patience(lines(*VALUES[:n]), config("train.patience=3")) for n in (7, 8, 9)]
    assert ended == [None, None, 8]
    assert [end_of_patience(lines(*VALUES[:n]), config("train.patience=2")) for n in (4, 5, 9)] == [None, 4, 4]
    assert end_of_patience(lines(*VALUES), config()) is None  # without patience


@pytest.mark.parametrize("setting", ["records.keep_best=true", "train.patience=5"])
def test_the_reported_test_images_are_rejected(setting: str) -> None:
    with pytest.raises(UserError) as error:
        tiny_config(setting)
    assert "without validation images, only the reported test images could choose a round" in str(error.value)
    assert "\n" not in str(error.value)
    for images in ("data.test=tuning", "data.test=final", "data.validation=0.1"):
        tiny_config(setting, images)


# Runs whose learning is one line of arithmetic, killed at every step on disk.


class ToyEngine(test_resume.ToyEngine):
    def round(self, until: int) -> RoundResult:
        result = super().round(until)
        return result._replace(validation=evaluate.Test(VALUES[result.round - 1], 1.0))


def go(folder: Path, settings: Config, resume: bool = True) -> dict[str, Any]:
    return run_experiment(prepare(settings), folder, Quiet(), resume, make=ToyEngine)


def all_of(run: Path) -> tuple[Any, ...]:
    summary = {k: v for k, v in RunFolder(run).summary().items() if k != "timing"}
    best = run / "model-best.safetensors"
    return outcome(run), summary, best.read_bytes() if best.exists() else None


def test_both_models_are_in_the_folder_each_with_its_round_and_measures(tmp_path: Path) -> None:
    summary = go(tmp_path / "run", config("train.patience=3"), resume=False)
    assert summary["rounds"] == 8
    assert summary["chosen"] == {"round": 5, "by": "validation", "measure": "accuracy", "value": 40.0}
    assert summary["stopped"] == {
        "round": 8,
        "patience": 3,
        "best_round": 5,
        "why": "no better accuracy on the validation part in 3 rounds",
    }
    assert summary["result"] == np.mean([10.0 * r for r in range(1, 9)])  # of the last rounds, and not of the best
    assert "stopped after round 8: no better accuracy" in result_line(tmp_path, summary)
    go(tmp_path / "five", config("train.rounds=5"), resume=False)
    last, best = (load_file(tmp_path / f"run/model{name}.safetensors") for name in ("", "-best"))
    fifth = load_file(tmp_path / "five" / "model.safetensors")
    assert all(torch.equal(best[name], fifth[name]) for name in fifth)
    assert not all(torch.equal(best[name], last[name]) for name in fifth)
    models = RunFolder(tmp_path / "run").measures()["models"]
    assert {name: model["round"] for name, model in models.items()} == {"plain": 8, "best": 5}
    assert models["best"]["test"]["loss"] == pytest.approx(float(fifth["params.w"].sum()))  # as the toy tests
    assert RunFolder(tmp_path / "run").is_finished


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize(
    "arm", [test_resume.before_an_operation, test_resume.in_the_middle_of_a_write], ids=["before", "within"]
)
@pytest.mark.slow
def test_a_kill_at_any_step_on_disk_keeps_best_and_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arm: Any, every: int
) -> None:
    settings = config("train.patience=3", f"records.checkpoint_every={every}")
    prepared = prepare(settings)
    monkeypatch.setattr(
        test_resume, "go", lambda folder: run_experiment(prepared, folder, Quiet(), True, make=ToyEngine)
    )
    monkeypatch.setattr(
        "os.fsync", test_resume.FLUSH if arm is test_resume.in_the_middle_of_a_write else lambda f: None
    )
    go(tmp_path / "unbroken", settings, resume=False)
    expected = all_of(tmp_path / "unbroken")
    for number in range(0, 1000, 5):
        folder = tmp_path / "run"
        if not test_resume.killed_at(number, folder, arm):
            break
        run_experiment(prepared, folder, Quiet(), True, make=ToyEngine)
        assert all_of(folder) == expected, number
        shutil.rmtree(folder)
    assert number > 40


def test_a_run_that_stopped_is_done_and_resumes_with_more_patience(tmp_path: Path) -> None:
    short, long = config("train.patience=3"), config("train.patience=4")
    go(tmp_path / "run", short, resume=False)
    stopped = PlannedRun("run", prepare(short), tmp_path / "run")
    assert is_done(stopped, may_skip=True, resume=True)
    assert stopped_text(stopped) == " after round 8, by train.patience = 3; it continues with a larger one"
    assert not is_done(PlannedRun("run", prepare(long), tmp_path / "run"), may_skip=True, resume=True)
    summary = go(tmp_path / "run", long)
    assert (summary["rounds"], summary["chosen"]["round"]) == (9, 9)
    assert "stopped" not in summary
    go(tmp_path / "unbroken", long, resume=False)
    assert records(tmp_path / "run") == records(tmp_path / "unbroken")
    models = (load_file(tmp_path / run / "model-best.safetensors") for run in ("run", "unbroken"))
    one, other = models
    assert all(torch.equal(one[name], other[name]) for name in one | other)


def test_a_run_that_resumes_shows_nothing_of_its_earlier_end(tmp_path: Path) -> None:
    """Its summary says that it stopped after round 8, and what was the best round then."""
    go(tmp_path / "run", config("train.patience=3"), resume=False)
    console = Console(file=StringIO(), width=200, record=True)
    print_run(console, tmp_path / "run")
    assert "stopped after round 8" in console.export_text()
    folder = RunWriter(RunFolder(tmp_path / "run"))
    folder.renew(prepare(config("train.patience=4")).config)  # as a start does before its rounds
    print_run(console, tmp_path / "run")
    shown = console.export_text()
    assert "unfinished: 8 of 9 rounds" in shown
    assert "stopped" not in shown
    assert "validation part" not in shown


def test_less_patience_than_a_run_had_is_rejected(tmp_path: Path) -> None:
    """With 2 it would have ended after an earlier round: settings and record would not be of one run."""
    go(tmp_path / "run", config("train.patience=3"), resume=False)
    kept = (tmp_path / "run/config.toml").read_text()
    with pytest.raises(UserError, match=r"train.patience = 2: \S+ has 8 rounds, but would have stopped after round 4"):
        go(tmp_path / "run", config("train.patience=2"))
    assert (tmp_path / "run/config.toml").read_text() == kept


def test_a_run_that_stopped_early_is_compared_as_a_whole_one(tmp_path: Path) -> None:
    """One stops after round 8 of 9; a third is killed there, and is not as far as the others."""
    for name, patience in {"stopped": 3, "whole": 4, "cut": 5}.items():
        go(tmp_path / name, config(f"train.patience={patience}"), resume=False)
    (tmp_path / "cut" / "summary.json").unlink()
    record = tmp_path / "cut" / "rounds.jsonl"
    record.write_text("".join(record.read_text().splitlines(keepends=True)[:8]))
    runs = {run.path.name: [run] for run in find_runs([tmp_path]).runs}
    assert {name: seeds_text(runs[name]) for name in runs} == {"cut": "7*", "stopped": "7", "whole": "7"}
    assert {*rivals(runs)} == {"stopped", "whole"}
    assert {name: run.reached for name, (run,) in runs.items()} == {"cut": 8, "stopped": 9, "whole": 9}
    assert {name: run.has_end for name, (run,) in runs.items()} == {"cut": False, "stopped": True, "whole": True}


# The validation part.


def test_no_client_trains_on_the_validation_part(tiny_data: Dataset) -> None:
    """8 labels of each of 4 classes: a quarter of them is 2 of each."""
    plain = Federation(prepare(tiny_config(), tiny_data))
    federation = Federation(prepare(tiny_config("data.validation=0.25"), tiny_data))
    held = federation.holdings.held_out
    assert np.bincount(tiny_data.train.labels[held]).tolist() == [2, 2, 2, 2]
    for before, after in zip(plain.sites, federation.sites, strict=True):
        assert not np.isin(after.pool, held).any()
        assert after.labeled.tolist() == [row for row in before.labeled if row not in held]
        assert after.pool.tolist() == [row for row in before.pool if row not in held]
        assert len(after.labeled) >= 1
    assert federation.holdings.labeled is not None
    assert federation.holdings.labeled.sum() == 24


def test_with_the_final_half_the_tuning_half_is_the_validation_part(tiny_data: Dataset) -> None:
    """One run says what a choice goes by and what is reported; a validation part of one's own comes first."""
    settings = {"tuning": ["data.test=tuning"], "final": ["data.test=final"]}
    settings["held"] = ["data.test=final", "data.validation=0.25"]
    rounds = {}
    for name, given in settings.items():
        federation = Federation(prepare(tiny_config(*given), tiny_data))
        (rounds[name],) = LocalEngine(federation).rounds(1)
        assert len(federation.holdings.held_out) == (8 if name == "held" else 0)
    tested, final = rounds["tuning"].tests["train_norm"], rounds["final"]
    assert rounds["tuning"].validation is None
    assert final.validation == tested
    assert final.tests["train_norm"].loss != tested.loss
    assert rounds["held"].validation not in (None, tested)
    settings_final = tiny_config("data.test=final", "train.patience=2")
    assert BestRound(settings_final, lines(30.0, 20.0, 10.0)).best == Chosen(1, 30.0)


def test_the_validation_part_is_drawn_by_the_seed_of_the_partition(tiny_data: Dataset) -> None:
    def held(*settings: str) -> list[int]:
        federation = Federation(prepare(tiny_config("data.validation=0.25", *settings), tiny_data))
        return list(federation.holdings.held_out)

    assert held() == held("seed=99")
    assert held() != held("partition.seed=1")


def test_a_part_of_few_labels_is_rejected_only_if_it_would_be_empty(tiny_data: Dataset) -> None:
    few = tiny_config("data.validation=0.001", "data.labels_per_class=2", "partition.kind=iid", "partition.clients=4")
    assert len(Federation(prepare(few, tiny_data)).holdings.held_out) == 4  # one of each class
    single = tiny_config("data.validation=0.5", "data.labels_per_class=1", "partition.kind=iid", "partition.clients=4")
    with pytest.raises(UserError, match="too few labeled images"):
        Federation(prepare(single, tiny_data))


@pytest.mark.slow
def test_what_is_recorded_of_the_validation_part_is_its_test(tmp_path: Path, tiny_data: Dataset) -> None:
    """A real run: the line's numbers are those of the kept model on the held out images, and resume keeps them."""
    settings = tiny_config("data.validation=0.25", "records.keep_best=true", "train.rounds=3")
    experiment = prepare(settings, tiny_data)
    run_experiment(experiment, tmp_path / "run", Quiet())
    folder, found = RunFolder(tmp_path / "run"), records(tmp_path / "run")
    best = max(found, key=lambda line: (line["validation"]["accuracy"], -line["round"]))
    summary, models = folder.summary(), folder.measures()["models"]
    assert summary["chosen"]["round"] == best["round"] == models["best"]["round"]
    assert models["best"]["validation"] == best["validation"]
    assert models["best"]["test"]["accuracy"] == best["accuracy"]
    assert models["plain"]["validation"] == found[-1]["validation"]
    assert sum(map(sum, models["best"]["test"]["confusion"])) == len(tiny_data.test.labels)
    facts = json.loads(json.dumps(folder.measures()))
    shorter = prepare(tiny_config("data.validation=0.25", "records.keep_best=true", "train.rounds=2"), tiny_data)
    run_experiment(shorter, tmp_path / "resumed", Quiet())
    run_experiment(experiment, tmp_path / "resumed", Quiet(), resume=True)
    assert RunFolder(tmp_path / "resumed").measures() == facts
    assert all_of(tmp_path / "resumed")[0] == outcome(tmp_path / "run")
