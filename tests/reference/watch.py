"""Two rounds of the engine in float64, with what the plain references need as input and must give as output."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import plain
import torch
from torch import Tensor

from fssl.augment.policies import weak
from fssl.core.client import at
from fssl.core.experiment import Experiment, prepare
from fssl.core.federation import Federation
from fssl.core.step import StepMaker
from fssl.data.sources import Dataset, load
from fssl.engines.local import LocalEngine
from fssl.probes.training import losses_only
from fssl.training.plan import ClientPlan
from fssl.types import Server, State, Trace, Weights
from helpers.small import tiny_config

HERE = Path(__file__).parent
SEED, CLASSES, BATCH, EPOCHS = 9, 4, 4, 1
DIGITS = 1e-12
FEDERATION = (
    f"seed={SEED}",
    "data.labels_per_class=4",
    f"model.name={HERE / 'double.py'}:resnet8",
    "partition.kind=dirichlet",  # sizes and shares of labeled images differ between clients
    "partition.alpha=1",
    f"train.batch={BATCH}",
    f"train.local_epochs={EPOCHS}",
    "train.clients_per_round=3",
    "compute.lanes=1",  # steps are watched one after another
)
OUR_NAMES = {"conv1.": "conv.", "bn1.": "bn.", "fc.": "head.linear."}  # of the reference's outer layers


def images() -> Dataset:
    return load("synthetic", num_classes=CLASSES, size=8, channels=3, train_per_class=16, test_per_class=10)


@contextmanager
def in_double() -> Iterator[None]:
    """Let methods make their tables in float64, too."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


class WatchedFederation(Federation):
    """A federation that keeps what each step shows to the probes."""

    def __init__(self, experiment: Experiment) -> None:
        self.traces: list[Trace] = []
        super().__init__(experiment)

    @property
    def steps(self) -> StepMaker:
        def probe(trace: Trace, truth: Tensor) -> Any:
            self.traces.append(trace)
            return losses_only(trace, truth)

        return replace(super().steps, probe=probe)


class After(NamedTuple):
    """What the engine holds after a round."""

    weights: State
    server: Server
    clients: dict[int, State]
    accuracy: float


class Observed:
    """Two rounds of the engine."""

    def __init__(self, settings: Sequence[str], data: Dataset) -> None:
        knowing = "partition.labels=knowing-clients" in settings  # whose labels are not counted by class
        usual = [word for word in FEDERATION if not (knowing and word.startswith("data."))]
        self.federation = WatchedFederation(prepare(tiny_config(*usual, *settings), data))
        with in_double():
            engine = LocalEngine(self.federation)
            self.first = engine.snapshot.server
            self.traces = self.federation.traces
            self.traces.clear()  # of the step that is tried on shapes alone
            self.after = [self._after(engine, done.tests["train_norm"].accuracy) for done in engine.rounds(2)]

    def _after(self, engine: LocalEngine, accuracy: float) -> After:
        return After(together(engine.model()), engine.snapshot.server, engine.snapshot.clients, accuracy)

    def votes(self, name: str) -> Tensor:
        """One kind of vote in all steps."""
        return torch.cat([trace.votes[name] for trace in self.traces])

    @cached_property
    def visits(self) -> list[list[plain.Visit]]:
        """Clients and views, from the plan that the engine follows too."""
        drawn = self.federation.drawn_clients
        return [[self.visit(round, client) for client in drawn(round)] for round in (1, 2)]

    def visit(self, round: int, client: int) -> plain.Visit:
        counts, plan = self.federation.counts(client), self.federation.plan(round, client)
        batches = [self.batch(plan, i) for i in range(len(plan.draw.x_row))]
        return plain.Visit(client, counts.labeled, counts.pool, batches, self.sweep(plan))

    def batch(self, plan: ClientPlan, step: int) -> plain.Batch:
        b = self.federation.pool.batch(at(plan.draw, step), self.federation.recipe.views, with_truth=False)
        views = {name: view.double() for name, view in b.views.items()}
        inputs = views["x"], b.y.tolist(), views["u_weak"], views["u_strong"], b.u_slot.tolist()
        return plain.Batch(*inputs, views.get("x_strong"), bool(b.clock.last_epoch))

    def sweep(self, plan: ClientPlan) -> Tensor | None:
        """The pool in its own order; what fills the last batch is left out."""
        if plan.sweep is None:
            return None
        views = self.federation.pool.view(weak, plan.sweep.u_row.flatten(), plan.sweep.noise.flatten(0, 1))
        return views[: plan.counts.pool].double()

    def test_images(self) -> tuple[Tensor, list[int]]:
        images = torch.from_numpy(self.federation.test.images)
        return self.federation.norms["train_norm"](images).double(), self.federation.test.labels.tolist()


def together(weights: Weights) -> State:
    return {**weights.params, **weights.buffers}


def our_name(name: str) -> str:
    for theirs, ours in OUR_NAMES.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


class Difference(NamedTuple):
    what: str
    step: int
    size: float  # the largest one of a tensor, relative to its largest value


def difference(what: str, step: int, ours: Any, theirs: Any) -> Difference:
    a, b = (torch.as_tensor(t, dtype=torch.float64).detach() for t in (ours, theirs))
    assert a.shape == b.shape, what
    scale = torch.maximum(a.abs().max(), b.abs().max())
    return Difference(what, step, float((a - b).abs().max() / scale) if scale else 0.0)


def first_beyond(found: Iterator[Difference], digits: float = DIGITS) -> Difference | None:
    """The first number on which both sides disagree."""
    return next((d for d in found if not d.size <= digits), None)
