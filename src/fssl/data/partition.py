"""From labels to index arrays per client: the images of each client, and which of them are labeled."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from ..errors import UserError, several, unknown
from .cards import UNKNOWN
from .shares import HAVE_ALPHA, MIN_ALPHA, Terms, check_label_holders, check_shards, check_shares

Index = NDArray[np.int64]

LABEL_SEED = 7  # the released code picks the labeled images with 7 and deals images to clients with 0
HOLD_OUT_SEED = 11  # another stream than those of the deal
MAX_TRIES = 10_000
LEAST_IMAGES = 10  # images of a client under `balanced-dirichlet`


class Partition(NamedTuple):
    """Rows of the training set per client; `unlabeled` excludes the labeled ones."""

    labeled: tuple[Index, ...]
    unlabeled: tuple[Index, ...]
    server: Index = np.zeros(0, np.int64)  # labeled images of the server, which no client has

    def pool(self, k: int) -> Index:
        """Return the rows of client k's unlabeled loader; its labeled rows come last, as in the released code."""
        return np.concatenate((self.unlabeled[k], self.labeled[k]))


class Mix(NamedTuple):
    """The distribution of classes over clients, and the seed of the draw."""

    alpha: float
    classes_per_client: int
    seed: int
    origins: Index


def make_partition(
    labels: NDArray[np.int64],
    num_classes: int,
    *,
    kind: str,
    alpha: float = 1.0,
    clients: int,
    per_class: int | Sequence[int] | None = None,
    further: Sequence[int] | None = None,
    seed: int = 0,
    who: str | None = None,
    labeled_clients: int | None = None,
    classes_per_client: int | None = None,
    first_clients: Sequence[int] | None = None,
    origins: Index | None = None,
) -> Partition:
    """Deal images to clients, and choose the labeled ones. Seed 0 gives the paper's split.

    Args:
        labels: The class of each training image, -1 if it is unknown. Such images are never labeled, and are dealt
            like the unlabeled images of a further class.
        num_classes: The number of classes.
        kind: The distribution of classes over clients, one of `KINDS`.
        alpha: Dirichlet concentration, for kinds that use one.
        clients: The number of clients.
        per_class: The number of labeled images of each class, one for all or one for each; not for "knowing-clients".
        further: The number of further images of each class; the rest is left out. Default: all.
        seed: The seed of the draw.
        who: The place of labels. "all-clients": each client gets some of the labeled images. "few-clients": the first
            `labeled_clients` get all of them and nothing else. "knowing-clients": all images are dealt to all
            clients, and the first `labeled_clients` know every label of their images. "server": the server has the
            labeled images, and clients get the others.
        labeled_clients: The number of clients with labels; without `who` it implies "few-clients".
        classes_per_client: Shards of a client, for the kind "shards".
        first_clients: Clients of the draw that change places with numbers 0, 1 and so on; for "knowing-clients" only.
        origins: The natural site of each training image, for the kind "natural"; default: one for all.
    """
    who = check_label_holders(who, labeled_clients)
    if kind == "paired-dirichlet" and alpha == 0:
        kind = "iid"  # the meaning in the released code, although its own branch crashes
    _check(kind, alpha, clients, seed)
    num_labeled = 0
    if who == "knowing-clients":
        _, rows = split_labels(labels, num_classes, [0] * num_classes, LABEL_SEED + seed, further)
        num_images = sum(map(len, rows))
    else:
        labeled, unlabeled = split_labels(labels, num_classes, per_class or 0, LABEL_SEED + seed, further)
        num_labeled = sum(map(len, labeled))
        num_images = num_labeled + sum(map(len, unlabeled))
    terms = Terms(kind, who, clients, labeled_clients, classes_per_client, first_clients)
    check_shares(terms, num_labeled, num_images)
    check_shards(terms, num_classes + bool((labels == UNKNOWN).any()))
    origins = np.zeros(len(labels), np.int64) if origins is None else origins
    deal, mix, knowing = DEALS[kind], Mix(alpha, classes_per_client or 0, seed, origins), labeled_clients or 0
    if who == "all-clients":
        return deal(labeled, unlabeled, clients, mix)
    if who == "knowing-clients":
        dealt = deal([part[:0] for part in rows], rows, clients, mix).unlabeled
        return _known_at(_with_first(dealt, first_clients or ()), knowing, labels)
    nothing = [rows[:0] for rows in labeled]
    if who == "server":
        return deal(nothing, unlabeled, clients, mix)._replace(server=np.concatenate(labeled))
    first = deal(labeled, nothing, knowing, mix)
    others = deal(nothing, unlabeled, clients - knowing, mix)
    return Partition(first.labeled + others.labeled, first.unlabeled + others.unlabeled)


def _with_first(parts: Sequence[Index], first: Sequence[int]) -> list[Index]:
    """Return the parts of clients, with some clients moved to the first places."""
    order = list(range(len(parts)))
    for place, client in enumerate(first):
        other = order.index(client)
        order[place], order[other] = order[other], order[place]
    return [parts[client] for client in order]


def _known_at(parts: Sequence[Index], knowing: int, labels: Index) -> Partition:
    """Return a partition in which the first clients know all labels of their images, and the others none."""
    is_known = [(labels[rows] != UNKNOWN) & (k < knowing) for k, rows in enumerate(parts)]
    return Partition(
        tuple(rows[known] for rows, known in zip(parts, is_known, strict=True)),
        tuple(rows[~known] for rows, known in zip(parts, is_known, strict=True)),
    )


def shuffle_classes(labels: NDArray[np.int64], num_classes: int, seed: int = LABEL_SEED) -> list[Index]:
    """Return the rows of each class in random order, then those of unknown class if there are any."""
    if len(labels) and not (labels.min() >= UNKNOWN and labels.max() < num_classes):
        raise UserError(f"labels are from {labels.min()} to {labels.max()}, expected 0 to {num_classes - 1}")
    random = RandomState(seed)
    order = [random.permutation(np.flatnonzero(labels == c)) for c in range(num_classes)]
    unknown_rows = np.flatnonzero(labels == UNKNOWN)
    return [*order, random.permutation(unknown_rows)] if len(unknown_rows) else order


def split_labels(
    labels: NDArray[np.int64],
    num_classes: int,
    per_class: int | Sequence[int],
    seed: int = LABEL_SEED,
    further: Sequence[int] | None = None,
) -> tuple[list[Index], list[Index]]:
    """Return rows of each class in random order, cut into labeled ones, and the next `further` or all others.

    If the class of some images is unknown, both lists end with these: with none labeled and all unlabeled.
    """
    order = shuffle_classes(labels, num_classes, seed)
    order, without_label = order[:num_classes], order[num_classes:]
    counts = [len(rows) for rows in order]
    if isinstance(per_class, int):
        check_per_class(per_class, counts)
        per_class = [per_class] * num_classes
    ends = counts if further is None else [n + m for n, m in zip(per_class, further, strict=True)]
    for c, (first, end) in enumerate(zip(per_class, ends, strict=True)):
        if max(first, end) > counts[c]:
            rest = f" and {end - first} more" if further is not None else ""
            raise UserError(f"class {c} has {counts[c]} images, too few for {first} labeled{rest}; use fewer images")
    cuts = list(zip(order, per_class, ends, strict=True))
    labeled, unlabeled = [rows[:n] for rows, n, _ in cuts], [rows[n:end] for rows, n, end in cuts]
    return labeled + [rows[:0] for rows in without_label], unlabeled + without_label


def check_per_class(number: int, counts: Sequence[int]) -> None:
    """Refuse as many labels of each class as some class has not."""
    rarest = int(np.argmin(counts))
    if counts[rarest] == 0:
        raise UserError(f"class {rarest} has no images, so none of it can be labeled")
    if not 1 <= number <= counts[rarest]:
        raise UserError(
            f"{number} labeled images per class, expected 1 to {counts[rarest]}:"
            f" class {rarest} has {counts[rarest]} images"
        )


def hold_out(
    partition: Partition,
    labels: NDArray[np.int64],
    share: float,
    seed: int = 0,
    groups: NDArray[np.int64] | None = None,
) -> tuple[Partition, Index]:
    """Take a share of each class's labeled images from clients and server; return the rest, and the rows taken.

    Of a class with two labels or more, at least one is taken. No client loses its last labeled image. Groups stay
    intact, so more of a class may be taken; the unlabeled images of a taken group belong to neither part.

    Args:
        partition: The images of clients and server.
        labels: The class of each training image.
        share: Of the labeled images of each class, over all clients.
        seed: The seed of the draw, as of the partition.
        groups: A number for each training image, the same for images of one patient, say; default: no groups.
    """
    groups = np.arange(len(labels)) if groups is None else groups
    holders = (*partition.labeled, partition.server)
    rows, left = np.concatenate(holders), Counter({k: len(own) for k, own in enumerate(holders)})
    holder = np.repeat(np.arange(len(holders)), [len(own) for own in holders])
    classes, counts = np.unique(labels[rows], return_counts=True)
    wanted = {c: max(1, int(share * n + 0.5)) if n > 1 else 0 for c, n in zip(classes, counts, strict=True)}
    together, taken = members(groups[rows].tolist()), []
    for g in RandomState(HOLD_OUT_SEED + seed).permutation(len(together)):
        mine, lost = together[g], Counter(holder[together[g]].tolist())
        if any(wanted[c] > 0 for c in labels[rows[mine]]) and all(left[k] > n for k, n in lost.items()):
            taken += mine
            left -= lost
            for c in labels[rows[mine]]:
                wanted[c] -= 1
    held = np.sort(rows[taken])
    is_held = np.isin(groups, groups[held])
    labeled, unlabeled = (
        tuple(own[~is_held[own]] for own in part) for part in (partition.labeled, partition.unlabeled)
    )
    return Partition(labeled, unlabeled, partition.server[~is_held[partition.server]]), held


def second_half(labels: NDArray[np.int64], groups: NDArray[np.int64] | None = None) -> NDArray[np.bool_]:
    """Return whether an image is in the second of two halves; each class is halved, and groups stay intact.

    Groups are placed one after another, the largest first, into the half that makes their classes more even, or into
    the first one if both do. So without groups every other image of a class is in the second half.

    Args:
        labels: The class of each image.
        groups: A number for each image, the same for images of one patient, say; default: no groups.
    """
    classes, ahead = labels.tolist(), Counter[int]()  # of each class: the surplus of images in the first half
    is_second = np.zeros(len(labels), bool)
    for rows in sorted(members(range(len(labels)) if groups is None else groups.tolist()), key=len, reverse=True):
        own = Counter(classes[i] for i in rows)
        first, second = (sum(abs(ahead[c] + sign * n) for c, n in own.items()) for sign in (1, -1))
        is_second[rows] = second < first
        (ahead.subtract if second < first else ahead.update)(own)
    return is_second


def members(groups: Iterable[int]) -> list[list[int]]:
    """Return the places of each group's images, groups in order of first appearance."""
    places: dict[int, list[int]] = {}
    for i, group in enumerate(groups):
        places.setdefault(group, []).append(i)
    return list(places.values())


def class_counts(parts: Sequence[Index], labels: NDArray[np.int64], num_classes: int) -> NDArray[np.int64]:
    """Return the number of each client's images of each known class, [K, C]."""
    parts = [rows[labels[rows] != UNKNOWN] for rows in parts]
    client = np.repeat(np.arange(len(parts)), [len(rows) for rows in parts])
    place = client * num_classes + labels[np.concatenate(parts)]
    return np.bincount(place, minlength=len(parts) * num_classes).reshape(-1, num_classes).astype(np.int64)


def _paired(labeled: list[Index], unlabeled: list[Index], clients: int, mix: Mix) -> Partition:
    """Split as in the released code: Dirichlet only within pairs of clients, every pair a random sample.

    With an odd number of clients, the last one's images are such a sample, up to the equal cut. Labeled and unlabeled
    images start from the same seed; their class mixes still differ because the first shuffle takes a different number
    of draws.
    """
    return Partition(
        _pairwise(labeled, clients, mix.alpha, RandomState(mix.seed)),
        _pairwise(unlabeled, clients, mix.alpha, RandomState(mix.seed)),
    )


def _pairwise(rows: list[Index], clients: int, alpha: float, random: RandomState) -> tuple[Index, ...]:
    flat, classes = np.concatenate(rows), np.repeat(np.arange(len(rows)), [len(r) for r in rows])
    # Permuting positions takes the same draws as the released code's shuffle of a list of pairs.
    order = random.permutation(len(flat))
    step = int(2 / clients * len(flat))  # as released: in floats, which may be one too small
    blocks = np.split(order, [step * b for b in range(1, math.ceil(clients / 2))])
    alone = [blocks.pop()] if clients % 2 else []  # with an odd number the last client has its own block
    dealt = [part for block in blocks for part in _pair(block, classes[block], len(rows), alpha, random)]
    dealt += [block[np.argsort(classes[block], kind="stable")] for block in alone]
    # Cutting again into equal pieces moves the tail of the larger half to its neighbor.
    return tuple(np.array_split(flat[np.concatenate(dealt)], clients))


def _pair(block: Index, classes: Index, num_classes: int, alpha: float, random: RandomState) -> list[Index]:
    """Deal one block to two clients, repeatedly until both hold a quarter of it."""
    by_class = [block[classes == c] for c in range(num_classes)]
    shares = partial(random.dirichlet, (alpha, alpha))
    return _until_each_has(len(block) // 4, lambda: deal_balanced(by_class, len(block) / 2, shares))


def _until_each_has(least: int, deal: Callable[[], list[Index]]) -> list[Index]:
    """Deal repeatedly until every client holds `least` images."""
    for _ in range(MAX_TRIES):
        parts = deal()
        if min(map(len, parts)) >= least:
            return parts
    raise UserError(
        f"no split of {sum(map(len, parts))} images over {len(parts)} clients gave each at least {least} in"
        f" {MAX_TRIES} tries; use a larger alpha or fewer clients"
    )


def deal_balanced(by_class: Iterable[Index], even: float, draw: Callable[[], NDArray[np.float64]]) -> list[Index]:
    """Cut each class over the clients by a draw of shares; a client with an even part of all images gets no more.

    The other shares are scaled up. If all of them are 0, as near the smallest alpha, the class is cut evenly.
    """
    pieces: list[list[Index]] = []
    sizes: Index = np.zeros(1, np.int64)
    for rows in by_class:
        share = draw() * (sizes < even)
        total = share.sum()
        share = share / total if total > 0 else np.full(len(share), 1 / len(share))
        pieces.append(np.split(rows, (share.cumsum()[:-1] * len(rows)).astype(np.int64)))
        sizes = sizes + np.array([len(piece) for piece in pieces[-1]])
    return [np.concatenate(parts) for parts in zip(*pieces, strict=True)]


def _balanced(labeled: list[Index], unlabeled: list[Index], clients: int, mix: Mix) -> Partition:
    """Split as in SemiFL and RSCFed: a Dirichlet draw over all clients that gives every client a minimum.

    Labeled and unlabeled images are cut by separate draws. If there are few images, a client has at least a quarter of
    an even part. One stream shuffles a class and draws its shares, class after class, so its seed gives RSCFed's split.
    """
    random = RandomState(mix.seed)
    shares = partial(random.dirichlet, np.full(clients, mix.alpha))

    def spread(rows: list[Index]) -> list[Index]:
        images = sum(map(len, rows))
        if not images:
            return [rows[0]] * clients
        in_order = [np.sort(members) for members in rows]
        least, even = min(LEAST_IMAGES, images // (4 * clients)), images / clients
        return _until_each_has(least, lambda: deal_balanced(map(random.permutation, in_order), even, shares))

    return _feed(spread(labeled), spread(unlabeled))


def _shards(labeled: list[Index], unlabeled: list[Index], clients: int, mix: Mix) -> Partition:
    """Cut every class into equally many shards and deal these at random, the same number to each client.

    A client's labeled images have the same classes as its unlabeled ones.
    """
    per_class = mix.classes_per_client * clients // len(labeled)
    order = RandomState(mix.seed).permutation(len(labeled) * per_class).reshape(clients, -1)

    def spread(rows: list[Index]) -> list[Index]:
        shards = [shard for members in rows for shard in np.array_split(members, per_class)]
        return [np.concatenate([shards[s] for s in own]) for own in order]

    return _feed(spread(labeled), spread(unlabeled))


def _dirichlet(labeled: list[Index], unlabeled: list[Index], clients: int, mix: Mix) -> Partition:
    """Split as usual in the literature: each class is cut over all clients by one Dirichlet draw.

    Labeled and unlabeled images are cut by separate draws. A client may get no labeled image. A client without any
    image gets one from the client with the most.
    """
    random = RandomState(mix.seed)
    return _feed(_spread(labeled, clients, mix.alpha, random), _spread(unlabeled, clients, mix.alpha, random))


def _spread(rows: list[Index], clients: int, alpha: float, random: RandomState) -> list[Index]:
    pieces: list[list[Index]] = []
    for members in rows:
        shares = random.dirichlet(np.full(clients, alpha)).cumsum()
        pieces.append(np.split(members, (shares[:-1] * len(members)).astype(np.int64)))
    return [np.concatenate(parts) for parts in zip(*pieces, strict=True)]


def _feed(labeled: list[Index], unlabeled: list[Index]) -> Partition:
    sizes = [len(x) + len(u) for x, u in zip(labeled, unlabeled, strict=True)]
    largest = [(-size, k) for k, size in enumerate(sizes) if size]  # of equal sizes the first one comes first
    heapify(largest)
    for k in [k for k, size in enumerate(sizes) if size == 0]:
        size, donor = heappop(largest)
        parts = unlabeled if len(unlabeled[donor]) else labeled
        parts[k], parts[donor] = parts[donor][-1:], parts[donor][:-1]
        heappush(largest, (size + 1, donor))
        heappush(largest, (-1, k))
    return Partition(tuple(labeled), tuple(unlabeled))


def _natural(labeled: list[Index], unlabeled: list[Index], clients: int, mix: Mix) -> Partition:
    """Give each client images of one origin. Clients of the same origin share its images evenly, class after class."""
    origins, number = mix.origins, int(mix.origins.max()) + 1
    if clients < number:
        found = f"{several(clients, 'client')} cannot be divided among {several(number, 'natural site')}"
        raise UserError(f"partition.kind = 'natural': {found}")

    def spread(rows: list[Index]) -> list[Index]:
        flat = np.concatenate(rows)
        parts = [flat[:0]] * clients
        for origin in range(number):
            own, holders = flat[origins[flat] == origin], range(origin, clients, number)
            for place, k in enumerate(holders):
                parts[k] = own[place :: len(holders)]
        return parts

    return _feed(spread(labeled), spread(unlabeled))


def _iid(labeled: list[Index], unlabeled: list[Index], clients: int, mix: Mix) -> Partition:
    """Deal like cards, class after class: class counts and sizes differ by at most one between clients."""
    x, u = np.concatenate(labeled), np.concatenate(unlabeled)
    first = len(x) % clients  # continue after the labeled images, so that whole pools are even too
    return Partition(
        tuple(x[k::clients] for k in range(clients)),
        tuple(u[(k - first) % clients :: clients] for k in range(clients)),
    )


Deal = Callable[[list[Index], list[Index], int, Mix], Partition]
DEALS: dict[str, Deal] = {
    "paired-dirichlet": _paired,
    "dirichlet": _dirichlet,
    "balanced-dirichlet": _balanced,
    "shards": _shards,
    "iid": _iid,
    "natural": _natural,
}


def _check(kind: str, alpha: float, clients: int, seed: int) -> None:
    if kind not in DEALS:
        raise unknown("partition kind", kind, DEALS)
    if clients < 1:
        raise UserError(f"clients = {clients}, expected at least 1")
    if not 0 <= seed < 2**32 - LABEL_SEED:
        raise UserError(f"partition seed = {seed}, expected 0 to {2**32 - LABEL_SEED - 1}")
    lowest = MIN_ALPHA if kind in HAVE_ALPHA else 0
    if not (lowest <= alpha and math.isfinite(alpha)):
        raise UserError(f"alpha = {alpha}, expected at least {lowest} (for an even split use kind 'iid')")
