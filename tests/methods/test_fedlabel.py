"""FedLabel with one model: the winner's label and the pull towards the loser, worked by hand."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fssl.core.federation import Federation
from fssl.errors import UserError
from fssl.label.assign import SCORES, Sage, Winner
from fssl.label.losses import kl_divergence
from fssl.methods.fedlabel import FedLabel, agreed, fedlabel, rho
from fssl.methods.names import build_method
from helpers.matrix import equal, trained

Make = Callable[..., Federation]


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values)


def test_the_more_decided_model_labels_if_it_is_sure() -> None:
    """Variances of (.8 .1 .1), (.5 .3 .2) and (1/3 1/3 1/3): 0.1633, 0.0233, 0. The first row goes to the local
    model, the second to the global one, which is not sure of it although the local one is; a tie is global."""
    p_l = rows([0.8, 0.1, 0.1], [0.5, 0.3, 0.2], [0.5, 0.3, 0.2])
    p_g = rows([0.2, 0.5, 0.3], [0.1, 0.8, 0.1], [0.2, 0.3, 0.5])
    sure_l, sure_g = torch.tensor([True, True, False]), torch.tensor([False, False, True])
    labels = Winner()(p_l, p_g, sure_l, sure_g)
    assert labels.target.argmax(-1).tolist() == [0, 1, 2]
    assert labels.mask.tolist() == [True, False, True]


def test_scores_may_choose_differently() -> None:
    """(.6 .4 0) has variance 0.0933 and entropy 0.673; (.65 .2 .15) has 0.0758 and 0.887: the larger maximum loses
    by both other scores."""
    p_l, p_g, sure = rows([0.6, 0.4, 0.0]), rows([0.15, 0.2, 0.65]), torch.tensor([True])
    winners = {name: Winner(s)(p_l, p_g, sure, sure).target.argmax(-1).item() for name, s in SCORES.items()}
    assert winners == {"variance": 0, "entropy": 0, "max": 2}


def test_rho_by_hand() -> None:
    """Variances 0.16333 and 0.02333: 1/7 for either winner; two flat predictions: 0. Maxima 0.8 and 0.5: 5/8.
    A certain prediction has entropy 0: (H + 1e-5)^-1 stays finite, and against log 2 rho = 1e-5 / (log 2 + 1e-5)."""
    a, b, flat = rows([0.8, 0.1, 0.1]), rows([0.2, 0.5, 0.3]), torch.full((1, 3), 1 / 3)
    assert rho(a, b, SCORES["variance"]).item() == pytest.approx(1 / 7, rel=1e-5)
    assert rho(b, a, SCORES["variance"]).item() == pytest.approx(1 / 7, rel=1e-5)
    assert rho(flat, flat, SCORES["variance"]).item() == pytest.approx(0, abs=1e-2)
    assert rho(a, b, SCORES["max"]).item() == pytest.approx(5 / 8)
    sure, even = rows([1.0, 0.0]), rows([0.5, 0.5])
    assert rho(sure, even, SCORES["entropy"]).item() == pytest.approx(1e-5 / (math.log(2) + 1e-5), rel=1e-4)


def test_kl_by_hand() -> None:
    """KL((1/2 1/2) || (1/4 3/4)) = 1/2 log 2 + 1/2 log 2/3; of a one-hot row it is -log q."""
    logits = rows([1 / 4, 3 / 4], [1 / 4, 3 / 4]).log()
    expected = [0.5 * math.log(2) + 0.5 * math.log(2 / 3), math.log(4)]
    torch.testing.assert_close(kl_divergence(rows([0.5, 0.5], [1.0, 0.0]), logits), torch.tensor(expected))


def test_only_accepted_images_with_one_opinion_are_pulled() -> None:
    """Four images, strong logits 0 (q flat): KL(p || q) = log 3 - H(p). Of image 0 the global model is the loser:
    rho = 1/7, H(.5 .3 .2) = 1.02965, so rho KL = (1.09861 - 1.02965) / 7 = 0.0098517. Images 1 (not accepted) and
    2 (two opinions) do not count, image 3 has equal predictions and rho = 1: KL = 1.09861 - 0.63903 = 0.45958.
    Divided by the whole batch: 0.1173579; times the weight 2."""
    a, b, c = [0.8, 0.1, 0.1], [0.5, 0.3, 0.2], [0.2, 0.5, 0.3]
    votes = {"p_l": rows(a, a, a, a), "p_g": rows(b, b, c, a), "mask": torch.tensor([True, False, True, True])}
    assert agreed(votes).tolist() == [True, False, False, True]
    term = FedLabel(kl_weight=2.0).agreement(torch.zeros(4, 3), votes)
    assert term.item() == pytest.approx(2 * 0.1173579, rel=1e-5)


def test_of_equally_decided_models_the_local_one_is_the_loser() -> None:
    """The global model labels at equal scores, so the pull is towards (.6 .1 .3), with rho = 1: to (.2 .3 .5) it has
    KL = .6 log 3 + .1 log 1/3 + .3 log .6 = 0.396058. Towards (.6 .3 .1) it would be 0.498223."""
    p_l, p_g = rows([0.6, 0.1, 0.3]), rows([0.6, 0.3, 0.1])
    assert torch.equal(SCORES["max"](p_l), SCORES["max"](p_g))
    votes = {"p_l": p_l, "p_g": p_g, "mask": torch.tensor([True])}
    term = fedlabel(winner="max").agreement(rows([0.2, 0.3, 0.5]).log(), votes)
    assert term.item() == pytest.approx(0.396058, rel=1e-5)


def test_the_pull_reaches_the_strong_view_only() -> None:
    """d KL(p || q) / d logits = q - p, for each of B_u = 1 images."""
    p_l, p_g = rows([0.8, 0.1, 0.1]), rows([0.5, 0.3, 0.2])
    logits = torch.zeros(1, 3, requires_grad=True)
    votes = {"p_l": p_l, "p_g": p_g, "mask": torch.tensor([True])}
    fedlabel(kl_weight=1.0).agreement(logits, votes).backward()
    torch.testing.assert_close(logits.grad, (torch.full((1, 3), 1 / 3) - p_g) / 7)


def test_without_the_pull_it_is_fixmatch_labeled_by_the_winner(make_federation: Make) -> None:
    low = ["method.name=fedlabel", "method.tau=0.3"]
    off = trained(make_federation(*low, "method.kl_weight=0"))
    host = make_federation("method.name=fixmatch-lpl", "method.tau=0.3")
    assert equal(off, trained(host, replace(host.method, assign=Winner())))  # type: ignore[call-arg]
    assert not equal(off, trained(make_federation(*low)))


def test_the_plug_in_keeps_the_hosts_loss() -> None:
    host = build_method("fedlabel", {"winner": "entropy", "tau": 0.8})
    both = build_method("fedlabel+sage", {"winner": "entropy", "tau": 0.8})
    assert isinstance(both, FedLabel)
    assert both.assign == Sage()
    assert replace(both, assign=Winner(SCORES["entropy"])) == host


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"winner": "varianc"}, "did you mean 'variance'"),
        ({"kl_weight": -1}, "method.kl_weight = -1"),
        ({"tau": 1.5}, "method.tau"),
    ],
)
def test_bad_settings(settings: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        build_method("fedlabel", settings)
    assert "\n" not in str(error.value)
