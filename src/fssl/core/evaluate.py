"""The test: the quality of a model's answers on the test images, under each normalization."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..augment.policies import Normalize
from ..config import Config
from ..data.cards import Card
from ..models import Net
from ..probes.host import Answers, Groups, read_answers
from ..probes.measures import auroc, sums
from ..types import Weights

NO_GROUPS: Groups = {}


class TestPool(NamedTuple):
    images: Tensor  # [N, H, W, C] uint8
    labels: Tensor


class Test(NamedTuple):
    """The measures of a test, rates in percent; AUROC is None if all images belong to one class."""

    accuracy: float
    loss: float
    balanced_accuracy: float | None = None
    macro_f1: float | None = None
    auroc: float | None = None
    ece: float | None = None
    of_tail: Mapping[str, float | None] = {}

    def facts(self) -> dict[str, float | None]:
        """All measures by the names that records use."""
        return {name: value for name, value in self._asdict().items() if name != "of_tail"} | {**self.of_tail}


class Tested(NamedTuple):
    """The full result of a test: answers and mean loss."""

    answers: Answers
    loss: float
    groups: Groups = NO_GROUPS

    @property
    def numbers(self) -> Test:
        of = self.answers
        tail = {"geometric_mean": of.geometric_mean, **of.by_group(self.groups)} if self.groups else {}
        return Test(of.accuracy, self.loss, of.balanced_accuracy, of.macro_f1, of.auroc, of.ece, tail)


# -> [norms, sums]: the loss, `measures.sums`, the area of each class; still on the device
Tester = Callable[[Weights], Tensor]


# A batch's scores (the loss, `measures.sums`) and probabilities, from inputs, labels, and which of them count
ScoreBatch = Callable[[Weights, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


BATCH = {"cuda": 1000, "cpu": 100}  # measured: small batches make a CPU a third faster


def make_score(net: Net) -> ScoreBatch:
    """Return the function that scores a model on one batch."""

    def score(weights: Weights, inputs: Tensor, labels: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        logits = net.infer(weights, inputs).logits
        loss = (F.cross_entropy(logits, labels, reduction="none") * counts).sum()
        p = logits.softmax(-1)
        return torch.cat([loss.reshape(1), sums(p, logits.argmax(-1), labels, counts)]), p

    return score


def make_tester(score: ScoreBatch, pool: TestPool, norms: Sequence[Normalize]) -> Tester:
    """Return a test in batches of one fixed size; the last one is padded with images that do not count.

    Nothing is copied to the host: sums are added up on the device, and areas are computed there from all sorted
    probabilities. A repeated normalization is computed once.
    """
    n, device, different = len(pool.labels), pool.labels.device, list(dict.fromkeys(norms))
    batch = min(BATCH[device.type], n)

    @torch.no_grad()
    def tester(weights: Weights) -> Tensor:
        total, said = torch.zeros(()), []
        for start in range(0, n, batch):
            rows = torch.arange(start, start + batch, device=device)
            images, labels = (of[rows.clamp(max=n - 1)] for of in pool)
            parts = [score(weights, normalize(images), labels, (rows < n).float()) for normalize in different]
            scores, p = map(torch.stack, zip(*parts, strict=True))
            total = scores if start == 0 else total + scores
            said.append(p)
        areas = auroc(torch.cat(said, 1)[:, :n], pool.labels)
        found = torch.cat([total.double(), areas], 1)
        return torch.stack([found[different.index(normalize)] for normalize in norms])

    return tester


def read_tested(scores: Tensor, num_classes: int, groups: Groups = NO_GROUPS) -> list[Tested]:
    """Copy a tester's result to the host; return one entry per normalization."""
    numbers = scores.cpu().numpy()
    both = [(read_answers(row[1:], num_classes), float(row[0])) for row in numbers]
    return [Tested(answers, loss / int(answers.confusion.sum()), groups) for answers, loss in both]


def read_tests(scores: Tensor, num_classes: int, groups: Groups = NO_GROUPS) -> list[Test]:
    """Return the numbers of a tester's result."""
    return [tested.numbers for tested in read_tested(scores, num_classes, groups)]


def norms_for_test(card: Card, device: torch.device) -> dict[str, Normalize]:
    """Return the normalizations of test images: as in training, and as in the released code; one object if equal."""
    ours, theirs = (card.train_mean, card.train_std), (card.test_mean, card.test_std)
    train_norm = Normalize(*ours, device)
    return {"train_norm": train_norm, "authors_norm": train_norm if theirs == ours else Normalize(*theirs, device)}


def model_facts(config: Config, card: Card) -> dict[str, Any]:
    """Return the facts that users of a trained model need: its classes, and how an image becomes its input."""
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
    """Return the normalization whose accuracy is the result."""
    return "authors_norm" if config.protocol == "authors" else "train_norm"
