"""A run's configuration: declared in settings, read from TOML, changed with --set, multiplied by [grid], checked."""

from .checks import AUTHORS_WAY, parse, several_runs
from .grid import axes_of, expand, only_run, override
from .settings import NO_LIMIT, Config, MethodChoice
from .tables import as_tables, by_card, first_difference, flatten
from .toml import PRESETS, load_toml, presets, read_toml, to_toml

__all__ = [
    "AUTHORS_WAY",
    "NO_LIMIT",
    "PRESETS",
    "Config",
    "MethodChoice",
    "as_tables",
    "axes_of",
    "by_card",
    "expand",
    "first_difference",
    "flatten",
    "load_toml",
    "only_run",
    "override",
    "parse",
    "presets",
    "read_toml",
    "several_runs",
    "to_toml",
]
