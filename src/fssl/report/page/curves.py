"""Curves of the page: its quantities, and their mean and spread by round over the seeds of a line."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ...probes.host import divided
from ...records.rounds import MEASURES
from ..runs import Numbers, Run, value

Json = dict[str, Any]
DIGITS_SHOWN = 3  # significant digits of a standard deviation where one points at a curve
TESTED = (*MEASURES, "ema_accuracy")  # recorded in percent; all other shares are not


class Quantity(NamedTuple):
    """One curve of the page: a key of a record's line, and how it is shown."""

    key: str
    title: str
    unit: str
    about: str

    @property
    def place(self) -> tuple[str, ...]:
        """Where a line of a record has it."""
        return ("timing", "seconds") if self.key == "seconds" else (self.key,)

    @property
    def scale(self) -> float:
        return 100.0 if self.unit == "%" and self.key not in TESTED else 1.0

    @property
    def digits(self) -> int:
        return 3 if self.unit in ("%", "s") else 4


QUANTITIES = (
    Quantity("accuracy", "Test accuracy", "%", "share of test images that the global model classifies correctly"),
    Quantity("balanced_accuracy", "Balanced accuracy", "%", "recall averaged over classes, so that rare ones count"),
    Quantity("macro_f1", "Macro F1", "%", "F1 averaged over classes"),
    Quantity("auroc", "AUROC", "%", "area under the ROC curve of each class against the rest, averaged"),
    Quantity("ece", "Calibration error", "%", "how far confidence and accuracy are apart, over 15 bins"),
    Quantity("ema_accuracy", "Test accuracy, smoothed model", "%", "the same of the mean over rounds (server.ema)"),
    Quantity("pl_accuracy", "Pseudo-label accuracy", "%", "correct among the pseudo-labels that were used"),
    Quantity("utilization", "Pseudo-labels used", "%", "share of unlabeled images with a pseudo-label"),
    Quantity("fallback_share", "Global fallback", "%", "share of images where only the global model is sure"),
    Quantity(
        "fallback_accuracy", "Fallback accuracy", "%", "correct global labels where only the global model is sure"
    ),
    Quantity("disagreement", "Disagreement", "%", "local and global model name different classes"),
    Quantity("lam_sure", "Weight of the local vote, λ", "", "mean λ over images where the local model is sure"),
    Quantity("gap_sure", "Confidence gap", "", "difference of both confidences where the local model is sure"),
    Quantity("entropy_l", "Entropy, local model", "nats", "of its predictions; lower is more decided"),
    Quantity("entropy_g", "Entropy, global model", "nats", "of its predictions; lower is more decided"),
    Quantity("loss_s", "Loss of clients on labels", "", "L_s, mean over steps of clients that have some"),
    Quantity("server_loss", "Loss of the server on its labels", "", "mean over its own steps in a round"),
    Quantity("loss_u", "Loss on pseudo-labels", "", "L_u, mean over steps, before its weight"),
    Quantity("seconds", "Time per round", "s", "training, averaging and test"),
)

SECONDS = QUANTITIES[-1]
LINE_KEYS = ("round", "timing", *(quantity.key for quantity in QUANTITIES))  # of a line


def for_page(run: Run) -> Run:
    """A run with what the page needs: few keys of each line, as there may be very many, and other files read ahead."""
    assert run.extras.damage is not None  # looks into all of them
    return replace(run, lines=[{key: line[key] for key in LINE_KEYS if key in line} for line in run.lines])


def by_round(run: Run, quantity: Quantity) -> Numbers:
    """A quantity at its round less one; nan where nothing was counted."""
    values = np.full(run.last_round, np.nan)
    for line in run.lines:
        if (number := value(line, *quantity.place)) is not None:
            values[line["round"] - 1] = number * quantity.scale
    return values


def curves_of(runs: Sequence[Run]) -> Json:
    """Every quantity that a run of a line has, over its seeds, by round from 1 with gaps as null."""
    known = {q: [values for run in runs if not np.isnan(values := by_round(run, q)).all()] for q in QUANTITIES}
    return {q.key: over_seeds(series, q.digits) for q, series in known.items() if series}


def over_seeds(series: Sequence[Numbers], digits: int) -> Json:
    """Mean and sample standard deviation over the seeds that have a round, and how many have it."""
    values = np.full((len(series), max(map(len, series))), np.nan)
    for row, each in zip(values, series, strict=True):
        row[: len(each)] = each
    seeds = (~np.isnan(values)).sum(0)
    mean = divided(np.nansum(values, 0), seeds)
    std = np.sqrt(divided(np.nansum((values - mean) ** 2, 0), seeds - 1))
    return {"mean": plain(mean, digits), "std": plain(significant(std), digits + DIGITS_SHOWN), "seeds": seeds.tolist()}


def significant(values: Numbers) -> Numbers:
    """Numbers from 0 as they are shown: more digits would only make the page larger."""
    size = np.floor(np.log10(values, out=np.zeros(len(values)), where=values > 0))
    scale = 10.0 ** (DIGITS_SHOWN - 1 - size)
    return np.round(values * scale) / scale


def plain(values: Numbers, digits: int) -> list[Any]:
    """Numbers as JSON has them: rounded, and null for nan."""
    rounded: list[float] = np.round(values, digits).tolist()
    return [None if math.isnan(value) else value for value in rounded] if np.isnan(values).any() else rounded
