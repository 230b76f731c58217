"""A run that cannot start or resume leaves nothing behind."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import fssl
from fssl.console import Quiet
from fssl.core.experiment import Experiment, prepare
from fssl.errors import RunError, UserError
from fssl.models import Head
from fssl.records.store import RunFolder
from fssl.records.writer import RunWriter
from fssl.runner import conduct
from helpers.small import tiny_config

TINY = ("method.name=fedavg", "train.rounds=1", "train.steps_per_round=1", "train.batch=2", "compute.device=cpu")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def breaks(*arguments: object) -> None:
    raise TypeError("nobody foresaw this")


@pytest.mark.slow
@pytest.mark.parametrize("finished", [False, True])
def test_an_error_before_a_run_has_its_folder_is_not_written_there(
    finished: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder may be a user's, or another run's."""
    experiment = prepare(tiny_config("train.rounds=1"))
    if finished:
        conduct.run_experiment(experiment, tmp_path, Quiet())
    else:
        (tmp_path / "thesis.txt").write_text("all that I know")
    before = contents(tmp_path)
    monkeypatch.setattr(Experiment, "notes", property(breaks))
    with pytest.raises(TypeError, match="nobody foresaw this"):
        conduct.run_experiment(experiment, tmp_path, Quiet())
    assert contents(tmp_path) == before


def test_an_error_of_a_run_that_has_its_folder_is_written_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conduct, "LocalEngine", breaks)
    with pytest.raises(RunError, match=r"TypeError: nobody foresaw this \(traceback: .*error\.txt\)"):
        conduct.run_experiment(prepare(tiny_config("train.rounds=1")), tmp_path / "run", Quiet())
    assert "in breaks" in (tmp_path / "run/error.txt").read_text()


def test_a_run_begins_with_what_its_user_may_not_expect(tmp_path: Path) -> None:
    """Of its first weights, of its federation and of its privacy; a resumed one starts without weights."""
    save_file({"body.0.weight": torch.zeros(16, 3, 3, 3)}, tmp_path / "w.safetensors")
    start = f"model.start={tmp_path / 'w.safetensors'}"
    settings = (start, "model.start_partial=true", "partition.labels=server", "server.epochs=0")
    experiment = prepare(tiny_config(*settings, "compute.engine=flower", "privacy.clip=1"))
    of_weights = experiment.start.notes
    expected = [
        "server.epochs = 0: no training uses the labels, which are at the server",
        "privacy: updates are clipped, but without privacy.noise there is no guarantee",
    ]
    assert of_weights
    folder, listener = RunFolder(tmp_path / "run"), Quiet()
    with closing(folder.lock):
        conduct.opened(experiment, RunWriter(folder), False, listener)
    assert listener.said == [*of_weights, *expected]


def small_network(width: int) -> Callable[[int, int, int], nn.Module]:
    class Small(nn.Module):
        def __init__(self, channels: int, classes: int, _: int) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(channels, width, 3), Head(width, classes)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.head(self.conv(x).mean((2, 3)))
            return found

    return Small


def test_a_rejected_resume_leaves_a_finished_run_finished(tmp_path: Path) -> None:
    fssl.run(fssl.experiment("smoke", *TINY, network=small_network(4)), tmp_path)
    before = contents(tmp_path)
    longer = fssl.experiment("smoke", *TINY, "train.rounds=5", network=small_network(8))
    with pytest.raises(UserError, match=r"conv\.weight"):
        fssl.run(longer, tmp_path, resume=True)
    assert contents(tmp_path) == before
    assert RunFolder(tmp_path).is_finished
