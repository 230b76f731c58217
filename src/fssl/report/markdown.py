"""Text for Markdown: names in it are shown as they are."""

import re
from itertools import groupby

from ..errors import printable

MARKS = re.compile(r"([\\`*\[\]|])")
HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def escape_markdown(text: str) -> str:
    """Text without markup, in one line: no link, no code, no cell of a table and no HTML begins or ends in it."""
    return MARKS.sub(r"\\\1", printable(text)).translate(HTML)


def as_code(text: str) -> str:
    """Text in one line as code, between more backticks than there are in it."""
    line = printable(text)
    longest = max((len([*run]) for mark, run in groupby(line) if mark == "`"), default=0)
    fence, space = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{space}{line}{space}{fence}"
