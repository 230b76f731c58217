"""A run's configuration: declared in settings, read from TOML, changed with --set, multiplied by [grid], checked."""

from .checks import AUTHORS_WAY, parse
from .grid import check_size, expand, grid_axes, num_runs, only_run, override
from .schema import ByDataset, OneOf, Range, Setting, as_declared, check_table, check_value, schema_of
from .settings import (
    MANY,
    Compute,
    Config,
    Device,
    Headline,
    MethodChoice,
    Model,
    Partition,
    ServerChoice,
    Train,
    usual_batch,
)
from .tables import as_tables, by_card, first_difference, flatten, late_changes, renewed, run_id
from .toml import PRESETS, load_toml, not_found, parse_toml, presets, read_toml, to_toml

__all__ = [
    "AUTHORS_WAY",
    "MANY",
    "PRESETS",
    "ByDataset",
    "Compute",
    "Config",
    "Device",
    "Headline",
    "MethodChoice",
    "Model",
    "OneOf",
    "Partition",
    "Range",
    "ServerChoice",
    "Setting",
    "Train",
    "as_declared",
    "as_tables",
    "by_card",
    "check_size",
    "check_table",
    "check_value",
    "expand",
    "first_difference",
    "flatten",
    "grid_axes",
    "late_changes",
    "load_toml",
    "not_found",
    "num_runs",
    "only_run",
    "override",
    "parse",
    "parse_toml",
    "presets",
    "read_toml",
    "renewed",
    "run_id",
    "schema_of",
    "to_toml",
    "usual_batch",
]
