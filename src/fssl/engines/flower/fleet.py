"""Clients behind Flower: orders out, results in, in client order and a few at a time."""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from ...config import Config, as_tables, to_toml
from ...core.client import ClientResult
from ...core.federation import Federation
from ...errors import RunError
from ..rounds import Missing, Snapshot, to
from .messages import BadUploadError, Job, forms_of, order, result_of

FOR_EVER = 10**9  # seconds


class Sent(NamedTuple):
    """An order on its way."""

    job: Job
    message: str
    deadline: float


class Nodes(Protocol):
    """Which node trains which client."""

    def of(self, clients: list[int]) -> dict[int, int]: ...


class AnyNode:
    """In a simulation every node can train every client."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def of(self, clients: list[int]) -> dict[int, int]:
        while not (ids := sorted(self.grid.get_node_ids())):
            time.sleep(0.05)  # they are being registered
        return {client: ids[client % len(ids)] for client in clients}


class Policy(NamedTuple):
    """How a fleet deals with its clients."""

    window: int  # orders under way at once: more than can be worked on only fill the server's memory
    strict: bool = True  # a client that fails ends the run; else the round goes on without it
    run: str = ""  # names the run where sites keep their state
    seconds: float = FOR_EVER  # a client has for its answer
    poll: float = 0.02


class FlowerFleet:
    """A fleet whose clients get messages."""

    def __init__(self, federation: Federation, grid: Grid, nodes: Nodes, policy: Policy) -> None:
        self.federation, self.grid, self.nodes, self.policy = federation, grid, nodes, policy
        self.config = to_toml(as_tables(with_absolute_paths(federation.config)))
        self.forms = forms_of(federation)

    def prepare(self, round: int, clients: list[int]) -> None:
        """Nothing: clients draw their own plans."""

    def train(self, round: int, clients: list[int], snapshot: Snapshot) -> Iterator[ClientResult | Missing]:
        nodes, waiting = self.nodes.of(clients), deque(clients)
        sent: dict[int, Sent] = {}
        for client in clients:
            while waiting and len(sent) < self.policy.window:
                following = waiting.popleft()
                if following in nodes:
                    sent[following] = self._send(round, following, nodes[following], snapshot)
            if client in sent:
                yield self._receive(sent.pop(client))
            else:
                yield self._lost(round, client, "not connected")

    def _send(self, round: int, client: int, node: int, snapshot: Snapshot) -> Sent:
        policy = self.policy
        job = Job(self.config, round, client, policy.run, resumable_from(self.federation, round))
        payload = self.federation.method.payload(snapshot.server, client)
        content = order(job, payload, None if policy.run else snapshot.clients.get(client))
        message = Message(content, dst_node_id=node, message_type=MessageType.TRAIN, group_id=str(round))
        ids = list(self.grid.push_messages([message]))
        return Sent(job, ids[0] if ids else "", time.monotonic() + policy.seconds)

    def _receive(self, sent: Sent) -> ClientResult | Missing:
        job = sent.job
        reply = self._reply(sent)
        if reply is None:
            return self._lost(job.round, job.client, f"no answer within {self.policy.seconds:.0f} s")
        if reply.has_error():
            return self._lost(job.round, job.client, tidy(reply.error.reason or ""))
        try:
            result = result_of(reply.content, job, self.forms)
        except BadUploadError as error:
            return self._lost(job.round, job.client, f"upload rejected: {error}")
        return to_device(result, self.federation)

    def _reply(self, sent: Sent) -> Message | None:
        while sent.message and time.monotonic() < sent.deadline:
            for reply in self.grid.pull_messages([sent.message]):
                return reply
            time.sleep(self.policy.poll)
        return None

    def _lost(self, round: int, client: int, reason: str) -> Missing:
        if self.policy.strict:
            raise RunError(f"round {round}, client {client}: {reason}; the checkpoint before it is kept")
        return Missing(client, reason)


def with_absolute_paths(config: Config) -> Config:
    """Clients have working folders of their own."""
    dir = config.data.dir and str(Path(config.data.dir).expanduser().resolve())
    return replace(config, data=replace(config.data, dir=dir))


def to_device(result: ClientResult, federation: Federation) -> ClientResult:
    upload = result.upload
    weights, extras = to((upload.weights, upload.extras), federation.device)
    return result._replace(upload=upload._replace(weights=weights, extras=extras))


def resumable_from(federation: Federation, round: int) -> int:
    """The round of the older of the two checkpoints that exist when this round begins."""
    every = federation.config.records.checkpoint_every
    return max(0, ((round - 1) // every - 1) * every)


def tidy(reason: str) -> str:
    """Flower's account of an exception at a client, without its wrapping."""
    text = " ".join(reason.split())
    for mark in ("Message: ", "occurred. "):
        text = text.rpartition(mark)[2]
    return text.rstrip("'>") or "failed without a reason"
