"""Runs side by side: cells of a grid in worker processes, each of one cell at a time."""

import signal
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import active_children

from rich.console import Console

from ..config import Config
from ..console import GridView, Quiet
from ..core.parts import device_of
from ..errors import RunError, complain
from ..records.store import RunFolder
from ..system.machine import cores, handled
from ..system.workers import spawned
from .grid import Cell, failure, train

KILLED = RunError("its process was killed (out of memory?); --resume goes on from its last round")
POLL = 0.5  # seconds between looks at the records of runs in other processes


def run_side_by_side(console: Console, cells: list[Cell], resume: bool, debug: bool, jobs: int) -> int:
    """Cells in worker processes, each of one cell at a time; what breaks in one leaves the others alone."""
    jobs = min(jobs, len(cells))
    waiting, failures = deque(share_cores(cells, jobs)), 0
    idle = [spawned() for _ in range(jobs)]
    running: dict[Future[list[str]], tuple[Cell, ProcessPoolExecutor]] = {}
    sizes: dict[str, int] = {}
    try:
        with GridView(console, len(cells)) as view:
            while waiting or running:
                while waiting and idle:
                    cell, pool = waiting.popleft(), idle.pop()
                    with handled(signal.SIGINT, signal.SIG_IGN):  # for good by a process that starts here
                        future = pool.submit(train_quietly, cell, resume, debug)
                    running[future] = cell, pool
                for cell, _ in running.values():
                    show(view, cell, sizes)
                for future in wait(running, POLL, FIRST_COMPLETED).done:
                    cell, pool = running.pop(future)
                    error = future.exception()
                    idle.append(spawned() if isinstance(error, BrokenProcessPool) else pool)
                    show(view, cell, sizes)
                    view.ended(cell.name, [] if error else future.result())
                    if error:
                        failures += 1
                        complain(failure(cell, KILLED if isinstance(error, BrokenProcessPool) else error))
    finally:
        stop(idle, [pool for _, pool in running.values()])
    return failures


def show(view: GridView, cell: Cell, sizes: dict[str, int]) -> None:
    """How far a run has come, by its records; they are read again only if their size is another one."""
    folder = RunFolder(cell.folder)
    size = folder.rounds_file.stat().st_size if folder.rounds_file.is_file() else 0
    if sizes.get(cell.name) != size:
        sizes[cell.name] = size
        view.running(cell.name, cell.config.rounds, folder.rounds())


def stop(idle: list[ProcessPoolExecutor], busy: list[ProcessPoolExecutor]) -> None:
    """End idle workers in their own way, and busy ones at once, as their files are whole at any moment."""
    for pool in idle:
        pool.shutdown()
    for process in active_children():
        process.terminate()
    for pool in busy:
        pool.shutdown()


def share_cores(cells: list[Cell], jobs: int) -> list[Cell]:
    """Cells that leave room for each other on a CPU, unless their settings say how many lanes to use."""
    lanes = max(1, cores() // jobs)

    def shared(config: Config) -> Config:
        if device_of(config).type != "cpu" or config.protocol == "authors":  # which has one lane anyway
            return config
        return replace(config, compute=replace(config.compute, lanes=config.compute.lanes or lanes))

    return [cell._replace(config=shared(cell.config)) for cell in cells]


def train_quietly(cell: Cell, resume: bool, debug: bool) -> list[str]:
    """A run in a worker: what it would have said, and how it ended."""
    view = Quiet()
    text = train(cell, resume, debug, view)
    return [*view.said, text]
