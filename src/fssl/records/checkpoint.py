"""Checkpoints: tensors in safetensors with a checksum beside them; the newest two are kept."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import load

from ..system.files import read_json, write_atomic
from .parts import Parts
from .tensors import Tensors, checksum, packed, read_intact

KEPT = 2


class Saved(NamedTuple):
    """The state after a round: its tensors, and the parts that lie in files of their own."""

    round: int
    tensors: Tensors
    parts: dict[str, Tensors]


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parts = Parts(folder / "parts")

    def save(self, round: int, tensors: Tensors, parts: Mapping[str, Tensors]) -> None:
        """Write parts and tensors, then the manifest with their checksums, then remove older checkpoints."""
        self.folder.mkdir(exist_ok=True)
        files = self._parts.save(round, parts)
        data = packed(tensors)
        path = self.folder / f"{stem(round)}.json"
        write_atomic(path.with_suffix(".safetensors"), data)
        facts = {"round": round, "sha256": checksum(data), "parts": files}
        write_atomic(path, json.dumps(facts))
        self._keep_only(self._manifests()[-KEPT:])

    def load(self, at_most: int, say: Callable[[str], None]) -> Saved | None:
        """The newest whole checkpoint of a round up to `at_most`; later and damaged ones are removed.

        They must go: a run that starts anew would otherwise count them among the newest two.
        """
        candidates = [m for m in self._manifests() if m.stem <= stem(at_most)]
        damaged, saved = [], None
        while candidates and (saved := self._read_whole(candidates[-1])) is None:
            damaged.append(candidates.pop().stem)
        if damaged:
            instead = f"using {candidates[-1].stem}" if candidates else "no older one is left"
            say(f"checkpoint damaged: {', '.join(damaged)}; {instead}")
        self._keep_only(candidates)
        return saved

    @property
    def oldest_round(self) -> int | None:
        """The round of the oldest kept checkpoint."""
        numbers = (manifest.stem.removeprefix("round-") for manifest in self._manifests())
        return next((int(number) for number in numbers if number.isdecimal()), None)

    def _manifests(self) -> list[Path]:
        return sorted(self.folder.glob("round-*.json"))

    def _keep_only(self, kept: Iterable[Path]) -> None:
        """Remove all other files; sorted, so a manifest goes before its tensors, and both before its parts."""
        manifests = {manifest.stem: manifest for manifest in kept}
        for file in sorted(self.folder.glob("round-*")):
            if file.name.partition(".")[0] not in manifests:
                file.unlink(missing_ok=True)
        self._parts.keep_only(
            {file for manifest in manifests.values() for file in read_json(manifest).get("parts", {})}
        )

    def _read_whole(self, manifest: Path) -> Saved | None:
        """A checkpoint whose bytes are those that were written, else None."""
        facts = read_json(manifest)
        data = read_intact(manifest.with_suffix(".safetensors"), facts.get("sha256"))
        if data is None or manifest.stem != stem(facts.get("round")):
            return None
        parts = self._parts.load(facts["parts"]) if isinstance(facts.get("parts"), dict) else None
        return None if parts is None else Saved(int(facts["round"]), load(data), parts)


def stem(round: object) -> str:
    return f"round-{round!s:0>6}"
