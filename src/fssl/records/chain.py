"""A record's lines as a chain: each one checks itself and the previous line, the first one the settings.

A line ends with `after`, the check of its predecessor, and `check`, the checksum of its own text up to there. This
reveals a changed digit, a missing or foreign line, and changed settings, together with the round.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..system.files import parse_json, short_sum
from .rounds import Line

SETTINGS = "config.toml, or the beginning of rounds.jsonl, was edited"
ENDING = re.compile(rb'(.*"after": "([0-9a-f]{16})"), "check": "([0-9a-f]{16})"\}', re.DOTALL)


def linked(line: Mapping[str, Any], after: str) -> str:
    """Format a line with the check of its predecessor and its own."""
    text = json.dumps({**line, "after": after}).removesuffix("}")
    return f'{text}, "check": "{short_sum(text.encode())}"}}\n'


class ChainEntry(NamedTuple):
    """One unchanged line of a record."""

    line: Line
    after: str
    check: str


def read_entry(text: bytes) -> ChainEntry | None:
    """Parse a line of the record; None if it is damaged."""
    parts = ENDING.fullmatch(text)
    if not parts or short_sum(parts[1]) != parts[3].decode():
        return None
    line = read_line(text)
    return None if line is None else ChainEntry(line, parts[2].decode(), parts[3].decode())


def read_line(text: bytes) -> Line | None:
    """Parse a line without its checks; None if it is invalid."""
    try:
        line = parse_json(text)
    except ValueError:
        return None
    return {k: v for k, v in line.items() if k not in ("after", "check")} if isinstance(line, dict) else None


class Chain:
    """Follows a record from its settings on, a part at a time.

    `fault` describes the first line that does not continue its predecessor. A damaged line is not a fault, since it is
    reported by itself.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self.mark: str | None = run  # the check of the latest line, which the next one names; None after damage
        self.fault: str | None = None

    def follow(self, texts: Iterable[bytes]) -> Iterator[Line | None]:
        """Yield each line in turn, None for a damaged one."""
        for text in texts:
            entry = read_entry(text)
            if entry and self.mark not in (None, entry.after):
                fault = f"{named(entry.line)} does not follow the one before it"
                self.fault = self.fault or (SETTINGS if self.mark == self._run else fault)
            self.mark = entry and entry.check
            yield entry and entry.line


def named(line: Line) -> str:
    return f"rounds.jsonl: the line of round {line.get('round')}"


class Start(NamedTuple):
    """The whole lines from round 1 up to the first damaged one."""

    lines: list[Line]
    texts: list[bytes]
    marks: list[str]  # by round, from 0: the marks that checkpoints name
    fault: str | None


def read_start(run: str, texts: Sequence[bytes]) -> Start:
    """Return the part of a record from which a run can be resumed."""
    chain = Chain(run)
    start = Start([], [], [run], None)
    for text, line in zip(texts, chain.follow(texts), strict=True):
        if line is None or chain.mark is None or line.get("round") != len(start.lines) + 1:
            break
        start.lines.append(line)
        start.texts.append(text)
        start.marks.append(chain.mark)
    return start._replace(fault=chain.fault)


def chain_after(run: str, texts: Iterable[bytes]) -> Chain:
    """Return the chain at the end of these lines."""
    chain = Chain(run)
    for _ in chain.follow(texts):
        pass
    return chain
