"""Run folders with numbers chosen by hand."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from fssl.config import as_tables, override, parse, read_toml, resolved, to_toml

ENV = {"from_round": 1, "device": "cpu", "processor": "x86_64", "threads": 1, "python": "3.11.7", "revision": "abc"}


def write_run(folder: Path, accuracies: Sequence[float], *settings: str, **extra: Sequence[Any]) -> Path:
    """A finished run: one line per accuracy, with more quantities by name."""
    folder.mkdir(parents=True)
    config = resolved(parse(override(read_toml("smoke"), [f"train.rounds={len(accuracies)}", *settings])))
    (folder / "config.toml").write_text(to_toml(as_tables(config)))
    session = {**ENV, "packages": {"torch": "2.13.0"}, "command": f"run smoke --out {folder.name}"}
    (folder / "env.json").write_text(json.dumps({"sessions": [session]}))
    (folder / "summary.json").write_text('{"rounds": 1}')
    rows = [{name: values[i] for name, values in extra.items()} for i in range(len(accuracies))]
    for number, (accuracy, row) in enumerate(zip(accuracies, rows, strict=True), 1):
        append(folder, number, accuracy, **row)
    return folder


def append(folder: Path, round: int, accuracy: float, **extra: Any) -> None:
    test = {"train_norm": {"accuracy": accuracy, "loss": 1.0}}
    line = {"round": round, "accuracy": accuracy, "test": test, **extra, "timing": {"seconds": 0.5 * round}}
    with (folder / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def write_probes(folder: Path, round: int, labels: list[list[float]], correct: list[list[float]]) -> None:
    (folder / "probes").mkdir(exist_ok=True)
    arrays = {"labels_by_class": np.array(labels, np.float32), "correct_by_class": np.array(correct, np.float32)}
    save_file(arrays, folder / "probes" / f"{round:06d}.safetensors")
