"""Published tables from run folders, as files and in the terminal: the SAGE paper's, and those of others."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from ..console import RULED, say
from ..errors import UserError, unknown
from ..records.rounds import LAST
from ..reports.drawing import render, settings
from ..reports.formats import Grid, escape_markdown, markdown, markdown_notes, terminal
from ..reports.runs import NO_ROUND, FoundRuns, Run, find_runs
from ..system.files import write_atomic
from ..system.machine import check_folder
from .fill import FilledTable, Tables, fill_table, fill_tables, shortness, unmatched_reason
from .markup import (
    grid,
    latex_float,
    latex_page,
    markdown_page,
    missing_text,
    numbers_csv,
    on_terminal,
    say_reasons,
    say_unused,
    unused_list,
)
from .published import TITLES, End, PublishedTable, other_tables, paper_tables
from .scoreboard import BOARD_LEGEND, Scoreboard, board_remarks, draw_board, markdown_board, scoreboard, terminal_board
from .setups import by_setup

PICTURE, DPI = "scoreboard.png", 200
UNMARKED = "Unmarked cells can be compared with the paper's as they are; tables.md says why others cannot."


class Shown(NamedTuple):
    """The table to print, and its dataset; without one, all datasets with runs."""

    table: int | None = None
    dataset: str | None = None

    def check(self) -> None:
        tables = {table.number: table for table in paper_tables()}
        if self.table is None:
            if self.dataset is not None:
                raise UserError("--dataset has no effect without --table; add --table")
            return
        if self.table not in tables:
            raise UserError(f"--table {self.table}: expected a number from {min(tables)} to {max(tables)}")
        if self.dataset is not None and self.dataset not in tables[self.table].by_dataset:
            raise unknown(f"dataset of Table {self.table}", self.dataset, tables[self.table].by_dataset)


NO_TABLE = Shown()


def make_tables(console: Console, paths: list[Path], out: Path, show: Shown = NO_TABLE, short: bool = False) -> None:
    """Write the scoreboard and every table into a folder, and print a summary or one table."""
    show.check()
    result, board = filled_tables(paths, out, short)
    if show.table is not None:
        print_published(console, next(t for t in result.tables if t.table.number == show.table), show.dataset)
    print_scoreboard(console, board, out)
    print_counts(console, result, out)


def filled_tables(paths: list[Path], out: Path, short: bool) -> tuple[Tables, Scoreboard]:
    """Fill every table and the scoreboard, and write them into a folder."""
    check_folder("out", out)
    found = find_runs(paths)
    whole = fill_tables(found)
    result, board = fill_tables(found, short) if short else whole, scoreboard(whole.tables)
    write_tables(result, board, out)
    return result, board


def write_tables(result: Tables, board: Scoreboard, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    if is_drawn := bool(board.scores and has_matplotlib()):
        with settings():
            write_atomic(out / PICTURE, render(draw_board(board), ["png"], DPI)["png"])
    write_atomic(out / "tables.md", markdown_page(result, markdown_board(board, PICTURE if is_drawn else "")))
    write_atomic(out / "tables.csv", numbers_csv(result.tables))
    write_atomic(out / "tables.tex", latex_page(t.table.number for t in result.tables))
    for filled in result.tables:
        write_atomic(out / f"table{filled.table.number}.tex", latex_float(filled))


def print_published(console: Console, filled: FilledTable, dataset: str | None) -> None:
    """Print a table dataset by dataset; datasets without runs are only named, unless requested or none has any."""
    table = filled.table
    every = table.by_dataset
    shown = [dataset] if dataset else [name for name in every if filled.has_runs(every[name])] or [*every]
    say(console, f"Table {table.number}. {table.title}")
    for name in shown:
        console.print(on_terminal(filled, every[name], TITLES[name]))
    if left := [TITLES[name] for name in every if name not in shown and not dataset]:
        say(console, f"No runs on {', '.join(left)}; --dataset NAME shows the paper's numbers.")
    say_reasons(console, filled, [j for name in shown for j in every[name]])
    for text in (*table.notes, missing_text(filled)):
        say(console, text)
    say(console, "")


def print_scoreboard(console: Console, board: Scoreboard, out: Path) -> None:
    say(console, board.sentence().replace("`", ""))
    if board.scores:
        for part in terminal_board(board):
            console.print(part)
        for text in (BOARD_LEGEND, *board_remarks(board)):
            say(console, text)
        is_drawn = has_matplotlib()
        say(console, f"picture: {out / PICTURE}" if is_drawn else "no picture: drawing needs pip install 'fssl[plots]'")
    say(console, "")


def has_matplotlib() -> bool:
    return find_spec("matplotlib") is not None


def print_counts(console: Console, result: Tables, out: Path) -> None:
    rows = [line for filled in result.tables for line in summary(filled)]
    head = ("table", "what", "protocol", "cells", "missing", "unmarked")
    console.print(terminal(Grid(head, rows), RULED, whole=0))
    say(console, UNMARKED)
    say(console, f"{result.used} of {result.num_runs} runs are in the tables.")
    say_unused(console, result.unused, out / "tables.md")
    say(console, f"written: {out}/tables.md, tables.csv, tables.tex (with table1.tex to table8.tex)")


def summary(filled: FilledTable) -> Iterator[list[str]]:
    """Yield the numbers of filled, missing and unmarked cells of a table, for each protocol."""
    what = re.split("[:,]", filled.table.title)[0]
    for source, (done, total) in filled.counts.items():
        cells = [cell for line in filled.lines if line.source == source for cell in line.cells if cell and cell.runs]
        exact = sum(not cell.marks for cell in cells)
        yield [str(filled.table.number), what, source, str(done), str(total - done), str(exact)]


# Tables of other papers.

NO_CELL = "of no cell"
UNFINISHED = "unfinished (--short shows such runs)"
TOO_SHORT = "too short (--short shows such runs)"
BEHIND = "replaced by runs that are longer or closer to its setting"
UNREAD = ("with a record that cannot be used", "without a finished round")
WITH_A_CELL = (UNFINISHED, TOO_SHORT, *reversed(UNREAD), BEHIND)


def make_other(console: Console, paths: list[Path], out: Path, name: str, short: bool) -> None:
    """Fill one table with runs, print it, and write it as Markdown and CSV."""
    if name not in other_tables():
        raise unknown("setting", name, other_tables())
    check_folder("out", out)
    table = other_tables()[name]
    result = fill_other(table, find_runs(paths), short)
    (filled,) = result.tables
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / f"{name}.md", other_page(result))
    write_atomic(out / f"{name}.csv", numbers_csv([filled]))
    say(console, table.title)
    for columns in dataset_parts(table):
        if any(line.cells[j] for line in filled.lines for j in columns):
            console.print(on_terminal(filled, columns))
    say_reasons(console, filled, range(len(table.columns)))
    for text in other_remarks(result):
        say(console, text)
    if nowhere := without_cell(result):
        say(console, "Runs without a cell:")
        say_unused(console, nowhere, out / f"{name}.md")
    say(console, f"written: {out / name}.md and {name}.csv")


def fill_other(table: PublishedTable, found: FoundRuns, short: bool = False) -> Tables:
    """Fill the table with runs that reach its numbers' rounds; with `short` also others, marked."""
    known, strange = by_setup(found.runs)
    unread = {path: UNREAD[why == NO_ROUND] for path, why in found.unreadable.items()}
    result = Tables([fill_table(table, known, short)], len(found.runs) + len(unread), strange | unread)
    shown = {run.path for run in result.runs}
    ends = {setup: wanted.end for row in table.wanted for wanted in row if wanted for setup in wanted.setups}
    for setup, runs in known.items():
        nowhere = unmatched_reason(setup, ends)
        for run in runs:
            if run.path not in shown:
                result.unused[run.path] = (
                    f"no cell has {nowhere}" if nowhere else omission_reason(run, ends[setup], short)
                )
    return result


def omission_reason(run: Run, end: End, short: bool) -> str:
    """Return why a run with a cell is not in the table; `end` is the round of the cell's number."""
    if short or not shortness(run, end.rounds):
        return BEHIND
    return UNFINISHED if run.reached < run.config.rounds else TOO_SHORT


def without_cell(result: Tables) -> Mapping[Path, str]:
    """Return the runs without any cell, with reasons."""
    return {path: why for path, why in sorted(result.unused.items()) if why not in WITH_A_CELL}


def count_text(result: Tables) -> str:
    """Return a sentence on the number of runs shown, and reasons for those not shown."""
    numbers = Counter(why if why in WITH_A_CELL else NO_CELL for why in result.unused.values())
    others = ", ".join(f"{numbers[why]} {why}" for why in (NO_CELL, *WITH_A_CELL) if why in numbers)
    return f"{result.used} of {result.num_runs} runs are in the table{'; not in it: ' * bool(others)}{others}."


def dataset_parts(table: PublishedTable) -> list[list[int]]:
    """Return the columns that share a table in a terminal: all, or those of each dataset if it has several."""
    parts = [*table.by_dataset.values()]
    return [[*range(len(table.columns))]] if len(parts) == len(table.columns) else parts


def other_remarks(result: Tables) -> list[str]:
    table = result.tables[0].table
    ours = (
        f"Ours: mean of the last {LAST} rounds, then mean ± standard deviation over seeds, in parentheses their number."
    )
    commands = "; ".join(f"fssl run {preset}" for preset in table.presets)
    return [ours, count_text(result), *table.notes, f"To run all of it: {commands}"]


def other_page(result: Tables) -> str:
    """Return the table in Markdown."""
    filled = result.tables[0]
    shown = grid(filled)
    notes = [*markdown_notes(shown), *(f"- {escape_markdown(text)}" for text in other_remarks(result))]
    lines = [f"# {filled.table.title}", "", markdown(shown), *notes]
    if nowhere := without_cell(result):
        lines += ["", "## Runs in no cell", "", unused_list(nowhere).rstrip()]
    return "\n".join(lines) + "\n"
