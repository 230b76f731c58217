"""A prior in the supervised loss: values by hand, that every method takes it, and what is rejected."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fssl.core.federation import Federation
from fssl.data.sources import Dataset
from fssl.label.losses import supervised_loss
from fssl.methods.names import METHODS
from fssl.training.plan import log_prior
from fssl.types import LOG_PRIOR, Batch, Clock
from helpers.command import SMALL, Fssl, outcome
from helpers.matrix import equal, trained
from helpers.small import refusal

Make = Callable[..., Federation]
ON = "train.logit_adjustment=1"


def losses(z: list[float], sizes: list[int], tau: float = 1.0) -> list[float]:
    """CE(z + tau log pi, y) for each class y."""
    one, shift = torch.ones(()), torch.from_numpy(tau * log_prior(np.array(sizes)))
    logits, classes = torch.tensor([z], dtype=torch.float64), range(len(z))
    batches = [Batch({}, torch.tensor([y]), one, one, Clock(one, one, one), {}, {LOG_PRIOR: shift}) for y in classes]
    return [supervised_loss(logits, batch).item() for batch in batches]


def test_a_rare_class_costs_more() -> None:
    assert losses([2, 1, 1], [1500, 150, 15]) == pytest.approx([0.039669, 3.342254, 5.644840], abs=1e-6)
    assert losses([0, 0, 0], [60, 30, 10]) == pytest.approx([0.510826, 1.203973, 2.302585], abs=1e-6)
    post_hoc = (torch.tensor([2.0, 1.0, 1.0]) - torch.from_numpy(log_prior(np.array([1500, 150, 15])))).softmax(-1)
    assert post_hoc.tolist() == pytest.approx([0.024116, 0.088717, 0.887168], abs=1e-6)


def test_an_absent_class_leaves_the_softmax() -> None:
    assert losses([0, 0, 0], [60, 40, 0])[2] == pytest.approx(27.631021, abs=1e-6)


def test_own_and_global_priors_are_two_methods() -> None:
    """Of clients (80 20 0) and (10 10 80); together (90 30 80)."""
    assert losses([1, 0, 0], [80, 20, 0]) == pytest.approx([0.087983, 2.474278, 28.495861], abs=1e-6)
    assert losses([1, 0, 0], [10, 10, 80]) == pytest.approx([1.461150, 2.461150, 0.381709], abs=1e-6)
    assert losses([1, 0, 0], [90, 30, 80]) == pytest.approx([0.371309, 2.469921, 1.489092], abs=1e-6)


def test_even_shares_have_no_effect() -> None:
    assert losses([2, 1, 1], [5, 5, 5], tau=3) == pytest.approx(losses([2, 1, 1], [7, 1, 2], tau=0))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.slow
def test_every_method_takes_it(name: str, make_federation: Make) -> None:
    short = (f"method.name={name}", "train.steps_per_round=2", "partition.alpha=0.5")
    assert not equal(trained(make_federation(*short, ON)), trained(make_federation(*short)))


@pytest.mark.slow
def test_a_resumed_run_is_the_same_with_either_prior(fssl: Fssl) -> None:
    for prior in ("client", "global"):
        words = ("run", "smoke", *SMALL, "--set", ON, "--set", f"train.prior={prior}", "--set", "partition.alpha=0.1")
        assert fssl(*words, "--set", "train.rounds=4", "--out", f"{prior}-whole").code == 0
        assert fssl(*words, "--out", f"{prior}-parts").code == 0
        assert fssl(*words, "--set", "train.rounds=4", "--out", f"{prior}-parts", "--resume").code == 0
        assert outcome(f"{prior}-parts") == outcome(f"{prior}-whole")
    assert outcome("client-whole") != outcome("global-whole")


def test_a_server_with_labels_has_its_own_prior(make_federation: Make) -> None:
    federation = make_federation("partition.labels=server", ON)
    server: Any = federation.holdings.server
    assert np.ptp(server.by_class["log_prior"]) == 0  # as many labels of each class
    assert "log_prior" in federation.of_server().plan(1, 0).draw.extras


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            [ON, "train.class_weights=1"],
            "train.logit_adjustment = 1 does not work with train.class_weights = 1: both make up for rare classes in"
            " the loss; remove it",
        ),
        (
            [ON, "train.class_balance=0.5"],
            "train.logit_adjustment = 1 does not work with train.class_balance = 0.5: draws by class change the shares"
            " that the prior stands for; remove it",
        ),
        (
            ["train.prior=global"],
            "train.prior = 'global' has no effect with train.logit_adjustment = 0; remove it, or give"
            " train.logit_adjustment",
        ),
    ],
)
def test_what_does_not_go_together(settings: list[str], said: str, tiny_data: Dataset) -> None:
    assert refusal(settings, tiny_data) == said
