"""Lanes: clients on one device, one after another, or on several threads or streams."""

import os
import sys
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from ..core.client import ClientResult, RunSteps, Trainer, at, client_round, loop, visit_all
from ..core.dry_step import misfit_of_kept
from ..core.federation import Federation
from ..core.static_norm import Faster, NormSums, as_it_is, compiled
from ..core.step import Look, Visit
from ..data.cache import cache_folder
from ..errors import RunError, is_out_of_memory
from ..models import switch_kernels, switch_tf32_off
from ..system.machine import cores
from ..training.plan import ClientPlan
from ..types import Payload, State, Weights, clone, drop, put, take
from .failure import checked, client_error
from .named_tensors import pinned, to
from .snapshot import Snapshot

CUDA_LANES = 4  # measured: more streams gain nothing and cost memory
KEPT_MOMENTUM = "optimizer."  # what a client keeps beside its method's state, if it keeps momentum
COMPILED_LANES = 8  # as many variants of one function as the compiler accepts


class Lane(Trainer, Protocol):
    """Where one client trains at a time."""

    def scope(self) -> AbstractContextManager[Any]: ...


class HostLane(NamedTuple):
    """A thread of its own is all it needs."""

    run: RunSteps
    sweep: Visit
    look: Look

    def scope(self) -> AbstractContextManager[Any]:
        return nullcontext()


class Lanes:
    """Clients on this machine's CPU or one GPU: one after another, or several at a time."""

    def __init__(
        self, federation: Federation, folder: Path | None = None, debug: bool = False, most: int | None = None
    ) -> None:
        """A step that fails is saved in `folder`; with `debug`, every step is checked."""
        self.federation, self.device, self.folder, self.debug = federation, federation.device, folder, debug
        self.lanes = self._lanes(debug, most)
        self._ahead: tuple[int, list[ClientPlan]] = (0, [])

    def _lanes(self, debug: bool, most: int | None) -> list[Lane]:
        """One lane per client that can train at the same time; the result does not depend on their number."""
        on_gpu, is_compiled = self.device.type == "cuda", compiles(self.federation, debug)
        number = num_lanes(self.federation, debug, most)
        if on_gpu and is_compiled:
            from .capture import compiled_somehow

            return compiled_somehow(lambda: self._captured_lanes(number))
        steps = self.federation.steps
        show, look, layout, learn = steps.show(), steps.look(), steps.layout, [steps.learn() for _ in range(number)]
        if is_compiled:
            learn = [torch.compile(half, fullgraph=True, dynamic=False) for half in learn]
        if debug:
            learn = [checked(half, layout) for half in learn]
        runs = [loop(half, show, layout.size, self.device) for half in learn]
        return [HostLane(run, visit_all(steps.visit()), look) for run in runs]

    def _captured_lanes(self, number: int) -> list[Lane]:
        from .capture import Buffers, CapturedLane, make_tick, make_visit_in_place

        federation, steps, plan = self.federation, self.federation.steps, self.federation.longest_plan()
        tick = torch.compile(make_tick(steps.step()), fullgraph=True, dynamic=False)
        visit = torch.compile(make_visit_in_place(steps.visit()), fullgraph=True, dynamic=False)
        server = federation.first_server()
        payload = federation.payload(server, federation.server_optimizer.start(server.weights.params), plan.client)
        local = federation.method.start(payload, to(federation.new_state(payload, plan.client), self.device))
        like = Buffers(payload, local, to(plan.draw, self.device), plan.sweep and to(at(plan.sweep, 0), self.device))
        return [CapturedLane(tick, visit, steps.look(), like, steps.layout.size) for _ in range(number)]

    @cached_property
    def client_sums(self) -> Callable[[Weights, int], NormSums]:
        """What measures BatchNorm's statistics of a model on the images of one client; few runs ask for it."""
        return self.federation.make_client_measure(faster(self.federation, compiles(self.federation, self.debug)))

    def measure(self, round: int, weights: Weights) -> Iterable[NormSums]:
        """One client after another, in this process."""
        return (self.client_sums(weights, client) for client in self.federation.holders)

    def prepare(self, round: int, clients: list[int]) -> None:
        self._ahead = round, self.plans(round, clients)

    def plans(self, round: int, clients: list[int]) -> list[ClientPlan]:
        plans = [self.federation.plan(round, client) for client in clients]
        if self.device.type == "cuda":
            return [p._replace(draw=pinned(p.draw), sweep=pinned(p.sweep), orders=pinned(p.orders)) for p in plans]
        return plans

    def close(self) -> None:
        """Nothing: threads end with their round."""

    def train(self, round: int, clients: list[int], snapshot: Snapshot) -> Iterable[ClientResult]:
        """Deal clients out to the lanes, one thread each: on a GPU it only enqueues, on a CPU it computes."""
        plans, number = self._ahead[1] if self._ahead[0] == round else self.plans(round, clients), len(self.lanes)
        if number > 1:
            return self._train_at_once(plans, snapshot)
        results, velocity, (lane,) = [], snapshot.velocity or None, self.lanes
        with torch.no_grad(), lane.scope():
            for plan in plans:
                results.append(self.client(lane, plan, *self.sent(plan.client, snapshot), velocity))
                velocity = results[-1].velocity or None  # empty, unless it passes from one to the next
        return results

    def _train_at_once(self, plans: list[ClientPlan], snapshot: Snapshot) -> list[ClientResult]:
        number = len(self.lanes)

        def share(lane: Lane, plans: list[ClientPlan]) -> list[ClientResult]:
            with torch.no_grad(), lane.scope():
                return [self.client(lane, plan, *self.sent(plan.client, snapshot)) for plan in plans]

        pool = ThreadPoolExecutor(number)
        try:
            made = list(pool.map(share, self.lanes, [plans[i::number] for i in range(number)]))
        finally:
            pool.shutdown(wait=False)  # an interrupt must not wait for the clients under way
        return [made[i % number][i // number] for i in range(len(plans))]

    def sent(self, client: int, snapshot: Snapshot) -> tuple[Payload, State | None]:
        """What a client begins its round with: what goes down to it, and what it kept if it took part before."""
        return self.federation.payload(snapshot.server, snapshot.optimizer, client), snapshot.clients.get(client)

    def client(
        self, lane: Lane, plan: ClientPlan, payload: Payload, known: State | None, velocity: State | None = None
    ) -> ClientResult:
        """One client's round. `known` is what it kept, if it took part before."""
        federation, round = self.federation, int(plan.draw.clock.round[0])
        if known and self.device.type == "cpu":
            known = clone(known)  # tensors of a mapped file begin anywhere, and kernels may compute otherwise there
        try:
            new, kept, own = federation.new_state(payload, plan.client), drop(KEPT_MOMENTUM, known or {}), velocity
            if misfit := misfit_of_kept(new, kept):
                raise RunError(misfit)
            state = {name: (kept or new)[name].to(self.device, non_blocking=True) for name in new}
            if federation.keeps_momentum:
                own = to(take(KEPT_MOMENTUM, known or {}), self.device) or None
            plan = plan._replace(sweep=to(plan.sweep, self.device), orders=to(plan.orders, self.device))
            result = client_round(lane, federation.method, payload, state, plan, own)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise client_error(federation, round, plan.client, error, self.folder) from error
        if federation.carries_momentum:
            return result._replace(velocity=clone(result.velocity))
        if federation.keeps_momentum:
            result = result._replace(state={**result.state, **put(KEPT_MOMENTUM, clone(result.velocity))})
        return result._replace(velocity={})


def num_lanes(federation: Federation, debug: bool = False, most: int | None = None) -> int:
    """How many clients train at once, at most as many as take part."""
    config, on_gpu, is_compiled = federation.config, federation.device.type == "cuda", compiles(federation, debug)
    if federation.carries_momentum or debug or (on_gpu and not is_compiled):
        return 1
    number = min(
        config.compute.lanes or (CUDA_LANES if on_gpu else cores()),
        config.train.clients_per_round if most is None else most,
    )
    return min(number, COMPILED_LANES) if is_compiled and not on_gpu else number


def compiles(federation: Federation, debug: bool = False) -> bool:
    """Whether steps and tests are compiled."""
    choice = federation.config.compute.compile
    return not debug and (choice == "on" or (choice == "auto" and federation.device.type == "cuda"))


def faster(federation: Federation, is_compiled: bool) -> Faster:
    """What makes a pure function of tensors faster here: on a GPU a graph, on a CPU the compiler, or nothing."""
    if not is_compiled:
        return as_it_is
    if federation.device.type == "cuda":
        from .capture import Captured

        return Captured
    return compiled


def set_up_torch(federation: Federation) -> None:
    """Process-wide switches of the framework."""
    if federation.device.type == "cuda":
        from .capture import name_operations_only

        torch.cuda.set_device(federation.device)
        name_operations_only()
    else:  # clients share the cores, so each operation takes one
        torch.set_num_threads(federation.config.compute.threads or 1)
    # What a compiler made is kept beside decoded datasets, for the next run of this shape.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder(None) / "compiled"))
    if "torch._dynamo" in sys.modules:  # a step of an earlier run in this process would count as a recompilation
        torch._dynamo.reset()
    torch.backends.cudnn.benchmark = True
    switch_tf32_off()
    switch_kernels(federation.device, federation.config.compute.kernels == "on")
    warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)  # the compiler would rather have them
