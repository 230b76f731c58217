"""The long tail: published counts, and who gets which images of it."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fssl.config import Config, parse
from fssl.core.images import partition_images
from fssl.data.long_tail import class_sizes
from fssl.data.partition import class_counts, make_partition
from fssl.data.sources import Dataset, load
from fssl.errors import UserError
from fssl.records.rounds import OF_TAIL
from helpers.command import SMALL, Fssl, outcome
from helpers.small import tiny_config

TAILS = [  # head, imbalance, sizes, sum: CIFAR-10 in the settings of the literature
    (1500, 100, [1500, 899, 539, 323, 193, 116, 69, 41, 25, 15], 3720),
    (3000, 100, [3000, 1798, 1078, 646, 387, 232, 139, 83, 50, 30], 7443),
    (500, 100, [500, 299, 179, 107, 64, 38, 23, 13, 8, 5], 1236),
    (4000, 100, [4000, 2397, 1437, 861, 516, 309, 185, 111, 66, 40], 9922),
    (1500, 150, [1500, 859, 492, 282, 161, 92, 53, 30, 17, 10], 3496),
    (3000, 150, [3000, 1719, 985, 564, 323, 185, 106, 60, 34, 20], 6996),
]
OF_100 = [  # head, imbalance, last class, sum: CIFAR-100
    (150, 10, 15, 5835),
    (150, 20, 7, 4741),
    (150, 50, 3, 3751),
    (150, 100, 1, 3218),
    (300, 10, 30, 11720),
    (300, 20, 15, 9527),
    (300, 50, 6, 7546),
]
LABELS: NDArray[np.int64] = np.repeat(np.arange(10), 5000)


@pytest.mark.parametrize(("head", "imbalance", "sizes", "total"), TAILS)
def test_sizes_are_the_published_ones(head: int, imbalance: int, sizes: list[int], total: int) -> None:
    assert class_sizes(head, imbalance, 10) == sizes
    assert class_sizes(head, -imbalance, 10) == sizes[::-1]
    assert sum(sizes) == total


@pytest.mark.parametrize(("head", "imbalance", "last", "total"), OF_100)
def test_sizes_of_a_hundred_classes(head: int, imbalance: int, last: int, total: int) -> None:
    sizes = class_sizes(head, imbalance, 100)
    assert (sizes[0], sizes[-1], sum(sizes)) == (head, last, total)
    assert class_sizes(150, 10, 100)[:5] == [150, 146, 143, 139, 136]
    assert class_sizes(300, 10, 100)[:3] == [300, 293, 286]


def test_without_a_tail_classes_are_equal() -> None:
    assert class_sizes(7, 1, 4) == [7] * 4
    assert class_sizes(8, 1000, 4) == [8, 0, 0, 0]  # 0.8, 0.08 and 0.008 images
    assert class_sizes(1000, 1000, 4) == [1000, 100, 10, 1]  # powers fall short of whole numbers


@pytest.mark.parametrize("kind", ["paired-dirichlet", "dirichlet", "balanced-dirichlet", "shards", "iid"])
@pytest.mark.parametrize("who", ["all-clients", "server"])
def test_every_deal_hands_out_the_tail(kind: str, who: str) -> None:
    labeled, others = class_sizes(1500, 100, 10), class_sizes(3000, -100, 10)
    own = {"classes_per_client": 2} if kind == "shards" else {}
    split = make_partition(
        LABELS, 10, kind=kind, alpha=1.0, clients=10, per_class=labeled, further=others, who=who, **own
    )
    known = [*split.labeled, split.server]
    assert class_counts(known, LABELS, 10).sum(0).tolist() == labeled
    assert class_counts(split.unlabeled, LABELS, 10).sum(0).tolist() == others
    rows = np.concatenate([*known, *split.unlabeled])
    assert len(rows) == len(np.unique(rows)) == 3720 + 7443


def test_a_tail_is_a_part_of_the_even_split() -> None:
    """The same shuffle: rows of a shorter list come first in a longer one."""
    even = make_partition(LABELS, 10, kind="iid", clients=1, per_class=1500)
    tail = make_partition(LABELS, 10, kind="iid", clients=1, per_class=class_sizes(1500, 100, 10))
    assert {*tail.labeled[0]} < {*even.labeled[0]}
    assert len(tail.labeled[0]) + len(tail.unlabeled[0]) == len(LABELS)  # nothing is left out


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("digits")


def config_of(*settings: str) -> Config:
    return tiny_config("data.name=digits", "partition.kind=iid", *settings)


def test_settings_say_the_tail(digits: Dataset) -> None:
    """Ten classes of 138 images at least: 8 to 1 labels, and by default 130 others at most."""
    counts = {}
    for word in ("data.imbalance_unlabeled=-8", "data.imbalance_unlabeled=1", "data.head=16"):
        split = partition_images(config_of("data.imbalance=8", word), digits)
        counts[word] = [
            class_counts(p, digits.train.labels, 10).sum(0).tolist() for p in (split.labeled, split.unlabeled)
        ]
    assert [found[0] for found in counts.values()] == [[8, 6, 5, 4, 3, 2, 2, 1, 1, 1]] * 3
    assert [found[1] for found in counts.values()] == [
        class_sizes(130, -8, 10),
        [130] * 10,
        class_sizes(16, 8, 10),
    ]


def test_clients_that_know_their_labels_share_one_tail(digits: Dataset) -> None:
    tables = {"name": "digits", "imbalance": 4.0, "head": 32}
    where = {"kind": "iid", "clients": 4, "labels": "knowing-clients", "labeled_clients": 1}
    config = parse({"data": tables, "partition": where, "train": {"clients_per_round": 2}})
    split = partition_images(config, digits)
    held = class_counts([*split.labeled, *split.unlabeled], digits.train.labels, 10).sum(0).tolist()
    assert held == class_sizes(32, 4, 10)
    assert sum(map(len, split.labeled)) == len(split.labeled[0]) == len(split.unlabeled[1])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["data.imbalance=0.5"], "data.imbalance = 0.5: expected a number from 1 to 1000000"),
        (["data.imbalance_unlabeled=0"], "data.imbalance_unlabeled = 0: expected 1 or more, or -1 or less"),
        (["data.imbalance=2", "data.labels_per_class=138"], "data.labels_per_class = 138: no unlabeled image is left"),
    ],
)
def test_bad_tails(settings: list[str], said: str) -> None:
    with pytest.raises(UserError) as error:
        config_of(*settings)
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


def test_a_tail_that_no_class_has_is_rejected(digits: Dataset) -> None:
    with pytest.raises(UserError, match=r"class 0 has 1\d* images, too few for 8 labeled and 1000 more"):
        partition_images(config_of("data.head=1000"), digits)


@pytest.mark.slow
def test_a_run_records_groups_of_classes(fssl: Fssl) -> None:
    """Of digits with 100 to 5 labels a class; a run without a tail has none of these numbers."""
    tail = ("data.labels_per_class=100", "data.imbalance=20", "data.head=38", "server.static_norm=all")
    words = ("run", "smoke", *SMALL, *(word for setting in tail for word in ("--set", setting)))
    assert fssl(*words, "--out", "tail").code == 0
    assert fssl("run", "smoke", *SMALL, "--out", "even").code == 0
    lines = {name: json.loads(Path(name, "rounds.jsonl").read_text().splitlines()[-1]) for name in ("tail", "even")}
    line, test = lines["tail"], lines["tail"]["test"]["train_norm"]
    assert {*OF_TAIL} <= test.keys()
    assert {name: line[name] for name in OF_TAIL} == {name: test[name] for name in OF_TAIL}
    assert test["many"] is None  # no class has more than 100
    assert test["few"] is not None
    assert not {*OF_TAIL} & {*lines["even"], *lines["even"]["test"]["train_norm"]}
    models = json.loads(Path("tail", "measures.json").read_text())["models"]
    assert models["plain"]["test"]["few"] == pytest.approx(line["few"])
    summary = json.loads(Path("tail", "summary.json").read_text())
    assert (
        {"few", "geometric_mean", "last_third"} <= summary["test"]["train_norm"]["measures"].keys()
        if "test" in summary
        else True
    )
    assert "recall of classes with few labels" in fssl("show", "tail").out
    assert fssl("compare", "tail", "even", "--csv", "runs.csv").code == 0
    head, *rows = (row.split(",") for row in Path("runs.csv").read_text().splitlines())
    assert {"few", "last_third", "geometric_mean"} <= {*head}
    assert "many" not in head
    assert sorted(bool(row[head.index("few")]) for row in rows) == [False, True]


@pytest.mark.slow
def test_a_tail_resumes_as_it_began(fssl: Fssl) -> None:
    words = ("run", "smoke", *SMALL, "--set", "data.imbalance=4", "--set", "data.imbalance_unlabeled=-4")
    assert fssl(*words, "--set", "train.rounds=4", "--out", "whole").code == 0
    assert fssl(*words, "--out", "parts").code == 0
    assert fssl(*words, "--set", "train.rounds=4", "--out", "parts", "--resume").code == 0
    assert outcome("parts") == outcome("whole")
