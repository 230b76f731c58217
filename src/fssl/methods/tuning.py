"""ProxyFL's server step: the averaged classifier rows are pulled to the uploads of their class and pushed from others.

Thousands of dependent steps on a few rows each: on the host in NumPy, which is the definition, or all of them in one
kernel of a GPU (`tuning_kernel.py`). Distances come from explicit differences:
the matrix-product formula is inexact near zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..models import has_kernels

TunedRows = NDArray[np.float32]
LARGEST_MARGIN = 100.0


def proxy_margin(omega: TunedRows) -> float:
    """Return rho = min(100, max_c min_c' ||omega_c - omega_c'||)."""
    gaps = np.linalg.norm(omega[:, None] - omega[None], axis=-1)
    np.fill_diagonal(gaps, np.inf)
    return min(LARGEST_MARGIN, float(gaps.min(1).max()))


def gpt_gradient(omega: TunedRows, w: TunedRows, y: NDArray[np.int64], rho: float) -> TunedRows:
    """Return the gradient by the rows Omega of the mean of -log q_y, q_c ~ exp(-||w - Omega_c|| - rho [c = y]).

    (1[c = y] - q_c) (Omega_c - w) / ||Omega_c - w||, taken as 0 at distance 0.
    """
    away = omega[None] - w[:, None]  # [b, C, d]
    distance = np.sqrt(np.square(away).sum(-1))  # [b, C]
    is_y = y[:, None] == np.arange(len(omega))
    score = -distance - rho * is_y
    q = np.exp(score - score.max(-1, keepdims=True))
    q /= q.sum(-1, keepdims=True)
    force = (is_y - q) / np.where(distance > 0, distance, 1) / len(y)
    gradient: TunedRows = np.einsum("bc,bcd->cd", force, away).astype(omega.dtype)
    return gradient


@dataclass(frozen=True)
class Tuning:
    """Global proxy tuning: plain SGD over the uploaded rows in shuffled mini-batches."""

    epochs: int = 100
    lr: float = 0.005
    batch: int = 4
    margin: bool = True

    def __call__(self, mean: Tensor, uploaded: Sequence[Tensor], rng: np.random.Generator) -> Tensor:
        """Return the tuned rows [C, d] on the mean's device; `uploaded` has the rows of each client, in order."""
        if self.epochs == 0:
            return mean
        data = torch.cat(list(uploaded)).float()
        omega: TunedRows = mean.float().cpu().numpy().copy()
        rho, order = proxy_margin(omega) if self.margin else 0.0, self.order(len(data), rng)
        if has_kernels(mean):
            from .tuning_kernel import fits, tuned

            if fits(mean, self.batch):
                return tuned(mean, data, torch.from_numpy(order).to(mean.device), self.lr, rho).to(mean)
        host: TunedRows = data.cpu().numpy()
        for padded in order:
            rows = padded[padded >= 0]
            omega -= self.lr * gpt_gradient(omega, host[rows], rows % len(omega), rho)
        return torch.from_numpy(omega).to(mean)

    def order(self, number: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the rows of each step [steps, batch]; an epoch's last step may have fewer, padded with -1."""
        epochs = np.stack([rng.permutation(number) for _ in range(self.epochs)])
        padding = ((0, 0), (0, -number % self.batch))
        return np.pad(epochs, padding, constant_values=-1).reshape(-1, self.batch)
