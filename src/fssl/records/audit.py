"""An audit trail: an append-only file of dated lines, chained by checksums."""

import fcntl
import json
import os
import time
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from ..system.files import parse_json

TRAIL = "audit.jsonl"  # in the folder of a site or server
TAIL = 2**18  # bytes at the end of a trail that contain its last line; lines are shorter
LONGEST = 2000  # characters of a text in an entry: reasons come from outside


class TrailEntry(NamedTuple):
    """A line of a trail."""

    number: int
    time: str
    what: str
    facts: dict[str, Any]
    digest: str  # of this line and the previous line's digest


class Trail(NamedTuple):
    """The entries of a file, and each line that was damaged, removed, inserted or moved."""

    entries: list[TrailEntry]
    faults: list[str]


def append(file: Path, what: str, **facts: Any) -> None:
    """Write an entry and wait until it is on disk; several processes may do so at once."""
    with open(file, "a+b", opener=lambda name, flags: os.open(name, flags, 0o600)) as trail:
        fcntl.flock(trail, fcntl.LOCK_EX)
        end = trail.seek(0, os.SEEK_END)
        trail.seek(max(0, end - TAIL))
        tail = trail.read()
        whole, _, torn = tail.rpartition(b"\n")  # torn: half a line, left by a power failure
        last = read_line(whole.rpartition(b"\n")[2])
        number, before = (last.number + 1, last.digest) if last else (1, "")
        line = {"number": number, "time": now(), "what": what, "facts": shortened(facts)}
        signed = as_text({**line, "digest": line_digest(line, before)})
        trail.write((b"\n" if torn else b"") + signed + b"\n")
        trail.flush()
        os.fsync(trail.fileno())


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def shortened(fact: Any) -> Any:
    """Return a fact with long texts cut."""
    if isinstance(fact, dict):
        return {str(key): shortened(value) for key, value in fact.items()}
    return fact[:LONGEST] if isinstance(fact, str) else fact


def line_digest(line: dict[str, Any], before: str) -> str:
    """Return the checksum of a line without its own digest, and of the previous digest."""
    unsigned = {key: value for key, value in line.items() if key != "digest"}
    return sha256(before.encode() + as_text(unsigned)).hexdigest()


def as_text(line: dict[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":"), sort_keys=True).encode()


def read_line(text: bytes) -> TrailEntry | None:
    """Parse an entry, unchecked; None if the line is not one."""
    try:
        entry = TrailEntry(**parse_json(text))
    except (TypeError, ValueError):
        return None
    return entry if type(entry.number) is int and isinstance(entry.facts, dict) else None


def read_trail(file: Path) -> Trail:
    """Return a trail's entries, and the faults of its chain.

    A chain reveals changes if a later digest is known from elsewhere. Otherwise, an attacker with write access to the
    folder can cut the file at its end, or write it again.
    """
    entries: list[TrailEntry] = []
    faults: list[str] = []
    for place, text in enumerate(file.read_bytes().splitlines(), 1):
        entry, before = read_line(text), entries[-1] if entries else None
        if entry is None:
            faults.append(f"line {place} is damaged")
            continue
        if entry.number != (before.number if before else 0) + 1:
            faults.append(f"line {place} is entry {entry.number} after entry {before.number if before else 0}")
        elif entry.digest != line_digest(entry._asdict(), before.digest if before else ""):
            faults.append(f"line {place}: entry {entry.number} was changed, or the one before it")
        entries.append(entry)
    return Trail(entries, faults)
