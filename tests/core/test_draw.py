"""train.draw: who can be drawn in a round."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.core.images import divide_images
from fssl.core.privacy import most_rounds
from fssl.data.dataset import Split
from fssl.data.partition import Partition
from fssl.data.sources import Dataset
from fssl.data.split_file import save_partition
from fssl.engines.local import LocalEngine
from fssl.seeds import cohort
from fssl.types import Weights
from helpers.small import refusal, tiny_config

Make = Callable[..., Federation]
SOME = ("partition.kind=iid", "partition.clients=6", "partition.labeled_clients=3", "train.clients_per_round=2")
LABELED = "train.draw=labeled"


def trained(federation: Federation) -> tuple[list[list[int]], Weights]:
    """Who took part in three rounds, and the model after them."""
    engine = LocalEngine(federation)
    drawn = [result.clients for result in engine.rounds(3)]
    return drawn, engine.model()


@pytest.mark.parametrize("labels", ["few-clients", "knowing-clients"])
def test_only_clients_with_labels_are_drawn(labels: str, make_federation: Make) -> None:
    some, labeled = (make_federation(*SOME, f"partition.labels={labels}", *more) for more in ((), (LABELED,)))
    assert any(client >= 3 for round in range(1, 21) for client in some.drawn_clients(round))
    for round in range(1, 21):
        assert labeled.drawn_groups(round) == [cohort(labeled.config.seed, 3, 2, round)]
        assert all(labeled.counts(client).labeled for client in labeled.drawn_clients(round))


@pytest.mark.parametrize("method", ["fedavg", "fixmatch-lpl", "sage"])
def test_it_is_a_federation_of_the_clients_with_labels(method: str, tmp_path: Path, tiny_data: Dataset) -> None:
    """The same bits as where there are no other clients, and no images of others."""
    config = tiny_config(*SOME, "partition.labels=knowing-clients", f"method.name={method}", LABELED)
    labeled = divide_images(config, tiny_data)[0].labeled[:3]
    kept = np.sort(np.concatenate(labeled))
    images, file = tiny_data._replace(train=Split(*(part[kept] for part in tiny_data.train))), tmp_path / "split.json"
    renumbered = tuple(np.searchsorted(kept, rows) for rows in labeled)
    save_partition(Partition(renumbered, tuple(rows[:0] for rows in renumbered)), file)
    alone = tiny_config(f"partition.file={file}", "train.clients_per_round=2", f"method.name={method}")
    (drawn, model), (drawn_alone, model_alone) = (
        trained(Federation(prepare(*each))) for each in ((config, tiny_data), (alone, images))
    )
    assert drawn == drawn_alone
    assert {client for round in drawn for client in round} == {0, 1, 2}
    for ours, theirs in zip(model, model_alone, strict=True):
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_where_all_have_labels_nothing_changes(make_federation: Make) -> None:
    known = (
        "partition.labels=knowing-clients",
        "partition.kind=iid",
        "partition.clients=4",
        "partition.labeled_clients=4",
    )
    (drawn, model), (drawn_all, model_all) = (trained(make_federation(*known, *more)) for more in ((LABELED,), ()))
    assert drawn == drawn_all
    assert all(torch.equal(model.params[key], model_all.params[key]) for key in model.params)


def test_no_round_lacks_labels_then(make_federation: Make) -> None:
    assert any("20% of all rounds draw no labeled client" in note for note in make_federation(*SOME).experiment.notes)
    assert not any("draw no labeled client" in note for note in make_federation(*SOME, LABELED).experiment.notes)


def test_the_guarantee_counts_the_clients_that_can_be_drawn() -> None:
    config = tiny_config(*SOME, LABELED)
    drawn = [client for round in range(1, 31) for client in cohort(config.seed, 3, 2, round)]
    assert most_rounds(config, 30) == max(map(drawn.count, range(3)))


ONLY_SOME = "; remove it, or use partition.labels = 'few-clients' or 'knowing-clients'"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([], f"train.draw = 'labeled' does not work with partition.labels = 'all-clients'{ONLY_SOME}"),
        (
            ["partition.labels=server"],
            f"train.draw = 'labeled' does not work with partition.labels = 'server'{ONLY_SOME}",
        ),
        (
            ["partition.file=split.json"],
            f"train.draw = 'labeled' does not work with partition.labels = 'all-clients'{ONLY_SOME}",
        ),
        (
            [*SOME, "train.clients_per_round=4"],
            "train.clients_per_round = 4: expected at most partition.labeled_clients = 3",
        ),
    ],
)
def test_it_is_rejected_where_it_says_nothing(settings: list[str], said: str, tiny_data: Dataset) -> None:
    assert refusal([*settings, LABELED], tiny_data) == said
