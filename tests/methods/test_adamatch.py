"""AdaMatch's means, alignment and threshold: the numbers of both codes' arithmetic, and what clients share."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fssl.core.federation import Federation
from fssl.data.sources import Dataset
from fssl.methods.adamatch import BEGUN, KAPPA, MEAN_C, MEAN_X, PI_U, PI_X, AdaMatch, adamatch, aligned
from fssl.methods.names import build_method
from fssl.models import Out
from fssl.types import Batch, Clock, Counts, Payload, State, Task, Weights
from helpers.matrix import equal, trained
from helpers.small import refusal

Make = Callable[..., Federation]
NOTHING: Any = None
P_X = torch.tensor([[0.9, 0.05, 0.05], [0.2, 0.7, 0.1]])
P_L = torch.tensor([[0.95, 0.03, 0.02], [0.1, 0.2, 0.7], [0.45, 0.40, 0.15]])


def met(method: AdaMatch, p_x: torch.Tensor, p_l: torch.Tensor, state: State, has_labels: float = 1.0) -> State:
    """The state before the votes of a step with these predictions."""
    y, one = torch.zeros(len(p_x), dtype=torch.long), torch.ones(())
    batch = Batch({}, y, y, has_labels * one, Clock(one, one, one), {})
    return method.meet(Out(p_x.log(), p_x), p_l, batch, state)


def first_state(method: AdaMatch) -> State:
    shared = {MEAN_X: torch.tensor([0.5, 0.25, 0.25]), MEAN_C: torch.tensor(0.8)}
    payload = Payload(Weights({}, {}), shared)
    own = method.client_state(payload, Task(3, 4), Counts(1, 4))
    return method.start(payload, own).state


def close(found: torch.Tensor, expected: Any) -> None:
    torch.testing.assert_close(found, torch.tensor(expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("tau", "kappa"), [(0.95, 0.76), (0.9, 0.72)])
def test_a_first_step_by_hand(tau: float, kappa: float) -> None:
    """The third image is labeled 1 instead of 0, but is not sure."""
    method = adamatch(tau=tau)
    state = met(method, P_X, P_L, first_state(method))
    close(state[PI_X], [0.333550, 0.333375, 0.333075])
    close(state[PI_U], [0.5, 0.21, 0.29])
    close(state[KAPPA], kappa)
    expected = [[0.899771, 0.067616, 0.032613], [0.056145, 0.267214, 0.676641], [0.271063, 0.573376, 0.155561]]
    close(aligned(P_L, state), expected)
    votes = method.vote(P_L, P_L, NOTHING, state, NOTHING)
    assert votes["mask"].tolist() == [True, False, False]
    assert votes["target"].argmax(-1).tolist() == [0, 2, 1]


def test_a_second_step_by_hand() -> None:
    method = adamatch(ema=0.9)
    state = met(method, P_X, P_L, first_state(method))
    state = met(method, torch.tensor([[0.6, 0.3, 0.1]]), torch.tensor([[0.2, 0.5, 0.3]]), state)
    close(state[PI_X], [0.379500, 0.333750, 0.286750])
    close(state[PI_U], [0.470, 0.239, 0.291])
    close(aligned(torch.tensor([[0.2, 0.5, 0.3]]), state), [[0.139778, 0.604348, 0.255874]])


def test_equal_means_and_certain_labels_are_a_fixed_threshold() -> None:
    method = adamatch(tau=0.7)
    state = met(method, torch.tensor([[1.0, 0.0, 0.0]]), P_L, first_state(method))
    close(state[KAPPA], 0.7)
    same = {**state, PI_X: state[PI_U]}
    close(aligned(P_L, same), P_L.tolist())
    fixed: Any = build_method("fixmatch-lpl", {"tau": 0.7})
    votes = [of.vote(P_L, P_L, NOTHING, same, NOTHING) for of in (method, fixed)]
    assert votes[0]["mask"].tolist() == votes[1]["mask"].tolist()


def test_a_client_without_labels_takes_what_others_share() -> None:
    method = adamatch(tau=0.5)
    state = met(method, P_X, P_L, first_state(method), has_labels=0.0)
    close(state[PI_X], [0.5, 0.25, 0.25])
    close(state[KAPPA], 0.4)
    assert state[BEGUN].item() == 1


def test_what_is_shared_is_a_mean_by_labels_and_can_be_rejected(make_federation: Make) -> None:
    federation = make_federation("method.name=adamatch")
    net, method = federation.net, federation.method
    server = method.init(net, net.first, federation.task)
    uploads = []
    for client, (labels, level) in enumerate([(1, 0.4), (3, 0.8), (0, 0.1)]):
        payload = method.payload(server, client)
        local = method.start(payload, method.client_state(payload, federation.task, Counts(labels, 10)))
        state = {**local.state, PI_X: torch.tensor([level, 1 - level, 0, 0]), "ada.confidence": torch.tensor(2 * level)}
        state["ada.steps"] = torch.tensor(2.0)
        uploads.append(method.upload(client, payload, local._replace(state=state), Counts(labels, 10)))
    after = method.aggregate(net, server, uploads, np.random.default_rng(0))
    close(after.extras[MEAN_X], [0.7, 0.3, 0.0, 0.0])
    close(after.extras[MEAN_C], 0.7)
    alone = make_federation("method.name=adamatch", "method.share=false").method
    assert alone.upload(0, payload, local, Counts(1, 10)).extras == {}
    kept = alone.aggregate(net, server, [alone.upload(0, payload, local, Counts(1, 10))], np.random.default_rng(0))
    assert kept.extras[MEAN_X].tolist() == [0.25] * 4
    assert kept.extras[MEAN_C].item() == 1  # so that the threshold is tau


def test_the_weight_rises_over_the_first_half() -> None:
    method = adamatch(mu_u=2.0, ramp_rounds=40)  # of 80 rounds
    one = torch.ones(())
    found = [method.weight_at(Clock(1 + 80 * t * one, one, one)) for t in (0, 1 / 8, 1 / 4, 1 / 2, 1)]
    close(torch.stack([torch.as_tensor(w) for w in found]), [0.0, 0.292893, 1.0, 2.0, 2.0])
    assert adamatch().weight_at(NOTHING) == 1.0


def test_labeled_logits_may_be_mixed_with_a_pass_over_them_alone(make_federation: Make) -> None:
    """A number of 0 leaves those of the joint batch, 1 takes the others, and 1/4 lies between: 1 + (3 - 1) / 4."""
    method = adamatch(interpolate=True)
    federation = make_federation("method.name=adamatch", "method.interpolate=true")
    net, one = federation.net, torch.ones(())
    x, weak, strong = (torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(n)) for n in (4, 8, 8))
    views = {"x": x, "u_weak": weak, "u_strong": strong}

    def logits(share: float) -> torch.Tensor:
        extras = {"numbers": torch.full((4, 4), share)}
        batch = Batch(views, torch.zeros(4).long(), torch.zeros(8).long(), one, Clock(one, one, one), {}, extras)
        return method.look(net, net.first, batch)[1][0].logits

    joint, alone = net.fit(net.first, x, weak, strong)[1][0].logits, net.fit(net.first, x)[1][0].logits
    assert torch.equal(logits(0.0), joint)
    torch.testing.assert_close(logits(1.0), alone)
    torch.testing.assert_close(logits(0.25), joint + (alone - joint) / 4)
    assert federation.plan(1, 1).draw.extras["numbers"].shape[1:] == (8, 4)


def test_each_switch_changes_a_round(make_federation: Make) -> None:
    words = ("method.name=adamatch", "train.steps_per_round=3")
    usual = trained(make_federation(*words))
    for switch in ("interpolate=true", "strong_labels=true", "ramp_rounds=5", "tau=0.5"):
        assert not equal(trained(make_federation(*words, f"method.{switch}")), usual), switch


def test_labels_at_the_server_are_rejected(tiny_data: Dataset) -> None:
    assert "trains on labels of clients" in refusal(["method.name=adamatch", "partition.labels=server"], tiny_data)
