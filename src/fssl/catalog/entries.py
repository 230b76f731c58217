"""Facts about every method: its source, what it keeps and sends, what a step costs.

The command line and the table on the page of methods both use this. Facts come from `methods.json`, which is generated
from the builders; costs are what `fssl bench --methods` wrote into `costs.json`.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ..config import Source
from .facts import MethodFacts, MethodSizes, check_plugins, registry

COSTS = Path(__file__).parent / "costs.json"
BASELINE = "fixmatch-lpl"


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
    sizes: MethodSizes | None
    cost: Cost | None
    compatibility_facts: Mapping[str, str] = {}


def entries() -> Iterator[Entry]:
    """Yield every method, then every plug-in."""
    for name in registry().methods:
        yield entry(name)
    for name, facts in registry().plugins.items():
        yield Entry(f"X+{name}", facts.about, facts.source, None, None)


def entry(name: str) -> Entry:
    """Return a method, with or without plug-ins: the host's state, and the plug-in's level of evidence."""
    check_plugins(name)
    method, *plugins = registry().find(name)
    facts = plugins[-1] if plugins else method
    own, host = facts.source, method.source
    if plugins and own and host:
        own = replace(own, paper=f"{host.paper}; {own.paper}", client=host.client, server=host.server, note=host.note)
    return Entry(name, facts.about, own, method.sizes, costs().get(name), compatibility_facts(method))


@cache
def read_costs() -> dict[str, Any]:
    """Return the benchmark's results: the hardware, and the cost of each method."""
    content: dict[str, Any] = json.loads(COSTS.read_text()) if COSTS.is_file() else {"methods": {}}
    return content


def combinations() -> list[str]:
    """Return the names of methods with SAGE that are not separate methods of the list."""
    methods = registry().methods.items()
    return [f"{name}+sage" for name, facts in methods if "sage" not in facts.refuses and "sage" not in facts.same]


def costs() -> dict[str, Cost]:
    return {name: Cost(m["ratio"], *m["min_max"]) for name, m in read_costs()["methods"].items()}


def plugin_cost(plugin: str) -> float | None:
    """Return the cost that a plug-in adds to a step: the median over all hosts measured with and without it."""
    known = costs()
    pairs = [(known[name], known.get(name.removesuffix(f"+{plugin}"))) for name in known if name.endswith(f"+{plugin}")]
    ratios = [with_it.ratio / host.ratio for with_it, host in pairs if host]
    return median(ratios) if ratios else None


# As text: cells of both tables.


def keeps(entry: Entry) -> str:
    """Describe the state that server and clients keep between rounds, in addition to the server's model."""
    if entry.sizes is None:
        return "as X"
    if entry.source is None:
        return "?" if entry.sizes.is_kept else "–"
    held = {"client": entry.source.client, "server": entry.source.server}
    return ", ".join(f"{where}: {what}" for where, what in held.items() if what) or "–"


def traffic(entry: Entry) -> str:
    return f"{entry.sizes.down / 1e6:.1f} / {entry.sizes.up / 1e6:.1f}" if entry.sizes else "as X"


def step_cost(entry: Entry) -> str:
    if entry.sizes is None:
        extra = plugin_cost(entry.name.removeprefix("X+"))
        return "as X" if extra is None else f"{extra:.2f} X"
    return f"{entry.cost.ratio:.2f}" if entry.cost else "?"


def compatibility_facts(facts: MethodFacts) -> dict[str, str]:
    """Return a method's compatibility, and its columns in records, by table head; empty for a user's method."""
    traits = facts.traits
    if traits is None:
        return {}
    plugins = ", ".join(f"+{name}" for name in registry().plugins if name not in facts.refuses) or "none"
    sure = "–" if traits.sure_from is None else f"{traits.sure_from:g}"
    return {
        "plug-ins": plugins,
        "labels at the server": "yes" if traits.at_server else "no",
        "train.labels_alone": "always so" if traits.labels_alone == "always" else traits.labels_alone,
        "train.labeled_weight": "yes" if traits.labeled_weight else "no",
        "privacy.*": "yes" if traits.plain_mean else "no",
        "sure from": f"tau ({sure})" if "tau" in facts.settings else sure,
        "further losses": ", ".join(traits.terms) or "–",
    }


def source(entry: Entry) -> tuple[str, str]:
    return (entry.source.paper, entry.source.follows) if entry.source else ("", "")


def footnote() -> str:
    """Explain the columns, and name the machine on which a step was measured."""
    known = read_costs()
    where = f"{known['device']}, {known['shape']} shape" if known["methods"] else "not measured yet"
    where += "".join(f"; `{name}` on {m['device']}" for name, m in known["methods"].items() if "device" in m)
    return (
        "MB: received and sent by one client per round, ResNet-8x4 with 10 classes;"
        " `server.broadcast_momentum` sends the parameters down twice."
        f" step: time of a training step relative to `{BASELINE}` ({where})."
        " follows: the source of labels, losses and means; batches and optimizer follow the protocol."
    )
