"""The checkpoints of a run as files: which ones exist, and which are unchanged."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, deserialize

from ..system.files import read_json


def checksum(data: bytes) -> str:
    return sha256(data).hexdigest()


def read_intact(path: Path, expected: object) -> bytes | None:
    """Return the bytes of a file; None if it is missing or its checksum differs."""
    data = path.read_bytes() if path.is_file() else b""
    return data if checksum(data) == expected else None


def checkpoint_stem(round: object) -> str:
    return f"round-{round!s:0>6}"


class Manifests:
    """The checkpoints of one run: a manifest names a round, and the checksums of its tensors and parts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def is_begun(self) -> bool:
        """Return whether there are checkpoints after round 0."""
        return any(self.rounds) or (self.folder.exists() and not self.folder.is_dir())

    @property
    def rounds(self) -> list[int]:
        """Return the rounds that have a checkpoint, whole or not."""
        numbers = (manifest.stem.removeprefix("round-") for manifest in self._manifests())
        return [int(number) for number in numbers if number.isdecimal()]

    def newest_round(self, marks: Sequence[str]) -> int | None:
        """Return the round of a record's newest checkpoint with readable tensors; parts are not checked.

        A resumed run may remove a checkpoint during reading; then there is a newer one.
        """
        for manifest in self._up_to(marks):
            with suppress(FileNotFoundError, SafetensorError):
                if found := self._read_manifest(manifest, marks):
                    deserialize(found[1])  # type: ignore[no-untyped-call]  # the library has no types for it
                    return int(found[0]["round"])
        return None

    def _manifests(self) -> list[Path]:
        return sorted(self.folder.glob("round-*.json"))

    def _up_to(self, marks: Sequence[str]) -> list[Path]:
        """Return the manifests for a record's rounds, given by its marks from round 0 on; the newest first."""
        return [m for m in reversed(self._manifests()) if m.stem <= checkpoint_stem(len(marks) - 1)]

    def _read_manifest(self, manifest: Path, marks: Sequence[str]) -> tuple[Mapping[str, Any], bytes] | None:
        """Return the facts and the tensors' bytes of a checkpoint of this record; None if they have changed."""
        facts = read_json(manifest)
        round = facts.get("round")
        if type(round) is not int or manifest.stem != checkpoint_stem(round) or facts.get("record") != marks[round]:
            return None
        data = read_intact(manifest.with_suffix(".safetensors"), facts.get("sha256"))
        return None if data is None or not isinstance(facts.get("parts"), dict) else (facts, data)
