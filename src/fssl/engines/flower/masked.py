"""Uploads that the server sees masked, by Flower's SecAgg+: of a round it opens the mean alone.

Keys, shares, masks and rounding are Flower's own, and so are their limits: docs/flower.md has them.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from safetensors.torch import load, save

from ...config import Config
from ...core.client import ClientResult
from ...core.federation import Federation
from ...core.privacy import FEWEST_MASKED as FEWEST
from ...errors import RunError, described
from ...types import Upload, Weights
from ..engine import Missing
from ..snapshot import Snapshot
from ..tensors import FormError, fill, named, to
from .fleet import REJECTED, FlowerFleet, Order, Policy
from .internals import MODULUS, SECAGG, HaltedError, MaskedSum, MaskTerms, Told, tidy, to_be_masked
from .messages import Forms, Job, SiteError, check_facts, check_finite
from .nodes import Connected, Nodes

NEEDED = 2 / 3  # of the clients that begin a round


def make_fleet(
    federation: Federation, grid: Grid, nodes: Nodes, policy: Policy, say: Callable[[str], None] = lambda text: None
) -> FlowerFleet:
    """The fleet that the settings ask for."""
    kind = MaskedFleet if is_masked(federation.config) else FlowerFleet
    return kind(federation, grid, nodes, policy, say)


def is_masked(config: Config) -> bool:
    return config.privacy.aggregation == "secagg+"


# At a client.


def masked_answer(job: Job, result: ClientResult, forms: Forms, config: Config, with_state: bool) -> RecordDict:
    """What a client hands to Flower's mod; refuses what its rounding would spoil in silence."""
    upload, privacy = result.upload, config.privacy
    if privacy.max_weight is None or upload.num_samples > privacy.max_weight:
        raise SiteError(f"its weight in the mean is {upload.num_samples}; privacy.max_weight is {privacy.max_weight}")
    tensors = named(weights=upload.weights)
    for name, tensor in tensors.items():
        if not float(largest := tensor.abs().max() if tensor.numel() else torch.zeros(())) < privacy.range:
            raise SiteError(f"{name} has a value of {largest:g}; privacy.range is {privacy.range:g}")
    # In double precision: Flower rounds in that of the arrays.
    arrays = [tensors[name].double().cpu().numpy() for name in named(weights=forms.upload.weights)]
    facts = {"client": job.client, "round": job.round, "tally": save({"tally": result.tally.contiguous()})}
    if with_state and result.state:
        facts["state"] = save({name: t.contiguous() for name, t in result.state.items()})
    return to_be_masked(arrays, Told(upload.num_samples, facts))


def check_masks(content: RecordDict, config: Config) -> None:
    """Refuse an order that would let an upload out unmasked though the settings promise masks."""
    if is_masked(config) and SECAGG not in content:
        raise SiteError("privacy.aggregation = 'secagg+', but the order is not part of it")


# At the server.


class MaskedFleet(FlowerFleet):
    """A fleet whose server sees no single upload: each result bears the mean of all, which is its own mean."""

    def __init__(self, federation: Federation, *given: Any) -> None:
        super().__init__(federation, *given)
        self._why: dict[int, str] = {}  # by node

    def for_clients(self, config: Config) -> Config:
        """The settings with the weight that clients' weights are sent as shares of."""
        federation, privacy = self.federation, config.privacy
        known = (federation.method.num_samples(federation.counts(k)) for k in range(config.partition.clients))
        self.terms_weight = privacy.max_weight or max(1, *known)
        return super().for_clients(replace(config, privacy=replace(privacy, max_weight=self.terms_weight)))

    def needed(self, drawn: int) -> int:
        return max(FEWEST, super().needed(drawn))

    def train(self, round: int, clients: list[int], snapshot: Snapshot) -> Iterator[ClientResult | Missing]:
        there, self._why = self._quorum(round, clients), {}
        orders = {there.nodes[k]: self._order(round, k, snapshot) for k in clients if k in there.nodes}
        if len(orders) < len(there.nodes):
            raise RunError("privacy.aggregation = 'secagg+' needs a node for each client; start as many as clients")
        try:
            results = self._opened(round, orders)
        except HaltedError as halted:
            self.say(f"round {round}: {halted}; nothing was opened")
            results = {}
        for client in clients:
            yield results.get(client) or self._lost(round, client, self._reason(client, there))
        self._check_enough(round, len(results), len(clients))

    def _reason(self, client: int, there: Connected) -> str:
        if client not in there.nodes:
            return there.why_not(client)
        return self._why.get(there.nodes[client], "its upload was not opened")

    def _opened(self, round: int, orders: dict[int, Order]) -> dict[int, ClientResult]:
        """Each client's result; all bear the same mean."""
        masked = MaskedSum(self._ask, {node: order.content for node, order in orders.items()}, self._terms(len(orders)))
        results: dict[int, ClientResult] = {}

        def check(told: dict[int, Told]) -> None:
            results.update({orders[node].job.client: self._read(orders[node].job, each) for node, each in told.items()})
            if sum(result.upload.num_samples > 0 for result in results.values()) < FEWEST:
                raise HaltedError(f"fewer than {FEWEST} clients have a weight in the mean")

        try:
            masked.run(round, check)
            mean = self._mean(masked.mean)
        except HaltedError:
            raise
        except FormError as error:
            raise HaltedError(f"{REJECTED}: {error}") from None
        except Exception as error:  # whatever Flower makes of bytes from outside, it must not end the run
            raise HaltedError(f"{REJECTED}: {described(error)}") from error
        return {k: r._replace(upload=r.upload._replace(weights=mean)) for k, r in results.items()}

    def _terms(self, clients: int) -> MaskTerms:
        threshold = max(FEWEST, round(NEEDED * clients))
        levels = MODULUS >> clients.bit_length()  # the finest that cannot overflow
        return MaskTerms(threshold, self.terms_weight, self.federation.config.privacy.range, levels)

    def _ask(self, messages: list[Message]) -> list[Message]:
        """The nodes' answers; of others, why there is none."""
        until = time.monotonic() + self.policy.answer
        sent = [(message.metadata.dst_node_id, self._push(message)) for message in messages]
        answers = []
        for node, number in sent:
            reply = self._reply(number, until)
            if reply is None:
                self._why[node] = f"no answer within {self.policy.answer:.0f} s"
            elif reply.has_error():
                self._why[node] = tidy(reply.error.reason or "")
            else:
                answers.append(reply)
        return answers

    def _read(self, job: Job, told: Told) -> ClientResult:
        """What a client said in the clear; its upload is in the mean, and nowhere else."""
        samples = check_facts({**told.facts, "num_samples": told.num_samples}, job)
        if samples > self.terms_weight:
            raise FormError(f"client {job.client}: its weight is {samples}, at most {self.terms_weight} was agreed")
        tally = load(told.facts["tally"])
        check_finite(tally)
        state = self._state(job, load(told.facts["state"]) if "state" in told.facts and not job.run else {})
        filled = fill({"tally": self.forms.tally}, tally)["tally"]
        return ClientResult(Upload(job.client, Weights({}, {}), samples, {}), state, {}, filled)

    def _mean(self, arrays: list[Any]) -> Weights:
        like = named(weights=self.forms.upload.weights)
        opened = {
            name: torch.from_numpy(array).reshape(t.shape).to(t.dtype)
            for (name, t), array in zip(like.items(), arrays, strict=True)
        }
        mean: Weights = fill({"weights": self.forms.upload.weights}, opened)["weights"]
        return Weights(*to(mean, self.federation.device))
