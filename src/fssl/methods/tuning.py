"""ProxyFL's server step: the averaged classifier rows are pulled to the uploads of their class and pushed from others.

On the host and in NumPy: thousands of dependent steps on a few rows each would only be waiting on a device.
Distances come from explicit differences, since the matrix-product formula is inexact near zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Rows = NDArray[np.float32]
LARGEST_MARGIN = 100.0


def margin(omega: Rows) -> float:
    """rho = min(100, max_c min_c' ||omega_c - omega_c'||)."""
    gaps = np.linalg.norm(omega[:, None] - omega[None], axis=-1)
    np.fill_diagonal(gaps, np.inf)
    return min(LARGEST_MARGIN, float(gaps.min(1).max()))


def gpt_gradient(omega: Rows, w: Rows, y: NDArray[np.int64], rho: float) -> Rows:
    """Gradient by the rows Omega of the mean of -log q_y, q_c ~ exp(-||w - Omega_c|| - rho [c = y]).

    (1[c = y] - q_c) (Omega_c - w) / ||Omega_c - w||, taken as 0 at distance 0.
    """
    away = omega[None] - w[:, None]  # [b, C, d]
    distance = np.sqrt(np.square(away).sum(-1))  # [b, C]
    is_y = y[:, None] == np.arange(len(omega))
    score = -distance - rho * is_y
    q = np.exp(score - score.max(-1, keepdims=True))
    q /= q.sum(-1, keepdims=True)
    force = (is_y - q) / np.where(distance > 0, distance, 1) / len(y)
    gradient: Rows = np.einsum("bc,bcd->cd", force, away).astype(omega.dtype)
    return gradient


@dataclass(frozen=True)
class Tuning:
    """Global proxy tuning: plain SGD over the uploaded rows in shuffled mini-batches."""

    epochs: int = 100
    lr: float = 0.005
    batch: int = 4
    margin: bool = True

    def __call__(self, mean: Tensor, uploaded: Sequence[Tensor], rng: np.random.Generator) -> Tensor:
        """The tuned rows [C, d], where the mean lies; `uploaded` are the rows of each client, in client order."""
        if self.epochs == 0:
            return mean
        omega: Rows = mean.float().cpu().numpy().copy()
        data: Rows = torch.cat(list(uploaded)).float().cpu().numpy()
        y = np.tile(np.arange(len(omega)), len(uploaded))
        rho = margin(omega) if self.margin else 0.0
        for _ in range(self.epochs):
            order = rng.permutation(len(data))
            for start in range(0, len(data), self.batch):
                rows = order[start : start + self.batch]
                omega -= self.lr * gpt_gradient(omega, data[rows], y[rows], rho)
        return torch.from_numpy(omega).to(mean)
