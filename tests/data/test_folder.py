"""A site's own images: which row is which file, what is rejected in one list, and what the cache notices."""

import inspect
import os
import random
import shutil
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fssl.data import cache
from fssl.data.cache import Loading
from fssl.data.cards import Agreed
from fssl.data.dataset import Dataset
from fssl.data.folder import listing
from fssl.data.folder import load as load_module
from fssl.data.folder.example import export_digits
from fssl.data.folder.load import check, load_classes, load_federation, load_server, load_site
from fssl.data.folder.pictures import SUFFIXES
from fssl.data.sources import load
from fssl.errors import ProblemsError, RunError, UserError

PETS = Agreed(("cat", "dog"), size=8, channels=1)
# Every image is of one brightness, which shows its position.
LAYOUT = {
    "clients/a/labeled/cat/1.png": 10,
    "clients/a/labeled/cat/10.png": 11,
    "clients/a/labeled/dog/0.png": 12,
    "clients/a/unlabeled/x.png": 13,
    "clients/b/labeled/dog/0.png": 20,
    "clients/b/test/dog/0.png": 90,
    "clients/c/unlabeled/b.png": 31,
    "clients/c/unlabeled/a.png": 30,
    "test/cat/0.png": 80,
    "test/dog/0.png": 81,
}


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "cache"))


def paint(path: Path, brightness: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 6), brightness).save(path)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, brightness in LAYOUT.items():
        paint(tmp_path / "data" / name, brightness)
    return tmp_path / "data"


def brightness(dataset: Dataset) -> list[int]:
    assert (dataset.train.images == dataset.train.images[:, :1, :1]).all()
    return [int(image[0, 0, 0]) for image in dataset.train.images]


def problems(action: Callable[[], object]) -> list[str]:
    with pytest.raises(ProblemsError) as caught:
        action()
    headline, *lines = str(caught.value).split("\n  ")
    assert "cannot be used" in headline
    return lines


def test_a_federation_is_its_clients_in_the_order_of_their_names(root: Path) -> None:
    data = load_federation(root, PETS)
    assert brightness(data) == [13, 10, 11, 12, 20, 30, 31]  # per client: unlabeled, then labeled by class
    assert data.train.labels.tolist() == [-1, 0, 0, 1, 1, -1, -1]
    assert [int(image[0, 0, 0]) for image in data.test.images] == [80, 81, 90]
    assert data.test.labels.tolist() == [0, 1, 1]
    assert data.partition is not None
    assert [rows.tolist() for rows in data.partition.labeled] == [[1, 2, 3], [4], []]
    assert [rows.tolist() for rows in data.partition.unlabeled] == [[0], [], [5, 6]]
    assert (data.card.classes, data.card.num_classes, data.card.size) == (("cat", "dog"), 2, 8)
    assert (data.card.num_train, data.card.num_test, data.card.train_mean) == (7, 3, (0.5,))


def test_classes_are_those_that_any_client_has_labels_for(root: Path) -> None:
    paint(root / "clients/b/labeled/bird/0.png", 1)
    assert load_federation(root, Agreed((), 8)).card.classes == ("bird", "cat", "dog")
    given = load_federation(root, Agreed(("dog", "fish", "cat", "bird"), 8))
    assert given.card.classes == ("dog", "fish", "cat", "bird")
    assert given.train.labels.tolist() == [-1, 2, 2, 0, 3, 0, -1, -1]


def test_nothing_depends_on_the_order_in_which_files_were_made_or_are_listed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_federation(root, PETS)
    names = list(LAYOUT)
    random.Random(1).shuffle(names)
    for name in names:
        paint(tmp_path / "other" / name, LAYOUT[name])
    listed = Path.iterdir
    monkeypatch.setattr(
        Path, "iterdir", lambda self: iter(sorted(listed(self), key=lambda p: p.name[::-1], reverse=True))
    )
    second = load_federation(tmp_path / "other", PETS)
    assert brightness(first) == brightness(second)
    assert first.train.labels.tolist() == second.train.labels.tolist()
    assert first.digest == second.digest


def test_one_site_sees_the_rows_that_it_has_in_the_federation(root: Path) -> None:
    everyone = load_federation(root, PETS)
    assert everyone.partition is not None
    for client, name in enumerate("abc"):
        site = load_site(root / "clients" / name, PETS, client, clients=3)
        assert site.partition is not None
        for k in range(3):
            rows = everyone.partition.pool(client) if k == client else np.zeros(0, np.int64)
            mine = site.partition.pool(k)
            assert np.array_equal(site.train.images[mine], everyone.train.images[rows])
            assert np.array_equal(site.train.labels[mine], everyone.train.labels[rows])
        assert site.card.train_mean == everyone.card.train_mean
    assert len(load_site(root / "clients/b", PETS).test.labels) == 1
    assert len(load_site(root / "clients/c", PETS).test.labels) == 0


def test_a_server_has_its_test_images_alone(root: Path) -> None:
    assert load_server(root, PETS).test.labels.tolist() == [0, 1]
    assert problems(lambda: load_server(root / "clients", PETS)) == [
        ".: no test images, expected some in test/CLASS/*",
    ]


def with_server(root: Path) -> Path:
    """The folder with all labels at the server."""
    for name in "abc":
        shutil.rmtree(root / "clients" / name / "labeled", ignore_errors=True)
        paint(root / "clients" / name / "unlabeled" / "more.png", 9)
    for number, name in enumerate(("cat", "dog", "dog")):
        paint(root / "server" / name / f"{number}.png", 40 + number)
    return root


def test_the_labels_may_be_at_the_server(root: Path) -> None:
    at_server = PETS._replace(at_server=True)
    data, own = load_federation(with_server(root), at_server), load_server(root, at_server)
    assert data.partition is not None
    assert own.partition is not None
    assert all(len(rows) == 0 for rows in data.partition.labeled)
    assert [data.train.labels[rows].tolist() for rows in data.partition.unlabeled] == [
        [-1] * len(rows) for rows in data.partition.unlabeled
    ]
    rows = data.partition.server
    assert data.train.labels[rows].tolist() == own.train.labels.tolist() == [0, 1, 1]
    assert data.train.images[rows].mean((1, 2, 3)).tolist() == [40, 41, 42]
    assert np.array_equal(own.train.images[own.partition.server], data.train.images[rows])
    assert data.groups is not None
    assert len({*data.groups[rows].tolist()} - {*data.groups[: rows[0]].tolist()}) == 3
    assert load_federation(root, Agreed((), 8, 1, at_server=True)).card.classes == ("cat", "dog")


def test_labels_at_the_server_and_at_clients_are_not_mixed(root: Path) -> None:
    at_server = PETS._replace(at_server=True)
    moved = "has labeled images, but partition.labels = 'server'; move them to unlabeled, or remove the setting"
    assert problems(lambda: load_federation(root, at_server)) == [
        f"clients/a: {moved}",
        f"clients/b: {moved}",
        ".: no labeled images of the server, expected some in server/CLASS/*",
    ]
    assert problems(lambda: load_site(root / "clients/a", at_server)) == [f".: {moved}"]
    assert problems(lambda: load_server(root, at_server)) == [
        ".: no labeled images of the server, expected some in server/CLASS/*"
    ]
    with_server(root)
    nobody = [
        ".: no client has a labeled image, expected some in clients/NAME/labeled/CLASS/*, or in server/CLASS/* with"
        " partition.labels = 'server'"
    ]
    assert problems(lambda: load_federation(root, PETS)) == nobody
    assert problems(lambda: load_federation(root, Agreed((), 8, 1))) == nobody  # no class is agreed, so none is wrong
    paint(root / "server" / "fish" / "0.png", 1)
    assert problems(lambda: load_federation(root, at_server)) == [
        "server/fish: 'fish' is not one of the agreed classes; expected one of cat, dog"
    ]
    (root / "server" / "cat" / "bad.png").write_text("no image")
    (skipped,) = load_federation(root, at_server._replace(skip_bad=True, classes=("cat", "dog", "fish"))).skipped
    assert skipped.startswith("server/cat/bad.png: ")
    for image in (root / "server").rglob("*.png"):
        image.write_text("no image")
    assert problems(lambda: load_federation(root, at_server._replace(skip_bad=True))) == [
        "server: no readable labeled image"
    ]


def test_normalization_is_a_constant_unless_it_is_given(root: Path) -> None:
    assert load_federation(root, Agreed(("cat", "dog"), 8)).card.train_std == (0.25, 0.25, 0.25)
    card = load_federation(root, Agreed(("cat", "dog"), 8, 1, (0.1,), (0.2,))).card
    assert (card.train_mean, card.train_std, card.test_mean, card.test_std) == ((0.1,), (0.2,), (0.1,), (0.2,))


def test_names_with_accents_are_the_same_however_they_are_spelled(root: Path) -> None:
    for client, form in (("a", "NFC"), ("b", "NFD")):
        paint(root / "clients" / client / "labeled" / unicodedata.normalize(form, "Bär") / "0.png", 1)
    data = load_federation(root, Agreed((), 8))
    assert data.card.classes == ("Bär", "cat", "dog")
    assert data.train.labels.tolist().count(0) == 2


def test_what_file_managers_leave_behind_is_ignored(root: Path) -> None:
    before = load_federation(root, PETS)
    for name in (".DS_Store", "test/.DS_Store", "clients/a/labeled/cat/Thumbs.db", "clients/desktop.ini"):
        (root / name).write_bytes(b"x")
    (root / "clients/.git/labeled").mkdir(parents=True)
    (root / "clients/a/labeled/.ipynb_checkpoints").mkdir()
    (root / "runs").mkdir()
    (root / "clients/a/notes.csv").write_text("x")
    after = load_federation(root, PETS)
    assert (after.digest, brightness(after)) == (before.digest, brightness(before))


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "unknown class": (
        lambda root: paint(root / "clients/a/labeled/cats/0.png", 1),
        "clients/a/labeled/cats: 'cats' is not one of the agreed classes; did you mean 'cat'?",
    ),
    "unknown test class": (
        lambda root: paint(root / "test/horse/0.png", 1),
        "test/horse: 'horse' is not one of the agreed classes; expected one of cat, dog",
    ),
    "empty class": (
        lambda root: (root / "clients/b/labeled/cat").mkdir(),
        "clients/b/labeled/cat: an empty folder; add images or remove it",
    ),
    "empty unlabeled": (
        lambda root: (root / "clients/b/unlabeled").mkdir(),
        "clients/b/unlabeled: an empty folder; add images or remove it",
    ),
    "British": (
        lambda root: (root / "clients/a/labeled").rename(root / "clients/a/labelled"),
        "clients/a/labelled: did you mean 'labeled'?",
    ),
    "strange folder": (
        lambda root: (root / "clients/a/masks").mkdir(),
        "clients/a/masks: expected only labeled, unlabeled, test",
    ),
    "wrong suffix": (
        lambda root: (root / "clients/a/unlabeled/x.gif").write_bytes(b"GIF89a"),
        f"clients/a/unlabeled/x.gif: no image suffix, expected {', '.join(SUFFIXES)}",
    ),
    "empty folder among images": (
        lambda root: (root / "clients/a/unlabeled/more").mkdir(),
        "clients/a/unlabeled/more: an empty folder; add images or remove it",
    ),
    "link to a folder": (
        lambda root: (root / "clients/a/unlabeled/more").symlink_to(root / "clients/c/unlabeled"),
        "clients/a/unlabeled/more: a link to a folder, expected images",
    ),
    "image in the wrong place": (
        lambda root: paint(root / "clients/a/labeled/x.png", 1),
        "clients/a/labeled/x.png: an image in the wrong place",
    ),
    "nothing to train on": (
        lambda root: paint(root / "clients/d/test/cat/0.png", 1),
        "clients/d: no images to train on, expected some in labeled/CLASS/* or unlabeled/*",
    ),
    "pipe": (
        lambda root: os.mkfifo(root / "clients/a/unlabeled/p.png"),
        "clients/a/unlabeled/p.png: not an ordinary file",
    ),
    "two spellings": (
        lambda root: paint(root / "clients/a/labeled/Cat /0.png", 1),
        "clients/a/labeled/cat: differs from 'Cat ' only in case, spaces or accents; merge them",
    ),
    "line break in a name": (
        lambda root: paint(root / "clients/a/unlabeled/a\nb.png", 1),
        r"clients/a/unlabeled: the name 'a\nb.png' is not plain text; rename it",
    ),
    "damaged": (
        lambda root: (root / "clients/c/unlabeled/a.png").write_bytes(b"nothing"),
        "clients/c/unlabeled/a.png: not a PNG, JPEG, WebP, TIFF, BMP or DICOM image",
    ),
    "a client's folder at the top": (
        lambda root: (root / "labeled").mkdir(),
        "labeled: belongs to a client; move it into clients/NAME",
    ),
    "misspelled": (lambda root: (root / "Tests").mkdir(), "Tests: did you mean 'test'?"),
}


@pytest.mark.parametrize(("break_it", "expected"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(root: Path, break_it: Callable[[Path], object], expected: str) -> None:
    break_it(root)
    found = problems(lambda: load_federation(root, PETS))
    assert expected in found
    # A folder that is not read may be missed elsewhere, and a name that is not read is not agreed on.
    assert all("not one of the agreed" in line or line == expected for line in found)
    assert not list((root.parent / "cache").glob("*.npy"))


def test_all_problems_come_in_one_list_which_ends(root: Path) -> None:
    for i in range(30):
        (root / f"clients/c/unlabeled/{i:02}.png").write_bytes(b"nothing")
    (root / "clients/a/unlabeled/notes.txt").touch()
    found = problems(lambda: load_federation(root, PETS))
    assert found[0].startswith("clients/a/unlabeled/notes.txt")
    assert found[1:20] == [
        f"clients/c/unlabeled/{i:02}.png: not a PNG, JPEG, WebP, TIFF, BMP or DICOM image" for i in range(19)
    ]
    assert found[20:] == ["and 11 more"]
    assert len(check(root).problems) == 31


def test_a_federation_needs_clients_labels_and_a_test(root: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert problems(lambda: load_federation(tmp_path / "empty", PETS)) == [
        ".: no clients, expected clients/NAME/labeled/CLASS/* and clients/NAME/unlabeled/*",
        ".: no test images, expected some in test/CLASS/* or clients/NAME/test/CLASS/*",
    ]
    for name in LAYOUT:
        if "test" in name or "labeled/" in name.replace("unlabeled", ""):
            (root / name).unlink()
    for path in sorted(root.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    assert problems(lambda: load_federation(root, PETS)) == [
        ".: no test images, expected some in test/CLASS/* or clients/NAME/test/CLASS/*",
        ".: no client has a labeled image, expected some in clients/NAME/labeled/CLASS/*, or in server/CLASS/* with"
        " partition.labels = 'server'",
    ]
    with pytest.raises(UserError, match="is not a folder"):
        load_federation(tmp_path / "nowhere", PETS)
    with pytest.raises(UserError, match="is the folder of a single site"):
        load_federation(root / "clients/a", PETS)
    with pytest.raises(UserError, match=r"set data\.dir"):
        load("folder", None, classes=())


def test_one_class_is_too_few_and_one_class_must_have_one_name(root: Path) -> None:
    paint(root / "clients/b/labeled/Cat/0.png", 1)
    assert problems(lambda: load_federation(root, Agreed((), 8))) == ["b: class 'Cat' is 'cat' elsewhere; use one name"]
    for name in ("clients/a/labeled/dog/0.png", "clients/b/labeled/dog/0.png", "clients/b/labeled/Cat/0.png"):
        (root / name).unlink()
        (root / name).parent.rmdir()
    (root / "clients/b/labeled").rmdir()
    paint(root / "clients/b/unlabeled/x.png", 1)
    assert ".: only one class has labeled images (cat), expected two" in problems(
        lambda: load_federation(root, Agreed((), 8))
    )


def test_links_may_not_leave_the_folder(root: Path, tmp_path: Path) -> None:
    outside = paint(tmp_path / "outside/secret.png", 99)
    unlabeled = root / "clients/c/unlabeled"
    (unlabeled / "inside.png").symlink_to("../../a/unlabeled/x.png")
    assert brightness(load_federation(root, PETS))[-1] == 13
    (unlabeled / "out.png").symlink_to(outside)
    (unlabeled / "lost.png").symlink_to("nowhere.png")
    (unlabeled / "circle.png").symlink_to("circle.png")
    (root / "clients/z").symlink_to(outside.parent)
    out = "a link to"
    assert sorted(problems(lambda: load_federation(root, PETS))) == [
        "clients/c/unlabeled/circle.png: a broken link",
        "clients/c/unlabeled/lost.png: a broken link",
        f"clients/c/unlabeled/out.png: {out} {outside}, outside the folder; copy the files instead",
        f"clients/z: {out} {outside.parent}, outside the folder; copy the files instead",
    ]
    # A site is a folder of its own: its images must not be a neighbor's.
    assert any(
        "inside.png: a link to" in p and "outside the folder" in p
        for p in problems(lambda: load_site(root / "clients/c", PETS))
    )


def test_the_folder_itself_may_be_reached_by_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "way").symlink_to(root)
    assert brightness(load_federation(tmp_path / "way", PETS)) == brightness(load_federation(root, PETS))


def test_images_are_decoded_once_and_only_for_their_owner(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[tuple[str, int, int]] = []
    load_federation(root, PETS, Loading(progress=lambda *tick: ticks.append(tick)))
    assert ticks == [("reading images", 10, 10)]
    (cached,) = (root.parent / "cache").iterdir()
    assert cached.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(load_module, "read_picture", None)  # a second decoding would fail
    again = load_federation(root, PETS)
    assert isinstance(again.train.images.base, np.memmap)
    assert brightness(again) == [13, 10, 11, 12, 20, 30, 31]


def test_a_folder_has_one_cache_however_often_it_changes(root: Path, tmp_path: Path) -> None:
    """Others' stay: of another size, of the test alone, of a single site; and readers of an old one continue."""
    first = load_federation(root, PETS)
    load_federation(root, PETS._replace(size=16))
    load_server(root, PETS)
    load_site(root / "clients/c", PETS)
    others = {*(tmp_path / "cache").iterdir()}
    assert len(others) == 4
    for number in range(3):
        paint(root / f"clients/a/unlabeled/new{number}.png", 14 + number)
        assert len(brightness(load_federation(root, PETS))) == 8 + number
    now = {*(tmp_path / "cache").iterdir()}
    assert (len(now), len(now & others)) == (4, 3)
    assert brightness(first) == [13, 10, 11, 12, 20, 30, 31]


def test_a_cache_that_another_process_removes_is_built_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That one found a change, and was done while this one was about to open what it had built."""
    was_there: list[bool] = []

    found = cache.open_array

    def open_array(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
        was_there.append(path.exists())
        if was_there == [False, True]:
            path.unlink()
        return found(path, shape)

    monkeypatch.setattr(cache, "open_array", open_array)
    assert brightness(load_federation(root, PETS)) == [13, 10, 11, 12, 20, 30, 31]
    assert was_there == [False, True, True]


def test_a_changed_folder_is_noticed(root: Path) -> None:
    first = load_federation(root, PETS)
    path = root / "clients/c/unlabeled/b.png"
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    paint(path, 33)
    os.utime(path, ns=times)  # the same size and date, as a careless copy would leave them
    second = load_federation(root, PETS)
    assert brightness(second)[-1] == 33
    assert second.digest == first.digest  # names and sizes only: a copy elsewhere is the same
    path.rename(path.with_name("0.png"))
    third = load_federation(root, PETS)
    assert brightness(third)[-2:] == [33, 30]
    assert third.digest != first.digest
    assert load_federation(root, PETS._replace(size=16)).train.images.shape == (7, 16, 16, 1)
    assert load_federation(root, PETS._replace(channels=3)).train.images.shape == (7, 8, 8, 3)


def test_worker_processes_give_the_same(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "PIECE", 2)
    monkeypatch.setattr(load_module, "BATCH", 5)
    one = load_federation(root, PETS)
    two = load_federation(root, PETS, Loading(tmp_path / "other", workers=2))
    assert np.array_equal(one.train.images, two.train.images)
    (root / "clients/c/unlabeled/a.png").write_bytes(b"nothing")
    assert problems(lambda: load_federation(root, PETS, Loading(workers=2))) == [
        "clients/c/unlabeled/a.png: not a PNG, JPEG, WebP, TIFF, BMP or DICOM image"
    ]


def test_a_killed_decoding_process_is_no_users_fault(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "PIECE", 2)
    monkeypatch.setattr(load_module, "read_picture", lambda *_: os._exit(9))
    with pytest.raises(RunError, match="out of memory"):
        load_federation(root, PETS, Loading(workers=2))


@pytest.mark.slow
def test_exported_digits_come_back_as_they_were(tmp_path: Path) -> None:
    export_digits(tmp_path / "sites")
    digits, back = load("digits"), load_federation(tmp_path / "sites", Agreed((), 8, 1))
    assert back.card.classes == tuple("0123456789")
    assert back.partition is not None
    assert len(back.partition.labeled) == 3
    assert sum(map(len, back.partition.labeled)) == 100
    assert len(back.train.labels) == len(digits.train.labels)
    names = [file.name for file in listing.list_federation(tmp_path / "sites").files() if "test/" not in file.name]
    rows = [int(Path(name).stem) for name in names]
    assert sorted(rows) == list(range(1437))
    assert np.array_equal(back.train.images, digits.train.images[rows])
    known = back.train.labels >= 0
    assert np.array_equal(back.train.labels[known], digits.train.labels[rows][known])
    assert known.sum() == 100
    assert np.bincount(back.test.labels).tolist() == [36] * 10
    with pytest.raises(UserError, match="already exists"):
        export_digits(tmp_path / "sites")


# Folders within folders, and files that are left out.


def test_images_may_lie_at_any_depth_below_a_class_and_among_the_unlabeled(root: Path) -> None:
    paint(root / "clients/a/labeled/cat/patient 7/left/2.png", 14)
    paint(root / "clients/a/unlabeled/2021/march/7.png", 9)
    paint(root / "test/dog/patient 8/0.png", 82)
    data = load_federation(root, PETS)
    assert brightness(data) == [9, 13, 10, 11, 14, 12, 20, 30, 31]
    assert data.train.labels.tolist() == [-1, -1, 0, 0, 0, 1, 1, -1, -1]
    assert data.test.labels.tolist() == [0, 1, 1, 1]
    paint(root / "clients/a/labeled/cow/herd/1.png", 1)
    assert problems(lambda: load_federation(root, PETS)) == [
        "clients/a/labeled/cow: 'cow' is not one of the agreed classes; expected one of cat, dog"
    ]


def test_folders_may_be_deeper_than_python_calls(root: Path) -> None:
    site, deep = root / "clients/a", "/".join("d" * 150)
    paint(site / "unlabeled" / deep / "7.png", 9)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 100)
    try:
        files, every = list(listing.list_site(site).files()), list(listing.list_images(site).files())
    finally:
        sys.setrecursionlimit(limit)
    assert f"unlabeled/{deep}/7.png" in [file.name for file in files]
    assert {file.name for file in every} == {file.name for file in files}


def spoil(root: Path) -> list[str]:
    """Four things that are wrong with files, and what is said of them."""
    (root / "clients/a/labeled/cat/10.png").write_bytes(b"no image")
    (root / "clients/c/unlabeled/notes.txt").write_text("text")
    (root / "clients/b/labeled/dog/gone.png").symlink_to(root / "nowhere.png")
    (root / "clients/b/unlabeled").mkdir()
    return [
        "clients/b/labeled/dog/gone.png: a broken link",
        "clients/b/unlabeled: an empty folder; add images or remove it",
        f"clients/c/unlabeled/notes.txt: no image suffix, expected {', '.join(SUFFIXES)}",
        "clients/a/labeled/cat/10.png: not a PNG, JPEG, WebP, TIFF, BMP or DICOM image",
    ]


def test_bad_files_are_left_out_and_listed_where_that_is_allowed(root: Path, tmp_path: Path) -> None:
    lines = spoil(root)
    assert sorted(problems(lambda: load_federation(root, PETS))) == sorted(lines)
    allowed = PETS._replace(skip_bad=True)
    data = load_federation(root, allowed)
    assert brightness(data) == [13, 10, 12, 20, 30, 31]
    assert list(data.skipped) == lines
    again = load_federation(root, allowed)  # now from the cache
    assert (brightness(again), again.skipped, again.digest) == (brightness(data), data.skipped, data.digest)
    site = load_site(root / "clients/a", allowed, 0, clients=3)
    assert brightness(site) == [13, 10, 12]
    assert list(site.skipped) == ["labeled/cat/10.png: not a PNG, JPEG, WebP, TIFF, BMP or DICOM image"]
    paint(root / "clients/a/labeled/cat/10.png", 11)  # repaired
    assert brightness(load_federation(root, allowed)) == [13, 10, 11, 12, 20, 30, 31]
    assert len(list((tmp_path / "cache").glob("*.bad.json"))) == 2  # of all, and of one site


def test_an_empty_folder_that_is_left_out_makes_no_class(root: Path) -> None:
    allowed = Agreed((), size=8, channels=1, skip_bad=True)
    (root / "clients/b/labeled/fish").mkdir()
    (root / "clients/b/labeled/cow").mkdir()
    (root / "clients/b/labeled/cow/1.png").write_bytes(b"no image")
    data = load_federation(root, allowed)
    assert data.card.classes == ("cat", "dog")
    assert [line.partition(":")[0] for line in data.skipped] == [
        "clients/b/labeled/fish",
        "clients/b/labeled/cow/1.png",
    ]
    paint(root / "test/fish/0.png", 83)  # now there are images of it, if none to learn from
    assert load_federation(root, allowed).card.classes == ("cat", "dog", "fish")


def test_an_empty_folder_that_is_left_out_does_not_hinder_a_split(tmp_path: Path) -> None:
    for i in range(4):
        paint(tmp_path / f"train/cat/{i}.png", i)
        paint(tmp_path / f"train/dog/{i}.png", 10 + i)
    (tmp_path / "train/fish").mkdir()
    agreed = Agreed((), size=8, channels=1, test_share=0.25)
    assert problems(lambda: load_classes(tmp_path, agreed)) == ["train/fish: an empty folder; add images or remove it"]
    data = load_classes(tmp_path, agreed._replace(skip_bad=True))
    assert (data.card.classes, data.card.num_test) == (("cat", "dog"), 2)


def test_what_is_wrong_with_the_layout_is_rejected_all_the_same(root: Path) -> None:
    allowed = PETS._replace(skip_bad=True)
    (root / "clients/a/labelled").mkdir()
    assert problems(lambda: load_federation(root, allowed)) == ["clients/a/labelled: did you mean 'labeled'?"]
    (root / "clients/a/labelled").rmdir()
    for name in ("a", "b"):
        (root / f"clients/c/unlabeled/{name}.png").write_bytes(b"no image")
    assert problems(lambda: load_federation(root, allowed)) == ["c: no readable image to train on"]


def test_names_and_folders_that_no_record_can_hold_are_rejected_all_the_same(root: Path, tmp_path: Path) -> None:
    paint(root / "clients/c/unlabeled/a\nb.png", 1)
    (tmp_path / "elsewhere").mkdir()
    (root / "clients/c/unlabeled/more").symlink_to(tmp_path / "elsewhere")
    assert problems(lambda: load_federation(root, PETS._replace(skip_bad=True))) == [
        "clients/c/unlabeled: the name 'a\\nb.png' is not plain text; rename it",
        f"clients/c/unlabeled/more: a link to {tmp_path / 'elsewhere'}, outside the folder; copy the files instead",
    ]


def test_a_folder_with_a_rejected_name_is_read_once_it_is_renamed(root: Path) -> None:
    twin = root / "clients/a/labeled/cat "
    paint(twin / "7.png", 1).write_bytes(b"no image")
    assert check(root).problems == [
        "clients/a/labeled/cat : differs from 'cat' only in case, spaces or accents; merge them",
    ]
    (twin / "7.png").rename(root / "clients/a/labeled/cat/7.png")
    twin.rmdir()
    assert check(root).problems == ["clients/a/labeled/cat/7.png: not a PNG, JPEG, WebP, TIFF, BMP or DICOM image"]
