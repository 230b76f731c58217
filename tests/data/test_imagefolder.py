"""Labeled images of one's own, dealt out to clients: from the folder to the record, and what is rejected."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fssl.config import override, parse, read_toml
from fssl.core.experiment import prepare
from fssl.core.images import divide_images
from fssl.data.cards import Agreed
from fssl.data.folder.listing import File, list_classes, of_all
from fssl.data.folder.load import load_classes
from fssl.data.folder.split import split_off
from fssl.data.sources import load
from helpers.command import Fssl

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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_changed_folder_is_another_run(fssl: Fssl) -> None:
    assert run(fssl)[0] == 0
    removed = Path("numbers/train/one/00.png").read_bytes()
    Path("numbers/train/one/00.png").unlink()
    code, _, said = fssl("run", "run", "--resume", "--set", "train.rounds=3")
    advice = "restore the original ones, or start a new run without data.digest"
    assert (code, "the files in 'numbers' have changed" in said, advice in said) == (2, True, True)
    assert run(fssl, out="new")[0] == 0
    Path("numbers/train/one/00.png").write_bytes(removed)
    assert fssl("run", "run", "--resume", "--set", "train.rounds=3").code == 0


def test_it_can_be_looked_at(fssl: Fssl) -> None:
    code, said, _ = fssl("datasets", "--check", "numbers")
    assert (code, "3 classes: one, three, two. No problems." in said) == (0, True)
    assert "No test images" not in said
    code, said, _ = fssl("run", "smoke", *WORDS, *SMALL, "--dry-run")
    assert (code, "imagefolder" in said) == (0, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "data.labels_per_class=21"], "class 1 has 20 images"),
        (["--set", "data.label_fraction=0.1"], "classes may differ in size; use data.labels_per_class"),
        (["--set", "partition.clients=40"], "partition.clients = 40: 30 labeled images are too few"),
        (["--data-dir", "nowhere"], "'nowhere' is not a folder"),
        (["--data-dir", "numbers/train"], "no images in train, expected some in train/CLASS/*"),
        (["--set", 'data.classes=["one", "two"]'], "'three' is not one of the agreed classes"),
    ],
)
def test_what_does_not_fit_is_rejected(words: list[str], message: str, fssl: Fssl) -> None:
    code, _, said = run(fssl, *words)
    assert (code, message in said) == (2, True), said
    assert not Path("run").exists()


def test_the_number_of_labels_has_no_default(fssl: Fssl) -> None:
    Path("bare.toml").write_text('[data]\nname = "imagefolder"\n')
    code, _, said = fssl("run", "bare.toml", "--data-dir", "numbers")
    assert (code, "needs data.labels_per_class" in said) == (2, True)


def test_a_folder_of_validation_images_is_the_test_where_there_is_no_other(fssl: Fssl) -> None:
    agreed = Agreed((), 8, 1, dataset="imagefolder")
    before = load_classes(Path("numbers"), agreed)
    Path("numbers/test").rename("numbers/val")
    after = load_classes(Path("numbers"), agreed)
    assert np.array_equal(before.test.images, after.test.images)
    assert fssl("datasets", "--check", "numbers").code == 0
    assert run(fssl)[0] == 0
    Path("numbers/test/one").mkdir(parents=True)
    Path("numbers/val/one/00.png").rename("numbers/test/one/00.png")
    assert len(load_classes(Path("numbers"), agreed).test.labels) == 1


def by_patient() -> None:
    """Two images of each patient and class; the first ten patients have images of all three classes."""
    shutil.rmtree("numbers/test")
    for folder in sorted(Path("numbers/train").iterdir()):
        for i, file in enumerate(sorted(folder.iterdir())):
            patient = folder / f"patient {i // 2}" / "scans"
            patient.mkdir(parents=True, exist_ok=True)
            file.rename(patient / file.name)


def patients(files: list[File]) -> set[str]:
    return {file.name.split("/")[2] for file in files}


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_a_patient_is_never_in_training_and_test(share: float) -> None:
    by_patient()
    listing = list_classes(Path("numbers"), splits=True)
    split = split_off(listing, share)
    train, test = list(of_all(split.sites[0].labeled)), list(of_all(split.test))
    assert not patients(train) & patients(test)
    assert len(train) + len(test) == 90
    for name, number in SIZES["train"].items():
        assert share * number <= len(split.test[name]) < number  # patients of other classes come on top
    assert split_off(listing, share) == split


def test_images_in_no_folder_are_split_one_by_one() -> None:
    shutil.rmtree("numbers/test")
    split = split_off(list_classes(Path("numbers"), splits=True), 0.25)
    assert {name: len(files) for name, files in split.test.items()} == {"one": 8, "three": 5, "two": 10}


@pytest.mark.slow
def test_a_run_splits_its_test_off_and_knows_it_again(fssl: Fssl) -> None:
    by_patient()
    words = ["--set", "data.test_share=0.25", "--set", "data.labels_per_class=8"]
    assert run(fssl, *words)[0] == 0
    code, said, _ = fssl("predict", "run")
    last = json.loads(Path("run/rounds.jsonl").read_text().splitlines()[-1])
    assert (code, f"{last['accuracy']:.2f} % right" in said) == (0, True), said
    assert fssl("run", "run", "--resume", "--set", "train.rounds=3")[0] == 0
    code, _, said = run(fssl, "--set", "data.test_share=0.3", "--set", "data.labels_per_class=8", "--resume")
    assert (code, "data.test_share is 0.25 there and 0.3 here" in said) == (2, True), said


def test_who_has_no_test_images_hears_how_to_split_some_off(fssl: Fssl) -> None:
    shutil.rmtree("numbers/test")
    way = "data.test_share, such as 0.2, to split some off"
    code, said, _ = fssl("datasets", "--check", "numbers")
    assert (code, f"No test images: a run needs some in test/CLASS/*, or {way}." in said) == (0, True), said
    code, _, said = run(fssl)
    assert (code, f".: no images in test, expected some in test/CLASS/*, or {way}" in said) == (2, True), said
    assert run(fssl, "--set", "data.test_share=0.2")[0] == 0


def test_a_test_part_that_cannot_be_split_off_is_rejected(fssl: Fssl) -> None:
    code, _, said = run(fssl, "--set", "data.test_share=0.25")
    assert (code, "already has test images" in said) == (2, True)
    shutil.rmtree("numbers/test")
    code, _, said = run(fssl)
    assert (code, "no images in test, expected some in test/CLASS/*" in said) == (2, True)
    one = Path("numbers/train/one/only patient")
    one.mkdir()
    for file in Path("numbers/train/one").glob("*.png"):
        file.rename(one / file.name)
    code, _, said = run(fssl, "--set", "data.test_share=0.25")
    assert (code, "class 'one' has too few folders" in said) == (2, True)


@pytest.mark.slow
def test_files_that_a_run_does_without_are_listed_in_its_folder(fssl: Fssl) -> None:
    Path("numbers/train/one/00.png").write_bytes(b"no image")
    assert run(fssl)[0] == 2
    code, said, _ = run(fssl, "--set", "data.skip_bad=true")
    line = "train/one/00.png: not a PNG, JPEG, WebP, TIFF, BMP or DICOM image"
    assert (code, f"skipped {line}" in said.replace("\n", " ")) == (0, True)
    assert Path("run/skipped.txt").read_text() == f"{line}\n"
    assert np.sum(json.loads(Path("run/partition.json").read_text())["unlabeled"], 0).tolist() == [19, 10, 30]
    assert fssl("run", "run", "--resume", "--set", "train.rounds=3")[0] == 0


def test_the_validation_part_shares_no_patient_with_training(fssl: Fssl) -> None:
    by_patient()
    words = ["--set", "data.test_share=0.2", "--set", "data.labels_per_class=12", "--set", "data.validation=0.2"]
    config = parse(override(read_toml("smoke"), [w for w in (*WORDS, *SMALL, *words) if "=" in w]))
    config = replace(config, data=replace(config.data, dir="numbers"))
    experiment = prepare(config)
    partition, held = divide_images(experiment.config, experiment.dataset)
    groups = experiment.dataset.groups
    assert groups is not None
    trained = np.concatenate([partition.pool(k) for k in range(6)])
    assert len(held) >= 6
    assert not set(groups[trained]) & set(groups[held])
    assert run(fssl, *words)[0] == 0
