"""What a process has of its machine: CPU cores, signals, and places to write."""

import os
import platform
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import UserError


def cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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


def check_folder(option: str, path: Path) -> None:
    """Refuse, before the work, an option's folder that cannot be made or written into."""
    if reason := obstacle(path):
        raise UserError(f"{option} {path}: {reason}")


def check_file(option: str, path: Path, *endings: str) -> None:
    """Refuse, before the work, an option's file that cannot be written, or whose name ends otherwise."""
    if endings and path.suffix.lower() not in endings:
        raise UserError(f"{option} {path}: expected a name that ends with {endings[0]}")
    if path.is_dir():
        raise UserError(f"{option} {path}: is a folder; expected a file")
    if reason := obstacle(path.parent):  # also of a file that is there: it is replaced, not written over
        raise UserError(f"{option} {path}: {reason}")


def obstacle(folder: Path) -> str | None:
    """The reason why a folder, existing or new, cannot be written into; None if it can."""
    path = folder.absolute()
    ground = next(p for p in (path, *path.parents) if p.exists())
    if not ground.is_dir():
        return f"{ground.name} is a file, not a folder"
    return None if os.access(ground, os.W_OK) else f"{ground.name or ground} is read-only"
