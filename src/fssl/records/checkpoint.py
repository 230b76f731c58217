"""Checkpoints: tensors in safetensors with a checksum next to them; the newest two are kept."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load

from ..system.files import read_json, write_atomic
from ..system.machine import memory
from .manifests import Manifests, checkpoint_stem, checksum, read_intact
from .tensors import Tensors, as_bytes, mapped

# Names of parts; a killed process leaves one with a further ending.
OURS = re.compile(r"[\w.+-]+\.round-\d{6,}\.safetensors(\.[0-9a-f]+\.part)?")
Vouched = dict[str, str]  # checksum by file name
KEPT_CHECKPOINTS = 2


class Saved(NamedTuple):
    """The state after a round: its tensors, and parts in separate files."""

    round: int
    tensors: Tensors
    parts: dict[str, Tensors]


class Checkpoints(Manifests):
    """The checkpoints of one run, with their tensors."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._parts = Parts(folder / "parts")

    def save(self, round: int, tensors: Tensors, parts: Mapping[str, Tensors], mark: str) -> None:
        """Write parts and tensors, then the manifest with their checksums, then remove older checkpoints.

        Args:
            round: The round of the state.
            tensors: Tensors that change in every round.
            parts: Tensors that seldom change, by name.
            mark: The check of the record up to this round, so that the checkpoint fits no other record.
        """
        self.folder.mkdir(exist_ok=True)
        files = self._parts.save(round, parts)
        data = as_bytes(tensors)
        path = self.folder / f"{checkpoint_stem(round)}.json"
        write_atomic(path.with_suffix(".safetensors"), data)
        facts = {"round": round, "record": mark, "sha256": checksum(data), "parts": files}
        write_atomic(path, json.dumps(facts))
        self._keep_only(self._manifests()[-KEPT_CHECKPOINTS:])

    def moved(self) -> dict[str, Tensors]:
        """Return the parts of the last checkpoint that are only on disk from now on."""
        return self._parts.moved()

    def load(self, marks: Sequence[str], say: Callable[[str], None]) -> Saved | None:
        """Return the newest whole checkpoint of a record, given by its marks from round 0 on.

        Later, damaged and foreign ones are removed, because a resumed run would count them among the newest two; they
        are kept if no other is left.
        """
        candidates = self._up_to(marks)[::-1]
        damaged, saved = [], None
        while candidates and (saved := self._read_whole(candidates[-1], marks)) is None:
            damaged.append(candidates.pop().stem)
        if saved:
            if damaged:
                say(f"checkpoint damaged, or from another run: {', '.join(damaged)}; using {candidates[-1].stem}")
            self._keep_only(candidates)
        return saved

    def newest(self, marks: Sequence[str], parts: str) -> Saved | None:
        """Return the newest whole checkpoint to a reader, with the parts whose names have this prefix; remove nothing.

        A running run may remove a checkpoint during reading; then there is a newer one.
        """
        for manifest in self._up_to(marks):
            with suppress(FileNotFoundError):
                if saved := self._read_whole(manifest, marks, parts):
                    return saved
        return None

    def _keep_only(self, kept: Iterable[Path]) -> None:
        """Remove all other files; sorted, so a manifest is removed before its tensors, and both before its parts."""
        manifests = {manifest.stem: manifest for manifest in kept}
        for file in sorted(self.folder.glob("round-*")):
            if file.name.partition(".")[0] not in manifests:
                file.unlink(missing_ok=True)
        self._parts.keep_only(
            {file for manifest in manifests.values() for file in read_json(manifest).get("parts", {})}
        )

    def _read_whole(self, manifest: Path, marks: Sequence[str], only: str = "") -> Saved | None:
        """Return a checkpoint of this record if its bytes are unchanged, otherwise None."""
        found = self._read_manifest(manifest, marks)
        if found is None:
            return None
        facts, data = found
        try:
            parts = self._parts.load({f: check for f, check in facts["parts"].items() if f.startswith(only)})
            return None if parts is None else Saved(facts["round"], load(data), parts)
        except SafetensorError:  # the checksum is right, but the content is not fssl's
            return None


def parts_room() -> int:
    """Return the bytes of memory that parts may take."""
    return memory() // 4


class Parts:
    """Parts of a state that seldom change, such as a client's: one file each, written when the part is new.

    A checkpoint names its files with their checksums, so with a thousand clients a round writes only the participants'
    files. If all parts together would take too much memory, the oldest ones are mapped from their files: the system
    reads them on access, and drops them when it needs the memory. A part's tensors are never changed in place, so the
    same dict means the same content.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, tuple[Tensors, str, str]] = {}  # by part: its tensors, their file and checksum
        self._held: dict[str, int] = {}  # by part: bytes in memory; the oldest first

    def save(self, round: int, parts: Mapping[str, Tensors]) -> Vouched:
        """Write the parts that are not on disk yet; return the files of all parts."""
        new = {name: tensors for name, tensors in parts.items() if not self._holds(name, tensors)}
        if new:
            self.folder.mkdir(parents=True, exist_ok=True)
        for name, tensors in new.items():
            data = as_bytes(tensors)
            file = f"{name}.round-{round:06d}.safetensors"
            write_atomic(self.folder / file, data)
            self._know(name, tensors, file, checksum(data), len(data))
        for name in self._known.keys() - parts.keys():  # such as an earlier best model: its file is removed, too
            del self._known[name]
            self._held.pop(name, None)
        return {file: check for _, file, check in (self._known[name] for name in parts)}

    def _know(self, name: str, tensors: Tensors, file: str, check: str, size: int) -> None:
        self._known[name] = tensors, file, check
        self._held.pop(name, None)
        self._held[name] = size  # the newest

    def moved(self) -> dict[str, Tensors]:
        """Return the parts that are mapped from their files from now on, to make room for the others."""
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
        """Return all parts; None if a file's checksum differs from the recorded one."""
        self._known, self._held, left = {}, {}, parts_room()
        for file, check in files.items():
            if not OURS.fullmatch(file):  # a path to elsewhere
                return None
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
                if path.name not in files and OURS.fullmatch(path.name):
                    path.unlink(missing_ok=True)
