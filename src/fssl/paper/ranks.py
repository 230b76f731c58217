"""What follows from a filled table's numbers: ranks, speed-ups, gains, and SAGE's lead over the best other."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ..report.runs import Run, mean_std
from ..report.verdicts import seed_differences
from .published import End, PublishedTable
from .setups import result_at

NEAR = 5.0  # points below the paper's best other method: one that is farther behind cannot stand for it


class TableCell(NamedTuple):
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


TableRows = list[list[TableCell | None]]  # rows of a table, each with a cell or nothing per column


def rank(table: PublishedTable, block: TableRows) -> TableRows:
    """The same cells with the best and the second of each column marked, as the numbers are shown.

    Only cells of one setting compete: the one that most cells of the column have. A cell alone has no rank, nor has any
    in a table of another paper.
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
    """Cells of a column that can be compared, by row: no upper bound, and no run that ends before the paper's round."""
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
    """Whether a cell's accuracy was read before the paper's round; a target that is reached is no matter of length."""
    return end.target is None and any(run.last_round < end.rounds for run in cell.runs)


def known_value(cell: TableCell) -> float:
    assert cell.value is not None
    return cell.value


def shown_value(table: PublishedTable, cell: TableCell) -> float:
    return round(known_value(cell), 1 if table.counts_rounds else 2)


def derive(table: PublishedTable, block: TableRows) -> TableRows:
    """The same cells with what the paper derives from them: speed-ups, gains over the row above, the last line."""
    out = [list(cells) for cells in block]
    for i, row in enumerate(table.rows):
        base = block[0] if row.speedups else block[i - 1] if row.gains else None
        if base:
            out[i] = [with_extra(cell, other, bool(row.speedups)) for cell, other in zip(block[i], base, strict=True)]
    if table.gains:
        out.append([lead(table, block, j) for j in range(len(table.columns))])
    return out


def with_extra(cell: TableCell | None, base: TableCell | None, is_speedup: bool) -> TableCell | None:
    """A cell with its speed-up or gain over another of the same setting."""
    if not (cell and base) or cell.value is None or base.value is None or cell.setting != base.setting:
        return cell
    return cell._replace(extra=base.value / cell.value if is_speedup else cell.value - base.value)


def lead(table: PublishedTable, block: TableRows, j: int) -> TableCell | None:
    """SAGE minus the best of the others; below zero where it is not ahead, marked where some have no runs.

    None where all others with runs are far behind in the paper: a lead over the weak alone is no lead.
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
    """The standard deviation of a lead over seeds, seed by seed; None unless both have the same seeds, and several."""
    leads = seed_differences(ours, theirs, lambda run: result_at(run, end.rounds))
    return mean_std(leads)[1] if len(leads) == len(ours) == len(theirs) else None
