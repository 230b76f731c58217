"""Shared pieces: a federation small enough to train in milliseconds."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fssl.config import Config, override, parse
from fssl.core.client import loop
from fssl.core.federation import Federation
from fssl.data.sources import Dataset, load
from fssl.engines.local import HostLane

torch.set_num_threads(1)

TINY: dict[str, Any] = {
    "data": {"name": "synthetic", "labels_per_class": 8},
    "partition": {"kind": "paired-dirichlet", "alpha": 0.5, "clients": 4},
    "model": {"name": "cnn", "width": 1},
    "train": {"rounds": 2, "clients_per_round": 2, "local_epochs": 2, "batch": 8},
    "compute": {"device": "cpu"},
}


def tiny_config(*settings: str) -> Config:
    return parse(override(TINY, list(settings)))


def host_lane(federation: Federation) -> HostLane:
    """Where a single client can train, outside of any engine."""
    run = loop(federation.make_step(), federation.layout.size, torch.device("cpu"))
    return HostLane(run, federation.make_visit())


@pytest.fixture(scope="session")
def tiny_data() -> Dataset:
    """160 training and 40 test images of 8x8 pixels in four classes."""
    return load("synthetic", num_classes=4, size=8, channels=3, train_per_class=40, test_per_class=10)


@pytest.fixture
def make_federation(tiny_data: Dataset) -> Callable[..., Federation]:
    return lambda *settings: Federation(tiny_config(*settings), tiny_data)
