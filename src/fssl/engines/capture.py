"""A client's steps on a CUDA device: the compiled step captured in a graph over fixed buffers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch._inductor import config as inductor
from torch._inductor.exc import InductorError, OperatorIssue
from torch.utils._pytree import tree_map

from ..core.client import at, each
from ..core.step import Look, Step, Visit
from ..types import Draw, Local, Payload, Sweep

T = TypeVar("T")


def compiled_somehow(build: Callable[[], T]) -> T:
    """What `build` makes with the compiler; where the compiler fails, once more with one of its searches off.

    Before torch 2.13 the search for a better order of loops fails for some steps (of `flfl` on a small network).
    """
    try:
        return build()
    except InductorError:
        if not inductor.loop_ordering_after_fusion:
            raise
        inductor.loop_ordering_after_fusion = False
        torch._dynamo.reset()
        return build()


def name_operations_only() -> None:
    """Let the compiler's messages name an operation without its inputs.

    Before torch 2.13 it writes them out for every operation of ours, for a log that is off. Each input is written with
    its own inputs: with every layer of a residual network twice the text, and ResNet-18 is never compiled.
    """
    OperatorIssue.operator_str = staticmethod(lambda target, args, kwargs: f"target: {target}")  # type: ignore[method-assign]


def make_tick(step: Step) -> Any:
    """A step over fixed buffers: it finds its part of the draws through a counter on the device.

    The results are written over the inputs inside the function that gets compiled, so that the compiler
    stores them there at once: copying after the step would be a hundred small copies.
    """

    def tick(payload: Payload, local: Local, tally: Tensor, draw: Draw, i: Tensor) -> None:
        new_local, new_tally = step(payload, local, tally, at(draw, i))
        overwrite(local, new_local)
        tally.copy_(new_tally)
        i.add_(1)

    return tick


def make_visit_in_place(visit: Visit) -> Any:
    """A visit that writes over the client's state: a record that compiled code returns may come back empty."""

    def visit_in_place(payload: Payload, local: Local, sweep: Sweep) -> None:
        overwrite(local, visit(payload, local, sweep))

    return visit_in_place


def overwrite(target: Any, source: Any) -> None:
    """Copy nested records of tensors over others, entry by entry of the same name.

    The sources may lie on the host, and a client's draws may be shorter than the buffers.
    """
    if isinstance(target, Tensor):
        part = target[: len(source)] if target.dim() and len(target) != len(source) else target
        part.copy_(source, non_blocking=True)
    elif isinstance(target, dict):
        for name, value in target.items():
            overwrite(value, source[name])
    else:
        for t, s in zip(target, source, strict=True):
            overwrite(t, s)


def capture(
    work: Callable[[], None], stream: torch.cuda.Stream, reset: Callable[[], Any] = lambda: None
) -> torch.cuda.CUDAGraph:
    """A graph of some work on fixed buffers, which `reset` prepares for each of the two trials before it."""
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(2):  # compiling and the libraries' choice of kernels stay out of the capture
            reset()
            work()
    torch.cuda.synchronize(stream.device)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph, stream=stream):
        work()
    return graph


class Captured:
    """A pure function of tensors, compiled, and at its first call captured in a graph: all calls have its shapes.

    Every call copies what it is given to the graph's buffers, and what it returns from there.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self._graph = function, torch.cuda.CUDAGraph()
        self._given: tuple[Any, ...] = ()
        self._made: Any = None

    def __call__(self, *given: Any) -> Any:
        if not self._given:
            self._capture(given)
        overwrite(self._given, given)
        self._graph.replay()
        return tree_map(torch.clone, self._made)

    def _capture(self, given: tuple[Any, ...]) -> None:
        def write(given: tuple[Any, ...], made: Any) -> None:  # a record that compiled code returns may come back empty
            overwrite(made, function(*given))

        function, write = self._function, torch.compile(write, fullgraph=True, dynamic=False)
        self._given, self._made = tree_map(torch.clone, given), tree_map(torch.clone, function(*given))
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        self._graph = capture(lambda: write(self._given, self._made), stream)


class Buffers(NamedTuple):
    """What a lane's graphs read and write: a client's round, and one batch of its sweep if it makes one."""

    payload: Payload
    local: Local
    draw: Draw
    batch: Sweep | None


class CapturedLane:
    """One stream with its own buffers, its own captured graph of a step, and one of a visit if there are any.

    Nothing here waits for the device: a client's round is enqueued and the host goes on.
    """

    def __init__(self, tick: Any, visit: Any, look: Look, like: Buffers, tally_size: int) -> None:
        self.look = look  # once per round: neither compiled nor captured
        device = like.draw.x_row.device
        self.stream = torch.cuda.Stream(device)
        self.stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self.stream), torch.no_grad():
            self.buffers: Buffers = tree_map(lambda t: t if t is None else t.clone(), like)
            self.tally = torch.zeros(2, tally_size, device=device)
            self.i = torch.zeros(1, dtype=torch.long, device=device)
        payload, local, draw, batch = self.buffers
        # A round may have a single step, so every one is the first.
        self.step = capture(lambda: tick(payload, local, self.tally, draw, self.i), self.stream, self.i.zero_)
        if batch is not None:
            self.visit = capture(lambda: visit(payload, local, batch), self.stream)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Work on this lane's stream: after what was enqueued before, and before what is enqueued next."""
        outside = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(outside)
        with torch.cuda.stream(self.stream):
            yield
        outside.wait_stream(self.stream)

    def sweep(self, payload: Payload, local: Local, batches: Sweep) -> Local:
        """All visits of one client. The result is valid until this lane's next client."""
        overwrite(self.buffers[:2], (payload, local))
        for batch in each(batches, len(batches.u_row)):
            overwrite(self.buffers.batch, batch)
            self.visit.replay()
        return self.buffers.local

    def run(self, payload: Payload, local: Local, draw: Draw) -> tuple[Local, Tensor]:
        """All steps of one client. The result is valid until this lane's next client."""
        overwrite(self.buffers[:3], (payload, local, draw))
        self.tally.zero_()
        self.i.zero_()
        for _ in range(len(draw.x_row)):
            self.step.replay()
        return self.buffers.local, self.tally.clone()
