"""ELPV: a made-up package of its format, and the counts of the real one where it is installed."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fssl.config import parse
from fssl.core.experiment import prepare
from fssl.core.images import Datasets, load_dataset
from fssl.data import elpv
from fssl.data.cards import CARDS
from fssl.data.partition import Partition, class_counts, make_partition
from fssl.data.sources import Dataset, load
from fssl.errors import UserError
from fssl.system.packages import package_folder
from helpers.command import Fssl, records
from helpers.small import tiny_config

TINY = {"mono": (8, 2, 1, 8), "poly": (12, 1, 2, 4)}  # by thirds of the probability of a defect
UNCERTAIN = 6
TRAIN = {"mono": (6, 6), "poly": (9, 3)}  # without a quarter for the test, good and defective
SETTINGS = ("data.name=elpv", "data.size=8", "data.labels_per_class=4")


def brightness(number: int) -> int:
    return 6 * number


def write_cells(folder: Path, counts: dict[str, tuple[int, ...]] = TINY) -> None:
    """A tree as in the package: the images' names, probabilities and types in columns of spaces."""
    (folder / "images").mkdir(parents=True)
    levels = [(kind, level) for kind, numbers in counts.items() for level, n in enumerate(numbers) for _ in range(n)]
    lines = []
    for number, (kind, level) in enumerate(levels):
        name = f"images/cell{number + 1:04d}.png"
        Image.fromarray(np.full((20, 20), brightness(number), np.uint8)).save(folder / name)
        lines.append(f"{name}  {level / 3!r:<18}  {kind}\n")
    (folder / elpv.LABELS).write_text("".join(lines))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up package with 38 cells, installed."""
    data = tmp_path / "site" / elpv.PACKAGE / "data"
    write_cells(data)
    (data.parent / "__init__.py").write_text("raise ImportError('read as files, never imported')")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(elpv, "COUNTS", TINY)
    train = sum(map(sum, TRAIN.values())) + UNCERTAIN
    tiny = replace(CARDS["elpv"], num_train=train, num_test=38 - train, per_class_base=9, num_unknown=UNCERTAIN)
    monkeypatch.setitem(CARDS, "elpv", tiny)
    return data


def numbers(images: np.ndarray) -> list[int]:
    """Which cells these are: each has a brightness of its own."""
    return (images[:, 0, 0, 0] // 6).tolist()


def test_what_is_read_is_what_lies_there(package: Path) -> None:
    found = load_dataset(tiny_config(*SETTINGS))
    shown = numbers(found.train.images)
    levels = [level for counts in TINY.values() for level, n in enumerate(counts) for _ in range(n)]
    expected = {0: 0, 1: -1, 2: -1, 3: 1}
    assert found.train.labels.tolist() == [expected[levels[cell]] for cell in shown]
    assert found.test.labels.tolist() == [expected[levels[cell]] for cell in numbers(found.test.images)]
    assert sorted([*shown, *numbers(found.test.images)]) == list(range(38))
    assert found.origins is not None
    assert found.origins.tolist() == [int(cell >= 19) for cell in shown]  # 19 of mono come first
    assert (found.card.size, found.train.images.shape[1:], found.test.labels.min()) == (8, (8, 8, 1), 0)


def test_a_quarter_of_each_class_and_type_is_the_test(package: Path) -> None:
    found = load_dataset(tiny_config(*SETTINGS))
    assert found.origins is not None
    for origin, kind in enumerate(elpv.TYPES):
        of_kind = found.train.labels[found.origins == origin]
        assert tuple(np.bincount(of_kind[of_kind >= 0]).tolist()) == TRAIN[kind]
    assert np.bincount(found.test.labels).tolist() == [2 + 3, 2 + 1]


def test_the_size_of_the_images_is_a_setting(package: Path) -> None:
    datasets = Datasets()
    for size in (8, 12):
        found = datasets.get(tiny_config("data.name=elpv", f"data.size={size}"))
        assert (found.card.size, found.test.images.shape[1]) == (size, size)


@pytest.mark.parametrize("place", ["", "data", "elpv_dataset"])
def test_a_folder_may_be_named_instead(place: str, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, elpv.PACKAGE, None)  # not installed
    folder = {"": package, "data": package.parent, "elpv_dataset": package.parents[1]}[place]
    found = load("elpv", folder, size=8)
    assert len(found.train.labels) == 30


def dealt(dataset: Dataset, **choices: object) -> Partition:
    return make_partition(dataset.train.labels, 2, origins=dataset.origins, **choices)  # type: ignore[arg-type]


@pytest.mark.parametrize("who", ["all-clients", "knowing-clients", "server"])
@pytest.mark.parametrize("kind", ["paired-dirichlet", "dirichlet", "balanced-dirichlet", "iid", "natural"])
def test_uncertain_cells_are_dealt_and_never_labeled(kind: str, who: str, package: Path) -> None:
    found = load_dataset(tiny_config(*SETTINGS))
    few = {"labeled_clients": 1} if who == "knowing-clients" else {"per_class": 4}
    made = dealt(found, kind=kind, clients=2, who=who, **few)
    rows = np.concatenate([*made.labeled, *made.unlabeled, made.server])
    assert sorted(rows.tolist()) == list(range(30))
    labeled = np.concatenate([*made.labeled, made.server])
    assert found.train.labels[labeled].min() == 0
    assert (found.train.labels[np.concatenate(made.unlabeled)] == -1).sum() == UNCERTAIN


def test_natural_sites_are_types_of_modules(package: Path) -> None:
    """Of four clients the first and third have mono cells, the others poly cells."""
    found = load_dataset(tiny_config(*SETTINGS))
    made = dealt(found, kind="natural", clients=4, per_class=4)
    assert found.origins is not None
    pools = [made.pool(k) for k in range(4)]
    assert [set(found.origins[rows].tolist()) for rows in pools] == [{0}, {1}, {0}, {1}]
    everything = class_counts(pools, found.train.labels, 2)
    for origin, kind in enumerate(elpv.TYPES):
        mine = everything[origin::2]
        assert tuple(mine.sum(0).tolist()) == TRAIN[kind]
        assert np.abs(mine[0] - mine[1]).max() <= 2  # one each of labeled and unlabeled ones


def test_natural_sites_by_hand() -> None:
    """Cells 0 to 5 of class 0, 6 and 7 unknown; odd ones are of origin 1."""
    labels, origins = np.array([0, 0, 0, 0, 1, 1, -1, -1]), np.arange(8) % 2
    made = make_partition(labels, 2, kind="natural", clients=3, per_class=1, origins=origins)
    pools = [{*made.pool(k).tolist()} for k in range(3)]
    assert pools[1] == {1, 3, 5, 7}
    assert pools[0] | pools[2] == {0, 2, 4, 6}
    assert not pools[0] & pools[2]


def test_shards_have_a_third_group_of_images(package: Path) -> None:
    found = load_dataset(tiny_config(*SETTINGS))
    made = dealt(found, kind="shards", clients=3, classes_per_client=2, per_class=4)
    assert sorted(np.concatenate([*made.labeled, *made.unlabeled]).tolist()) == list(range(30))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("partition.kind=natural", "partition.clients=1", "train.clients_per_round=1"), "1 client cannot be divided"),
        (("method.name=fedavg-sl",), "needs the true label of every image, which data.name = 'elpv' does not provide"),
        (("method.name=sage+oracle",), "needs the true label of every image, which data.name = 'elpv' does not"),
        (("data.labels_per_class=10",), "data.labels_per_class = 10: expected at most 9, the images per class of elpv"),
        (("data.mean=[0.5, 0.5, 0.5]",), "data.mean = [0.5, 0.5, 0.5]: expected 1 number from 0 to 1"),
    ],
)
def test_what_does_not_fit_is_one_line(settings: tuple[str, ...], message: str, package: Path) -> None:
    with pytest.raises(UserError) as error:
        prepare(tiny_config(*SETTINGS, *settings)).load(Datasets())
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_other_datasets_have_no_natural_sites() -> None:
    with pytest.raises(UserError, match=r"partition.kind = 'natural' does not work with data.name = 'digits'"):
        tiny_config("data.name=digits", "partition.kind=natural")


def test_a_split_file_may_not_label_an_uncertain_cell(package: Path, tmp_path: Path) -> None:
    found = load_dataset(tiny_config(*SETTINGS))
    row = int(np.flatnonzero(found.train.labels == -1)[0])
    others = [i for i in range(30) if i != row]
    file = tmp_path / "split.json"
    clients = [{"labeled": [row, others[0]], "unlabeled": others[1:15]}, {"labeled": [], "unlabeled": others[15:]}]
    file.write_text(str({"clients": clients}).replace("'", '"'))
    config = parse(
        {"data": {"name": "elpv", "size": 8}, "partition": {"file": str(file)}, "train": {"clients_per_round": 2}}
    )
    with pytest.raises(UserError, match=f"partition.file: image {row} has no label"):
        prepare(config).load(Datasets())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("mono", "multi", 1), "line 1: expected an image, a probability from 0 to 1"),
        (lambda text: text.replace(" 0.0 ", " 2.0 ", 1), "line 1: expected an image, a probability from 0 to 1"),
        (lambda text: text.replace("images/cell0001.png", "../cell0001.png"), "line 1: expected an image"),
        (lambda text: text.partition("\n")[2], "has [7, 2, 1, 8] mono cells by probability; expected [8, 2, 1, 8]"),
        (lambda text: text.replace("cell0003.png", "cell3000.png"), "cell3000.png' cannot be read"),
    ],
)
def test_a_damaged_package_is_one_line(change: object, message: str, package: Path) -> None:
    file = package / elpv.LABELS
    file.write_text(change(file.read_text()))  # type: ignore[operator]
    with pytest.raises(UserError) as error:
        load_dataset(tiny_config(*SETTINGS))
    assert message in str(error.value)
    assert "pip install elpv-dataset" in str(error.value) or "cannot be read" in str(error.value)


def test_without_the_package_it_is_one_line(fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, elpv.PACKAGE, None)
    code, _, said = fssl("run", "smoke", "--set", "data.name=elpv", "--out", "run")
    assert (code, said.count("\n")) == (2, 1)
    assert "data.name = 'elpv' needs its images: pip install elpv-dataset" in said
    assert not Path("run").exists()


@pytest.mark.slow
def test_a_run_trains_resumes_and_predicts(package: Path, fssl: Fssl) -> None:
    settings = (*SETTINGS, "partition.kind=natural", "partition.clients=2", "train.clients_per_round=2")
    settings += ("train.steps_per_round=2", "train.batch=4", "compute.device=cpu", "method.name=sage")
    words = [word for setting in settings for word in ("--set", setting)]
    assert fssl("run", "smoke", *words, "--set", "train.rounds=2", "--out", "whole")[0] == 0
    assert fssl("run", "smoke", *words, "--set", "train.rounds=1", "--out", "run")[0] == 0
    assert fssl("run", "run", "--resume", "--set", "train.rounds=2")[0] == 0
    assert records("run") == records("whole")
    assert fssl("compare", "run")[0] == fssl("show", "run")[0] == 0
    code, said, _ = fssl("predict", "run")
    assert (code, f"{records('run')[-1]['accuracy']:.2f} %" in said) == (0, True), said


def test_own_normalization_replaces_the_card_s(package: Path) -> None:
    usual = prepare(tiny_config(*SETTINGS)).card
    own = prepare(tiny_config(*SETTINGS, "data.mean=[0.498]", "data.std=[0.502]")).card
    assert (usual.train_mean, usual.train_std) == ((0.597,), (0.159,))
    assert (own.train_mean, own.train_std, own.test_mean, own.test_std) == ((0.498,), (0.502,), (0.498,), (0.502,))
    assert load_dataset(tiny_config(*SETTINGS, "data.mean=[0.498]")).card.train_mean == (0.498,)


@pytest.mark.skipif(package_folder(elpv.PACKAGE) is None, reason="pip install elpv-dataset")
def test_the_installed_package_has_the_published_counts() -> None:
    cells = elpv.list_cells(elpv.find_elpv())  # raises if they differ
    is_test = elpv.test_part(cells)
    labels = np.array([cell.label for cell in cells])
    assert np.bincount(labels + 1).tolist() == [401, 1508, 715]
    facts = CARDS["elpv"]
    assert (int(is_test.sum()), int((~is_test).sum())) == (facts.num_test, facts.num_train) == (555, 2069)
    assert int((labels[~is_test] == 1).sum()) == facts.per_class_base
    assert int((labels[~is_test] == -1).sum()) == facts.num_unknown
