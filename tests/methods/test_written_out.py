"""Steps written out once more: ordinary modules, optimizers and loops from the equations, against the methods' own."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fssl.augment.policies import weak
from fssl.core.client import ClientResult, at, client_round
from fssl.core.federation import Federation
from fssl.methods.cbafed import CLASSES
from fssl.methods.feddb import PI, released_shares
from fssl.methods.feddure_full import REGULATOR
from fssl.methods.fedlabel_2m import COUNT, A, B
from fssl.methods.fedloke import kept
from fssl.methods.fedmatch import HELPER, PRESENT, PSI, SIGMA
from fssl.methods.names import METHODS, settings_of
from fssl.methods.proxyfl import COUNTS, FEATURES, PRIOR, PROXIES
from fssl.methods.rscfed import TEACHER
from fssl.methods.tuning import Tuning
from fssl.models.resnet import SmallCnn
from fssl.types import Batch, Server, State, Weights, put, take, unpacked
from helpers.small import KNOWING, host_lane

Make = Callable[..., Federation]
SHORT = ("train.steps_per_round=3", "train.lr=0.05")
EVERY, LR = ("x", "x_strong", "u_weak", "u_strong"), 0.05


class Ordinary:
    """A federation's first client, its batches, and modules that start where the method does."""

    def __init__(self, make: Make, name: str, *settings: str, at_round: int = 1) -> None:
        self.federation = make(f"method.name={name}", *SHORT, *settings)
        self.net, self.method = self.federation.net, self.federation.method
        self.server = self.method.init(self.net, self.net.first, self.federation.task)
        self.plan = self.federation.plan(at_round, 1)

    def round(self, server: Server | None = None, state: State | None = None) -> ClientResult:
        server = server or self.server
        state = self.federation.new_state(server, 1) if state is None else state
        with torch.no_grad():
            return client_round(host_lane(self.federation), self.method, server, state, self.plan)

    def batches(self) -> Iterator[Batch]:
        for i in range(3):
            yield self.federation.pool.batch(at(self.plan.draw, i), self.federation.recipe.views, with_truth=False)

    def module(self, weights: Weights | None = None) -> nn.Module:
        params, buffers = weights or self.server.weights
        module = SmallCnn(3, 4)
        module.load_state_dict(
            {k: t for k, t in {**params, **buffers}.items() if k in module.state_dict()}, strict=False
        )
        return module.train()

    def other(self, seed: int) -> Weights:
        """Other weights, near the start."""
        noise = torch.Generator().manual_seed(seed)
        params = {k: t + 0.2 * torch.randn(t.shape, generator=noise) for k, t in self.server.weights.params.items()}
        return Weights(params, self.server.weights.buffers)


def sgd(*modules: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD([p for m in modules for p in m.parameters()], LR, momentum=0.9, weight_decay=1e-4)


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def logits(module: nn.Module, *views: Tensor) -> list[Tensor]:
    """One joint batch."""
    return list(module(torch.cat(views))[1].split([len(v) for v in views]))


def apart(module: nn.Module, *views: Tensor) -> list[Tensor]:
    """A pass for each view."""
    return [module(view)[1] for view in views]


PASSES = [("joint", logits), ("separate", apart)]


def test_some_methods_have_a_pass_for_each_view_by_default() -> None:
    every = {name: settings_of(builder).get("passes") for name, builder in METHODS.items()}
    found = {name: setting.default for name, setting in every.items() if setting}
    assert found == {"fedlabel-2m": "separate", "feddb": "separate", "fedloke": "separate", "feddure": "joint"}


def said(module: nn.Module, view: Tensor) -> Tensor:
    """Probabilities in evaluation mode."""
    with torch.no_grad():
        return deepcopy(module).eval()(view)[1].softmax(-1)


def kl(p: Tensor, q_logits: Tensor) -> Tensor:
    """Of one image."""
    return sum((p[c] * (p[c].log() - q_logits.log_softmax(0)[c]) for c in range(len(p))), torch.zeros(()))


def same(module: nn.Module | State, weights: Weights | State) -> None:
    expected = module.state_dict() if isinstance(module, nn.Module) else module
    given = {**weights.params, **weights.buffers} if isinstance(weights, Weights) else weights
    assert expected
    for name, t in expected.items():
        if name.endswith("num_batches_tracked"):  # an ordinary module counts batches; they are not read
            continue
        torch.testing.assert_close(given[name], t, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize(("passes", "look"), PASSES)
def test_fedloke(make_federation: Make, passes: str, look: Callable[..., list[Tensor]]) -> None:
    """Ramp 1 / 2 in round 2 of rounds from 0 on, entropies below 1.3 of at most log 4 = 1.386."""
    settings = ("mu_own=0.75", "delta=1.3", "ramp_rounds=2", f"passes={passes}")
    own = Ordinary(make_federation, "fedloke", *(f"method.{s}" for s in settings), at_round=2)
    before = own.other(1)
    mixed = {k: 0.75 * t + 0.25 * own.server.weights.params[k] for k, t in before.params.items()}
    m_l, m_g = own.module(Weights(mixed, before.buffers)), own.module()
    optimizer, used = sgd(m_l, m_g), 0
    for b in own.batches():
        x_l, weak_l, strong_l = look(m_l, b.x, b.u_weak, b.u_strong)
        x_g, weak_g, strong_g = look(m_g, b.views["x_strong"], b.u_weak, b.u_strong)
        loss, n = F.cross_entropy(x_l, b.y) + F.cross_entropy(x_g, b.y), len(b.u_weak)
        for i in range(n):
            for teacher, student in ((weak_g, strong_l), (weak_l, strong_g)):
                p = teacher[i].detach().softmax(0)
                if -(p * p.log()).sum() < 1.3:
                    loss, used = loss + 0.5 * kl(p, student[i]) / n, used + 1
        descend(optimizer, loss)
    result = own.round(state=kept(before))
    assert 0 < used < 6 * n
    same(m_g, result.upload.weights)
    same(m_l, Weights(take("own.params.", result.state), take("own.buffers.", result.state)))


def test_fedmatch_with_helpers(make_federation: Make) -> None:
    """Two plain SGD steps in each: sigma on labels, then psi on votes of three models, means over accepted images."""
    own = Ordinary(
        make_federation, "fedmatch", "method.tau=0.45", "method.lam_iccs=2", "method.lam_l2=1", "method.lam_l1=0.1"
    )
    payload = own.method.payload(own.server, 1)
    helpers = [take(PSI, own.other(seed).params) for seed in (1, 2)]
    psi_h = {k: torch.stack([h[k] for h in helpers]) for k in helpers[0]}
    payload = payload._replace(extras={PRESENT: torch.ones(()), **put(HELPER, psi_h)})
    sigma = {k: t.clone() for k, t in take(SIGMA, own.server.weights.params).items()}
    psi = {k: t.clone() for k, t in take(PSI, own.server.weights.params).items()}
    buffers = {k: t.clone() for k, t in own.server.weights.buffers.items()}
    module, accepted = SmallCnn(3, 4), 0

    def run(psi: State, buffers: State, *views: Tensor) -> list[Tensor]:
        theta = {k: t + psi[k] if k in psi else t for k, t in sigma.items()}
        return list(functional_call(module, {**theta, **buffers}, torch.cat(views))[1].split([len(v) for v in views]))

    def move(params: State, loss: Tensor) -> State:
        grads = torch.autograd.grad(loss, list(params.values()))
        return {k: (t - 0.01 * g).detach() for (k, t), g in zip(params.items(), grads, strict=True)}

    for b in own.batches():
        sigma = {k: t.requires_grad_() for k, t in sigma.items()}
        sigma = move(sigma, 10 * F.cross_entropy(run(psi, buffers, b.x)[0], b.y))
        psi = {k: t.requires_grad_() for k, t in psi.items()}
        weak_u, strong_u = run(psi, {k: t.clone() for k, t in buffers.items()}, b.u_weak, b.u_strong)
        module.eval()
        p_h = [run(h, buffers, b.u_weak)[0].detach().softmax(-1) for h in helpers]
        module.train()
        total, n = torch.zeros(()), 0
        for i in range(len(weak_u)):
            p = weak_u[i].detach().softmax(0)
            if p.max() >= 0.45:
                votes = Counter(int(q.argmax()) for q in (p, p_h[0][i], p_h[1][i]))
                label = min(c for c in votes if votes[c] == max(votes.values()))
                total = total - strong_u[i].log_softmax(0)[label] + sum(kl(q[i], weak_u[i]) for q in p_h) / 2
                n += 1
        apart = sum(((sigma[k] - t) ** 2).sum() for k, t in psi.items())
        size = sum(t.abs().sum() for t in psi.values())
        psi = move(psi, 2 * total / n + 1 * apart + 0.1 * size)
        accepted += n
    with torch.no_grad():
        local, _ = host_lane(own.federation).run(payload, own.method.start(payload, {}), own.plan.draw)
    assert 0 < accepted < 3 * len(weak_u)
    same({**put(SIGMA, sigma), **put(PSI, psi), **buffers}, local.weights)


@pytest.mark.parametrize("passes", ["joint", "separate"])
@pytest.mark.parametrize("sign", ["released", "expected"])
def test_feddure(sign: str, passes: str, make_federation: Make) -> None:
    """The student's step is real, so that its second labeled loss comes from another network than its first."""
    settings = ("tau=0.3", "student_rate=0.5", f"sign={sign}", f"passes={passes}")
    own = Ordinary(make_federation, "feddure", *(f"method.{s}" for s in settings))
    both = logits if passes == "joint" else lambda m, *views: [m(v)[1] for v in views]
    teacher, student = own.module(), own.module()
    optimizer, second = sgd(teacher), sgd(student)
    second.param_groups[0]["lr"] = 0.5 * LR
    progress = []
    for b in own.batches():
        x, weak_u, strong_u = logits(teacher, b.x, b.u_weak, b.u_strong)
        p = weak_u.detach().softmax(-1)
        l_u = sum(-(p[i] * strong_u[i].log_softmax(0)).sum() for i in range(len(p)) if p[i].max() >= 0.3) / len(p)
        x_0, u_0 = both(student, b.x, b.u_weak)
        descend(second, F.cross_entropy(u_0, p.argmax(-1)))
        x_1, _ = both(student, b.x, b.u_weak)
        d = (F.cross_entropy(x_1, b.y) - F.cross_entropy(x_0, b.y)).item() * (1 if sign == "released" else -1)
        progress.append(d)
        descend(optimizer, F.cross_entropy(x, b.y) + l_u + d * F.cross_entropy(strong_u, strong_u.argmax(-1)))
    assert min(abs(d) for d in progress) > 1e-4
    same(teacher, own.round().upload.weights)


def test_feddure_with_both_regulators(make_federation: Make) -> None:
    """Second order by the tape: the labeled loss after a virtual step, differentiated by the regulator's weights."""
    own = Ordinary(make_federation, "feddure-full", "method.meta_lr=0.5", "method.mu_u=0.7")
    state = own.federation.new_state(own.server, 1)
    w = {k: t.clone() for k, t in take(REGULATOR, state).items()}
    teacher, student = own.module(), own.module()
    optimizer, second = sgd(teacher), sgd(student)

    def weigh(w: State, p: Tensor) -> Tensor:
        return torch.sigmoid(F.relu(p @ w["in"] + w["in_bias"]) @ w["out"] + w["out_bias"])[:, 0]

    for b in own.batches():
        x, weak_u, strong_u = logits(teacher, b.x, b.u_weak, b.u_strong)
        y = weak_u.detach().argmax(-1)
        w = {k: t.requires_grad_() for k, t in w.items()}
        virtual = deepcopy(student)
        _, u = logits(virtual, b.x, b.u_strong)
        p = u.detach().softmax(-1)
        names, params = zip(*virtual.named_parameters(), strict=True)
        loss = (weigh(w, p) * F.cross_entropy(u, y, reduction="none")).mean()
        grads = torch.autograd.grad(loss, params, create_graph=True)
        moved = {k: t - LR * g for k, t, g in zip(names, params, grads, strict=True)}
        _, out = functional_call(virtual, moved, torch.cat([b.x, b.u_strong]))
        slopes = torch.autograd.grad(F.cross_entropy(out[: len(b.y)], b.y), list(w.values()))
        w = {k: (t - 0.5 * g).detach() for (k, t), g in zip(w.items(), slopes, strict=True)}
        m = weigh(w, p)
        x_0, u_0 = logits(student, b.x, b.u_strong)
        descend(second, (m * F.cross_entropy(u_0, y, reduction="none")).mean())
        x_1, _ = logits(student, b.x, b.u_strong)
        d = (F.cross_entropy(x_0, b.y) - F.cross_entropy(x_1, b.y)).item()
        per_image = F.cross_entropy(strong_u, y, reduction="none")
        descend(optimizer, F.cross_entropy(x, b.y) + 0.7 * (m * per_image).mean() + d * per_image.mean())
    result = own.round(state=state)
    same(teacher, result.upload.weights)
    same(w, take(REGULATOR, result.state))


@pytest.mark.parametrize(("passes", "look"), PASSES)
def test_fedlabel_with_two_models(make_federation: Make, passes: str, look: Callable[..., list[Tensor]]) -> None:
    """A and the broadcast model label in evaluation mode; B learns from accepted images alone, held by the pull."""
    settings = ("method.burn_in=0", "method.kl_weight=0.5", f"method.passes={passes}")
    own = Ordinary(make_federation, "fedlabel-2m", *settings)
    g, model_a, model_b = own.module(), own.module(), own.module()
    optimizer_a, optimizer_b, labels = sgd(model_a), sgd(model_b), 0
    for b in own.batches():
        p_a, p_g = said(model_a, b.u_weak), said(g, b.u_weak)
        strong_b, weak_b = look(model_b, b.u_strong, b.u_weak)
        ce, pulled = [], []
        for i in range(len(p_a)):
            (s_a, s_g) = (float(np.var(p[i].numpy())) for p in (p_a, p_g))
            winner = p_a[i] if s_a > s_g else p_g[i]
            if winner.max() >= 0.3:
                ce.append(-strong_b[i].log_softmax(0)[winner.argmax()])
                if p_a[i].argmax() == p_g[i].argmax():
                    pulled.append(min(s_a, s_g) / max(s_a, s_g) * kl(p_a[i], weak_b[i]))
        labels += len(ce)
        started = dict(g.named_parameters())
        drift = sum(((p - started[k].detach()) ** 2).mean() for k, p in model_b.named_parameters())
        loss_b = sum(ce) / max(1, len(ce)) + 0.5 * sum(pulled) / max(1, len(pulled)) + 10 * drift
        descend(optimizer_a, F.cross_entropy(model_a(b.x)[1], b.y))
        descend(optimizer_b, loss_b)
    upload = own.round().upload
    assert 0 < upload.extras[COUNT].item() == labels < 3 * len(p_a)
    for prefix, model in ((A, model_a), (B, model_b)):
        same(model, Weights(*(take(prefix, tree) for tree in upload.weights)))


@pytest.mark.parametrize(("passes", "look"), PASSES)
def test_feddb(make_federation: Make, passes: str, look: Callable[..., list[Tensor]]) -> None:
    """The whole pool first, one label for each image of it; the prior that is sent follows the local model."""
    own = Ordinary(make_federation, "feddb", "method.tau=0.255", f"method.passes={passes}")
    module, pool, sweep = own.module(), own.federation.pool, own.plan.sweep
    assert sweep is not None
    table: dict[int, Tensor] = {}
    for i in range(len(sweep.u_row)):
        p = said(module, pool.normalize(weak(pool.images, sweep.u_row[i], sweep.noise[i])))
        table |= {int(s): row for s, row, real in zip(sweep.u_slot[i], p, sweep.real[i], strict=True) if real}
    prior = torch.stack(list(table.values())).mean(0)
    offline = {s: (row / prior) / (row / prior).sum() for s, row in table.items()}
    optimizer, pi, used = sgd(module), prior, 0
    for b in own.batches():
        x, weak_u, strong_u = look(module, b.x, b.u_weak, b.u_strong)
        pi = 0.5 * pi + 0.5 * weak_u.detach().softmax(-1).mean(0)
        rows = [(i, offline[int(s)]) for i, s in enumerate(b.u_slot) if offline[int(s)].max() >= 0.255]
        used += len(rows)
        l_u = sum(-strong_u[i].log_softmax(0)[q.argmax()] for i, q in rows) / len(b.u_slot)
        descend(optimizer, F.cross_entropy(x, b.y) + l_u)
    upload = own.round().upload
    assert 0 < used < 3 * len(b.u_slot)
    same(module, upload.weights)
    torch.testing.assert_close(upload.extras[PI], pi)


def test_feddb_s_shares_come_from_the_frameworks_optimizer() -> None:
    """Nesterov's SGD, made anew a hundred times, on the mean squared error; then a softmax."""
    pi = torch.from_numpy(np.random.default_rng(1).dirichlet(np.full(10, 0.1), size=8))
    a = torch.full((8,), 1 / 8, dtype=torch.double)
    for _ in range(100):
        a = a.detach().requires_grad_()
        optimizer = torch.optim.SGD([a], lr=1.0, momentum=0.9, weight_decay=0.9, nesterov=True)
        descend(optimizer, F.mse_loss(a @ pi, torch.full((10,), 0.1, dtype=torch.double)))
        a = a.softmax(0)
    np.testing.assert_allclose(released_shares(pi.numpy()), a.detach().numpy(), rtol=1e-9)


def test_proxyfl(make_federation: Make) -> None:
    """The contrast image by image, its sets as Python sets; the counts of the last epoch."""
    own = Ordinary(make_federation, "proxyfl", "method.tau=0.6", "method.beta=0.8")
    prior = torch.tensor([0.3, 0.2, 0.25, 0.25])
    server = own.server._replace(weights=own.other(3), extras={PRIOR: prior})
    g, module = own.module(server.weights), own.module(server.weights)
    w_f, b_f, w_p = (server.weights.params[k].clone().requires_grad_() for k in head_names())
    optimizer = torch.optim.SGD([*module.parameters(), w_f, b_f, w_p], LR, momentum=0.9, weight_decay=1e-4)
    counts, undecided, apart = torch.zeros(4), 0, 0
    for b, last in zip(own.batches(), own.plan.draw.clock.last_epoch.tolist(), strict=True):
        n_x, n = len(b.y), len(b.u_weak)
        feature, out = module(torch.cat([b.x, b.u_weak, b.u_strong]))
        p_x, p_g, p_l = said(g, b.x), said(g, b.u_weak), out[n_x : n_x + n].detach().softmax(-1)
        m = [bool(p_l[i].max() >= 0.6 or p_g[i].max() >= 0.6) for i in range(n)]
        l_u = sum(-out[n_x + n + i].log_softmax(0)[p_g[i].argmax()] for i in range(n) if m[i]) / n
        rows = [*p_x, *p_g, *p_g]
        sure = [bool(p.max() >= 0.6) for p in p_x] + m + m
        sets = [
            {int(p.argmax())} if ok else {c for c in range(4) if p[c] > prior[c]}
            for p, ok in zip(rows, sure, strict=True)
        ]
        f = F.normalize(feature @ w_f.T + b_f)
        omega = F.normalize(module.get_parameter("head.linear.weight") @ w_p.T)
        terms = []
        for i in range(n_x, len(rows)):
            weights = {c: 1.0 if sure[i] else float(rows[i][c]) for c in sets[i]}
            s = sum(v * (f[i] @ omega[c]) for c, v in weights.items())
            negative = [f[i] @ f[j] for j in range(len(rows)) if not sets[i] & sets[j] and f[i] @ f[j] >= 1e-6]
            apart += len(negative)
            terms.append(torch.stack([s, *negative]).logsumexp(0) - s)
        descend(optimizer, F.cross_entropy(out[:n_x], b.y) + l_u + 0.8 * sum(terms) / (2 * n))
        for c in [*b.y.tolist(), *(int(p_g[i].argmax()) for i in range(n) if m[i])]:
            counts[c] += last
        undecided += m.count(False)
    upload = own.round(server).upload
    assert min(undecided, apart) > 0
    same({**module.state_dict(), **dict(zip(head_names(), (w_f, b_f, w_p), strict=True))}, upload.weights)
    assert upload.extras[COUNTS].tolist() == counts.tolist()


def head_names() -> tuple[str, str, str]:
    return f"{FEATURES}weight", f"{FEATURES}bias", f"{PROXIES}weight"


def test_proxyfl_s_server_tunes_with_the_frameworks_optimizer() -> None:
    rng = np.random.default_rng(0)
    uploaded = [torch.from_numpy(rng.normal(size=(5, 6)).astype(np.float32)) for _ in range(3)]
    mean = torch.stack(uploaded).mean(0)
    omega = mean.clone().requires_grad_()
    optimizer = torch.optim.SGD([omega], lr=0.05)
    gaps = [[(mean[i] - mean[j]).norm() for j in range(5) if j != i] for i in range(5)]
    rho = max(min(row) for row in gaps)
    data, y = torch.cat(uploaded), torch.arange(5).repeat(3)
    shuffle = np.random.default_rng(1)
    for _ in range(4):
        for rows in torch.from_numpy(shuffle.permutation(15)).split(4):
            distance = (data[rows, None] - omega[None]).norm(dim=-1) + rho * F.one_hot(y[rows], 5)
            descend(optimizer, F.cross_entropy(-distance, y[rows]))
    tuned = Tuning(epochs=4, lr=0.05)(mean, uploaded, np.random.default_rng(1))
    assert (omega - mean).norm() > 0.1
    torch.testing.assert_close(tuned, omega.detach(), rtol=1e-4, atol=1e-5)


def test_freematch(make_federation: Make) -> None:
    """Means first, then thresholds, then fairness over the accepted strong views."""
    own = Ordinary(make_federation, "freematch", "method.ema=0.3", "method.saf=0.3")
    module = own.module()
    optimizer, tau, p_tilde, h_tilde = sgd(module), 0.25, torch.full((4,), 0.25), torch.full((4,), 0.25)
    masks = []
    for b in own.batches():
        x, weak_u, strong_u = logits(module, b.x, b.u_weak, b.u_strong)
        p = weak_u.detach().softmax(-1)
        tau = 0.3 * tau + 0.7 * p.max(-1).values.mean()
        p_tilde = 0.3 * p_tilde + 0.7 * p.mean(0)
        h_tilde = 0.3 * h_tilde + 0.7 * torch.bincount(p.argmax(-1), minlength=4) / len(p)
        mask = p.max(-1).values >= tau * (p_tilde / p_tilde.max())[p.argmax(-1)]
        masks.append(mask.float().mean().item())
        l_u = (F.cross_entropy(strong_u, p.argmax(-1), reduction="none") * mask).mean()
        q = strong_u[mask].softmax(-1)
        h = torch.bincount(q.argmax(-1), minlength=4) / len(q)
        ratio = q.mean(0) * (1 / h).nan_to_num(posinf=0)
        target = p_tilde / h_tilde / (p_tilde / h_tilde).sum()
        l_f = (target * (ratio / ratio.sum() + 1e-12).log()).sum()
        descend(optimizer, F.cross_entropy(x, b.y) + l_u + 0.3 * l_f)
    result = own.round()
    assert any(0 < m < 1 for m in masks)
    same(module, result.upload.weights)
    torch.testing.assert_close(result.state["free.tau"], torch.as_tensor(tau))


def test_flexmatch_with_sage(make_federation: Make) -> None:
    """Both models are held to thresholds by class; the table is a dictionary, written where either reaches tau."""
    own = Ordinary(make_federation, "flexmatch+sage", "method.tau=0.35", "method.kappa=5")
    g, module = own.module(), own.module()
    optimizer, table, pool = sgd(module), {}, own.plan.counts.pool
    for b in own.batches():
        x, weak_u, strong_u = logits(module, b.x, b.u_weak, b.u_strong)
        p_l, p_g = weak_u.detach().softmax(-1), said(g, b.u_weak)
        sigma = Counter(table.values())
        most = max(max(sigma.values(), default=0), pool - len(table))
        beta = [sigma[c] / most for c in range(4)]
        t = [0.35 * v / (2 - v) for v in beta]
        l_u, new = torch.zeros(()), {}
        for i, slot in enumerate(b.u_slot.tolist()):
            (c_l, a_l), (c_g, a_g) = p_l[i].max(0), p_g[i].max(0)
            lam = math.exp(-5 * abs(float(c_l - c_g))) if c_l >= t[a_l] else 0.0
            target = lam * F.one_hot(a_l, 4) + (1 - lam) * F.one_hot(a_g, 4)
            if c_l >= t[a_l] or c_g >= t[a_g]:
                l_u = l_u - (target * strong_u[i].log_softmax(0)).sum() / len(p_l)
            if max(c_l, c_g) >= 0.35:
                new[slot] = int(target.argmax())
        table |= new
        descend(optimizer, F.cross_entropy(x, b.y) + l_u)
    result = own.round()
    same(module, result.upload.weights)
    kept_table = result.state["flex.table"].tolist()
    assert 0 < len(table) < pool
    assert {s: c for s, c in enumerate(kept_table) if c >= 0} == table


def test_rscfed_without_labels(make_federation: Make) -> None:
    """The teacher's statistics stay the first model's; its share is 0, 1/2 and then 0.6, where 2/3 would be next."""
    own = Ordinary(make_federation, "rscfed", *KNOWING, "method.groups=1", "method.mu_u=5", "method.ema=0.6")
    module, teacher = own.module(), own.module()
    optimizer = sgd(module)
    optimizer.param_groups[0]["lr"] = 0.7 * LR
    for b, share in zip(own.batches(), (0.0, 0.5, 0.6), strict=True):
        p = said(teacher, b.u_weak)
        q = p**2 / (p**2).sum(-1, keepdim=True)
        s = module(b.views["u_again"])[1].softmax(-1)
        descend(optimizer, 5 * sum(((s[i] - q[i]) ** 2).sum() for i in range(len(q))) / len(q))
        with torch.no_grad():
            for old, new in zip(teacher.parameters(), module.parameters(), strict=True):
                old.copy_(share * old + (1 - share) * new)
    result = own.round()
    same(module, result.upload.weights)
    same(teacher, unpacked(TEACHER, result.state))


@pytest.mark.parametrize("limit", [False, True])
def test_cbafed_without_labels(limit: bool, make_federation: Make) -> None:
    """The broadcast model labels for the whole round. In the limit no cap, no rare class and no older weights: then it
    is pseudo-labeling, once per round, with a threshold for each class."""
    settings = ["burn_in=0", "base=0.6", *(["cap=1", "rare=0", "residual=false"] if limit else ["cap=0.62"])]
    own = Ordinary(make_federation, "cbafed", *KNOWING, *(f"method.{s}" for s in settings))
    counts, broadcast = torch.tensor([40.0, 30.0, 1.0, 29.0]), own.other(3)  # which is often sure of class 3, then of 2
    q = 4 / 10 * counts / 100
    t = [float(x) + 0.6 - float(((q - q.mean()) ** 2).sum() / 3) ** 0.5 for x in q]
    t = t if limit else [min(x, 0.62) for x in t]
    first, module = own.module(broadcast), own.module(broadcast)
    optimizer, given, cases = sgd(module), torch.zeros(4), Counter[str]()
    optimizer.param_groups[0]["lr"] = 2 / 3 * LR
    for b in own.batches():
        p, out, loss = said(first, b.u_weak), module(b.u_weak)[1], torch.zeros(())
        for i, row in enumerate(p):
            best, second = row.argsort(descending=True)[:2].tolist()
            label = best if row[best] > t[best] else second if not limit and q[second] < 0.03 else None
            cases["no" if label is None else "best" if label == best else "second"] += 1
            if label is not None:
                loss, given[label] = loss - out[i].log_softmax(0)[label] / len(p), given[label] + 1
        descend(optimizer, loss)
    result = own.round(Server(broadcast, {CLASSES: counts}))
    assert {*cases} == ({"no", "best"} if limit else {"no", "best", "second"})
    same(module, result.upload.weights)
    torch.testing.assert_close(result.upload.extras[CLASSES], given * 40 / cases.total())
