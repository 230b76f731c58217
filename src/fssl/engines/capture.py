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
    """Return a step over fixed buffers that indexes the draws with a counter on the device."""
    # The compiled function overwrites its inputs, so the compiler stores the results there directly. Copying them
    # after the step would take a hundred small copies.

    def tick(payload: Payload, local: Local, tally: Tensor, draw: Draw, i: Tensor) -> None:
        new_local, new_tally = step(payload, local, tally, at(draw, i))
        overwrite(local, new_local)
        tally.copy_(new_tally)
        i.add_(1)

    return tick


def make_visit_in_place(visit: Visit) -> Any:
    """Return a visit that overwrites the client's state."""
    # A record that compiled code returns may come back empty.

    def visit_in_place(payload: Payload, local: Local, sweep: Sweep) -> None:
        overwrite(local, visit(payload, local, sweep))

    return visit_in_place


@spending("capturing")
def capture(
    work: Callable[[], None], stream: torch.cuda.Stream, reset: Callable[[], Any] = lambda: None
) -> torch.cuda.CUDAGraph:
    """Capture work on fixed buffers as a graph, after two trial runs. Call `reset` before each trial."""
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(2):  # keep compilation and the libraries' choice of kernels out of the capture
            reset()
            work()
    torch.cuda.synchronize(stream.device)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph, stream=stream):
        work()
    return graph


def captured(function: Function, *given: Any) -> Function:
    """Return a pure function as compiled code in a graph, for arguments like these.

    Every call copies its arguments to the graph's buffers, and clones the results. A record of tensors that the
    previous call was given too is not copied again.
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


def runs_without_sync(work: Callable[[], Any]) -> bool:
    """Return whether the work never reads a value from the device, so that it can be captured."""
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
    """The functions that every lane captures. `look` runs once per round and is neither compiled nor captured."""

    tick: Function
    visit: Function | None  # None where no client makes a sweep
    start: Start
    look: Look


class Buffers(NamedTuple):
    """The buffers that a lane's graphs read and write: a client's round, and one batch of its sweep if it makes one."""

    payload: Payload
    state: State
    local: Local
    batch: Sweep | None


class CapturedLane:
    """One stream with its own buffers and captured graphs of a start, a step, and a visit if clients make sweeps.

    The host enqueues a client's round and does not wait for the device. A result is valid until this lane's next
    client.
    """

    def __init__(self, codes: Codes, like: Buffers, draw: Draw, tally: Tensor) -> None:
        """Copy example records as buffers. `tally` is on the device, and `draw` is that of the longest round."""
        self.look, device = codes.look, tally.device
        self.stream = torch.cuda.Stream(device)
        self.stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self.stream), torch.no_grad():
            self.buffers: Buffers = tree_map(lambda t: t if t is None else t.clone(), like)
            self.draw = InOnePiece(draw, device)
            self.tally = torch.zeros_like(tally)
            self.i = torch.zeros(1, dtype=torch.long, device=device)
            self.payload: Payload | None = None  # the payload in the buffer
            self._capture(codes)

    def _capture(self, codes: Codes) -> None:
        payload, state, local, batch = self.buffers

        def begin() -> None:
            overwrite(local, codes.start(payload, state))
            self.tally.zero_()
            self.i.zero_()

        def step() -> None:
            codes.tick(payload, local, self.tally, self.draw.tree, self.i)

        self._begin = capture(begin, self.stream).replay if runs_without_sync(begin) else begin
        # A round may have a single step, so each trial starts at step 0.
        self._step = capture(step, self.stream, self.i.zero_)
        self.step_seconds = self._timed(self._step)
        if (visit := codes.visit) is not None:
            self._visit = capture(lambda: visit(payload, local, batch), self.stream)

    def _timed(self, graph: torch.cuda.CUDAGraph) -> float:
        """Return the seconds that the device takes for a step."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(2):  # the first replay also uploads the graph to the device
            self.i.zero_()
            begin.record()
            graph.replay()
            end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Enqueue work on this lane's stream, ordered after earlier and before later work of the outer stream."""
        outside = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(outside)
        with self.turn():
            yield
        outside.wait_stream(self.stream)

    def turn(self) -> AbstractContextManager[Any]:
        """Return a context that enqueues work on this lane's stream, inside a scope shared with other lanes."""
        return torch.cuda.stream(self.stream)

    def start(self, payload: Payload, state: State) -> Local:
        """Write a client's first weights, momentum and state into the buffers, and return them."""
        overwrite(self.buffers.payload, payload, self.payload)
        overwrite(self.buffers.state, state)
        self.payload = payload
        self._begin()
        return self.buffers.local

    def sweep(self, payload: Payload, local: Local, batches: Sweep) -> Local:
        """Run all visits of one client and return its new state."""
        overwrite(self.buffers.local, local)
        for batch in each(batches, len(batches.u_row)):
            overwrite(self.buffers.batch, batch)
            self._visit.replay()
        return self.buffers.local

    def run(self, payload: Payload, local: Local, draw: Draw) -> tuple[Local, Tensor]:
        """Run all steps of one client and return its new state and its tally."""
        overwrite(self.buffers.local, local)
        self.draw.fill(draw)
        for _ in range(len(draw.x_row)):
            self._step.replay()
        return self.buffers.local, self.tally.clone()
