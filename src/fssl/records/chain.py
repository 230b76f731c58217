"""A record's lines as a chain: each vouches for itself and for the line before it, the first one for the settings.

A line ends with `after`, the check of what comes before it, and `check`, the sum of its own text up to there. So a
changed digit, a line that is missing or of another run, and settings that were changed since all show, with their
round. Lines of a version without checks may come first; the first line with one vouches for them too.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..system.digest import short_sum
from ..system.files import parse_json
from .rounds import Line

MARK = b'"check": '  # in every line that has a check
SETTINGS = "config.toml, or a line of rounds.jsonl without a check, was changed since"
ENDING = re.compile(rb'(.*"after": "([0-9a-f]{16})"), "check": "([0-9a-f]{16})"\}', re.DOTALL)


def linked(line: Mapping[str, Any], after: str) -> str:
    """A line as text, with the check of what comes before it and its own."""
    text = json.dumps({**line, "after": after}).removesuffix("}")
    return f'{text}, "check": "{short_sum(text.encode())}"}}\n'


class Entry(NamedTuple):
    """One line as it was read; it has no checks if an earlier version wrote it, and no content if it is damaged."""

    line: Line | None
    after: str | None = None
    check: str | None = None


DAMAGED = Entry(None)


def read_entry(text: bytes) -> Entry:
    """A line of the record, if it is as it was written."""
    if MARK not in text:
        return Entry(content(text))
    parts = ENDING.fullmatch(text)
    if not parts or short_sum(parts[1]) != parts[3].decode():
        return DAMAGED
    return Entry(content(text), parts[2].decode(), parts[3].decode())


def content(text: bytes) -> Line | None:
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
        self._is_linked = False
        self.mark: str | None = run  # the check of all so far, which the next line names; None after damage
        self.fault: str | None = None

    def follow(self, texts: Iterable[bytes]) -> Iterator[Entry]:
        """Each line in turn."""
        for text in texts:
            entry = read_entry(text)
            if entry.check is None and self._is_linked:
                entry = DAMAGED  # lines without checks only come first
            self._link(text, entry)
            yield entry

    def _link(self, text: bytes, entry: Entry) -> None:
        if entry.line is None:
            self.mark = None
        elif entry.check is None:
            self.mark = self.mark and short_sum(self.mark.encode() + text)
        else:
            if self.mark and self.mark != entry.after:
                self._doubt(f"{named(entry.line)} does not follow the one before it" if self._is_linked else SETTINGS)
            self._is_linked, self.mark = True, entry.check

    def _doubt(self, fault: str) -> None:
        self.fault = self.fault or fault


def named(line: Line) -> str:
    return f"rounds.jsonl: the line of round {line.get('round')}"


class Start(NamedTuple):
    """The whole lines from round 1 on, up to the first damaged one."""

    lines: list[Line]
    texts: list[bytes]
    marks: list[str | None]  # by round, from 0: what its checkpoint names; None if an earlier version wrote the line
    fault: str | None

    def cut(self, rounds: int) -> "Start":
        """The first so many rounds."""
        return Start(self.lines[:rounds], self.texts[:rounds], self.marks[: rounds + 1], self.fault)


def read_start(run: str, texts: Sequence[bytes]) -> Start:
    """The part of a record that a run can go on from."""
    chain = Chain(run)
    start = Start([], [], [chain.mark], None)
    for text, entry in zip(texts, chain.follow(texts), strict=True):
        if entry.line is None or entry.line.get("round") != len(start.lines) + 1:
            break
        start.lines.append(entry.line)
        start.texts.append(text)
        start.marks.append(entry.check)
    return start._replace(fault=chain.fault)


def chain_after(run: str, texts: Iterable[bytes]) -> Chain:
    """The chain at the end of these lines."""
    chain = Chain(run)
    for _ in chain.follow(texts):
        pass
    return chain
