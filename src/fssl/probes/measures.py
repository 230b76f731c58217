"""Measures of a classifier besides accuracy: sums on the device."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .host import BINS, Answers, read_answers


def sums(p: Tensor, said: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """Return a flat vector: the confusion matrix by true class, then images, confidence and right answers of each bin.

    Args:
        p: Probabilities [B, C].
        said: The likeliest class [B], from the logits if there are any, since probabilities near 1 are rounded.
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
    """Return each class's AUROC against the rest, from p [..., N, C]; exact with ties, nan without a rest.

    From the ranks in a sorted list: 2 × the pairs that a class's images win against all, P² of them among themselves.
    """
    scores = p.mT.contiguous()  # [..., C, N]
    ordered = scores.sort(-1).values
    below = torch.searchsorted(ordered, scores) + torch.searchsorted(ordered, scores, right=True)
    mine = labels == torch.arange(p.shape[-1], device=p.device).unsqueeze(-1)  # [C, N]
    positive = mine.sum(-1)
    negative = len(labels) - positive
    wins = (below * mine).sum(-1) - positive**2
    return wins.double() / (2 * positive * negative)


def answers_of(probabilities: NDArray[np.float32], truth: NDArray[np.int64]) -> Answers:
    """Return the answers for probabilities [N, C] on the host."""
    p, labels = torch.from_numpy(probabilities), torch.from_numpy(truth)
    counted = torch.cat([sums(p, p.argmax(-1), labels, torch.ones(len(labels))).double(), auroc(p, labels)])
    return read_answers(counted.numpy(), p.shape[-1])
