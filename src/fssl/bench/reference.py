"""The same training step written the ordinary way: eager fp32 modules, and Pillow views made by DataLoader workers."""

import copy
import time

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
from ..models import builder_of

TAU, KAPPA = 0.95, float(np.log(2) / 0.05)


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


def reference_step(
    model: nn.Module,
    frozen: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    w: Tensor,
    s: Tensor,
) -> None:
    """SAGE's step, one line after another."""
    logits = model(torch.cat([x, w, s]))[1]
    logits_x, logits_w, logits_s = logits.split([len(x), len(w), len(s)])
    with torch.no_grad():
        p_l, p_g = logits_w.softmax(-1), frozen(w)[1].softmax(-1)
        (c_l, a_l), (c_g, a_g) = p_l.max(-1), p_g.max(-1)
        lam = torch.exp(-KAPPA * (c_l - c_g).abs())[:, None]
        one_l, one_g = (F.one_hot(a, p_l.shape[-1]).float() for a in (a_l, a_g))
        target = torch.where((c_l >= TAU)[:, None], lam * one_l + (1 - lam) * one_g, one_g)
        mask = ((c_l >= TAU) | (c_g >= TAU)).float()
    unlabeled = (-(target * F.log_softmax(logits_s, -1)).sum(-1) * mask).mean()
    loss = F.cross_entropy(logits_x, y) + unlabeled
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()  # an ordinary loop logs its loss


def reference_ms_per_step(
    card: Card,
    split: Split,
    model_name: str,
    width: int,
    batch: int,
    ratio: int,
    steps: int,
    device: torch.device,
) -> float:
    """Milliseconds per step after a warm-up, views made by one DataLoader with two workers."""
    views = Views(split, np.arange(min(2500, len(split.labels))), max(batch, 250), ratio, card)
    loader = iter(DataLoader(views, batch, num_workers=2))
    model = builder_of(model_name)(card.channels, card.num_classes, width).to(device)
    frozen = copy.deepcopy(model).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    warm, begin = 6, 0.0  # the workers prefetch two batches each: let that supply run out before timing
    for i in range(warm + steps):
        if i == warm:
            begin = time.perf_counter()
        x, y, weak, strong = (t.to(device) for t in next(loader))
        reference_step(model, frozen, optimizer, x, y, weak.flatten(0, 1), strong.flatten(0, 1))
    return 1000 * (time.perf_counter() - begin) / steps
