"""SoftMatch's means, weights and targets: the numbers of the released code's arithmetic, and its limits."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fssl.core.federation import Federation
from fssl.engines.local import LocalEngine
from fssl.errors import UserError
from fssl.label.adaptive import BEGUN, MU, PI, SIGMA2, SoftWeight
from fssl.methods.names import build_method
from fssl.methods.softmatch import softmatch
from fssl.models import Out
from fssl.types import Counts, State, Task
from helpers.matrix import equal, trained

Make = Callable[..., Federation]
TASK, COUNTS = Task(num_classes=3, max_slots=4), Counts(labeled=1, pool=4)
P = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.4, 0.35, 0.25]])
LEVELS = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.5, 0.5]])
NOTHING: Any = None


def known(mu: float, sigma2: float) -> State:
    return {PI: torch.tensor([0.5, 0.5]), BEGUN: torch.ones(()), MU: torch.tensor(mu), SIGMA2: torch.tensor(sigma2)}


def close(found: torch.Tensor, expected: list[float], atol: float = 1e-6) -> None:
    torch.testing.assert_close(found, torch.tensor(expected), rtol=0, atol=atol)


def votes_of(method: Any, p: torch.Tensor, state: State | None = None) -> State:
    """A step's votes, of which the rule knows the batch already."""
    state = method.accept.init(TASK, COUNTS) if state is None else state
    votes: State = method.vote(p, p, NOTHING, method.meet(Out(p, p), p, NOTHING, state), NOTHING)
    return votes


@pytest.mark.parametrize(
    ("ema", "mu", "sigma2", "weights"),
    [(1.0, 0.8, 0.01, [1, 1, 0.135335, 1.5e-8]), (0.5, 0.7625, 0.019583, [1, 1, 0.671034, 0.000879])],
)
def test_weights_fall_below_the_mean(ema: float, mu: float, sigma2: float, weights: list[float]) -> None:
    """Of confidences .9 .8 .7 .5, with mean .8 and variance .01 before; the batch has .725 and, unbiased, .029167."""
    rule = SoftWeight(ema, align=False)
    state = rule.observe(LEVELS, known(0.8, 0.01))
    close(torch.stack([state[MU], state[SIGMA2]]), [mu, sigma2])
    close(rule.weight(LEVELS, state), weights, 1e-6 if ema < 1 else 1e-9 + 5e-7)
    assert rule.sure(LEVELS, state).tolist() == [True, True, False, False]


def test_the_first_batch_sets_the_mean_of_probabilities() -> None:
    rule = SoftWeight(ema=0.999)
    state = rule.observe(P, rule.init(TASK, COUNTS))
    close(state[PI], [0.45, 0.2625, 0.2875])
    close(rule.confidence(P, state), [0.583636, 0.387459, 0.633697, 0.431250])
    close(torch.stack([state[MU], state[SIGMA2]]), [0.333509, 0.999014])
    assert (rule.weight(P, state) > 0.999).all()
    again = rule.observe(LEVELS[:, :1] * torch.tensor([1.0, 0.0, 0.0]), state)
    close(again[PI], [0.45 * 0.999 + 0.000725, 0.2625 * 0.999, 0.2875 * 0.999])


@pytest.mark.parametrize(("n", "weights"), [(2, [1, 0.120773, 1, 0.421006]), (1, [1, 0.589511, 1, 0.805512])])
def test_alignment_changes_weights_and_no_target(n: float, weights: list[float]) -> None:
    """With a factor of 0 only this batch counts. Aligned, the votes would be 0 1 2 1."""
    method = softmatch(ema=0.0, n_sigma=n)
    state = method.accept.observe(P, method.accept.init(TASK, COUNTS))
    close(torch.stack([state[MU], state[SIGMA2]]), [0.509010, 0.013979])
    votes = votes_of(method, P)
    close(votes["mask"], weights)
    assert votes["target"].argmax(-1).tolist() == [0, 0, 2, 0]
    assert votes["sure_l"].tolist() == [True, False, True, False]


def test_flat_predictions_count_fully() -> None:
    rule, flat = SoftWeight(ema=0.25), torch.full((4, 3), 1 / 3)
    state = rule.init(TASK, COUNTS)
    for _ in range(60):  # until the variance is less than any number
        state = rule.observe(flat, state)
        assert state[MU].item() == pytest.approx(1 / 3)
        assert (rule.weight(flat, state) > 0.999).all()
    assert state[SIGMA2].item() == pytest.approx(0.25**60)


def test_one_image_has_no_variance() -> None:
    rule = SoftWeight(ema=0.0, align=False)
    state = rule.observe(LEVELS[:1], known(0.5, 0.01))
    assert (state[MU].item(), state[SIGMA2].item()) == (pytest.approx(0.9), 0.0)
    assert rule.weight(LEVELS[:2], state).tolist() == [1.0, 0.0]


def test_two_limits_are_fixmatch(make_federation: Make) -> None:
    """Weights that do not fall accept everything. A mean that stays at 0.3 with next to no variance is a threshold."""
    plain = ("method.name=fixmatch-lpl",)
    flat = make_federation("method.name=softmatch", "method.n_sigma=0")
    assert equal(trained(flat), trained(make_federation(*plain, "method.tau=1e-9")))
    votes = votes_of(softmatch(ema=1.0, align=False), LEVELS, known(0.8, 1e-12))
    assert votes["mask"].tolist() == votes_of(build_method("fixmatch-lpl", {"tau": 0.8}), LEVELS, {})["mask"].tolist()


def test_the_plug_in_takes_the_larger_weight_where_either_model_is_enough() -> None:
    """Weights of the local model 0.135 and 1; of the global one 1 and 0.135. Without CPG only the local one counts."""
    p_l, p_g, state = LEVELS[[2, 0]], LEVELS[[0, 2]], known(0.8, 0.01)
    for cpg, expected in ((True, [1.0, 1.0]), (False, [0.135335, 1.0])):
        method: Any = build_method("softmatch+sage", {"ema": 1.0, "align": False, "cpg": cpg})
        close(method.vote(p_l, p_g, NOTHING, state, NOTHING)["mask"], expected)


@pytest.mark.slow
def test_means_survive_the_round(make_federation: Make) -> None:
    engine = LocalEngine(make_federation("method.name=softmatch", "method.ema=0.99", "train.clients_per_round=4"))
    list(engine.rounds(1))
    engine.snapshot.clients[2][MU].fill_(5)
    list(engine.rounds(2))
    assert {k: state[MU].item() > 4 for k, state in engine.snapshot.clients.items()} == {k: k == 2 for k in range(4)}


@pytest.mark.parametrize(
    ("settings", "said"), [({"ema": 1.1}, "method.ema"), ({"n_sigma": -1}, "method.n_sigma"), ({"tau": 0.9}, "tau")]
)
def test_bad_settings(settings: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        build_method("softmatch", settings)
