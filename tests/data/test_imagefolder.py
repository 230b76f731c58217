"""Labeled images of one's own, dealt out to clients: from the folder to the record, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import Fssl
from fssl.data.folder import Agreed, load_classes
from fssl.data.sources import load

SIZES = {"train": {"one": 30, "two": 40, "three": 20}, "test": {"one": 6, "two": 6, "three": 6}}
WORDS = ["--set", "data.name=imagefolder", "--set", "data.size=8", "--set", "data.channels=1", "--data-dir", "numbers"]
SMALL = ["--set", "train.rounds=2", "--set", "train.steps_per_round=3", "--set", "data.labels_per_class=10"]


@pytest.fixture(autouse=True)
def _numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits 1, 2 and 3 as PNG files by class; class sizes differ."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "cache"))
    digits = load("digits")
    for split, images in (("train", digits.train), ("test", digits.test)):
        for digit, (name, number) in enumerate(SIZES[split].items(), 1):
            folder = Path("numbers", split, name)
            folder.mkdir(parents=True)
            for i, row in enumerate(np.flatnonzero(images.labels == digit)[:number]):
                Image.fromarray(images.images[row, :, :, 0]).save(folder / f"{i:02}.png")


def run(fssl: Fssl, *words: str, out: str = "run") -> tuple[int, str, str]:
    return fssl("run", "smoke", *WORDS, *SMALL, "--out", out, *words)


def test_what_is_read_is_what_lies_there() -> None:
    data = load_classes(Path("numbers"), Agreed((), 8, 1, dataset="imagefolder"))
    assert (data.card.name, data.card.classes, data.partition) == ("imagefolder", ("one", "three", "two"), None)
    assert np.bincount(data.train.labels).tolist() == [30, 20, 40]
    assert len(data.test.labels) == 18
    assert np.array_equal(data.train.images[0, :, :, 0], np.asarray(Image.open("numbers/train/one/00.png")))


def test_it_is_dealt_out_trained_resumed_and_used(fssl: Fssl) -> None:
    assert run(fssl)[0] == 0
    counts = json.loads(Path("run/partition.json").read_text())
    assert np.sum(counts["labeled"], 0).tolist() == [10, 10, 10]
    assert np.sum(counts["unlabeled"], 0).tolist() == [20, 10, 30]
    assert len(counts["labeled"]) == 6
    assert fssl("run", "run", "--resume", "--set", "train.rounds=3")[0] == 0
    code, said, _ = fssl("predict", "run", "numbers/test")
    last = json.loads(Path("run/rounds.jsonl").read_text().splitlines()[-1])
    assert (code, f"18 images, {last['accuracy']:.2f} % right" in said) == (0, True), said
    assert last["accuracy_l_all"] is not None  # true classes are known
    assert run(fssl, "--set", "seed=8", out="other")[0] == 0
    assert run(fssl, "--set", "partition.kind=dirichlet", out="third")[0] == 0
    code, said, _ = fssl("compare", "run", "other", "third")
    assert (code, "imagefolder numbers · α = 0.5 · 10 labels per class · 6 clients" in said) == (0, True), said


@pytest.mark.parametrize("method", ["fedavg-sl", "sage+oracle"])
def test_methods_that_ask_for_the_truth_get_it(method: str, fssl: Fssl) -> None:
    assert run(fssl, "--set", f"method.name={method}")[0] == 0


def test_a_changed_folder_is_another_run(fssl: Fssl) -> None:
    assert run(fssl)[0] == 0
    Path("numbers/train/one/00.png").unlink()
    code, _, said = fssl("run", "run", "--resume", "--set", "train.rounds=3")
    assert (code, "has other files" in said) == (2, True)


def test_it_can_be_looked_at(fssl: Fssl) -> None:
    code, said, _ = fssl("datasets", "--check", "numbers")
    assert (code, "3 classes: one, three, two. No problems." in said) == (0, True)
    code, said, _ = fssl("run", "smoke", *WORDS, *SMALL, "--dry-run")
    assert (code, "imagefolder" in said) == (0, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "data.labels_per_class=21"], "class 1 has 20 images"),
        (["--set", "data.label_fraction=0.1"], "classes may differ in size, so give data.labels_per_class"),
        (["--set", "partition.clients=40"], "partition.clients = 40: 30 labeled images are too few"),
        (["--data-dir", "nowhere"], "'nowhere' is no folder"),
        (["--data-dir", "numbers/train"], "no images in train, expected some in train/CLASS/*"),
        (["--set", 'data.classes=["one", "two"]'], "'three' is not one of the agreed classes"),
    ],
)
def test_what_does_not_fit_is_refused(words: list[str], message: str, fssl: Fssl) -> None:
    code, _, said = run(fssl, *words)
    assert (code, message in said) == (2, True), said
    assert not Path("run").exists()


def test_the_number_of_labels_has_no_default(fssl: Fssl) -> None:
    Path("bare.toml").write_text('[data]\nname = "imagefolder"\n')
    code, _, said = fssl("run", "bare.toml", "--data-dir", "numbers")
    assert (code, "needs data.labels_per_class" in said) == (2, True)
