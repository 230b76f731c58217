"""Scores of a model on each client's own test and validation images: three sums for each part."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from statistics import mean, pstdev
from typing import Any, NamedTuple

import numpy as np

from ..config import Config
from ..data.partition import Index
from ..data.sources import Dataset, Split
from ..types import Weights
from .evaluate import Test, Tester, read_tested
from .images import partition_images, split_for_clients

PARTS = ("test", "validation")


class Sums(NamedTuple):
    """The number of a part's images, of those that the model classifies correctly, and the sum of their losses."""

    images: int
    right: int
    loss: float

    @property
    def test(self) -> Test:
        return Test(100.0 * self.right / self.images, self.loss / self.images)


class SiteScore(NamedTuple):
    """One client's sums, for each part of its images that is large enough to report."""

    client: int
    parts: dict[str, Sums]


def rounds_between(config: Config, has_images: bool) -> int:
    """Return the number of rounds between two tests of the model at sites; 0 for never.

    If sites hold out images that the server lacks, the default is every round.
    """
    is_needed = config.data.validation is not None and not has_images
    return config.records.sites_every or int(is_needed)


def own_splits(config: Config, dataset: Dataset, held_out: Index, client: int) -> dict[str, Split]:
    """Return a client's local test images, and its labeled images that are held out of training."""
    splits: dict[str, Split] = {}
    if dataset.testers is not None and (dataset.testers == client).any():
        splits["test"] = split_for_clients(config, dataset)[client]
    if len(rows := np.intersect1d(held_out, partition_images(config, dataset).labeled[client])):
        splits["validation"] = Split(dataset.train.images[rows], dataset.train.labels[rows])
    return splits


def make_site_score(
    splits_of: Callable[[int], Mapping[str, Split]], make: Callable[[Split], Tester], num_classes: int
) -> Callable[[Weights, int], SiteScore]:
    """Return a function that tests a model on a client's local images.

    Args:
        splits_of: Returns a client's parts.
        make: Makes a test of a part.
        num_classes: The number of classes.
    """

    @cache
    def testers(client: int) -> dict[str, Tester]:
        return {part: make(split) for part, split in splits_of(client).items()}

    def score(weights: Weights, client: int) -> SiteScore:
        tested = {part: read_tested(test(weights), num_classes)[0] for part, test in testers(client).items()}
        sums = {}
        for part, found in tested.items():
            images, right = int(found.answers.confusion.sum()), int(found.answers.confusion.trace())
            sums[part] = Sums(images, right, found.loss * images)
        return SiteScore(client, sums)

    return score


def together(scores: Iterable[SiteScore], part: str) -> Test | None:
    """Return the test over all sites' images of a part, with equal weights of images."""
    sums = [score.parts[part] for score in scores if part in score.parts]
    return Sums(*map(sum, zip(*sums, strict=True))).test if sums else None


def site_facts(scores: Iterable[SiteScore]) -> dict[str, Any]:
    """Return facts for the record: each site's accuracy, the worst, and their unweighted mean and spread."""
    scores, out = list(scores), {}
    for part in PARTS:
        sums = {score.client: score.parts[part] for score in scores if part in score.parts}
        if not sums:
            continue
        accuracy = {client: each.test.accuracy for client, each in sums.items()}
        worst = min(accuracy, key=accuracy.__getitem__)
        out[part] = {
            "worst": accuracy[worst],
            "worst_client": worst,
            "mean": mean(accuracy.values()),
            "spread": pstdev(accuracy.values()),
            "clients": {
                str(client): {"images": each.images, "accuracy": each.test.accuracy, "loss": each.test.loss}
                for client, each in sums.items()
            },
        }
    return out
