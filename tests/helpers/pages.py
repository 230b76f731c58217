"""Code blocks and commands on the pages."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: its language, its text, and where it starts."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    content = page.read_text()
    for found in FENCE.finditer(content):
        line = content[: found.start()].count("\n") + 1
        yield Block(page.name, line, found[2], found[3])


def commands_of(page: Path) -> list[list[str]]:
    """Every line of a shell block in words, comments left out; `a; b` is two commands."""
    shells = [b.text.replace("\\\n", " ") for b in blocks_of(page) if b.language in ("", "console")]
    lines = [line.removeprefix("$ ") for text in shells for line in text.splitlines()]
    return [words for line in lines for part in line.split("; ") if (words := shlex.split(part, comments=True))]
