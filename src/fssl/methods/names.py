"""All methods and plug-ins by name. A name like 'flexmatch+sage' is a method with a plug-in on it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from ..config import METHOD_KEYS, Config, MethodChoice, Setting, as_declared, called_here, check_value, schema_of
from ..data.cards import Card
from ..errors import UserError, as_typed, nearest, unknown
from ..system.user_code import build, find_function, refuse_without_function, user_file
from .base import Method
from .cbafed import cbafed
from .feddb import feddb
from .feddure import feddure
from .feddure_full import feddure_full
from .fedlabel import fedlabel
from .fedlabel_2m import fedlabel_2m
from .fedloke import fedloke
from .fedmatch import fedmatch
from .fixmatch import fedprox_fixmatch, fixmatch_gpl, fixmatch_lpl
from .flexmatch import flexmatch
from .flfl import flfl
from .freematch import freematch
from .proxyfl import proxyfl
from .rscfed import rscfed
from .sage import is_sage, on_trial, sage, with_oracle, with_sage
from .semifl import semifl
from .supervised import Supervised, fedavg, fedavg_sl, fedprox

__all__ = [
    "FROM_LABELS",
    "METHODS",
    "PLUGINS",
    "Method",
    "build_method",
    "check_effect",
    "defaults_on",
    "find_builders",
    "full_settings",
    "on_trial",
    "replaced_notice",
    "settings_of",
    "split_name",
    "with_defaults",
]

METHODS: dict[str, Callable[..., Method]] = {
    "fedavg": fedavg,
    "fedprox": fedprox,
    "fedavg-sl": fedavg_sl,
    "fixmatch-lpl": fixmatch_lpl,
    "fixmatch-gpl": fixmatch_gpl,
    "fedprox+fixmatch": fedprox_fixmatch,
    "flexmatch": flexmatch,
    "freematch": freematch,
    "fedlabel": fedlabel,
    "fedlabel-2m": fedlabel_2m,
    "feddb": feddb,
    "sage": sage,
    "fedloke": fedloke,
    "proxyfl": proxyfl,
    "feddure": feddure,
    "feddure-full": feddure_full,
    "fedmatch": fedmatch,
    "semifl": semifl,
    "flfl": flfl,
    "cbafed": cbafed,
    "rscfed": rscfed,
}
PLUGINS: dict[str, Callable[..., Method]] = {"sage": with_sage, "oracle": with_oracle}
FROM_LABELS = Supervised(steps="labeled")  # how a server with labels learns, whatever its clients do


def declared_by(name: str) -> dict[str, Setting]:
    """A name's settings as its builders declare them; where two share one, the method's counts."""
    return {key: setting for b in reversed(find_builders(name)) for key, setting in settings_of(b).items()}


def full_settings(choice: MethodChoice, card: Card) -> dict[str, Any]:
    """A method's settings on a dataset: those given, else their defaults; unset ones are left out."""
    schema = declared_by(choice.name)
    given = {k: as_declared(v, schema[k]) if k in schema else v for k, v in choice.settings}
    return {**defaults_on(choice.name, card), **given}  # what does not fit is refused where it is built


def defaults_on(name: str, card: Card) -> dict[str, Any]:
    """The defaults of a method's settings on a dataset; unset ones are left out."""
    defaults = {key: setting.default_on(card) for key, setting in declared_by(name).items()}
    return {k: v for k, v in defaults.items() if v is not None}


def with_defaults(config: Config) -> Config:
    """A recorded run, with the defaults of settings that are newer than it. To read a record runs nobody's file."""
    try:
        settings = config.method.settings
        if not user_file(config.method.name):
            settings = tuple(sorted(full_settings(config.method, config.card).items()))
    except UserError:  # a method that is not known here
        return config
    return replace(config, method=replace(config.method, settings=settings))


def build_method(name: str, settings: Mapping[str, Any]) -> Method:
    """Build the method that a name and its settings stand for.

    Args:
        name: A method of the list, or FILE.py:FUNCTION, with plug-ins or without, such as "flexmatch+sage".
        settings: The builders' keyword arguments; those left out have their defaults.

    Raises:
        UserError: The name, a setting or its value does not fit.

    Examples:
        >>> build_method("sage", {"tau": 0.9}).accept.tau
        0.9
    """
    builders, schema = find_builders(name), declared_by(name)
    values = {}
    for key, value in settings.items():
        if not schema:
            raise UserError(f"method.{key} = {value!r}: method '{name}' has no settings")
        if key not in schema:
            raise unknown(f"setting of method '{name}'", key, schema, called_here(key, schema))
        values[key] = check_setting(value, schema[key])
    first, *plugins = [{k: v for k, v in values.items() if k in settings_of(b)} for b in builders]
    method = build(builders[0], "method", name, **first)
    if not isinstance(method, Method):
        raise UserError(f"method '{name}' is {type(method).__name__!r}, expected a fssl.methods.Method")
    for builder, given in zip(builders[1:], plugins, strict=True):
        method = builder(method, **given)
    return method


def check_effect(runs: Iterable[tuple[Config, Method]]) -> None:
    """Raise if a setting is not the default and yet changes nothing in any of the runs that have it.

    Args:
        runs: Settings as a user gave them, and the method that they build.
    """
    useful: set[str] = set()
    useless: dict[str, str] = {}
    for config, method in runs:
        name, settings = config.method.name, full_settings(config.method, config.card)
        schema = declared_by(name)
        for key, value in config.method.settings:
            if value == schema[key].default or differs_without(key, name, settings, method):
                useful.add(key)
            else:
                useless[key] = (
                    f"method.{key} = {as_typed(value)} changes nothing in '{name}' with these settings; leave it out"
                )
    for key, text in useless.items():
        if key not in useful:
            raise UserError(text)


def differs_without(key: str, name: str, settings: Mapping[str, Any], method: Method) -> bool:
    """Whether a setting makes another method of it; assumed of methods that cannot be compared."""
    if "__eq__" not in vars(type(method)):  # no dataclass of its own, so equality would miss its fields
        return True
    try:
        without = build_method(name, {k: v for k, v in settings.items() if k != key})
        training = {f.name: getattr(method, f.name) for f in fields(Method)}  # what a run has set
        return replace(without, **training) != method
    except RuntimeError:  # tensors among its fields
        return True


def replaced_notice(name: str, method: Method) -> str:
    """A notice that SAGE replaced all of a user's own method; empty if something of it is left."""
    if not user_file(name) or "sage" not in split_name(name)[1] or not is_sage(method):
        return ""
    return f"method '{name}': the plug-in replaces all that the method adds to fixmatch-lpl, so this is SAGE itself"


def split_name(name: str) -> tuple[str, list[str]]:
    """'fedprox+fixmatch+sage' -> ('fedprox+fixmatch', ['sage'])."""
    parts = name.split("+")
    for i in range(len(parts), 0, -1):
        base, plugins = "+".join(parts[:i]), parts[i:]
        if base in METHODS or (i == 1 and user_file(base)):
            for plugin in plugins:
                if plugin in PLUGINS:
                    continue
                if plugin in METHODS:
                    raise UserError(f"method '{name}': {plugin} is a method, not a plug-in; its name alone is enough")
                if not plugin:
                    raise UserError(f"method '{name}': expected a plug-in after each +, such as sage")
                raise unknown("plug-in", plugin, PLUGINS)
            if len(set(plugins)) < len(plugins) or (base == "sage" and "sage" in plugins):
                raise UserError(f"method '{name}' has a plug-in twice")
            return base, plugins
    refuse_without_function("method", name)
    raise unknown("method", name, METHODS, with_plugins(parts))


def with_plugins(parts: Sequence[str]) -> list[str]:
    """What may be meant by a misspelled method with plug-ins: one that looks like it, with the same plug-ins."""
    plugins = [part for part in parts if part in PLUGINS]
    likes = nearest("+".join(part for part in parts if part not in PLUGINS).lower(), sorted(METHODS))
    return ["+".join([like, *plugins]) for like in likes if like not in PLUGINS]


def find_builders(name: str) -> list[Callable[..., Method]]:
    """What makes a method of a name, the method itself first."""
    base, plugins = split_name(name)
    file = user_file(base)
    return [find_function(file, base, "method") if file else METHODS[base], *(PLUGINS[p] for p in plugins)]


def settings_of(builder: Callable[..., Method]) -> dict[str, Setting]:
    """A builder's keyword arguments: the signature is the schema."""
    settings = {key: setting for key, setting in schema_of(builder).items() if not setting.is_required}
    for key in METHOD_KEYS:
        if key in settings:
            kept = f"[method] keeps {', '.join(METHOD_KEYS)} for itself"
            raise UserError(f"{builder.__name__}: its setting '{key}' needs another name; {kept}")
    return settings


def check_setting(value: Any, setting: Setting) -> Any:
    """The value, if it is what the builder declares, which must be something that a name of a run can tell."""
    if setting.many or setting.kind is None or (setting.kind is str and not setting.options):
        raise UserError(
            f"method.{setting.key}: its builder must declare a number, a bool or strings as Literal['a', 'b']"
        )
    return check_value(f"method.{setting.key}", value, setting)
