"""The local engine: presets, state, the test set, and what happens when training blows up."""

import shlex
from collections.abc import Callable
from math import inf, isfinite
from pathlib import Path
from threading import Event
from time import sleep

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fssl.core.client import StepError, at
from fssl.core.evaluate import headline_norm
from fssl.core.federation import Federation
from fssl.engines.failure import ClientError, NotFiniteError
from fssl.engines.lanes import Lane
from fssl.engines.local import LocalEngine
from fssl.methods.base import Method
from fssl.methods.names import METHODS
from fssl.records.tensors import unseal
from fssl.training.plan import ClientPlan
from fssl.types import Payload, Server, State, Weights

Make = Callable[..., Federation]


def final(engine: LocalEngine, rounds: int = 2) -> dict[str, torch.Tensor]:
    list(engine.rounds(rounds))
    return engine.model().params


def test_two_engines_give_identical_bits(make_federation: Make) -> None:
    a, b = (final(LocalEngine(make_federation())) for _ in range(2))
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_the_seed_changes_the_run(make_federation: Make) -> None:
    a, b = (final(LocalEngine(make_federation(f"seed={seed}"))) for seed in (7, 8))
    assert not torch.equal(a["body.0.weight"], b["body.0.weight"])


@pytest.mark.parametrize("more", [(), ("train.schedule=cosine", "train.schedule_over=steps", "compute.lanes=2")])
@pytest.mark.slow
def test_inductor_agrees_with_eager(more: tuple[str, ...], make_federation: Make) -> None:
    """Fused arithmetic rounds differently, so to tolerance, after a few steps only; a rate moves with the steps."""
    short = ("train.steps_per_round=3", "compute.lanes=1", *more)
    eager, compiled = (final(LocalEngine(make_federation(*short, f"compute.compile={c}")), 1) for c in ("off", "on"))
    for name, value in eager.items():
        torch.testing.assert_close(compiled[name], value, rtol=1e-3, atol=1e-4)


def test_authors_carry_momentum_in_the_order_drawn(make_federation: Make) -> None:
    federation = make_federation("protocol=authors")
    engine = LocalEngine(federation)
    (result,) = engine.rounds(1)
    assert result.clients == [int(k) for k in np.random.RandomState(7).choice(4, 2, replace=False)]
    assert engine.snapshot.velocity
    clean = final(LocalEngine(make_federation()), 1)
    assert not torch.equal(engine.model().params["body.0.weight"], clean["body.0.weight"])


def test_authors_first_client_starts_without_momentum(make_federation: Make) -> None:
    """With one client per round and one round, carried and fresh momentum are the same; FedAvg has no L_u to guard."""
    one = ("train.clients_per_round=1", "train.rounds=1", "method.name=fedavg")
    a, b = (final(LocalEngine(make_federation(*one, f"protocol={p}")), 1) for p in ("authors", "clean"))
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_authors_headline_is_the_released_normalization(make_federation: Make) -> None:
    assert headline_norm(make_federation("protocol=authors").config) == "authors_norm"
    assert headline_norm(make_federation().config) == "train_norm"


def test_flexmatch_tables_survive_rounds_and_cost_nothing_for_others(make_federation: Make) -> None:
    engine = LocalEngine(make_federation("method.name=flexmatch", "method.tau=0.3"))
    results = list(engine.rounds(3))
    seen = {k for r in results for k in r.clients}
    assert set(engine.snapshot.clients) == seen
    assert all((state["flex.table"] >= 0).any() for state in engine.snapshot.clients.values())


@pytest.mark.parametrize(("persistent", "first"), [("true", [2, -1, -2]), ("false", [-1, -1, -2])])
def test_flexmatch_can_forget(persistent: str, first: list[int], make_federation: Make) -> None:
    federation = make_federation("method.name=flexmatch", f"method.persistent={persistent}")
    server = federation.method.init(federation.net, federation.net.first, federation.task)
    local = federation.method.start(server, {"flex.table": torch.tensor([2, -1, -2])})
    assert local.state["flex.table"].tolist() == first


def test_accuracy_is_that_of_a_plain_loop(make_federation: Make) -> None:
    federation = make_federation()
    engine = LocalEngine(federation)
    *_, result = engine.rounds(2)
    split, norm = federation.dataset.test, federation.norms["train_norm"]
    logits = federation.net.infer(engine.model(), norm(torch.from_numpy(np.array(split.images)))).logits
    right = (logits.argmax(-1).numpy() == split.labels).mean()
    assert result.tests["train_norm"].accuracy == pytest.approx(100 * right)


def test_an_explosion_is_named(make_federation: Make) -> None:
    engine = LocalEngine(make_federation("train.lr=1e20"))
    with pytest.raises(NotFiniteError, match=r"round 1: the loss of client \d is not finite"):
        list(engine.rounds(2))
    assert engine.snapshot.round == 0  # the last good state stays


def test_a_model_that_blew_up_in_its_last_step_is_named(make_federation: Make) -> None:
    """The client's losses were finite, its weights are not: the test of the global model shows it."""
    engine = LocalEngine(make_federation("train.lr=1e30", "train.steps_per_round=1"))
    with pytest.raises(NotFiniteError, match="round 1: the loss or a running statistic of the global model is not"):
        list(engine.rounds(1))


def test_an_infinite_variance_is_named_though_the_test_does_not_show_it(make_federation: Make) -> None:
    """What is divided by infinity is 0, and the loss is a number."""
    federation = make_federation("train.steps_per_round=1")
    variance = federation.net.running[-1]
    assert variance.endswith("running_var")

    def attacked_upload(server: Server, used: int) -> Server:
        params, buffers = server.weights
        return server._replace(weights=Weights(params, {**buffers, variance: torch.full_like(buffers[variance], inf)}))

    engine = LocalEngine(federation)
    assert isfinite(
        engine.tested(federation.method.deploy(federation.net, attacked_upload(engine.snapshot.server, 1))).loss
    )
    engine.after = attacked_upload
    with pytest.raises(NotFiniteError, match="round 1: the loss or a running statistic of the global model is not"):
        list(engine.rounds(1))
    assert engine.snapshot.round == 0


def test_debug_saves_the_step_that_fails(make_federation: Make, tmp_path: Path) -> None:
    (folder := tmp_path / "a run").mkdir()
    engine = LocalEngine(make_federation("train.lr=1e20"), folder, debug=True)
    with pytest.raises(ClientError, match=r"^round 1, client \d, step \d+: .* is not finite; `fssl replay ") as raised:
        list(engine.rounds(1))
    file = folder / "failed-step.safetensors"
    assert shlex.split(str(raised.value).split("`")[1]) == ["fssl", "replay", str(file)]
    saved = load_file(file)
    assert "local.weights.params.body.0.weight" in saved
    assert saved["draw.noise.u_strong"].shape == (16, 13)


def test_of_lanes_that_fail_at_once_the_reported_step_is_saved(
    make_federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second lane fails when the error of the first is reported already."""
    federation = make_federation("compute.lanes=2", "train.clients_per_round=2", "compute.processes=off")
    first, _ = federation.drawn_clients(1)
    has_begun, has_reported, has_failed = Event(), Event(), Event()

    def failing(lane: Lane, method: Method, payload: Payload, state: State, plan: ClientPlan, own: object) -> None:
        if plan.client == first:
            has_begun.wait(60)
        else:
            has_begun.set()
            has_reported.wait(60)
            has_failed.set()
        error = StepError(payload, method.start(payload, state), at(plan.draw, 0))
        raise error from ValueError("enough")

    monkeypatch.setattr("fssl.engines.lanes.client_round", failing)
    with pytest.raises(ClientError, match=rf"^round 1, client {first}, step 1: ValueError: enough; `fssl replay "):
        list(LocalEngine(federation, tmp_path).rounds(1))
    has_reported.set()
    assert has_failed.wait(60)
    sleep(0.2)  # in which the second lane could write
    _, facts = unseal(tmp_path / "failed-step.safetensors")
    assert facts is not None
    assert (facts["where"], facts["client"]) == (f"round 1, client {first}, step 1", first)


def test_plain_dirichlet_with_unlabeled_clients_trains(make_federation: Make) -> None:
    settings = (
        "partition.kind=dirichlet",
        "partition.alpha=0.05",
        "data.labels_per_class=1",
        "train.clients_per_round=4",
    )
    federation = make_federation(*settings)
    assert min(site.counts.labeled for site in federation.sites) == 0
    engine = LocalEngine(federation)
    (result,) = engine.rounds(1)
    assert np.isfinite(result.tally).all()
    l_s = engine.layout.unpack(result.tally[:, 0])["l_s"]
    for client, loss in zip(result.clients, l_s, strict=True):
        assert (loss == 0) == (federation.counts(client).labeled == 0)


@pytest.mark.parametrize("more", [(), ("server.broadcast_momentum=true",), ("protocol=authors",)])
def test_who_has_no_labels_does_not_change_supervised_training(more: tuple[str, ...], make_federation: Make) -> None:
    """FedAvg with labels at two of six clients is FedAvg among those two, bit for bit."""
    method = ("method.name=fedavg", "method.steps=labeled", "partition.kind=iid", *more)
    few = ("partition.clients=6", "partition.labeled_clients=2", "train.clients_per_round=6")
    two = ("partition.clients=2", "train.clients_per_round=2")
    a, b = (final(LocalEngine(make_federation(*method, *settings))) for settings in (few, two))
    assert all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
def test_who_has_nothing_to_learn_from_takes_no_step(method: str, make_federation: Make) -> None:
    few = ("partition.clients=6", "partition.labeled_clients=2", "train.clients_per_round=3", "train.steps_per_round=4")
    engine = LocalEngine(make_federation(f"method.name={method}", *few))
    seen = set()
    for result in engine.rounds(6):
        steps = engine.layout.unpack(result.tally[:, 0])["steps"].round()
        assert steps.tolist() == [4 * (client < 2) for client in result.clients]
        seen.add(int(steps.sum()))
    assert seen == {0, 4, 8}  # rounds without any client that has labels are among them


def test_clients_know_all_their_labels_or_none(make_federation: Make) -> None:
    """Two of six: their pools are their labeled images; the others have no supervised loss."""
    settings = ("partition.labels=knowing-clients", "partition.labeled_clients=2", "train.clients_per_round=6")
    federation = make_federation(
        "method.name=sage", "partition.clients=6", "partition.kind=balanced-dirichlet", *settings
    )
    assert [site.counts.labeled > 0 for site in federation.sites] == [True] * 2 + [False] * 4
    assert [site.counts.labeled for site in federation.sites[:2]] == [site.counts.pool for site in federation.sites[:2]]
    engine = LocalEngine(federation)
    (result,) = engine.rounds(1)
    assert np.isfinite(result.tally).all()
    assert (engine.layout.unpack(result.tally[:, 0])["l_s"] > 0).tolist() == [client < 2 for client in result.clients]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.slow
def test_every_method_trains_where_few_clients_have_labels(method: str, make_federation: Make) -> None:
    settings = ("partition.kind=iid", "partition.labeled_clients=1", "train.clients_per_round=4")
    federation = make_federation(f"method.name={method}", *settings, "train.steps_per_round=3")
    assert [site.counts.labeled > 0 for site in federation.sites] == [True, *[method == "fedavg-sl"] * 3]
    engine = LocalEngine(federation)
    *_, last = engine.rounds(2)
    assert all(torch.isfinite(value).all() for value in engine.model().params.values())
    losses = engine.layout.unpack(last.tally[:, 0])["l_s"]
    assert losses[0] > 0
    assert method == "fedavg-sl" or not losses[1:].any()


def test_the_two_halves_of_the_test_make_the_whole(make_federation: Make) -> None:
    """Each class is halved, no image is in both, and correct answers add up: the same model, tested three ways."""
    right = {}
    for part in ("all", "tuning", "final"):
        federation = make_federation(f"data.test={part}")
        (result,) = LocalEngine(federation).rounds(1)
        accuracy = result.tests["train_norm"].accuracy
        right[part] = (accuracy / 100 * len(federation.test.labels), np.bincount(federation.test.labels))
    assert right["tuning"][0] + right["final"][0] == pytest.approx(right["all"][0])
    assert (right["tuning"][1] + right["final"][1] == right["all"][1]).all()
    assert (abs(right["tuning"][1] - right["final"][1]) <= 1).all()
