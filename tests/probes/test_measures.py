"""Measures other than accuracy, against scikit-learn and by hand."""

import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn import metrics

from fssl.augment.policies import Normalize
from fssl.core import evaluate
from fssl.core.evaluate import BATCH, make_score, make_tester, read_tested
from fssl.data.cards import CARDS
from fssl.data.long_tail import class_sizes
from fssl.models import build_net
from fssl.probes.groups import THIRDS, class_groups
from fssl.probes.host import BINS, Answers
from fssl.probes.measures import answers_of, auroc, sums


def random_answers(images: int, classes: int, present: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of two decimals, so that many are equal, and true classes of which some may be missing."""
    random = np.random.default_rng(seed)
    truth = random.integers(0, present, images)
    logits = random.normal(size=(images, classes))
    logits[np.arange(images), truth] += 1.0
    p = np.round(np.exp(logits) / np.exp(logits).sum(1, keepdims=True), 2)
    return p.astype(np.float32), truth


@pytest.mark.parametrize(("images", "classes", "present"), [(200, 2, 2), (500, 10, 10), (300, 10, 7), (60, 30, 30)])
def test_all_measures_are_those_of_scikit_learn(images: int, classes: int, present: int) -> None:
    p, truth = random_answers(images, classes, present, seed=classes)
    said, of = p.argmax(1), answers_of(p, truth)
    every = np.arange(classes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes without images
        precision, recall, f1, support = metrics.precision_recall_fscore_support(
            truth, said, labels=every, zero_division=np.nan
        )
        expected = {
            "accuracy": metrics.accuracy_score(truth, said),
            "balanced_accuracy": metrics.balanced_accuracy_score(truth, said),
            "macro_f1": metrics.f1_score(truth, said, average="macro"),
            "auroc": np.mean([metrics.roc_auc_score(truth == c, p[:, c]) for c in np.unique(truth)]),
        }
    assert {name: getattr(of, name) for name in expected} == pytest.approx(
        {name: 100 * value for name, value in expected.items()}, rel=1e-12
    )
    assert np.array_equal(of.confusion, metrics.confusion_matrix(truth, said, labels=every))
    assert np.array_equal(of.images, support)
    np.testing.assert_allclose(of.precision, 100 * precision, rtol=1e-12)
    np.testing.assert_allclose(of.recall, 100 * recall, rtol=1e-12)
    known = of.images + of.confusion.sum(0) > 0  # of the others scikit-learn says 0 or nan, by its version
    np.testing.assert_allclose(of.f1[known], 100 * np.nan_to_num(f1[known]), rtol=1e-12)
    assert np.isnan(of.f1[~known]).all()


def test_the_area_of_many_classes_is_scikit_learns_own_mean() -> None:
    logits = np.random.default_rng(3).normal(size=(400, 5))
    truth = np.arange(400) % 5
    p = torch.from_numpy(logits).softmax(-1)
    expected = metrics.roc_auc_score(truth, p.numpy(), multi_class="ovr", average="macro")
    assert auroc(p, torch.from_numpy(truth)).mean().item() == pytest.approx(expected, rel=1e-12)


def test_the_area_by_hand() -> None:
    """Class 1 has the scores .9 .5 against .5 .1: of four pairs three are won and one is level, 3.5 / 4."""
    p = torch.tensor([[0.1, 0.9], [0.5, 0.5], [0.5, 0.5], [0.9, 0.1]])
    assert auroc(p, torch.tensor([1, 1, 0, 0])).tolist() == [0.875, 0.875]


def test_one_class_alone_has_no_area() -> None:
    of = answers_of(np.array([[0.8, 0.2], [0.4, 0.6]], np.float32), np.array([0, 0]))
    assert of.auroc is None
    assert (of.accuracy, of.balanced_accuracy) == (50, 50)
    assert of.macro_f1 == pytest.approx(100 * (2 / 3 + 0) / 2)  # class 1 was said, and is never right
    assert of.facts()["classes"]["recall"] == [50, None]


def test_calibration_error_by_hand() -> None:
    """Two images in the bin up to 10/15, sure to .65 each and one right; one in the last, sure to 1 and wrong."""
    p = np.array([[0.65, 0.35], [0.35, 0.65], [1.0, 0.0]], np.float32)
    of = answers_of(p, np.array([0, 0, 1]))
    assert of.ece == pytest.approx(100 * (abs(1.3 - 1) + abs(1 - 0)) / 3, rel=1e-6)
    assert np.flatnonzero(of.bins[0]).tolist() == [9, BINS - 1]


def test_calibration_error_is_that_of_a_loop_over_bins() -> None:
    p, truth = random_answers(1000, 4, 4, seed=1)
    confidence, right = p.max(1).astype(np.float64), p.argmax(1) == truth
    edges = np.linspace(0, 1, BINS + 1).astype(np.float32)
    total = 0.0
    for low, high in pairwise(edges):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            total += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    assert answers_of(p, truth).ece == pytest.approx(100 * total, rel=1e-5)


def test_images_that_fill_a_batch_count_nothing() -> None:
    p, truth = (torch.from_numpy(each) for each in random_answers(8, 3, 3, seed=2))
    counts = torch.tensor([1.0] * 5 + [0.0] * 3)
    assert torch.equal(sums(p, p.argmax(-1), truth, counts), sums(p[:5], p[:5].argmax(-1), truth[:5], counts[:5]))


@pytest.mark.parametrize("images", [37, BATCH["cpu"], 2 * BATCH["cpu"] + 11])
def test_a_test_in_batches_has_the_answers_to_all_images(images: int) -> None:
    """Under each normalization: the sums over batches are those of all probabilities at once."""
    random = np.random.default_rng(images)
    net = build_net("cnn", 3, 4, 1, seed=7)
    pool = evaluate.TestPool(
        torch.from_numpy(random.integers(0, 256, (images, 8, 8, 3), np.uint8)),
        torch.from_numpy(random.integers(0, 4, images)),
    )
    cpu = torch.device("cpu")
    norms = [Normalize((0.5,) * 3, (0.25,) * 3, cpu), Normalize((0.2,) * 3, (0.5,) * 3, cpu)]
    for norm, tested in zip(norms, read_tested(make_tester(make_score(net), pool, norms)(net.first), 4), strict=True):
        with torch.no_grad():
            logits = net.infer(net.first, norm(pool.images)).logits
        whole = answers_of(logits.softmax(-1).numpy(), pool.labels.numpy())
        assert np.array_equal(tested.answers.confusion, whole.confusion)
        np.testing.assert_allclose(tested.answers.bins, whole.bins, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(tested.answers.areas, whole.areas, atol=2e-3)  # batches round otherwise
        loss = torch.nn.functional.cross_entropy(logits, pool.labels).item()
        assert tested.loss == pytest.approx(loss, rel=1e-5)
        assert tested.numbers.accuracy == whole.accuracy


@pytest.mark.parametrize(("name", "passes"), [("digits", 1), ("cifar10", 2)])
def test_one_normalization_under_two_names_is_computed_once(
    name: str, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, card, called = build_net("cnn", CARDS[name].channels, 4, 1, seed=7), CARDS[name], []
    infer = net.infer
    monkeypatch.setattr(net, "infer", lambda *given: called.append(1) or infer(*given))
    images = torch.arange(5 * 8 * 8 * card.channels).remainder(256).to(torch.uint8).view(5, 8, 8, card.channels)
    norms = list(evaluate.norms_for_test(card, torch.device("cpu")).values())
    both = make_tester(make_score(net), evaluate.TestPool(images, torch.arange(5) % 4), norms)(net.first)
    assert len(called) == passes
    assert len(both) == 2
    assert torch.equal(both[0], both[1]) == (passes == 1)


def test_answers_without_any_class_twice() -> None:
    """One image per class, all right: every measure is perfect."""
    of = answers_of(np.eye(4, dtype=np.float32), np.arange(4))
    assert isinstance(of, Answers)
    assert (of.accuracy, of.balanced_accuracy, of.macro_f1, of.auroc, of.ece) == (100, 100, 100, 100, 0)


def test_the_geometric_mean_by_hand() -> None:
    """Recalls .95 .9 .8 .75 .7 .65 .6 .5 .4 0, of which the last counts as 1 / 1000."""
    right = np.array([95, 90, 80, 75, 70, 65, 60, 50, 40, 0])
    confusion = np.diag(right)
    confusion[np.arange(10), np.arange(10) - 1] += 100 - right
    of = Answers(confusion, np.zeros((3, BINS)), np.full(10, np.nan))
    assert of.balanced_accuracy == pytest.approx(62.5)
    assert of.geometric_mean == pytest.approx(35.0535, abs=1e-4)


@pytest.mark.parametrize(
    ("head", "imbalance", "sizes"),
    [(150, 10, (18, 69, 13)), (150, 20, (14, 53, 33)), (150, 50, (11, 40, 49)), (500, 100, (35, 35, 30))],
)
def test_groups_of_a_long_tail(head: int, imbalance: int, sizes: tuple[int, ...]) -> None:
    groups = class_groups(np.array(class_sizes(head, imbalance, 100)))
    assert tuple(int(groups[name].sum()) for name in ("many", "medium", "few")) == sizes
    assert [int(groups[name].sum()) for name in THIRDS] == [34, 33, 33]
    assert [int(np.flatnonzero(groups[name])[0]) for name in THIRDS] == [0, 34, 67]


def test_a_group_is_the_mean_recall_of_its_classes() -> None:
    """Labels 200 100 20 19, recalls 1 1/2 1/4 and none: the last class has no test image."""
    confusion = np.array([[4, 0, 0, 0], [2, 2, 0, 0], [0, 3, 1, 0], [0, 0, 0, 0]])
    of = Answers(confusion, np.zeros((3, BINS)), np.full(4, np.nan))
    found = of.by_group(class_groups(np.array([200, 100, 20, 19])))
    assert found == {
        "many": 100.0,
        "medium": 37.5,
        "few": None,
        "first_third": 75.0,
        "second_third": 25.0,
        "last_third": None,
    }
