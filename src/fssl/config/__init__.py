"""A run's configuration: declared in settings, read from TOML, changed with --set, multiplied by [grid], checked."""

from .conditions import applies, check_fact
from .flat import as_tables, by_card, first_difference, flatten, late_changes, renewed, run_id
from .grid import check_size, expand, grid_axes, num_runs, only_run, override
from .parsing import keys_like, parse
from .registry import SOURCES, Registry, Source
from .schema import ByDataset, OneOf, Range, Setting, check_table, check_value, schema_of
from .settings import (
    ENGINE,
    MANY,
    METHOD_KEYS,
    OWN_IMAGES,
    STEPS,
    Compute,
    Config,
    Data,
    Device,
    Headline,
    MethodChoice,
    Model,
    PartitionChoice,
    usual_batch,
)
from .toml import PRESETS, load_toml, not_found, parse_toml, presets, read_toml, to_toml, toml_text
