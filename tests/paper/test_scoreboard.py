"""The scoreboard: which of the paper's numbers were run, and how far they are apart; all known beforehand."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from fssl.paper.fill import fill_tables
from fssl.paper.published import paper_tables
from fssl.paper.scoreboard import (
    FAR,
    Scoreboard,
    ScoredNumber,
    board_remarks,
    dot_styles,
    draw_board,
    markdown_board,
    scoreboard,
    side_by_side,
    texts,
)
from fssl.paper.setups import changes_since
from fssl.paper.tables import make_tables
from fssl.reports.drawing import settings
from fssl.reports.runs import find_runs
from helpers.run_folders import config_of, write_run

pytest.importorskip("matplotlib")
PAPER_NUMBERS = 408  # of Tables 1 to 8, those that are printed twice counted once, targets not reached left out


def add(folder: Path, name: str, last: float, *given: str, seed: int = 7, rounds: int = 500) -> None:
    """A run on CIFAR-100 at alpha 0.1: its last ten rounds are at one number, all before at 10 %."""
    config = config_of("protocol=authors", "partition.alpha=0.1", f"seed={seed}", f"train.rounds={rounds}", *given)
    write_run(folder / name, config, [10.0] * (rounds - 10) + [last] * 10)


def board_of(folder: Path) -> Scoreboard:
    return scoreboard(fill_tables(find_runs([folder])).tables)


def accuracies(board: Scoreboard) -> dict[str, ScoredNumber]:
    return {score.row.name: score for score in board.scores if score.column.target is None}


def test_the_noise_is_the_limit_on_both_sides(tmp_path: Path) -> None:
    """The paper prints 49.32, 48.96 and 54.18 at alpha 0.1, and FedAvg 34.08, FedLabel 50.88."""
    add(tmp_path, "a", 50.47, "method.name=fixmatch-lpl")
    add(tmp_path, "b", 47.80, "method.name=fixmatch-gpl")
    add(tmp_path, "c", 53.03)
    add(tmp_path, "d", 34.37, "method.name=fedavg")
    add(tmp_path, "e", 50.58, "method.name=fedlabel")
    found = accuracies(board_of(tmp_path))
    assert {name: round(score.difference, 2) for name, score in found.items()} == {
        "FixMatch-LPL": 1.15,
        "FixMatch-GPL": -1.16,
        "SAGE": -1.15,
        "FedAvg": 0.29,
        "FedLabel": -0.3,
    }
    assert {name: texts(score)[5] for name, score in found.items()} == {
        "FixMatch-LPL": "0.3 to 1.15",
        "FixMatch-GPL": "above 1.15",
        "SAGE": "0.3 to 1.15",
        "FedAvg": "below 0.3",
        "FedLabel": "0.3 to 1.15",
    }
    assert {name: score.agrees for name, score in found.items()} == {
        "FixMatch-LPL": True,
        "FixMatch-GPL": False,
        **dict.fromkeys(("SAGE", "FedAvg", "FedLabel"), True),
    }


def test_seeds_are_a_mean_with_its_spread(tmp_path: Path) -> None:
    for seed, last in ((7, 54.0), (8, 55.0), (9, 56.0)):
        add(tmp_path, str(seed), last, seed=seed)
    score = accuracies(board_of(tmp_path))["SAGE"]
    paper = ["CIFAR-100, α = 0.1, 10 % labels", "SAGE", "54.18"]
    assert texts(score) == [*paper, "55.00 ± 1.00", "+0.82", "0.3 to 1.15", "7, 8, 9", "unknown"]


def test_a_number_that_is_printed_in_several_tables_counts_once(tmp_path: Path) -> None:
    """SAGE at alpha 0.1 stands in Tables 1, 3, 4 and 5, and FedAvg-SL in 1 and 8 though labels differ there."""
    add(tmp_path, "a", 54)
    add(tmp_path, "b", 68, "method.name=fedavg-sl")
    board = board_of(tmp_path)
    assert board.total == PAPER_NUMBERS
    assert [(score.table.number, score.row.name) for score in board.scores if score.column.target is None] == [
        (1, "FedAvg-SL"),
        (1, "SAGE"),
    ]


def test_rounds_to_an_accuracy_are_held_against_the_accuracy_in_that_round(tmp_path: Path) -> None:
    """SAGE has 30 % in round 60 and 40 % in round 124 of the paper; here 10 % in one, and 124 is not reached."""
    curve = [10.0] * 59 + [30.4] + [20.0] * 63
    write_run(tmp_path / "a", config_of("protocol=authors", "partition.alpha=0.1", "train.rounds=123"), curve)
    (score,) = board_of(tmp_path).scores
    assert (score.column.target, score.printed, score.ours, score.agrees) == (30, 60, (30.4,), True)
    assert texts(score)[2:6] == ["30 % after 60", "30.40", "+0.40", "0.3 to 1.15"]
    lines = (tmp_path / "a/rounds.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "a/rounds.jsonl").write_text("".join([*lines[:59], "half\n", *lines[60:]]))
    assert board_of(tmp_path).scores == []  # no other round stands for one that is lost


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        (["train.precision=bf16"], True),
        (["model.width=1"], False),
        (["protocol=clean"], False),
        (["train.local_epochs=1"], False),
    ],
)
def test_only_runs_of_the_papers_setting_count_but_for_rounding(tmp_path: Path, given: list[str], counts: bool) -> None:
    add(tmp_path, "a", 54, *given)
    assert ("SAGE" in accuracies(board_of(tmp_path))) == counts


def test_short_runs_do_not_count_even_where_tables_show_them(tmp_path: Path) -> None:
    add(tmp_path, "a", 54, rounds=499)
    assert accuracies(board_of(tmp_path)) == {}
    console = Console(file=io.StringIO(), width=80)
    make_tables(console, [tmp_path], tmp_path / "out", short=True)
    rows = [
        line for line in (tmp_path / "out" / "tables.md").read_text().splitlines() if line.startswith("| SAGE | ours")
    ]
    assert "54.00" in rows[0]


def test_the_sentence_and_the_page(tmp_path: Path) -> None:
    add(tmp_path, "a", 54)
    add(tmp_path, "b", 40, "method.name=fixmatch-lpl")
    board = board_of(tmp_path)
    assert board.sentence() == (
        f"The paper prints {PAPER_NUMBERS} different numbers. For 9 of them our runs reached the paper's round under "
        "its protocol (`authors`). Repeated runs of one seed differ by 0.3 to 1.15 points. Differences from the paper: "
        "below 0.3: 1; 0.3 to 1.15: 0; above 1.15: 8."
    )
    page = markdown_board(board, "scoreboard.png")
    assert (
        "| CIFAR-100, α = 0.1, 10 % labels | SAGE | 54.18 | 54.00 | −0.18 | below 0.3 | 7 | unknown |"
        in page.splitlines()
    )
    assert "![The paper's numbers and ours](scoreboard.png)" in page
    console = Console(file=io.StringIO(), width=80)
    make_tables(console, [tmp_path], tmp_path / "out")
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert re.search(r"^ SAGE +54\.18 +54\.00 +−0\.18 +below 0\.3 +7 +unknown *$", said, re.M)
    assert "where the paper prints the round of an accuracy, ours in that round." in said
    assert (tmp_path / "out" / "tables.md").read_text().split("\n\n")[1] == board.sentence()


def begin(folder: Path, *starts: tuple[str, str | None]) -> None:
    """Record when a run was started, and with which revision."""
    sessions = [{"from_round": 1 + 100 * i, "started": t, "revision": r} for i, (t, r) in enumerate(starts)]
    (folder / "env.json").write_text(json.dumps({"sessions": sessions}))


BEFORE, AFTER = "2026-11-16T11:30:50Z", "2026-11-16T11:30:51Z"  # the guard in L_u, commit 736bcc5
OLDER = "begun before commit 736bcc5, without the released guard in the logarithm of L_u"


def test_commits_are_printed_with_the_numbers(tmp_path: Path) -> None:
    """Two seeds of two commits, one of them resumed with a third, from a tree with changes."""
    for seed in (7, 8):
        add(tmp_path, str(seed), 54, seed=seed)
    begin(tmp_path / "7", (AFTER, "a" * 40))
    begin(tmp_path / "8", (AFTER, "b" * 40), (AFTER, "c" * 40 + "+"))
    found = find_runs([tmp_path])
    score = accuracies(scoreboard(fill_tables(found).tables))["SAGE"]
    assert texts(score)[-1] == "aaaaaaa, bbbbbbb, ccccccc+"
    cell = next(line for line in fill_tables(found).tables[0].lines if (line.row, line.source) == ("SAGE", "authors"))
    assert cell.cells[3] is not None
    assert cell.cells[3].marks == ("2 of 3 seeds", "runs of several commits: aaaaaaa, bbbbbbb, ccccccc+")
    assert "Several commits: " in board_remarks(board_of(tmp_path))[0]
    make_tables(Console(file=io.StringIO()), [tmp_path], tmp_path / "out")
    assert f"- `{tmp_path}/8`: `bbbbbbb`, `ccccccc+`" in (tmp_path / "out" / "tables.md").read_text().splitlines()
    row = next(r for r in csv.DictReader((tmp_path / "out" / "tables.csv").open()) if r["source"] == "authors")
    assert row["commits"] == "aaaaaaa bbbbbbb ccccccc+"


@pytest.mark.parametrize(
    ("started", "given", "is_older"),
    [
        (BEFORE, [], True),
        (AFTER, [], False),
        (BEFORE, ["method.name=flexmatch"], True),
        (BEFORE, ["method.name=fedavg"], False),
        (BEFORE, ["method.name=fedmatch"], False),
        (BEFORE, ["protocol=clean"], False),
    ],
)
def test_a_record_from_before_a_change_of_results_is_marked(
    tmp_path: Path, started: str, given: list[str], is_older: bool
) -> None:
    add(tmp_path, "a", 54, *given)
    begin(tmp_path / "a", (started, "a" * 40))
    (run,) = find_runs([tmp_path]).runs
    assert changes_since((run,)) == [OLDER] * is_older
    cells = [c for t in fill_tables(find_runs([tmp_path])).tables for x in t.lines for c in x.cells if c and c.runs]
    assert {OLDER in cell.marks for cell in cells} == {is_older}


def test_where_only_some_seeds_are_older_the_remark_names_them(tmp_path: Path) -> None:
    for seed, started in ((9, AFTER), (8, BEFORE), (7, BEFORE)):
        add(tmp_path, str(seed), 54, seed=seed)
        begin(tmp_path / str(seed), (started, "a" * 40))
    assert changes_since(find_runs([tmp_path]).runs) == [f"seeds 7, 8 {OLDER}"]
    assert board_remarks(board_of(tmp_path)) == [f"SAGE on CIFAR-100: seeds 7, 8 {OLDER}."]
    begin(tmp_path / "8", (AFTER, "a" * 40))
    assert changes_since(find_runs([tmp_path]).runs) == [f"seed 7 {OLDER}"]


@pytest.mark.parametrize(
    ("given", "remarks"),
    [
        (["method.name=feddb"], ["begun before views had separate passes: in one joint batch"]),
        (["method.name=feddb", "method.passes=joint"], []),
        (["method.name=fedlabel-2m"], ["begun before views had separate passes: in one joint batch"]),
        (["method.name=fedloke"], ["begun before the ramp began at 0: a round ahead of it"]),
        (["method.name=fedloke", "method.ramp_rounds=0"], []),
    ],
)
def test_methods_that_follow_released_code_more_closely_now(
    tmp_path: Path, given: list[str], remarks: list[str]
) -> None:
    add(tmp_path, "a", 54, "protocol=clean", *given)
    for started, expected in (("2026-11-16T14:59:59Z", remarks), ("2026-11-16T15:00:00Z", [])):
        begin(tmp_path / "a", (started, "a" * 40))
        (run,) = find_runs([tmp_path]).runs
        assert changes_since((run,)) == expected


def test_a_run_that_was_begun_before_and_resumed_after_is_older(tmp_path: Path) -> None:
    add(tmp_path, "a", 54)
    begin(tmp_path / "a", (BEFORE, "a" * 40), (AFTER, "b" * 40))
    assert board_remarks(board_of(tmp_path))[-1] == f"SAGE on CIFAR-100: {OLDER}."


def test_nothing_to_compare_is_said_and_not_drawn(tmp_path: Path) -> None:
    add(tmp_path, "a", 54, "protocol=clean")
    make_tables(Console(file=io.StringIO()), [tmp_path], tmp_path / "out")
    assert "For 0 of them our runs reached" in (tmp_path / "out" / "tables.md").read_text()
    assert not (tmp_path / "out" / "scoreboard.png").exists()


# The picture.


def test_a_dot_stands_at_the_papers_number_and_ours(tmp_path: Path) -> None:
    """Filled where they agree; the legend names a method once."""
    add(tmp_path, "a", 54)
    add(tmp_path, "b", 40, "method.name=fixmatch-lpl")
    board = board_of(tmp_path)
    with settings():
        figure = draw_board(board)
    both, apart = figure.axes
    dots = {
        (*map(float, (*line.get_xdata(), *line.get_ydata())),): line
        for line in both.lines
        if len(line.get_xdata()) == 1
    }
    assert set(dots) == {(score.expected, score.ours[0]) for score in board.scores}
    assert dots[54.18, 54.0].get_markerfacecolor() == dots[54.18, 54.0].get_color()
    assert dots[49.32, 40.0].get_markerfacecolor() == "white"
    heights = {round(float(line.get_ydata()[0]), 2) for line in apart.lines if len(line.get_xdata()) == 1}
    assert heights == {round(max(score.difference, -FAR), 2) for score in board.scores}
    assert "−9.3" in {text.get_text().strip() for text in apart.texts}, "what is farther away has its number"
    assert all(both.get_ylim()[0] <= height <= both.get_ylim()[1] for _, height in dots)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["FixMatch-LPL", "SAGE"]


def test_dots_of_a_method_and_its_plug_in_have_other_markers() -> None:
    """In lines a dash distinguishes them; SAGE's ablations also share a dash."""
    rows = {row.name: row for table in paper_tables() for row in table.rows}
    looks = dot_styles([*rows.values(), *rows.values()])
    assert {"FedAvg+FlexMatch", "FlexMatch + SAGE"} <= set(looks)
    assert len({(look.color, look.marker) for look in looks.values()}) == len(rows)


def test_dots_of_one_number_stand_side_by_side(tmp_path: Path) -> None:
    """Two methods have a printed round for 30 %, 40 % and 45 %, and one alone stands at its place."""
    add(tmp_path, "a", 54)
    add(tmp_path, "b", 40, "method.name=fixmatch-lpl")
    aside = {(score.row.name, score.expected): step for score, step in side_by_side(board_of(tmp_path).scores)}
    assert aside["SAGE", 54.18] == 0
    assert aside["SAGE", 30] == -aside["FixMatch-LPL", 30] != 0
