"""SAGE in an ordinary PyTorch loop: eager fp32 modules, an optimizer, and Pillow views made by DataLoader workers.

`reference_step` is the whole method. A test compares it with `sage` of fssl, `fssl bench` compares their speed.
"""

import copy
import math
import time
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ..augment.pillow import strong_pil, weak_pil
from ..augment.policies import draw_strong, draw_weak
from ..data.cards import Card
from ..data.sources import Split


class PlainStep(NamedTuple):
    """The results of one step: both losses, and the pseudo-labels it trained on."""

    l_s: Tensor
    l_u: Tensor
    y_hat: Tensor  # [B_u, C]
    mask: Tensor  # [B_u]


def reference_step(
    model: nn.Module,
    frozen: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    weak: Tensor,
    strong: Tensor,
    tau: float = 0.95,
    kappa: float = math.log(2) / 0.05,
    mu_u: float = 1.0,
) -> PlainStep:
    """SAGE on one page: one training step of one client.

    Args:
        model: the local model, in training mode; returns (feature, logits).
        frozen: the global model as the client received it this round, in evaluation mode.
        optimizer: SGD over the parameters of `model`, new in each round.
        x, y: labeled images in weak views [B, ...] and their classes [B].
        weak, strong: two views of the same unlabeled images [B_u, ...].
    """
    # The local model sees all views in one batch, so that BatchNorm has one set of statistics.
    _, logits = model(torch.cat([x, weak, strong]))
    logits_x, logits_weak, logits_strong = logits.split([len(x), len(weak), len(strong)])

    with torch.no_grad():
        p_l, p_g = logits_weak.softmax(-1), frozen(weak)[1].softmax(-1)
        c_l, c_g = p_l.amax(-1), p_g.amax(-1)
        delta_c = (c_l - c_g).abs()  # Eq. 2
        lam = torch.exp(-kappa * delta_c)[:, None]  # Eq. 3
        delta_l = F.one_hot(p_l.argmax(-1), p_l.shape[-1]).float()  # Eq. 4
        delta_g = F.one_hot(p_g.argmax(-1), p_g.shape[-1]).float()  # Eq. 5
        y_tilde = lam * delta_l + (1 - lam) * delta_g  # Eq. 6, CDSC: the local vote, corrected
        y_hat = torch.where((c_l >= tau)[:, None], y_tilde, delta_g)  # Eq. 7, CPG: else the global one
        mask = (c_l >= tau) | (c_g >= tau)  # an image counts where either model is sure

    l_s = F.cross_entropy(logits_x, y)
    # The released code's gradient: KL(y_hat || p) less its constant entropy, over the whole batch as in FixMatch.
    l_u = (-(y_hat * F.log_softmax(logits_strong, -1)).sum(-1) * mask).mean()
    loss = l_s + mu_u * l_u

    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return PlainStep(l_s.detach(), l_u.detach(), y_hat, mask)


class Views(Dataset[tuple[Tensor, ...]]):
    """A labeled image in a weak view with its label, and some unlabeled ones in a weak and a strong view each."""

    def __init__(self, split: Split, rows: NDArray[np.int64], num_labeled: int, ratio: int, card: Card) -> None:
        self.split, self.rows, self.num_labeled, self.ratio, self.card = split, rows, num_labeled, ratio, card
        self.rng = np.random.default_rng()

    def __len__(self) -> int:
        return 10**9

    def _image(self, row: int) -> Image.Image:
        return Image.fromarray(np.squeeze(self.split.images[row]))

    def _tensor(self, image: Image.Image) -> Tensor:
        pixels = np.atleast_3d(np.asarray(image, dtype=np.float32)) / 255
        pixels = (pixels - np.array(self.card.train_mean)) / np.array(self.card.train_std)
        return torch.from_numpy(pixels.transpose(2, 0, 1).astype(np.float32))

    def _weak(self, image: Image.Image) -> Tensor:
        return self._tensor(weak_pil(image, draw_weak(self.rng, (), self.card.size).tolist()))

    def _strong(self, image: Image.Image) -> Tensor:
        return self._tensor(strong_pil(image, draw_strong(self.rng, (), self.card.size).tolist()))

    def __getitem__(self, i: int) -> tuple[Tensor, ...]:
        row = self.rows[self.rng.integers(self.num_labeled)]
        unlabeled = [self._image(self.rows[k]) for k in self.rng.integers(len(self.rows), size=self.ratio)]
        weak, strong = (torch.stack([view(u) for u in unlabeled]) for view in (self._weak, self._strong))
        return self._weak(self._image(row)), torch.tensor(int(self.split.labels[row])), weak, strong


def reference_ms_of_steps(
    card: Card,
    split: Split,
    model: nn.Module,
    batch: int,
    ratio: int,
    steps: int,
    device: torch.device,
) -> list[float]:
    """Return the milliseconds of each step after a warm-up, with views made by one DataLoader with two workers."""
    rows = np.arange(min(2500, len(split.labels)))
    views = Views(split, rows, min(max(batch, 250), len(rows)), ratio, card)
    loader = iter(DataLoader(views, batch, num_workers=2))
    model = model.to(device)
    frozen = copy.deepcopy(model).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    warm, times = 6, [time.perf_counter()]  # the workers prefetch two batches each: let that supply run out first
    for _ in range(warm + steps):
        x, y, weak, strong = (t.to(device) for t in next(loader))
        made = reference_step(model, frozen, optimizer, x, y, weak.flatten(0, 1), strong.flatten(0, 1))
        made.l_s.item()  # an ordinary loop logs its loss
        times.append(time.perf_counter())
    return [1000 * (end - begin) for begin, end in pairwise(times[warm:])]
