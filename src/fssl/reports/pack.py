"""`fssl pack`: compress the records of runs for publishing."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import UserError
from ..records.packed import packed
from ..records.store import RunFolder
from ..system.files import write_atomic
from .runs import NO_ROUND, no_runs, run_folders


def pack_runs(paths: Sequence[Path], undo: bool = False) -> Iterator[str]:
    """Pack or unpack the record of every run at or below some folders; yield a line on each."""
    folders = [RunFolder(path) for path in run_folders(paths)]
    if not folders:
        raise no_runs(paths, "")
    if busy := next((folder for folder in folders if folder.lock.is_in_use), None):
        raise UserError(f"{busy.path} is in use by another process")
    for folder in folders:
        if not folder.has_rounds:
            yield f"{folder.path}: {NO_ROUND}"
        elif folder.is_packed != undo:
            yield f"{folder.path}: {'packed' if folder.is_packed else 'plain'} already"
        else:
            yield unpack(folder) if undo else pack(folder)


def pack(folder: RunFolder) -> str:
    """Replace the plain record by a packed one that holds the same text."""
    text = folder.text()
    try:
        data = packed(text)
    except ValueError:
        raise UserError(f"{folder.rounds_file} cannot be packed: a line is damaged or was edited") from None
    return replace_file(folder.rounds_file, len(text), folder.packed_file, data)


def unpack(folder: RunFolder) -> str:
    """Replace the packed record by the plain one."""
    return replace_file(folder.packed_file, folder.packed_file.stat().st_size, folder.rounds_file, folder.text())


def replace_file(old: Path, size: int, new: Path, content: bytes) -> str:
    """Write a file, then remove another; return a line on both."""
    write_atomic(new, content)
    old.unlink()
    return f"{new}: {len(content):,} bytes, {size:,} before"
