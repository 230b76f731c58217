"""Select the runs of a figure: runs of one setting, found by their settings; and commands for missing ones."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..config import Config, MethodChoice, expand, grid_axes, read_toml
from ..records.rounds import LAST
from ..records.sealing import read_probe
from ..records.store import RunFolder
from ..reports.groups import one_per_seed
from ..reports.look import method_label
from ..reports.runs import Numbers, Read, Run, Series, by_round, joined, number
from .setups import PROTOCOLS, Setup, differences, method_on, result_at, setup_of, side_settings, unlike

NO_RUN = "no run"
SHORT = "its runs end before the others"
NO_LABELS = "no pseudo-label records (records.probes=all makes them)"
NO_PROBES = "no probes folder"
MOST_PROBES = 60  # files read for a curve by round

# The folders of each preset's runs, as in the presets' README; presets not listed share one folder.
FIGURE_FOLDERS = {"fig1": "runs/fig1", "fig1-central": "runs/fig1-central", "fig1-fedsgd": "runs/fig1-fedsgd"}
FIGURE_FOLDERS |= {"fig4": "runs/paper-600", "fig15": "runs/paper-600"}
SHARED_FOLDER = "runs/paper"


class Cell(NamedTuple):
    """The runs of one curve: repetitions of one method at one alpha."""

    alpha: float
    method: MethodChoice


class Selection:
    """The runs of one preset's cells. It records requests that no run satisfies."""

    def __init__(self, preset: str, known: Mapping[Setup, list[Run]], *alphas: float) -> None:
        self.preset = preset
        every = {Cell(c.partition.alpha, c.method): c for _, c in expand(read_toml(f"paper/{preset}"))}
        self.cells = {cell: config for cell, config in every.items() if not alphas or cell.alpha in alphas}
        self.is_part = len(self.cells) < len(every)
        self.rounds = max(config.rounds for config in self.cells.values())
        self._runs = choose_runs(self.cells, known)
        self.missing: dict[Cell, str] = {}
        self.drawn: dict[Cell, list[Run]] = {}

    @property
    def alphas(self) -> list[float]:
        return list(dict.fromkeys(cell.alpha for cell in self.cells))

    @property
    def dataset(self) -> str:
        return next(iter(self.cells.values())).data.name

    @property
    def methods(self) -> list[MethodChoice]:
        return list(dict.fromkeys(cell.method for cell in self.cells))

    def runs(
        self,
        method: str | MethodChoice,
        alpha: float | None = None,
        length: Callable[[Run], int] = attrgetter("last_round"),
        lack: str = "",
        at: int = 0,
    ) -> list[Run]:
        """Return the runs of a cell, one per seed: the longest, as `length` counts it. Record an empty cell as a lack.

        Runs that do not reach round `at` are skipped if numbers are read there.
        """
        choice = MethodChoice(method) if isinstance(method, str) else method
        cell = Cell(self.alphas[0] if alpha is None else alpha, choice)
        assert cell in self.cells, f"{self.preset} has no {cell}"
        found = self._runs.get(cell, [])
        long = [run for run in found if run.last_round >= at]
        good = one_per_seed((run for run in long if length(run)), length)
        if good:
            self.drawn[cell] = good
        else:
            self.missing[cell] = lack if long else SHORT if found else NO_RUN
        return good

    @cached_property
    def read_at(self) -> int:
        """Return the round at which numbers are read, the same for all runs: the end of most of them."""
        ends = Counter(min(run.last_round, self.rounds) for runs in self._runs.values() for run in one_per_seed(runs))
        return max(ends, key=lambda end: (ends[end], end), default=self.rounds)

    def by_round(self, key: str | Read, method: str | MethodChoice, alpha: float | None = None) -> Series:
        """Return a quantity of the record by round: a line's key, or a function of the line."""
        read = number(key) if isinstance(key, str) else key

        def curve(run: Run) -> dict[int, float]:
            return {r: value for r, value in by_round(run, read).items() if r <= self.rounds}

        return joined(map(curve, self.runs(method, alpha, lambda run: len(curve(run)), NO_LABELS)))

    def result(self, method: str | MethodChoice, alpha: float | None = None) -> list[float]:
        """Return the mean of the last rounds of each run."""
        return [result_at(run, self.read_at) for run in self.runs(method, alpha, at=self.read_at)]

    def late(self, name: str, method: str, alpha: float) -> list[Numbers]:
        """Return an array of the probes, summed over clients and the last recorded rounds, for each run."""

        def files(run: Run) -> list[Path]:
            return probe_files(run.path, name, self.read_at)[-LAST:]

        runs = self.runs(method, alpha, lambda run: len(files(run)), NO_PROBES, self.read_at)
        return [np.sum([probe(p, name) for p in files(run)], 0) for run in runs]

    def probes_by_round(self, name: str, value: Callable[[Numbers], float], method: str, alpha: float) -> Series:
        """Return a function of an array of the probes by round, at about sixty rounds."""

        def files(run: Run) -> list[Path]:
            return probe_files(run.path, name, self.rounds)

        runs = self.runs(method, alpha, lambda run: len(files(run)), NO_PROBES)
        return joined({int(p.stem): value(probe(p, name)) for p in files(run)} for run in runs)

    # What to say about it.

    @property
    def sources(self) -> list[Run]:
        return [run for runs in self.drawn.values() for run in runs]

    def describe(self) -> str:
        """Describe the runs drawn, and their differences from the paper."""
        runs, cell = self.sources, next(iter(self.drawn))
        mine, wanted = runs[0].config, self.cells[cell]
        seeds = sorted({run.config.seed for run in runs})
        lasts = sorted({run.last_round for run in runs})
        rounds = f"{to_range(lasts)} round{'s' * (lasts != [1])}"
        counts = sorted({len(members) for members in self.drawn.values()})
        text = (
            f"{len(runs)} run(s) on {mine.data.name} ({to_range(counts)} per curve, "
            f"seed(s) {', '.join(map(str, seeds))}), {mine.labels_per_class} labels per class, "
            f"{rounds}, protocol {mine.protocol}."
        )
        other = deviations(mine, wanted)
        if lasts[0] < wanted.rounds and mine.data.name == wanted.data.name:
            other.append(f"{rounds} (paper: {wanted.rounds})")
        if len(lasts) > 1:
            text += f" Other numbers are read at round {self.read_at}."
        return text + (f" Not the paper's setting: {'; '.join(other)}." if other else "")

    def remark(self) -> str:
        """Return a short remark for the picture: another dataset, and what is missing."""
        parts = []
        if self.is_elsewhere:
            parts.append(f"{self.sources[0].config.data.name} instead of {self.dataset}")
        alphas: dict[MethodChoice, list[float]] = defaultdict(list)
        for cell in self.missing:
            alphas[cell.method].append(cell.alpha)
        names: dict[str, list[str]] = defaultdict(list)
        for method, given in alphas.items():
            names[alpha_list(given, self.alphas)].append(choice_name(method))
        if names:
            parts.append("missing: " + "; ".join(", ".join(some) + where for where, some in names.items()))
        return "; ".join(parts)

    @property
    def is_elsewhere(self) -> bool:
        """Return whether the runs drawn use another dataset than the paper."""
        return any(run.config.data.name != self.dataset for run in self.sources)

    def lacks(self) -> list[str]:
        """Return the missing runs, with as few commands to make them as the grid allows."""
        if self.is_elsewhere:
            return [f"all runs on {self.dataset}: `{self.command(NO_RUN, self.alphas, self.methods)}`"]
        groups: dict[tuple[str, tuple[float, ...]], list[MethodChoice]] = defaultdict(list)
        for method in self.methods:
            for why in dict.fromkeys(self.missing.values()):
                alphas = tuple(a for a in self.alphas if self.missing.get(Cell(a, method)) == why)
                if alphas:
                    groups[why, alphas].append(method)
        return [f"{why}: `{self.command(why, alphas, methods)}`" for (why, alphas), methods in groups.items()]

    def command(self, why: str, alphas: Sequence[float], methods: Sequence[MethodChoice]) -> str:
        """Return a command for a part of the preset's grid; runs without probes need another folder."""
        axes = grid_axes(read_toml(f"paper/{self.preset}"))
        folder = FIGURE_FOLDERS.get(self.preset, SHARED_FOLDER) + ("" if why == NO_RUN else "-again")
        words = [f"fssl run paper/{self.preset} --out {folder}"]
        if self.is_part or len(alphas) < len(self.alphas):
            words.append(f"--set 'grid.partition.alpha={inline(list(alphas))}'")
        if len(methods) < len(self.methods):
            if "method" in axes:
                tables = [{"name": m.name, **dict(m.settings)} for m in methods]
                words.append(f"--set 'grid.method={inline(tables)}'")
            else:
                words.append(f"--set 'grid.method.name={inline([m.name for m in methods])}'")
        protocol = self.sources[0].config.protocol if self.sources and not self.is_elsewhere else ""
        if protocol not in ("", next(iter(self.cells.values())).protocol):
            words.append(f"--set protocol={protocol}")  # as in the existing runs
        return " ".join(words)


def deviations(mine: Config, wanted: Config) -> list[str]:
    """Return differences of a drawn run from the paper; those of the setup come first."""
    paper = replace(wanted, protocol=PROTOCOLS[0], train=replace(wanted.train, precision="fp32"))
    return unlike(main_settings(mine), main_settings(paper)) + differences(mine, paper)


def main_settings(config: Config) -> dict[str, Any]:
    return {
        "data.name": config.data.name,
        "labels per class": config.labels_per_class,
        "partition.kind": config.partition.kind,
    }


def choice_name(choice: MethodChoice) -> str:
    """Return a readable name of a method: SAGE's parts by name, other settings as they are."""
    settings = {k: v for k, v in choice.settings if (k, v) != ("cdsc", False)}
    name = "CPG alone" if len(settings) < len(choice.settings) else method_label(choice.name)
    return ", ".join([name, *(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in settings.items())])


def alpha_list(given: Sequence[float], every: Sequence[float]) -> str:
    """Return ` (α = 0.1, 1)`, or nothing if all alphas are given."""
    return "" if set(given) == set(every) else f" (α = {', '.join(f'{a:g}' for a in given)})"


def choose_runs(cells: Mapping[Cell, Config], known: Mapping[Setup, list[Run]]) -> dict[Cell, list[Run]]:
    """Choose runs of one setting for as many cells as possible, preferring the paper's dataset and settings."""
    families: dict[Any, dict[Cell, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for setup, runs in known.items():
        for cell, config in cells.items():
            method = method_on(setup.dataset, cell.method)  # some defaults depend on the dataset
            if (setup.method, setup.alpha) == (method, setup_of(config).alpha):
                for run in runs:
                    if kind_of_run(run.config) == kind_of_run(config):
                        families[family_of(run.config)][cell].append(run)

    def worth(family: Any) -> tuple[bool, int, int, int]:
        members = families[family]
        cell, runs = next(iter(members.items()))
        off = len(differences(runs[0].config, replace(cells[cell], protocol=PROTOCOLS[0])))
        return (
            runs[0].config.data.name == cells[cell].data.name,
            *(len(members), -off, sum(map(len, members.values()))),
        )

    return families[max(families, key=worth)] if families else {}


def family_of(config: Config) -> Any:
    """Return a run's settings without method, alpha, seed and number of rounds."""
    side = tuple(sorted((k, str(v)) for k, v in side_settings(config).items()))
    return config.data.name, config.labels_per_class, config.partition.kind, side


def kind_of_run(config: Config) -> str:
    """Return the kind of a run, which a figure must not mix: usual, central, FedSGD or one local epoch."""
    part, train = config.partition, config.train
    if part.clients == 1:
        return "central"
    if train.clients_per_round < part.clients:
        return "usual"
    if train.steps_per_round == 1:
        return "fedsgd"
    return "one epoch" if train.local_epochs == 1 and train.steps_per_round is None else "usual"


def to_range(values: Sequence[int]) -> str:
    return str(values[0]) if values[0] == values[-1] else f"{values[0]} to {values[-1]}"


def inline(value: Any) -> str:
    """Format a value as TOML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}={inline(v)}" for k, v in value.items()) + "}"
    return "[" + ", ".join(map(inline, value)) + "]" if isinstance(value, list) else json.dumps(value)


# Probes.


@lru_cache(maxsize=1000)
def probe_files(folder: Path, name: str, rounds: int) -> list[Path]:
    """Return files that hold an array: about sixty rounds up to a given one, and the last ten."""
    files = [p for p in RunFolder(folder).probe_files() if int(p.stem) <= rounds]
    some = files[:: max(1, len(files) // MOST_PROBES)]
    sizes = {p: probe(p, name).size for p in sorted({*some, *files[-LAST:]})}
    usual = max((size for size in sizes.values()), default=0)
    return [p for p, size in sizes.items() if size and size == usual]


@lru_cache(maxsize=20_000)
def probe(path: Path, name: str) -> Numbers:
    """Return an array summed over clients; empty if a file is damaged or has no such array."""
    found = read_probe(path, name)
    return np.zeros(0) if found is None else found
