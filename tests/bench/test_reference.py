"""SAGE on one page is SAGE: `reference_step` gives the bits of the method `sage`, step after step."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from fssl.bench import speed
from fssl.bench.reference import PlainStep, reference_ms_of_steps, reference_step
from fssl.bench.speed import compared
from fssl.core.client import at
from fssl.core.federation import Federation
from fssl.data.sources import Dataset
from fssl.models import CLASSIFIER
from fssl.models.resnet import SmallCnn
from fssl.types import Batch, Server, State, Weights

Make = Callable[..., Federation]
STEPS, LR = 5, 0.05
OTHERS = {"tau": 0.8, "kappa": 5.0, "mu_u": 2.0}


class Twins:
    """One client's batches, and a local and a global model that differ and are as sure as trained ones."""

    def __init__(self, make: Make, settings: dict[str, float]) -> None:
        given = [f"method.{key}={value}" for key, value in settings.items()]
        self.federation = make("method.name=sage", f"train.lr={LR}", f"train.steps_per_round={STEPS}", *given)
        self.server, noise = self.federation.first_server(), torch.Generator().manual_seed(3)
        params, buffers = self.server.weights
        away = {name: t + 0.1 * torch.randn(t.shape, generator=noise) for name, t in params.items()}
        # Untrained models are sure of nothing. Steeper classifiers are: some reach 0.95, in every combination.
        self.start = Weights({**away, CLASSIFIER: 8 * away[CLASSIFIER]}, buffers)
        params[CLASSIFIER] *= 60

    def batches(self) -> list[Batch]:
        draw, views = self.federation.plan(1, 1).draw, self.federation.recipe.views
        return [self.federation.pool.batch(at(draw, i), views, with_truth=False) for i in range(STEPS)]

    def by_the_method(self) -> tuple[Weights, list[PlainStep], list[State]]:
        method, net = self.federation.method, self.federation.net
        local, steps, votes = method.start(Server(self.start, {}), {}), [], []
        for batch in self.batches():
            local, trace = method.step(net, self.server, local, batch)
            steps.append(PlainStep(**trace.losses, y_hat=trace.votes["target"], mask=trace.votes["mask"]))
            votes.append(trace.votes)
        return local.weights, steps, votes

    def by_the_page(self, settings: dict[str, float]) -> tuple[State, list[PlainStep]]:
        model, frozen = module(self.start).train(), module(self.server.weights).eval()
        before = deepcopy(frozen.state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=1e-4)
        steps = [
            reference_step(model, frozen, optimizer, b.x, b.y, b.u_weak, b.u_strong, **settings) for b in self.batches()
        ]
        assert all(torch.equal(t, before[name]) for name, t in frozen.state_dict().items())
        return model.state_dict(), steps


def module(weights: Weights) -> nn.Module:
    """An ordinary module with these weights. It also counts its batches, which are not read."""
    made = SmallCnn(3, 4)
    found = made.load_state_dict({**weights.params, **weights.buffers}, strict=False)
    assert all(name.endswith("num_batches_tracked") for name in found.missing_keys)
    assert found.unexpected_keys == []
    return made


def together(weights: Weights) -> State:
    return {**weights.params, **weights.buffers}


def equal(state: dict[str, Tensor], weights: Weights) -> bool:
    return all(torch.equal(state[name], t) for name, t in together(weights).items())


@pytest.mark.parametrize("settings", [{}, OTHERS], ids=["defaults", "others"])
def test_the_page_is_the_method_bit_for_bit(settings: dict[str, float], make_federation: Make) -> None:
    twins = Twins(make_federation, settings)
    weights, steps, _ = twins.by_the_method()
    state, own = twins.by_the_page(settings)
    assert len(steps) == STEPS
    for i, (theirs, ours) in enumerate(zip(steps, own, strict=True)):
        for name, a, b in zip(PlainStep._fields, theirs, ours, strict=True):
            assert torch.equal(a, b), f"{name} of step {i}"
    assert {"body.0.weight", CLASSIFIER, "body.1.running_mean", "body.1.running_var"} <= together(weights).keys()
    for name, t in together(weights).items():
        assert torch.equal(state[name], t), name
        assert not torch.equal(t, together(twins.start)[name]), f"{name} was not trained"


def test_all_cases_of_a_label_occur(make_federation: Make) -> None:
    """Else equal bits would prove little: every pair of sure and unsure models, and targets of two classes."""
    twins = Twins(make_federation, {})
    votes = twins.by_the_method()[2]
    sure_l, sure_g, y_hat, mask = (torch.cat([v[k] for v in votes]) for k in ("sure_l", "sure_g", "target", "mask"))
    for case in (sure_l & sure_g, sure_l & ~sure_g, ~sure_l & sure_g, ~sure_l & ~sure_g):
        assert case.sum() >= 8
    assert torch.equal(mask, sure_l | sure_g)
    assert (((y_hat > 0.01).sum(-1) == 2) & mask).sum() >= 8
    assert all(step.l_u > 0 for step in twins.by_the_page({})[1])


@pytest.mark.parametrize("mutation", [{"kappa": 6.0}, {"tau": 0.9}, {"mu_u": 1.0}], ids=str)
def test_another_setting_is_another_result(mutation: dict[str, float], make_federation: Make) -> None:
    twins = Twins(make_federation, OTHERS)
    weights = twins.by_the_method()[0]
    assert equal(twins.by_the_page(OTHERS)[0], weights)
    assert not equal(twins.by_the_page(OTHERS | mutation)[0], weights)


def test_the_benchmark_times_the_page(tiny_data: Dataset) -> None:
    """The views of its workers fit the step, also of a dataset with fewer images than the benchmark labels."""
    took = reference_ms_of_steps(tiny_data.card, tiny_data.train, SmallCnn(3, 10, 1), 4, 2, 2, torch.device("cpu"))
    assert (len(took), all(0 < each < 30_000 for each in took)) == (2, True)


def test_the_ratio_has_its_spread() -> None:
    """Rounds of 10 steps take 0.1 to 0.2 s, so 10 to 20 ms a step; 8 of 10 plain steps take 40 to 60 ms."""
    ours = {"ms_per_step": 12.5, "seconds_per_round_min_max": [0.1, 0.2], "steps_per_round": 10}
    found = compared(ours, [39.0, *[40.0] * 4, 50.0, *[60.0] * 4, 61.0])
    assert found["reference"]["ms_per_step"] == pytest.approx(50)
    assert found["reference"]["ms_per_step_p10_p90"] == [40, 60]
    assert found["ratio"] == pytest.approx(4)
    assert found["ratio_min_max"] == pytest.approx([2, 6])


def test_a_busy_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "cores", lambda: 2)
    monkeypatch.setattr("os.getloadavg", lambda: (0.9, 9.0, 9.0))
    assert speed.busy_warning() == []
    monkeypatch.setattr("os.getloadavg", lambda: (5.8, 0.0, 0.0))
    (line,) = speed.busy_warning()
    assert line == "WARNING: the machine is busy (load 5.8 on 2 cores): times and ratio are unreliable"
