"""All methods and plug-ins by name. A name like 'flexmatch+sage' is a method with a plug-in on it."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_args, get_origin

from ..errors import UserError, unknown
from .base import Method, Sgd
from .fixmatch import fedprox_fixmatch, fixmatch_gpl, fixmatch_lpl
from .flexmatch import flexmatch
from .sage import sage, with_oracle, with_sage
from .supervised import fedavg, fedavg_sl, fedprox

__all__ = ["METHODS", "PLUGINS", "Method", "Sgd", "build_method"]

METHODS: dict[str, Callable[..., Method]] = {
    "fedavg": fedavg,
    "fedprox": fedprox,
    "fedavg-sl": fedavg_sl,
    "fixmatch-lpl": fixmatch_lpl,
    "fixmatch-gpl": fixmatch_gpl,
    "fedprox+fixmatch": fedprox_fixmatch,
    "flexmatch": flexmatch,
    "sage": sage,
}
PLUGINS: dict[str, Callable[..., Method]] = {"sage": with_sage, "oracle": with_oracle}

# What a setting may be, whichever builder takes it: (lowest, highest), both allowed.
RANGES = {
    "tau": (1e-9, 1.0),
    "kappa": (0.0, 1e9),
    "mu_u": (0.0, 1e6),
    "mu_prox": (0.0, 1e6),
    "lam": (0.0, 1.0),
}


def build_method(name: str, settings: Mapping[str, Any]) -> Method:
    """The method a name and its settings stand for; anything that does not fit is a UserError."""
    base, plugins = split_name(name)
    builders = [METHODS[base], *(PLUGINS[p] for p in plugins)]
    schemas = [settings_of(b) for b in builders]
    known = {key for schema in schemas for key in schema}
    for key, value in settings.items():
        if key not in known:
            raise unknown(f"setting of method '{name}'", key, known)
        check_setting(key, value, next(s[key] for s in schemas if key in s))
    method = builders[0](**{k: v for k, v in settings.items() if k in schemas[0]})
    for builder, schema in zip(builders[1:], schemas[1:], strict=True):
        method = builder(method, **{k: v for k, v in settings.items() if k in schema})
    return method


def split_name(name: str) -> tuple[str, list[str]]:
    """'fedprox+fixmatch+sage' -> ('fedprox+fixmatch', ['sage'])."""
    parts = name.split("+")
    for i in range(len(parts), 0, -1):
        base, plugins = "+".join(parts[:i]), parts[i:]
        if base in METHODS:
            for plugin in plugins:
                if plugin not in PLUGINS:
                    raise unknown("plug-in", plugin, PLUGINS)
            return base, plugins
    raise unknown("method", name, METHODS)


def settings_of(builder: Callable[..., Method]) -> dict[str, inspect.Parameter]:
    """A builder's keyword arguments: the signature is the schema."""
    parameters = inspect.signature(builder).parameters
    return {key: p for key, p in parameters.items() if p.default is not inspect.Parameter.empty}


def check_setting(key: str, value: object, parameter: inspect.Parameter) -> None:
    """Raise unless the value has the parameter's type and lies in its range."""
    expected = parameter.annotation
    if get_origin(expected) is not None and all(isinstance(a, str) for a in get_args(expected)):
        if value not in get_args(expected):
            raise unknown(f"method.{key}", value, get_args(expected))
    elif expected is bool:
        if not isinstance(value, bool):
            raise UserError(f"method.{key} = {value!r}: expected true or false")
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"method.{key} = {value!r}: expected a number")
    elif key in RANGES and not RANGES[key][0] <= value <= RANGES[key][1]:
        low, high = RANGES[key]
        raise UserError(f"method.{key} = {value!r}: expected a number from {low:g} to {high:g}")
