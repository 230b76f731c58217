"""What a saved model says of itself: its images are normalized as in the test that its accuracy comes from."""

import pytest

from fssl.core.evaluate import model_facts
from fssl.data.cards import CARDS
from helpers.small import tiny_config


@pytest.mark.parametrize(
    ("protocol", "std"), [("clean", [0.2471, 0.2435, 0.2616]), ("authors", [0.2023, 0.1994, 0.2010])]
)
def test_a_model_is_saved_with_the_normalization_of_its_protocol(protocol: str, std: list[float]) -> None:
    """CIFAR-10's mean is the same in both; the released code tests with another spread than it trains with."""
    facts = model_facts(tiny_config("data.name=cifar10", f"protocol={protocol}"), CARDS["cifar10"])
    assert (facts["mean"], facts["std"]) == ([0.4914, 0.4822, 0.4465], std)


def test_a_mean_of_the_tests_own_is_saved_with_its_spread() -> None:
    """CIFAR-100's images are trained on with CIFAR-10's numbers, and tested by the released code with their own."""
    card = CARDS["cifar100"]
    for protocol, mean in (("clean", card.train_mean), ("authors", card.test_mean)):
        facts = model_facts(tiny_config("data.name=cifar100", f"protocol={protocol}"), card)
        assert (facts["mean"], facts["classes"]) == ([*mean], [*card.class_names])
    assert card.train_mean != card.test_mean
