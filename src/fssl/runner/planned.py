"""The runs of one command: prepared before any of them computes, then trained one after another."""

import os
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import replace
from itertools import compress
from pathlib import Path
from shutil import which
from typing import NamedTuple

from rich.console import Console
from rich.table import Column, Table

from ..config import STEPS, Compute, Config, applies, late_changes
from ..config.conditions import idle_settings
from ..console import PLAIN, RunView, print_table, result_line, say, setting_text
from ..core.device import allowed_devices, choose_device, choose_devices
from ..core.experiment import Experiment, prepare
from ..core.images import Datasets, missing_datasets
from ..data.cache import Progress
from ..errors import ProblemsError, RunError, UserError, complain, error_text, escape_unprintable
from ..methods.names import check_effect, replaced_notice
from ..records.rounds import is_over
from ..records.saved_models import Models
from ..records.start_checks import check_can_take
from ..records.store import RunFolder
from ..system.machine import cores
from .conduct import run_experiment
from .costs import cost_lines, recorded_cost


class PlannedRun(NamedTuple):
    """One run of a command: its name within the grid, its experiment and its folder."""

    name: str
    experiment: Experiment
    folder: Path

    @property
    def config(self) -> Config:
        return self.experiment.config


def plan_runs(
    named: Iterable[tuple[str, Config]],
    base: Path,
    datasets: Datasets,
) -> list[PlannedRun]:
    """Prepare every run of a command, and reject an error in any of them before the first run computes.

    Parsing has checked single settings (config.schema) and their combinations (config.rules), and `check_settings` the
    engine and the loggers. This function prepares each run (`prepare`), and rejects settings without an effect. Then
    `unfinished` rejects unsuitable folders, and `load_images` rejects files that cannot be read.
    Folders of images are read here, because they decide some settings; other datasets are loaded later.
    """
    configs = list(named)
    for _, config in configs:
        check_compiler(config)
    runs = []
    for name, config in configs:
        dataset = datasets.get(config) if config.card.is_folder else None
        runs.append(PlannedRun(name or base.name, prepare(config, dataset), base / name))
    check_effect((config, run.experiment.method) for (_, config), run in zip(configs, runs, strict=True))
    return runs


def notices(runs: Iterable[PlannedRun]) -> Iterator[str]:
    """Yield a notice for everything about these runs that the user may not expect."""
    runs = list(runs)
    configs = [run.config for run in runs]
    if any(config.protocol == "authors" for config in configs):
        yield (
            "protocol authors: momentum passes from client to client, as in the code behind the SAGE paper's tables;"
            " only protocol = 'clean' is possible in a real federation"
        )
    if any(run.config.train.lr == 0 and not run.experiment.method.needs.own_optimizer for run in runs):
        yield "train.lr = 0: the models stay as they are"
    yield from dict.fromkeys(filter(None, map(rule_notice, runs)))
    if any(config.server.lr == 0 and not config.has_server_labels for config in configs):  # else the server trains
        yield "server.lr = 0: the global model's parameters stay as they are"
    if any(config.train.cooldown and config.train.patience for config in configs):
        yield "train.patience may end a run before the rounds of train.cooldown: its rate then never falls"
    yield from dict.fromkeys(filter(None, map(device_notice, configs)))
    replaced = (replaced_notice(run.config.method.name, run.experiment.method) for run in runs)
    yield from dict.fromkeys(filter(None, replaced))
    lenient = [run.experiment.dataset for run in runs if run.config.data.skip_bad]
    yield from dict.fromkeys(f"skipped {line}" for dataset in lenient for line in dataset.skipped)


def rule_notice(run: PlannedRun) -> str:
    """Return a notice of the optimizer settings that a method with its own update rule ignores; empty if none."""
    config = run.config
    if not run.experiment.method.needs.own_optimizer or config.has_server_labels:  # the server trains with them
        return ""
    unused = idle_settings(config, STEPS, "own")
    rule = f"method '{config.method.name}' has its own update rule, so this has no effect"
    return f"{', '.join(unused)}: {rule}" if unused else ""


def device_notice(config: Config) -> str:
    """Return a notice that names the devices used, and why others are not."""
    allowed, used = allowed_devices(config), choose_devices(config)
    if len(used) > 1:
        return f"clients are shared by {', '.join(map(str, used))}"
    if len(allowed) > 1 and config.protocol == "authors":
        return f"protocol authors: one device, {used[0]}, as each client starts with the momentum of the one before"
    return ""


def check_compiler(config: Config) -> None:
    """Reject compiling for a CPU without a compiler."""
    if (
        choose_device(config).type == "cpu"
        and config.compute.compile == "on"
        and not which(os.environ.get("CXX", "g++"))
    ):
        raise UserError("compute.compile = 'on': a CPU needs a C++ compiler (g++ or $CXX); install one, or use 'off'")


def unfinished(console: Console, runs: list[PlannedRun], resume: bool) -> list[PlannedRun]:
    """Return the remaining runs; in a grid, or with --resume, skip finished ones."""
    done = [is_done(run, resume or len(runs) > 1, resume) for run in runs]
    if resume and len(runs) == 1 and not RunFolder(runs[0].folder).config_file.is_file():
        say(console, f"{runs[0].folder}: nothing to resume; starting from round 1")
    for run in compress(runs, done):
        say(console, f"{run.folder}: finished already{stopped_text(run)}{apply_late_changes(run, resume)}")
    return [run for run, is_finished in zip(runs, done, strict=True) if not is_finished]


def is_done(run: PlannedRun, may_skip: bool, resume: bool) -> bool:
    """Return whether a run is finished; reject an unsuitable folder before any compute."""
    stored = RunFolder(run.folder)
    summary = stored.summary()
    done = may_skip and is_over(summary, run.config)
    if resume and stored.config_file.is_file():
        run.experiment.ask_again(stored.config())
    check_can_take(stored, run.config, resume or done, run.experiment.defaults, run.experiment.reads_rounds)
    return done and len(stored.rounds()) == summary["rounds"]  # else the record is damaged


def stopped_text(run: PlannedRun) -> str:
    """Return why a run ended before its last round, and how to continue it; empty if it did not."""
    stopped = RunFolder(run.folder).summary().get("stopped")
    if not isinstance(stopped, dict):
        return ""
    return f" after round {stopped['round']}, by train.patience = {stopped['patience']}; it continues with a larger one"


def apply_late_changes(run: PlannedRun, resume: bool) -> str:
    """Update a resumed finished run with settings that may still change, such as a label; return a notice of it."""
    stored = RunFolder(run.folder)
    changes = late_changes(stored.config(), run.config)
    if not changes:
        return ""
    if not resume:
        return f"; resume it to change {' and '.join(changes)}"
    Models(stored).take_over(run.config)
    return f"; now {', '.join(f'{key} = {setting_text(value)}' for key, value in changes.items())}"


def load_images(runs: list[PlannedRun], datasets: Datasets, progress: Progress | None = None) -> None:
    """Load and divide every dataset before the first run; reject files that cannot be read."""
    for run in runs:
        run.experiment.load(datasets, progress)


def list_runs(console: Console, runs: list[PlannedRun], jobs: int = 1) -> None:
    """Print the planned runs, missing files and the cost of the first run; reject runs that cannot start."""
    waiting: list[PlannedRun] = []
    blocked, datasets = [], Datasets()
    table = Table(Column("run folder", overflow="fold"), "method", "data", "alpha", "seed", "rounds", "state", **PLAIN)
    for run in runs:
        c = run.config
        alpha = f"{c.partition.alpha:g}" if applies(c, "partition.alpha") else ""
        try:
            state = folder_state(run)
        except UserError as error:
            state = "in the way"
            blocked.append(error)
        facts = (c.method.name, c.data.name, alpha, str(c.seed), str(c.rounds), state)
        table.add_row(escape_unprintable(str(run.folder)), *facts)
        if state != "finished":
            waiting.append(run)
        if is_at_hand(c):
            run.experiment.load(datasets)
    print_table(console, table)
    for text in missing_datasets([run.config for run in waiting]):
        say(console, f"missing: {text}")
    if waiting and not blocked:
        say_costs(console, waiting, jobs, is_at_hand(waiting[0].config))
    if blocked:
        headline = f"{len(blocked)} of {len(runs)} runs cannot start:"
        raise blocked[0] if len(runs) == 1 else ProblemsError(headline, [*map(str, blocked)])


def say_costs(console: Console, runs: list[PlannedRun], jobs: int, is_loaded: bool = True) -> None:
    """Print the cost of the first run, and that of all runs if `jobs` of them train at a time."""
    workers = min(jobs, len(runs))
    first = copy(runs[0].experiment)
    if workers > 1:
        first.share = share_of(first.config, 0, workers)
    for text in cost_lines(first, is_loaded, len(runs), workers):
        say(console, text)


def share_of(config: Config, place: int, workers: int) -> Compute:
    """Return a run's share of the machine: devices, and lanes; by default as many lanes as its share of the cores.

    With several devices, each run gets some of them: whole runs on single devices are faster than divided ones.
    """
    compute, devices = config.compute, [str(device) for device in allowed_devices(config)]
    if choose_device(config).type == "cpu" and config.protocol != "authors":  # which always has one lane
        compute = replace(compute, lanes=compute.lanes or max(1, cores() // workers))
    if workers > 1 and len(devices) > 1 and compute.engine == "local":
        compute = replace(compute, devices=tuple(devices[place::workers]) or (devices[place % len(devices)],))
    return compute


def is_at_hand(config: Config) -> bool:
    """Return whether a dry run loads the images; other images may have to be downloaded and decoded."""
    return config.card.is_folder or config.card.is_embedded


def folder_state(run: PlannedRun) -> str:
    """Return the state of a run's folder; reject one that holds another run or other files."""
    done = is_done(run, may_skip=True, resume=True)
    return "finished" if done else "begun" if RunFolder(run.folder).config_file.is_file() else ""


def run_in_turn(console: Console, runs: list[PlannedRun], resume: bool, debug: bool) -> int:
    """Train one run after another; return the number of failures. The error of a single run is raised."""
    failures = 0
    for i, run in enumerate(runs, 1):
        title = run.name if len(runs) == 1 else f"[{i}/{len(runs)}] {run.name}"
        try:
            with RunView(console, title) as view:
                for text in costs_of(run, resume):
                    view.say(text)
                # A copy: its data is freed before the next run of the grid.
                summary = run_experiment(copy(run.experiment), run.folder, view, resume, debug)
        except Exception as error:  # a failure must not stop the other runs
            if len(runs) == 1:
                raise
            complain(failure(run.name, error))
            failures += 1
        else:
            say(console, result_line(run.folder, summary))
    return failures


def costs_of(run: PlannedRun, resume: bool) -> list[str]:
    """Return the cost of a run as lines; a resumed run uses its recorded times instead of measuring a step."""
    lines = RunFolder(run.folder).rounds() if resume else []
    return recorded_cost(run.config, lines) if lines else cost_lines(run.experiment)


def failure(name: str, error: BaseException) -> str:
    """Return which run failed and why, with the type of an unexpected error."""
    return f"{name}: {error if isinstance(error, UserError | RunError) else error_text(error)}"
