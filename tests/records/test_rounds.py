"""From sums to a line, and from lines to a summary: values worked by hand."""

import numpy as np
import pytest

from fssl.records.rounds import by_majority, first_reaching, rates, ratio, scalars, summarize, tidy


def line(round: int, accuracy: float, seconds: float) -> dict[str, object]:
    test = {"train_norm": {"accuracy": accuracy, "loss": 1.0}, "authors_norm": {"accuracy": accuracy / 2, "loss": 1.0}}
    return {"round": round, "test": test, "timing": {"seconds": seconds}}


def test_a_mean_of_nothing_is_nothing() -> None:
    assert ratio(0.0, 0.0) is None
    assert ratio(3.0, 4.0) == 0.75


def test_counts_stay_whole_and_sums_keep_nine_digits() -> None:
    assert tidy(12.0) == 12
    assert isinstance(tidy(12.0), int)
    assert tidy(float(np.float32(0.1))) == 0.100000001


def test_scalars_add_up_clients_and_leave_vectors_out() -> None:
    assert scalars({"n": np.array([1.0, 2.5]), "by_class": np.ones((2, 3))}) == {"n": 3.5}


def test_rates_without_pseudo_labels_are_losses_only() -> None:
    assert rates({"l_s": 6.0, "l_u": 3.0, "steps": 4.0}, 4.0) == {"loss_s": 1.5, "loss_u": 0.75}
    assert rates({"l_s": 6.0, "l_u": 3.0, "steps": 4.0}, 3.0) == {"loss_s": 2.0, "loss_u": 0.75}
    assert rates({"l_s": 0.0, "l_u": 3.0, "steps": 4.0}, 0.0) == {"loss_s": None, "loss_u": 0.75}


def test_label_rates_divide_by_what_they_count() -> None:
    """8 images, 4 with a label, 3 of these right; the global model was never sure."""
    sums = {"l_s": 1.0, "l_u": 1.0, "steps": 2.0, "n": 8.0, "n_valid": 4.0, "correct_valid": 3.0}
    sums |= {"n_g": 0.0, "correct_g_sure": 0.0, "correct_g": 2.0, "entropy_g": 4.0, "entropy_g_sure": 0.0}
    out = rates(sums, sums["steps"])
    assert out["pl_accuracy"] == 0.75
    assert out["utilization"] == 0.5
    assert out["accuracy_g_all"] == 0.25
    assert out["entropy_g"] == 0.5
    assert out["pl_accuracy_g"] is None
    assert out["entropy_g_sure"] is None


def test_rates_of_what_is_right_are_nothing_where_true_labels_are_not_known() -> None:
    sums = {"l_s": 1.0, "l_u": 1.0, "steps": 2.0, "n": 8.0, "n_valid": 4.0, "n_l": 2.0, "entropy_l": 4.0}
    sums |= {"entropy_l_sure": 1.0, "n_g": 2.0, "entropy_g": 4.0, "entropy_g_sure": 1.0, "n_fallback": 1.0}
    sums |= dict.fromkeys(("disagree", "disagree_sure", "lam", "lam_sure", "gap_sure"), 1.0)
    out = rates(sums, sums["steps"])
    unknown = {"pl_accuracy", "pl_accuracy_l", "pl_accuracy_g", "accuracy_l_all", "accuracy_g_all", "fallback_accuracy"}
    assert {name for name, value in out.items() if value is None} == unknown
    assert (out["utilization"], out["fallback_share"], out["entropy_l"]) == (0.5, 0.125, 0.5)


def test_majority_classes_are_those_above_the_clients_mean() -> None:
    """Client 0 holds (4, 1, 1): class 0 is its majority. Client 1 holds (0, 2, 4), mean 2: only class 2 is."""
    counts = np.array([[4, 1, 1], [0, 2, 4]])
    sums = {
        "n_sure_by_class": np.array([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]]),
        "lam_sure_by_class": np.array([[1.0, 0.5, 0.0], [0.0, 0.25, 2.0]]),
        "gap_sure_by_class": np.array([[0.4, 0.2, 0.0], [0.0, 0.4, 0.0]]),
    }
    out = by_majority(sums, counts)
    assert out["lam_sure_majority"] == pytest.approx((1.0 + 2.0) / 4)
    assert out["lam_sure_minority"] == pytest.approx((0.5 + 0.25) / 2)
    assert out["gap_sure_majority"] == pytest.approx(0.4 / 4)
    assert out["gap_sure_minority"] == pytest.approx(0.6 / 2)
    assert by_majority({"n": np.ones(2)}, counts) == {}
    assert by_majority(sums, None) == dict.fromkeys(out)  # true classes are not known
    labeled_only = by_majority(sums, np.zeros_like(counts))  # clients without an unlabeled image
    assert labeled_only == dict.fromkeys(out)


def test_a_target_counts_as_reached_when_it_is_met_exactly() -> None:
    assert first_reaching([10.0, 30.0, 20.0, 40.0], 30) == 2
    assert first_reaching([10.0, 30.0], 45) is None


def test_summary_of_twelve_rounds() -> None:
    """Accuracies 5, 10, ..., 60: the last ten are 15 ... 60, their mean 37.5; seconds 1 ... 12, median 6.5."""
    lines = [line(i, 5.0 * i, float(i)) for i in range(1, 13)]
    out = summarize(lines, "train_norm")
    assert out["rounds"] == 12
    assert out["result"] == 37.5
    assert out["last"] == out[out["headline"]]["last"]
    best = {"last": 60.0, "best": 60.0, "best_round": 12, "mean_last_10": 37.5}
    assert out["train_norm"] == {**best, "rounds_to": {"30": 6, "40": 8, "45": 9, "50": 10}}
    assert out["authors_norm"]["rounds_to"] == {"30": 12, "40": None, "45": None, "50": None}
    assert out["timing"]["seconds_per_round"] == 6.5
    assert out["timing"]["seconds"] == 78.0


def test_summary_of_a_short_run_takes_what_there_is() -> None:
    out = summarize([line(1, 20.0, 1.0), line(2, 10.0, 1.0)], "authors_norm")
    assert out["result"] == 7.5
    assert (out["train_norm"]["best"], out["train_norm"]["best_round"], out["train_norm"]["last"]) == (20.0, 1, 10.0)
