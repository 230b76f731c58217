"""A table of texts, `Grid`, and its renderers: Markdown, LaTeX, the terminal. `as_csv` writes files of numbers."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..console import PLAIN, print_table, width_of
from ..errors import escape_unprintable


class Marked(NamedTuple):
    """A cell's text, its suffix without emphasis, and the letters of its notes."""

    text: str
    after: str = ""
    marks: str = ""


class Grid(NamedTuple):
    """A head, rows of cells, and the ranks of emphasized cells: 1 is the best of a column, 2 the second."""

    head: Sequence[str]
    rows: Sequence[Sequence[str | Marked]]
    best: Mapping[tuple[int, int], int] = MappingProxyType({})  # by (row, column)
    notes: Sequence[str] = ()  # marks refer to them, in the order of their letters


class Format(NamedTuple):
    """Functions that write the parts of a cell in one format."""

    escape: Callable[[str], str]
    emphasis: Mapping[int, Callable[[str], str]]
    mark: Callable[[str], str]

    def rows(self, grid: Grid) -> Iterator[list[str]]:
        for i, row in enumerate(grid.rows):
            yield [self.cell(cell, grid.best.get((i, j), 0)) for j, cell in enumerate(row)]

    def cell(self, cell: str | Marked, rank: int) -> str:
        text, after, marks = Marked(cell) if isinstance(cell, str) else cell
        shown = self.emphasis.get(rank, str)(self.escape(text)) + self.escape(after)
        return shown + (self.mark(marks) if marks else "")


# Markdown.

MARKUP = re.compile(r"([\\`*\[\]|])")
HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
MARKDOWN = Format(str, {1: "**{}**".format, 2: "<u>{}</u>".format}, "<sup>{}</sup>".format)  # cells may be Markdown


def escape_markdown(text: str) -> str:
    """Return text escaped for Markdown, in one line: without links, code, table cells or HTML."""
    return MARKUP.sub(r"\\\1", escape_unprintable(text)).translate(HTML)


def as_code(text: str) -> str:
    """Return text as code in one line, between more backticks than it contains."""
    line = escape_unprintable(text)
    longest = max((len([*run]) for mark, run in groupby(line) if mark == "`"), default=0)
    fence, space = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{space}{line}{space}{fence}"


def markdown(grid: Grid) -> str:
    """Return the table; `markdown_notes` returns its notes."""
    rows = (grid.head, ["---"] * len(grid.head), *MARKDOWN.rows(grid))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def markdown_notes(grid: Grid) -> list[str]:
    """Return the notes as items of a list."""
    return [f"- {MARKDOWN.mark(letter(i))} {escape_markdown(note)}" for i, note in enumerate(grid.notes)]


def letter(index: int) -> str:
    """Return a to z, then aa, ab, ..."""
    first, second = divmod(index, 26)
    return (chr(ord("a") + first - 1) if first else "") + chr(ord("a") + second)


# LaTeX.

SPECIAL = {"\\": r"\textbackslash{}", "±": r"$\pm$", "α": r"$\alpha$", "−": "$-$", "×": r"$\times$", "κ": r"$\kappa$"}
SPECIAL |= {c: f"\\{c}" for c in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
SPECIAL |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}


def escape_latex(text: str) -> str:
    """Return text escaped for LaTeX, in one line."""
    return "".join(SPECIAL.get(c, c) for c in escape_unprintable(text))


LATEX = Format(
    escape_latex, {1: r"\textbf{{{}}}".format, 2: r"\underline{{{}}}".format}, r"\textsuperscript{{{}}}".format
)


def latex(grid: Grid, remarks: Iterable[str] = ()) -> str:
    """Return a table without a float, after remarks as comments in the source; it needs booktabs."""
    columns = f"l{'c' * (len(grid.head) - 1)}"
    lines = tabular(columns, [latex_row(map(escape_latex, grid.head))], map(latex_row, LATEX.rows(grid)))
    return "\n".join([*(f"% {escape_unprintable(remark)}" for remark in remarks), *lines]) + "\n"


def latex_row(texts: Iterable[str]) -> str:
    return " & ".join(texts) + r" \\"


def tabular(columns: str, head: Iterable[str], rows: Iterable[str]) -> list[str]:
    """Return the lines of a table from those of its head and of its rows."""
    begin = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    return [*begin, *head, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}"]


# The terminal.

STYLES = {1: "bold", 2: "underline"}
WHOLE = 16  # characters: texts up to this width are not folded


def print_grid(console: Console, grid: Grid, whole: int = WHOLE) -> None:
    """Print a table without cutting anything off, so that no two rows look alike.

    A screen that is too narrow folds texts longer than `whole`, and shows columns that still have no room in further
    tables, each with the first column. In a file or a pipe the table is as wide as it needs to be.
    """
    table = terminal(grid, whole=whole)
    if not console.is_terminal or width_of(table) <= console.width:
        return print_table(console, table)
    for columns in fitting(console, grid, whole):
        console.print(terminal(some_columns(grid, columns), whole=whole))


def fitting(console: Console, grid: Grid, whole: int) -> Iterator[list[int]]:
    """Yield the columns of each table, as many as the screen has room for."""
    shown = [0]
    for j in range(1, len(grid.head)):
        narrowest = terminal(some_columns(grid, [*shown, j]), whole=whole, is_narrow=True)
        if len(shown) > 1 and width_of(narrowest) > console.width:
            yield shown
            shown = [0]
        shown.append(j)
    yield shown


def some_columns(grid: Grid, columns: Sequence[int]) -> Grid:
    """Return some columns of a table."""
    best = {(i, columns.index(j)): rank for (i, j), rank in grid.best.items() if j in columns}
    return Grid([grid.head[j] for j in columns], [[row[j] for j in columns] for row in grid.rows], best, grid.notes)


def terminal(
    grid: Grid,
    look: Mapping[str, Any] = PLAIN,
    styles: Sequence[str] = (),
    whole: int = WHOLE,
    is_narrow: bool = False,
    right: Collection[int] = (),
) -> Table:
    """Return the table for a screen, which may fold columns wider than `whole`; fold all of them if `is_narrow`.

    `styles` are the styles of the rows; the columns `right` are right-aligned.
    """
    table = Table(**look)
    for j, name in enumerate(grid.head):
        is_wide = max(cell_len(on_screen(row[j])) for row in [grid.head, *grid.rows]) > whole
        width = whole if is_wide and is_narrow else None
        side: Any = "right" if j in right else "left"
        table.add_column(name, justify=side, no_wrap=not is_wide, overflow="fold", width=width)
    for i, row in enumerate(grid.rows):
        cells = (Text(on_screen(cell), STYLES.get(grid.best.get((i, j), 0), "")) for j, cell in enumerate(row))
        table.add_row(*cells, style=styles[i] if styles else "")
    return table


def on_screen(cell: str | Marked) -> str:
    text, after, marks = Marked(cell) if isinstance(cell, str) else cell
    return escape_unprintable(f"{text}{after} {marks}".rstrip())
