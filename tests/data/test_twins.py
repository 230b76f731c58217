"""Images in training and in the test: rejected as the same file or patient, reported where they look alike."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fssl.data.cards import Agreed
from fssl.data.folder.load import check, load_classes, load_federation, load_server, load_site
from fssl.errors import ProblemsError
from helpers.command import Said

PETS = Agreed(("cat", "dog"), size=8, channels=1)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "cache"))


def paint(path: Path, seed: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    small = np.random.default_rng(seed).integers(0, 256, (6, 6), dtype=np.uint8)
    Image.fromarray(small).resize((48, 48), Image.Resampling.BICUBIC).save(path)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    names = ("clients/a/labeled/cat/p1/1.png", "clients/a/labeled/dog/p2/1.png", "clients/a/unlabeled/p3/1.png")
    names += ("clients/a/test/cat/p4/1.png", "clients/b/unlabeled/p4/1.png", "test/cat/p9/1.png", "test/dog/2.png")
    for seed, name in enumerate(names):
        paint(tmp_path / "data" / name, seed)
    return tmp_path / "data"


def found(action: Callable[[], object]) -> list[str]:
    with pytest.raises(ProblemsError) as caught:
        action()
    return str(caught.value).split("\n  ")[1:]


def test_patients_of_two_sites_are_two(root: Path) -> None:
    """`p4` is in the test of one site and in training of the other."""
    assert len(load_federation(root, PETS).test.labels) == 3


def test_the_same_file_is_rejected_wherever_it_is(root: Path) -> None:
    shutil.copy(root / "clients/a/unlabeled/p3/1.png", root / "test/dog/again.png")
    shutil.copy(root / "test/dog/2.png", root / "clients/b/unlabeled/own.png")
    expected = [
        "test/dog/2.png: is the same file as clients/b/unlabeled/own.png, a training image; remove one of them",
        "test/dog/again.png: is the same file as clients/a/unlabeled/p3/1.png, a training image; remove one of them",
    ]
    assert found(lambda: load_federation(root, PETS)) == expected
    assert check(root).problems == expected


def test_a_site_compares_its_own(root: Path) -> None:
    site = root / "clients/a"
    shutil.copy(site / "labeled/cat/p1/1.png", site / "test/cat/p4/7.png")
    assert found(lambda: load_site(site, PETS)) == [
        "test/cat/p4/7.png: is the same file as labeled/cat/p1/1.png, a training image; remove one of them"
    ]


def test_a_server_compares_its_own(root: Path) -> None:
    shutil.copytree(root / "test", root / "server")
    lines = found(lambda: load_server(root, PETS._replace(at_server=True)))
    assert (
        lines[0] == "test/cat/p9/1.png: is the same file as server/cat/p9/1.png, a training image; remove one of them"
    )
    assert "folder 'p9/' has images in training too, such as server/cat/p9/1.png" in lines[2]


@pytest.mark.parametrize("place", ["clients/a/test/dog/p1/9.png", "test/dog/p1/9.png"])
def test_a_patient_on_both_sides_is_rejected(place: str, root: Path) -> None:
    paint(root / place, 50)
    assert found(lambda: load_federation(root, PETS)) == [
        f"{place}: folder 'p1/' has images in training too, such as clients/a/labeled/cat/p1/1.png;"
        " move them to one side"
    ]


def test_folders_that_are_yet_to_be_dealt_are_compared(tmp_path: Path) -> None:
    for seed, name in enumerate(("train/cat/p1/1.png", "train/dog/p2/1.png", "test/cat/p2/1.png", "test/dog/p3/1.png")):
        paint(tmp_path / "x" / name, seed)
    (line,) = found(lambda: load_classes(tmp_path / "x", PETS))
    assert line.startswith("test/cat/p2/1.png: folder 'p2/' has images in training too, such as train/dog/p2/1.png")


def test_a_copy_in_another_form_is_a_warning(root: Path, fssl: Callable[..., Said]) -> None:
    with Image.open(root / "clients/b/unlabeled/p4/1.png") as image:
        image.resize((60, 60)).save(root / "test/dog/smaller.jpg", quality=70)
    Image.new("L", (9, 9), 7).save(root / "test/dog/flat.png")
    Image.new("L", (8, 9), 7).save(root / "clients/b/unlabeled/flat.png")  # without contrast all look alike
    line = "test/dog/smaller.jpg: looks almost like clients/b/unlabeled/p4/1.png, a training image"
    assert check(root).warnings == [line]
    said = fssl("datasets", "--check", str(root))
    assert said.code == 0
    assert f"WARNING: {line}" in said.out.replace("\n", " ")


def test_the_digits_have_no_twins(tmp_path: Path) -> None:
    from fssl.data.folder.example import export_digits

    export_digits(tmp_path / "sites")
    listing = check(tmp_path / "sites")
    assert (listing.problems, listing.warnings) == ([], [])
