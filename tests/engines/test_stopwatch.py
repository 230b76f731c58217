"""Where a round's time went: parts that are there, and that together are no longer than the round."""

import time
from collections.abc import Callable

import pytest
import torch

from fssl.core.federation import Federation
from fssl.engines.local import LocalEngine
from fssl.engines.stopwatch import Stopwatch, begin_run, spending, start_seconds

Make = Callable[..., Federation]
SERVER = ("partition.labels=server", "data.labels_per_class=4")


def test_each_part_has_what_passed_before_its_end() -> None:
    watch = Stopwatch(torch.device("cpu"))
    for part, seconds in (("clients", 0.02), ("test", 0.01), ("clients", 0.03)):
        time.sleep(seconds)
        watch.ends(part)
    parts = watch.seconds()
    assert [*parts] == ["clients", "test"]
    assert parts["clients"] >= 0.05
    assert 0.01 <= parts["test"] < 0.05


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ((), ["clients", "test"]),
        (SERVER, ["server", "clients", "test"]),  # a warm-up of no epochs, too
        ((*SERVER, "server.when=before"), ["server", "clients", "test"]),
        ((*SERVER, "server.static_norm=all"), ["server", "static_norm", "clients", "test"]),
    ],
)
def test_a_round_lists_its_parts(settings: tuple[str, ...], parts: list[str], make_federation: Make) -> None:
    (result,) = LocalEngine(make_federation(*settings)).rounds(1)
    assert [*result.parts] == parts
    assert all(seconds > 0 for seconds in result.parts.values())
    assert sum(result.parts.values()) <= result.seconds


def test_the_start_of_a_run_does_not_count_that_of_the_one_before() -> None:
    for seconds in (0.02, 0.0):
        begin_run()
        with spending("compiling"):
            time.sleep(seconds)
    assert start_seconds()["compiling"] < 0.02
    begin_run()
    assert start_seconds() == {}


def test_what_takes_long_shows(make_federation: Make) -> None:
    engine = LocalEngine(make_federation(*SERVER))
    assert engine.own is not None
    trained = engine.own.train

    def slowly(*given: object) -> object:
        time.sleep(0.3)
        return trained(*given)  # type: ignore[arg-type]

    engine.own.train = slowly  # type: ignore[assignment, method-assign]
    (result,) = engine.rounds(1)
    assert result.parts["server"] > 0.3
    assert result.parts["clients"] + result.parts["test"] < result.seconds - 0.3
