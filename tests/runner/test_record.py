"""What a line of the record says of losses and steps."""

from collections.abc import Callable

import pytest

from fssl.core.federation import Federation
from fssl.engines.local import LocalEngine
from fssl.runner.record import describe

Make = Callable[..., Federation]
FEW = ("partition.clients=6", "partition.labeled_clients=2", "train.clients_per_round=6", "train.batch=10")


@pytest.mark.parametrize("method", ["sage", "fedavg", "fedavg-sl"])
def test_the_loss_on_labels_is_a_mean_over_clients_that_have_some(method: str, make_federation: Make) -> None:
    federation = make_federation(f"method.name={method}", *FEW)
    engine = LocalEngine(federation)
    (result,) = engine.rounds(1)
    line, arrays = describe(federation, engine.layout, result)
    number = 6 if method == "fedavg-sl" else 2
    steps = [federation.num_steps(client) for client in range(6)]
    assert arrays["steps"].tolist() == [taken if method == "sage" or k < number else 0 for k, taken in enumerate(steps)]
    assert line["loss_s"] == pytest.approx(arrays["l_s"].sum() / sum(steps[:number]))
    assert line["loss_s"] > 1  # near log 10: the first round of ten classes


def test_a_round_without_labels_has_no_loss_on_them(make_federation: Make) -> None:
    federation = make_federation("method.name=sage", *FEW[:2], "train.clients_per_round=1", "seed=3")
    engine = LocalEngine(federation)
    lines = [describe(federation, engine.layout, result)[0] for result in engine.rounds(16)]
    assert {line["clients"][0] < 2 for line in lines} == {True, False}
    assert all((line["loss_s"] is None) == (line["clients"][0] >= 2) for line in lines)
    assert all(line["loss_u"] is not None for line in lines)


def test_steps_are_whole_numbers(make_federation: Make) -> None:
    """Thirds and tenths do not add up to one in binary numbers."""
    federation = make_federation("partition.labels=server", "train.batch=3", "server.batch=10", "method.name=sage")
    engine = LocalEngine(federation)
    (result,) = engine.rounds(1)
    line, arrays = describe(federation, engine.layout, result)
    assert line["sums"]["steps"] == sum(federation.num_steps(client) for client in result.clients)
    assert arrays["server.steps"] == line["server_steps"]
