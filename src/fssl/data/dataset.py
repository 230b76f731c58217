"""The common form of all datasets, and the checks of datasets from scripts."""

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from ..system.files import short_sum
from .cards import CARDS, Agreed, Card, check_class_names
from .partition import Partition

OWN = "for your own images use data.name=imagefolder"
# The facts of a card that a trained model needs, and the settings that give them for a user's images.
FACTS = {
    "size": "data.size",
    "channels": "data.channels",
    "class_names": "data.classes",
    "train_mean": "data.mean",
    "train_std": "data.std",
    "test_mean": "data.mean",
    "test_std": "data.std",
}


class Split(NamedTuple):
    """Images [N, H, W, C] and labels [N], -1 if unknown; images may be a read-only memory map."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


class Dataset(NamedTuple):
    """Training and test images, with the facts about them."""

    card: Card
    train: Split
    test: Split
    partition: Partition | None = None  # the images of each client, if the source assigns them
    digest: str | None = None  # of such a source, to detect changes
    skipped: tuple[str, ...] = ()  # unusable files with reasons, if they may be skipped
    notes: tuple[str, ...] = ()  # notes on the files for the user, a line each
    groups: NDArray[np.int64] | None = None  # of each training image: images of one group show one patient, say
    test_groups: NDArray[np.int64] | None = None  # the same of each test image
    testers: NDArray[np.int64] | None = None  # the client to which each test image belongs; -1 for the server
    site_names: tuple[str, ...] | None = None  # of clients with a folder each
    origins: NDArray[np.int64] | None = None  # of each training image: its kind of natural site, by number
    test_names: tuple[str, ...] | None = None  # of each test image: its file, relative to the user's folder
    revision: str | None = None  # commit of the hub's repository, if the files are of a download

    @property
    def at_sites(self) -> bool:
        """Whether clients' images are at their sites: of all others this process has none."""
        return self.partition is not None and self.digest is None


# Datasets of scripts, in memory: checked like files, and identified by a checksum of their content.


def own_dataset(
    train: object, test: object, classes: Sequence[str], mean: Sequence[float] | None, std: Sequence[float] | None
) -> Dataset:
    """Return a dataset of arrays, with a card made from them; `check_dataset` checks it against the settings later."""
    first = as_split("train", train)
    images, labels = first
    if images.ndim != 4 or not labels.size or not np.issubdtype(labels.dtype, np.integer):
        wanted = "expected images [N, size, size, channels] and their labels, whole numbers from 0 on"
        raise UserError(f"train = {images.dtype} {list(images.shape)}, {labels.dtype} {list(labels.shape)}: {wanted}")
    names = tuple(classes) or tuple(map(str, range(max(int(labels.max()) + 1, 2))))
    check_class_names("classes", names)
    center, spread = (None if numbers is None else tuple(map(float, numbers)) for numbers in (mean, std))
    card = Agreed(names, images.shape[1], images.shape[3], center, spread, dataset="imagefolder").card()
    return Dataset(card, first, as_split("test", test))


def as_split(name: str, pair: object) -> Split:
    """Return images and labels from anything that NumPy accepts; gray images may lack the axis of channels."""
    try:
        images, labels = (np.asarray(part) for part in pair)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise UserError(f"{name} = {type(pair).__name__}: expected a pair, images and labels") from None
    return Split(images[..., None] if images.ndim == 3 else images, labels)


def card_settings(card: Card) -> list[str]:
    """Return the facts of the card of a user's images, as settings."""
    facts = {
        "name": card.name,
        "size": card.size,
        "channels": card.channels,
        "mean": list(card.train_mean),
        "std": list(card.train_std),
    }
    return [f"data.{key}={json.dumps(value)}" for key, value in facts.items()] if card.is_folder else []


def check_dataset(dataset: object, expected: Card) -> Dataset:
    """Return the dataset with int64 labels and its checksum; raise UserError if it does not match the settings.

    Args:
        dataset: The value that a script passed.
        expected: The card that the settings describe: only they are left when the model is loaded.
    """
    form = "Dataset(card, Split(images, labels), Split(images, labels))"
    if not isinstance(dataset, Dataset) or not isinstance(dataset.card, Card):
        raise UserError(f"dataset= is {type(dataset).__name__}, expected fssl.dataset(train, test), or {form}")
    check_card(dataset.card, expected)
    for name in ("train", "test"):
        check_split(name, getattr(dataset, name), expected)
    train, test = (Split(images, labels.astype(np.int64)) for images, labels in (dataset.train, dataset.test))
    dataset = dataset._replace(train=train, test=test)
    check_holders(dataset)
    check_labels("train", train.labels, expected.num_classes, lowest=-1 if dataset.partition else 0)
    check_labels("test", test.labels, expected.num_classes, lowest=0)
    return dataset._replace(digest=content_digest(dataset))


def check_card(card: Card, expected: Card) -> None:
    """Reject a card that differs from the settings: tables would show a wrong name, and no model would load."""
    if card.name != expected.name:
        hint = f"use data.name={card.name}" if card.name in CARDS else OWN
        raise UserError(f"dataset=: its card is '{card.name}', but data.name = '{expected.name}'; {hint}")
    for fact, key in FACTS.items():
        found, wanted = getattr(card, fact), getattr(expected, fact)
        if found != wanted:
            hint = f"change {key} or the card" if expected.is_folder else OWN
            raise UserError(
                f"dataset=: its card has {fact} = {found!r:.60}, but the settings have {wanted!r:.60}; {hint}"
            )


def check_split(name: str, split: object, card: Card) -> None:
    """Reject arrays of another type or shape."""
    start = f"dataset=: {name}"
    if not isinstance(split, Split) or not all(isinstance(part, np.ndarray) for part in split):
        raise UserError(f"{start} is {type(split).__name__}, expected Split(images, labels), two arrays")
    images, labels = split
    shape = (card.size, card.size, card.channels)
    if images.dtype != np.uint8 or images.shape[1:] != shape:
        wanted = f"expected uint8 [N, {', '.join(map(str, shape))}]"
        raise UserError(f"{start}.images are {images.dtype} {list(images.shape)}, {wanted}")
    if not np.issubdtype(labels.dtype, np.integer) or labels.shape != images.shape[:1]:
        wanted = f"expected whole numbers [{len(images)}], one for each image"
        raise UserError(f"{start}.labels are {labels.dtype} {list(labels.shape)}, {wanted}")
    if not len(images):
        raise UserError(f"{start} has no images")


def check_labels(name: str, labels: NDArray[np.int64], num_classes: int, lowest: int) -> None:
    if labels.min() < lowest or labels.max() >= num_classes:
        raise UserError(
            f"dataset=: {name}.labels are from {labels.min()} to {labels.max()}, expected {lowest} to {num_classes - 1}"
        )


def check_holders(dataset: Dataset) -> None:
    """Reject a dataset whose images are assigned to clients twice (here and by settings), not at all, or in part."""
    name, partition, labels = dataset.card.name, dataset.partition, dataset.train.labels
    if dataset.card.is_dealt and partition is not None:
        raise UserError(f"dataset=: data.name = '{name}' is divided by [partition]; remove the dataset's partition")
    if not dataset.card.is_dealt:
        check_partition(partition, labels)
    lengths = {"groups": len(labels), "test_groups": len(dataset.test.labels), "testers": len(dataset.test.labels)}
    for key, length in lengths.items():
        if (numbers := getattr(dataset, key)) is not None and np.shape(numbers) != (length,):
            raise UserError(f"dataset=: {key} are {list(np.shape(numbers))}, expected [{length}], one for each image")


def check_partition(partition: Partition | None, labels: NDArray[np.int64]) -> None:
    """Reject a partition that omits or repeats an image, has a client without images, or lacks labels."""
    if not isinstance(partition, Partition) or not 0 < len(partition.labeled) == len(partition.unlabeled):
        raise UserError("dataset=: data.name = 'folder' needs a partition with the rows of each client")
    parts = (*partition.labeled, *partition.unlabeled, partition.server)
    if not all(isinstance(part, np.ndarray) and np.issubdtype(part.dtype, np.integer) for part in parts):
        raise UserError("dataset=: its partition needs arrays of whole numbers")
    known, rows = np.concatenate([*partition.labeled, partition.server]), np.concatenate(parts)
    if not np.array_equal(np.sort(rows), np.arange(len(labels))):
        raise UserError(f"dataset=: its partition has {len(rows)} rows, expected 0 to {len(labels) - 1}, each once")
    if not len(known) or labels[known].min() < 0:
        raise UserError("dataset=: its partition needs labeled rows, each with a label of 0 or more")
    if idle := [k for k in range(len(partition.labeled)) if not len(partition.pool(k))]:
        raise UserError(f"dataset=: its partition gives client {idle[0]} no image; remove this client")


def check_server_rows(partition: Partition, at_server: bool) -> None:
    """Reject labeled rows at clients if the settings place labels at the server, and the reverse."""
    setting = "partition.labels = 'server'"
    if not at_server and len(partition.server):
        raise UserError(f"dataset=: its partition has server rows; use {setting}, or remove these rows")
    if at_server and not len(partition.server):
        raise UserError(f"dataset=: its partition has no server rows, but {setting}; remove the setting")
    knowing = [k for k, rows in enumerate(partition.labeled) if len(rows)]
    if at_server and knowing:
        hint = "make them unlabeled, or remove the setting"
        raise UserError(f"dataset=: client {knowing[0]} has labeled rows, but {setting}; {hint}")


def content_digest(dataset: Dataset) -> str:
    """Return a checksum of all pixels and labels, and of their assignment to clients."""
    partition = dataset.partition or Partition((), ())
    arrays = [*dataset.train, *dataset.test, *partition.labeled, None, *partition.unlabeled, None, partition.server]
    arrays += [dataset.groups, dataset.test_groups, dataset.testers]
    return short_sum("\n".join(map(array_sum, arrays)).encode())


def array_sum(array: NDArray[np.generic] | None) -> str:
    return "none" if array is None else f"{array.shape} {sha256(np.ascontiguousarray(array).data).hexdigest()}"
