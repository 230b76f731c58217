"""Atomic files, text in files, and checks for changes."""

import csv
import io
import json
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import UserError, escape_unprintable

FORMULAS = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # first characters of cells that a spreadsheet computes
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?", re.ASCII)
STALE = 24 * 3600  # seconds after which a draft counts as left by a killed process
DRAFT = re.compile(r".+\.[0-9a-f]{16}\.part")
DEEPEST = 50  # levels of lists and tables in a file that is read; fssl's have five
SHORT_DIGITS = 16  # hexadecimal, of a checksum: 64 bits make accidental collisions impossible
NESTS = (Mapping, list, tuple)
TOO_DEEP = f"nested deeper than {DEEPEST} levels"


@contextmanager
def atomic(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a file that appears under its name once it is complete and on disk; a failure leaves nothing."""
    _sweep_once(path.parent)
    draft = draft_of(path)
    try:
        with open(draft, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        draft.replace(path)
    except OSError as error:
        if error.filename is None or error.filename == str(draft):  # a full disk gives no name
            error.filename = str(path)
        raise
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def expand_home(path: Path, remedy: str = "write the path in full") -> Path:
    """Expand `~` in a path; raise UserError if the system has no such home folder, as in some containers."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise UserError(f"'{path}': the system has no such home folder; {remedy}") from None


def draft_of(path: Path) -> Path:
    """Return the name of a file until it is whole, one per writer."""
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")


def write_atomic(path: Path, content: bytes | str, mode: int = 0o666) -> None:
    """Replace a file's content as a whole, or raise an error and change nothing."""
    with atomic(path, mode) as out:
        out.write(content if isinstance(content, bytes) else encoded(path, content))


def encoded(path: Path, text: str) -> bytes:
    """Encode text as UTF-8, for the file at this path."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UserError(
            f"{path}: cannot be written: it contains a name that is not UTF-8; rename that file or folder"
        ) from None


def write_file(path: Path, content: bytes | str) -> None:
    """Write a file atomically, creating its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, content)


def sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_draft(path: Path) -> bool:
    return DRAFT.fullmatch(path.name) is not None


def sweep(folder: Path, seconds: float = 0) -> None:
    """Remove drafts that have not been written to for this time."""
    for draft in filter(is_draft, folder.glob("*.part")):
        with suppress(OSError):  # its writer may just have finished, or belong to another user
            if time.time() - draft.stat().st_mtime >= seconds:
                draft.unlink()


@cache
def _sweep_once(folder: Path) -> None:
    """Sweep a folder once per process: listing one with many files is slow."""
    sweep(folder, STALE)


def parse_json(text: bytes) -> Any:
    """Parse JSON; raise ValueError if it is invalid or nested too deeply."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if text.count(b"[") + text.count(b"{") > DEEPEST and is_too_deep(value):  # counting is quick and mostly enough
        raise ValueError(TOO_DEEP)
    return value


def is_too_deep(value: object) -> bool:
    """Return whether lists and tables are nested so deeply that copying or writing them might fail."""
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for outer in level for inner in inside(outer)]
    return any(isinstance(value, NESTS) for value in level)


def inside(value: object) -> Iterable[object]:
    """Return the elements of a list or a table; nothing for any other value."""
    return value.values() if isinstance(value, Mapping) else value if isinstance(value, NESTS) else ()


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; `{}` if the file is missing or damaged."""
    try:
        content = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def as_csv(fields: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Format a head and a line per row as CSV; None becomes an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(csv_cell, fields))
    writer.writerows([csv_cell(row.get(field)) for field in fields] for row in rows)
    return out.getvalue()


def csv_cell(value: object) -> object:
    """Return a number unchanged, or text in one line; text that spreadsheets compute, as `=1+1`, gets an apostrophe."""
    if value is None or isinstance(value, int | float):
        return value
    text = escape_unprintable(str(value))
    return f"'{text}" if text.startswith(FORMULAS) and not NUMBER.fullmatch(text) else text


def short_sum(data: bytes) -> str:
    return sha256(data).hexdigest()[:SHORT_DIGITS]


def check_unchanged(what: str, now: str, key: str, recorded: str | None, use: str, copy: str = "") -> None:
    """Reject a file whose checksum is not the recorded one.

    Args:
        what: The file's description in messages.
        now: Its checksum.
        key: The setting that records the checksum.
        recorded: The recorded checksum; None if there is none yet.
        use: A verb for using the changed file.
        copy: The place of a copy of the recorded file, for messages, if there is one.
    """
    if recorded not in (None, now):
        raise UserError(
            f"{what} has changed: {key} is '{recorded}' in the settings{copy}, but '{now}' now;"
            f" to {use} it as it is now, start a new run without {key}"
        )
