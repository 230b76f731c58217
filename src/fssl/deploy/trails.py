"""The audit trails of a deployment's folder, for `fssl deploy audit`."""

import json
from collections.abc import Iterable
from pathlib import Path

from ..errors import UserError
from ..records.audit import TRAIL, Trail, TrailEntry, read_trail
from ..system.files import as_csv, write_atomic


def open_trail(home: Path, name: str | None) -> tuple[Path, Trail]:
    """Return the file and entries of a trail: of a named site, of this folder, or of the server."""
    folder = home / name if name else home if (home / TRAIL).is_file() else home / "server"
    if not (folder / TRAIL).is_file():
        known = sorted(path.parent.name for path in home.glob(f"*/{TRAIL}"))
        hint = f"trails here: {', '.join(known)}" if known else "it is written once the site or server has been started"
        raise UserError(f"{folder} has no {TRAIL}; {hint}")
    return folder / TRAIL, read_trail(folder / TRAIL)


def as_rows(entries: Iterable[TrailEntry]) -> list[tuple[object, ...]]:
    """Return entries with their facts as one text."""
    return [(e.number, e.time, e.what, details(e), e.digest) for e in entries]


def details(entry: TrailEntry) -> str:
    texts = (f"{key} {value if isinstance(value, str) else json.dumps(value)}" for key, value in entry.facts.items())
    return "; ".join(texts)


def export(trail: Trail, file: Path, as_json: bool) -> None:
    """Write all entries."""
    if as_json:
        write_atomic(file, json.dumps([entry._asdict() for entry in trail.entries], indent=1) + "\n")
        return
    names = ("number", "time", "what", "details", "digest")
    write_atomic(file, as_csv(names, (dict(zip(names, row, strict=True)) for row in as_rows(trail.entries))))
