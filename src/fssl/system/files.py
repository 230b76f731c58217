"""Files that are either whole or not there, and what is written into them as text."""

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
from pathlib import Path
from typing import Any, BinaryIO

STALE = 24 * 3600  # seconds after which a draft counts as left behind by a killed process
DRAFT = re.compile(r".+\.[0-9a-f]{16}\.part")


@contextmanager
def atomic(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file that appears under its name only once it is complete and on disk; what fails leaves nothing behind."""
    _sweep_once(path.parent)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")  # one per writer
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


def write_atomic(path: Path, content: bytes | str, mode: int = 0o666) -> None:
    """All of it in place of what was there, or an error and no change."""
    with atomic(path, mode) as out:
        out.write(content.encode() if isinstance(content, str) else content)


def write_file(path: Path, content: bytes | str) -> None:
    """The same, in a folder that is made if it is not there."""
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
    """Remove drafts that nobody has written to for so long."""
    for draft in filter(is_draft, folder.glob("*.part")):
        with suppress(OSError):  # its writer may just have finished, or be somebody else
            if time.time() - draft.stat().st_mtime >= seconds:
                draft.unlink()


@cache
def _sweep_once(folder: Path) -> None:
    """Once per process: a folder of many files takes long to list."""
    sweep(folder, STALE)


def read_json(path: Path) -> dict[str, Any]:
    """A table written as JSON, or an empty one where there is no whole one."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def as_csv(fields: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A head and a line per row; nothing is written for None."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
