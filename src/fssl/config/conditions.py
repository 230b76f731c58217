"""Evaluate the rules of all settings: which are invalid, which are dropped, and which runs are comparable."""

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar, get_type_hints

from ..data.shares import implied_labels
from ..errors import UserError
from .rules import DECLARED, UNKNOWN, Decided, Found, Idle, Lookup, NoResult, Note, Only, Required, Rule, shown
from .schema import schema_of
from .settings import SECTIONS, Config

N = TypeVar("N", bound=Note)
KINDS = {name: kind for name, kind in get_type_hints(Config).items() if name in SECTIONS}
SCHEMAS = {name: {k: s for k, s in schema_of(kind).items() if s.kind} for name, kind in KINDS.items()}
NOTES: dict[str, tuple[Note, ...]] = {  # by dotted name; notes on a whole section by the section's name
    f"{section}.{name}".strip("."): notes
    for section, kind in {"": Config, **KINDS}.items()
    for name, notes in DECLARED.get(kind, {}).items()
}
USUAL = Config()


def noted(kind: type[N]) -> Iterator[tuple[str, N]]:
    """Yield every note of a kind, with its setting."""
    return ((key, note) for key, notes in NOTES.items() for note in notes if isinstance(note, kind))


RULES = {key: [note for note in notes if isinstance(note, Rule)] for key, notes in NOTES.items()}
FOUND = dict(noted(Found))
DECIDED_BY: dict[str, list[tuple[str, Decided]]] = {}  # settings with their notes, by the setting that decides them
for setting, decided in noted(Decided):
    for decider in {case.key for case in decided.cases}:
        DECIDED_BY.setdefault(decider, []).append((setting, decided))


def value_of(config: Config, key: str) -> Any:
    """Return a setting's value by its dotted name; UNKNOWN for a fact that is known only later."""
    section, _, name = key.rpartition(".")
    return getattr(getattr(config, section, None) if section else config, name, UNKNOWN)


def is_usual(config: Config, key: str) -> bool:
    return bool(value_of(config, key) == value_of(USUAL, key))


def applies(config: Config, key: str) -> bool:
    """Return whether a setting applies under the other settings."""
    get = partial(value_of, config)
    return not any(rule.gives_way and rule.fails(get(key), get) for rule in RULES.get(key, ()))


# One check.


def check_rules(config: Config, given: Collection[str]) -> None:
    """Reject given settings that do not apply, and missing ones that other settings need."""
    get = partial(value_of, config)
    for key, rules in RULES.items():  # in order of declaration, so that two settings always give the same message
        for rule in rules if key in given else ():
            if (rule.is_strict or not is_usual(config, key)) and rule.fails(get(key), get):
                raise UserError(rule.message(key, get(key), rule.state(get)))
    for decider in given:
        check_required(config, decider, get)


def check_required(config: Config, decider: str, get: Lookup, state: str = "") -> None:
    """Reject a missing setting that this one needs."""
    for key, note in DECIDED_BY.get(decider, ()):
        if isinstance(note, Required) and get(key) is None and note.is_met(get) and applies(config, key):
            raise UserError(f"{state or note.state(get)} needs {key}{note.reason}")


def check_fact(config: Config, fact: str, value: str, state: str, remedy: str = "") -> None:
    """Reject settings that contradict a fact which was unknown when they were parsed.

    Args:
        config: The settings.
        fact: The fact's name in the rules.
        value: Its value.
        state: What messages call it.
        remedy: Advice in messages, in addition to removing the setting.
    """

    def get(key: str) -> Any:
        return value if key == fact else value_of(config, key)

    for key, rule in DECIDED_BY.get(fact, ()):
        if isinstance(rule, Rule) and not is_usual(config, key) and rule.fails(get(key), get):
            raise UserError(rule.message(key, get(key), state, remedy))
    check_required(config, fact, get, state)


def idle_settings(config: Config, fact: str, value: str) -> list[str]:
    """Return the settings, with their values, that have no effect with a fact."""
    idle = [key for key, note in DECIDED_BY.get(fact, ()) if isinstance(note, Idle) and note.cases[0].holds(value)]
    return [f"{key} = {shown(value_of(config, key))}" for key in idle if not is_usual(config, key)]


# One rule for overrides.


def raw_value(tables: Mapping[str, Any], key: str) -> Any:
    """Return a setting's value in unchecked tables, or its default."""
    section, _, name = key.rpartition(".")
    table = tables.get(section, {}) if section else tables
    if not isinstance(table, Mapping):
        return UNKNOWN
    if key == "partition.labels":
        return implied_labels(table.get(name), table.get("labeled_clients"))
    return table.get(name, value_of(USUAL, key))


def flatten_tables(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted name, with tables flattened."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        flat |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, Mapping) else {key: value}
    return flat


def dropped_settings(tables: Mapping[str, Any], given: Collection[str]) -> list[str]:
    """Return settings of the tables that no longer apply because of the given ones, which stay."""
    there, gone, waiting = flatten_tables(tables), list[str](), list(given)

    def get(key: str) -> Any:
        return value_of(USUAL, key) if key in gone else raw_value(tables, key)

    while waiting:
        for key, note in DECIDED_BY.get(waiting.pop(), ()):
            if note.gives_way and key in there and key not in {*given, *gone} and note.fails(get(key), get):
                gone.append(key)
                waiting.append(key)
    return gone


def omitted_settings(config: Config) -> list[str]:
    """Return settings that a record omits: they do not apply, or follow from the others."""
    get = partial(value_of, config)
    gone = [key for key, rules in RULES.items() if any(rule.is_strict and rule.fails(get(key), get) for rule in rules)]
    implied = [] if config.partition.labels in ("knowing-clients", "server") else ["partition.labels"]
    return [*gone, *implied, *(key for key in FOUND if not get(key))]  # labeled_clients implies them


# One notion of comparable runs.


def changes_results(key: str) -> bool:
    """Return whether a setting can change results: no note on it or its section denies it."""
    notes = (*NOTES.get(key, ()), *NOTES.get(key.partition(".")[0], ()))
    return not any(isinstance(note, NoResult) for note in notes)


def matters(config: Config, key: str) -> bool:
    """Return whether a setting can change this run's results."""
    return changes_results(key) and applies(config, key)


def usual(key: str) -> Any:
    """Return a setting's default; None for a method's setting."""
    return None if key.startswith("method.") else value_of(USUAL, key)


def parts_of(key: str) -> list[str]:
    """Return the settings that apply only with another one."""
    return [part for part, note in noted(Only) if key in (case.key for case in note.cases)]


def chosen_parts(config: Config, key: str) -> dict[str, Any]:
    """Return the settings that apply only with another one and differ from their defaults."""
    parts = {part: value_of(config, part) for part in parts_of(key) if not is_usual(config, part)}
    return {part: value for part, value in parts.items() if not part.endswith("digest")}
