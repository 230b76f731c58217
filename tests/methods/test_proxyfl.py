"""ProxyFL: the contrast, the prior and the tuned classifier rows, with numbers worked by hand."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fssl.core.client import ClientResult, client_round
from fssl.core.federation import Federation
from fssl.engines.local import LocalEngine
from fssl.label.assign import Constant, GlobalOnly, Sage
from fssl.methods.base import mean_weights
from fssl.methods.fixmatch import FixMatch, fixmatch_gpl
from fssl.methods.names import build_method
from fssl.methods.proxyfl import COUNTS, FEATURES, PRIOR, PROXIES, ProxyFL, category_sets, icpl, proxyfl
from fssl.methods.tuning import Tuning, gpt_gradient, proxy_margin
from fssl.models import CLASSIFIER, switch_kernels
from helpers.small import host_lane

Make = Callable[..., Federation]

F_HAT = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0]])
OMEGA = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
P = torch.tensor([[0.97, 0.02, 0.01], [0.5, 0.4, 0.1], [0.02, 0.02, 0.96], [0.1, 0.3, 0.6]])
SURE = torch.tensor([True, False, True, False])
EVEN = torch.full((3,), 1 / 3)


def contrast(prior: torch.Tensor, sure: torch.Tensor = SURE, f: torch.Tensor = F_HAT) -> float:
    return icpl(f, OMEGA, category_sets(P, sure, prior), 1).item()


def test_category_sets_by_hand() -> None:
    """Above 1/3: row 2 has {0, 1} with its probabilities as weights; sure rows have their likeliest class."""
    s, weight = category_sets(P, SURE, EVEN)
    assert s.tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 1], [0, 0, 1]]
    torch.testing.assert_close(weight, torch.tensor([[1, 0, 0], [0.5, 0.4, 0], [0, 0, 1], [0, 0, 0.6]]))


def test_contrast_by_hand() -> None:
    """Row 2: s = 0.5 * 0.6 + 0.4 * 0.8 = 0.62, negatives 3 (0.96) and 4 (0.8): 1.281535.
    Row 3: s = -0.8, negatives 1 (0.8) and 2 (0.96): 2.465169. Row 4: s = 0, negative 2 (0.8), and row 1, whose
    similarity 0 drops it: 1.171101. Mean 1.639268. With the prior (0.2, 0.5, 0.3) row 2 has the set {0}:
    s = 0.3, term 1.522466, mean 1.719578.
    """
    assert contrast(EVEN) == pytest.approx(1.639268, abs=2e-6)
    assert contrast(torch.tensor([0.2, 0.5, 0.3])) == pytest.approx(1.719578, abs=2e-6)


def test_sure_rows_do_not_ask_the_prior() -> None:
    everyone = torch.ones(4, dtype=torch.bool)
    assert contrast(EVEN, everyone) == contrast(torch.tensor([0.9, 0.05, 0.05]), everyone)


def test_without_similar_negatives_there_is_neither_loss_nor_gradient() -> None:
    f = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], requires_grad=True)
    loss = icpl(f, OMEGA, category_sets(P, SURE, EVEN), 1)
    loss.backward()
    assert loss.item() == 0
    assert f.grad is not None
    assert f.grad.abs().max().item() == 0


def test_the_papers_space_has_no_heads(make_federation: Make) -> None:
    """Raw features and rows: f_1 = (2, 0) and (0, 3) as they are, rows untouched; nothing more is sent than a model."""
    raw, feature = ProxyFL(space="raw"), torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    f, omega = raw.embed({CLASSIFIER: 5 * OMEGA}, feature)
    assert torch.equal(f, feature)
    assert torch.equal(omega, 5 * OMEGA)
    engine = LocalEngine(make_federation("method.name=proxyfl", "method.space=raw", "method.tau=0.3"))
    assert set(engine.snapshot.server.weights.params) == set(engine.federation.net.first.params)
    list(engine.rounds(3))
    assert all(torch.isfinite(t).all() for t in engine.snapshot.server.weights.params.values())


def test_one_tuning_gradient_by_hand() -> None:
    """Distances 0.5 and 1.118034; scores -0.5 - 1.414214 and -1.118034; q = (0.3108, 0.6892)."""
    omega = np.array([[1, 0], [0, 1]], dtype=np.float32)
    assert proxy_margin(omega) == pytest.approx(2**0.5)
    gradient = gpt_gradient(omega, np.array([[1, 0.5]], dtype=np.float32), np.array([0]), 2**0.5)
    np.testing.assert_allclose(gradient, [[0, -0.689157], [0.616400, -0.308200]], atol=2e-6)


def test_a_row_on_top_of_an_upload_does_not_move() -> None:
    omega = np.array([[1, 0], [0, 1]], dtype=np.float32)
    gradient = gpt_gradient(omega, omega[:1], np.array([0]), 0.0)
    assert gradient[0].tolist() == [0, 0]
    assert np.isfinite(gradient).all()


def rows(seed: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def test_tuning_commutes_with_rotation_translation_and_relabeling() -> None:
    mean, uploads = rows(0, 5, 8), [rows(k, 5, 8) for k in (1, 2, 3)]
    q, shift = torch.linalg.qr(rows(4, 8, 8))[0], rows(5, 8)
    tune = Tuning(epochs=3)

    def tuned(change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return tune(change(mean), [change(u) for u in uploads], np.random.default_rng(0))

    plain = tuned(lambda t: t)
    assert (plain - mean).norm() > 1e-3
    torch.testing.assert_close(tuned(lambda t: t @ q), plain @ q, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(tuned(lambda t: t + shift), plain + shift, atol=1e-4, rtol=1e-4)
    order = torch.tensor([3, 1, 4, 0, 2])
    whole = replace(tune, batch=15)  # one batch with everything, so that the order of rows does not matter
    same = whole(mean[order], [u[order] for u in uploads], np.random.default_rng(0))
    other = whole(mean, uploads, np.random.default_rng(0))[order]
    torch.testing.assert_close(same, other, atol=1e-5, rtol=1e-5)


def test_tuning_lengthens_rows_as_the_released_server_does() -> None:
    """Ten random directions of length 1, eight clients off by 0.3: the released code's shifts and norms."""
    rng = np.random.default_rng(0)
    unit = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in rng.normal(size=(9, 10, 256))]
    uploads = [torch.from_numpy((unit[0] + 0.3 * e).astype(np.float32)) for e in unit[1:]]
    mean = torch.stack(uploads).mean(0)
    for epochs, shift, ratio in ((1, 0.007, 1.006), (10, 0.058, 1.055), (100, 0.260, 1.250)):
        tuned = Tuning(epochs)(mean, uploads, rng)
        size = mean.norm(dim=1)
        assert ((tuned - mean).norm(dim=1) / size).mean().item() == pytest.approx(shift, abs=2e-3)
        assert (tuned.norm(dim=1) / size).mean().item() == pytest.approx(ratio, abs=2e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("batch", [3, 4, 16])
@pytest.mark.parametrize(("classes", "columns"), [(100, 256), (10, 256), (7, 33), (2, 1), (300, 256)])
def test_tuning_on_a_gpu_is_that_of_the_host(classes: int, columns: int, batch: int) -> None:
    """One kernel for all steps; 300 rows are too many for it. A row on top of an upload does not move there either."""
    switch_kernels(torch.device("cuda"), True)
    mean = rows(0, classes, columns)
    uploads = [mean + 0.3 * rows(k, classes, columns) for k in (1, 2, 3)]
    uploads[0][0] = mean[0]
    tune = Tuning(epochs=3, lr=0.05, batch=batch)
    on_host = tune(mean, uploads, np.random.default_rng(5))
    on_gpu = tune(mean.cuda(), [u.cuda() for u in uploads], np.random.default_rng(5)).cpu()
    assert (on_host - mean).norm() > 1e-3 * mean.norm()
    assert (on_gpu - on_host).norm() < 1e-4 * (on_host - mean).norm()


def test_the_margin_is_capped_and_can_be_left_out() -> None:
    assert proxy_margin(np.array([[0, 0], [1000, 0]], dtype=np.float32)) == 100
    mean, uploads = rows(0, 4, 6), [rows(k, 4, 6) for k in (1, 2)]
    results = [Tuning(2, margin=m)(mean, uploads, np.random.default_rng(0)) for m in (True, False)]
    assert not torch.equal(*results)


def test_prior_by_hand() -> None:
    """0.9 * (1/2, 1/2) + 0.1 * (3, 1) / 4 = (0.525, 0.475)."""
    prior, counts = torch.tensor([0.5, 0.5]), torch.tensor([3.0, 1.0])
    torch.testing.assert_close(ProxyFL(ema=0.9).new_prior(prior, counts), torch.tensor([0.525, 0.475]))
    assert ProxyFL(ema=1.0).new_prior(prior, counts).tolist() == [0.5, 0.5]
    assert ProxyFL(ema=0.0).new_prior(prior, counts).tolist() == [0.75, 0.25]
    assert ProxyFL(ema=0.0).new_prior(prior, torch.zeros(2)).tolist() == [0.5, 0.5]


def one_round(federation: Federation, method: Any = None, client: int = 1) -> ClientResult:
    if method is not None:
        federation.method = replace(method, optimizer=federation.method.optimizer)
    net, method = federation.net, federation.method
    server = method.init(net, net.first, federation.task)
    with torch.no_grad():
        plan = federation.plan(1, client)
        return client_round(host_lane(federation), method, server, federation.new_state(server, client), plan)


def equal(result: ClientResult, older: ClientResult) -> bool:
    a, b = result.upload.weights.params, older.upload.weights.params
    return all(torch.equal(t, a[name]) for name, t in b.items())


@pytest.mark.parametrize("mask", ["union", "global"])
def test_without_contrast_it_is_a_fixmatch(mask: str, make_federation: Make) -> None:
    """Global label where either model is sure: SAGE with a local vote of weight 0; where the global one is: GPL."""
    host = FixMatch(assign=Sage(Constant(0.0))) if mask == "union" else fixmatch_gpl()
    settings = ("method.name=proxyfl", "method.beta=0", "method.tau=0.3", f"method.mask={mask}")
    plain = one_round(make_federation(*settings))
    older = one_round(make_federation("method.name=fixmatch-gpl"), replace(host, accept=proxyfl(tau=0.3).accept))
    assert equal(plain, older)
    if mask == "union":  # one client's fresh model gives all images of the other case one common class
        assert not equal(one_round(make_federation(*settings, "method.beta=1")), older)
    assert proxyfl(mask="global").assign == GlobalOnly()


def test_without_both_weights_it_trains_on_labels_alone(make_federation: Make) -> None:
    """On the same forward plan: FixMatch whose labels weigh nothing."""
    plain = one_round(make_federation("method.name=proxyfl", "method.beta=0", "method.mu_u=0"))
    assert equal(plain, one_round(make_federation("method.name=fixmatch-lpl", "method.mu_u=0")))


def test_heads_learn_from_the_contrast_alone_and_are_not_deployed(make_federation: Make) -> None:
    names = [f"{FEATURES}weight", f"{FEATURES}bias", f"{PROXIES}weight"]
    for beta, moves in ((0, False), (1, True)):
        federation = make_federation("method.name=proxyfl", f"method.beta={beta}", "train.weight_decay=0")
        server = federation.method.init(federation.net, federation.net.first, federation.task)
        after = one_round(federation).upload.weights.params
        assert [not torch.equal(after[n], server.weights.params[n]) for n in names] == [moves] * 3
        assert set(federation.method.deploy(federation.net, server).params) == set(federation.net.first.params)
    d = server.weights.params[CLASSIFIER].shape[1]
    assert sum(server.weights.params[n].numel() for n in names) == 2 * d * d + d


def test_the_contrast_leaves_the_classifiers_bias_alone(make_federation: Make) -> None:
    federation = make_federation("method.name=proxyfl", "train.steps_per_round=1", "train.weight_decay=0")
    biases = [
        one_round(federation, proxyfl(beta=beta)).upload.weights.params["head.linear.bias"] for beta in (0.0, 50.0)
    ]
    assert torch.equal(*biases)


def test_counts_are_those_of_the_last_epoch(make_federation: Make) -> None:
    """Nothing accepted: the labeled draws of one of two epochs, with repetitions."""
    federation = make_federation("method.name=proxyfl", "method.tau=1.0")
    result, plan = one_round(federation), federation.plan(1, 1)
    labels = federation.pool.labels[plan.draw.x_row[plan.draw.clock.last_epoch > 0]]
    assert result.upload.extras[COUNTS].tolist() == torch.bincount(labels.flatten(), minlength=4).tolist()
    assert 0 < labels.numel() < plan.draw.x_row.numel()
    assert result.state == {}


def test_a_client_without_labels_adds_no_true_class(make_federation: Make) -> None:
    federation = make_federation("method.name=proxyfl", "method.tau=1.0", "method.icpl_labels=given")
    method, net = federation.method, federation.net
    server = method.init(net, net.first, federation.task)
    local, plan = method.start(server, {}), federation.plan(1, 1)
    results = []
    for labels in (federation.pool.labels, federation.pool.labels.flip(0)):
        federation.pool.labels = labels
        draw = plan.draw._replace(has_labels=torch.zeros_like(plan.draw.has_labels))
        with torch.no_grad():
            results.append(host_lane(federation).run(server, local, draw)[0])
    assert results[0].state[COUNTS].sum().item() == 0
    assert all(torch.equal(t, results[1].weights.params[n]) for n, t in results[0].weights.params.items())


def test_the_server_tunes_classifier_rows_and_nothing_else(make_federation: Make) -> None:
    federation = make_federation("method.name=proxyfl", "method.tuning_epochs=5", "method.ema=0")
    method, net = federation.method, federation.net
    server = method.init(net, net.first, federation.task)
    uploads = [one_round(federation, client=k).upload for k in (0, 1)]
    mean = mean_weights(uploads)
    tuned = method.aggregate(net, server, uploads, np.random.default_rng(0))
    differ = [n for n, t in tuned.weights.params.items() if not torch.equal(t, mean.params[n])]
    assert differ == [CLASSIFIER]
    assert all(torch.equal(t, mean.buffers[n]) for n, t in tuned.weights.buffers.items())
    counts = uploads[0].extras[COUNTS] + uploads[1].extras[COUNTS]
    torch.testing.assert_close(tuned.extras[PRIOR], counts / counts.sum())
    for off in (Tuning(epochs=0), Tuning(lr=0.0)):
        plain = replace(method, tuning=off).aggregate(net, server, uploads, np.random.default_rng(0))  # type: ignore[call-arg]
        assert torch.equal(plain.weights.params[CLASSIFIER], mean.params[CLASSIFIER])


def test_heads_follow_the_seed_and_the_prior_stays_a_distribution(make_federation: Make) -> None:
    engines = [LocalEngine(make_federation("method.name=proxyfl", f"seed={seed}")) for seed in (7, 7, 8)]
    heads = [e.snapshot.server.weights.params[f"{FEATURES}weight"] for e in engines]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    list(engines[0].rounds(2))
    prior = engines[0].snapshot.server.extras[PRIOR]
    assert prior.sum().item() == pytest.approx(1, abs=1e-6)
    assert prior.unique().numel() > 1


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match=r"method.tuning_epochs = 2.5: expected a whole number"):
        build_method("proxyfl", {"tuning_epochs": 2.5})
    with pytest.raises(ValueError, match=r"method.tuning_batch = 0: expected a number from 1"):
        build_method("proxyfl", {"tuning_batch": 0})
