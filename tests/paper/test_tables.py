"""The paper's tables from a handful of made-up runs: every number, rank, mark and count is known beforehand."""

import csv
import io
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from fssl.config import to_toml
from fssl.errors import UserError
from fssl.paper.fill import GAIN_ROW, FilledTable, SourceLine, TableCell, Tables, best_cell, fill_tables
from fssl.paper.markup import cell_text, grid, latex_float, markdown_page, numbers_csv, on_terminal, section, signed
from fssl.paper.published import End
from fssl.paper.tables import Shown, make_tables
from fssl.records.accepted import accept
from fssl.records.store import RunFolder
from fssl.reports.formats import LATEX, letter
from fssl.reports.runs import find_runs
from helpers.run_folders import config_of, lines_of, write_lines, write_run, write_settings

ALPHA = "partition.alpha=0.1"


def curve(last: float, rounds: int = 500) -> list[float]:
    """Low, then ten rounds around a value: their mean is the value, the last round is not."""
    return [10.0] * (rounds - 10) + [last - 1] * 5 + [last + 1] * 5


def tables_of(folder: Path, short: bool = False) -> Tables:
    return fill_tables(find_runs([folder]), short)


def table(result: Tables, number: int) -> FilledTable:
    return next(t for t in result.tables if t.table.number == number)


def line(filled: FilledTable, row: str, source: str = "authors") -> SourceLine:
    return next(x for x in filled.lines if (x.row, x.source) == (row, source))


def cell(filled: FilledTable, row: str, column: int, source: str = "authors") -> TableCell:
    found = line(filled, row, source).cells[column]
    assert found is not None
    return found


def add(folder: Path, name: str, last: float, *settings: str, seed: int = 7, rounds: int = 500) -> Path:
    config = config_of("protocol=authors", ALPHA, f"seed={seed}", *settings)
    return write_run(folder / name, config, curve(last, rounds))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four methods on CIFAR-100, alpha 0.1, three seeds; SAGE is not ahead."""
    folder = tmp_path_factory.mktemp("three")
    finals = {"sage": (50, 51, 52), "fixmatch-lpl": (51, 52, 53), "fixmatch-gpl": (40, 41, 42), "fedavg-sl": (70,) * 3}
    for method, values in finals.items():
        for seed, value in zip((7, 8, 9), values, strict=True):
            add(folder, f"x{method}{seed}", value, f"method.name={method}", seed=seed)
    return folder


def test_names_of_others_are_text_on_the_page(tmp_path: Path) -> None:
    add(tmp_path, "a|b`c<script>d\n# e\x1b[31m", 50, "partition.kind=dirichlet")
    result = tables_of(tmp_path)
    page = markdown_page(result._replace(unused={**result.unused, Path("x"): "<script>|`[a](b)\n# f"}))
    shown = rf"- `` {tmp_path}/a|b`c<script>d\n# e\x1b[31m ``: no table has partition.kind = dirichlet"
    assert shown in page.splitlines()
    assert r"- `x`: &lt;script&gt;\|\`\[a\](b)\\n# f" in page.splitlines()
    assert "\x1b" not in page


# Numbers.


def test_a_cell_is_the_mean_of_the_last_ten_rounds_over_seeds(three: Path) -> None:
    sage = cell(table(tables_of(three), 1), "SAGE", 3)
    assert sage.value == pytest.approx(51)  # of the last rounds alone it would be 52
    assert sage.std == pytest.approx(1)
    assert [run.config.seed for run in sage.runs] == [7, 8, 9]
    assert sage.marks == ()


def test_ranks_leave_out_the_upper_bound(three: Path) -> None:
    first = table(tables_of(three), 1)
    ranks = {row: cell(first, row, 3).rank for row in ("SAGE", "FixMatch-LPL", "FixMatch-GPL", "FedAvg-SL")}
    assert ranks == {"SAGE": 2, "FixMatch-LPL": 1, "FixMatch-GPL": 0, "FedAvg-SL": 0}
    assert cell(first, GAIN_ROW, 3).value == pytest.approx(-1)
    assert cell(first, "SAGE", 3, "paper").rank == 1
    assert [x.row for x in first.lines if x.source == "paper" and x.cells[0] and x.cells[0].rank == 2] == [
        "FedProx+FixMatch",
        "FedDure",
    ]
    assert [c.value for c in line(first, GAIN_ROW, "paper").cells if c] == pytest.approx(first.table.gains)


def test_a_lead_over_the_weak_alone_is_no_lead(tmp_path: Path) -> None:
    """In that column the paper has FedAvg far behind its best other method, and FixMatch-LPL near it."""
    add(tmp_path, "a", 54)
    add(tmp_path, "b", 30, "method.name=fedavg")
    assert line(table(tables_of(tmp_path), 1), GAIN_ROW).cells[3] is None
    add(tmp_path, "c", 50, "method.name=fixmatch-lpl")
    assert cell(table(tables_of(tmp_path), 1), GAIN_ROW, 3).value == pytest.approx(4)


@pytest.mark.slow
def test_a_lead_has_the_spread_of_its_seeds_one_by_one(tmp_path: Path) -> None:
    """Ahead by 3, 4 and 8: 5 ± 2.65, though each method's own seeds scatter more."""
    for seed, base, ahead in ((7, 40, 3), (8, 50, 4), (9, 45, 8)):
        add(tmp_path, f"a{seed}", base + ahead, seed=seed)
        add(tmp_path, f"b{seed}", base, "method.name=fixmatch-lpl", seed=seed)
    found = cell(table(tables_of(tmp_path), 1), GAIN_ROW, 3)
    assert (found.value, found.std) == pytest.approx((5, 7**0.5))
    assert "+5.00 ± 2.65" in section(table(tables_of(tmp_path), 1))
    (tmp_path / "b9" / "rounds.jsonl").unlink()  # other seeds: no pairs
    assert cell(table(tables_of(tmp_path), 1), GAIN_ROW, 3).std is None


def test_one_run_fills_every_table_that_has_its_cell(three: Path) -> None:
    result = tables_of(three)
    counts = {t.table.number: t.counts for t in result.tables}
    assert counts == {
        1: {"authors": (4, 156)},
        2: {"authors": (0, 18)},
        3: {"authors": (2, 24)},
        4: {"authors": (2, 48)},
        5: {"authors": (3, 18)},
        6: {"authors": (11, 24)},
        7: {"authors": (0, 24)},
        8: {"authors": (1, 156)},
    }
    assert (result.num_runs, result.unused) == (12, {})
    fixed, plugged = cell(table(result, 4), "FixMatch", 0), cell(table(result, 4), "FixMatch + SAGE", 0)
    assert (fixed.extra, plugged.extra) == (None, pytest.approx(-1))
    assert cell(table(result, 8), "FedAvg-SL", 3).marks == ("50 labels per class, but it knows all labels",)


@pytest.mark.slow
def test_the_papers_lines_hold_what_it_prints_not_what_follows(three: Path) -> None:
    """FedDB + SAGE on SVHN: 93.42 and +0.28, though 94.14 stands above."""
    found = cell(table(tables_of(three), 4), "FedDB + SAGE", 5, "paper")
    assert (found.value, found.extra) == (93.42, 0.28)
    assert cell(table(tables_of(three), 2), "SAGE", 0, "paper").extra == 2.11
    sixth = table(tables_of(three), 6)
    none = cell(sixth, "FedDB", 3, "paper")
    assert (none.value, none.extra) == (None, None)
    assert cell_text(none, line(sixth, "FedDB", "paper"), sixth) == ("none", "", "")


def test_texts_in_markdown(three: Path) -> None:
    result = tables_of(three)
    text = section(table(result, 1))
    rows = [[part.strip() for part in row.split("|")[1:-1]] for row in text.splitlines() if row.startswith("|")]
    ours = {name: cells for name, source, *cells in rows if source.startswith("ours")}
    assert ours["SAGE"][3] == "<u>51.00 ± 1.00</u> (3)"
    assert ours["FixMatch-LPL"][3] == "**52.00 ± 1.00** (3)"
    assert ours["FedAvg-SL"][3] == "70.00 ± 0.00 (3)"
    assert ours[GAIN_ROW][3] == "−1.00 ± 0.00<sup>a</sup>"  # the same lead with each seed
    assert "<sup>a</sup> 2 of 11 other methods have runs" in text
    assert ours["FedAvg"] == [""] * 12
    assert "Ours: 4 of 156 cells under protocol authors (missing: 152)." in text
    assert "12 of 12 runs are in the tables." in markdown_page(result)


def test_ties_as_shown_share_a_rank(tmp_path: Path) -> None:
    for method, value in (("sage", 51.001), ("fixmatch-lpl", 51.002), ("fixmatch-gpl", 50.0), ("fedavg", 49.0)):
        add(tmp_path, method, value, f"method.name={method}")
    first = table(tables_of(tmp_path), 1)
    ranks = {row: cell(first, row, 3).rank for row in ("SAGE", "FixMatch-LPL", "FixMatch-GPL", "FedAvg")}
    assert ranks == {"SAGE": 1, "FixMatch-LPL": 1, "FixMatch-GPL": 2, "FedAvg": 0}


def test_a_difference_has_its_sign_and_none_has_a_plus() -> None:
    assert [signed(value) for value in (1.5, 0.0, -1.5)] == ["+1.50", "+0.00", "−1.50"]


# Rounds to an accuracy.


def climb(*crossings: tuple[int, float], rounds: int = 600) -> list[float]:
    """At each crossing, the accuracy rises to a value and stays."""
    values = [10.0] * rounds
    for start, value in crossings:
        values[start - 1 :] = [value] * (rounds - start + 1)
    return values


def test_rounds_to_an_accuracy_and_speed_ups(tmp_path: Path) -> None:
    for seed, lpl, sage in ((7, 100, 50), (8, 120, 60), (9, 140, 70)):
        for method, crossings in (("fixmatch-lpl", [(lpl, 30.0)]), ("sage", [(sage, 30.0), (sage + 50, 39.99)])):
            config = config_of("protocol=authors", f"seed={seed}", f"method.name={method}", "train.rounds=600")
            write_run(tmp_path / f"{method}{seed}", config, climb(*crossings))
    second = table(tables_of(tmp_path), 2)
    lpl, sage = cell(second, "FixMatch-LPL", 0), cell(second, "SAGE", 0)
    assert (lpl.value, lpl.std, lpl.extra, lpl.rank) == (120, 20, 1, 2)
    assert (sage.value, sage.std, sage.extra, sage.rank) == (60, 10, 2, 1)
    assert lpl.marks == sage.marks == ()
    never = cell(second, "SAGE", 1)
    assert (never.value, never.rank, never.extra) == (None, 0, None)
    assert never.marks == ("0 of 3 runs reach 40 % within 600 rounds",)
    row = next(x for x in section(second).splitlines() if x.startswith("| SAGE | ours"))
    assert row.split("|")[3:5] == [" **60 ± 10** 2.00× (3) ", " not reached (3)<sup>a</sup> "]
    paper = line(second, "SAGE", "paper").cells
    assert [round(c.extra, 2) for c in paper if c and c.extra] == [2.11, 2.38, 2.18]


def test_a_target_that_some_runs_miss_has_no_mean(tmp_path: Path) -> None:
    for seed, crossing in ((7, 100), (8, 200)):
        config = config_of("protocol=authors", f"seed={seed}", "train.rounds=600")
        write_run(tmp_path / str(seed), config, climb((crossing, 30.0)) if seed == 7 else climb())
    found = cell(table(tables_of(tmp_path), 2), "SAGE", 0)
    assert found.value is None
    assert found.marks == ("2 of 3 seeds", "1 of 2 runs reach 30 % within 600 rounds")


def test_a_short_run_counts_where_it_got_there(tmp_path: Path) -> None:
    write_run(tmp_path / "x", config_of("protocol=authors", "train.rounds=120"), climb((54, 30.0), rounds=120))
    second = table(tables_of(tmp_path), 2)
    assert (cell(second, "SAGE", 0).value, cell(second, "SAGE", 0).marks) == (54, ("1 of 3 seeds",))
    assert cell(second, "SAGE", 1).marks[-1] == "0 of 1 runs reach 40 % within 120 rounds"  # the paper after 112
    assert line(second, "SAGE").cells[2] is None  # the paper has 50 % after 242: 120 rounds cannot show it
    asked = cell(table(tables_of(tmp_path, short=True), 2), "SAGE", 2)
    assert asked.marks == ("120 rounds (paper: 242)", "1 of 3 seeds", "0 of 1 runs reach 50 % within 120 rounds")


def test_a_single_round_is_said_in_the_singular(tmp_path: Path) -> None:
    write_run(tmp_path / "a", config_of("protocol=authors", ALPHA, "train.rounds=1"), [30.0])
    (mark, _) = cell(table(tables_of(tmp_path, short=True), 1), "SAGE", 3).marks
    assert mark == "1 round (paper: 500)"


def test_a_target_out_of_reach_is_asked_of_the_longest_run(tmp_path: Path) -> None:
    """A run as the paper's comes first, but where it ends too soon, one of another precision says more."""
    short = config_of("protocol=authors", "train.precision=fp32", "train.rounds=60")
    write_run(tmp_path / "short", short, climb((50, 30.0), rounds=60))
    long = config_of("protocol=authors", "train.precision=bf16", "train.rounds=120")
    write_run(tmp_path / "long", long, climb((54, 30.0), (100, 40.0), rounds=120))
    second = table(tables_of(tmp_path), 2)
    assert [cell(second, "SAGE", i).value for i in range(2)] == [50, 100]
    asked = cell(table(tables_of(tmp_path, short=True), 2), "SAGE", 2)
    assert (asked.value, asked.marks[-1]) == (None, "0 of 1 runs reach 50 % within 120 rounds")


def test_a_target_that_one_of_the_seeds_reaches_is_an_answer_at_once(tmp_path: Path) -> None:
    """A longer run of another setting that is not there yet says less."""
    for name, curve in (("here", climb((54, 30.0), rounds=60)), ("not here", climb(rounds=60))):
        write_run(tmp_path / "near" / name, config_of(f"seed={len(name)}"), curve)
    write_run(tmp_path / "far", config_of(), climb(rounds=120))
    choices = {("its setting",): "near", (): "far"}
    runs = {setting: find_runs([tmp_path / folder]).runs for setting, folder in choices.items()}
    found = best_cell(runs, End(600, 30))
    assert found.marks == ("its setting", "2 of 3 seeds", "1 of 2 runs reach 30 % within 60 rounds")


def test_an_accuracy_is_that_of_the_run_that_goes_farther(tmp_path: Path) -> None:
    """60 rounds as in the paper say less of round 500 than 120 in another precision; both are marked."""
    for name, precision, rounds, result in (("short", "fp32", 60, 30), ("long", "bf16", 120, 40)):
        config = config_of("protocol=authors", ALPHA, f"train.precision={precision}", f"train.rounds={rounds}")
        write_run(tmp_path / name, config, curve(result, rounds))
    found = cell(table(tables_of(tmp_path, short=True), 1), "SAGE", 3)
    assert found.value == pytest.approx(40)
    assert [mark.partition(" (")[0] for mark in found.setting] == ["train.precision = bf16", "120 rounds"]


def test_a_600_round_run_is_read_at_500_in_table_1(tmp_path: Path) -> None:
    values = [10.0] * 490 + [40.0] * 10 + [60.0] * 100
    write_run(tmp_path / "x", config_of("protocol=authors", ALPHA, "train.rounds=600"), values)
    first = cell(table(tables_of(tmp_path), 1), "SAGE", 3)
    assert (first.value, first.marks) == (40, ("1 of 3 seeds",))
    assert cell(table(tables_of(tmp_path), 6), "SAGE", 3).value == 501


# Marks.


@pytest.mark.parametrize(
    ("settings", "mark"),
    [
        ("protocol=clean", "protocol = clean (paper: authors)"),
        ("partition.clients=10", "partition.clients = 10 (paper: 20)"),
        ("train.local_epochs=1", "train.local_epochs = 1 (paper: 5)"),
        ("model.width=1", "model.width = 1 (paper: 4)"),
        ("train.precision=bf16", "train.precision = bf16 (paper: fp32)"),
        ("data.flip=false", "data.flip = false (paper: true)"),
        ("data.crop=resize", "data.crop = resize (paper: pad)"),
        ("partition.seed=3", "partition.seed = 3 (paper: 0)"),
    ],
)
def test_a_setting_that_is_not_the_papers_is_marked(tmp_path: Path, settings: str, mark: str) -> None:
    add(tmp_path, "x", 50, settings)
    source = "clean" if settings == "protocol=clean" else "authors"
    assert cell(table(tables_of(tmp_path), 1), "SAGE", 3, source).marks == (mark, "1 of 3 seeds")


def test_short_and_unfinished_and_damaged_runs_are_marked(tmp_path: Path) -> None:
    for seed in (7, 8, 9):
        add(tmp_path / "short", str(seed), 30, "train.rounds=120", seed=seed, rounds=120)
        unfinished = config_of("protocol=authors", ALPHA, f"seed={seed}")
        write_run(tmp_path / "unfinished" / str(seed), unfinished, curve(30, 120), finished=False)
        damaged = add(tmp_path / "damaged", str(seed), 40, seed=seed)
        lines = (damaged / "rounds.jsonl").read_text().splitlines()
        (damaged / "rounds.jsonl").write_text("\n".join([*lines[:3], lines[3][:40], *lines[4:]]))
    marks = {
        name: cell(table(tables_of(tmp_path / name, short=True), 1), "SAGE", 3).marks
        for name in ("short", "unfinished", "damaged")
    }
    assert marks == {
        "short": ("120 rounds (paper: 500)",),
        "unfinished": ("unfinished: read at round 120 of 500",),
        "damaged": ("damaged lines of the record were skipped",),
    }


@pytest.mark.slow
def test_a_run_that_ends_before_the_papers_round_fills_no_accuracy_unless_asked(tmp_path: Path) -> None:
    """499 of 500 rounds are too few, finished or not; a shorter rival also gives no lead."""
    add(tmp_path, "whole", 50, "method.name=fixmatch-lpl")
    add(tmp_path, "short", 52, "train.rounds=499", rounds=499)
    write_run(tmp_path / "unfinished", config_of("protocol=authors", ALPHA, "seed=8"), curve(60, 499), finished=False)
    result = tables_of(tmp_path)
    assert [line(table(result, 1), row).cells[3] for row in ("SAGE", GAIN_ROW)] == [None, None]
    assert cell(table(result, 1), "FixMatch-LPL", 3).value == pytest.approx(50)
    assert cell(table(result, 6), "SAGE", 0).value == pytest.approx(490)  # rounds to an accuracy need no more
    few = "499 of the paper's 500 rounds; --short shows it"
    shown = {path.name: why for path, why in tables_of(tmp_path / "short").unused.items()}
    assert shown == {}  # Tables 2, 6 and 7 have a use for it
    add(tmp_path, "soft", 40, "method.vote=soft", "train.rounds=499", rounds=499)
    assert {path.name: why for path, why in tables_of(tmp_path).unused.items()} == {"soft": few}
    add(tmp_path, "softer", 40, "method.vote=soft", "train.rounds=498", rounds=498)
    less = "498 of the paper's 500 rounds; replaced by runs that are longer or closer to the paper's setting"
    for asked_for in (False, True):  # no advice that does not help, or was followed already
        assert tables_of(tmp_path, short=asked_for).unused[tmp_path / "softer"] == less
    add(tmp_path, "short rival", 51, "method.name=fixmatch-gpl", "train.rounds=499", rounds=499)
    asked = table(tables_of(tmp_path, short=True), 1)
    assert cell(asked, "SAGE", 3).value is not None
    cells = [line(asked, row).cells[3] for row in ("SAGE", "FixMatch-GPL", "FixMatch-LPL")]
    assert [each.rank for each in cells if each] == [0, 0, 0]  # two that are shorter than the third do not compete
    assert line(asked, GAIN_ROW).cells[3] is None


def test_an_edited_record_is_left_out_or_marked(tmp_path: Path) -> None:
    for seed in (7, 8, 9):
        add(tmp_path, str(seed), 40, seed=seed)
    unchanged = cell(table(tables_of(tmp_path), 1), "SAGE", 3)
    assert (unchanged.marks, len(unchanged.runs)) == ((), 3)
    text = (tmp_path / "8/rounds.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "8/rounds.jsonl").write_text("".join([*text[:100], *text[101:]]))
    assert cell(table(tables_of(tmp_path), 1), "SAGE", 3).marks == ("2 of 3 seeds",)
    accept(RunFolder(tmp_path / "8"), "round 101 was lost")
    accepted = cell(table(tables_of(tmp_path), 1), "SAGE", 3)
    assert accepted.marks == ("a record that was edited and accepted",)


def test_marks_are_letters_with_their_reasons_below(tmp_path: Path) -> None:
    add(tmp_path, "a", 50, "model.width=1")
    add(tmp_path, "b", 51, "method.name=fixmatch-lpl")
    text = section(table(tables_of(tmp_path), 1))
    assert "| 51.00 (1)<sup>a</sup> |" in text
    assert "| 50.00 (1)<sup>a,b</sup> |" in text
    assert "- <sup>a</sup> 1 of 3 seeds\n- <sup>b</sup> model.width = 1 (paper: 4)" in text
    assert (letter(0), letter(25), letter(26), letter(53)) == ("a", "z", "aa", "bb")


def test_protocols_have_lines_of_their_own_and_are_not_ranked_against_each_other(tmp_path: Path) -> None:
    add(tmp_path, "a", 50)
    add(tmp_path, "b", 60, "protocol=clean", "method.name=fixmatch-lpl")
    first = table(tables_of(tmp_path), 1)
    assert first.counts == {"authors": (1, 156), "clean": (1, 156)}
    assert cell(first, "SAGE", 3).rank == cell(first, "FixMatch-LPL", 3, "clean").rank == 0
    assert line(first, GAIN_ROW).cells[3] is None
    shown = [(x.row, x.source) for x in first.visible_lines if x.source != "paper"]
    assert ("SAGE", "clean") not in shown
    assert ("FedAvg", "authors") in shown


def test_only_cells_of_one_setting_are_ranked(tmp_path: Path) -> None:
    add(tmp_path, "a", 50)
    add(tmp_path, "b", 49, "method.name=fixmatch-lpl")
    add(tmp_path, "c", 60, "method.name=fixmatch-gpl", "model.width=16")
    first = table(tables_of(tmp_path), 1)
    assert [cell(first, row, 3).rank for row in ("SAGE", "FixMatch-LPL", "FixMatch-GPL")] == [1, 2, 0]
    assert cell(first, GAIN_ROW, 3).value == pytest.approx(1)


# Which run belongs where.


def test_settings_decide_not_folder_names(tmp_path: Path) -> None:
    add(tmp_path, "fixmatch-lpl", 50)
    add(tmp_path, "sage", 40, "method.cdsc=false")
    add(tmp_path, "q", 45, "method.name=fixmatch-gpl", "method.vote=soft")
    result = tables_of(tmp_path)
    assert cell(table(result, 1), "SAGE", 3).value == pytest.approx(50)
    assert line(table(result, 1), "FixMatch-LPL").cells[3] is None
    assert cell(table(result, 3), "CPG", 0).value == pytest.approx(40)
    assert cell(table(result, 5), "FixMatch-GPL, soft", 0).value == pytest.approx(45)
    assert result.unused == {}


def test_a_method_by_another_name_is_the_same_method(tmp_path: Path) -> None:
    add(tmp_path, "x", 50, "method.name=fixmatch-lpl+sage")
    assert cell(table(tables_of(tmp_path), 4), "FixMatch + SAGE", 0).value == pytest.approx(50)


def test_defaults_that_the_dataset_decides_are_the_papers(tmp_path: Path) -> None:
    """FedLoKe's ramp is 0.4 of a dataset's rounds; given by hand it is the same method, any other is another.

    So are joint passes, which were the default: records name them.
    """
    add(tmp_path, "a", 40, "method.name=fedloke")
    add(tmp_path, "b", 41, "method.name=fedloke", "method.ramp_rounds=200.0", seed=8)
    add(tmp_path, "c", 42, "method.name=fedloke", "method.ramp_rounds=7.0", seed=9)
    add(tmp_path, "d", 43, "method.name=fedloke", "method.passes=joint", seed=9)
    result = tables_of(tmp_path)
    assert [run.config.seed for run in cell(table(result, 1), "FedLoke", 3).runs] == [7, 8]
    assert [path.name for path in result.unused] == ["c", "d"]


def test_label_fractions_and_datasets_part_tables_1_and_8(tmp_path: Path) -> None:
    add(tmp_path, "a", 50, "data.label_fraction=0.2")
    add(tmp_path, "b", 90, "data.name=svhn", "data.labels_per_class=460", rounds=150)
    result = tables_of(tmp_path)
    assert table(result, 1).counts == {"authors": (1, 156)}
    assert cell(table(result, 1), "SAGE", 6).marks == ("1 of 3 seeds",)
    assert cell(table(result, 8), "SAGE", 3).value == pytest.approx(50)


def test_runs_without_a_cell_are_listed_with_the_reason(tmp_path: Path) -> None:
    reasons = {
        "digits": ("data.name=digits", "no table has digits"),
        "plain": ("partition.kind=dirichlet", "no table has partition.kind = dirichlet"),
        "labels": (
            "partition.labeled_clients=2",
            "no table has partition.kind = paired-dirichlet with labeled_clients = 2",
        ),
        "few": ("data.labels_per_class=5", "no table has 5 labels per class"),
        "alpha": ("partition.alpha=10.0", "no table has alpha 10"),
        "momentum": ("server.optimizer=momentum", "no table has server.optimizer = momentum"),
        "cooled": ("train.cooldown=100", "no table has train.cooldown = 100"),
        "kappa": ("method.kappa=2.0", "no table has this method, or these settings of it, in that column"),
    }
    for name, (setting, _) in reasons.items():
        add(tmp_path, name, 50, setting)
    add(tmp_path, "good", 50)
    write_run(tmp_path / "short", config_of("protocol=authors", ALPHA, "train.rounds=100"), curve(20, 100))
    write_run(tmp_path / "worse", config_of("protocol=authors", ALPHA, "model.width=1"), curve(40))
    own = add(tmp_path, "own", 50)
    own_data = {"name": "folder", "dir": "images"}
    write_settings(own, to_toml({"data": own_data, "partition": {"clients": 20}, "method": {"name": "sage"}}))
    listed = add(tmp_path, "listed", 50)
    split = {"clients": 20, "file": "split.json"}
    write_settings(listed, to_toml({"data": {"name": "cifar100"}, "partition": split}))
    given = add(tmp_path, "given", 50)
    name, digest = 'name = "cifar100"', 'digest = "0123456789abcdef"'
    write_settings(given, (given / "config.toml").read_text().replace(name, f"{name}\n{digest}"))
    strange = add(tmp_path, "strange", 50)
    write_settings(strange, (strange / "config.toml").read_text().replace('name = "sage"', 'name = "mine"'))
    result = tables_of(tmp_path)
    assert result.num_runs == 15
    why = {path.name: text for path, text in result.unused.items()}
    assert why.pop("strange").startswith("method 'mine' is unknown")
    assert why.pop("own") == "no table has a folder of images"
    assert why.pop("given") == "no table has images passed in Python"
    assert why.pop("listed") == "no table has a partition from a file"
    behind = "replaced by runs that are longer or closer to the paper's setting"
    assert why.pop("short") == f"100 of the paper's 500 rounds; {behind}"
    assert why.pop("worse") == behind
    assert why == {name: text for name, (_, text) in reasons.items()}
    assert all(f"`{path}`" in markdown_page(result) for path in result.unused)


def test_a_seed_counts_once(tmp_path: Path) -> None:
    add(tmp_path, "a", 50)
    write_run(tmp_path / "b", config_of("protocol=authors", ALPHA, "train.rounds=600"), curve(60, 600))
    found = cell(table(tables_of(tmp_path), 1), "SAGE", 3)
    assert [run.path.name for run in found.runs] == ["b"]


# Files.


def test_csv_holds_every_number_unrounded(three: Path) -> None:
    result = tables_of(three)
    rows = list(csv.DictReader(io.StringIO(numbers_csv(result.tables))))
    back = {(int(r["table"]), r["row"], r["dataset"], float(r["alpha"]), r["target"], r["source"]): r for r in rows}
    assert len(back) == len(rows)
    expected = 0
    for filled in result.tables:
        for x in filled.lines:
            for column, found in zip(filled.table.columns, x.cells, strict=True):
                key = (filled.table.number, x.row, column.dataset, column.alpha, str(column.target or ""), x.source)
                if found is None:
                    assert key not in back
                    continue
                expected += 1
                assert back[key]["value"] == ("" if found.value is None else str(found.value))
                assert back[key]["std"] == ("" if found.std is None else str(found.std))
                assert back[key]["runs"] == ("" if not found.runs else "3")
                assert back[key]["remarks"] == "; ".join(found.marks)
    assert len(rows) == expected
    sage = back[1, "SAGE", "cifar100", 0.1, "", "authors"]
    assert (sage["seeds"], sage["rank"]) == ("7 8 9", "2")
    assert {row["authors_norm"] for row in rows if row["target"]} == {""}  # rounds, not percent
    assert float(sage["authors_norm"]) == pytest.approx(41)  # as the folders of the test say, ten below the headline


def test_latex_is_well_formed(three: Path) -> None:
    """What a compiler would stumble over: braces, columns, letters outside of its alphabet."""
    for filled in tables_of(three).tables:
        text = latex_float(filled)
        assert text.isascii()
        bare = re.sub(r"\\[{}]", "", text)
        assert bare.count("{") == bare.count("}")
        begun, ended = (re.findall(rf"\\{word}{{(.*?)}}", text) for word in ("begin", "end"))
        assert begun == ended[::-1] == ["sidewaystable*" if len(filled.table.columns) > 6 else "table*", "tabular"]
        body = text[text.index(r"\midrule") : text.index(r"\bottomrule")]
        rows = [x for x in body.splitlines() if x.endswith(r"\\")]
        assert len(rows) == len(filled.visible_lines)
        assert body.count(r"\addlinespace") == len({x.row for x in filled.visible_lines}) - 1  # between rows
        columns = len(filled.table.columns) + 2
        assert {len(re.split(r"(?<!\\)&", x)) for x in rows} == {columns}
        assert rf"\begin{{tabular}}{{ll{'c' * (columns - 2)}}}" in text
        assert not re.search(r"(?<!\\)[%#]", text.replace("{%\n", "{\n"))


def test_cells_in_latex_and_on_the_screen(three: Path) -> None:
    first = table(tables_of(three), 1)
    shown, names = on_terminal(first, [3]), [x.row for x in first.lines if x.cells[3]]
    styles = {(name, text.plain): str(text.style) for name, text in zip(names, shown.columns[2].cells, strict=True)}
    texts = {"FixMatch-LPL": "52.00 ± 1.00 (3)", "SAGE": "51.00 ± 1.00 (3)", "FixMatch-GPL": "41.00 ± 1.00 (3)"}
    assert [styles[pair] for pair in texts.items()] == ["bold", "underline", ""]
    rows = {(row[0], row[1]): row[5] for row in LATEX.rows(grid(first))}
    assert rows["FixMatch-LPL", "ours, authors"] == r"\textbf{52.00 $\pm$ 1.00} (3)"
    assert rows["SAGE", "ours, authors"] == r"\underline{51.00 $\pm$ 1.00} (3)"
    cells = (r"\textbf{52.00\,$\pm$\,1.00} (3)", r"\underline{51.00\,$\pm$\,1.00} (3)")
    assert all(cell in latex_float(first) for cell in cells)


def test_latex_compiles(three: Path, tmp_path: Path) -> None:
    if not shutil.which("pdflatex"):
        pytest.skip("pdflatex is not installed (Debian: texlive-latex-base, texlive-latex-recommended)")
    make_tables(Console(file=io.StringIO()), [three], tmp_path)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "tables.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
    assert (tmp_path / "tables.pdf").read_bytes().startswith(b"%PDF")


# The command.


def said_by(paths: list[Path], out: Path, number: int | None = None, dataset: str | None = None) -> str:
    console = Console(file=io.StringIO(), width=80)
    make_tables(console, paths, out, Shown(number, dataset))
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_command_says_what_there_is(three: Path, tmp_path: Path) -> None:
    text = said_by([three], tmp_path / "new" / "tables")
    assert re.search(r"^ *1 +Test accuracy \(%\) +authors +4 +152 +4 *$", text, re.M)
    unmarked = "Unmarked cells can be compared with the paper's as they are; tables.md says why others cannot."
    assert f"{unmarked}\n12 of 12 runs are in the tables.\n" in text
    assert sorted(p.name for p in (tmp_path / "new" / "tables").iterdir()) == [
        *("scoreboard.png", *(f"table{n}.tex" for n in range(1, 9))),
        *("tables.csv", "tables.md", "tables.tex"),
    ]
    assert "Rounds to an accuracy" in said_by([three], tmp_path / "again", 2)


@pytest.mark.slow
def test_a_table_is_printed_dataset_by_dataset_in_80_columns(three: Path, tmp_path: Path) -> None:
    text = said_by([three], tmp_path, 1)
    assert [name for name in ("CIFAR-10", "CIFAR-100", "SVHN", "CINIC-10") if re.search(f"^{name} *$", text, re.M)] == [
        "CIFAR-100"
    ]
    assert "No runs on CIFAR-10, SVHN, CINIC-10; --dataset NAME shows the paper's numbers." in text
    assert re.search(r"^ SAGE +authors +51\.00 ± 1\.00 \(3\) *$", text, re.M)
    assert re.search(r"^ FedAvg\+FlexMatch +paper +49\.91 +51\.39 +51\.79 *$", text, re.M)
    svhn = said_by([three], tmp_path, 1, "svhn")
    assert re.search(r"^ SAGE +paper +93\.85 +94\.27 +94\.65 *$", svhn, re.M)
    assert not re.search("^CIFAR-100 *$", svhn, re.M)
    assert "No runs on" not in svhn  # that dataset alone was asked for


@pytest.mark.slow
def test_the_screen_explains_the_letters_that_it_shows(tmp_path: Path) -> None:
    """Letters are those of the whole table: the run on SVHN shares one with that on CIFAR-100, which has another."""
    add(tmp_path, "a", 50, "train.precision=bf16")
    add(tmp_path, "b", 90, "data.name=svhn", rounds=150)
    marks = {name: said_by([tmp_path], tmp_path / "out", 1, name) for name in ("cifar100", "svhn", "cinic10")}
    assert {name: re.findall("^  ([a-z])  (.*)$", text, re.M) for name, text in marks.items()} == {
        "cifar100": [("a", "train.precision = bf16 (paper: fp32)"), ("b", "1 of 3 seeds")],
        "svhn": [("b", "1 of 3 seeds")],
        "cinic10": [],
    }
    assert re.search(r"^ SAGE +authors +90\.00 \(1\) b *$", marks["svhn"], re.M)


@pytest.mark.parametrize(
    ("out", "number", "dataset", "message"),
    [
        ("tables", 9, None, "--table 9: expected a number from 1 to 8"),
        ("tables", 2, "svhn", r"dataset of Table 2 'svhn' is unknown \(known: cifar100\)"),
        ("tables", None, "svhn", "--dataset has no effect without --table"),
        ("file/x", None, None, "file is a file"),
    ],
)
def test_the_command_rejects_before_it_writes(
    three: Path, tmp_path: Path, out: str, number: int | None, dataset: str | None, message: str
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=message):
        said_by([three], tmp_path / out, number, dataset)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_cannot_be_read_costs_itself_only(tmp_path: Path) -> None:
    add(tmp_path, "good", 50)
    (add(tmp_path, "lost", 50, seed=8) / "config.toml").write_text("seed = ")
    (add(tmp_path, "noise", 50, seed=9) / "rounds.jsonl").write_bytes(b"\xff\xfe\n{}")
    (add(tmp_path, "young", 50, seed=10) / "rounds.jsonl").write_text("")
    begun = add(tmp_path, "begun", 50, seed=11)  # stopped before its first round, or training blew up in it
    (begun / "rounds.jsonl").unlink()
    (begun / "env.json").write_text("{}")
    result = tables_of(tmp_path)
    assert [run.path.name for run in cell(table(result, 1), "SAGE", 3).runs] == ["good"]
    why = {path.name: text for path, text in result.unused.items()}
    assert why.pop("lost").startswith(f"{tmp_path}/lost/config.toml: not valid TOML")
    young = {"young": "no finished round", "begun": "no finished round"}
    assert why == {"noise": "no line of rounds.jsonl can be read", **young}
    assert (result.num_runs, len(result.unused)) == (5, 4)


def test_a_line_without_its_tests_has_no_second_normalization(tmp_path: Path) -> None:
    folder = add(tmp_path, "good", 50)
    write_lines(folder, [{**line, "test": "torn"} for line in lines_of(folder)])
    rows = csv.DictReader(numbers_csv(tables_of(tmp_path).tables).splitlines())
    mine = [(row["value"], row["authors_norm"]) for row in rows if row["source"] == "authors" and row["table"] == "1"]
    assert mine == [("50.0", "")]
