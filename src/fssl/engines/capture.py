"""A client's steps on a CUDA device: the compiled step captured in a graph over fixed buffers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._inductor import config as inductor
from torch._inductor.exc import InductorError, OperatorIssue
from torch.utils._pytree import tree_map

from ..core.client import at
from ..core.step import Look, Step, Visit
from ..types import Draw, Local, Payload, Sweep

T = TypeVar("T")
# A visit is compiled when it is first made, in some lane's thread; the compiler cannot bear that another thread calls
# compiled code meanwhile.
ONE_VISIT = Lock()


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


class CapturedLane:
    """One stream with its own buffers and its own captured graph of a step.

    Nothing here waits for the device: a client's round is enqueued and the host goes on.
    """

    def __init__(
        self, tick: Any, visit: Any, look: Look, payload: Payload, local: Local, draw: Draw, tally_size: int
    ) -> None:
        self._visit = visit  # a few batches per round: compiled, not captured
        self.look = look  # once per round: neither
        device = payload.weights.params[next(iter(payload.weights.params))].device
        self.stream = torch.cuda.Stream(device)
        self.stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self.stream), torch.no_grad():
            self.payload, self.local, self.draw = (tree_map(torch.clone, t) for t in (payload, local, draw))
            self.tally = torch.zeros(2, tally_size, device=device)
            self.i = torch.zeros(1, dtype=torch.long, device=device)
            for _ in range(2):  # compiling and the libraries' choice of kernels stay out of the capture
                self.i.zero_()  # a round may have a single step
                tick(self.payload, self.local, self.tally, self.draw, self.i)
        torch.cuda.synchronize(device)
        self.graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(self.graph, stream=self.stream):
            tick(self.payload, self.local, self.tally, self.draw, self.i)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Work on this lane's stream: after what was enqueued before, and before what is enqueued next."""
        outside = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(outside)
        with torch.cuda.stream(self.stream):
            yield
        outside.wait_stream(self.stream)

    def visit(self, payload: Payload, local: Local, sweep: Sweep) -> Local:
        with ONE_VISIT:
            self._visit(payload, local, sweep)
        return local

    def run(self, payload: Payload, local: Local, draw: Draw) -> tuple[Local, Tensor]:
        """All steps of one client. The result is valid until this lane's next client."""
        overwrite((self.payload, self.local, self.draw), (payload, local, draw))
        self.tally.zero_()
        self.i.zero_()
        for _ in range(len(draw.x_row)):
            self.graph.replay()
        return self.local, self.tally.clone()
