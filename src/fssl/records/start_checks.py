"""Check whether a run folder can take a run, before any file in it is touched."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config import Config, first_difference
from ..errors import UserError, several
from ..system.files import is_draft
from ..system.machine import obstacle
from .rounds import end_of_patience, first_other_rate
from .store import ERRORS, LOCK, RunFolder


def check_can_take(
    folder: RunFolder, config: Config, resume: bool, defaults: Mapping[str, Any], reads_rounds: bool = False
) -> None:
    """Reject a run that a folder cannot take, without touching anything.

    Args:
        folder: The folder for the run.
        config: Its complete settings.
        resume: Whether it may continue the folder's run.
        defaults: Defaults of the method's settings, for a record older than one of them.
        reads_rounds: Whether a step depends on the planned number of rounds.
    """
    if not folder.config_file.is_file():
        return check_empty(folder.path)
    recorded = folder.config()
    if is_bare(folder):
        return check_written_by_run(folder)
    if difference := first_difference(recorded, config, defaults):
        raise UserError(f"{folder.path} contains another run: {difference}; choose another folder", "out")
    if not resume:
        raise UserError(f"{folder.path} already contains a run; resume it, or choose another folder", "resume", "out")
    lines = folder.start().lines
    if (done := len(lines)) > config.rounds:
        finished = several(done, "round")
        raise UserError(
            f"train.rounds = {config.rounds}: {folder.path} already has {finished}; expected at least {done}"
        )
    if reads_rounds and lines and recorded.rounds != config.rounds:
        raise UserError(
            f"train.rounds = {config.rounds}: method '{config.method.name}' reads `batch.clock.rounds`, which was"
            f" {recorded.rounds} in {several(done, 'round')} of {folder.path}; choose another folder",
            "out",
        )
    if other := first_other_rate(lines, config):
        cooldown = f" with train.cooldown = {config.train.cooldown}" if config.train.cooldown else ""
        raise UserError(
            f"{folder.path}: train.rounds = {config.rounds}{cooldown} would change the learning rate of round {other},"
            " which is already trained; resume a copy from before its rate fell, or choose another folder",
            "out",
        )
    if ended := end_of_patience(lines, config):
        raise UserError(
            f"train.patience = {config.train.patience}: {folder.path} has {done} rounds, but would have stopped after"
            f" round {ended}; use a larger value"
        )


def is_bare(folder: RunFolder) -> bool:
    """Return whether a run stopped here before its first round, so that it can be replaced without loss."""
    made = (folder.probes, folder.model_file, folder.summary_file, folder.deployment_file)
    return not (folder.has_rounds or folder.manifests.is_begun or any(path.exists() for path in made))


def check_empty(folder: Path) -> None:
    """Reject a place where no run can start."""
    if reason := obstacle(folder):
        raise UserError(f"{folder} cannot be written: {reason}; choose another folder", "out")
    left_by_a_kill = (LOCK, ERRORS)  # before its first file was complete
    if folder.is_dir() and not all(path.name in left_by_a_kill or is_draft(path) for path in folder.iterdir()):
        raise UserError(f"{folder} is neither empty nor a run folder; choose another folder", "out")
    if inside := next((path for path in folder.parents if RunFolder(path).is_of_a_run), None):
        raise UserError(f"{folder} is inside the run folder {inside}; choose another folder", "out")


def check_written_by_run(folder: RunFolder) -> None:
    """Reject a folder whose settings were not written by a run, such as a user's configuration."""
    if not folder.lock.file.exists():
        raise UserError(f"{folder.config_file} was not written by a run; choose another folder", "out")


def resume_error(folder: RunFolder) -> str | None:
    """Return the error message of `--resume` here; None if it would work. Nothing is changed."""
    try:
        if is_bare(folder):
            check_written_by_run(folder)
        else:
            saved = folder.manifests.newest_round(folder.start().marks)
            check_noise(folder, saved)
            check_no_results(folder, saved)
    except UserError as error:
        return str(error)
    return None


def check_noise(folder: RunFolder, saved: int | None) -> None:
    """Reject repeating a round whose model clients may have seen: its noise would differ."""
    last = max(folder.manifests.rounds, default=0)
    if saved is not None and saved < last and folder.config().privacy.noise:
        raise UserError(
            f"{folder.path}: the line or the checkpoint of round {last} is damaged, and repeating the round would draw"
            " fresh noise, beyond the privacy budget; restore the files, or start again in another folder",
            "out",
        )


def check_no_results(folder: RunFolder, saved: int | None) -> None:
    """Reject starting again where an earlier run left results."""
    whole, written, held = len(folder.start().lines), len(folder.text().splitlines()), folder.manifests.rounds
    if saved is not None or not (written or folder.model_file.exists() or folder.summary_file.exists()):
        return
    if held and whole < written and min(held) > whole:
        why = f"{folder.rounds_file} is damaged after round {whole}, before the oldest checkpoint (round {min(held)})"
    elif held:
        why = f"no checkpoint in {folder.manifests.folder} is usable (damaged, or from another run)"
    else:
        why = f"{folder.manifests.folder} has no checkpoint"
    raise UserError(f"{why}; nothing was changed: restore the files, or start again in another folder", "out")
