"""The commit of a download from the hub: recorded by a run, and downloaded again when the run is repeated."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fssl.config import load_toml
from fssl.core import images
from fssl.data.cards import card
from fssl.data.dataset import Dataset, Split
from helpers.command import SMALL, Fssl

COMMIT, NEWER = "a" * 40, "b" * 40
FASHION = ("--set", "data.name=fmnist", "--set", "data.labels_per_class=2")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The commits that are asked for; the newest is downloaded where there is none."""
    asked: list[str | None] = []
    labels = np.arange(200) % 10
    split = Split(np.zeros((200, 32, 32, 1), np.uint8), labels)

    def load(name: str, dir: Path | None, how: object, fit: str, revision: str | None, **options: Any) -> Dataset:
        asked.append(revision)
        return Dataset(card(name), split, split, revision=revision or (COMMIT if len(asked) == 1 else NEWER))

    monkeypatch.setattr(images, "load", load)
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(__spec__=object()))
    return asked


def revision_of(folder: str) -> object:
    return load_toml(Path(folder, "config.toml"), folder)["data"].get("revision")


def test_a_run_records_the_commit_and_asks_for_it_again(fssl: Fssl, asked: list[str | None]) -> None:
    words = ("run", "smoke", *SMALL, *FASHION)
    for more in ((), ("--set", "train.rounds=3", "--resume")):  # from a preset, which names no commit
        said = fssl(*words, *more, "--out", "run")
        assert (said.code, said.err) == (0, "")
        assert revision_of("run") == COMMIT
    again = fssl("run", "run/config.toml", "--out", "again")
    assert (again.code, revision_of("again")) == (0, COMMIT)
    assert fssl(*words, "--out", "new").code == 0
    assert revision_of("new") == NEWER
    assert asked == [None, COMMIT, COMMIT, None]


def test_only_a_dataset_of_the_hub_has_a_commit(fssl: Fssl) -> None:
    said = fssl("run", "smoke", "--set", f"data.revision={COMMIT}")
    assert said.code == 2
    assert said.err.startswith("fssl: data.revision = ")
    assert said.err.count("\n") == 1
