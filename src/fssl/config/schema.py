"""The type and range of a setting, read from the signature that takes it, and the check of values against them.

A signature declares them with `Annotated`: `tau: Annotated[float, Range(0.0, 1.0), "least confidence"] = 0.95`.
"""

import inspect
import json
import math
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from ..data.cards import Card
from ..errors import UserError, as_typed, error_text, unknown
from ..system.user_code import refuse_without_function, user_file
from .toml import toml_value

NO_LIMIT = 1e30  # the limit of single precision; inf is out of every range
SYNONYMS = {"gpu": ("cuda",), "f1": ("macro_f1",)}  # common other names of values, and fssl's
KEYS = {"learning_rate": "lr", "batch_size": "batch", "threshold": "tau"}  # common other names of settings, and fssl's
WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
EXAMPLES = {int: "numbers like [1, 2]", float: "numbers like [0.5, 0.5, 0.5]", str: 'strings like ["a", "b"]'}
T = TypeVar("T")


@dataclass(frozen=True)
class Range:
    """The lowest and the highest number, both allowed."""

    low: float
    high: float = NO_LIMIT

    def __str__(self) -> str:
        return format(self)

    def __format__(self, digits: str) -> str:
        """Return `0 to 1`, or `0 upwards`; the format says how many digits."""
        digits = digits or ".12g"
        return f"{self.low:{digits}} {'upwards' if self.high >= NO_LIMIT else f'to {self.high:{digits}}'}"


@dataclass(frozen=True)
class OneOf:
    """Allowed strings that `Literal` cannot list.

    With `own`, FILE.py:FUNCTION is allowed as well, and `own` is its name in messages. With `prefix`, any name after
    one of these prefixes is allowed. `also` describes in messages what is not listed.
    """

    options: tuple[str, ...]
    own: str = ""
    prefix: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class ByDataset:
    """A default that depends on the dataset; None while it is unknown (a folder's classes before it is read)."""

    decide: Callable[[Card], Any]


@dataclass(frozen=True)
class Filled:
    """Who writes the setting, for the page that lists all settings."""

    by: str


@dataclass(frozen=True)
class Setting:
    """One argument of a signature."""

    key: str
    kind: type | None  # bool, int, float or str, of each value in a list; None: a type that no file can give
    default: Any = inspect.Parameter.empty
    many: type | None = None  # list or tuple, for several values
    is_optional: bool = False
    limits: Range | None = None
    choice: OneOf = OneOf(())
    by_dataset: ByDataset | None = None
    filled: Filled | None = None
    help: str = ""

    @property
    def options(self) -> tuple[str, ...]:
        """Return the allowed strings that can be listed."""
        return self.choice.options

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty

    def default_on(self, card: Card) -> Any:
        """Return the default for runs on this dataset."""
        return self.by_dataset.decide(card) if self.by_dataset else self.default


def schema_of(target: Callable[..., Any]) -> dict[str, Setting]:
    """Return the settings of a function, dataclass or named tuple."""
    name = getattr(target, "__name__", target)
    try:
        parameters = inspect.signature(target, eval_str=True).parameters
    except (AttributeError, NameError, SyntaxError, TypeError) as error:  # types that are written as strings
        raise UserError(f"{name}: cannot read the types of its settings: {error_text(error)}") from error
    settings = {key: setting_of(parameter) for key, parameter in parameters.items()}
    for key, limits in ((key, setting.limits) for key, setting in settings.items()):
        if limits and not limits.low <= limits.high:  # also rejects nan
            raise UserError(
                f"{name}: setting '{key}' has the empty Range({limits.low:g}, {limits.high:g}); write the lowest number"
                " first"
            )
    return settings


def setting_of(parameter: inspect.Parameter) -> Setting:
    """Return the setting that a parameter's annotation and default declare."""
    hints, notes = parts_of(parameter.annotation)
    kinds = [hint for hint in hints if hint is not NoneType]
    kind, many, literals = kind_of(kinds)
    return Setting(
        key=parameter.name,
        kind=kind,
        default=parameter.default,
        many=many,
        is_optional=len(kinds) < len(hints),
        limits=last(Range, notes),
        choice=last(OneOf, notes) or OneOf(literals),
        by_dataset=last(ByDataset, notes),
        filled=last(Filled, notes),
        help=last(str, notes) or "",
    )


def parts_of(hint: Any) -> tuple[list[Any], list[Any]]:
    """Return the types that an annotation allows, and its notes, the outermost last."""
    if get_origin(hint) is Annotated:
        inner, *outer = get_args(hint)
        hints, notes = parts_of(inner)
        return hints, [*notes, *outer]
    if get_origin(hint) in (Union, UnionType):
        parts = [parts_of(arg) for arg in get_args(hint)]
        return [h for hints, _ in parts for h in hints], [n for _, notes in parts for n in notes]
    return [hint], []


def kind_of(hints: list[Any]) -> tuple[type | None, type | None, tuple[str, ...]]:
    """Return the type of a value, the type of a list of values, and the allowed strings."""
    if float in hints and all(hint in (int, float) for hint in hints):
        return float, None, ()
    if len(hints) != 1:
        return None, None, ()
    (hint,) = hints
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal and all(isinstance(arg, str) for arg in args):
        return str, None, args
    if origin in (list, tuple) and args[0] in EXAMPLES and args[1:] in ((), (...,)):
        return args[0], origin, ()
    return (hint if hint in WORDS else None), None, ()


def last(kind: type[T], notes: Iterable[Any]) -> T | None:
    """Return the last note of a kind: one added to an alias overrides the alias's own."""
    return next((note for note in reversed(list(notes)) if isinstance(note, kind)), None)


def check_table(
    table: Mapping[str, Any],
    schema: Mapping[str, Setting],
    section: str = "",
    where: str = "",
    elsewhere: Callable[[str], Iterable[str]] = lambda key: (),
) -> dict[str, Any]:
    """Return the values of a table in their declared types; reject unknown and missing keys.

    Args:
        table: Keys and values from TOML.
        schema: The declared settings.
        section: The table's name in a configuration.
        where: See `check_value`.
        elsewhere: Returns further suggestions for an unknown key.
    """
    for key in table:
        if key not in schema:
            raise unknown(f"{where}key" + (f" in [{section}]" if section else ""), key, schema, elsewhere(key))
    prefix = f"{section}." if section else ""
    values = {key: check_value(prefix + key, value, schema[key], where) for key, value in table.items()}
    for key, setting in schema.items():
        if setting.is_required and key not in table:
            raise UserError(f"{where}{prefix}{key} is missing")
    return values


def our_names(key: str, schema: Iterable[str]) -> list[str]:
    """Return fssl's name of a setting that other tools name `key`, as a list; empty if there is none."""
    return [name for name in schema if name == KEYS.get(key)]


def check_value(key: str, value: Any, setting: Setting, where: str = "") -> Any:
    """Return the value in its declared type; raise UserError if it is invalid.

    Args:
        key: Its name in messages, such as `train.lr`.
        value: The value from TOML or Python.
        setting: The declared setting.
        where: The beginning of messages, for files that describe no runs; then there is no hint about grids.
    """
    if value is None and setting.is_optional:
        return None
    start, runs = f"{where}{key} = {as_typed(value)}: expected", "" if where else several_runs(key, value)
    if setting.many:
        return check_list(key, value, setting, where)
    if isinstance(value, str) and setting.kind is str:
        check_text(start, value)
    if is_named(value, setting.choice):
        return value
    if options := setting.options:
        if isinstance(value, list):
            raise UserError(f"{start} one of {', '.join(options)}{runs}")
        if value not in options:
            synonyms = SYNONYMS.get(value, ()) if isinstance(value, str) else ()
            raise unknown(f"{where}{key}", value, (*options, *setting.choice.also), synonyms)
        return value
    if setting.kind is None:
        raise UserError(f"{where}{key}: unsupported type; annotate it as bool, int, float or Literal")
    if not has_kind(value, setting.kind):
        raise UserError(f"{start} {WORDS[setting.kind]}{runs}")
    if setting.kind in (int, float):
        check_number(start, value, setting.limits)
    return as_declared(value, setting)


def is_named(value: object, choice: OneOf) -> bool:
    """Return whether a value names something unlisted: a user's function, or one of a library."""
    if not isinstance(value, str):
        return False
    if choice.own:
        refuse_without_function(choice.own, value)
    return bool(choice.own and user_file(value)) or value.startswith(choice.prefix)


def check_list(key: str, value: Any, setting: Setting, where: str) -> Any:
    """Return the values of a list in its declared type; an empty list is invalid."""
    kind = setting.kind
    assert kind is not None
    assert setting.many is not None
    if not (isinstance(value, list) and value and all(has_kind(v, kind) for v in value)):
        raise UserError(f"{where}{key} = {value!r}: expected a list of {EXAMPLES[kind]}")
    one = replace(setting, many=None)
    return setting.many(
        unicodedata.normalize("NFC", v) if kind is str else v for v in (check_value(key, v, one, where) for v in value)
    )


def check_text(start: str, value: str) -> None:
    """Reject text that a record cannot hold, or that cannot be a file's name."""
    if "\0" in value:
        raise UserError(f"{start} text without a null character")
    try:
        value.encode()
    except UnicodeEncodeError:  # a file name in another encoding
        raise UserError(f"{start} UTF-8 text; rename the file or folder, or link to it under another name") from None


def check_number(start: str, value: float, limits: Range | None) -> None:
    if limits and not limits.low <= value <= limits.high:  # also rejects nan
        allowed = f"{limits.low:.12g} to {limits.high:.12g}" if value > limits.high else limits
        raise UserError(f"{start} a number from {allowed}")
    if not is_finite(value):
        raise UserError(f"{start} a finite number")
    if 0 < abs(value) < 1 / NO_LIMIT:
        raise UserError(f"{start} 0, or an absolute value of at least {1 / NO_LIMIT:g}")


def is_finite(value: float) -> bool:
    """Return whether a float can hold the value: integers are unbounded, and comparisons with nan are false."""
    return abs(value) <= sys.float_info.max


def has_kind(value: object, kind: type) -> bool:
    """Return whether a value is of this type: a whole number is also a number, a bool is neither."""
    return type(value) is kind or (kind is float and type(value) is int)


def as_declared(value: Any, setting: Setting) -> Any:
    """Return a number declared as float as a float without negative zero: 4 and 4.0 are one setting."""
    return value + 0.0 if setting.kind is float and type(value) in (int, float) and is_finite(value) else value


def as_list(value: object) -> object:
    """Return a list for text like `7,8,9`, which is meant as one; other values unchanged."""
    if isinstance(value, str) and "," in value:
        return [toml_value(part.strip()) for part in value.split(",")]
    return value


def several_runs(key: str, value: object) -> str:
    """Return a hint for a user who passed a list, with brackets or without, where one value is expected."""
    value = as_list(value)
    is_list = isinstance(value, list) and all(
        isinstance(v, int | str) or (isinstance(v, float) and math.isfinite(v)) for v in value
    )
    return f"; for several runs use 'grid.{key}={json.dumps(value)}'" if is_list else ""
