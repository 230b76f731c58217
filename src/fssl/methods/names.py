"""All methods and plug-ins by name. A name like 'flexmatch+sage' is a method with a plug-in on it."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, get_args, get_origin

from ..config import Config, MethodChoice, several_runs
from ..data.cards import Card
from ..errors import UserError, unknown
from ..system.user_code import file_of, function_in, made, refuse_without_function
from .base import Method, Sgd
from .feddb import feddb
from .feddure import feddure
from .feddure_full import feddure_full
from .fedlabel import fedlabel
from .fedlabel_2m import fedlabel_2m
from .fedloke import fedloke
from .fedmatch import fedmatch
from .fixmatch import fedprox_fixmatch, fixmatch_gpl, fixmatch_lpl
from .flexmatch import flexmatch
from .freematch import freematch
from .proxyfl import proxyfl
from .sage import sage, with_oracle, with_sage
from .supervised import fedavg, fedavg_sl, fedprox

__all__ = [
    "BY_DATASET",
    "METHODS",
    "PLUGINS",
    "RANGES",
    "Method",
    "Sgd",
    "build_method",
    "builders_of",
    "check_effect",
    "defaults_on",
    "full_settings",
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
}
PLUGINS: dict[str, Callable[..., Method]] = {"sage": with_sage, "oracle": with_oracle}

# What a setting may be, whichever builder of fssl takes it: (lowest, highest), both allowed.
RANGES = {
    "tau": (1e-9, 1.0),
    "kappa": (0.0, 1e9),
    "mu_u": (0.0, 1e6),
    "mu_prox": (0.0, 1e6),
    "lam": (0.0, 1.0),
    "mu_own": (0.0, 1.0),
    "delta": (1e-9, 1e9),
    "ramp_rounds": (0.0, 1e9),
    "beta": (0.0, 1e6),
    "tuning_epochs": (0, 1e6),
    "tuning_lr": (0.0, 1e6),
    "tuning_batch": (1, 1e6),
    "student_rate": (1e-9, 1e6),
    "meta_lr": (0.0, 1e6),
    "lr": (0.0, 1e6),
    "lam_s": (0.0, 1e6),
    "lam_iccs": (0.0, 1e6),
    "lam_l2": (0.0, 1e6),
    "lam_l1": (0.0, 1e6),
    "helpers": (1, 100),
    "helper_interval": (1, 1e6),
    "patience": (0, 1e6),
    "kl_weight": (0.0, 1e6),
    "ema": (0.0, 1.0),
    "saf": (0.0, 1e6),
    "burn_in": (0, 1_000_000),
    "pull": (0.0, 1e6),
}


# Settings whose default the dataset decides: FedLoKe's ramp is 0.4 of its rounds, ProxyFL tunes in 2000 steps a round.
# Of a folder of images, classes are known once it is read.
BY_DATASET: dict[str, Callable[[Card], float | None]] = {
    "ramp_rounds": lambda card: 0.4 * card.rounds,
    "tuning_epochs": lambda card: max(1, 1000 // card.num_classes) if card.num_classes else None,
}


def is_ours(builder: Callable[..., Method]) -> bool:
    """Whether rules for names of settings apply: somebody else's builder means what it declares."""
    return str(getattr(builder, "__module__", "")).startswith("fssl.methods.")


def parameters_of(name: str) -> dict[str, inspect.Parameter]:
    """A name's settings as its builders declare them; where two share one, the method's counts."""
    return {k: p for b in reversed(builders_of(name)) for k, p in settings_of(b).items()}


def full_settings(choice: MethodChoice, card: Card) -> dict[str, Any]:
    """A method's settings on a dataset: those given, else their defaults; unset ones are left out."""
    parameters = parameters_of(choice.name)
    given = {k: as_declared(v, parameters.get(k)) for k, v in choice.settings}
    return {**defaults_on(choice.name, card), **given}


def defaults_on(name: str, card: Card) -> dict[str, Any]:
    """The defaults of a method's settings on a dataset; unset ones are left out."""
    defaults = {k: p.default for k, p in parameters_of(name).items()}
    ours = {k for b in builders_of(name) if is_ours(b) for k in settings_of(b)}
    decided = {k: rule(card) for k, rule in BY_DATASET.items() if k in ours}
    return {k: v for k, v in {**defaults, **decided}.items() if v is not None}


def as_declared(value: Any, parameter: inspect.Parameter | None) -> Any:
    """A whole number where a number is meant: 4 and 4.0 are one setting. What does not fit is refused elsewhere."""
    is_float = parameter is not None and float in (parameter.annotation, *get_args(parameter.annotation))
    return float(value) if is_float and type(value) is int else value


def with_defaults(config: Config) -> Config:
    """A recorded run, with the defaults of settings that are newer than it. To read a record runs nobody's file."""
    try:
        settings = config.method.settings
        if not file_of(config.method.name):
            settings = tuple(sorted(full_settings(config.method, config.card).items()))
    except UserError:  # a method that is not known here
        return config
    return replace(config, method=replace(config.method, settings=settings))


def build_method(name: str, settings: Mapping[str, Any]) -> Method:
    """The method a name and its settings stand for; anything that does not fit is a UserError."""
    builders = builders_of(name)
    schemas = [settings_of(b) for b in builders]
    known = {key for schema in schemas for key in schema}
    for key, value in settings.items():
        if not known:
            raise UserError(f"method.{key} = {value!r}: method '{name}' has no settings")
        if key not in known:
            raise unknown(f"setting of method '{name}'", key, known)
        builder, schema = next((b, s) for b, s in zip(builders, schemas, strict=True) if key in s)
        check_setting(key, value, schema[key], RANGES.get(key) if is_ours(builder) else None)
    method = made(builders[0], "method", name, **{k: v for k, v in settings.items() if k in schemas[0]})
    if not isinstance(method, Method):
        raise UserError(f"method '{name}' is {type(method).__name__!r}, expected a fssl.methods.Method")
    for builder, schema in zip(builders[1:], schemas[1:], strict=True):
        method = builder(method, **{k: v for k, v in settings.items() if k in schema})
    return method


def check_effect(configs: Iterable[Config]) -> None:
    """Raise if a setting is not the default and yet changes nothing in any of the runs that have it."""
    useful: set[str] = set()
    useless: dict[str, str] = {}
    for config in configs:
        name, settings = config.method.name, full_settings(config.method, config.card)
        parameters = parameters_of(name)
        for key, value in config.method.settings:
            if value == parameters[key].default or differs_without(key, name, settings):
                useful.add(key)
            else:
                useless[key] = f"method.{key} = {value!r} changes nothing in '{name}' with these settings; leave it out"
    for key, text in useless.items():
        if key not in useful:
            raise UserError(text)


def differs_without(key: str, name: str, settings: Mapping[str, Any]) -> bool:
    """Whether a setting makes another method of it; assumed of methods that cannot be compared."""
    method = build_method(name, settings)
    if "__eq__" not in vars(type(method)):  # no dataclass of its own, so equality would miss its fields
        return True
    try:
        return build_method(name, {k: v for k, v in settings.items() if k != key}) != method
    except RuntimeError:  # tensors among its fields
        return True


def split_name(name: str) -> tuple[str, list[str]]:
    """'fedprox+fixmatch+sage' -> ('fedprox+fixmatch', ['sage'])."""
    parts = name.split("+")
    for i in range(len(parts), 0, -1):
        base, plugins = "+".join(parts[:i]), parts[i:]
        if base in METHODS or (i == 1 and file_of(base)):
            for plugin in plugins:
                if plugin in PLUGINS:
                    continue
                if plugin in METHODS:
                    raise UserError(f"method '{name}': {plugin} is a method, not a plug-in; its name alone is enough")
                raise unknown("plug-in", plugin, PLUGINS)
            if len(set(plugins)) < len(plugins) or (base == "sage" and "sage" in plugins):
                raise UserError(f"method '{name}' has a plug-in twice")
            return base, plugins
    refuse_without_function("method", name)
    raise unknown("method", name, METHODS)


def builders_of(name: str) -> list[Callable[..., Method]]:
    """What makes a method of a name, the method itself first."""
    base, plugins = split_name(name)
    file = file_of(base)
    return [function_in(file, base, "method") if file else METHODS[base], *(PLUGINS[p] for p in plugins)]


def settings_of(builder: Callable[..., Method]) -> dict[str, inspect.Parameter]:
    """A builder's keyword arguments: the signature is the schema."""
    parameters = inspect.signature(builder, eval_str=True).parameters
    return {key: p for key, p in parameters.items() if p.default is not inspect.Parameter.empty}


def check_setting(
    key: str, value: object, parameter: inspect.Parameter, limits: tuple[float, float] | None = None
) -> None:
    """Raise unless the value has the parameter's type and lies in its range."""
    expected = parameter.annotation
    if get_origin(expected) is not None and all(isinstance(a, str) for a in get_args(expected)):
        if value not in get_args(expected):
            raise unknown(f"method.{key}", value, get_args(expected))
    elif expected is bool:
        if not isinstance(value, bool):
            raise UserError(f"method.{key} = {value!r}: expected true or false")
    elif expected not in (int, float) and not {int, float} & set(get_args(expected)):
        raise UserError(f"method.{key}: its builder must declare a number, a bool or texts as Literal['a', 'b']")
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"method.{key} = {value!r}: expected a number{several_runs(f'method.{key}', value)}")
    elif expected is int and not isinstance(value, int):
        raise UserError(f"method.{key} = {value!r}: expected a whole number")
    elif not math.isfinite(value):
        raise UserError(f"method.{key} = {value!r}: expected a finite number")
    elif limits and not limits[0] <= value <= limits[1]:
        raise UserError(f"method.{key} = {value!r}: expected a number from {limits[0]:g} to {limits[1]:g}")
