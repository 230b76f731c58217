"""Assignment rules, worked by hand."""

import math
from dataclasses import replace

import pytest
import torch

from fssl.label.assign import (
    KAPPA_STAR,
    ConfidenceGap,
    Constant,
    GlobalOnly,
    LocalOnly,
    Sage,
    Winner,
    hard,
    soft,
    weight_in,
    weights_of,
)
from fssl.methods.sage import sage

TAU = 0.95
# (p_l, p_g, mask, y_hat), C = 3. Row 1: gap 0.05, so lambda = exp(-ln 2) = 1/2. Row 5: gap 0.38,
# lambda = 2^(-0.38 / 0.05) = 2^-7.6 = 0.00515. Row 6: c_l is exactly tau and gap 0.45, lambda = 2^-9 = 0.00195.
VECTORS = [
    ((0.97, 0.02, 0.01), (0.01, 0.92, 0.07), 1, (0.5, 0.5, 0.0)),
    ((0.96, 0.03, 0.01), (0.99, 0.005, 0.005), 1, (1.0, 0.0, 0.0)),
    ((0.90, 0.05, 0.05), (0.02, 0.96, 0.02), 1, (0.0, 1.0, 0.0)),
    ((0.90, 0.05, 0.05), (0.10, 0.80, 0.10), 0, None),
    ((0.98, 0.01, 0.01), (0.20, 0.20, 0.60), 1, (0.00515, 0.0, 0.99485)),
    ((0.95, 0.03, 0.02), (0.4, 0.5, 0.1), 1, (0.00195, 0.99805, 0.0)),
]


def probabilities() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    p_l = torch.tensor([v[0] for v in VECTORS])
    p_g = torch.tensor([v[1] for v in VECTORS])
    return p_l, p_g, p_l.amax(-1) >= TAU, p_g.amax(-1) >= TAU


def random_probabilities(rows: int = 500, classes: int = 7) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    p_l, p_g = (torch.softmax(6 * torch.randn(rows, classes, generator=g), -1) for _ in range(2))
    return p_l, p_g, p_l.amax(-1) >= TAU, p_g.amax(-1) >= TAU


@pytest.mark.parametrize("row", range(len(VECTORS)))
def test_sage_vectors(row: int) -> None:
    labels = Sage()(*probabilities())
    _, _, mask, y_hat = VECTORS[row]
    assert int(labels.mask[row]) == mask
    if y_hat is not None:
        torch.testing.assert_close(labels.target[row], torch.tensor(y_hat), atol=6e-6, rtol=0)


@pytest.mark.parametrize(
    ("gap", "lam"), [(0.0, 1.0), (0.01, 0.871), (0.05, 0.5), (0.1, 0.25), (0.2, 0.0625), (0.3, 0.0156), (0.5, 0.00098)]
)
def test_lambda_of_a_gap(gap: float, lam: float) -> None:
    p_l, p_g = torch.tensor([[0.99, 0.01]]), torch.tensor([[0.99 - gap, 0.01 + gap]])
    if gap >= 0.49:  # then the second entry is the larger one: put the rest elsewhere
        p_g = torch.tensor([[0.49, 0.48]])
    assert ConfidenceGap()(p_l, p_g).item() == pytest.approx(lam, abs=6e-4)


def test_kappa_halves_the_local_vote_at_a_gap_of_a_twentieth() -> None:
    """exp(-kappa / 20) = 1/2 has one solution, ln 2 / 0.05; methods use it by default."""
    assert pytest.approx(13.8629436112, abs=1e-10) == KAPPA_STAR
    assert math.exp(-KAPPA_STAR * 0.05) == pytest.approx(0.5, abs=1e-15)
    assert ConfidenceGap().kappa == sage().assign.weigh.kappa == KAPPA_STAR  # type: ignore[attr-defined]


def test_agreement_gives_a_one_hot_target_whatever_lambda() -> None:
    p_l, p_g, sure_l, sure_g = random_probabilities()
    agree = (p_l.argmax(-1) == p_g.argmax(-1)) & sure_l
    assert agree.sum() > 20
    target = Sage()(p_l, p_g, sure_l, sure_g).target[agree]
    torch.testing.assert_close(target, hard(p_l)[agree])


def test_kappa_zero_is_cpg_alone() -> None:
    args = random_probabilities()
    a, b = Sage(ConfidenceGap(0.0))(*args), Sage(Constant(1.0))(*args)
    assert torch.equal(a.target, b.target)
    assert torch.equal(a.mask, b.mask)
    p_l, p_g, sure_l, _ = args
    assert torch.equal(b.target, torch.where(sure_l[:, None], hard(p_l), hard(p_g)))


def test_infinite_kappa_is_the_global_target_with_the_union_mask() -> None:
    p_l, p_g, sure_l, sure_g = random_probabilities()
    labels = Sage(ConfidenceGap(1e9))(p_l, p_g, sure_l, sure_g)
    assert torch.equal(labels.target, hard(p_g))
    assert torch.equal(labels.mask, sure_l | sure_g)


def test_cdsc_alone_uses_the_local_mask() -> None:
    p_l, p_g, sure_l, sure_g = random_probabilities()
    whole, alone = Sage()(p_l, p_g, sure_l, sure_g), Sage(supplement=False)(p_l, p_g, sure_l, sure_g)
    assert torch.equal(alone.mask, sure_l)
    assert torch.equal(alone.target[sure_l], whole.target[sure_l])


def test_lambda_one_without_supplement_is_lpl() -> None:
    args = random_probabilities()
    sage, lpl = Sage(Constant(1.0), supplement=False)(*args), LocalOnly()(*args)
    assert torch.equal(sage.mask, lpl.mask)
    assert torch.equal(sage.target[lpl.mask], lpl.target[lpl.mask])


def test_equal_models_make_all_rules_one() -> None:
    p_l, _, sure, _ = random_probabilities()
    rules = [Sage(), Sage(Constant(1.0)), LocalOnly(), GlobalOnly()]
    for labels in (rule(p_l, p_l, sure, sure) for rule in rules):
        assert torch.equal(labels.mask, sure)
        assert torch.equal(labels.target[sure], hard(p_l)[sure])


def test_soft_votes_mix_probabilities() -> None:
    p_l, p_g, sure_l, sure_g = probabilities()
    target = Sage(vote=soft)(p_l, p_g, sure_l, sure_g).target
    torch.testing.assert_close(target[0], 0.5 * p_l[0] + 0.5 * p_g[0])  # gap 0.05
    torch.testing.assert_close(target[2], p_g[2])  # the local model is not sure
    torch.testing.assert_close(LocalOnly(soft)(p_l, p_g, sure_l, sure_g).target, p_l)


def test_ties_vote_for_the_first_class() -> None:
    assert hard(torch.tensor([[0.4, 0.4, 0.2]])).tolist() == [[1.0, 0.0, 0.0]]


def test_global_first_by_hand() -> None:
    """Rows 2, 5 and 6 of the vectors, and one where the models disagree at a gap of 0.05: the global vote has half.

    Row 5: the global model is not sure, the local one is, so its vote counts alone; row 6 is the same.
    """
    p_l = torch.tensor([[0.96, 0.03, 0.01], [0.98, 0.01, 0.01], [0.95, 0.03, 0.02], [0.92, 0.07, 0.01]])
    p_g = torch.tensor([[0.99, 0.005, 0.005], [0.20, 0.20, 0.60], [0.4, 0.5, 0.1], [0.01, 0.97, 0.02]])
    rule = Sage(order="global-first")
    target, mask = rule(p_l, p_g, p_l.amax(-1) >= TAU, p_g.amax(-1) >= TAU)
    assert mask.tolist() == [True] * 4
    torch.testing.assert_close(target, torch.tensor([[1.0, 0, 0], [1, 0, 0], [1, 0, 0], [0.5, 0.5, 0]]))
    torch.testing.assert_close(weight_in(rule)(p_l, p_g)[3], torch.tensor(0.5))
    torch.testing.assert_close(weight_in(rule)(p_l, p_g)[0], torch.tensor(1 - 2**-0.6))  # a gap of 0.03


def test_global_first_is_sage_with_the_models_in_each_other_s_place() -> None:
    p_l, p_g, sure_l, sure_g = random_probabilities()
    for rule in (Sage(), Sage(supplement=False), Sage(Constant(0.3)), Sage(vote=soft)):
        swapped = replace(rule, order="global-first")(p_l, p_g, sure_l, sure_g)
        expected = rule(p_g, p_l, sure_g, sure_l)
        assert torch.equal(swapped.target, expected.target)
        assert torch.equal(swapped.mask, expected.mask)
    alone = Sage(Constant(1.0), supplement=False, order="global-first")(p_l, p_g, sure_l, sure_g)
    theirs = GlobalOnly()(p_l, p_g, sure_l, sure_g)
    assert torch.equal(alone.target[alone.mask], theirs.target[theirs.mask])
    assert torch.equal(alone.mask, theirs.mask)
    assert sage(order="global-first").assign == Sage(order="global-first")


def test_weights_take_the_place_of_being_sure() -> None:
    """Of the model that is asked; of either, the larger; of the winner, its own. A rule's own weights multiply."""
    p_l, p_g = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.5, 0.5]]), torch.tensor([[0.3, 0.7], [0.2, 0.8], [0.5, 0.5]])
    w_l, w_g = torch.tensor([0.75, 0.25, 1.0]), torch.tensor([0.5, 1.0, 1.0])
    expected = {
        LocalOnly(): [0.75, 0.25, 1.0],
        GlobalOnly(): [0.5, 1.0, 1.0],
        Sage(): [0.75, 1.0, 1.0],
        Sage(supplement=False): [0.75, 0.25, 1.0],
        Winner(): [0.75, 1.0, 1.0],
    }
    for rule, weights in expected.items():
        assert weights_of(rule, p_l, p_g, w_l, w_g).tolist() == weights, rule
        sure = [w == 1 for w in (w_l, w_g)]
        zero_one = weights_of(rule, p_l, p_g, *(s.float() for s in sure))
        assert torch.equal(zero_one, rule(p_l, p_g, *sure).mask.float())
