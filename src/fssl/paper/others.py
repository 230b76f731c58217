"""Tables of other papers, most with labels elsewhere: what they print, from others.toml, beside our runs."""

import json
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import isnan
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from ..config import Config, override, parse, read_toml
from ..console import RULED, say
from ..errors import unknown
from ..records.rounds import LAST
from ..report.markdown import as_code, escape_markdown
from ..report.runs import NO_ROUND, Found, Run, find_runs
from ..system.files import as_csv, write_atomic
from ..system.machine import check_folder
from .fill import Cell, best_cell, shortness, why_nowhere
from .markup import letter, markdown_row, named_once, say_unused
from .setups import Setup, by_setup, differences, setup_of

NO_CELL = "of no cell"
UNFINISHED = "unfinished (--short shows such runs)"
TOO_SHORT = "too short (--short shows such runs)"
GAVE_WAY = "behind runs that are longer or nearer to its setting"
UNREAD = ("with a record that cannot be used", "without a finished round")
REASONS = (NO_CELL, UNFINISHED, TOO_SHORT, *reversed(UNREAD), GAVE_WAY)
FIELDS = ("table", "row", "column", "source", "value", "std", "runs", "remarks", "folders")


class Place(NamedTuple):
    """A column or a row: its name, and what it adds to the preset.

    Rows also have what is printed, its spread, and what the source leaves open of it; a column may have a preset of its
    own.
    """

    name: str
    set: Mapping[str, Any] | None = None
    printed: Sequence[float] = ()
    std: Sequence[float] = ()
    open: str = ""
    preset: str | None = None


class OtherTable(NamedTuple):
    name: str
    title: str
    preset: str
    notes: Sequence[str]
    columns: Sequence[Place]
    rows: Sequence[Place]

    @property
    def presets(self) -> list[str]:
        """All that its cells are made of."""
        return list(dict.fromkeys(column.preset or self.preset for column in self.columns))

    def config(self, row: Place, column: Place) -> Config | None:
        """The setting of a cell, in the arithmetic of released codes; None if we have no such method."""
        if row.set is None:
            return None
        base = {key: value for key, value in read_toml(column.preset or self.preset).items() if key != "grid"}
        given = {**(column.set or {}), **row.set, "train.precision": "fp32"}
        return parse(override(base, [f"{key}={json.dumps(value)}" for key, value in given.items()]))


class End(NamedTuple):
    """A number is read at the last round as published."""

    rounds: int
    target: int | None = None


class FilledRow(NamedTuple):
    place: Place
    cells: list[Cell | None]  # ours, by column


class FilledOther(NamedTuple):
    table: OtherTable
    rows: list[FilledRow]
    num_runs: int  # that there are, in the table or not
    unused: Mapping[str, int]  # runs that are not in the table, by reason
    nowhere: Mapping[Path, str]  # those of no cell, and why there is none

    @property
    def cells(self) -> list[Cell]:
        return [cell for row in self.rows for cell in row.cells if cell]

    @property
    def reasons(self) -> list[str]:
        """Every reason for a mark, in the order in which they appear."""
        return list(dict.fromkeys(mark for cell in self.cells for mark in cell.marks))

    @property
    def counted(self) -> str:
        """How many runs the table shows, and why it does not show the others."""
        used = self.num_runs - sum(self.unused.values())
        others = ", ".join(f"{self.unused[why]} {why}" for why in REASONS if why in self.unused)
        return f"{used} of {self.num_runs} runs are in the table{'; not in it: ' * bool(others)}{others}."


@cache
def other_tables() -> dict[str, OtherTable]:
    """By name."""
    content = tomllib.loads((Path(__file__).parent / "others.toml").read_text("utf-8"))
    return {name: parse_other(name, content) for name in content}


def parse_other(name: str, content: Mapping[str, dict[str, Any]]) -> OtherTable:
    entry = content[name]
    given = entry["columns"]
    columns = [Place(**place) for place in (content[given]["columns"] if isinstance(given, str) else given)]
    rows = [Place(**place) for place in entry["rows"]]
    return OtherTable(name, entry["title"], entry["preset"], entry.get("notes", []), columns, rows)


def make_other(console: Console, paths: list[Path], out: Path, name: str, short: bool) -> None:
    """Fill one table with runs, print it, and write it as Markdown and CSV."""
    if name not in other_tables():
        raise unknown("setting", name, other_tables())
    check_folder("out", out)
    filled = fill_other(other_tables()[name], find_runs(paths), short)
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / f"{name}.md", markdown(filled))
    write_atomic(out / f"{name}.csv", csv_text(filled))
    say(console, filled.table.title)
    for part in terminal(filled):
        console.print(part)
    for text in remarks(filled):
        say(console, text)
    if filled.nowhere:
        say(console, "Of no cell:")
    say_unused(console, filled.nowhere, out / f"{name}.md")
    say(console, f"written: {out / name}.md and {name}.csv")


def fill_other(table: OtherTable, found: Found, short: bool = False) -> FilledOther:
    """The table with the runs that come as far as its numbers; `short` takes the others too, marked."""
    known, strange = by_setup(found.runs)
    configs = [[table.config(row, column) for column in table.columns] for row in table.rows]
    rows = [
        FilledRow(row, [find_cell(config, known, short) for config in line])
        for row, line in zip(table.rows, configs, strict=True)
    ]
    shown = {run.path for row in rows for cell in row.cells if cell for run in cell.runs}
    ends = {setup_of(config): End(config.rounds) for line in configs for config in line if config}
    unused = Counter(UNREAD[why == NO_ROUND] for why in found.unreadable.values())
    nowhere = dict(strange)
    for setup, runs in known.items():
        if end := ends.get(setup):
            unused.update(why_left_out(run, end, short) for run in runs if run.path not in shown)
        else:
            nowhere |= {run.path: f"no cell has {why_nowhere(setup, ends)}" for run in runs}
    unused[NO_CELL] = len(nowhere)
    return FilledOther(table, rows, len(found.runs) + len(found.unreadable), +unused, dict(sorted(nowhere.items())))


def tables_by_setup() -> dict[Setup, str]:
    """The first of these tables that has a cell of a setup."""
    names: dict[Setup, str] = {}
    for name, table in other_tables().items():
        configs = (table.config(row, column) for row in table.rows for column in table.columns)
        for config in filter(None, configs):
            names.setdefault(setup_of(config), name)
    return names


def why_left_out(run: Run, end: End, short: bool) -> str:
    """The reason why a run is not in the table, though it has a cell; `end` is where that is read."""
    if short or not shortness(run, end.rounds):
        return GAVE_WAY
    return UNFINISHED if run.reached < run.config.rounds else TOO_SHORT


def find_cell(config: Config | None, known: Mapping[Setup, Sequence[Run]], short: bool) -> Cell | None:
    """Our runs of a cell with these settings, those nearest to them."""
    if config is None:
        return None
    end, choices = End(config.rounds), defaultdict[tuple[str, ...], list[Run]](list)
    for run in known.get(setup_of(config), ()):
        late = shortness(run, end.rounds)
        if short or not late:
            choices[(*differences(run.config, config), *late)].append(run)
    return best_cell(choices, end) if choices else None


# As text.


def lines_of(filled: FilledOther) -> Iterable[tuple[str, str, list[str]]]:
    """Name, source and texts of each line: what is printed, then ours where there is a run."""
    for place, cells in filled.rows:
        if place.printed:
            spread = place.std or [float("nan")] * len(place.printed)
            source = "printed, about" if place.open else "printed"
            yield place.name, source, [printed_text(*pair) for pair in zip(place.printed, spread, strict=True)]
        if any(cells) or (place.set is not None and not place.printed):
            yield place.name, "ours", [cell_text(cell, filled.reasons) for cell in cells]


def printed_text(value: float, std: float) -> str:
    return "" if isnan(value) else f"{value:.2f}" if isnan(std) else f"{value:.2f} ± {std:.2f}"


def cell_text(cell: Cell | None, reasons: Sequence[str]) -> str:
    if cell is None or cell.value is None:
        return ""
    spread = "" if cell.std is None else f" ± {cell.std:.2f}"
    marks = ",".join(sorted(letter(reasons.index(mark)) for mark in cell.marks))
    return f"{cell.value:.2f}{spread} ({len(cell.runs)}){' ' * bool(marks)}{marks}"


def parts_of(table: OtherTable) -> list[list[int]]:
    """Columns that stand together in a terminal: all, or those of one dataset where it has several."""
    by_dataset: dict[str, list[int]] = defaultdict(list)
    for i, column in enumerate(table.columns):
        by_dataset[(column.set or {})["data.name"]].append(i)
    single = all(len(each) == 1 for each in by_dataset.values())
    return [[*range(len(table.columns))]] if single else [*by_dataset.values()]


def terminal(filled: FilledOther) -> Iterable[Table]:
    """Parts of the table that fit a terminal; lines and parts without a number are left out."""
    for part in parts_of(filled.table):
        out = Table("method", "source", *(filled.table.columns[i].name for i in part), **RULED)
        lines = [line for line in lines_of(filled) if any(line[2][i] for i in part)]
        for name, (_, source, texts) in named_once(lines, itemgetter(0)):
            out.add_row(name, source, *(texts[i] for i in part), style="" if source == "ours" else "dim")
        if lines:
            yield out


def remarks(filled: FilledOther) -> list[str]:
    ours = f"Ours: mean of the last {LAST} rounds, then mean ± standard deviation over seeds, in parentheses how many."
    reasons = [f"  {letter(i)}  {reason}" for i, reason in enumerate(filled.reasons)]
    commands = "; ".join(f"fssl run {preset}" for preset in filled.table.presets)
    return [*reasons, ours, filled.counted, *filled.table.notes, f"All of it: {commands}"]


def markdown(filled: FilledOther) -> str:
    head = ["method", "source", *(column.name for column in filled.table.columns)]
    lines = [f"# {filled.table.title}", "", markdown_row(head), markdown_row(["---"] * len(head))]
    named = named_once(lines_of(filled), itemgetter(0))
    lines += [markdown_row([name, source, *texts]) for name, (_, source, texts) in named]
    lines += ["", *(f"- {escape_markdown(text.strip())}" for text in remarks(filled))]
    if filled.nowhere:
        lines += ["", "## Runs of no cell", ""]
        lines += [f"- {as_code(str(path))}: {escape_markdown(why)}" for path, why in filled.nowhere.items()]
    return "\n".join(lines) + "\n"


def csv_text(filled: FilledOther) -> str:
    return as_csv(FIELDS, csv_rows(filled))


def csv_rows(filled: FilledOther) -> Iterable[dict[str, Any]]:
    for place, cells in filled.rows:
        for i, column in enumerate(filled.table.columns):
            where = {"table": filled.table.name, "row": place.name, "column": column.name}
            if place.printed and not isnan(place.printed[i]):
                std = place.std[i] if place.std else None
                yield {**where, "source": "printed", "value": place.printed[i], "std": std, "remarks": place.open}
            if cell := cells[i]:
                folders = "; ".join(str(run.path) for run in cell.runs)
                ours = {"value": cell.value, "std": cell.std, "runs": len(cell.runs), "folders": folders}
                yield {**where, "source": "ours", **ours, "remarks": "; ".join(cell.marks)}
