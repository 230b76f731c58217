"""Federations small enough to train in milliseconds."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from fssl.config import Config, override, parse
from fssl.console import Quiet
from fssl.core.client import loop, visit_all
from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.data.sources import Dataset
from fssl.engines.lanes import HostLane
from fssl.engines.local import LocalEngine
from fssl.errors import UserError
from fssl.methods import Method

TINY: dict[str, Any] = {
    "data": {"name": "synthetic", "labels_per_class": 8},
    "partition": {"kind": "paired-dirichlet", "alpha": 0.5, "clients": 4},
    "model": {"name": "cnn", "width": 1},
    "train": {"rounds": 2, "clients_per_round": 2, "local_epochs": 2, "batch": 8},
    "compute": {"device": "cpu"},
}
KNOWING = ("partition.labels=knowing-clients", "partition.labeled_clients=1", "partition.kind=iid")
# With these an untrained model labels images in a few steps, and clients without labels learn from them.
LABELING = {
    "semifl": ("method.tau=0.27",),
    "flfl": ("method.tau=0.27",),
    "cbafed": ("method.burn_in=0", "method.base=0", *KNOWING),
    "rscfed": KNOWING,
    "twin-sight": ("method.pseudo=0.5", *KNOWING),
    "semianagg": ("method.tau=0.01", *KNOWING),
}


def tiny_config(*settings: str) -> Config:
    return parse(override(TINY, list(settings)))


def refusal(settings: Sequence[str], dataset: Dataset) -> str:
    """The line with which settings are rejected."""
    with pytest.raises(UserError) as error:
        prepare(tiny_config(*settings), dataset)
    assert "\n" not in str(error.value)
    return str(error.value)


def completed(config: Config) -> Config:
    """The settings with everything filled in."""
    return prepare(config).config


def method_of(config: Config) -> Method:
    """The method that settings stand for."""
    return prepare(config).method


def host_lane(federation: Federation) -> HostLane:
    """Where a single client can train, outside of any engine."""
    steps = federation.steps
    run = loop(steps.learn(), steps.show(), steps.layout.size, torch.device("cpu"))
    return HostLane(steps.method.start, run, visit_all(steps.visit()), steps.look())


def known_to_all(engine: LocalEngine) -> LocalEngine:
    """As if every registered client had taken part."""
    list(engine.rounds(1))
    everyone, (server, clients) = range(len(engine.federation.sites)), engine.snapshot[1:3]
    states, memory = ({k: next(iter(d.values())) for k in everyone if d} for d in (clients, server.memory))
    engine.snapshot = engine.snapshot._replace(server=server._replace(memory=memory), clients=states)
    return engine


class StopAfter(Quiet):
    """Ends a run after a round, or after the next one, as Ctrl-C would."""

    def __init__(self, last: int | None = None) -> None:
        super().__init__()
        self.last = last

    def round(self, line: dict[str, Any]) -> None:
        if self.last in (None, line["round"]):
            raise KeyboardInterrupt


def seconds_of(engine: LocalEngine) -> Iterator[float]:
    for result in engine.rounds(10**6):
        yield result.seconds
