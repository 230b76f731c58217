"""SemiAnAgg's thresholds and shares by hand, and whose models count."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fssl.core.federation import Federation
from fssl.engines.local import LocalEngine
from fssl.label.accept import FlexThreshold
from fssl.methods.semianagg import ANCHOR, KNOWS, LIKENESS, NUMBERS, semianagg, unlikeness
from fssl.types import Server, Upload, Weights, take
from helpers.matrix import equal, trained
from helpers.small import KNOWING

Make = Callable[..., Federation]
NAME, NOTHING = "method.name=semianagg", None


def close(found: list[float], expected: list[float]) -> None:
    assert found == pytest.approx(expected, abs=1e-6)


def test_shares_of_clients_by_hand() -> None:
    rows = [torch.tensor(row) for row in ([0.9, 0.5], [0.6, 1.0], [0.3, 0.5])]
    close(unlikeness(rows), [0.312500, 0.291667, 0.395833])
    close(unlikeness([torch.tensor([0.8, 0.8]), torch.tensor([0.4, 0.4])]), [1 / 3, 2 / 3])
    close(unlikeness([torch.tensor([0.2, 0.7])] * 4), [0.25] * 4)
    close(unlikeness([torch.tensor([0.2, 0.7])]), [1.0])


def made(client: int, value: float, likeness: list[float], knows: bool, selected: float = 1.0) -> Upload:
    extras = {
        LIKENESS: torch.tensor(likeness),
        NUMBERS: torch.full((len(likeness),), selected),
        KNOWS: torch.tensor(float(knows)),
    }
    return Upload(client, Weights({"w": torch.tensor([value])}, {}), 10, extras)


def test_the_server_takes_half_of_each_kind() -> None:
    method, server = semianagg(), Server(Weights({"w": torch.zeros(1)}, {}), {})
    others = [made(k + 1, k + 1.0, s, False) for k, s in enumerate([[0.9, 0.5], [0.6, 1.0], [0.3, 0.5]])]
    rng, net = np.random.default_rng(0), NOTHING

    def after(*uploads: Upload) -> float:
        return method.aggregate(net, server, uploads, rng).weights.params["w"].item()  # type: ignore[arg-type]

    knowing = made(0, 2.0, [1.0, 1.0], True, selected=0.0)
    assert after(knowing, *others) == pytest.approx(2.041667, abs=1e-6)
    unsure = [u._replace(extras={**u.extras, NUMBERS: torch.zeros(2)}) for u in others]
    assert after(knowing, *unsure) == 2.0  # no client selected an image
    assert after(*others) == pytest.approx(2.083333, abs=1e-6)  # no client with labels was drawn
    assert after(*unsure) == 0.0


def test_the_broadcast_model_fills_the_table() -> None:
    """Thresholds .9 beta / (2 - beta) of beta 0, 1/4, 1/2 and 1."""
    rule = FlexThreshold(0.9, count="global")
    table = torch.tensor([1, 2, 2, 3, 3, 3, 3])
    close(rule.thresholds(4, {"flex.table": table}).tolist(), [0.0, 0.128571, 0.3, 0.9])
    votes = {"p_l": torch.tensor([[0.0, 1.0]]), "p_g": torch.tensor([[0.95, 0.05]])}
    after = rule.update(votes, torch.tensor([1]), {"flex.table": torch.tensor([-1, -1])})
    assert after["flex.table"].tolist() == [-1, 0]


def test_likeness_is_a_mean_cosine_and_1_of_a_class_without_images(make_federation: Make) -> None:
    engine = LocalEngine(make_federation(NAME, *KNOWING, "method.tau=1e-9", "train.clients_per_round=4"))
    federation = engine.federation
    uploads: dict[int, Any] = {}
    plain = federation.method.aggregate

    def noted(net: Any, server: Any, ups: Any, rng: Any) -> Any:
        kept = list(ups)
        uploads.update({u.client: u for u in kept})
        return plain(net, server, kept, rng)

    object.__setattr__(federation.method, "aggregate", noted)
    list(engine.rounds(1))
    assert not uploads[0].extras[NUMBERS].any()
    assert uploads[0].extras[LIKENESS].tolist() == [1.0] * 4
    for client in (1, 2, 3):
        s, numbers = uploads[client].extras[LIKENESS], uploads[client].extras[NUMBERS]
        assert numbers.sum() > 0
        assert ((s >= 0) & (s <= 1)).all()  # features are not negative
        assert (s[numbers == 0] == 1).all()
        assert (s[numbers > 0] < 1).all()


def test_with_an_unreachable_threshold_only_labels_train(make_federation: Make) -> None:
    """The table stays empty, so everything is accepted; but no image is selected, and only labels count."""
    words = (NAME, *KNOWING, "train.clients_per_round=4", "method.tau=1")
    engine = LocalEngine(make_federation(*words))
    (result,) = engine.rounds(1)
    sums = engine.layout.unpack(result.tally[:, 0])
    assert sums["n_valid"][1:].sum() == sums["n"][1:].sum() > 0
    alone = LocalEngine(make_federation(*words, "method.burn_in=5"))
    list(alone.rounds(1))
    assert equal(engine.model().params, alone.model().params)


def test_the_anchor_is_another_draw_and_stays(make_federation: Make) -> None:
    engine = LocalEngine(make_federation(NAME, *KNOWING))
    before = take(ANCHOR, engine.snapshot.server.extras)
    list(engine.rounds(2))
    assert equal(take(ANCHOR, engine.snapshot.server.extras), before)
    first = engine.federation.net.first.params
    assert not any(
        torch.equal(t, first[k.removeprefix("params.")]) for k, t in before.items() if k.endswith("0.weight")
    )


def test_clients_with_labels_train_on_both_views(make_federation: Make) -> None:
    words = (NAME, *KNOWING, "partition.labeled_clients=2", "train.steps_per_round=2")
    one = trained(make_federation(*words))
    assert not equal(one, trained(make_federation("method.name=fedavg", *words[1:])))
    assert not equal(one, trained(make_federation(*words, "train.logit_adjustment=1", "partition.kind=dirichlet")))
