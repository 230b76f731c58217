"""A prepared run: complete settings, the method, the network. Only `prepare` makes one.

Each part of a run is made once: the network, its first weights, the division of the images, their holders, and the dry
step. `prepare` makes the parts that decide whether settings fit together; the others are made when the run starts.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from ..config import Compute, Config, by_card, usual_batch
from ..data.cache import Progress
from ..data.cards import Card
from ..data.sources import Dataset
from ..data.split_file import read_partition
from ..errors import UserError
from ..methods.base import Method
from ..methods.names import build_method, defaults_on, full_settings
from ..models import Net, digest_of_tensors
from ..models.trainable import ALL
from ..start import Fitted, first_weights, start_digest
from ..system.user_code import digest_of, is_users
from ..types import Weights
from .assembly import is_untried, make_net, make_part, with_training
from .compatibility import by_class_in, check_method, check_network, check_step
from .device import choose_device, uses_bf16
from .dry_step import Tried
from .holdings import Holdings, make_holdings, training_notes
from .images import Datasets, Division, check_loadable, check_test, divide_images, known_card, load_dataset


class Experiment:
    """A run that is ready to start: all settings are complete and compatible.

    Args:
        config: The complete settings: the same settings give the same experiment again.
        method: The method with its optimizer, built once.
        defaults: The defaults of the method's settings on this dataset.
        dataset: The images, if they are loaded already.
    """

    def __init__(self, config: Config, method: Method, defaults: Mapping[str, Any], dataset: Dataset | None) -> None:
        self.config, self.method, self.defaults = config, method, defaults
        self._dataset = dataset
        self.share: Compute | None = None  # of the machine, while other runs train at the same time

    @property
    def config_here(self) -> Config:
        """Return the settings with this run's share of the machine; the share is not recorded, since it may change."""
        return self.config if self.share is None else replace(self.config, compute=self.share)

    @property
    def dataset(self) -> Dataset:
        """Return the images, loaded if they are not yet."""
        if self._dataset is None:
            self._take(load_dataset(self.config))
        return cast(Dataset, self._dataset)

    def load(self, datasets: Datasets, progress: Progress | None = None) -> None:
        """Take the images and their division from the datasets that a command's runs share; reject unsuitable ones."""
        if self._dataset is None:
            self._take(datasets.get(self.config, progress))
        check_test(self.config, self.dataset)
        self.division = datasets.divided(self.config, self.dataset)

    def _take(self, dataset: Dataset) -> None:
        """Keep the images, and record the commit of a download for a repetition of the run."""
        self._dataset = dataset
        if dataset.revision:
            self.config = replace(self.config, data=replace(self.config.data, revision=dataset.revision))

    def ask_again(self, recorded: Config) -> None:
        """Take the images of the recorded commit, if the settings name none and the images are not loaded yet."""
        if self._dataset is None and self.config.data.revision is None:
            self.config = replace(self.config, data=replace(self.config.data, revision=recorded.data.revision))

    @property
    def card(self) -> Card:
        """Return the facts about the images, without loading them."""
        return self._dataset.card if self._dataset else known_card(self.config)

    @cached_property
    def whole_net(self) -> Net:
        """Return the network with all its tensors and its own first weights; its module is built once."""
        return make_net(self.config, self.card, uses_bf16(self.config))

    @cached_property
    def net(self) -> Net:
        """Return the network as clients train it: the whole one, or a part of it in the frozen rest."""
        is_whole = self.config.model.trainable == ALL  # then the file in `model.start` need not be here
        return self.whole_net if is_whole else make_part(self.config, self.whole_net, self.start.weights)

    @cached_property
    def start(self) -> Fitted:
        """Return the first weights of the whole network, read from `model.start` if it is set."""
        return first_weights(self.config, self.card, self.whole_net)

    @property
    def first(self) -> Weights:
        """Return the weights that clients train, as they are before the first round."""
        return self.net.first if self.net.frozen else self.start.weights

    @cached_property
    def division(self) -> Division:
        """Return each client's images, and the validation part."""
        return divide_images(self.config, self.dataset)

    @cached_property
    def holdings(self) -> Holdings:
        """Return each client's images as the method trains on them."""
        return make_holdings(self.config, self.dataset, self.division, self.method.needs)

    @property
    def notes(self) -> list[str]:
        """Return notes on the training that a user may not expect."""
        notes = training_notes(self.config, self.dataset, self.holdings, self.method.needs)
        return [*notes, *part_notes(self.config, self.net, self.whole_net)]

    @cached_property
    def dry_step(self) -> Tried:
        """Return the findings of a step tried before the first one."""
        is_compiled = self.config.compute.compile == "on" or choose_device(self.config).type == "cuda"
        return check_step(self.config, self.method, self.net, self.card, shapes=self.is_tried or is_compiled)

    @property
    def is_tried(self) -> bool:
        """Return whether `prepare` takes the dry step, because parts of the run may not fit.

        A custom method may do anything. Not every method supports train.labels_alone, settings by class or +oracle.
        Not every network accepts the single image of some methods' passes.
        """
        train, oracle = self.config.train, self.method.needs.truth
        asks = oracle or train.labels_alone or bool(by_class_in(self.config)) or train.batch == 1
        return asks or is_users(self.config.method.name)

    @property
    def reads_rounds(self) -> bool:
        """Return whether a step reads the planned number of rounds; fssl's own methods never do."""
        return self.is_tried and self.dry_step.reads_rounds


def prepare(config: Config, dataset: Dataset | None = None) -> Experiment:
    """Complete a configuration, build its method, and reject settings that do not fit together.

    Args:
        config: Settings as a user gives them, or complete ones from a record.
        dataset: The images. A folder of images decides classes and clients, so it is read here if it is not given;
            the cards of other datasets are enough, and they may be loaded later.

    Returns:
        The experiment, for `Federation` or `run_experiment`.

    Raises:
        UserError: Some settings do not fit together; nothing has been computed.
    """
    is_recorded = config.model.start_digest is not None  # a resumed run starts from its checkpoint, without the file
    choose_device(config)  # raises if a requested GPU is missing
    if dataset is None:
        check_loadable(config)
        dataset = load_dataset(config) if config.card.is_folder else None
    config = complete(with_file(config if dataset is None else with_folder(config, dataset), dataset))
    method = build_method(config.method.name, dict(config.method.settings))
    check_method(config, method)
    experiment = Experiment(
        config, with_training(config, method), defaults_on(config.method.name, config.card), dataset
    )
    is_part = config.model.trainable != ALL
    if is_part:
        model = replace(config.model, frozen_digest=digest_of_tensors(experiment.net.frozen))
        experiment.config = config = replace(config, model=model)
    if is_untried(config.model):
        check_network(config, experiment.net, experiment.card)
    if is_part or is_untried(config.model):  # all others have BatchNorm, and need not be built for it
        check_static_norm(config, experiment.net)
    if config.has_server_labels and config.server_batch == 1:
        check_network(config, experiment.net, experiment.card, batch=1)
    if experiment.is_tried:
        _ = experiment.dry_step
    if config.model.start_digest and not is_recorded:
        _ = experiment.start
    return experiment


def check_static_norm(config: Config, net: Net) -> None:
    """Reject static statistics for a network without BatchNorm that trains."""
    if config.server.static_norm == "off" or net.running:
        return
    part = f" that trains with model.trainable = '{config.model.trainable}'" if net.frozen else ""
    raise UserError(
        f"server.static_norm = '{config.server.static_norm}' has no effect: network '{config.model.name}' has no"
        f" BatchNorm{part}; remove it"
    )


def part_notes(config: Config, net: Net, whole: Net) -> list[str]:
    """Return how many parameters train, if not all do."""
    if not net.frozen:
        return []
    trained, every = (sum(t.numel() for t in of.first.params.values()) for of in (net, whole))
    text = f"clients train and send {trained:,} parameters; the network has {every:,}, and the others stay as they are"
    return [f"model.trainable = '{config.model.trainable}': {text}"]


def with_folder(config: Config, dataset: Dataset) -> Config:
    """Return the settings, completed by the user's images; reject images that do not match them."""
    data = config.data
    is_given = data.dir is None  # by a script, or by a site of a deployment
    if dataset.partition is not None:
        found = "clients" if is_given else f"client folders in '{data.dir}'"
        config = with_clients(config, len(dataset.partition.labeled), found)
    elif dataset.digest is None:
        return config
    if data.digest and dataset.digest not in (None, data.digest):  # None: a single site does not see all files
        others = "the images of dataset= have changed" if is_given else f"the files in '{data.dir}' have changed"
        raise UserError(
            f"data.digest = '{data.digest}': {others} ('{dataset.digest}');"
            " restore the original ones, or start a new run without data.digest"
        )
    classes = dataset.card.class_names if config.card.is_folder else None
    data = replace(data, classes=classes, digest=dataset.digest or data.digest)
    server = config.server
    if dataset.partition is not None and (number := len(dataset.partition.server)):
        server = replace(server, batch=server.batch or usual_batch(number))
    return replace(config, data=data, server=server)


def with_file(config: Config, dataset: Dataset | None) -> Config:
    """Return the settings, completed by the partition file; reject a file that does not match the images."""
    file, recorded = config.partition.file, config.partition.digest
    if file is None:
        return config
    num_images = config.card.num_train if dataset is None else len(dataset.train.labels)
    partition, digest = read_partition(Path(file), num_images, recorded)
    config = with_clients(config, len(partition.labeled), f"clients in '{file}'")
    return replace(config, partition=replace(config.partition, digest=digest))


def with_clients(config: Config, number: int, found: str) -> Config:
    """Return the settings with the number of clients found; reject another one. `found` describes them in messages."""
    part, train = config.partition, config.train
    if part.clients not in (0, number):
        raise UserError(f"partition.clients = {part.clients}, but there are {number} {found}; remove it")
    if train.clients_per_round > number:
        raise UserError(f"train.clients_per_round = {train.clients_per_round}: there are only {number} {found}")
    train = replace(train, clients_per_round=train.clients_per_round or number)
    return replace(config, partition=replace(part, clients=number), train=train)


def complete(config: Config) -> Config:
    """Return the settings with all values that files, the device, the dataset or the method's builder decide."""
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
