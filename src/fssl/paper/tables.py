"""The paper's tables from run folders, as files and in the terminal."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from ..console import RULED, say
from ..errors import UserError, unknown
from ..report.drawing import render, settings
from ..report.runs import Found, find_runs
from ..system.files import write_atomic
from ..system.machine import check_folder
from .fill import FilledTable, Tables, fill_tables, setups_of_paper
from .markup import csv_text, latex, latex_page, letter, markdown_page, missing_text, say_unused, terminal
from .others import tables_by_setup
from .printed import TITLES, paper_tables
from .scoreboard import LEGEND, Scoreboard, draw, markdown_board, remarks, scoreboard, terminal_board
from .setups import by_setup

PICTURE, DPI = "scoreboard.png", 200
UNMARKED = "Unmarked cells can be compared with the paper's as they are; tables.md says why others cannot."


class Shown(NamedTuple):
    """The table to print, and its dataset: without one, all datasets that have runs."""

    table: int | None = None
    dataset: str | None = None

    def check(self) -> None:
        tables = {table.number: table for table in paper_tables()}
        if self.table is None:
            if self.dataset is not None:
                raise UserError("--dataset chooses a part of a table: add --table")
            return
        if self.table not in tables:
            raise UserError(f"--table {self.table}: expected a number from {min(tables)} to {max(tables)}")
        if self.dataset is not None and self.dataset not in tables[self.table].datasets:
            raise unknown(f"dataset of Table {self.table}", self.dataset, tables[self.table].datasets)


NO_TABLE = Shown()


def make_tables(console: Console, paths: list[Path], out: Path, show: Shown = NO_TABLE, short: bool = False) -> None:
    """Write the scoreboard and every table into a folder and say what is in them; print one table if asked."""
    show.check()
    check_folder("out", out)
    found = find_runs(paths)
    whole = fill_tables(found)
    result, board = fill_tables(found, short) if short else whole, scoreboard(whole.tables)
    result = pointing_elsewhere(result, found)
    write_tables(result, board, out)
    if show.table is not None:
        print_table(console, next(t for t in result.tables if t.paper.number == show.table), show.dataset)
    print_scoreboard(console, board, out)
    print_summary(console, result, out)


def pointing_elsewhere(result: Tables, found: Found) -> Tables:
    """The same tables; of a run without a cell in them it is also said which other paper's table has one."""
    unused, _ = by_setup(run for run in found.runs if run.path in result.unused)
    lost = {setup: runs for setup, runs in unused.items() if setup not in setups_of_paper()}
    there = tables_by_setup() if lost else {}
    hints = {
        run.path: f"; --setting {there[setup]} has a cell for it"
        for setup, runs in lost.items()
        if setup in there
        for run in runs
    }
    return result._replace(unused={path: why + hints.get(path, "") for path, why in result.unused.items()})


def write_tables(result: Tables, board: Scoreboard, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    if is_drawn := bool(board.scores and has_matplotlib()):
        with settings():
            write_atomic(out / PICTURE, render(draw(board), ["png"], DPI)["png"])
    write_atomic(out / "tables.md", markdown_page(result, markdown_board(board, PICTURE if is_drawn else "")))
    write_atomic(out / "tables.csv", csv_text(result.tables))
    write_atomic(out / "tables.tex", latex_page(t.paper.number for t in result.tables))
    for filled in result.tables:
        write_atomic(out / f"table{filled.paper.number}.tex", latex(filled))


def print_table(console: Console, filled: FilledTable, dataset: str | None) -> None:
    """A table dataset by dataset; those without runs are named, unless one is asked for or none has any."""
    every = filled.paper.datasets
    shown = [dataset] if dataset else [name for name in every if filled.has_runs(name)] or every
    say(console, f"Table {filled.paper.number}. {filled.paper.title}")
    for name in shown:
        console.print(terminal(filled, name))
    if left := [TITLES[name] for name in every if name not in shown and not dataset]:
        say(console, f"No runs on {', '.join(left)}; --dataset NAME shows the paper's numbers.")
    here = filled.reasons_on(shown)
    for i, reason in enumerate(filled.reasons):
        if reason in here:
            say(console, f"  {letter(i)}  {reason}")
    for text in (*filled.paper.notes, missing_text(filled)):
        say(console, text)
    say(console, "")


def print_scoreboard(console: Console, board: Scoreboard, out: Path) -> None:
    say(console, board.sentence().replace("`", ""))
    if board.scores:
        for part in terminal_board(board):
            console.print(part)
        for text in (LEGEND, *remarks(board)):
            say(console, text)
        is_drawn = has_matplotlib()
        say(console, f"picture: {out / PICTURE}" if is_drawn else "no picture: pip install 'fssl[plots]' draws one")
    say(console, "")


def has_matplotlib() -> bool:
    return find_spec("matplotlib") is not None


def print_summary(console: Console, result: Tables, out: Path) -> None:
    table = Table("table", "what", "protocol", "cells", "missing", "unmarked", **RULED)
    for filled in result.tables:
        for source, (done, total) in filled.counts.items():
            cells = [c for line in filled.lines if line.source == source for c in line.cells if c and c.runs]
            exact = sum(not cell.marks for cell in cells)
            what = re.split("[:,]", filled.paper.title)[0]
            table.add_row(str(filled.paper.number), what, source, str(done), str(total - done), str(exact))
    console.print(table)
    say(console, UNMARKED)
    used = result.num_runs - len(result.unused)
    say(console, f"{used} of {result.num_runs} runs are in the tables.")
    say_unused(console, result.unused, out / "tables.md")
    say(console, f"written: {out}/tables.md, tables.csv, tables.tex (with table1.tex to table8.tex)")
