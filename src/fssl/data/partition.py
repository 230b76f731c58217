"""Labels in, index arrays per client out: which images each client holds, and which it knows the label of."""

import math
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from ..errors import UserError, unknown
from .shares import MIN_ALPHA, check_shares

Index = NDArray[np.int64]

LABEL_SEED = 7  # the released code picks the labeled images with 7 and deals images to clients with 0
MAX_TRIES = 10_000


class Partition(NamedTuple):
    """Rows of the training set per client; `unlabeled` does not contain the labeled ones."""

    labeled: tuple[Index, ...]
    unlabeled: tuple[Index, ...]

    def pool(self, k: int) -> Index:
        """Rows of client k's unlabeled loader; its labeled rows come last, as in the released code."""
        return np.concatenate((self.unlabeled[k], self.labeled[k]))


def make_partition(
    labels: NDArray[np.int64],
    num_classes: int,
    *,
    kind: str,
    alpha: float,
    clients: int,
    per_class: int,
    seed: int = 0,
    labeled_clients: int | None = None,
) -> Partition:
    """Pick `per_class` labeled images of each class and deal both kinds to clients. Seed 0 is the paper's.

    The first `labeled_clients` clients, if given, get the labeled images and the others the unlabeled ones.
    """
    if kind == "paired-dirichlet" and alpha == 0:
        kind = "iid"  # what the released code means by it, although its own branch crashes
    _check(kind, alpha, clients, seed)
    labeled, unlabeled = split_labels(labels, num_classes, per_class, LABEL_SEED + seed)
    check_shares(kind, clients, labeled_clients, per_class * num_classes, len(labels))
    deal = KINDS[kind]
    if labeled_clients is None:
        return deal(labeled, unlabeled, clients, alpha, seed)
    nothing = [rows[:0] for rows in labeled]
    knowing = deal(labeled, nothing, labeled_clients, alpha, seed)
    others = deal(nothing, unlabeled, clients - labeled_clients, alpha, seed)
    return Partition(knowing.labeled + others.labeled, knowing.unlabeled + others.unlabeled)


def split_labels(
    labels: NDArray[np.int64], num_classes: int, per_class: int, seed: int = LABEL_SEED
) -> tuple[list[Index], list[Index]]:
    """Rows of each class in random order, cut into the first `per_class` (labeled) and the rest."""
    if len(labels) and not (labels.min() >= 0 and labels.max() < num_classes):
        raise UserError(f"labels run from {labels.min()} to {labels.max()}, expected 0 to {num_classes - 1}")
    counts = np.bincount(labels, minlength=num_classes)
    rarest = int(counts.argmin())
    if not 1 <= per_class <= counts[rarest]:
        raise UserError(
            f"{per_class} labeled images per class, expected 1 to {counts[rarest]}:"
            f" class {rarest} has {counts[rarest]} images"
        )
    random = RandomState(seed)
    order = [random.permutation(np.flatnonzero(labels == c)) for c in range(num_classes)]
    return [rows[:per_class] for rows in order], [rows[per_class:] for rows in order]


def class_counts(parts: Sequence[Index], labels: NDArray[np.int64], num_classes: int) -> NDArray[np.int64]:
    """How many images of each class each client holds, [K, C]."""
    client = np.repeat(np.arange(len(parts)), [len(rows) for rows in parts])
    place = client * num_classes + labels[np.concatenate(parts)]
    return np.bincount(place, minlength=len(parts) * num_classes).reshape(-1, num_classes).astype(np.int64)


def _paired(labeled: list[Index], unlabeled: list[Index], clients: int, alpha: float, seed: int) -> Partition:
    """The released code's split: Dirichlet only inside pairs of clients, every pair a random sample.

    Of an odd number of clients the last one's images are such a sample by themselves, up to the equal cut.
    Labeled and unlabeled images start from the same seed; their class mixes still differ because the
    first shuffle takes a different number of draws.
    """
    return Partition(
        _pairwise(labeled, clients, alpha, RandomState(seed)),
        _pairwise(unlabeled, clients, alpha, RandomState(seed)),
    )


def _pairwise(rows: list[Index], clients: int, alpha: float, random: RandomState) -> tuple[Index, ...]:
    flat, classes = np.concatenate(rows), np.repeat(np.arange(len(rows)), [len(r) for r in rows])
    # Permuting positions takes the same draws as the released code's shuffle of a list of pairs.
    order = random.permutation(len(flat))
    step = int(2 / clients * len(flat))  # as released: in floats, which may fall one short
    blocks = np.split(order, [step * b for b in range(1, math.ceil(clients / 2))])
    alone = [blocks.pop()] if clients % 2 else []  # of an odd number the last client has a block for itself
    dealt = [part for block in blocks for part in _pair(block, classes[block], len(rows), alpha, random)]
    dealt += [block[np.argsort(classes[block], kind="stable")] for block in alone]
    # Cutting again into equal pieces hands the tail of the larger half to its neighbor.
    return tuple(np.array_split(flat[np.concatenate(dealt)], clients))


def _pair(block: Index, classes: Index, num_classes: int, alpha: float, random: RandomState) -> list[Index]:
    """Deal one block to two clients, again and again until both hold a quarter of it."""
    by_class = [block[classes == c] for c in range(num_classes)]
    for _ in range(MAX_TRIES):
        halves: list[list[Index]] = [[], []]
        sizes = np.zeros(2, np.int64)
        for rows in by_class:
            share = random.dirichlet((alpha, alpha)) * (sizes < len(block) / 2)
            total = share.sum()
            share = share / total if total > 0 else np.full(2, 0.5)
            cut = int(share[0] * len(rows))
            halves[0].append(rows[:cut])
            halves[1].append(rows[cut:])
            sizes += (cut, len(rows) - cut)
        if sizes.min() >= len(block) // 4:
            return [np.concatenate(half) for half in halves]
    raise UserError(
        f"no split of {len(block)} images over two clients was even enough in {MAX_TRIES} tries"
        f" at alpha = {alpha}; use a larger alpha"
    )


def _dirichlet(labeled: list[Index], unlabeled: list[Index], clients: int, alpha: float, seed: int) -> Partition:
    """The usual split of the literature: each class is cut over all clients by one Dirichlet draw.

    Labeled and unlabeled images are cut by separate draws. A client may get no labeled image. A client
    left with nothing at all gets one image from the client that holds the most.
    """
    random = RandomState(seed)
    return _feed(_spread(labeled, clients, alpha, random), _spread(unlabeled, clients, alpha, random))


def _spread(rows: list[Index], clients: int, alpha: float, random: RandomState) -> list[Index]:
    pieces: list[list[Index]] = []
    for members in rows:
        shares = random.dirichlet(np.full(clients, alpha)).cumsum()
        pieces.append(np.split(members, (shares[:-1] * len(members)).astype(np.int64)))
    return [np.concatenate(parts) for parts in zip(*pieces, strict=True)]


def _feed(labeled: list[Index], unlabeled: list[Index]) -> Partition:
    sizes = [len(x) + len(u) for x, u in zip(labeled, unlabeled, strict=True)]
    largest = [(-size, k) for k, size in enumerate(sizes) if size]  # the first of several of one size comes first
    heapify(largest)
    for k in [k for k, size in enumerate(sizes) if size == 0]:
        size, donor = heappop(largest)
        parts = unlabeled if len(unlabeled[donor]) else labeled
        parts[k], parts[donor] = parts[donor][-1:], parts[donor][:-1]
        heappush(largest, (size + 1, donor))
        heappush(largest, (-1, k))
    return Partition(tuple(labeled), tuple(unlabeled))


def _iid(labeled: list[Index], unlabeled: list[Index], clients: int, alpha: float, seed: int) -> Partition:
    """Deal like cards, class after class: class counts and sizes differ by at most one between clients."""
    x, u = np.concatenate(labeled), np.concatenate(unlabeled)
    first = len(x) % clients  # go on where the labeled images stopped, so that whole pools are even too
    return Partition(
        tuple(x[k::clients] for k in range(clients)),
        tuple(u[(k - first) % clients :: clients] for k in range(clients)),
    )


Deal = Callable[[list[Index], list[Index], int, float, int], Partition]
KINDS: dict[str, Deal] = {"paired-dirichlet": _paired, "dirichlet": _dirichlet, "iid": _iid}


def _check(kind: str, alpha: float, clients: int, seed: int) -> None:
    if kind not in KINDS:
        raise unknown("partition kind", kind, KINDS)
    if clients < 1:
        raise UserError(f"clients = {clients}, expected at least 1")
    if not 0 <= seed < 2**32 - LABEL_SEED:
        raise UserError(f"partition seed = {seed}, expected 0 to {2**32 - LABEL_SEED - 1}")
    lowest = 0 if kind == "iid" else MIN_ALPHA
    if not (lowest <= alpha and math.isfinite(alpha)):
        raise UserError(f"alpha = {alpha}, expected at least {lowest} (for an even split use kind 'iid')")
