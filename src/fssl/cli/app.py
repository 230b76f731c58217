"""The `fssl` command: parse, build a configuration, call one function per command."""

import json
import os
import re
import signal
import sys
import traceback
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from ..errors import ProblemsError, RunError, UserError, complain, unknown
from ..system.machine import check_file, handled
from .deploy import app as deploy

app = typer.Typer(
    help="Federated semi-supervised learning: run, compare and extend methods such as SAGE.\n\n"
    "Start with `fssl run smoke`, then `fssl show runs/smoke`; `fssl presets` lists what is ready to run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.add_typer(deploy, name="deploy")
console = Console()
INTERRUPTED = 130  # exit code after Ctrl-C, or SIGTERM, which schedulers send

Sets = Annotated[
    list[str] | None, typer.Option("--set", help="Change a setting, e.g. --set train.lr=0.05 (repeatable).")
]


def show_version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        console.print(f"fssl {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


@app.command()
def run(
    config: Annotated[str, typer.Argument(help="A preset (see `fssl presets`), a TOML file or a run folder.")],
    settings: Sets = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: the preset's name below runs/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on after the newest checkpoint in --out.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Cells of a grid to run at the same time.")] = 1,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the dataset's files.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    precision: Annotated[str | None, typer.Option(help="auto, bf16 or fp32.")] = None,
    engine: Annotated[str | None, typer.Option(help="local, or flower: clients in a Ray cluster.")] = None,
    clients_per_gpu: Annotated[int | None, typer.Option(help="With flower: clients at once on each GPU.")] = None,
    ray_address: Annotated[str | None, typer.Option(help="With flower: a running Ray cluster, e.g. auto.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard events.")] = False,
    wandb: Annotated[str | None, typer.Option(help="Also log to Weights & Biases: offline or online.")] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Eager steps, each checked; a failing one is saved.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check settings and own images, list the runs.")] = False,
) -> None:
    """Train: one run, or every cell of a `[grid]`.

    A run folder holds config.toml, one line per round in rounds.jsonl, summary.json and model.safetensors. Stop
    at any time: the same command with `--resume` goes on. In a grid, finished cells are skipped.

    Examples:

    - `fssl run smoke`: seconds on a CPU

    - `fssl run demo --jobs 2`: twelve runs, two at a time

    - `fssl run paper/table2 --data-dir DATA --set method.name=sage --set seed=7`

    - `fssl run my.toml --set partition.alpha=0.1 --out runs/skewed`

    - `fssl run runs/skewed --resume`: go on with a run by its folder

    - `fssl run my.toml --set data.name=folder --data-dir sites`: your own images, see `fssl datasets --help`

    - `fssl run smoke --set method.name=my.py:my_method`: your own method; `model.name=my.py:my_net` your own network

    - `fssl run demo --engine flower`: the same runs with clients in a Ray cluster (`pip install 'fssl[flower]'`)
    """
    from ..config import expand, override, read_toml

    short = {
        "data.dir": data_dir and str(data_dir),
        "compute.device": device,
        "train.precision": precision,
        "compute.engine": engine,
        "compute.clients_per_gpu": clients_per_gpu,
        "compute.ray_address": ray_address,
        "records.tensorboard": tensorboard or None,
        "records.wandb": wandb,
    }
    given = [
        *(settings or []),
        *(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in short.items() if v is not None),
    ]
    file, base = source_of(config, resume)
    base = out or base
    named = [*expand(override(read_toml(file), given))]  # a misspelt key is told before the framework is loaded
    from ..core.images import Datasets
    from ..runner.grid import list_runs, load_images, plan_runs, run_in_turn, unfinished
    from ..runner.parallel import run_side_by_side

    datasets = Datasets()
    try:
        planned = plan_runs(console, named, base, datasets, debug)
        if dry_run:
            return list_runs(console, planned)
        waiting = unfinished(console, planned, resume)
        load_images(console, waiting, datasets)
        if jobs > 1 and len(waiting) > 1:
            failures = run_side_by_side(console, waiting, resume, debug, jobs)
        else:
            failures = run_in_turn(console, waiting, resume, debug)
    except (KeyboardInterrupt, SystemExit):  # the second if nobody reads the output any more
        complain(f"stopped; finished rounds are kept in {base}: the same command with --resume goes on")
        raise
    if failures:
        raise RunError(
            f"{failures} of {len(planned)} runs stopped early; the same command with --resume tries them again"
        )


def source_of(config: str, resume: bool) -> tuple[str, Path]:
    """Where a run's settings are, and its folder unless another is named: that of a run which goes on is its own."""
    from ..config import presets

    path = Path(config)
    if config not in presets() and (path / "config.toml").is_file():
        return str(path / "config.toml"), path
    if resume and path.name == "config.toml" and path.is_file():
        return config, path.parent
    return config, Path("runs") / Path(config.removesuffix(".toml")).name


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="A failed-step.safetensors of a run folder.")],
    pdb: Annotated[bool, typer.Option("--pdb", help="Stop in Python's debugger where the step fails.")] = False,
) -> None:
    """Take a training step again that failed, uncompiled and with every result checked: it ends in the same error.

    A run whose step fails saves the step's inputs. A step that only gives values that are not finite is found and
    saved by `fssl run --debug`.

    Examples:

    - `fssl replay runs/mine/failed-step.safetensors`: the whole traceback

    - `fssl replay runs/mine/failed-step.safetensors --pdb`: look around where it fails
    """
    from ..console import say
    from ..engines.failure import load_step
    from ..engines.failure import replay as take

    saved = load_step(file)
    say(console, f"{file}: {saved.where} of {saved.federation.config.method.name}")
    try:
        take(saved)
    except Exception as error:
        traceback.print_exc()
        if pdb:
            import pdb as debugger

            debugger.post_mortem(error.__traceback__)
        raise typer.Exit(1) from None
    say(console, "the step took place without an error")


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="One method, with plug-ins or without: its settings too.")] = None,
) -> None:
    """List the methods: where each comes from, what it keeps and sends, and what a step costs.

    `X+sage` is method X with the plug-in sage on it, for any X with pseudo-labels.

    Examples:

    - `fssl methods fedloke`: what it does, its settings, bytes and costs in full

    - `fssl run smoke --set method.name=flexmatch+sage --out runs/flex`

    - `fssl run smoke --set method.name=sage --set method.tau=0.9 --out runs/tau`
    """
    from ..catalog.tables import overview, print_method

    if name is None:
        console.print(*overview(), sep="\n")
    else:
        print_method(console, name)


@app.command()
def datasets(
    check: Annotated[Path | None, typer.Option(help="Count the images in this folder and name every problem.")] = None,
    export_digits: Annotated[Path | None, typer.Option(help="Write the digits here as PNG files of 3 sites.")] = None,
) -> None:
    """List the datasets and where each comes from, or look at a folder of your own images.

    `digits` and `synthetic` need no files. `folder` is your own images: `clients/NAME/labeled/CLASS/*`,
    `clients/NAME/unlabeled/*` and `test/CLASS/*`, PNG, JPEG or WebP of any size. `imagefolder` is a labeled dataset of
    your own, `train/CLASS/*` and `test/CLASS/*`, dealt out by [partition]. The others are read from the hub's Parquet
    files, decoded once.

    Examples:

    - `fssl run my.toml --set data.name=cifar100 --data-dir DATA`: files in DATA/cifar100/

    - `export FSSL_DATA=DATA`: the same for every command of a shell

    - `fssl datasets --export-digits sites`: three sites to try it with

    - `fssl datasets --check sites`: what they hold, and whether every image can be read

    - `fssl run smoke --set data.name=folder --set data.size=8 --set data.channels=1 --data-dir sites --out
      runs/own`

    - `fssl run my.toml --set data.name=imagefolder --set data.labels_per_class=20 --data-dir photos`
    """
    if export_digits:
        from ..console import say
        from ..data.export import export_digits as export

        export(export_digits)
        say(console, f"{export_digits}: the digits of three sites; `fssl datasets --check {export_digits}` counts them")
    if check:
        from ..report.images import print_folder

        print_folder(console, check)
    if not (check or export_digits):
        list_datasets()


def list_datasets() -> None:
    from ..console import PLAIN, say
    from ..data.cards import CARDS

    table = Table(
        "dataset", "what it is", *(Column(t, justify="right") for t in ("train", "test", "classes", "10 %")), **PLAIN
    )
    for card in CARDS.values():
        numbers = (card.num_train, card.num_test, card.num_classes, max(1, round(0.1 * card.per_class_base)))
        shown = [f"{n:,}" for n in numbers] if card.num_train else []
        table.add_row(f"[bold]{card.name}", card.title + (f" (hub: {card.hub_repo})" if card.hub_repo else ""), *shown)
    console.print(table)
    say(console, "10 %: labeled images per class at the paper's 10 %, the default.")
    say(console, "Parquet files are looked for in --data-dir, then $FSSL_DATA, then on the Hugging Face hub.")


@app.command()
def presets(
    name: Annotated[str | None, typer.Argument(help="One preset: print it, to read or to start a file from.")] = None,
) -> None:
    """List the ready-made configurations, or print one.

    Examples:

    - `fssl presets smoke > my.toml`: a file of your own to change

    - `fssl run demo --dry-run`: which runs a preset stands for

    - `fssl run demo --set seed=7 --out runs/seed7`: a setting given here leaves the grid, so one run per method
    """
    from ..config import PRESETS, expand, read_toml
    from ..config import presets as names
    from ..console import PLAIN, say

    if name and name not in names():
        raise unknown("preset", name, names())
    if name:
        return say(console, (PRESETS / f"{name}.toml").read_text().rstrip())
    table = Table(Column("preset", no_wrap=True), "what it runs", Column("runs", justify="right"), **PLAIN)
    for preset in sorted(names(), key=by_number):
        first = (PRESETS / f"{preset}.toml").read_text().splitlines()[0].lstrip("# ")
        table.add_row(f"[bold]{preset}", first, str(sum(1 for _ in expand(read_toml(preset)))))
    console.print(table)


def by_number(name: str) -> tuple[int, list[tuple[str, int]]]:
    """Those in no folder first, and `fig2` before `fig10`."""
    return name.count("/"), [(text, int(digits or 0)) for text, digits in re.findall(r"(\D+)(\d*)", name)]


@app.command()
def show(run: Annotated[Path, typer.Argument(help="A run folder.")]) -> None:
    """Show a run: its numbers and a small curve. It may still be going on.

    Example: `fssl show runs/smoke`
    """
    from ..report.show import print_run

    print_run(console, run)


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    images: Annotated[Path | None, typer.Argument(help="An image or a folder; default: the run's own test.")] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("predictions.csv"),
    data_dir: Annotated[Path | None, typer.Option(help="The dataset's folder, if it is not where it was.")] = None,
) -> None:
    """Label images with a run's final model: a CSV file of image, class and confidence, and a table.

    Every PNG, JPEG and WebP file below the folder is read as in training. If all of them lie in folders that are
    called like classes, the table says how many of each class are right.

    Examples:

    - `fssl predict runs/smoke`: the test images, class by class

    - `fssl predict runs/own photos --out labels.csv`
    """
    from ..inference.predict import predict as label

    label(console, run, images, out, data_dir)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them.")],
    by: Annotated[str, typer.Option(help="A setting, e.g. partition.alpha: a column for each of its values.")] = "",
    png: Annotated[Path | None, typer.Option(help="Also draw curves (or results, with --by) into this PNG.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Also write a line per run into this CSV file.")] = None,
    tex: Annotated[Path | None, typer.Option(help="Also write the tables into this LaTeX file (booktabs).")] = None,
    against: Annotated[str, typer.Option(help="A line of the table: how it stands beside each of the others.")] = "",
) -> None:
    """Compare runs: mean and spread over seeds, optionally a picture, CSV and LaTeX.

    Runs that differ only in their seed are repetitions of one setting. Methods are compared within a task: a
    dataset, its partition and training, a protocol. Where a method is there with SAGE and without, the gain is told.

    Examples:

    - `fssl compare runs/demo --png curves.png`: every run below a folder

    - `fssl compare runs/a runs/b`: two runs

    - `fssl compare runs --by partition.alpha --png alpha.png --tex alpha.tex`: methods × α, as papers print them

    - `fssl compare runs --against sage`: SAGE beside every other method, seed by seed
    """
    from ..report.compare import compare_runs

    compare_runs(console, runs, png, csv, tex, by, against)


@app.command()
def tables(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them.")],
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("tables"),
    table: Annotated[int | None, typer.Option(help="Also print this table, 1 to 8.")] = None,
) -> None:
    """Fill the paper's Tables 1 to 8 with runs, beside the printed numbers: Markdown, CSV and LaTeX.

    A run finds its cells by its settings, whatever its folder is called. Cells whose setting differs from the
    paper's are marked with the reason; empty ones are counted, and runs in no cell are listed.

    Examples:

    - `fssl tables runs`: every run below a folder, files in tables/

    - `fssl tables runs/paper runs/paper-600 --table 2 --out paper/tables`: and Table 2 on the screen
    """
    from ..paper.tables import make_tables

    make_tables(console, runs, out, table)


@app.command()
def figures(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them.")],
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("figures"),
    only: Annotated[list[str] | None, typer.Option(help="A figure's name, e.g. 2a (repeatable).")] = None,
) -> None:
    """Draw the paper's figures from runs: PNG, SVG and PDF, with an index of captions and sources.

    A figure is drawn as far as there are records; the index and the screen say which runs would complete it, as
    commands. Figure 16 needs no run.

    Examples:

    - `fssl figures runs`: all of them, files in figures/

    - `fssl figures runs/paper-600 --only 4 --only 15 --out paper/figures`
    """
    from ..paper.figures import make_figures

    make_figures(console, runs, out, only or [])


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("report.html"),
    watch: Annotated[bool, typer.Option("--watch", help="Serve the page on this machine while runs go on.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --watch; 0 takes a free one.")] = 0,
) -> None:
    """Write a report: one HTML file with words, tables and charts that opens anywhere, without a network.

    Results with filters, curves to zoom into, pseudo-labels by class, who held which images, hardware, and the
    command that repeats each line. `--watch` shows the same page live, to browsers of this machine only.

    Examples:

    - `fssl report runs/demo --out demo.html`

    - `fssl report runs --watch`: open the address that it prints
    """
    from ..console import say, several

    if watch:
        from ..report.page.live import watch as serve

        return serve(runs, port, lambda text: say(console, text))
    from ..report.page.write import write_page

    data = write_page(runs, out)
    say(console, f"report: {out} ({several(data['facts']['runs'], 'run')}, {out.stat().st_size / 1e6:.1f} MB)")
    if data["notes"]:
        notes, lines = several(len(data["notes"]), "note"), several(data["damaged"], "damaged line")
        complain(f"{notes} on the records, {lines} skipped: see the page")


@app.command()
def bench(
    shape: Annotated[str, typer.Option(help="demo, or paper: ResNet-8x4, 128 + 256 + 256 images.")] = "demo",
    method: Annotated[list[str] | None, typer.Option(help="Any method's name (default: sage).")] = None,
    methods: Annotated[bool, typer.Option("--methods", help="What a step of each method costs instead.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to time.")] = 3,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the numbers here.")] = None,
    settings: Sets = None,
) -> None:
    """Measure speed and memory, beside SAGE's steps in an ordinary PyTorch loop (eager fp32, Pillow, two workers).

    With `--methods`: the time of a training step of every method (or of those named by `--method`) in those of
    FixMatch-LPL, measured in turn with it. `fssl methods` shows these numbers.

    Examples:

    - `fssl bench`: half a minute on a CPU

    - `fssl bench --shape paper --method flexmatch --json bench.json`: the paper's network, better on a GPU

    - `fssl bench --methods --rounds 9 --json costs.json`: some minutes on a CPU

    - `fssl bench --methods --shape paper --method sage --method fedloke --json costs.json`: adds two of them
    """
    if json_file:  # what cannot be written is refused before the work
        check_file("--json", json_file)
        json_file.parent.mkdir(parents=True, exist_ok=True)
    if methods:
        from ..bench.methods import run_method_bench

        return run_method_bench(console, shape, method or [], rounds, json_file, settings or [])
    from ..bench.speed import run_bench

    if method and len(method) > 1:
        raise UserError("--method: several of them need --methods")
    run_bench(console, shape, method[0] if method else "sage", rounds, json_file, settings or [])


def main() -> None:
    """Entry point: bad input ends in one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without these characters is no reason to stop
    try:
        with handled(signal.SIGTERM, signal.default_int_handler):  # the same as Ctrl-C, from somebody else
            code = app(standalone_mode=False) or 0  # an exit asked for inside comes back as a number
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except (UserError, RunError) as error:
        code = error.code
        for line in str(error).split("\n") if isinstance(error, ProblemsError) else [str(error)]:
            complain(line)
    except OSError as error:
        code = 2
        complain(f"{error.filename or 'file'}: {error.strerror or error}")
    except Exception as error:
        usage = getattr(error, "format_message", None)  # of click: unknown option, missing argument
        if usage is None:
            raise
        code = 2
        # typer 0.20 repeats the guess that click 8.4 has made already
        complain(re.sub(r"( Did you mean [^?]*\?)\1$", r"\1", usage()) or "no command is given")
    if code == INTERRUPTED:
        sys.stdout.flush()
        os._exit(code)  # clients may still train in threads, and files are whole at any moment
    sys.exit(code)
