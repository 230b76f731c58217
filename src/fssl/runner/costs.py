"""The cost of a run on this machine, estimated before it starts: time, memory, disk and traffic."""

import resource
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves

from ..config import Config
from ..console import short_duration, size_text
from ..core.assembly import make_probe, make_recipe, make_server_optimizer
from ..core.compatibility import by_class_in
from ..core.device import choose_device
from ..core.dry_step import Sizes, sketch, try_step
from ..core.experiment import Experiment
from ..records.rounds import Line, of_last
from ..system.machine import cores, memory
from ..training.plan import Recipe
from ..types import Counts, Task

SMALL, LARGER = 2, 6  # labeled images of the two timed steps
PATIENCE = 3.0  # seconds for the smaller step; if it takes longer, the larger one is skipped
DAY = 86_400
LINE = 3_000  # bytes of a round's line in the record
ROUND = 0.05  # seconds of a round for its record, checkpoint and the start of its lanes
TEST = 3  # a step computes about three times as long per image as a test


class Cost(NamedTuple):
    """The cost of a run on this machine.

    Attributes:
        rounds: Rounds of the run.
        steps: Training steps in a round, of all clients together.
        seconds: Seconds per round; None where only training shows them, as on a GPU.
        memory: Bytes.
        disk: Bytes.
        down: Bytes that a client receives in a round.
        up: Bytes that a client sends in a round.
    """

    rounds: int
    steps: float
    seconds: float | None
    memory: float
    disk: float
    down: int
    up: int

    @property
    def line(self) -> str:
        """Return the cost in one line."""
        steps = f"about {self.steps:,.0f} steps per round"
        total = "" if self.seconds is None else f", {short_duration(self.rounds * self.seconds)} in all"
        per_round = (
            "the first round shows its time" if self.seconds is None else f"{short_duration(self.seconds)} per round"
        )
        sizes = f"memory {size_text(self.memory)}, disk {size_text(self.disk)}"
        traffic = f"a client receives {size_text(self.down)} and sends {size_text(self.up)} per round"
        return f"estimate for this machine: {steps}, {per_round}{total}; {sizes}; {traffic}"

    @property
    def warnings(self) -> list[str]:
        """Return advice for a run that takes days, or needs more memory than is available."""
        said = [] if self.seconds is None else days_warning(self.rounds * self.seconds)
        if self.memory > memory():
            said.append(
                f"this run needs about {size_text(self.memory)} of memory, and the machine has {size_text(memory())};"
                " use a smaller compute.lanes or train.batch"
            )
        return said


def days_warning(seconds: float) -> list[str]:
    """Return advice for a run that takes more than a day; nothing for others."""
    if seconds <= DAY:
        return []
    return [
        f"this run takes days here: about {short_duration(seconds)}; use a GPU (compute.device = 'cuda'), or a smaller"
        " train.rounds, train.steps_per_round, train.unlabeled_ratio or model.width"
    ]


def recorded_cost(config: Config, lines: Sequence[Line]) -> list[str]:
    """Return the time that a run still takes, from the recorded time of its newest rounds."""
    seconds = median(line["timing"]["seconds"] for line in of_last(lines))
    left = (config.rounds - lines[-1]["round"]) * seconds
    return [
        f"estimate from its finished rounds: {short_duration(seconds)} per round,"
        f" {short_duration(left)} for the others",
        *days_warning(left),
    ]


def cost_lines(
    experiment: Experiment, is_loaded: bool = True, runs: int = 1, at_once: int = 1, rounds: int | None = None
) -> list[str]:
    """Return the cost of a run on this machine as lines; with several runs, also that of all of them.

    Args:
        experiment: The run, with its share of the machine.
        is_loaded: Whether the images are loaded; otherwise clients count as equal.
        runs: The number of runs.
        at_once: How many of them train at the same time.
        rounds: Count only so many rounds; default: all.
    """
    try:
        cost = estimate(experiment, is_loaded)
    except Exception:  # an error in an estimate must not stop the run
        return []
    cost = cost if rounds is None else cost._replace(rounds=rounds)
    lines = [cost.line, *cost.warnings]
    if runs > 1 and cost.seconds is not None:
        how = "one after another" if at_once == 1 else f"{at_once} at a time"
        lines.append(
            f"{runs} runs like this one, {how}: {short_duration(ceil(runs / at_once) * cost.rounds * cost.seconds)}"
        )
    return lines


class Measured(NamedTuple):
    """The cost of one step."""

    seconds: float
    num_bytes: float  # of memory, for tensors

    def at(self, images: float, other: "Measured", others: float, wanted: float) -> "Measured":
        """Extrapolate the costs of steps with `images` and `others` images to a step with `wanted` images."""
        share = (wanted - images) / (others - images)
        # Noise must not make the estimate smaller than the larger measurement.
        return Measured(*(max(a + share * (b - a), b) for a, b in zip(self, other, strict=True)))


def estimate(experiment: Experiment, is_loaded: bool) -> Cost:
    """Estimate the cost of a run; if its images are loaded, use each client's number of images."""
    config, card = experiment.config_here, experiment.card
    recipe = make_recipe(config, experiment.method, card)
    counts = [site.counts for site in experiment.holdings.sites] if is_loaded else [even_share(config)]
    drawn = config.train.clients_per_round * experiment.method.needs.groups
    steps = drawn * sum(map(recipe.num_steps, counts)) / len(counts)
    down, up = traffic(experiment, counts[0])
    weights = sum(t.nbytes for t in tree_leaves(experiment.whole_net.first))
    images = (card.num_train + card.num_test) * card.size**2 * card.channels
    on_cpu = choose_device(config).type == "cpu"
    lanes = num_lanes(config) if on_cpu else 1
    step = step_cost(experiment, recipe)
    test = card.num_test * step.seconds / images_of(recipe) / TEST
    seconds = (steps * step.seconds + test) / lanes + ROUND if on_cpu else None
    # The files: the final model, the newest checkpoint with the server's extras, and the record.
    disk = weights + 2 * down + config.rounds * LINE + (0 if card.is_embedded else images)
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Cost(config.rounds, steps, seconds, held + images + lanes * (step.num_bytes + down), disk, down, up)


def even_share(config: Config) -> Counts:
    """Return the number of images of each client if all clients have the same."""
    clients = max(1, config.partition.clients)
    pool = max(1, config.card.num_train // clients)
    return Counts(config.labels_per_class * config.card.num_classes // clients if config.picks_labels else pool, pool)


def num_lanes(config: Config) -> int:
    """Return how many clients train at a time on a CPU."""
    if config.protocol == "authors":  # momentum passes from one client to the next
        return 1
    return min(config.compute.lanes or cores(), config.train.clients_per_round, cores())


def images_of(recipe: Recipe) -> int:
    """Return the number of images that a step computes, over all views."""
    return sum(recipe.images(view) for view in recipe.views)


class Traffic(NamedTuple):
    """The bytes that a client receives and sends in a round."""

    down: int
    up: int


def traffic(experiment: Experiment, counts: Counts) -> Traffic:
    """Return a client's traffic in a round, without its own state."""
    method = experiment.method
    task = Task(experiment.card.num_classes, counts.pool, experiment.config.seed, experiment.card.size)
    with sketch(method, experiment.net, task, counts, values=True) as (payload, local):
        upload = method.upload(0, payload, local, counts)
        optimizer = make_server_optimizer(experiment.config)
        payload = optimizer.broadcast(payload, optimizer.start(payload.weights.params))
        return Traffic(num_bytes(payload), num_bytes((upload.weights, upload.extras)))


class Kept:
    """Counts the bytes that the forward pass keeps for the backward pass, which is most of a step's memory."""

    def __init__(self) -> None:
        self._storages: dict[int, int] = {}  # several tensors may share one

    @property
    def num_bytes(self) -> int:
        return sum(self._storages.values())

    def count(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self._storages[storage.data_ptr()] = storage.nbytes()
        return tensor


def num_bytes(tree: Any) -> int:
    return sum(t.nbytes for t in tree_leaves(tree) if isinstance(t, Tensor))


def step_cost(experiment: Experiment, recipe: Recipe) -> Measured:
    """Measure steps with few images, and extrapolate to the run's batch size."""
    small, larger = (replace(recipe, batch=min(recipe.batch, batch)) for batch in (SMALL, LARGER))
    first, wanted = measured(experiment, small), images_of(recipe)
    if images_of(larger) == images_of(small) or first.seconds > PATIENCE:
        scale = wanted / images_of(small)
        return Measured(first.seconds * scale, first.num_bytes * scale)
    return first.at(images_of(small), measured(experiment, larger), images_of(larger), wanted)


def measured(experiment: Experiment, recipe: Recipe) -> Measured:
    """Measure a step on black images on a CPU, twice: first for memory, as a warm-up, then for time."""
    config, method, card = experiment.config, experiment.method, experiment.card
    slots = recipe.unlabeled_batch
    task = Task(card.num_classes, slots, config.seed, card.size)
    sizes = Sizes(task, Counts(1, slots), recipe, card, by_class_in(config), values=True)
    step = partial(try_step, method, experiment.net, sizes, make_probe(config, method))
    threads = torch.get_num_threads()
    torch.set_num_threads(config.compute.threads or 1)
    try:
        kept = Kept()
        with saved_tensors_hooks(kept.count, lambda tensor: tensor):
            step()
        begin = time.perf_counter()
        step()
        return Measured(time.perf_counter() - begin, kept.num_bytes)
    finally:
        torch.set_num_threads(threads)
