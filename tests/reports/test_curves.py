"""Means and spreads by round, against numbers worked out by hand; the page only draws them."""

from math import nan
from pathlib import Path

import numpy as np
import pytest

from fssl.reports.page import live
from fssl.reports.page.content import content, over_seeds
from fssl.reports.page.live import Watcher
from fssl.reports.runs import find_runs
from helpers.handmade import append, write_run
from helpers.run_folders import write_settings

SAGE, LPL = 'method.name="sage"', 'method.name="fixmatch-lpl"'


def test_a_round_counts_the_seeds_that_have_it() -> None:
    """10, 14, 12 deviate by -2, 2, 0: the variance is 8 / 2. 20 and 26 deviate by 3 each: it is 18 / 1."""
    series = [np.array([10.0, 20.0, nan, 40.0]), np.array([14.0, nan, nan]), np.array([12.0, 26.0])]
    assert over_seeds(series, 3) == {
        "mean": [12.0, 23.0, None, 40.0],
        "std": [2.0, 4.24, None, None],
        "seeds": [3, 2, 0, 1],
    }


@pytest.mark.parametrize(
    ("low", "high", "std"),
    [
        (0.0, 2.0, 1.41),  # the difference by the square root of 2
        (0.0, 0.002, 0.00141),
        (1000.0, 3000.0, 1410.0),
        (0.1, 0.1, 0.0),
        (0.3, 0.1 + 0.2, 0.0),  # as near as numbers of a computer come
    ],
)
def test_a_standard_deviation_has_three_digits(low: float, high: float, std: float) -> None:
    assert over_seeds([np.array([low]), np.array([high])], 3)["std"] == [std]


def test_one_seed_has_no_spread() -> None:
    assert over_seeds([np.array([50.0, 60.12345])], 3) == {
        "mean": [50.0, 60.123],
        "std": [None, None],
        "seeds": [1, 1],
    }


def test_a_line_has_the_curves_of_its_runs(tmp_path: Path) -> None:
    """Shares become percent; a quantity that one seed has is that seed's, and one that none has is not there."""
    first = write_run(tmp_path / "7", [50.0, 60.0], SAGE, "seed=7", pl_accuracy=[None, 0.5], loss_u=[1.5, 1.25])
    second = write_run(tmp_path / "8", [51.0, 64.0], SAGE, "seed=8", pl_accuracy=[0.25, 0.6])
    other = write_run(tmp_path / "9", [30.0, 31.0], LPL, "seed=9")
    curves = content(find_runs([other, second, first]), "")["curves"]
    assert set(curves) == {str(first), str(other)}
    assert set(curves[str(other)]) == {"accuracy", "seconds"}
    seconds = {"mean": [0.5, 1.0], "std": [0.0, 0.0], "seeds": [2, 2]}
    assert curves[str(first)] == {
        "accuracy": {"mean": [50.5, 62.0], "std": [0.707, 2.83], "seeds": [2, 2]},  # 1 and 4 by the root of 2
        "pl_accuracy": {"mean": [25.0, 55.0], "std": [None, 7.07], "seeds": [1, 2]},
        "loss_u": {"mean": [1.5, 1.25], "std": [None, None], "seeds": [1, 1]},
        "seconds": seconds,
    }


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two seeds of a method and one of another."""
    monkeypatch.setattr(live, "FRESH", 0.0)
    for name, method, accuracy in (("7", SAGE, 50.0), ("8", SAGE, 60.0), ("9", LPL, 30.0)):
        write_run(tmp_path / name, [accuracy], method, f"seed={name}", "train.rounds=2")
    return tmp_path


def test_the_page_hears_of_lines_with_new_rounds_only(runs: Path) -> None:
    watcher = Watcher([runs])
    first = watcher.changes(-1)
    assert set(first["curves"]) == {str(runs / "7"), str(runs / "9")}
    append(runs / "8", 2, 70.0)
    second = watcher.changes(first["version"])
    assert list(second["runs"]) == [str(runs / "8")]
    assert list(second["curves"]) == [str(runs / "7")]
    accuracy = second["curves"][str(runs / "7")]["accuracy"]
    assert accuracy == {"mean": [55.0, 70.0], "std": [7.07, None], "seeds": [2, 1]}


@pytest.mark.parametrize("gone", ["7", "8"])
def test_a_line_that_lost_a_run_is_averaged_anew(runs: Path, gone: str) -> None:
    watcher = Watcher([runs])
    first = watcher.changes(-1)
    (runs / gone).rename(runs.with_name(f"{runs.name}-gone"))
    second = watcher.changes(first["version"])
    assert second["runs"] == {}
    ((name, curves),) = second["curves"].items()
    left, accuracy = {"7": ("8", 60.0), "8": ("7", 50.0)}[gone]
    assert name == str(runs / left)
    assert curves["accuracy"] == {"mean": [accuracy], "std": [None], "seeds": [1]}


def test_a_run_that_moves_to_another_line_leaves_its_own(runs: Path) -> None:
    watcher = Watcher([runs])
    first = watcher.changes(-1)
    write_settings(runs / "7", (runs / "9/config.toml").read_text().replace("seed = 9", "seed = 7"))
    second = watcher.changes(first["version"])
    assert {name: curves["accuracy"]["mean"] for name, curves in second["curves"].items()} == {
        str(runs / "7"): [40.0],
        str(runs / "8"): [60.0],
    }
