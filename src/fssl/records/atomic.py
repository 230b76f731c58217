"""Files that are either whole or not there."""

import json
import os
from pathlib import Path
from typing import Any


def write_atomic(path: Path, content: bytes | str, mode: int = 0o666) -> None:
    """Write beside, flush to disk, then rename into place; what fails leaves nothing behind."""
    data = content.encode() if isinstance(content, str) else content
    beside = path.with_name(path.name + ".part")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: Path) -> dict[str, Any]:
    """A table written as JSON, or an empty one where there is no whole one."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
