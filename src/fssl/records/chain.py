"""A record's lines as a chain: each vouches for itself and for the line before it, the first one for the settings.

A line ends with `after`, the check of what comes before it, and `check`, the sum of its own text up to there. So a
changed digit, a line that is missing or of another run, and settings that were changed since all show, with their
round.
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
    """A line as text, with the check of what comes before it and its own."""
    text = json.dumps({**line, "after": after}).removesuffix("}")
    return f'{text}, "check": "{short_sum(text.encode())}"}}\n'


class ChainEntry(NamedTuple):
    """One line that is as it was written."""

    line: Line
    after: str
    check: str


def read_entry(text: bytes) -> ChainEntry | None:
    """A line of the record; None if it is damaged."""
    parts = ENDING.fullmatch(text)
    if not parts or short_sum(parts[1]) != parts[3].decode():
        return None
    line = read_line(text)
    return None if line is None else ChainEntry(line, parts[2].decode(), parts[3].decode())


def read_line(text: bytes) -> Line | None:
    """What a line says, without its checks."""
    try:
        line = parse_json(text)
    except ValueError:
        return None
    return {k: v for k, v in line.items() if k not in ("after", "check")} if isinstance(line, dict) else None


class Chain:
    """Follows a record from its settings on, a part at a time.

    `fault` tells the first thing that does not belong to what comes before it. A damaged line is no fault: it shows by
    itself.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self.mark: str | None = run  # the check of all so far, which the next line names; None after damage
        self.fault: str | None = None

    def follow(self, texts: Iterable[bytes]) -> Iterator[Line | None]:
        """Each line in turn, None for a damaged one."""
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
    """The whole lines from round 1 on, up to the first damaged one."""

    lines: list[Line]
    texts: list[bytes]
    marks: list[str]  # by round, from 0: what its checkpoint names
    fault: str | None


def read_start(run: str, texts: Sequence[bytes]) -> Start:
    """The part of a record that a run can go on from."""
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
    """The chain at the end of these lines."""
    chain = Chain(run)
    for _ in chain.follow(texts):
        pass
    return chain
