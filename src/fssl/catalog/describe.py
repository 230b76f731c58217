"""The content of `methods.json`: facts about every method, derived from its builder.

Sources and settings stand with the builders, sizes are measured by letting a method work on ResNet-8x4.
"""

import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from itertools import groupby
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..config import SOURCES, Setting
from ..data.cards import CARDS, Card
from ..errors import UserError
from ..methods.names import METHODS, PLUGINS, Method, build_method, find_builders, settings_of
from ..models import Net, build_net
from ..types import Counts, Task
from .facts import MethodFacts, Sizes

# A client of CIFAR-10 in the paper's protocol.
CLASSES, TASK, COUNTS = 10, Task(num_classes=10, max_slots=2500), Counts(labeled=250, pool=2500)
MOST_CLASSES = 2000  # beyond which no default changes


def describe_own(name: str) -> MethodFacts:
    """The facts about a method in a user's file."""
    (builder,) = find_builders(name)
    sizes = measure_sizes(build_method(name, {}))
    return MethodFacts(doc_of(builder), SOURCES.get(builder), settings_of(builder), sizes, refusals(name))


def facts_text() -> str:
    """The content of `methods.json`."""
    methods = {name: method_facts(name) for name in METHODS}
    return (
        dumped({"methods": methods, "plugins": {name: facts_of(builder) for name, builder in PLUGINS.items()}}) + "\n"
    )


def dumped(value: object, depth: int = 0) -> str:
    """JSON text in which every object without others in it is one line."""
    if not isinstance(value, dict) or not any(isinstance(each, dict) for each in value.values()):
        return json.dumps(value, ensure_ascii=False)
    inner = (f"{' ' * (depth + 1)}{json.dumps(key)}: {dumped(each, depth + 1)}" for key, each in value.items())
    return "{\n" + ",\n".join(inner) + "\n" + " " * depth + "}"


def method_facts(name: str) -> dict[str, Any]:
    """The facts of a method of the list, with its plug-ins."""
    sizes, refuses = measure_sizes(build_method(name, {})), refusals(name)
    plugged = {plugin: build_method(f"{name}+{plugin}", {}) for plugin in PLUGINS.keys() - refuses.keys()}
    others = [(plugin, other) for plugin in sorted(plugged) for other in METHODS]
    same = {plugin: other for plugin, other in others if is_same(build_method(other, {}), plugged[plugin])}
    return {**facts_of(METHODS[name]), "sizes": sizes._asdict(), "refuses": refuses, "same": same}


def refusals(name: str) -> dict[str, str]:
    """The plug-ins that a method cannot carry, with their messages."""
    found = {}
    for plugin in PLUGINS:
        try:
            build_method(f"{name}+{plugin}", {})
        except UserError as error:
            found[plugin] = str(error)
    return found


def is_same(one: Method, other: Method) -> bool:
    return type(one) is type(other) and one == other


def facts_of(builder: Callable[..., Method]) -> dict[str, Any]:
    source = SOURCES.get(builder)
    return {
        "doc": doc_of(builder),
        "source": source and {key: value for key, value in asdict(source).items() if value},
        "settings": {key: described(setting) for key, setting in settings_of(builder).items()},
    }


def doc_of(builder: Callable[..., Method]) -> str:
    """The paragraphs of its docstring, each in one line."""
    return "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(builder) or "").split("\n\n"))


def described(setting: Setting) -> dict[str, Any]:
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


def measure_sizes(method: Method, net: Net | None = None) -> Sizes:
    """Measure the bytes of one client's round, without its steps: they change values, not sizes.

    `net` is the network to measure with, by default the paper's with ten classes.
    """
    net = net or build_net("resnet8", 3, CLASSES, 4)
    task = TASK._replace(num_classes=net.classes)
    server = method.init(net, net.first, task)
    payload = method.payload(server, 0)
    local = method.start(payload, method.client_state(payload, task, COUNTS))
    upload = method.upload(0, payload, local, COUNTS)
    after = method.aggregate(net, server, [upload], np.random.default_rng(0))
    sent = (upload.weights, upload.extras)
    return Sizes(*map(num_bytes, (payload, sent, method.keep(local), server.extras, after.memory)))


def num_bytes(tree: Any) -> int:
    return sum(t.nbytes for t in tree_leaves(tree) if isinstance(t, Tensor))
