"""Verdicts in sentences: the leading method, its margin, and whether every seed agrees."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter

import numpy as np

from ..catalog.facts import is_bound
from .groups import comparable_settings, method_of
from .runs import Run, late, number, spread


def reach(runs: Sequence[Run]) -> int:
    """The last round that all runs have reached; who has stopped early has no more to come."""
    return min(run.reached for run in runs)


def last_rounds(runs: Iterable[Run]) -> int:
    """How many rounds a result is the mean of, at most."""
    return max(run.averaged for run in runs)


def rivals(groups: Mapping[str, Sequence[Run]]) -> list[str]:
    """Groups that can be compared, best first: no upper bound, and all as far as the one that is farthest."""
    names = [name for name, runs in groups.items() if not is_bound(runs[0].config.method.name)]
    farthest = max((reach(groups[name]) for name in names), default=0)
    return by_result({name: groups[name] for name in names if reach(groups[name]) == farthest})


def by_result(groups: Mapping[str, Sequence[Run]]) -> list[str]:
    """Names, best first."""
    return sorted(groups, key=lambda name: -mean_result(groups[name]))


def mean_result(runs: Sequence[Run]) -> float:
    return float(np.mean([run.result for run in runs]))


def verdict(groups: Mapping[str, Sequence[Run]]) -> str:
    """A sentence that names the leading method and says whether every seed agrees."""
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
    """Difference of the results: over shared seeds, or of the means if there are none."""
    pairs = seed_differences(first, second)
    return float(np.mean(pairs)) if pairs else mean_result(first) - mean_result(second)


def where(first: Sequence[Run], second: Sequence[Run]) -> str:
    shared = len(seed_differences(first, second))
    return " in the seeds that both have" if shared and shared < max(len(first), len(second)) else ""


def how_sure(difference: float, first: Sequence[Run], second: Sequence[Run]) -> str:
    """The end of a sentence on a difference: the result seed by seed."""
    pairs, shared = seed_differences(first, second), where(first, second)
    if len(pairs) > 1:
        low, high = min(pairs), max(pairs)
        is_clear = low > 0 if difference > 0 else high < 0
        end = "." if is_clear else ": not in every seed, so this does not separate them."
        return f"{shared} (seed by seed {low:+.2f} to {high:+.2f}){end}"
    return f"{shared}: a single seed is weak evidence." if pairs else ": no seed in common, so this is weak evidence."


def gains(groups: Mapping[str, Sequence[Run]]) -> list[str]:
    """What SAGE as a plug-in adds to its host, a sentence for each host that is there as well."""
    said = []
    ranked = rivals(groups)
    for name in ranked:
        host = host_group(groups[name][0], {other: groups[other] for other in ranked})
        if host and {name, host} != {*ranked[:2]}:  # of those two the verdict tells
            said.append(beside_text(name, host, groups))
    return said


def beside(name: str, groups: Mapping[str, Sequence[Run]]) -> list[str]:
    """A sentence on each other group that can be compared with the named one, if that can be compared itself."""
    ranked = rivals(groups)
    if name not in ranked:
        return []
    return [beside_text(name, other, groups) for other in ranked if other != name]


def beside_text(name: str, other: str, groups: Mapping[str, Sequence[Run]]) -> str:
    gain = margin(groups[name], groups[other])
    place = "behind" if gain < 0 else "ahead of"
    return f"{name} is {abs(gain):.2f} points {place} {other}{how_sure(gain, groups[name], groups[other])}"


def host_group(run: Run, groups: Mapping[str, Sequence[Run]]) -> str | None:
    """The group of the method that this one is a plug-in on, with the same settings."""
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
    """A sentence for each kind of group that the verdict leaves out."""
    left = [name for name in by_result(groups) if name not in rivals(groups)]
    bounds = [name for name in left if is_bound(groups[name][0].config.method.name)]
    behind = [f"{n} (round {reach(groups[n])} of {groups[n][0].config.rounds})" for n in left if n not in bounds]
    known = [f"{name} ({mean_result(groups[name]):.2f} %)" for name in bounds]
    said = [f"Not as far as the others, so not compared: {', '.join(behind)}."] if behind else []
    return said + ([f"With the true labels, an upper bound: {', '.join(known)}."] if known else [])


def seed_differences(
    first: Sequence[Run], second: Sequence[Run], result: Callable[[Run], float] = attrgetter("result")
) -> list[float]:
    """Differences between runs of the same seed."""
    other = {r.config.seed: result(r) for r in second}
    return [result(r) - other[r.config.seed] for r in first if r.config.seed in other]


def smoothed_results(groups: Mapping[str, Sequence[Run]]) -> list[str]:
    """What smoothed models reach, where runs have them."""
    results = {
        name: [x for run in runs if (x := late(run, number(f"ema_{run.measure}"))) is not None]
        for name, runs in groups.items()
    }
    texts = [f"{name} {spread(values)}" for name, values in results.items() if values]
    return [f"Smoothed models (server.ema), in percent: {'; '.join(texts)}."] if texts else []
