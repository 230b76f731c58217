"""States of clients that have no room in memory: mapped from their files, and the run is the same."""

import os
from pathlib import Path

import pytest
import torch

from fssl.records import checkpoint as module
from fssl.records.checkpoint import Parts
from helpers.command import SMALL, Fssl, outcome


def state(value: float) -> dict[str, torch.Tensor]:
    return {"table": torch.full((100,), value)}


def test_the_oldest_parts_move_to_disk_until_the_others_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(module.as_bytes(state(0.0)))
    monkeypatch.setattr(module, "parts_room", lambda: 2 * size)
    parts, held = Parts(tmp_path), {f"clients.{k}": state(float(k)) for k in range(3)}
    vouched = parts.save(1, held)
    moved = parts.moved()
    assert list(moved) == ["clients.0"]
    assert torch.equal(moved["clients.0"]["table"], held["clients.0"]["table"])
    held |= moved
    assert parts.save(2, held) == vouched  # nothing is written again
    assert parts.moved() == {}
    held["clients.0"] = state(7.0)  # took part again
    parts.save(3, held)
    assert list(parts.moved()) == ["clients.1"]


def test_a_part_that_is_no_longer_there_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each best model has a name of its own, and the files of earlier ones are removed."""
    size = len(module.as_bytes(state(0.0)))
    monkeypatch.setattr(module, "parts_room", lambda: 2 * size)
    parts = Parts(tmp_path)
    for round in range(5):
        parts.keep_only(parts.save(round, {f"best.{round}": state(float(round))}))
        assert parts.moved() == {}


@pytest.mark.parametrize("name", [b"plain", b"caf\xe9"])
def test_loaded_parts_beyond_the_room_are_mapped(name: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / os.fsdecode(name)
    vouched = Parts(folder).save(1, {f"clients.{k}": state(float(k)) for k in range(3)})
    monkeypatch.setattr(module, "parts_room", lambda: 0)
    loaded = Parts(folder).load(vouched)
    assert loaded is not None
    assert [float(loaded[f"clients.{k}"]["table"][0]) for k in range(3)] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("method", ["flexmatch", "fedmatch", "fedloke"])
@pytest.mark.slow
def test_a_run_without_room_is_the_same(method: str, fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables at clients, and models at the server: trained at once, and resumed after the second round."""
    words = ["run", "smoke", *SMALL, "--set", f"method.name={method}"]
    longer = ["--set", "train.rounds=4"]
    assert fssl(*words, *longer, "--out", "in-memory").code == 0
    monkeypatch.setattr(module, "parts_room", lambda: 0)
    assert fssl(*words, *longer, "--out", "on-disk").code == 0
    assert outcome("on-disk") == outcome("in-memory")
    fssl(*words, "--set", "train.rounds=2", "--out", "resumed")
    assert fssl(*words, *longer, "--out", "resumed", "--resume").code == 0
    assert outcome("resumed") == outcome("in-memory")
