"""Two federated rounds of the engine against the plain reference: float64 on a CPU, the same images, twelve digits."""

import ast
import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import plain
import pytest
import torch
from torch import Tensor
from watch import (
    BATCH,
    CLASSES,
    EPOCHS,
    HERE,
    After,
    Difference,
    Observed,
    difference,
    first_beyond,
    images,
    our_name,
    together,
)

from fssl.types import State, Trace

METHODS, PROTOCOLS = ("sage", "fixmatch-lpl", "fixmatch-gpl", "flexmatch"), ("clean", "authors")
# Momentum, weight decay and κ are the defaults of the package, written down once more.
SETTINGS = {"tau": 0.6, "mu_u": 0.7, "kappa": math.log(2) / 0.05, "lr": 0.015, "momentum": 0.9, "weight_decay": 1e-4}
GIVEN = [f"train.lr={SETTINGS['lr']}", f"method.tau={SETTINGS['tau']}", f"method.mu_u={SETTINGS['mu_u']}"]


def differences(observed: Observed, settings: plain.Settings) -> Iterator[Difference]:
    """Every number that both sides have, as the reference computes it."""
    step = 0
    first, model = together(observed.first.weights), plain.ResNet8(CLASSES, 1).double()
    names = [name for name in model.state_dict() if not name.endswith("num_batches_tracked")]
    assert sorted(map(our_name, names)) == sorted(first)
    model.load_state_dict({name: first[our_name(name)] for name in names}, strict=False)
    after = iter(observed.after)
    for done in plain.train(model, observed.visits, settings):
        if isinstance(done, plain.Step):
            found = of_step(done, observed.traces[step], observed, settings)
            step += 1
        else:
            found = of_round(done, next(after), observed)
        yield from (difference(what, step, *pair) for what, pair in found.items())
    assert step == len(observed.traces)


def of_step(step: plain.Step, trace: Trace, observed: Observed, settings: plain.Settings) -> dict[str, tuple[Any, Any]]:
    (c_l, a_l), (c_g, a_g) = trace.votes["p_l"].max(-1), trace.votes["p_g"].max(-1)
    pairs = {
        "c_l": (c_l, [v.c_l for v in step.votes]),
        "a_l": (a_l, [v.a_l for v in step.votes]),
        "c_g": (c_g, [v.c_g for v in step.votes]),
        "a_g": (a_g, [v.a_g for v in step.votes]),
        "mask": (trace.votes["mask"], [label.used for label in step.labels]),
        "target": (trace.votes["target"], torch.stack([label.target for label in step.labels])),
        "l_s": (trace.losses["l_s"], step.l_s),
        "l_u": (trace.losses["l_u"], step.l_u),
    }
    if settings.method == "sage":
        weigh = observed.federation.method.watched.weigh
        lam = weigh(trace.votes["p_l"], trace.votes["p_g"])
        pairs = {"λ": (lam, [label.lam for label in step.labels]), **pairs}
    return pairs


def of_round(done: plain.Round, after: After, observed: Observed) -> dict[str, tuple[Any, Any]]:
    state = done.model.state_dict()
    names = [name for name in state if our_name(name) in after.weights]
    pairs: dict[str, tuple[Any, Any]] = {name: (after.weights[our_name(name)], state[name]) for name in names}
    for k, state in after.clients.items():
        pairs[f"table of {k}"] = (state["flex.table"][: len(done.tables[k])], done.tables[k])
    return {**pairs, "accuracy": (after.accuracy, plain.accuracy(done.model, *observed.test_images()))}


Observe = Callable[[str, str], Observed]


def settings_for(method: str, protocol: str) -> plain.Settings:
    return plain.Settings(method, protocol, **SETTINGS)


@pytest.fixture(scope="module")
def observe() -> Observe:
    """Two rounds of the engine, made once for all tests that look at them."""
    data = images()
    return cache(lambda method, protocol: Observed([f"method.name={method}", f"protocol={protocol}", *GIVEN], data))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.slow
def test_engine_and_reference_agree(method: str, protocol: str, observe: Observe) -> None:
    observed = observe(method, protocol)
    assert all(t.dtype == torch.float64 for t in observed.after[-1].weights.values())
    found = list(differences(observed, settings_for(method, protocol)))
    assert first_beyond(iter(found)) is None
    assert {"c_l", "mask", "target", "l_s", "l_u", "conv1.weight", "bn1.running_var"} <= {d.what for d in found}


@pytest.mark.parametrize("file", ["plain.py", "others.py"])
def test_the_reference_shares_nothing_with_the_package(file: str) -> None:
    tree = ast.parse((HERE / file).read_text())
    imported = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    allowed = {"math", "collections", "copy", "dataclasses", "plain", "torch", "types", "typing"}
    assert "torch" in imported
    assert {name.partition(".")[0] for name in imported} <= allowed


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_case_of_a_label_occurs(protocol: str, observe: Observe) -> None:
    """Else equal numbers would prove little: counted in what the engine did."""
    votes = observe("sage", protocol).votes
    sure_l, sure_g = votes("sure_l"), votes("sure_g")
    differ = votes("p_l").argmax(-1) != votes("p_g").argmax(-1)
    for case in (sure_l & sure_g, sure_l & ~sure_g, ~sure_l & sure_g, ~sure_l & ~sure_g, sure_l & differ):
        assert case.sum() >= 10
    for method in METHODS:
        mask = observe(method, protocol).votes("mask")
        assert min(mask.sum(), (~mask).sum()) >= 10


def test_the_federation_distinguishes_clients_rounds_and_protocols(observe: Observe) -> None:
    first, second = observe("sage", "authors").visits
    assert [v.client for v in first] != sorted(v.client for v in first)  # momentum passes on in the order drawn
    again = {v.client for v in first} & {v.client for v in second}
    assert len(again) == 2  # they bring FlexMatch's table along
    for visit in (*first, *second):
        assert len(visit.batches) == EPOCHS * (visit.pool // BATCH) >= 2
        assert all(len(b.weak) == 2 * len(b.labeled) == len(set(b.slots)) for b in visit.batches)
    assert len({visit.pool / visit.labeled for visit in first}) == 3  # clean and authors weigh clients differently


# Wrong references: each must be noticed, and by the number that it spoils first.

Change = Callable[[pytest.MonkeyPatch, plain.Settings], plain.Settings]


def setting(**values: float) -> Change:
    return lambda patch, settings: replace(settings, **values)


def put(name: str, function: Any) -> Change:
    """Put something else in the place of one of the reference's functions."""

    def change(patch: pytest.MonkeyPatch, settings: plain.Settings) -> plain.Settings:
        patch.setattr(plain, name, function)
        return settings

    return change


def wrap(name: str, outer: Callable[..., Any]) -> Change:
    """The same, with the function itself as the first argument."""
    inner = getattr(plain, name)
    return put(name, lambda *arguments: outer(inner, *arguments))


def only_where_local_is_sure(sage: Any, v: plain.Vote, classes: int, tau: float, kappa: float) -> plain.Label:
    return replace(sage(v, classes, tau, kappa), used=v.c_l >= tau)


def mixed_everywhere(sage: Any, v: plain.Vote, classes: int, tau: float, kappa: float) -> plain.Label:
    label = sage(v, classes, tau, kappa)
    return replace(label, target=sage(replace(v, c_l=v.c_l + 1, c_g=v.c_g + 1), classes, tau, kappa).target)


def mean_of_used(unsupervised: Any, logits: Tensor, labels: list[plain.Label], s: plain.Settings) -> Tensor:
    return unsupervised(logits, labels, s) * len(labels) / max(1, sum(label.used for label in labels))


def by_batch_statistics(_: Any, broadcast: torch.nn.Module, weak: Tensor) -> Tensor:
    with torch.no_grad():
        return deepcopy(broadcast).train()(weak).softmax(1)


def one_pass_for_each_view(_: Any, local: torch.nn.Module, batch: plain.Batch) -> list[Tensor]:
    return [local.train()(view) for view in (batch.labeled, batch.weak, batch.strong)]


def no_decay_of_vectors(_: Any, model: torch.nn.Module, s: plain.Settings) -> torch.optim.SGD:
    matrices, vectors = ([p for p in model.parameters() if (p.ndim == 1) == flat] for flat in (False, True))
    groups = [{"params": matrices, "weight_decay": s.weight_decay}, {"params": vectors}]
    return torch.optim.SGD(groups, s.lr, s.momentum)


def first_statistics(mean: Any, states: list[State], weights: list[int]) -> State:
    return {name: states[0][name] if "running" in name else t for name, t in mean(states, weights).items()}


def guarded_gap(_: Any, v: plain.Vote, kappa: float) -> float:
    """λ with the released code's small numbers."""
    return max(1e-6, math.exp(-kappa * min(1, abs(v.c_l - v.c_g) + 1e-6)))


def entries_after_own_threshold(
    _: Any, votes: list[plain.Vote], slots: list[int], table: list[int], tau: float
) -> None:
    thresholds = plain.flex_thresholds(table, 4, tau)
    for v, slot in zip(votes, slots, strict=True):
        if v.c_l >= thresholds[v.a_l]:
            table[slot] = v.a_l


WRONG: dict[str, tuple[str, str, Change, str]] = {  # method, protocol, change, first seen in
    "κ rounded": ("sage", "clean", setting(kappa=13.86), "λ"),
    "τ": ("sage", "clean", setting(tau=0.59), "mask"),
    "μ_u": ("sage", "clean", setting(mu_u=0.7000001), "λ"),
    "decay": ("sage", "clean", setting(weight_decay=1.00001e-4), "λ"),
    "wrong side of τ": ("sage", "clean", put("is_sure", lambda c, tau: c < tau), "mask"),
    "λ reversed": ("sage", "clean", wrap("weight_of_local", lambda f, *a: 1 - f(*a)), "λ"),
    "no CPG": ("sage", "clean", wrap("sage", only_where_local_is_sure), "mask"),
    "mixed where only global is sure": ("sage", "clean", wrap("sage", mixed_everywhere), "target"),
    "guard of the gap": ("sage", "authors", wrap("weight_of_local", guarded_gap), "λ"),
    "no guard of the logarithm": ("sage", "authors", put("log_p", lambda row, s: row.log_softmax(0)), "l_u"),
    "guard of the logarithm": ("sage", "clean", put("log_p", lambda row, s: (row.softmax(0) + 1e-10).log()), "l_u"),
    "mean over used": ("sage", "clean", wrap("unsupervised", mean_of_used), "l_u"),
    "global by batch statistics": ("sage", "clean", wrap("ask_global", by_batch_statistics), "λ"),
    "separate passes": ("sage", "clean", wrap("ask_local", one_pass_for_each_view), "λ"),
    "decay spares vectors": ("sage", "clean", wrap("make_sgd", no_decay_of_vectors), "λ"),
    "momentum reset": ("sage", "authors", put("carries_momentum", lambda s: False), "λ"),
    "momentum carried": ("sage", "clean", put("carries_momentum", lambda s: True), "λ"),
    "authors' weights": ("sage", "clean", put("size", lambda v, s: v.pool + 2000 * v.labeled), "conv1.weight"),
    "true sizes": ("sage", "authors", put("size", lambda v, s: v.pool), "conv1.weight"),
    "labeled images counted apart": ("sage", "clean", put("size", lambda v, s: v.pool + v.labeled), "conv1.weight"),
    "statistics not averaged": ("sage", "clean", wrap("mean", first_statistics), "bn1.running_mean"),
    "labels of the global model": ("fixmatch-lpl", "clean", put("fixmatch_lpl", plain.fixmatch_gpl), "mask"),
    "labels of the local model": ("fixmatch-gpl", "clean", put("fixmatch_gpl", plain.fixmatch_lpl), "mask"),
    "one threshold": ("flexmatch", "clean", put("flex_thresholds", lambda t, c, tau: [tau] * c), "mask"),
    "entries from T": ("flexmatch", "clean", wrap("note_sure_labels", entries_after_own_threshold), "mask"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_reference_is_noticed(wrong: str, observe: Observe, monkeypatch: pytest.MonkeyPatch) -> None:
    method, protocol, change, seen_in = WRONG[wrong]
    observed = observe(method, protocol)
    found = first_beyond(differences(observed, change(monkeypatch, settings_for(method, protocol))))
    assert found is not None
    assert found.what == seen_in
