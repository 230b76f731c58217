"""The images that a configuration names, their division among clients, and the test images."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..config import Config
from ..data.cache import Loading, Progress
from ..data.cards import UNKNOWN, Agreed, Card
from ..data.dataset import check_dataset, check_server_rows
from ..data.partition import Index, Partition, hold_out, make_partition, second_half
from ..data.sources import Dataset, Split, lacking, load, missing
from ..data.split_file import read_bytes, read_partition
from ..errors import UserError, as_typed
from ..system.files import expand_home
from ..system.machine import cores

ImagesKey = tuple[Card, str | None, Agreed | None, str | None]
Division = tuple[Partition, Index]  # of the training images, and the rows of the validation part


class Datasets:
    """The datasets of one command, each loaded and divided once and shared by the runs of a grid."""

    def __init__(self) -> None:
        self._loaded: dict[ImagesKey, Dataset] = {}
        self._divided: dict[object, Division] = {}

    def get(self, config: Config, progress: Progress | None = None) -> Dataset:
        """Return the configured images, loaded if they are not here yet."""
        source = source_of(config)
        if source not in self._loaded:
            self._loaded[source] = load_dataset(config, progress)
        return self._loaded[source]

    def divided(self, config: Config, dataset: Dataset) -> Division:
        """Return the division of the images among clients; reject settings that make it impossible."""
        settings = config.data, config.partition, config.records, config.labels_per_class
        if settings not in self._divided:
            self._divided[settings] = divide_images(config, dataset)
        return self._divided[settings]


def source_of(config: Config) -> ImagesKey:
    """Return the settings that decide which images are loaded."""
    data, agreed = config.data, shared_format(config) if config.card.is_folder else None
    return config.card, data.dir, agreed, data.revision


def load_dataset(config: Config, progress: Progress | None = None) -> Dataset:
    """Load the configured images; the first time, decode files into a cache."""
    check_loadable(config)
    facts, dir, agreed, revision = source_of(config)
    folder, options = expand_home(Path(dir)) if dir else None, agreed._asdict() if agreed else {}
    options |= {"size": facts.size} if facts.package else {}
    found = load(facts.name, folder, Loading(progress=progress, workers=cores()), facts.fit, revision, **options)
    return found if facts.is_folder else found._replace(card=facts)


def missing_datasets(configs: Iterable[Config]) -> Iterator[str]:
    """Yield the reason why a dataset has no files yet, for each such dataset, without loading any."""
    for name, dir in dict.fromkeys((config.data.name, config.data.dir) for config in configs):
        if text := lacking(name, expand_home(Path(dir)) if dir else None):
            yield text


def check_at_hand(config: Config) -> None:
    """Reject missing files without reading or downloading any."""
    check_loadable(config)
    missing(config.data.name, expand_home(Path(config.data.dir)) if config.data.dir else None)
    if config.partition.file is not None:
        read_bytes(Path(config.partition.file), config.partition.digest)


def check_loadable(config: Config) -> None:
    """Reject loading a dataset by name if a script passed other images under that name."""
    if config.data.digest and not config.card.is_folder:
        raise UserError(
            f"data.digest = '{config.data.digest}': the images were passed in Python, as dataset= of fssl.experiment;"
            f" to use those of {config.data.name}, start a new run without data.digest"
        )


def given_dataset(config: Config, dataset: object) -> Dataset:
    """Return the checked images of a script; reject settings that apply only to files."""
    data = config.data
    for key in ("dir", "skip_bad", "test_share"):
        if value := getattr(data, key):
            raise UserError(
                f"data.{key} = {as_typed(value)} has no effect with dataset=, which reads no files; remove one"
            )
    if config.compute.engine != "local":
        raise UserError(
            "compute.engine = 'flower': its processes load images from files; remove dataset=, or use 'local'"
        )
    expected = known_card(config)
    if expected.is_folder and not data.classes and isinstance(dataset, Dataset):
        expected = shared_format(config)._replace(classes=dataset.card.class_names).card()
    checked = check_dataset(dataset, expected)
    if checked.partition is not None:
        check_server_rows(checked.partition, config.has_server_labels)
    return checked


def shared_format(config: Config) -> Agreed:
    """Return the image settings that the sites of a federation with their own images share."""
    data = config.data
    return Agreed(
        data.classes or (),
        data.size,
        data.channels,
        data.mean,
        data.std,
        data.name,
        data.skip_bad,
        data.test_share,
        config.has_server_labels and not config.card.is_dealt,  # otherwise the random division decides
    )


def known_card(config: Config) -> Card:
    """Return the facts about the images that need no file."""
    return shared_format(config).card() if config.card.is_folder else config.card


def partition_images(config: Config, dataset: Dataset) -> Partition:
    """Return each client's images: assigned by files or folders, or divided at random."""
    part = config.partition
    if part.file is not None:
        given = read_partition(Path(part.file), len(dataset.train.labels), part.digest)[0]
        check_known(given, dataset)
        return given
    return dataset.partition or make_partition(
        dataset.train.labels,
        dataset.card.num_classes,
        kind=part.kind,
        alpha=part.alpha,
        clients=part.clients,
        per_class=labels_of_classes(config) if config.picks_labels else None,
        further=config.other_sizes,
        seed=part.seed,
        who=part.labels,
        labeled_clients=part.labeled_clients,
        classes_per_client=part.classes_per_client,
        first_clients=part.first_clients,
        origins=dataset.origins,
    )


def check_known(partition: Partition, dataset: Dataset) -> None:
    """Reject a partition file that labels an image whose class is unknown."""
    labeled = np.concatenate([*partition.labeled, partition.server])
    if unknown := [*labeled[dataset.train.labels[labeled] == UNKNOWN]]:
        raise UserError(f"partition.file: image {unknown[0]} has no label; make it unlabeled")


def labels_of_classes(config: Config) -> int | list[int]:
    """Return the number of labeled images of each class: one number, or a long tail."""
    return config.labels_per_class if config.data.imbalance is None else config.labeled_sizes


def divide_images(config: Config, dataset: Dataset) -> Division:
    """Return each client's images, and the validation part."""
    partition, share = partition_images(config, dataset), config.data.validation
    if share is None or (dataset.at_sites and not any(map(len, partition.labeled))):  # sites hold out their own
        return partition, np.zeros(0, np.int64)
    rest, held = hold_out(partition, dataset.train.labels, share, config.partition.seed, dataset.groups)
    if not len(held) and not dataset.at_sites:
        raise UserError(f"data.validation = {share:g}: too few labeled images to hold any out; use a larger share")
    check_choosable(config, dataset.train.labels[held])
    for k in range(len(rest.labeled)):
        if len(partition.pool(k)) and not len(rest.pool(k)):
            raise UserError(
                f"data.validation = {share:g}: all images of client {k} are in held-out folders; use a smaller share"
            )
    return rest, held


def split_for_test(config: Config, dataset: Dataset) -> Split:
    """Return the test images of a run."""
    check_test(config, dataset)
    if config.data.test == "all":
        return dataset.test
    rows = rows_for_test(config, dataset)
    return Split(dataset.test.images[rows], dataset.test.labels[rows])


def split_to_choose_by(config: Config, dataset: Dataset, held_out: Index) -> Split | None:
    """Return the validation part: held-out labeled images, or the tuning half of the test images; None without one."""
    if len(held_out):
        return Split(dataset.train.images[held_out], dataset.train.labels[held_out])
    if config.data.test != "final":
        return None
    return split_for_test(choosing(config), dataset)


def check_test(config: Config, dataset: Dataset) -> None:
    """Reject too few test images for two halves, or test images for which the result's measure is undefined."""
    labels = dataset.test.labels[rows_for_test(config, dataset)]
    if config.records.metrics == "auroc" and len(np.unique(labels)) < 2:
        raise UserError(
            "records.metrics = 'auroc' is undefined: all test images have the same class; use another measure"
        )
    if config.data.test == "final" and config.data.validation is None:
        check_choosable(config, dataset.test.labels[rows_for_test(choosing(config), dataset)])


def check_choosable(config: Config, labels: NDArray[np.int64]) -> None:
    """Reject the selection of a round with images for which the measure is undefined."""
    chooses = config.records.keep_best or config.train.patience is not None
    if chooses and config.records.metrics == "auroc" and len(np.unique(labels)) < 2:
        raise UserError(
            "records.metrics = 'auroc' is undefined: all images to choose by have the same class; use another measure,"
            " or remove records.keep_best and train.patience"
        )


def choosing(config: Config) -> Config:
    """Return the settings for the half of the test images that selects a round."""
    return replace(config, data=replace(config.data, test="tuning"))


def split_for_clients(config: Config, dataset: Dataset) -> dict[int, Split]:
    """Return a client's own test images, for each client with some; they are also part of the common test."""
    if dataset.testers is None:
        return {}
    rows = rows_for_test(config, dataset)
    owners = dataset.testers[rows]
    own = {int(k): rows[owners == k] for k in np.unique(owners) if k >= 0}
    return {k: Split(dataset.test.images[mine], dataset.test.labels[mine]) for k, mine in own.items()}


def rows_for_test(config: Config, dataset: Dataset) -> NDArray[np.int64]:
    """Return row indices of the test images: all, or the half named by `data.test`.

    Halves are stratified by class and keep groups intact.
    """
    labels, groups = dataset.test.labels, dataset.test_groups
    if config.data.test == "all":
        return np.arange(len(labels))
    rows = np.flatnonzero(second_half(labels, groups) == (config.data.test == "final"))
    if not len(rows):
        number = len(labels) if groups is None else len(np.unique(groups))
        folders = f" of {number} groups (folders of patients, say)" if number < len(labels) else ""
        raise UserError(
            f"data.test = '{config.data.test}': {len(labels)} test images{folders} are too few for two halves;"
            " use 'all'"
        )
    return rows
