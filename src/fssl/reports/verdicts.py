"""Verdicts in sentences: the leading method, its margin, and whether every seed agrees."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter

import numpy as np

from ..catalog.facts import is_bound
from .groups import comparable_settings, method_of
from .runs import Run, late, number, spread

NOISE = (0.3, 1.15)  # points by which repeated GPU runs of one seed differed, least and most
NOISE_BANDS = (f"below {NOISE[0]}", f"{NOISE[0]} to {NOISE[1]}", f"above {NOISE[1]}")
# 97.5 % quantiles of Student's t for 1 to 10 degrees of freedom.
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def against_noise(difference: float) -> str:
    """Return whether two results agree as far as repeated runs do."""
    least, most = NOISE
    apart = round(abs(difference), 2)
    if apart <= most:
        return f"agrees within the run-to-run noise of {least} to {most}"
    return f"differs: {apart - most:.2f} beyond the run-to-run noise of {least} to {most}"


def noise_band(difference: float) -> str:
    """Return where a difference lies: below the noise, within its band, or above it."""
    least, most = NOISE
    apart = round(abs(difference), 2)
    return NOISE_BANDS[(apart >= least) + (apart > most)]


def reach(runs: Sequence[Run]) -> int:
    """Return the last round that all runs have reached; a run that stopped early counts as complete."""
    return min(run.reached for run in runs)


def last_rounds(runs: Iterable[Run]) -> int:
    """Return the largest number of rounds that a result is the mean of."""
    return max(run.averaged for run in runs)


def rivals(groups: Mapping[str, Sequence[Run]]) -> list[str]:
    """Return the groups that can be compared, best first: no upper bounds, and only those that got farthest."""
    names = [name for name, runs in groups.items() if not is_bound(runs[0].config.method.name)]
    farthest = max((reach(groups[name]) for name in names), default=0)
    return by_result({name: groups[name] for name in names if reach(groups[name]) == farthest})


def by_result(groups: Mapping[str, Sequence[Run]]) -> list[str]:
    """Return the names, best first."""
    return sorted(groups, key=lambda name: -mean_result(groups[name]))


def mean_result(runs: Sequence[Run]) -> float:
    return float(np.mean([run.result for run in runs]))


def verdict(groups: Mapping[str, Sequence[Run]]) -> str:
    """Return a sentence that names the leading method and says how sure its lead is."""
    order = rivals(groups)
    if len(order) < 2:
        return "One setting only: nothing to compare." if len(groups) < 2 else "Nothing to compare yet."
    first, second = order[:2]
    lead = margin(groups[first], groups[second])
    if round(lead, 2) == 0:
        return f"{first} and {second} are level{where(groups[first], groups[second])}."
    if lead < 0:  # the better mean is that of other seeds
        first, second, lead = second, first, -lead
    return f"{first} leads {second} by {lead:.2f} points" + how_sure(lead, groups[first], groups[second])


def margin(first: Sequence[Run], second: Sequence[Run]) -> float:
    """Return the difference of the results: over shared seeds, or of the means if there are none."""
    pairs = seed_differences(first, second)
    return float(np.mean(pairs)) if pairs else mean_result(first) - mean_result(second)


def where(first: Sequence[Run], second: Sequence[Run]) -> str:
    shared = len(seed_differences(first, second))
    return " in the seeds that both have" if shared and shared < max(len(first), len(second)) else ""


def how_sure(difference: float, first: Sequence[Run], second: Sequence[Run]) -> str:
    """Return the end of a sentence on a difference: its range over seeds, its interval, and a caution if needed."""
    pairs, shared = seed_differences(first, second), where(first, second)
    if len(pairs) > 1:
        low, high = interval(pairs)
        seeds = f"seed by seed {min(pairs):+.2f} to {max(pairs):+.2f}"
        return f"{shared} ({seeds}; 95 % interval {low:+.2f} to {high:+.2f}){caution(difference, pairs)}"
    return f"{shared}: a single seed is weak evidence." if pairs else ": no seed in common, so this is weak evidence."


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the mean of two or more values, by Student's t."""
    free = len(values) - 1
    # Beyond the table: the first terms of the quantile's expansion in 1/free, right to three digits.
    t = T_QUANTILES[free - 1] if free <= len(T_QUANTILES) else 1.96 + 2.372 / free + 2.822 / free**2
    mean, half = float(np.mean(values)), t * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return mean - half, mean + half


def caution(difference: float, pairs: Sequence[float]) -> str:
    """Return what weakens a difference over seeds, or only the full stop."""
    low, high = interval(pairs)
    if not (min(pairs) > 0 if difference > 0 else max(pairs) < 0):
        return ": not in every seed, so this does not separate them."
    if len(pairs) == 2:
        return ": two seeds are weak evidence."
    return "." if low > 0 or high < 0 else ": the interval includes 0, so more seeds are needed."


def gains(groups: Mapping[str, Sequence[Run]]) -> list[str]:
    """Return a sentence on what SAGE as a plug-in adds to each host that is among the groups."""
    said = []
    ranked = rivals(groups)
    for name in ranked:
        host = host_group(groups[name][0], {other: groups[other] for other in ranked})
        if host and {name, host} != {*ranked[:2]}:  # those two are in the verdict
            said.append(difference_text(name, host, groups))
    return said


def differences(name: str, groups: Mapping[str, Sequence[Run]]) -> list[str]:
    """Return a sentence on each other group that can be compared with the named one."""
    ranked = rivals(groups)
    if name not in ranked:
        return []
    return [difference_text(name, other, groups) for other in ranked if other != name]


def difference_text(name: str, other: str, groups: Mapping[str, Sequence[Run]]) -> str:
    gain = margin(groups[name], groups[other])
    side = "behind" if gain < 0 else "ahead of"
    return f"{name} is {abs(gain):.2f} points {side} {other}{how_sure(gain, groups[name], groups[other])}"


def host_group(run: Run, groups: Mapping[str, Sequence[Run]]) -> str | None:
    """Return the group of the host method that this run's plug-in is on, with the same settings."""
    method = method_of(run)
    if not method.endswith("+sage"):
        return None
    mine = comparable_settings(run)
    hosts = {name: runs[0] for name, runs in groups.items() if method_of(runs[0]) == method[: -len("+sage")]}
    for name, host in hosts.items():
        if all(mine.get(k) == v for k, v in comparable_settings(host).items() if k != "method.name"):
            return name
    return None


def not_compared(groups: Mapping[str, Sequence[Run]]) -> list[str]:
    """Return a sentence for each kind of group that the verdict leaves out."""
    left = [name for name in by_result(groups) if name not in rivals(groups)]
    bounds = [name for name in left if is_bound(groups[name][0].config.method.name)]
    behind = [f"{n} (round {reach(groups[n])} of {groups[n][0].config.rounds})" for n in left if n not in bounds]
    known = [f"{name} ({mean_result(groups[name]):.2f} %)" for name in bounds]
    said = [f"Shorter than the others, so not compared: {', '.join(behind)}."] if behind else []
    return said + ([f"With the true labels, an upper bound: {', '.join(known)}."] if known else [])


def seed_differences(
    first: Sequence[Run], second: Sequence[Run], result: Callable[[Run], float] = attrgetter("result")
) -> list[float]:
    """Return the differences between runs of the same seed."""
    other = {r.config.seed: result(r) for r in second}
    return [result(r) - other[r.config.seed] for r in first if r.config.seed in other]


def smoothed_results(groups: Mapping[str, Sequence[Run]]) -> list[str]:
    """Return the results of smoothed models, where runs have them."""
    results = {
        name: [x for run in runs if (x := late(run, number(f"ema_{run.measure}"))) is not None]
        for name, runs in groups.items()
    }
    texts = [f"{name} {spread(values)}" for name, values in results.items() if values]
    return [f"Smoothed models (server.ema), in percent: {'; '.join(texts)}."] if texts else []
