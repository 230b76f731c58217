"""Parallel runs: worker processes train the runs of a grid, each one run at a time."""

import signal
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from ..config import Compute, Config
from ..console import GridView, Quiet, result_line
from ..core.experiment import prepare
from ..errors import RunError, complain
from ..records.store import RunFolder
from ..system.machine import handled
from ..system.workers import spawned
from .conduct import run_experiment
from .planned import PlannedRun, failure, say_costs, share_of

KILLED = RunError("its process was killed (out of memory?); resume the run to continue from its last round")
POLL = 0.5  # seconds between readings of the records of runs in other processes


class WorkerRun(NamedTuple):
    """A run for a worker, which prepares it again, because methods and networks cannot be sent to a process."""

    name: str
    config: Config
    folder: Path


def run_side_by_side(console: Console, runs: list[PlannedRun], resume: bool, debug: bool, workers: int) -> int:
    """Train runs in worker processes; return the number of failures. A failing run does not affect the others."""
    workers = min(workers, len(runs))
    say_costs(console, runs, workers)
    waiting, failures = deque(WorkerRun(run.name, run.config, run.folder) for run in runs), 0
    idle = [(spawned(), place) for place in range(workers)]
    running: dict[Future[list[str]], tuple[WorkerRun, ProcessPoolExecutor, int]] = {}
    sizes: dict[str, int] = {}
    try:
        with GridView(console, len(runs)) as view:
            while waiting or running:
                while waiting and idle:
                    job, (pool, place) = waiting.popleft(), idle.pop()
                    with handled(signal.SIGINT, signal.SIG_IGN):  # permanently, by a process that starts here
                        share = share_of(job.config, place, workers)
                        future = pool.submit(run_quietly, job, share, resume, debug)
                    running[future] = job, pool, place
                for job, *_ in running.values():
                    show_progress(view, job, sizes)
                for future in wait(running, POLL, FIRST_COMPLETED).done:
                    job, pool, place = running.pop(future)
                    error = future.exception()
                    idle.append((spawned() if isinstance(error, BrokenProcessPool) else pool, place))
                    show_progress(view, job, sizes)
                    view.ended(job.name, [] if error else future.result())
                    if error is not None:
                        complain(failure(job.name, KILLED if isinstance(error, BrokenProcessPool) else error))
                        failures += 1
    finally:
        stop([pool for pool, _ in idle], [pool for _, pool, _ in running.values()])
    return failures


def show_progress(view: GridView, job: WorkerRun, sizes: dict[str, int]) -> None:
    """Show a run's progress from its records, reading them again only if their size has changed."""
    folder = RunFolder(job.folder)
    size = folder.record.stat().st_size if folder.record.is_file() else 0
    if sizes.get(job.name) != size:
        sizes[job.name] = size
        view.running(job.name, job.config.rounds, folder.rounds(), job.config.records.metrics)


def stop(idle: list[ProcessPoolExecutor], busy: list[ProcessPoolExecutor]) -> None:
    """Let idle workers end, and stop busy ones at once; their files are complete at any moment."""
    for pool in idle:
        pool.shutdown()
    for process in active_children():
        process.terminate()
    for pool in busy:
        pool.shutdown()


def run_quietly(job: WorkerRun, share: Compute, resume: bool, debug: bool) -> list[str]:
    """Train one run in a worker; return its messages and its outcome."""
    view, experiment = Quiet(), prepare(job.config)
    experiment.share = share
    summary = run_experiment(experiment, job.folder, view, resume, debug)
    return [*view.said, result_line(job.folder, summary)]
