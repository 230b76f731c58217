"""Parts of a state that seldom change, such as what one client keeps: a file each, written when the part is new.

A checkpoint names the files it needs with their checksums, so a thousand clients cost a round only those who took part.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

from safetensors.torch import load

from ..system.files import write_atomic
from .tensors import Tensors, checksum, packed, read_intact

Vouched = dict[str, str]  # checksum by file name


class Parts:
    """A folder of parts. A part's tensors are never changed in place, so the same dict means the same content."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, tuple[Tensors, str, str]] = {}  # by part: its tensors, their file and checksum

    def save(self, round: int, parts: Mapping[str, Tensors]) -> Vouched:
        """Write what is not on disk yet; returns the files that hold all parts."""
        new = {name: tensors for name, tensors in parts.items() if not self._holds(name, tensors)}
        if new:
            self.folder.mkdir(parents=True, exist_ok=True)
        for name, tensors in new.items():
            data = packed(tensors)
            file = f"{name}.round-{round:06d}.safetensors"
            write_atomic(self.folder / file, data)
            self._known[name] = (tensors, file, checksum(data))
        return {file: check for _, file, check in (self._known[name] for name in parts)}

    def _holds(self, name: str, tensors: Tensors) -> bool:
        return name in self._known and self._known[name][0] is tensors

    def load(self, files: Vouched) -> dict[str, Tensors] | None:
        """All parts; None if a file's checksum differs from the recorded one."""
        found: dict[str, tuple[Tensors, str, str]] = {}
        for file, check in files.items():
            data = read_intact(self.folder / file, check)
            if data is None:
                return None
            found[file.partition(".round-")[0]] = (load(data), file, check)
        self._known = found
        return {name: tensors for name, (tensors, _, _) in found.items()}

    def keep_only(self, files: Collection[str]) -> None:
        if self.folder.is_dir():
            for path in self.folder.iterdir():
                if path.name not in files:
                    path.unlink(missing_ok=True)
