"""Write a run folder: create, append, resume; each file is whole at any moment."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config import Config, as_tables, renewed, to_toml
from ..errors import UserError
from ..system.files import expand_home, sweep, write_atomic
from .chain import Chain, chain_after, linked
from .checkpoint import Checkpoints, Saved
from .environment import environment
from .layout import FORMAT, SPLIT
from .rounds import summarize
from .sealing import Arrays, write_facts, write_probes
from .start_checks import check_can_take, check_no_results, check_noise, is_bare
from .store import RunFolder
from .tensors import Tensors


def check_inside(run: Path, place: Path) -> None:
    """Reject a folder of a run that is a link to elsewhere, because files there would be removed."""
    if place.is_symlink() and not place.resolve().is_relative_to(run.resolve()):
        raise UserError(f"{place} is a link that leads out of the run folder, to {place.resolve()}; remove it", "out")


class RunWriter:
    """The one process that writes into a run folder: from `open` on, until the lock is closed.

    Nothing finished is ever removed: a resumed run cuts the record back to its checkpoint, and is rejected without one.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.checkpoints = Checkpoints(folder.manifests.folder)
        self._chain: Chain | None = None  # of the record, once it is written to

    def open(self, config: Config, resume: bool, defaults: Mapping[str, Any], reads_rounds: bool = False) -> None:
        """Create the folder, or open it to resume; from here on no other process can."""
        folder, wanted = self.folder, (config, resume, defaults, reads_rounds)
        for place in (folder.manifests.folder, folder.manifests.folder / "parts", folder.probes):
            check_inside(folder.path, place)
        check_can_take(folder, *wanted)
        found = self._signature()
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            folder.lock.take()
            if self._signature() != found:  # another process has written here in the meantime
                check_can_take(folder, *wanted)
            for place in (folder.path, folder.probes):
                sweep(place)  # of any age, as no other process writes here; checkpoints remove theirs
            if not folder.config_file.is_file() or is_bare(folder):
                write_atomic(folder.config_file, to_toml(as_tables(self._as_named(config))))
        except OSError as error:
            raise UserError(f"{folder.path}: cannot be written: {error.strerror}") from None

    def _signature(self) -> list[tuple[int, int, int]]:
        """Return a signature of the files that decide whether a folder can take a run."""
        files = (self.folder.config_file, self.folder.record, self.folder.summary_file)
        found = (file.stat() for file in files if file.exists())
        return [(stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in found]

    def renew(self, config: Config) -> None:
        """Record the settings that a resumed run may change, once it is certain to continue."""
        file = self.folder.config_file
        text = to_toml(renewed(self.folder.tables(), self._as_named(config)))
        if text != file.read_text("utf-8"):
            write_atomic(file, text)

    def _as_named(self, config: Config) -> Config:
        """Return the settings with the original `partition.file`, if they name this folder's copy of it."""
        part = config.partition
        if part.file is None or Path(part.file) != self.folder.path / SPLIT:
            return config
        return replace(config, partition=replace(part, file=self.folder.config().partition.file))

    def resume_point(self, say: Callable[[str], None]) -> Saved | None:
        """Return the checkpoint to resume from, after cutting the record back to its round; None without a round."""
        folder = self.folder
        start, texts = folder.start(), folder.text().splitlines()
        if folder.config().privacy.noise:  # before any file is removed
            check_noise(folder, folder.manifests.newest_round(start.marks))
        saved = self.checkpoints.load(start.marks, say)
        check_no_results(folder, saved and saved.round)
        if len(texts) > (whole := len(start.lines)):
            say(f"rounds.jsonl is damaged after round {whole}; later rounds are computed again")
        kept = start.texts[: saved.round] if saved else []
        file = folder.rounds_file
        takes_a_line = not folder.has_rounds or (file.is_file() and file.read_bytes().endswith(b"\n"))
        if kept != texts or not takes_a_line:
            write_atomic(file, b"".join(text + b"\n" for text in kept))
        folder.packed_file.unlink(missing_ok=True)
        self._chain = chain_after(folder.run_id, kept)
        return saved

    def append(self, line: Mapping[str, Any]) -> None:
        """Append one line; it is on disk when this returns."""
        text = linked(line, self._mark)
        with self.folder.rounds_file.open("a") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        next(self._written.follow([text.rstrip().encode()]))

    @property
    def _written(self) -> Chain:
        self._chain = self._chain or chain_after(self.folder.run_id, self.folder.text().splitlines())
        return self._chain

    @property
    def _mark(self) -> str:
        assert self._written.mark, "damaged lines are cut off before a run is resumed"
        return self._written.mark

    def write_probes(self, round: int, arrays: Arrays) -> None:
        """Write all accumulators per client, for figures that need more than sums."""
        self.folder.probes.mkdir(exist_ok=True)
        write_probes(self.folder.probe_file(round), round, arrays)

    def checkpoint(self, round: int, tensors: Tensors, parts: Mapping[str, Tensors]) -> dict[str, Tensors]:
        """Save the state after the last line; return the parts that are only on disk from now on, for lack of memory.

        Round 0, the beginning, has a checkpoint too, so that every line has a start.
        """
        self.checkpoints.save(round, tensors, parts, self._mark)
        return self.checkpoints.moved()

    def write_env(self, device: Mapping[str, Any], resumed_from: int) -> None:
        """Record versions and hardware; a resumed run adds an entry."""
        entries = [*self.folder.sessions(), {"from_round": resumed_from + 1, **environment(device)}]
        write_atomic(self.folder.env_file, json.dumps({"format": FORMAT, "sessions": entries}, indent=1) + "\n")

    def keep(self, file: Path, name: str | None = None) -> None:
        """Copy a file that the run depends on into the folder, under its own name or another."""
        write_atomic(self.folder.path / (name or file.name), expand_home(file).read_bytes())

    def finish(self, headline: str, said: Mapping[str, Any]) -> dict[str, Any]:
        """Write the summary, with all of `said`, which marks the run as complete."""
        folder = self.folder
        summary = {**summarize(folder.rounds(), headline, folder.config().records.metrics), **said}
        write_facts(folder.summary_file, summary, indent=1)
        return summary
