"""Robust means: by hand, against a second implementation, in their limits, and through runs with malicious clients."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fssl.core.attack import attacked_upload, mislabeled
from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.core.robust import Aggregation, assumed, krum, median, trimmed
from fssl.data.sources import Dataset
from fssl.engines.local import LocalEngine
from fssl.engines.snapshot import flat, parts, restore
from fssl.methods.base import mean_weights
from fssl.records.checkpoint import Saved
from fssl.types import Payload, Upload, Weights
from helpers.small import refusal, tiny_config

RULES = ("median", "trimmed", "clipped", "krum")
Array = NDArray[np.float64]


def weights(params: list[float], buffers: list[float]) -> Weights:
    return Weights(*({k: torch.tensor(v, dtype=torch.float64)} for k, v in (("w", params), ("b", buffers))))


def uploads(rows: Array, sizes: list[int] | None = None) -> list[Upload]:
    """Uploads whose last number is a buffer."""
    made = [weights(row[:-1].tolist(), row[-1:].tolist()) for row in rows]
    return [Upload(k, each, sizes[k] if sizes else 1, {}) for k, each in enumerate(made)]


def result(rule: Aggregation, sent: Array, given: list[Upload]) -> Array:
    mean = mean_weights(rule.robust(weights(sent[:-1].tolist(), sent[-1:].tolist()), given))
    return np.concatenate([mean.params["w"].numpy(), mean.buffers["b"].numpy()])


# By hand.


def test_the_middle_by_hand() -> None:
    """An even number has two middle values; infinite ones are on either side."""
    rows = torch.tensor([[1.0, -torch.inf], [9.0, 2.0], [2.0, torch.inf], [4.0, 4.0]])
    assert median(rows).tolist() == [3.0, 3.0]
    assert median(rows[:3]).tolist() == [2.0, 2.0]
    assert median(rows[:1]).tolist() == [1.0, -torch.inf]


def test_a_trimmed_mean_by_hand() -> None:
    rows = torch.tensor([[100.0], [1.0], [3.0], [5.0], [-100.0]])
    assert trimmed(rows, 1).tolist() == [3.0]
    assert trimmed(rows, 2).tolist() == [3.0]
    assert trimmed(rows, 0).item() == pytest.approx(9 / 5)


def test_krum_by_hand() -> None:
    """n = 5, f = 1: scores over the 2 nearest. 0: 1 + 4; 1: 1 + 1; 2: 1 + 4; of 10 and 11 more."""
    models = [torch.tensor([x]).double() for x in (0.0, 1.0, 2.0, 10.0, 11.0)]
    assert krum(models, 1) == 1
    assert krum(models[:2], 0) == 0  # the first of equals
    assert krum(models[3:4], 0) == 0


def test_clipping_by_hand() -> None:
    """Norms of updates are 1, 2, 10: the last is shortened to 2. Buffers have norms 0, 0, 5, hence a bound of 0."""
    given = uploads(np.array([[1.0, 0, 1], [0, 2.0, 1], [6.0, 8.0, 6]]), [1, 1, 2])
    found = result(Aggregation("clipped"), np.array([0.0, 0, 1]), given)
    assert found == pytest.approx(np.array([(1 + 2 * 1.2) / 4, (2 + 2 * 1.6) / 4, 1.0]))


@pytest.mark.parametrize(
    ("share", "number", "expected"), [(0.2, 10, 2), (0.07, 100, 7), (0.2, 3, 1), (0.2, 2, 0), (0.49, 5, 2), (0, 9, 0)]
)
def test_how_many_are_assumed_malicious(share: float, number: int, expected: int) -> None:
    assert assumed(share, number) == expected


# A second implementation, in numpy.


def by_numpy(kind: str, sent: Array, rows: Array, sizes: Array, f: int) -> Array:
    if kind == "median":
        return np.asarray(np.median(rows, axis=0))
    if kind == "trimmed":
        return np.stack([np.mean(np.sort(column)[f : len(column) - f]) for column in rows.T])
    if kind == "krum":
        away = ((rows[:, None] - rows[None]) ** 2).sum(-1)
        np.fill_diagonal(away, np.inf)
        return np.asarray(rows[np.sort(away, axis=1)[:, : max(1, len(rows) - f - 2)].sum(1).argmin()])
    out = np.zeros_like(sent)
    for part in (slice(None, -1), slice(-1, None)):
        updates = rows[:, part] - sent[part]
        lengths = np.sqrt((updates**2).sum(1))
        scale = np.minimum(1, np.median(lengths) / np.maximum(lengths, 1e-300))
        out[part] = sent[part] + (sizes[:, None] * scale[:, None] * updates).sum(0) / sizes.sum()
    return out


@pytest.mark.parametrize("kind", RULES)
def test_rules_agree_with_numpy(kind: str) -> None:
    rng = np.random.default_rng(0)
    for number in (1, 2, 3, 4, 7, 10):
        for share in (0.0, 0.2, 0.45):
            sent, rows = rng.standard_normal(6), rng.standard_normal((number, 6)) * rng.lognormal(size=(number, 1))
            sizes = rng.integers(1, 9, number)
            rule = Aggregation(kind, share)  # type: ignore[arg-type]
            expected = by_numpy(kind, sent, rows, sizes, assumed(share, number))
            found = result(rule, sent, uploads(rows, sizes.tolist()))
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12, err_msg=f"{number} {share}")


# Limits.


@pytest.mark.parametrize("kind", ["mean", *RULES])
def test_equal_uploads_are_the_mean_bit_for_bit(kind: str) -> None:
    rng = np.random.default_rng(1)
    row, sent = rng.standard_normal(5), rng.standard_normal(5)
    found = result(Aggregation(kind), sent, uploads(np.stack([row] * 4), [3, 1, 4, 1]))  # type: ignore[arg-type]
    assert np.array_equal(found, row)


@pytest.mark.parametrize("kind", RULES)
def test_an_upload_without_weight_has_no_voice(kind: str) -> None:
    rng = np.random.default_rng(2)
    rows, sent, rule = rng.standard_normal((6, 4)), rng.standard_normal(4), Aggregation(kind)  # type: ignore[arg-type]
    some = result(rule, sent, uploads(rows[:5]))
    assert np.array_equal(some, result(rule, sent, uploads(rows, [1] * 5 + [0])))
    given = uploads(rows, [0] * 6)
    assert [*rule.robust(given[0].weights, given)] == given


@pytest.mark.parametrize("kind", RULES)
def test_two_of_ten_far_away_change_little(kind: str) -> None:
    rng = np.random.default_rng(3)
    rows, sent = 1 + 0.01 * rng.standard_normal((10, 4)), np.zeros(4)
    rows[[2, 5]] = -1e6
    rule = Aggregation(kind, 0.2)  # type: ignore[arg-type]
    assert np.abs(result(rule, sent, uploads(rows)) - 1).max() < (0.45 if kind == "clipped" else 0.03)
    assert result(Aggregation(), sent, uploads(rows)).max() < -1e5


# Malicious clients.


@pytest.mark.parametrize(("kind", "factor"), [("sign", -10.0), ("scale", 10.0)])
def test_an_attack_multiplies_the_update(kind: str, factor: float) -> None:
    config = tiny_config(f"attack.kind={kind}", "attack.attackers=2")
    sent = Weights({"w": torch.tensor([1.0])}, {"n.running_var": torch.tensor([1.0])})
    honest = Weights({"w": torch.tensor([1.5])}, {"n.running_var": torch.tensor([1.2])})
    for client in (1, 2):
        made = attacked_upload(config, 1, Upload(client, honest, 5, {}), Payload(sent, {})).weights
        assert made.params["w"].item() == pytest.approx(1 + factor * 0.5 if client < 2 else 1.5)
        expected = max(0, 1 + factor * 0.2) if client < 2 else 1.2  # a variance stays one
        assert made.buffers["n.running_var"].item() == pytest.approx(expected)


def test_noise_is_as_large_as_promised_and_the_same_again() -> None:
    config = tiny_config("attack.kind=noise", "attack.factor=3")
    sent, honest = ({"w": torch.full((10_000,), value)} for value in (0.0, 0.1))
    upload, payload = Upload(0, Weights(honest, {}), 1, {}), Payload(Weights(sent, {}), {})
    first, again, other = (attacked_upload(config, round, upload, payload).weights.params["w"] for round in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert (first - 0.1).std().item() == pytest.approx(0.3, rel=0.05)


def test_malicious_clients_learn_reversed_labels() -> None:
    settings = ("data.name=digits", "attack.kind=labels", "attack.attackers=2")
    bad, honest = (Federation(prepare(tiny_config(*s))) for s in (settings, settings[:1]))
    rows = mislabeled(bad.config, bad.sites)
    assert set(rows) == {*bad.sites[0].labeled, *bad.sites[1].labeled}
    expected = honest.pool.labels.clone()
    expected[rows] = 9 - expected[rows]
    assert torch.equal(bad.pool.labels, expected)


@pytest.mark.parametrize("kind", RULES)
def test_a_resumed_run_has_the_same_bits(kind: str, make_federation: Callable[..., Federation]) -> None:
    names = ("attack.kind=sign", "train.clients_per_round=4", "train.rounds=4", "train.steps_per_round=1")
    names += ("server.malicious=0",) if kind == "krum" else ()
    federation = make_federation("method.name=fixmatch-gpl", f"server.aggregate={kind}", *names)
    engine = LocalEngine(federation)
    whole = [engine.snapshot for _ in engine.rounds(3)]
    again = LocalEngine(federation)
    again.snapshot = restore(again.snapshot, Saved(1, flat(whole[0]), parts(whole[0])))
    *_, last = (again.snapshot for _ in again.rounds(3))
    for ours, theirs in zip(last.server.weights, whole[-1].server.weights, strict=True):
        assert all(torch.equal(t, theirs[name]) for name, t in ours.items())


REFUSED = {
    ("server.aggregate=median", "method.name=proxyfl"): "uses more of an upload than a mean of models",
    ("server.aggregate=median", "method.name=fedmatch"): "uses more of an upload than a mean of models",
    ("server.aggregate=krum",): "train.clients_per_round = 2 is too few for server.malicious = 0.2; expected 3 or more",
    ("server.malicious=0.3",): "has no effect with server.aggregate = 'mean'",
    ("attack.factor=3",): "has no effect with attack.kind = 'none'",
    ("attack.kind=labels", "attack.factor=3"): "has no effect with attack.kind = 'labels'",
    (
        "server.aggregate=median",
        "privacy.aggregation=secagg+",
        "compute.engine=flower",
    ): "the server sees only the mean",
    ("server.aggregate=median", "privacy.clip=1", "compute.engine=flower"): "its guarantee covers only a mean",
    ("server.aggregate=median", "server.static_norm=sites"): "statistics that sites measure are averaged",
}


@pytest.mark.parametrize("settings", REFUSED, ids=" ".join)
def test_settings_that_do_not_fit_are_rejected(settings: tuple[str, ...], tiny_data: Dataset) -> None:
    assert REFUSED[settings] in refusal(settings, tiny_data)
