"""The run folder on disk: created once, appended to, resumed, never half-read."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..config import Config, as_tables, first_difference, parse, renewed, run_id, to_toml
from ..errors import UserError, several
from ..system.files import at_home, is_draft, read_json, sweep, write_atomic
from ..system.machine import obstacle
from .accepted import acceptance, seal
from .chain import Chain, Start, chain_after, linked, read_start
from .choice import is_over, would_have_ended
from .environment import environment
from .facts import read_facts, write_facts
from .layout import CONFIG, ENVIRONMENT, FORMAT, SPLIT, read_settings
from .lock import LOCK, Lock
from .manifests import Manifests
from .packed import read_packed
from .probes import Arrays, write_probes
from .rounds import first_other_rate, summarize

if TYPE_CHECKING:
    from .checkpoint import Checkpoints, Saved
    from .tensors import Tensors

ERRORS = "error.txt"  # the last error that nobody foresaw, with its place in the code
SKIPPED = "skipped.txt"  # image files that could not be used, with `data.skip_bad`
INSIDE_A_RUN = ("probes", "checkpoint", "tensorboard", "wandb")  # many files, and never a run


class RunFolder:
    """One run's files. `rounds.jsonl` holds a line for every round that a checkpoint may start from.

    Nothing finished is ever removed: a run that goes on cuts back the record to its checkpoint, and without one it is
    refused. Settings, record, checkpoints and model name each other, so that what does not belong together shows.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / CONFIG
        self.env_file = path / ENVIRONMENT
        self.partition_file = path / "partition.json"
        self.rounds_file = path / "rounds.jsonl"
        self.packed_file = path / "rounds.json.xz"
        self.model_file = path / "model.safetensors"
        self.measures_file = path / "measures.json"
        self.summary_file = path / "summary.json"
        self.deployment_file = path / "deployment.json"  # of a run whose clients keep their states themselves
        self.lock = Lock(path)
        self.manifests = Manifests(path / "checkpoint")
        self._probes = path / "probes"
        self._chain: Chain | None = None  # of the record, while this process writes it

    @cached_property
    def checkpoints(self) -> "Checkpoints":
        """The checkpoints with their tensors. Import lazily: reading records does not need PyTorch."""
        from .checkpoint import Checkpoints

        return Checkpoints(self.manifests.folder)

    def probe_file(self, round: int) -> Path:
        return self._probes / f"{round:06d}.safetensors"

    def probe_files(self) -> list[Path]:
        """Existing probe files, by round."""
        return sorted(self._probes.glob("[0-9]*.safetensors"))

    def summary(self) -> dict[str, Any]:
        """The results of the run when it was last finished; empty otherwise."""
        return read_facts(self.summary_file)

    def partition(self) -> dict[str, Any]:
        """Images per client and class; empty if that was not recorded, or the file is damaged."""
        return read_facts(self.partition_file)

    @property
    def is_packed(self) -> bool:
        """Whether the record is packed only. Where there is a plain one too, that is newer: a resumed run wrote it."""
        return self.packed_file.is_file() and not self.rounds_file.exists()

    @property
    def record(self) -> Path:
        """The file that holds the rounds."""
        return self.packed_file if self.is_packed else self.rounds_file

    def text(self) -> bytes:
        """Return the lines of the record, whichever file holds them."""
        if self.is_packed:
            return read_packed(self.packed_file)
        return self.rounds_file.read_bytes() if self.rounds_file.is_file() else b""

    @property
    def has_rounds(self) -> bool:
        return self.record.is_file() and self.record.stat().st_size > 0

    @property
    def is_of_a_run(self) -> bool:
        """Whether a run began here; somebody may keep settings in a folder that is none."""
        return self.config_file.is_file() and (self.lock.file.exists() or self.record.exists())

    @property
    def is_bare(self) -> bool:
        """Whether a run stopped here before its first round, so that another in its place loses nothing."""
        made = (self._probes, self.model_file, self.summary_file, self.deployment_file)
        return not (self.has_rounds or self.manifests.is_begun or any(path.exists() for path in made))

    @property
    def is_finished(self) -> bool:
        """Whether the summary is of the run's last round; one that goes on keeps the last summary."""
        try:
            return bool(summary := self.summary()) and is_over(summary, self.config())
        except UserError:
            return False

    def check(self, config: Config, resume: bool, defaults: Mapping[str, Any], reads_rounds: bool = False) -> None:
        """Refuse a run that this folder cannot take, without touching anything.

        `defaults` are those of the method's settings, for a record that is older than one of them. `reads_rounds`: a
        step depends on how many rounds the run is to have.
        """
        if not self.config_file.is_file():
            return self._check_empty()
        recorded = self.config()
        if self.is_bare:
            return self._check_ours()
        difference = first_difference(recorded, config, defaults)
        if difference:
            raise UserError(f"{self.path} holds another run: {difference}; choose another folder", "out")
        if not resume:
            raise UserError(f"{self.path} holds a run already; resume it, or choose another folder", "resume", "out")
        lines = self._start().lines
        if (done := len(lines)) > config.rounds:
            raise UserError(f"train.rounds = {config.rounds}: {self.path} has {done} already; expected {done} or more")
        if reads_rounds and lines and recorded.rounds != config.rounds:
            raise UserError(
                f"train.rounds = {config.rounds}: method '{config.method.name}' reads `batch.clock.rounds`, and"
                f" {several(done, 'round')} of {self.path} had {recorded.rounds} there; choose another folder",
                "out",
            )
        if other := first_other_rate(lines, config):
            cooldown = f" with train.cooldown = {config.train.cooldown}" if config.train.cooldown else ""
            raise UserError(
                f"{self.path}: round {other} had another learning rate than train.rounds = {config.rounds}{cooldown}"
                " gives it; resume a copy from before its rate fell, or choose another folder",
                "out",
            )
        if ended := would_have_ended(lines, config):
            raise UserError(
                f"train.patience = {config.train.patience}: {self.path} has {done} rounds, and would have ended after"
                f" round {ended} with it; expected a larger one"
            )

    def _check_empty(self) -> None:
        if reason := obstacle(self.path):
            raise UserError(f"{self.path} cannot be written: {reason}; choose another folder", "out")
        if self.path.is_dir() and not all(map(left_by_a_kill, self.path.iterdir())):
            raise UserError(f"{self.path} is not empty and not a run folder; choose another folder", "out")
        if inside := next((path for path in self.path.parents if RunFolder(path).is_of_a_run), None):
            raise UserError(f"{self.path} would lie inside {inside}, which holds a run; choose another folder", "out")

    def _check_ours(self) -> None:
        """Refuse a folder with settings that no run wrote, such as one in which somebody keeps a configuration."""
        if not self.lock.file.exists():
            raise UserError(f"{self.config_file} is not of a run that began here; choose another folder", "out")

    def open(self, config: Config, resume: bool, defaults: Mapping[str, Any], reads_rounds: bool = False) -> None:
        """Create the folder, or take it up again; from here on no other process can."""
        self.check(config, resume, defaults, reads_rounds)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock.take()
            self.check(config, resume, defaults, reads_rounds)  # again: another process may have been here since
            for folder in (self.path, self._probes):
                sweep(folder)  # of any age, as nobody else writes here; checkpoints see to theirs
            if not self.config_file.is_file() or self.is_bare:
                write_atomic(self.config_file, to_toml(as_tables(self._as_named(config))))
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror}") from None

    def renew(self, config: Config) -> None:
        """Record the settings of a resumed run that may be other ones: once it is sure to go on."""
        text = to_toml(renewed(self._tables(), self._as_named(config)))
        if text != self.config_file.read_text("utf-8"):
            write_atomic(self.config_file, text)

    def _as_named(self, config: Config) -> Config:
        """The settings with the name that `partition.file` began with, where they name this folder's copy of it."""
        part = config.partition
        if part.file is None or Path(part.file) != self.path / SPLIT:
            return config
        return replace(config, partition=replace(part, file=self.config().partition.file))

    def config(self) -> Config:
        """The settings as they were recorded; those of a later version are refused."""
        tables = self._tables()
        try:
            return parse(tables)
        except UserError as error:
            raise UserError(f"{self.config_file}: {error}") from None

    def _tables(self) -> dict[str, Any]:
        return read_settings(self.path)

    @property
    def run_id(self) -> str:
        """The digest of the recorded settings that a resumed run must keep."""
        return run_id(self._tables())

    def chain(self) -> Chain:
        """The chain of this run's record, at its beginning."""
        return Chain(seal(self.run_id, acceptance(self.path)))

    def rounds(self) -> list[dict[str, Any]]:
        """Every whole line, in order from round 1; what a crash left half-written ends the list."""
        return self._start().lines if self.record.is_file() else []

    def _start(self) -> Start:
        start = read_start(self.run_id, self._texts())
        if start.fault:
            raise UserError(
                f"{self.path}: {start.fault}; bring back the file as it was, or begin anew in another folder", "out"
            )
        return start

    @property
    def marks(self) -> list[str]:
        """What checkpoints name of the record, by round from 0."""
        return self._start().marks

    def _texts(self) -> list[bytes]:
        return self.text().splitlines()

    def resume_point(self, say: Callable[[str], None]) -> "Saved | None":
        """The checkpoint to go on from, with the record cut back to its round; None if no round is there yet."""
        start, texts = self._start(), self._texts()
        whole = len(start.lines)
        if self.config().privacy.noise:  # before any file is removed
            self._check_noise(self.manifests.newest_round(start.marks))
        saved = self.checkpoints.load(start.marks, say)
        self._check_way_on(saved and saved.round, whole, len(texts))
        if len(texts) > whole:
            say(f"rounds.jsonl is damaged after round {whole}; what follows is computed again")
        kept = start.texts[: saved.round] if saved else []
        if kept != texts or not self._takes_a_line():
            write_atomic(self.rounds_file, b"".join(text + b"\n" for text in kept))
        self.packed_file.unlink(missing_ok=True)
        self._chain = chain_after(self.run_id, kept)
        return saved

    def why_stuck(self) -> str | None:
        """Why `--resume` would be refused here, in its own words; None if it would go on. Nothing is changed."""
        try:
            if self.is_bare:
                self._check_ours()
            else:
                start = self._start()
                saved = self.manifests.newest_round(start.marks)
                if self.config().privacy.noise:
                    self._check_noise(saved)
                self._check_way_on(saved, len(start.lines), len(self._texts()))
        except UserError as error:
            return str(error)
        return None

    def _check_noise(self, saved: int | None) -> None:
        """Refuse to take a round again whose model clients may have seen: its noise would be another one."""
        last = max(self.manifests.rounds, default=0)
        if saved is not None and saved < last:
            raise UserError(
                f"{self.path}: of round {last} the line or the checkpoint is damaged, and to take the round again would"
                " draw other noise, which privacy.noise does not count; bring back the files as they were, or begin"
                " anew in another folder",
                "out",
            )

    def _check_way_on(self, saved: int | None, whole: int, written: int) -> None:
        """Refuse to begin anew where an earlier run left results."""
        if saved is None and (written or self.model_file.exists() or self.summary_file.exists()):
            raise UserError(self._no_way_on(whole, written), "out")

    def _takes_a_line(self) -> bool:
        """Whether a line can be appended: the record is not packed, and its last line is whole."""
        return not self.has_rounds or (self.rounds_file.is_file() and self.rounds_file.read_bytes().endswith(b"\n"))

    def _no_way_on(self, whole: int, written: int) -> str:
        """Why a run cannot be resumed, and what its user can do."""
        held = self.manifests.rounds
        if held and whole < written and min(held) > whole:
            why = f"{self.rounds_file} is damaged after round {whole}, before the oldest checkpoint (round {min(held)})"
        elif held:
            why = f"no checkpoint in {self.manifests.folder} can be used (damaged, or of another run)"
        else:
            why = f"{self.manifests.folder} has no checkpoint"
        return f"{why}; all is left as it is: bring back the files as they were, or begin anew in another folder"

    def append(self, line: Mapping[str, Any]) -> None:
        """Append one line, on disk before this returns."""
        text = linked(line, self._mark)
        with self.rounds_file.open("a") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        next(self._written.follow([text.rstrip().encode()]))

    @property
    def _written(self) -> Chain:
        self._chain = self._chain or chain_after(self.run_id, self._texts())
        return self._chain

    @property
    def _mark(self) -> str:
        assert self._written.mark, "a damaged line is cut off before a run goes on"
        return self._written.mark

    def write_probes(self, round: int, arrays: Arrays) -> None:
        """Write all accumulators per client, for figures that need more than sums."""
        self._probes.mkdir(exist_ok=True)
        write_probes(self.probe_file(round), round, arrays)

    def checkpoint(self, round: int, tensors: "Tensors", parts: "Mapping[str, Tensors]") -> None:
        """Save the state after the last line; round 0, the beginning, has one too, so that every line has a start."""
        self.checkpoints.save(round, tensors, parts, self._mark)

    def moved_parts(self) -> "dict[str, Tensors]":
        """Parts of the last checkpoint that lie on disk alone from now on: those for which there is no room."""
        return self.checkpoints.moved()

    def write_env(self, device: Mapping[str, Any], resumed_from: int) -> None:
        """Record versions and hardware; a resumed run adds an entry."""
        entries = [*self.sessions(), {"from_round": resumed_from + 1, **environment(device)}]
        write_atomic(self.env_file, json.dumps({"format": FORMAT, "sessions": entries}, indent=1) + "\n")

    def sessions(self) -> list[dict[str, Any]]:
        """What is recorded of each start of the run: versions, hardware, commit; empty if nothing can be read."""
        known = read_json(self.env_file).get("sessions")
        return [entry for entry in known if isinstance(entry, dict)] if isinstance(known, list) else []

    def keep(self, file: Path, name: str | None = None) -> None:
        """Copy a file that the run depends on into the folder, under its own name or another."""
        write_atomic(self.path / (name or file.name), at_home(file).read_bytes())

    def write_skipped(self, lines: Sequence[str]) -> None:
        """Write which image files the run does without, and why."""
        write_atomic(self.path / SKIPPED, "".join(f"{line}\n" for line in lines))

    def write_partition(
        self,
        labeled: NDArray[np.int64] | None,
        unlabeled: NDArray[np.int64] | None,
        server: NDArray[np.int64] | None = None,
    ) -> None:
        """Write the number of images per client and class, [clients, classes] each; None if unknown.

        The server's labeled images are counted by class where it has some.
        """
        known = {"labeled": labeled, "unlabeled": unlabeled, **({} if server is None else {"server": server})}
        counts = {name: None if table is None else table.tolist() for name, table in known.items()}
        write_facts(self.partition_file, counts)

    def finish(self, headline: str, said: Mapping[str, Any]) -> dict[str, Any]:
        """Write the summary, with all that is `said` in it, which marks the run as complete."""
        summary = {**summarize(self.rounds(), headline, self.config().records.metrics), **said}
        write_facts(self.summary_file, summary, indent=1)
        return summary

    def write_measures(self, facts: Mapping[str, Any]) -> None:
        """Write what single numbers do not tell of the final models' tests."""
        write_facts(self.measures_file, facts)

    def measures(self) -> dict[str, Any]:
        """What was written of the models when the run was last finished; empty otherwise."""
        return read_facts(self.measures_file)

    def check_run(self, asked_by: str = "") -> None:
        """Refuse a folder that holds no run."""
        if not self.config_file.is_file():
            raise UserError(f"{asked_by}{self.path} is not a run folder (no config.toml); `fssl run` makes one")


def left_by_a_kill(path: Path) -> bool:
    """Whether a file may be left by a run that was killed before its first file was complete."""
    return path.name in (LOCK, ERRORS) or is_draft(path)
