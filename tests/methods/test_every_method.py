"""The matrix: what must hold for every method and every plug-in combination. METHODS is what adds a row.

A plug-in changes nothing but `assign`, `oracle` and FlexMatch's `accept` (tests/test_structure.py proves it). So it
acts inside `step` alone, on labels and on the state that remembers them. Each test runs on the shortest list that can
see what it asks for:

- `ALL`: every method and every combination. Numbers depend on the pair: labels that one host can train with may blow
  up another.
- `GRAPHS`: methods and combinations that together have every class and rule that a step is made of, each once.
- `LABELED`: every method, and the combinations in which labels may leave the step, by the client's state or by the
  upload; one with the oracle. Whether a step writes into its arguments, and whether threads or the order of clients
  matter, depends on the host's code and on the plug-in's, and the plug-in's is the same in every host.
- `METHODS`: optimizer, averaging and names of tensors are the host's; no plug-in has code there.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map

from fssl.core.client import at, client_round
from fssl.engines.compiler import as_traced
from fssl.engines.local import LocalEngine
from fssl.engines.named_tensors import named
from fssl.methods.names import METHODS, PLUGINS, build_method
from fssl.methods.proxyfl import ProxyFL
from fssl.models import CLASSIFIER
from helpers.matrix import ALL, AT_SERVER, LABELERS, SIZES, Make, labeled_loss, prepared, same, tensors
from helpers.small import LABELING, host_lane

# Hosts that keep or upload more than a model. Labels enter FlexMatch's table, the class counts that ProxyFL uploads and
# the number that FedLabel uploads; FedDure's regulator learns from them; the oracle reads the truth.
TELLING = [name for name in LABELERS if SIZES[name].client or SIZES[name].up > SIZES["fedavg"].up]
LABELED = [*METHODS, *(f"{name}+sage" for name in TELLING), "flexmatch+sage+oracle"]


def pieces(value: Any) -> set[Any]:
    """Classes and functions that a method is made of."""
    if isinstance(value, tuple):
        return set().union(*map(pieces, value))
    if is_dataclass(value):
        return {type(value)}.union(*(pieces(getattr(value, field.name)) for field in fields(value)))
    return {value} if callable(value) else set()


def with_new_pieces(names: list[str]) -> Iterator[str]:
    seen: set[Any] = set()
    for name in names:
        new = pieces(build_method(name, {})) - seen
        if new:
            yield name
        seen |= new


# The oracle adds one and the same line to the step of every host; FedDure, with one regulator or two, reads the truth
# a second time.
GRAPHS = [*with_new_pieces(ALL), "fixmatch-lpl+oracle", "feddure+oracle", "feddure-full+oracle"]
SHORT = ("train.steps_per_round=4",)  # instead of ten: what would leak from client to client does so at once


def test_the_lists_are_what_they_say() -> None:
    assert {"flexmatch", "feddb", "fedlabel-2m", "proxyfl", "feddure-full"} < {*TELLING} < {*LABELERS}
    assert len(ALL) == len(METHODS) + len(PLUGINS) * len(LABELERS)  # SAGE takes one less, and one has two
    assert len(GRAPHS) >= 22
    assert {*METHODS} < {*LABELED} < {*ALL}
    assert {*GRAPHS} < {*ALL}


# Every combination.


@pytest.mark.parametrize("name", ALL)
@pytest.mark.slow
def test_rounds_stay_finite_and_learn(name: str, make_federation: Make) -> None:
    where = ["partition.labels=server", *LABELING[name]] if name in AT_SERVER else []
    engine = LocalEngine(make_federation(f"method.name={name}", "train.lr=0.05", *where))
    first, *_, last = engine.rounds(4)
    assert all(torch.isfinite(t).all() for t in tensors(engine.snapshot.server))
    start, end = (labeled_loss(engine, result) for result in (first, last))
    assert end < start


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.slow
def test_one_graph_without_data_dependent_shapes(name: str, make_federation: Make) -> None:
    step, server, local, tally, draw = prepared(make_federation, name)
    traced = as_traced(step, server, local, tally, at(draw, 0))
    with torch.no_grad():
        expected, given = (local, tally), (local, tally)
        for i in range(3):
            expected = step(server, *expected, at(draw, i))
            given = traced(server, *given, at(draw, i))
            assert same(expected, given), f"traced and eager part at step {i}"


# Where labels leave the step.


@pytest.mark.parametrize("name", LABELED)
def test_a_step_leaves_its_arguments_alone(name: str, make_federation: Make) -> None:
    step, *arguments = prepared(make_federation, name)
    arguments[-1] = at(arguments[-1], 0)
    before = tree_map(torch.clone, arguments)
    with torch.no_grad():
        local, _ = step(*arguments)
    assert same(arguments, before)
    shapes = [(t.shape, t.dtype) for t in tensors(local)]
    assert shapes == [(t.shape, t.dtype) for t in tensors(arguments[1])]  # state keeps its shape


@pytest.mark.parametrize("name", LABELED)
@pytest.mark.slow
def test_lanes_do_not_change_the_result(name: str, make_federation: Make) -> None:
    """Neither their number, nor whether they are threads or processes."""
    states = []
    for lanes in (["compute.lanes=1"], ["compute.lanes=2"], ["compute.lanes=2", "compute.processes=on"]):
        engine = LocalEngine(make_federation(f"method.name={name}", *SHORT, *LABELING.get(name, ()), *lanes))
        list(engine.rounds(2))
        engine.close()
        states.append(engine.snapshot)
    for other in states[1:]:
        assert same(states[0].server, other.server)
        assert same(states[0].clients, other.clients)


@pytest.mark.parametrize("name", LABELED)
@pytest.mark.slow
def test_uploads_in_any_order_of_training_give_one_server(name: str, make_federation: Make) -> None:
    federation = make_federation(f"method.name={name}", *SHORT, *LABELING.get(name, ()))
    method, net = federation.method, federation.net
    server = method.init(net, net.first, federation.task)
    lane = host_lane(federation)
    results = {}
    for order in ((0, 1, 2), (2, 0, 1)):
        with torch.no_grad():
            made = [
                client_round(lane, method, payload, federation.new_state(payload, k), federation.plan(1, k))
                for k in order
                for payload in [method.payload(server, k)]
            ]
        uploads = sorted((r.upload for r in made), key=lambda u: u.client)
        results[order] = method.aggregate(net, server, uploads, np.random.default_rng(0))
    assert same(*results.values())


# The host's alone.


@pytest.mark.parametrize("name", ["fedavg", "fedlabel-2m", "fedloke", "fedmatch", "sage"])
def test_the_released_protocol_stays_finite(name: str, make_federation: Make) -> None:
    """Its momentum passes from client to client and from round to round; test_golden has every method's bits of it."""
    engine = LocalEngine(make_federation(f"method.name={name}", "train.lr=0.05", "protocol=authors"))
    list(engine.rounds(2))
    assert all(torch.isfinite(t).all() for t in tensors(engine.snapshot.server))
    assert all(torch.isfinite(t).all() for t in engine.snapshot.velocity.values())
    assert engine.snapshot.velocity


@pytest.mark.parametrize("name", METHODS)
def test_averaging_equal_uploads_changes_nothing(name: str, make_federation: Make) -> None:
    federation = make_federation(f"method.name={name}")
    method, net = federation.method, federation.net
    server = method.init(net, net.first, federation.task)
    local = method.start(server, federation.new_state(server, 0))
    uploads = [method.upload(k, server, local, federation.counts(k)) for k in range(4)]
    after = method.aggregate(net, server, uploads, np.random.default_rng(0))
    if isinstance(method, ProxyFL):  # it moves the mean's classifier rows, and only those
        assert not same(after.weights.params[CLASSIFIER], server.weights.params[CLASSIFIER])
        after.weights.params[CLASSIFIER] = server.weights.params[CLASSIFIER]
    assert same(after.weights, server.weights)
    shapes = [{name: (t.shape, t.dtype) for name, t in s.extras.items()} for s in (after, server)]
    assert shapes[0] == shapes[1]  # what a server remembers may change, but not its form


@pytest.mark.parametrize("name", METHODS)
def test_names_of_tensors_are_unique(name: str, make_federation: Make) -> None:
    _, server, local, _, draw = prepared(make_federation, name)
    assert len(named(server=server, local=local, draw=draw)) == len(tensors((server, local, draw)))
