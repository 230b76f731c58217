"""Fashion-MNIST from small files of MNIST's format: what is read, how images are made to fit, what is rejected."""

import gzip
import struct
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from PIL import Image
from test_sources import encode

from fssl.data import cards, idx, sources
from fssl.data.cache import fit_images
from fssl.data.cards import CARDS
from fssl.data.idx import read_idx
from fssl.errors import UserError
from helpers.command import Fssl

TINY = replace(CARDS["fmnist"], size=6, file_size=4, num_classes=3, num_train=5, num_test=2, classes=())
PIXELS: NDArray[np.uint8] = np.random.RandomState(1).randint(0, 256, (7, 4, 4)).astype(np.uint8)
LABELS: NDArray[np.uint8] = (np.arange(7) % 3).astype(np.uint8)
SPLITS = {"train": slice(0, 5), "t10k": slice(5, 7)}


def packed(array: NDArray[np.uint8]) -> bytes:
    """An IDX file: two zeros, the kind of its numbers, how many axes, their lengths, the numbers."""
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_all(folder: Path, zipped: bool = True) -> None:
    folder.mkdir(parents=True)
    for split, rows in SPLITS.items():
        for kind, array in (("images-idx3", PIXELS[rows]), ("labels-idx1", LABELS[rows])):
            name, content = f"{split}-{kind}-ubyte", packed(array)
            (folder / (f"{name}.gz" if zipped else name)).write_bytes(gzip.compress(content) if zipped else content)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(cards.CARDS, "fmnist", TINY)
    monkeypatch.delenv("FSSL_DATA", raising=False)
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(("inside", "zipped"), [("fmnist", True), (".", True), ("fmnist", False)])
def test_four_files_are_a_dataset(tmp_path: Path, inside: str, zipped: bool) -> None:
    write_all(tmp_path / "data" / inside, zipped)
    found = sources.load("fmnist", tmp_path / "data", fit="pad")
    assert found.card == replace(TINY, fit="pad")
    assert np.array_equal(found.train.images[:, 1:5, 1:5, 0], PIXELS[:5])
    assert np.array_equal(found.test.images[:, 1:5, 1:5, 0], PIXELS[5:])
    assert found.train.images.sum() == PIXELS[:5].sum()  # the margin is black
    assert (found.train.labels.tolist(), found.test.labels.tolist()) == ([0, 1, 2, 0, 1], [2, 0])
    assert (found.train.images.shape, found.train.labels.dtype) == ((5, 6, 6, 1), np.int64)


def test_images_are_stretched_as_pillow_does(tmp_path: Path) -> None:
    write_all(tmp_path / "data")
    found = sources.load("fmnist", tmp_path / "data").train.images
    expected = Image.fromarray(PIXELS[3]).resize((6, 6), Image.Resampling.BILINEAR)
    assert np.array_equal(found[3, :, :, 0], np.asarray(expected))
    padded = sources.load("fmnist", tmp_path / "data", fit="pad").train.images
    assert not np.array_equal(found, padded)  # a cache for each
    assert len([*(tmp_path / "cache").iterdir()]) == 8


def test_parquet_files_are_made_to_fit_too(tmp_path: Path) -> None:
    for split, rows in (("train", SPLITS["train"]), ("test", SPLITS["t10k"])):
        table = {"image": [{"bytes": encode(p), "path": None} for p in PIXELS[rows]], "label": LABELS[rows].tolist()}
        (tmp_path / "data/fashion_mnist").mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(table), tmp_path / f"data/fashion_mnist/{split}-00000-of-00001.parquet")
    of_parquet = sources.load("fmnist", tmp_path / "data")
    write_all(tmp_path / "idx")
    of_idx = sources.load("fmnist", tmp_path / "idx")
    assert np.array_equal(of_parquet.train.images, of_idx.train.images)
    assert np.array_equal(of_parquet.test.labels, of_idx.test.labels)


def test_images_of_the_right_size_are_left_alone() -> None:
    images = PIXELS[..., None]
    assert fit_images(images, replace(TINY, size=4)) is images


@pytest.mark.parametrize("channels", [1, 3])
def test_an_odd_margin_is_wider_below(channels: int) -> None:
    images = np.repeat(PIXELS[..., None], channels, 3)
    found = fit_images(images, replace(TINY, size=7, channels=channels, fit="pad"))
    assert found.shape == (7, 7, 7, channels)
    assert np.array_equal(found[:, 1:5, 1:5], images)


def spoil(folder: Path, change: Callable[[bytes], bytes], name: str = "train-images-idx3-ubyte.gz") -> None:
    path = folder / name
    path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()))))


WRONG = {
    "not an IDX file of bytes with 3 axes": lambda data: b"\x00\x00\x0d\x03" + data[4:],
    "has the shape (6, 4, 4), expected (5, 4, 4)": lambda data: data[:7] + b"\x06" + data[8:],
    "has 95 bytes, expected 96": lambda data: data[:-1],
}


@pytest.mark.parametrize("said", WRONG)
def test_a_wrong_file_is_one_line(tmp_path: Path, said: str) -> None:
    write_all(tmp_path / "data")
    spoil(tmp_path / "data", WRONG[said])
    with pytest.raises(UserError) as error:
        sources.load("fmnist", tmp_path / "data")
    assert said in str(error.value)
    assert "train-images-idx3-ubyte.gz" in str(error.value)
    assert "\n" not in str(error.value)
    assert not [*tmp_path.glob("cache/*.labels.npy")]


def test_other_complaints(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    write_all(folder)
    spoil(folder, lambda data: data[:-1] + b"\x03", "t10k-labels-idx1-ubyte.gz")
    with pytest.raises(UserError, match=r"row 1: label 3, expected 0 to 2"):
        sources.load("fmnist", folder)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(b"no gzip")
    with pytest.raises(UserError, match="cannot be read"):
        read_idx(folder / "train-images-idx3-ubyte.gz", (5, 4, 4))
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(UserError, match=r"train-labels-idx1-ubyte.gz' is missing; put it next to the other files"):
        sources.load("fmnist", folder)


def test_other_files_than_the_official_ones_are_pointed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data"
    write_all(folder)
    (said,) = sources.load("fmnist", folder).notes
    names = [f"'{folder / name}.gz'" for name in idx.SUMS["fmnist"]]
    assert (
        said == f"fmnist: differs from the published files (checksums in `fssl docs configuration`): {', '.join(names)}"
    )
    contents = {name: gzip.decompress((folder / f"{name}.gz").read_bytes()) for name in idx.SUMS["fmnist"]}
    monkeypatch.setitem(idx.SUMS, "fmnist", {name: sha256(content).hexdigest() for name, content in contents.items()})
    assert sources.load("fmnist", folder).notes == ()
    write_all(tmp_path / "plain", zipped=False)
    assert sources.load("fmnist", tmp_path / "plain").notes == ()
    spoil(folder, lambda data: data[:-1] + b"\x01", "t10k-labels-idx1-ubyte.gz")
    (said,) = sources.load("fmnist", folder).notes
    assert said.endswith(f": '{folder / 't10k-labels-idx1-ubyte.gz'}'")


def test_a_run_on_other_files_begins_with_one_warning(tmp_path: Path, fssl: Fssl) -> None:
    write_all(tmp_path / "data")
    few = ("data.labels_per_class=1", "partition.clients=1", "train.clients_per_round=1", "train.rounds=1")
    sets = [word for setting in ("data.name=fmnist", *few, "train.steps_per_round=1") for word in ("--set", setting)]
    code, said, _ = fssl("run", "smoke", *sets, "--device", "cpu", "--data-dir", tmp_path / "data", "--out", "run")
    assert (code, said.count("fmnist: differs from the published files")) == (0, 1), said
    assert said.index("differs from the published files") < said.index("round    1/1")


def test_who_has_no_files_hears_of_the_official_ones(tmp_path: Path, fssl: Fssl) -> None:
    official = "its four official files, train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz"
    with pytest.raises(UserError, match=f"fmnist/test-.*, or {official}"):
        sources.load("fmnist", tmp_path)
    assert f"fmnist: there may be {official}" in " ".join(fssl("datasets").out.split())


def test_fit_is_for_images_that_are_made_to_fit(fssl: Callable[..., object]) -> None:
    said = fssl("run", "smoke", "--set", "data.fit=pad", "--dry-run")
    assert said.code == 2  # type: ignore[attr-defined]
    assert "data.fit = 'pad' has no effect with data.name = 'digits'; remove it, or use 'fmnist'" in said.err  # type: ignore[attr-defined]
