"""Partitions against the published protocol's golden values, and the promises of the other kinds."""

import hashlib
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fssl.config import expand, override, read_toml
from fssl.config.toml import PRESETS
from fssl.data import partition
from fssl.data.cards import CARDS
from fssl.data.partition import DEALS, Partition, class_counts, hold_out, make_partition, second_half, split_labels
from fssl.errors import UserError
from fssl.paper.published import other_tables

CLASS_COUNTS = {
    "cifar10": [5000] * 10,
    "cifar100": [500] * 100,
    "svhn": [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659],
    "cinic10": [9000] * 10,
    "fmnist": [6000] * 10,
}

# SHA-256, first 16 digits, of the 20 x C count matrices: dataset, percent, alpha, labeled, unlabeled.
GOLDEN = [
    ("cifar10", 10, 0.1, "8b38512c30e30ef7", "28ef07339a02f9e7"),
    ("cifar10", 10, 0.5, "aa7b9ce50f9121ee", "2db4b2b38200717f"),
    ("cifar10", 10, 1.0, "ad5601d6f4bac610", "3bb765d02e905073"),
    ("cifar10", 20, 0.1, "aef1d883f2b14b93", "e29e342695fed0cb"),
    ("cifar10", 20, 0.5, "0d73ffac36ea733d", "bddff52d58acbcd3"),
    ("cifar10", 20, 1.0, "6d31951d1437273c", "c0a16f6b252abf53"),
    ("cifar100", 10, 0.1, "18ad38fcf90e8a20", "536a33520ed0a20d"),
    ("cifar100", 10, 0.5, "737dc7bf105ad7e5", "37147f86e864474c"),
    ("cifar100", 10, 1.0, "9d1840863ec2e211", "1e98b97ce145a81b"),
    ("cifar100", 20, 0.1, "0984549c3857352d", "31db2edef3f60f42"),
    ("cifar100", 20, 0.5, "f93d4193ce5e494a", "c1af8d43a4e81c93"),
    ("cifar100", 20, 1.0, "3dc5f5f3964c4ff1", "e512aab8350a6d8d"),
    ("svhn", 10, 0.1, "4de1eb712445621d", "d923a37097bd98ac"),
    ("svhn", 10, 0.5, "4d8e3f73b345c8e0", "06b86d5ba44a1927"),
    ("svhn", 10, 1.0, "ed81811e7dee3dd6", "f27b9e8d6c931a87"),
    ("svhn", 20, 0.1, "510d65c926b9cd08", "460b09a913ccec1f"),
    ("svhn", 20, 0.5, "ce8bd08a59f60868", "1fd2ce4430a9e69a"),
    ("svhn", 20, 1.0, "cf045b9ff80454bb", "4b9858d0f942ce7d"),
    ("cinic10", 10, 0.1, "bdf12bd583387266", "f683521f688939a8"),
    ("cinic10", 10, 0.5, "3d5ec7c0d9515f9e", "d848d20db6092b5f"),
    ("cinic10", 10, 1.0, "a58c5910f230f407", "451d3a90fdadce85"),
    ("cinic10", 20, 0.1, "5518a12a017911c8", "513b6546736f4f4f"),
    ("cinic10", 20, 0.5, "016994b762ee8d3c", "6434a080078f9f53"),
    ("cinic10", 20, 1.0, "2b5b6c52ba5073cd", "383b9e840dca501b"),
]


def labels_of(counts: list[int]) -> NDArray[np.int64]:
    return np.repeat(np.arange(len(counts)), counts)


def paper_split(name: str, percent: int, alpha: float, seed: int = 0) -> tuple[Partition, NDArray[np.int64]]:
    labels = labels_of(CLASS_COUNTS[name])
    per_class = CARDS[name].per_class_base * percent // 100
    num_classes = CARDS[name].num_classes
    return make_partition(
        labels,
        num_classes,
        kind="paired-dirichlet",
        alpha=alpha,
        clients=20,
        per_class=per_class,
        seed=seed,
    ), labels


def checksum(counts: NDArray[np.int64]) -> str:
    return hashlib.sha256(counts.astype("<i8").tobytes()).hexdigest()[:16]


def rows_of(parts: Partition) -> NDArray[np.int64]:
    return np.sort(np.concatenate([parts.pool(k) for k in range(len(parts.labeled))]))


@pytest.mark.parametrize(("name", "percent", "alpha", "labeled", "unlabeled"), GOLDEN)
def test_golden_class_counts(name: str, percent: int, alpha: float, labeled: str, unlabeled: str) -> None:
    parts, labels = paper_split(name, percent, alpha)
    num_classes = CARDS[name].num_classes
    assert checksum(class_counts(parts.labeled, labels, num_classes)) == labeled
    assert checksum(class_counts(parts.unlabeled, labels, num_classes)) == unlabeled


def test_spelled_out_rows() -> None:
    parts, labels = paper_split("cifar10", 10, 0.1)
    assert class_counts(parts.labeled, labels, 10)[:3].tolist() == [
        [57, 38, 3, 0, 9, 0, 28, 7, 57, 51],
        [0, 11, 47, 37, 33, 49, 18, 55, 0, 0],
        [17, 0, 51, 0, 39, 59, 0, 0, 47, 37],
    ]
    assert class_counts(parts.unlabeled, labels, 10)[:3].tolist() == [
        [446, 460, 0, 3, 13, 0, 441, 0, 435, 452],
        [0, 7, 466, 418, 423, 470, 1, 465, 0, 0],
        [448, 289, 48, 441, 437, 64, 472, 0, 51, 0],
    ]


def test_of_three_clients_the_last_has_a_block_for_itself() -> None:
    """30 images of two classes: a pair shares the first 20 of a random order, the last client has the other 10.

    The pair's 20 are cut again into 10 and 10, so nothing crosses to the third; its images are in order of class.
    """
    labels = labels_of([20, 20])
    parts = make_partition(labels, 2, kind="paired-dirichlet", alpha=0.5, clients=3, per_class=15)
    labeled = np.concatenate(split_labels(labels, 2, 15)[0])
    rows = labeled[np.random.RandomState(0).permutation(30)[20:]]
    assert parts.labeled[2].tolist() == [*rows[rows < 20], *rows[rows >= 20]]
    assert [len(part) for part in parts.labeled] == [10, 10, 10]
    assert np.array_equal(rows_of(parts), np.arange(40))


def test_one_client_alone_holds_everything() -> None:
    parts = make_partition(labels_of([4, 4]), 2, kind="paired-dirichlet", alpha=0.5, clients=1, per_class=2)
    assert np.array_equal(rows_of(parts), np.arange(8))
    assert labels_of([4, 4])[parts.labeled[0]].tolist() == [0, 0, 1, 1]


def released_split(rows: list[list[int]], clients: int, alpha: float) -> list[list[int]]:
    """The published procedure once more, image by image in lists: blocks for two, or for what is left of them."""
    random = np.random.RandomState(0)
    pairs = [(row, c) for c, members in enumerate(rows) for row in members]
    random.shuffle(pairs)  # type: ignore[arg-type]  # a list is what it shuffles
    size, dealt, left = int(2 / clients * len(pairs)), [], clients
    for first in range(-(-clients // 2)):
        block = pairs[first * size :] if left <= 2 else pairs[first * size : (first + 1) * size]
        among, parts = min(2, left), [[0]]
        while True:
            parts = [[] for _ in range(among)]
            for c in range(len(rows)):
                members = [row for row, label in block if label == c]
                share = random.dirichlet([alpha] * among)
                share *= [len(part) < len(block) / among for part in parts]
                cuts = (np.cumsum(share / share.sum()) * len(members)).astype(int)[:-1]
                for part, piece in zip(parts, np.split(np.array(members, np.int64), cuts), strict=True):
                    part += piece.tolist()
            if min(map(len, parts)) >= int(0.5 * len(block) / among):
                break
        dealt += [row for part in parts for row in part]
        left -= 2
    return [part.tolist() for part in np.array_split(dealt, clients)]


@pytest.mark.parametrize("clients", [2, 3, 4, 5, 7, 8, 9, 21, 49])
@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_any_number_of_clients_is_dealt_to_as_published(clients: int, alpha: float) -> None:
    labels = labels_of([150, 90, 200, 173])
    parts = make_partition(labels, 4, kind="paired-dirichlet", alpha=alpha, clients=clients, per_class=50)
    for ours, theirs in zip(parts[:2], split_labels(labels, 4, 50), strict=True):
        assert [part.tolist() for part in ours] == released_split([r.tolist() for r in theirs], clients, alpha)


@pytest.mark.parametrize(
    ("alpha", "labeled", "unlabeled"),
    [(0.1, "4bf66c415a96ca4d", "fff801bbdd96b0ba"), (1.0, "5fc03e478e264863", "4bc7768725924170")],
)
def test_golden_class_counts_of_an_odd_number(alpha: float, labeled: str, unlabeled: str) -> None:
    """CIFAR-10, 10 % labels, 19 clients; the numbers are of `released_split`."""
    labels = labels_of(CLASS_COUNTS["cifar10"])
    parts = make_partition(labels, 10, kind="paired-dirichlet", alpha=alpha, clients=19, per_class=500)
    assert checksum(class_counts(parts.labeled, labels, 10)) == labeled
    assert checksum(class_counts(parts.unlabeled, labels, 10)) == unlabeled


@pytest.mark.parametrize(
    ("name", "percent", "num_labeled", "num_unlabeled"),
    [
        ("cifar10", 10, 250, [2250] * 20),
        ("cifar100", 10, 250, [2250] * 20),
        ("cifar10", 20, 500, [2000] * 20),
        ("cifar100", 20, 500, [2000] * 20),
        ("svhn", 10, 230, [3433] * 17 + [3432] * 3),
        ("svhn", 20, 460, [3203] * 17 + [3202] * 3),
        ("cinic10", 10, 450, [4050] * 20),
        ("cinic10", 20, 900, [3600] * 20),
    ],
)
def test_client_sizes(name: str, percent: int, num_labeled: int, num_unlabeled: list[int]) -> None:
    parts, labels = paper_split(name, percent, 0.5)
    assert [len(rows) for rows in parts.labeled] == [num_labeled] * 20
    assert [len(rows) for rows in parts.unlabeled] == num_unlabeled
    assert np.array_equal(rows_of(parts), np.arange(len(labels)))


def test_split_labels_permutes_each_class_in_label_order() -> None:
    labels = np.array([1, 0, 1, 0, 1, 0, 1, 0])
    random = np.random.RandomState(7)
    zeros, ones = random.permutation([1, 3, 5, 7]), random.permutation([0, 2, 4, 6])
    labeled, unlabeled = split_labels(labels, 2, 1)
    assert [rows.tolist() for rows in labeled] == [zeros[:1].tolist(), ones[:1].tolist()]
    assert [rows.tolist() for rows in unlabeled] == [zeros[1:].tolist(), ones[1:].tolist()]


def test_a_class_without_images_is_named() -> None:
    for per_class in (5, 0):
        with pytest.raises(UserError, match=r"^class 1 has no images, so none of it can be labeled$"):
            split_labels(np.array([0, 0, 2, 2]), 3, per_class)
    with pytest.raises(UserError, match="5 labeled images per class, expected 1 to 2: class 0 has 2 images"):
        split_labels(np.array([0, 0, 1, 1]), 2, 5)


def test_seed_zero_takes_the_papers_labeled_images() -> None:
    labels = labels_of([30, 20])
    for seed in (0, 5):
        parts = make_partition(labels, 2, kind="iid", alpha=0, clients=1, per_class=5, seed=seed)
        labeled, unlabeled = split_labels(labels, 2, 5, seed=7 + seed)
        assert parts.labeled[0].tolist() == np.concatenate(labeled).tolist()
        assert parts.unlabeled[0].tolist() == np.concatenate(unlabeled).tolist()


def test_pool_appends_the_labeled_rows() -> None:
    parts = Partition((np.array([8, 9]),), (np.array([3, 1]),))
    assert parts.pool(0).tolist() == [3, 1, 8, 9]


def test_seed_changes_labeled_images_and_mixes() -> None:
    first, labels = paper_split("cifar10", 10, 0.1)
    again, _ = paper_split("cifar10", 10, 0.1)
    other, _ = paper_split("cifar10", 10, 0.1, seed=1)
    assert all(np.array_equal(first.pool(k), again.pool(k)) for k in range(20))
    assert set(np.concatenate(first.labeled)) != set(np.concatenate(other.labeled))
    before, after = (class_counts(parts.unlabeled, labels, 10) for parts in (first, other))
    assert not np.array_equal(before, after)


@pytest.mark.parametrize("clients", [2, 4, 10, 30])
@pytest.mark.parametrize("kind", DEALS)
def test_every_row_has_exactly_one_owner(kind: str, clients: int) -> None:
    labels = np.random.RandomState(3).randint(0, 5, 997)
    shards = 5 if kind == "shards" else None
    request = {"kind": kind, "alpha": 0.3, "clients": clients, "classes_per_client": shards}
    everything = make_partition(labels, 5, who="knowing-clients", labeled_clients=1, **request)  # type: ignore[arg-type]
    assert np.array_equal(rows_of(everything), np.arange(997))
    parts = make_partition(labels, 5, per_class=20, **request)  # type: ignore[arg-type]
    assert len(parts.labeled) == len(parts.unlabeled) == clients
    assert np.array_equal(rows_of(parts), np.arange(997))
    assert class_counts(parts.labeled, labels, 5).sum(0).tolist() == [20] * 5
    assert min(len(parts.pool(k)) for k in range(clients)) > 0


def test_iid_counts_differ_by_at_most_one() -> None:
    labels = labels_of([103, 58, 77])
    parts = make_partition(labels, 3, kind="iid", alpha=0, clients=7, per_class=10)
    for held in (parts.labeled, parts.unlabeled, [parts.pool(k) for k in range(7)]):
        assert np.ptp([len(rows) for rows in held]) <= 1
    for held in (parts.labeled, parts.unlabeled):
        assert np.ptp(class_counts(held, labels, 3), axis=0).max() <= 1


def test_one_client_holds_everything() -> None:
    labels = labels_of([30, 20])
    parts = make_partition(labels, 2, kind="iid", alpha=0, clients=1, per_class=5)
    assert class_counts(parts.labeled, labels, 2).tolist() == [[5, 5]]
    assert class_counts(parts.unlabeled, labels, 2).tolist() == [[25, 15]]


def test_alpha_zero_is_iid() -> None:
    labels = labels_of([40] * 5)
    pairs = make_partition(labels, 5, kind="paired-dirichlet", alpha=0, clients=4, per_class=8)
    even = make_partition(labels, 5, kind="iid", alpha=0, clients=4, per_class=8)
    assert all(np.array_equal(pairs.pool(k), even.pool(k)) for k in range(4))
    assert class_counts(pairs.labeled, labels, 5).tolist() == [[2] * 5] * 4


@pytest.mark.parametrize("kind", ["iid", "shards"])
def test_kinds_without_alpha_need_none(kind: str) -> None:
    request: dict[str, Any] = {"kind": kind, "clients": 4, "per_class": 8}
    request |= {"classes_per_client": 5} if kind == "shards" else {}
    left_out, given = (make_partition(labels_of([40] * 5), 5, **request, **more) for more in ({}, {"alpha": 0.3}))
    assert all(np.array_equal(left_out.pool(k), given.pool(k)) for k in range(4))


def test_all_labels_known_leaves_no_unlabeled_rows() -> None:
    labels = labels_of([40] * 5)
    for kind in DEALS:
        shards = 5 if kind == "shards" else None
        parts = make_partition(labels, 5, kind=kind, alpha=1.0, clients=4, per_class=40, classes_per_client=shards)
        assert sum(len(rows) for rows in parts.unlabeled) == 0
        assert np.array_equal(rows_of(parts), np.arange(200))


def test_dirichlet_cuts_labeled_and_unlabeled_apart() -> None:
    labels = labels_of([1000] * 10)
    parts = make_partition(labels, 10, kind="dirichlet", alpha=0.1, clients=10, per_class=500)
    labeled, unlabeled = (class_counts(held, labels, 10) for held in parts[:2])
    assert np.abs(labeled - unlabeled).sum() / 10_000 > 0.5
    even = make_partition(labels, 10, kind="dirichlet", alpha=1e6, clients=10, per_class=500)
    assert np.abs(class_counts(even.labeled, labels, 10) - 50).max() <= 1


def test_plain_dirichlet_is_far_more_skewed_than_the_paired_one() -> None:
    """On CIFAR-10 at 0.1 a client's largest class holds 62 % (plain) against 21 % (paired) of its images."""
    share = {}
    labels = labels_of([5000] * 10)
    for kind in ("dirichlet", "paired-dirichlet"):
        parts = make_partition(labels, 10, kind=kind, alpha=0.1, clients=20, per_class=500)
        counts = class_counts(parts.unlabeled, labels, 10)
        share[kind] = (counts.max(1) / counts.sum(1)).mean()
    assert share["paired-dirichlet"] == pytest.approx(0.208, abs=5e-4)
    assert share["dirichlet"] > 0.5


@pytest.mark.parametrize("kind", DEALS)
def test_labels_may_lie_at_a_few_clients(kind: str) -> None:
    """The paper's 10 % at two of twenty clients: as many images each, the two with labels only, the others without."""
    labels = labels_of([5000] * 10)
    shards = {"classes_per_client": 5 if kind == "shards" else None}
    request = {"num_classes": 10, "kind": kind, "alpha": 0.5, "clients": 20, "per_class": 500, **shards}
    parts = make_partition(labels, labeled_clients=2, **request)  # type: ignore[arg-type]
    usual = make_partition(labels, **request)  # type: ignore[arg-type]
    assert [len(rows) > 0 for rows in parts.labeled] == [True] * 2 + [False] * 18
    assert [len(rows) > 0 for rows in parts.unlabeled] == [False] * 2 + [True] * 18
    assert np.array_equal(rows_of(parts), np.arange(50_000))
    for here, there in zip(parts[:2], usual[:2], strict=True):  # the same images are labeled
        assert np.array_equal(np.sort(np.concatenate(here)), np.sort(np.concatenate(there)))
    if kind not in ("dirichlet", "balanced-dirichlet"):
        assert {len(parts.pool(k)) for k in range(20)} == {2500}
    two = make_partition(labels, 10, kind=kind, alpha=0.5, clients=2, per_class=500, **shards)
    assert all(np.array_equal(a, b) for a, b in zip(parts.labeled[:2], two.labeled, strict=True))


def test_balancing_worked_out_by_hand() -> None:
    """12 images of three classes over three clients, 4 each if even; the shares of each class are given.

    Class 0, 4 images: 0.5, 0.25, 0.25 gives 2, 1, 1. Class 1, 6 images: shares 0.5, 0.1, 0.4 add up to 0.5, 0.6, 1 and
    cut at 3, 3 (of 3.6), so 3, 0, 3 and 5, 1, 4 in all. Clients 0 and 2 hold 4 or more: class 2 is client 1's alone.
    """
    shares = iter([[0.5, 0.25, 0.25], [0.5, 0.1, 0.4], [0.7, 0.2, 0.1]])
    rows = [np.arange(0, 4), np.arange(4, 10), np.arange(10, 12)]
    parts = partition.deal_balanced(rows, 12 / 3, lambda: np.array(next(shares)))
    assert [part.tolist() for part in parts] == [[0, 1, 4, 5, 6], [2, 10, 11], [3, 7, 8, 9]]


def test_shares_of_clients_that_are_not_full_are_scaled_up() -> None:
    """Client 0 takes all of class 0, its even part. Of 0.5, 0.125, 0.375 the others have a quarter and the rest."""
    shares = iter([[1.0, 0.0, 0.0], [0.5, 0.125, 0.375]])
    parts = partition.deal_balanced([np.arange(8), np.arange(8, 24)], 24 / 3, lambda: np.array(next(shares)))
    assert [part.tolist() for part in parts] == [[*range(8)], [*range(8, 12)], [*range(12, 24)]]


def test_balanced_dirichlet_leaves_every_client_ten_images() -> None:
    """SemiFL's CIFAR-10 at 0.1: 100 clients, 500 images each if even. A plain draw leaves some with less than ten."""
    labels = labels_of([5000] * 10)
    parts, plain = (
        make_partition(labels, 10, kind=kind, alpha=0.1, clients=100, who="knowing-clients", labeled_clients=1)
        for kind in ("balanced-dirichlet", "dirichlet")
    )
    assert min(len(plain.pool(k)) for k in range(100)) < 10
    assert min(len(parts.pool(k)) for k in range(100)) >= 10
    counts = class_counts([parts.pool(k) for k in range(100)], labels, 10)
    for k, c in zip(*np.nonzero(counts[:99]), strict=True):  # the last one gets what rounding leaves over
        assert counts[k, :c].sum() < 500  # who got more of a class did not hold 500 before it
    assert counts.sum(1).max() > 500


def counts_of_preset(name: str, *settings: str) -> NDArray[np.int64]:
    """Images of each class at each client of a preset, [clients, classes]; only the first ones have labels."""
    _, config = next(expand(override(read_toml(name), list(settings))))
    sizes, part = CLASS_COUNTS[config.data.name], config.partition
    labels, num_classes = labels_of(sizes), len(sizes)
    draw = {"kind": part.kind, "alpha": part.alpha, "seed": part.seed, "clients": part.clients, "who": part.labels}
    parts = make_partition(
        labels, num_classes, labeled_clients=part.labeled_clients, first_clients=part.first_clients, **draw
    )
    assert [len(rows) > 0 for rows in parts.labeled] == [k < (part.labeled_clients or 0) for k in range(10)]
    return class_counts([parts.pool(k) for k in range(10)], labels, num_classes)


@pytest.mark.parametrize("name", ["settings/rscfed", "settings/cbafed"])
def test_presets_have_the_published_split_of_svhn(name: str) -> None:
    """RSCFed's: all sizes, and the classes of its labeled client, which is number 2 of the draw and was put first."""
    counts = counts_of_preset(name)
    assert counts.sum(1).tolist() == [6621, 4594, 7578, 7972, 9178, 7781, 8852, 6374, 8311, 5996]
    assert counts[0].tolist() == [15, 292, 986, 116, 63, 1285, 1352, 1438, 807, 267]


def test_the_preset_has_twin_sight_s_split_of_cifar10() -> None:
    """What its code draws with seed 0 of NumPy: clients 1, 3, 6 and 8 have labels, and were put first."""
    counts = counts_of_preset("settings/twin-sight")
    assert counts.sum(1).tolist() == [5142, 865, 6415, 6091, 2731, 6130, 7498, 3034, 7615, 4479]
    assert counts[:4].tolist() == [
        [0, 1, 0, 0, 0, 59, 0, 3, 851, 4228],
        [46, 291, 0, 4, 0, 0, 0, 0, 401, 123],
        [0, 334, 3, 3, 2477, 2055, 0, 1543, 0, 0],
        [435, 0, 58, 0, 1046, 16, 4536, 0, 0, 0],
    ]


@pytest.mark.parametrize(("column", "labeled"), [(1, 21077), (2, 26047), (3, 23834)])
def test_the_columns_of_twin_sight_s_table_have_its_splits(column: int, labeled: int) -> None:
    """How many images of CIFAR-100, SVHN and Fashion-MNIST have labels in what its code draws."""
    added = other_tables()["twin-sight"].columns[column].set
    counts = counts_of_preset("settings/twin-sight", *(f"{key}={value}" for key, value in added.items()))
    assert counts[:4].sum() == labeled


def test_clients_change_places_one_after_another() -> None:
    draw = {"kind": "iid", "alpha": 1.0, "clients": 5, "who": "knowing-clients", "labeled_clients": 2}
    plain, moved = (make_partition(labels_of([50] * 2), 2, **draw, first_clients=first) for first in (None, [3, 0]))
    assert [plain.pool(k).tolist() for k in (3, 0, 2, 1, 4)] == [moved.pool(k).tolist() for k in range(5)]


def test_the_labeled_client_of_the_sanity_preset_has_every_class() -> None:
    counts = counts_of_preset("settings/sanity-clients")
    assert counts[0].tolist() == [303, 988, 1034, 111, 26, 882, 403, 121, 137, 1041]


@pytest.mark.parametrize("name", ["settings/rscfed", "settings/cbafed"])
def test_presets_have_the_published_split_of_cifar100(name: str) -> None:
    """RSCFed's: number 9 of the draw is the labeled one, with 1 to 219 images of each of the 100 classes."""
    lines = (PRESETS / f"{name}.toml").read_text().splitlines()
    comment = " ".join(line.strip("# ") for line in lines if line.startswith("#"))
    settings = comment.partition("--set data.name=cifar100")[2].rstrip(".").split(" --set ")[1:]
    counts = counts_of_preset(name, "data.name=cifar100", *settings)
    assert counts.sum(1).tolist() == [5101, 5079, 5071, 4565, 5040, 5097, 4941, 5098, 5000, 5008]
    assert (counts[0].min(), counts[0].max()) == (1, 219)


def test_the_preset_for_fashion_mnist_labels_a_client_with_all_classes() -> None:
    assert counts_of_preset("settings/cbafed", "data.name=fmnist")[0].min() > 0


def test_balanced_dirichlet_asks_less_of_few_images() -> None:
    """80 images over 4 clients: a quarter of the even 20."""
    labels = labels_of([40, 40])
    sizes = [
        len(part)
        for seed in range(40)
        for part in make_partition(
            labels,
            2,
            kind="balanced-dirichlet",
            alpha=0.1,
            clients=4,
            who="knowing-clients",
            labeled_clients=4,
            seed=seed,
        ).labeled
    ]
    assert 5 <= min(sizes) < 10


def test_shards_have_one_class_each() -> None:
    """Two shards for each of 20 clients, of ten classes: four shards a class, of 25 images or 26."""
    labels = labels_of([100, 103, *[100] * 8])
    parts = make_partition(labels, 10, kind="shards", alpha=1.0, clients=20, per_class=8, classes_per_client=2)
    assert np.array_equal(rows_of(parts), np.arange(1003))
    labeled, unlabeled = (class_counts(held, labels, 10) for held in parts[:2])
    assert set(labeled.ravel().tolist()) == {0, 2, 4}  # 4 where both shards are of one class
    assert np.array_equal(labeled > 0, unlabeled > 0)
    assert (labeled.sum(1) == 4).all()
    assert set((unlabeled.sum(1)).tolist()) <= {46, 47, 48}
    assert ((labeled > 0).sum(1) <= 2).all()
    other = make_partition(labels, 10, kind="shards", alpha=1.0, clients=20, per_class=8, classes_per_client=2, seed=1)
    assert not np.array_equal(class_counts(other.labeled, labels, 10), labeled)


@pytest.mark.parametrize("kind", DEALS)
def test_knowing_clients_have_the_labels_of_what_all_are_dealt(kind: str) -> None:
    """Who knows labels changes nothing in who holds what."""
    labels = labels_of([120, 100, 80, 60])
    request = {"kind": kind, "alpha": 0.5, "clients": 8, "classes_per_client": 2 if kind == "shards" else None}
    one, three, all_of_them = (
        make_partition(labels, 4, who="knowing-clients", labeled_clients=k, **request)  # type: ignore[arg-type]
        for k in (1, 3, 8)
    )
    for k in range(8):
        assert np.array_equal(one.pool(k), three.pool(k))
        assert np.array_equal(one.pool(k), all_of_them.labeled[k])
    assert [len(rows) > 0 for rows in three.labeled] == [True] * 3 + [False] * 5
    assert [len(rows) > 0 for rows in three.unlabeled] == [False] * 3 + [True] * 5
    assert np.array_equal(rows_of(three), np.arange(360))


@pytest.mark.parametrize("kind", DEALS)
def test_labels_at_the_server_are_those_of_every_setting_and_no_client_has_them(kind: str) -> None:
    labels = labels_of([120, 100, 80, 60])
    request = {"kind": kind, "alpha": 0.5, "clients": 8, "classes_per_client": 2 if kind == "shards" else None}
    parts = make_partition(labels, 4, who="server", per_class=20, **request)  # type: ignore[arg-type]
    everywhere = make_partition(labels, 4, per_class=20, **request)  # type: ignore[arg-type]
    assert np.bincount(labels[parts.server]).tolist() == [20] * 4
    assert {*parts.server.tolist()} == {row for rows in everywhere.labeled for row in rows.tolist()}
    assert not any(len(rows) for rows in parts.labeled)
    assert np.array_equal(np.sort([*parts.server, *rows_of(parts)]), np.arange(360))


def test_dirichlet_feeds_clients_left_with_nothing() -> None:
    labels = labels_of([40] * 2)
    parts = make_partition(labels, 2, kind="dirichlet", alpha=0.01, clients=40, per_class=1)
    assert min(len(parts.pool(k)) for k in range(40)) == 1
    assert np.array_equal(rows_of(parts), np.arange(80))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clients": 0}, "at least 1"),
        ({"alpha": -0.1}, "alpha = -0.1, expected at least 0.01"),
        ({"alpha": float("nan")}, "alpha = nan"),
        ({"alpha": -1.0, "kind": "iid"}, "alpha = -1.0, expected at least 0"),
        ({"alpha": 0.0, "kind": "dirichlet"}, "use kind 'iid'"),
        ({"per_class": 31}, "class 1 has 30 images"),
        ({"per_class": 0}, "expected 1 to 30"),
        ({"clients": 80, "kind": "dirichlet"}, "partition.clients = 80: 70 images are too few for one per client"),
        ({"clients": 6, "per_class": 2}, "partition.clients = 6: 4 labeled images are too few for one per client"),
        ({"kind": "dirichlett"}, "did you mean 'dirichlet'"),
        ({"labeled_clients": 4}, "partition.labeled_clients = 4: expected fewer than the 4 clients"),
        ({"labeled_clients": 21, "clients": 30, "kind": "iid"}, "labeled_clients = 21: 20 labeled images are too few"),
        ({"labeled_clients": 2, "clients": 64}, "clients without labels = 62: 50 unlabeled images are too few"),
        ({"seed": -1}, "partition seed = -1"),
        ({"kind": "balanced-dirichlet", "alpha": 0.0}, "alpha = 0.0, expected at least 0.01"),
        ({"kind": "shards"}, "partition.kind = 'shards' needs partition.classes_per_client"),
        ({"classes_per_client": 2}, "classes_per_client = 2 has no effect with partition.kind = 'paired-dirichlet'"),
        (
            {"kind": "shards", "classes_per_client": 1, "clients": 5},
            "5 clients would get 5 shards; expected",
        ),
        (
            {"kind": "shards", "classes_per_client": 1, "labeled_clients": 1},
            "1 client with labels would get 1 shard; expected a multiple of the 2 classes",
        ),
        (
            {"kind": "shards", "classes_per_client": 1, "labeled_clients": 2, "clients": 5},
            "3 clients without labels would get 3 shards; expected",
        ),
        ({"labeled_clients": 1, "clients": 1}, "labeled_clients = 1: expected fewer than the 1 client$"),
        ({"who": "few-clients"}, "partition.labels = 'few-clients' needs partition.labeled_clients"),
        ({"who": "knowing-clients"}, "partition.labels = 'knowing-clients' needs partition.labeled_clients"),
        ({"who": "all-clients", "labeled_clients": 2}, "has no effect with partition.labels = 'all-clients'"),
        ({"who": "knowing-clients", "labeled_clients": 5}, "labeled_clients = 5: expected at most the 4 clients"),
        ({"who": "knowing-clients", "labeled_clients": 5, "clients": 71}, "71: 70 images are too few"),
        ({"who": "server", "labeled_clients": 2}, "has no effect with partition.labels = 'server'"),
        ({"who": "server", "clients": 51}, "partition.clients = 51: 50 unlabeled images are too few"),
        ({"who": "knowing-client", "labeled_clients": 5}, "did you mean 'knowing-clients'"),
    ],
)
def test_bad_requests_are_named_in_one_line(changes: dict[str, object], message: str) -> None:
    request = {"kind": "paired-dirichlet", "alpha": 0.5, "clients": 4, "per_class": 10} | changes
    with pytest.raises(UserError, match=message) as caught:
        make_partition(labels_of([40, 30]), 2, **request)  # type: ignore[arg-type]  # wrong on purpose
    assert "\n" not in str(caught.value)


def test_labels_beyond_the_classes_are_rejected() -> None:
    with pytest.raises(UserError, match="labels are from 0 to 2, expected 0 to 1"):
        split_labels(labels_of([3, 3, 3]), 2, 1)


def test_both_clients_of_a_pair_get_a_quarter_of_the_block_before_the_equal_cut() -> None:
    classes = np.arange(400) % 2
    smaller = [
        min(len(half) for half in partition._pair(np.arange(400), classes, 2, 0.5, np.random.RandomState(seed)))
        for seed in range(100)
    ]
    assert 100 <= min(smaller) < 110


def test_a_pair_that_cannot_be_even_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """One class and a tiny alpha: a first draw almost always hands the whole block to one client."""
    monkeypatch.setattr(partition, "MAX_TRIES", 1)
    with pytest.raises(UserError, match="use a larger alpha"):
        make_partition(labels_of([400]), 1, kind="paired-dirichlet", alpha=0.01, clients=2, per_class=200)


# The validation part.


def test_a_patient_is_held_out_as_a_whole() -> None:
    """Ten patients of four images: two labeled ones of each class, and two unlabeled at another client."""
    groups = np.repeat(np.arange(10), 4)
    labels = np.tile([0, 1, 0, 1], 10)
    rows = np.arange(40)
    mine, others = rows[rows % 4 < 2], rows[rows % 4 > 1]
    nobody = np.zeros(0, np.int64)
    split = Partition((mine, nobody), (nobody, others))
    rest, held = hold_out(split, labels, 0.3, 0, groups)
    assert len(set(groups[held])) == 3
    assert np.bincount(labels[held]).tolist() == [3, 3]
    trained = np.concatenate([rest.pool(0), rest.pool(1)])
    assert not set(groups[trained]) & set(groups[held])
    assert [len(rest.labeled[0]), len(rest.unlabeled[1])] == [14, 14]
    alone, few = hold_out(split, labels, 0.3)
    assert np.bincount(labels[few]).tolist() == [3, 3]
    assert len(alone.unlabeled[1]) == 20


def test_whole_patients_leave_a_client_its_last_label() -> None:
    split = Partition((np.arange(4), np.arange(4, 8)), (np.zeros(0, np.int64),) * 2)
    labels, groups = np.array([0, 0, 1, 1] * 2), np.array([0, 0, 0, 0, 1, 1, 2, 2])
    rest, held = hold_out(split, labels, 0.2, 0, groups)
    assert set(groups[held]) <= {1, 2}
    assert len(held) == 2
    assert all(map(len, rest.labeled))


# The halves of the test.


def test_halves_by_hand() -> None:
    """Alone, every other image of a class is in the second half, as it always was."""
    labels = np.array([0, 1, 0, 0, 1, 2, 0])
    assert second_half(labels).tolist() == [False, False, True, False, True, False, True]
    assert second_half(labels, np.arange(7)[::-1] * 3).tolist() == second_half(labels).tolist()


def test_a_patient_is_in_one_half() -> None:
    """Patients of 4, 3 and 2 images, and one image alone: 4 and 1 of class 0 face 3 and 2, whatever their order."""
    groups = np.array([5, 7, 7, 9, 9, 9, 9, 2, 2, 2])
    labels = np.zeros(10, np.int64)
    assert second_half(labels, groups).tolist() == [False, *[True] * 2, *[False] * 4, *[True] * 3]
    # A patient of two classes goes where both are more even: four of class 0, three of class 1 are in the first half.
    labels, groups = np.array([0] * 4 + [1] * 3 + [0, 1] + [1]), np.array([0] * 4 + [1] * 3 + [2] * 2 + [3])
    assert second_half(labels, groups).tolist() == [*[False] * 4, *[False] * 3, *[True] * 2, True]


def test_halves_of_many_patients_are_halves() -> None:
    rng = np.random.RandomState(0)
    groups = rng.randint(60, size=600)
    labels = rng.randint(5, size=600)
    second = second_half(labels, groups)
    assert not set(groups[second]) & set(groups[~second])
    first, other = (np.bincount(labels[rows]) for rows in (~second, second))
    assert (abs(first - other) <= 6).all()
