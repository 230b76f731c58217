"""Several runs from one file: `--set` changes its tables, `[grid]` multiplies them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import islice, product
from math import prod
from typing import Any

from ..errors import UserError
from ..system.files import DEEPEST, TOO_DEEP, is_too_deep
from .conditions import dropped_settings, flatten_tables
from .parsing import parse
from .rules import UNKNOWN
from .schema import as_list
from .settings import FOLDERS, Config
from .toml import toml_value

RUNS_SHOWN = 3  # runs shown of a grid that is too large
MOST_LOOKED_AT = 1000  # runs to search for one in which a setting applies
UNCHANGED = "unchanged"  # run name for an empty table of an axis


def override(tables: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Return tables with `key=value` settings applied. A value is TOML, otherwise a string.

    A set key is removed from the grid; of an axis of tables, those with the same value stay. Settings that no longer
    apply are removed, unless they are given here.
    """
    if is_too_deep(tables):  # tables of a script; files are checked when they are read
        raise UserError(f"the settings are {TOO_DEEP}")
    out = deepcopy(tables)
    given = [split_setting(setting) for setting in settings]
    named = dict(given)
    digests = (digest for pair in given for digest in outdated_checksums(*pair, out))
    for key in {*replaced_settings(out, named), *digests} - {*named}:
        forget_setting(out, key)
    for key, value in given:
        put(out, key, value)
        for name, values in [(n, v) for n, v in grid_axes(out).items() if decides(n, v, key)]:
            keep_tables(out, name, matching_tables(name, values, key, value, named))
    check_applied(out, named)
    return out


def check_applied(tables: Mapping[str, Any], named: Mapping[str, Any]) -> None:
    """Reject a given setting that applies in no run of the grid."""
    left = {key for key in flatten_tables(named) if not key.startswith("grid.")}
    if not left or not grid_axes(tables) or num_runs(tables) > MOST_LOOKED_AT:
        return
    for _, cell, given in raw_cells(tables):
        gone = {*dropped_settings(cell, given)}
        left &= gone
        if not left:
            return
    for key in gone - left:
        forget_setting(cell, key)
    parse(cell)  # its error names the conflicting setting


DECIDE_FROZEN = ("seed", "data", "model")  # keys and sections that decide the tensors which do not train


def replaced_settings(tables: Mapping[str, Any], named: Mapping[str, Any]) -> list[str]:
    """Return settings of the tables that the given ones replace. The values of an axis count as unknown."""
    seen = deepcopy({key: value for key, value in tables.items() if key != "grid"})
    lists = {
        key.removeprefix("grid."): v for key, v in named.items() if key.startswith("grid.") and isinstance(v, list)
    }
    lists = grid_axes(tables) | lists
    axes = {part for axis, values in lists.items() for value in values for part in flatten_tables({axis: value})}
    for key, value in (dict.fromkeys(axes, UNKNOWN) | flatten_tables(named)).items():
        put(seen, key, value)
    return dropped_settings(seen, {key.removeprefix("grid.") for key in flatten_tables(named)})


def split_setting(setting: str) -> tuple[str, Any]:
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise UserError(f"{setting}: expected key=value, for example train.lr=0.05", "set")
    if key.count(".") > DEEPEST:
        raise UserError(f"{setting}: the key is {TOO_DEEP}", "set")
    return key.strip(), toml_value(text.strip())


def outdated_checksums(key: str, value: Any, tables: Mapping[str, Any]) -> tuple[str, ...]:
    """Return recorded checksums that a setting invalidates by naming other files."""
    outdated = []
    if key == "data.name" and value not in FOLDERS:
        outdated.append("data.digest")
    if key in ("seed", "grid.seed") and value != tables.get("seed") and "{seed}" in str(tables.get("model")):
        outdated.append("model.start_digest")  # another seed starts from another file
    if key.removeprefix("grid.").partition(".")[0] in DECIDE_FROZEN and key != "data.dir":
        outdated.append("model.frozen_digest")
    return tuple(outdated)


def forget_setting(tables: dict[str, Any], key: str) -> None:
    """Remove a setting from the tables and from every axis of the grid."""
    section, _, name = key.partition(".")
    grid = tables.get("grid", {})
    for place in (tables, grid):
        if isinstance(place, Mapping) and isinstance(place.get(section), dict):
            place[section].pop(name, None)
    if isinstance(grid, Mapping) and isinstance(grid.get(section), list):
        for cell in grid[section]:
            if isinstance(cell, dict):
                cell.pop(name, None)


def decides(axis: str, values: list[Any], key: str) -> bool:
    """Return whether an axis sets the key or a part of it. Raise UserError if only some of its values do."""
    if axis == key or axis.startswith(key + "."):
        return True
    if not key.startswith(axis + "."):
        return False
    setting = [isinstance(v, Mapping) and key.removeprefix(axis + ".") in v for v in values]
    if any(setting) and not all(setting):
        raise UserError(f"{key}: only some values of grid.{axis} set it; set grid.{axis} instead")
    return all(setting)


def matching_tables(
    axis: str, values: Sequence[Any], key: str, value: Any, given: Mapping[str, Any]
) -> Sequence[Mapping[str, Any]]:
    """Return the tables of an axis that have this value, or the single one that sets nothing else.

    An axis of plain values has none. If no table has the value, the axis would be dropped together with its other
    settings, so these must be given, too.
    """
    inner = key.removeprefix(f"{axis}.")
    if inner == key:
        return []
    same = [table for table in values if table[inner] == value]
    shared = set.intersection(*({f"{axis}.{name}" for name in table} for table in values)) - {*given}
    if shared and not same:
        raise UserError(
            f"{key}={value}: no table of grid.{axis} has this value, and a run without the axis would lose"
            f" {', '.join(sorted(shared))};"
            " set them, too"
        )
    return [table for table in same if len(table) == 1] or same


def keep_tables(tables: dict[str, Any], axis: str, left: Sequence[Mapping[str, Any]]) -> None:
    """Keep only these tables of an axis; a single one is merged into the tables."""
    if len(left) > 1:
        put(tables["grid"], axis, list(left))  # in place: the order of axes is the order of folders
        return
    drop(tables["grid"], axis)
    for name, value in (left[0] if left else {}).items():
        put(tables, f"{axis}.{name}", value)


def put(tables: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        tables = tables.setdefault(part, {})
        if not isinstance(tables, dict):
            raise UserError(f"{key}: '{part}' is a single value, not a section")
    tables[last] = value


def drop(tables: dict[str, Any], key: str) -> None:
    """Remove an axis from the grid, where its key is nested or quoted, as in "train.lr"."""
    *path, last = [key] if key in tables else key.split(".")
    for part in path:
        tables = tables[part]
    del tables[last]


def grid_axes(tables: Mapping[str, Any]) -> dict[str, list[Any]]:
    grid = tables.get("grid", {})
    if not isinstance(grid, Mapping):
        raise UserError(f"grid = {grid!r}: expected a section of lists, for example grid.seed = [7, 8, 9]")
    if "grid" in grid:
        raise UserError("grid.grid: write keys directly below [grid], for example grid.seed = [7, 8, 9]")
    return flat_grid(grid)


def flat_grid(grid: Mapping[str, Any], prefix: str = "") -> dict[str, list[Any]]:
    """Return the axes of [grid] by dotted key."""
    axes: dict[str, list[Any]] = {}
    for key, value in grid.items():
        if isinstance(value, Mapping):
            axes |= flat_grid(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value:
            axes[prefix + key] = value
        else:
            found = as_list(value)
            example = [7, 8, 9] if value == [] else found if isinstance(found, list) else [value]
            raise UserError(f"grid.{prefix}{key} = {value!r}: expected a list of values, for example {example}")
    return axes


def num_runs(tables: Mapping[str, Any]) -> int:
    """Return the number of runs that tables describe, without building them."""
    return prod(len(values) for values in grid_axes(tables).values())


def check_size(tables: Mapping[str, Any], limit: int) -> None:
    """Reject a grid with more runs than `limit`, before any of them is built."""
    number = num_runs(tables)
    if number > limit:
        sizes = " × ".join(f"{len(values):,} {key}" for key, values in grid_axes(tables).items())
        first = ", ".join(name for name, _ in islice(grid_cells(tables), RUNS_SHOWN))
        raise UserError(
            f"[grid] has {number:,} runs ({sizes}: {first}, ...), more than {limit:,}; confirm that you want them all",
            "yes",
        )


def expand(tables: Mapping[str, Any]) -> Iterator[tuple[str, Config]]:
    """Yield (name, Config) of every run; without a [grid] a single run with an empty name.

    An axis is a key with a list of values, or a section with a list of tables for it.
    """
    seen = set()
    for name, cell in grid_cells(tables):
        if name in seen:
            raise UserError(f"[grid] creates the run '{name}' twice; remove the repeated value")
        seen.add(name)
        yield name, parse(cell)


def grid_cells(tables: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name, tables) of every run, without the settings that do not apply in it."""
    for name, cell, given in raw_cells(tables):
        for key in dropped_settings(cell, given):
            forget_setting(cell, key)
        yield name, cell


def raw_cells(tables: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield (name, all tables, settings of the axes) of every run."""
    base = {k: v for k, v in tables.items() if k != "grid"}
    axes = grid_axes(tables)
    for values in product(*axes.values()):
        cell, labels, given = deepcopy(base), [], dict[str, Any]()
        for key, value in zip(axes, values, strict=True):
            pairs = flatten_tables({key: value})
            for dotted, v in pairs.items():
                put(cell, dotted, v)
            given |= pairs
            labels.append("_".join(label(k, v) for k, v in pairs.items()) or UNCHANGED)
        yield "/".join(labels), cell, given


def only_run(tables: Mapping[str, Any]) -> Config:
    """Return the Config of tables that describe a single run."""
    if num_runs(tables) > 1:
        raise UserError("expected a single run, but the configuration has a [grid]; choose a run with a setting", "set")
    ((_, config),) = expand(tables)
    return config


def label(key: str, value: Any) -> str:
    """Return a part of a run's folder name: `sage`, `alpha0.1`, `seed7`."""
    last = key.rsplit(".", 1)[-1]
    text = re.sub(r"[^\w.+-]+", "_", str(value).lower() if isinstance(value, bool) else str(value))
    return text.strip(".") if last == "name" else f"{last}{text}"
