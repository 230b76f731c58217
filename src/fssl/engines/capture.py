"""A client's steps on a CUDA device: compiled code captured in graphs over fixed buffers."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ..core.client import at, each
from ..core.step import Look, Start, Step, Visit
from ..types import Draw, Local, Payload, State, Sweep
from .compiler import Function, compiled
from .named_tensors import InOnePiece, overwrite
from .stopwatch import spending


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


@spending("capturing")
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


def captured(function: Function, *given: Any) -> Function:
    """A pure function as compiled code in a graph, for arguments like these.

    Every call copies what it is given to the graph's buffers, and what it returns from there. A record of tensors that
    it was given the last time is there already.
    """
    buffers, made, before = tree_map(torch.clone, given), list[Any](), [None] * len(given)
    code, stream = compiled(function, *buffers), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = capture(lambda: made.append(code(*buffers)), stream)

    def call(*given: Any) -> Any:
        for buffer, source, known in zip(buffers, given, before, strict=True):
            overwrite(buffer, source, known)
        before[:] = [None if isinstance(source, Tensor) else source for source in given]
        graph.replay()
        return tree_map(torch.clone, made[-1])

    return call


def never_waits(work: Callable[[], Any]) -> bool:
    """Whether some work only enqueues: what reads a value from the device cannot be captured."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        work()
    except RuntimeError:
        return False
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return True


class Codes(NamedTuple):
    """What lanes capture, the same for all; a look comes once per round and is neither compiled nor captured."""

    tick: Function
    visit: Function | None  # none where no client makes a sweep
    start: Start
    look: Look


class Buffers(NamedTuple):
    """What a lane's graphs read and write: a client's round, and one batch of its sweep if it makes one."""

    payload: Payload
    state: State
    local: Local
    batch: Sweep | None


class CapturedLane:
    """One stream with its own buffers, and its own captured graphs of a start, a step, and a visit if there are any.

    Nothing here waits for the device: a client's round is enqueued and the host goes on. A result is valid until this
    lane's next client.
    """

    def __init__(self, codes: Codes, like: Buffers, draw: Draw, tally: Tensor) -> None:
        """Copy what it is given, which is like what comes: `tally` on the device, `draw` of the longest round."""
        self.look, device = codes.look, tally.device
        self.stream = torch.cuda.Stream(device)
        self.stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self.stream), torch.no_grad():
            self.buffers: Buffers = tree_map(lambda t: t if t is None else t.clone(), like)
            self.draw = InOnePiece(draw, device)
            self.tally = torch.zeros_like(tally)
            self.i = torch.zeros(1, dtype=torch.long, device=device)
            self.payload: Payload | None = None  # what is in its buffer
            self._capture(codes)

    def _capture(self, codes: Codes) -> None:
        payload, state, local, batch = self.buffers

        def begin() -> None:
            overwrite(local, codes.start(payload, state))
            self.tally.zero_()
            self.i.zero_()

        def step() -> None:
            codes.tick(payload, local, self.tally, self.draw.tree, self.i)

        self._begin = capture(begin, self.stream).replay if never_waits(begin) else begin
        # A round may have a single step, so every one is the first.
        self._step = capture(step, self.stream, self.i.zero_)
        self.step_seconds = self._timed(self._step)
        if (visit := codes.visit) is not None:
            self._visit = capture(lambda: visit(payload, local, batch), self.stream)

    def _timed(self, graph: torch.cuda.CUDAGraph) -> float:
        """Seconds that the device takes for a step."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(2):  # the first time a graph is also brought to the device
            self.i.zero_()
            begin.record()
            graph.replay()
            end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Work on this lane's stream: after what was enqueued before, and before what is enqueued next."""
        outside = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(outside)
        with self.turn():
            yield
        outside.wait_stream(self.stream)

    def turn(self) -> AbstractContextManager[Any]:
        """Work on this lane's stream among others' in one scope."""
        return torch.cuda.stream(self.stream)

    def start(self, payload: Payload, state: State) -> Local:
        """A client's first weights, momentum and state, made in place."""
        overwrite(self.buffers.payload, payload, self.payload)
        overwrite(self.buffers.state, state)
        self.payload = payload
        self._begin()
        return self.buffers.local

    def sweep(self, payload: Payload, local: Local, batches: Sweep) -> Local:
        """All visits of one client."""
        overwrite(self.buffers.local, local)
        for batch in each(batches, len(batches.u_row)):
            overwrite(self.buffers.batch, batch)
            self._visit.replay()
        return self.buffers.local

    def run(self, payload: Payload, local: Local, draw: Draw) -> tuple[Local, Tensor]:
        """All steps of one client."""
        overwrite(self.buffers.local, local)
        self.draw.fill(draw)
        for _ in range(len(draw.x_row)):
            self._step.replay()
        return self.buffers.local, self.tally.clone()
