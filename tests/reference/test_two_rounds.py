"""Two federated rounds of the engine against the plain reference: float64 on a CPU, the same images, twelve digits."""

import ast
import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import plain
import pytest
import torch
from torch import Tensor

from conftest import tiny_config
from fssl.core.client import at
from fssl.core.experiment import Experiment, prepare
from fssl.core.federation import Federation
from fssl.data.sources import Dataset, load
from fssl.engines.local import LocalEngine
from fssl.probes.training import Probe
from fssl.types import State, Trace

HERE = Path(__file__).parent
METHODS, PROTOCOLS = ("sage", "fixmatch-lpl", "fixmatch-gpl", "flexmatch"), ("clean", "authors")
DIGITS = 1e-12
BATCH, EPOCHS = 4, 1
# Momentum, weight decay and κ are the defaults of the package, written down once more.
SETTINGS = {"tau": 0.6, "mu_u": 0.7, "kappa": math.log(2) / 0.05, "lr": 0.015, "momentum": 0.9, "weight_decay": 1e-4}
FEDERATION = (
    "seed=9",
    "data.labels_per_class=4",
    f"model.name={HERE / 'double.py'}:resnet8",
    "partition.kind=dirichlet",  # sizes and shares of labeled images differ between clients
    "partition.alpha=1",
    f"train.batch={BATCH}",
    f"train.local_epochs={EPOCHS}",
    "train.clients_per_round=3",
    f"train.lr={SETTINGS['lr']}",
    f"method.tau={SETTINGS['tau']}",
    f"method.mu_u={SETTINGS['mu_u']}",
    "compute.lanes=1",  # steps are watched one after another
)
OUR_NAMES = {"conv1.": "conv.", "bn1.": "bn.", "fc.": "head.linear."}  # of the reference's outer layers


class WatchedFederation(Federation):
    """A federation that keeps what each step shows to the probes."""

    def __init__(self, experiment: Experiment) -> None:
        self.traces: list[Trace] = []
        super().__init__(experiment)

    @property
    def probe(self) -> Probe:
        inner = super().probe

        def probe(trace: Trace, truth: Tensor) -> Any:
            self.traces.append(trace)
            return inner(trace, truth)

        return probe


class After(NamedTuple):
    """What the engine holds after a round."""

    weights: State
    tables: dict[int, list[int]]
    accuracy: float


class Observed:
    """Two rounds of the engine, with everything that the reference needs as input and must give as output."""

    def __init__(self, method: str, protocol: str, data: Dataset) -> None:
        names = f"method.name={method}", f"protocol={protocol}"
        self.federation = WatchedFederation(prepare(tiny_config(*names, *FEDERATION), data))
        engine = LocalEngine(self.federation)
        self.first = together(engine.model())
        self.federation.traces.clear()  # of the step that is tried on shapes alone
        self.after = [self._after(engine, done.tests["train_norm"].accuracy) for done in engine.rounds(2)]
        self.settings = plain.Settings(method, protocol, **SETTINGS)

    def _after(self, engine: LocalEngine, accuracy: float) -> After:
        kept = engine.snapshot.clients.items()
        tables = {k: state["flex.table"][: self.federation.counts(k).pool].tolist() for k, state in kept if state}
        return After(together(engine.model()), tables, accuracy)

    @property
    def traces(self) -> list[Trace]:
        return self.federation.traces

    def votes(self, name: str) -> Tensor:
        """One kind of vote in all steps."""
        return torch.cat([trace.votes[name] for trace in self.traces])

    @cached_property
    def visits(self) -> list[list[plain.Visit]]:
        """Clients and views, from the plan that the engine follows too."""
        drawn = self.federation.drawn_clients
        return [[self.visit(round, client) for client in drawn(round)] for round in (1, 2)]

    def visit(self, round: int, client: int) -> plain.Visit:
        federation, counts = self.federation, self.federation.counts(client)
        draw, views = federation.plan(round, client).draw, federation.method.needs.views
        batches = [federation.pool.batch(at(draw, i), views, with_truth=False) for i in range(len(draw.x_row))]
        return plain.Visit(
            client,
            counts.labeled,
            counts.pool,
            [
                plain.Batch(b.x.double(), b.y.tolist(), b.u_weak.double(), b.u_strong.double(), b.u_slot.tolist())
                for b in batches
            ],
        )

    def test_images(self) -> tuple[Tensor, list[int]]:
        images = torch.from_numpy(self.federation.test.images)
        return self.federation.norms["train_norm"](images).double(), self.federation.test.labels.tolist()


def together(weights: Any) -> State:
    return {**weights.params, **weights.buffers}


def our_name(name: str) -> str:
    for theirs, ours in OUR_NAMES.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


class Difference(NamedTuple):
    what: str
    step: int
    size: float  # the largest one of a tensor, relative to its largest value


def difference(what: str, step: int, ours: Any, theirs: Any) -> Difference:
    a, b = (torch.as_tensor(t, dtype=torch.float64) for t in (ours, theirs))
    assert a.shape == b.shape, what
    scale = torch.maximum(a.abs().max(), b.abs().max())
    return Difference(what, step, float((a - b).abs().max() / scale) if scale else 0.0)


def differences(observed: Observed, settings: plain.Settings) -> Iterator[Difference]:
    """Every number that both sides have, as the reference computes it."""
    step = 0
    model = plain.ResNet8(4, 1).double()
    names = [name for name in model.state_dict() if not name.endswith("num_batches_tracked")]
    assert sorted(map(our_name, names)) == sorted(observed.first)
    model.load_state_dict({name: observed.first[our_name(name)] for name in names}, strict=False)
    after = iter(observed.after)
    for done in plain.train(model, observed.visits, settings):
        if isinstance(done, plain.Step):
            found = of_step(done, observed.traces[step], observed)
            step += 1
        else:
            found = of_round(done, next(after), observed)
        yield from (difference(what, step, *pair) for what, pair in found.items())
    assert step == len(observed.traces)


def of_step(step: plain.Step, trace: Trace, observed: Observed) -> dict[str, tuple[Any, Any]]:
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
    if observed.settings.method == "sage":
        weigh = observed.federation.method.watched.weigh
        lam = weigh(trace.votes["p_l"], trace.votes["p_g"])
        pairs = {"λ": (lam, [label.lam for label in step.labels]), **pairs}
    return pairs


def of_round(done: plain.Round, after: After, observed: Observed) -> dict[str, tuple[Any, Any]]:
    state = done.model.state_dict()
    names = [name for name in state if our_name(name) in after.weights]
    pairs: dict[str, tuple[Any, Any]] = {name: (after.weights[our_name(name)], state[name]) for name in names}
    pairs |= {f"table of {k}": (table, done.tables[k]) for k, table in after.tables.items()}
    return {**pairs, "accuracy": (after.accuracy, plain.accuracy(done.model, *observed.test_images()))}


def first_beyond(found: Iterator[Difference]) -> Difference | None:
    """The first number on which both sides disagree."""
    return next((d for d in found if not d.size <= DIGITS), None)


Observe = Callable[[str, str], Observed]


@pytest.fixture(scope="module")
def observe() -> Observe:
    """Two rounds of the engine, made once for all tests that look at them."""
    data = load("synthetic", num_classes=4, size=8, channels=3, train_per_class=16, test_per_class=10)
    return cache(lambda method, protocol: Observed(method, protocol, data))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("method", METHODS)
def test_engine_and_reference_agree(method: str, protocol: str, observe: Observe) -> None:
    observed = observe(method, protocol)
    assert all(t.dtype == torch.float64 for t in observed.after[-1].weights.values())
    found = list(differences(observed, observed.settings))
    assert first_beyond(iter(found)) is None
    assert {"c_l", "mask", "target", "l_s", "l_u", "conv1.weight", "bn1.running_var"} <= {d.what for d in found}


def test_the_reference_shares_nothing_with_the_package() -> None:
    tree = ast.parse((HERE / "plain.py").read_text())
    imported = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    allowed = {"math", "collections", "copy", "dataclasses", "torch"}
    assert {name.partition(".")[0] for name in imported} == allowed


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


def test_the_federation_tells_clients_rounds_and_protocols_apart(observe: Observe) -> None:
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
    found = first_beyond(differences(observed, change(monkeypatch, observed.settings)))
    assert found is not None
    assert found.what == seen_in
