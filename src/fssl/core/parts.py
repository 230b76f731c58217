"""The parts that a configuration names: data, device, method, network, and how a client walks through its images."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ..augment.normalize import Normalize
from ..config import Config
from ..data.cache import Progress
from ..data.cards import Card
from ..data.folder import Agreed
from ..data.partition import Partition, make_partition
from ..data.plan import Recipe
from ..data.sources import Dataset, Split, load
from ..errors import UserError
from ..label.assign import ConfidenceGap
from ..methods.fixmatch import FixMatch
from ..methods.names import Method, Sgd, build_method, full_settings
from ..models import Net
from ..probes.training import LabelProbe, Probe, losses_only
from ..system.machine import cores
from ..system.user_code import file_of

AUTHORS_REPLICATION = 2000  # the released code counts replicated labeled images when it averages


def method_of(config: Config) -> Method:
    """The configured method with its optimizer; raises UserError before any compute."""
    settings = full_settings(config.method, config.card)
    method = build_method(config.method.name, settings)
    if 0 < config.partition.clients < method.fewest_clients:
        raise UserError(
            f"method '{config.method.name}' needs {method.fewest_clients} clients or more with these settings,"
            f" and partition.clients = {config.partition.clients}"
        )
    if config.privacy.clip is not None and type(method).aggregate is not Method.aggregate:
        raise UserError(
            f"privacy.clip: method '{config.method.name}' uses more of an upload than the mean of its parameters, "
            "which clipping and noise do not cover; choose another method"
        )
    train = config.train
    sgd, released = Sgd(train.lr, train.momentum, train.weight_decay), config.protocol == "authors"
    method = replace(method, sgd=sgd, labeled_weight=AUTHORS_REPLICATION if released else train.labeled_weight)
    if not config.card.is_dealt and (method.labels == "all" or method.wants_truth):
        raise UserError(
            f"method '{config.method.name}' asks for the true label of every image, which data.name = 'folder' has not"
        )
    if isinstance(method, FixMatch):
        method = replace(method, watch_global=config.records.probes == "all")
    return method


def probe_of(config: Config, method: Method) -> Probe:
    """What is measured, with the method's own lambda and threshold where it has them."""
    if config.records.probes == "losses":
        return losses_only
    weigh = getattr(getattr(method, "assign", None), "weigh", ConfidenceGap())
    tau = getattr(getattr(method, "accept", None), "tau", 0.95)
    return LabelProbe(weigh, tau, knows_truth=config.card.is_dealt)


def device_of(config: Config) -> torch.device:
    """The device to compute on; a GPU that is asked for must be there."""
    wanted = config.compute.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("compute.device = 'cuda': no CUDA device is visible; use compute.device = 'cpu'")
    cuda = wanted == "cuda" or (wanted == "auto" and torch.cuda.is_available())
    return torch.device("cuda" if cuda else "cpu")


def uses_bf16(config: Config) -> bool:
    """What precision 'auto' means here: bf16 on a GPU, fp32 on a CPU."""
    precision = config.train.precision
    return precision == "bf16" or (precision == "auto" and device_of(config).type == "cuda")


Images = tuple[str, str | None, Agreed | None]
_loaded: dict[Images, Dataset] = {}


def images_of(config: Config) -> Images:
    """The settings that decide which images are loaded."""
    return config.data.name, config.data.dir, agreed_of(config) if config.card.is_folder else None


def dataset_of(config: Config, progress: Progress | None = None) -> Dataset:
    """The configured images; the runs of a grid share them."""
    key = name, dir, agreed = images_of(config)
    if key not in _loaded:
        _loaded.clear()
        folder, options = Path(dir).expanduser() if dir else None, agreed._asdict() if agreed else {}
        _loaded[key] = load(name, folder, progress=progress, workers=cores(), **options)
    return _loaded[key]


def agreed_of(config: Config) -> Agreed:
    """What the sites of a federation with their own images have in common."""
    data = config.data
    return Agreed(data.classes or (), data.size, data.channels, data.mean, data.std, data.name)


def card_of(config: Config) -> Card:
    """What is known of the images of a run that is settled, without opening a file."""
    return agreed_of(config).card() if config.card.is_folder else config.card


def network_of(config: Config, card: Card, bf16: bool = False) -> Net:
    """The configured network for these images."""
    return Net(config.model.name, card.channels, card.num_classes, config.model.width, bf16)


def check_parts(config: Config) -> None:
    """Method and network, before any compute. The classes of a folder are known once it is settled."""
    method_of(config)
    if file_of(config.model.name) and (card := card_of(config)).num_classes:
        network_of(config, card, uses_bf16(config)).check(card.size)


def norms_of(card: Card, device: torch.device) -> dict[str, Normalize]:
    """Test images are normalized as in training, and as in the released code."""
    return {
        "train_norm": Normalize(card.train_mean, card.train_std, device),
        "authors_norm": Normalize(card.test_mean, card.test_std, device),
    }


def headline_of(config: Config) -> str:
    """The normalization whose accuracy is the result."""
    return "authors_norm" if config.protocol == "authors" else "train_norm"


def test_of(config: Config, dataset: Dataset) -> Split:
    """The images that a run is tested with."""
    if config.data.test == "all":
        return dataset.test
    rows = test_rows(config, dataset.test.labels)
    return Split(dataset.test.images[rows], dataset.test.labels[rows])


def test_rows(config: Config, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers of these images: all, or every other one of each class, and `final` has the others."""
    if config.data.test == "all":
        return np.arange(len(labels))
    place = np.zeros(len(labels), np.int64)
    for label in np.unique(labels):
        of_class = labels == label
        place[of_class] = np.arange(of_class.sum())
    rows = np.flatnonzero(place % 2 == (config.data.test == "final"))
    if not len(rows):
        raise UserError(f"data.test = '{config.data.test}': {len(labels)} test images are too few for two halves")
    return rows


def settled(config: Config, dataset: Dataset) -> Config:
    """The same run with what its folder decides filled in; refuses a folder that it is not meant for."""
    data, part = config.data, config.partition
    if dataset.partition is not None:
        number = len(dataset.partition.labeled)
        if part.clients not in (0, number):
            raise UserError(
                f"partition.clients = {part.clients}, but there are {number} client folders in '{data.dir}'"
            )
        if config.train.clients_per_round > number:
            raise UserError(
                f"train.clients_per_round = {config.train.clients_per_round} is more than the {number} clients"
                f" in '{data.dir}'"
            )
        part = replace(part, clients=number)
    elif dataset.digest is None:
        return config
    if data.digest and dataset.digest not in (None, data.digest):  # None: a site alone does not see all files
        raise UserError(
            f"data.digest = '{data.digest}': '{data.dir}' has other files ('{dataset.digest}');"
            " leave data.digest out to train on them"
        )
    data = replace(data, classes=dataset.card.classes, digest=dataset.digest or data.digest)
    return replace(config, data=data, partition=part)


def partition_of(config: Config, dataset: Dataset) -> Partition:
    """Who holds what: as the images lie, or as they are dealt out."""
    part = config.partition
    return dataset.partition or make_partition(
        dataset.train.labels,
        dataset.card.num_classes,
        kind=part.kind,
        alpha=part.alpha,
        clients=part.clients,
        per_class=config.labels_per_class,
        seed=part.seed,
        labeled_clients=part.labeled_clients,
    )


def recipe_of(config: Config, method: Method, card: Card) -> Recipe:
    """How a client walks through its images: as the configuration says, and the method asks."""
    train = config.train
    return Recipe(
        train.batch,
        train.unlabeled_ratio,
        train.local_epochs,
        method.steps,
        train.steps_per_round,
        method.views,
        card.size,
        config.data.flip,
        method.sweeps,
    )
