"""Robust means of clients' uploads, some of which may be malicious.

References:
    Median and trimmed mean: Yin et al. 2018, "Byzantine-Robust Distributed Learning".
    Krum: Blanchard et al. 2017, "Machine Learning with Adversaries".
    Clipped updates: Karimireddy et al. 2021, "Learning from History for Byzantine Robust Optimization"; here the bound
        is the median of the round's norms.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import ceil
from statistics import median as middle
from typing import Literal

import torch
from torch import Tensor

from ..methods.base import weighted_mean
from ..types import State, Upload, Weights, packed, unpacked

ROUNDING = 1e-9  # 7 % of 100 uploads are 7, not 7.000000000000001


@dataclass(frozen=True)
class Aggregation:
    """Replaces uploads so that their mean is a robust mean, for every method that averages uploads.

    Each upload gets the robust model: the running mean of equal tensors is that tensor, bit for bit. With `clipped` an
    upload keeps its model, moved towards the model that was sent.

    Args:
        kind: The rule; `mean` passes uploads on, one at a time.
        malicious: The largest share of malicious uploads in a round that `trimmed` and `krum` tolerate.
    """

    kind: Literal["mean", "median", "trimmed", "clipped", "krum"] = "mean"
    malicious: float = 0.2

    def robust(
        self, sent: Weights, uploads: Iterable[Upload], share: Callable[[Upload], float] = lambda u: u.num_samples
    ) -> Iterator[Upload]:
        """Yield the uploads of a round with robust models.

        Args:
            sent: The model that clients began with.
            uploads: The clients' uploads.
            share: The weight of an upload in the mean; an upload with weight 0 has no influence.
        """
        if self.kind == "mean":
            yield from uploads
            return
        arrived = list(uploads)
        models = [upload.weights for upload in arrived if share(upload) > 0]
        if models and self.kind == "clipped":  # parameters and buffers have separate bounds
            parts = [clipped(old, [model[i] for model in models]) for i, old in enumerate(sent)]
            models = [Weights(*pair) for pair in zip(*parts, strict=True)]
        elif models:
            models = [unpacked("", self._one([packed("", model) for model in models]))] * len(models)
        made = iter(models)
        for upload in arrived:
            yield upload._replace(weights=next(made)) if share(upload) > 0 else upload

    def _one(self, models: list[State]) -> State:
        spared = assumed(self.malicious, len(models))
        if self.kind == "krum":
            return models[krum([*map(flat, models)], spared)]
        rule = median if self.kind == "median" else (lambda values: trimmed(values, spared))
        return {name: rule(torch.stack([model[name] for model in models])) for name in models[0]}


def assumed(malicious: float, uploads: int) -> int:
    """Return how many of the uploads are assumed to be malicious: fewer than half."""
    return min(ceil(malicious * uploads - ROUNDING), (uploads - 1) // 2)


def median(values: Tensor) -> Tensor:
    """Return the median of each coordinate over clients [clients, ...]; for an even number, the mean of two."""
    ordered, last = values.sort(0).values, len(values) - 1
    low, high = ordered[last // 2], ordered[(last + 1) // 2]
    return low / 2 + high / 2


def trimmed(values: Tensor, spared: int) -> Tensor:
    """Return the mean of each coordinate over clients [clients, ...], without the `spared` lowest and highest."""
    kept = values.sort(0).values[spared : len(values) - spared]
    return weighted_mean(({"": row}, 1.0) for row in kept)[""]


def krum(models: list[Tensor], spared: int) -> int:
    """Return the index of the model with the smallest sum of squared distances to its n - spared - 2 nearest others.

    Of several such models, return the first.
    """
    together = torch.stack(models)
    nearest = max(1, len(models) - spared - 2)
    distances = [(together - model).square().sum(1) for model in models]
    scores = [away.sort().values[: 1 + nearest].sum() for away in distances]  # the nearest is the model itself
    return int(torch.stack(scores).argmin())


def clipped(sent: State, models: list[State]) -> list[State]:
    """Return the models with updates scaled down to at most the median norm."""
    lengths = [flat({name: tensor - sent[name] for name, tensor in model.items()}).norm().item() for model in models]
    bound = middle(lengths)
    return [
        model if far <= bound else {name: sent[name] + bound / far * (t - sent[name]) for name, t in model.items()}
        for model, far in zip(models, lengths, strict=True)
    ]


def flat(model: State) -> Tensor:
    """Return a model as one vector, in double precision."""
    tensors = [tensor.double().flatten() for tensor in model.values()]
    return torch.cat(tensors) if tensors else torch.zeros(0)
