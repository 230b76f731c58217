"""A prepared run: complete settings, the method, the network. `prepare` is the only place that makes one."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..config import Compute, Config, ServerChoice, Train, by_card, usual_batch
from ..data.cache import Progress
from ..data.cards import Card
from ..data.plan import Recipe
from ..data.schedule import Schedule
from ..data.sources import Dataset
from ..data.split_file import read_partition
from ..errors import UserError, as_typed, described
from ..methods.base import Method
from ..methods.names import FROM_LABELS, build_method, defaults_on, full_settings
from ..methods.optimizers import AdamW, Optimizer, Sgd
from ..models import Net
from ..probes.training import LabelProbe, Probe, losses_only
from ..start import Fitted, first_weights, start_digest
from ..system.user_code import digest_of, user_file, user_place
from ..types import Counts, Task
from .device import choose_device, uses_bf16
from .images import Datasets, known_card, load_dataset
from .network import is_untried, make_net
from .privacy import FEWEST_MASKED, MOST_MASKED
from .server import ServerOptimizer
from .sketch import Sizes, try_step

AUTHORS_GUARD = 1e-10  # in the logarithm of the released L_u
AUTHORS_REPLICATION = 2000  # the released code counts replicated labeled images when it averages


class Experiment:
    """A run that is ready to start: nothing of its settings is open, and everything fits together.

    Args:
        config: The settings, complete: the same settings give the same experiment again.
        method: The method with its optimizer, built once.
        defaults: The defaults of the method's settings on this dataset.
        dataset: The images, where they are loaded already.
    """

    def __init__(self, config: Config, method: Method, defaults: Mapping[str, Any], dataset: Dataset | None) -> None:
        self.config, self.method, self.defaults = config, method, defaults
        self._dataset = dataset
        self.share: Compute | None = None  # of the machine, while other runs train beside it

    @property
    def config_here(self) -> Config:
        """The settings with this run's share of the machine, which is not on record: it may go on without others."""
        return self.config if self.share is None else replace(self.config, compute=self.share)

    @property
    def dataset(self) -> Dataset:
        """The images; loaded now, if they are not yet."""
        if self._dataset is None:
            self._dataset = load_dataset(self.config)
        return self._dataset

    def load(self, datasets: Datasets, progress: Progress | None = None) -> None:
        """Get the images from the datasets that the runs of a command share; they are loaded at the first request."""
        if self._dataset is None:
            self._dataset = datasets.get(self.config, progress)

    @property
    def card(self) -> Card:
        """What is known of the images; nothing is loaded for it."""
        return self._dataset.card if self._dataset else known_card(self.config)

    @cached_property
    def net(self) -> Net:
        """The network with its first weights; its module is built once."""
        return make_net(self.config, self.card, uses_bf16(self.config))

    def first_weights(self) -> Fitted:
        """The weights that the run begins with, read anew from `model.start` if that names some."""
        return first_weights(self.config, self.card, self.net)


def prepare(config: Config, dataset: Dataset | None = None) -> Experiment:
    """Complete a configuration, build its method, and refuse what does not fit together.

    Args:
        config: Settings as a user gives them, or complete ones from a record.
        dataset: The images. A folder of images decides classes and clients, so it is read here if it is not given;
            other datasets are known by their card and may be loaded later.

    Returns:
        The experiment, for `Federation` or `run_experiment`.

    Raises:
        UserError: Some settings do not fit together; nothing has been computed.
    """
    is_recorded = config.model.start_digest is not None  # a run goes on from its checkpoint, without the file
    choose_device(config)  # a GPU that is asked for must be there
    if dataset is None and config.card.is_folder:
        dataset = load_dataset(config)
    config = complete(with_file(config if dataset is None else with_folder(config, dataset), dataset))
    method = build_method(config.method.name, dict(config.method.settings))
    check_method(config, method)
    experiment = Experiment(
        config, with_training(config, method), defaults_on(config.method.name, config.card), dataset
    )
    if is_untried(config.model):  # all others have BatchNorm, and need not be built for it
        experiment.net.check(experiment.card.size)
        if config.server.static_norm != "off" and not experiment.net.running:
            raise UserError(
                f"server.static_norm = '{config.server.static_norm}': network '{config.model.name}' has no BatchNorm;"
                " leave it out"
            )
    if user_file(config.method.name):
        check_step(experiment)
    if config.model.start_digest and not is_recorded:
        experiment.first_weights()  # refused here, if they do not fit
    return experiment


def with_folder(config: Config, dataset: Dataset) -> Config:
    """The settings with what a folder of images decides; refuses a folder that they are not meant for."""
    data = config.data
    if dataset.partition is not None:
        config = with_clients(config, len(dataset.partition.labeled), f"client folders in '{data.dir}'")
    elif dataset.digest is None:
        return config
    if data.digest and dataset.digest not in (None, data.digest):  # None: a site alone does not see all files
        raise UserError(
            f"data.digest = '{data.digest}': '{data.dir}' has other files ('{dataset.digest}');"
            " put back those that the run began with, or begin a new run without data.digest"
        )
    data = replace(data, classes=dataset.card.classes, digest=dataset.digest or data.digest)
    server = config.server
    if dataset.partition is not None and (number := len(dataset.partition.server)):
        server = replace(server, batch=server.batch or usual_batch(number))
    return replace(config, data=data, server=server)


def with_file(config: Config, dataset: Dataset | None) -> Config:
    """The settings with what the file of a partition decides; refuses a file that is not meant for these images."""
    file, recorded = config.partition.file, config.partition.digest
    if file is None:
        return config
    num_images = config.card.num_train if dataset is None else len(dataset.train.labels)
    partition, digest = read_partition(Path(file), num_images, recorded)
    config = with_clients(config, len(partition.labeled), f"clients in '{file}'")
    return replace(config, partition=replace(config.partition, digest=digest))


def with_clients(config: Config, number: int, found: str) -> Config:
    """The settings with the number of clients that was found, in words also where; refuses another one."""
    part, train = config.partition, config.train
    if part.clients not in (0, number):
        raise UserError(f"partition.clients = {part.clients}, but there are {number} {found}")
    if train.clients_per_round > number:
        raise UserError(f"train.clients_per_round = {train.clients_per_round} is more than the {number} {found}")
    train = replace(train, clients_per_round=train.clients_per_round or number)
    return replace(config, partition=replace(part, clients=number), train=train)


def complete(config: Config) -> Config:
    """The settings with everything filled in that files, the device, the dataset or the method's builder decide."""
    method, model = config.method, config.model
    settings = tuple(sorted(full_settings(method, config.card).items()))
    return by_card(
        replace(
            config,
            method=replace(method, settings=settings, digest=digest_of("method", method.name, method.digest)),
            model=replace(
                model, digest=digest_of("model", model.name, model.digest), start_digest=start_digest(config)
            ),
            train=replace(config.train, precision="bf16" if uses_bf16(config) else "fp32"),
        )
    )


def with_training(config: Config, method: Method) -> Method:
    """The method with the optimizer, the weights of clients and the guard that the settings ask for."""
    train = config.train
    released = config.protocol == "authors"
    return replace(
        method,
        optimizer=make_optimizer(train),
        labeled_weight=AUTHORS_REPLICATION if released else train.labeled_weight,
        guard=AUTHORS_GUARD if released else 0.0,
        watch=config.records.probes == "all",
        labels_at_clients=not config.has_server_labels,
    )


def make_server_method(config: Config) -> Method:
    """How the server learns from its labels: by cross-entropy, with the optimizer and the schedule of clients."""
    return with_training(config, FROM_LABELS)


def make_optimizer(train: Train) -> Optimizer:
    """The optimizer of clients that the settings ask for."""
    facts: dict[str, Any] = {
        "lr": train.lr,
        "momentum": train.momentum,
        "weight_decay": train.weight_decay,
        "decay_on": train.decay_on,
        "clip": train.clip,
        "scheduled": train.schedule != "constant",
    }
    return AdamW(**facts, beta2=train.beta2) if train.optimizer == "adamw" else Sgd(**facts, nesterov=train.nesterov)


def make_schedule(config: Config) -> Schedule:
    """How the learning rate moves."""
    train = config.train
    return Schedule(train.schedule, train.schedule_over, config.rounds, train.warmup or 0)


def make_server_optimizer(config: Config) -> ServerOptimizer:
    """What becomes of the clients' mean."""
    server = config.server
    return ServerOptimizer(
        server.optimizer, server.lr, server.momentum, server.beta2, server.epsilon, server.broadcast_momentum
    )


def check_method(config: Config, method: Method) -> None:
    """Refuse a method that the federation cannot train."""
    name, clients = config.method.name, config.partition.clients
    if 0 < clients < method.needs.min_clients:
        raise UserError(
            f"method '{name}' needs {method.needs.min_clients} clients or more with these settings,"
            f" and partition.clients = {clients}"
        )
    if method.needs.own_optimizer:
        check_unused(config)
    check_mean(config, method)
    check_groups(config, method)
    if config.has_server_labels:
        check_without_labels(config, method)
    if not config.card.is_dealt and (method.needs.labels == "all" or method.needs.truth):
        raise UserError(
            f"method '{name}' asks for the true label of every image, which data.name = '{config.data.name}' has not"
        )


def check_mean(config: Config, method: Method) -> None:
    """Refuse privacy for a method or a number of clients that it does not cover."""
    name, privacy, drawn = config.method.name, config.privacy, config.train.clients_per_round
    is_masked = privacy.aggregation == "secagg+"
    if type(method).aggregate is not Method.aggregate and (is_masked or privacy.clip is not None):
        key = "privacy.aggregation = 'secagg+'" if is_masked else "privacy.clip"
        limit = "is all that is opened" if is_masked else "clipping and noise do not cover"
        raise UserError(
            f"{key}: method '{name}' uses more of an upload than the mean of its parameters, which {limit};"
            " choose another method"
        )
    if not is_masked:
        return
    if 0 < drawn < FEWEST_MASKED or drawn > MOST_MASKED:
        raise UserError(
            f"train.clients_per_round = {drawn}: privacy.aggregation = 'secagg+' expects {FEWEST_MASKED} to"
            f" {MOST_MASKED}; of two, each could tell the other's upload from the mean"
        )


def check_groups(config: Config, method: Method) -> None:
    """Refuse what counts on one draw of clients a round, where a method has several."""
    given = ["privacy.clip"] if config.privacy.clip is not None else []
    given += ["server.broadcast_momentum"] if config.server.broadcast_momentum else []
    if given and method.needs.groups > 1:
        raise UserError(
            f"{given[0]} goes with one group of clients a round, and method '{config.method.name}' draws"
            f" {method.needs.groups}; leave it out"
        )


def check_without_labels(config: Config, method: Method) -> None:
    """Refuse a method whose clients cannot do without labels."""
    start = f"partition.labels = 'server': method '{config.method.name}'"
    if method.needs.labels == "all":
        raise UserError(f"{start} gives clients the true label of every image; choose another method")
    if method.needs.client_labels:
        raise UserError(f"{start} learns from labels of clients, which have none; choose another method")


def check_unused(config: Config) -> None:
    """Refuse settings of the optimizer for a method that has a rule of its own."""
    if config.server.static_norm != "off":
        raise UserError(f"server.static_norm: method '{config.method.name}' keeps its model in parts; leave it out")
    keys = [("train", key) for key in ("optimizer", "schedule", "nesterov", "keep_momentum", "clip", "decay_on")]
    usual = {"train": Train(), "server": ServerChoice()}
    for section, key in (*keys, ("server", "broadcast_momentum")):
        if (value := getattr(getattr(config, section), key)) != getattr(usual[section], key):
            rule = f"method '{config.method.name}' takes its steps by a rule of its own"
            raise UserError(f"{section}.{key} = {as_typed(value)}: {rule}; leave it out")


def check_step(experiment: Experiment) -> None:
    """Refuse a method of the user's whose step fails or draws random numbers, by a step on shapes alone."""
    config, method, card = experiment.config, experiment.method, experiment.card
    recipe = make_recipe(config, method, card)
    slots = recipe.unlabeled_batch  # any number will do: images have no values here
    sizes = Sizes(
        Task(card.num_classes, slots, config.seed), Counts(1, slots), recipe, card, config.train.class_weights > 0
    )
    try:
        try_step(method, experiment.net, sizes, make_probe(config, method))
    except Exception as error:
        place = user_place(error, config.own_files)
        reason = str(error) if isinstance(error, UserError) else f"its step fails: {described(error)}"
        raise UserError(f"method '{config.method.name}': {reason}{f' ({place})' if place else ''}") from error


def make_recipe(config: Config, method: Method, card: Card) -> Recipe:
    """How a client walks through its images: as the configuration says, and the method asks."""
    train, needs = config.train, method.needs
    return Recipe(
        batch=train.batch,
        unlabeled_ratio=train.unlabeled_ratio,
        local_epochs=train.local_epochs,
        epoch=needs.epoch,
        steps_per_round=train.steps_per_round,
        views=needs.views,
        size=card.size,
        flip=config.data.flip,
        sweep=needs.sweep,
        chooses=needs.chooses,
        numbers=needs.numbers,
        schedule=make_schedule(config),
        labeled_epochs=needs.labeled_epochs,
        shuffles=needs.shuffles,
    )


def make_server_recipe(config: Config, card: Card) -> Recipe:
    """How the server walks through its labeled images."""
    return Recipe(
        batch=config.server_batch,
        unlabeled_ratio=1,
        local_epochs=config.server_epochs,
        epoch="labeled",
        steps_per_round=None,
        views=FROM_LABELS.needs.views,
        size=card.size,
        flip=config.data.flip,
        schedule=make_schedule(config),
    )


def make_probe(config: Config, method: Method) -> Probe:
    """What is measured, with the method's own weights and threshold."""
    if config.records.probes == "losses":
        return losses_only
    return LabelProbe(*method.watched, knows_truth=config.card.is_dealt)
