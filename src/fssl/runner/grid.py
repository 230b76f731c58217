"""The runs that one command stands for: checked before any compute, then trained one after another."""

import os
import traceback
from contextlib import closing
from itertools import compress
from pathlib import Path
from shutil import which
from typing import NamedTuple

from rich.console import Console
from rich.table import Column, Table

from ..config import Config
from ..console import PLAIN, Quiet, RunView, print_table, result_line, say
from ..core.parts import Images, check_parts, dataset_of, device_of, images_of, settled
from ..data.sources import Dataset
from ..errors import RunError, UserError, complain, described
from ..methods.names import check_effect, with_defaults
from ..records.store import ERRORS, RunFolder
from .conduct import Line, Listener, check_engine, run_experiment, written_out
from .loggers import Logged, check_loggers


class Cell(NamedTuple):
    """One run of a command: its name within the grid, its settings and its folder."""

    name: str
    config: Config
    folder: Path


def check_settings(cells: list[Cell], debug: bool) -> None:
    """Every cell's method, engine, device and extras, before the first one computes."""
    check_data_dir([cell.config for cell in cells])
    for cell in cells:
        check_parts(cell.config)
        check_engine(cell.config, debug)
        device, compute = device_of(cell.config), cell.config.compute
        if device.type == "cpu" and compute.compile == "on" and not which(os.environ.get("CXX", "g++")):
            raise UserError("compute.compile = 'on': a CPU needs a C++ compiler (g++ or $CXX) for it, else use 'off'")
        check_loggers(cell.config)
    check_effect(cell.config for cell in cells)


def check_data_dir(configs: list[Config]) -> None:
    """A folder that no run would look into: whoever gave it means other images than these."""
    given = [config.data.dir for config in configs if config.data.dir]
    if given and all(config.card.is_embedded for config in configs):
        raise UserError(
            f"data.dir = '{given[0]}': {configs[0].data.name} needs no files; leave out --data-dir,"
            " or add --set data.name=folder for images of your own"
        )


def unfinished(console: Console, cells: list[Cell], resume: bool) -> list[Cell]:
    """The cells to run; a grid, or --resume, skips those that are done."""
    done = [is_done(cell, resume or len(cells) > 1, resume) for cell in cells]
    for cell in compress(cells, done):
        say(console, f"{cell.folder}: finished already")
    return [cell for cell, is_finished in zip(cells, done, strict=True) if not is_finished]


def is_done(cell: Cell, may_skip: bool, resume: bool) -> bool:
    """Whether a cell is finished already; a folder that cannot take it is refused here, before any compute."""
    stored, config = RunFolder(cell.folder, with_defaults), written_out(cell.config)
    done = may_skip and stored.summary().get("rounds") == config.rounds
    stored.check(config, resume or done)
    return done


def load_data(console: Console, cells: list[Cell]) -> None:
    """Every dataset once before the first run: found and decoded into its cache, or refused."""
    distinct: dict[Images, list[Config]] = {}
    for cell in cells:
        distinct.setdefault(images_of(cell.config), []).append(cell.config)
    with RunView(console, "data", transient=True) as view:
        for configs in distinct.values():
            for config in configs:
                check_parts(settled(config, dataset_of(config, view.loading())))  # a method may need more clients


def list_cells(console: Console, cells: list[Cell]) -> None:
    """The runs there would be; whoever brings images of their own learns here what is wrong with them."""
    load_data(console, [cell for cell in cells if cell.config.card.is_folder])
    table = Table(Column("run folder", overflow="fold"), "method", "data", "alpha", "seed", "rounds", "state", **PLAIN)
    for cell in cells:
        _, c, folder = cell
        alpha = "" if c.partition.kind == "iid" or not c.card.is_dealt else f"{c.partition.alpha:g}"
        table.add_row(str(folder), c.method.name, c.data.name, alpha, str(c.seed), str(c.rounds), state_of(cell))
    print_table(console, table)


def state_of(cell: Cell) -> str:
    """What lies where a cell would run; `in the way` if that is another run or no run at all."""
    try:
        done = is_done(cell, may_skip=True, resume=True)
    except UserError:
        return "in the way"
    return "finished" if done else "begun" if RunFolder(cell.folder).config_file.is_file() else ""


def run_in_turn(console: Console, cells: list[Cell], resume: bool, debug: bool) -> int:
    """The number of cells that failed; a single one passes its error on."""
    alone, total = len(cells) == 1, len(cells)
    titles = [cell.name if alone else f"[{i}/{total}] {cell.name}" for i, cell in enumerate(cells, 1)]
    return sum(not ran(console, *each, resume, debug, alone) for each in zip(titles, cells, strict=True))


def ran(console: Console, title: str, cell: Cell, resume: bool, debug: bool, alone: bool) -> bool:
    try:
        with RunView(console, title) as view:
            text = train(cell, resume, debug, view)
    except Exception as error:  # what breaks in one leaves the others alone
        if alone:
            raise
        complain(failure(cell, error))
        return False
    say(console, text)
    return True


def failure(cell: Cell, error: BaseException) -> str:
    """Which run failed, and why; the kind of error, where it is not one of ours."""
    return f"{cell.name}: {error if isinstance(error, UserError | RunError) else described(error)}"


def train(cell: Cell, resume: bool, debug: bool, view: RunView | Quiet) -> str:
    """One run; returns how it ended, in a line."""
    try:
        return result_line(cell.folder, run_logged(cell.config, cell.folder, view, resume, debug))
    except (UserError, RunError):
        raise
    except Exception as error:
        if not cell.folder.is_dir():
            raise
        where = cell.folder / ERRORS
        where.write_text(traceback.format_exc())
        raise RunError(f"{described(error)} ({own_place(error, cell.config)}all of it: {where})") from error


def run_logged(
    config: Config, out: Path, listener: Listener, resume: bool, debug: bool = False, dataset: Dataset | None = None
) -> Line:
    """One run, also told to the loggers that it asks for."""
    with closing(Logged(listener, config, out)) as logged:
        return run_experiment(config, out, logged, resume, debug, dataset)


def own_place(error: Exception, config: Config) -> str:
    """The last line of somebody's own file on the way to an error, if there is one."""
    own = {str(file.resolve()) for file in config.own_files}
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in own]
    return f"{Path(places[-1].filename).name}, line {places[-1].lineno}; " if places else ""
