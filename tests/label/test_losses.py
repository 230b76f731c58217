"""Losses and their gradients, worked by hand."""

import math

import pytest
import torch
import torch.nn.functional as F

from fssl.label.losses import cross_entropy, soft_cross_entropy, squared_distance, supervised_loss
from fssl.methods.terms import Proximal
from fssl.types import Batch, Clock, PseudoLabels, Server, Weights


def test_class_weights_by_hand() -> None:
    """p = 1/4, 3/4 in each row: (2 ln 4 + 0.5 ln 4/3 + 0.5 ln 4/3) / 3; weights of 1 change no bit."""
    logits = torch.tensor([[0.0, math.log(3)]] * 3, requires_grad=True)
    y = torch.tensor([0, 1, 1])
    loss = cross_entropy(logits, y, torch.tensor([2.0, 0.5]))
    assert loss.item() == pytest.approx((2 * math.log(4) + math.log(4 / 3)) / 3)
    plain, ones = cross_entropy(logits, y), cross_entropy(logits, y, torch.ones(2))
    assert torch.equal(plain, ones)
    assert torch.equal(*(torch.autograd.grad(each, logits)[0] for each in (plain, ones)))


def test_a_step_s_loss_is_none_without_labels_and_takes_other_labels() -> None:
    logits, y, one = torch.tensor([[0.0, math.log(3)]] * 2), torch.tensor([0, 1]), torch.ones(())
    batch = Batch({}, y, y, one, Clock(one, one, one), {}, {"class_weights": torch.tensor([1.5, 0.5])})
    first, second = 1.5 * math.log(4), 0.5 * math.log(4 / 3)
    assert supervised_loss(logits, batch).item() == pytest.approx((first + second) / 2)
    twice = supervised_loss(logits.repeat(2, 1), batch, y.repeat(2))
    assert twice.item() == pytest.approx((first + second) / 2)
    assert supervised_loss(logits, batch, 1 - y[:1].repeat(2)).item() == pytest.approx(second)
    assert supervised_loss(logits, batch._replace(has_labels=0 * one)).item() == 0
    assert supervised_loss(logits, batch._replace(extras={})).item() == F.cross_entropy(logits, y).item()


def test_unlabeled_loss_divides_by_the_whole_batch() -> None:
    """Uniform logits over 4 classes: every image costs ln 4; one of three counts, so ln 4 / 3."""
    labels = PseudoLabels(torch.eye(4)[:3], torch.tensor([True, False, False]))
    assert soft_cross_entropy(torch.zeros(3, 4), labels).item() == pytest.approx(math.log(4) / 3)


def test_unlabeled_gradient_is_that_of_the_released_kl() -> None:
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 5, generator=g, dtype=torch.double).requires_grad_()
    target = torch.softmax(torch.randn(6, 5, generator=g, dtype=torch.double), -1)
    mask = torch.tensor([1, 0, 1, 1, 0, 1], dtype=torch.bool)
    (ours,) = torch.autograd.grad(soft_cross_entropy(logits, PseudoLabels(target, mask)), logits)
    kl = (target * ((target + 1e-10) / (logits.softmax(-1) + 1e-10)).log()).sum(-1)
    (theirs,) = torch.autograd.grad((kl * mask).mean(), logits)
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


def test_the_guard_is_the_released_one() -> None:
    """The gradient of KL with 1e-10 in both logarithms; half of it where p is 1e-10, next to nothing far below."""
    guard = 1e-10
    p = torch.tensor([0.3, 1e-10, 1e-14], dtype=torch.double)
    logits = torch.stack([(1 - p).log(), p.log()], -1).requires_grad_()
    labels = PseudoLabels(torch.tensor([[0.0, 1.0]] * 3, dtype=torch.double), torch.ones(3, dtype=torch.bool))
    loss = soft_cross_entropy(logits, labels, guard)
    assert loss.item() == pytest.approx(-(p + guard).log().mean().item(), rel=1e-12)
    (ours,) = torch.autograd.grad(loss, logits)
    kl = (labels.target * ((labels.target + guard) / (logits.softmax(-1) + guard)).log()).sum(-1)
    (theirs,) = torch.autograd.grad(kl.mean(), logits)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    (free,) = torch.autograd.grad(soft_cross_entropy(logits, labels), logits)
    torch.testing.assert_close((ours / free)[:, 1], p / (p + guard), rtol=1e-9, atol=0)
    assert ours[2].abs().max() < 1e-4 * free[2].abs().max()


def test_labeled_loss() -> None:
    logits = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]])
    assert cross_entropy(logits, torch.tensor([0, 1])).item() == pytest.approx((math.log(4 / 3) + math.log(2)) / 2)


def test_proximal_gradient_is_mu_times_the_distance() -> None:
    theta, theta_g = torch.tensor([1.0, -2.0], requires_grad=True), torch.tensor([0.5, 1.0])
    server = Server(Weights({"w": theta_g}, {}), {})
    term = Proximal(0.1)(Weights({"w": theta}, {"mean": torch.tensor([9.0])}), server)
    assert term.item() == pytest.approx(0.05 * (0.25 + 9.0))
    (gradient,) = torch.autograd.grad(term, theta)
    torch.testing.assert_close(gradient, 0.1 * (theta.detach() - theta_g))


def test_squared_distance_sums_over_all_tensors() -> None:
    a = {"x": torch.tensor([1.0, 2.0]), "y": torch.tensor([[3.0]])}
    b = {"x": torch.tensor([0.0, 0.0]), "y": torch.tensor([[1.0]])}
    assert squared_distance(a, b).item() == 9.0
