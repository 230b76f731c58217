"""The tracks of the benchmark: their presets, and which track a run belongs to, by its settings."""

from functools import cache
from typing import Any

from ..config import Config, by_card, expand, flatten, read_toml
from ..config.conditions import matters
from ..console import setting_text
from .runs import Run

TRACKS = {  # by name, the presets that its runs come from
    "A": ("track-a", "track-a-fedmatch"),
    "B": ("track-b",),
    "C": ("track-c",),
}
FREE = ("seed", "train.precision", "data.dir", "method.")  # settings that a track leaves open, by how they begin


def presets_of(track: str) -> list[str]:
    return [f"benchmark/{preset}" for preset in TRACKS[track]]


def planned_cells(track: str) -> set[tuple[str, int]]:
    """Return the methods and seeds that a track's presets list."""
    cells = [config for preset in presets_of(track) for _, config in expand(read_toml(preset))]
    return {(config.method.name, config.seed) for config in cells}


def task_of(config: Config) -> dict[str, Any]:
    """Return the settings that all runs of a track share."""
    known = by_card(config)
    return {key: value for key, value in flatten(known).items() if matters(known, key) and not key.startswith(FREE)}


@cache
def tasks() -> list[tuple[str, dict[str, Any]]]:
    """Return the settings of each preset, with its track."""
    every = [(track, preset) for track in TRACKS for preset in presets_of(track)]
    return [(track, task_of(next(expand(read_toml(preset)))[1])) for track, preset in every]


def track_of(run: Run) -> str:
    """Return the track of a run, or `""`. Methods that the track does not list are welcome; their settings are free."""
    mine = task_of(run.config)
    return next((track for track, task in tasks() if task == mine), "")


def nearest_track(run: Run) -> str:
    """Return a sentence with the first difference from the track that is nearest."""
    mine = task_of(run.config)
    apart = [(track, task, [k for k in {**task, **mine} if task.get(k) != mine.get(k)]) for track, task in tasks()]
    track, task, keys = min(apart, key=lambda each: len(each[2]))
    here, there = (setting_text(settings.get(keys[0])) for settings in (mine, task))
    return f"in no track of the benchmark: {keys[0]} is {here}, but {there} in the nearest, track {track}"
