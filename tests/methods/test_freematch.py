"""FreeMatch: running means, thresholds by class and the fairness term, worked by hand."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fssl.core.federation import Federation
from fssl.data.cards import card
from fssl.engines.local import LocalEngine
from fssl.errors import UserError
from fssl.label.adaptive import H_TILDE, P_TILDE, TAU, FreeThreshold, fairness
from fssl.methods.fixmatch import Seen
from fssl.methods.freematch import FreeMatch, freematch
from fssl.methods.names import build_method, defaults_on
from fssl.models import Out
from fssl.types import Batch, Clock, Counts, Local, Server, Task, Weights

Make = Callable[..., Federation]
TASK, COUNTS = Task(num_classes=2, max_slots=4), Counts(labeled=1, pool=4)
P = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.4, 0.6], [0.8, 0.2]])


def known(tau: float, p: list[float], h: list[float]) -> dict[str, torch.Tensor]:
    return {TAU: torch.tensor(tau), P_TILDE: torch.tensor(p), H_TILDE: torch.tensor(h)}


def test_means_start_flat_and_accept_everything() -> None:
    rule = FreeThreshold()
    state = rule.init(TASK, COUNTS)
    assert (state[TAU].item(), state[P_TILDE].tolist(), state[H_TILDE].tolist()) == (0.5, [0.5, 0.5], [0.5, 0.5])
    assert rule.sure(P, state).all()


def test_running_means_by_hand() -> None:
    """Maxima .9 .7 .6 .8: mean .75. Probabilities: mean (.7 .3). Votes 0 0 1 0: (3/4 1/4). With a factor of 0.8
    from 1/2 each: .8 * .5 + .2 * .75 = .55; (.54 .46); (.55 .45)."""
    rule = FreeThreshold(0.8)
    after = rule.observe(P, rule.init(TASK, COUNTS))
    torch.testing.assert_close(after[TAU], torch.tensor(0.55))
    torch.testing.assert_close(after[P_TILDE], torch.tensor([0.54, 0.46]))
    torch.testing.assert_close(after[H_TILDE], torch.tensor([0.55, 0.45]))


def test_thresholds_by_hand() -> None:
    """tau = .8, p~ = (.75 .25): thresholds .8 and .8 / 3 = .267. Of P, .9 and .8 (the boundary) are sure of class 0,
    .7 is not, and .6 is enough for class 1."""
    assert FreeThreshold().sure(P, known(0.8, [0.75, 0.25], [0.5, 0.5])).tolist() == [True, False, True, True]


def test_thresholds_have_limits_on_svhn_only() -> None:
    """tau = .97, p~ = (.75 .25): thresholds .97 and .323; within .9 and .95 they are .95 and .9."""
    p = torch.tensor([[0.96, 0.04], [0.94, 0.06], [0.11, 0.89], [0.1, 0.9]])
    state = known(0.97, [0.75, 0.25], [0.5, 0.5])
    assert FreeThreshold().sure(p, state).tolist() == [False, False, True, True]
    assert FreeThreshold(0.999, 0.9, 0.95).sure(p, state).tolist() == [True, False, False, True]
    limits = {name: defaults_on("freematch", card(name)) for name in ("svhn", "cifar10")}
    assert [(found["lowest"], found["highest"]) for found in limits.values()] == [(0.9, 0.95), (0.0, 1.0)]


def test_even_means_are_a_fixed_threshold() -> None:
    p = torch.softmax(3 * torch.randn(200, 4, generator=torch.Generator().manual_seed(2)), -1)
    state = known(0.7, [0.25] * 4, [0.25] * 4)
    assert torch.equal(FreeThreshold().sure(p, state), p.amax(-1) >= 0.7)


def test_votes_know_their_own_batch() -> None:
    """With a factor of 0 only this batch counts: tau = .75, p~ = (.7 .3), thresholds .75 and .321. The state before
    would have accepted everything."""
    method, zero = freematch(ema=0.0), torch.zeros(())
    batch = Batch({}, zero, torch.arange(4), zero, Clock(zero, zero, zero), {})
    state = method.meet(Out(P, P), P, batch, method.accept.init(TASK, COUNTS))
    votes = method.vote(P, P, Server(Weights({}, {}), {}), state, batch)
    assert votes["mask"].tolist() == [True, False, True, True]


def test_fairness_by_hand() -> None:
    """Strong views say (3/4 1/4), (3/4 1/4), (1/4 3/4); the fourth image is not accepted. Sums (7/4 5/4), votes
    2 and 1: ratios 7/8 and 5/4, normalized (7/17 10/17). Means p~ = (.6 .4), h~ = (.75 .25): ratios .8 and 1.6,
    normalized (1/3 2/3). L_f = 1/3 log 7/17 + 2/3 log 10/17."""
    q = torch.tensor([[0.75, 0.25], [0.75, 0.25], [0.25, 0.75], [0.01, 0.99]])
    mask = torch.tensor([True, True, True, False])
    state = known(0.5, [0.6, 0.4], [0.75, 0.25])
    expected = math.log(7 / 17) / 3 + 2 * math.log(10 / 17) / 3
    assert fairness(q.log(), mask, state).item() == pytest.approx(expected, rel=1e-5)
    out = Out(q.log(), q)
    local = Local(Weights({}, {}), {}, state)
    nothing: Any = None
    term, after = freematch(saf=0.05).extra(nothing, nothing, local, nothing, Seen(out, out, out, {"mask": mask}))
    assert term.item() == pytest.approx(0.05 * expected, rel=1e-5)
    assert after is state


def test_a_class_without_votes_gets_nothing() -> None:
    """One image, voted 0: normalized (1 0); with an even target 1/2 log 1 + 1/2 log 1e-12."""
    value = fairness(torch.tensor([[1.0, 0.0]]), torch.tensor([True]), known(0.5, [0.5, 0.5], [0.5, 0.5]))
    assert value.item() == pytest.approx(0.5 * math.log(1e-12), rel=1e-5)


def test_without_accepted_images_there_is_neither_term_nor_gradient() -> None:
    logits = torch.randn(3, 2, requires_grad=True)
    term = fairness(logits, torch.zeros(3, dtype=torch.bool), known(0.5, [0.6, 0.4], [0.5, 0.5]))
    term.backward()
    assert term.item() == 0
    assert logits.grad is not None
    assert not logits.grad.any()


def test_means_survive_the_round(make_federation: Make) -> None:
    """A client that comes back with a mean of 5 still has one above 4 after its few steps: 0.99^10 = 0.904."""
    engine = LocalEngine(make_federation("method.name=freematch", "method.ema=0.99", "train.clients_per_round=4"))
    list(engine.rounds(1))
    assert all(0.25 < state[TAU].item() < 1 for state in engine.snapshot.clients.values())
    engine.snapshot.clients[2][TAU].fill_(5)
    list(engine.rounds(2))
    assert {k: state[TAU].item() > 4 for k, state in engine.snapshot.clients.items()} == {k: k == 2 for k in range(4)}


def test_the_plug_in_keeps_the_thresholds() -> None:
    both = build_method("freematch+sage", {"ema": 0.9, "saf": 0.1})
    assert isinstance(both, FreeMatch)
    assert (both.accept, both.saf) == (FreeThreshold(0.9), 0.1)


@pytest.mark.parametrize(
    ("settings", "said"), [({"ema": -0.1}, "method.ema"), ({"saf": -1}, "method.saf"), ({"tau": 0.9}, "tau")]
)
def test_bad_settings(settings: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        build_method("freematch", settings)
    assert "\n" not in str(error.value)
