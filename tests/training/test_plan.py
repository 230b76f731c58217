"""What a client draws, and that it depends on names alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

from fssl.seeds import cohort, stream
from fssl.training.plan import Recipe, Site, adjusted, balanced, chances, class_weights, passes, plan_client, weighed
from fssl.types import Counts

VIEWS = ("x", "u_weak", "u_strong")
PAPER = Recipe(128, 2, 5, "pool", None, VIEWS, 32, True)


@pytest.mark.parametrize(
    ("pool", "steps"), [(2500, 95), (3663, 140), (3662, 140), (4500, 175)]
)  # CIFAR, SVHN twice, CINIC-10
def test_steps_per_round_are_the_papers(pool: int, steps: int) -> None:
    assert PAPER.num_steps(Counts(250, pool)) == steps


def test_labeled_epochs_count_labeled_images() -> None:
    recipe = replace(PAPER, epoch="labeled")
    assert recipe.num_steps(Counts(250, 2500)) == 5  # one complete batch a pass
    assert recipe.num_steps(Counts(500, 2500)) == 15


def test_one_step_rounds() -> None:
    assert Recipe(128, 2, 1, "pool", 1, VIEWS, 32, True).num_steps(Counts(250, 2500)) == 1


def test_drawn_clients_are_the_papers() -> None:
    drawn = [cohort(7, 20, 8, r) for r in (1, 2, 3, 4, 5)]
    assert drawn == [
        [1, 17, 2, 5, 11, 0, 18, 6],
        [18, 7, 15, 14, 17, 3, 1, 10],
        [8, 2, 6, 1, 17, 4, 5, 11],
        [6, 16, 14, 19, 0, 10, 8, 12],
        [7, 6, 1, 8, 11, 2, 18, 10],
    ]


def test_drawn_clients_do_not_depend_on_what_was_asked_before() -> None:
    """Rounds in any order, another federation in between, and a caller who changes the list."""
    rng = np.random.RandomState(11)
    expected = [[int(k) for k in rng.choice(12, 5, replace=False)] for _ in range(40)]
    assert cohort(11, 12, 5, 40) == expected[39]
    cohort(11, 12, 5, 3).clear()
    cohort(11, 13, 5, 50)
    assert [cohort(11, 12, 5, r) for r in range(1, 41)] == expected


def test_passes_permute_and_drop_incomplete_batches() -> None:
    rows = passes(stream(0, "t"), 2500, 256, 19)
    assert rows.shape == (19, 256)
    for block in (rows[:9], rows[9:18]):  # nine complete batches per permutation
        assert len(np.unique(block)) == 9 * 256
    assert not np.array_equal(rows[:9], rows[9:18])


def test_a_pool_smaller_than_a_batch_runs_on() -> None:
    rows = passes(stream(0, "t"), 5, 8, 3)
    assert rows.shape == (3, 8)
    assert sorted(np.bincount(rows.ravel()).tolist()) == [4, 5, 5, 5, 5]  # 24 places: four whole passes and four more


def site(labeled: int = 20, pool: int = 100) -> Site:
    rows = np.arange(1000, 1000 + pool)
    return Site(rows[:labeled], rows)


SMALL = Recipe(8, 2, 3, "pool", None, VIEWS, 32, True)


def test_a_plan_is_reproducible_and_differs_by_name() -> None:
    a, b = plan_client(site(), SMALL, 7, 3, 5), plan_client(site(), SMALL, 7, 3, 5)
    assert torch.equal(a.draw.x_row, b.draw.x_row)
    assert all(torch.equal(a.draw.noise[v], b.draw.noise[v]) for v in VIEWS)
    for other in (
        plan_client(site(), SMALL, 8, 3, 5),
        plan_client(site(), SMALL, 7, 4, 5),
        plan_client(site(), SMALL, 7, 3, 6),
    ):
        assert not torch.equal(a.draw.u_row, other.draw.u_row)
        assert not torch.equal(a.draw.noise["u_strong"], other.draw.noise["u_strong"])


def test_shapes_rows_and_slots() -> None:
    draw = plan_client(site(), SMALL, 7, 1, 0).draw  # 100 // 8 = 12 steps an epoch
    assert draw.x_row.shape == (36, 8)
    assert draw.u_row.shape == draw.u_slot.shape == (36, 16)
    assert torch.equal(draw.u_row, draw.u_slot + 1000)
    assert draw.x_row.min() >= 1000
    assert draw.x_row.max() < 1020
    assert draw.clock.last_epoch.tolist() == [0.0] * 24 + [1.0] * 12
    assert {v: tuple(n.shape) for v, n in draw.noise.items()} == {
        "x": (36, 8, 3),
        "u_weak": (36, 16, 3),
        "u_strong": (36, 16, 13),
    }


def test_labeled_images_are_drawn_with_replacement() -> None:
    draw = plan_client(site(labeled=4), SMALL, 7, 1, 0).draw
    counts = torch.bincount(draw.x_row.ravel() - 1000, minlength=4)
    assert counts.sum() == 36 * 8
    assert counts.min() > 40  # 72 expected each
    assert any(len(row.unique()) < 4 for row in draw.x_row[:, :4])


def test_a_client_without_labels_fills_up_from_its_pool() -> None:
    empty = Site(np.array([], dtype=np.int64), np.arange(50))
    draw = plan_client(empty, SMALL, 7, 1, 0).draw
    assert draw.has_labels.unique().tolist() == [0.0]
    assert draw.x_row.max() < 50


def test_streams_are_stable() -> None:
    assert stream(7, "labeled", 1, 2).integers(1000, size=4).tolist() == [708, 42, 284, 574]
    assert stream(7, "labeled", 1, 2).integers(1000) != stream(7, "labeled", 2, 1).integers(1000)


def test_rare_classes_are_drawn_as_often_as_asked_for() -> None:
    """Nine images of one class, one of another: 9 to 1 as they are, 3 to 1 with the root, 1 to 1 in balance."""
    labels = np.array([0] * 9 + [1])
    assert chances(labels, 1.0) == pytest.approx([1 / 18] * 9 + [1 / 2])
    assert chances(labels, 0.5) == pytest.approx([1 / 12] * 9 + [1 / 4])
    bare = Site(np.arange(10), np.arange(10))
    assert balanced([bare], labels, 0.0) == [bare]
    for epoch in ("pool", "labeled"):
        recipe = Recipe(16, 2, 1, epoch, 500, ("x",), 8, False)  # type: ignore[arg-type]
        for balance, expected in ((0.0, 0.1), (0.5, 0.25), (1.0, 0.5)):
            (site,) = balanced([bare], labels, balance)
            rows = plan_client(site, recipe, 7, 1, 0).draw.x_row.numpy()
            assert np.mean(labels[rows] == 1) == pytest.approx(expected, abs=0.02)


def test_a_client_without_labels_has_no_balance() -> None:
    (site,) = balanced([Site(np.arange(0), np.arange(5))], np.zeros(5, np.int64), 1.0)
    assert site.chances is None


def test_weights_of_classes_by_hand() -> None:
    """Nine images and one: 10 / (2 n), so that both classes weigh 5 in all; with the root 7.5 and 2.5."""
    labels = np.array([0] * 9 + [1])
    sizes = np.bincount(labels, minlength=3)
    assert class_weights(sizes, 1.0) == pytest.approx([5 / 9, 5, 1])
    assert class_weights(sizes, 0.5) == pytest.approx([5 / 6, 2.5, 1])
    for power in (0.25, 0.5, 1.0):
        assert class_weights(sizes, power)[labels].mean() == pytest.approx(1)
        assert class_weights(np.array([7, 0, 7]), power).tolist() == [1, 1, 1]  # exactly
        assert class_weights(0 * sizes, power).tolist() == [1, 1, 1]


def test_each_client_weighs_its_own_classes_in_every_step() -> None:
    bare = [Site(np.arange(10), np.arange(10)), Site(np.arange(8, 10), np.arange(10)), Site(np.arange(0), np.arange(5))]
    labels = np.array([0] * 9 + [1])
    assert weighed(bare, labels, 2, 0.0) == bare
    sites = weighed(bare, labels, 2, 1.0)
    plain, given = (plan_client(site, SMALL, 7, 1, 0).draw for site in (bare[0], sites[0]))
    assert given.extras["class_weights"].tolist() == [pytest.approx([5 / 9, 5])] * 3
    assert torch.equal(plain.x_row, given.x_row)  # nothing is drawn otherwise
    assert [site.by_class["class_weights"].tolist() for site in sites[1:]] == [[1, 1], [1, 1]]


def test_a_prior_is_the_clients_own_or_that_of_all() -> None:
    """Shares 9/10 and 1/10 of the first, 0 and 1 of the second, and 9/12 and 3/12 of both; times 2."""
    bare = [
        Site(np.arange(10), np.arange(12)),
        Site(np.arange(10, 12), np.arange(12)),
        Site(np.arange(0), np.arange(5)),
    ]
    labels = np.array([0] * 9 + [1] * 3)
    assert adjusted(bare, labels, 2, 0.0, "client") == bare
    shifts = {
        prior: [np.exp(site.by_class["log_prior"] / 2) for site in adjusted(bare, labels, 2, 2.0, prior)]
        for prior in ("client", "global")
    }
    assert shifts["global"] == [pytest.approx([0.75, 0.25], rel=1e-6)] * 3
    assert shifts["client"][0] == pytest.approx([0.9, 0.1], rel=1e-6)
    assert shifts["client"][1] == pytest.approx([1e-12, 1.0], rel=1e-5)
    assert np.ptp(shifts["client"][2]) == 0  # no labels: no effect


def test_clients_with_labels_may_have_epochs_of_their_own() -> None:
    recipe = replace(SMALL, labeled_epochs=3)
    assert [recipe.num_steps(Counts(labeled, 100)) for labeled in (0, 100)] == [12 * SMALL.local_epochs, 12 * 3]
    assert replace(recipe, steps_per_round=2).num_steps(Counts(100, 100)) == 2


def test_labeled_images_may_come_without_replacement() -> None:
    """Sixteen in batches of eight: each is in each second step."""
    rows = plan_client(site(labeled=16), replace(SMALL, shuffles=True), 7, 1, 0).draw.x_row
    assert all(len({*rows[i : i + 2].flatten().tolist()}) == 16 for i in range(0, 12, 2))


def test_groups_follow_each_other_and_the_first_is_what_it_was() -> None:
    alone, both = plan_client(site(), SMALL, 7, 3, 5).draw, plan_client(site(), SMALL, 7, 3, 5, (0, 2)).draw
    steps = len(alone.x_row)
    assert all(torch.equal(a, b[:steps]) for a, b in zip(tree_leaves(alone), tree_leaves(both), strict=True))
    assert not torch.equal(both.x_row[:steps], both.x_row[steps:])
    assert both.clock.group.tolist() == [0.0] * steps + [2.0] * steps
    assert torch.equal(both.clock.step[steps:], alone.clock.step)
