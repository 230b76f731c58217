"""Published tables filled with our runs: ours beside the printed numbers, and why a cell may not be compared."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from math import isnan, nan
from pathlib import Path
from typing import NamedTuple

from ..data.cards import card
from ..errors import several
from ..report.groups import one_per_seed
from ..report.runs import FoundRuns, Run, commits_of, mean_std
from .published import PAPER, PRINTED, SEEDS, End, PublishedTable, Row, Wanted, paper_tables, tables_by_setup
from .ranks import TableCell, TableRows, derive, rank
from .setups import Setup, by_setup, changes_since, differences, own_recipe, result_at

GAIN_ROW = "SAGE minus best other"
GAVE_WAY = "behind runs that are longer or nearer to the paper's setting"
Known = Mapping[Setup, Sequence[Run]]


class SourceLine(NamedTuple):
    """A row of the table as one source has it: printed, or ours, maybe under a protocol. No cell, no run."""

    place: Row
    source: str
    cells: list[TableCell | None]

    @property
    def row(self) -> str:
        return self.place.name

    @property
    def is_printed(self) -> bool:
        return self.source in (PAPER, PRINTED)


class FilledTable(NamedTuple):
    table: PublishedTable
    lines: list[SourceLine]

    @property
    def counts(self) -> dict[str, tuple[int, int]]:
        """For each of our protocols that has runs: cells filled, cells in all."""
        sizes: dict[str, tuple[int, int]] = {}
        for line in self.lines:
            if not line.is_printed and line.row != GAIN_ROW:
                filled, total = sizes.get(line.source, (0, 0))
                sizes[line.source] = (filled + sum(c is not None for c in line.cells), total + len(line.cells))
        return sizes

    def has_runs(self, columns: Iterable[int]) -> bool:
        return any(line.cells[j] for line in self.lines if not line.is_printed for j in columns)

    @property
    def visible_lines(self) -> list[SourceLine]:
        """Without our empty lines, but for one where a row has nothing else of ours.

        In a table of another paper, where it has nothing else at all.
        """
        ours = [line for line in self.lines if not line.is_printed]
        filled = {line.row for line in ours if any(line.cells)}
        empty = [line for line in ours if self.table.number or (line.place.method and not line.place.printed)]
        gaps = {line.row: line for line in reversed(empty) if line.row not in filled}
        return [line for line in self.lines if line.is_printed or any(line.cells) or gaps.get(line.row) is line]

    @property
    def reasons(self) -> list[str]:
        """Every reason for a mark, in the order in which they appear."""
        return self.reasons_in(range(len(self.table.columns)))

    def reasons_in(self, columns: Collection[int]) -> list[str]:
        """Those of cells in these columns."""
        cells = [line.cells[j] for line in self.lines for j in columns]
        return list(dict.fromkeys(mark for cell in cells if cell for mark in cell.marks))


class Tables(NamedTuple):
    tables: list[FilledTable]
    num_runs: int
    unused: dict[Path, str]  # runs that are in no cell, and why

    @property
    def used(self) -> int:
        return self.num_runs - len(self.unused)

    @property
    def runs(self) -> list[Run]:
        """The runs that are in a cell, by folder."""
        cells = (cell for filled in self.tables for line in filled.lines for cell in line.cells if cell)
        shown = {run.path: run for cell in cells for run in cell.runs}
        return [shown[path] for path in sorted(shown)]


def fill_tables(found: FoundRuns, short: bool = False) -> Tables:
    """The SAGE paper's, each from the runs that come as far as its numbers; `short` takes the others too, marked."""
    setups, strange = by_setup(found.runs)
    recipes = {run.path: recipe for run in found.runs if (recipe := own_recipe(run.config))}
    known = {setup: [run for run in runs if run.path not in recipes] for setup, runs in setups.items()}
    unused = strange | found.unreadable
    result = Tables(fill_all(known, short), len(found.runs) + len(found.unreadable), unused)
    every = result if short else result._replace(tables=fill_all(known, short=True))
    shown, shown_if_short = ({run.path for run in tables.runs} for tables in (result, every))
    for setup, run in ((setup, run) for setup, runs in setups.items() for run in runs if run.path not in shown):
        unused[run.path] = why_unused(setup, run, recipes.get(run.path, ""), run.path in shown_if_short)
    return result._replace(unused=dict(sorted(unused.items())))


def fill_all(known: Known, short: bool) -> list[FilledTable]:
    return [fill_table(table, known, short) for table in paper_tables()]


@cache
def setups_of_paper() -> frozenset[Setup]:
    """Those of all cells."""
    return frozenset(setup for table in paper_tables() for setup in table.setups)


def why_unused(mine: Setup, run: Run, recipe: str, shown_if_short: bool) -> str:
    """The first thing that no cell has, and which other table has one; else it is too short, or gave way to others."""
    is_elsewhere = mine not in setups_of_paper() and mine in tables_by_setup()
    if why := recipe or why_nowhere(mine, setups_of_paper()):
        return f"no table has {why}" + (
            f"; --setting {tables_by_setup()[mine]} has a cell for it" if is_elsewhere else ""
        )
    rounds = card(mine.dataset).rounds
    few = f"{run.last_round} of the paper's {rounds} rounds; " * (run.last_round < rounds)
    return few + ("--short shows it" if shown_if_short else GAVE_WAY)


def why_nowhere(mine: Setup, wanted: Collection[Setup]) -> str:
    """The first thing that none of these setups has beside those before it; empty if there is one like this."""
    checks = (
        ("dataset", "{}"),
        ("partition", "partition.kind = {}"),
        ("labels_per_class", "{} labels per class"),
        ("alpha", "alpha {:g}"),
        ("method", "this method, or these settings of it, in that column"),
    )
    for name, text in checks:
        value = getattr(mine, name)
        wanted = [other for other in wanted if getattr(other, name) == value]
        if not wanted:
            return text.format(value)
    return ""


def fill_table(table: PublishedTable, known: Known, short: bool = False) -> FilledTable:
    """A table with our runs; those that end before a cell's number are left out, or marked if `short`."""
    found = [[find_cells(table, wanted, known, short) if wanted else {} for wanted in row] for row in table.wanted]
    present = {source for row in found for cells in row for source in cells}
    blocks = {
        source: derive(table, rank(table, [[cells.get(source) for cells in row] for row in found]))
        for source in [source for source in table.sources if source in present] or table.sources[:1]
    }
    printed = printed_block(table)
    blocks = {**blocks, PAPER: printed} if table.number else {PRINTED: printed, **blocks}
    rows = [*table.rows, *([Row(GAIN_ROW)] if table.gains else [])]
    return FilledTable(
        table, [SourceLine(row, s, blocks[s][i]) for i, row in enumerate(rows) for s in blocks if blocks[s][i]]
    )


def printed_block(table: PublishedTable) -> TableRows:
    """What is printed, also where that does not follow from other numbers; a row without is empty."""
    last: TableRows = [[TableCell(value) for value in table.gains]] if table.gains else []
    return rank(table, [printed_cells(table, row) for row in table.rows]) + last


def printed_cells(table: PublishedTable, row: Row) -> list[TableCell | None]:
    unknown = [nan] * len(row.printed)
    numbers = zip(row.printed, row.std or unknown, row.speedups or row.gains or unknown, strict=True)
    cells = [TableCell(known(value), known(std), extra=known(extra)) for value, std, extra in numbers]
    return [cell if table.counts_rounds or cell.value is not None else None for cell in cells]


def known(value: float) -> float | None:
    return None if isnan(value) else value


def find_cells(table: PublishedTable, wanted: Wanted, runs: Known, short: bool) -> dict[str, TableCell]:
    """Our cell, or that under each protocol that has runs of it.

    Before the round of the printed number an accuracy is no result yet, and a target that is not reached no answer.
    """
    groups: dict[str, dict[tuple[str, ...], list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in (run for setup in wanted.setups for run in runs.get(setup, ())):
        is_reached = wanted.end.target is not None and column_value(run, wanted.end) is not None
        late = [] if is_reached else shortness(run, wanted.due)
        if late and not short:
            continue
        notes = differences(run.config, wanted.config)
        if run.config.labels_per_class != wanted.config.labels_per_class:
            notes.append(f"{run.config.labels_per_class} labels per class, but it knows all labels")
        groups[table.source_of(run.config)][(*notes, *late)].append(run)
    return {source: best_cell(choices, wanted.end) for source, choices in groups.items()}


def shortness(run: Run, rounds: int) -> list[str]:
    """A remark on a run that ends before the round of the paper's number; else empty."""
    last = run.last_round
    if last >= rounds:
        return []
    if last < run.config.rounds:
        return [f"unfinished: read at round {last} of {rounds}"]
    return [f"{several(last, 'round')} (paper: {rounds})"]


def best_cell(choices: Mapping[tuple[str, ...], list[Run]], end: End) -> TableCell:
    """The group of repetitions that says most.

    That is the farthest, up to where the paper reads; then the one with fewest differences; the longest; most seeds.
    The beginning of a run tells little of its end; a target that is reached is an answer at once.
    """

    def worth(setting: tuple[str, ...]) -> tuple[int, int, int, int]:
        runs = choices[setting]
        is_reached = end.target and any(column_value(run, end) is not None for run in runs)
        far = end.rounds if is_reached else max(min(run.last_round, end.rounds) for run in runs)
        return far, -len(setting), max(run.last_round for run in runs), len(one_per_seed(runs))

    setting = max(choices, key=worth)
    runs = one_per_seed(choices[setting])
    remarks = [f"{len(runs)} of {SEEDS} seeds"] if len(runs) < SEEDS else []
    if any(run.damaged for run in runs):
        remarks.append("damaged lines of the record were skipped")
    if any(run.remark for run in runs):
        remarks.append("a record that was edited since, and accepted")
    if len(commits := commits_of(runs)) > 1:
        remarks.append(f"runs of several commits: {', '.join(commits)}")
    remarks += changes_since(tuple(runs))
    numbers = [number for run in runs if (number := column_value(run, end)) is not None]
    value, std = mean_std(numbers) if len(numbers) == len(runs) else (None, None)
    if value is None:
        last = min(min(run.last_round, end.rounds) for run in runs)
        remarks.append(f"{len(numbers)} of {len(runs)} runs reach {end.target} % within {several(last, 'round')}")
    return TableCell(value, std, tuple(runs), setting, tuple(remarks))


def column_value(run: Run, end: End) -> float | None:
    """What a column takes from a run: its result, or the first round at or above the target, if there is one."""
    if end.target is None:
        return result_at(run, end.rounds)
    reached = (line["round"] for line in run.lines if line["accuracy"] >= end.target)
    first = next(reached, None)
    return None if first is None or first > end.rounds else float(first)
