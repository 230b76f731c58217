"""Shared pieces: a federation small enough to train in milliseconds."""

import gc
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.data.sources import Dataset, load
from helpers.command import Fssl, Said, exit_code
from helpers.small import tiny_config

WITH_RESULTS = ["test_docs.py", "test_results.py", "test_site.py"]
collect_ignore = [] if (Path(__file__).parents[1] / "results").is_dir() else WITH_RESULTS  # a source archive has none
torch.set_num_threads(1)
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # of a shell's background jobs, whose children could not be stopped
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
