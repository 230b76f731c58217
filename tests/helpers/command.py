"""The command `fssl` in this process or in another one, and what it leaves behind."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fssl.cli import app as cli

SMALL = ["--set", "train.rounds=2", "--set", "train.steps_per_round=2", "--device", "cpu"]  # of `fssl run smoke`
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])}  # also where it is not installed


def records(run: str | Path) -> list[dict[str, Any]]:
    """What a run wrote down, but for how long it took, and checks of that."""
    aside = {"timing": 0, "after": 0, "check": 0}
    return [json.loads(line) | aside for line in Path(run, "rounds.jsonl").read_text().splitlines()]


def outcome(run: str | Path) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """What must not depend on how often a run was stopped."""
    files = ("model.safetensors", "measures.json")
    return records(run), {name: Path(run, name).read_bytes() for name in files}


def start(*words: str | Path, **options: Any) -> "subprocess.Popen[str]":
    """`fssl` in a process of its own."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": ENVIRONMENT, **options}
    return subprocess.Popen([sys.executable, "-m", "fssl", *map(str, words)], text=True, **options)


class Said(NamedTuple):
    """How a command ended, and what it wrote."""

    code: object
    out: str
    err: str


Fssl = Callable[..., Said]


def exit_code(patch: pytest.MonkeyPatch, *words: object) -> object:
    """The command in this process, until it ends."""
    patch.setattr(sys, "argv", ["fssl", *map(str, words)])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    return exit.value.code
