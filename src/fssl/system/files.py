"""Files that are either whole or not there, what is written into them as text, and whether it has changed since."""

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

from ..errors import UserError, printable

FORMULAS = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # how a cell begins that is computed
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?", re.ASCII)
STALE = 24 * 3600  # seconds after which a draft counts as left behind by a killed process
DRAFT = re.compile(r".+\.[0-9a-f]{16}\.part")
DEEPEST = 50  # levels of lists and tables in a file that is read; ours have five
SHORT_DIGITS = 16  # hexadecimal, of a checksum: 64 bits are far beyond what accidents hit
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
        if error.filename is None or error.filename == str(draft):  # a full disk names nothing
            error.filename = str(path)
        raise
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def at_home(path: Path, remedy: str = "write the path in full") -> Path:
    """A path with a home folder in the place of `~`; refused where the system knows none, as in some containers."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise UserError(f"'{path}': the system has no such home folder; {remedy}") from None


def draft_of(path: Path) -> Path:
    """The name of a file until it is whole, one per writer."""
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")


def write_atomic(path: Path, content: bytes | str, mode: int = 0o666) -> None:
    """Replace a file's content as a whole, or raise an error and change nothing."""
    with atomic(path, mode) as out:
        out.write(content if isinstance(content, bytes) else encoded(path, content))


def encoded(path: Path, text: str) -> bytes:
    """Text as UTF-8, for the file at this path."""
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
        with suppress(OSError):  # its writer may just have finished, or be somebody else
            if time.time() - draft.stat().st_mtime >= seconds:
                draft.unlink()


@cache
def _sweep_once(folder: Path) -> None:
    """Sweep a folder once per process: listing one with many files is slow."""
    sweep(folder, STALE)


def parse_json(text: bytes) -> Any:
    """The value that JSON text stands for; text that is no JSON, or too deep to be one of ours, is a ValueError."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if text.count(b"[") + text.count(b"{") > DEEPEST and is_too_deep(value):  # the count is quick, and mostly enough
        raise ValueError(TOO_DEEP)
    return value


def is_too_deep(value: object) -> bool:
    """Whether lists and tables are nested deeper than any of ours, so that copying or writing them might fail."""
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for outer in level for inner in inside(outer)]
    return any(isinstance(value, NESTS) for value in level)


def inside(value: object) -> Iterable[object]:
    """What a list or a table holds; nothing for any other value."""
    return value.values() if isinstance(value, Mapping) else value if isinstance(value, NESTS) else ()


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; `{}` if the file is missing or damaged."""
    try:
        content = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def as_csv(fields: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A head and a line per row; nothing is written for None."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(csv_cell, fields))
    writer.writerows([csv_cell(row.get(field)) for field in fields] for row in rows)
    return out.getvalue()


def csv_cell(value: object) -> object:
    """A number as it is, or text in one line; what a spreadsheet would compute, such as `=1+1`, has an apostrophe."""
    if value is None or isinstance(value, int | float):
        return value
    text = printable(str(value))
    return f"'{text}" if text.startswith(FORMULAS) and not NUMBER.fullmatch(text) else text


def short_sum(data: bytes) -> str:
    return sha256(data).hexdigest()[:SHORT_DIGITS]


def check_unchanged(what: str, now: str, key: str, recorded: str | None, use: str, copy: str = "") -> None:
    """Refuse a file whose checksum is not the recorded one.

    Args:
        what: The file, as a message names it.
        now: Its checksum.
        key: The setting that records the checksum.
        recorded: What that setting says; None if nothing is recorded yet.
        use: What somebody may want to do with the file all the same.
        copy: Where a copy of the recorded file is, if there is one.
    """
    if recorded not in (None, now):
        raise UserError(
            f"{what} has changed: {key} is '{recorded}' in the settings{copy}, but '{now}' now;"
            f" to {use} it as it is now, start a new run without {key}"
        )
