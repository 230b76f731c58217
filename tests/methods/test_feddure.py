"""FedDure: the student's progress, its sign, and what stays of the teacher without it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fssl.core.client import ClientResult, at, client_round
from fssl.core.federation import Federation
from fssl.label.assign import Sage, hard
from fssl.label.losses import cross_entropy
from fssl.methods.feddure import PARAMS, FedDure, feddure
from fssl.methods.names import build_method
from fssl.types import Batch, Clock, Local, Server, State, Weights, take
from helpers.small import host_lane

Make = Callable[..., Federation]


def one_round(federation: Federation, method: Any = None) -> ClientResult:
    if method is not None:
        federation.method = replace(method, optimizer=federation.method.optimizer)
    net, method = federation.net, federation.method
    server = method.init(net, net.first, federation.task)
    with torch.no_grad():
        return client_round(host_lane(federation), method, server, {}, federation.plan(1, 1))


def taught(federation: Federation, method: FedDure) -> tuple[float, State, State, Any]:
    """d, the student before and after, and the batch; the labels are the true ones."""
    net = federation.net
    server = method.init(net, net.first, federation.task)
    local = method.start(server, {})
    draw = at(federation.plan(1, 1).draw, 0)
    batch = federation.pool.batch(draw, federation.recipe.views, with_truth=True)
    p = torch.eye(4)[batch.truth["u"]]
    votes = {"target": p, "mask": torch.zeros(len(p), dtype=torch.bool)}
    with torch.no_grad():
        d, state = method.teach(net, local, batch, votes)
    return d.item(), take(PARAMS, local.state), take(PARAMS, state), batch


def test_d_is_the_change_of_the_labeled_loss(make_federation: Make) -> None:
    """d = l_1 - l_0, both in training mode on the joint batch of labeled and weak views; the other sign is -d."""
    federation = make_federation("method.name=feddure")
    method: Any = federation.method
    d, before, after, batch = taught(federation, method)
    buffers, losses = federation.net.first.buffers, []
    for phi in (before, after):
        _, (x, _) = federation.net.fit(Weights(phi, buffers), batch.x, batch.u_weak)
        losses.append(cross_entropy(x.logits, batch.y).item())
    assert d == pytest.approx(losses[1] - losses[0], abs=1e-6)
    assert abs(d) > 1e-4
    expected, *_ = taught(federation, replace(method, sign="expected"))
    assert expected == -d


def test_the_student_steps_along_its_own_gradient(make_federation: Make) -> None:
    """phi - eta (g + decay phi) with g the gradient of CE(f_phi(u_w), a_w) over all images, sure or not."""
    federation = make_federation("method.name=feddure")
    method: Any = federation.method
    _, before, after, batch = taught(federation, replace(method, student_rate=0.5))
    leaves = {name: t.clone().requires_grad_() for name, t in before.items()}
    _, (_, weak) = federation.net.fit(Weights(leaves, federation.net.first.buffers), batch.x, batch.u_weak)
    grads = torch.autograd.grad(cross_entropy(weak.logits, batch.truth["u"]), list(leaves.values()))
    for (name, t), g in zip(before.items(), grads, strict=True):
        torch.testing.assert_close(after[name], t - 0.5 * method.optimizer.lr * (g + method.optimizer.weight_decay * t))


def test_a_student_that_cannot_move_leaves_fixmatch(make_federation: Make) -> None:
    """Rate 0: l_1 = l_0, so d = 0, and the teacher trains as FixMatch-LPL with soft targets, bit for bit."""
    federation = make_federation("method.name=feddure", "method.tau=0.3")
    still = replace(federation.method, student_rate=0.0)  # type: ignore[call-arg]
    assert taught(federation, still)[0] == 0  # type: ignore[arg-type]
    teacher = one_round(federation, still).upload.weights.params
    host = one_round(make_federation("method.name=fixmatch-lpl", "method.vote=soft", "method.tau=0.3"))
    assert all(torch.equal(t, host.upload.weights.params[name]) for name, t in teacher.items())
    moving = one_round(make_federation("method.name=feddure", "method.tau=0.3")).upload.weights.params
    assert not torch.equal(moving["body.0.weight"], teacher["body.0.weight"])


def test_the_term_by_hand() -> None:
    """d = 0.5 and logits (2, 0), (0, 0): CE with their own argmax is log(1 + e^-2) and log 2, mean 0.410038."""

    class ClientFacts(FedDure):
        def teach(self, net: Any, local: Local, batch: Any, votes: State) -> tuple[torch.Tensor, State]:
            return torch.tensor(0.5), local.state

    class Strong:
        logits = torch.tensor([[2.0, 0.0], [0.0, 0.0]])

    class Shown:
        strong, votes = Strong, {}

    nothing: Any = None
    local = Local(Weights({}, {}), {}, {})
    term, _ = ClientFacts().extra(nothing, nothing, local, nothing, Shown)  # type: ignore[arg-type]
    assert term.item() == pytest.approx(0.5 * 0.410038, abs=1e-6)


def test_the_student_learns_the_likeliest_class_of_a_mixed_target_sure_or_not() -> None:
    """SAGE's target (.3 .7 0) is class 1 for the student, also where no model is sure."""

    class Asked(FedDure):
        def try_out(self, net: Any, local: Local, batch: Any, view: Any, labels: Any) -> Any:
            return labels

    votes = {"target": torch.tensor([[0.3, 0.7, 0.0], [0.0, 0.4, 0.6]]), "mask": torch.tensor([True, False])}
    batch: Any = Batch({"u_weak": votes["target"]}, *[torch.zeros(())] * 3, Clock(*[torch.zeros(())] * 3), {})
    labels: Any = Asked(assign=Sage()).teach(None, None, batch, votes)  # type: ignore[arg-type]
    assert labels.target.tolist() == [[0, 1, 0], [0, 0, 1]]
    assert labels.mask.tolist() == [True, True]


def test_only_the_teacher_is_sent_and_nothing_kept(make_federation: Make) -> None:
    federation = make_federation("method.name=feddure")
    result = one_round(federation)
    assert set(result.upload.weights.params) == set(federation.net.first.params)
    assert result.state == {}


def test_a_client_without_labels_has_no_progress_to_weigh(make_federation: Make) -> None:
    federation = make_federation("method.name=feddure")
    net, method = federation.net, federation.method
    server: Server = method.init(net, net.first, federation.task)
    draw = at(federation.plan(1, 1).draw, 0)._replace(has_labels=torch.zeros(()))
    batch = federation.pool.batch(draw, federation.recipe.views, with_truth=False)
    votes = {"target": hard(torch.rand(len(batch.u_weak), 4)), "mask": torch.ones(len(batch.u_weak))}
    with torch.no_grad():
        d, _ = method.teach(net, method.start(server, {}), batch, votes)  # type: ignore[attr-defined]
    assert d.item() == 0


def test_sage_labels_for_teacher_and_student() -> None:
    both = build_method("feddure+sage", {"tau": 0.9, "sign": "expected"})
    assert both == replace(feddure(tau=0.9, sign="expected"), assign=Sage())


def test_a_student_that_never_moves_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"method.student_rate = 0: expected a number from 1e-09"):
        build_method("feddure", {"student_rate": 0})
