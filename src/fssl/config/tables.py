"""A Config back in tables: written down, and compared with one that was."""

from dataclasses import MISSING, asdict, replace
from typing import Any

from .grid import forget
from .settings import SECTIONS, Config, useless

# Filled in when a folder is read, the last one because classes are known then.
FOUND = ("data.classes", "data.digest", "partition.clients", "method.tuning_epochs")
# A resumed run may be longer than before, on other hardware, or find its data elsewhere.
MAY_CHANGE = (
    "train.rounds",
    "data.dir",
    "compute.",
    "records.tensorboard",
    "records.wandb",
    "records.checkpoint_every",
)


def resolved(config: Config) -> Config:
    """The same run with what the dataset decides filled in."""
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


def first_difference(stored: Config, given: Config) -> str | None:
    """The first setting in which a resumed run would be another run."""
    a, b = flatten(stored), flatten(given)
    for key in a | b:
        if key.startswith(MAY_CHANGE) or (key in FOUND and key not in b):
            continue
        if a.get(key, MISSING) != b.get(key, MISSING):
            return f"{key} is {a.get(key)!r} there and {b.get(key)!r} here"
    return None
