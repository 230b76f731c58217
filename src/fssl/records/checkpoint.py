"""Checkpoints: tensors in safetensors with a checksum beside them; the newest two are kept."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load

from ..system.files import read_json, write_atomic
from .client_parts import Parts
from .manifests import Manifests, checkpoint_stem, checksum
from .tensors import Tensors, as_bytes

KEPT_CHECKPOINTS = 2


class Saved(NamedTuple):
    """The state after a round: its tensors, and the parts that lie in files of their own."""

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
            round: The round that the state comes after.
            tensors: What changes in every round.
            parts: What seldom changes, by name.
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
        """Parts of the last checkpoint that lie on disk alone from now on."""
        return self._parts.moved()

    def load(self, marks: Sequence[str], say: Callable[[str], None]) -> Saved | None:
        """The newest whole checkpoint of a record, given by its marks from round 0 on.

        Later, damaged and strange ones are removed, because a run that goes on would count them among the newest two;
        none is removed if no other is left.
        """
        candidates = self._up_to(marks)[::-1]
        damaged, saved = [], None
        while candidates and (saved := self._read_whole(candidates[-1], marks)) is None:
            damaged.append(candidates.pop().stem)
        if saved:
            if damaged:
                say(f"checkpoint damaged, or of another run: {', '.join(damaged)}; using {candidates[-1].stem}")
            self._keep_only(candidates)
        return saved

    def newest(self, marks: Sequence[str], parts: str) -> Saved | None:
        """The same for a reader: nothing is removed, and of the parts only those whose names begin like this are read.

        A run that goes on may remove a checkpoint while it is read; then there is a newer one.
        """
        for manifest in self._up_to(marks):
            with suppress(FileNotFoundError):
                if saved := self._read_whole(manifest, marks, parts):
                    return saved
        return None

    def _keep_only(self, kept: Iterable[Path]) -> None:
        """Remove all other files; sorted, so a manifest goes before its tensors, and both before its parts."""
        manifests = {manifest.stem: manifest for manifest in kept}
        for file in sorted(self.folder.glob("round-*")):
            if file.name.partition(".")[0] not in manifests:
                file.unlink(missing_ok=True)
        self._parts.keep_only(
            {file for manifest in manifests.values() for file in read_json(manifest).get("parts", {})}
        )

    def _read_whole(self, manifest: Path, marks: Sequence[str], only: str = "") -> Saved | None:
        """A checkpoint of this record whose bytes are those that were written, else None."""
        found = self._read_manifest(manifest, marks)
        if found is None:
            return None
        facts, data = found
        try:
            parts = self._parts.load({f: check for f, check in facts["parts"].items() if f.startswith(only)})
            return None if parts is None else Saved(facts["round"], load(data), parts)
        except SafetensorError:  # the checksum is right, but somebody else wrote something else
            return None
