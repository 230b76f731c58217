"""What sites say of a model: by hand, and through runs on one machine."""

import pytest

from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.core.site_scores import SiteScore, Sums, site_facts, together
from fssl.engines.local import LocalEngine
from fssl.records.rounds import BestRound
from helpers.small import tiny_config

SCORES = [
    SiteScore(0, {"test": Sums(10, 9, 5.0), "validation": Sums(4, 1, 8.0)}),
    SiteScore(1, {"test": Sums(30, 15, 45.0)}),
    SiteScore(2, {}),
]


def test_the_record_by_hand() -> None:
    """Accuracies are 90 and 50: mean 70, standard deviation 20."""
    test = site_facts(SCORES)["test"]
    assert (test["worst"], test["worst_client"], test["mean"], test["spread"]) == (50, 1, 70, 20)
    assert test["clients"]["1"] == {"images": 30, "accuracy": 50, "loss": 1.5}
    assert [*test["clients"]] == ["0", "1"]
    assert site_facts(SCORES[2:]) == {}


def test_all_sites_together_count_every_image_the_same() -> None:
    assert (together(SCORES, "test") or ())[:2] == (60.0, 1.25)
    assert (together(SCORES, "validation") or ())[:2] == (25.0, 2.0)
    assert together(SCORES[1:], "validation") is None


@pytest.mark.parametrize("every", [1, 2])
def test_sums_of_clients_are_the_test_of_their_images(every: int) -> None:
    """Each held-out image belongs to one client, so all together are the server's own test of the validation part."""
    config = tiny_config("data.name=digits", "data.validation=0.3", f"records.sites_every={every}", "train.rounds=3")
    federation = Federation(prepare(config))
    for result in LocalEngine(federation).rounds(3):
        scores = [each for each in result.scores if isinstance(each, SiteScore)]
        assert [score.client for score in scores] == ([0, 1, 2, 3] if result.round % every == 0 else [])
        if scores:
            found = together(scores, "validation")
            assert result.validation is not None
            assert found is not None
            assert found.accuracy == pytest.approx(result.validation.accuracy)
            assert found.loss == pytest.approx(result.validation.loss, rel=1e-5)
            assert sum(score.parts["validation"].images for score in scores) == len(federation.holdings.held_out)


def test_rounds_without_scores_are_not_the_best() -> None:
    config = tiny_config("data.validation=0.3", "train.patience=3")
    lines = [{"round": 1}, {"round": 2, "validation": {"accuracy": 50.0}}, {"round": 3}, {"round": 4}, {"round": 5}]
    progress = BestRound(config, lines[:4])
    assert (progress.best, progress.is_over) == ((2, 50.0), False)
    assert (progress.take(lines[4]), progress.is_over) == (False, True)
