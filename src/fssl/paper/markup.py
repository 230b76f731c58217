"""Filled tables as Markdown, CSV, LaTeX and for the terminal."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from math import isnan
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..console import RULED, say
from ..records.rounds import LAST
from ..reports.formats import (
    LATEX,
    Grid,
    Marked,
    as_code,
    escape_latex,
    escape_markdown,
    latex_row,
    letter,
    markdown,
    markdown_notes,
    tabular,
    terminal,
)
from ..reports.runs import Run, commits_of, mean_std
from ..system.files import as_csv
from .fill import GAIN_ROW, FilledTable, SourceLine, TableCell, Tables
from .published import SEEDS, TITLES, Column, End, PublishedTable
from .setups import PROTOCOLS, result_at

LISTED = 10  # runs without a cell that the terminal names

TABLES_LEGEND = (
    f"Ours: the mean of the last {LAST} rounds up to the round at which the paper reads its number, then mean ± "
    f"standard deviation over seeds and, in parentheses, the number of runs; rounds to an accuracy are the first at or "
    f"above it. Best **bold**, second <u>underlined</u>, within one line of a source and among cells of one setting. "
    f"An empty cell has no run. Letters say in what a cell differs from the paper, which speaks of {SEEDS} runs, "
    "prints no spread, and does not say which round its numbers are."
)
# Columns of a CSV file; authors_norm is the value under the released code's test normalization.
PAPER_FIELDS = (
    *("table", "row", "dataset", "alpha", "target", "source", "value", "std", "runs", "seeds", "rank", "extra"),
    *("authors_norm", "remarks", "commits", "folders"),
)
OTHER_FIELDS = ("table", "row", "column", "source", "value", "std", "runs", "remarks", "folders")


# Cells and lines.


def shown_number(value: float, table: PublishedTable) -> str:
    return f"{value:.1f}".removesuffix(".0") if table.counts_rounds else f"{value:.2f}"


def signed(value: float, digits: int = 2) -> str:
    return ("+" if value >= 0 else "−") + f"{abs(value):.{digits}f}"


def cell_text(cell: TableCell | None, line: SourceLine, filled: FilledTable) -> Marked:
    """Format a number with its spread, derived numbers, the number of runs and marks."""
    if cell is None:
        return Marked("")
    table, marks = filled.table, sorted(letter(filled.reasons.index(mark)) for mark in cell.marks)
    if cell.value is None:
        text = "none" if line.is_printed else "not reached"
    else:
        spread = "" if cell.std is None else f" ± {shown_number(cell.std, table)}"
        text = (signed(cell.value) if line.row == GAIN_ROW else shown_number(cell.value, table)) + spread
    after = ""
    if cell.extra is not None:
        after = f" {cell.extra:.2f}×" if table.counts_rounds else f" [{signed(cell.extra)}]"
    return Marked(text, after + (f" ({len(cell.runs)})" if cell.runs else ""), ",".join(marks))


def source_name(line: SourceLine, is_brief: bool = False) -> str:
    if line.source in PROTOCOLS and not is_brief:
        return f"ours, {line.source}" if any(line.cells) else "ours"
    return f"{line.source}, about" if line.is_printed and line.place.open else line.source


def grid(filled: FilledTable) -> Grid:
    """Return the table as text."""
    return grid_of(filled, filled.visible_lines, range(len(filled.table.columns)))


def grid_of(filled: FilledTable, lines: Sequence[SourceLine], columns: Sequence[int], is_brief: bool = False) -> Grid:
    """Return some lines and columns of a table as text; only the first line of a row has its name."""
    names = [name if i == 0 else "" for name, group in groupby(line.row for line in lines) for i, _ in enumerate(group)]
    rows: list[list[str | Marked]] = [
        [name, source_name(line, is_brief), *(cell_text(line.cells[j], line, filled) for j in columns)]
        for name, line in zip(names, lines, strict=True)
    ]
    cells = {(i, k): line.cells[j] for i, line in enumerate(lines) for k, j in enumerate(columns, 2)}
    best = {place: cell.rank for place, cell in cells.items() if cell and cell.rank}
    head = ["method", "source", *(filled.table.columns[j].name for j in columns)]
    return Grid(head, rows, best, filled.reasons)


def missing_text(filled: FilledTable) -> str:
    """Return a sentence on the number of filled and missing cells."""
    parts = [f"{done} of {total} cells under protocol {source}" for source, (done, total) in filled.counts.items()]
    missing = [f"{total - done}" for done, total in filled.counts.values()]
    return f"Ours: {'; '.join(parts)} (missing: {', '.join(missing)})."


# Markdown.


def section(filled: FilledTable) -> str:
    """Return a table below its title, with its notes."""
    shown, table = grid(filled), filled.table
    notes = [*markdown_notes(shown), *(f"- {note}" for note in table.notes)]
    lines = [f"## Table {table.number}. {table.title}", "", markdown(shown), missing_text(filled), "", *notes]
    return "\n".join(lines).rstrip() + "\n"


def markdown_page(result: Tables, scoreboard: str = "") -> str:
    """Return all tables below the scoreboard, then the runs without a cell."""
    head = ["# The paper's tables, ours next to the printed numbers\n", *([scoreboard] if scoreboard else [])]
    parts = [*head, TABLES_LEGEND + "\n", *map(section, result.tables)]
    parts += ["## Runs in a cell, and their commits\n", "".join(run_line(run) for run in result.runs)]
    parts.append(f"## Runs in no cell\n\n{result.used} of {result.num_runs} runs are in the tables.\n")
    if result.unused:
        parts.append(unused_list(result.unused))
    return "\n".join(parts)


def run_line(run: Run) -> str:
    return f"- {as_code(str(run.path))}: {', '.join(map(as_code, run.commits))}\n"


def unused_list(unused: Mapping[Path, str]) -> str:
    """Return the runs without a cell, with reasons."""
    return "".join(f"- {as_code(str(path))}: {escape_markdown(why)}\n" for path, why in unused.items())


# CSV.


def numbers_csv(tables: Sequence[FilledTable]) -> str:
    """Return one line per number, ours and the paper's, unrounded."""
    rows = (
        number_record(filled.table, line, j, cell)
        for filled in tables
        for line in filled.lines
        for j, cell in enumerate(line.cells)
        if cell
    )
    return as_csv(PAPER_FIELDS if tables[0].table.number else OTHER_FIELDS, rows)


def number_record(table: PublishedTable, line: SourceLine, j: int, cell: TableCell) -> dict[str, Any]:
    """Return one CSV line of a cell; unknown values stay empty."""
    column, runs = table.columns[j], cell.runs
    where: dict[str, Any] = {
        "table": table.number or table.name,
        "row": line.row,
        "column": column.name,
        "source": line.source,
    }
    if table.number:
        where |= {"dataset": column.dataset, "alpha": column.alpha, "target": column.target}
    return {
        **where,
        **{"value": cell.value, "std": cell.std, "runs": len(runs) or None, "rank": cell.rank or None},
        **{"seeds": " ".join(str(run.config.seed) for run in runs), "extra": cell.extra},
        "authors_norm": under_authors_norm(runs, table.ends[j]),
        "remarks": "; ".join([line.place.open] if line.is_printed and line.place.open else cell.marks),
        "commits": " ".join(commits_of(runs)),
        "folders": "; ".join(str(run.path) for run in runs),
    }


def under_authors_norm(runs: Sequence[Run], end: End) -> float | None:
    if end.target or not runs:
        return None
    value, _ = mean_std([result_at(run, end.rounds, "test", "authors_norm", "accuracy") for run in runs])
    return None if isnan(value) else value


# LaTeX.

OWN_SIZE, UPRIGHT = 3, 6  # columns that fit a page upright: at full size, and made smaller


def latex_float(filled: FilledTable) -> str:
    """Return a floating table that needs booktabs; a wide one is turned on its side, with graphicx and rotating."""
    table = filled.table
    title, width = escape_latex(table.title), len(table.columns)
    what = "the first round at or above the accuracy" if table.counts_rounds else f"mean of the last {LAST} rounds"
    is_wide = width > OWN_SIZE
    float_name = "sidewaystable*" if width > UPRIGHT else "table*"
    lines = [
        rf"\begin{{{float_name}}}",
        r"\centering",
        rf"\caption{{{title}: ours ({what}; mean $\pm$ standard deviation over seeds, number of runs in",
        r"parentheses) next to the paper's. Best bold, second underlined.}",
        rf"\label{{tab:paper-{table.number}}}",
        r"\small",
        *([r"\resizebox{\textwidth}{!}{%"] if is_wide else []),
        "\n".join(tabular(f"ll{'c' * width}", latex_head(table.columns), latex_body(filled))) + "}" * is_wide,
        r"\par\smallskip\raggedright\scriptsize",
        *latex_notes(filled),
        rf"\end{{{float_name}}}",
    ]
    return "\n".join(lines) + "\n"


def latex_head(columns: Sequence[Column]) -> list[str]:
    """Return datasets over their columns, with a rule under each."""
    spans, rules, at = [], [], 3
    for dataset, group in groupby(columns, key=lambda column: column.dataset):
        width = len(list(group))
        spans.append(rf"\multicolumn{{{width}}}{{c}}{{{TITLES[dataset]}}}")
        rules.append(rf"\cmidrule(lr){{{at}-{at + width - 1}}}")
        at += width
    names = [rf"$\alpha={c.alpha:g}$" + (rf", {c.target}\,\%" if c.target else "") for c in columns]
    return [latex_row(["", "", *spans]), "".join(rules), latex_row(["method", "source", *names])]


def latex_body(filled: FilledTable) -> Iterable[str]:
    """Yield the lines, with a little space between rows, and less around ±."""
    for number, (name, *texts) in enumerate(LATEX.rows(grid(filled))):
        if name and number:
            yield r"\addlinespace[2pt]"
        yield latex_row([name, *texts]).replace(r" $\pm$ ", r"\,$\pm$\,")


def latex_notes(filled: FilledTable) -> list[str]:
    notes = [rf"{LATEX.mark(letter(i))}\,{escape_latex(reason)}." for i, reason in enumerate(filled.reasons)]
    return [*notes, *map(escape_latex, [missing_text(filled), *filled.table.notes])]


def latex_page(numbers: Iterable[int]) -> str:
    """Return a standalone document that includes the tables' files."""
    return PREAMBLE + "".join(f"\\input{{table{number}}}\n" for number in numbers) + "\\end{document}\n"


PREAMBLE = r"""\documentclass{article}
\usepackage[margin=15mm]{geometry}
\usepackage{booktabs,graphicx,rotating}
\begin{document}
"""


# Terminal.


def say_unused(console: Console, unused: Mapping[Path, str], file: Path) -> None:
    """Print the runs without a cell, with reasons; of many only the first ones, and the file with all."""
    for path, why in [*unused.items()][:LISTED]:
        say(console, f"  {path}: {why}")
    if (rest := len(unused) - LISTED) > 0:
        say(console, f"  and {rest} more, in {file}")


def say_reasons(console: Console, filled: FilledTable, columns: Sequence[int]) -> None:
    """Print the explanations of the letters in some columns, which are those of the whole table."""
    here = filled.reasons_in(columns)
    for i, reason in enumerate(filled.reasons):
        if reason in here:
            say(console, f"  {letter(i)}  {reason}")


def on_terminal(filled: FilledTable, columns: Sequence[int], title: str = "") -> Table:
    """Return columns of a table that fit 80 of a terminal, without lines that have no number there."""
    lines = [line for line in filled.lines if any(line.cells[j] for j in columns)]
    shown = grid_of(filled, lines, columns, is_brief=True)
    shown = shown._replace(head=[name.removeprefix(title).strip() for name in shown.head])
    styles = ["dim" if line.is_printed else "" for line in lines]
    return terminal(shown, {**RULED, "title": title or None, "title_justify": "left"}, styles, whole=0)
