"""From a partition and seeds to a client's round: rows, their order, and random numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._pytree import tree_leaves, tree_structure, tree_unflatten

from ..augment.policies import draw_strong, draw_weak, shows_drawn, shows_labeled, shows_strongly
from ..data.cards import Card
from ..data.partition import Partition
from ..errors import UserError
from ..seeds import stream
from ..types import CLASS_WEIGHTS, DROPOUT, HAS_UNLABELED, LOG_PRIOR, Clock, Counts, Draw, Orders, State, Sweep, Task
from .schedule import Schedule

Rows = NDArray[np.int64]
DRAWN_BELOW = 2**31  # of the numbers from which dropout makes its masks
LEAST_SHARE = 1e-12  # of a class, in a logarithm
DrawNumbers = Callable[[np.random.Generator, int], NDArray[np.float64]]  # of so many steps, [steps, ...]


class Site(NamedTuple):
    """One client's rows of the training pool; the labeled images are part of its pool."""

    labeled: Rows
    pool: Rows
    chances: NDArray[np.float64] | None = None  # of each labeled image to be drawn; None: the same for all
    by_class: Mapping[str, NDArray[np.float32]] = {}  # [C] for the loss of labeled images

    @property
    def counts(self) -> Counts:
        return Counts(len(self.labeled), len(self.pool))

    def classes(self, labels: NDArray[np.int64], number: int) -> Rows:
        """How many labeled images it has of each class."""
        return np.bincount(labels[self.labeled], minlength=number)

    def with_numbers(self, name: str, by_class: NDArray[np.floating]) -> Self:
        """The same site with further numbers for the loss of labeled images."""
        return self._replace(by_class={**self.by_class, name: by_class.astype(np.float32)})


def make_sites(partition: Partition, labels: Literal["few", "all"]) -> list[Site]:
    """Return every client's rows; with `all` labels the whole pool counts as labeled (the upper bound)."""
    pools = [partition.pool(k) for k in range(len(partition.labeled))]
    return [Site(p if labels == "all" else x, p) for x, p in zip(partition.labeled, pools, strict=True)]


def server_site(partition: Partition) -> Site:
    """Return the server's images, which all have labels."""
    return Site(partition.server, partition.server)


def balanced(sites: list[Site], labels: NDArray[np.int64], balance: float) -> list[Site]:
    """Return sites that draw labeled images by class: from as they are (0) to every class equally often (1).

    A client counts only its own images. An image of a class with n of them is drawn with a weight of n^-balance.
    """
    return [site._replace(chances=chances(labels[site.labeled], balance)) for site in sites] if balance else sites


def chances(labels: NDArray[np.int64], balance: float) -> NDArray[np.float64] | None:
    if not len(labels):
        return None
    _, which, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    weight = sizes[which].astype(np.float64) ** -balance
    return np.asarray(weight / weight.sum())


def weighed(sites: list[Site], labels: NDArray[np.int64], num_classes: int, power: float) -> list[Site]:
    """Return sites with class weights in the loss: from none (0) to each class equally much (1).

    A client counts only its own images, so it reveals no class counts.
    """
    if not power:
        return sites
    return [site.with_numbers(CLASS_WEIGHTS, class_weights(site.classes(labels, num_classes), power)) for site in sites]


def class_weights(sizes: Rows, power: float) -> NDArray[np.float32]:
    """w_c ~ n_c^-power, so that their mean over these images is 1; 1 for a class without any."""
    w = np.where(sizes > 0, np.maximum(sizes, 1.0) ** -power, 0.0)
    w *= sizes.sum() / max((sizes * w).sum(), 1.0)
    return np.where(sizes > 0, w, 1.0).astype(np.float32)


def adjusted(sites: list[Site], labels: NDArray[np.int64], num_classes: int, tau: float, prior: str) -> list[Site]:
    """The sites with tau log pi for the logits of labeled images; 0: without.

    The prior pi is the shares of classes among a client's own labels, or among those of all clients ("global").
    """
    if not tau:
        return sites
    sizes = [site.classes(labels, num_classes) for site in sites]
    total = np.sum(sizes, axis=0)
    known = [total if prior == "global" else own for own in sizes]
    return [site.with_numbers(LOG_PRIOR, tau * log_prior(n)) for site, n in zip(sites, known, strict=True)]


def log_prior(sizes: Rows) -> NDArray[np.float64]:
    """log pi by class; one without any image all but leaves the softmax."""
    return np.asarray(np.log(sizes / max(sizes.sum(), 1) + LEAST_SHARE))


def make_task(sites: list[Site], card: Card, seed: int) -> Task:
    return Task(card.num_classes, max(len(site.pool) for site in sites), seed, card.size)


@dataclass(frozen=True)
class Recipe:
    """The images of a client's round: how many, in which order, in which views.

    Attributes:
        batch: Labeled images per step.
        unlabeled_ratio: Unlabeled images per labeled one in a step.
        local_epochs: Epochs per round.
        epoch: The images that an epoch counts: the client's pool, or its labeled images.
        steps_per_round: A fixed number of steps instead of epochs; 1 is FedSGD.
        views: The inputs of a step. The first letter names the images: `x` labeled, `u` unlabeled, `m` from the pool
            with replacement (`batch.extras["m_slot"]` has their positions). Names that end with `strong` are strongly
            augmented. `u_weak_2` is a second weak view, `batch.views["u_weak_2"]`.
        size: Pixels per side.
        flip: Whether views are flipped.
        labeled_epochs: Epochs of clients with labels; default: local_epochs.
        shuffles: Draw labeled images without replacement, as with epoch="labeled".
        labels_alone: True sets `batch.has_unlabeled`: 0 at clients that know every label, else 1. Multiply unlabeled
            terms by it. False: it is None, as in methods whose clients with labels always train only on these.
        sweep: Pass the whole pool to the method's `visit` before training.
        chooses: Train on the images that the method's `chosen` selects. They come first in every epoch;
            `batch.extras["real"]` is 1 for them, else 0. Needs sweep=True, epoch="pool" and one group.
        numbers: A function of a generator and a number of steps; the batch has its numbers as `extras["numbers"]`.
        drops: Draw a number for each step, of which the network's dropout makes its masks.
        schedule: The learning rate over the run.
        classes: The number of classes.
    """

    batch: int
    unlabeled_ratio: int
    local_epochs: int
    epoch: Literal["pool", "labeled"]
    steps_per_round: int | None
    views: tuple[str, ...]
    size: int
    flip: bool
    labeled_epochs: int | None = None
    shuffles: bool = False
    labels_alone: bool = False
    sweep: bool = False
    chooses: bool = False
    numbers: DrawNumbers | None = None
    drops: bool = False
    schedule: Schedule = Schedule()  # noqa: RUF009 (a frozen value)
    classes: int = 10

    @property
    def unlabeled_batch(self) -> int:
        return self.batch * self.unlabeled_ratio

    def images(self, view: str) -> int:
        """Return the number of images of a step in a view."""
        return self.batch if shows_labeled(view) else self.unlabeled_batch

    def epoch_steps(self, counts: Counts) -> int:
        """Return the steps of one local epoch: the pool (or the labeled images) over the labeled batch, as released.

        A client that chooses images takes at most the steps of its whole pool, with an incomplete last batch.
        """
        if self.chooses:
            return -(-counts.pool // self.unlabeled_batch)
        n = counts.pool if self.epoch == "pool" else counts.labeled
        return max(1, n // self.batch)

    def num_steps(self, counts: Counts) -> int:
        """Return the steps of a client's round."""
        epochs = (counts.labeled and self.labeled_epochs) or self.local_epochs
        return self.steps_per_round or epochs * self.epoch_steps(counts)


class ClientPlan(NamedTuple):
    """A client's round, ready to run: a Draw with a leading axis of steps, and a Sweep if the method needs one."""

    client: int
    counts: Counts
    draw: Draw
    sweep: Sweep | None
    orders: Orders | None = None


def passes(rng: np.random.Generator, n: int, batch: int, steps: int) -> Rows:
    """Return [steps, batch] positions: consecutive permutations without their incomplete batches.

    A pool smaller than one batch has no complete one; then permutations continue into each other.
    """
    if n >= batch:
        each = n // batch
        blocks = [rng.permutation(n)[: each * batch] for _ in range(-(-steps // each))]
    else:
        blocks = [rng.permutation(n) for _ in range(-(-steps * batch // n))]
    return np.concatenate(blocks)[: steps * batch].reshape(steps, batch).astype(np.int64)


def epochs(rng: np.random.Generator, n: int, batch: int, recipe: Recipe, counts: Counts) -> Rows:
    """Return passes that restart with every local epoch."""
    total, each = recipe.num_steps(counts), recipe.epoch_steps(counts)
    lengths = [min(each, total - done) for done in range(0, total, each)]
    return np.concatenate([passes(rng, n, batch, steps) for steps in lengths])


def labeled_rows(rng: np.random.Generator, site: Site, recipe: Recipe) -> Rows:
    """Return [steps, batch] rows of labeled images; drawn from the pool of a client without any."""
    rows = site.labeled if len(site.labeled) else site.pool
    steps = recipe.num_steps(site.counts)
    if site.chances is not None:
        return rows[rng.choice(len(rows), (steps, recipe.batch), p=site.chances)]
    if (recipe.epoch == "labeled" or recipe.shuffles) and len(site.labeled):
        return rows[epochs(rng, len(rows), recipe.batch, recipe, site.counts)]
    return rows[rng.integers(len(rows), size=(steps, recipe.batch))]


def plan_client(
    site: Site, recipe: Recipe, seed: int, round: int, client: int, groups: Sequence[int] = (0,)
) -> ClientPlan:
    """Return a client's round with all its random numbers, from named streams: one group after another."""
    first, *others = [plan_in_group(site, recipe, seed, round, client, group) for group in groups]
    if not others:
        return first
    leaves = zip(*(tree_leaves(plan.draw) for plan in (first, *others)), strict=True)
    return first._replace(draw=tree_unflatten([torch.cat(each) for each in leaves], tree_structure(first.draw)))


def plan_in_group(site: Site, recipe: Recipe, seed: int, round: int, client: int, group: int) -> ClientPlan:
    """Return a client's steps in one group of a round; most methods have only one."""
    counts, steps, size = site.counts, recipe.num_steps(site.counts), recipe.size

    def named(purpose: str) -> np.random.Generator:
        return stream(seed, f"{purpose} in group {group}" if group else purpose, round, client)

    x_row = labeled_rows(named("labeled"), site, recipe)
    rng = named("unlabeled")
    orders = plan_orders(site, recipe, rng) if recipe.chooses else None
    u_slot = (
        epochs(rng, counts.pool, recipe.unlabeled_batch, recipe, counts)
        if orders is None
        else orders.u_slot.reshape(-1, recipe.unlabeled_batch)[:steps].numpy()
    )
    noise = {}
    for view in recipe.views:
        rng = named(f"view {view}")
        draw = draw_strong if shows_strongly(view) else draw_weak
        noise[view] = torch.from_numpy(draw(rng, (steps, recipe.images(view)), size, recipe.flip))
    return ClientPlan(
        client,
        counts,
        Draw(
            torch.from_numpy(x_row),
            torch.from_numpy(site.pool[u_slot]),
            torch.from_numpy(u_slot),
            noise,
            torch.full((steps,), float(len(site.labeled) > 0)),
            clock(round, steps, recipe.epoch_steps(counts), recipe.schedule)._replace(
                group=torch.full((steps,), float(group))
            ),
            plan_extras(site, recipe, named),
        ),
        plan_sweep(site, recipe, named("sweep")) if recipe.sweep else None,
        orders,
    )


def plan_extras(site: Site, recipe: Recipe, named: Callable[[str], np.random.Generator]) -> State:
    """Return extras of some methods or runs, [steps, ...]; random ones come from their own streams."""
    shape = (recipe.num_steps(site.counts), recipe.unlabeled_batch)
    extras: State = {}
    if any(map(shows_drawn, recipe.views)):
        slot = named("drawn").integers(len(site.pool), size=shape)
        extras |= {"m_row": torch.from_numpy(site.pool[slot]), "m_slot": torch.from_numpy(slot)}
    if recipe.numbers is not None:
        numbers = recipe.numbers(named("numbers"), shape[0])
        if len(numbers) != shape[0]:
            raise UserError(
                f"the `numbers` of its recipe have {len(numbers)} rows; expected one for each of {shape[0]} steps"
            )
        extras["numbers"] = torch.from_numpy(numbers.astype(np.float32))
    extras |= {name: torch.from_numpy(np.tile(numbers, (shape[0], 1))) for name, numbers in site.by_class.items()}
    if recipe.drops:
        extras[DROPOUT] = torch.from_numpy(named("dropout").integers(DRAWN_BELOW, size=shape[:1]))
    if recipe.labels_alone:
        extras[HAS_UNLABELED] = torch.full(shape[:1], float(len(site.labeled) < len(site.pool)))
    if recipe.chooses:
        extras["real"] = torch.ones(shape)  # all of them, until the method has chosen
    return extras


def plan_orders(site: Site, recipe: Recipe, rng: np.random.Generator) -> Orders:
    """Return the pool in random order, once for each epoch; its first images fill the last batch."""
    n, each = len(site.pool), recipe.epoch_steps(site.counts)
    size, number = each * recipe.unlabeled_batch, -(-recipe.num_steps(site.counts) // each)
    slot = np.stack([np.resize(rng.permutation(n), size) for _ in range(number)])
    real = np.broadcast_to(np.arange(size) < n, slot.shape)
    return Orders(*(torch.from_numpy(np.array(a)) for a in (site.pool[slot], slot, real)))


def plan_sweep(site: Site, recipe: Recipe, rng: np.random.Generator) -> Sweep:
    """Return the pool in its own order, [batches, B_u]; its first images fill the last batch."""
    b_u, n = recipe.unlabeled_batch, len(site.pool)
    place = np.arange(-(-n // b_u) * b_u).reshape(-1, b_u)
    slot = place % n
    noise = draw_weak(rng, place.shape, recipe.size, recipe.flip)
    arrays = (site.pool[slot], slot, noise, (place < n).astype(np.float32))
    return Sweep(*(torch.from_numpy(a) for a in arrays))


def clock(round: int, steps: int, epoch_steps: int, schedule: Schedule) -> Clock:
    step = torch.arange(steps, dtype=torch.float32)
    last = ((steps - 1) // epoch_steps) * epoch_steps  # the start of the last epoch
    now, end = (torch.full((steps,), float(rounds)) for rounds in (round, schedule.rounds))
    return Clock(now, step, (step >= last).float(), torch.tensor(schedule.factors(round, steps)), end)
