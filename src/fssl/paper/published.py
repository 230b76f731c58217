"""Printed tables of papers: Tables 1 to 8 of the SAGE paper (printed.toml) and those of others (others.toml)."""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from math import isnan
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ..config import Config, MethodChoice, override, parse, read_toml
from .setups import PROTOCOLS, Setup, setup_of

SEEDS = 3  # runs that the SAGE paper describes
TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN", "cinic10": "CINIC-10"}
PAPER, PRINTED, OURS = "paper", "printed", "ours"  # sources of a line, like our protocols
TENTH = 0.1  # the usual share of labels
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Column(NamedTuple):
    """A column: the settings that it adds to a preset."""

    name: str
    set: Mapping[str, Any]
    preset: str | None = None  # default: the table's
    target: int | None = None  # the accuracy in percent, if numbers are the rounds that reach it

    @property
    def dataset(self) -> str:
        return str(self.set["data.name"])

    @property
    def alpha(self) -> float:
        return float(self.set["partition.alpha"])


class Row(NamedTuple):
    """A row: a method with its settings, further settings that it adds to the preset, and the printed numbers."""

    name: str
    method: str | None = None  # None: fssl has no such method
    settings: Mapping[str, Any] = NOTHING
    set: Mapping[str, Any] = NOTHING
    printed: Sequence[float] = ()
    std: Sequence[float] = ()
    open: str = ""  # open questions about the source's numbers
    gains: Sequence[float] | None = None  # printed differences from the row above
    speedups: Sequence[float] | None = None  # printed speed-ups over the first row
    is_bound: bool = False  # an upper bound, not a competitor: it knows all labels

    @property
    def choice(self) -> MethodChoice:
        assert self.method is not None
        return MethodChoice(self.method, tuple(self.settings.items()))


class End(NamedTuple):
    """How to read a number off a run: up to which round and, for rounds to an accuracy, that accuracy in percent."""

    rounds: int
    target: int | None = None


class Wanted(NamedTuple):
    """The requirements on a run that fills a cell, and how to read the cell's number off it."""

    config: Config
    setups: tuple[Setup, ...]  # setups whose runs may fill it
    end: End
    due: int  # the round of the printed number: the last one, or the one that reaches a target


@dataclass(frozen=True, eq=False)
class PublishedTable:
    name: str
    title: str
    preset: str  # that its cells are made of
    columns: Sequence[Column]
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    gains: Sequence[float] | None = None  # the last line: SAGE over the best other

    @property
    def number(self) -> int:
        """Return the number of a table of the SAGE paper; 0 for another paper's."""
        return int(self.name.removeprefix("table")) if self.name.startswith("table") else 0

    @property
    def counts_rounds(self) -> bool:
        return self.columns[0].target is not None

    @property
    def label_fraction(self) -> float:
        first = self.wanted[0][0]
        return (first and first.config.data.label_fraction) or TENTH

    @property
    def by_dataset(self) -> dict[str, list[int]]:
        """Return the numbers of each dataset's columns."""
        datasets = [column.dataset for column in self.columns]
        return {name: [j for j, dataset in enumerate(datasets) if dataset == name] for name in datasets}

    @property
    def presets(self) -> list[str]:
        return list(dict.fromkeys(column.preset or self.preset for column in self.columns))

    @property
    def sources(self) -> Sequence[str]:
        """Return the sources of our lines: one per protocol, or a common one in another paper's table."""
        return PROTOCOLS if self.number else (OURS,)

    def source_of(self, config: Config) -> str:
        return config.protocol if self.number else OURS

    def config(self, row: Row, column: Column) -> Config | None:
        """Return the settings of a cell, in the arithmetic of released codes; None if fssl has no such method."""
        if row.method is None:
            return None
        base = preset_base(column.preset or self.preset)
        method = {"method.name": row.method, **{f"method.{key}": value for key, value in row.settings.items()}}
        given = {**column.set, **method, **row.set, "train.precision": "fp32"}
        return parse(override(base, [f"{key}={json.dumps(value)}" for key, value in given.items()]))

    @cached_property
    def wanted(self) -> list[list[Wanted | None]]:
        """Return, by row and column, the requirements on a run that fills the cell."""
        return [[self._wanted(row, i) for i in range(len(self.columns))] for row in self.rows]

    def _wanted(self, row: Row, i: int) -> Wanted | None:
        column = self.columns[i]
        if (config := self.config(row, column)) is None:
            return None
        configs = [config]
        if row.is_bound:  # which may also have the usual share of labels
            configs.append(replace(config, data=replace(config.data, label_fraction=TENTH)))
        is_reached = column.target is not None and not isnan(row.printed[i])
        due = int(row.printed[i]) if is_reached else config.rounds
        return Wanted(config, tuple(dict.fromkeys(map(setup_of, configs))), End(config.rounds, column.target), due)

    @cached_property
    def ends(self) -> list[End]:
        """Return how to read the numbers of each column."""
        return [next(wanted.end for wanted in column if wanted) for column in zip(*self.wanted, strict=True)]

    @property
    def setups(self) -> Iterator[Setup]:
        """Yield the setups of all cells."""
        return (setup for row in self.wanted for wanted in row if wanted for setup in wanted.setups)


@cache
def preset_base(preset: str) -> dict[str, Any]:
    """Return a preset without its grid."""
    return {key: value for key, value in read_toml(preset).items() if key != "grid"}


@cache
def paper_tables() -> tuple[PublishedTable, ...]:
    """Return the tables of the SAGE paper."""
    return tuple(read_tables("printed.toml").values())


@cache
def other_tables() -> dict[str, PublishedTable]:
    """Return the tables of other papers, by name."""
    return read_tables("others.toml")


@cache
def tables_by_setup() -> dict[Setup, str]:
    """Return the first table of another paper with a cell of each setup."""
    return {setup: name for name, table in reversed(other_tables().items()) for setup in table.setups}


def read_tables(file: str) -> dict[str, PublishedTable]:
    content = tomllib.loads((Path(__file__).parent / file).read_text("utf-8"))
    return {name: parse_table(name, content) for name in content}


def parse_table(name: str, content: Mapping[str, dict[str, Any]]) -> PublishedTable:
    entry = {key: value for key, value in content[name].items() if key not in ("datasets", "alphas", "targets")}
    given = content[name].get("columns")
    columns = parse_columns(content[given] if isinstance(given, str) else content[name])
    return PublishedTable(**{**entry, "name": name, "columns": columns, "rows": [Row(**row) for row in entry["rows"]]})


def parse_columns(entry: Mapping[str, Any]) -> list[Column]:
    """Return the columns of a table, listed one by one or as a product of datasets, alphas and targets."""
    if "columns" in entry:
        return [Column(**column) for column in entry["columns"]]
    return [
        Column(
            f"{TITLES[dataset]} α={alpha:g}" + (f" {target} %" if target else ""),
            {"data.name": dataset, "partition.alpha": alpha},
            target=target,
        )
        for dataset, alpha, target in product(entry["datasets"], entry["alphas"], entry.get("targets", [None]))
    ]
