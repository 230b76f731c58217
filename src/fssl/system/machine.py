"""A process's share of its machine: CPU cores, signals, and places to write."""

import os
import platform
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import UserError
from .files import draft_of

LONGEST_NAME, LONGEST_PATH = 255, 4096  # bytes that a file system allows for a name, and Linux for a path
ROOM = 256  # bytes of a path reserved for names below a folder


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> int:
    """Return the bytes of memory of the machine, free or not."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def forget_peak() -> None:
    """Start this process's peak of memory anew, where Linux allows it; elsewhere it is that since the start."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_of_process() -> int:
    """Return the largest number of bytes that this process had in memory at once."""
    path = Path("/proc/self/status")
    lines = path.read_text().splitlines() if path.is_file() else []
    found = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return 1024 * (found[0] if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def processor() -> str:
    """Return the CPU's name, or the architecture if the system does not report it."""
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
    """Reject, before the work, an argument's folder that cannot be created or written into."""
    if reason := obstacle(path):
        raise UserError(f"{path}: {reason}", name)


def as_path(name: str, path: object) -> Path:
    """Return a script's argument of this name as a path."""
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"{name} = {path!r:.60}: expected a path")
    return Path(path)


def check_name(name: str, path: Path) -> None:
    """Reject, before anything is read, an argument's file or folder with an impossible name."""
    if reason := wrong_name(path):
        raise UserError(f"{path}: {reason}", name)


def check_file(name: str, path: Path, *endings: str) -> None:
    """Reject, before the work, an argument's file that cannot be written, or has another ending."""
    if endings and path.suffix.lower() not in endings:
        raise UserError(f"{path}: expected a name that ends with {endings[0]}", name)
    check_name(name, path)
    if path.is_dir():
        raise UserError(f"{path}: is a folder; expected a file", name)
    # Also for an existing file: until it is replaced, its draft has a longer name.
    if reason := wrong_name(draft_of(path)) or obstacle(path.parent):
        raise UserError(f"{path}: {reason}", name)


def check_new(name: str, path: Path, overwrite: bool) -> None:
    """Reject, before the work, an argument's file that exists, unless `overwrite` is set."""
    if path.exists() and not overwrite:
        raise UserError(f"{path}: already exists; choose another name, or overwrite it", name, "overwrite")


def obstacle(folder: Path) -> str | None:
    """Return the reason why a folder, existing or new, cannot be written into; None if it can."""
    if reason := wrong_name(folder):
        return reason
    ground = existing_parent(folder)
    if not ground.is_dir():
        return f"{ground.name} is a file, not a folder"
    return None if os.access(ground, os.W_OK) else f"{ground.name or ground} is read-only"


def existing_parent(folder: Path) -> Path:
    """Return a folder, or its nearest existing parent."""
    path = folder.absolute()
    return next(place for place in (path, *path.parents) if place.exists())


def wrong_name(path: Path) -> str | None:
    """Return the reason why a file or folder cannot have this name; None if it can."""
    if "\0" in str(path):
        return "a name cannot contain a null character"
    is_long = any(len(os.fsencode(name)) > LONGEST_NAME for name in path.parts)
    if is_long or len(os.fsencode(path.absolute())) > LONGEST_PATH - ROOM:
        return "the name is too long"
    return None
