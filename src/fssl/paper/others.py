"""Tables of other papers: what they print beside our runs."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from ..console import say
from ..errors import unknown
from ..records.rounds import LAST
from ..report.formats import escape_markdown, markdown, markdown_notes
from ..report.runs import NO_ROUND, FoundRuns, Run, find_runs
from ..system.files import write_atomic
from ..system.machine import check_folder
from .fill import Tables, fill_table, shortness, why_nowhere
from .markup import grid, numbers_csv, on_terminal, say_reasons, say_unused, unused_list
from .published import End, PublishedTable, other_tables
from .setups import by_setup

NO_CELL = "of no cell"
UNFINISHED = "unfinished (--short shows such runs)"
TOO_SHORT = "too short (--short shows such runs)"
BEHIND = "behind runs that are longer or nearer to its setting"
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
        say(console, "Of no cell:")
        say_unused(console, nowhere, out / f"{name}.md")
    say(console, f"written: {out / name}.md and {name}.csv")


def fill_other(table: PublishedTable, found: FoundRuns, short: bool = False) -> Tables:
    """The table with the runs that come as far as its numbers; `short` takes the others too, marked."""
    known, strange = by_setup(found.runs)
    unread = {path: UNREAD[why == NO_ROUND] for path, why in found.unreadable.items()}
    result = Tables([fill_table(table, known, short)], len(found.runs) + len(unread), strange | unread)
    shown = {run.path for run in result.runs}
    ends = {setup: wanted.end for row in table.wanted for wanted in row if wanted for setup in wanted.setups}
    for setup, runs in known.items():
        nowhere = why_nowhere(setup, ends)
        for run in runs:
            if run.path not in shown:
                result.unused[run.path] = f"no cell has {nowhere}" if nowhere else why_left_out(run, ends[setup], short)
    return result


def why_left_out(run: Run, end: End, short: bool) -> str:
    """The reason why a run is not in the table, though it has a cell; `end` is where that is read."""
    if short or not shortness(run, end.rounds):
        return BEHIND
    return UNFINISHED if run.reached < run.config.rounds else TOO_SHORT


def without_cell(result: Tables) -> Mapping[Path, str]:
    """The runs that have no cell at all, and why."""
    return {path: why for path, why in sorted(result.unused.items()) if why not in WITH_A_CELL}


def count_text(result: Tables) -> str:
    """How many runs the table shows, and why it does not show the others."""
    numbers = Counter(why if why in WITH_A_CELL else NO_CELL for why in result.unused.values())
    others = ", ".join(f"{numbers[why]} {why}" for why in (NO_CELL, *WITH_A_CELL) if why in numbers)
    return f"{result.used} of {result.num_runs} runs are in the table{'; not in it: ' * bool(others)}{others}."


def dataset_parts(table: PublishedTable) -> list[list[int]]:
    """Columns that stand together in a terminal: all, or those of one dataset where it has several."""
    parts = [*table.by_dataset.values()]
    return [[*range(len(table.columns))]] if len(parts) == len(table.columns) else parts


def other_remarks(result: Tables) -> list[str]:
    table = result.tables[0].table
    ours = f"Ours: mean of the last {LAST} rounds, then mean ± standard deviation over seeds, in parentheses how many."
    commands = "; ".join(f"fssl run {preset}" for preset in table.presets)
    return [ours, count_text(result), *table.notes, f"All of it: {commands}"]


def other_page(result: Tables) -> str:
    """The table in Markdown."""
    filled = result.tables[0]
    shown = grid(filled)
    notes = [*markdown_notes(shown), *(f"- {escape_markdown(text)}" for text in other_remarks(result))]
    lines = [f"# {filled.table.title}", "", markdown(shown), *notes]
    if nowhere := without_cell(result):
        lines += ["", "## Runs of no cell", "", unused_list(nowhere).rstrip()]
    return "\n".join(lines) + "\n"
