"""From a round's tallies to a line of the record, and from lines to a summary and to the best round."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..config import Config

TARGETS = (30, 40, 45, 50)
LAST = 10  # rounds whose mean is the result
MEASURES = {  # of a test, in percent, with their names
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "auroc": "AUROC",
    "ece": "calibration error",
}
OF_TAIL = {  # the same of a long tail, by how many labels classes have
    "geometric_mean": "geometric mean of recalls",
    "many": "recall of classes with many labels",
    "medium": "recall of classes with a medium number of labels",
    "few": "recall of classes with few labels",
    "first_third": "recall of the first third of classes",
    "second_third": "recall of the second third of classes",
    "last_third": "recall of the last third of classes",
}
ALL_MEASURES = MEASURES | OF_TAIL
MEMORY = {  # of a round's timing, in bytes so far, with their names; `gpu_reserved` is of older runs
    "gpu_memory": "peak memory of the GPU",
    "process_memory": "peak memory of the process",
    "gpu_reserved": "memory that PyTorch reserved on the GPU",
}
NamedSums = Mapping[str, NDArray[np.float64]]
Line = dict[str, Any]  # the known values of a round, or of a run
L = TypeVar("L", bound=Mapping[str, Any])


def ratio(total: float, weight: float) -> float | None:
    """Return the mean; None if nothing was counted."""
    return float(total / weight) if weight > 0 else None


def tidy(value: float) -> float | int:
    """Return counts as whole numbers, and sums with nine digits: float32 sums have no more."""
    return int(value) if float(value).is_integer() else float(f"{value:.9g}")


def scalars(sums: NamedSums) -> dict[str, float | int]:
    """Return single sums over clients; vectors stay in the probes file."""
    return {name: tidy(float(v.sum())) for name, v in sums.items() if v.ndim == 1}


def rates(sums: Mapping[str, float], labeled_steps: float) -> dict[str, float | None]:
    """Return the readable values that follow from the sums; accuracies are None if true labels are unknown.

    L_s is 0 at clients without labels, so it is averaged over the steps of the others.
    """
    s = sums

    def right(count: str, among: str) -> float | None:
        return ratio(s[count], s[among]) if count in s else None

    losses = {name: labeled_steps if name == "l_s" else s["steps"] for name in s if name.startswith("l_")}
    out = {f"loss_{name[2:]}": ratio(s[name], steps) for name, steps in losses.items()}
    if "n" not in s:
        return out
    out["pl_accuracy"] = right("correct_valid", "n_valid")
    out["utilization"] = ratio(s["n_valid"], s["n"])
    for who in "lg":
        if f"n_{who}" in s:
            out[f"pl_accuracy_{who}"] = right(f"correct_{who}_sure", f"n_{who}")
            out[f"accuracy_{who}_all"] = right(f"correct_{who}", "n")
            out[f"entropy_{who}"] = ratio(s[f"entropy_{who}"], s["n"])
            out[f"entropy_{who}_sure"] = ratio(s[f"entropy_{who}_sure"], s[f"n_{who}"])
    if "lam" in s:
        out["fallback_share"] = ratio(s["n_fallback"], s["n"])
        out["fallback_accuracy"] = right("correct_fallback", "n_fallback")
        out["disagreement"] = ratio(s["disagree"], s["n"])
        out["disagreement_sure"] = ratio(s["disagree_sure"], s["n_l"])
        out["lam"] = ratio(s["lam"], s["n"])
        out["lam_sure"] = ratio(s["lam_sure"], s["n_l"])
        out["gap_sure"] = ratio(s["gap_sure"], s["n_l"])
    return out


def by_majority(sums: NamedSums, unlabeled_counts: NDArray[np.int64] | None) -> dict[str, float | None]:
    """Return mean lambda and gap for local votes on a majority and on a minority class of the client.

    Majority: the client's true unlabeled count of the class is above its mean count, if that is known. Clients with
    labeled images only have neither.
    """
    if "lam_sure_by_class" not in sums:
        return {}
    if unlabeled_counts is None:
        return {f"{name}_sure_{part}": None for part in ("majority", "minority") for name in ("lam", "gap")}
    mean = unlabeled_counts.mean(-1, keepdims=True)
    parts = {"majority": unlabeled_counts > mean, "minority": (unlabeled_counts <= mean) & (mean > 0)}  # [clients, C]
    out: dict[str, float | None] = {}
    for name, where in parts.items():
        weight = float((sums["n_sure_by_class"] * where).sum())
        out[f"lam_sure_{name}"] = ratio(float((sums["lam_sure_by_class"] * where).sum()), weight)
        out[f"gap_sure_{name}"] = ratio(float((sums["gap_sure_by_class"] * where).sum()), weight)
    return out


def summarize(lines: Sequence[Mapping[str, Any]], headline: str, measure: str = "accuracy") -> dict[str, Any]:
    """Return last, best and mean of the last ten, and rounds to targets, under each normalization.

    The result is the mean of the last ten of one measure, under one normalization.
    """
    out: dict[str, Any] = {"rounds": len(lines), "headline": headline, "measure": measure}
    out |= summarize_tests(lines, "test")
    seconds = [line["timing"]["seconds"] for line in lines]
    out["result"] = mean_of_last(lines, "test", headline, measure)
    if (last := mean_of_last(lines[-1:], "test", headline, measure)) is not None:
        out["last"] = last
    if all("ema_test" in line for line in lines):
        out["ema"] = summarize_tests(lines, "ema_test")
        out["ema_result"] = mean_of_last(lines, "ema_test", headline, measure)
    out["timing"] = {
        "seconds_per_round": float(np.median(seconds)),
        "seconds_per_round_p90": float(np.quantile(seconds, 0.9)),
        "seconds": float(np.sum(seconds)),
        **{
            name: max(peaks)
            for name in MEMORY
            if (peaks := [t[name] for line in lines if name in (t := line["timing"])])
        },
    }
    return out


def summarize_tests(lines: Sequence[Mapping[str, Any]], key: str) -> dict[str, Any]:
    """Return the tests of one model over all rounds, by normalization."""
    out = {}
    for norm in lines[-1][key]:
        curve = [line[key][norm]["accuracy"] for line in lines]
        out[norm] = {
            "last": curve[-1],
            "best": max(curve),
            "best_round": 1 + int(np.argmax(curve)),
            f"mean_last_{LAST}": mean_of_last(lines, key, norm, "accuracy"),
            "rounds_to": {str(t): first_reaching(curve, t) for t in TARGETS},
        }
        means = {name: mean_of_last(lines, key, norm, name) for name in ALL_MEASURES if name != "accuracy"}
        if known := {name: mean for name, mean in means.items() if mean is not None}:
            out[norm]["measures"] = known
    return out


def mean_of_last(lines: Sequence[Mapping[str, Any]], *keys: str) -> float | None:
    """Return the mean over the last rounds of a test's number, for the rounds that have it."""
    last = of_last(lines)
    values = [reduce(lambda table, key: table.get(key) or {}, keys[:-1], line).get(keys[-1]) for line in last]
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def of_last(lines: Sequence[L]) -> Sequence[L]:
    """Return the lines of the last ten rounds; fewer if some are damaged."""
    return lines[start_of_last([line["round"] for line in lines]) :]


def start_of_last(rounds: Sequence[int]) -> int:
    """Return where the last ten rounds start among those of a record, which may lack some."""
    return bisect_right(rounds, rounds[-1] - LAST) if rounds else 0


def first_reaching(curve: Sequence[float], target: float) -> int | None:
    return next((i + 1 for i, value in enumerate(curve) if value >= target), None)


def first_other_rate(lines: Iterable[Line], config: Config) -> int | None:
    """Return the first finished round whose recorded learning rate differs from the settings; None if there is none."""
    schedule = config.schedule
    return next((line["round"] for line in lines if line.get("rate", 1.0) != schedule.typical(line["round"])), None)


# The best round so far, by images outside the reported test; used for keeping a model and for stopping early.


class Chosen(NamedTuple):
    """A round, and its measure on the images to choose by."""

    round: int
    value: float


class BestRound:
    """The best round so far, the first of equal ones, and the number of rounds after it."""

    def __init__(self, config: Config, lines: Iterable[Line] = ()) -> None:
        self._by, self._measure = config.chosen_by, config.records.metrics
        self._patience = config.train.patience
        self.best: Chosen | None = None
        self._round = 0
        for line in lines:
            self.take(line)

    def take(self, line: Line) -> bool:
        """Take the next round; return whether it is the best so far."""
        self._round = line["round"]
        value = (line.get("validation", {}) if self._by == "validation" else line).get(self._measure)
        if self._by is None or value is None or (self.best and value <= self.best.value):
            return False
        self.best = Chosen(self._round, value)
        return True

    @property
    def is_over(self) -> bool:
        """Return whether the best round is as many rounds ago as the patience allows."""
        since = self._round - (self.best.round if self.best else 0)
        return self._patience is not None and since >= self._patience

    def facts(self, stops: bool) -> dict[str, Any]:
        """Return the summary's facts on the choice, and the reason for an early stop."""
        if self.best is None:
            return {}
        images = "validation part" if self._by == "validation" else "tuning half of the test"
        best = {"round": self.best.round, "by": self._by, "measure": self._measure, "value": self.best.value}
        since = self._round - self.best.round
        why = f"no better {MEASURES[self._measure]} on the {images} in {since} round{'s' * (since != 1)}"
        stopped = {"round": self._round, "patience": self._patience, "best_round": self.best.round, "why": why}
        return {"chosen": best, **({"stopped": stopped} if stops else {})}


def end_of_patience(lines: Sequence[Line], config: Config) -> int | None:
    """Return the round after which the settings' patience would have ended a longer run; None if there is none."""
    progress = BestRound(config)
    for line in lines[:-1]:
        progress.take(line)
        if progress.is_over:
            return int(line["round"])
    return None


def is_over(summary: Mapping[str, Any], config: Config) -> bool:
    """Return whether a run has ended, with all of its rounds or before."""
    return bool(summary) and (summary.get("rounds") == config.rounds or has_stopped(summary, config))


def has_stopped(summary: Mapping[str, Any], config: Config) -> bool:
    """Return whether a run has stopped early; it can be resumed with a larger patience."""
    stopped, patience = summary.get("stopped"), config.train.patience
    return patience is not None and isinstance(stopped, dict) and stopped.get("patience") == patience
