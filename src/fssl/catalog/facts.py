"""Facts about every method, read from `methods.json` instead of from its builder.

Reading runs and rejecting settings needs no more, so neither imports PyTorch. `make regenerate` writes the file.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import takewhile
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..config import ByDataset, Config, MethodChoice, OneOf, Range, Registry, Setting, Source
from ..data.cards import Card
from ..errors import UserError
from ..system.user_code import is_users

FILE = Path(__file__).parent / "methods.json"
SETTING_KINDS = {kind.__name__: kind for kind in (bool, int, float, str)}


class MethodSizes(NamedTuple):
    """Bytes for ResNet-8x4 and ten classes: sent each way per client and round, and kept from round to round."""

    down: int
    up: int
    client: int
    server: int  # in addition to the model
    memory: int  # for each client that has taken part, on the server

    @property
    def is_kept(self) -> bool:
        """Return whether anything but the model is kept after a round."""
        return bool(self.client + self.server + self.memory)


class Traits(NamedTuple):
    """A method's compatibility, found by trying it with its default settings."""

    is_bound: bool  # it knows true labels: an upper bound, not a competitor
    at_server: bool  # it runs with labels at the server
    labels_alone: Literal["yes", "always", "no"]  # the effect of train.labels_alone
    labeled_weight: bool  # train.labeled_weight changes its mean
    plain_mean: bool  # the server only averages uploads, which clipping, noise and masks cover
    sure_from: float | None  # the confidence from which records count a prediction as sure, if it labels images
    terms: Sequence[str]  # further losses in its records


@dataclass(frozen=True)
class MethodFacts:
    """Text, source, settings and sizes of a method or a plug-in."""

    doc: str  # paragraphs, each in one line
    source: Source | None
    settings: dict[str, Setting]
    sizes: MethodSizes | None = None  # of a method: a plug-in has its host's
    traits: Traits | None = None
    refuses: Mapping[str, str] = field(default_factory=dict)  # plug-ins that a method rejects, with their messages
    same: Mapping[str, str] = field(default_factory=dict)  # plug-ins that turn it into another method of the list

    @property
    def about(self) -> str:
        return self.doc.partition("\n")[0]


def user_method_facts(name: str) -> MethodFacts:
    """Return the facts of a user's method. Import lazily: this runs its file, which imports PyTorch."""
    from .describe import describe_own

    return describe_own(name)


def parse_methods(text: str) -> Registry[MethodFacts]:
    """Return the methods and plug-ins of a file like `methods.json`."""
    methods, plugins = (
        {name: facts_from(each) for name, each in json.loads(text)[kind].items()} for kind in ("methods", "plugins")
    )
    return Registry(methods, plugins, attrgetter("settings"), user_method_facts)


def facts_from(found: Mapping[str, Any]) -> MethodFacts:
    source, sizes, traits = found["source"], found.get("sizes"), found.get("traits")
    return MethodFacts(
        doc=found["doc"],
        source=source and Source(**source),
        settings={key: setting_from(key, each) for key, each in found["settings"].items()},
        sizes=sizes and MethodSizes(**sizes),
        traits=traits and Traits(**traits),
        refuses=found.get("refuses", {}),
        same=found.get("same", {}),
    )


def setting_from(key: str, found: Mapping[str, Any]) -> Setting:
    limits, defaults = found.get("limits"), found.get("by_dataset")
    return Setting(
        key=key,
        kind=SETTING_KINDS[found["kind"]],
        default=found["default"],
        is_optional=found.get("is_optional", False),
        limits=limits and Range(*limits),
        choice=OneOf(tuple(found.get("options", ()))),
        by_dataset=defaults and ByDataset(decided_by(defaults)),
        help=found["help"],
    )


def decided_by(defaults: Mapping[str, list[list[Any]]]) -> Callable[[Card], Any]:
    """Return a rule that looks up a default by dataset and number of classes."""

    def decide(card: Card) -> Any:
        return [*takewhile(lambda step: step[0] <= card.num_classes, defaults[card.name])][-1][1]

    return decide


@cache
def registry() -> Registry[MethodFacts]:
    """Return all methods and plug-ins of this version."""
    return parse_methods(FILE.read_text("utf-8"))


def check_choice(choice: MethodChoice, card: Card) -> None:
    """Reject an invalid name or invalid settings; a user's file is checked when it is loaded."""
    if not is_users(registry().split(choice.name)[0]):
        registry().checked(choice.name, dict(sorted(registry().full_settings(choice, card).items())))
        check_plugins(choice.name)


def check_plugins(name: str) -> None:
    """Reject a plug-in that the method does not support."""
    refuses, (_, plugins) = registry().find(name)[0].refuses, registry().split(name)
    if reason := next((refuses[plugin] for plugin in plugins if plugin in refuses), ""):
        raise UserError(reason)


def is_bound(name: str) -> bool:
    """Return whether a method, with plug-ins or without, knows true labels, without running a user's file."""
    known = {**registry().methods, **registry().plugins}
    traits = (known[part].traits for part in (name, *name.split("+")) if part in known)
    return any(each.is_bound for each in traits if each)


def with_defaults(config: Config) -> Config:
    """Return a recorded run's settings with the defaults of newer settings, without running a user's file."""
    try:
        settings = config.method.settings
        if not is_users(config.method.name):
            settings = tuple(sorted(registry().full_settings(config.method, config.card).items()))
    except UserError:  # a method that is unknown in this version
        return config
    return replace(config, method=replace(config.method, settings=settings))


def same_method(choice: MethodChoice, card: Card) -> MethodChoice:
    """Return one name and the full settings of a method, equal for methods that differ only in name.

    Raises:
        UserError: The method is unknown, or does not have these settings.
    """
    check_choice(choice, card)
    settings = registry().full_settings(choice, card)
    base, plugins = registry().split(choice.name)
    for plugin, other in registry().methods[base].same.items():
        if plugin in plugins:
            base = other
            plugins.remove(plugin)
    name = "+".join([base, *sorted(plugins)])
    settings = {**registry().defaults_on(name, card), **settings}
    return MethodChoice(name, tuple(sorted((k, v) for k, v in settings.items() if k in registry().declared_by(name))))
