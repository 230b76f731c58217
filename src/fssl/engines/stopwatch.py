"""The time of a round by part."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch

_spent: dict[str, float] = defaultdict(float)


@contextmanager
def spending(part: str) -> Iterator[None]:
    """Count the time inside the context as this part of the start."""
    begin = time.perf_counter()
    try:
        yield
    finally:
        _spent[part] += time.perf_counter() - begin


def begin_run() -> None:
    """Forget the time that an earlier run of this process took to start."""
    _spent.clear()


def start_seconds() -> dict[str, float]:
    """Return the seconds that this run spent on importing the compiler, tracing, compiling and capturing."""
    return {part: round(seconds, 3) for part, seconds in _spent.items()}


class Stopwatch:
    """The seconds of a round by part. On a GPU its marks are events between kernels, so the host does not wait."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._parts: list[str] = []
        self._marks: list[Any] = [self._now()]

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def ends(self, part: str) -> None:
        """Count the time since the last mark as this part's."""
        self._parts.append(part)
        self._marks.append(self._now())

    def seconds(self) -> dict[str, float]:
        """Return the seconds by part; on a GPU call it only after the round's numbers were read."""
        found = dict.fromkeys(self._parts, 0.0)
        for part, (before, after) in zip(self._parts, pairwise(self._marks), strict=True):
            found[part] += before.elapsed_time(after) / 1000 if self._on_gpu else after - before
        return found
