"""Masked uploads, by Flower's SecAgg+: of a round the server opens only the mean.

Keys, shares, masks and rounding are Flower's own, and so are their limits: `fssl docs flower` has them.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray
from safetensors.torch import load, save

from ...config import Config
from ...core.client import ClientResult
from ...core.federation import Federation
from ...core.privacy import FEWEST_MASKED
from ...errors import RunError, error_text
from ...types import Upload, Weights
from ..engine import Missing
from ..named_tensors import fill, named, to
from ..snapshot import Snapshot
from .fleet import REJECTED, ClientOrder, FlowerFleet, Policy, kept
from .internals import MODULUS, SECAGG, ClientFacts, HaltedError, MaskedSum, MaskTerms, to_be_masked
from .messages import Forms, Job, SiteError, check_finite, check_weight
from .nodes import Nodes

NEEDED = 2 / 3  # of the clients that start a round


def make_fleet(
    federation: Federation, grid: Grid, nodes: Nodes, policy: Policy, say: Callable[[str], None] = lambda text: None
) -> FlowerFleet:
    """Return the fleet for these settings."""
    kind = MaskedFleet if is_masked(federation.config) else FlowerFleet
    return kind(federation, grid, nodes, policy, say)


def is_masked(config: Config) -> bool:
    return config.privacy.aggregation == "secagg+"


# At a client.


def masked_answer(job: Job, result: ClientResult, forms: Forms, config: Config, with_state: bool) -> RecordDict:
    """Return a client's answer for Flower's mod; reject values that its rounding would silently change."""
    upload, privacy = result.upload, config.privacy
    if privacy.max_weight is None or upload.num_samples > privacy.max_weight:
        raise SiteError(
            f"its weight in the mean is {upload.num_samples}, above privacy.max_weight = {privacy.max_weight}"
        )
    tensors = named(weights=upload.weights)
    for name, tensor in tensors.items():
        if not float(largest := tensor.abs().max() if tensor.numel() else torch.zeros(())) < privacy.range:
            raise SiteError(f"{name} has a value of {largest:g}, not below privacy.range = {privacy.range:g}")
    # In double precision: Flower rounds in that of the arrays.
    arrays = [tensors[name].double().cpu().numpy() for name in named(weights=forms.upload.weights)]
    facts = {"client": job.client, "round": job.round, "tally": save({"tally": result.tally.contiguous()})}
    if with_state and result.state:
        facts["state"] = save({name: t.contiguous() for name, t in result.state.items()})
    return to_be_masked(arrays, ClientFacts(upload.num_samples, facts))


def check_promise(config: Config, masked: object) -> None:
    """Reject a run without masks at a site whose operator requires them: `masked` is anything but false."""
    if masked is not False and not is_masked(config):
        wanted = "but the operator of this site requires 'secagg+' (masked in site.toml)"
        raise SiteError(f"privacy.aggregation = '{config.privacy.aggregation}', {wanted}")


def check_masks(message: Message, config: Config) -> None:
    """Reject an order that would send an upload unmasked although the settings promise masks.

    Flower's mod masks the answers to messages of one type, and passes on all others unchanged.
    """
    is_part = SECAGG in message.content and message.metadata.message_type == MessageType.TRAIN
    if is_masked(config) and not is_part:
        raise SiteError("privacy.aggregation = 'secagg+', but the order has no masks")


# At the server.


class MaskedFleet(FlowerFleet):
    """A fleet that hides single uploads from the server: each result has the mean of all as its upload."""

    max_weight = 1

    def for_clients(self, config: Config) -> Config:
        """Return the settings with the weight by which clients divide theirs."""
        federation, privacy = self.federation, config.privacy
        known = (federation.method.num_samples(federation.counts(k)) for k in range(config.partition.clients))
        self.max_weight = privacy.max_weight or max(1, *known)
        return super().for_clients(replace(config, privacy=replace(privacy, max_weight=self.max_weight)))

    def needed(self, drawn: int) -> int:
        return max(FEWEST_MASKED, super().needed(drawn))

    def train(self, round: int, clients: list[int], snapshot: Snapshot) -> Iterator[ClientResult | Missing]:
        there = self._quorum(round, clients)
        gone = {k: self.lost(round, k, there.why_not(k)) for k in clients if k not in there.nodes}
        orders = {there.nodes[k]: self._order(round, k, snapshot) for k in clients if k in there.nodes}
        if len(orders) < len(there.nodes):
            raise RunError("privacy.aggregation = 'secagg+' needs a node for each client; start as many as clients")
        masked = MaskedRound(self, round, orders, self.terms(len(orders), len(clients)))
        results = masked.opened()
        for client in clients:
            yield results.get(client) or gone.get(client) or masked.missing[client]
        self._check_enough(MessageType.TRAIN, round, len(results), len(clients))
        self.labels.check(round, {client: result.tally for client, result in results.items()})

    def terms(self, asked: int, drawn: int) -> MaskTerms:
        """Return the parameters of a round."""
        # A mean that is not used stays closed: two means that differ by a client would reveal its upload.
        threshold = max(self.needed(drawn), round(NEEDED * asked))
        levels = MODULUS >> asked.bit_length()  # the finest that cannot overflow
        return MaskTerms(threshold, self.max_weight, self.federation.config.privacy.range, levels)


class MaskedRound:
    """One round of SecAgg+ with the nodes that have orders, and the outcome of each client."""

    def __init__(self, fleet: MaskedFleet, round: int, orders: dict[int, ClientOrder], terms: MaskTerms) -> None:
        self.fleet, self.round, self.orders, self.terms = fleet, round, orders, terms
        self.results: dict[int, ClientResult] = {}  # by client, without their uploads
        self.missing: dict[int, Missing] = {}

    def opened(self) -> dict[int, ClientResult]:
        """Return each client's result, all with the same mean; none if nothing could be opened."""
        contents = {node: order.content for node, order in self.orders.items()}
        masked = MaskedSum(self.ask, contents, self.terms)
        try:
            masked.run(self.round, self.store_facts)
            mean = self.mean(masked.mean)
        except RunError:
            raise
        except HaltedError as error:
            return self.halted(str(error))
        except Exception as error:  # any error from outside bytes: it must not end the run
            return self.halted(f"{REJECTED}: {error_text(error)}")
        return {k: r._replace(upload=r.upload._replace(weights=mean)) for k, r in self.results.items()}

    def halted(self, reason: str) -> dict[int, ClientResult]:
        reason = f"nothing was opened: {reason}"
        line = f"round {self.round}: {reason}"
        self.fleet.report_missing(line, line)
        for order in self.orders.values():
            self.missing.setdefault(order.job.client, Missing(order.job.client, reason))
        return {}

    def lose(self, client: int, reason: str) -> None:
        if client not in self.missing:
            self.missing[client] = self.fleet.lost(self.round, client, reason)

    def ask(self, messages: list[Message]) -> list[Message]:
        """Return the nodes' answers; a client that has sent its upload is not lost if it fails later."""
        fleet, answers = self.fleet, []
        until = time.monotonic() + fleet.policy.answer
        sent = [(message.metadata.dst_node_id, fleet.push(message)) for message in messages]
        for node, number in sent:
            client, reply = self.orders[node].job.client, fleet.reply(number, until)
            if isinstance(reply, Message):
                answers.append(reply)
            elif client not in self.results:
                self.lose(client, reply)
        return answers

    def store_facts(self, facts: dict[int, ClientFacts]) -> None:
        """Store what clients sent unmasked; stop before a mean of too few is opened."""
        jobs = {node: self.orders[node].job for node in facts}
        self.results = {jobs[node].client: self.read(jobs[node], each) for node, each in facts.items()}
        if sum(result.upload.num_samples > 0 for result in self.results.values()) < FEWEST_MASKED:
            raise HaltedError(f"fewer than {FEWEST_MASKED} clients have a weight in the mean")

    def read(self, job: Job, sent: ClientFacts) -> ClientResult:
        samples = check_weight({**sent.facts, "num_samples": sent.num_samples}, job)
        if samples > self.terms.max_weight:
            raise HaltedError(f"client {job.client} has a weight of {samples}, and {self.terms.max_weight} is the most")
        tally = load(sent.facts["tally"])
        check_finite(tally)
        state = load(sent.facts["state"]) if "state" in sent.facts and not job.run else {}
        filled = fill({"tally": self.fleet.forms.tally}, tally)["tally"]
        nothing = Upload(job.client, Weights({}, {}), samples, {})
        return ClientResult(nothing, kept(job, state), {}, filled)

    def mean(self, arrays: list[NDArray[Any]]) -> Weights:
        form = {"weights": self.fleet.forms.upload.weights}
        pairs = zip(named(**form).items(), arrays, strict=True)
        opened = {name: torch.from_numpy(array).reshape(t.shape).to(t.dtype) for (name, t), array in pairs}
        mean: Weights = to(fill(form, opened)["weights"], self.fleet.federation.device)
        return mean
