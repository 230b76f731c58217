"""Worker processes: they leave interrupts to their parent, and end with it."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, TypeVar

from ..errors import RunError

A = TypeVar("A")
B = TypeVar("B")


def forked(workers: int) -> Any:
    """Return a pool of forked processes, or None for a single worker or where there is no fork.

    Threads do not help: an image of 32x32 spends most of its 60 microseconds in Python code, and two threads measured
    75. Spawned processes would import the caller's main module, which may be a script without a guard, and take longer
    to start than most datasets to decode.
    """
    if workers <= 1 or "fork" not in multiprocessing.get_all_start_methods():
        return nullcontext()
    return ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), end_with_parent, (os.getpid(),))


def map_pieces(
    pool: ProcessPoolExecutor | None, function: Callable[[A], B], pieces: Iterable[A], at_once: int = 1
) -> list[B]:
    """Apply a function to each piece, in order, with or without a pool."""
    try:
        return list(pool.map(function, pieces, chunksize=at_once) if pool else map(function, pieces))
    except BrokenProcessPool:
        raise RunError("a process that reads files was killed (out of memory?); try again") from None


def spawned() -> ProcessPoolExecutor:
    """Return one spawned process, which shares nothing with this one: threads and a GPU do not survive a fork."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), end_with_parent, (os.getpid(),))


class Companion(NamedTuple):
    """A forked process, and the pipe to it."""

    process: BaseProcess
    pipe: "Connection[Any, Any]"


def can_fork() -> bool:
    """Return whether a process with threads, such as one that uses torch, may fork here; on macOS it may not."""
    return sys.platform == "linux"


def companion(work: "Callable[[Connection[Any, Any]], None]") -> Companion:
    """Fork a process that shares the current memory, does its work with a pipe to this one, and ends."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_accompany, args=(work, theirs, os.getpid()), daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the process leaves them to its parent
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return Companion(process, ours)


SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _accompany(work: "Callable[[Connection[Any, Any]], None]", pipe: "Connection[Any, Any]", parent: int) -> None:
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        close_inherited_files(pipe.fileno())
        end_with_parent(parent)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        work(pipe)
        status = 0
    finally:
        os._exit(status)  # skip the parent's buffers and exit handlers


def close_inherited_files(kept: int) -> None:
    """Release all of the parent's open files but one, so that a killed parent's lock does not live on here."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (int(name) for name in os.listdir("/proc/self/fd")):
        if number > 2 and number not in (kept, nowhere):
            with suppress(OSError):  # the file of the listing itself
                os.dup2(nowhere, number, inheritable=False)  # not closed: a later close must not hit another file


def end_with_parent(parent: int) -> None:
    """End this process with its parent, which may be killed at any moment."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
