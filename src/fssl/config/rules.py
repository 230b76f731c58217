"""Notes that declare, next to a setting's range, when it applies and what it changes.

A section declares them with a decorator: `@rules(beta2=Only("train.optimizer", "adamw"), device=NoResult())`. All notes
on a setting must agree; of the alternatives in one note, `Only(…) | Only(…)`, one is enough. A deciding value that is
unknown, because an axis of a grid or a later step decides it, contradicts nothing.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeVar

from ..errors import any_of, as_typed

UNKNOWN: Final = object()  # a deciding value that is not known yet
NOTHING = (None, False, 0, "none", "off")  # values that mean: not used
Lookup = Callable[[str], Any]  # returns the value of a setting by its dotted name
S = TypeVar("S", bound=type)


class Such(NamedTuple):
    """All values that pass a test, and their description in messages."""

    text: str
    test: Callable[[Any], object]


def matches(values: Sequence[Any], value: Any) -> bool:
    """Return whether a value is among these."""
    return any(bool(v.test(value)) if isinstance(v, Such) else v == value for v in values)


def words(values: Sequence[Any]) -> str:
    """`'constant', 'momentum' or 'adam'`."""
    return any_of(v.text if isinstance(v, Such) else shown(v) for v in values)


def shown(value: Any) -> str:
    """Format a value for messages, numbers in few digits."""
    if isinstance(value, float):
        return f"{value:.12g}"
    return as_typed(list(value) if isinstance(value, tuple) else value)


class Case(NamedTuple):
    """A deciding setting and its matching values; without values it matches if the setting is used at all."""

    key: str
    values: tuple[Any, ...]

    def holds(self, value: Any) -> bool | None:
        """Return whether the deciding value matches; None if it is unknown."""
        if value is UNKNOWN:
            return None
        return matches(self.values, value) if self.values else value not in NOTHING

    def __str__(self) -> str:
        """`use server.optimizer = 'adam'`, or `give privacy.clip`."""
        return f"use {self.key} = {words(self.values)}" if self.values else f"give {self.key}"


class Decided:
    """A note on a setting that other settings decide.

    Args:
        key: The deciding setting, by its dotted name.
        values: Its matching values; without any, it matches if it is used at all.
        of: The values of the declared setting to which the note applies (default: all).
        why: The reason, for messages.
    """

    is_negative: ClassVar[bool] = False  # a matching case contradicts the setting
    gives_way: ClassVar[bool] = False  # a command that sets the deciding setting removes this one from the file

    def __init__(self, key: str, *values: Any, of: tuple[Any, ...] = (), why: str = "") -> None:
        self.cases: tuple[Case, ...] = (Case(key, values),)
        self.of, self.why = of, why

    def __or__(self, other: Self) -> Self:
        either = copy(self)
        either.cases = (*self.cases, *other.cases)
        return either

    def is_met(self, get: Lookup) -> bool | None:
        """Return whether one of the cases matches; None if that depends on unknown values."""
        verdicts = [case.holds(get(case.key)) for case in self.cases]
        return True if True in verdicts else None if None in verdicts else False

    def fails(self, own: Any, get: Lookup) -> bool:
        """Return whether the deciding settings certainly contradict this value of the setting."""
        return (not self.of or matches(self.of, own)) and self.is_met(get) is self.is_negative

    def state(self, get: Lookup) -> str:
        """Describe the deciding settings: `server.optimizer = 'mean'`."""
        known = {case.key: get(case.key) for case in self.cases}
        return " and ".join(f"{k} unset" if v is None else f"{k} = {shown(v)}" for k, v in known.items())

    @property
    def reason(self) -> str:
        return f": {self.why}" if self.why else ""


class Required(Decided):
    """The setting must be given there."""


class Found(Decided):
    """A number that files determine there unless it is given; 0 until they are read."""

    is_negative = gives_way = True


class Idle(Decided):
    """The setting changes nothing there, which is worth a notice."""


class Rule(Decided):
    """A note that can make a setting invalid; the subclasses differ in the consequences."""

    verb: ClassVar[str] = "has no effect with"
    is_strict: ClassVar[bool] = False  # it does not exist there: rejected even at its default, and not recorded

    def message(self, key: str, own: Any, state: str, remedy: str = "") -> str:
        """`server.lr = 0.5 has no effect with server.optimizer = 'mean'; remove it, or use 'momentum' or 'adam'`."""
        return f"{key} = {shown(own)} {self.verb} {state}{self.reason}; remove it{remedy or self.remedy}"

    @property
    def remedy(self) -> str:
        if self.is_negative:
            return ""
        if len(self.cases) == 1 and self.cases[0].values:
            return f", or use {words(self.cases[0].values)}"
        return self.alternatives

    @property
    def alternatives(self) -> str:
        return "".join(f", or {case}" for case in self.cases)


class Only(Rule):
    """The setting refines that choice; elsewhere only its default is accepted."""

    gives_way = True


class Where(Rule):
    """The setting exists only there."""

    is_strict = gives_way = True


class Unless(Where):
    """The setting exists unless the other one replaces it."""

    is_negative = True


class Asks(Rule):
    """A feature that requires another one: commands never drop it silently."""

    verb = "does not work with"

    @property
    def remedy(self) -> str:
        return "" if self.is_negative else self.alternatives


class Not(Asks):
    """Two features that exclude each other."""

    is_negative = True


@dataclass(frozen=True)
class MayChange:
    """A resumed run may change the value; with `finished` also a run that trains no more rounds.

    With `stays`, the recorded value stays if the command gives none.
    """

    finished: bool = False
    stays: bool = False


class NoResult:
    """The setting changes no result: runs that differ in it are comparable."""


class PaperRecipe:
    """A run with another value than the default does not reproduce a run of the SAGE paper."""


Note = Decided | MayChange | NoResult | PaperRecipe
DECLARED: dict[type, dict[str, tuple[Note, ...]]] = {}


def rules(*section: Note, **settings: Note | tuple[Note, ...]) -> Callable[[S], S]:
    """Declare the notes of a class of settings: notes on the whole section, then on single settings."""

    def declare(kind: S) -> S:
        notes = {name: note if isinstance(note, tuple) else (note,) for name, note in settings.items()}
        DECLARED[kind] = {"": section, **notes}
        return kind

    return declare
