"""A leaderboard: places that respect the spread, costs next to accuracy, and sentences on what is too close to rank."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from ..errors import shortened
from .costs import Costs, gibibytes, mean_costs, spent_numbers
from .drawing import PAGE, band, legend, make_room, render, settings, sheet
from .groups import seeds_text, styles_of
from .runs import Run, by_round, joined, late, mean_std, number, spread
from .verdicts import NOISE, by_result, gains, margin, not_compared, rivals, verdict

NEAR = ceil(10 * NOISE[1]) / 10  # points: with a single seed, methods this close share a place
SMOOTH = 5  # rounds to each side in the mean of a picture's curve
SHOWN = 8  # names in a sentence
Groups = Mapping[str, Sequence[Run]]


class Standing(NamedTuple):
    """A line of the leaderboard. `place` is 1 + the number of methods clearly ahead; None for one that has no rank."""

    name: str
    runs: Sequence[Run]
    place: int | None
    costs: Costs

    @property
    def result(self) -> str:
        return spread([run.result for run in self.runs])

    @property
    def smoothed(self) -> str:
        values = [late(run, number(f"ema_{run.measure}")) for run in self.runs]
        return spread([value for value in values if value is not None])

    @property
    def cost_texts(self) -> list[str]:
        """Return seconds, MB per round and GiB."""
        sent = self.costs.traffic
        megabytes = "–" if sent is None else f"{sent / 1e6:.1f}"
        return [f"{self.costs.seconds:.0f}", megabytes, gibibytes(self.costs.memory)]

    @property
    def seeds(self) -> str:
        return seeds_text(self.runs)


def standings(groups: Groups) -> list[Standing]:
    """Return the lines of a leaderboard, best first."""
    places = places_of(groups)
    return [Standing(name, groups[name], places.get(name), mean_costs(groups[name])) for name in by_result(groups)]


def places_of(groups: Groups) -> dict[str, int]:
    """Return the place of each method that can be compared: methods too close to rank share it."""
    names = rivals(groups)
    if len(names) < 2:
        return {}
    return {name: 1 + sum(is_ahead(groups[other], groups[name]) for other in names) for name in names}


def is_ahead(first: Sequence[Run], second: Sequence[Run]) -> bool:
    """Return whether the difference, rounded as shown, is larger than `too_close`."""
    return round(margin(first, second), 2) > round(too_close(first, second), 2)


def too_close(first: Sequence[Run], second: Sequence[Run]) -> float:
    """Return the largest difference without a rank: both spreads, or the noise if a method has a single seed."""
    spreads = [mean_std([run.result for run in runs])[1] for runs in (first, second)]
    return NEAR if None in spreads else sum(filter(None, spreads))


def words(groups: Groups) -> list[str]:
    """Return the verdicts as sentences."""
    names = rivals(groups)
    if len(names) < 2:
        return [verdict(groups), *not_compared(groups)]
    return [lead(names, groups), *gains(groups), neighbors(names, groups), *not_compared(groups)]


def lead(names: Sequence[str], groups: Groups) -> str:
    """Return a sentence on the first place: one method, or several that are too close to rank."""
    places = places_of(groups)
    first = [name for name in names if places[name] == 1] or names[:1]
    if len(first) > 1:
        said = f"{', '.join(first[:-1])} and {first[-1]} share the first place"
        return f"{said}: they differ by no more than run-to-run noise or the spread over seeds."
    ahead, behind = first[0], next(name for name in names if name != first[0])
    gap = f"{margin(groups[ahead], groups[behind]):.2f} points"
    if 1 in (len(groups[ahead]), len(groups[behind])):
        caution = f"more than the run-to-run noise of up to {NEAR} points, but one seed is weak evidence"
    else:
        caution = "more than the spread of both over seeds"
    return f"{ahead} is first, {gap} ahead of {behind}: {caution}."


def neighbors(names: Sequence[str], groups: Groups) -> str:
    """Return a sentence on neighbors that are too close to rank."""
    close = close_pairs(names, groups)
    rule = f"up to {NEAR} points apart with a single seed, or within their spreads"
    return f"Neighbors too close to rank ({rule}): {shortened(close, SHOWN) if close else 'none'}."


def close_pairs(names: Sequence[str], groups: Groups) -> list[str]:
    """Return the neighbors, best first, of which neither is clearly ahead."""
    return [f"{a} and {b}" for a, b in pairwise(names) if not is_ahead(groups[a], groups[b])]


# As a picture.


def draw(groups: Groups, formats: Sequence[str]) -> Mapping[str, bytes]:
    """Draw accuracy against the seconds spent and against the traffic, in each format."""
    names = sorted(groups)
    styles = styles_of(groups, names)
    with settings():
        figure, axes = sheet(PAGE, 3, 1, 2)
        for panel, (what, label) in zip(axes[0], AXES.items(), strict=True):
            for name in names:
                draw_line(panel, groups[name], name, styles[name], what)
            panel.set(xlabel=label, ylabel="test accuracy, %", xlim=(0, None), ylim=(0, None))
        legend(figure, 4)
        make_room(figure, 0)
        return render(figure, formats, 200)


AXES = {"seconds": "seconds of computing", "traffic": "GB sent by all clients and the server"}


def draw_line(panel: Any, runs: Sequence[Run], name: str, style: Any, what: str) -> None:
    """Draw a method's accuracy, a running mean, against what its rounds had cost."""
    rounds, values = joined(by_round(run, number(run.measure)) for run in runs)
    spent = spent_numbers(runs, what, rounds)
    if spent is None or len(rounds) < 1 + 2 * SMOOTH:
        return
    near = [slice(max(0, i - SMOOTH), i + SMOOTH + 1) for i in range(len(rounds))]
    band(panel, spent, np.stack([values[:, part].mean(1) for part in near], 1), name, style)
