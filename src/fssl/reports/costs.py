"""The cost of a run, from its record: seconds of computing, peak memory, and bytes that clients receive and send."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..records.rounds import MEMORY
from .runs import Numbers, Run, by_round, number


class Memory(NamedTuple):
    """A peak in bytes, and what it is of: a key of MEMORY."""

    kind: str
    num_bytes: int

    @property
    def gib(self) -> float:
        return self.num_bytes / 2**30


class Costs(NamedTuple):
    """The cost of a run; None for what its record lacks."""

    seconds: float
    memory: Memory | None
    traffic: float | None  # bytes of all clients in a round, both ways


def gibibytes(memory: Memory | None) -> str:
    """Return a peak as text; a dash if it was not recorded."""
    return f"{memory.gib:.2f}" if memory else "–"


def costs_of(run: Run) -> Costs:
    return Costs(sum(seconds_by_round(run).values()), peak_memory([run]), run.extras.traffic(run.lines))


def seconds_by_round(run: Run) -> dict[int, float]:
    """Return the seconds of each round. The first one after a start, which may compile, counts as the median."""
    seconds = by_round(run, number("timing", "seconds"))
    starts = [session.get("from_round") for session in run.sessions]
    usual = float(np.median([*seconds.values()])) if seconds else 0.0
    return {round: usual if round in starts else time for round, time in seconds.items()}


def peak_memory(runs: Sequence[Run]) -> Memory | None:
    """Return the largest peak among some runs, for those that recorded one kind; None without any."""
    for kind in MEMORY:
        peaks = [[*by_round(run, number("timing", kind)).values()] for run in runs]
        if known := [max(each) for each in peaks if each]:
            return Memory(kind, int(max(known)))
    return None


def spent_by_round(run: Run, what: str) -> dict[int, float] | None:
    """Return the seconds, or the gigabytes sent, from the beginning to the end of each round; None if unknown."""
    if what == "seconds":
        each = seconds_by_round(run)
        return dict(zip(each, np.cumsum([*each.values()]).tolist(), strict=True))
    sent = run.extras.traffic(run.lines)
    return None if sent is None else {line["round"]: line["round"] * sent / 1e9 for line in run.lines}


def mean_costs(runs: Sequence[Run]) -> Costs:
    """Return the mean seconds and traffic of some runs, and their largest memory."""
    every = [costs_of(run) for run in runs]
    sent: list[float] = [costs.traffic for costs in every if costs.traffic is not None]
    traffic = float(np.mean(sent)) if len(sent) == len(every) else None
    return Costs(float(np.mean([costs.seconds for costs in every])), peak_memory(runs), traffic)


def spent_numbers(runs: Sequence[Run], what: str, rounds: Sequence[int]) -> Numbers | None:
    """Return what the runs had spent on the mean by each of these rounds; None if one of them does not say."""
    curves = [spent_by_round(run, what) for run in runs]
    known = [curve for curve in curves if curve is not None]
    return np.mean([[curve[r] for r in rounds] for curve in known], 0) if len(known) == len(curves) else None
