"""Filled tables as Markdown, CSV, LaTeX and for the terminal."""

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from math import isnan
from operator import attrgetter
from pathlib import Path
from string import ascii_lowercase
from typing import Any, NamedTuple, TypeVar

from rich.console import Console
from rich.table import Table as TerminalTable
from rich.text import Text

from ..console import RULED, say
from ..records.rounds import LAST
from ..report.latex import bold, escape_latex, latex_row
from ..report.markdown import as_code, escape_markdown
from ..report.runs import Run, commits_of, mean_std
from ..system.files import as_csv
from .fill import GAIN_ROW, PAPER, Cell, FilledTable, Line, Tables
from .printed import SEEDS, TITLES, Column, PaperTable
from .setups import result_at

T = TypeVar("T")
LISTED = 10  # runs without a cell that the terminal names

LEGEND = (
    f"Ours: the mean of the last {LAST} rounds up to the round at which the paper reads its number, then mean ± "
    f"standard deviation over seeds and, in parentheses, the number of runs; rounds to an accuracy are the first at or "
    f"above it. Best **bold**, second <u>underlined</u>, within one line of a source and among cells of one setting. "
    f"An empty cell has no run. Letters say in what a cell differs from the paper, which speaks of {SEEDS} runs, "
    "prints no spread, and does not say which round its numbers are."
)
CSV_FIELDS = (
    *("table", "row", "dataset", "alpha", "target", "source", "value", "std", "runs", "seeds", "rank", "extra"),
    *(
        "authors_norm",
        "remarks",
        "commits",
        "folders",
    ),  # authors_norm: the value under the released code's test normalization
)


class Style(NamedTuple):
    """How one format writes the parts of a cell."""

    bold: Callable[[str], str]
    underline: Callable[[str], str]
    mark: Callable[[str], str]
    plus_minus: str
    times: str
    minus: str


MARKDOWN = Style("**{}**".format, "<u>{}</u>".format, "<sup>{}</sup>".format, " ± ", "×", "−")
TERMINAL = Style(str, str, " {}".format, " ± ", "×", "−")  # bold and underlined by the terminal itself
LATEX = Style(
    bold,
    r"\underline{{{}}}".format,
    r"\textsuperscript{{{}}}".format,
    r"\,$\pm$\,",
    r"$\times$",
    "$-$",
)


def number(value: float, table: PaperTable) -> str:
    return f"{value:.1f}".removesuffix(".0") if table.counts_rounds else f"{value:.2f}"


def letter(index: int) -> str:
    """a to z, then aa, ab, ..."""
    first, second = divmod(index, len(ascii_lowercase))
    return (ascii_lowercase[first - 1] if first else "") + ascii_lowercase[second]


def cell_text(cell: Cell | None, line: Line, filled: FilledTable, style: Style) -> str:
    """A number with its spread, rank, derived value, number of runs and marks."""
    if cell is None:
        return ""
    table, marks = filled.paper, sorted(letter(filled.reasons.index(mark)) for mark in cell.marks)
    if cell.value is None:
        text = "none" if line.source == PAPER else "not reached"
    else:
        spread = "" if cell.std is None else style.plus_minus + number(cell.std, table)
        text = (signed(cell.value, style.minus) if line.row == GAIN_ROW else number(cell.value, table)) + spread
    text = {1: style.bold, 2: style.underline}.get(cell.rank, str)(text)
    if cell.extra is not None:
        text += f" {cell.extra:.2f}{style.times}" if table.counts_rounds else f" [{signed(cell.extra, style.minus)}]"
    if cell.runs:
        text += f" ({len(cell.runs)})"
    return text + (style.mark(",".join(marks)) if marks else "")


def signed(value: float, minus: str = "−", digits: int = 2) -> str:
    return ("+" if value >= 0 else minus) + f"{abs(value):.{digits}f}"


def source_name(line: Line) -> str:
    return line.source if line.source == PAPER else f"ours, {line.source}" if any(line.cells) else "ours"


def column_name(column: Column) -> str:
    name = f"{TITLES[column.dataset]} α={column.alpha:g}"
    return name if column.target is None else f"{name} {column.target} %"


def missing_text(filled: FilledTable) -> str:
    """A sentence on how many cells are filled and missing."""
    parts = [f"{done} of {total} cells under protocol {source}" for source, (done, total) in filled.counts.items()]
    missing = [f"{total - done}" for done, total in filled.counts.values()]
    return f"Ours: {'; '.join(parts)} (missing: {', '.join(missing)})."


def named_once(lines: Iterable[T], row: Callable[[T], str] = attrgetter("row")) -> Iterable[tuple[str, T]]:
    """Lines with their row's name, which only the first of a row carries."""
    for name, group in groupby(lines, row):
        for i, line in enumerate(group):
            yield "" if i else name, line


# Markdown.


def markdown(filled: FilledTable) -> str:
    table = filled.paper
    head = ["method", "source", *map(column_name, table.columns)]
    lines = [f"## Table {table.number}. {table.title}", "", markdown_row(head), markdown_row(["---"] * len(head))]
    for name, line in named_once(filled.visible_lines):
        texts = [cell_text(cell, line, filled, MARKDOWN) for cell in line.cells]
        lines.append(markdown_row([name, source_name(line), *texts]))
    lines += ["", missing_text(filled), ""]
    lines += [f"- <sup>{letter(i)}</sup> {escape_markdown(reason)}" for i, reason in enumerate(filled.reasons)]
    lines += [f"- {note}" for note in table.notes]
    return "\n".join(lines).rstrip() + "\n"


def markdown_row(texts: Iterable[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def markdown_page(result: Tables, scoreboard: str = "") -> str:
    """All tables below the scoreboard, then the runs in no cell."""
    head = ["# The paper's tables, ours beside the printed numbers\n", *([scoreboard] if scoreboard else [])]
    parts = [*head, LEGEND + "\n", *map(markdown, result.tables)]
    parts += ["## Runs in a cell, and their commits\n", "".join(run_line(run) for run in result.runs)]
    used = result.num_runs - len(result.unused)
    parts.append(f"## Runs in no cell\n\n{used} of {result.num_runs} runs are in the tables.\n")
    if result.unused:
        parts.append("".join(f"- {as_code(str(p))}: {escape_markdown(why)}\n" for p, why in result.unused.items()))
    return "\n".join(parts)


def run_line(run: Run) -> str:
    return f"- {as_code(str(run.path))}: {', '.join(map(as_code, run.commits))}\n"


# CSV.


def csv_text(tables: Iterable[FilledTable]) -> str:
    """One line per number, ours and the paper's, unrounded."""
    rows = (
        csv_row(filled.paper, line, column, cell)
        for filled in tables
        for line in filled.lines
        for column, cell in zip(filled.paper.columns, line.cells, strict=True)
        if cell
    )
    return as_csv(CSV_FIELDS, rows)


def csv_row(table: PaperTable, line: Line, column: Column, cell: Cell) -> dict[str, Any]:
    """One CSV line of a cell; unknown values stay empty."""
    where = {"table": table.number, "row": line.row, **column._asdict(), "source": line.source}
    seeds, commits = " ".join(str(run.config.seed) for run in cell.runs), " ".join(commits_of(cell.runs))
    folders = " ".join(str(run.path) for run in cell.runs)
    other = [
        result_at(run, column.rounds, "test", "authors_norm", "accuracy") for run in cell.runs if not column.target
    ]
    return {
        **where,
        **{"value": cell.value, "std": cell.std, "runs": len(cell.runs) or None, "seeds": seeds},
        "authors_norm": mean_std(other)[0] if other and not any(map(isnan, other)) else None,
        **{"rank": cell.rank or None, "extra": cell.extra, "remarks": "; ".join(cell.marks)},
        **{"commits": commits, "folders": folders},
    }


# LaTeX.

OWN_SIZE, UPRIGHT = 3, 6  # columns that fit a page as they are, and upright if made smaller


def latex(filled: FilledTable) -> str:
    """A floating table that needs booktabs; a wide one lies on its side, which needs graphicx and rotating."""
    table = filled.paper
    title, width = escape_latex(table.title), len(table.columns)
    what = "the first round at or above the accuracy" if table.counts_rounds else f"mean of the last {LAST} rounds"
    is_wide = width > OWN_SIZE
    float_name = "sidewaystable*" if width > UPRIGHT else "table*"
    lines = [
        rf"\begin{{{float_name}}}",
        r"\centering",
        rf"\caption{{{title}: ours ({what}; mean $\pm$ standard deviation over seeds, number of runs in",
        r"parentheses) beside the paper's. Best bold, second underlined.}",
        rf"\label{{tab:paper-{table.number}}}",
        r"\small",
        *([r"\resizebox{\textwidth}{!}{%"] if is_wide else []),
        rf"\begin{{tabular}}{{ll{'c' * width}}}",
        r"\toprule",
        *latex_head(table.columns),
        r"\midrule",
        *latex_body(filled),
        r"\bottomrule",
        r"\end{tabular}" + "}" * is_wide,
        r"\par\smallskip\raggedright\scriptsize",
        *latex_notes(filled),
        rf"\end{{{float_name}}}",
    ]
    return "\n".join(lines) + "\n"


def latex_head(columns: list[Column]) -> list[str]:
    """Datasets over their columns, with a rule under each."""
    spans, rules, at = [], [], 3
    for dataset, group in groupby(columns, key=lambda column: column.dataset):
        width = len(list(group))
        spans.append(rf"\multicolumn{{{width}}}{{c}}{{{TITLES[dataset]}}}")
        rules.append(rf"\cmidrule(lr){{{at}-{at + width - 1}}}")
        at += width
    names = [rf"$\alpha={c.alpha:g}$" + (rf", {c.target}\,\%" if c.target else "") for c in columns]
    return [latex_row(["", "", *spans]), "".join(rules), latex_row(["method", "source", *names])]


def latex_body(filled: FilledTable) -> Iterable[str]:
    """The lines, with a little space between rows."""
    for number, (name, line) in enumerate(named_once(filled.visible_lines)):
        if name and number:
            yield r"\addlinespace[2pt]"
        texts = [cell_text(cell, line, filled, LATEX) for cell in line.cells]
        yield latex_row([escape_latex(name), source_name(line), *texts])


def latex_notes(filled: FilledTable) -> list[str]:
    notes = [rf"\textsuperscript{{{letter(i)}}}\,{escape_latex(reason)}." for i, reason in enumerate(filled.reasons)]
    return [*notes, *map(escape_latex, [missing_text(filled), *filled.paper.notes])]


def latex_page(numbers: Iterable[int]) -> str:
    """A document of its own that takes in the tables' files."""
    head = [
        r"\documentclass{article}",
        r"\usepackage[margin=15mm]{geometry}",
        r"\usepackage{booktabs,graphicx,rotating}",
    ]
    body = [rf"\input{{table{number}}}" for number in numbers]
    return "\n".join([*head, r"\begin{document}", *body, r"\end{document}"]) + "\n"


# Terminal.


def say_unused(console: Console, unused: Mapping[Path, str], file: Path) -> None:
    """Say which runs are in no cell, and why; of many the first ones, and which file names all."""
    for path, why in [*unused.items()][:LISTED]:
        say(console, f"  {path}: {why}")
    if (rest := len(unused) - LISTED) > 0:
        say(console, f"  and {rest} more, in {file}")


def terminal(filled: FilledTable, dataset: str) -> TerminalTable:
    """A dataset's part of the table, which fits 80 columns."""
    columns = filled.paper.columns
    mine = [j for j, column in enumerate(columns) if column.dataset == dataset]
    head = (column_name(columns[j]).removeprefix(TITLES[dataset]).strip() for j in mine)
    out = TerminalTable("method", "source", *head, title=TITLES[dataset], title_justify="left", **RULED)
    here = [line for line in filled.lines if line.source == PAPER or any(line.cells[j] for j in mine)]
    for name, line in named_once(here):
        texts = [terminal_cell(line.cells[j], line, filled) for j in mine]
        out.add_row(name, line.source, *texts, style="dim" if line.source == PAPER else "")
    return out


def terminal_cell(cell: Cell | None, line: Line, filled: FilledTable) -> Text:
    return Text(cell_text(cell, line, filled, TERMINAL), {1: "bold", 2: "underline"}.get(cell.rank if cell else 0, ""))
