"""A Config back in tables: written down, and compared with one that was."""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, replace
from typing import Any

from .grid import forget
from .settings import SECTIONS, Config, useless

# A resumed run may be longer than before, on other hardware, or find its data elsewhere.
MAY_CHANGE = (
    "train.rounds",
    "data.dir",
    "compute.",
    "records.tensorboard",
    "records.wandb",
    "records.checkpoint_every",
)


def by_card(config: Config) -> Config:
    """The same run with the numbers filled in that the dataset's card decides: labels and rounds."""
    data = config.data
    if config.card.is_dealt:
        data = replace(data, labels_per_class=config.labels_per_class, label_fraction=None)
    return replace(config, data=data, train=replace(config.train, rounds=config.rounds))


def as_tables(config: Config) -> dict[str, Any]:
    """Plain tables that parse back to an equal Config; unset keys are left out."""
    tables = {k: v for k, v in asdict(config).items() if k != "method"}
    for section in SECTIONS:
        if section != "method":
            tables[section] = {
                k: list(v) if isinstance(v, tuple) else v for k, v in tables[section].items() if v is not None
            }
    method = config.method
    tables["method"] = {"name": method.name, **dict(method.settings), **({"digest": d} if (d := method.digest) else {})}
    for key in (*useless(config.data.name), *([] if config.partition.clients else ["partition.clients"])):
        forget(tables, key)
    return tables


def flatten(config: Config) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in as_tables(config).items():
        flat |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def first_difference(stored: Config, given: Config, defaults: Mapping[str, Any]) -> str | None:
    """The first setting in which a resumed run would be another run.

    Args:
        stored: The settings that a run folder recorded.
        given: The settings of the run that wants to go on there.
        defaults: Defaults of the method's settings; a record that is older than a setting lacks it.
    """
    a = {f"method.{key}": value for key, value in defaults.items()} | flatten(stored)
    b = flatten(given)
    for key in a | b:
        if not key.startswith(MAY_CHANGE) and a.get(key, MISSING) != b.get(key, MISSING):
            return f"{key} is {a.get(key)!r} there and {b.get(key)!r} here"
    return None
