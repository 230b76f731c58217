"""What the page's script shows of records, by its values; test_browser.py looks at the page in a real browser."""

import os
from pathlib import Path
from typing import Any

import pytest

from fssl.records.sealing import write_facts
from fssl.reports.page.content import content
from fssl.reports.runs import find_runs
from helpers.handmade import write_run
from helpers.page_script import DENO, shown

pytestmark = pytest.mark.skipif(not os.access(DENO, os.X_OK), reason="Deno is not installed")
SAGE, LPL = 'method.name="sage"', 'method.name="fixmatch-lpl"'


def page(folder: Path, *places: str) -> dict[str, Any]:
    return shown(content(find_runs([folder]), "page"), *places)


def sites(part: str, *accuracies: object) -> dict[str, Any]:
    return {part: {"clients": {str(k): {"images": 5, "accuracy": each} for k, each in enumerate(accuracies)}}}


def test_accuracy_by_site_is_that_of_the_newest_round_that_measured_it(tmp_path: Path) -> None:
    newest = sites("test", 30.0, 50.0) | sites("validation", 1.0, 1.0)
    first = write_run(tmp_path / "a", [50.0, 60.0], SAGE, "seed=7", sites=[sites("test", 10.0, 20.0), None])
    write_run(tmp_path / "b", [50.0, 60.0], SAGE, "seed=8", sites=[sites("test", 1.0, 2.0), newest])
    validated = sites("validation", 40.0, "damaged", 70.0)
    write_run(tmp_path / "c", [40.0], LPL, "train.rounds=2", sites=[validated])
    write_facts(first / "partition.json", {"labeled": [[1], [1], [1]], "unlabeled": [[1], [1], [1]], "names": [*"ABC"]})
    found = page(tmp_path, "sites", "sites-about")
    assert found["hidden"] == {"sites": False, "sites-about": False}
    chart = found["drawn"]["plot-sites"]
    assert [(t["x"], t["y"], t["text"]) for t in chart["traces"]] == [
        ([0, 1], [20.0, 35.0], ["A", "B"]),
        ([0, 2], [40.0, 70.0], ["A", "C"]),
    ]
    assert chart["traces"][1]["hovertemplate"] == "%{text}: %{y:.2f} % of its validation images"
    assert (chart["extra"]["xaxis"]["ticktext"], chart["extra"]["xaxis"]["title"]["text"]) == ([*"ABC"], "site")
    assert found["words"]["sites-about"] == "SAGE: lowest 20.00 % (A); FixMatch-LPL: lowest 40.00 % (A)"


@pytest.mark.parametrize("damaged", [None, 3, {"test": 3}, {"test": {"clients": [1]}}, sites("test"), sites("x", 1.0)])
def test_without_measures_by_site_there_is_no_such_picture(damaged: object, tmp_path: Path) -> None:
    write_run(tmp_path / "a", [50.0], SAGE, sites=[damaged])
    found = page(tmp_path, "sites")
    assert found["hidden"]["sites"]
    assert "plot-sites" not in found["drawn"]


def confusion(folder: Path, table: list[list[int]], names: list[str]) -> None:
    classes = f"data.classes={names}".replace("'", '"')
    run = write_run(folder / "a", [50.0], SAGE, 'data.name="folder"', 'data.dir="x"', classes)
    write_facts(run / "measures.json", {"models": {"plain": {"round": 1, "test": {"confusion": table}}}})


def test_a_confusion_matrix_cuts_long_class_names_on_its_axes_only(tmp_path: Path) -> None:
    long = "squamous cell carcinoma"
    confusion(tmp_path, [[3, 1], [2, 2]], ["nevus", long])
    chart = page(tmp_path)["drawn"]["plot-confusion"]
    for axis in ("xaxis", "yaxis"):
        assert chart["extra"][axis]["ticktext"] == ["nevus", "squamous cell…"]
        assert chart["extra"][axis]["tickvals"] == [0, 1]
    assert chart["extra"]["xaxis"]["tickangle"] == -45
    wrong, right = chart["traces"]
    assert (wrong["z"], right["z"]) == ([[None, 25], [50, None]], [[75, None], [None, 50]])
    assert wrong["hovertext"][0][1] == f"true class nevus, predicted {long}"
    assert wrong["text"] == [["75", "25"], ["50", "50"]]


def test_of_many_classes_every_second_has_a_name_on_an_axis(tmp_path: Path) -> None:
    table = [[int(i == j) for j in range(60)] for i in range(60)]
    confusion(tmp_path, table, [f"c{i}" for i in range(60)])
    axis = page(tmp_path)["drawn"]["plot-confusion"]["extra"]["yaxis"]
    assert axis["tickvals"] == [*range(0, 60, 2)]
    assert axis["ticktext"][-1] == "c58"


@pytest.mark.parametrize(("tasks", "summary"), [(6, ""), (7, "1 more task"), (8, "2 more tasks")])
def test_tasks_beyond_six_are_folded_and_counted(tasks: int, summary: str, tmp_path: Path) -> None:
    for i in range(tasks):
        write_run(tmp_path / str(i), [50.0], SAGE, f"partition.alpha={i + 1}")
    words = page(tmp_path, "words")["words"]["words"]
    assert summary in words
    assert ("more task" in words) == bool(summary)


def test_the_page_says_where_the_truth_of_pseudo_labels_is_unknown(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [50.0], SAGE, utilization=[0.5])
    chart = page(tmp_path)["drawn"]["plot-classes"]
    assert chart["traces"] == []
    assert chart["words"] == (
        "Nothing to show: the true classes of the unlabeled images are not known, so no pseudo-label can be checked."
    )
    write_run(tmp_path / "known/a", [50.0], SAGE, utilization=[0.5], pl_accuracy=[0.5])
    assert page(tmp_path / "known")["drawn"]["plot-classes"]["words"].startswith("No probes were recorded")
