"""Clients behind Flower: orders out, results in, in client order and a few at a time."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from ...config import Config, as_tables, to_toml
from ...core.client import ClientResult
from ...core.federation import Federation
from ...errors import RunError
from ...types import Payload, State
from ..engine import Engine, Missing, RoundAgainError
from ..lanes import compiles, set_up_torch
from ..snapshot import Snapshot
from ..tensors import FormError, to
from .internals import tidy
from .messages import Job, message_forms, order, read_result
from .privacy import make_privacy

FOR_EVER = 1e9  # seconds
REJECTED = "upload rejected"
ATTEMPTS = 3  # at a round of which too little came back


class Nodes(Protocol):
    """Which node trains which client; those of clients that are not connected are left out."""

    def of(self, clients: list[int]) -> dict[int, int]: ...


class AnyNode:
    """In a simulation every node can train every client."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def of(self, clients: list[int]) -> dict[int, int]:
        while not (ids := sorted(self.grid.get_node_ids())):
            time.sleep(0.05)  # they are being registered
        return {client: ids[client % len(ids)] for client in clients}


class NamedNodes:
    """Sites whose keys were registered under their names: Flower vouches for who is who."""

    def __init__(self, grid: Grid, names: tuple[str, ...]) -> None:
        self.grid, self.names = grid, names

    def of(self, clients: list[int]) -> dict[int, int]:
        ids = {node.name: node.node_id for node in self.grid.get_nodes()}
        return {client: ids[self.names[client]] for client in clients if self.names[client] in ids}


class AskedNodes:
    """Without keys, nodes are asked which client they are, each once."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._clients: dict[int, int] = {}

    def of(self, clients: list[int]) -> dict[int, int]:
        ids = list(self.grid.get_node_ids())
        new = [
            Message(RecordDict(), dst_node_id=i, message_type=MessageType.QUERY) for i in ids if i not in self._clients
        ]
        for reply in self.grid.send_and_receive(new, timeout=120) if new else []:
            if not reply.has_error():
                self._clients[reply.metadata.src_node_id] = claimed_client(reply.content)
        return {self._clients[i]: i for i in ids if self._clients.get(i) in clients}


def claimed_client(content: RecordDict) -> int:
    """Which client a node says it is; none, if it says nothing of the kind."""
    said = content["who"].get("client") if "who" in content else None
    return said if type(said) is int else -1


class Policy(NamedTuple):
    """How a fleet deals with its clients."""

    window: int  # orders under way at once: more than can be worked on only fill the server's memory
    strict: bool = True  # a client that fails ends the run; else the round goes on without it
    run: str = ""  # names the run where sites keep their state
    quorum: int = 1  # clients without whom there is no round
    wait: float = 0.0  # seconds for the quorum to connect
    answer: float = FOR_EVER  # seconds a client has for its answer
    poll: float = 0.02


class Sent(NamedTuple):
    """An order on its way."""

    job: Job
    payload: Payload
    message: str
    deadline: float


class FlowerFleet:
    """A fleet whose clients get messages."""

    def __init__(
        self,
        federation: Federation,
        grid: Grid,
        nodes: Nodes,
        policy: Policy,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.federation, self.grid, self.nodes, self.policy, self.say = federation, grid, nodes, policy, say
        self.config = to_toml(as_tables(with_absolute_paths(federation.config)))
        self.forms = message_forms(federation)
        self.privacy = make_privacy(federation)
        self._attempts: tuple[int, int] = (0, 0)  # a round, and how often it was tried

    def prepare(self, round: int, clients: list[int]) -> None:
        """Nothing: clients draw their own plans."""

    def close(self) -> None:
        """Nothing: the cluster ends with its own context."""

    def train(self, round: int, clients: list[int], snapshot: Snapshot) -> Iterator[ClientResult | Missing]:
        nodes, waiting, used = self._quorum(round, clients), deque(clients), 0
        sent: dict[int, Sent] = {}
        for client in clients:
            while waiting and len(sent) < self.policy.window:
                following = waiting.popleft()
                if following in nodes:
                    sent[following] = self._send(round, following, nodes[following], snapshot)
            result = self._receive(sent.pop(client)) if client in sent else self._lost(round, client, "not connected")
            used += isinstance(result, ClientResult)
            yield result
        self._check_enough(round, used, len(clients))

    def _quorum(self, round: int, clients: list[int]) -> dict[int, int]:
        """The clients' nodes, once enough of them are connected."""
        policy, told, until = self.policy, -1, time.monotonic() + self.policy.wait
        needed = min(policy.quorum, len(clients))
        while len(nodes := self.nodes.of(clients)) < needed:
            there = f"round {round}: {len(nodes)} of {len(clients)} clients connected, {needed} needed"
            if time.monotonic() > until:
                raise RunError(f"{there}; waited {policy.wait:.0f} s. Start the sites, then resume with --resume")
            if len(nodes) != told:
                told = len(nodes)
                self.say(f"{there}; waiting up to {policy.wait:.0f} s for {numbers(set(clients) - set(nodes))}")
            time.sleep(max(policy.poll, 0.5))
        return nodes

    def _check_enough(self, round: int, used: int, drawn: int) -> None:
        """A round of which too little came back does not count."""
        needed = min(self.policy.quorum, drawn)
        if used >= needed:
            return
        last, times = self._attempts
        self._attempts = round, times + 1 if last == round else 1
        text = f"round {round}: {used} of {drawn} clients gave something usable, {needed} needed"
        if self._attempts[1] >= ATTEMPTS:
            raise RunError(f"{text}; tried {ATTEMPTS} times. The checkpoint before it is kept: resume with --resume")
        self.say(f"{text}; once more")
        raise RoundAgainError

    def _send(self, round: int, client: int, node: int, snapshot: Snapshot) -> Sent:
        policy, kept = self.policy, snapshot.clients.get(client, {})
        counted = counted_in(kept) if policy.run else 0
        job = Job(self.config, round, client, policy.run, counted, resumable_from(self.federation.config, round))
        payload = self.federation.method.payload(snapshot.server, client)
        content = order(job, payload, None if policy.run else kept)
        message = Message(content, dst_node_id=node, message_type=MessageType.TRAIN, group_id=str(round))
        ids = list(self.grid.push_messages([message]))
        return Sent(job, payload, ids[0] if ids else "", time.monotonic() + policy.answer)

    def _receive(self, sent: Sent) -> ClientResult | Missing:
        job, reply = sent.job, self._reply(sent)
        if reply is None:
            return self._lost(job.round, job.client, f"no answer within {self.policy.answer:.0f} s")
        if reply.has_error():
            return self._lost(job.round, job.client, tidy(reply.error.reason or ""))
        try:
            result = read_result(reply.content, job, self.forms)
        except FormError as error:
            return self._lost(job.round, job.client, f"{REJECTED}: {error}")
        result = to_device(result, self.federation)
        if job.run:
            result = result._replace(state=mark(job.round))
        if self.privacy is None:
            return result
        return result._replace(upload=self.privacy.clipped(result.upload, sent.payload))

    def _reply(self, sent: Sent) -> Message | None:
        while sent.message:
            for reply in self.grid.pull_messages([sent.message]):
                return reply
            if time.monotonic() > sent.deadline:  # asked at least once: it may lie there since long
                break
            time.sleep(self.policy.poll)
        return None

    def _lost(self, round: int, client: int, reason: str) -> Missing:
        if self.policy.strict:
            raise RunError(f"round {round}, client {client}: {reason}; the checkpoint before it is kept")
        self.say(f"round {round}: client {client} is missing: {reason}")
        return Missing(client, reason)


def flower_engine(fleet: FlowerFleet) -> Engine:
    """Rounds whose clients are behind Flower."""
    federation, privacy = fleet.federation, fleet.privacy
    set_up_torch(federation)
    if privacy is None:
        return Engine(federation, fleet, compiles(federation))
    return Engine(federation, fleet, compiles(federation), privacy.noised)


def with_absolute_paths(config: Config) -> Config:
    """Clients have working folders of their own."""
    dir = config.data.dir and str(Path(config.data.dir).expanduser().resolve())
    return replace(config, data=replace(config.data, dir=dir))


def to_device(result: ClientResult, federation: Federation) -> ClientResult:
    upload = result.upload
    weights, extras = to((upload.weights, upload.extras), federation.device)
    return result._replace(upload=upload._replace(weights=weights, extras=extras))


def mark(round: int) -> State:
    """What a server keeps of a client whose state is at its site: which round left that state."""
    return {"round": torch.tensor(round)}


def counted_in(mark: State) -> int:
    return int(mark["round"]) if mark else 0


def resumable_from(config: Config, round: int) -> int:
    """The round of the older of the two checkpoints that exist when this round begins."""
    every = config.records.checkpoint_every
    return max(0, ((round - 1) // every - 1) * every)


def numbers(clients: set[int]) -> str:
    return f"client{'s' if len(clients) > 1 else ''} {', '.join(map(str, sorted(clients)))}"
