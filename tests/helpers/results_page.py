"""The generated parts of results/README.md: tables of the runs on record, and sentences that compare them.

`python tests/test_docs.py` writes them into the page.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fssl.paper.fill import FilledTable, fill_tables
from fssl.paper.markup import signed
from fssl.paper.published import OURS, other_tables
from fssl.paper.scoreboard import Scoreboard, markdown_board, scoreboard
from fssl.paper.setups import changes_since
from fssl.paper.tables import fill_other
from fssl.records.rounds import first_reaching
from fssl.reports.formats import Grid, markdown
from fssl.reports.groups import group_by_task, named_groups, seeds_text
from fssl.reports.overview import conclusions, make_overview, seconds_per_round
from fssl.reports.runs import (
    FoundRuns,
    Read,
    Run,
    by_round,
    commits_of,
    find_runs,
    label_quality,
    late,
    number,
    percent,
    spread,
)

RESULTS = Path(__file__).parents[2] / "results"
BOARD = RESULTS / "scoreboard.png"
Column = Callable[[list[Run]], str]
Columns = dict[str, Column]


@cache
def on_record() -> FoundRuns:
    """Every run below results/."""
    return find_runs([RESULTS])


def name_of(run: Run) -> str:
    """Return a run's folder below results/."""
    return str(run.path.relative_to(RESULTS))


def runs_in(*places: str) -> list[Run]:
    """Return the runs in or below these folders, in the folders' order."""
    return [run for place in places for run in on_record().runs if f"{name_of(run)}/".startswith(f"{place}/")]


# Columns of a table: a cell is the mean and spread over the runs of a line.

RIGHT, USED, SMOOTH = percent("pl_accuracy"), percent("utilization"), number("ema_accuracy")
CHOSEN_BY, CHOSEN_BY_SMOOTH = number("validation", "accuracy"), number("ema_validation", "accuracy")
TRAINED, RELEASED_SMOOTH = number("test", "train_norm", "accuracy"), number("ema_test", "authors_norm", "accuracy")
ACCURACY = number("accuracy")


def each(read: Callable[[Run], float | None]) -> Column:
    return lambda runs: spread([found for run in runs if (found := read(run)) is not None])


def mean_over(run: Run, first: int, last: int, of: Read) -> float | None:
    """Return the mean of a quantity over some rounds, or None for a run that lacks one of them."""
    curve = by_round(run, of)
    known = [curve[round] for round in range(first, last + 1) if round in curve]
    return float(np.mean(known)) if len(known) == last - first + 1 else None


def means(*ends: int, of: Read = ACCURACY, rounds: int = 10, called: str = "") -> Columns:
    """Return a column for the mean over so many rounds, up to each of these."""
    spans = [(end - rounds + 1, end) for end in ends]
    return {f"{called}{a} to {b}": each(partial(mean_over, first=a, last=b, of=of)) for a, b in spans}


def reached(*targets: int) -> Columns:
    """Return a column for the first round at or above each of these accuracies."""
    return {f"{target} % after": partial(first_rounds, target=target) for target in targets}


def first_rounds(runs: list[Run], target: int) -> str:
    return ", ".join(str(first_reaching(run.curve, target) or "–") for run in runs)


def on_all_images(line: dict[str, Any]) -> float | None:
    """Return the accuracy under training's normalization; of a test on two halves the mean of both."""
    tested, chosen_by = TRAINED(line), CHOSEN_BY(line)
    return tested if tested is None or chosen_by is None else (tested + chosen_by) / 2


LABELS = {"right": partial(label_quality, key="pl_accuracy"), "used": partial(label_quality, key="utilization")}
SECONDS = {"s/round": seconds_per_round}
LAST = {"last 10": each(lambda run: run.result)}
LAST_TRAINED = {"last 10, training's normalization": each(partial(late, read=TRAINED))}
BEST = {"best round": each(lambda run: max(run.curve))}
HUNDREDS = means(100, 200, 300, 400, 500, rounds=100)


# Sections.


def markdown_table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    return markdown(Grid(head, [[*row] for row in rows]))


class Section(NamedTuple):
    """A table of runs, and what `fssl compare` says of them."""

    places: Sequence[str]  # folders below results/
    columns: Columns | None = None  # none: those of `fssl compare`
    against: str | None = None  # the line that sentences compare with each other one; "": the best; None: no sentences

    def write(self) -> str:
        runs = runs_in(*self.places)
        shown = with_columns(runs, self.columns) if self.columns else overview(runs)
        return shown if self.against is None else f"{shown}\n{sentences(runs, self.against)}"


def with_columns(runs: list[Run], columns: Columns) -> str:
    """Return a table with a line for the seeds of each run, by the folder's name without the seed."""
    lines: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        lines[re.sub(r"-seed\d+", "", name_of(run))].append(run)
    rows = ([f"`{name}`", seeds_text(line), *(cell(line) for cell in columns.values())] for name, line in lines.items())
    return markdown_table(["run", "seeds", *columns], rows)


def overview(runs: list[Run]) -> str:
    """Return the table of `fssl compare`, the best result bold."""
    return markdown(make_overview(named_groups(runs)))


def sentences(runs: list[Run], against: str) -> str:
    """Return what `fssl compare` says of runs, task by task, as a list."""
    tasks = [named_groups(task.runs) for task in group_by_task(runs)]
    return "".join(f"- {text}\n" for groups in tasks if len(groups) > 1 for text in conclusions(groups, against))


# What the papers print.


@cache
def board() -> Scoreboard:
    return scoreboard(fill_tables(on_record()).tables)


def others() -> str:
    """Return a table of our runs of numbers that other papers print, and the scoreboard does not have."""
    head = ["paper", "setting", "method", "printed", "ours", "apart", "seeds", "commit"]
    filled = [fill_other(table, on_record()).tables[0] for table in other_tables().values()]
    return markdown_table(head, (line for table in filled for line in reached_numbers(table)))


def reached_numbers(filled: FilledTable) -> Iterator[list[str]]:
    """Yield a line for each printed number that our runs reached."""
    known = {run.path for score in board().scores for run in score.runs}
    paper = filled.table.title.partition(":")[0]
    for line in (line for line in filled.lines if line.source == OURS):
        for column, printed, cell in zip(filled.table.columns, line.place.printed, line.cells, strict=False):
            if cell and cell.value is not None and not {run.path for run in cell.runs} & known:
                ours = spread([run.result for run in cell.runs])
                made = [seeds_text(cell.runs), ", ".join(commits_of(cell.runs))]
                yield [paper, column.name, line.row, f"{printed:.2f}", ours, signed(cell.value - printed), *made]


# Commits and speed.


def commits() -> str:
    """Return every run by the commits that made it, then those that are older than a change of results."""
    made: dict[str, list[str]] = defaultdict(list)
    older: dict[str, list[str]] = defaultdict(list)
    for run in on_record().runs:
        made[", then ".join(run.commits)].append(name_of(run))
        for remark in changes_since((run,)):
            older[remark].append(name_of(run))
    rows = ([key, ", ".join(sorted(made[key]))] for key in sorted(made))
    remarks = "".join(f"- {remark[0].upper()}{remark[1:]}: {', '.join(names)}.\n" for remark, names in older.items())
    return f"{markdown_table(['commit', 'runs'], rows)}\n{remarks}"


def bench() -> str:
    """Return a table of what `fssl bench` measured."""
    head = ["file", "device", "lanes", "ms per step", "s per round", "ms per step of the loop", "ratio", "peak GiB"]
    return markdown_table(head, map(bench_row, sorted((RESULTS / "bench").glob("*.json"))))


def bench_row(file: Path) -> list[str]:
    found = json.loads(file.read_text())
    ours, loop = found["ours"], found["reference"]
    low, high = ours["seconds_per_round_min_max"]
    seconds = f"{ours['seconds_per_round']:.3f} ({low:.3f} to {high:.3f})"
    times = [f"{ours['ms_per_step']:.2f}", seconds, f"{loop['ms_per_step']:.1f}", f"{found['ratio']:.1f}"]
    device = f"{ours['device']}, {ours['precision']}"
    return [f"`{file.stem}`", device, str(ours["lanes"]), *times, f"{ours['peak_bytes'] / 2**30:.2f}"]


CIFAR100, SVHN, SETTINGS = "cifar100/alpha1.0", "svhn/alpha0.1", "settings"
LONG = (f"{CIFAR100}/proxyfl-authors-seed7-500", f"{CIFAR100}/sage-authors-seed7-500")
SHORT, SITES = f"{CIFAR100}/sage-authors-seed7", f"{CIFAR100}/sage-clean-seed7"
SECTIONS = {
    "cifar100": Section([CIFAR100], means(60, 120, 500) | reached(30, 40, 50) | LABELS | SECONDS, "sage"),
    "proxyfl": Section(LONG, means(100, 200, 300, 400, 500) | reached(30, 40, 50) | LABELS),
    "momentum": Section(
        ["momentum", SITES, SHORT, LONG[0]],
        means(60, 100, 120, of=on_all_images)
        | means(120, of=CHOSEN_BY, called="half to choose by, ")
        | means(120, of=SMOOTH, called="other half, smoothed, "),
    ),
    "recipe": Section(
        ["deployable"],
        means(100, 200, 300, 400, 440, 500)
        | means(500, of=SMOOTH, called="smoothed, ")
        | means(500, of=CHOSEN_BY_SMOOTH, called="half to choose by, smoothed, ")
        | means(500, of=RELEASED_SMOOTH, called="released normalization, smoothed, ")
        | LABELS
        | SECONDS,
    ),
    "cifar10": Section(
        ["cifar10"], means(100, 150, 200, 250, 300) | LAST_TRAINED | reached(80) | LABELS | SECONDS, "sage"
    ),
    "svhn": Section(
        [SVHN],
        means(10, 20, 30, 150) | means(10, of=number("lam"), called="λ, ") | LAST_TRAINED | LABELS | SECONDS,
        "flexmatch+sage",
    ),
    "sanity": Section(["sanity"], against=""),
    "clients": Section([f"{SETTINGS}/clients"], against="sage, order=local-first"),
    "server": Section(
        [f"{SETTINGS}/server"],
        means(8, 17, rounds=3)
        | means(17, of=RIGHT, rounds=3, called="right, ")
        | means(17, of=USED, rounds=3, called="used, "),
    ),
    "svhn250": Section([f"{SETTINGS}/svhn250"], means(10, 20, 30, 40) | LABELS, ""),
    "twin-sight": Section([f"{SETTINGS}/twin-sight"], LAST | HUNDREDS | BEST | LABELS | SECONDS, "sage"),
    "few-clients": Section([f"{SETTINGS}/few-clients"], LAST | HUNDREDS | BEST | LABELS | SECONDS, "sage"),
    "one-client": Section([f"{SETTINGS}/one-client"], against=""),
    "kernels": Section(["kernels", LONG[1], SHORT], means(20, 40, 60)),
}
PARTS: dict[str, Callable[[], str]] = {
    "scoreboard": lambda: markdown_board(board(), BOARD.name),
    **{function.__name__: function for function in (others, commits, bench)},
    **{name: section.write for name, section in SECTIONS.items()},
}
