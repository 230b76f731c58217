"""Commands that train: `fssl run`, `fssl replay` and `fssl bench`."""

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import RunError, UserError, complain
from ..system.machine import check_file, check_name
from ..system.terminal import by_line
from .options import Resume, Sets, console, say

if TYPE_CHECKING:
    from ..config import Config
    from ..core.images import Datasets
    from ..runner.planned import PlannedRun

MOST_RUNS = 1000  # of a grid without --yes


def run(
    config: Annotated[str, typer.Argument(help="A preset (see `fssl presets`), a TOML file or a run folder.")],
    settings: Sets = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: the preset's name below runs/.")] = None,
    resume: Resume = False,
    jobs: Annotated[int, typer.Option(min=1, help="Runs of a grid to train at the same time.")] = 1,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the dataset's files.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    debug: Annotated[
        bool, typer.Option("--debug", help="Check every step, uncompiled; save the first that fails.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check settings and your images; list runs, costs and missing files.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help=f"Also run a grid of more than {MOST_RUNS} runs.")] = False,
) -> None:
    """Train one run, or every run of a `[grid]`.

    A run folder holds config.toml, one line per round in rounds.jsonl, summary.json and model.safetensors. Stop
    at any time: the same command with `--resume` continues. In a grid, finished runs are skipped.
    `fssl docs configuration` lists the settings, `fssl docs own-images` and `fssl docs adding-a-method` show how to use
    your own images and methods.

    Example: `fssl run smoke --set method.name=flexmatch+sage --set seed=7 --out runs/flexmatch`
    """
    given = as_settings({"data.dir": data_dir and str(data_dir), "compute.device": device})
    tables, folder = settings_of(config, resume)
    base = out or folder
    check_name("out", base)
    is_own = base == folder and Path(config) in (base, base / "config.toml")
    own = own_copies(tables, base) if resume and is_own else []
    named = runs_of(tables, [*own, *(settings or []), *given], yes)
    try:
        datasets = checked_early(named, base, debug, trains=not dry_run)
        from ..runner.parallel import run_side_by_side
        from ..runner.planned import list_runs, run_in_turn

        planned = planned_runs(named, base, datasets)
        if dry_run:
            return list_runs(console, planned, jobs)
        waiting = ready_runs(planned, datasets, resume)
        if jobs > 1 and len(waiting) > 1:
            failures = run_side_by_side(console, waiting, resume, debug, jobs)
        else:
            failures = run_in_turn(console, waiting, resume, debug)
    except (KeyboardInterrupt, SystemExit):  # SystemExit if the output's reader has closed
        complain(f"stopped; finished rounds are kept in {base}: the same command with --resume continues")
        raise
    if failures:
        raise RunError(
            f"{failures} of {len(planned)} runs stopped early; the same command with --resume tries them again"
        )


def runs_of(tables: dict[str, Any], settings: list[str], yes: bool) -> list[tuple[str, "Config"]]:
    """Return every run that the settings define; a misspelt key is reported before PyTorch is imported."""
    from ..config import check_size, expand, num_runs, override

    tables = override(tables, settings)
    if not yes:
        check_size(tables, MOST_RUNS)
    elif (number := num_runs(tables)) > MOST_RUNS:
        say(f"{number:,} runs: checking all of them before the first takes a while")
    return [*expand(tables)]


def checked_early(named: Sequence[tuple[str, "Config"]], base: Path, debug: bool, trains: bool) -> "Datasets":
    """Reject what can be rejected without PyTorch, which takes seconds to import. Return the folders of images.

    The files of a run that has begun are not looked for: it may be finished.
    """
    from ..catalog.facts import check_choice
    from ..console import RunView
    from ..core.images import Datasets, check_at_hand
    from ..records.layout import CONFIG, check_place, start_place
    from ..runner.checks import check_settings

    configs = [config for _, config in named]
    check_settings(configs, debug)
    for name, config in named:
        check_choice(config.method, config.card)
        if trains and not (base / name / CONFIG).is_file():
            check_at_hand(config)
            if place := start_place(config):
                check_place(place)
    datasets = Datasets()
    with RunView(console, "data", transient=True) as view:
        for config in configs:
            if config.card.is_folder:
                datasets.get(config, view.loading())
    return datasets


def planned_runs(named: list[tuple[str, "Config"]], base: Path, datasets: "Datasets") -> list["PlannedRun"]:
    """Prepare every run, and print warnings."""
    from ..runner.planned import notices, plan_runs

    planned = plan_runs(named, base, datasets)
    for text in notices(planned):
        say(text)
    return planned


def ready_runs(planned: list["PlannedRun"], datasets: "Datasets", resume: bool) -> list["PlannedRun"]:
    """Return the remaining runs, with their images."""
    from ..console import RunView
    from ..runner.planned import load_images, unfinished

    waiting = unfinished(console, planned, resume)
    with RunView(console, "data", transient=True) as view:
        load_images(waiting, datasets, view.loading())
    return waiting


def settings_of(config: str, resume: bool) -> tuple[dict[str, Any], Path]:
    """Return a run's settings and its default folder; a resumed run keeps its own."""
    from ..config import not_found, presets, read_toml
    from ..records.layout import CONFIG, read_settings

    path = Path(config)
    if config not in presets() and (path / CONFIG).is_file():
        return read_settings(path), path
    if resume and path.name == CONFIG and path.is_file():
        return read_settings(path.parent), path.parent
    if resume and config not in presets() and not os.path.exists(config):  # never raises, unlike Path.exists
        raise not_found(config, resumes=True)
    return read_toml(config), Path("runs") / Path(config.removesuffix(".toml")).name


def own_copies(tables: Mapping[str, Any], folder: Path) -> list[str]:
    """Return settings that make a resumed run use its own copy of `partition.file`, and of code that is missing."""
    from ..records.layout import kept_code, kept_split

    found = (tables.get(key) for key in ("partition", "method", "model"))
    part, method, model = (table if isinstance(table, dict) else {} for table in found)
    copies = {
        "partition.file": kept_split(folder, part.get("digest")),
        "method.name": kept_code(folder, method.get("name"), method.get("digest")),
        "model.name": kept_code(folder, model.get("name"), model.get("digest")),
    }
    return as_settings({key: copy and str(copy) for key, copy in copies.items()})


def as_settings(values: Mapping[str, object]) -> list[str]:
    """Return the `--set` argument for each value that is not None."""
    from ..config import toml_text

    return [f"{key}={toml_text(value)}" for key, value in values.items() if value is not None]


def replay(
    file: Annotated[Path, typer.Argument(help="A failed-step.safetensors of a run folder.")],
    pdb: Annotated[bool, typer.Option("--pdb", help="Stop in Python's debugger where the step fails.")] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Allow code and images that the file names outside its run folder.")
    ] = False,
) -> None:
    """Repeat a failed training step, uncompiled and with every result checked.

    A run whose step fails saves the step's inputs. `fssl run --debug` also saves the first step with
    a value that is not finite; its error names the operation and the line.

    Example: `fssl replay runs/mine/failed-step.safetensors --pdb`
    """
    from ..engines.failure import load_step, replay_step

    saved = load_step(file, trust)
    say(f"{file}: {saved.where} of {saved.federation.config.method.name}")
    say(f"in this step, batch.clock.step is {int(saved.draw.clock.step)}: it counts from 0")
    try:
        replay_step(saved)
    except Exception as error:
        sys.stderr.write(by_line(traceback.format_exc()))
        if pdb:
            from pdb import post_mortem  # only now: every command loads this module

            post_mortem(error.__traceback__)
        raise typer.Exit(1) from None
    say("the step finished without an error")


def bench(
    shape: Annotated[str, typer.Option(help="demo, or paper: ResNet-8x4, 128 + 256 + 256 images.")] = "demo",
    method: Annotated[list[str] | None, typer.Option(help="Any method's name (default: sage).")] = None,
    methods: Annotated[bool, typer.Option("--methods", help="Time a step of every method instead.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to time.")] = 3,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the numbers here.")] = None,
    settings: Sets = None,
) -> None:
    """Measure speed and memory, and compare with SAGE's steps in an ordinary PyTorch loop.

    The loop runs uncompiled in fp32, with Pillow and two workers. Every number has a spread, and a busy machine is
    reported.

    With `--methods`: the time of a step of every method (or of those in `--method`), divided by that of FixMatch-LPL.
    `fssl methods` shows these numbers.

    Example: `fssl bench --shape paper --method flexmatch --json bench.json`: the paper's network; use a GPU
    """
    from ..catalog.facts import registry

    if json_file:  # reject an unwritable file before the work
        check_file("json", json_file)
        json_file.parent.mkdir(parents=True, exist_ok=True)
    for name in method or []:
        registry().split(name)
    if methods:
        from ..bench.methods import run_method_bench

        return run_method_bench(console, shape, method or [], rounds, json_file, settings or [])
    if method and len(method) > 1:
        raise UserError("--method: several of them need --methods")
    from ..bench.speed import run_bench

    run_bench(console, shape, method[0] if method else "sage", rounds, json_file, settings or [])
