"""What scripts and notebooks need, in one place: settings to runs, runs to numbers and models."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .config import Config, expand, only_run, override, read_toml
from .console import Quiet
from .data.sources import Dataset
from .errors import UserError
from .inference.trained import Trained, load_trained
from .report.runs import Run, find_runs
from .runner.conduct import Listener
from .runner.grid import Cell, check_settings, run_logged

Source = str | Path | Mapping[str, Any]  # a preset, a TOML file, or tables like those of one


def experiment(source: Source, *settings: str) -> Config:
    """The settings of one run; `settings` are those of `--set`. Bad ones are a UserError, before any compute."""
    return checked({"": only_run(tables_of(source, settings))})[""]


def experiments(source: Source, *settings: str) -> dict[str, Config]:
    """The settings of every run of a grid, by its name."""
    return checked(dict(expand(tables_of(source, settings))))


def tables_of(source: Source, settings: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(source, str | Path | Mapping) or not all(isinstance(setting, str) for setting in settings):
        raise UserError(
            'expected a preset, a file or tables, then texts: fssl.experiment("smoke", "seed=7", "train.lr=0.1")'
        )
    return override(dict(source) if isinstance(source, Mapping) else read_toml(str(source)), list(settings))


def checked(found: dict[str, Config]) -> dict[str, Config]:
    check_settings([Cell(name, config, Path(name)) for name, config in found.items()], debug=False)
    return found


def run(
    config: Config,
    out: str | Path,
    *,
    resume: bool = False,
    dataset: Dataset | None = None,
    listener: Listener | None = None,
) -> dict[str, Any]:
    """Run or resume, into a folder; returns what is in its summary.json. A listener is told of every round."""
    if not isinstance(config, Config):
        raise UserError(
            f"fssl.run takes the settings of one run, as fssl.experiment makes them, and got {config!r:.60}"
        )
    return run_logged(config, Path(out), listener or Quiet(), resume, dataset=dataset)


def runs(*folders: str | Path) -> list[Run]:
    """Every run with a finished round at or below these folders; each has `config`, `lines`, `curve` and `result`."""
    if not folders:
        raise UserError('fssl.runs: which folders? For example fssl.runs("runs")')
    return find_runs(map(Path, folders)).runs


def model(folder: str | Path) -> Trained:
    """The final model of a finished run; it has `probabilities(images)` and `classes`."""
    return load_trained(Path(folder))
