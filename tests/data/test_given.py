"""Images that a script gives: what is rejected before anything is computed, and what a record says of them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fssl as package
from fssl.data.cards import Agreed, card
from fssl.data.partition import Partition
from fssl.data.sources import Dataset, Split, load
from fssl.errors import UserError
from helpers.command import Fssl

DIGITS = load("digits")
SHORT = ("smoke", "method.name=fedavg", "train.rounds=1", "train.steps_per_round=1", "compute.device=cpu")
OWN = ("data.size=8", "data.channels=1", "data.labels_per_class=8")
NAMES = tuple("abcdefghij")


def own(dataset: str = "imagefolder", classes: tuple[str, ...] = NAMES) -> Dataset:
    """The digits as images of one's own."""
    return DIGITS._replace(card=Agreed(classes, 8, 1, dataset=dataset).card())


def by_clients() -> Dataset:
    """The digits as the images of four clients, with ten labels each; the others are unknown."""
    parts = np.array_split(np.arange(len(DIGITS.train.labels)), 4)
    partition = Partition(tuple(part[:10] for part in parts), tuple(part[10:] for part in parts))
    labels = np.full_like(DIGITS.train.labels, -1)
    known = np.concatenate(partition.labeled)
    labels[known] = DIGITS.train.labels[known]
    return own("folder")._replace(train=Split(DIGITS.train.images, labels), partition=partition)


NONE = np.zeros(0, np.int64)
AT_SERVER = ("method.name=semifl", "partition.labels=server")  # FedAvg trains on clients' labels


def held(labeled: tuple[np.ndarray, ...], server: np.ndarray = NONE, idle: bool = False) -> Dataset:
    """The digits of two clients with these labeled rows; the last one holds all others, unless it is idle."""
    others = np.setdiff1d(np.arange(len(DIGITS.train.labels)), np.concatenate([*labeled, server]))
    unlabeled = (others, NONE) if idle else (others[:9], others[9:])
    return own("folder")._replace(partition=Partition(labeled, unlabeled, server))


def train(images: object = DIGITS.train.images, labels: object = DIGITS.train.labels) -> Dataset:
    return DIGITS._replace(train=Split(images, labels))  # type: ignore[arg-type]


def changed(labels: np.ndarray, value: int) -> np.ndarray:
    return np.where(np.arange(len(labels)) == 3, value, labels)


pixels, truth = DIGITS.train
FOLDER = ["data.name=folder", *OWN[:2]]
REFUSED: dict[str, tuple[Callable[[], object], list[str], str]] = {
    "tuple": (lambda: tuple(DIGITS), [], r"dataset= is tuple, expected fssl\.dataset\(train, test\), or Dataset"),
    "pair": (lambda: DIGITS._replace(train=(pixels, truth)), [], "train is tuple, expected Split"),
    "lists": (lambda: train(labels=truth.tolist()), [], "train is Split, expected .* two arrays"),
    "few labels": (lambda: train(labels=truth[:-5]), [], r"train.labels are int64 \[1432\], expected .* \[1437\]"),
    "high label": (lambda: train(labels=changed(truth, 10)), [], "train.labels are from 0 to 10, expected 0 to 9"),
    "no label": (lambda: train(labels=changed(truth, -1)), [], "train.labels are from -1 to 9, expected 0 to 9"),
    "objects": (lambda: train(labels=truth.astype(object)), [], "train.labels are object"),
    "floats": (lambda: train(pixels / 255), [], r"train.images are float64 .* expected uint8 \[N, 8, 8, 1\]"),
    "tall": (lambda: train(np.repeat(pixels, 2, 1)), [], r"train.images are uint8 \[1437, 16, 8, 1\]"),
    "colors": (lambda: train(np.repeat(pixels, 3, 3)), [], r"train.images are uint8 \[1437, 8, 8, 3\]"),
    "test label": (
        lambda: DIGITS._replace(test=DIGITS.test._replace(labels=changed(DIGITS.test.labels, 99))),
        [],
        "test.labels are from 0 to 99",
    ),
    "empty": (lambda: DIGITS._replace(test=Split(pixels[:0], truth[:0])), [], "test has no images"),
    "groups": (lambda: DIGITS._replace(groups=truth[:9]), [], r"groups are \[9\], expected \[1437\]"),
    "other name": (lambda: DIGITS, ["data.name=cifar10"], "'digits', but data.name = 'cifar10'; use data.name=digits"),
    "own name": (
        lambda: DIGITS._replace(card=replace(card("digits"), name="mine")),
        [],
        "'mine', but data.name = 'digits'; for your own images use data.name=imagefolder",
    ),
    "own classes": (
        lambda: DIGITS._replace(card=replace(card("digits"), classes=NAMES)),
        [],
        r"class_names = \('a', .*for your own images use data.name=imagefolder",
    ),
    "own size": (
        own,
        ["data.size=32", "data.labels_per_class=8"],
        "its card has size = 8, but the settings have 32; change data.size",
    ),
    "files": (
        lambda: DIGITS,
        ["data.dir=images"],
        "data.dir = 'images' has no effect with dataset=, which reads no files",
    ),
    "engine": (lambda: DIGITS, ["compute.engine=flower"], "its processes load images from files"),
    "two deals": (
        lambda: DIGITS._replace(partition=Partition((), ())),
        [],
        r"data.name = 'digits' is divided by \[partition\]; remove the dataset's partition",
    ),
    "no deal": (lambda: own("folder"), FOLDER, "needs a partition"),
    "half a deal": (
        lambda: own("folder")._replace(partition=Partition((np.arange(9),), (np.arange(9, 99),))),
        FOLDER,
        "its partition has 99 rows, expected 0 to 1436, each once",
    ),
    "unknown labels": (
        lambda: by_clients()._replace(train=Split(pixels, np.full_like(truth, -1))),
        FOLDER,
        "each with a label of 0 or more",
    ),
    "no clients": (
        lambda: own("folder")._replace(partition=Partition((), (), np.arange(len(truth)))),
        [*FOLDER, *AT_SERVER],
        "needs a partition with the rows of each client",
    ),
    "idle client": (
        lambda: held((np.arange(5), NONE), idle=True),
        FOLDER,
        "its partition gives client 1 no image; remove this client",
    ),
    "rows of a server": (
        lambda: held((np.arange(5), NONE), server=np.arange(5, 9)),
        FOLDER,
        "its partition has server rows; use partition.labels = 'server', or remove these rows",
    ),
    "poor server": (
        lambda: held((NONE, np.arange(5))),
        [*FOLDER, *AT_SERVER],
        "its partition has no server rows, but partition.labels = 'server'; remove the setting",
    ),
    "labels everywhere": (
        lambda: held((NONE, np.arange(5)), server=np.arange(5, 9)),
        [*FOLDER, *AT_SERVER],
        "client 1 has labeled rows, but partition.labels = 'server'; make them unlabeled, or remove the setting",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_rejected_in_a_line(name: str) -> None:
    make, settings, message = REFUSED[name]
    if name == "engine":
        pytest.importorskip("flwr")
    with pytest.raises(UserError, match=message) as refused:
        package.experiment(*SHORT, *settings, dataset=make())  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)


def test_given_objects_are_recorded_and_required_on_resume(tmp_path: Path, fssl: Fssl) -> None:
    out, longer = tmp_path / "run", (*SHORT, "train.rounds=2")
    package.run(package.experiment(*SHORT, dataset=DIGITS), out)
    (run,) = package.runs(out)
    digest = run.config.data.digest
    assert digest == package.experiment(*SHORT, dataset=load("digits")).config.data.digest
    others = train(255 - pixels)
    for experiment in (package.experiment(*longer, dataset=others), package.experiment(*longer)):
        with pytest.raises(UserError, match=f"contains another run: data.digest is '{digest}' there"):
            package.run(experiment, out, resume=True)
    with pytest.raises(UserError, match=f"data.digest = '{digest}': the images of dataset= have changed"):
        package.experiment(out / "config.toml", dataset=others)
    narrow = train(labels=truth.astype(np.uint8))  # the same labels
    assert package.run(package.experiment(*longer, dataset=narrow), out, resume=True)["rounds"] == 2
    for words in (("run", out / "config.toml", "--dry-run"), ("predict", out)):
        code, _, said = fssl(*words)
        assert (code, "the images were passed in Python" in said) == (2, True), said
    assert fssl("run", out / "config.toml", "--set", "data.name=digits", "--dry-run").code == 0


def test_the_checksum_is_of_pixels_labels_and_holders() -> None:
    def digest(dataset: Dataset, *settings: str) -> str | None:
        return package.experiment(*SHORT, *settings, dataset=dataset).config.data.digest

    pixel = pixels.copy()
    pixel[7, 3, 3] ^= 1
    variants = [DIGITS, train(pixel), train(labels=changed(truth, 9 - truth[3])), DIGITS._replace(groups=truth)]
    dealt = by_clients()
    assert dealt.partition is not None
    moved = dealt._replace(partition=Partition(dealt.partition.labeled[::-1], dealt.partition.unlabeled[::-1]))
    found = [digest(dataset) for dataset in variants]
    found += [digest(dataset, "data.name=folder", *OWN[:2]) for dataset in (dealt, moved)]
    assert len({*found}) == 6
    assert None not in found


@pytest.mark.parametrize("classes", [NAMES, ()])
def test_a_model_of_own_images_knows_their_classes(tmp_path: Path, classes: tuple[str, ...]) -> None:
    """Without names, classes are numbers, as those of a dataset are."""
    given = own(classes=NAMES)
    given = given._replace(card=replace(given.card, classes=classes))
    package.run(package.experiment(*SHORT, "data.name=imagefolder", *OWN, dataset=given), tmp_path)
    assert package.load(tmp_path).classes == (classes or tuple("0123456789"))


def test_a_dataset_may_assign_images_to_clients(tmp_path: Path) -> None:
    experiment = package.experiment(*SHORT, "data.name=folder", *OWN[:2], dataset=by_clients())
    package.run(experiment, tmp_path)
    assert experiment.config.partition.clients == 4
    assert package.load(tmp_path).classes == NAMES


def test_a_dataset_may_say_what_the_server_holds(tmp_path: Path) -> None:
    """Also once more, from the settings that it recorded."""
    given = held((NONE, NONE), server=np.arange(20))
    first = package.experiment(*SHORT, *FOLDER, *AT_SERVER, dataset=given)
    package.run(first, tmp_path)
    again = package.experiment(tmp_path / "config.toml", dataset=given)
    assert (again.config.server.batch, again.config.data.digest) == (10, first.config.data.digest)


def test_images_of_one_s_own_need_no_settings_but_how_many_labels(tmp_path: Path) -> None:
    """Size, channels and normalization are theirs, and the model is found again by its record."""
    (images, labels), (test_images, truth) = DIGITS.train, DIGITS.test
    gray = package.dataset(
        (images[..., 0], labels.tolist()), (test_images, truth), classes=NAMES, mean=[0.3], std=[0.2]
    )
    made = package.experiment(*SHORT, "data.labels_per_class=8", dataset=gray)
    data = made.config.data
    assert (data.name, data.size, data.channels, data.mean, data.std) == ("imagefolder", 8, 1, (0.3,), (0.2,))
    assert made.dataset.train.images.shape == images.shape
    package.run(made, tmp_path / "run")
    assert package.load(tmp_path / "run").classes == NAMES
    again = package.dataset((images, labels), (test_images, truth), classes=NAMES)
    assert again.card.class_names == NAMES
    assert package.dataset((images, labels), (test_images, truth)).card.class_names == tuple("0123456789")
    other = package.experiment(*SHORT, "data.labels_per_class=8", dataset=again)
    assert other.config.data.digest == data.digest  # the same images; how they are normalized is a setting


@pytest.mark.parametrize(
    ("train", "reason"),
    [
        (pixels, r"train = ndarray: expected a pair, images and labels"),
        (5, r"train = int: expected a pair, images and labels"),
        ((pixels[0, :, :, 0], truth), r"train = uint8 \[8, 8\], int64 \[1437\]: expected images"),
        ((pixels, truth / 2), r"float64 \[1437\]: expected images"),
        ((pixels[:0], truth[:0]), r"int64 \[0\]: expected images"),
    ],
)
def test_what_is_no_images_with_labels_is_rejected(train: object, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        package.dataset(train, DIGITS.test)  # type: ignore[arg-type]


@pytest.mark.parametrize("names", [("a", "a"), ("a", ""), (1, 2), ("a\tb", "c"), ("a",)])
def test_classes_that_no_record_could_hold_are_rejected_at_once(names: tuple[object, ...]) -> None:
    with pytest.raises(UserError, match=r"classes = \[.*\]: expected at least two different names"):
        package.dataset(DIGITS.train, DIGITS.test, classes=names)  # type: ignore[arg-type]
