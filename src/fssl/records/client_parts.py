"""Parts of a state that seldom change, such as what one client keeps: a file each, written when the part is new.

A checkpoint names the files it needs with their checksums, so a thousand clients cost a round only those who took part.
Where all parts together would take too much memory, the oldest ones are mapped from their files: the system reads them
when they are looked at, and forgets them when it needs the room.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

from safetensors.torch import load

from ..system.files import write_atomic
from ..system.machine import memory
from .manifests import checksum, read_intact
from .tensors import Tensors, as_bytes, mapped

Vouched = dict[str, str]  # checksum by file name


def parts_room() -> int:
    """Bytes of memory that parts may take."""
    return memory() // 4


class Parts:
    """A folder of parts. A part's tensors are never changed in place, so the same dict means the same content."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, tuple[Tensors, str, str]] = {}  # by part: its tensors, their file and checksum
        self._held: dict[str, int] = {}  # by part: bytes in memory; the oldest first

    def save(self, round: int, parts: Mapping[str, Tensors]) -> Vouched:
        """Write what is not on disk yet; returns the files that hold all parts."""
        new = {name: tensors for name, tensors in parts.items() if not self._holds(name, tensors)}
        if new:
            self.folder.mkdir(parents=True, exist_ok=True)
        for name, tensors in new.items():
            data = as_bytes(tensors)
            file = f"{name}.round-{round:06d}.safetensors"
            write_atomic(self.folder / file, data)
            self._know(name, tensors, file, checksum(data), len(data))
        for name in self._known.keys() - parts.keys():  # such as an earlier best model: its file goes, too
            del self._known[name]
            self._held.pop(name, None)
        return {file: check for _, file, check in (self._known[name] for name in parts)}

    def _know(self, name: str, tensors: Tensors, file: str, check: str, size: int) -> None:
        self._known[name] = tensors, file, check
        self._held.pop(name, None)
        self._held[name] = size  # the newest

    def moved(self) -> dict[str, Tensors]:
        """Parts that are mapped from their files from now on, so that there is room for the others."""
        excess, moved = sum(self._held.values()) - parts_room(), dict[str, Tensors]()
        while excess > 0 and self._held:
            name = next(iter(self._held))
            excess -= self._held.pop(name)
            _, file, check = self._known[name]
            moved[name] = mapped(self.folder / file)
            self._known[name] = moved[name], file, check
        return moved

    def _holds(self, name: str, tensors: Tensors) -> bool:
        return name in self._known and self._known[name][0] is tensors

    def load(self, files: Vouched) -> dict[str, Tensors] | None:
        """All parts; None if a file's checksum differs from the recorded one."""
        self._known, self._held, left = {}, {}, parts_room()
        for file, check in files.items():
            data = read_intact(self.folder / file, check)
            if data is None:
                return None
            name, left = file.partition(".round-")[0], left - len(data)
            if left >= 0:
                self._know(name, load(data), file, check, len(data))
            else:
                self._known[name] = mapped(self.folder / file), file, check
        return {name: tensors for name, (tensors, _, _) in self._known.items()}

    def keep_only(self, files: Collection[str]) -> None:
        if self.folder.is_dir():
            for path in self.folder.iterdir():
                if path.name not in files:
                    path.unlink(missing_ok=True)
