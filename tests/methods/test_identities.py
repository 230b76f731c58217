"""Limits: a setting that switches an idea off must give the older method exactly."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fssl.core.client import client_round
from fssl.core.federation import Federation
from fssl.engines.local import LocalEngine
from fssl.label.accept import FlexThreshold
from fssl.label.assign import ConfidenceGap, Constant, GlobalOnly, LocalOnly, Sage
from fssl.methods.base import mean_weights, weighted_mean
from fssl.methods.fixmatch import FixMatch
from fssl.methods.names import METHODS, build_method
from fssl.methods.optimizers import Sgd
from fssl.methods.sage import sage, with_sage
from fssl.types import Counts, Upload, Weights
from helpers.matrix import equal, trained
from helpers.small import host_lane

Make = Callable[..., Federation]


def accepting(tau: float = 0.3) -> str:
    """A threshold low enough that labels are really used within a few steps."""
    return f"method.tau={tau}"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "older"), [("fedprox", "fedavg"), ("fedprox+fixmatch", "fixmatch-lpl")])
def test_no_proximal_term_is_the_host(name: str, older: str, make_federation: Make) -> None:
    a = trained(make_federation(f"method.name={name}", "method.mu_prox=0"))
    assert equal(a, trained(make_federation(f"method.name={older}")))
    assert not equal(a, trained(make_federation(f"method.name={name}", "method.mu_prox=0.5")))


def test_sage_is_fixmatch_with_the_plug_in() -> None:
    assert build_method("fixmatch-lpl+sage", {}) == sage() == with_sage(FixMatch())
    assert build_method("fixmatch-gpl+sage", {"kappa": 3.0}).assign == Sage(ConfidenceGap(3.0))  # type: ignore[attr-defined]


def test_plug_in_keeps_the_hosts_thresholds_and_terms() -> None:
    host = build_method("fedprox+fixmatch", {"mu_prox": 0.25, "tau": 0.8})
    both = build_method("fedprox+fixmatch+sage", {"mu_prox": 0.25, "tau": 0.8, "kappa": 2.0})
    assert replace(both, assign=LocalOnly()) == host  # type: ignore[call-arg]
    flex = build_method("flexmatch+sage", {"tau": 0.9})
    assert flex.accept == FlexThreshold(0.9, count="final")  # type: ignore[attr-defined]
    local = build_method("flexmatch+sage", {"tau": 0.9, "count": "local"})
    assert local.accept == FlexThreshold(0.9, count="local")  # type: ignore[attr-defined]
    assert build_method("flexmatch", {"tau": 0.9}).accept == FlexThreshold(0.9)  # type: ignore[attr-defined]


def test_kappa_zero_trains_as_cpg_alone(make_federation: Make) -> None:
    cpg = trained(make_federation("method.name=sage", "method.cdsc=false", accepting()))
    assert equal(cpg, trained(make_federation("method.name=sage", "method.kappa=0", accepting())))
    assert equal(cpg, trained(make_federation("method.name=sage", "method.lam=1", accepting())))
    assert not equal(cpg, trained(make_federation("method.name=sage", accepting())))


def test_neither_idea_is_lpl(make_federation: Make) -> None:
    lpl = trained(make_federation("method.name=fixmatch-lpl", accepting()))
    assert equal(
        lpl, trained(make_federation("method.name=sage", "method.cpg=false", "method.cdsc=false", accepting()))
    )


def test_flexmatch_with_even_tables_is_lpl(make_federation: Make) -> None:
    class Even(FlexThreshold):
        def thresholds(self, num_classes: int, state: Any) -> torch.Tensor:
            return torch.full((num_classes,), self.tau)

    federation = make_federation("method.name=flexmatch")
    flex = trained(federation, FixMatch(accept=Even(0.3)))
    assert equal(flex, trained(make_federation("method.name=fixmatch-lpl", accepting())))


# Methods with a further term, a second network or a second model, which tau does not silence.
MORE_THAN_LABELS = ("proxyfl", "fedlabel-2m", "feddure", "feddure-full")
LABELERS = [n for n, b in METHODS.items() if isinstance(b(), FixMatch) and n not in MORE_THAN_LABELS]


@pytest.mark.parametrize("name", LABELERS)
def test_nothing_accepted_trains_on_labels_alone(name: str, make_federation: Make) -> None:
    """Only L_s is left, on the same forward plan; equal to a weight mu_u of zero."""
    alike = {"fedprox+fixmatch": ["method.mu_prox=0"], "feddb": ["method.passes=joint"]}
    federation = make_federation(f"method.name={name}", *alike.get(name, []))
    rule: Any = federation.method.accept  # type: ignore[attr-defined]
    nothing: dict[str, Any] = {"sure": lambda self, p, state: torch.zeros(len(p), dtype=torch.bool)}
    nothing["weight"] = lambda self, p, state: torch.zeros(len(p))  # of a rule that weighs
    never: Any = type("Never", (type(rule),), nothing)
    silent = trained(federation, replace(federation.method, accept=never(**vars(rule))))  # type: ignore[call-arg]
    assert equal(silent, trained(make_federation("method.name=fixmatch-lpl", "method.mu_u=0", accepting())))


def test_equal_models_in_one_mode_give_equal_gradients(make_federation: Make) -> None:
    """In the first step both models have the same weights; labeling both in evaluation mode makes p_l = p_g."""
    results = []
    for settings in (["method.name=sage"], ["method.name=sage", "method.cdsc=false"], ["method.name=fixmatch-lpl"]):
        one = make_federation(*settings, "method.label_bn=eval", "train.steps_per_round=1", accepting(0.26))
        results.append(trained(one))
    gpl = make_federation("method.name=fixmatch-gpl", "train.steps_per_round=1", accepting(0.26))
    results.append(trained(gpl))
    assert all(equal(results[0], other) for other in results[1:])
    silent = make_federation("method.name=fixmatch-gpl", "train.steps_per_round=1", "method.mu_u=0")
    assert not equal(results[0], trained(silent))  # labels were accepted


def test_fedsgd_steps_along_the_mean_gradient(make_federation: Make) -> None:
    """One step per client from the same start: averaging weights averages gradients."""
    federation = make_federation("train.steps_per_round=1", "train.momentum=0", "train.weight_decay=0", "train.lr=1")
    engine = LocalEngine(federation)
    start = engine.snapshot.server.weights.params["body.0.weight"].clone()
    steps = []
    for client in federation.drawn_clients(1):
        lane = engine.fleet.lanes[0]
        with torch.no_grad():
            result = client_round(lane, federation.method, engine.snapshot.server, {}, federation.plan(1, client))
        steps.append(start - result.upload.weights.params["body.0.weight"])
    list(engine.rounds(1))
    moved = start - engine.snapshot.server.weights.params["body.0.weight"]
    sizes = torch.tensor([float(federation.counts(k).pool) for k in federation.drawn_clients(1)])
    mean = sum(s * w for s, w in zip(steps, sizes / sizes.sum(), strict=True))
    torch.testing.assert_close(moved, mean, atol=1e-6, rtol=1e-4)


def test_one_client_is_central_training(make_federation: Make) -> None:
    federation = make_federation("partition.kind=iid", "partition.clients=1", "train.clients_per_round=1")
    engine = LocalEngine(federation)
    list(engine.rounds(1))
    server = engine.snapshot.server.weights.params
    assert federation.counts(0) == Counts(32, 160)
    assert equal(server, _client(federation, 0))


def _client(federation: Federation, client: int) -> dict[str, torch.Tensor]:
    server = federation.method.init(federation.net, federation.net.first, federation.task)
    lane = host_lane(federation)
    with torch.no_grad():
        return client_round(lane, federation.method, server, {}, federation.plan(1, client)).upload.weights.params


def test_sgd_is_the_frameworks() -> None:
    g = torch.Generator().manual_seed(3)
    start = {"a": torch.randn(3, 2, generator=g), "b": torch.randn(4, generator=g)}
    theirs = [torch.nn.Parameter(t.clone()) for t in start.values()]
    optimizer = torch.optim.SGD(theirs, lr=0.1, momentum=0.9, weight_decay=1e-4)
    params, velocity = start, {k: torch.zeros_like(v) for k, v in start.items()}
    for _ in range(5):
        grads = {k: torch.randn(v.shape, generator=g) for k, v in start.items()}
        for p, gradient in zip(theirs, grads.values(), strict=True):
            p.grad = gradient.clone()
        optimizer.step()
        params, velocity = Sgd().update(params, velocity, grads)
    for p, q in zip(theirs, params.values(), strict=True):
        torch.testing.assert_close(p.detach(), q)


def test_weighted_mean_by_hand() -> None:
    """(1 * 2 + 4 * 1 + 10 * 1) / 4 = 4."""
    trees = [({"w": torch.tensor([1.0])}, 2.0), ({"w": torch.tensor([4.0])}, 1.0), ({"w": torch.tensor([10.0])}, 1.0)]
    assert weighted_mean(trees)["w"].item() == pytest.approx(4.0)


def test_buffers_are_averaged_with_parameters() -> None:
    uploads = [
        Upload(k, Weights({"w": torch.tensor(v)}, {"m": torch.tensor(-v)}), n, {})
        for k, v, n in ((0, 1.0, 1), (1, 5.0, 3))
    ]
    mean = mean_weights(uploads)
    assert (mean.params["w"].item(), mean.buffers["m"].item()) == (4.0, -4.0)


def test_weights_of_clients() -> None:
    counts = Counts(labeled=250, pool=2500)
    assert METHODS["sage"]().num_samples(counts) == 2500
    assert METHODS["fedavg"]().num_samples(counts) == 250
    assert replace(METHODS["sage"](), labeled_weight=2000).num_samples(counts) == 502_500  # as released


def test_ablations_are_field_values() -> None:
    assert sage(cdsc=False).assign == Sage(Constant(1.0))
    assert sage(cpg=False).assign == Sage(supplement=False)
    assert sage(lam=0.3).assign == Sage(Constant(0.3))


def test_the_global_model_is_asked_if_it_labels_or_is_watched() -> None:
    for assign, watch, asks in ((LocalOnly(), False, False), (LocalOnly(), True, True), (GlobalOnly(), False, True)):
        assert FixMatch(assign=assign, watch=watch).asks_global == asks


@pytest.mark.parametrize("name", ["fixmatch-lpl", "fixmatch-gpl"])
def test_what_is_recorded_changes_nothing_that_is_learned(name: str, make_federation: Make) -> None:
    watched, other = (
        trained(make_federation(f"method.name={name}", accepting(), f"records.probes={probes}"))
        for probes in ("all", "losses")
    )
    assert equal(watched, other)


def test_oracle_drops_exactly_the_wrong_labels(make_federation: Make) -> None:
    engine = LocalEngine(make_federation("method.name=fixmatch-lpl+oracle", accepting()))
    (result,) = engine.rounds(1)
    sums = engine.layout.unpack(result.tally[:, 0])
    assert sums["n_valid"].sum() > 0
    assert (sums["n_valid"] == sums["correct_valid"]).all()
    assert (sums["n_l"] > sums["n_valid"]).any()


def test_contradictions_are_rejected() -> None:
    for settings in ({"lam": 0.3, "cdsc": False}, {"lam": 0.3, "kappa": 4.0}):
        with pytest.raises(ValueError, match=r"method\.lam fixes the weight"):
            build_method("sage", settings)
    for name in ("sage+sage", "flexmatch+oracle+oracle"):
        with pytest.raises(ValueError, match="repeats a plug-in"):
            build_method(name, {})
