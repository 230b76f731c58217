"""The local engine: one process, one device, clients one after another or on several streams."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch.utils._pytree import tree_map

from ..core.client import ClientResult, Run, Trainer, client_round, loop
from ..core.evaluate import Test, read_tests
from ..core.federation import Federation
from ..core.step import Step, Visit
from ..data.plan import ClientPlan
from ..errors import RunError
from ..seeds import stream
from ..types import Draw, Local, Server, State, Weights

CUDA_LANES = 4  # measured: more streams gain nothing and cost memory
COMPILED_LANES = 8  # as many variants of one function as the compiler accepts


class Lane(Trainer, Protocol):
    """Where one client trains at a time."""

    def scope(self) -> AbstractContextManager[Any]: ...


class HostLane(NamedTuple):
    """A thread of its own is all it needs."""

    run: Run
    visit: Visit

    def scope(self) -> AbstractContextManager[Any]:
        return nullcontext()


class Snapshot(NamedTuple):
    """Everything a run needs to go on after a round; random streams are named, so they need no state."""

    round: int
    server: Server
    clients: dict[int, State]
    velocity: State  # empty unless momentum is carried from client to client


class RoundResult(NamedTuple):
    round: int
    clients: list[int]
    tests: dict[str, Test]
    tally: NDArray[np.float32]  # [clients, 2, P]
    seconds: float


class NotFiniteError(RunError):
    """Training blew up."""


class LocalEngine:
    """Rounds on this machine's CPU or one GPU."""

    def __init__(self, federation: Federation, debug: Path | None = None) -> None:
        self.federation, self.device, self.layout = federation, federation.device, federation.layout
        set_up_torch(federation)
        config, method, net = federation.config, federation.method, federation.net
        weights = to(net.init(config.seed), self.device)
        self.snapshot = Snapshot(0, method.init(net, weights, federation.task), {}, {})
        self.carries_momentum = config.protocol == "authors"
        on_gpu, choice = self.device.type == "cuda", config.compute.compile
        compiles = debug is None and (choice == "on" or (choice == "auto" and on_gpu))
        self.test = federation.make_tester(compiles)
        self.lanes = self._lanes(compiles, debug)
        self._next: list[ClientPlan] | None = None

    def _lanes(self, compiles: bool, debug: Path | None) -> list[Lane]:
        """One lane per client that can train at the same time; the result does not depend on their number."""
        config, on_gpu = self.federation.config, self.device.type == "cuda"
        default = CUDA_LANES if on_gpu else cores()
        number = min(config.compute.lanes or default, config.train.clients_per_round)
        if self.carries_momentum or debug or (on_gpu and not compiles):
            number = 1
        if compiles and not on_gpu:
            number = min(number, COMPILED_LANES)
        if on_gpu and compiles:
            return self._captured_lanes(number)
        steps = [self.federation.make_step() for _ in range(number)]
        if compiles:
            steps = [torch.compile(step, fullgraph=True, dynamic=False) for step in steps]
        if debug:
            steps = [checked(step, debug) for step in steps]
        return [HostLane(loop(step, self.layout.size, self.device), self.federation.make_visit()) for step in steps]

    def _captured_lanes(self, number: int) -> list[Lane]:
        from .capture import CapturedLane, tick_of

        federation, method, server = self.federation, self.federation.method, self.snapshot.server
        tick = torch.compile(tick_of(federation.make_step()), fullgraph=True, dynamic=False)
        visit = torch.compile(federation.make_visit(), fullgraph=True, dynamic=False)
        sites = range(len(federation.sites))
        longest = max(sites, key=lambda k: federation.recipe.num_steps(federation.counts(k)))
        payload = method.payload(server, longest)
        local = method.start(payload, to(federation.new_state(server, longest), self.device))
        draw = to(federation.plan(1, longest).draw, self.device)
        return [CapturedLane(tick, visit, payload, local, draw, self.layout.size) for _ in range(number)]

    def rounds(self, until: int) -> Iterator[RoundResult]:
        """Train from the snapshot's round on; the snapshot is renewed before each result is handed out."""
        for round in range(self.snapshot.round + 1, until + 1):
            yield self._round(round, last=round == until)

    def _round(self, round: int, last: bool) -> RoundResult:
        begin = time.perf_counter()
        federation, method = self.federation, self.federation.method
        plans = self._next or self._plans(round)
        results = self._train(plans)
        uploads = sorted((r.upload for r in results), key=lambda u: u.client)
        rng = stream(federation.config.seed, "server", round)
        with torch.no_grad():
            server = self._remembered(method.aggregate(federation.net, self.snapshot.server, uploads, rng))
            scores = self.test(method.deploy(server))
        self._next = None if last else self._plans(round + 1)  # while the device still works
        tally = torch.stack([r.tally for r in results]).cpu().numpy()
        tests = read_tests(scores, len(federation.dataset.test.labels))
        self._check_finite(tally, plans, round, tests)
        clients = {
            **self.snapshot.clients,
            **{r.upload.client: self._kept(r.state) for r in results if r.state},
        }
        velocity = results[-1].velocity if self.carries_momentum else {}
        self.snapshot = Snapshot(round, server, clients, velocity)
        return RoundResult(
            round,
            [p.client for p in plans],
            dict(zip(federation.norms, tests, strict=True)),
            tally,
            time.perf_counter() - begin,
        )

    def _kept(self, state: State) -> State:
        """A client's state on the host, where idle clients cost no device memory; pinned for the way back."""
        return {k: t.cpu().pin_memory() if self.device.type == "cuda" else t for k, t in state.items()}

    def _remembered(self, server: Server) -> Server:
        """What is new in the server's memory of clients goes to the host as well."""
        old = self.snapshot.server.memory
        return server._replace(memory={k: s if s is old.get(k) else self._kept(s) for k, s in server.memory.items()})

    def _plans(self, round: int) -> list[ClientPlan]:
        plans = [self.federation.plan(round, client) for client in self.federation.clients_of(round)]
        if self.device.type == "cuda":
            return [p._replace(draw=pinned(p.draw), sweep=pinned(p.sweep)) for p in plans]
        return plans

    def _train(self, plans: list[ClientPlan]) -> list[ClientResult]:
        """Deal clients out to the lanes, one thread each: on a GPU it only enqueues, on a CPU it computes."""
        if len(self.lanes) == 1:
            return self._train_in(self.lanes[0], plans)
        number = len(self.lanes)
        pool = ThreadPoolExecutor(number)
        try:
            shares = list(pool.map(self._train_in, self.lanes, [plans[i::number] for i in range(number)]))
        finally:
            pool.shutdown(wait=False)  # an interrupt must not wait for the clients under way
        return [shares[i % number][i // number] for i in range(len(plans))]

    def _train_in(self, lane: Lane, plans: list[ClientPlan]) -> list[ClientResult]:
        results: list[ClientResult] = []
        velocity = self.snapshot.velocity or None
        with torch.no_grad(), lane.scope():
            for plan in plans:
                results.append(self._client(lane, plan, velocity))
                velocity = results[-1].velocity if self.carries_momentum else None
        return results

    def _client(self, lane: Lane, plan: ClientPlan, velocity: State | None = None) -> ClientResult:
        new = self.federation.new_state(self.snapshot.server, plan.client)
        known = self.snapshot.clients.get(plan.client, new)
        state = {name: known[name] for name in new}
        plan = plan._replace(sweep=to(plan.sweep, self.device))
        server = self.snapshot.server
        state = {name: t.to(self.device, non_blocking=True) for name, t in state.items()}
        result = client_round(lane, self.federation.method, server, state, plan, velocity)
        if self.carries_momentum:
            return result._replace(velocity={k: v.clone() for k, v in result.velocity.items()})
        return result._replace(velocity={})

    def _check_finite(self, tally: NDArray[np.float32], plans: list[ClientPlan], round: int, tests: list[Test]) -> None:
        bad = [f"client {p.client}" for p, t in zip(plans, tally, strict=True) if not np.isfinite(t).all()]
        bad += ["the global model"] * (not all(np.isfinite(test.loss) for test in tests))
        if bad:
            raise NotFiniteError(
                f"round {round}: the loss of {bad[0]} is not finite; the checkpoint before it is kept. "
                "Try a smaller train.lr, or --debug to save the step that fails"
            )

    def model(self) -> Weights:
        return self.federation.method.deploy(self.snapshot.server)


def cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_up_torch(federation: Federation) -> None:
    """Process-wide switches of the framework."""
    if federation.device.type == "cpu":  # clients share the cores, so each operation takes one
        torch.set_num_threads(federation.config.compute.threads or 1)
    torch._dynamo.reset()  # a step of an earlier run in this process would count as a recompilation
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False  # fp32 means fp32


def to(tree: Any, device: torch.device | str) -> Any:
    """On the device the engine computes on; nothing waits for it."""
    return tree_map(lambda t: t if t is None else t.to(device, non_blocking=True), tree)


def pinned(tree: Any) -> Any:
    return tree_map(lambda t: t if t is None else t.pin_memory(), tree)


def checked(step: Step, folder: Path) -> Step:
    """The step with a check of every result; the inputs of one that fails are saved."""

    def run(server: Server, local: Local, tally: torch.Tensor, draw: Draw) -> tuple[Local, torch.Tensor]:
        after, new = step(server, local, tally, draw)
        values = [*after.weights.params.values(), *after.weights.buffers.values(), new]
        if not all(bool(torch.isfinite(v).all()) for v in values):
            path = folder / "failed-step.safetensors"
            save_file(named(server=server, local=local, draw=draw), path)
            where = f"round {int(draw.clock.round)}, step {int(draw.clock.step) + 1} of a client"
            raise NotFiniteError(f"{where} gave a value that is not finite; its inputs are in {path}")
        return after, new

    return run


def named(**trees: Any) -> State:
    """Tensors of nested records under dotted names."""
    flat: State = {}
    for name, tree in trees.items():
        if isinstance(tree, torch.Tensor):
            flat[name] = tree.clone(memory_format=torch.contiguous_format)
            continue
        items = tree.items() if isinstance(tree, dict) else tree._asdict().items()
        for key, value in items:
            flat |= named(**{f"{name}.{key}": value})
    return flat
