"""Processes that work for this one: they leave interrupts to it, and end when it does."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from typing import Any, TypeVar

from ..errors import RunError

A = TypeVar("A")
B = TypeVar("B")


def forked(workers: int) -> Any:
    """A pool of forked processes, or None for a single worker or where there is no fork.

    Threads do not pay: an image of 32x32 spends most of its 60 microseconds in Python code, and two
    threads measured 75. Spawned processes would import the caller's main module, which may be a script
    without a guard, and take longer to start than most datasets to decode.
    """
    if workers <= 1 or "fork" not in multiprocessing.get_all_start_methods():
        return nullcontext()
    return ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), follow, (os.getpid(),))


def mapped(
    pool: ProcessPoolExecutor | None, function: Callable[[A], B], pieces: Iterable[A], at_once: int = 1
) -> list[B]:
    """Apply a function to each piece, in order, with or without a pool."""
    try:
        return list(pool.map(function, pieces, chunksize=at_once) if pool else map(function, pieces))
    except BrokenProcessPool:
        raise RunError("a process that reads files was killed (out of memory?); try again") from None


def spawned() -> ProcessPoolExecutor:
    """One spawned process, which shares nothing with this one: threads and a GPU do not survive a fork."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), follow, (os.getpid(),))


def follow(parent: int) -> None:
    """Tie this process to its parent, which may be killed at any moment."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
