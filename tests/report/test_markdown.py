"""Names in Markdown: whoever renders it sees them as they are."""

import pytest
from markdown_it import MarkdownIt

from fssl.errors import printable
from fssl.report.formats import as_code, escape_markdown

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
    assert "".join(text for _, text in parts) == f"{printable(name)}: end"
    assert {kind for kind, _ in parts} <= {"text", "text_special"}
    assert "|" not in escape_markdown(name).replace("\\|", "")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_only_code(name: str) -> None:
    assert content(as_code(name)) == [("code_inline", printable(name)), ("text", ": end")]
