"""The training images of each client, and notes on their consequences."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import Config
from ..data.partition import Index, class_counts
from ..data.sources import Dataset
from ..errors import several
from ..methods.base import Needs
from ..probes.groups import class_groups
from ..probes.host import Groups
from ..training.plan import Site, adjusted, balanced, make_sites, server_site, weighed
from .images import Division

RARE = 0.01  # rounds without labels that need no note
SHOWN_CLASSES = 10  # names listed of classes without labels


@dataclass(frozen=True)
class Holdings:
    """The training images of clients and server.

    The counts are images by class, [clients, classes]; None if this process cannot know them.
    """

    sites: list[Site]  # of the clients
    server: Site
    held_out: Index  # the validation part, which is not used for training
    labeled: NDArray[np.int64] | None
    unlabeled: NDArray[np.int64] | None  # by their true classes
    at_server: NDArray[np.int64] | None  # [classes], of a server with labels
    groups: Groups  # of classes with many or few labels, where the settings ask for a long tail

    def facts(self) -> dict[str, Any]:
        """Return the counts as a run records them."""
        known = {"labeled": self.labeled, "unlabeled": self.unlabeled}
        known |= {} if self.at_server is None else {"server": self.at_server}
        return {name: None if table is None else table.tolist() for name, table in known.items()}


def make_holdings(config: Config, dataset: Dataset, division: Division, needs: Needs) -> Holdings:
    """Return the holdings, given the division of the images and the method's knowledge of labels."""
    partition, held_out = division
    labels, classes = dataset.train.labels, dataset.card.num_classes
    sites = [*make_sites(partition, needs.labels), server_site(partition)]
    sites = balanced(sites, labels, config.train.class_balance)
    sites = weighed(sites, labels, classes, config.train.class_weights)
    *sites, server = adjusted(sites, labels, classes, config.train.logit_adjustment, config.train.prior)
    known = class_counts([*partition.labeled, partition.server], labels, classes)
    return Holdings(
        sites,
        server,
        held_out,
        None if dataset.at_sites else known[:-1],
        class_counts(partition.unlabeled, labels, classes) if dataset.card.knows_truth else None,
        known[-1] if len(partition.server) else None,
        class_groups(known.sum(0)) if config.has_tail else {},
    )


def training_notes(config: Config, dataset: Dataset, holdings: Holdings, needs: Needs) -> Iterator[str]:
    """Yield notes on the training that a user may not expect."""
    yield from dataset.notes
    if needs.burn_in >= config.rounds:
        rounds = several(config.rounds, "round")
        yield f"method.burn_in = {needs.burn_in}: the run ends after {rounds}, within the first stage"
    if holdings.labeled is None or needs.labels == "all":
        return
    known = holdings.labeled.sum(0) + (0 if holdings.at_server is None else holdings.at_server)
    if names := [name for name, number in zip(dataset.card.class_names, known, strict=True) if not number]:
        shown = ", ".join(names[:SHOWN_CLASSES]) + (", ..." if len(names) > SHOWN_CLASSES else "")
        yield f"{len(names)} of {len(known)} classes have no labeled image and cannot be learned: {shown}"
    labeled, clients = sum(site.counts.labeled > 0 for site in holdings.sites), config.drawable
    drawn = config.train.clients_per_round
    share = prod(max(0, clients - labeled - i) / (clients - i) for i in range(drawn))  # of all draws
    if labeled > 0 and needs.groups == 1 and share >= RARE:
        text = f"{labeled} of {clients} clients have labels, and {drawn} are drawn"
        yield f"{text}: {share:.0%} of all rounds draw no labeled client"
    if config.has_server_labels and not config.server_epochs:
        yield "server.epochs = 0: no training uses the labels, which are at the server"
