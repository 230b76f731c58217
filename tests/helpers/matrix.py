"""Names of all methods and combinations, and one step of each with its arguments."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from fssl.catalog.facts import registry
from fssl.core.client import client_round
from fssl.core.federation import Federation
from fssl.engines.engine import RoundResult
from fssl.engines.local import LocalEngine
from fssl.methods.fixmatch import FixMatch
from fssl.methods.names import METHODS, PLUGINS

from .small import LABELING, host_lane

LABELERS = [name for name, builder in METHODS.items() if isinstance(builder(), FixMatch)]
PAIRS = [f"{name}+{plugin}" for name in LABELERS for plugin in PLUGINS if name != plugin]
ALL = [*METHODS, *PAIRS, "flexmatch+sage+oracle"]
AT_SERVER = ("semifl", "flfl")  # methods for labels there; all tests but that of learning have labels at clients
SIZES = {name: facts.sizes for name, facts in registry().methods.items() if facts.sizes}
assert {*SIZES} == {*METHODS}, "methods.json has other methods than METHODS; run: make regenerate"
STATEFUL = [name for name in METHODS if SIZES[name].is_kept]  # more than the model outlives a round
Make = Callable[..., Federation]


def tensors(tree: Any) -> list[torch.Tensor]:
    return tree_flatten(tree)[0]


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tensors(a), tensors(b), strict=True))


def prepared(make: Make, name: str) -> tuple[Any, Any, Any, Any, Any]:
    """A step and its arguments for client 1, after its sweep if there is one."""
    federation = make(f"method.name={name}", *LABELING.get(name, ()))
    server = federation.method.init(federation.net, federation.net.first, federation.task)
    state, server = federation.new_state(server, 1), federation.method.payload(server, 1)
    local = federation.method.start(server, state)
    tally, plan = torch.zeros(2, federation.layout.size), federation.plan(1, 1)
    if plan.sweep is not None:
        with torch.no_grad():
            local = host_lane(federation).sweep(server, local, plan.sweep)
    return federation.steps.step(), server, local, tally, plan.draw


def labeled_loss(engine: LocalEngine, result: RoundResult) -> float:
    """The mean loss on labels, wherever they are."""
    clients = engine.layout.unpack(result.tally[:, 0])
    total, steps = (result.own_sums.get(key, clients[key].sum()) for key in ("l_s", "steps"))
    return float(total / steps)


def trained(federation: Federation, method: Any = None) -> dict[str, torch.Tensor]:
    """Client 1's parameters after its first round, with another method value if given."""
    if method is not None:
        federation.method = replace(method, optimizer=federation.method.optimizer)
    net, method = federation.net, federation.method
    sent = method.payload(method.init(net, net.first, federation.task), 1)
    lane = host_lane(federation)
    with torch.no_grad():
        result = client_round(lane, method, sent, federation.new_state(sent, 1), federation.plan(1, 1))
    return result.upload.weights.params


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    assert a
    assert a.keys() == b.keys()
    return all(torch.equal(a[k], b[k]) for k in a)
