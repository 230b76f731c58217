"""Plain tables in, a Config out: all validation of user input."""

import json
import math
import types
import unicodedata
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from ..data.shares import MIN_ALPHA, check_shares
from ..errors import UserError, unknown
from ..system.user_code import file_of, refuse_without_function
from .settings import NO_LIMIT, SECTIONS, Config, Data, MethodChoice, Model, useless
from .toml import toml_value

AUTHORS_WAY = "protocol 'authors' carries momentum from client to client"
SYNONYMS = {"gpu": ("cuda",)}  # what people write, and what it is called here
RETIRED = {("partition", "setting", "all-clients")}  # stands in records of earlier versions, and says nothing
T = TypeVar("T")


def parse(tables: Mapping[str, Any]) -> Config:
    """A validated Config from TOML tables without a grid."""
    hints = get_type_hints(Config)
    known = [f.name for f in fields(Config)]
    values: dict[str, Any] = {}
    for key, value in tables.items():
        if key == "grid":
            raise UserError("'grid' stands for several runs: `expand` gives the configuration of each")
        if key not in known:
            raise unknown("section or key", key, [*known, "grid"], keys_named(key))
        if key in SECTIONS:
            if not isinstance(value, Mapping):
                named = isinstance(value, str) and "name" in get_type_hints(hints[key])
                example = f"{key}.name = {value!r}" if named else f"{key}.<key> = ..."
                raise UserError(f"'{key}' is a section: write [{key}] and its keys below, or {example}")
            values[key] = parse_method(value) if key == "method" else parse_section(hints[key], key, value)
        else:
            values[key] = check(key, value, field_of(Config, key), hints[key])
    config = Config(**values)
    if not config.card.is_dealt and "clients" not in tables.get("partition", {}):
        config = replace(config, partition=replace(config.partition, clients=0))  # known once the folder is read
    check_use(config.data.name, tables)
    check_combinations(config)
    return config


def check_use(dataset: str, tables: Mapping[str, Any]) -> None:
    for key in useless(dataset):
        section, _, name = key.partition(".")
        if name in tables.get(section, {}):
            reasons = {
                "folder": "its folders say who holds what and which images are labeled",
                "imagefolder": "classes may differ in size, so give data.labels_per_class",
            }
            why = reasons.get(dataset, "only a folder of your own images has a use for it")
            raise UserError(f"{key} does not go with data.name = '{dataset}': {why}; leave it out")


def parse_section(kind: type[T], section: str, table: Mapping[str, Any]) -> T:
    hints = get_type_hints(kind)
    table = {key: value for key, value in table.items() if (section, key, str(value)) not in RETIRED}
    for key in table:
        if key not in hints:
            raise unknown(f"key in [{section}]", key, hints, keys_named(key))
    values = {k: check(f"{section}.{k}", v, field_of(kind, k), hints[k]) for k, v in table.items()}
    return kind(**values)


def parse_method(table: Mapping[str, Any]) -> MethodChoice:
    """Name and settings as given; the builders' signatures check them (methods.build_method)."""
    name = table.get("name", MethodChoice().name)
    if not isinstance(name, str):
        raise UserError(f"method.name = {name!r}: expected a text{several_runs('method.name', name)}")
    digest = table.get("digest")
    if digest is not None:
        check("method.digest", digest, field_of(Model, "digest"), str)
    settings = {k: v for k, v in table.items() if k not in ("name", "digest")}
    for key, value in settings.items():
        if not isinstance(value, bool | int | float | str):
            expected = "expected a number, a text, true or false"
            raise UserError(f"method.{key} = {value!r}: {expected}{several_runs(f'method.{key}', value)}")
    return MethodChoice(name, tuple(sorted(settings.items())), digest)


def keys_named(last: str) -> list[str]:
    """Dotted keys that end like this: whoever writes `lr` or `train.alpha` means one of them."""
    sections = {name: kind for name, kind in get_type_hints(Config).items() if name in SECTIONS}
    inner = [f"{name}.{f.name}" for name, kind in sections.items() for f in fields(kind)]
    return [key for key in (*get_type_hints(Config), *inner) if key.rsplit(".", 1)[-1] == last]


def field_of(kind: type, key: str) -> Any:
    return next(f for f in fields(kind) if f.name == key)


def check(key: str, value: Any, f: Any, hint: Any) -> Any:
    """The value, if it has the field's type and lies in its range."""
    allowed = [a for a in get_args(hint) if a is not types.NoneType] or [hint]
    if get_origin(allowed[0]) is tuple:
        return check_list(key, value, get_args(allowed[0])[0])
    right_type = type(value) in allowed or (float in allowed and type(value) is int)
    options, own = f.metadata.get("options"), f.metadata.get("own")
    if own and isinstance(value, str):
        refuse_without_function(own, value)
        if file_of(value):
            return value
    if isinstance(value, list) and options:
        raise UserError(f"{key} = {value!r}: expected one of {', '.join(options)}{several_runs(key, value)}")
    if options and (not right_type or value not in options):
        raise unknown(key, value, options, SYNONYMS.get(value, ()) if isinstance(value, str) else ())
    if not right_type:
        names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
        raise UserError(f"{key} = {value!r}: expected {names[allowed[0]]}{several_runs(key, value)}")
    low, high = f.metadata.get("low"), f.metadata.get("high")
    if low is not None and not low <= value <= high:  # also refuses nan
        upper = f" to {high:.12g}" if high < NO_LIMIT or value > high else " upwards"
        raise UserError(f"{key} = {value!r}: expected a number from {low:g}{upper}")
    return float(value) if float in allowed else value


def several_runs(key: str, value: object) -> str:
    """What whoever gives a list where a value is expected may mean, with brackets or without."""
    if isinstance(value, str) and "," in value:
        value = [toml_value(part.strip()) for part in value.split(",")]
    is_list = isinstance(value, list) and all(
        isinstance(v, int | str) or (isinstance(v, float) and math.isfinite(v)) for v in value
    )
    return f"; for several runs, --set 'grid.{key}={json.dumps(value)}'" if is_list else ""


def check_list(key: str, value: Any, kind: type) -> tuple[Any, ...]:
    fits = isinstance(value, list) and value and all(type(v) in (kind, int if kind is float else kind) for v in value)
    if not fits:
        example = '["cat", "dog"]' if kind is str else "[0.5, 0.5, 0.5]"
        raise UserError(f"{key} = {value!r}: expected a list of {'texts' if kind is str else 'numbers'} like {example}")
    return tuple(unicodedata.normalize("NFC", v) if kind is str else kind(v) for v in value)


def check_combinations(config: Config) -> None:
    """What no single key shows."""
    part, train = config.partition, config.train
    if config.card.is_folder:
        check_folder(config.data)
    if config.card.is_dealt:
        check_dealing(config)
    if part.clients and train.clients_per_round > part.clients:
        raise UserError(
            f"train.clients_per_round = {train.clients_per_round} is more than partition.clients = {part.clients}"
        )
    if len({file.resolve() for file in config.own_files}) > len({file.name for file in config.own_files}):
        raise UserError("method.name and model.name: the run folder keeps both files, so give them two names")
    if config.privacy.noise and config.privacy.clip is None:
        raise UserError(
            f"privacy.noise = {config.privacy.noise:g}: noise is a multiple of privacy.clip, which is unset"
        )
    if config.protocol == "authors" and config.compute.engine != "local":
        raise UserError(f"{AUTHORS_WAY}: compute.engine must be 'local'")
    if config.protocol == "authors" and (config.compute.lanes or 1) > 1:
        raise UserError(f"{AUTHORS_WAY}: compute.lanes must be 1")
    if config.protocol == "authors" and train.labeled_weight:
        raise UserError(f"train.labeled_weight = {train.labeled_weight}: protocol 'authors' has its own; leave it out")


def check_folder(data: Data) -> None:
    if data.channels == 2:
        raise UserError("data.channels = 2: expected 3 (color) or 1 (grey)")
    if data.classes is not None:
        names = data.classes
        if len(names) < 2 or len(set(names)) < len(names) or not all(name and name.isprintable() for name in names):
            raise UserError(f"data.classes = {list(names)}: expected two or more different names")
    for key, values in (("mean", data.mean), ("std", data.std)):
        low = 0.0 if key == "mean" else 1e-6
        if values and (len(values) != data.channels or not all(low <= v <= 1 for v in values)):
            raise UserError(
                f"data.{key} = {list(values)}: expected {data.channels} numbers from {low:g} to 1, one per channel"
            )


def check_dealing(config: Config) -> None:
    """Labels and clients of a dataset that is dealt out."""
    data, part, card = config.data, config.partition, config.card
    if data.labels_per_class is not None and data.label_fraction is not None:
        raise UserError("data.labels_per_class and data.label_fraction exclude each other: give one")
    if data.label_fraction == 0:
        raise UserError("data.label_fraction = 0: every client needs labels; expected a share above 0")
    if part.kind != "iid" and part.alpha < MIN_ALPHA and (part.alpha > 0 or part.kind == "dirichlet"):
        raise UserError(
            f"partition.alpha = {part.alpha:g}: {part.kind} expects at least {MIN_ALPHA}, below which hardly any skew"
            " is added; for an even split use partition.kind = 'iid'"
        )
    if card.is_folder:  # the rest is known once it is read
        if data.labels_per_class is None:
            raise UserError(
                f"data.name = '{data.name}' needs data.labels_per_class: how many of each class are labeled"
            )
        return
    if config.labels_per_class > card.per_class_base:
        raise UserError(
            f"data.labels_per_class = {config.labels_per_class}: expected at most {card.per_class_base},"
            f" what {data.name} has per class"
        )
    num_labeled = config.labels_per_class * card.num_classes
    check_shares(part.kind, part.clients, part.labeled_clients, num_labeled, card.num_train)
