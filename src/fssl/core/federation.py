"""A configuration made real: data, partition, method and network, as every engine needs them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from ..augment.normalize import Normalize
from ..config import Config
from ..data.cache import Progress
from ..data.cards import Card
from ..data.folder import Agreed
from ..data.partition import Partition, class_counts, make_partition
from ..data.plan import ClientPlan, Recipe, make_sites, make_task, plan_client
from ..data.sources import Dataset, Split, load
from ..errors import UserError
from ..label.assign import ConfidenceGap
from ..machine import cores
from ..methods import Method, Sgd, build_method, full_settings
from ..methods.fixmatch import FixMatch
from ..models import Net
from ..own import file_of
from ..probes.tally import Layout
from ..probes.training import LabelProbe, Probe, losses_only
from ..seeds import cohort
from ..types import Batch, Clock, Counts, Local, Server, State, Weights
from .evaluate import Tester, TestPool, make_tester
from .step import Pool, Step, Visit, make_step, make_visit

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
    """The images that a run is tested with: all, or every other one of each class, and `final` has the others."""
    images, labels = dataset.test
    if config.data.test == "all":
        return dataset.test
    place = np.zeros(len(labels), np.int64)
    for label in np.unique(labels):
        of_class = labels == label
        place[of_class] = np.arange(of_class.sum())
    mine = place % 2 == (config.data.test == "final")
    if not mine.any():
        raise UserError(f"data.test = '{config.data.test}': {len(labels)} test images are too few for two halves")
    return Split(images[mine], labels[mine])


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


class Federation:
    """What a run consists of before its first round."""

    def __init__(self, config: Config, dataset: Dataset | None = None) -> None:
        self.dataset = dataset or dataset_of(config)
        self.config = config = settled(config, self.dataset)
        self.test = test_of(config, self.dataset)
        self.method, self.device = method_of(config), device_of(config)
        card, partition = self.dataset.card, partition_of(config, self.dataset)
        self.sites = make_sites(partition, self.method.labels)
        self.task = make_task(self.sites, card.num_classes, config.seed)
        labels = self.dataset.train.labels
        sees_all = self.dataset.partition is None or self.dataset.digest is not None  # else images are at their sites
        self.labeled_counts: NDArray[np.int64] | None = (
            class_counts(partition.labeled, labels, card.num_classes) if sees_all else None
        )
        # True classes of the unlabeled images, which nobody knows where they come unlabeled.
        self.unlabeled_counts: NDArray[np.int64] | None = (
            None if self.dataset.partition else class_counts(partition.unlabeled, labels, card.num_classes)
        )
        self.bf16 = uses_bf16(config)
        self.net = network_of(config, card, self.bf16)
        self.recipe = recipe_of(config, self.method, card)
        self.norms = norms_of(card, self.device)

    @property
    def headline(self) -> str:
        return headline_of(self.config)

    @property
    def carries_momentum(self) -> bool:
        """Whether a client starts with the momentum of the one before it, as in the released code."""
        return self.config.protocol == "authors"

    def clients_of(self, round: int) -> list[int]:
        """Who takes part, sorted; in the order drawn where momentum passes from one to the next."""
        config = self.config
        drawn = cohort(config.seed, config.partition.clients, config.train.clients_per_round, round)
        return drawn if self.carries_momentum else sorted(drawn)

    def plan(self, round: int, client: int) -> ClientPlan:
        return plan_client(self.sites[client], self.recipe, self.config.seed, round, client)

    def first_server(self) -> Server:
        """What the server holds before the first round."""
        weights = Weights(
            *({k: t.to(self.device) for k, t in tree.items()} for tree in self.net.init(self.config.seed))
        )
        return self.method.init(self.net, weights, self.task)

    def new_state(self, payload: Server, client: int) -> State:
        """What a client starts with, given its first payload."""
        return self.method.client_state(payload, self.task, self.counts(client))

    def counts(self, client: int) -> Counts:
        return self.sites[client].counts

    @property
    def busiest(self) -> int:
        """The client with the most steps, of those whose images are here: a site has nobody else's."""
        here = [k for k, site in enumerate(self.sites) if len(site.pool)]
        return max(here, key=lambda k: self.recipe.num_steps(self.counts(k)))

    @cached_property
    def layout(self) -> Layout:
        """Where the step's tally keeps what."""
        return layout_of(self, probe_of(self.config, self.method))

    @cached_property
    def pool(self) -> Pool:
        images, labels = on_device(self.dataset.train, self.device)
        # Where a client has no labels, unlabeled images fill its labeled batches and count nothing.
        return Pool(images, labels.clamp(min=0), self.norms["train_norm"])

    def make_step(self) -> Step:
        """A training step of its own, for one thread."""
        probe = probe_of(self.config, self.method)
        return make_step(self.net.copy(), self.method, probe, self.layout, self.pool)

    def make_visit(self) -> Visit:
        return make_visit(self.net.copy(), self.method, self.pool)

    def make_tester(self, compile: bool) -> Tester:
        pool = TestPool(*on_device(self.test, self.device))
        return make_tester(self.net, pool, list(self.norms.values()), compile=compile)


def on_device(split: Split, device: torch.device) -> tuple[Tensor, Tensor]:
    """Images and labels as tensors; copied, since a memory map is read-only."""
    return tuple(torch.from_numpy(np.array(a)).to(device) for a in split)  # type: ignore[return-value]


@contextmanager
def sketch(federation: Federation, client: int = 0) -> Iterator[tuple[Server, Local]]:
    """A client's payload and start; these, and all tensors made inside, have shapes and no values."""
    method, net = federation.method, federation.net
    with FakeTensorMode(), torch.no_grad():
        payload = method.payload(method.init(net, net.init(0), federation.task), client)
        yield payload, method.start(payload, federation.new_state(payload, client))


def layout_of(federation: Federation, probe: Probe) -> Layout:
    """Which sums the probe keeps: asked of the method's own step."""
    method, recipe, card = federation.method, federation.recipe, federation.dataset.card
    with sketch(federation) as (payload, local):
        pixels = (card.channels, card.size, card.size)
        views = {view: torch.zeros(recipe.images(view), *pixels) for view in method.views}
        truth, one = torch.zeros(recipe.unlabeled_batch, dtype=torch.long), torch.zeros(())
        batch = Batch(
            views, truth[: recipe.batch], truth, one, Clock(one, one, one), {"u": truth} if method.wants_truth else {}
        )
        _, trace = method.step(federation.net, payload, local, batch)
        return Layout.of(probe(trace, truth))
