"""Turn a Config into plain tables, and compare it with recorded ones."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, replace
from typing import Any

from ..errors import as_typed
from ..system.files import short_sum
from ..system.user_code import short_name
from .conditions import flatten_tables, noted, omitted_settings
from .grid import forget_setting
from .rules import MayChange
from .settings import METHOD_KEYS, SECTIONS, Config

NAMES = ("data.name", "method.name")
MAY_CHANGE = dict(noted(MayChange))
AFTERWARDS = [key for key, note in MAY_CHANGE.items() if note.finished]  # may also change in a finished run


def may_change(key: str) -> bool:
    """Return whether a resumed run may change a setting, given by its dotted name."""
    return key in MAY_CHANGE or key.partition(".")[0] in MAY_CHANGE


def by_card(config: Config) -> Config:
    """Return the settings with the numbers that the dataset's card decides: labels, rounds, the server's steps."""
    data, server = config.data, config.server
    if config.picks_labels:
        data = replace(data, labels_per_class=config.labels_per_class, label_fraction=None)
    if config.has_server_labels:
        server = replace(server, epochs=config.server_epochs, batch=config.server_batch)
    return replace(config, data=data, server=server, train=replace(config.train, rounds=config.rounds))


def as_tables(config: Config) -> dict[str, Any]:
    """Return plain tables that parse back to an equal Config, without unset keys."""
    tables = {k: v for k, v in asdict(config).items() if k != "method"}
    for section in SECTIONS:
        if section != "method":
            tables[section] = {
                k: list(v) if isinstance(v, tuple) else v for k, v in tables[section].items() if v is not None
            }
    method = config.method
    known = {key: value for key in METHOD_KEYS if (value := getattr(method, key)) is not None}
    tables["method"] = {"name": method.name, **dict(method.settings), **known}
    for key in omitted_settings(config):
        forget_setting(tables, key)
    return tables


def flatten(config: Config) -> dict[str, Any]:
    """Return every setting by its dotted name."""
    return flatten_tables(as_tables(config))


def run_id(tables: Mapping[str, Any]) -> str:
    """Return a run's ID: the digest of every recorded setting that a resumed run must keep.

    The digest covers the tables as they were written, so settings added by later versions do not change it.
    """
    kept = {key: value for key, value in flatten_tables(tables).items() if not may_change(key)}
    return short_sum(json.dumps(kept, sort_keys=True, default=str).encode())


def renewed(recorded: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Return recorded tables, updated with the settings that a resumed run may change."""
    given = as_tables(config)
    out: dict[str, Any] = {}
    for key in {**recorded, **given}:
        old, new = recorded.get(key), given.get(key)
        if isinstance(old, dict) or (isinstance(new, dict) and old is None):
            changed = {name: v for name, v in (new or {}).items() if may_change(f"{key}.{name}")}
            kept = {name: v for name, v in (old or {}).items() if stays_recorded(f"{key}.{name}", name in changed)}
            out |= {key: kept | changed} if kept | changed else {}
        elif key in recorded:
            out[key] = old
    return out


def stays_recorded(key: str, is_given: bool) -> bool:
    """Return whether a recorded setting stays in the record of a resumed run.

    A setting that may change and is not given falls back to its default. A label and a color stay: users often add them
    after the command that they repeat.
    """
    return is_given or not may_change(key) or (key in MAY_CHANGE and MAY_CHANGE[key].stays)


def late_changes(stored: Config, given: Config) -> dict[str, Any]:
    """Return the settings, with their values, that a finished run can still take over."""
    old, new = flatten(stored), flatten(given)
    return {key: new[key] for key in AFTERWARDS if key in new and old.get(key) != new[key]}


def plain_value(key: str, flat: Mapping[str, Any]) -> Any:
    """Return a setting's value; a user's file is reduced to its name."""
    value = flat.get(key, MISSING)
    return short_name(value) if key in ("method.name", "model.name") and isinstance(value, str) else value


def first_difference(stored: Config, given: Config, defaults: Mapping[str, Any]) -> str | None:
    """Return the first setting in which two runs differ; names come first, since other settings depend on them.

    Args:
        stored: The settings recorded in a run folder.
        given: The settings of the run to be resumed there.
        defaults: Defaults of the method's settings, for records older than a setting.
    """
    a = {f"method.{key}": value for key, value in defaults.items()} | flatten(stored)
    b = flatten(given)
    for key in dict.fromkeys([*NAMES, *a, *b]):
        if not may_change(key) and plain_value(key, a) != plain_value(key, b):
            there, here = (as_typed(flat.get(key, implied_value(key, of))) for flat, of in ((a, stored), (b, given)))
            return f"{key} is {there} there and {here} here"
    return None


def implied_value(key: str, config: Config) -> Any:
    """Return the value of a setting that tables omit because it follows from others; None if it is unset."""
    part = config.partition
    return part.labels if key == "partition.labels" and part.file is None else None
