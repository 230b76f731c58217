"""The same training step written the ordinary way: eager fp32 modules, and Pillow views made by DataLoader workers."""

import copy
import time
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

from ..augment.pillow import strong_pil, weak_pil
from ..augment.policies import draw_strong, draw_weak
from ..data.cards import Card
from ..data.sources import Split
from ..models import MODELS

TAU, KAPPA = 0.95, float(np.log(2) / 0.05)


class Views(Dataset[tuple[Tensor, ...]]):
    """Images with a weak view, and a strong one if asked, drawn anew at each access."""

    def __init__(self, split: Split, rows: NDArray[np.int64], card: Card, with_strong: bool) -> None:
        self.split, self.rows, self.card, self.with_strong = split, rows, card, with_strong
        self.rng = np.random.default_rng()

    def __len__(self) -> int:
        return len(self.rows)

    def _tensor(self, image: Image.Image) -> Tensor:
        pixels = np.atleast_3d(np.asarray(image, dtype=np.float32)) / 255
        pixels = (pixels - np.array(self.card.train_mean)) / np.array(self.card.train_std)
        return torch.from_numpy(pixels.transpose(2, 0, 1).astype(np.float32))

    def __getitem__(self, i: int) -> tuple[Tensor, ...]:
        row = self.rows[i]
        image = Image.fromarray(np.squeeze(self.split.images[row]))
        weak = self._tensor(weak_pil(image, draw_weak(self.rng, (), self.card.size).tolist()))
        if not self.with_strong:
            return weak, torch.tensor(int(self.split.labels[row]))
        return weak, self._tensor(strong_pil(image, draw_strong(self.rng, (), self.card.size).tolist()))


def endless(data: Views, batch: int, workers: int) -> Iterator[list[Tensor]]:
    sampler = RandomSampler(data, replacement=True, num_samples=10**6 * batch)
    yield from DataLoader(data, batch, sampler=sampler, num_workers=workers, drop_last=True)


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
    """Milliseconds per step after a warm-up, with two workers shared between the two loaders."""
    rows = np.arange(min(2500, len(split.labels)))
    labeled = endless(Views(split, rows[: max(batch, 250)], card, False), batch, 1)
    unlabeled = endless(Views(split, rows, card, True), batch * ratio, 1)
    model = MODELS[model_name](card.channels, card.num_classes, width).to(device)
    frozen = copy.deepcopy(model).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    warm, begin = 6, 0.0  # the loaders prefetch two batches each: let that supply run out before timing
    for i in range(warm + steps):
        if i == warm:
            begin = time.perf_counter()
        batch_x, batch_u = next(labeled), next(unlabeled)
        reference_step(model, frozen, optimizer, *(t.to(device) for t in (*batch_x, *batch_u)))
    return 1000 * (time.perf_counter() - begin) / steps
