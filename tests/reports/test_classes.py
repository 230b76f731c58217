"""Classes that only one site has, or that a model never recognizes, are pointed out."""

from pathlib import Path

import pytest

from fssl.cli.options import console
from fssl.records.sealing import write_facts
from fssl.reports.classes import class_remarks
from fssl.reports.page.content import content
from fssl.reports.runs import find_runs
from fssl.reports.show import print_run
from helpers.handmade import write_run

SAGE = 'method.name="sage"'
CLASSES = "data.classes=['cat', 'dog', 'emu']"
OWN = ("data.name='folder'", CLASSES, "data.size=8", "data.channels=1", "data.dir='scans'", "partition.clients=2")


def remarks(folder: Path, partition: dict[str, object], *confusions: list[list[int]]) -> list[str]:
    for seed, confusion in enumerate(confusions or ([[1]],)):
        run = write_run(folder / str(seed), [50.0], SAGE, f"seed={seed}", *OWN)
        write_facts(run / "partition.json", partition)
        write_facts(run / "measures.json", {"models": {"plain": {"round": 1, "test": {"confusion": confusion}}}})
    return class_remarks({"SAGE": find_runs([folder]).runs})


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        ({"labeled": [[1, 2, 0], [3, 0, 0]], "unlabeled": None, "names": ["north", "south"]}, "dog (north)"),
        ({"labeled": [[1, 2, 0], [3, 0, 0]], "unlabeled": [[0, 0, 0], [0, 1, 4]]}, "emu (client 1)"),
    ],
)
def test_a_class_of_one_site_has_its_name(tmp_path: Path, partition: dict[str, object], expected: str) -> None:
    assert remarks(tmp_path, partition) == [f"Classes whose images only one site has: {expected}."]


def test_classes_that_a_server_has_too_are_not_one_sites(tmp_path: Path) -> None:
    """Nor is there anything to say of a federation of one client."""
    assert remarks(tmp_path / "a", {"labeled": [[1, 0, 1], [1, 0, 0]], "unlabeled": None, "server": [0, 2, 1]}) == []
    assert remarks(tmp_path / "b", {"labeled": [[1, 0, 1]], "unlabeled": None}) == []


def test_a_recall_of_zero_is_that_of_all_seeds(tmp_path: Path) -> None:
    """The dog is found in one seed, the emu in none; a class without test images has no recall."""
    every = {"labeled": [[1, 1, 1], [1, 1, 1]], "unlabeled": None}
    first, second = [[5, 0, 0], [2, 0, 1], [3, 1, 0]], [[4, 1, 0], [1, 2, 0], [0, 4, 0]]
    assert remarks(tmp_path, every, first, second) == ["Classes with a recall of 0 in SAGE: emu."]
    assert remarks(tmp_path / "none", every, [[5, 0, 0], [0, 0, 0], [1, 0, 3]]) == []


def test_page_and_terminal_say_it_with_the_names_of_sites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    partition = {"labeled": [[1, 2, 1], [3, 0, 1]], "unlabeled": None, "names": ["north", "south"]}
    remarks(tmp_path, partition)
    print_run(console, tmp_path / "0")
    assert "Classes whose images only one site has: dog (north).\n" in capsys.readouterr().out
    (task,) = content(find_runs([tmp_path]), "mine")["tasks"]
    assert "Classes whose images only one site has: dog (north)." in task["words"]
    assert task["partition"]["names"] == ["north", "south"]
