"""Measures of a classifier beside its accuracy: what is summed on the device, and the numbers that follow from it."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Numbers = NDArray[np.float64]
BINS = 15  # of the calibration error: equal parts of confidences from 0 to 1, each with its upper end


def sums(p: Tensor, said: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """The confusion matrix by truth, then images, confidence and right answers of each bin; a flat vector.

    Args:
        p: Probabilities [B, C].
        said: The likeliest class [B]: of the logits where there are some, as probabilities near 1 are rounded.
        labels: True classes [B].
        counts: 1 for an image that counts, 0 for one that only fills a batch [B].
    """
    num_classes, counts = p.shape[-1], counts.to(p.dtype)
    confidence = p.amax(-1)
    cell = labels * num_classes + said
    bin = (torch.ceil(confidence * BINS).long() - 1).clamp(0, BINS - 1)
    right = (said == labels).to(counts.dtype)
    matrix = counts.new_zeros(num_classes**2).scatter_add(0, cell, counts)
    parts = [counts.new_zeros(BINS).scatter_add(0, bin, counts * x) for x in (1, confidence, right)]
    return torch.cat([matrix, *parts])


def auroc(p: Tensor, labels: Tensor) -> Tensor:
    """The area under each class's curve against the rest, exact with ties, from p [..., N, C]; nan without a rest.

    The ranks of a sorted list: 2 × the pairs that a class's images win against all, of which P² are among themselves.
    """
    scores = p.mT.contiguous()  # [..., C, N]
    ordered = scores.sort(-1).values
    below = torch.searchsorted(ordered, scores) + torch.searchsorted(ordered, scores, right=True)
    mine = labels == torch.arange(p.shape[-1], device=p.device).unsqueeze(-1)  # [C, N]
    positive = mine.sum(-1)
    negative = len(labels) - positive
    wins = (below * mine).sum(-1) - positive**2
    return wins.double() / (2 * positive * negative)


class Answers(NamedTuple):
    """What a model said of labeled images, on the host; shares are in percent."""

    confusion: NDArray[np.int64]  # [C, C]: true class, class that was said
    bins: Numbers  # [3, BINS]: images, sum of confidences, right answers
    areas: Numbers  # [C]: AUROC of each class against the rest, from 0 to 1; nan where it has no value

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
        """Of each class that some image has, or was taken for."""
        return 100 * divided(2 * self.confusion.diagonal(), self.confusion.sum(0) + self.confusion.sum(1))

    @property
    def accuracy(self) -> float:
        return float(100.0 * self.confusion.trace() / self.confusion.sum())

    @property
    def balanced_accuracy(self) -> float:
        return float(np.nanmean(self.recall))

    @property
    def macro_f1(self) -> float:
        return float(np.nanmean(self.f1))

    @property
    def auroc(self) -> float | None:
        """The mean over classes; none if all images are of one class."""
        return None if np.isnan(self.areas).all() else float(100 * np.nanmean(self.areas))

    @property
    def ece(self) -> float:
        """The mean difference of confidence and accuracy in a bin, weighed by its images."""
        images, confidence, right = self.bins
        return float(100 * np.abs(confidence - right).sum() / images.sum())

    def facts(self) -> dict[str, Any]:
        """What single numbers do not tell, as JSON has it."""
        columns = {"precision": self.precision, "recall": self.recall, "f1": self.f1, "auroc": 100 * self.areas}
        return {
            "classes": {"images": self.images.tolist()} | {name: plain(column) for name, column in columns.items()},
            "confusion": self.confusion.tolist(),
            "calibration": dict(zip(("images", "confidence", "right"), self.bins.tolist(), strict=True)),
        }


def read_answers(numbers: Numbers, num_classes: int) -> Answers:
    """From the sums and the areas of all classes after them, on the host."""
    matrix, bins, areas = np.split(numbers, [num_classes**2, num_classes**2 + 3 * BINS])
    shape = (num_classes, num_classes)
    return Answers(matrix.round().astype(np.int64).reshape(shape), bins.reshape(3, BINS), areas)


def answers_of(probabilities: NDArray[np.float32], truth: NDArray[np.int64]) -> Answers:
    """Of probabilities [N, C] that are on the host already."""
    p, labels = torch.from_numpy(probabilities), torch.from_numpy(truth)
    counted = torch.cat([sums(p, p.argmax(-1), labels, torch.ones(len(labels))).double(), auroc(p, labels)])
    return read_answers(counted.numpy(), p.shape[-1])


def divided(total: NDArray[Any], weight: NDArray[Any]) -> Numbers:
    """Shares or means, and nan where nothing was counted."""
    out: Numbers = np.full(len(total), np.nan)
    np.divide(total, weight, out=out, where=weight > 0)
    return out


def plain(column: Numbers) -> list[float | None]:
    """Numbers as JSON has them: null for nan."""
    return [None if np.isnan(x) else float(x) for x in column]
