"""CBAFed: thresholds by class, rare second classes, what is counted, and weights connected with older ones."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fssl.core.federation import Federation
from fssl.data.cards import card
from fssl.engines.local import LocalEngine
from fssl.methods.cbafed import CLASSES, KNOWS, LABELED, OLDER, ROUNDS, CBAFed, ClassBalance, cbafed, class_shares
from fssl.methods.names import defaults_on
from fssl.types import Batch, Clock, Local, State, Task, Upload, Weights, unpacked

Make = Callable[..., Federation]
# The labeled client of RSCFed's and CBAFed's split of SVHN.
SVHN = torch.tensor([15.0, 292, 986, 116, 63, 1285, 1352, 1438, 807, 267])
KNOWING = (
    "method.name=cbafed", "partition.kind=iid", "partition.labels=knowing-clients", "partition.labeled_clients=1",
    "train.clients_per_round=4", "train.unlabeled_ratio=1",
)  # fmt: skip
FEW = (*KNOWING, "train.local_epochs=1")


@pytest.mark.parametrize("num_classes", [10, 100])
def test_even_classes_have_one_threshold_and_none_is_rare(num_classes: int) -> None:
    q = class_shares(torch.full((num_classes,), 7.0))
    torch.testing.assert_close(q, torch.full((num_classes,), 0.1))
    torch.testing.assert_close(ClassBalance().thresholds(q), torch.full((num_classes,), 0.94))
    assert ClassBalance(cap=0.9).thresholds(q).tolist() == pytest.approx([0.9] * num_classes)
    assert not (q < ClassBalance().rare).any()


def test_before_anything_is_known_classes_are_even() -> None:
    assert class_shares(torch.zeros(4)).tolist() == pytest.approx([0.1] * 4)


def test_the_published_split_of_svhn() -> None:
    q = class_shares(SVHN)
    assert q[[0, 3, 4]].tolist() == pytest.approx([0.0023, 0.0175, 0.0095], abs=5e-5)
    assert (q < ClassBalance().rare).nonzero().flatten().tolist() == [0, 3, 4]
    assert defaults_on("cbafed", card("svhn"))["cap"] == 0.9
    assert defaults_on("cbafed", card("cifar10"))["cap"] == 0.95
    assert defaults_on("cbafed", card("cifar10"))["burn_in"] == 27


def test_labels_by_hand() -> None:
    """q = (.5 .02 .48), deviation .2715: thresholds (1.0685 .5885 1.0485), cut to .95; class 1 is rare."""
    q = torch.tensor([0.5, 0.02, 0.48])
    rule = ClassBalance()
    assert rule.thresholds(q).tolist() == pytest.approx([0.95, 0.5885, 0.95], abs=1e-4)
    p = torch.tensor([[0.96, 0.01, 0.03], [0.90, 0.06, 0.04], [0.90, 0.04, 0.06], [0.10, 0.60, 0.30]])
    target, mask = rule(p, q)
    assert mask.tolist() == [True, True, False, True]  # sure, by its second class, rejected, sure of the rare one
    assert target.argmax(-1).tolist() == [0, 1, 0, 1]


def test_the_threshold_itself_is_not_enough() -> None:
    rule, q = ClassBalance(base=0.75, cap=0.75, rare=0.0), torch.full((2,), 0.5)
    assert rule(torch.tensor([[0.75, 0.25], [0.76, 0.24]]), q).mask.tolist() == [False, True]


# The round.


def ran(federation: Federation, rounds: int) -> LocalEngine:
    engine = LocalEngine(federation)
    list(engine.rounds(rounds))
    return engine


def test_roles_have_their_own_epochs(make_federation: Make) -> None:
    """Pools of 40 images in batches of 8: five steps an epoch, 11 epochs with labels and one without."""
    federation = make_federation(*FEW)
    assert [federation.num_steps(client) for client in range(4)] == [55, 5, 5, 5]
    rows = federation.plan(1, 0).draw.x_row
    assert all(len({*rows[i : i + 5].flatten().tolist()}) == 40 for i in range(0, 55, 5))  # each image in each epoch


def test_in_the_first_stage_only_labels_count(make_federation: Make) -> None:
    """The mean is the labeled client's model, and the classes are its own."""
    federation = make_federation(*FEW, "method.burn_in=2")
    engine = ran(federation, 1)
    alone = LocalEngine(federation).fleet.train(1, [0], LocalEngine(federation).snapshot)
    (result,) = list(alone)
    assert all(torch.equal(t, result.upload.weights.params[k]) for k, t in engine.model().params.items())
    assert engine.snapshot.server.extras[CLASSES].tolist() == pytest.approx([10.0] * 4)
    older = unpacked(OLDER, engine.snapshot.server.extras)
    assert all(torch.equal(t, older.params[k]) for k, t in engine.model().params.items())
    assert engine.snapshot.clients == {}


@pytest.mark.slow
def test_then_labels_are_given(make_federation: Make) -> None:
    engine = ran(make_federation(*FEW, "method.burn_in=1", "method.base=0.3", "train.lr=0.05"), 4)
    extras = engine.snapshot.server.extras
    assert extras[LABELED].sum().item() == pytest.approx(40)
    assert extras[CLASSES].sum() > 45
    assert extras[ROUNDS] == 4


def test_a_step_without_an_accepted_image_changes_nothing(make_federation: Make) -> None:
    """Neither weights, nor momentum, nor statistics; such a client has no weight in the mean."""
    federation = make_federation(*FEW, "method.burn_in=0", "method.base=1", "method.rare=0", "method.cap=1")
    engine = LocalEngine(federation)
    (result,) = engine.fleet.train(1, [1], engine.snapshot)
    begin = engine.snapshot.server.weights
    for tree, new in zip(begin, result.upload.weights, strict=True):
        assert all(torch.equal(t, new[name]) for name, t in tree.items())
    assert not any(v.any() for v in result.velocity.values())
    assert result.upload.extras[CLASSES].sum() == result.upload.extras[KNOWS] == 0


def test_both_views_of_an_image_are_one(make_federation: Make) -> None:
    """What is labeled is what is trained on: one view of the pool, and none that is strong."""
    assert make_federation(*FEW).recipe.views == ("x", "u_weak")


def one_number(value: float) -> Weights:
    return Weights({"w": torch.tensor([value])}, {"n": torch.tensor(3)})


def upload(client: int, value: float, classes: list[float], knows: bool, images: int = 4) -> Upload:
    extras = {CLASSES: torch.tensor(classes), KNOWS: torch.tensor(float(knows))}
    return Upload(client, one_number(value), images, extras)


def test_the_mean_by_hand() -> None:
    """4 images with labels, 1 and 3 accepted: (4*1 + 1*5 + 3*9) / 8 = 4.5. The next classes are all of these."""
    server = cbafed(burn_in=0).init(None, one_number(0.0), Task(2, 4))  # type: ignore[arg-type]
    made = [upload(0, 1.0, [3, 1], True), upload(1, 5.0, [1, 0], False), upload(2, 9.0, [0, 3], False)]
    after = cbafed(burn_in=0).aggregate(None, server, made, np.random.default_rng(0))  # type: ignore[arg-type]
    assert after.weights.params["w"].item() == pytest.approx(4.5)
    assert (after.extras[CLASSES].tolist(), after.extras[LABELED].tolist()) == ([4.0, 4.0], [3.0, 1.0])
    # A round without a participant with labels still counts their labels.
    again = cbafed(burn_in=0).aggregate(None, after, made[1:2], np.random.default_rng(0))  # type: ignore[arg-type]
    assert again.extras[CLASSES].tolist() == [4.0, 1.0]


def test_the_server_connects_every_fifth_round() -> None:
    """Uploads of 10, 11, ...; two rounds of the first stage leave 11 behind, round 5 of the second mixes 17 with it."""
    method = cbafed(burn_in=2)
    server = method.init(None, one_number(0.0), Task(2, 4))  # type: ignore[arg-type]
    values = []
    for value in range(10, 24):
        server = method.aggregate(None, server, [upload(0, float(value), [2, 2], True)], np.random.default_rng(0))  # type: ignore[arg-type]
        values.append(server.weights.params["w"].item())
    # Second stage from 12 on: its rounds 5 and 10 are those of 17 and 22.
    assert values[:7] == [10, 11, 12, 13, 14, 15, 16]
    assert values[7] == pytest.approx((11 + 17) / 2)
    assert values[8:12] == [18, 19, 20, 21]
    assert values[12] == pytest.approx((14 + 22) / 2)
    assert values[13] == 23


def test_a_client_with_labels_connects_epochs_5_and_10() -> None:
    """Two steps an epoch; the model is its step: 1 after epoch 0, 0.8*1 + 0.2*11 = 3 after epoch 5."""
    method = CBAFed()
    state: State = {"cbafed.size": torch.tensor(5.0), "cbafed.older.params.w": torch.tensor([-1.0])}
    older = []
    for step in range(22):
        clock = Clock(torch.ones(()), torch.tensor(float(step)), torch.zeros(()))
        batch = Batch({}, torch.zeros(2, dtype=torch.long), torch.zeros(0), torch.ones(()), clock, {})
        local = Local(Weights({"w": torch.tensor([float(step)])}, {}), {}, state)
        after = method.connected(local, batch)
        state, w = after.state, after.weights.params["w"].item()
        assert w == pytest.approx({11: 3.0, 21: 0.8 * 3 + 0.2 * 21}.get(step, float(step)))
        older.append(state["cbafed.older.params.w"].item())
    assert older == pytest.approx([-1, *[1] * 10, *[3] * 10, 6.6])


def test_without_residuals_nothing_is_connected(make_federation: Make) -> None:
    settings = (*FEW, "method.burn_in=1", "train.lr=0.05")
    with_it, without = (
        ran(make_federation(*settings, f"method.residual={value}"), 1).model().params for value in ("true", "false")
    )
    assert not torch.equal(*(next(iter(params.values())) for params in (with_it, without)))


def test_without_residuals_the_server_keeps_the_mean() -> None:
    method = cbafed(burn_in=1, residual=False)
    server, values = method.init(None, one_number(0.0), Task(2, 4)), range(10, 18)  # type: ignore[arg-type]
    for value in values:  # the last are rounds 5 and 6 of the second stage
        made = [upload(0, float(value), [2, 2], True), upload(1, float(value + 4), [0, 4], False)]
        server = method.aggregate(None, server, made, np.random.default_rng(0))  # type: ignore[arg-type]
        assert server.weights.params["w"].item() == value + 2


def test_clients_without_labels_have_their_own_rate(make_federation: Make) -> None:
    """Two thirds of the way: a single step from the same model in the same direction."""
    ways = []
    for rate in ("0.5", "1"):
        settings = ("method.burn_in=0", "method.base=0", "train.steps_per_round=1", f"method.unlabeled_rate={rate}")
        engine = LocalEngine(make_federation(*KNOWING, *settings))
        (result,) = engine.fleet.train(1, [1], engine.snapshot)
        begin = engine.snapshot.server.weights.params
        ways.append({name: t - begin[name] for name, t in result.upload.weights.params.items()})
    torch.testing.assert_close({name: 2 * t for name, t in ways[0].items()}, ways[1])
