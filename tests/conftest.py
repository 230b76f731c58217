"""Shared pieces: a federation small enough to train in milliseconds."""

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from fssl.cli import app as cli
from fssl.config import Config, override, parse
from fssl.core.client import loop, visit_all
from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.data.sources import Dataset, load
from fssl.engines.lanes import HostLane
from fssl.engines.local import LocalEngine
from fssl.errors import UserError
from fssl.methods import Method

torch.set_num_threads(1)
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # of a shell's background jobs, whose children could not be stopped
    signal.signal(signal.SIGINT, signal.default_int_handler)

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
}
SMALL = ["--set", "train.rounds=2", "--set", "train.steps_per_round=2", "--device", "cpu"]  # of `fssl run smoke`


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])}  # also where it is not installed


def records(run: str | Path) -> list[dict[str, Any]]:
    """What a run wrote down, but for how long it took, and checks of that."""
    aside = {"timing": 0, "after": 0, "check": 0}
    return [json.loads(line) | aside for line in Path(run, "rounds.jsonl").read_text().splitlines()]


def outcome(run: str | Path) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """What must not depend on how often a run was stopped."""
    files = ("model.safetensors", "measures.json")
    return records(run), {name: Path(run, name).read_bytes() for name in files}


def start(*words: str | Path, **options: Any) -> "subprocess.Popen[str]":
    """`fssl` in a process of its own."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": ENVIRONMENT, **options}
    return subprocess.Popen([sys.executable, "-m", "fssl", *map(str, words)], text=True, **options)


def tiny_config(*settings: str) -> Config:
    return parse(override(TINY, list(settings)))


def refusal(settings: Sequence[str], dataset: Dataset) -> str:
    """The line with which settings are refused."""
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
    run = loop(federation.make_learn(), federation.make_show(), federation.layout.size, torch.device("cpu"))
    return HostLane(run, visit_all(federation.make_visit()), federation.make_look())


def known_to_all(engine: LocalEngine) -> LocalEngine:
    """As if every registered client had taken part."""
    list(engine.rounds(1))
    everyone, (server, clients) = range(len(engine.federation.sites)), engine.snapshot[1:3]
    states, memory = ({k: next(iter(d.values())) for k in everyone if d} for d in (clients, server.memory))
    engine.snapshot = engine.snapshot._replace(server=server._replace(memory=memory), clients=states)
    return engine


def seconds_of(engine: LocalEngine) -> Iterator[float]:
    for result in engine.rounds(10**6):
        yield result.seconds


class Said(NamedTuple):
    """How a command ended, and what it wrote."""

    code: object
    out: str
    err: str


Fssl = Callable[..., Said]


def exit_code(patch: pytest.MonkeyPatch, *words: object) -> object:
    """The command in this process, until it ends."""
    patch.setattr(sys, "argv", ["fssl", *map(str, words)])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    return exit.value.code


@pytest.fixture
def fssl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fssl:
    """The command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: Said(exit_code(monkeypatch, *words), *capsys.readouterr())


@pytest.fixture
def quick_collections() -> Iterator[None]:
    """Collect garbage among what a test makes alone: among all objects of the imports it takes most of a second."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def tiny_data() -> Dataset:
    """160 training and 40 test images of 8x8 pixels in four classes."""
    return load("synthetic", num_classes=4, size=8, channels=3, train_per_class=40, test_per_class=10)


@pytest.fixture
def make_federation(tiny_data: Dataset) -> Callable[..., Federation]:
    return lambda *settings: Federation(prepare(tiny_config(*settings), tiny_data))
