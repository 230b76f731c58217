"""The builders of all methods and plug-ins by name."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

from ..config import METHOD_KEYS, Config, Registry, Setting, schema_of
from ..errors import UserError, as_typed
from ..system.files import short_sum
from ..system.user_code import build, find_function, is_users, remember
from .adamatch import adamatch
from .base import Method as Method
from .cbafed import cbafed
from .cdmad import with_cdmad
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
from .sage import is_sage, sage, with_oracle, with_sage
from .semianagg import semianagg
from .semifl import semifl
from .softmatch import softmatch
from .supervised import Supervised, fedavg, fedavg_sl, fedprox
from .twin_sight import twin_sight
from .uda import uda

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
    "uda": uda,
    "softmatch": softmatch,
    "adamatch": adamatch,
    "twin-sight": twin_sight,
    "semianagg": semianagg,
}
PLUGINS: dict[str, Callable[..., Method]] = {"sage": with_sage, "oracle": with_oracle, "cdmad": with_cdmad}
ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of a function in the text of a method: differs between processes
FROM_LABELS = Supervised(steps="labeled")  # how a server with labels learns, whatever its clients do


def settings_of(builder: Callable[..., Method]) -> dict[str, Setting]:
    """Return a builder's keyword arguments as settings: the signature is the schema."""
    settings = {key: setting for key, setting in schema_of(builder).items() if not setting.is_required}
    for key in METHOD_KEYS:
        if key in settings:
            kept = f"[method] keeps {', '.join(METHOD_KEYS)} for itself"
            raise UserError(f"{builder.__name__}: its setting '{key}' needs another name; {kept}")
    return settings


BUILDERS = Registry(METHODS, PLUGINS, settings_of, own=partial(find_function, "method"))
find_builders, split_name, declared_by = BUILDERS.find, BUILDERS.split, BUILDERS.declared_by
defaults_on, full_settings = BUILDERS.defaults_on, BUILDERS.full_settings


def know_method(method: Method | Callable[..., Method]) -> str:
    """Register a method of a script, or the function that builds it, and return its name for settings.

    Returns:
        Its name in the settings, for this process.
    """
    if isinstance(method, Method):
        text = ADDRESS.sub("", repr(method))
        return remember("method", method, lambda: method, short_sum(text.encode()))
    if isinstance(method, type) or not callable(method):
        raise UserError(f"method = {method!r:.60}: expected a fssl.methods.Method, or a function that builds one")
    try:
        source = short_sum(inspect.getsource(method).encode())
    except OSError:  # typed at a prompt
        source = None
    return remember("method", method, method, source)


def build_method(name: str, settings: Mapping[str, Any]) -> Method:
    """Build a method by its name.

    Args:
        name: A method of the list, or FILE.py:FUNCTION, with plug-ins or without, such as "flexmatch+sage".
        settings: The builders' keyword arguments; others have their defaults.

    Returns:
        The method, with plug-ins applied. A run sets its optimizer.

    Raises:
        UserError: The name, a setting or its value does not fit.

    Examples:
        >>> build_method("sage", {"tau": 0.9}).accept.tau
        0.9
    """
    builders, values = find_builders(name), BUILDERS.checked(name, settings)
    first, *plugins = [{k: v for k, v in values.items() if k in settings_of(b)} for b in builders]
    method = build(builders[0], "method", name, **first)
    if not isinstance(method, Method):
        raise UserError(f"method '{name}' is {type(method).__name__!r}, expected a fssl.methods.Method")
    for builder, given in zip(builders[1:], plugins, strict=True):
        method = builder(method, **given)
    return method


def check_effect(runs: Iterable[tuple[Config, Method]]) -> None:
    """Raise if a setting differs from its default but changes nothing in any of the runs that have it.

    Args:
        runs: Settings as the user gave them, and the method that they build.
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
                    f"method.{key} = {as_typed(value)} has no effect in '{name}' with these settings; remove it"
                )
    for key, text in useless.items():
        if key not in useful:
            raise UserError(text)


def differs_without(key: str, name: str, settings: Mapping[str, Any], method: Method) -> bool:
    """Return whether a setting changes the method; True for methods that cannot be compared."""
    if "__eq__" not in vars(type(method)):  # not a dataclass itself, so equality would miss its fields
        return True
    try:
        without = build_method(name, {k: v for k, v in settings.items() if k != key})
        training = {f.name: getattr(method, f.name) for f in fields(Method)}  # set by a run
        return replace(without, **training) != method
    except RuntimeError:  # tensors among its fields
        return True


def replaced_notice(name: str, method: Method) -> str:
    """Return a notice that SAGE replaced all of a user's method; empty if some of it is left."""
    if not is_users(name) or "sage" not in split_name(name)[1] or not is_sage(method):
        return ""
    return f"method '{name}': the plug-in replaces all that the method adds to fixmatch-lpl, so this is SAGE itself"
