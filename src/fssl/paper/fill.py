"""The paper's tables filled with our runs: ours beside the printed numbers, and why a cell may not be compared."""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from functools import cache
from itertools import compress
from math import isnan, nan
from pathlib import Path
from typing import NamedTuple, Protocol

from ..data.cards import card
from ..errors import several
from ..report.groups import one_per_seed
from ..report.runs import Found, Run, commits_of, mean_std
from ..report.verdicts import seed_differences
from .changes import changes_since
from .printed import SEEDS, Column, PaperTable, Row, paper_tables
from .setups import PROTOCOLS, Setup, by_setup, differences, own_recipe, result_at, setup_of

PAPER = "paper"
GAIN_ROW = "SAGE minus best other"
NEAR = 5.0  # points below the best other method of the paper: who is farther behind cannot stand for it
GAVE_WAY = "behind runs that are longer or nearer to the paper's setting"


class Reading(Protocol):
    """How a column is read off a run: up to which round, and for rounds-to-accuracy the accuracy in percent."""

    @property
    def rounds(self) -> int: ...
    @property
    def target(self) -> int | None: ...


class Cell(NamedTuple):
    """One number of a table and where it comes from."""

    value: float | None  # None: a target that not every run reaches
    std: float | None = None
    runs: tuple[Run, ...] = ()
    setting: tuple[str, ...] = ()  # differences from the paper: only cells that share them are ranked together
    remarks: tuple[str, ...] = ()  # further reasons for a mark
    rank: int = 0  # 1 the best of its column, 2 the second
    extra: float | None = None  # the speed-up, or the gain over the row above

    @property
    def marks(self) -> tuple[str, ...]:
        return (*self.setting, *self.remarks)


Block = list[list[Cell | None]]  # rows of a table, each with a cell or nothing per column


class Line(NamedTuple):
    """A row of the table as one source has it: `paper`, or ours under a protocol. No cell, no run."""

    row: str
    source: str
    cells: list[Cell | None]


class FilledTable(NamedTuple):
    paper: PaperTable
    lines: list[Line]

    @property
    def counts(self) -> dict[str, tuple[int, int]]:
        """For each of our protocols that has runs: cells filled, cells in all."""
        ours = [line for line in self.lines if line.source != PAPER and line.row != GAIN_ROW]
        sizes: dict[str, tuple[int, int]] = {}
        for line in ours:
            filled, total = sizes.get(line.source, (0, 0))
            sizes[line.source] = (filled + sum(c is not None for c in line.cells), total + len(line.cells))
        return sizes

    def has_runs(self, dataset: str) -> bool:
        at = [j for j, column in enumerate(self.paper.columns) if column.dataset == dataset]
        return any(line.cells[j] for line in self.lines if line.source != PAPER for j in at)

    @property
    def visible_lines(self) -> list[Line]:
        """Without our empty lines, but for one where a row has nothing else of ours."""
        filled = {line.row for line in self.lines if line.source != PAPER and any(line.cells)}
        first = {line.row: line.source for line in reversed(self.lines) if line.source != PAPER}
        return [
            line
            for line in self.lines
            if line.source == PAPER or any(line.cells) or (line.row not in filled and line.source == first[line.row])
        ]

    @property
    def reasons(self) -> list[str]:
        """Every reason for a mark, in the order in which they appear."""
        return self.reasons_on(self.paper.datasets)

    def reasons_on(self, datasets: Collection[str]) -> list[str]:
        """Those of cells on these datasets."""
        here = [column.dataset in datasets for column in self.paper.columns]
        cells = [cell for line in self.lines for cell in compress(line.cells, here) if cell]
        return list(dict.fromkeys(mark for cell in cells for mark in cell.marks))


class Tables(NamedTuple):
    tables: list[FilledTable]
    num_runs: int
    unused: dict[Path, str]  # runs that are in no cell, and why

    @property
    def runs(self) -> list[Run]:
        """The runs that are in a cell, by folder."""
        cells = (cell for table in self.tables for line in table.lines for cell in line.cells if cell)
        shown = {run.path: run for cell in cells for run in cell.runs}
        return [shown[path] for path in sorted(shown)]


def fill_tables(found: Found, short: bool = False) -> Tables:
    """The tables, each from the runs that come as far as its numbers; `short` takes the others too, marked."""
    recipes = {run.path: recipe for run in found.runs if (recipe := own_recipe(run.config))}
    known, strange = by_setup(run for run in found.runs if run.path not in recipes)
    unused = {path: f"no table has {recipe}" for path, recipe in recipes.items()} | strange | found.unreadable
    result = Tables(fill_all(known, short), len(found.runs) + len(found.unreadable), unused)
    every = result if short else result._replace(tables=fill_all(known, short=True))
    shown, shown_if_short = ({run.path for run in tables.runs} for tables in (result, every))
    for setup, members in known.items():
        for run in members:
            if run.path not in shown:
                unused[run.path] = why_unused(setup, run.last_round, run.path in shown_if_short)
    return result._replace(unused=dict(sorted(unused.items())))


def fill_all(known: dict[Setup, list[Run]], short: bool) -> list[FilledTable]:
    return [fill(table, known, short) for table in paper_tables()]


@cache
def setups_of_paper() -> frozenset[Setup]:
    """Those of all cells."""
    cells = ((table, row, column) for table in paper_tables() for row in table.rows for column in table.columns)
    return frozenset(setup for cell in cells for setup in wanted_by(*cell))


def wanted_by(table: PaperTable, row: Row, column: Column) -> list[Setup]:
    """Setups whose runs may fill a cell; an upper bound, which knows all labels, may also have 10 % of them."""
    fractions = {table.label_fraction, 0.1} if row.is_bound else {table.label_fraction}
    return [setup_of(table._replace(label_fraction=f).config(row, column)) for f in sorted(fractions)]


def why_unused(mine: Setup, last: int, shown_if_short: bool) -> str:
    """The first thing that no cell has; a run with a cell of its own is too short, or gave way to others."""
    if why := why_nowhere(mine, setups_of_paper()):
        return f"no table has {why}"
    rounds = card(mine.dataset).rounds
    few = f"{last} of the paper's {rounds} rounds; " * (last < rounds)
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


def fill(table: PaperTable, known: dict[Setup, list[Run]], short: bool) -> FilledTable:
    ours = {row.name: [find_cells(table, row, column, known, short) for column in table.columns] for row in table.rows}
    found = {protocol for cells in ours.values() for cell in cells for protocol in cell}
    finished = {}
    for protocol in [p for p in PROTOCOLS if p in found] or PROTOCOLS[:1]:
        block = [[cell.get(protocol) for cell in ours[row.name]] for row in table.rows]
        finished[protocol] = derive(table, rank(table, block))
    finished[PAPER] = paper_block(table)
    names = [row.name for row in table.rows] + ([GAIN_ROW] if table.gains else [])
    return FilledTable(table, [Line(name, s, finished[s][i]) for i, name in enumerate(names) for s in finished])


def paper_block(table: PaperTable) -> Block:
    """The paper's own lines: what it prints, also where that does not follow from its other numbers."""
    block: Block = []
    for row in table.rows:
        extras = row.speedups or row.gains or [nan] * len(row.printed)
        block.append([Cell(known(v), extra=known(e)) for v, e in zip(row.printed, extras, strict=True)])
    last: Block = [[Cell(value) for value in table.gains]] if table.gains else []
    return rank(table, block) + last


def known(value: float) -> float | None:
    return None if isnan(value) else value


def find_cells(
    table: PaperTable, row: Row, column: Column, known: dict[Setup, list[Run]], short: bool
) -> dict[str, Cell]:
    """Our cell under each protocol that has runs of it.

    Before the round of the paper's number an accuracy is no result yet, and a target that is not reached no answer.
    """
    paper, rounds = table.config(row, column), due(table, row, column)
    groups: dict[str, dict[tuple[str, ...], list[Run]]] = defaultdict(lambda: defaultdict(list))
    for setup in wanted_by(table, row, column):
        for run in known.get(setup, ()):
            is_reached = table.counts_rounds and column_value(run, column) is not None
            late = [] if is_reached else shortness(run, rounds)
            if late and not short:
                continue
            notes = differences(run.config, paper)
            if run.config.labels_per_class != paper.labels_per_class:
                notes.append(f"{run.config.labels_per_class} labels per class, but it knows all labels")
            groups[run.config.protocol][(*notes, *late)].append(run)
    return {protocol: best_cell(choices, column) for protocol, choices in groups.items()}


def due(table: PaperTable, row: Row, column: Column) -> int:
    """The round of the paper's number: where it reads an accuracy, or where a target is reached, if it is."""
    printed = row.printed[table.columns.index(column)] if table.counts_rounds else nan
    return column.rounds if isnan(printed) else int(printed)


def shortness(run: Run, rounds: int) -> list[str]:
    """A remark on a run that ends before the round of the paper's number; else empty."""
    last = run.last_round
    if last >= rounds:
        return []
    if last < run.config.rounds:
        return [f"unfinished: read at round {last} of {rounds}"]
    return [f"{several(last, 'round')} (paper: {rounds})"]


def best_cell(choices: dict[tuple[str, ...], list[Run]], column: Reading) -> Cell:
    """The group of repetitions that says most.

    That is the farthest, up to where the paper reads; then the one with fewest differences; the longest; most seeds.
    The beginning of a run tells little of its end; a target that is reached is an answer at once.
    """

    def worth(setting: tuple[str, ...]) -> tuple[int, int, int, int]:
        runs = choices[setting]
        is_reached = column.target and any(column_value(run, column) is not None for run in runs)
        far = column.rounds if is_reached else max(min(run.last_round, column.rounds) for run in runs)
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
    numbers = [number for run in runs if (number := column_value(run, column)) is not None]
    value, std = mean_std(numbers) if len(numbers) == len(runs) else (None, None)
    if value is None:
        last = min(min(run.last_round, column.rounds) for run in runs)
        remarks.append(f"{len(numbers)} of {len(runs)} runs reach {column.target} % within {several(last, 'round')}")
    return Cell(value, std, tuple(runs), setting, tuple(remarks))


def column_value(run: Run, column: Reading) -> float | None:
    """What a column takes from a run: its result, or the first round at or above the target, if there is one."""
    if column.target is None:
        return result_at(run, column.rounds)
    reached = (line["round"] for line in run.lines if line["accuracy"] >= column.target)
    first = next(reached, None)
    return None if first is None or first > column.rounds else float(first)


def rank(table: PaperTable, block: Block) -> Block:
    """The same cells with the best and the second of each column marked, as the numbers are shown.

    Only cells of one setting compete: the one that most cells of the column have. A cell alone has no rank.
    """
    out = [list(cells) for cells in block]
    for j in range(len(table.columns)):
        rivals = rivals_in(table, block, j)
        places = sorted({shown_value(table, c) for c in rivals.values()}, reverse=not table.counts_rounds)
        for i, cell in rivals.items():
            place = places.index(shown_value(table, cell)) + 1
            if len(rivals) > 1 and place <= 2:
                out[i][j] = cell._replace(rank=place)
    return out


def rivals_in(table: PaperTable, block: Block, j: int) -> dict[int, Cell]:
    """Cells of a column that can be compared, by row: no upper bound, and no run that ends before the paper's round."""
    cells = {
        i: cell
        for i, (cell, row) in enumerate(zip((cells[j] for cells in block), table.rows, strict=True))
        if cell and cell.value is not None and not row.is_bound and not is_short(table, cell, table.columns[j])
    }
    sizes = Counter(cell.setting for cell in cells.values())
    if not sizes:
        return {}
    setting = max(sizes, key=lambda s: (sizes[s], -len(s)))
    return {i: cell for i, cell in cells.items() if cell.setting == setting}


def is_short(table: PaperTable, cell: Cell, column: Column) -> bool:
    """Whether a cell's accuracy was read before the paper's round; a target that is reached is no matter of length."""
    return not table.counts_rounds and any(run.last_round < column.rounds for run in cell.runs)


def shown_value(table: PaperTable, cell: Cell) -> float:
    assert cell.value is not None
    return round(cell.value, 1 if table.counts_rounds else 2)


def derive(table: PaperTable, block: Block) -> Block:
    """The same cells with what the paper derives from them: speed-ups, gains over the row above, the last line."""
    out = [list(cells) for cells in block]
    for i, row in enumerate(table.rows):
        base = block[0] if row.speedups else block[i - 1] if row.gains else None
        if base:
            out[i] = [with_extra(cell, other, bool(row.speedups)) for cell, other in zip(block[i], base, strict=True)]
    if table.gains:
        out.append([lead(table, block, j) for j in range(len(table.columns))])
    return out


def with_extra(cell: Cell | None, base: Cell | None, is_speedup: bool) -> Cell | None:
    """A cell with its speed-up or gain over another of the same setting."""
    if not (cell and base) or cell.value is None or base.value is None or cell.setting != base.setting:
        return cell
    return cell._replace(extra=base.value / cell.value if is_speedup else cell.value - base.value)


def lead(table: PaperTable, block: Block, j: int) -> Cell | None:
    """SAGE minus the best of the others; below zero where it is not ahead, marked where some have no runs.

    None where all others with runs are far behind in the paper: a lead over the weak alone is no lead.
    """
    rivals = rivals_in(table, block, j)
    values = {table.rows[i].method: cell.value for i, cell in rivals.items() if cell.value is not None}
    sage = values.pop("sage", None)
    printed = {row.method: row.printed[j] for row in table.rows if not row.is_bound and row.method != "sage"}
    if sage is None or not values or max(printed[name] for name in values) < max(printed.values()) - NEAR:
        return None
    lacking = (f"{len(values)} of {len(printed)} other methods have runs",) if len(values) < len(printed) else ()
    best = max(values, key=values.__getitem__)
    cells = {table.rows[i].method: cell for i, cell in rivals.items()}
    spread = spread_of_lead(cells["sage"].runs, cells[best].runs, table.columns[j])
    return Cell(sage - values[best], spread, setting=cells["sage"].setting, remarks=lacking)


def spread_of_lead(ours: Sequence[Run], theirs: Sequence[Run], column: Reading) -> float | None:
    """The standard deviation of a lead over seeds, seed by seed; None unless both have the same seeds, and several."""
    leads = seed_differences(ours, theirs, lambda run: result_at(run, column.rounds))
    return mean_std(leads)[1] if len(leads) == len(ours) == len(theirs) else None
