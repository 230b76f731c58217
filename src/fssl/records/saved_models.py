"""The models of a run: files with the run's ID and their round, and newer checkpoints."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config import Config
from ..errors import UserError
from ..system.files import write_atomic
from .checkpoint import Checkpoints, Saved
from .layout import BEST
from .store import RunFolder
from .tensors import Tensors, sealed, unseal
from .writer import RunWriter


class Models:
    """A run's own model, and the named ones next to it: plain, smoothed and best."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def named(self, name: str) -> Path:
        """Return the file of one of several models."""
        return self.folder.path / f"model-{name}.safetensors"

    def write(self, models: Mapping[str, Tensors], ship: str, round: int, facts: Mapping[str, Any]) -> None:
        """Write the models of the last round with facts about them.

        With several models, each has a file with its name, and `ship` names the one that is also the run's own.
        """
        for name, tensors in models.items():
            which = {"model": name} if len(models) > 1 else {}
            data = sealed(tensors, {**self._origin(round), **facts, **which})
            for file in [self.named(name)] * len(which) + [self.folder.model_file] * (name == ship):
                write_atomic(file, data)

    def write_best(self, model: Tensors, round: int, facts: Mapping[str, Any]) -> None:
        """Write the model of the best round next to the others."""
        write_atomic(self.named(BEST), sealed(model, {**self._origin(round), **facts, "model": BEST}))

    def _origin(self, round: int) -> dict[str, Any]:
        return {"run": self.folder.run_id, "round": round}

    def read(self, file: Path | None = None) -> tuple[Tensors, dict[str, Any]]:
        """Return tensors and facts of the run's own model, or of one of several, as this run last wrote it."""
        folder = self.folder
        file = file or folder.model_file
        try:
            tensors, facts = unseal(file)
        except ValueError as error:
            raise UserError(f"{file} is damaged ({error})") from None
        if facts is None:
            raise UserError(f"{file} has no checksum, so this run did not write it")
        if facts.get("run") != folder.run_id:
            raise UserError(f"{file} is from another run than {folder.config_file}, or the settings were edited")
        return tensors, facts

    def take_over(self, config: Config) -> None:
        """Update the settings that a finished run may change; another of its models may become its own."""
        folder = self.folder
        try:
            folder.lock.take()
            if config.server.ship != folder.config().server.ship:
                chosen = self.named(config.server.ship)
                self.read(chosen)  # raises if it is damaged
                write_atomic(folder.model_file, chosen.read_bytes())
            RunWriter(folder).renew(config)  # last, so that after a kill the change is still detected
        except OSError as error:
            raise UserError(f"{error.filename or folder.path}: {error.strerror}") from None
        finally:
            folder.lock.close()

    @property
    def was_extended(self) -> bool:
        """Return whether there are checkpoints after the summary's rounds: the run was extended."""
        held = self.folder.manifests.rounds
        return bool(held) and max(held) > self.folder.summary().get("rounds", max(held))

    def newest_state(self) -> Saved | None:
        """Return the state of an unfinished run, with the best model among its parts if it is kept."""
        return Checkpoints(self.folder.manifests.folder).newest(self.folder.start().marks, f"{BEST}.")

    def check_finished(self, asked_by: str = "") -> None:
        """Reject a folder without a run, or with an unfinished one."""
        folder = self.folder
        folder.check_run(asked_by)
        if not folder.model_file.is_file():
            why = "has no model.safetensors, which a run writes when it finishes"
            raise UserError(f"{asked_by}{folder.path} {why}; resume the run", "resume")
        if self.was_extended:
            raise UserError(f"{asked_by}{folder.path} was extended and is not finished; resume the run", "resume")
