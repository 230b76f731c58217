"""Check that a partition is possible: images for every client, and a skew that can be drawn. Without NumPy."""

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import UserError, several, unknown

MIN_ALPHA = 0.01  # below, both of two gamma draws underflow to 0 often enough to matter (24 % at 0.001)
HAVE_ALPHA = ("paired-dirichlet", "dirichlet", "balanced-dirichlet")
MAY_LACK_LABELS = (
    "dirichlet",
    "balanced-dirichlet",
    "shards",
    "natural",
)  # in which clients of "all-clients" may have none
WHO = ("all-clients", "few-clients", "knowing-clients", "server")
SOME = ("few-clients", "knowing-clients")  # labels are at a given number of clients


class Terms(NamedTuple):
    """The terms on which images are dealt, as far as they can be checked before a draw."""

    kind: str
    who: str  # the place of labels, of WHO
    clients: int
    labeled_clients: int | None = None
    classes_per_client: int | None = None
    first_clients: Sequence[int] | None = None


def implied_labels(who: str | None, labeled_clients: int | None) -> str:
    """Return the place of labels; a number of labeled clients implies "few-clients"."""
    return who or (WHO[0] if labeled_clients is None else "few-clients")


def check_label_holders(who: str | None, labeled_clients: int | None) -> str:
    """Return the place of labels, checked for callers in Python; rules check it in a configuration."""
    who = implied_labels(who, labeled_clients)
    if who not in WHO:
        raise unknown("partition.labels", who, WHO)
    if who not in SOME and labeled_clients is not None:
        raise UserError(
            f"partition.labeled_clients = {labeled_clients} has no effect with partition.labels = '{who}';"
            " remove it, or use 'few-clients' or 'knowing-clients'"
        )
    if who in SOME and labeled_clients is None:
        raise UserError(f"partition.labels = '{who}' needs partition.labeled_clients: their number")
    return who


def check_shares(terms: Terms, num_labeled: int, num_images: int) -> None:
    """Check that every client gets an image."""
    kind, who, clients, knowing = terms.kind, terms.who, terms.clients, terms.labeled_clients or 0
    most, fewer = (clients, "at most") if who == "knowing-clients" else (clients - 1, "fewer than")
    if knowing > most:
        raise UserError(f"partition.labeled_clients = {knowing}: expected {fewer} the {several(clients, 'client')}")
    check_first(terms)
    by_image = who == "knowing-clients" or kind in MAY_LACK_LABELS
    groups = [("partition.clients", clients, *((num_images, "") if by_image else (num_labeled, "labeled ")))]
    if who == "few-clients":
        groups = [
            ("partition.labeled_clients", knowing, num_labeled, "labeled "),
            ("clients without labels", clients - knowing, num_images - num_labeled, "unlabeled "),
        ]
    if who == "server":
        groups = [("partition.clients", clients, num_images - num_labeled, "unlabeled ")]
    for name, number, images, sort in groups:
        if number > images:
            raise UserError(
                f"{name} = {number}: {images} {sort}images are too few for one per client;"
                " use fewer clients or another number of labels"
            )


def check_first(terms: Terms) -> None:
    """Check that the first clients exist, and that the choice has an effect."""
    if terms.first_clients is None:
        return
    start = f"partition.first_clients = {list(terms.first_clients)}"
    if terms.who != "knowing-clients":
        raise UserError(f"{start} has no effect with partition.labels = '{terms.who}'; remove it")
    if not {*terms.first_clients} <= {*range(terms.clients)}:
        raise UserError(f"{start}: expected clients from 0 to {terms.clients - 1}")
    if len({*terms.first_clients}) < len(terms.first_clients):
        raise UserError(f"{start}: expected each client once")


def check_shards(terms: Terms, num_classes: int) -> None:
    """Check that shards are even: equally many of each class, and for each client."""
    own, few = terms.classes_per_client, terms.labeled_clients or 0
    if terms.kind != "shards":
        if own is not None:
            raise UserError(
                f"partition.classes_per_client = {own} has no effect with partition.kind = '{terms.kind}'; remove it"
            )
        return
    if own is None:
        raise UserError("partition.kind = 'shards' needs partition.classes_per_client, such as 2")
    groups = {"": terms.clients}
    if terms.who == "few-clients":  # images are dealt to both groups separately
        groups = {" with labels": few, " without labels": terms.clients - few}
    for which, number in groups.items():
        if own * number % num_classes:
            raise UserError(
                f"partition.classes_per_client = {own}: {several(number, 'client')}{which} would get"
                f" {several(own * number, 'shard')}; expected a multiple of the {num_classes} classes"
            )
