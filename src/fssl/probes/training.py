"""The measures of each unlabeled batch for the paper's figures and tables: one named sum per quantity."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..label.assign import ConfidenceGap, Weigh
from ..label.losses import entropy
from ..types import State, Trace
from .host import COARSE, FINE, FINE_FROM
from .tally import STEPS, Bins, Measures, Sums

Named = dict[str, Sums | Bins]
Probe = Callable[[Trace, Tensor], Measures]


def rank_of(best: Tensor, p: Tensor) -> Tensor:
    """Return the rank (0 = top) of one class per row in another model's prediction; ties rank it higher."""
    return (p > p.gather(-1, best[:, None])).sum(-1)


def confidence_bin(c: Tensor, low: float, bins: int) -> Tensor:
    return ((c - low) * (bins / (1 - low))).long().clamp(0, bins - 1)


@dataclass(frozen=True)
class LabelProbe:
    """Counts, correctness, agreement, confidence and entropy of both models and of the final label.

    `weigh` is the method's own lambda where it has one, so that the record shows the weights it used. Sure
    means a confidence of at least `tau`, whatever rule accepts labels: only `n_valid` and its kin follow that.
    Where true labels are not known, what is correct is not counted at all.
    """

    weigh: Weigh = ConfidenceGap()  # noqa: RUF009 (a frozen value)
    tau: float = 0.95
    knows_truth: bool = True

    def __call__(self, trace: Trace, truth: Tensor) -> Measures:
        measures = losses_only(trace, truth)
        if not trace.votes:
            return measures
        models = [who for who in "lg" if f"p_{who}" in trace.votes]
        votes = {**trace.votes, **{f"sure_{who}": trace.votes[f"p_{who}"].amax(-1) >= self.tau for who in models}}
        measures |= {"n": Sums(torch.ones_like(truth)), **one_model(votes, "l", truth), **final(votes, truth)}
        if "p_g" in votes:
            measures |= one_model(votes, "g", truth) | fallback(votes, truth) | both_models(votes, self.weigh)
        return {k: m for k, m in measures.items() if self.knows_truth or not k.startswith("correct_")}


def losses_only(trace: Trace, truth: Tensor) -> Named:
    """Return the least that a run records: steps and losses, enough to notice divergence."""
    share = torch.full_like(truth, 1 / len(truth), dtype=torch.float32)  # sums to one per step
    return {STEPS: Sums(share), **{name: Sums(loss * share) for name, loss in trace.losses.items()}}


def one_model(votes: State, who: str, truth: Tensor) -> Named:
    """Return accumulators 1, 2, 5 and 6 for the local ('l') or the global ('g') model."""
    p, sure = votes[f"p_{who}"], votes[f"sure_{who}"].float()
    c, a = p.max(-1)
    right, h, one = (a == truth).float(), entropy(p), torch.ones_like(c)
    fine = (c >= FINE_FROM).float()
    return {
        f"n_{who}": Sums(sure),
        f"correct_{who}": Sums(right),
        f"correct_{who}_sure": Sums(right * sure),
        f"entropy_{who}": Sums(h),
        f"entropy_{who}_sure": Sums(h * sure),
        f"confidence_{who}": Bins(confidence_bin(c, 0.0, COARSE), one, COARSE),
        f"confidence_{who}_top": Bins(confidence_bin(c, FINE_FROM, FINE), fine, FINE),
    }


def final(votes: State, truth: Tensor) -> Named:
    """Return accumulators 1, 2 and 8: the label that is trained on."""
    label, mask = votes["target"].argmax(-1), votes["mask"].float()
    right = (label == truth).float() * mask
    classes = votes["target"].shape[-1]
    return {
        "n_valid": Sums(mask),
        "correct_valid": Sums(right),
        "labels_by_class": Bins(label, mask, classes),
        "correct_by_class": Bins(label, right, classes),
    }


def fallback(votes: State, truth: Tensor) -> Named:
    """Return accumulators 1 and 2: images for which only the global model is sure."""
    only_g = (votes["sure_g"] & ~votes["sure_l"]).float()
    right = (votes["p_g"].argmax(-1) == truth).float()
    return {"n_fallback": Sums(only_g), "correct_fallback": Sums(only_g * right)}


def both_models(votes: State, weigh: Weigh) -> Named:
    """Return accumulators 3, 4 and 7: disagreement, lambda and the confidence gap, ranks."""
    p_l, p_g = votes["p_l"], votes["p_g"]
    sure_l, sure_g = votes["sure_l"].float(), votes["sure_g"].float()
    (c_l, a_l), (c_g, a_g) = p_l.max(-1), p_g.max(-1)
    differ, gap, lam = (a_l != a_g).float(), (c_l - c_g).abs(), weigh(p_l, p_g)
    classes, one = p_l.shape[-1], torch.ones_like(c_l)
    return {
        "disagree": Sums(differ),
        "disagree_sure": Sums(differ * sure_l),
        "lam": Sums(lam),
        "lam_sure": Sums(lam * sure_l),
        "gap": Sums(gap),
        "gap_sure": Sums(gap * sure_l),
        "n_by_class": Bins(a_l, one, classes),
        "n_sure_by_class": Bins(a_l, sure_l, classes),
        "lam_by_class": Bins(a_l, lam, classes),
        "lam_sure_by_class": Bins(a_l, lam * sure_l, classes),
        "gap_by_class": Bins(a_l, gap, classes),
        "gap_sure_by_class": Bins(a_l, gap * sure_l, classes),
        "rank_l_in_g": Bins(rank_of(a_l, p_g), sure_l, classes),
        "rank_g_in_l": Bins(rank_of(a_g, p_l), sure_g, classes),
    }
