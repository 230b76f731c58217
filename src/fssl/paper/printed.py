"""The paper's tables as it prints them, from printed.toml."""

import tomllib
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from ..config import Config, MethodChoice
from ..data.cards import card
from .setups import paper_config

CONVERGENCE_ROUNDS = 600  # the paper prints rounds up to 562
SEEDS = 3  # runs that the paper speaks of
TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN", "cinic10": "CINIC-10"}


class Column(NamedTuple):
    """A dataset, an alpha, and for rounds-to-accuracy the accuracy in percent."""

    dataset: str
    alpha: float
    target: int | None = None

    @property
    def rounds(self) -> int:
        """Where the paper reads its number."""
        return CONVERGENCE_ROUNDS if self.target else card(self.dataset).rounds


class Row(NamedTuple):
    """A method's line. `gains` are printed beside the numbers: over the row above, or as a speed-up."""

    name: str
    method: str
    printed: list[float]
    settings: dict[str, Any] = {}  # noqa: RUF012 (read only)
    gains: list[float] | None = None
    speedups: list[float] | None = None
    is_bound: bool = False  # an upper bound, no competitor


class PaperTable(NamedTuple):
    number: int
    title: str
    label_fraction: float
    columns: list[Column]
    rows: list[Row]
    notes: list[str]
    gains: list[float] | None  # the last line: SAGE over the best other

    @property
    def counts_rounds(self) -> bool:
        return self.columns[0].target is not None

    @property
    def datasets(self) -> list[str]:
        return list(dict.fromkeys(column.dataset for column in self.columns))

    def config(self, row: Row, column: Column) -> Config:
        """The paper's setting of a cell."""
        method = MethodChoice(row.method, tuple(row.settings.items()))
        return paper_config(column.dataset, column.alpha, self.label_fraction, method)


@cache
def paper_tables() -> tuple[PaperTable, ...]:
    content = tomllib.loads((Path(__file__).parent / "printed.toml").read_text("utf-8"))
    return tuple(parse_table(int(name.removeprefix("table")), entry) for name, entry in content.items())


def parse_table(number: int, entry: dict[str, Any]) -> PaperTable:
    targets = entry.get("targets", [None])
    columns = [Column(*values) for values in product(entry["datasets"], entry["alphas"], targets)]
    rows = [Row(**row) for row in entry["rows"]]
    notes, gains = entry.get("notes", []), entry.get("gains")
    return PaperTable(number, entry["title"], entry["label_fraction"], columns, rows, notes, gains)
