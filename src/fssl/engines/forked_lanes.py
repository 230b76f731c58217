"""Lanes on a CPU as processes: forked once, so that clients share the images but not the interpreter.

Threads of one interpreter wait for each other between the operations of a small step; processes do not.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ..core.client import ClientResult
from ..core.federation import Federation
from ..errors import RunError
from ..system.workers import Companion, can_fork, companion
from .lanes import Lane, Lanes, compiles, num_lanes
from .snapshot import Snapshot

ENOUGH_STEPS = 300  # in a run: starting the processes takes as long as a few dozen small steps


class ForkedLanes(Lanes):
    """Clients on lanes that are processes; the clients with the most work begin first."""

    _companions: list[Companion] = []  # noqa: RUF012 (replaced, never changed in place)
    _end: Callable[[], object] | None = None

    def prepare(self, round: int, clients: list[int]) -> None:
        """Do nothing: each lane draws its clients' plans."""

    def train(self, round: int, clients: list[int], snapshot: Snapshot) -> Iterator[ClientResult]:
        """Assign the next client to any free lane; yield results in the clients' order."""
        idle: list[Companion] = [*self._started()]
        busy: dict[Any, tuple[Companion, int]] = {}
        waiting = deque(sorted(clients, key=self.federation.work, reverse=True))
        done: dict[int, ClientResult] = {}
        is_over = False
        try:
            for client in clients:
                while client not in done:
                    while waiting and idle:
                        lane, following = idle.pop(), waiting.popleft()
                        with torch.no_grad():
                            send(lane.pipe, (round, following, *self.sent(following, snapshot)))
                        busy[lane.pipe] = lane, following
                    for pipe in wait(list(busy)):
                        lane, trained = busy.pop(pipe)
                        done[trained] = receive(lane.pipe) or self._again(round, trained, snapshot)
                        idle.append(lane)
                yield done.pop(client)
            is_over = True
        except (EOFError, ConnectionError):
            raise RunError(
                f"round {round}: the process of a lane was killed (out of memory?); finished rounds are kept;"
                " resume the run, with fewer compute.lanes if memory is short",
                "resume",
            ) from None
        finally:
            if not is_over:
                self.close()

    def _again(self, round: int, client: int, snapshot: Snapshot) -> ClientResult:
        """Train a client in this process after its lane failed, so that its error is complete."""
        lane, (plan,) = self.lanes[0], self.plans(round, [client])
        with torch.no_grad(), lane.scope():
            return self.client(lane, plan, *self.sent(client, snapshot))

    def _started(self) -> list[Companion]:
        if not self._companions:
            self._companions = [companion(Work(self, lane)) for lane in self.lanes]
            self._end = weakref.finalize(self, end_processes, self._companions)
        return self._companions

    def close(self) -> None:
        """End the processes at once; the next round would start new ones."""
        if self._end:
            self._end()
        self._companions = []


class Work:
    """The loop of a lane's process: receive orders and send results until the pipe closes."""

    def __init__(self, lanes: Lanes, lane: Lane) -> None:
        self.lanes, self.lane = lanes, lane

    def __call__(self, pipe: "Connection[Any, Any]") -> None:
        with suppress(EOFError, ConnectionError), torch.no_grad(), self.lane.scope():
            while True:
                round, client, payload, known = receive(pipe)
                (plan,) = self.lanes.plans(round, [client])
                try:
                    result: ClientResult | None = self.lanes.client(self.lane, plan, payload, known)
                except Exception:  # the main process repeats the client and reports the error
                    result = None
                send(pipe, result)


def end_processes(companions: list[Companion]) -> None:
    for lane in companions:
        lane.process.kill()
    for lane in companions:
        lane.process.join()
        lane.process.close()
        lane.pipe.close()


def forks(federation: Federation, debug: bool = False) -> bool:
    """Return whether lanes are processes: on a CPU that can fork, if the settings ask for it or the run is long."""
    config = federation.config
    able = federation.device.type == "cpu" and can_fork() and not compiles(federation, debug)
    # The threads of one operation do not survive a fork.
    if not able or num_lanes(federation, debug) == 1 or (config.compute.threads or 1) > 1:
        return False
    steps = config.rounds * sum(map(federation.num_steps, federation.drawn_clients(1)))
    return config.compute.processes == "on" or (config.compute.processes == "auto" and steps >= ENOUGH_STEPS)


# Records of tensors through a pipe: their structure first, then all numbers in one piece. Tensors keep their strides,
# so that the same kernels compute with them.


@dataclass(frozen=True)
class Segment:
    """A tensor's place in the piece."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    count: int
    start: int
    stop: int


def send(pipe: "Connection[Any, Any]", tree: Any) -> None:
    """Send nested records of tensors and plain values."""
    pieces: list[Tensor] = []
    size = 0

    def place(leaf: Any) -> Any:
        nonlocal size
        if not isinstance(leaf, Tensor):
            return leaf
        dense = leaf if is_dense(leaf) else leaf.contiguous()
        piece = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)
        pieces.append(piece)
        start, size = size, size + len(piece)
        return Segment(leaf.dtype, tuple(leaf.shape), dense.stride(), dense.numel(), start, size)

    form = tree_map(place, tree)
    pipe.send((form, size))
    if size:
        pipe.send_bytes(memory_of(torch.cat(pieces)))


def receive(pipe: "Connection[Any, Any]") -> Any:
    """Return what the other end sent, each tensor in separate memory."""
    form, size = pipe.recv()
    piece = torch.empty(size, dtype=torch.uint8)
    if size:
        pipe.recv_bytes_into(memory_of(piece))

    def tensor(leaf: Any) -> Any:
        if not isinstance(leaf, Segment):
            return leaf
        made = torch.empty(leaf.count, dtype=leaf.dtype)
        made.view(torch.uint8).copy_(piece[leaf.start : leaf.stop])
        return made.as_strided(leaf.shape, leaf.stride)

    return tree_map(tensor, form)


def is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor's numbers lie in one piece, in row-major or channels-last order."""
    return tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))


def memory_of(piece: Tensor) -> memoryview:
    return memoryview(piece.numpy())  # type: ignore[arg-type]  # NumPy's arrays are buffers
