"""Run folders with a hardware and a command, for the page."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fssl.config import override, parse, read_toml
from fssl.records import sealing

from . import run_folders

ENV = {"from_round": 1, "device": "cpu", "processor": "x86_64", "threads": 1, "python": "3.11.7", "revision": "abc"}


def write_run(folder: Path, accuracies: Sequence[float], *settings: str, **extra: Sequence[Any]) -> Path:
    """A finished run of the smoke preset whose round r took r / 2 seconds."""
    config = parse(override(read_toml("smoke"), [f"train.rounds={len(accuracies)}", *settings]))
    timing = [{"seconds": 0.5 * round} for round in range(1, len(accuracies) + 1)]
    run_folders.write_run(folder, config, accuracies, timing=timing, **extra)
    session = {**ENV, "packages": {"torch": "2.13.0"}, "command": f"run smoke --out {folder.name}"}
    (folder / "env.json").write_text(json.dumps({"sessions": [session]}))
    return folder


def append(folder: Path, round: int, accuracy: float) -> None:
    line = {"round": round, "accuracy": accuracy, "timing": {"seconds": 0.5 * round}}
    run_folders.write_lines(folder, [*run_folders.lines_of(folder), line])


def write_probes(folder: Path, round: int, labels: list[list[float]], correct: list[list[float]]) -> None:
    (folder / "probes").mkdir(exist_ok=True)
    arrays = {"labels_by_class": np.array(labels, np.float32), "correct_by_class": np.array(correct, np.float32)}
    sealing.write_probes(folder / "probes" / f"{round:06d}.safetensors", round, arrays)
