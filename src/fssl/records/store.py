"""The run folder on disk: its files, and reading them. `writer` writes them, `start_checks` checks new runs."""

import fcntl
from pathlib import Path
from typing import IO, Any

from ..config import Config, parse, run_id
from ..errors import UserError
from ..system.files import read_json
from .accepted import acceptance, seal
from .chain import Chain, Start, read_start
from .layout import CONFIG, ENVIRONMENT, read_settings
from .manifests import Manifests
from .packed import read_packed
from .rounds import is_over
from .sealing import read_facts

LOCK = ".lock"
ERRORS = "error.txt"  # the last unexpected error, with its place in the code
SKIPPED = "skipped.txt"  # image files that were skipped, with `data.skip_bad`
INSIDE_A_RUN = ("probes", "checkpoint", "tensorboard", "wandb")  # contain many files, and never a run


class RunFolder:
    """One run's files. `rounds.jsonl` has a line for every round from which a checkpoint may start.

    Settings, record, checkpoints and model name each other, so that a mix of runs is detected.
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
        self.deployment_file = path / "deployment.json"  # of a run whose clients keep their own states
        self.lock = Lock(path)
        self.manifests = Manifests(path / "checkpoint")
        self.probes = path / "probes"

    def probe_file(self, round: int) -> Path:
        return self.probes / f"{round:06d}.safetensors"

    def probe_files(self) -> list[Path]:
        """Return existing probe files, by round."""
        return sorted(self.probes.glob("[0-9]*.safetensors"))

    def summary(self) -> dict[str, Any]:
        """Return the results of the run when it was last finished; empty otherwise."""
        return read_facts(self.summary_file)

    def partition(self) -> dict[str, Any]:
        """Return images per client and class; empty if they were not recorded, or the file is damaged."""
        return read_facts(self.partition_file)

    @property
    def is_packed(self) -> bool:
        """Return whether the record is packed only. A plain one is newer: a resumed run wrote it."""
        return self.packed_file.is_file() and not self.rounds_file.exists()

    @property
    def record(self) -> Path:
        """Return the file of the rounds."""
        return self.packed_file if self.is_packed else self.rounds_file

    def text(self) -> bytes:
        """Return the lines of the record, from the plain or the packed file."""
        if self.is_packed:
            return read_packed(self.packed_file)
        return self.rounds_file.read_bytes() if self.rounds_file.is_file() else b""

    @property
    def has_rounds(self) -> bool:
        return self.record.is_file() and self.record.stat().st_size > 0

    @property
    def is_of_a_run(self) -> bool:
        """Return whether a run started here; a folder with only settings is not a run."""
        return self.config_file.is_file() and (self.lock.file.exists() or self.record.exists())

    @property
    def is_finished(self) -> bool:
        """Return whether the summary covers the run's last round; an extended run keeps the last summary."""
        try:
            return bool(summary := self.summary()) and is_over(summary, self.config())
        except UserError:
            return False

    def config(self) -> Config:
        """Return the recorded settings; reject those of a later version."""
        tables = self.tables()
        try:
            return parse(tables)
        except UserError as error:
            raise UserError(f"{self.config_file}: {error}") from None

    def tables(self) -> dict[str, Any]:
        return read_settings(self.path)

    @property
    def run_id(self) -> str:
        """Return the digest of the recorded settings that a resumed run must keep."""
        return run_id(self.tables())

    def chain(self) -> Chain:
        """Return the chain of this run's record, at its beginning."""
        return Chain(seal(self.run_id, acceptance(self.path)))

    def rounds(self) -> list[dict[str, Any]]:
        """Return every whole line, in order from round 1, up to the first line that is incomplete."""
        return self.start().lines if self.record.is_file() else []

    def start(self) -> Start:
        """Return the whole lines with the marks that checkpoints name; reject a record with a fault."""
        start = read_start(self.run_id, self.text().splitlines())
        if start.fault and acceptance(self.path):
            raise UserError(f"{self.path}: an accepted record cannot be resumed; start again in another folder", "out")
        if start.fault:
            raise UserError(f"{self.path}: {start.fault}; restore the file, or start again in another folder", "out")
        return start

    def sessions(self) -> list[dict[str, Any]]:
        """Return the record of each start of the run: versions, hardware, commit; empty if it is unreadable."""
        known = read_json(self.env_file).get("sessions")
        return [entry for entry in known if isinstance(entry, dict)] if isinstance(known, list) else []

    def measures(self) -> dict[str, Any]:
        """Return the measures of the models when the run was last finished; empty otherwise."""
        return read_facts(self.measures_file)

    def check_run(self, asked_by: str = "") -> None:
        """Reject a folder without a run."""
        if not self.config_file.is_file():
            raise UserError(f"{asked_by}{self.path} is not a run folder (no config.toml); `fssl run` creates one")


class Lock:
    """The lock file of the process that writes into a folder.

    It exists from a run's first moment on, so a folder without it was not written by a run. It is never removed:
    otherwise a third process could lock a new one next to it.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / LOCK
        self._held: IO[str] | None = None

    @property
    def is_held(self) -> bool:
        """Return whether this object holds the lock."""
        return self._held is not None

    @property
    def is_in_use(self) -> bool:
        """Return whether another process writes here."""
        if not self.file.is_file():
            return False
        with self.file.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def take(self) -> None:
        """Keep other processes out until `close`; raise UserError if another one is active."""
        file = self.file.open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise UserError(f"{self.file.parent} is in use by another process") from None
        self._held = file

    def close(self) -> None:
        """Release the lock, if it was taken."""
        if self._held:
            self._held.close()
            self._held = None
