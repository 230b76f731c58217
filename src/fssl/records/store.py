"""The run folder on disk: created once, appended to, resumed, never half-read."""

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save

from ..config import Config, as_tables, first_difference, parse, read_toml, to_toml
from ..errors import UserError
from ..system.files import is_draft, read_json, sweep, write_atomic
from ..system.machine import obstacle
from .checkpoint import Checkpoints, Saved
from .environment import environment
from .rounds import summarize
from .tensors import Tensors, packed

ERRORS = "error.txt"  # the last error that nobody foresaw, with its place in the code
INSIDE_A_RUN = ("probes", "checkpoint", "tensorboard", "wandb")  # many files, and never a run


class RunFolder:
    """One run's files. `rounds.jsonl` holds a line for every round that a checkpoint may start from."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.env_file = path / "env.json"
        self.partition_file = path / "partition.json"
        self.rounds_file = path / "rounds.jsonl"
        self.model_file = path / "model.safetensors"
        self.summary_file = path / "summary.json"
        self.deployment_file = path / "deployment.json"  # of a run whose clients keep their states themselves
        self._probes = path / "probes"
        self._checkpoints = Checkpoints(path / "checkpoint")
        self._lock: IO[str] | None = None

    def probe_file(self, round: int) -> Path:
        return self._probes / f"{round:06d}.safetensors"

    def probe_files(self) -> list[Path]:
        """Existing probe files, by round."""
        return sorted(self._probes.glob("[0-9]*.safetensors"))

    def summary(self) -> dict[str, Any]:
        """The results of a finished run; empty otherwise."""
        return read_json(self.summary_file)

    @property
    def has_rounds(self) -> bool:
        return self.rounds_file.is_file() and self.rounds_file.stat().st_size > 0

    @property
    def is_bare(self) -> bool:
        """Whether a run stopped here before its first round, so that another in its place loses nothing."""
        made = (self._probes, self._checkpoints.folder, self.model_file, self.summary_file, self.deployment_file)
        return not self.has_rounds and not any(path.exists() for path in made)

    @property
    def is_finished(self) -> bool:
        return bool(self.summary())

    def check(self, config: Config, resume: bool, defaults: Mapping[str, Any]) -> None:
        """Refuse a run that this folder cannot take, without touching anything.

        `defaults` are those of the method's settings, for a record that is older than one of them.
        """
        if not self.config_file.is_file():
            return self._check_empty()
        if self.is_bare:
            return
        difference = first_difference(self.config(), config, defaults)
        if difference:
            raise UserError(f"{self.path} holds another run: {difference}; choose another --out")
        if not resume:
            raise UserError(f"{self.path} holds a run already; add --resume to go on, or choose another --out")
        done = len(self.rounds())
        if done > config.rounds:
            raise UserError(f"train.rounds = {config.rounds}: {self.path} has {done} already; expected {done} or more")

    def _check_empty(self) -> None:
        if reason := obstacle(self.path):
            raise UserError(f"{self.path} cannot be written: {reason}; choose another --out")
        if self.path.is_dir() and not all(map(left_by_a_kill, self.path.iterdir())):
            raise UserError(f"{self.path} is not empty and not a run folder; choose another --out")

    def open(self, config: Config, resume: bool, defaults: Mapping[str, Any]) -> None:
        """Create the folder, or take it up again; from here on no other process can."""
        self.check(config, resume, defaults)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            self.check(config, resume, defaults)  # again: another process may have been here since
            for folder in (self.path, self._probes):
                sweep(folder)  # of any age, as nobody else writes here; checkpoints see to theirs
            write_atomic(self.config_file, to_toml(as_tables(config)))
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror}") from None

    def _take_lock(self) -> None:
        """The lock file stays: removing it would let a third process lock a new one beside it."""
        self._lock = (self.path / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{self.path} is in use by another process") from None

    def close(self) -> None:
        if self._lock:
            self._lock.close()
            self._lock = None

    def config(self) -> Config:
        """The settings as they were recorded."""
        tables = read_toml(str(self.config_file))
        if not tables:
            raise UserError(f"{self.config_file} is empty")
        try:
            return parse(tables)
        except UserError as error:
            raise UserError(f"{self.config_file}: {error}") from None

    def rounds(self) -> list[dict[str, Any]]:
        """Every whole line, in order from round 1; what a crash left half-written ends the list."""
        lines: list[dict[str, Any]] = []
        if not self.rounds_file.is_file():
            return lines
        for text in self.rounds_file.read_bytes().splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                break
            if not isinstance(line, dict) or line.get("round") != len(lines) + 1:
                break
            lines.append(line)
        return lines

    def resume_point(self, say: Callable[[str], None]) -> Saved | None:
        """The checkpoint to go on from, with the record cut back to its round."""
        lines = self.rounds()
        oldest = self._checkpoints.oldest_round
        if oldest and oldest > len(lines):  # no crash does this: a line is written before its checkpoint
            raise UserError(
                f"{self.rounds_file} ends or is damaged after round {len(lines)}, and the oldest checkpoint is of round"
                f" {oldest}: bring the file back, or remove {self._checkpoints.folder} to start with round 1"
            )
        if self.rounds_file.is_file() and len(self.rounds_file.read_bytes().splitlines()) > len(lines):
            say(f"rounds.jsonl is damaged after round {len(lines)}; what follows is computed again")
        saved = self._checkpoints.load(len(lines), say)
        keep = lines[: saved.round] if saved else []
        write_atomic(self.rounds_file, "".join(json.dumps(line) + "\n" for line in keep))
        for path in (self.summary_file, self.model_file):  # what says that a run is finished
            path.unlink(missing_ok=True)
        return saved

    def append(self, line: Mapping[str, Any]) -> None:
        """Append one line, on disk before this returns."""
        with self.rounds_file.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def write_probes(self, round: int, arrays: Mapping[str, NDArray[np.float32]]) -> None:
        """Write all accumulators per client, for figures that need more than sums."""
        self._probes.mkdir(exist_ok=True)
        write_atomic(self.probe_file(round), save(dict(arrays)))

    def checkpoint(self, round: int, tensors: Tensors, parts: Mapping[str, Tensors]) -> None:
        self._checkpoints.save(round, tensors, parts)

    def write_env(self, device: torch.device, resumed_from: int) -> None:
        """Record versions and hardware; a resumed run adds an entry."""
        entries = read_json(self.env_file).get("sessions", [])
        entries.append({"from_round": resumed_from + 1, **environment(device)})
        write_atomic(self.env_file, json.dumps({"sessions": entries}, indent=1) + "\n")

    def keep(self, file: Path) -> None:
        """Copy a file that the run depends on into the folder."""
        write_atomic(self.path / file.name, file.read_bytes())

    def write_partition(self, labeled: NDArray[np.int64] | None, unlabeled: NDArray[np.int64] | None) -> None:
        """Write the number of images per client and class, [clients, classes] each; None if unknown."""
        known = {"labeled": labeled, "unlabeled": unlabeled}
        counts = {name: None if table is None else table.tolist() for name, table in known.items()}
        write_atomic(self.partition_file, json.dumps(counts) + "\n")

    def finish(self, tensors: Tensors, headline: str) -> dict[str, Any]:
        """Write the model, then the summary, which marks the run as complete."""
        write_atomic(self.model_file, packed(tensors))
        summary = summarize(self.rounds(), headline)
        write_atomic(self.summary_file, json.dumps(summary, indent=1) + "\n")
        return summary


def left_by_a_kill(path: Path) -> bool:
    """Whether a file may be left by a run that was killed before its first file was complete."""
    return path.name in (".lock", ERRORS) or is_draft(path)
