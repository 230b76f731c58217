"""Clients behind Flower: send orders and receive results, in client order and a few at a time."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import torch
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from ...config import Config, as_tables, to_toml
from ...core.client import ClientResult
from ...core.federation import Federation
from ...core.site_scores import SiteScore
from ...core.static_norm import NormSums
from ...errors import RunError
from ...start import without_start
from ...system.files import expand_home
from ...types import Payload, State, Weights
from ..engine import Engine, Missing, RepeatRoundError
from ..lanes import compiles, set_up_torch
from ..named_tensors import FormError, to
from ..server_training import own_training
from ..snapshot import Snapshot
from .internals import unwrap_message
from .labels import LabelWatch
from .messages import MEASURE, SCORE, Job, message_forms, order, read_result, read_score, read_sums
from .nodes import Connected, Nodes, numbers
from .noised import make_privacy
from .plausible import MOST_MOVED, Move, check_values, check_weight, far_ahead, moved_by, outstanding

FOR_EVER = 1e9  # seconds
SLOWER, FEWEST_SECONDS = 10, 300.0  # times the slowest answer, and a minimum: then a client's process counts as dead
REJECTED = "upload rejected"
ROUND_ATTEMPTS = 3  # attempts at a round, or a measurement, with too few results
T = TypeVar("T")


class Policy(NamedTuple):
    """How a fleet treats its clients."""

    window: int  # orders under way at once: more than can be worked on only fill the server's memory
    strict: bool = True  # a client that fails ends the run; else the round continues without it
    run: str = ""  # names the run where sites keep their state
    quorum: int = 1  # clients that a round requires
    wait: float = 0.0  # seconds for the quorum to connect
    answer: float = FOR_EVER  # seconds a client has for its answer
    poll: float = 0.02
    most: int = 0  # images of a client, if the server has not dealt them; 0: not limited


class ClientOrder(NamedTuple):
    """An order to a client."""

    job: Job
    payload: Payload
    content: RecordDict


class Sent(NamedTuple):
    """An order on its way."""

    order: ClientOrder
    message: str
    begun: float
    deadline: float


class Question(NamedTuple, Generic[T]):
    """A question to clients, and the handling of an answer."""

    kind: str  # of message
    order: Callable[[int], ClientOrder]
    read: Callable[[ClientOrder, RecordDict], T]
    without: str = "is missing"  # what is reported of a client that gives no answer


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
        self.config = to_toml(as_tables(self.for_clients(federation.config)))
        self.forms = message_forms(federation)
        self.privacy = make_privacy(federation)
        self.labels = LabelWatch(federation, say)
        self._failed: Counter[str] = Counter()  # attempts in a row, by kind of message
        self._moves: dict[int, Move] = {}  # in this round: how far each site moved the model
        self._slowest: dict[str, float] = {}  # seconds of the slowest answer so far, by kind of message
        self._results: list[ClientResult | Missing] = []  # of this round, from sites: an upload may be at fault
        self._again: list[ClientResult | Missing] = []  # the same without that one, to repeat the round
        self._begun: int | None = None  # the round of the checkpoint that this process started from

    def for_clients(self, config: Config) -> Config:
        return for_clients(config)

    def needed(self, drawn: int) -> int:
        """Return the number of clients that a round requires."""
        return min(self.policy.quorum, drawn)

    def prepare(self, round: int, clients: list[int]) -> None:
        """Do nothing: clients draw their own plans."""

    def close(self) -> None:
        """Do nothing: the cluster ends with its own context."""

    def train(self, round: int, clients: list[int], snapshot: Snapshot) -> Iterator[ClientResult | Missing]:
        question = Question(MessageType.TRAIN, lambda client: self._order(round, client, snapshot), self._result)
        tallies, weights = {}, {}
        again, self._again, self._results = self._again, [], []
        if not again:
            self._moves = {}
        for result in again or self._asked(round, clients, question):
            if isinstance(result, ClientResult):
                tallies[result.upload.client], weights[result.upload.client] = result.tally, result.upload.num_samples
            if self.policy.run:
                self._results.append(result)
            yield result
        # A small part, such as the head, may honestly move by more than its norm; it is only warned of.
        if not self.federation.net.frozen and (ruinous := far_ahead(self._moves, MOST_MOVED)):
            self._repeat_without(round, ruinous)
            raise RepeatRoundError
        for line in outstanding(weights, self._moves):
            self.say(f"round {round}: WARNING: {line}")
        self._check_enough(question.kind, round, len(tallies), len(clients))
        self.labels.check(round, tallies)

    def leave_out(self, round: int, is_finite: Callable[[Weights], bool]) -> bool:
        """Exclude the uploads that made the round's model not finite; return whether to repeat the round.

        An upload is at fault if its own model fails the test. If none fails, the upload that moved the model most is at
        fault. If all fail, training itself diverged.
        """
        models = {r.upload.client: r.upload.weights for r in self._results if isinstance(r, ClientResult)}
        bad = [client for client, weights in models.items() if not is_finite(weights)]
        if len(models) < 2 or len(bad) == len(models):
            return False
        why = "its model has no finite loss on the test images"
        if not bad:
            bad, why = [max(models, key=self._moves.__getitem__)], "the mean is not finite, and it moved the model most"
        self._repeat_without(round, dict.fromkeys(bad, why))
        return True

    def _repeat_without(self, round: int, bad: Mapping[int, str]) -> None:
        """Prepare to repeat the round's mean without these uploads, each with its reason."""
        lost = {client: self.lost(round, client, f"{REJECTED}: {why}") for client, why in bad.items()}
        for client in bad:
            del self._moves[client]
        self._again = [lost.get(r.upload.client, r) if isinstance(r, ClientResult) else r for r in self._results]

    def measure(self, round: int, weights: Weights) -> list[NormSums | Missing]:
        """Ask all clients; if too few answer, ask once more with the same model.

        Repeating the round instead would send clients a second model of this round, with other noise.
        """
        clients = self.federation.holders
        own = {name: weights.params[name] for name in self.federation.net.first.params}  # a method may have more
        payload = Payload(weights._replace(params=own), {})
        ask = partial(self._measuring, round, payload)
        question = Question(MEASURE, ask, self._sums, without="is not measured")
        while True:
            with suppress(RepeatRoundError):
                found = [*self._asked(round, clients, question)]
                used = sum(isinstance(each, NormSums) for each in found)
                self._check_enough(question.kind, round, used, len(clients))
                return found

    def score(self, round: int, weights: Weights) -> list[SiteScore | Missing]:
        """Ask all clients; return the scores of those that answer."""
        ask = partial(self._measuring, round, Payload(weights, {}))
        question = Question(SCORE, ask, lambda sent, content: read_score(content, sent.job), without="is not scored")
        return [*self._asked(round, self.federation.holders, question)]

    def _asked(self, round: int, clients: list[int], question: Question[T]) -> Iterator[T | Missing]:
        """Yield each client's answer, in client order; only some orders are under way at a time."""
        there, waiting = self._quorum(round, clients), deque(clients)
        sent: dict[int, Sent] = {}
        for client in clients:
            while waiting and len(sent) < self.policy.window:
                following = waiting.popleft()
                if following in there.nodes:
                    sent[following] = self._send(question, following, there.nodes[following])
            if client in sent:
                result = self._receive(question, sent.pop(client))
                yield result
            else:
                yield self.lost(round, client, there.why_not(client), question.without)

    def _quorum(self, round: int, clients: list[int]) -> Connected:
        """Return the clients' nodes, once enough of them are connected."""
        policy, reported, until = self.policy, "", time.monotonic() + self.policy.wait
        needed = self.needed(len(clients))
        while len((there := self.nodes.of(clients)).nodes) < needed:
            text = f"round {round}: {len(there.nodes)} of {len(clients)} clients connected, {needed} needed"
            if time.monotonic() > until:
                raise RunError(f"{text}; waited {policy.wait:.0f} s. Start the sites, then resume the run", "resume")
            waiting = f"waiting up to {policy.wait:.0f} s for {numbers(set(clients) - set(there.nodes))}"
            disputes = [f"client {k}: {there.disputed[k]}" for k in clients if k in there.disputed]
            if (news := "; ".join([text, waiting, *disputes])) != reported:
                reported = news
                self.say(news)
            time.sleep(max(policy.poll, 0.5))
        return there

    def _check_enough(self, kind: str, round: int, used: int, drawn: int) -> None:
        """Reject a round, or a measurement, with too few results."""
        needed = self.needed(drawn)
        if used >= needed:
            del self._failed[kind]
            return
        self._failed[kind] += 1
        text = f"round {round}: {used} of {drawn} clients sent usable uploads, {needed} needed"
        if self._failed[kind] >= ROUND_ATTEMPTS:
            raise RunError(
                f"{text}; tried {ROUND_ATTEMPTS} times. The checkpoint before it is kept: resume the run", "resume"
            )
        self.say(f"{text}; once more")
        raise RepeatRoundError

    def _order(self, round: int, client: int, snapshot: Snapshot) -> ClientOrder:
        policy, kept = self.policy, snapshot.clients.get(client, {})
        counted = counted_in(kept) if policy.run else 0
        if self._begun is None:
            self._begun = round - 1
        back = resumable_from(self.federation.config.records.checkpoint_every, self._begun, round)
        job = Job(self.config, round, client, policy.run, counted, back)
        payload = self.federation.payload(snapshot.server, snapshot.optimizer, client)
        return ClientOrder(job, payload, order(job, payload, None if policy.run else kept))

    def _measuring(self, round: int, payload: Payload, client: int) -> ClientOrder:
        job = Job(self.config, round, client, self.policy.run)
        return ClientOrder(job, payload, order(job, payload, None))

    def _send(self, question: Question[T], client: int, node: int) -> Sent:
        order = question.order(client)
        message = Message(order.content, dst_node_id=node, message_type=question.kind, group_id=str(order.job.round))
        now, known = time.monotonic(), self._slowest.get(question.kind)
        most = self.policy.answer if known is None else min(self.policy.answer, max(FEWEST_SECONDS, SLOWER * known))
        return Sent(order, self.push(message), now, now + most)

    def push(self, message: Message) -> str:
        """Send a message; return its number for the answer, or an empty text if it could not be sent."""
        return next(iter(self.grid.push_messages([message])), "")

    def _receive(self, question: Question[T], sent: Sent) -> T | Missing:
        job, reply = sent.order.job, self.reply(sent.message, sent.deadline, sent.deadline - sent.begun)
        if isinstance(reply, str):
            return self.lost(job.round, job.client, reply, question.without)
        taken = time.monotonic() - sent.begun
        self._slowest[question.kind] = max(taken, self._slowest.get(question.kind, 0.0))
        try:
            return question.read(sent.order, reply.content)
        except FormError as error:
            return self.lost(job.round, job.client, f"{REJECTED}: {error}", question.without)

    def _result(self, sent: ClientOrder, content: RecordDict) -> ClientResult:
        result = read_result(content, sent.job, self.forms)
        if self.policy.run:  # the result comes from a site
            check_weight(result.upload.num_samples, sent.job.client, self.federation, self.policy.most)
            check_values(result.upload, sent.payload, result.tally, self.federation.layout)
            self._moves[sent.job.client] = moved_by(result.upload, sent.payload)
        result = to_device(result._replace(state=kept(sent.job, result.state)), self.federation)
        if self.privacy is None:
            return result
        return result._replace(upload=self.privacy.clipped(result.upload, sent.payload))

    def _sums(self, sent: ClientOrder, content: RecordDict) -> NormSums:
        found: NormSums = to(read_sums(content, sent.job, self.forms), self.federation.device)
        return found

    def reply(self, message: str, deadline: float, seconds: float | None = None) -> Message | str:
        """Return the answer to a message, or why there is none after `seconds` or the usual limit."""
        while message:
            for reply in self.grid.pull_messages([message]):
                return unwrap_message(reply.error.reason or "") if reply.has_error() else reply
            if time.monotonic() > deadline:  # checked at least once: the answer may have arrived long ago
                break
            time.sleep(self.policy.poll)
        return f"no answer within {self.policy.answer if seconds is None else seconds:.0f} s"

    def lost(self, round: int, client: int, reason: str, without: str = "is missing") -> Missing:
        place = f"round {round}, client {client}"
        where = "" if reason.startswith(place) else f"{place}: "  # a client that failed names itself
        self.report_missing(f"round {round}: client {client} {without}: {reason}", f"{where}{reason}")
        return Missing(client, reason)

    def report_missing(self, line: str, reason: str) -> None:
        """Report a client that a round continues without; a strict fleet stops for this reason."""
        if self.policy.strict:
            raise RunError(f"{reason}; the checkpoint before it is kept")
        self.say(line)


def flower_engine(fleet: FlowerFleet) -> Engine:
    """Return an engine for rounds whose clients are behind Flower."""
    federation, privacy = fleet.federation, fleet.privacy
    set_up_torch(federation)
    after = {} if privacy is None else {"after": privacy.noised}
    own = own_training(federation)
    return Engine(federation, fleet, compiles(federation), **after, own=own, leave_out=fleet.leave_out)


def for_clients(config: Config) -> Config:
    """Return the settings for clients: they have other working folders, and get all weights from the server."""
    dir, file = (
        place and str(expand_home(Path(place)).resolve()) for place in (config.data.dir, config.partition.file)
    )
    data, partition = replace(config.data, dir=dir), replace(config.partition, file=file)
    return without_start(replace(config, data=data, partition=partition))


def to_device(result: ClientResult, federation: Federation) -> ClientResult:
    upload = result.upload
    weights, extras = to((upload.weights, upload.extras), federation.device)
    return result._replace(upload=upload._replace(weights=weights, extras=extras))


def mark(round: int) -> State:
    """Return the server's record of a client whose state is at its site: the round that left that state."""
    return {"round": torch.tensor(round)}


def kept(job: Job, sent: State) -> State:
    """Return the server's record of a client: the state that it sent, or the mark of the state at its site."""
    return mark(job.round) if job.run else sent


def counted_in(mark: State) -> int:
    return int(mark["round"]) if mark else 0


def resumable_from(every: int, begun: int, round: int) -> int:
    """Return the round of the older of the two checkpoints that exist when this round starts; 0 if unknown.

    A process knows only the checkpoint that it started from, and its own: earlier processes may have used another
    `every`.
    """
    newest = (round - 1) // every * every
    return 0 if newest <= begun else max(begun, newest - every)
