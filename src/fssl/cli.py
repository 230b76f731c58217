"""The `fssl` command: parse, build a configuration, call one function per command."""

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from io import TextIOWrapper
from itertools import compress
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from .errors import RunError, UserError

if TYPE_CHECKING:  # commands import what they need, so that `fssl --help` is quick
    from .config import Config
    from .console import Quiet, RunView

app = typer.Typer(
    help="Federated semi-supervised learning: run, compare and extend methods such as SAGE.\n\n"
    "Start with `fssl run smoke`, then `fssl show runs/smoke`; `fssl presets` lists what is ready to run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
console = Console()
INTERRUPTED = 130  # exit code after Ctrl-C
POLL = 0.5  # seconds between looks at the records of runs in other processes

Sets = Annotated[
    list[str] | None, typer.Option("--set", help="Change a setting, e.g. --set train.lr=0.05 (repeatable).")
]


class Cell(NamedTuple):
    """One run of a command: its name within the grid, its settings and its folder."""

    name: str
    config: "Config"
    folder: Path


@app.command()
def run(
    config: Annotated[str, typer.Argument(help="A preset (see `fssl presets`) or a TOML file.")],
    settings: Sets = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: the preset's name below runs/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on after the newest checkpoint in --out.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Cells of a grid to run at the same time.")] = 1,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the dataset's Parquet files.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    precision: Annotated[str | None, typer.Option(help="auto, bf16 or fp32.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard events.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Eager steps, each checked; a failing one is saved.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the settings and list the runs.")] = False,
) -> None:
    """Train: one run, or every cell of a `[grid]`.

    A run folder holds config.toml, one line per round in rounds.jsonl, summary.json and model.safetensors. Stop
    at any time: the same command with `--resume` goes on. In a grid, finished cells are skipped.

    Examples:

    - `fssl run smoke`: seconds on a CPU

    - `fssl run demo --jobs 2`: twelve runs, two at a time

    - `fssl run paper/table2 --data-dir DATA --set method.name=sage --set seed=7`

    - `fssl run my.toml --set partition.alpha=0.1 --out runs/skewed`
    """
    from .config import expand, override, read_toml

    extra = {"data.dir": data_dir, "compute.device": device, "train.precision": precision}
    given = [*(settings or []), *(f"{k}={toml_text(v)}" for k, v in extra.items() if v is not None)]
    if tensorboard:
        given.append("records.tensorboard=true")
    base = out or Path("runs") / Path(config.removesuffix(".toml")).name
    named = expand(override(read_toml(config), given))
    cells = [Cell(name or base.name, cell, base / name) for name, cell in named]
    try:
        check_settings(cells)
        if dry_run:
            return list_cells(cells)
        waiting = unfinished(cells, resume)
        load_data(waiting)
        failures = run_all(waiting, resume, debug, jobs)
    except KeyboardInterrupt:
        complain(f"stopped; finished rounds are kept in {base}: the same command with --resume goes on")
        raise
    if failures:
        raise RunError(
            f"{failures} of {len(cells)} runs stopped early; the same command with --resume tries them again"
        )


def say(text: str) -> None:
    from .console import say as print_plain

    print_plain(console, text)


def toml_text(value: object) -> str:
    import json

    return json.dumps(str(value), ensure_ascii=False)


def check_settings(cells: list[Cell]) -> None:
    """Every cell's method, device and extras, before the first one computes."""
    from .console import summary_writer
    from .core.federation import device_of, method_of

    for cell in cells:
        method_of(cell.config)
        device, compute = device_of(cell.config), cell.config.compute
        if device.type == "cpu" and compute.compile == "on" and not which(os.environ.get("CXX", "g++")):
            raise UserError("compute.compile = 'on': a CPU needs a C++ compiler (g++ or $CXX) for it, else use 'off'")
        if cell.config.records.tensorboard:
            summary_writer()


def unfinished(cells: list[Cell], resume: bool) -> list[Cell]:
    """The cells to run; a grid, or --resume, skips those that are done."""
    done = [is_done(cell, resume or len(cells) > 1, resume) for cell in cells]
    for cell in compress(cells, done):
        say(f"{cell.folder}: finished already")
    return [cell for cell, is_finished in zip(cells, done, strict=True) if not is_finished]


def is_done(cell: Cell, may_skip: bool, resume: bool) -> bool:
    """Whether a cell is finished already; a folder that cannot take it is refused here, before any compute."""
    from .engines.run import resolve
    from .records.store import RunFolder

    stored, config = RunFolder(cell.folder), resolve(cell.config)
    done = may_skip and stored.summary().get("rounds") == config.rounds
    stored.check(config, resume or done)
    return done


def load_data(cells: list[Cell]) -> None:
    """Every dataset once before the first run: found and decoded into its cache, or refused."""
    from .console import RunView
    from .core.federation import dataset_of

    distinct = {(c.config.data.name, c.config.data.dir): c.config for c in cells}
    with RunView(console, "data", transient=True) as view:
        for config in distinct.values():
            dataset_of(config, view.loading())


def list_cells(cells: list[Cell]) -> None:
    from .records.store import RunFolder

    table = Table("run folder", "method", "data", "alpha", "seed", "rounds", "done")
    for _, c, folder in cells:
        done = "yes" if RunFolder(folder).is_finished else ""
        alpha = "" if c.partition.kind == "iid" else f"{c.partition.alpha:g}"
        table.add_row(str(folder), c.method.name, c.data.name, alpha, str(c.seed), str(c.rounds), done)
    console.print(table)


def run_all(cells: list[Cell], resume: bool, debug: bool, jobs: int) -> int:
    """The number of cells that failed; a single one passes its error on."""
    if len(cells) > 1 and jobs > 1:
        return run_side_by_side(cells, resume, debug, jobs)
    return sum(not run_in_turn(cell, resume, debug, alone=len(cells) == 1) for cell in cells)


def run_in_turn(cell: Cell, resume: bool, debug: bool, alone: bool) -> bool:
    from .console import RunView

    try:
        with RunView(console, cell.name) as view:
            text = train(cell, resume, debug, view)
    except (UserError, RunError) as error:
        if alone:
            raise
        complain(f"{cell.name}: {error}")
        return False
    say(text)
    return True


def train(cell: Cell, resume: bool, debug: bool, view: "RunView | Quiet") -> str:
    """One run; returns how it ended, in a line."""
    from .console import WithTensorboard, result_line
    from .engines.run import run_experiment

    listener = WithTensorboard(view, cell.folder) if cell.config.records.tensorboard else view
    return result_line(cell.folder, run_experiment(cell.config, cell.folder, listener, resume, debug))


def run_side_by_side(cells: list[Cell], resume: bool, debug: bool, jobs: int) -> int:
    """Cells in worker processes, each of one cell at a time; what breaks in one leaves the others alone."""
    from .console import GridView
    from .records.store import RunFolder

    jobs = min(jobs, len(cells))
    waiting, failures = deque(share_cores(cells, jobs)), 0
    idle = [worker() for _ in range(jobs)]
    running: dict[Future[list[str]], tuple[Cell, ProcessPoolExecutor]] = {}
    try:
        with GridView(console, len(cells)) as view:
            while waiting or running:
                while waiting and idle:
                    cell, pool = waiting.popleft(), idle.pop()
                    with interrupts_ignored():  # also by the process that may start here
                        future = pool.submit(train_quietly, cell, resume, debug)
                    running[future] = cell, pool
                for cell, _ in running.values():
                    view.running(cell.name, cell.config.rounds, RunFolder(cell.folder).rounds)
                for future in wait(running, POLL, FIRST_COMPLETED).done:
                    cell, pool = running.pop(future)
                    error = future.exception()
                    idle.append(worker() if isinstance(error, BrokenProcessPool) else pool)
                    view.ended(cell.name, [] if error else future.result())
                    if error:
                        failures += 1
                        complain(failure(cell, error))
    finally:
        stop([*idle, *(pool for _, pool in running.values())])
    return failures


def stop(pools: list[ProcessPoolExecutor]) -> None:
    """End workers at once, as their files are whole at any moment."""
    for process in active_children():
        process.terminate()
    for pool in pools:
        pool.shutdown()


def share_cores(cells: list[Cell], jobs: int) -> list[Cell]:
    """Cells that leave room for each other on a CPU, unless their settings say how many lanes to use."""
    from .core.federation import device_of

    lanes = max(1, len(os.sched_getaffinity(0)) // jobs)

    def shared(config: "Config") -> "Config":
        if device_of(config).type != "cpu" or config.protocol == "authors":  # which has one lane anyway
            return config
        return replace(config, compute=replace(config.compute, lanes=config.compute.lanes or lanes))

    return [cell._replace(config=shared(cell.config)) for cell in cells]


def worker() -> ProcessPoolExecutor:
    """A process of its own: forking one with threads or a GPU in it would not do."""
    return ProcessPoolExecutor(1, get_context("spawn"), follow_parent)


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """What starts meanwhile leaves Ctrl-C to this process for good."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def follow_parent() -> None:
    """A worker ends when its parent does."""
    parent = parent_process()

    def watch() -> None:
        if parent:
            parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def train_quietly(cell: Cell, resume: bool, debug: bool) -> list[str]:
    """A run in a worker: what it would have said, and how it ended."""
    from .console import Quiet

    view = Quiet()
    text = train(cell, resume, debug, view)
    return [*view.said, text]


def failure(cell: Cell, error: BaseException) -> str:
    if isinstance(error, BrokenProcessPool):
        return f"{cell.name}: its process was killed (out of memory?); --resume goes on from its last round"
    kind = "" if isinstance(error, UserError | RunError) else f"{type(error).__name__}: "
    return f"{cell.name}: {kind}{error}"


@app.command()
def methods() -> None:
    """List the methods, what each does, and its settings.

    `X+sage` is method X with the plug-in sage on it, for any X with pseudo-labels.

    Examples:

    - `fssl run smoke --set method.name=flexmatch+sage`

    - `fssl run smoke --set method.name=sage --set method.tau=0.9`
    """
    import inspect

    from .methods import METHODS, PLUGINS, settings_of

    table = Table("method", "what it does", "settings and defaults", show_lines=True)
    named = [*METHODS.items(), *((f"X+{name}", builder) for name, builder in PLUGINS.items())]
    for name, builder in named:
        about = (inspect.getdoc(builder) or "").split("\n\n")[0]
        defaults = [f"{k}={shown(p.default)}" for k, p in settings_of(builder).items()]
        table.add_row(f"[bold]{name}", about, ", ".join(defaults))
    console.print(table)
    console.print("Choose one with --set method.name=NAME and change a setting with --set method.KEY=VALUE.")


def shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@app.command()
def datasets() -> None:
    """List the datasets and where each comes from.

    `digits` and `synthetic` need no files. The others are read from the hub's Parquet files, decoded once.

    Examples:

    - `fssl run my.toml --set data.name=cifar100 --data-dir DATA`: files in DATA/cifar100/

    - `FSSL_DATA=DATA fssl run my.toml --set data.name=svhn`: the same for every command of a shell
    """
    from .data.cards import CARDS

    table = Table("dataset", "what it is", "train", "test", "classes", "10 % labels per class", "source")
    for card in CARDS.values():
        tenth = str(max(1, round(0.1 * card.per_class_base)))
        counts = (f"{card.num_train:,}", f"{card.num_test:,}", str(card.num_classes))
        table.add_row(f"[bold]{card.name}", card.title, *counts, tenth, card.hub_repo or "embedded")
    console.print(table)
    console.print("Parquet files are looked for in --data-dir, then $FSSL_DATA, then on the Hugging Face hub.")


@app.command()
def presets() -> None:
    """List the ready-made configurations.

    Examples:

    - `fssl run demo --dry-run`: which runs a preset stands for

    - `fssl run demo --set seed=7`: a setting given here leaves the grid, so one run per method
    """
    from .config import PRESETS, expand, read_toml
    from .config import presets as names

    table = Table("preset", "what it runs", "runs")
    for name in names():
        first = (PRESETS / f"{name}.toml").read_text().splitlines()[0].lstrip("# ")
        table.add_row(f"[bold]{name}", first, str(sum(1 for _ in expand(read_toml(name)))))
    console.print(table)


@app.command()
def show(run: Annotated[Path, typer.Argument(help="A run folder.")]) -> None:
    """Show a run: its settings, its numbers and a small curve. It may still be going on.

    Example: `fssl show runs/smoke`
    """
    from .compare import print_run

    print_run(console, run)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them.")],
    png: Annotated[Path | None, typer.Option(help="Also draw the curves into this PNG file.")] = None,
) -> None:
    """Compare runs: mean and spread over seeds, and optionally a picture.

    Runs that differ only in their seed are repetitions of one setting.

    Examples:

    - `fssl compare runs/demo --png curves.png`: every run below a folder

    - `fssl compare runs/a runs/b`: two runs
    """
    from .compare import compare_runs

    compare_runs(console, runs, png)


@app.command()
def bench(
    shape: Annotated[str, typer.Option(help="demo, or paper: ResNet-8x4, 128 + 256 + 256 images.")] = "demo",
    method: Annotated[str, typer.Option(help="Any method's name.")] = "sage",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to time after the warm-up.")] = 3,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the numbers here.")] = None,
    settings: Sets = None,
) -> None:
    """Measure speed and memory, beside the same work in an ordinary PyTorch loop.

    Examples:

    - `fssl bench`: half a minute on a CPU

    - `fssl bench --shape paper --method flexmatch --json bench.json`: the paper's network, better on a GPU
    """
    from .bench import run_bench

    run_bench(console, shape, method, rounds, json_file, settings or [])


def main() -> None:
    """Entry point: bad input ends in one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without these characters is no reason to stop
    try:
        code = app(standalone_mode=False) or 0  # an exit asked for inside comes back as a number
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except (UserError, RunError) as error:
        code = 2 if isinstance(error, UserError) else 1
        complain(str(error))
    except OSError as error:
        code = 2
        complain(f"{error.filename or 'file'}: {error.strerror or error}")
    except Exception as error:
        usage = getattr(error, "format_message", None)  # of click: unknown option, missing argument
        if usage is None:
            raise
        code = 2
        complain(usage() or "no command is given")
    if code == INTERRUPTED:
        sys.stdout.flush()
        os._exit(code)  # clients may still train in threads, and files are whole at any moment
    sys.exit(code)


def complain(message: str) -> None:
    """One line on the error stream, whatever the message holds."""
    sys.stderr.write(f"fssl: {' '.join(message.splitlines())}\n")
