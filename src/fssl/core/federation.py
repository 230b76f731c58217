"""A prepared experiment with its images on a device: it draws clients and plans their rounds."""

from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial

import numpy as np
import torch
from torch import Tensor

from ..augment.policies import crop_room, enlarged
from ..data.sources import Split
from ..probes.tally import Layout
from ..seeds import cohort
from ..training.plan import ClientPlan, make_task, plan_client
from ..types import Counts, Payload, Server, State, Weights
from .assembly import (
    make_aggregation,
    make_probe,
    make_recipe,
    make_server_method,
    make_server_optimizer,
    make_server_recipe,
)
from .attack import mislabeled
from .compatibility import by_class_in
from .device import choose_devices
from .dry_step import Sizes, try_step
from .evaluate import ScoreBatch, Tester, TestPool, headline_norm, make_score, make_tester, norms_for_test
from .experiment import Experiment
from .images import split_for_test
from .server_optimizer import ServerOptimizer
from .site_scores import SiteScore, make_site_score, own_splits
from .static_norm import Collect, Faster, NormSums, as_it_is, make_measure
from .step import Pool, StepMaker

OWN_NUMBER = -1  # the server's number when it trains as one more site; lower numbers are its warm-up


class Pools:
    """A run's training images on a device, and the normalizations that turn them into inputs."""

    def __init__(self, experiment: Experiment, device: torch.device) -> None:
        config, dataset = experiment.config, experiment.dataset
        self.dataset, self.device = dataset, device
        self.mislabeled = torch.from_numpy(mislabeled(config, experiment.holdings.sites)).to(device)
        self.is_enlarged = config.data.crop == "resize"
        self.norms = norms_for_test(dataset.card, device)

    @cached_property
    def views(self) -> Pool:
        """Return the source of views: the images unchanged, or enlarged once for all crops."""
        return self._made(self.is_enlarged)

    @cached_property
    def whole(self) -> Pool:
        """Return the unchanged images, for BatchNorm's statistics."""
        return self._made(enlarge=False) if self.is_enlarged else self.views

    def _made(self, enlarge: bool) -> Pool:
        images, labels = on_device(self.dataset.train, self.device)
        size = images.shape[2]
        images = enlarged(images, crop_room(size)) if enlarge else images
        # Unlabeled images fill the labeled batches of a client without labels, with weight 0.
        labels = labels.clamp(min=0)
        labels[self.mislabeled] = self.dataset.card.num_classes - 1 - labels[self.mislabeled]
        return Pool(images, labels, self.norms["train_norm"], size)

    def tester(self, score: ScoreBatch, split: Split, norms: Sequence[str]) -> Tester:
        """Return a test on these images with the normalizations named in `norms`."""
        return make_tester(score, TestPool(*on_device(split, self.device)), [self.norms[name] for name in norms])


class Federation:
    """A prepared experiment with its images on a device.

    Args:
        experiment: The prepared run.
        pools: Its images on a device; by default the first device of the settings.
        at_server: Whether the server trains, on its labeled images as one site, instead of the clients.
        begins: False if a checkpoint holds the weights, since the file of first weights may be gone.
    """

    def __init__(
        self, experiment: Experiment, pools: Pools | None = None, at_server: bool = False, begins: bool = True
    ) -> None:
        self.experiment, self.dataset = experiment, experiment.dataset
        self.config = config = experiment.config_here
        self.holdings, card = experiment.holdings, experiment.dataset.card
        self.devices = choose_devices(config)
        self.pools = pools or Pools(experiment, self.devices[0])
        self.device, self.norms = self.pools.device, self.pools.norms
        self.net = experiment.net.on(self.device)
        if at_server:  # as another site it has its own random numbers, and it broadcasts nothing to itself
            self.method, self.recipe = make_server_method(config), make_server_recipe(config, card)
            self.sites, self.server_optimizer = [self.holdings.server] * (1 + config.server.warmup), ServerOptimizer()
        else:
            self.method, self.recipe = experiment.method, make_recipe(config, experiment.method, card)
            self.sites, self.server_optimizer = self.holdings.sites, make_server_optimizer(config)
        self.aggregation = make_aggregation(config)
        self.task = make_task(self.sites, card, config.seed)
        # Whether a client starts with the momentum of the previous client, as in the released code, or with its own.
        self.carries_momentum, self.keeps_momentum = config.protocol == "authors", config.train.keep_momentum
        self.begins = begins

    def on(self, device: torch.device) -> "Federation":
        """Return the same federation with its images on another device."""
        if device == self.device:
            return self
        return Federation(self.experiment, Pools(self.experiment, device), begins=self.begins)

    def of_server(self) -> "Federation":
        """Return the same federation with one site: the server, which trains on its labeled images only."""
        return Federation(self.experiment, self.pools, at_server=True, begins=self.begins)

    @cached_property
    def test(self) -> Split:
        """Return the test images of the global model; a site of a deployment needs none."""
        return split_for_test(self.config, self.dataset)

    @property
    def pool(self) -> Pool:
        """Return the source of views."""
        return self.pools.views

    @cached_property
    def layout(self) -> Layout:
        """Return where each measure of the method's step stands in the step's tally."""
        if self.method is self.experiment.method:
            return self.experiment.dry_step.layout
        sizes = Sizes(self.task, self.counts(0), self.recipe, self.dataset.card, by_class_in(self.config))
        # The network on the CPU, where shapes are: its frozen tensors have values.
        return try_step(self.method, self.experiment.net, sizes, make_probe(self.config, self.method)).layout

    @property
    def steps(self) -> StepMaker:
        """Return the functions that a device computes in a client's round."""
        probe = make_probe(self.config, self.method)
        return StepMaker(self.net, self.method, self.recipe, probe, self.layout, self.pool)

    def drawn_clients(self, round: int) -> list[int]:
        """Return the participants of a round, sorted; in drawing order if momentum passes from one to the next."""
        drawn = [*dict.fromkeys(client for group in self.drawn_groups(round) for client in group)]
        return drawn if self.carries_momentum else sorted(drawn)

    def drawn_groups(self, round: int) -> list[list[int]]:
        """Return the round's groups of clients: one, unless the method needs several; groups may overlap."""
        config, number = self.config, self.method.needs.groups
        sizes = config.drawable, config.train.clients_per_round
        return [cohort(config.seed, *sizes, number * (round - 1) + group + 1) for group in range(number)]

    def plan(self, round: int, client: int) -> ClientPlan:
        """Return a client's round: its steps in each group that contains it, or in the first group if none does."""
        several = self.drawn_groups(round) if self.method.needs.groups > 1 else []  # a single group needs no lookup
        mine = [group for group, drawn in enumerate(several) if client in drawn]
        return plan_client(self.sites[client], self.recipe, self.config.seed, round, client, mine or [0])

    def longest_plan(self) -> ClientPlan:
        """Return the longest possible round: that of the client with the most steps, in every group."""
        busiest, groups = max(self.holders, key=self.num_steps), range(self.method.needs.groups)
        return plan_client(self.sites[busiest], self.recipe, self.config.seed, 1, busiest, groups)

    def first_server(self) -> Server:
        """Return the server's state before the first round."""
        # A copy, even on a CPU: the network keeps its first weights.
        weights = self.experiment.first if self.begins else self.net.first
        first = ({k: t.to(self.device, copy=True) for k, t in tree.items()} for tree in weights)
        return self.method.init(self.net, Weights(*first), self.task)

    def payload(self, server: Server, optimizer: State, client: int) -> Payload:
        """Return what one client receives: the method's payload, and the momentum that the server broadcasts."""
        return self.server_optimizer.broadcast(self.method.payload(server, client), optimizer)

    def new_state(self, payload: Payload, client: int) -> State:
        """Return a client's initial state, given its first payload."""
        return self.method.client_state(payload, self.task, self.counts(client))

    @property
    def holders(self) -> list[int]:
        """Return the clients with images in this process: all, or at a site only its own."""
        return [client for client, site in enumerate(self.sites) if len(site.pool)]

    def counts(self, client: int) -> Counts:
        return self.sites[client].counts

    def num_steps(self, client: int) -> int:
        """Return the number of a client's steps in a round, within one group."""
        return self.recipe.num_steps(self.counts(client))

    def work(self, client: int) -> int:
        """Return the expected number of a client's steps; 0 if it has no weight in the mean."""
        return self.num_steps(client) if self.method.num_samples(self.counts(client)) else 0

    def make_collect(self, faster: Faster = as_it_is) -> Collect | None:
        """Return a function that measures BatchNorm's statistics on images of the server; None if it is not used."""
        static_norm, own = self.config.server.static_norm, self.holdings.server.labeled
        if static_norm == "all":
            every = np.arange(len(self.dataset.train.labels))
            if self.config.other_sizes is not None:  # exclude images outside the federation
                every = np.concatenate([site.pool for site in (*self.holdings.sites, self.holdings.server)])
            own = np.setdiff1d(every, self.holdings.held_out)
        if static_norm == "off" or not len(own):  # with `sites` a server may have none
            return None
        measure, rows = make_measure(self.net, self.pools.whole, faster), torch.from_numpy(own).to(self.device)
        return lambda weights: measure(weights, rows)

    def make_site_score(self) -> Callable[[Weights, int], SiteScore]:
        """Return the function that tests a model on one client's own test and validation images."""
        config, dataset, score = self.config, self.dataset, make_score(self.net)
        splits = partial(own_splits, config, dataset, self.holdings.held_out)
        tester = partial(self.pools.tester, score, norms=[headline_norm(config)])
        return make_site_score(splits, tester, self.task.num_classes)

    def make_client_measure(self, faster: Faster = as_it_is) -> Callable[[Weights, int], NormSums]:
        """Return a function that measures a model on all images of one client, in the order of the dataset."""
        measure = make_measure(self.net, self.pools.whole, faster)

        @cache
        def rows(client: int) -> Tensor:
            return torch.from_numpy(np.sort(self.sites[client].pool)).to(self.device)

        return lambda weights, client: measure(weights, rows(client))


def on_device(split: Split, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return images and labels as tensors; copied, since a memory map is read-only."""
    return tuple(torch.from_numpy(np.array(a)).to(device) for a in split)  # type: ignore[return-value]
