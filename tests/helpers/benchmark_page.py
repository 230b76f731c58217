"""The entries of our runs below results/benchmark, and what pages show of all entries: a leaderboard for each track.

`make regenerate` writes them.
"""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from fssl.catalog.describe import measure_sizes
from fssl.core.assembly import make_net
from fssl.errors import several
from fssl.methods.names import build_method
from fssl.reports.costs import Costs, Memory, costs_of
from fssl.reports.entries import as_run, entry_of, entry_text, find_entries
from fssl.reports.formats import as_code
from fssl.reports.groups import named_groups
from fssl.reports.leaderboard import Standing, draw, standings, words
from fssl.reports.runs import Run, commits_of
from fssl.reports.tracks import TRACKS, planned_cells, track_of
from helpers.results_page import RESULTS, markdown_table, runs_in

FOLDER = RESULTS / "benchmark"
ENTRIES = FOLDER / "entries"
DOCS = RESULTS.parent / "docs"
PICTURE = DOCS / "leaderboard.png"
HEAD = ["place", "method", "accuracy", "smoothed", "seconds", "MB per round", "GiB", "device", "commit", "entries"]


# The entries of our own runs.


def our_runs() -> list[Run]:
    """Return the finished runs below results/benchmark."""
    presets = [preset for track in TRACKS for preset in TRACKS[track]]
    return [run for run in runs_in(*(f"benchmark/{preset}" for preset in presets)) if run.is_finished]


def entry_file(run: Run) -> Path:
    return ENTRIES / run.path.parent.name / f"{run.path.name}.json"


def our_entry(run: Run) -> str:
    return entry_text(entry_of(run, all_costs(run)))


def write_entries() -> None:
    for run in our_runs():
        entry_file(run).parent.mkdir(parents=True, exist_ok=True)
        entry_file(run).write_text(our_entry(run))


def all_costs(run: Run) -> Costs:
    """Return the costs of a run. Older records lack memory, which was measured apart, and traffic."""
    known = costs_of(run)
    reserved = peaks().get(str(run.path.relative_to(FOLDER)))
    memory = known.memory or (None if reserved is None else Memory("gpu_reserved", reserved))
    return known._replace(memory=memory, traffic=known.traffic or sent_in_round(run))


def sent_in_round(run: Run) -> float:
    """Return the bytes that all clients of a round receive and send."""
    config = run.config
    method = build_method(config.method.name, dict(config.method.settings))
    sizes = measure_sizes(method, make_net(config, config.card))
    return float(np.mean([len(line["clients"]) for line in run.lines])) * (sizes.down + sizes.up)


@cache
def peaks() -> dict[str, int]:
    """Return the reserved memory in bytes of runs that do not record their peak, by folder."""
    found: dict[str, int] = json.loads((FOLDER / "memory.json").read_text())
    return found


# The leaderboard of all entries.


@cache
def on_tracks() -> dict[str, list[Run]]:
    """Return the entries by track."""
    found: dict[str, list[Run]] = {track: [] for track in TRACKS}
    for file, facts in find_entries(ENTRIES):
        run = as_run(file, facts)
        found[track_of(run)].append(run)
    return found


def count() -> str:
    """Return how many of the planned runs have an entry."""
    total = {track: len(planned_cells(track)) for track in TRACKS}
    done = {track: sum(is_planned(run, track) for run in on_tracks()[track]) for track in TRACKS}
    of_each = ", ".join(f"{done[track]} of {total[track]} in track {track}" for track in TRACKS)
    said = f"{sum(done.values())} of {sum(total.values())} runs are on record: {of_each}"
    others = sum(map(len, on_tracks().values())) - sum(done.values())
    more = f", and {several(others, 'run')} of methods that the presets do not list" if others else ""
    return f"{said}{more}. See the [leaderboard](leaderboard.md).\n"


def is_planned(run: Run, track: str) -> bool:
    return (run.config.method.name, run.config.seed) in planned_cells(track)


def leaderboard() -> str:
    return "\n".join(section(track) for track in TRACKS)


def section(track: str) -> str:
    runs, planned = on_tracks()[track], several(len(planned_cells(track)), "planned run")
    if not runs:
        return f"## Track {track}\n\nNo entry yet, of {planned}.\n"
    groups = named_groups(runs)
    lines = standings(groups)
    table = markdown_table(HEAD, map(row, lines))
    said = "".join(f"- {text}\n" for text in words(groups))
    picture = f"![Accuracy against seconds and against traffic]({PICTURE.name})\n\n" if track == "A" else ""
    commands = "".join(f"- {text}\n" for text in dict.fromkeys(text for line in lines for text in made_by(line)))
    count = "entry" if len(runs) == 1 else "entries"
    done = f"{len(runs)} {count}: {sum(is_planned(run, track) for run in runs)} of {planned}"
    parts = [
        f"## Track {track}\n\n{done}.\n",
        said,
        table,
        f"{picture}Commands, for each NAME of a method and SEED:\n",
        commands,
    ]
    return "\n".join(parts)


def row(line: Standing) -> list[str]:
    place = "–" if line.place is None else str(line.place)
    result = f"**{line.result}**" if line.place == 1 else line.result
    devices = dict.fromkeys(str(session.get("device")) for run in line.runs for session in run.sessions)
    entries = " ".join(f"[{run.config.seed}]({link(run.path)})" for run in line.runs)
    commits = ", ".join(commits_of(line.runs))
    return [place, f"`{line.name}`", result, line.smoothed, *line.cost_texts, ", ".join(devices), commits, entries]


def link(path: Path) -> str:
    return f"../{path.relative_to(RESULTS.parent)}"


def made_by(line: Standing) -> Iterator[str]:
    """Yield each run's command and its record if it is ours, with NAME and SEED for its method and seed."""
    for run in line.runs:
        commands = dict.fromkeys(f"fssl {session['command']}" for session in run.sessions if session.get("command"))
        record = FOLDER / run.path.parent.name / run.path.stem
        ours = f"; record `{record.relative_to(RESULTS.parent)}`" if record.is_dir() else ""
        text = f"{', then '.join(map(as_code, commands))}{ours}"
        seed = run.config.seed
        yield text.replace(line.name, "NAME").replace(f"[{seed}]", "[SEED]").replace(f"seed{seed}", "seedSEED")


def draw_picture() -> None:
    PICTURE.write_bytes(draw(named_groups(on_tracks()["A"]), ["png"])["png"])


def forget() -> None:
    """Read the entries again."""
    on_tracks.cache_clear()
