"""Resolve a method's name: the method and its plug-ins, with the settings that they declare.

A name like 'flexmatch+sage' is a method with a plug-in on it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from ..data.cards import Card
from ..errors import UserError, nearest, unknown
from ..system.user_code import is_users, refuse_without_function
from .schema import Setting, as_declared, check_value, our_names
from .settings import MethodChoice

T = TypeVar("T")
AnyBuilder = TypeVar("AnyBuilder", bound=Callable[..., Any])
Follows = Literal["released code", "paper", "reconstruction"]


@dataclass(frozen=True)
class Source:
    """The origin of a method, and the facts about it that cannot be measured (fssl.catalog measures the others)."""

    paper: str
    follows: Follows  # what decides labels, losses and means; batches and optimizer always follow the protocol
    page: str = ""  # in docs/methods; default: the builder's name
    label: str = ""  # its name for readers; default: the method's name
    look: str = ""  # color, line and marker in pictures, such as "blue dash cross"; default: an unused one
    client: str = ""  # stays with a client between rounds
    server: str = ""  # kept by the server in addition to the model
    note: str = ""

    def __call__(self, builder: AnyBuilder) -> AnyBuilder:
        """Register this source for a method's builder, as a decorator."""
        page = self.page or builder.__name__.replace("_", "-")
        SOURCES[builder] = replace(self, page=page)
        return builder


SOURCES: dict[Callable[..., Any], Source] = {}


@dataclass(frozen=True)
class Registry(Generic[T]):
    """All methods and plug-ins by name. Each value is of one type: a builder, or the facts about it.

    Args:
        methods: Methods by name.
        plugins: Plug-ins by name.
        settings_of: Returns the settings that a value declares.
        own: Returns the value for a user's method.
    """

    methods: Mapping[str, T]
    plugins: Mapping[str, T]
    settings_of: Callable[[T], dict[str, Setting]]
    own: Callable[[str], T]

    def split(self, name: str) -> tuple[str, list[str]]:
        """'fedprox+fixmatch+sage' -> ('fedprox+fixmatch', ['sage'])."""
        parts = name.split("+")
        for i in range(len(parts), 0, -1):
            base, plugins = "+".join(parts[:i]), parts[i:]
            if base in self.methods or (i == 1 and is_users(base)):
                self._check_plugins(name, base, plugins)
                return base, plugins
        refuse_without_function("method", name)
        raise unknown("method", name, self.methods, self._with_plugins(parts))

    def _check_plugins(self, name: str, base: str, plugins: Sequence[str]) -> None:
        for plugin in plugins:
            if plugin in self.plugins:
                continue
            if plugin in self.methods:
                raise UserError(f"method '{name}': {plugin} is a method, not a plug-in; use method.name = '{plugin}'")
            if not plugin:
                raise UserError(f"method '{name}': expected a plug-in after each +, such as sage")
            raise unknown("plug-in", plugin, self.plugins)
        if len(set(plugins)) < len(plugins) or (base == "sage" and "sage" in plugins):
            raise UserError(f"method '{name}' repeats a plug-in; name each one once")

    def _with_plugins(self, parts: Sequence[str]) -> list[str]:
        """Suggest a similar method for a misspelled name, with the same plug-ins."""
        plugins = [part for part in parts if part in self.plugins]
        likes = nearest("+".join(part for part in parts if part not in self.plugins).lower(), sorted(self.methods))
        return ["+".join([like, *plugins]) for like in likes if like not in self.plugins]

    def find(self, name: str) -> list[T]:
        """Return the method that a name stands for, then its plug-ins."""
        base, plugins = self.split(name)
        return [self.own(base) if is_users(base) else self.methods[base], *(self.plugins[p] for p in plugins)]

    def declared_by(self, name: str) -> dict[str, Setting]:
        """Return the settings of a name; if a method and a plug-in share one, the method's is used."""
        return {key: setting for each in reversed(self.find(name)) for key, setting in self.settings_of(each).items()}

    def defaults_on(self, name: str, card: Card) -> dict[str, Any]:
        """Return the defaults of a method's settings on a dataset, without unset ones."""
        defaults = {key: setting.default_on(card) for key, setting in self.declared_by(name).items()}
        return {k: v for k, v in defaults.items() if v is not None}

    def full_settings(self, choice: MethodChoice, card: Card) -> dict[str, Any]:
        """Return a method's given settings on a dataset, completed with defaults, without unset ones."""
        schema = self.declared_by(choice.name)
        given = {k: as_declared(v, schema[k]) if k in schema else v for k, v in choice.settings}
        return {**self.defaults_on(choice.name, card), **given}  # `checked` rejects invalid settings

    def checked(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings in their declared types; reject unknown settings and invalid values."""
        schema, values = self.declared_by(name), {}
        for key, value in settings.items():
            if not schema:
                raise UserError(f"method.{key} = {value!r}: method '{name}' has no settings; remove it")
            if key not in schema:
                raise unknown(f"setting of method '{name}'", key, schema, our_names(key, schema))
            values[key] = check_setting(value, schema[key])
        return values


def check_setting(value: Any, setting: Setting) -> Any:
    """Return a checked value. Its type must be one that can appear in the name of a run."""
    if setting.many or setting.kind is None or (setting.kind is str and not setting.options):
        raise UserError(f"method.{setting.key}: unsupported type; annotate it as bool, int, float or Literal['a', 'b']")
    return check_value(f"method.{setting.key}", value, setting)
