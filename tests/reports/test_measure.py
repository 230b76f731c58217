"""Runs judged by another measure than accuracy, in `compare`, `show` and on the page."""

import csv
from pathlib import Path

import pytest
from rich.console import Console

from fssl.errors import UserError
from fssl.reports.compare import Files, compare_runs
from fssl.reports.page.live import Watcher
from fssl.reports.page.write import write_page
from fssl.reports.runs import find_runs
from helpers.command import Fssl
from helpers.handmade import write_run

F1 = "records.metrics=macro_f1"


def write_two(root: Path, *settings: str) -> None:
    """SAGE is ahead by accuracy, FedAvg by macro F1."""
    write_run(root / "sage", [60, 62], "method.name=sage", *settings, macro_f1=[30, 32], auroc=[70, 72])
    write_run(root / "fedavg", [50, 52], "method.name=fedavg", *settings, macro_f1=[40, 42], auroc=[60, 62])


def said(capsys: pytest.CaptureFixture[str], root: Path, **options: str) -> str:
    compare_runs(Console(width=200), [root], **options)
    return capsys.readouterr().out


def test_compare_follows_the_settings_of_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_two(tmp_path, F1)
    text = said(capsys, tmp_path)
    assert "fedavg leads sage by 10.00 points" in text
    assert "In percent: test macro F1 (mean of the last 2 rounds; last round)" in text
    assert [run.result for run in find_runs([tmp_path / "sage"]).runs] == [31]
    assert "sage leads fedavg by 10.00 points" in said(capsys, tmp_path, measure="accuracy")


def test_an_option_chooses_among_the_measures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_two(tmp_path)
    assert "sage leads fedavg by 10.00 points" in said(capsys, tmp_path)
    assert "fedavg leads sage by 10.00 points" in said(capsys, tmp_path, measure="macro_f1")
    assert "test AUROC" in said(capsys, tmp_path, measure="auroc")
    for wrong in ("ece", "f1"):  # less of the first is better
        with pytest.raises(UserError, match="--measure"):
            said(capsys, tmp_path, measure=wrong)


def test_runs_without_the_measure_are_left_out_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_two(tmp_path)
    write_run(tmp_path / "old", [55, 55], "method.name=fixmatch-lpl")
    text = said(capsys, tmp_path, measure="macro_f1")
    assert f"left out: {tmp_path / 'old'}: its record has no macro F1" in text
    with pytest.raises(UserError, match="has no macro F1, in none of these runs"):
        said(capsys, tmp_path / "old", measure="macro_f1")


def test_runs_of_several_measures_are_compared_by_accuracy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_two(tmp_path / "f1", F1)
    write_two(tmp_path / "plain", "seed=8")
    text = said(capsys, tmp_path)
    assert "In percent: test accuracy" in text
    assert "different headline measures (accuracy, macro_f1); choose one with --measure" in text
    assert "different headline measures" not in said(capsys, tmp_path, measure="macro_f1")


def test_the_csv_file_has_every_measure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_two(tmp_path / "runs", F1)
    compare_runs(Console(), [tmp_path / "runs"], Files(csv=tmp_path / "runs.csv"))
    rows = {row["method"]: row for row in csv.DictReader((tmp_path / "runs.csv").open())}
    assert {
        name: rows["sage"][name] for name in ("measure", "result", "last", "accuracy", "macro_f1", "auroc", "ece")
    } == {
        "measure": "macro_f1",
        "result": "31.0",
        "last": "32.0",
        "accuracy": "61.0",
        "macro_f1": "31.0",
        "auroc": "71.0",
        "ece": "",
    }


def test_show_names_the_measure_and_the_others(tmp_path: Path, fssl: Fssl) -> None:
    write_two(tmp_path, F1)
    words = fssl("show", tmp_path / "sage").out
    assert "macro F1, mean of the last 2 rounds" in words
    assert "accuracy, mean of the last 2 rounds" in words
    assert "31.00 %" in words
    assert "61.00 %" in words


def test_the_page_ranks_by_the_measure_and_draws_it_first(tmp_path: Path) -> None:
    write_two(tmp_path, F1)
    data = write_page([tmp_path], tmp_path / "report.html")
    assert data["measure"] == "macro F1"
    assert data["quantities"][0]["key"] == "macro_f1"
    assert [group["result"][0] for group in data["tasks"][0]["groups"]] == [41, 31]
    assert [group["last"][0] for group in data["tasks"][0]["groups"]] == [42, 32]
    other = write_page([tmp_path], tmp_path / "report.html", measure="accuracy")
    assert [group["result"][0] for group in other["tasks"][0]["groups"]] == [61, 51]
    with pytest.raises(UserError, match="--measure"):
        write_page([tmp_path], tmp_path / "report.html", measure="speed")


def test_a_live_page_sends_every_run_again_when_the_measure_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fssl.reports.page.live.FRESH", -1)
    write_two(tmp_path, F1)
    watcher = Watcher([tmp_path])
    first = watcher.changes(-1)
    assert first["runs"][str(tmp_path / "sage")]["result"] == 31
    write_run(tmp_path / "other", [55, 55], "method.name=fixmatch-lpl")  # judged by accuracy
    news = watcher.changes(first["version"])
    assert {path: run["result"] for path, run in news["runs"].items()} == {
        str(tmp_path / "sage"): 61,
        str(tmp_path / "fedavg"): 51,
        str(tmp_path / "other"): 55,
    }


def test_the_page_leaves_out_a_run_without_the_measure(tmp_path: Path) -> None:
    write_two(tmp_path)
    write_run(tmp_path / "old", [55, 55], "method.name=fixmatch-lpl")
    data = write_page([tmp_path], tmp_path / "report.html", measure="auroc")
    assert [*data["runs"]] == [str(tmp_path / name) for name in ("fedavg", "sage")]
    assert f"left out: {tmp_path / 'old'}: its record has no AUROC" in data["notes"]
    assert len(write_page([tmp_path], tmp_path / "report.html")["runs"]) == 3
    with pytest.raises(UserError, match="its record has no AUROC, in none of these runs"):
        write_page([tmp_path / "old"], tmp_path / "report.html", measure="auroc")
