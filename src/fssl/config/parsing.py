"""Plain tables in, a Config out: single settings by their schema, combinations by their rules, then numbers."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ..data.shares import implied_labels
from ..errors import UserError, as_typed, unknown
from .conditions import FOUND, KINDS, SCHEMAS, check_rules, keyed, value_of
from .numbers import by_channel, check_numbers
from .schema import called_here, check_table, check_value, schema_of, several_runs
from .settings import SECTIONS, Config, Data, MethodChoice

LEAST_BEGUN = 3  # letters that tell which key was begun: many begin with one, such as that of `-d`
TOP = schema_of(Config)


def parse(tables: Mapping[str, Any]) -> Config:
    """A validated Config from TOML tables without a grid."""
    given = keyed(tables)
    config = with_found(Config(**{key: parse_key(key, value) for key, value in tables.items()}), given)
    check_rules(config, given)
    check_numbers(config)
    return config


def parse_key(key: str, value: Any) -> Any:
    """The checked value of a top-level key: a section, or a single setting."""
    if key == "grid":
        raise UserError("'grid' stands for several runs: `expand` gives the configuration of each")
    if key not in TOP:
        raise unknown("section or key", key, [*TOP, "grid"], keys_named(key))
    if key not in SECTIONS:
        return check_value(key, value, TOP[key])
    if not isinstance(value, Mapping):
        named = isinstance(value, str) and "name" in SCHEMAS[key]
        example = f"{key}.name = {value!r}" if named else f"{key}.<key> = ..."
        raise UserError(f"'{key}' is a section: write [{key}] and its keys below, or {example}")
    return parse_method(value) if key == "method" else parse_section(key, value)


def with_found(config: Config, given: Collection[str]) -> Config:
    """The settings with a 0 for each number that files tell and nobody has given."""
    for key, note in FOUND.items():
        if key not in given and note.is_met(partial(value_of, config)):
            section, _, name = key.partition(".")
            config = replace(config, **{section: replace(getattr(config, section), **{name: 0})})
    return config


def parse_section(section: str, table: Mapping[str, Any]) -> Any:
    if section == "data":
        check_by_channel(table)
    values = check_table(table, SCHEMAS[section], section, elsewhere=partial(keys_like, section))
    if section == "partition":
        values["labels"] = implied_labels(values.get("labels"), values.get("labeled_clients"))
    return KINDS[section](**values)


def check_by_channel(table: Mapping[str, Any]) -> None:
    """Refuse one value where each channel has its own; no schema knows how many an example needs."""
    channels = table.get("channels", Data.channels)
    if type(channels) is not int or channels not in (1, 3):  # which is refused itself
        return
    for key in ("mean", "std"):
        value = table.get(key)
        if value is not None and not isinstance(value, list):
            raise UserError(f"data.{key} = {as_typed(value)}: expected a list of {by_channel(channels)}")


def parse_method(table: Mapping[str, Any]) -> MethodChoice:
    """Name and settings as given; the builders' signatures check them (methods.build_method)."""
    own = {key: value for key, value in table.items() if key in SCHEMAS["method"]}
    settings = {key: value for key, value in table.items() if key not in own}
    for key, value in settings.items():
        if not isinstance(value, bool | int | float | str):
            expected = "expected a number, a string, true or false"
            raise UserError(f"method.{key} = {value!r}: {expected}{several_runs(f'method.{key}', value)}")
    return MethodChoice(settings=tuple(sorted(settings.items())), **check_table(own, SCHEMAS["method"], "method"))


def keys_named(last: str) -> list[str]:
    """Dotted keys that end like this: a user who writes `lr` or `train.alpha` means one of them."""
    own = [last] if last in TOP and last not in SCHEMAS else [f"{last}.name"] if "name" in SCHEMAS.get(last, {}) else []
    return [*own, *(f"{name}.{last}" for name in SCHEMAS if last in SCHEMAS[name])]


def keys_like(section: str, key: str) -> list[str]:
    """What an unknown key of a section may mean: train.epochs is train.local_epochs, or server.epochs.

    A key that begins like this, as train.rounds begins with round, is likelier than those that only end so.
    """
    known = SCHEMAS[section]
    if own := called_here(key, known):
        return [f"{section}.{name}" for name in own]
    begun = [name for name in known if name.startswith(key) and name != key and len(key) >= LEAST_BEGUN]
    alike = begun or [name for name in known if name.endswith(f"_{key}")]
    return [*(f"{section}.{name}" for name in alike), *keys_named(key)]
