"""More methods in plain PyTorch, from their equations and pages: FreeMatch, FedProx, FedLabel, FedDB and others.

As `plain.py`, it takes nothing of the package and is slow on purpose. `FixMatch` is a round of FixMatch-LPL and FedAvg,
or of SAGE's labels; each other class has what its method does instead.
"""

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import plain
import torch
import torch.nn.functional as F
from plain import Batch, Label, Visit, Vote, one_hot
from torch import Tensor, nn

State = dict[str, Tensor]


@dataclass
class Step:
    shown: dict[str, Any]  # by the names of the engine's traces


@dataclass
class Round:
    """What a round leaves behind: the tested model, and what else the server holds."""

    model: nn.Module
    server: State


def entropy(p: Tensor) -> Tensor:
    """Of each row, in nats."""
    return -torch.xlogy(p, p).sum(-1)


def kl(p: Tensor, logits: Tensor) -> Tensor:
    """KL(p || softmax(logits)) of each row."""
    return -entropy(p) - (p * logits.log_softmax(-1)).sum(-1)


def normalized(p: Tensor) -> Tensor:
    return p / p.sum(-1, keepdim=True)


def state_of(model: nn.Module) -> State:
    """Parameters and running statistics, without BatchNorm's counters of batches."""
    return {name: t.detach().clone() for name, t in model.state_dict().items() if t.is_floating_point()}


def ask(model: nn.Module, views: list[Tensor], passes: str) -> list[Tensor]:
    """Logits in training mode: one batch for BatchNorm, or one for each view."""
    model.train()
    if passes == "separate":
        return [model(view) for view in views]
    return list(model(torch.cat(views)).split([len(view) for view in views]))


def descend(loss: Tensor, *optimizers: torch.optim.SGD) -> None:
    for sgd in optimizers:
        sgd.zero_grad()
    loss.backward()
    for sgd in optimizers:
        sgd.step()


class FixMatch:
    def __init__(self, model: nn.Module, settings: plain.Settings, sage: bool, numbers: dict[str, Any]) -> None:
        self.broadcast, self.settings, self.sage = model, settings, sage
        self.numbers = SimpleNamespace(**numbers)  # settings of this method alone
        self.classes, self.round = model.fc.out_features, 0
        self.clients: dict[int, Any] = {}  # what stays with a client
        self.local = deepcopy(model)
        self.sgd = plain.make_sgd(self.local, settings)

    def train(self, rounds: list[list[Visit]]) -> Iterator[Step | Round]:
        for visits in rounds:
            self.round += 1
            uploads = []
            for visit in visits:
                self.begin(visit)
                for batch in visit.batches:
                    yield Step(self.step(batch))
                uploads.append(self.upload(visit))
            self.aggregate(visits, uploads)
            yield Round(deepcopy(self.deployed()), self.server())

    def begin(self, visit: Visit) -> None:
        self.local.load_state_dict(self.broadcast.state_dict())
        if not plain.carries_momentum(self.settings):
            self.sgd = plain.make_sgd(self.local, self.settings)

    def upload(self, visit: Visit) -> Any:
        return state_of(self.local)

    def aggregate(self, visits: list[Visit], uploads: list[Any]) -> None:
        self.take(plain.mean(uploads, [plain.size(visit, self.settings) for visit in visits]))

    def take(self, mean: State) -> None:
        self.broadcast.load_state_dict(mean, strict=False)

    def deployed(self) -> nn.Module:
        return self.broadcast

    def server(self) -> State:
        return {}

    def step(self, batch: Batch) -> dict[str, Any]:
        of_labeled, of_weak, of_strong = self.ask_local(batch)
        p_l, p_g = self.predictions(batch, of_weak.detach().softmax(1))
        labels = self.labels(p_l, p_g)
        l_s = self.supervised(of_labeled, batch.classes)
        l_u = self.unsupervised(of_strong, labels)
        further = self.further(batch, of_strong, labels, p_l, p_g)
        descend(l_s + self.settings.mu_u * l_u + sum(further.values()), self.sgd)
        return {**shown(p_l, p_g, labels), "l_s": l_s, "l_u": l_u, **further}

    def ask_local(self, batch: Batch) -> list[Tensor]:
        return plain.ask_local(self.local, batch)

    def predictions(self, batch: Batch, p_l: Tensor) -> tuple[Tensor, Tensor]:
        return p_l, plain.ask_global(self.broadcast, batch.weak)

    def labels(self, p_l: Tensor, p_g: Tensor) -> list[Label]:
        thresholds = self.thresholds(p_l)
        rule = self.sage_label if self.sage else self.label
        return [rule(plain.vote(a, b), thresholds, a, b) for a, b in zip(p_l, p_g, strict=True)]

    def thresholds(self, p_l: Tensor) -> list[float]:
        """One for each class."""
        return [self.settings.tau] * self.classes

    def label(self, v: Vote, thresholds: list[float], p_l: Tensor, p_g: Tensor) -> Label:
        return Label(one_hot(v.a_l, self.classes), v.c_l >= thresholds[v.a_l], 1)

    def sage_label(self, v: Vote, thresholds: list[float], p_l: Tensor, p_g: Tensor) -> Label:
        sure_l, sure_g = v.c_l >= thresholds[v.a_l], v.c_g >= thresholds[v.a_g]
        lam = plain.weight_of_local(v, self.settings.kappa) if sure_l else 0.0
        target = lam * one_hot(v.a_l, self.classes) + (1 - lam) * one_hot(v.a_g, self.classes)
        return Label(target, sure_l or sure_g, lam)

    def further(self, batch: Batch, of_strong: Tensor, labels: list[Label], p_l: Tensor, p_g: Tensor) -> State:
        """Other terms of the loss, with their weights."""
        return {}

    def supervised(self, of_labeled: Tensor, classes: Any) -> Tensor:
        return plain.supervised(of_labeled, classes)

    def unsupervised(self, of_strong: Tensor, labels: list[Label]) -> Tensor:
        return plain.unsupervised(of_strong, labels, self.settings)


def shown(p_l: Tensor, p_g: Tensor, labels: list[Label]) -> dict[str, Any]:
    targets, used = torch.stack([label.target for label in labels]), [label.used for label in labels]
    return {"p_l": p_l, "p_g": p_g, "target": targets, "mask": used}


class UDA(FixMatch):
    """Votes p^(1/T), normalized; in the labeled loss only images whose class has no more than a limit that grows."""

    def sharp(self, p: Tensor) -> Tensor:
        return normalized((p ** (1 / self.numbers.temperature)).unsqueeze(0))[0]

    def label(self, v: Vote, thresholds: list[float], p_l: Tensor, p_g: Tensor) -> Label:
        return Label(self.sharp(p_l), v.c_l >= thresholds[v.a_l], 1)

    def sage_label(self, v: Vote, thresholds: list[float], p_l: Tensor, p_g: Tensor) -> Label:
        hard = super().sage_label(v, thresholds, p_l, p_g)
        lam = hard.lam
        return Label(lam * self.sharp(p_l) + (1 - lam) * self.sharp(p_g), hard.used, lam)

    def supervised(self, of_labeled: Tensor, classes: Any) -> Tensor:
        if self.numbers.tsa == "none":
            return super().supervised(of_labeled, classes)
        grown = math.exp(5 * ((self.round - 1) / self.numbers.tsa_rounds - 1))
        limit = grown + (1 - grown) / self.classes
        rows = [z.log_softmax(0)[y] for z, y in zip(of_labeled, classes, strict=True)]
        kept = [-row for row in rows if row.exp() <= limit]
        return torch.stack(kept).mean() if kept else 0 * of_labeled.sum()


class FedProx(FixMatch):
    """μ/2 ||θ - θ_g||² over parameters."""

    def further(self, *_: Any) -> State:
        pairs = zip(self.local.parameters(), self.broadcast.parameters(), strict=True)
        return {"prox": self.numbers.mu_prox / 2 * sum(((a - b.detach()) ** 2).sum() for a, b in pairs)}


class FreeMatch(FixMatch):
    """Thresholds from running means that stay with the client, and the fairness term L_f."""

    def begin(self, visit: Visit) -> None:
        super().begin(visit)
        even = torch.full((self.classes,), 1 / self.classes, dtype=torch.float64)
        self.means = self.clients.setdefault(visit.client, SimpleNamespace(tau=1 / self.classes, p=even, h=even))

    def thresholds(self, p_l: Tensor) -> list[float]:
        means, beta = self.means, self.numbers.ema
        means.tau = beta * means.tau + (1 - beta) * p_l.max(1).values.mean().item()
        means.p = beta * means.p + (1 - beta) * p_l.mean(0)
        means.h = beta * means.h + (1 - beta) * self.shares(p_l)
        found = means.tau * means.p / means.p.max()
        return found.clamp(self.numbers.lowest, self.numbers.highest).tolist()

    def further(self, batch: Batch, of_strong: Tensor, labels: list[Label], *_: Any) -> State:
        p = of_strong.softmax(1)[[label.used for label in labels]]
        wanted = self.ratio(self.means.p, self.means.h)
        given = self.ratio(p.mean(0), self.shares(p)) if len(p) else wanted * 0 + 1  # nothing used: L_f = 0
        return {"l_f": self.numbers.saf * (wanted * (given + 1e-12 * bool(len(p))).log()).sum()}

    def shares(self, p: Tensor) -> Tensor:
        """How often each class is the likeliest."""
        return torch.stack([one_hot(int(a), self.classes) for a in p.argmax(1)]).mean(0)

    @staticmethod
    def ratio(p: Tensor, h: Tensor) -> Tensor:
        """N(p / h); a class without votes counts as 0."""
        return normalized(torch.stack([a / b if b > 0 else a * 0 for a, b in zip(p, h, strict=True)]))


class SoftMatch(FixMatch):
    """Every label counts, less by a Gaussian below the mean confidence of predictions divided by their mean."""

    def begin(self, visit: Visit) -> None:
        super().begin(visit)
        self.means = self.clients.setdefault(visit.client, SimpleNamespace(p=None, mu=1 / self.classes, var=1.0))

    def labels(self, p_l: Tensor, p_g: Tensor) -> list[Label]:
        means, new, old = self.means, 1 - self.numbers.ema, self.numbers.ema
        means.p = p_l.mean(0) if means.p is None else old * means.p + new * p_l.mean(0)
        confidences = torch.tensor([self.confidence(p) for p in p_l], dtype=torch.float64)
        means.mu = old * means.mu + new * confidences.mean().item()
        means.var = old * means.var + new * confidences.var().item()
        made = []
        for a, b in zip(p_l, p_g, strict=True):
            v, c_l, c_g = plain.vote(a, b), self.confidence(a), self.confidence(b)
            if self.sage:
                lam = plain.weight_of_local(v, self.settings.kappa) if c_l >= means.mu else 0.0
                target = lam * one_hot(v.a_l, self.classes) + (1 - lam) * one_hot(v.a_g, self.classes)
                made.append(Label(target, max(self.weight(c_l), self.weight(c_g)), lam))
            else:
                made.append(Label(one_hot(v.a_l, self.classes), self.weight(c_l), 1))
        return made

    def confidence(self, p: Tensor) -> float:
        return normalized(p * (1 / self.classes + 1e-6) / (self.means.p + 1e-6)).max().item()

    def weight(self, c: float) -> float:
        sigma2 = self.means.var / self.numbers.n_sigma**2
        return math.exp(-(min(c - self.means.mu, 0) ** 2) / (2 * sigma2))

    def unsupervised(self, of_strong: Tensor, labels: list[Label]) -> Tensor:
        rows = zip(of_strong, labels, strict=True)
        each = [label.used * plain.unsupervised(row[None], [label], self.settings) for row, label in rows]
        return torch.stack(each).mean()


class AdaMatch(FixMatch):
    """Predictions scaled by the ratio of two running means, and a threshold relative to the labeled batch's mean."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.even = torch.full((self.classes,), 1 / self.classes, dtype=torch.float64)
        self.shared_px, self.shared_c = self.even, 1.0

    def begin(self, visit: Visit) -> None:
        super().begin(visit)
        self.means = self.clients.setdefault(visit.client, SimpleNamespace(x=self.even, u=None))
        self.knows, self.seen = visit.labeled > 0, []

    def ask_local(self, batch: Batch) -> list[Tensor]:
        views = [batch.labeled, batch.labeled_strong] if self.numbers.strong_labels else [batch.labeled]
        *of_labeled, of_weak, of_strong = ask(self.local, [*views, batch.weak, batch.strong], "joint")
        p_x = of_labeled[0].detach().softmax(1)
        self.seen.append(p_x.max(1).values.mean().item())
        old = self.numbers.ema
        self.means.x = old * self.means.x + (1 - old) * p_x.mean(0) if self.knows else self.shared_px
        self.cut = self.settings.tau * (self.seen[-1] if self.knows else self.shared_c)
        return [torch.cat(of_labeled), of_weak, of_strong]

    def supervised(self, of_labeled: Tensor, classes: Any) -> Tensor:
        return plain.supervised(of_labeled, list(classes) * (len(of_labeled) // len(classes)))

    def predictions(self, batch: Batch, p_l: Tensor) -> tuple[Tensor, Tensor]:
        p_l, p_g = super().predictions(batch, p_l)
        old = self.numbers.ema
        self.means.u = p_l.mean(0) if self.means.u is None else old * self.means.u + (1 - old) * p_l.mean(0)
        ratio = (self.means.x + 1e-6) / (self.means.u + 1e-6)
        return normalized(p_l * ratio), normalized(p_g * ratio)

    def thresholds(self, p_l: Tensor) -> list[float]:
        return [self.cut] * self.classes

    def upload(self, visit: Visit) -> Any:
        return state_of(self.local), self.means.x, sum(self.seen) / len(self.seen), visit.labeled

    def aggregate(self, visits: list[Visit], uploads: list[Any]) -> None:
        states, x, c, n = zip(*uploads, strict=True)
        super().aggregate(visits, list(states))
        self.shared_px = sum(w * t for w, t in zip(n, x, strict=True)) / sum(n)
        self.shared_c = sum(w * t for w, t in zip(n, c, strict=True)) / sum(n)

    def server(self) -> State:
        return {
            "ada.shared.px": self.shared_px,
            "ada.shared.confidence": torch.tensor(self.shared_c, dtype=torch.float64),
        }


class OfTwoKinds(FixMatch):
    """Clients know all labels of theirs or none, and are shown as many images of one kind as of the other."""

    rate = 1.0  # of clients without labels

    def begin(self, visit: Visit) -> None:
        super().begin(visit)
        self.knows = visit.labeled > 0
        for group in self.sgd.param_groups:
            group["lr"] = self.settings.lr * (1 if self.knows else self.rate)

    def shown_views(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return (batch.labeled, batch.labeled_strong) if self.knows else (batch.weak, batch.strong)

    def mean_ce(self, logits: Tensor, targets: list[int], used: list[bool]) -> Tensor:
        rows = [row.log_softmax(0)[y] * u for row, y, u in zip(logits, targets, used, strict=True)]
        return -torch.stack(rows).mean()

    def take_mean(self, pairs: list[tuple[State, float]]) -> State:
        total = sum(w for _, w in pairs)
        return {name: sum(w * state[name] for state, w in pairs) / total for name in pairs[0][0]}


class SemiAnAgg(OfTwoKinds):
    """Labels of the broadcast model; clients without labels weigh by how unlike a random network it sees images."""

    rate = 2 / 3

    def begin(self, visit: Visit) -> None:
        super().begin(visit)
        self.table = [-1] * visit.pool
        self.cosines: dict[int, list[float]] = {c: [] for c in range(self.classes)}

    def step(self, batch: Batch) -> dict[str, Any]:
        self.broadcast.eval()
        with torch.no_grad():
            feature = self.broadcast.features(batch.weak)
            p = self.broadcast.fc(feature).softmax(1)
            alike = F.cosine_similarity(feature, self.numbers.anchor.features(batch.weak)).tolist()
        (confidences, votes), tau = (t.tolist() for t in p.max(1)), self.settings.tau
        most = max(*(self.table.count(c) for c in range(self.classes)), self.table.count(-1))
        beta = [self.table.count(c) / most for c in range(self.classes)]
        used = [not self.knows and c >= tau * beta[a] / (2 - beta[a]) for c, a in zip(confidences, votes, strict=True)]
        weak, strong = self.shown_views(batch)
        self.local.train()
        of_weak, of_strong = self.local(weak), self.local(strong)
        zero = torch.zeros((), dtype=torch.float64)
        l_u = zero if self.knows else self.mean_ce(of_strong, votes, used)
        both = plain.supervised(of_weak, batch.classes) + plain.supervised(of_strong, batch.classes)
        l_s = both / 2 if self.knows else zero
        descend(l_s if self.knows else l_u, self.sgd)
        if not self.knows:
            for c, a, s, slot in zip(confidences, votes, alike, batch.slots, strict=True):
                if c >= tau:
                    self.table[slot] = a
                    self.cosines[a].append(s)
        target = torch.stack([one_hot(a, self.classes) for a in votes])
        return {"p_l": p, "target": target, "mask": used, "l_s": l_s, "l_u": l_u}

    def upload(self, visit: Visit) -> Any:
        likeness = [sum(s) / len(s) if s else 1.0 for s in self.cosines.values()]
        number = sum(map(len, self.cosines.values()))
        return SimpleNamespace(state=state_of(self.local), knows=self.knows, s=likeness, number=number, pool=visit.pool)

    def aggregate(self, visits: list[Visit], uploads: list[Any]) -> None:
        known, others = [u for u in uploads if u.knows], [u for u in uploads if not u.knows]
        halves = [self.take_mean([(u.state, u.pool) for u in known])] if known else []
        if sum(u.number for u in others):
            totals = [sum(u.s[c] for u in others) for c in range(self.classes)]
            a = [sum(1 - u.s[c] / totals[c] for c in range(self.classes)) for u in others]
            a = a if len(a) > 1 else [1.0]
            halves.append(self.take_mean([(u.state, w) for u, w in zip(others, a, strict=True)]))
        self.take(self.take_mean([(half, 0.5) for half in halves]))


class TwinSight(OfTwoKinds):
    """A second network without a last layer, with a projector; both are averaged."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.twin, self.projector = self.numbers.twin, self.numbers.projector
        self.sent = [state_of(self.twin), state_of(self.projector)]
        self.twin_sgd = self.fresh()

    def fresh(self) -> torch.optim.SGD:
        s, body = self.settings, [p for name, p in self.twin.named_parameters() if not name.startswith("fc")]
        trained = [*body, *self.projector.parameters()]
        return torch.optim.SGD(trained, s.lr, s.momentum, weight_decay=s.weight_decay)

    def begin(self, visit: Visit) -> None:
        super().begin(visit)
        for module, state in zip((self.twin, self.projector), self.sent, strict=True):
            module.load_state_dict(state, strict=False)
        if not plain.carries_momentum(self.settings):
            self.twin_sgd = self.fresh()
        self.tau, even = 1 / self.classes, torch.full((self.classes,), 1 / self.classes, dtype=torch.float64)
        self.mean_p = even

    def step(self, batch: Batch) -> dict[str, Any]:
        weak, strong = self.shown_views(batch)
        count, n = len(weak), self.numbers
        self.local.train(), self.twin.train(), self.projector.train()
        f_s, f_u = (model.features(torch.cat([weak, strong])) for model in (self.local, self.twin))
        of_weak, of_strong = self.local.fc(f_s).split(count)
        p = of_strong.detach().softmax(1)
        self.tau = 0.999 * self.tau + 0.001 * p.max(1).values.mean().item()
        self.mean_p = 0.999 * self.mean_p + 0.001 * p.mean(0)
        limits = (self.tau * self.mean_p / self.mean_p.max()).tolist()
        votes = p.argmax(1).tolist()
        used = [not self.knows and row.max().item() >= limits[a] for row, a in zip(p, votes, strict=True)]
        zero = torch.zeros((), dtype=torch.float64)
        l_s = plain.supervised(of_weak, batch.classes) if self.knows else zero
        l_u = zero if self.knows else self.mean_ce(of_weak, votes, used)
        rows = F.normalize(self.projector(f_u), dim=1)
        terms = []
        for i in range(2 * count):
            others = torch.stack([rows[i] @ rows[j] for j in range(2 * count) if j != i]) / n.temperature
            terms.append(others.logsumexp(0) - rows[i] @ rows[(i + count) % (2 * count)] / n.temperature)
        g_u, g_s = (F.normalize(f[:count], dim=1) for f in (f_u, f_s))
        l_n = ((g_u @ g_u.T - g_s @ g_s.T) ** 2).sum() / (count**2 if n.scale == "mean" else count ^ 2)
        l_i = sum(terms) / len(terms)
        descend(l_s + n.pseudo * l_u + n.contrast * l_i + n.neighbors * l_n, self.sgd, self.twin_sgd)
        target = torch.stack([one_hot(a, self.classes) for a in votes])
        return {"p_l": p, "target": target, "mask": used, "l_s": l_s, "l_u": l_u, "l_i": l_i, "l_n": l_n}

    def upload(self, visit: Visit) -> Any:
        return visit.pool + (2000 * visit.labeled if self.settings.protocol == "authors" else 0), [
            state_of(module) for module in (self.local, self.twin, self.projector)
        ]

    def aggregate(self, visits: list[Visit], uploads: list[Any]) -> None:
        means = [self.take_mean([(states[i], w) for w, states in uploads]) for i in range(3)]
        self.take(means[0])
        self.sent = means[1:]

    def server(self) -> State:
        own = {name: t for name, t in self.sent[0].items() if not name.startswith("fc")}
        return {f"twin.{name}": t for name, t in own.items()} | {
            f"twin.project.{name}": t for name, t in self.sent[1].items() if "running" not in name
        }


class CDMAD(FixMatch):
    """Both models' predictions lose those for an image of ones after some rounds, and the deployed model always."""

    def step(self, batch: Batch) -> dict[str, Any]:
        self.bias = self.blank(self.local, batch.weak)  # before the step moves the running statistics
        return super().step(batch)

    def blank(self, model: nn.Module, like: Tensor) -> Tensor:
        model.eval()
        with torch.no_grad():
            return model(torch.ones_like(like[:1]))[0]

    def predictions(self, batch: Batch, p_l: Tensor) -> tuple[Tensor, Tensor]:
        p_l, p_g = super().predictions(batch, p_l)
        if self.round <= self.numbers.start_rounds:
            return p_l, p_g
        bias_g = self.blank(self.broadcast, batch.weak)
        return (p_l.log() - self.bias).softmax(1), (p_g.log() - bias_g).softmax(1)

    def deployed(self) -> nn.Module:
        model = deepcopy(self.broadcast)
        model.fc.bias.data -= self.blank(model, torch.ones(1, 3, 8, 8, dtype=torch.float64))
        return model


class FedLabel(FixMatch):
    """The label of the model with the more peaked prediction, and a pull towards the other one."""

    def label(self, v: Vote, thresholds: list[float], p_l: Tensor, p_g: Tensor) -> Label:
        a, c = (v.a_l, v.c_l) if p_l.var() > p_g.var() else (v.a_g, v.c_g)
        return Label(one_hot(a, self.classes), c >= thresholds[a], 1)

    def further(self, batch: Batch, of_strong: Tensor, labels: list[Label], p_l: Tensor, p_g: Tensor) -> State:
        total = torch.zeros((), dtype=torch.float64)
        for i in agreeing(labels, p_l, p_g):
            loser, winner = sorted((p_g[i], p_l[i]), key=lambda p: p.var())
            total = total + loser.var() / winner.var() * kl(loser, of_strong[i])
        return {"l_kl": self.settings.mu_u * self.numbers.kl_weight * total / len(labels)}


def agreeing(labels: list[Label], p_l: Tensor, p_g: Tensor) -> list[int]:
    """Accepted images of which both models say the same."""
    return [i for i, label in enumerate(labels) if label.used and p_l[i].argmax() == p_g[i].argmax()]


class FedDB(FixMatch):
    """Labels of a sweep before training, divided by its mean; the server weighs clients by their priors."""

    def begin(self, visit: Visit) -> None:
        super().begin(visit)
        p = plain.ask_global(self.broadcast, visit.sweep)
        self.prior = p.mean(0)
        self.table = normalized(p / self.prior)

    def ask_local(self, batch: Batch) -> list[Tensor]:
        return ask(self.local, [batch.labeled, batch.weak, batch.strong], self.numbers.passes)

    def predictions(self, batch: Batch, p_l: Tensor) -> tuple[Tensor, Tensor]:
        debiased, ema = normalized(p_l / self.prior), self.numbers.ema
        self.prior = ema * self.prior + (1 - ema) * p_l.mean(0)
        return debiased, self.table[batch.slots]

    def label(self, v: Vote, thresholds: list[float], p_l: Tensor, p_g: Tensor) -> Label:
        if self.numbers.online:
            return super().label(v, thresholds, p_l, p_g)
        return plain.fixmatch_gpl(v, self.classes, self.settings.tau)

    def upload(self, visit: Visit) -> Any:
        return state_of(self.local), self.prior

    def aggregate(self, visits: list[Visit], uploads: list[Any]) -> None:
        states, priors = zip(*uploads, strict=True)
        if self.numbers.dma == "off":
            super().aggregate(visits, list(states))
        else:
            self.take(plain.mean(list(states), released_weights(torch.stack(priors))))


def released_weights(priors: Tensor) -> list[float]:
    """100 times a step of a new SGD on the mean squared error of the mixed prior to an even one, then a softmax."""
    clients, classes = priors.shape
    a = torch.full((clients,), 1 / clients, dtype=torch.float64)
    for _ in range(100):
        sgd = torch.optim.SGD([a.requires_grad_()], 1.0, 0.9, nesterov=True, weight_decay=0.9)
        descend(((a @ priors - 1 / classes) ** 2).mean(), sgd)
        a = a.detach().softmax(0)
    return a.tolist()


class ProxyFL(FixMatch):
    """Global labels where either model is sure, the contrast L_c, and tuning. The model has two more linear layers."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.prior = torch.full((self.classes,), 1 / self.classes, dtype=torch.float64)

    def begin(self, visit: Visit) -> None:
        super().begin(visit)
        self.counts = torch.zeros(self.classes, dtype=torch.float64)

    def ask_local(self, batch: Batch) -> list[Tensor]:
        views = [batch.labeled, batch.weak, batch.strong]
        self.z = self.local.train().features(torch.cat(views))
        return list(self.local.fc(self.z).split([len(view) for view in views]))

    def label(self, v: Vote, thresholds: list[float], p_l: Tensor, p_g: Tensor) -> Label:
        return Label(one_hot(v.a_g, self.classes), max(v.c_l, v.c_g) >= self.settings.tau, 0)

    def further(self, batch: Batch, of_strong: Tensor, labels: list[Label], p_l: Tensor, p_g: Tensor) -> State:
        if batch.is_last_epoch:
            drawn = [*batch.classes, *(int(label.target.argmax()) for label in labels if label.used)]
            self.counts = self.counts + sum(one_hot(c, self.classes) for c in drawn)
        p_x, used = plain.ask_global(self.broadcast, batch.labeled), [label.used for label in labels]
        sure = [bool(c >= self.settings.tau) for c in p_x.max(1).values] + used + used
        f = F.normalize(self.local.feat_proj(self.z), dim=1)
        omega = F.normalize(self.local.proxy_proj(self.local.fc.weight), dim=1)
        sets = category_sets(torch.cat([p_x, p_g, p_g]), sure, self.prior)
        return {"l_c": self.numbers.beta * contrast(f, omega, sets, len(p_x))}

    def upload(self, visit: Visit) -> Any:
        return visit.client, state_of(self.local), self.counts

    def aggregate(self, visits: list[Visit], uploads: list[Any]) -> None:
        super().aggregate(visits, [state for _, state, _ in uploads])
        counts, n = sum(counts for _, _, counts in uploads), self.numbers
        self.prior = n.ema * self.prior + (1 - n.ema) * counts / counts.sum()
        rows = torch.cat([state["fc.weight"] for _, state, _ in sorted(uploads, key=lambda upload: upload[0])])
        mean = self.broadcast.fc.weight.detach()
        for order in n.orders[self.round - 1]:
            batches = [order[i : i + n.tuning_batch] for i in range(0, len(order), n.tuning_batch)]
            self.broadcast.fc.weight.data = tune(
                self.broadcast.fc.weight.data, rows, batches, margin(mean), n.tuning_lr
            )

    def server(self) -> State:
        return {"proxyfl.prior": self.prior}


def category_sets(p: Tensor, sure: list[bool], prior: Tensor) -> list[dict[int, Any]]:
    """The classes of each row, and how much each counts: the likeliest, or those likelier than the prior."""
    return [
        {int(row.argmax()): 1.0} if s else {c: row[c] for c in range(len(prior)) if row[c] > prior[c]}
        for row, s in zip(p, sure, strict=True)
    ]


def contrast(f: Tensor, omega: Tensor, sets: list[dict[int, Any]], labeled: int) -> Tensor:
    """L_c: each row after the labeled ones to its proxies, away from rows that share no class with it."""
    total = torch.zeros((), dtype=torch.float64)
    for i in range(labeled, len(f)):
        score = sum(weight * (f[i] @ omega[c]) for c, weight in sets[i].items())
        others = [f[i] @ f[j] for j in range(len(f)) if not sets[i].keys() & sets[j].keys()]
        total = total + torch.stack([score, *(s for s in others if s >= 1e-6)]).logsumexp(0) - score
    return total / (len(f) - labeled)


def margin(mean: Tensor) -> float:
    """ρ = min(100, max over rows of the distance to the nearest other row)."""
    gaps = torch.cdist(mean, mean) + torch.diag(torch.full((len(mean),), torch.inf))
    return min(100.0, gaps.min(1).values.max().item())


def tune(omega: Tensor, rows: Tensor, batches: list[list[int]], rho: float, lr: float) -> Tensor:
    """Classifier rows after SGD on -log q_y, q_c ~ exp(-||ω - Ω^c|| - ρ 1[c = y]), by the gradient written out."""
    for batch in batches:
        gradient = torch.zeros_like(omega)
        for i in batch:
            is_y, away = one_hot(i % len(omega), len(omega)), omega - rows[i]
            distance = away.norm(dim=1, keepdim=True)
            q = (-distance[:, 0] - rho * is_y).softmax(0)
            gradient += (is_y - q)[:, None] * away / distance.clamp(min=1e-300)
        omega = omega - lr * gradient / len(batch)
    return omega


class TwoModels(FixMatch):
    """A second model with an optimizer of its own, that begins a round as the broadcast does."""

    keeps_fresh = False  # whether its momentum begins at zero under every protocol

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.second = deepcopy(self.local)
        self.second_sgd = plain.make_sgd(self.second, self.settings)

    def begin(self, visit: Visit) -> None:
        super().begin(visit)
        self.second.load_state_dict(self.broadcast.state_dict())
        if self.keeps_fresh or not plain.carries_momentum(self.settings):
            self.second_sgd = plain.make_sgd(self.second, self.settings)


class FedLoKe(TwoModels):
    """The second model is the client's own; it and the uploaded one label for each other."""

    def begin(self, visit: Visit) -> None:
        super().begin(visit)
        new, mu = state_of(self.broadcast), self.numbers.mu_own
        own = self.clients.get(visit.client, new)
        self.second.load_state_dict({name: mu * own[name] + (1 - mu) * t for name, t in new.items()}, strict=False)

    def step(self, batch: Batch) -> dict[str, Any]:
        unlabeled, passes = [batch.weak, batch.strong], self.numbers.passes
        x_l, weak_l, strong_l = ask(self.second, [batch.labeled, *unlabeled], passes)
        x_g, weak_g, strong_g = ask(self.local, [batch.labeled_strong, *unlabeled], passes)
        p_l, p_g = weak_l.detach().softmax(1), weak_g.detach().softmax(1)
        sure_l, sure_g = entropy(p_l) < self.numbers.delta, entropy(p_g) < self.numbers.delta
        l_s = plain.supervised(x_l, batch.classes) + plain.supervised(x_g, batch.classes)
        l_u = (sure_g * kl(p_g, strong_l)).mean() + (sure_l * kl(p_l, strong_g)).mean()
        ramp = min(1, (self.round - 1) / self.numbers.ramp_rounds)
        descend(l_s + self.settings.mu_u * ramp * l_u, self.sgd, self.second_sgd)
        recorded = l_u + (sure_g * entropy(p_g) + sure_l * entropy(p_l)).mean()  # cross-entropies
        return {"p_l": p_l, "p_g": p_g, "target": p_l, "mask": sure_l, "l_s": l_s, "l_u": recorded}

    def upload(self, visit: Visit) -> Any:
        self.clients[visit.client] = state_of(self.second)
        return super().upload(visit)


class FedDure(TwoModels):
    """The second model is a student: its labeled loss shows whether the teacher's labels are good."""

    keeps_fresh = True

    def label(self, v: Vote, thresholds: list[float], p_l: Tensor, p_g: Tensor) -> Label:
        return Label(p_l, v.c_l >= thresholds[v.a_l], 1)

    def further(self, batch: Batch, of_strong: Tensor, labels: list[Label], *_: Any) -> State:
        self.second_sgd.param_groups[0]["lr"] = self.settings.lr * self.numbers.student_rate
        views, passes = [batch.labeled, batch.weak], self.numbers.passes
        x, weak = ask(self.second, views, passes)
        descend(plain.supervised(weak, [int(label.target.argmax()) for label in labels]), self.second_sgd)
        after, _ = ask(self.second, views, passes)
        d = (plain.supervised(after, batch.classes) - plain.supervised(x, batch.classes)).detach()
        return {"l_d": d * plain.supervised(of_strong, of_strong.argmax(1).tolist())}


class FedLabel2m(TwoModels, FedLabel):
    """The first model, A, learns from labels; the second, B, from labels of A or of the broadcast model."""

    def begin(self, visit: Visit) -> None:
        super().begin(visit)
        self.number = 0

    def step(self, batch: Batch) -> dict[str, Any]:
        p_a, p_g = (plain.ask_global(model, batch.weak) for model in (self.local, self.broadcast))
        labels = self.labels(p_a, p_g)
        l_s = plain.supervised(self.local.train()(batch.labeled), batch.classes)
        descend(l_s, self.sgd)
        if self.round <= self.numbers.burn_in:
            return {**shown(p_a, p_g, labels), "mask": [0] * len(labels), "l_s": l_s}
        used = [i for i, label in enumerate(labels) if label.used]
        self.number += len(used)
        of_strong, of_weak = ask(self.second, [batch.strong, batch.weak], self.numbers.passes)
        ce = -sum((labels[i].target * of_strong[i].log_softmax(0)).sum() for i in used) / max(1, len(used))
        pull, agree = 0.0, agreeing(labels, p_a, p_g)
        for i in agree:
            low, high = sorted((p_a[i].var(), p_g[i].var()))
            pull = pull + low / high * kl(p_a[i], of_weak[i]) / len(agree)
        pairs = zip(self.second.parameters(), self.broadcast.parameters(), strict=True)
        away = sum(((a - b.detach()) ** 2).mean() for a, b in pairs)
        loss = ce + self.numbers.kl_weight * pull + self.numbers.pull * away
        descend(self.settings.mu_u * loss, self.second_sgd)
        return {**shown(p_a, p_g, labels), "l_s": l_s, "l_u": ce}

    def upload(self, visit: Visit) -> Any:
        return state_of(self.local), state_of(self.second), max(1, self.number)

    def aggregate(self, visits: list[Visit], uploads: list[Any]) -> None:
        a, b, numbers = zip(*uploads, strict=True)
        self.take(plain.mean([plain.mean(list(a), [1] * len(a)), plain.mean(list(b), list(numbers))], [1, 1]))


class FedMatch(FixMatch):
    """Kernels σ + ψ: labels train σ, which also has all that is no kernel, and unlabeled images train ψ."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.global_sigma, self.global_psi = self.numbers.sigma, self.numbers.psi
        self.memory: dict[int, Any] = {}  # the last ψ of each client seen, and what its model says of the noise image

    def begin(self, visit: Visit) -> None:
        self.sigma, self.psi = deepcopy(self.global_sigma), deepcopy(self.global_psi)
        others = [m for client, m in self.memory.items() if client != visit.client]
        is_due = visit.client in self.memory and len(others) >= self.numbers.helpers
        mine = self.memory[visit.client].says if is_due else None
        others.sort(key=lambda m: (m.says - mine).norm().item() if is_due else 0)
        self.helpers = [m.psi for m in others[: self.numbers.helpers]] if is_due else []

    def call(self, sigma: State, psi: State, x: Tensor, training: bool) -> Tensor:
        """Logits; in training mode the running statistics in `sigma` move."""
        return torch.func.functional_call(self.local.train(training), composed(sigma, psi), (x,))

    def step(self, batch: Batch) -> dict[str, Any]:
        l_s = self.learn_sigma(batch)
        p_h = [self.call(self.sigma, psi, batch.weak, training=False).softmax(1) for psi in self.helpers]
        psi = {name: t.clone().requires_grad_() for name, t in self.psi.items()}
        views = torch.cat([batch.weak, batch.strong])
        of_weak, of_strong = self.call(deepcopy(self.sigma), psi, views, training=True).chunk(2)
        p, used = of_weak.detach().softmax(1), (of_weak.softmax(1).max(1).values >= self.settings.tau).tolist()
        labels = [majority([int(q[i].argmax()) for q in (p, *p_h)]) for i in range(len(p))]
        l_u = torch.zeros((), dtype=torch.float64)
        for i in (i for i in range(len(p)) if used[i]):
            consistent = sum(kl(q[i], of_weak[i]) for q in p_h) / max(1, len(p_h))
            l_u = l_u + (consistent - of_strong[i].log_softmax(0)[labels[i]]) / sum(used)
        n, near = self.numbers, sum(((self.sigma[name] - t) ** 2).sum() for name, t in psi.items())
        loss = n.lam_iccs * l_u + n.lam_l2 * near + n.lam_l1 * sum(t.abs().sum() for t in psi.values())
        self.psi = self.moved(self.psi, psi, loss)
        target = torch.stack([one_hot(a, self.classes) for a in labels])
        return {"p_l": p, "target": target, "mask": used, "l_s": l_s, "l_u": l_u}

    def learn_sigma(self, batch: Batch) -> Tensor:
        trained = {name for name, _ in self.local.named_parameters()}
        sigma = {name: t.clone().requires_grad_(name in trained) for name, t in self.sigma.items()}
        l_s = plain.supervised(self.call(sigma, self.psi, batch.labeled, training=True), batch.classes)
        new = {name: t.detach() for name, t in sigma.items()}
        self.sigma = {**new, **self.moved(new, {k: sigma[k] for k in trained}, self.numbers.lam_s * l_s)}
        return l_s

    def moved(self, values: State, leaves: State, loss: Tensor) -> State:
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        return {k: values[k] - self.numbers.lr * g for k, g in zip(leaves, gradients, strict=True)}

    def upload(self, visit: Visit) -> Any:
        sigma, psi = changed(self.sigma, self.global_sigma), changed(without_small(self.psi), self.global_psi)
        says = self.call(sigma, without_small(psi), self.numbers.noise, training=False).softmax(1)
        return SimpleNamespace(client=visit.client, sigma=sigma, psi=psi, says=says)

    def aggregate(self, visits: list[Visit], uploads: list[Any]) -> None:
        self.memory |= {upload.client: upload for upload in uploads}
        self.global_sigma = plain.mean([upload.sigma for upload in uploads], [1] * len(uploads))
        self.global_psi = plain.mean([upload.psi for upload in uploads], [1] * len(uploads))

    def deployed(self) -> nn.Module:
        self.take(composed(self.global_sigma, without_small(self.global_psi)))
        return self.broadcast

    def server(self) -> State:
        return {f"psi.{name}": t for name, t in self.global_psi.items()}


def composed(sigma: State, psi: State) -> State:
    return {name: t + psi[name] if name in psi else t for name, t in sigma.items()}


def without_small(psi: State) -> State:
    return {name: torch.where(t.abs() <= 5e-6, 0.0, t) for name, t in psi.items()}


def changed(new: State, old: State) -> State:
    """Entries that moved by more than 5e-5, the others as the server has them; running statistics are sent whole."""
    kept = {name: torch.where((t - old[name]).abs() > 5e-5, t, old[name]) for name, t in new.items()}
    return {name: new[name] if "running" in name else t for name, t in kept.items()}


def majority(votes: list[int]) -> int:
    """The class with most votes, the lowest of several."""
    return max(sorted(set(votes)), key=votes.count)


# What is compared: a method with its plug-ins, maybe followed by a remark, its reference, and settings of both.


class Case(NamedTuple):
    """A method, its reference, and the settings of both."""

    method: str
    reference: type[FixMatch]
    settings: dict[str, Any]
    digits: float = 1e-12


CASES: dict[str, Case] = {}


def compared(reference: type[FixMatch], *names: str, digits: float = 1e-12, **settings: Any) -> None:
    """Add cases of one setting: each name is a method, maybe followed by a comma and a remark."""
    CASES.update({name: Case(name.partition(",")[0], reference, settings, digits) for name in names})


LOKE = {"mu_own": 0.7, "delta": 0.6, "ramp_rounds": 3}
DB = {"tau": 0.5, "ema": 0.3}
PROXY = {"tau": 0.9, "beta": 0.8, "ema": 0.7, "tuning_lr": 0.05, "tuning_batch": 5}
DURE = {"tau": 0.6, "student_rate": 0.7}
LABEL_2M = {"kl_weight": 0.5, "pull": 2.0}
SHARP = {"tau": 0.5, "temperature": 0.6}
MATCH = {"tau": 0.7, "lr": 0.01, "lam_s": 3.0, "lam_iccs": 0.5, "lam_l2": 2.0, "lam_l1": 0.001, "helper_interval": 1}
compared(FedProx, "fedprox+fixmatch", mu_prox=0.3)
compared(FreeMatch, "freematch", "freematch+sage", ema=0.6, saf=0.3, lowest=0.5, highest=0.65)
compared(FedLabel, "fedlabel", "fedlabel+sage", kl_weight=0.6)
compared(FedDB, "feddb", **DB, dma="released", passes="separate", online=False)
compared(FedDB, "feddb, online", **DB, dma="off", passes="joint", online=True)
compared(FedDB, "feddb+sage", **DB, dma="released", passes="separate")
compared(ProxyFL, "proxyfl, not tuned", "proxyfl+sage", **PROXY, tuning_epochs=0)
compared(ProxyFL, "proxyfl", **PROXY, tuning_epochs=3, digits=1e-5)  # tuning has float32
compared(FedLoKe, "fedloke", **LOKE, passes="separate")
compared(FedLoKe, "fedloke, joint", **LOKE, passes="joint")
compared(FedDure, "feddure", "feddure+sage", **DURE, passes="joint")
compared(FedDure, "feddure, separate", **DURE, passes="separate")
compared(FedLabel2m, "fedlabel-2m", "fedlabel-2m+sage", **LABEL_2M, burn_in=0, passes="separate")
compared(FedLabel2m, "fedlabel-2m, burn-in", **LABEL_2M, burn_in=1, passes="joint")
compared(FedMatch, "fedmatch, 1 helper", **MATCH, helpers=1)
compared(FedMatch, "fedmatch, 2 helpers", **MATCH, helpers=2)
compared(SoftMatch, "softmatch", "softmatch+sage", ema=0.3, n_sigma=2.5)
compared(AdaMatch, "adamatch", "adamatch+sage", tau=0.9, ema=0.6, strong_labels=False)
compared(AdaMatch, "adamatch, strong labels", tau=0.9, ema=0.6, strong_labels=True)
compared(CDMAD, "fixmatch-lpl+cdmad", "fixmatch-lpl+sage+cdmad", start_rounds=0)
compared(CDMAD, "fixmatch-lpl+cdmad, from the second round", start_rounds=1)
TWIN = {"contrast": 0.4, "temperature": 0.3, "neighbors": 0.8, "pseudo": 0.5}
compared(TwinSight, "twin-sight", **TWIN, scale="released")
compared(TwinSight, "twin-sight, mean", **TWIN, scale="mean")
compared(SemiAnAgg, "semianagg", tau=0.6)
compared(UDA, "uda", "uda+sage", **SHARP, tsa="none")
compared(UDA, "uda, annealed", **SHARP, tsa="exp", tsa_rounds=2)
