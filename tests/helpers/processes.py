"""Processes of this machine, as Linux lists them."""

from pathlib import Path


def children(parent: int) -> set[int]:
    """Processes that a process started, as Linux lists them."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            rest = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(rest[1]) == parent:
            found.add(int(stat.parent.name))
    return found


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
