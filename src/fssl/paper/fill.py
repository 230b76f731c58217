"""Published tables filled with our runs: ours next to the printed numbers, and reasons against comparing a cell."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from math import isnan, nan
from pathlib import Path
from typing import NamedTuple

from ..data.cards import card
from ..errors import several
from ..reports.groups import one_per_seed
from ..reports.runs import FoundRuns, Run, commits_of, mean_std
from ..reports.verdicts import seed_differences
from .published import PAPER, PRINTED, SEEDS, End, PublishedTable, Row, Wanted, paper_tables, tables_by_setup
from .setups import Setup, by_setup, changes_since, differences, own_recipe, result_at

GAIN_ROW = "SAGE minus best other"
GAVE_WAY = "replaced by runs that are longer or closer to the paper's setting"
Known = Mapping[Setup, Sequence[Run]]
NEAR = 5.0  # points below the paper's best other method: one that is farther behind cannot replace it


class TableCell(NamedTuple):
    """One number of a table and its origin."""

    value: float | None  # None: a target that not every run reaches
    std: float | None = None
    runs: tuple[Run, ...] = ()
    setting: tuple[str, ...] = ()  # differences from the paper: only cells with the same ones are ranked together
    remarks: tuple[str, ...] = ()  # further reasons for a mark
    rank: int = 0  # 1 for the best of its column, 2 for the second
    extra: float | None = None  # the speed-up, or the gain over the row above

    @property
    def marks(self) -> tuple[str, ...]:
        return (*self.setting, *self.remarks)


TableRows = list[list[TableCell | None]]  # rows of a table, each with a cell or nothing per column


class SourceLine(NamedTuple):
    """A row of the table from one source: printed, or ours, maybe under a protocol. An empty cell has no run."""

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
        """Return, for each of our protocols with runs, the number of filled cells and of all cells."""
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
        """Return the lines without our empty ones, except where a row has no other line of ours.

        In a table of another paper, except where a row has no other line at all.
        """
        ours = [line for line in self.lines if not line.is_printed]
        filled = {line.row for line in ours if any(line.cells)}
        empty = [line for line in ours if self.table.number or (line.place.method and not line.place.printed)]
        gaps = {line.row: line for line in reversed(empty) if line.row not in filled}
        return [line for line in self.lines if line.is_printed or any(line.cells) or gaps.get(line.row) is line]

    @property
    def reasons(self) -> list[str]:
        """Return every reason for a mark, in order of appearance."""
        return self.reasons_in(range(len(self.table.columns)))

    def reasons_in(self, columns: Collection[int]) -> list[str]:
        """Return the reasons of cells in these columns."""
        cells = [line.cells[j] for line in self.lines for j in columns]
        return list(dict.fromkeys(mark for cell in cells if cell for mark in cell.marks))


class Tables(NamedTuple):
    tables: list[FilledTable]
    num_runs: int
    unused: dict[Path, str]  # runs without a cell, with reasons

    @property
    def used(self) -> int:
        return self.num_runs - len(self.unused)

    @property
    def runs(self) -> list[Run]:
        """Return the runs with a cell, by folder."""
        cells = (cell for filled in self.tables for line in filled.lines for cell in line.cells if cell)
        shown = {run.path: run for cell in cells for run in cell.runs}
        return [shown[path] for path in sorted(shown)]


def fill_tables(found: FoundRuns, short: bool = False) -> Tables:
    """Fill the SAGE paper's tables with runs that reach the numbers' rounds; with `short` also others, marked."""
    setups, strange = by_setup(found.runs)
    recipes = {run.path: recipe for run in found.runs if (recipe := own_recipe(run.config))}
    known = {setup: [run for run in runs if run.path not in recipes] for setup, runs in setups.items()}
    unused = strange | found.unreadable
    result = Tables(fill_all(known, short), len(found.runs) + len(found.unreadable), unused)
    every = result if short else result._replace(tables=fill_all(known, short=True))
    shown, shown_if_short = ({run.path for run in tables.runs} for tables in (result, every))
    for setup, run in ((setup, run) for setup, runs in setups.items() for run in runs if run.path not in shown):
        unused[run.path] = unused_reason(setup, run, recipes.get(run.path, ""), run.path in shown_if_short)
    return result._replace(unused=dict(sorted(unused.items())))


def fill_all(known: Known, short: bool) -> list[FilledTable]:
    return [fill_table(table, known, short) for table in paper_tables()]


@cache
def setups_of_paper() -> frozenset[Setup]:
    """Return the setups of all cells."""
    return frozenset(setup for table in paper_tables() for setup in table.setups)


def unused_reason(mine: Setup, run: Run, recipe: str, shown_if_short: bool) -> str:
    """Return why a run is in no cell: its first difference from all cells, its length, or better runs."""
    is_elsewhere = mine not in setups_of_paper() and mine in tables_by_setup()
    if why := recipe or unmatched_reason(mine, setups_of_paper()):
        return f"no table has {why}" + (
            f"; --setting {tables_by_setup()[mine]} has a cell for it" if is_elsewhere else ""
        )
    rounds = card(mine.dataset).rounds
    few = f"{run.last_round} of the paper's {rounds} rounds; " * (run.last_round < rounds)
    return few + ("--short shows it" if shown_if_short else GAVE_WAY)


def unmatched_reason(mine: Setup, wanted: Collection[Setup]) -> str:
    """Return the first setting that no setup shares, given those before it; empty if one setup matches."""
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
    """Fill a table with our runs; runs that end before a cell's number are omitted, or with `short` marked."""
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
    """Return the printed numbers, even if they do not follow from others; rows without numbers are empty."""
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
    """Return our cell, or one for each protocol with matching runs.

    Before the round of the printed number, an accuracy is not a result yet, and a target may still be reached.
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
    """Return a remark on a run that ends before the round of the paper's number; otherwise nothing."""
    last = run.last_round
    if last >= rounds:
        return []
    if last < run.config.rounds:
        return [f"unfinished: read at round {last} of {rounds}"]
    return [f"{several(last, 'round')} (paper: {rounds})"]


def best_cell(choices: Mapping[tuple[str, ...], list[Run]], end: End) -> TableCell:
    """Return the most informative group of repetitions.

    It is the farthest, up to the paper's round; then the one with fewest differences; the longest; the one with most
    seeds. The beginning of a run says little about its end; a reached target is final at once.
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
        remarks.append("a record that was edited and accepted")
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
    """Return a column's value for a run: its result, or the first round at or above the target; None without one."""
    if end.target is None:
        return result_at(run, end.rounds)
    reached = (line["round"] for line in run.lines if line["accuracy"] >= end.target)
    first = next(reached, None)
    return None if first is None or first > end.rounds else float(first)


# Numbers that follow from others: ranks, speed-ups, gains, and SAGE's lead over the best other.


def rank(table: PublishedTable, block: TableRows) -> TableRows:
    """Return the same cells with the best and the second of each column marked, as the numbers are shown.

    Only cells of one setting compete: the most frequent one of the column. A single cell has no rank; tables of another
    paper have none.
    """
    if not table.number:
        return block
    out = [list(cells) for cells in block]
    for j in range(len(table.columns)):
        rivals = rivals_in(table, block, j)
        places = sorted({shown_value(table, c) for c in rivals.values()}, reverse=not table.counts_rounds)
        for i, cell in rivals.items():
            place = places.index(shown_value(table, cell)) + 1
            if len(rivals) > 1 and place <= 2:
                out[i][j] = cell._replace(rank=place)
    return out


def rivals_in(table: PublishedTable, block: TableRows, j: int) -> dict[int, TableCell]:
    """Return the comparable cells of a column, by row: no upper bounds, no runs that end before the paper's round."""
    cells = {
        i: cell
        for i, (cell, row) in enumerate(zip((cells[j] for cells in block), table.rows, strict=True))
        if cell and cell.value is not None and not row.is_bound and not is_short(cell, table.ends[j])
    }
    sizes = Counter(cell.setting for cell in cells.values())
    if not sizes:
        return {}
    setting = max(sizes, key=lambda s: (sizes[s], -len(s)))
    return {i: cell for i, cell in cells.items() if cell.setting == setting}


def is_short(cell: TableCell, end: End) -> bool:
    """Return whether a cell's accuracy was read before the paper's round; a reached target is never short."""
    return end.target is None and any(run.last_round < end.rounds for run in cell.runs)


def known_value(cell: TableCell) -> float:
    assert cell.value is not None
    return cell.value


def shown_value(table: PublishedTable, cell: TableCell) -> float:
    return round(known_value(cell), 1 if table.counts_rounds else 2)


def derive(table: PublishedTable, block: TableRows) -> TableRows:
    """Return the same cells with the paper's derived numbers: speed-ups, gains over the row above, the last line."""
    out = [list(cells) for cells in block]
    for i, row in enumerate(table.rows):
        base = block[0] if row.speedups else block[i - 1] if row.gains else None
        if base:
            out[i] = [with_extra(cell, other, bool(row.speedups)) for cell, other in zip(block[i], base, strict=True)]
    if table.gains:
        out.append([lead(table, block, j) for j in range(len(table.columns))])
    return out


def with_extra(cell: TableCell | None, base: TableCell | None, is_speedup: bool) -> TableCell | None:
    """Return a cell with its speed-up or gain over another of the same setting."""
    if not (cell and base) or cell.value is None or base.value is None or cell.setting != base.setting:
        return cell
    return cell._replace(extra=base.value / cell.value if is_speedup else cell.value - base.value)


def lead(table: PublishedTable, block: TableRows, j: int) -> TableCell | None:
    """Return SAGE minus the best of the others; below zero if it is not ahead, marked if some have no runs.

    None if all others with runs are far behind in the paper: leading only weak methods is not a lead.
    """
    rivals = {table.rows[i].method: cell for i, cell in rivals_in(table, block, j).items()}
    sage = rivals.pop("sage", None)
    printed = {row.method: row.printed[j] for row in table.rows if not row.is_bound and row.method != "sage"}
    if sage is None or not rivals or max(printed[name] for name in rivals) < max(printed.values()) - NEAR:
        return None
    lacking = (f"{len(rivals)} of {len(printed)} other methods have runs",) if len(rivals) < len(printed) else ()
    best = max(rivals.values(), key=known_value)
    spread = spread_of_lead(sage.runs, best.runs, table.ends[j])
    return TableCell(known_value(sage) - known_value(best), spread, setting=sage.setting, remarks=lacking)


def spread_of_lead(ours: Sequence[Run], theirs: Sequence[Run], end: End) -> float | None:
    """Return the standard deviation of a lead over common seeds; None unless both have the same seeds, and several."""
    leads = seed_differences(ours, theirs, lambda run: result_at(run, end.rounds))
    return mean_std(leads)[1] if len(leads) == len(ours) == len(theirs) else None
