"""Edited records that a user has accepted: sealed again, with a remark that tables and pages show.

The remark is part of the seal: a record without it, or with another one, counts as edited again.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import Config
from ..errors import UserError
from ..system.files import short_sum, write_atomic
from .chain import Chain, linked, named, read_entry, read_line
from .rounds import Line, first_other_rate
from .sealing import read_facts, write_facts

if TYPE_CHECKING:
    from .store import RunFolder

ACCEPTED = "accepted.json"
LONGEST_REMARK = 200  # characters


def acceptance(folder: Path) -> dict[str, Any]:
    """Return an accepted record's remark, and the schedule that it was accepted with; otherwise an empty dict."""
    return read_facts(folder / ACCEPTED)


def seal(run: str, facts: Mapping[str, Any]) -> str:
    """Return the check that a record's first line continues: of the run's settings and, if accepted, the remark."""
    return short_sum(f"{run} {json.dumps(facts, sort_keys=True)}".encode()) if facts else run


def rate_fault(lines: Sequence[Line], config: Config, facts: Mapping[str, Any]) -> str | None:
    """Describe a round whose learning rate contradicts the settings; None if there is none, or it was accepted."""
    if facts.get("schedule") == repr(config.schedule):
        return None
    other = first_other_rate(lines, config)
    return f"config.toml was edited: round {other} was trained with another learning rate" if other else None


def accept(folder: "RunFolder", remark: str) -> str:
    """Seal an edited record again. It counts again, marked with the remark, but the run cannot be resumed.

    Returns:
        The edit that was found. Damaged lines stay damaged.
    """
    folder.check_run()
    if not remark.strip() or not remark.isprintable() or len(remark) > LONGEST_REMARK:
        raise UserError(f"remark = {remark!r:.60}: expected a line of at most {LONGEST_REMARK} characters", "remark")
    folder.lock.take()
    try:
        texts = folder.text().splitlines()
        lines = [line for text in texts if (line := read_line(text))]
        rates = rate_fault(lines, config := folder.config(), acceptance(folder.path))
        edits = [*find_edits(folder.chain(), texts), *([rates] if rates else [])]
        if not edits:
            raise UserError(f"{folder.path}: nothing to accept: no line or setting was edited")
        facts = {"remark": remark, "schedule": repr(config.schedule)}
        write_facts(folder.path / ACCEPTED, facts)
        write_atomic(folder.rounds_file, b"\n".join([*relink(texts, seal(folder.run_id, facts)), b""]))
        folder.packed_file.unlink(missing_ok=True)
    finally:
        folder.lock.close()
    return edits[0]


def find_edits(chain: Chain, texts: Sequence[bytes]) -> Iterator[str]:
    """Yield the edits of a record: whole lines with a wrong check, and lines or settings that do not fit together."""
    for text, known in zip(texts, chain.follow(texts), strict=True):
        if known is None and (line := read_line(text)):
            yield f"{named(line)} was edited"
    if chain.fault:
        yield chain.fault


def relink(texts: Iterable[bytes], mark: str) -> Iterator[bytes]:
    """Yield the lines with new checks, the first one continuing the mark; damaged ones unchanged."""
    for text in texts:
        line = read_line(text)
        new = linked(line, mark).rstrip("\n").encode() if line else text
        mark = entry.check if (entry := read_entry(new)) else mark
        yield new
