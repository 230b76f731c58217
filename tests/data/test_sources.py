"""Datasets from tiny Parquet files: what is read, what is cached, and what is said when a file is wrong."""

import errno
import hashlib
import io
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from PIL import Image

from fssl.data import parquet, sources
from fssl.data.cache import Loading, cache_folder, clear_cache
from fssl.data.cards import CARDS, Card, card
from fssl.data.parquet import find_files, load_parquet
from fssl.data.sources import Dataset, load
from fssl.errors import RunError, UserError

TINY = replace(CARDS["cifar10"], size=4, num_classes=3, num_train=10, num_test=4, hub_config="plain_text")
PIXELS: NDArray[np.uint8] = np.random.RandomState(0).randint(0, 256, (14, 4, 4, 3)).astype(np.uint8)
LABELS = np.arange(14) % 3


def encode(pixels: NDArray[np.uint8], kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **({"lossless": True} if kind == "WEBP" else {}))
    return out.getvalue()


def write(path: Path, rows: range, images: dict[int, bytes | None] | None = None, **columns: list[Any]) -> None:
    """Rows of the tiny dataset; single images, or whole columns, can be replaced."""
    data = {row: encode(PIXELS[row], "PNG" if row % 2 else "WEBP") for row in rows} | (images or {})
    table = {
        "img": [{"bytes": data[row], "path": None} for row in rows],
        "label": [int(LABELS[row]) for row in rows],
    } | columns
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({name: values for name, values in table.items() if values}), path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with the tiny dataset in three files."""
    write(tmp_path / "data/cifar10/train-00000-of-00002.parquet", range(6))
    write(tmp_path / "data/cifar10/train-00001-of-00002.parquet", range(6, 10))
    write(tmp_path / "data/cifar10/test-00000-of-00001.parquet", range(10, 14))
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FSSL_DATA", raising=False)
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # no test may reach the network


def assert_tiny(dataset: Dataset) -> None:
    assert np.array_equal(dataset.train.images, PIXELS[:10])
    assert np.array_equal(dataset.test.images, PIXELS[10:])
    assert dataset.train.labels.tolist() == LABELS[:10].tolist()
    assert dataset.test.labels.tolist() == LABELS[10:].tolist()
    assert dataset.train.images.dtype == np.uint8
    assert dataset.train.labels.dtype == np.int64


def complaint(action: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_cards_agree_with_the_protocol() -> None:
    assert {name: each.rounds for name, each in CARDS.items() if each.hub_repo} == {
        "cifar10": 300,
        "cifar100": 500,
        "svhn": 150,
        "cinic10": 400,
        "fmnist": 150,  # not in the paper
    }
    assert [CARDS[name].per_class_base for name in ("cifar10", "cifar100", "svhn", "cinic10")] == [
        5000,
        500,
        4600,
        9000,
    ]
    assert CARDS["svhn"].train_std == CARDS["cifar10"].train_std != CARDS["cifar10"].test_std
    for each in CARDS.values():
        assert len(each.train_mean) == len(each.test_std) == each.channels
    assert "did you mean 'cifar10'" in complaint(lambda: card("cifar-10"))


def sha256(array: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def test_digits_are_those_of_scikit_learn_and_name_their_makers() -> None:
    """As `sklearn.datasets.load_digits` of version 1.9.1 gave them: images [1797, 8, 8] and target."""
    with np.load(sources.DIGITS) as stored:
        assert sha256(stored["images"].astype(np.float64)) == (
            "20def7f70a702f0af9732fbba4375e147a7d54fe70d8c45569b8e7c1c7010c10"
        )
        assert sha256(stored["labels"].astype(np.int64)) == (
            "a3c91c262eddcf7ba8f0e37507c30284493c9b20412ffe4af30d536401f7ba21"
        )
        assert all(word in str(stored["source"]) for word in ("Alpaydin", "Kaynak", "CC BY 4.0"))


def test_digits_are_split_evenly_and_always_the_same() -> None:
    first, again = load("digits"), load("digits")
    assert first.train.images.shape == (1437, 8, 8, 1)
    assert first.test.images.shape == (360, 8, 8, 1)
    assert np.bincount(first.test.labels).tolist() == [36] * 10
    assert np.bincount(first.train.labels).min() == first.card.per_class_base
    assert set(np.unique(first.train.images)) == {round(v * 255 / 16) for v in range(17)}
    assert np.array_equal(first.test.images, again.test.images)
    assert sha256(first.train.images) == "4b525596ab3a6e0613c9f2c4aad888f5327eeadab27bdc8ae21b0ca4f81abfcd"
    assert sha256(first.train.labels) == "d32f600c27af162c6105f15b5e892f8fd223b60586984ca910f543eb35e929cf"
    scaled = first.train.images / 255
    assert scaled.mean() == pytest.approx(first.card.train_mean[0], abs=1e-3)
    assert scaled.std() == pytest.approx(first.card.train_std[0], abs=1e-3)


def test_synthetic_defaults_fit_the_card() -> None:
    made = load("synthetic")
    assert made.card == CARDS["synthetic"]
    assert made.train.images.shape == (1000, 16, 16, 3)
    assert made.test.images.shape == (500, 16, 16, 3)
    assert np.bincount(made.train.labels).tolist() == [100] * 10


def test_synthetic_follows_its_options() -> None:
    small: dict[str, Any] = {"num_classes": 4, "size": 8, "channels": 1, "train_per_class": 50}
    made, again = load("synthetic", **small), load("synthetic", **small)
    assert made.train.images.shape == (200, 8, 8, 1)
    assert (made.card.num_classes, made.card.per_class_base, len(made.card.train_mean)) == (4, 50, 1)
    assert np.array_equal(made.train.images, again.train.images)
    assert not np.array_equal(made.train.images, load("synthetic", seed=1, **small).train.images)
    assert "did you mean 'num_classes'" in complaint(lambda: load("synthetic", num_clases=3))
    assert "positive counts" in complaint(lambda: load("synthetic", size=0))
    assert "has no options" in complaint(lambda: load("digits", size=9))


def test_synthetic_classes_are_separable_but_not_by_their_means_alone() -> None:
    made = load("synthetic")
    pixels, tests = (split.images.reshape(len(split.labels), -1).astype(float) for split in (made.train, made.test))
    means = np.stack([pixels[made.train.labels == c].mean(0) for c in range(10)])
    nearest = ((tests[:, None] - means) ** 2).sum(-1).argmin(1)
    assert 0.4 < (nearest == made.test.labels).mean() < 0.85


def test_parquet_is_decoded_once_and_then_mapped(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int, int]] = []
    assert_tiny(load_parquet(TINY, data, Loading(progress=lambda *call: calls.append(call))))
    assert calls == [
        ("decoding cifar10 train", 6, 10),
        ("decoding cifar10 train", 10, 10),
        ("decoding cifar10 test", 4, 4),
    ]
    monkeypatch.setattr(parquet, "_decode", None)  # a second decoding would fail
    again = load_parquet(TINY, data)
    assert_tiny(again)
    assert isinstance(again.train.images, np.memmap)


def test_worker_processes_give_the_same(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "PIECE", 2)
    assert_tiny(load_parquet(TINY, data, Loading(workers=2)))


def test_errors_come_back_from_worker_processes(data: Path) -> None:
    write(data / "cifar10/test-00000-of-00001.parquet", range(10, 14), {12: b"no image"})
    assert "row 2: no readable image" in complaint(lambda: load_parquet(TINY, data, Loading(workers=2)))


def test_a_killed_decoding_process_is_no_users_fault(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "io", SimpleNamespace(BytesIO=lambda *_: os._exit(9)))
    with pytest.raises(RunError, match="out of memory"):
        load_parquet(TINY, data, Loading(workers=2))


@pytest.mark.parametrize("inner", [".", "plain_text", "data", "cifar10/plain_text", "cifar10/data"])
def test_layouts(tmp_path: Path, inner: str) -> None:
    folder = tmp_path / "elsewhere" / inner
    write(folder / "train-00000-of-00001.parquet", range(10))
    write(folder / "test-00000-of-00001-0123456789abcdef.parquet", range(10, 14))
    for other in ("valid", "validation", "extra"):
        write(folder / f"{other}-00000-of-00001.parquet", range(3))
    assert_tiny(load_parquet(TINY, tmp_path / "elsewhere"))


def test_names_without_shard_numbers(tmp_path: Path) -> None:
    write(tmp_path / "train-a.parquet", range(5))
    write(tmp_path / "train-b.parquet", range(5, 10))
    write(tmp_path / "test-a.parquet", range(10, 14))
    assert_tiny(load_parquet(TINY, tmp_path))


def test_folder_and_cache_from_the_environment(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSSL_DATA", str(data))
    assert_tiny(load_parquet(TINY))
    assert len(list((tmp_path / "cache").iterdir())) == 4
    assert_tiny(load_parquet(TINY, how=Loading(tmp_path / "other")))
    assert len(list((tmp_path / "other").iterdir())) == 4


def test_grey_and_transparent_images_become_rgb(data: Path) -> None:
    grey, clear = PIXELS[10, :, :, 0], np.dstack([PIXELS[11], np.full((4, 4), 9, np.uint8)])
    write(data / "cifar10/test-00000-of-00001.parquet", range(10, 14), {10: encode(grey), 11: encode(clear)})
    test = load_parquet(TINY, data).test.images
    assert np.array_equal(test[0], np.dstack([grey] * 3))
    assert np.array_equal(test[1:], PIXELS[11:])


def test_one_channel_cards_get_one_channel(data: Path) -> None:
    images = load_parquet(replace(TINY, channels=1), data).train.images
    assert images.shape == (10, 4, 4, 1)
    assert np.array_equal(images[1, :, :, 0], np.asarray(Image.fromarray(PIXELS[1]).convert("L")))


def test_changed_files_are_decoded_again(data: Path) -> None:
    load_parquet(TINY, data)
    write(data / "cifar10/test-00000-of-00001.parquet", range(10, 14), label=[2, 2, 2, 2])
    assert load_parquet(TINY, data).test.labels.tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("damage", ["no images", "no labels", "short", "empty", "shape"])
def test_a_damaged_cache_is_built_again(data: Path, tmp_path: Path, damage: str) -> None:
    load_parquet(TINY, data)
    (images,), (labels,) = ([*(tmp_path / "cache").glob(f"*train*.{kind}.npy")] for kind in ("images", "labels"))
    if damage == "no images":
        images.unlink()
    elif damage == "no labels":
        labels.unlink()
    elif damage == "shape":
        np.save(images, PIXELS[:9])
    else:
        os.truncate(images, 0 if damage == "empty" else images.stat().st_size - 1)
    assert_tiny(load_parquet(TINY, data))


def test_an_interrupted_decoding_leaves_nothing(data: Path, tmp_path: Path) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_parquet(TINY, data, Loading(progress=interrupt))
    assert list((tmp_path / "cache").iterdir()) == []


def test_two_at_once(data: Path, tmp_path: Path) -> None:
    meet, results = threading.Barrier(2, timeout=10), list[Dataset]()

    def progress(stage: str, done: int, total: int) -> None:
        if (stage, done) == ("decoding cifar10 train", 6):
            meet.wait()  # both are in the middle of the same file

    threads = [
        threading.Thread(target=lambda: results.append(load_parquet(TINY, data, Loading(progress=progress))))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
    for result in results:
        assert_tiny(result)
    assert len(list((tmp_path / "cache").iterdir())) == 4


@pytest.mark.parametrize(("number", "is_full"), [(errno.ENOSPC, True), (errno.EROFS, False)])
def test_a_full_disk_and_a_read_only_one(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_full: bool
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    said = complaint(lambda: load_parquet(TINY, data))
    assert os.strerror(number) in said
    assert "FSSL_CACHE" in said
    assert (" free 0 MB, or" in said) == is_full
    assert str(tmp_path / "cache") in said
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_folder_that_is_a_file(data: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    assert "cannot be written" in complaint(lambda: load_parquet(TINY, data))


def test_the_cache_is_in_the_folder_for_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSSL_CACHE", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == tmp_path / ".cache/fssl"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert cache_folder() == tmp_path / "caches/fssl"
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


def test_clearing_the_cache_removes_decoded_images_only(data: Path, tmp_path: Path) -> None:
    load_parquet(TINY, data)
    (tmp_path / "cache" / "notes.npy").touch()
    sizes = [path.stat().st_size for path in (tmp_path / "cache").iterdir()]
    assert clear_cache() == (4, sum(sizes))
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["notes.npy"]
    assert clear_cache() == (0, 0)


def test_missing_folder_and_missing_files(tmp_path: Path) -> None:
    said = complaint(lambda: load("cifar100", tmp_path / "nowhere"))
    assert "nowhere' is no such folder" in said
    assert said.endswith(
        "; put cifar100/train-*.parquet and cifar100/test-*.parquet there;"
        " or `pip install 'fssl[hub]'` and remove data.dir to download uoft-cs/cifar100"
    )
    assert "has no train-*.parquet files" in complaint(lambda: load("svhn", tmp_path))


def test_missing_shard_and_missing_split(data: Path) -> None:
    (data / "cifar10/train-00001-of-00002.parquet").unlink()
    said = complaint(lambda: load_parquet(TINY, data))
    assert "cifar10/train-00001-of-00002.parquet' is missing" in said
    assert "uoft-cs/cifar10" in said
    write(data / "cifar10/train-00001-of-00002.parquet", range(6, 10))
    (data / "cifar10/test-00000-of-00001.parquet").unlink()
    said = complaint(lambda: load_parquet(TINY, data))
    assert said.endswith(
        f"no test-*.parquet in '{data / 'cifar10'}'; download it again from hub repository uoft-cs/cifar10"
    )


def test_two_shard_sets_in_one_folder(data: Path) -> None:
    write(data / "cifar10/train-00000-of-00001.parquet", range(10))
    assert "3 train files" in complaint(lambda: load_parquet(TINY, data))


TEST = "cifar10/test-00000-of-00001.parquet"


def test_wrong_columns(data: Path) -> None:
    path = data / TEST
    write(path, range(10, 14), label=[], fine_label=[0, 1, 2, 0])
    assert f"'{path}' has no column 'label'" in complaint(lambda: load_parquet(TINY, data))
    write(path, range(10, 14))
    twice = pq.read_table(path)
    pq.write_table(twice.append_column("label", twice["label"]), path)
    assert f"'{path}' has 2 columns 'label', expected one for cifar10" in complaint(lambda: load_parquet(TINY, data))
    write(path, range(10, 14), img=[1, 2, 3, 4])
    assert "column 'img' is int64" in complaint(lambda: load_parquet(TINY, data))
    write(path, range(10, 14), label=["a", "b", "c", "d"])
    assert "column 'label' is string" in complaint(lambda: load_parquet(TINY, data))


def test_wrong_row_count(data: Path) -> None:
    write(data / TEST, range(10, 13))
    said = complaint(lambda: load_parquet(TINY, data))
    assert "cifar10 test: 3 images" in said
    assert "expected 4" in said


def test_a_cached_copy_does_not_hide_a_wrong_row_count(data: Path) -> None:
    load_parquet(TINY, data)
    assert "expected 5" in complaint(lambda: load_parquet(replace(TINY, num_test=5), data))


@pytest.mark.parametrize(("label", "shown"), [(3, "3"), (-1, "-1"), (None, "None")])
def test_wrong_labels(data: Path, label: int | None, shown: str) -> None:
    write(data / TEST, range(10, 14), label=[0, 1, label, 2])
    said = complaint(lambda: load_parquet(TINY, data))
    assert f"{TEST}', row 2: label is {shown}, expected 0 to 2" in said


@pytest.mark.parametrize("kind", ["uint8", "int8", "uint16", "uint32", "int32", "uint64"])
def test_labels_of_any_whole_type(data: Path, kind: str) -> None:
    write(data / TEST, range(10, 14), label=pa.array([0, 1, 2, 2], kind))
    found = load_parquet(TINY, data).test.labels
    assert (found.tolist(), found.dtype) == ([0, 1, 2, 2], np.int64)
    largest = {"int8": 127, "uint64": 2**64 - 1}.get(kind, 200)
    for label in (None, 3, largest):
        write(data / TEST, range(10, 14), label=pa.array([0, 1, label, 2], kind))
        said = complaint(lambda: load_parquet(TINY, data))
        assert f"{TEST}', row 2: label is {label}, expected 0 to 2" in said


@pytest.mark.parametrize("content", [None, b"", b"no image", encode(PIXELS[0])[:60]])
def test_wrong_images(data: Path, content: bytes | None) -> None:
    write(data / TEST, range(10, 14), {13: content})
    assert f"{TEST}', row 3: no readable image" in complaint(lambda: load_parquet(TINY, data))


def test_wrong_image_size(data: Path, tmp_path: Path) -> None:
    write(data / TEST, range(10, 14), {11: encode(PIXELS[0, :2])})
    assert "row 1: the image is 4x2, expected 4x4" in complaint(lambda: load_parquet(TINY, data))
    assert not list((tmp_path / "cache").glob("*test*"))


def test_not_parquet(data: Path) -> None:
    (data / TEST).write_text("version https://git-lfs.github.com/spec/v1")
    said = complaint(lambda: load_parquet(TINY, data))
    assert f"{TEST}' (42 bytes) is not a readable Parquet file" in said
    (data / TEST).write_bytes(b"")
    assert "(0 bytes) is not a readable Parquet file" in complaint(lambda: load_parquet(TINY, data))


def test_damaged_pages(data: Path) -> None:
    whole = (data / TEST).read_bytes()
    (data / TEST).write_bytes(whole[:8] + bytes(200) + whole[208:])
    assert TEST in complaint(lambda: load_parquet(TINY, data))


def test_without_a_folder_the_hub_is_asked(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def snapshot_download(repo: str, **options: Any) -> str:
        asked.append((repo, options))
        return str(data / "cifar10")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    monkeypatch.setenv("FSSL_DATA", str(tmp_path / "empty"))
    assert_tiny(load_parquet(TINY))
    patterns = ["plain_text/train-*.parquet", "plain_text/test-*.parquet"]
    given = {"repo_type": "dataset", "revision": None, "allow_patterns": patterns}
    assert asked == [("uoft-cs/cifar10", given)]


def test_the_commit_of_a_download_is_known_and_can_be_asked_for(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's client names a folder by the commit; files of a user have none."""
    asked: list[str | None] = []

    def snapshot_download(repo: str, *, revision: str | None, **options: Any) -> str:
        asked.append(revision)
        place = tmp_path / "hub/snapshots" / (revision or "a" * 40)
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            place.symlink_to(data / "cifar10")
        return str(place)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    monkeypatch.delenv("FSSL_DATA", raising=False)
    assert load_parquet(TINY).revision == "a" * 40
    assert load_parquet(TINY, revision="b" * 40).revision == "b" * 40
    assert asked == [None, "b" * 40]
    assert load_parquet(TINY, data).revision is None
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=hub_that_fails))
    said = complaint(lambda: find_files(TINY, revision="c"))
    assert "the download of uoft-cs/cifar10 at data.revision = 'c' failed (cannot reach the hub)" in said


def hub_that_fails(repo: str, **options: Any) -> str:
    raise ConnectionError("cannot reach the hub\nfor a long list of reasons")


def test_what_is_missing_is_said_without_a_download(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sources.lacking("cifar10", data) == sources.lacking("digits") == sources.lacking("synthetic") == ""
    (data / "cifar10/train-00001-of-00002.parquet").unlink()
    assert "train-00001-of-00002.parquet' is missing; download it again" in sources.lacking("cifar10", data)
    assert "cifar100: 'nowhere' is no such folder; put cifar100/train-" in sources.lacking("cifar100", Path("nowhere"))
    assert "cifar100: no data folder is given, and huggingface_hub is not installed" in sources.lacking("cifar100")
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(__spec__=object()))  # which can do nothing
    hub = "cifar100: not in a data folder; a run downloads it from the Hugging Face hub, uoft-cs/cifar100"
    assert sources.lacking("cifar100") == hub
    said = sources.lacking("cifar100", Path("nowhere"))  # one that is named has to be there
    assert said.endswith(
        "is no such folder; put cifar100/train-*.parquet and cifar100/test-*.parquet there;"
        " or remove data.dir to download uoft-cs/cifar100"
    )
    monkeypatch.setenv("FSSL_DATA", str(data))
    assert sources.lacking("cifar100") == hub
    assert "is missing; download it again" in sources.lacking("cifar10")


def test_without_hub_or_network(monkeypatch: pytest.MonkeyPatch) -> None:
    said = complaint(lambda: load("cinic10"))
    assert "cinic10: no data folder is given, and huggingface_hub is not installed" in said
    assert "fssl[hub]" in said
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=hub_that_fails))
    said = complaint(lambda: load("cinic10"))
    assert "the download of flwrlabs/cinic10 failed (cannot reach the hub)" in said
    assert "point data.dir or FSSL_DATA at" in said


def test_an_incomplete_download_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = SimpleNamespace(snapshot_download=lambda repo, **options: str(tmp_path))
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    facts: Card = TINY
    assert "no train-*.parquet in" in complaint(lambda: find_files(facts))
