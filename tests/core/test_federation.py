"""What a federation says of itself before it trains, and how it tests."""

from unittest.mock import Mock

import pytest
import torch

from fssl.augment.policies import Normalize
from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.engines.compiler import as_traced
from fssl.engines.engine import Engine
from fssl.engines.local import LocalEngine
from helpers.small import tiny_config

ONE_KNOWS = ("partition.labels=knowing-clients", "partition.labeled_clients=1", "partition.kind=shards")


def notes(*settings: str) -> list[str]:
    return prepare(tiny_config(*settings)).notes


def test_classes_without_a_label_are_pointed_out() -> None:
    """One client with labels, of few classes; where all labels are known, or at the server, there is nothing to say."""
    all_drawn = "train.clients_per_round=4"
    one = prepare(tiny_config(*ONE_KNOWS, "partition.classes_per_client=5", all_drawn))
    assert one.holdings.labeled is not None
    lacking = [str(c) for c, number in enumerate(one.holdings.labeled.sum(0)) if not number]
    assert lacking
    assert one.notes == [
        f"{len(lacking)} of 10 classes have no labeled image and cannot be learned: {', '.join(lacking)}"
    ]
    assert notes(*ONE_KNOWS, "partition.classes_per_client=5", "method.name=fedavg-sl") == []
    assert notes("partition.labels=server") == []
    assert notes() == []


def test_rounds_without_labeled_clients_are_pointed_out() -> None:
    """C(3, 2) of C(4, 2) draws have none of one client, C(2, 2) none of two, and none has none of three."""
    few = ("partition.clients=4", "train.clients_per_round=2", "partition.kind=iid")
    found = [notes(*few, f"partition.labeled_clients={number}") for number in (1, 2, 3)]
    text = "{} of 4 clients have labels, and 2 are drawn: {}% of all rounds draw no labeled client"
    assert found == [[text.format(1, 50)], [text.format(2, 17)], []]


def test_a_run_that_is_over_before_a_second_stage_says_so() -> None:
    text = "method.burn_in = 3: the run ends after 3 rounds, within the first stage"
    for rounds, said in ((3, [text]), (4, [])):
        assert notes("method.name=cbafed", "method.burn_in=3", f"train.rounds={rounds}") == said


def test_a_server_that_keeps_its_labels_to_itself_is_pointed_out() -> None:
    text = "server.epochs = 0: no training uses the labels, which are at the server"
    assert notes("partition.labels=server", "server.epochs=0") == [text]


@pytest.mark.slow
def test_all_tests_of_a_run_share_one_compiled_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two normalizations and two halves of the test images, at one size of batch."""
    traced = Mock(side_effect=as_traced)
    monkeypatch.setattr("fssl.engines.compiler.compiled", traced)
    federation = Federation(prepare(tiny_config("data.test=final")))
    federation.norms["authors_norm"] = Normalize([0.5] * 3, [0.2] * 3, "cpu")
    weights, fleet = federation.net.first, LocalEngine(federation).fleet
    compiled, plain = (Engine(federation, fleet, compiles) for compiles in (True, False))
    assert torch.equal(compiled.test(weights), plain.test(weights))
    assert compiled.validate is not None
    assert plain.validate is not None
    assert torch.equal(compiled.validate(weights), plain.validate(weights))
    assert traced.call_count == 1
    of_test = plain.test(weights)
    assert not torch.equal(of_test[0], of_test[1])
