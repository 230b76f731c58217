"""SAGE, FixMatch and FlexMatch in plain PyTorch, written from their equations alone.

A second opinion on the package: this file imports nothing of it and shares no line with it. It is slow on purpose:
ordinary modules and `torch.optim.SGD`, one client after another, and labels and losses for one image at a time. Images
arrive as ready views; everything after that is here: network, labels, losses, SGD, momentum and the server's mean.
"""

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Batch:
    """The images of one step: normalized views, classes of the labeled ones, places of the others in the pool."""

    labeled: Tensor  # [B_s, 3, H, W], weak views
    classes: list[int]
    weak: Tensor  # [B_u, 3, H, W]
    strong: Tensor  # the same images
    slots: list[int]
    labeled_strong: Tensor | None = None  # for methods that ask for it
    is_last_epoch: bool = True


@dataclass
class Visit:
    """One client's part in a round."""

    client: int
    labeled: int  # images with a label
    pool: int  # all its images: the labeled ones are in the pool too
    batches: list[Batch]
    sweep: Tensor | None = None  # a weak view of each image of the pool, for methods that label it beforehand


@dataclass(frozen=True)
class Settings:
    method: str  # sage, fixmatch-lpl, fixmatch-gpl or flexmatch
    protocol: str  # clean or authors
    tau: float
    kappa: float
    mu_u: float
    lr: float
    momentum: float
    weight_decay: float


@dataclass
class Vote:
    """What two models make of one unlabeled image."""

    c_l: float
    a_l: int
    c_g: float
    a_g: int


@dataclass
class Label:
    target: Tensor  # [C]
    used: bool
    lam: float  # SAGE's λ


@dataclass
class Step:
    """What a step leaves behind."""

    round: int
    client: int
    l_s: float
    l_u: float
    votes: list[Vote]
    labels: list[Label]


@dataclass
class Round:
    """What a round leaves behind: the new broadcast model, and FlexMatch's table of each client."""

    model: nn.Module
    tables: dict[int, list[int]]


# The network: a residual net of 6n + 2 layers with n = 1


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


class ResNet8(nn.Module):
    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        w = 16 * width
        self.conv1 = nn.Conv2d(3, w, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(w)
        self.layer1 = Block(w, w, 1)
        self.layer2 = Block(w, 2 * w, 2)
        self.layer3 = Block(2 * w, 4 * w, 2)
        self.fc = nn.Linear(4 * w, classes)

    def features(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        return self.layer3(self.layer2(self.layer1(x))).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))


# Labels, one image at a time


def is_sure(confidence: float, tau: float) -> bool:
    return confidence >= tau


def vote(p_l: Tensor, p_g: Tensor) -> Vote:
    return Vote(p_l.max().item(), int(p_l.argmax()), p_g.max().item(), int(p_g.argmax()))


def one_hot(a: int, classes: int) -> Tensor:
    delta = torch.zeros(classes, dtype=torch.float64)
    delta[a] = 1
    return delta


def weight_of_local(v: Vote, kappa: float) -> float:
    """λ = exp(-κ ΔC), ΔC = |c_l - c_g|."""
    return math.exp(-kappa * abs(v.c_l - v.c_g))


def sage(v: Vote, classes: int, tau: float, kappa: float) -> Label:
    lam = weight_of_local(v, kappa)
    delta_l, delta_g = one_hot(v.a_l, classes), one_hot(v.a_g, classes)
    target = lam * delta_l + (1 - lam) * delta_g if is_sure(v.c_l, tau) else delta_g
    return Label(target, is_sure(v.c_l, tau) or is_sure(v.c_g, tau), lam)


def fixmatch_lpl(v: Vote, classes: int, tau: float) -> Label:
    return Label(one_hot(v.a_l, classes), is_sure(v.c_l, tau), math.nan)


def fixmatch_gpl(v: Vote, classes: int, tau: float) -> Label:
    return Label(one_hot(v.a_g, classes), is_sure(v.c_g, tau), math.nan)


def flexmatch(v: Vote, classes: int, thresholds: list[float]) -> Label:
    return Label(one_hot(v.a_l, classes), is_sure(v.c_l, thresholds[v.a_l]), math.nan)


def flex_thresholds(table: list[int], classes: int, tau: float) -> list[float]:
    """T_c = τ β_c / (2 - β_c), where β_c = σ_c / max(max σ, images without an entry)."""
    sigma = [table.count(c) for c in range(classes)]
    most = max(max(sigma), table.count(-1))
    beta = [s / most for s in sigma]
    return [tau * b / (2 - b) for b in beta]


def make_labels(votes: list[Vote], classes: int, table: list[int], settings: Settings) -> list[Label]:
    tau = settings.tau
    if settings.method == "sage":
        return [sage(v, classes, tau, settings.kappa) for v in votes]
    if settings.method == "fixmatch-lpl":
        return [fixmatch_lpl(v, classes, tau) for v in votes]
    if settings.method == "fixmatch-gpl":
        return [fixmatch_gpl(v, classes, tau) for v in votes]
    if settings.method == "flexmatch":
        thresholds = flex_thresholds(table, classes, tau)
        return [flexmatch(v, classes, thresholds) for v in votes]
    raise ValueError(settings.method)


def note_sure_labels(votes: list[Vote], slots: list[int], table: list[int], tau: float) -> None:
    """Write FlexMatch's entries, after the step's labels, where the fixed threshold is reached."""
    for v, slot in zip(votes, slots, strict=True):
        if is_sure(v.c_l, tau):
            table[slot] = v.a_l


# Losses


def supervised(logits: Tensor, classes: list[int]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for row, y in zip(logits, classes, strict=True):
        total = total - F.log_softmax(row, 0)[y]
    return total / len(classes)


def log_p(row: Tensor, settings: Settings) -> Tensor:
    """log p of one image; the released code adds a small number first."""
    return (row.softmax(0) + 1e-10).log() if settings.protocol == "authors" else F.log_softmax(row, 0)


def unsupervised(logits: Tensor, labels: list[Label], settings: Settings) -> Tensor:
    """Cross-entropy with the targets: images without a label add nothing but count in the mean."""
    total = torch.zeros((), dtype=torch.float64)
    for row, label in zip(logits, labels, strict=True):
        if label.used:
            total = total - (label.target * log_p(row, settings)).sum()
    return total / len(labels)


# Client and server


def ask_local(local: nn.Module, batch: Batch) -> list[Tensor]:
    """Logits of the three views: training mode, and one batch for BatchNorm."""
    local.train()
    views = [batch.labeled, batch.weak, batch.strong]
    return list(local(torch.cat(views)).split([len(view) for view in views]))


def ask_global(broadcast: nn.Module, weak: Tensor) -> Tensor:
    """p_g, by running statistics."""
    broadcast.eval()
    with torch.no_grad():
        return broadcast(weak).softmax(1)


def local_step(
    local: nn.Module, broadcast: nn.Module, sgd: torch.optim.SGD, batch: Batch, table: list[int], settings: Settings
) -> tuple[float, float, list[Vote], list[Label]]:
    of_labeled, of_weak, of_strong = ask_local(local, batch)
    p_l, p_g = of_weak.detach().softmax(1), ask_global(broadcast, batch.weak)
    votes = [vote(a, b) for a, b in zip(p_l, p_g, strict=True)]
    labels = make_labels(votes, p_l.shape[1], table, settings)
    note_sure_labels(votes, batch.slots, table, settings.tau)
    l_s, l_u = supervised(of_labeled, batch.classes), unsupervised(of_strong, labels, settings)
    sgd.zero_grad()
    (l_s + settings.mu_u * l_u).backward()
    sgd.step()
    return l_s.item(), l_u.item(), votes, labels


def make_sgd(model: nn.Module, settings: Settings) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), settings.lr, settings.momentum, weight_decay=settings.weight_decay)


def carries_momentum(settings: Settings) -> bool:
    """The released code has one optimizer for all clients and rounds, and never clears it."""
    return settings.protocol == "authors"


def size(visit: Visit, settings: Settings) -> int:
    """Weight in the mean; the released code's list of labeled images counts with its 2000 copies."""
    return visit.pool + 2000 * visit.labeled if settings.protocol == "authors" else visit.pool


def mean(states: list[dict[str, Tensor]], weights: list[int]) -> dict[str, Tensor]:
    """Of parameters and running statistics; BatchNorm's counters of batches play no part."""
    names = [name for name, tensor in states[0].items() if tensor.is_floating_point()]
    return {n: sum(w * s[n] for s, w in zip(states, weights, strict=True)) / sum(weights) for n in names}


def accuracy(model: nn.Module, images: Tensor, classes: list[int]) -> float:
    """Percent of images whose likeliest class is right, by running statistics."""
    model.eval()
    with torch.no_grad():
        answers = model(images).argmax(1).tolist()
    return 100 * sum(a == y for a, y in zip(answers, classes, strict=True)) / len(classes)


def train(model: nn.Module, rounds: list[list[Visit]], settings: Settings) -> Iterator[Step | Round]:
    """Each step as it is made, and the broadcast model after each round. Trains `model` itself."""
    local, sgd = model, make_sgd(model, settings)
    broadcast = deepcopy(model)
    tables = {visit.client: [-1] * visit.pool for visits in rounds for visit in visits}
    for number, visits in enumerate(rounds, 1):
        uploads = []
        for visit in visits:
            local.load_state_dict(broadcast.state_dict())
            if not carries_momentum(settings):
                sgd = make_sgd(local, settings)
            for batch in visit.batches:
                done = local_step(local, broadcast, sgd, batch, tables[visit.client], settings)
                yield Step(number, visit.client, *done)
            uploads.append(deepcopy(local.state_dict()))
        new = mean(uploads, [size(visit, settings) for visit in visits])
        broadcast.load_state_dict(new, strict=False)
        yield Round(deepcopy(broadcast), deepcopy(tables))
