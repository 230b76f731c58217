"""The content of src/fssl/catalog/methods.json: facts about every method, derived from its builder.

Sources and settings stand with the builders, the rest is found by asking a method and letting it work.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from itertools import groupby
from typing import Any

import numpy as np
import torch

from fssl.catalog.describe import CLASSES, COUNTS, TASK, doc_of, measure_sizes, rejected_plugins
from fssl.catalog.facts import Traits
from fssl.config import SOURCES, Setting
from fssl.core.compatibility import takes_plain_mean
from fssl.core.dry_step import Sizes, try_step
from fssl.data.cards import CARDS, Card
from fssl.errors import UserError
from fssl.methods.names import METHODS, PLUGINS, Method, build_method, settings_of
from fssl.models import build_net
from fssl.probes.training import LabelProbe
from fssl.training.plan import Recipe
from fssl.types import Counts, Weights

MOST_CLASSES = 2000  # beyond which no default changes
USUAL = ("l_s", "l_u")  # losses of every method


def facts_text() -> str:
    """The content of `methods.json`."""
    methods = {name: method_facts(name) for name in METHODS}
    plugins = {name: plugin_facts(name) for name in PLUGINS}
    return dumped({"methods": methods, "plugins": plugins}) + "\n"


def dumped(value: object, depth: int = 0) -> str:
    """JSON text in which every object without others in it is one line."""
    if not isinstance(value, dict) or not any(isinstance(each, dict) for each in value.values()):
        return json.dumps(value, ensure_ascii=False)
    inner = (f"{' ' * (depth + 1)}{json.dumps(key)}: {dumped(each, depth + 1)}" for key, each in value.items())
    return "{\n" + ",\n".join(inner) + "\n" + " " * depth + "}"


def method_facts(name: str) -> dict[str, Any]:
    """The facts of a method of the list, with its plug-ins."""
    method, refuses = build_method(name, {}), rejected_plugins(name)
    plugged = {plugin: build_method(f"{name}+{plugin}", {}) for plugin in PLUGINS.keys() - refuses.keys()}
    others = [(plugin, other) for plugin in sorted(plugged) for other in METHODS]
    same = {plugin: other for plugin, other in others if is_same(build_method(other, {}), plugged[plugin])}
    found = {"sizes": measure_sizes(method)._asdict(), "traits": traits_of(method)._asdict()}
    return {**facts_of(METHODS[name]), **found, "refuses": refuses, "same": same}


def plugin_facts(name: str) -> dict[str, Any]:
    """The facts of a plug-in; what it goes with is seen on the first method that takes it."""
    host = next(host for host in METHODS if name not in rejected_plugins(host))
    return {**facts_of(PLUGINS[name]), "traits": traits_of(build_method(f"{host}+{name}", {}))._asdict()}


def is_same(one: Method, other: Method) -> bool:
    return type(one) is type(other) and one == other


def facts_of(builder: Callable[..., Method]) -> dict[str, Any]:
    source = SOURCES.get(builder)
    return {
        "doc": doc_of(builder),
        "source": source and {key: value for key, value in asdict(source).items() if value},
        "settings": {key: error_text(setting) for key, setting in settings_of(builder).items()},
    }


def error_text(setting: Setting) -> dict[str, Any]:
    """The declaration of a setting; parts that it leaves open are left out."""
    assert setting.kind is not None, f"{setting.key}: its builder declares no kind"
    found: dict[str, Any] = {"kind": setting.kind.__name__, "default": setting.default}
    found |= {"is_optional": True} if setting.is_optional else {}
    found |= {"limits": [setting.limits.low, setting.limits.high]} if setting.limits else {}
    found |= {"options": [*setting.options]} if setting.options else {}
    if setting.by_dataset:
        found["by_dataset"] = {card.name: [*steps(setting, card)] for card in CARDS.values()}
    return {**found, "help": setting.help}


def steps(setting: Setting, card: Card) -> Iterator[tuple[int, Any]]:
    """Yield the defaults on a dataset, each with the least number of classes it holds for; only folders vary."""
    numbers = range(MOST_CLASSES) if card.is_folder else (0,)
    of_each = ((n, setting.default_on(replace(card, num_classes=n) if card.is_folder else card)) for n in numbers)
    for default, same in groupby(of_each, key=lambda pair: pair[1]):
        yield next(same)[0], default


def traits_of(method: Method) -> Traits:
    """What a method goes with: its answers, and those of a step on shapes alone."""
    needs, usual = method.needs, Recipe(8, 2, 1, "pool", 1, ("x",), 32, True)
    alone = replace(usual, labels_alone=True)
    measured = measured_by(method, usual)
    return Traits(
        is_bound=needs.labels == "all" or needs.truth,
        at_server=needs.labels == "few" and not needs.client_labels,
        labels_alone="always" if not method.recipe(alone).labels_alone else "yes" if takes(method, alone) else "no",
        labeled_weight=weighs_labels(method),
        plain_mean=takes_plain_mean(method),
        sure_from=method.watched.tau if "n" in measured else None,
        terms=[f"loss_{name[2:]}" for name in measured if name.startswith("l_") and name not in USUAL],
    )


def takes(method: Method, usual: Recipe) -> bool:
    """Whether its step can be taken with this recipe."""
    try:
        measured_by(method, usual)
    except UserError:
        return False
    return True


def measured_by(method: Method, usual: Recipe) -> tuple[str, ...]:
    """What is measured of a step: its losses, and if it labels images "n", how many."""
    sizes = Sizes(TASK, COUNTS, method.recipe(usual), CARDS["cifar10"])
    return try_step(method, build_net("cnn", 3, CLASSES, 1), sizes, LabelProbe()).layout.sums


def weighs_labels(method: Method) -> bool:
    """Whether a client with more labels counts for more where `train.labeled_weight` says so."""
    one, other = (mean_of_two(replace(method, labeled_weight=weight)) for weight in (0, 2000))
    return not all(torch.equal(t, other.params[name]) for name, t in one.params.items())


def mean_of_two(method: Method) -> Weights:
    """The mean of two clients of one size, of which the second has more labels and another model."""
    net, uploads = build_net("cnn", 3, CLASSES, 1), []
    server = method.init(net, net.first, TASK)
    for client, counts in enumerate((Counts(1, 10), Counts(8, 10))):
        payload = method.payload(server, client)
        made = method.upload(client, payload, method.start(payload, method.client_state(payload, TASK, counts)), counts)
        params = {name: t + client for name, t in made.weights.params.items()}
        uploads.append(made._replace(weights=made.weights._replace(params=params)))
    return method.aggregate(net, server, uploads, np.random.default_rng(0)).weights
