"""A run's configuration: declared in settings, read from TOML, changed with --set, multiplied by [grid], checked."""

from .checks import AUTHORS_WAY, check_shares, parse, several_runs
from .grid import axes_of, expand, only_run, override
from .settings import MIN_ALPHA, NO_LIMIT, Config, MethodChoice
from .tables import as_tables, first_difference, flatten, resolved
from .toml import PRESETS, load_toml, presets, read_toml, to_toml

__all__ = [
    "AUTHORS_WAY",
    "MIN_ALPHA",
    "NO_LIMIT",
    "PRESETS",
    "Config",
    "MethodChoice",
    "as_tables",
    "axes_of",
    "check_shares",
    "expand",
    "first_difference",
    "flatten",
    "load_toml",
    "only_run",
    "override",
    "parse",
    "presets",
    "read_toml",
    "resolved",
    "several_runs",
    "to_toml",
]
