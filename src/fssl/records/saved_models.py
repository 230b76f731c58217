"""The models of a run: files that name the run and the round they are of, and checkpoints that are newer."""

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
    """A run's own model, and beside it those with names: the plain one and the smoothed one, and the best one."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def named(self, name: str) -> Path:
        """The file of one of several models."""
        return self.folder.path / f"model-{name}.safetensors"

    def write(self, models: Mapping[str, Tensors], ship: str, round: int, facts: Mapping[str, Any]) -> None:
        """Write the models of the last round with facts about them.

        Of several, each has a file with its name, and `ship` is the name of the run's own.
        """
        for name, tensors in models.items():
            which = {"model": name} if len(models) > 1 else {}
            data = sealed(tensors, {**self._origin(round), **facts, **which})
            for file in [self.named(name)] * len(which) + [self.folder.model_file] * (name == ship):
                write_atomic(file, data)

    def write_best(self, model: Tensors, round: int, facts: Mapping[str, Any]) -> None:
        """Write the model of the best round beside the others."""
        write_atomic(self.named(BEST), sealed(model, {**self._origin(round), **facts, "model": BEST}))

    def _origin(self, round: int) -> dict[str, Any]:
        return {"run": self.folder.run_id, "round": round}

    def read(self, file: Path | None = None) -> tuple[Tensors, dict[str, Any]]:
        """The tensors and facts of the run's own model, or of one of several, as this run last wrote it."""
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
        """Give a finished run the settings that may change even then: another of its models may become its own."""
        folder = self.folder
        try:
            folder.lock.take()
            if config.server.ship != folder.config().server.ship:
                chosen = self.named(config.server.ship)
                self.read(chosen)  # refused if it is damaged
                write_atomic(folder.model_file, chosen.read_bytes())
            RunWriter(folder).renew(config)  # last: after a kill the change is still to be seen
        except OSError as error:
            raise UserError(f"{error.filename or folder.path}: {error.strerror}") from None
        finally:
            folder.lock.close()

    @property
    def goes_on(self) -> bool:
        """Whether there are checkpoints of rounds after those of the summary: the run was prolonged."""
        held = self.folder.manifests.rounds
        return bool(held) and max(held) > self.folder.summary().get("rounds", max(held))

    def newest_state(self) -> Saved | None:
        """The state of a run that is not finished, with the best model among its parts if that is kept."""
        return Checkpoints(self.folder.manifests.folder).newest(self.folder.start().marks, f"{BEST}.")

    def check_finished(self, asked_by: str = "") -> None:
        """Refuse a folder that holds no run, or one that is not finished."""
        folder = self.folder
        folder.check_run(asked_by)
        if not folder.model_file.is_file():
            why = "has no model.safetensors, which a run writes when it finishes"
            raise UserError(f"{asked_by}{folder.path} {why}; resume the run", "resume")
        if self.goes_on:
            raise UserError(f"{asked_by}{folder.path} was extended and is not finished; resume the run", "resume")
