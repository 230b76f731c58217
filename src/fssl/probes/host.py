"""Results of tests and probes on the host: bins of confidences, and measures of a classifier besides accuracy."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Groups = Mapping[str, NDArray[np.bool_]]  # which classes belong to each
BINS = 15  # of the calibration error: equal parts of confidences from 0 to 1, each with its upper end
COARSE, FINE, FINE_FROM = 100, 50, 0.95  # confidence bins on [0, 1], and finer ones on [0.95, 1]


class Answers(NamedTuple):
    """A model's answers on labeled images, on the host; shares are in percent."""

    confusion: NDArray[np.int64]  # [C, C]: true class, answered class
    bins: Numbers  # [3, BINS]: images, sum of confidences, right answers
    areas: Numbers  # [C]: AUROC of each class against the rest, from 0 to 1; nan if undefined

    @property
    def images(self) -> NDArray[np.int64]:
        """Images of each true class."""
        return np.asarray(self.confusion.sum(1))

    @property
    def recall(self) -> Numbers:
        return 100 * divided(self.confusion.diagonal(), self.images)

    @property
    def precision(self) -> Numbers:
        return 100 * divided(self.confusion.diagonal(), self.confusion.sum(0))

    @property
    def f1(self) -> Numbers:
        """Return the F1 of each class that is a true or an answered class of some image."""
        return 100 * divided(2 * self.confusion.diagonal(), self.confusion.sum(0) + self.confusion.sum(1))

    @property
    def accuracy(self) -> float:
        return float(100.0 * self.confusion.trace() / self.confusion.sum())

    @property
    def balanced_accuracy(self) -> float:
        return float(np.nanmean(self.recall))

    @property
    def geometric_mean(self) -> float:
        """Of the recalls; a class without a right answer counts 1 / (100 C) instead of 0, as CDMAD's code has it."""
        recall = self.recall[self.images > 0] / 100
        return float(100 * np.exp(np.log(np.where(recall > 0, recall, 0.01 / len(recall))).mean()))

    def by_group(self, groups: Groups) -> dict[str, float | None]:
        """The mean recall of some classes, by their name; None if no image is of these."""
        recalls = {name: self.recall[which & (self.images > 0)] for name, which in groups.items()}
        return {name: float(of.mean()) if len(of) else None for name, of in recalls.items()}

    @property
    def macro_f1(self) -> float:
        return float(np.nanmean(self.f1))

    @property
    def auroc(self) -> float | None:
        """Return the mean over classes; None if all images belong to one class."""
        return None if np.isnan(self.areas).all() else float(100 * np.nanmean(self.areas))

    @property
    def ece(self) -> float:
        """Return the mean difference of confidence and accuracy over bins, weighted by their images."""
        images, confidence, right = self.bins
        return float(100 * np.abs(confidence - right).sum() / images.sum())

    def facts(self) -> dict[str, Any]:
        """Return the confusion matrix and similar facts as JSON values."""
        columns = {"precision": self.precision, "recall": self.recall, "f1": self.f1, "auroc": 100 * self.areas}
        return {
            "classes": {"images": self.images.tolist()}
            | {name: [None if np.isnan(x) else float(x) for x in column] for name, column in columns.items()},
            "confusion": self.confusion.tolist(),
            "calibration": dict(zip(("images", "confidence", "right"), self.bins.tolist(), strict=True)),
        }


def read_answers(numbers: Numbers, num_classes: int) -> Answers:
    """Build the answers from sums followed by the areas of all classes, on the host."""
    matrix, bins, areas = np.split(numbers, [num_classes**2, num_classes**2 + 3 * BINS])
    shape = (num_classes, num_classes)
    return Answers(matrix.round().astype(np.int64).reshape(shape), bins.reshape(3, BINS), areas)


def divided(total: NDArray[Any], weight: NDArray[Any]) -> Numbers:
    """Return shares or means, and nan if nothing was counted."""
    out: Numbers = np.full(len(total), np.nan)
    np.divide(total, weight, out=out, where=weight > 0)
    return out
