"""The generated part of docs/benchmark.md: how many runs are on record, and a table of results for each track.

`python tests/test_docs.py` writes it into the page.
"""

import json
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import numpy as np

from fssl.catalog.describe import measure_sizes
from fssl.config import expand, read_toml
from fssl.core.assembly import make_net
from fssl.methods.names import build_method
from fssl.reports.groups import named_groups, seeds_text
from fssl.reports.runs import Run, commits_of, late, mean_std, number, spread
from fssl.reports.verdicts import by_result, gains, is_bound, mean_result, verdict
from helpers.results_page import RESULTS, markdown_table, runs_in

TRACKS = {  # the presets of each track that the page counts
    "A": ("track-a", "track-a-fedmatch"),
    "B": ("track-b",),
    "C": ("track-c",),
}
FOLDER = "benchmark"
NOISE = 1.2  # points by which a run with the same seed moved at most when it was repeated
HEAD = ["method", "seeds", "accuracy", "smoothed", "GPU seconds", "MB per round", "GiB", "commit"]


def planned(track: str) -> int:
    return sum(len([*expand(read_toml(f"{FOLDER}/{preset}"))]) for preset in TRACKS[track])


def on_track(track: str) -> list[Run]:
    """Return the finished runs of a track."""
    return [run for run in runs_in(*(f"{FOLDER}/{preset}" for preset in TRACKS[track])) if run.is_finished]


def write() -> str:
    done = {track: len(on_track(track)) for track in TRACKS}
    total = sum(map(planned, TRACKS))
    of_each = ", ".join(f"{number} of {planned(track)} in track {track}" for track, number in done.items())
    return "\n".join([f"{sum(done.values())} of {total} runs are on record: {of_each}.\n", *sections()])


def sections() -> Iterator[str]:
    for track in TRACKS:
        if runs := on_track(track):
            groups = named_groups(runs)
            order = by_result(groups)
            yield f"### Track {track}\n\n{markdown_table(HEAD, [row(name, groups) for name in order])}"
            yield "".join(f"- {text}\n" for text in words(groups))


def row(name: str, groups: dict[str, list[Run]]) -> list[str]:
    runs = groups[name]
    result = spread([run.result for run in runs])
    smoothed = spread([mean for run in runs if (mean := late(run, number("ema_accuracy"))) is not None])
    memory = [peaks().get(str(run.path.relative_to(RESULTS / FOLDER)), 0) / 2**30 for run in runs]
    peak = f"{max(memory):.2f}" if all(memory) else "–"
    costs = [f"{np.mean([gpu_seconds(run) for run in runs]):.0f}", f"{megabytes(runs[0]):.1f}", peak]
    shown = f"**{result}**" if name == leader(groups) else result
    return [f"`{name}`", seeds_text(runs), shown, smoothed, *costs, ", ".join(commits_of(runs))]


def rivals(groups: dict[str, list[Run]]) -> list[str]:
    """Return the methods that do not know every label, best first."""
    return [name for name in by_result(groups) if not is_bound(groups[name][0].config.method.name)]


def leader(groups: dict[str, list[Run]]) -> str:
    return rivals(groups)[0]


def words(groups: dict[str, list[Run]]) -> Iterator[str]:
    """Yield the verdicts of `fssl compare`, then which neighbors are too close to be ranked."""
    yield from (verdict(groups), *gains(groups))
    close = [f"`{a}` and `{b}`" for a, b in pairwise(rivals(groups)) if is_close(groups[a], groups[b])]
    yield f"Neighbors too close to rank, {NOISE} points or less apart: {', '.join(close) or 'none'}."


def is_close(first: list[Run], second: list[Run]) -> bool:
    """Whether a difference is within the spreads of both methods, or within the noise if one of them has one seed."""
    spreads = [mean_std([run.result for run in runs])[1] for runs in (first, second)]
    limit = NOISE if None in spreads else sum(filter(None, spreads))
    return mean_result(first) - mean_result(second) <= limit


def gpu_seconds(run: Run) -> float:
    """Return the seconds of all rounds. The first one after a start, which compiles the test, counts as the median."""
    seconds = {line["round"]: line["timing"]["seconds"] for line in run.lines}
    starts = {session["from_round"] for session in run.sessions}
    usual = float(np.median([*seconds.values()]))
    return sum(usual if round in starts else time for round, time in seconds.items())


def megabytes(run: Run) -> float:
    """Return what all clients of a round receive and send."""
    config = run.config
    method = build_method(config.method.name, dict(config.method.settings))
    sizes = measure_sizes(method, make_net(config, config.card))
    return float(np.mean([len(line["clients"]) for line in run.lines])) * (sizes.down + sizes.up) / 1e6


@cache
def peaks() -> dict[str, int]:
    """Return the peak memory in bytes of the runs for which it was measured, by folder."""
    found: dict[str, int] = json.loads((RESULTS / FOLDER / "memory.json").read_text())
    return found
