"""The paper's tables from run folders, as files and in the terminal."""

import re
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..console import RULED, say
from ..errors import UserError
from ..report.runs import find_runs
from ..system.files import write_atomic
from ..system.machine import check_folder
from .fill import FilledTable, Tables, fill_tables
from .markup import csv_text, latex, latex_page, letter, markdown_page, missing_text, terminal
from .printed import paper_tables

LISTED = 10  # runs without a cell that the terminal names; tables.md names all


def make_tables(console: Console, paths: list[Path], out: Path, show: int | None, as_is: bool = False) -> None:
    """Write every table into a folder and say what is in them; print one if asked."""
    numbers = [table.number for table in paper_tables()]
    if show is not None and show not in numbers:
        raise UserError(f"--table {show}: expected a number from {numbers[0]} to {numbers[-1]}")
    check_folder("--out", out)
    result = fill_tables(find_runs(paths, as_is))
    write_tables(result, out)
    if show is not None:
        print_table(console, next(t for t in result.tables if t.paper.number == show))
    print_summary(console, result, out)


def write_tables(result: Tables, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / "tables.md", markdown_page(result))
    write_atomic(out / "tables.csv", csv_text(result.tables))
    write_atomic(out / "tables.tex", latex_page(t.paper.number for t in result.tables))
    for filled in result.tables:
        write_atomic(out / f"table{filled.paper.number}.tex", latex(filled))


def print_table(console: Console, filled: FilledTable) -> None:
    say(console, f"Table {filled.paper.number}. {filled.paper.title}")
    for part in terminal(filled):
        console.print(part)
    for i, reason in enumerate(filled.reasons):
        say(console, f"  {letter(i)}  {reason}")
    for text in (*filled.paper.notes, missing_text(filled)):
        say(console, text)
    say(console, "")


def print_summary(console: Console, result: Tables, out: Path) -> None:
    table = Table("table", "what", "protocol", "cells", "missing", "unmarked", **RULED)
    for filled in result.tables:
        for source, (done, total) in filled.counts.items():
            cells = [c for line in filled.lines if line.source == source for c in line.cells if c and c.runs]
            exact = sum(not cell.marks for cell in cells)
            what = re.split("[:,]", filled.paper.title)[0]
            table.add_row(str(filled.paper.number), what, source, str(done), str(total - done), str(exact))
    console.print(table)
    used = result.num_runs - len(result.unused)
    say(console, f"{used} of {result.num_runs} runs are in the tables.")
    for path, why in list(result.unused.items())[:LISTED]:
        say(console, f"  {path}: {why}")
    if len(result.unused) > LISTED:
        say(console, f"  and {len(result.unused) - LISTED} more, in {out / 'tables.md'}")
    say(console, f"written: {out}/tables.md, tables.csv, tables.tex (with table1.tex to table8.tex)")
