"""Tables in several formats; names in Markdown are shown as they are, whatever renders it."""

import pytest
from markdown_it import MarkdownIt

from fssl.errors import escape_unprintable
from fssl.reports.formats import (
    Grid,
    Marked,
    as_code,
    escape_markdown,
    latex,
    markdown,
    markdown_notes,
    some_columns,
    terminal,
)

NAMES = (
    "plain",
    "a|b",
    "`a`",
    "``a` b```",
    "<script>alert(1)</script>",
    "</code><img src=x>",
    "[text](http://example.org)",
    "![](x.png)",
    "**a** &lt; \\` \\",
    "one\n\n# two\n- three",
    "\x1b[31m\u202e",
)


def content(text: str) -> list[tuple[str, str]]:
    """What a renderer makes of a line: kinds of parts, and their text."""
    (paragraph,) = (token for token in MarkdownIt("commonmark").parse(f"- {text}: end") if token.type == "inline")
    return [(part.type, part.content) for part in paragraph.children or []]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_only_text(name: str) -> None:
    parts = content(escape_markdown(name))
    assert "".join(text for _, text in parts) == f"{escape_unprintable(name)}: end"
    assert {kind for kind, _ in parts} <= {"text", "text_special"}
    assert "|" not in escape_markdown(name).replace("\\|", "")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_only_code(name: str) -> None:
    assert content(as_code(name)) == [("code_inline", escape_unprintable(name)), ("text", ": end")]


GRID = Grid(
    ["method", "result"],
    [["a_b", Marked("1.00 ± 0.50", " (3)", "a,b")], ["c", Marked("0.50", " [−0.50]")], ["d", "–"]],
    {(0, 1): 1, (1, 1): 2},
    ["of 3", "<b>"],
)


def test_a_grid_has_the_same_cells_in_every_format() -> None:
    """Emphasis is for the number alone, except on a screen; letters stand above the line, or after it."""
    assert markdown(GRID).splitlines()[2:] == [
        "| a_b | **1.00 ± 0.50** (3)<sup>a,b</sup> |",
        "| c | <u>0.50</u> [−0.50] |",
        "| d | – |",
    ]
    assert markdown_notes(GRID) == ["- <sup>a</sup> of 3", "- <sup>b</sup> &lt;b&gt;"]
    assert latex(GRID, ["50 %"]).splitlines() == [
        "% 50 %",
        r"\begin{tabular}{lc}",
        r"\toprule",
        r"method & result \\",
        r"\midrule",
        r"a\_b & \textbf{1.00 $\pm$ 0.50} (3)\textsuperscript{a,b} \\",
        r"c & \underline{0.50} [$-$0.50] \\",
        r"d & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    cells = [*terminal(GRID).columns[1].cells]
    assert [(str(cell), cell.style) for cell in cells] == [
        ("1.00 ± 0.50 (3) a,b", "bold"),
        ("0.50 [−0.50]", "underline"),
        ("–", ""),
    ]


def test_some_columns_keep_their_ranks() -> None:
    assert some_columns(GRID, [1]) == Grid(
        ["result"], [row[1:] for row in GRID.rows], {(0, 0): 1, (1, 0): 2}, GRID.notes
    )
