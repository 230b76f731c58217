"""Checkpoints: tensors in safetensors with a checksum beside them; the newest two are kept."""

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path

from safetensors.torch import load, save
from torch import Tensor

from .atomic import read_json, write_atomic

KEPT = 2
Saved = tuple[int, dict[str, Tensor]]  # round, tensors


def save_checkpoint(folder: Path, round: int, tensors: dict[str, Tensor]) -> None:
    """Tensors first, then the manifest that vouches for them, then older checkpoints go."""
    folder.mkdir(exist_ok=True)
    data = save({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
    path = folder / f"{stem(round)}.json"
    write_atomic(path.with_suffix(".safetensors"), data)
    write_atomic(path, json.dumps({"round": round, "sha256": hashlib.sha256(data).hexdigest()}))
    keep_only(folder, manifests(folder)[-KEPT:])


def load_checkpoint(folder: Path, at_most: int, say: Callable[[str], None]) -> Saved | None:
    """The newest whole checkpoint of a round up to `at_most`; later and damaged ones are removed.

    They must go: a run that starts anew would otherwise count them among the newest two.
    """
    candidates = [m for m in manifests(folder) if m.stem <= stem(at_most)]
    damaged, saved = [], None
    while candidates and (saved := read_whole(candidates[-1])) is None:
        damaged.append(candidates.pop().stem)
    if damaged:
        instead = f"using {candidates[-1].stem}" if candidates else "no older one is left"
        say(f"checkpoint damaged: {', '.join(damaged)}; {instead}")
    keep_only(folder, candidates)
    return saved


def stem(round: object) -> str:
    return f"round-{round!s:0>6}"


def manifests(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*.json"))


def keep_only(folder: Path, kept: Iterable[Path]) -> None:
    """Remove all other files; sorted, so a manifest goes before the tensors it vouches for."""
    stems = {manifest.stem for manifest in kept}
    for file in sorted(folder.glob("round-*")):
        if file.name.partition(".")[0] not in stems:
            file.unlink(missing_ok=True)


def read_whole(manifest: Path) -> Saved | None:
    """A checkpoint whose bytes are those that were written, else None."""
    facts, tensors = read_json(manifest), manifest.with_suffix(".safetensors")
    data = tensors.read_bytes() if tensors.is_file() else b""
    if manifest.stem != stem(facts.get("round")) or facts.get("sha256") != hashlib.sha256(data).hexdigest():
        return None
    return int(facts["round"]), load(data)
