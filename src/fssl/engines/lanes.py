"""Lanes: clients on one device, one after another, or in several threads or streams."""

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cached_property, partial
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..core.attack import attacked_upload
from ..core.client import ClientResult, RunSteps, Trainer, at, client_round, loop, visit_all
from ..core.dry_step import kept_mismatch
from ..core.federation import Federation
from ..core.site_scores import SiteScore
from ..core.static_norm import Faster, NormSums, as_it_is
from ..core.step import Learn, Look, Show, Start, Step, StepMaker, Visit
from ..data.cache import cache_folder
from ..errors import RunError, is_out_of_memory
from ..models import has_kernels, switch_kernels, switch_tf32_off
from ..system.machine import cores
from ..training.plan import ClientPlan
from ..types import Draw, Local, Payload, State, Sweep, Weights, clone, drop, put, take
from .failure import checked, client_error
from .named_tensors import pinned, to
from .snapshot import Snapshot
from .stopwatch import spending

CUDA_LANES = 4  # measured: more streams are no faster and cost memory
LONG_STEP = 0.001  # seconds
OF_TRITON = "TRITON_CACHE_DIR"
COMPILED, OF_TORCH = "TORCHINDUCTOR_CACHE_DIR", "torchinductor_"  # PyTorch's variable, and its default's prefix
KEPT_MOMENTUM = "optimizer."  # prefix of a client's momentum in its kept state


class Lane(Trainer, Protocol):
    """A place that trains one client at a time."""

    @property
    def step_seconds(self) -> float: ...  # 0 if it was not measured
    def scope(self) -> AbstractContextManager[Any]: ...  # of a round
    def turn(self) -> AbstractContextManager[Any]: ...  # of one client, where other lanes have the same scope


class HostLane(NamedTuple):
    """A lane on the host; it needs only a thread."""

    start: Start
    run: RunSteps
    sweep: Visit
    look: Look
    step_seconds: float = 0.0

    def scope(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def turn(self) -> AbstractContextManager[Any]:
        return nullcontext()


class First(NamedTuple):
    """The inputs of a client's first round, as an example for compiling."""

    payload: Payload
    state: State
    local: Local
    draw: Draw
    sweep: Sweep | None
    tally: Tensor


class Lanes:
    """Clients on this machine's CPU or one GPU: one after another, or several at a time."""

    def __init__(self, federation: Federation, debug: bool = False, most: int | None = None) -> None:
        """With `debug`, check every step."""
        self.federation, self.device, self.debug = federation, federation.device, debug
        self.lanes = self._lanes(debug, most)
        self._ahead: tuple[int, list[ClientPlan]] = (0, [])

    def _lanes(self, debug: bool, most: int | None) -> list[Lane]:
        """Return one lane per client that can train at the same time; results do not depend on their number."""
        steps, number = self.federation.steps, num_lanes(self.federation, debug, most)
        if compiles(self.federation, debug) and self.device.type == "cuda":
            return self._captured_lanes(number)
        show, look, layout = steps.show(), steps.look(), steps.layout
        learn = self._compiled_learn(steps, show) if compiles(self.federation, debug) else steps.learn
        halves = [checked(learn(), layout) if debug else learn() for _ in range(number)]
        runs = [loop(half, show, layout.size, self.device) for half in halves]
        return [HostLane(steps.method.start, run, visit_all(steps.visit()), look) for run in runs]

    def _compiled_learn(self, steps: StepMaker, show: Show) -> Callable[[], Learn]:
        with spending("importing"):
            from .compiler import in_place

        first = self._first()
        return in_place(steps.learn(), first.payload, first.local, first.tally, show(at(first.draw, 0)))

    def _captured_lanes(self, number: int) -> list[Lane]:
        with spending("importing"):
            from .capture import Buffers, CapturedLane, Codes, make_tick, make_visit_in_place
            from .compiler import compiled

        steps, (payload, state, local, draw, sweep, tally) = self.federation.steps, self._first()
        i, batch = torch.zeros(1, dtype=torch.long, device=self.device), sweep and at(sweep, 0)
        with ThreadPoolExecutor(1) as meanwhile, quick_turns():
            if has_kernels(tally) and not Path(os.environ.get(OF_TRITON, "")).is_dir():
                # Without a cache, each kernel is compiled at its first call: ten seconds in all.
                meanwhile.submit(self._try_out, steps.step(), payload, local, tally, at(draw, 0))
            tick = compiled(make_tick(steps.step()), payload, local, tally, draw, i)
            visit = None if batch is None else compiled(make_visit_in_place(steps.visit()), payload, local, batch)
        codes, like = Codes(tick, visit, steps.method.start, steps.look()), Buffers(payload, state, local, batch)
        return [CapturedLane(codes, like, draw, tally) for _ in range(number)]

    def _try_out(self, step: Step, *given: Any) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream(self.device)):
            step(*given)

    @torch.no_grad()
    def _first(self) -> First:
        """Return the inputs of the first round of the client with the most steps, on the device."""
        federation, plan = self.federation, self.federation.longest_plan()
        server = federation.first_server()
        payload = federation.payload(server, federation.server_optimizer.start(server.weights.params), plan.client)
        state = to(federation.new_state(payload, plan.client), self.device)
        local, tally = federation.method.start(payload, state), torch.zeros(2, federation.layout.size)
        return First(payload, state, local, *to((plan.draw, plan.sweep, tally), self.device))

    @cached_property
    def client_sums(self) -> Callable[[Weights, int], NormSums]:
        """Return the function that measures BatchNorm's statistics of a model on one client's images."""
        return self.federation.make_client_measure(faster(self.federation, compiles(self.federation, self.debug)))

    def measure(self, round: int, weights: Weights) -> Iterable[NormSums]:
        """Return BatchNorm's statistics of each client, one after another in this process."""
        return (self.client_sums(weights, client) for client in self.federation.holders)

    @cached_property
    def site_score(self) -> Callable[[Weights, int], SiteScore]:
        """Return the function that tests a model on one client's local images."""
        return self.federation.make_site_score()

    def score(self, round: int, weights: Weights) -> Iterable[SiteScore]:
        """Return the model's score on each client's images, one after another in this process."""
        return (self.site_score(weights, client) for client in self.federation.holders)

    def prepare(self, round: int, clients: list[int]) -> None:
        self._ahead = round, self.plans(round, clients)

    def plans(self, round: int, clients: list[int]) -> list[ClientPlan]:
        plans = [self.federation.plan(round, client) for client in clients]
        if self.device.type == "cuda":
            return [p._replace(sweep=pinned(p.sweep), orders=pinned(p.orders)) for p in plans]
        return plans

    def close(self) -> None:
        """Do nothing: threads end with their round."""

    def train(self, round: int, clients: list[int], snapshot: Snapshot) -> Iterable[ClientResult]:
        """Train one client after another, each on the next lane, or with a thread for each lane."""
        plans = self._ahead[1] if self._ahead[0] == round else self.plans(round, clients)
        if self._needs_threads():
            return self._train_in_threads(plans, snapshot)
        results: list[ClientResult] = []
        velocity = snapshot.velocity or None
        with torch.no_grad(), ExitStack() as scopes:
            for lane in self.lanes:
                scopes.enter_context(lane.scope())
            for plan, lane in zip(plans, cycle(self.lanes), strict=False):
                with lane.turn():
                    results.append(self.client(lane, plan, *self.sent(plan.client, snapshot), velocity))
                velocity = results[-1].velocity or None  # empty unless clients pass it on
        return results

    def _needs_threads(self) -> bool:
        """Return whether one thread would wait for one lane while the others are idle."""
        # A GPU queues about 26 steps in advance. If the GPU finishes those quickly, threads only wait for each other.
        return len(self.lanes) > 1 and (self.device.type == "cpu" or self.lanes[0].step_seconds > LONG_STEP)

    def _train_in_threads(self, plans: list[ClientPlan], snapshot: Snapshot) -> list[ClientResult]:
        """Train with one thread per lane: on a GPU it only enqueues work, on a CPU it computes."""
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
        """Return the payload for a client, and the state it kept if it participated before."""
        return self.federation.payload(snapshot.server, snapshot.optimizer, client), snapshot.clients.get(client)

    def client(
        self, lane: Lane, plan: ClientPlan, payload: Payload, known: State | None, velocity: State | None = None
    ) -> ClientResult:
        """Train one client's round and return its result. `known` is its kept state, if it participated before."""
        federation, round = self.federation, int(plan.draw.clock.round[0])
        if known and self.device.type == "cpu":
            known = clone(known)  # tensors of a mapped file may be unaligned, and kernels may then give other bits
        try:
            new, kept, own = federation.new_state(payload, plan.client), drop(KEPT_MOMENTUM, known or {}), velocity
            if mismatch := kept_mismatch(new, kept):
                raise RunError(mismatch)
            state = {name: (kept or new)[name].to(self.device, non_blocking=True) for name in new}
            if federation.keeps_momentum:
                own = to(take(KEPT_MOMENTUM, known or {}), self.device) or None
            plan = plan._replace(sweep=to(plan.sweep, self.device), orders=to(plan.orders, self.device))
            result = client_round(lane, federation.method, payload, state, plan, own)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise client_error(round, plan.client, error) from error
        result = result._replace(upload=attacked_upload(federation.config, round, result.upload, payload))
        if federation.carries_momentum:
            return result._replace(velocity=clone(result.velocity))
        if federation.keeps_momentum:
            result = result._replace(state={**result.state, **put(KEPT_MOMENTUM, clone(result.velocity))})
        return result._replace(velocity={})


@contextmanager
def quick_turns() -> Iterator[None]:
    """Set the interpreter's switch interval to 0.1 ms inside the context."""
    # A thread that calls many operations waits for the interpreter at each of them.
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0001)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def name_compilers_folder() -> None:
    """Name a cache folder for compilers, next to decoded datasets, unless the environment names one."""
    # Importing PyTorch's compiler would otherwise set another folder.
    if not Path(os.environ.get(COMPILED, OF_TORCH)).name.startswith(OF_TORCH):
        return
    folder = os.environ[COMPILED] = str(cache_folder() / "compiled")
    os.environ.setdefault(OF_TRITON, f"{folder}/triton")  # for fssl's Triton kernels, too


def num_lanes(federation: Federation, debug: bool = False, most: int | None = None) -> int:
    """Return how many clients train at once: at most those of a round."""
    config, on_gpu, is_compiled = federation.config, federation.device.type == "cuda", compiles(federation, debug)
    if federation.carries_momentum or debug or (on_gpu and not is_compiled):
        return 1
    number = min(
        config.compute.lanes or (CUDA_LANES if on_gpu else cores()),
        config.train.clients_per_round if most is None else most,
    )
    return number


def compiles(federation: Federation, debug: bool = False) -> bool:
    """Return whether steps and tests are compiled."""
    choice = federation.config.compute.compile
    return not debug and (choice == "on" or (choice == "auto" and federation.device.type == "cuda"))


def faster(federation: Federation, is_compiled: bool) -> Faster:
    """Return what speeds up a pure function of tensors: graph capture on a GPU, the compiler on a CPU, or nothing."""
    if not is_compiled:
        return as_it_is
    with spending("importing"):
        from .compiler import ForShapes, compiled

    if federation.device.type == "cpu":
        return partial(ForShapes, faster=compiled)
    from .capture import captured

    return partial(ForShapes, faster=captured)


def set_up_torch(federation: Federation) -> None:
    """Set PyTorch's process-wide switches."""
    name_compilers_folder()
    if federation.device.type == "cuda":
        torch.cuda.set_device(federation.device)
    else:  # clients share the cores, so each operation takes one
        torch.set_num_threads(min(federation.config.compute.threads or 1, cores()))
    torch.backends.cudnn.benchmark = True
    switch_tf32_off()
    switch_kernels(federation.device, federation.config.compute.kernels == "on")
    warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)  # the compiler recommends them
