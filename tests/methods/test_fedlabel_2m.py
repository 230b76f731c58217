"""FedLabel with two models: what trains which, the burn-in and the two means, worked by hand."""

import math
from collections.abc import Callable

import pytest
import torch

from fssl.core.federation import Federation
from fssl.engines.local import LocalEngine
from fssl.errors import UserError
from fssl.methods.fedlabel_2m import COUNT, A, B, FedLabel2M, drift, fedlabel_2m, pair, pseudo_loss
from fssl.methods.names import build_method
from fssl.types import Batch, Clock, Server, Upload, Weights, take
from helpers.matrix import equal, trained

Make = Callable[..., Federation]
NAME = "method.name=fedlabel-2m"


def weights(w: float) -> Weights:
    return Weights({"w": torch.tensor(w)}, {"m": torch.tensor(-w)})


def upload(client: int, a: float, b: float, labels: float) -> Upload:
    return Upload(client, pair(weights(a), weights(b)), 99, {COUNT: torch.tensor(labels)})


def test_two_means_by_hand() -> None:
    """A: 1 and 5, mean 3 whatever their sizes. B: 2 with 3 pseudo-labels and 10 with none, which counts as 1:
    (3 * 2 + 10) / 4 = 4. Half and half: 3.5; buffers likewise."""
    made = [upload(0, 1.0, 2.0, 3.0), upload(1, 5.0, 10.0, 0.0)]
    new = fedlabel_2m().aggregate(None, Server(weights(0.0), {}), made, None)  # type: ignore[arg-type]
    assert (new.weights.params["w"].item(), new.weights.buffers["m"].item()) == (3.5, -3.5)


def test_the_loss_is_divided_by_accepted_images() -> None:
    """-log 1/4 for the first, the second does not count."""
    logits = torch.tensor([[0.25, 0.75], [0.1, 0.9]]).log()
    votes = {"target": torch.tensor([[1.0, 0.0], [1.0, 0.0]]), "mask": torch.tensor([True, False])}
    assert pseudo_loss(logits, votes).item() == pytest.approx(math.log(4))
    assert pseudo_loss(logits, {**votes, "mask": torch.tensor([False, False])}).item() == 0


def test_the_teacher_is_always_a() -> None:
    """A says (.5 .3 .2), the broadcast model (.8 .1 .1) and wins; rho = 1/7. B is flat: KL(p_A || p_B) = log 3 - H(p_A)
    = 0.06896. Of two images one is accepted, and it alone is divided by: 0.05 * 0.06896 / 7."""
    p_a, p_g = torch.tensor([[0.5, 0.3, 0.2]] * 2), torch.tensor([[0.8, 0.1, 0.1]] * 2)
    votes = {"p_l": p_a, "p_g": p_g, "mask": torch.tensor([True, False])}
    kl = math.log(3) + 0.5 * math.log(0.5) + 0.3 * math.log(0.3) + 0.2 * math.log(0.2)
    assert fedlabel_2m().agreement(torch.zeros(2, 3), votes).item() == pytest.approx(0.05 * kl / 7, rel=1e-4)


def test_drift_by_hand() -> None:
    """Means over each tensor, summed over tensors: (1 + 9) / 2 + 4 = 9."""
    params = {"a": torch.tensor([1.0, 3.0]), "b": torch.tensor([2.0])}
    assert drift(params, {"a": torch.zeros(2), "b": torch.zeros(1)}).item() == 9


def test_a_trains_as_fedavg_does(make_federation: Make) -> None:
    """Nothing of B reaches A, during the burn-in or after it."""
    alone = trained(make_federation("method.name=fedavg"))
    for burn_in in (0, 50):
        assert equal(take(A, trained(make_federation(NAME, f"method.burn_in={burn_in}"))), alone)


def test_during_the_burn_in_b_is_the_broadcast_model(make_federation: Make) -> None:
    federation = make_federation(NAME, "method.burn_in=1")
    start = federation.net.first.params
    assert equal(take(B, trained(federation)), start)
    assert not equal(take(B, trained(make_federation(NAME, "method.burn_in=0"))), start)


def test_before_the_burn_in_ends_the_server_moves_half_way(make_federation: Make) -> None:
    """New global = (old global + plain mean of A) / 2, with A trained as in FedAvg."""
    federation = make_federation(NAME, "train.clients_per_round=4")
    engine = LocalEngine(federation)
    old = engine.snapshot.server.weights.params
    list(engine.rounds(1))
    new = engine.snapshot.server.weights.params
    plain = make_federation("method.name=fedavg", "train.clients_per_round=4")
    other = LocalEngine(plain)
    with torch.no_grad():
        fleet, server = other.fleet, other.snapshot.server
        made = [fleet.client(fleet.lanes[0], plain.plan(1, k), server, None).upload.weights.params for k in range(4)]
    for name, t in old.items():
        mean_a = torch.stack([params[name] for params in made]).mean(0)
        torch.testing.assert_close(new[name], (t + mean_a) / 2)


def test_pseudo_labels_are_counted_after_the_burn_in_only(make_federation: Make) -> None:
    counts = []
    for burn_in in (0, 1):
        federation = make_federation(NAME, f"method.burn_in={burn_in}", "method.tau=0.251")
        engine = LocalEngine(federation)
        with torch.no_grad():
            lane, server = engine.fleet.lanes[0], engine.snapshot.server
            result = engine.fleet.client(lane, federation.plan(1, 1), server, None)
            counts.append(result.upload.extras[COUNT].item())
    assert counts[0] > 0
    assert counts[1] == 0


@pytest.mark.slow
def test_both_models_learn_and_stay_finite(make_federation: Make) -> None:
    engine = LocalEngine(make_federation(NAME, "method.burn_in=1", "train.lr=0.05"))
    first, *_, last = engine.rounds(5)
    assert all(torch.isfinite(t).all() for t in engine.snapshot.server.weights.params.values())
    sums = [engine.layout.unpack(r.tally[:, 0]) for r in (first, last)]
    assert sums[1]["l_s"].sum() < sums[0]["l_s"].sum()


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"burn_in": -1}, "method.burn_in"), ({"pull": -1.0}, "method.pull"), ({"winner": 3}, "method.winner")],
)
def test_bad_settings(settings: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        build_method("fedlabel-2m", settings)
    assert "\n" not in str(error.value)


def test_the_plug_in_labels_for_b(make_federation: Make) -> None:
    """And for B alone: A trains as it does without."""
    low = ("method.burn_in=0", "method.tau=0.3")
    host, plugged = (trained(make_federation(f"{NAME}{plugin}", *low)) for plugin in ("", "+sage"))
    assert equal(take(A, plugged), take(A, host))
    assert not equal(take(B, plugged), take(B, host))


def test_labels_of_the_plug_in_by_hand() -> None:
    """A is sure with .97 of class 0, the broadcast model votes for class 1 with .92: a gap of .05 halves A's vote.
    FedLabel itself would take A's alone, whose probabilities lie further apart."""
    p_a, p_g, zero = torch.tensor([[0.97, 0.02, 0.01]]), torch.tensor([[0.01, 0.92, 0.07]]), torch.zeros(())
    batch = Batch({}, zero, zero, zero, Clock(zero, zero, zero), {})
    for name, target in (("fedlabel-2m+sage", [[0.5, 0.5, 0.0]]), ("fedlabel-2m", [[1.0, 0.0, 0.0]])):
        method = build_method(name, {"tau": 0.95})
        assert isinstance(method, FedLabel2M)
        votes = method.vote(p_a, p_g, Server(weights(0.0), {}), {}, batch)
        torch.testing.assert_close(votes["target"], torch.tensor(target), atol=1e-6, rtol=0)
        assert votes["mask"].tolist() == [True]
