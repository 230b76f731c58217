"""Facts about a method, taken from its builder and from trying it on ResNet-8x4."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..config import SOURCES
from ..errors import UserError
from ..methods.names import PLUGINS, Method, build_method, find_builders, settings_of
from ..models import Net, build_net
from ..types import Counts, Task
from .facts import MethodFacts, MethodSizes

# A client of CIFAR-10 in the paper's protocol.
CLASSES, TASK, COUNTS = 10, Task(num_classes=10, max_slots=2500), Counts(labeled=250, pool=2500)


def describe_own(name: str) -> MethodFacts:
    """Return the facts about a method in a user's file."""
    (builder,) = find_builders(name)
    sizes = measure_sizes(build_method(name, {}))
    return MethodFacts(
        doc_of(builder), SOURCES.get(builder), settings_of(builder), sizes, refuses=rejected_plugins(name)
    )


def rejected_plugins(name: str) -> dict[str, str]:
    """Return the plug-ins that a method rejects, with their messages."""
    found = {}
    for plugin in PLUGINS:
        try:
            build_method(f"{name}+{plugin}", {})
        except UserError as error:
            found[plugin] = str(error)
    return found


def doc_of(builder: Callable[..., Method]) -> str:
    """Return the paragraphs of a builder's docstring, each in one line."""
    return "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(builder) or "").split("\n\n"))


def measure_sizes(method: Method, net: Net | None = None) -> MethodSizes:
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
    return MethodSizes(*map(num_bytes, (payload, sent, method.keep(local), server.extras, after.memory)))


def num_bytes(tree: Any) -> int:
    return sum(t.nbytes for t in tree_leaves(tree) if isinstance(t, Tensor))
