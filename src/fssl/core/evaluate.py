"""The test: a model's accuracy and loss on the test images, under each normalization."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..augment.normalize import Normalize
from ..config import Config
from ..data.cards import Card
from ..models import Net
from ..types import Weights


class TestPool(NamedTuple):
    images: Tensor  # [N, H, W, C] uint8
    labels: Tensor


class Test(NamedTuple):
    accuracy: float  # percent
    loss: float


Tester = Callable[[Weights], Tensor]  # -> [norms, 2]: right answers, summed loss; still on the device


BATCH = {"cuda": 1000, "cpu": 100}  # measured: a CPU is a third faster with few images at a time


def make_tester(net: Net, pool: TestPool, norms: Sequence[Normalize], compile: bool = False) -> Tester:
    """A test in batches of one fixed size; the last one is filled with images that do not count."""
    n, device = len(pool.labels), pool.labels.device
    batch = min(BATCH[device.type], n)

    def score(weights: Weights, rows: Tensor, counts: Tensor) -> Tensor:
        images, labels = pool.images[rows], pool.labels[rows]
        scores = []
        for normalize in norms:
            logits = net.infer(weights, normalize(images)).logits
            right = ((logits.argmax(-1) == labels) * counts).sum()
            scores.append(torch.stack([right, (F.cross_entropy(logits, labels, reduction="none") * counts).sum()]))
        return torch.stack(scores)

    run = torch.compile(score, fullgraph=True, dynamic=False) if compile else score

    @torch.no_grad()
    def tester(weights: Weights) -> Tensor:
        total = torch.zeros(len(norms), 2, device=device)
        for start in range(0, n, batch):
            rows = torch.arange(start, start + batch, device=device)
            total += run(weights, rows.clamp(max=n - 1), (rows < n).float())
        return total

    return tester


def read_tests(scores: Tensor, n: int) -> list[Test]:
    """Copy the scores to the host."""
    return [Test(100.0 * right / n, loss / n) for right, loss in scores.double().cpu().tolist()]


def norms_for_test(card: Card, device: torch.device) -> dict[str, Normalize]:
    """Test images are normalized as in training, and as in the released code."""
    return {
        "train_norm": Normalize(card.train_mean, card.train_std, device),
        "authors_norm": Normalize(card.test_mean, card.test_std, device),
    }


def model_facts(config: Config, card: Card) -> dict[str, Any]:
    """What the user of a trained model must know: its classes, and how an image becomes its input."""
    is_released = headline_norm(config) == "authors_norm"
    mean, std = (card.test_mean, card.test_std) if is_released else (card.train_mean, card.train_std)
    return {
        "method": config.method.name,
        "classes": list(card.class_names),
        "size": card.size,
        "channels": card.channels,
        "mean": list(mean),
        "std": list(std),
    }


def headline_norm(config: Config) -> str:
    """The normalization whose accuracy is the result."""
    return "authors_norm" if config.protocol == "authors" else "train_norm"
