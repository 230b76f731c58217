"""Loggers of other tools: they hear the record's numbers, and a run does not need them."""

import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from fssl.config import Config, override, parse, read_toml
from fssl.console import Quiet
from fssl.core.experiment import prepare
from fssl.errors import RunError, UserError
from fssl.runner import loggers
from fssl.runner.conduct import run_experiment
from fssl.runner.loggers import Logged, check_loggers, logged_values

SMALL = ["train.rounds=2", "train.steps_per_round=1", "compute.device=cpu"]


def small(*settings: str) -> Config:
    return parse(override(read_toml("smoke"), [*SMALL, *settings]))


def records_in(path: Path) -> list[Any]:
    """The messages in a file of Weights & Biases: framed in blocks, each with checksum, length and kind."""
    from wandb.proto import wandb_internal_pb2

    data, place, block, parts, found = path.read_bytes(), 7, 32768, b"", []
    while place + 7 <= len(data):
        if block - place % block < 7:  # no header fits into the rest of a block
            place += block - place % block
            continue
        size, kind = struct.unpack_from("<HB", data, place + 4)
        parts += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            found.append(wandb_internal_pb2.Record.FromString(parts))
            parts = b""
    return found


def history(folder: Path) -> list[dict[str, Any]]:
    """The logged rounds of all sessions, the oldest first."""
    records = [r for path in sorted(folder.glob("offline-run-*/*.wandb")) for r in records_in(path)]
    items = [r.history.item for r in records if r.WhichOneof("record_type") == "history"]
    return [{i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in each} for each in items]


def test_values_are_those_of_the_line() -> None:
    tests = {"train_norm": {"accuracy": 50.0, "loss": 1.0}}
    line = {"round": 3, "accuracy": 50.0, "test": tests, "loss_s": 0.5, "lam": None, "sums": {}}
    test = {"test_accuracy/train_norm": 50.0, "test_loss/train_norm": 1.0}
    assert logged_values(line) == {**test, "training/loss_s": 0.5}
    line |= {"validation": {"accuracy": 40.0, "loss": 2.0}, "ema_validation": {"accuracy": 45.0, "loss": 1.5}}
    assert logged_values({**line, "timing": {"seconds": 3.5}}) == {
        **test,
        **{"validation_accuracy/plain": 40.0, "validation_accuracy/ema": 45.0},
        **{"validation_loss/plain": 2.0, "validation_loss/ema": 1.5},
        **{"training/loss_s": 0.5, "time/seconds_per_round": 3.5},
    }


@pytest.mark.slow
def test_weights_and_biases_offline_holds_the_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real package without a network: what it would send has every round once, also over two sessions."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "run"
    run_experiment(prepare(small("records.wandb=offline", "train.rounds=1")), folder, Quiet(), resume=False)
    view = Quiet()
    time.sleep(1.1)  # the package names a session's folder by the second
    run_experiment(prepare(small("records.wandb=offline")), folder, view, resume=True)
    assert not [text for text in view.said if "stopped" in text]
    lines = [json.loads(text) for text in (folder / "rounds.jsonl").read_text().splitlines()]
    logged, patience = history(folder / "wandb"), time.monotonic() + 30
    while len(logged) < 2 and time.monotonic() < patience:  # its own process writes on after the end of a run
        time.sleep(0.1)
        logged = history(folder / "wandb")
    assert [entry["round"] for entry in logged] == [1, 2]
    for entry, line in zip(logged, lines, strict=True):
        assert {k: v for k, v in entry.items() if "/" in k} == logged_values(line)


def test_online_without_a_login_is_rejected_before_any_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "NETRC", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=r"records\.wandb = 'online' needs a login"):
        check_loggers(small("records.wandb=online"))


class Broken:
    """A logger that fails when asked to."""

    closed = 0

    def __init__(self, config: Config, folder: Path, done: int) -> None:
        assert done == 0
        if FAILS == "open":
            raise OSError("no server")

    def log(self, round: int, values: dict[str, float]) -> None:
        if FAILS == "log":
            raise ValueError("full")

    def close(self) -> None:
        Broken.closed += 1
        if FAILS == "close":
            raise RuntimeError


FAILS = ""


@pytest.mark.parametrize(
    ("fails", "said"), [("open", "no server"), ("log", "full"), ("close", "RuntimeError"), ("never", None)]
)
def test_a_logger_that_fails_never_ends_a_run(
    fails: str, said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loggers, "Wandb", Broken)
    monkeypatch.setitem(globals(), "FAILS", fails)
    view = Quiet()
    run_experiment(prepare(small("records.wandb=offline")), tmp_path / "run", view, resume=False)
    assert len((tmp_path / "run/rounds.jsonl").read_text().splitlines()) == 2
    expected = [] if said is None else [f"Weights & Biases stopped: {said}; the run and its record continue"]
    assert view.said == expected


@pytest.mark.slow
def test_loggers_are_closed_when_a_run_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loggers, "Wandb", Broken)
    monkeypatch.setattr(Broken, "closed", 0)
    config = small("records.wandb=offline", "train.lr=1e30", "train.steps_per_round=9")
    with pytest.raises(RunError):
        run_experiment(prepare(config), tmp_path / "run", Quiet(), resume=False)
    assert Broken.closed == 1


def test_a_run_without_loggers_opens_none(tmp_path: Path) -> None:
    listener = Logged(Quiet(), small(), tmp_path)
    listener.started(small(), [])
    assert list(tmp_path.iterdir()) == []
