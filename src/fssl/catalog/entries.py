"""What there is to know of every method: its source, what it keeps and sends, what a step costs.

The command line and the table in README.md both come from here. Sources stand with the builders, sizes are measured by
letting a method work on ResNet-8x4, and costs are what `fssl bench --methods` wrote into costs.json.
"""

import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..methods.base import SOURCES, Source
from ..methods.names import METHODS, PLUGINS, Method, build_method, find_builders
from ..models import build_net
from ..types import Counts, Task

COSTS = Path(__file__).parent / "costs.json"
BASELINE = "fixmatch-lpl"
HOSTS = ("fedprox+fixmatch", "flexmatch", "freematch", "fedlabel", "feddure", "feddb")  # with SAGE on them
# A client of CIFAR-10 in the paper's protocol.
CLASSES, TASK, COUNTS = 10, Task(num_classes=10, max_slots=2500), Counts(labeled=250, pool=2500)


class Sizes(NamedTuple):
    """Bytes for ResNet-8x4 and ten classes: sent each way per client and round, and kept from round to round."""

    down: int
    up: int
    client: int
    server: int  # beside the model
    memory: int  # of each client that has taken part, on the server


class Cost(NamedTuple):
    """Time of a training step relative to FixMatch-LPL: median, smallest and largest of the repetitions."""

    ratio: float
    low: float
    high: float


class Entry(NamedTuple):
    """One line of the catalog; a plug-in's depends on its host."""

    name: str
    about: str
    source: Source | None
    sizes: Sizes | None
    cost: Cost | None


def entries() -> Iterator[Entry]:
    """Every method, then every plug-in."""
    for name in METHODS:
        yield entry(name)
    for name, builder in PLUGINS.items():
        yield Entry(f"X+{name}", about(builder), SOURCES.get(builder), None, None)


def entry(name: str) -> Entry:
    """A method, with or without plug-ins. It keeps what the host keeps, and is no better known than the plug-in is."""
    method, *plugins = find_builders(name)
    builder = plugins[-1] if plugins else method
    own, host = SOURCES.get(builder), SOURCES.get(method)
    if plugins and own and host:
        own = replace(own, paper=f"{host.paper}; {own.paper}", client=host.client, server=host.server, note=host.note)
    return Entry(name, about(builder), own, measure_sizes(build_method(name, {})), costs().get(name))


def about(builder: Callable[..., Method]) -> str:
    """The first paragraph of its docstring."""
    return " ".join((inspect.getdoc(builder) or "").split("\n\n")[0].split())


def measure_sizes(method: Method) -> Sizes:
    """Measure the bytes of one client's round, without its steps: they change values, not sizes."""
    net = build_net("resnet8", 3, CLASSES, 4)
    server = method.init(net, net.first, TASK)
    payload = method.payload(server, 0)
    local = method.start(payload, method.client_state(payload, TASK, COUNTS))
    upload = method.upload(0, payload, local, COUNTS)
    after = method.aggregate(net, server, [upload], np.random.default_rng(0))
    sent = (upload.weights, upload.extras)
    return Sizes(*map(num_bytes, (payload, sent, method.keep(local), server.extras, after.memory)))


def num_bytes(tree: Any) -> int:
    return sum(t.nbytes for t in tree_leaves(tree) if isinstance(t, Tensor))


@cache
def measured() -> dict[str, Any]:
    """The benchmark's results: the hardware, and the cost of each method."""
    content: dict[str, Any] = json.loads(COSTS.read_text()) if COSTS.is_file() else {"methods": {}}
    return content


def costs() -> dict[str, Cost]:
    return {name: Cost(m["ratio"], *m["min_max"]) for name, m in measured()["methods"].items()}


def plugin_cost(plugin: str) -> float | None:
    """Cost that a plug-in adds to a step: the median over all hosts measured with and without it."""
    known = costs()
    pairs = [(known[name], known.get(name.removesuffix(f"+{plugin}"))) for name in known if name.endswith(f"+{plugin}")]
    ratios = [with_it.ratio / host.ratio for with_it, host in pairs if host]
    return median(ratios) if ratios else None


# As text: cells of both tables.


def keeps(entry: Entry) -> str:
    """Describe what server and clients keep between rounds, beside the server's model."""
    if entry.sizes is None:
        return "as X"
    if entry.source is None:
        return "?" if entry.sizes.client + entry.sizes.server + entry.sizes.memory else "–"
    held = {"client": entry.source.client, "server": entry.source.server}
    return ", ".join(f"{where}: {what}" for where, what in held.items() if what) or "–"


def traffic(entry: Entry) -> str:
    return f"{entry.sizes.down / 1e6:.1f} / {entry.sizes.up / 1e6:.1f}" if entry.sizes else "as X"


def step_cost(entry: Entry) -> str:
    if entry.sizes is None:
        extra = plugin_cost(entry.name.removeprefix("X+"))
        return "as X" if extra is None else f"{extra:.2f} X"
    return f"{entry.cost.ratio:.2f}" if entry.cost else "?"


def source(entry: Entry) -> tuple[str, str]:
    return (entry.source.paper, entry.source.follows) if entry.source else ("", "")


def footnote() -> str:
    """What the columns count, and on which machine a step was measured."""
    known = measured()
    where = f"{known['device']}, {known['shape']} shape" if known["methods"] else "not measured yet"
    return (
        "MB: down to and up from one client in a round, ResNet-8x4 with 10 classes;"
        " `server.broadcast_momentum` sends the parameters down twice."
        f" step: time of a training step relative to `{BASELINE}` ({where})."
        " follows: what decides labels, losses and means; batches and optimizer are the protocol's."
    )


def markdown() -> str:
    """The table of README.md."""
    lines = ["| name | what it does | paper | keeps | MB down / up | step | follows |", "|---|---|---|---|---|---|---|"]
    for e in entries():
        name = f"[`{e.name}`](docs/methods/{e.source.page}.md)" if e.source else f"`{e.name}`"
        paper, follows = source(e)
        lines.append(f"| {' | '.join([name, e.about, paper, keeps(e), traffic(e), step_cost(e), follows])} |")
    return "\n".join([*lines, "", footnote()]) + "\n"
