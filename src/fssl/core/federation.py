"""An experiment made real: who holds which images, on which device, and what a step is, as every engine needs it."""

from collections.abc import Callable, Sequence
from copy import copy
from functools import cache, cached_property
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..augment.enlarge import enlarged
from ..augment.policies import room
from ..data.partition import class_counts
from ..data.sources import Split
from ..errors import several
from ..methods.base import BROADCAST
from ..probes.tally import Layout
from ..probes.training import Probe
from ..seeds import cohort
from ..training.plan import ClientPlan, balanced, make_sites, make_task, plan_client, server_site, weighed
from ..types import Counts, Payload, Server, State, Weights, put
from .device import choose_devices, uses_bf16
from .evaluate import Score, Tester, TestPool, headline_norm, make_score, make_tester, norms_for_test
from .experiment import Experiment
from .images import divide_images, split_for_clients, split_for_test, split_to_choose_by
from .parts import make_probe, make_recipe, make_server_method, make_server_optimizer, make_server_recipe
from .server import ServerOptimizer, smooth
from .sketch import Sizes, try_step
from .static import Collect, Faster, NormSums, as_it_is, make_measure
from .step import Learn, Look, Pool, Show, Step, Visit, make_learn, make_look, make_show, make_step, make_visit

RARE = 0.01  # rounds without labels that need no note
SHOWN_CLASSES = 10  # of those that nobody can learn
OWN_NUMBER = -1  # the number of the server, where it trains as one more site; lower ones are its warm-up


class Federation:
    """An experiment made real: who holds which images, on which device, and what a step is."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, self.dataset = experiment, experiment.dataset
        self.config, self.method, self.net = experiment.config_here, experiment.method, experiment.net
        config, card = self.config, self.dataset.card
        partition, self.held_out = divide_images(config, self.dataset)
        labels = self.dataset.train.labels
        sites = [*make_sites(partition, self.method.needs.labels), server_site(partition)]
        sites = balanced(sites, labels, config.train.class_balance)
        *self.sites, self.server_site = weighed(sites, labels, card.num_classes, config.train.class_weights)
        self.task = make_task(self.sites, card, config.seed)
        sees_all = self.dataset.partition is None or self.dataset.digest is not None  # else images are at their sites
        self.labeled_counts: NDArray[np.int64] | None = (
            class_counts(partition.labeled, labels, card.num_classes) if sees_all else None
        )
        # True classes of the unlabeled images, which nobody knows where they come unlabeled.
        self.unlabeled_counts: NDArray[np.int64] | None = (
            None if self.dataset.partition else class_counts(partition.unlabeled, labels, card.num_classes)
        )
        self.server_counts: NDArray[np.int64] | None = (
            class_counts([partition.server], labels, card.num_classes)[0] if len(partition.server) else None
        )
        self.devices, self.bf16 = choose_devices(config), uses_bf16(config)
        self.device = self.devices[0]
        self.recipe = make_recipe(config, self.method, card)
        self.norms = norms_for_test(card, self.device)
        self.begins = True  # False: a checkpoint holds the weights, and the file that they began with may be gone

    def on(self, device: torch.device) -> "Federation":
        """The same federation with its images on another device."""
        if device == self.device:
            return self
        other = copy(self)
        for images in ("pool", "whole_pool"):
            other.__dict__.pop(images, None)
        other.device, other.norms = device, norms_for_test(self.dataset.card, device)
        return other

    def of_server(self) -> "Federation":
        """The same federation with one site, the server and its labeled images, that learns from labels alone."""
        other, card = copy(self), self.dataset.card
        other.method, other.recipe = make_server_method(self.config), make_server_recipe(self.config, card)
        other.sites = [self.server_site] * (1 + self.config.server.warmup)  # as other sites it has other random numbers
        other.task = make_task(other.sites, card, self.config.seed)
        other.__dict__ |= {"pool": self.pool, "server_optimizer": ServerOptimizer()}  # it broadcasts nothing to itself
        other.__dict__.pop("layout", None)
        return other

    @property
    def notes(self) -> list[str]:
        """What somebody who trains with these images may not expect."""
        notes = [*self.dataset.notes, self._first_stage()]
        if self.labeled_counts is not None and self.method.needs.labels != "all":
            notes += [self._unknown_classes(self.labeled_counts), self._rounds_without_labels(), self._idle_server()]
        return [*filter(None, notes)]

    def _first_stage(self) -> str:
        """Whether the run ends before a method's second stage begins."""
        burn_in, rounds = self.method.needs.burn_in, self.config.rounds
        text = f"method.burn_in = {burn_in}: the run ends after {several(rounds, 'round')}, within the first stage"
        return text if burn_in >= rounds else ""

    def _unknown_classes(self, labeled_counts: NDArray[np.int64]) -> str:
        """Which classes nobody can learn, if there are any."""
        known = labeled_counts.sum(0) + (0 if self.server_counts is None else self.server_counts)
        names = [name for name, number in zip(self.dataset.card.class_names, known, strict=True) if not number]
        shown = ", ".join(names[:SHOWN_CLASSES]) + (", ..." if len(names) > SHOWN_CLASSES else "")
        text = f"{len(names)} of {len(known)} classes have no label anywhere, and cannot be learned: {shown}"
        return text if names else ""

    def _rounds_without_labels(self) -> str:
        """How many rounds draw no client with labels, where only some clients have them."""
        labeled = sum(site.counts.labeled > 0 for site in self.sites)
        clients, drawn = self.config.drawable, self.config.train.clients_per_round
        share = prod(max(0, clients - labeled - i) / (clients - i) for i in range(drawn))
        text = f"{labeled} of {clients} clients have labels, and {drawn} are drawn: {share:.0%} of all rounds draw none"
        return f"{text} of them" if labeled > 0 and self.method.needs.groups == 1 and share >= RARE else ""

    def _idle_server(self) -> str:
        """Whether the labels are the server's and it does not train."""
        is_idle = self.config.has_server_labels and not self.config.server_epochs
        return "server.epochs = 0: nobody trains on the labels, which are the server's" if is_idle else ""

    @property
    def headline(self) -> str:
        return headline_norm(self.config)

    @cached_property
    def test(self) -> Split:
        """The images that the global model is tested with; a site of a deployment needs none."""
        return split_for_test(self.config, self.dataset)

    @property
    def carries_momentum(self) -> bool:
        """Whether a client starts with the momentum of the one before it, as in the released code."""
        return self.config.protocol == "authors"

    @property
    def keeps_momentum(self) -> bool:
        """Whether a client goes on with the momentum that it had at the end of its last round."""
        return self.config.train.keep_momentum

    def drawn_clients(self, round: int) -> list[int]:
        """Who takes part, sorted; in the order drawn where momentum passes from one to the next."""
        drawn = [*dict.fromkeys(client for group in self.drawn_groups(round) for client in group)]
        return drawn if self.carries_momentum else sorted(drawn)

    def drawn_groups(self, round: int) -> list[list[int]]:
        """The round's groups of clients: one, unless the method asks for several; they may share clients."""
        config, number = self.config, self.method.needs.groups
        sizes = config.drawable, config.train.clients_per_round
        return [cohort(config.seed, *sizes, number * (round - 1) + group + 1) for group in range(number)]

    def plan(self, round: int, client: int) -> ClientPlan:
        """A client's round: its steps in each group that it was drawn into, or in the first if in none."""
        several = self.drawn_groups(round) if self.method.needs.groups > 1 else []  # of one there is nothing to look up
        mine = [group for group, drawn in enumerate(several) if client in drawn]
        return plan_client(self.sites[client], self.recipe, self.config.seed, round, client, mine or [0])

    def longest_plan(self) -> ClientPlan:
        """The round with the most steps that there can be: of the busiest client, in every group."""
        groups = range(self.method.needs.groups)
        return plan_client(self.sites[self.busiest], self.recipe, self.config.seed, 1, self.busiest, groups)

    def first_server(self) -> Server:
        """What the server holds before the first round."""
        # A copy, even on a CPU: the network keeps its first weights.
        weights = self.experiment.first_weights().weights if self.begins else self.net.first
        first = ({k: t.to(self.device, copy=True) for k, t in tree.items()} for tree in weights)
        return self.method.init(self.net, Weights(*first), self.task)

    @cached_property
    def server_optimizer(self) -> ServerOptimizer:
        return make_server_optimizer(self.config)

    def payload(self, server: Server, optimizer: State, client: int) -> Payload:
        """What goes down to one client: the method's payload, and the momentum that the server broadcasts."""
        return self.with_velocity(self.method.payload(server, client), optimizer)

    def with_velocity(self, payload: Payload, optimizer: State) -> Payload:
        velocity = self.server_optimizer.velocity(optimizer)
        return payload._replace(extras={**payload.extras, **put(BROADCAST, velocity)}) if velocity else payload

    def after_mean(
        self, round: int, old: Server, mean: Server, optimizer: State, steps: Tensor
    ) -> tuple[Server, State]:
        """The server's step towards what the method made of the uploads, whose clients took so many steps each."""
        reach = self.config.train.lr * self.recipe.schedule.typical(round) * steps
        params, kept = self.server_optimizer.step(old.weights.params, mean.weights.params, optimizer, reach)
        return mean._replace(weights=mean.weights._replace(params=params)), kept

    def first_smooth(self, server: Server) -> Weights:
        """The smoothed model before the first round; empty if there is none."""
        return self.method.deploy(server) if self.config.server.ema is not None else Weights({}, {})

    def smoothed(self, round: int, before: Weights, model: Weights) -> Weights:
        """The smoothed model after a round that ended with this model."""
        decay = self.config.server.ema
        return before if decay is None else smooth(before, model, decay, round)

    def new_state(self, payload: Payload, client: int) -> State:
        """What a client starts with, given its first payload."""
        return self.method.client_state(payload, self.task, self.counts(client))

    def counts(self, client: int) -> Counts:
        return self.sites[client].counts

    def num_steps(self, client: int) -> int:
        """A client's steps in a round, in one group of several."""
        return self.recipe.num_steps(self.counts(client))

    def work(self, client: int) -> int:
        """The steps that are expected of a client: none, if it counts nothing in the mean."""
        return self.num_steps(client) if self.method.num_samples(self.counts(client)) else 0

    @property
    def busiest(self) -> int:
        """The client with the most steps, of those whose images are here: a site has nobody else's."""
        return max(self.holders, key=self.num_steps)

    @cached_property
    def layout(self) -> Layout:
        """Where the step's tally keeps which sums: asked of the method's own step."""
        sizes = Sizes(self.task, self.counts(0), self.recipe, self.dataset.card, self.config.train.class_weights > 0)
        return try_step(self.method, self.net, sizes, self.probe).layout

    @property
    def probe(self) -> Probe:
        """What is measured of each step."""
        return make_probe(self.config, self.method)

    @cached_property
    def pool(self) -> Pool:
        """What views are made of."""
        return self.make_pool(enlarge=self.config.data.crop == "resize")

    @cached_property
    def whole_pool(self) -> Pool:
        """The same images as they are, for BatchNorm's statistics."""
        return self.pool if self.config.data.crop == "pad" else self.make_pool(enlarge=False)

    def make_pool(self, enlarge: bool) -> Pool:
        """The training images on the device: as they are, or enlarged once for all crops to come."""
        images, labels = on_device(self.dataset.train, self.device)
        size = images.shape[2]
        images = enlarged(images, room(size)) if enlarge else images
        # Where a client has no labels, unlabeled images fill its labeled batches and count nothing.
        return Pool(images, labels.clamp(min=0), self.norms["train_norm"], size)

    def make_step(self) -> Step:
        """A training step of its own, for one thread."""
        return make_step(self.net.copy(), self.method, self.probe, self.layout, self.pool)

    def make_show(self) -> Show:
        """The half of a step that makes views."""
        return make_show(self.method, self.pool)

    def make_learn(self) -> Learn:
        """The other half of a step, for one thread."""
        return make_learn(self.net.copy(), self.method, self.probe, self.layout)

    def make_look(self) -> Look:
        """What measures the labels of a client that chooses its images."""
        return make_look(self.method, self.probe, self.layout, self.pool)

    def make_visit(self) -> Visit:
        return make_visit(self.net.copy(), self.method, self.pool)

    def make_collect(self, faster: Faster = as_it_is) -> Collect | None:
        """What measures BatchNorm's statistics of a global model on images that the server has, if it is to."""
        static_norm, own = self.config.server.static_norm, self.server_site.labeled
        if static_norm == "all":
            own = np.setdiff1d(np.arange(len(self.dataset.train.labels)), self.held_out)
        if static_norm == "off" or not len(own):  # with `sites` a server may have none
            return None
        measure, rows = make_measure(self.net, self.whole_pool, faster), torch.from_numpy(own).to(self.device)
        return lambda weights: measure(weights, rows)

    def make_client_measure(self, faster: Faster = as_it_is) -> Callable[[Weights, int], NormSums]:
        """What measures a model on all images of one client, in the order of the dataset."""
        measure = make_measure(self.net, self.whole_pool, faster)

        @cache
        def rows(client: int) -> Tensor:
            return torch.from_numpy(np.sort(self.sites[client].pool)).to(self.device)

        return lambda weights, client: measure(weights, rows(client))

    @property
    def holders(self) -> list[int]:
        """The clients whose images are here: all of them, or at a site its own client alone."""
        return [client for client, site in enumerate(self.sites) if len(site.pool)]

    def make_tester(self, compile: bool) -> Tester:
        return self.tester_on(self.test, list(self.norms), compile)

    def tester_on(self, split: Split, norms: Sequence[str], compile: bool = False) -> Tester:
        """A test with these images, under some of the normalizations."""
        pool = TestPool(*on_device(split, self.device))
        score = self.compiled_score if compile else make_score(self.net)
        return make_tester(score, pool, [self.norms[name] for name in norms])

    @cached_property
    def compiled_score(self) -> Score:
        """One for all tests of the run: compiling it takes seconds."""
        return make_score(self.net, compile=True)

    def make_client_testers(self) -> dict[int, Tester]:
        """A test for each client that has test images of its own, under the headline's normalization alone."""
        splits = split_for_clients(self.config, self.dataset)
        return {client: self.tester_on(split, [self.headline]) for client, split in splits.items()}

    def make_validator(self, compile: bool) -> Tester | None:
        """The same with the validation part, under the headline's normalization alone; nothing if there is no part."""
        split = split_to_choose_by(self.config, self.dataset, self.held_out)
        return None if split is None else self.tester_on(split, [self.headline], compile)


def on_device(split: Split, device: torch.device) -> tuple[Tensor, Tensor]:
    """Images and labels as tensors; copied, since a memory map is read-only."""
    return tuple(torch.from_numpy(np.array(a)).to(device) for a in split)  # type: ignore[return-value]
