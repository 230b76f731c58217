"""The run folder on disk: its files, and what can be read of them. `writer` writes them, `refusals` refuse."""

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
ERRORS = "error.txt"  # the last error that nobody foresaw, with its place in the code
SKIPPED = "skipped.txt"  # image files that could not be used, with `data.skip_bad`
INSIDE_A_RUN = ("probes", "checkpoint", "tensorboard", "wandb")  # many files, and never a run


class RunFolder:
    """One run's files. `rounds.jsonl` holds a line for every round that a checkpoint may start from.

    Settings, record, checkpoints and model name each other, so that what does not belong together shows.
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
        self.probes = path / "probes"

    def probe_file(self, round: int) -> Path:
        return self.probes / f"{round:06d}.safetensors"

    def probe_files(self) -> list[Path]:
        """Existing probe files, by round."""
        return sorted(self.probes.glob("[0-9]*.safetensors"))

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
    def is_finished(self) -> bool:
        """Whether the summary is of the run's last round; one that goes on keeps the last summary."""
        try:
            return bool(summary := self.summary()) and is_over(summary, self.config())
        except UserError:
            return False

    def config(self) -> Config:
        """The settings as they were recorded; those of a later version are refused."""
        tables = self.tables()
        try:
            return parse(tables)
        except UserError as error:
            raise UserError(f"{self.config_file}: {error}") from None

    def tables(self) -> dict[str, Any]:
        return read_settings(self.path)

    @property
    def run_id(self) -> str:
        """The digest of the recorded settings that a resumed run must keep."""
        return run_id(self.tables())

    def chain(self) -> Chain:
        """The chain of this run's record, at its beginning."""
        return Chain(seal(self.run_id, acceptance(self.path)))

    def rounds(self) -> list[dict[str, Any]]:
        """Every whole line, in order from round 1; what a crash left half-written ends the list."""
        return self.start().lines if self.record.is_file() else []

    def start(self) -> Start:
        """The whole lines with what checkpoints name of them; refuses a record that does not belong together."""
        start = read_start(self.run_id, self.text().splitlines())
        if start.fault and acceptance(self.path):
            raise UserError(f"{self.path}: an accepted record cannot be resumed; start again in another folder", "out")
        if start.fault:
            raise UserError(f"{self.path}: {start.fault}; restore the file, or start again in another folder", "out")
        return start

    def sessions(self) -> list[dict[str, Any]]:
        """What is recorded of each start of the run: versions, hardware, commit; empty if nothing can be read."""
        known = read_json(self.env_file).get("sessions")
        return [entry for entry in known if isinstance(entry, dict)] if isinstance(known, list) else []

    def measures(self) -> dict[str, Any]:
        """What was written of the models when the run was last finished; empty otherwise."""
        return read_facts(self.measures_file)

    def check_run(self, asked_by: str = "") -> None:
        """Refuse a folder that holds no run."""
        if not self.config_file.is_file():
            raise UserError(f"{asked_by}{self.path} is not a run folder (no config.toml); `fssl run` creates one")


class Lock:
    """A file that the process which writes into a folder holds.

    It is there from a run's first moment on, so a folder without it is not ours. It stays: removing it would let a
    third process lock a new one beside it.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / LOCK
        self._held: IO[str] | None = None

    @property
    def is_held(self) -> bool:
        """Whether it was taken here, and not given back yet."""
        return self._held is not None

    @property
    def is_in_use(self) -> bool:
        """Whether another process writes here."""
        if not self.file.is_file():
            return False
        with self.file.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def take(self) -> None:
        """Keep other processes out until `close`; refused while another one is at it."""
        file = self.file.open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise UserError(f"{self.file.parent} is in use by another process") from None
        self._held = file

    def close(self) -> None:
        """Give it back, if it was taken."""
        if self._held:
            self._held.close()
            self._held = None
