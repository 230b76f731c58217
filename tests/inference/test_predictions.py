"""A run's model at work on images: the same answers as in the run's own test, by file and by class."""

import csv
import json
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.table import Table

from fssl.config import Config, as_tables, override, parse, read_toml, to_toml
from fssl.console import Quiet
from fssl.core.evaluate import model_facts
from fssl.core.experiment import prepare
from fssl.core.images import known_card, load_dataset
from fssl.data.folder.example import export_digits
from fssl.inference.predict import Predictions, by_class, by_truth, csv_text, other_folders, truth_of
from fssl.inference.trained import load_trained
from fssl.models import build_net
from fssl.records.saved_models import Models
from fssl.records.store import RunFolder
from fssl.records.tensors import sealed, unseal
from fssl.runner.conduct import run_experiment
from helpers.command import Fssl, Said, exit_code
from helpers.small import StopAfter

SMALL = [
    *("train.rounds=2", "train.steps_per_round=4", "data.labels_per_class=8", "partition.clients=4"),
    *("train.clients_per_round=2", "compute.device=cpu"),
]


def small(*settings: str) -> Config:
    return parse(override(read_toml("smoke"), [*SMALL, *settings]))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predict") / "run"
    run_experiment(prepare(small()), folder, Quiet())
    return folder


@pytest.fixture
def fssl(fssl: Fssl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fssl:
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "cache"))

    def call(*words: object) -> Said:
        return fssl(*words, *(["--overwrite"] if words[0] == "predict" else []))

    return call


def last_accuracy(run: Path) -> float:
    return float(json.loads((run / "rounds.jsonl").read_text().splitlines()[-1])["accuracy"])


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(path.read_text())))


def right(rows: list[dict[str, str]]) -> float:
    return float(100 * np.mean([row["class"] == row["truth"] for row in rows]))


def cells(table: Table) -> list[list[str]]:
    return [list(map(str, row)) for row in zip(*(column.cells for column in table.columns), strict=True)]


@pytest.mark.parametrize("method", ["sage", "fedmatch", "proxyfl", "fedlabel-2m", "fedloke", "feddure"])
def test_the_test_images_get_the_recorded_accuracy(method: str, fssl: Fssl, tmp_path: Path) -> None:
    """The loaded model is the tested one, also if a method keeps more than the model."""
    run_experiment(prepare(small(f"method.name={method}")), tmp_path / "run", Quiet())
    code, said, _ = fssl("predict", "run")
    assert code == 0
    rows = rows_of(tmp_path / "predictions.csv")
    assert [row["image"] for row in rows] == [str(i) for i in range(360)]
    assert right(rows) == pytest.approx(last_accuracy(tmp_path / "run"), abs=1e-9)
    assert f"360 images, {last_accuracy(tmp_path / 'run'):.2f} % right: predictions.csv" in said


def test_a_run_tested_with_half_of_the_images_predicts_that_half(fssl: Fssl, tmp_path: Path) -> None:
    run_experiment(prepare(small("data.test=tuning")), tmp_path / "run", Quiet())
    assert fssl("predict", "run").code == 0
    rows = rows_of(tmp_path / "predictions.csv")
    assert len(rows) == 180
    labels = load_dataset(small()).test.labels
    assert [labels[int(row["image"])] for row in rows] == [int(row["truth"]) for row in rows]
    assert right(rows) == pytest.approx(last_accuracy(tmp_path / "run"), abs=1e-9)


def test_files_in_folders_of_classes_are_the_same_images(run: Path, fssl: Fssl, tmp_path: Path) -> None:
    export_digits(tmp_path / "sites")
    assert fssl("predict", run, tmp_path / "sites/test", "--out", "new/folder/labels.csv")[0] == 0
    rows = rows_of(tmp_path / "new/folder/labels.csv")
    assert len(rows) == 360
    assert all(row["image"].split("/")[0] == row["truth"] for row in rows)
    assert right(rows) == pytest.approx(last_accuracy(run), abs=1e-9)


@pytest.mark.slow
def test_a_run_on_own_images_knows_its_classes_and_its_shape(fssl: Fssl, tmp_path: Path) -> None:
    """Names of classes, size, channels and normalization all come from the run's folder."""
    export_digits(tmp_path / "sites")
    for folder in sorted(tmp_path.glob("sites/**/[0-9]"), reverse=True):
        folder.rename(folder.with_name(f"digit {folder.name}"))
    settings = [
        "data.name=folder",
        "data.size=12",
        "data.channels=3",
        "data.mean=[0.1,0.2,0.3]",
        "data.std=[0.1,0.2,0.3]",
    ]
    sizes = ["train.rounds=2", "train.steps_per_round=4", "train.clients_per_round=2", "compute.device=cpu"]
    config = parse(override(read_toml("smoke"), [*sizes, *settings, f"data.dir='{tmp_path / 'sites'}'"]))
    run_experiment(prepare(config), tmp_path / "run", Quiet())
    assert fssl("predict", "run", "sites/test")[0] == 0
    rows = rows_of(tmp_path / "predictions.csv")
    assert {row["truth"] for row in rows} == {f"digit {c}" for c in range(10)}
    assert right(rows) == pytest.approx(last_accuracy(tmp_path / "run"), abs=1e-9)
    (tmp_path / "sites").rename(tmp_path / "moved")
    assert fssl("predict", "run")[0] == 2
    assert fssl("predict", "run", "--data-dir", "moved")[0] == 0
    expected = [{**row, "image": f"test/{row['image']}"} for row in rows]
    assert rows_of(tmp_path / "predictions.csv") == expected
    next((tmp_path / "moved/test").rglob("*.png")).unlink()
    code, _, said = fssl("predict", "run", "--data-dir", "moved")
    assert (code, "have changed" in said) == (2, True)
    model = load_trained(tmp_path / "run")
    assert (model.card.size, model.card.channels) == (12, 3)
    assert model.normalize.shift.tolist() == pytest.approx([-1.0, -1.0, -1.0])


def test_images_without_a_class_get_none(run: Path, fssl: Fssl, tmp_path: Path) -> None:
    """Below any folder, of any size and kind; other files are left alone."""
    image = load_dataset(small()).test.images[0, :, :, 0]
    places = [tmp_path / "photos" / name for name in ("a.png", "b/c/d.PNG", "b/e.webp")]
    for path in places:
        path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(places[0])
    Image.fromarray(image).convert("RGB").save(places[1])
    Image.fromarray(image).save(places[2], lossless=True)
    (tmp_path / "photos/notes.txt").write_text("not an image")
    code, said, _ = fssl("predict", run, "photos")
    assert code == 0
    assert "3 images: predictions.csv" in said
    assert "skipped notes.txt: no image suffix" in said
    rows = rows_of(tmp_path / "predictions.csv")
    assert [row["image"] for row in rows] == ["a.png", "b/c/d.PNG", "b/e.webp"]
    assert list(rows[0]) == ["image", "class", "confidence"]
    p = load_trained(run).probabilities(image[None, :, :, None])
    assert {(row["class"], row["confidence"]) for row in rows} == {(str(p.argmax()), f"{p.max():.4f}")}
    assert fssl("predict", run, "photos/b/e.webp")[0] == 0
    assert rows_of(tmp_path / "predictions.csv") == [{**rows[0], "image": "e.webp"}]


def test_links_to_folders_are_not_followed(run: Path, fssl: Fssl, tmp_path: Path) -> None:
    """They lead to images that are found anyway, or round in a circle."""
    (tmp_path / "photos/b").mkdir(parents=True)
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "photos/b/a.png")
    (tmp_path / "photos/circle").symlink_to(tmp_path / "photos")
    (tmp_path / "photos/b/up").symlink_to(tmp_path / "photos")
    assert fssl("predict", run, "photos")[0] == 0
    assert [row["image"] for row in rows_of(tmp_path / "predictions.csv")] == ["b/a.png"]


def test_probabilities_are_the_softmax_of_the_network(run: Path) -> None:
    """Over more images than fit one batch; written out with the network itself."""
    model, images = load_trained(run), np.tile(load_dataset(small()).test.images, (2, 1, 1, 1))
    x = torch.from_numpy(images).float().div(255).sub(0.305).div(0.376).permute(0, 3, 1, 2)
    net = build_net("cnn", 1, 10, model.config.model.width)
    expected = net.infer(model.weights, x).logits.softmax(-1)
    p = model.probabilities(images)
    assert p.shape == (720, 10)
    np.testing.assert_allclose(p, expected.detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(p.sum(-1), 1, atol=1e-5)
    assert model.probabilities(images[:0]).shape == (0, 10)
    taken = r"images are uint8 \[720, 4, 8, 1\], expected uint8, or float32 from 0 to 1, of \[N, 8, 8, 1\]"
    with pytest.raises(ValueError, match=taken):
        model.probabilities(images[:, :4])
    other = r"floats have the shape \[2, 9, 9, 1\], expected \[N, 8, 8, 1\]; only uint8 becomes the model's size"
    with pytest.raises(ValueError, match=other):
        model.predict(np.ones((2, 9, 9, 1), np.float32))


def test_a_model_is_printed_as_one_line(run: Path) -> None:
    model = load_trained(run)
    classes = ", ".join(f"'{digit}'" for digit in range(10))
    facts = f"network='cnn', data='digits', images='8x8x1', classes=({classes}), round={model.round}"
    assert repr(model) == f"Trained(method='{model.config.method.name}', {facts})"
    many = model._replace(card=replace(model.card, classes=tuple(f"class {i}" for i in range(300)), num_classes=300))
    assert "'class 9' and 290 more)" in repr(many)


@pytest.mark.parametrize(("protocol", "std"), [("clean", 0.2471), ("authors", 0.2023)])
def test_images_are_normalized_as_for_the_result(protocol: str, std: float, tmp_path: Path) -> None:
    config = parse({"data": {"name": "cifar10"}, "protocol": protocol, "model": {"name": "cnn", "width": 1}})
    (tmp_path / "config.toml").write_text(to_toml(as_tables(config)))
    weights = build_net("cnn", 3, 10, 1, seed=0).first
    tensors = {f"params.{k}": v for k, v in weights.params.items()} | {
        f"buffers.{k}": v for k, v in weights.buffers.items()
    }
    Models(RunFolder(tmp_path)).write({"plain": tensors}, "plain", 1, model_facts(config, known_card(config)))
    assert load_trained(tmp_path).normalize.scale[0].item() == pytest.approx(1 / (255 * std))


def test_the_tables_count_by_hand() -> None:
    p = np.array([[0.9, 0.1, 0], [0.2, 0.7, 0.1], [0.3, 0.1, 0.6], [0.2, 0.6, 0.2], [0, 1, 0]], np.float32)
    made = Predictions(("a", "b", "c"), ["1.png", "2.png", "3.png", "4.png", "5,5.png"], p, np.array([0, 0, 0, 0, 1]))
    # Said: a b c b b. Of four a one is right, two are taken for b and one for c.
    assert cells(by_truth(made)) == [["a", "4", "25.0 %", "b (2)"], ["b", "1", "100.0 %", "–"]]
    assert cells(by_class(made)) == [["a", "1", "0.900"], ["b", "3", "0.767"], ["c", "1", "0.600"]]
    assert csv_text(made).splitlines()[-2:] == ["4.png,b,0.6000,a", '"5,5.png",b,1.0000,b']
    assert csv_text(made._replace(truth=None)).splitlines()[:2] == ["image,class,confidence", "1.png,a,0.9000"]


def test_the_truth_is_known_of_all_images_or_of_none() -> None:
    known = truth_of(["cat/1.png", "deep/dog/2.png"], ("cat", "dog"))
    assert known is not None
    assert known.tolist() == [0, 1]
    assert truth_of(["cat/1.png", "2.png"], ("cat", "dog")) is None
    below = truth_of(["dog/patient 7/left/1.png", "dog/cat/2.png"], ("cat", "dog"))
    assert below is not None
    assert below.tolist() == [1, 0]


def test_folders_that_keep_the_truth_from_being_known_are_named() -> None:
    classes = ("cat", "dog")
    names = ["test/cat/1.png", "test/dgo/p1/2.png", "test/dgo/p2/3.png", "clients/a/unlabeled/4.png"]
    assert other_folders(names, classes) == ["clients", "test/dgo"]
    assert other_folders(["cat/1.png", "2.png"], classes) == ["."]
    assert other_folders(["cat/1.png", "dog/2.png"], classes) == []
    assert other_folders(["photos/1.png", "2.png"], classes) == []


@pytest.mark.slow
def test_a_misspelt_class_folder_is_reported(run: Path, fssl: Fssl, tmp_path: Path) -> None:
    export_digits(tmp_path / "sites")
    (tmp_path / "sites/test/7").rename(tmp_path / "sites/test/seven")
    code, said, _ = fssl("predict", run, "sites/test")
    line = "no accuracy: folder 'seven' is none of the model's classes (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)"
    assert (code, said.splitlines().count(line)) == (0, 1)
    assert "truth" not in rows_of(tmp_path / "predictions.csv")[0]
    (tmp_path / "sites/test/8").rename(tmp_path / "sites/test/eight")
    said = fssl("predict", run, "sites/test", "--overwrite").out
    assert "no accuracy: folders 'eight', 'seven' are none of the model's classes (0, " in said
    assert "no accuracy" not in fssl("predict", run, "sites/test/seven", "--overwrite").out


def test_all_probabilities_are_written_when_asked_for(run: Path, fssl: Fssl, tmp_path: Path) -> None:
    assert fssl("predict", run, "--probabilities").code == 0
    rows = rows_of(tmp_path / "predictions.csv")
    p = np.array([[float(row[f"p_{c}"]) for c in range(10)] for row in rows])
    np.testing.assert_allclose(p, load_trained(run).probabilities(load_dataset(small()).test.images), atol=1e-6)
    assert [row["class"] for row in rows] == [str(c) for c in p.argmax(-1)]


def test_a_file_is_overwritten_only_on_request(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("predictions.csv").write_text("mine")
    assert exit_code(monkeypatch, "predict", run) == 2
    assert Path("predictions.csv").read_text() == "mine"
    assert exit_code(monkeypatch, "predict", run, "--overwrite") == 0
    assert len(rows_of(Path("predictions.csv"))) == 360


def test_every_unreadable_file_is_named(run: Path, fssl: Fssl, tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "bad/good.png")
    for i in range(25):
        (tmp_path / f"bad/{i:02}.png").write_bytes(b"no image")
    code, _, errors = fssl("predict", run, "bad")
    assert code == 1
    assert all(f"{i:02}.png: not a PNG" in errors for i in range(25))
    assert "25 files could not be read, so " in errors
    assert "lacks them:" in errors


def test_a_bad_file_does_not_spoil_the_others(run: Path, fssl: Fssl, tmp_path: Path) -> None:
    """The readable ones are labeled, the other is named, and the exit code says that not all was done."""
    for folder in ("all", "good"):
        (tmp_path / folder).mkdir()
        for i in range(0, 40, 2):
            Image.fromarray(np.full((8, 8), 5 * i, np.uint8)).save(tmp_path / folder / f"{i:02}.png")
    (tmp_path / "all/07.png").write_bytes(b"\x89PNG")
    assert fssl("predict", run, "good", "--out", "good.csv")[0] == 0
    code, said, errors = fssl("predict", run, "all", "--out", "all.csv")
    assert (code, "20 images: all.csv" in said) == (1, True)
    assert "1 file could not be read, so all.csv lacks it:" in errors
    assert "07.png: not a PNG, JPEG, WebP, TIFF, BMP or DICOM image" in errors
    assert rows_of(tmp_path / "all.csv") == rows_of(tmp_path / "good.csv")


@pytest.mark.slow
def test_a_prolonged_run_says_of_which_round_its_model_is(fssl: Fssl, tmp_path: Path) -> None:
    """The model of its former end does not pass for that of its last round."""
    run_experiment(prepare(small()), tmp_path / "run", Quiet())

    longer = replace(small(), train=replace(small().train, rounds=9))
    with pytest.raises(KeyboardInterrupt):
        run_experiment(prepare(longer), tmp_path / "run", StopAfter(), resume=True)
    code, said, _ = fssl("predict", "run")
    after = small().train.rounds + 1
    assert (code, f"by the model of round {after}; the run continues to round 9" in said) == (0, True)
    run_experiment(prepare(longer), tmp_path / "run", Quiet(), resume=True)
    code, said, _ = fssl("predict", "run")
    assert (code, "by the model of round" in said) == (0, False)


def test_what_cannot_be_used_is_rejected_and_nothing_is_written(run: Path, fssl: Fssl, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/cut.png").write_bytes(b"\x89PNG")
    (tmp_path / "bad/notes.txt").write_text("text")
    copies = [tmp_path / name for name in ("unfinished", "damaged", "other", "unsealed", "strange", "grey", "diverged")]
    unfinished, damaged, other, unsealed, strange, grey, diverged = copies
    for copy in copies:
        shutil.copytree(run, copy)
    (unfinished / "model.safetensors").unlink()
    shutil.rmtree(unfinished / "checkpoint")
    (damaged / "model.safetensors").write_bytes(b"1234567890")
    tensors, facts = unseal(run / "model.safetensors")
    head = json.dumps({"__metadata__": None}).encode()
    (unsealed / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head)
    (strange / "model.safetensors").write_bytes(sealed(tensors, {**(facts or {}), "round": "last"}))
    (grey / "model.safetensors").write_bytes(sealed(tensors, {**(facts or {}), "mean": [0.5]}))
    lost = {name: torch.full_like(t, torch.nan) if name.endswith("running_var") else t for name, t in tensors.items()}
    (diverged / "model.safetensors").write_bytes(sealed(lost, facts or {}))
    (other / "config.toml").write_text((run / "config.toml").read_text().replace("width = 1", "width = 2"))
    for words, expected in (
        (["nowhere"], "nowhere is not a run folder"),
        ([unfinished], "has no model yet"),
        ([run, "--model", "best"], "keeps no best model"),
        ([run, "--model", "ema"], "has no smoothed model"),
        ([run, "--model", "bets"], "did you mean 'best'?"),
        ([run, "--measures", "bad/notes.txt"], "notes.txt is a file"),
        ([damaged], "is damaged"),
        ([other], "is from another run than"),
        ([unsealed], "has no checksum, so this run did not write it"),
        ([strange], "was trained to round 'last', expected a whole number"),
        ([grey], "was trained with mean = [0.5], not with [0.305]"),
        ([diverged], "running_var has values that are not finite; the training diverged"),
        ([run, "--data-dir", "empty"], "digits needs no files"),
        ([run, "nowhere"], "'nowhere': no such file or folder"),
        ([run, "nofile.png"], "'nofile.png': no such file or folder"),
        ([run, "empty"], "no image, expected .png"),
        ([run, "bad"], "cut.png: not a PNG, JPEG, WebP, TIFF, BMP or DICOM image"),
        ([run, "bad/notes.txt"], "has no image suffix"),
        ([run, "bad", "--data-dir", "bad"], "the folder of the run's own test images; remove one"),
        ([run, "--out", "labels.txt"], "ends with .csv"),
        ([run, "--out", "empty"], "ends with .csv"),
        ([run, "--out", "bad/notes.txt/labels.csv"], "notes.txt is a file"),
    ):
        code, _, said = fssl("predict", *words)
        assert (code, expected in said) == (2, True), (words, said)
    assert not list(tmp_path.glob("*.csv"))
