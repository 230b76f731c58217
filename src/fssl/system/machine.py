"""What a process has of its machine: CPU cores, signals, and places to write."""

import os
import platform
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import UserError
from .files import draft_of

LONGEST_NAME, LONGEST_PATH = 255, 4096  # bytes that a file system has for a name, and Linux for a path
ROOM = 256  # bytes of a path for what is written below a folder


def cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> int:
    """Bytes of memory that the machine has, whoever uses them."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def processor() -> str:
    """The CPU's name, if the system reports it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


@contextmanager
def handled(number: signal.Signals, handler: Any) -> Iterator[None]:
    """Temporarily replace a signal handler."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def check_folder(name: str, path: Path) -> None:
    """Refuse, before the work, an argument's folder that cannot be made or written into."""
    if reason := obstacle(path):
        raise UserError(f"{path}: {reason}", name)


def as_path(name: str, path: object) -> Path:
    """A path that a script gives as an argument of this name."""
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"{name} = {path!r:.60}: expected a path")
    return Path(path)


def check_name(name: str, path: Path) -> None:
    """Refuse, before anything is read, an argument's file or folder whose name no file system holds."""
    if reason := wrong_name(path):
        raise UserError(f"{path}: {reason}", name)


def check_file(name: str, path: Path, *endings: str) -> None:
    """Refuse, before the work, an argument's file that cannot be written, or whose name ends otherwise."""
    if endings and path.suffix.lower() not in endings:
        raise UserError(f"{path}: expected a name that ends with {endings[0]}", name)
    check_name(name, path)
    if path.is_dir():
        raise UserError(f"{path}: is a folder; expected a file", name)
    # Also of a file that is there: it is replaced, by one that has a longer name until it is whole.
    if reason := wrong_name(draft_of(path)) or obstacle(path.parent):
        raise UserError(f"{path}: {reason}", name)


def check_new(name: str, path: Path, overwrite: bool) -> None:
    """Refuse, before the work, to write over an argument's file unless that is asked for."""
    if path.exists() and not overwrite:
        raise UserError(f"{path}: already exists; choose another name, or overwrite it", name, "overwrite")


def obstacle(folder: Path) -> str | None:
    """The reason why a folder, existing or new, cannot be written into; None if it can."""
    if reason := wrong_name(folder):
        return reason
    ground = ground_of(folder)
    if not ground.is_dir():
        return f"{ground.name} is a file, not a folder"
    return None if os.access(ground, os.W_OK) else f"{ground.name or ground} is read-only"


def ground_of(folder: Path) -> Path:
    """A folder, or the nearest above it that is there."""
    path = folder.absolute()
    return next(place for place in (path, *path.parents) if place.exists())


def wrong_name(path: Path) -> str | None:
    """The reason why no file and no folder can be called so; None if one can."""
    if "\0" in str(path):
        return "a name cannot contain a null character"
    is_long = any(len(os.fsencode(name)) > LONGEST_NAME for name in path.parts)
    if is_long or len(os.fsencode(path.absolute())) > LONGEST_PATH - ROOM:
        return "the name is too long"
    return None
