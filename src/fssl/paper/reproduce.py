"""What `fssl reproduce` runs and prints: presets behind a table, a figure or the benchmark, and a verdict per cell."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ..catalog.facts import with_defaults
from ..config import Config, by_card, expand, flatten, override, read_toml
from ..config.conditions import matters
from ..errors import several, unknown
from ..reports.drawing import settings
from ..reports.entries import as_run, find_entries
from ..reports.formats import Grid
from ..reports.groups import named_groups
from ..reports.leaderboard import standings
from ..reports.runs import FoundRuns, Run, spread
from ..reports.tracks import TRACKS, presets_of, track_of
from ..reports.verdicts import against_noise
from .fill import FilledTable, TableCell, fill_table
from .gallery import FIGURES, Figure, Selector
from .markup import signed
from .published import PublishedTable, other_tables, paper_tables
from .scoreboard import ScoredNumber, accuracy_of
from .setups import Setup, by_setup, setup_of

HEAD = ("cell", "published", "here", "apart", "verdict")
NOT_RUN = "not run"
Verdicts = Callable[[FoundRuns], Grid]


class Target(NamedTuple):
    """Something to reproduce: the presets whose runs it needs, and functions that find and judge what runs give."""

    name: str
    presets: Sequence[str]
    judge: Verdicts
    cover: Callable[
        [FoundRuns], Callable[[Config], bool]
    ]  # whether a planned run adds nothing to those that were found


def find_target(name: str, entries: Path | None = None) -> Target:
    """Return what a name stands for; runs of the benchmark are compared with `entries`, which are read here."""
    name = name.lower().replace(" ", "").replace("figure", "fig")
    tables, figures = table_targets(), {f"fig{figure}": figure for figure in FIGURES}
    tracks = {"benchmark": [*TRACKS]} | {f"track-{track.lower()}": [track] for track in TRACKS}
    if name in figures:
        return figure_target(FIGURES[figures[name]])
    if name in tracks:
        return benchmark_target(name, tracks[name], entries)
    if name not in tables:
        raise unknown("table, figure or track", name, [*tables, *tracks, *figures])
    return tables[name]


# The runs.


class Planned(NamedTuple):
    """The runs of a target: those that are finished somewhere, and those that are missing, by folder name."""

    done: int
    missing: list[tuple[str, Config]]


def plan(target: Target, given: Sequence[str], found: FoundRuns) -> Planned:
    """Return which of the presets' runs are missing; a run that several presets have is planned once."""
    is_covered = target.cover(found)
    wanted: dict[str, tuple[str, Config]] = {}
    for preset in target.presets:
        for name, config in expand(override(read_toml(preset), list(given))):
            wanted.setdefault(run_key(config), (f"{Path(preset).stem}/{name}".rstrip("/"), config))
    missing = [(name, config) for name, config in wanted.values() if not is_covered(config)]
    return Planned(len(wanted) - len(missing), missing)


def run_key(config: Config) -> str:
    """Return a key that two runs share if they differ only in places and in rounding."""
    known = with_defaults(by_card(config))
    flat = {key: value for key, value in flatten(known).items() if matters(known, key)}
    return json.dumps({k: v for k, v in flat.items() if k not in ("data.dir", "train.precision")}, sort_keys=True)


def same_runs(found: FoundRuns) -> Callable[[Config], bool]:
    """Return a function that says whether a finished run has these settings."""
    known = {run_key(run.config) for run in found.runs if run.is_finished}
    return lambda config: run_key(config) in known


# Tables.


def table_targets() -> dict[str, Target]:
    """Return the tables of all papers, by name."""
    tables = {table.name: table for table in paper_tables()} | other_tables()
    return {
        name: Target(name, table.presets, judge_table(table), filled_cells(table)) for name, table in tables.items()
    }


def judge_table(table: PublishedTable) -> Verdicts:
    def judge(found: FoundRuns) -> Grid:
        filled = fill_table(table, by_setup(found.runs)[0])
        return Grid(HEAD, [*table_cells(filled)])

    return judge


def filled_cells(table: PublishedTable) -> Callable[[FoundRuns], Callable[[Config], bool]]:
    """Return a function of runs that says whether a planned run's cells have its seed, or it is finished."""

    def cover(found: FoundRuns) -> Callable[[Config], bool]:
        filled, is_there = fill_table(table, by_setup(found.runs)[0]), same_runs(found)
        ours = {line.row: line.cells for line in filled.lines if line.source == table.sources[0]}
        seeds: dict[Setup, list[set[int]]] = defaultdict(list)  # of the runs in each cell of a setup
        for row, wanted in zip(table.rows, table.wanted, strict=True):
            cells = ours.get(row.name, [None] * len(table.columns))
            for place, cell in zip(wanted, cells, strict=True):
                if place:
                    seeds[place.setups[0]].append({run.config.seed for run in cell.runs} if cell else set())

        def is_covered(config: Config) -> bool:
            cells = seeds.get(setup_of(config), [])
            return is_there(config) or (bool(cells) and all(config.seed in known for known in cells))

        return is_covered

    return cover


def table_cells(filled: FilledTable) -> Iterator[list[str]]:
    """Yield a line for each printed number that fssl can run."""
    table = filled.table
    ours = {line.row: line.cells for line in filled.lines if line.source == table.sources[0]}
    for row, wanted in zip(table.rows, table.wanted, strict=True):
        cells = ours.get(row.name, [None] * len(table.columns))
        for column, place, printed, cell in zip(table.columns, wanted, row.printed, cells, strict=False):
            if place and printed == printed:  # not nan
                score = ScoredNumber(table, row, column, place, printed)
                yield [f"{row.name}, {column.name}", *judged(score, cell)]


def judged(score: ScoredNumber, cell: TableCell | None) -> list[str]:
    """Return the published number, ours, their difference and the verdict."""
    shown = f"{score.printed:.2f}" if score.column.target is None else f"{score.expected:g} % after {score.printed:g}"
    if cell is None:
        return [shown, "–", "–", NOT_RUN]
    numbers = [number for run in cell.runs if (number := accuracy_of(run, score)) is not None]
    if len(numbers) < len(cell.runs):
        return [shown, "–", "–", "too short"]
    known = score._replace(runs=cell.runs, ours=tuple(numbers))
    differs = f"; {'; '.join(cell.setting)}" if cell.setting else ""
    return [shown, spread(numbers), signed(known.difference), against_noise(known.difference) + differs]


# Figures.


def figure_target(figure: Figure) -> Target:
    """Return a figure of the SAGE paper, whose cells are the curves of its presets."""
    select = Selector({})
    with settings():
        figure.draw(select)
    presets = [f"paper/{name}" for name in select.selections]
    return Target(f"fig{figure.name}", presets, judge_figure(figure), same_runs)


def judge_figure(figure: Figure) -> Verdicts:
    def judge(found: FoundRuns) -> Grid:
        select = Selector(by_setup(found.runs)[0])
        with settings():
            figure.draw(select)
        rows = []
        for selection in select.selections.values():
            for cell in selection.cells:
                runs = selection.drawn.get(cell, [])
                name = f"{cell.method.name}, α = {cell.alpha:g}"
                verdict = f"drawn from {several(len(runs), 'run')}" if runs else selection.missing.get(cell, NOT_RUN)
                rows.append([name, "–", "–", "–", verdict])
        return Grid(HEAD, rows)

    return judge


# The benchmark.


def benchmark_target(name: str, tracks: Sequence[str], entries: Path | None) -> Target:
    """Return some tracks of the benchmark."""
    published = [as_run(*entry) for entry in find_entries(entries)] if entries else []
    presets = [preset for track in tracks for preset in presets_of(track)]
    return Target(name, presets, judge_benchmark(tracks, published), same_runs)


def judge_benchmark(tracks: Sequence[str], published: Sequence[Run]) -> Verdicts:
    """Return a function that compares runs with the entries of the same methods and seeds."""

    def judge(found: FoundRuns) -> Grid:
        rows = []
        for track in tracks:
            here, there = ([run for run in runs if track_of(run) == track] for runs in (found.runs, published))
            rows += [*benchmark_cells(track, here, there)]
        return Grid(HEAD, rows)

    return judge


def benchmark_cells(track: str, here: Sequence[Run], there: Sequence[Run]) -> Iterator[list[str]]:
    """Yield a line for each method, over the seeds that both have, best of our runs first."""
    known = {run_key(run.config): run for run in there}
    finished = [run for run in here if run.is_finished]
    for line in standings(named_groups(finished)):
        pairs = [(run, known[key]) for run in line.runs if (key := run_key(run.config)) in known]
        name = f"{track}: {line.name}"
        place = "" if line.place is None else f"; place {line.place}"
        if not pairs:
            yield [name, "–", line.result, "–", f"no entry to compare with{place}"]
            continue
        ours, theirs = ([pair[i].result for pair in pairs] for i in (0, 1))
        apart = round(sum(ours) / len(ours), 2) - round(sum(theirs) / len(theirs), 2)
        yield [name, spread(theirs), spread(ours), signed(apart), f"{against_noise(apart)}{place}"]
    lacking = {run.config.method.name for run in there} - {run.config.method.name for run in finished}
    yield from ([f"{track}: {name}", "on record", "–", "–", NOT_RUN] for name in sorted(lacking))
