"""The server's half of a round, shared by every engine: draw clients, aggregate their uploads, test the model."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.client import ClientResult
from ..core.evaluate import Test, Tested, headline_norm, make_score, read_tested, read_tests
from ..core.federation import Federation
from ..core.images import split_to_choose_by
from ..core.server_optimizer import smooth
from ..core.site_scores import SiteScore, rounds_between, together
from ..core.static_norm import NormSums, mean_of
from ..errors import RunError
from ..seeds import stream
from ..types import Server, State, Upload, Weights
from .failure import NotFiniteError, failure_saved
from .lanes import faster
from .server_training import OwnRound, OwnTraining
from .snapshot import Snapshot
from .stopwatch import Stopwatch


class Missing(NamedTuple):
    """A drawn client whose result could not be used, and the reason."""

    client: int
    reason: str


class RoundResult(NamedTuple):
    round: int
    clients: list[int]  # clients whose upload was used
    tests: dict[str, Test]
    tally: NDArray[np.float32]  # [clients, 2, P]
    seconds: float
    missing: list[Missing]
    smooth_tests: dict[str, Test] = {}  # noqa: RUF012 (never changed in place)
    own_sums: dict[str, NDArray[np.float64]] = {}  # of the server's own steps, if it trained  # noqa: RUF012
    validation: Test | None = None
    smooth_validation: Test | None = None
    scores: list[SiteScore | Missing] = []  # of each client's own images  # noqa: RUF012
    unmeasured: list[Missing] = []  # clients whose images are not in the model's statistics  # noqa: RUF012
    parts: dict[str, float] = {}  # seconds by part  # noqa: RUF012


class RepeatRoundError(Exception):
    """Raised by a fleet to discard the round and repeat it with the same clients."""


After = Callable[[Server, int], Server]  # transforms a new server state, given the number of its uploads
# Excludes uploads of a round whose model is not finite, by testing each; returns False if all pass.
LeaveOut = Callable[[int, Callable[[Weights], bool]], bool]


class Fleet(Protocol):
    """Where clients train: on lanes of this machine's device, or behind Flower."""

    def train(self, round: int, clients: list[int], snapshot: Snapshot) -> Iterable[ClientResult | Missing]:
        """Return one result for each of these clients, in their order; the engine aggregates them as they arrive."""
        ...

    def measure(self, round: int, weights: Weights) -> Iterable[NormSums | Missing]:
        """Return BatchNorm's statistics of a model on the images of every client, drawn or not, in client order."""
        ...

    def score(self, round: int, weights: Weights) -> Iterable[SiteScore | Missing]:
        """Return a model's score on the local images of every client, drawn or not, in client order."""
        ...

    def prepare(self, round: int, clients: list[int]) -> None:
        """Prepare a round while a device is still busy with the previous one."""
        ...

    def close(self) -> None:
        """End threads and processes of the fleet; it does not train again."""
        ...


class Passing:
    """Passes uploads to the method one at a time, and keeps only what the record needs."""

    def __init__(self, device: torch.device) -> None:
        self.watch = Stopwatch(device)
        self.clients: list[int] = []
        self.tallies: list[Tensor] = []
        self.states: dict[int, State] = {}
        self.velocity: State = {}
        self.missing: list[Missing] = []
        self.unmeasured: dict[int, Missing] = {}

    def uploads(self, results: Iterable[ClientResult | Missing]) -> Iterator[Upload]:
        for result in results:
            if isinstance(result, Missing):
                self.missing.append(result)
                continue
            client = result.upload.client
            self.clients.append(client)
            self.tallies.append(result.tally)
            if result.state:
                self.states[client] = result.state
            self.velocity = result.velocity
            yield result.upload

    def sums(self, results: Iterable[NormSums | Missing]) -> Iterator[NormSums]:
        for result in results:
            if isinstance(result, Missing):
                self.unmeasured[result.client] = result
            else:
                yield result

    def tally(self) -> NDArray[np.float32]:
        return torch.stack(self.tallies).cpu().numpy()


class Done(NamedTuple):
    """The state at the end of a round, before its numbers are read from the device."""

    server: Server
    optimizer: State
    own: OwnRound
    smooth: Weights
    scores: list[Tensor]  # of the model, and of the smoothed one if there is one
    held_out: list[Tensor]  # the same on the validation part, if there is one
    sites: list[SiteScore | Missing]  # the clients' scores of the model, if sites test it


class Engine:
    """Rounds of one federation, trained by a fleet."""

    folder: Path | None = None  # for the inputs of a failing step

    def __init__(
        self,
        federation: Federation,
        fleet: Fleet,
        compiles: bool = False,
        after: After = lambda server, used: server,
        own: OwnTraining | None = None,
        leave_out: LeaveOut = lambda round, is_finite: False,
    ) -> None:
        self.federation, self.fleet, self.after, self.own = federation, fleet, after, own
        self.leave_out = leave_out
        self.device, self.layout = federation.device, federation.layout
        server, pools = federation.first_server(), federation.pools
        optimizer = federation.server_optimizer.start(server.weights.params)
        smoothed = (
            Weights({}, {})
            if federation.config.server.ema is None
            else federation.method.deploy(federation.net, server)
        )
        self.snapshot = Snapshot(0, server, {}, {}, optimizer, smoothed)
        make_fast = faster(federation, compiles)
        self.headline, score = headline_norm(federation.config), make_fast(make_score(federation.net))
        self.test = pools.tester(score, federation.test, [*federation.norms])
        held_out = split_to_choose_by(federation.config, federation.dataset, federation.holdings.held_out)
        self.validate = pools.tester(score, held_out, [self.headline]) if held_out else None
        self.asks_sites = rounds_between(federation.config, has_images=not federation.dataset.at_sites)
        self.collect = federation.make_collect(make_fast)

    def rounds(self, until: int) -> Iterator[RoundResult]:
        """Train from the snapshot's round on; update the snapshot before yielding each result."""
        while self.snapshot.round < until:
            yield self.round(until)

    def round(self, until: int) -> RoundResult:
        """Train one round and update the snapshot. Start preparing the next round if rounds remain before `until`."""
        federation, round, result = self.federation, self.snapshot.round + 1, None
        while result is None:  # repeat as often as the fleet requests
            begin, passing = time.perf_counter(), Passing(self.device)
            with suppress(RepeatRoundError), failure_saved(federation.config, self.folder), torch.no_grad():
                sent, own = self._sent(round, passing)
                uploads = passing.uploads(self.fleet.train(round, federation.drawn_clients(round), sent))
                mean = self._aggregated(round, sent, uploads, passing)
                done = self._done(round, sent, mean, own, passing)
                if round < until:
                    self.fleet.prepare(round + 1, federation.drawn_clients(round + 1))  # while the device still works
                result = self._read(round, done, passing)
        clients = {**self.snapshot.clients, **{k: self._kept(state) for k, state in passing.states.items()}}
        velocity = passing.velocity if federation.carries_momentum else {}
        self.snapshot = Snapshot(round, done.server, clients, velocity, done.optimizer, done.smooth, done.own.kept)
        return result._replace(seconds=time.perf_counter() - begin, parts=passing.watch.seconds())

    def _sent(self, round: int, passing: Passing) -> tuple[Snapshot, OwnRound]:
        """Return the snapshot sent to clients, and the server's training result if the server trains before them."""
        own = self._trained("before", round, self._begun(round, passing), passing)
        is_measured = round > 1 and own.tally is None  # at the end of the round before
        begun = own.server if is_measured else self._measured(round, own.server, passing)
        return self.snapshot._replace(server=begun), own

    def _aggregated(self, round: int, sent: Snapshot, uploads: Iterator[Upload], passing: Passing) -> Server:
        """Return the server state that the method aggregates from the uploads, after the engine's `after`."""
        federation = self.federation
        if federation.carries_momentum:  # they come in the order drawn
            uploads = iter(sorted(uploads, key=lambda u: u.client))
        uploads = federation.aggregation.robust(sent.server.weights, uploads, federation.method.share)
        rng = stream(federation.config.seed, "server", round)
        server = federation.method.aggregate(federation.net, sent.server, uploads, rng)
        check_parameters(round, sent.server, server)
        passing.watch.ends("clients")
        return self.after(server, len(passing.clients))

    def _done(self, round: int, sent: Snapshot, mean: Server, own: OwnRound, passing: Passing) -> Done:
        """Return the server after its step and its training, with its tests; a GPU may still be computing them."""
        federation = self.federation
        stepped, optimizer = self._stepped(round, sent, mean, passing)
        own = self._trained("after", round, own._replace(server=stepped), passing)
        server = self._remembered(self._measured(round, own.server, passing))
        model = federation.method.deploy(federation.net, server)
        smoothed, decay = self.snapshot.smooth, federation.config.server.ema
        if decay is not None:
            smoothed = smooth(smoothed, model, decay, round)
        models = [weights for weights in (model, smoothed) if weights.params]
        scores, held_out = ([test(each) for each in models] if test else [] for test in (self.test, self.validate))
        scores[0] = marked(scores[0], [model.buffers[name] for name in federation.net.running])
        passing.watch.ends("test")
        return Done(server, optimizer, own, smoothed, scores, held_out, self._scored(round, model, passing))

    def _scored(self, round: int, model: Weights, passing: Passing) -> list[SiteScore | Missing]:
        """Return the clients' scores of the model, in rounds in which they test it."""
        if not self.asks_sites or round % self.asks_sites:
            return []
        scores = [*self.fleet.score(round, model)]
        passing.watch.ends("sites")
        return scores

    def _read(self, round: int, done: Done, passing: Passing) -> RoundResult:
        """Return a round's numbers on the host; reject them if they are not finite."""
        federation, num_classes = self.federation, self.federation.task.num_classes
        groups = federation.holdings.groups
        plain, *smooth = [
            dict(zip(federation.norms, read_tests(each, num_classes, groups), strict=True)) for each in done.scores
        ]
        validated = [read_tests(each, num_classes, groups)[0] for each in done.held_out]
        of_sites = together((each for each in done.sites if isinstance(each, SiteScore)), "validation")
        result = RoundResult(
            round,
            passing.clients,
            plain,
            passing.tally(),
            seconds=0.0,  # not over yet
            missing=passing.missing,
            smooth_tests=smooth[0] if smooth else {},
            own_sums=self.own.sums(done.own) if self.own else {},
            validation=validated[0] if validated else of_sites,
            scores=done.sites,
            smooth_validation=validated[1] if validated[1:] else None,
            unmeasured=[*passing.unmeasured.values()],
        )
        try:
            check_losses(result)
        except NotFiniteError:
            if not self.leave_out(round, partial(self._has_finite_test, done.server)):
                raise
            raise RepeatRoundError from None
        return result

    def _has_finite_test(self, server: Server, weights: Weights) -> bool:
        """Return whether the test loss of these weights and their running statistics are finite."""
        model = self.federation.method.deploy(self.federation.net, server._replace(weights=weights))
        statistics = [model.buffers[name] for name in self.federation.net.running]
        return bool(marked(self.test(model), statistics)[:, 0].isfinite().all())

    def _begun(self, round: int, passing: Passing) -> OwnRound:
        """Return the server at the beginning of a round; before the first round it may warm up."""
        begun = OwnRound(self.snapshot.server, self.snapshot.training, None)
        if self.own is not None and round == 1:
            begun = self.own.warmed_up(begun)
            passing.watch.ends("server")
        return begun

    def _trained(self, when: str, round: int, before: OwnRound, passing: Passing) -> OwnRound:
        """Return the server after its training if it trains at this point, otherwise unchanged."""
        if self.own is None or self.federation.config.server.when != when:
            return before
        after = self.own.train(round, before.server, before.kept)
        passing.watch.ends("server")
        return after

    def _measured(self, round: int, server: Server, passing: Passing) -> Server:
        """Return the server with BatchNorm statistics, measured where `server.static_norm` says: at clients or here."""
        static_norm, (params, buffers) = self.federation.config.server.static_norm, server.weights
        if static_norm == "off":
            return server
        sums = [*passing.sums(self.fleet.measure(round, server.weights))] if static_norm == "sites" else []
        own = [self.collect(server.weights)] if self.collect else []
        measured = server._replace(weights=Weights(params, {**buffers, **mean_of(sums + own)}))
        passing.watch.ends("static_norm")
        return measured

    def _stepped(self, round: int, sent: Snapshot, mean: Server, passing: Passing) -> tuple[Server, State]:
        """Return the server after its optimizer's step, and the optimizer's state."""
        # The mean number of steps excludes clients without a step: they are not in the mean of the models either.
        federation, number = self.federation, self.layout.sums.index("steps")
        steps = torch.stack([tally[0, number] for tally in passing.tallies])
        mean_steps = (steps.sum() / (steps > 0).sum().clamp(min=1)).to(self.device)
        reach = federation.config.train.lr * federation.recipe.schedule.typical(round) * mean_steps
        old, made = sent.server.weights.params, mean.weights
        params, kept = federation.server_optimizer.step(old, made.params, sent.optimizer, reach)
        return mean._replace(weights=made._replace(params=params)), kept

    def _kept(self, state: State) -> State:
        """Return a client's state on the host, in pinned memory, so that idle clients use no device memory."""
        if self.device.type != "cuda":
            return state
        host = {k: torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for k, t in state.items()}
        for name, tensor in state.items():
            host[name].copy_(tensor, non_blocking=True)
        torch.cuda.current_stream(self.device).synchronize()  # the host may read it next
        return host

    def _remembered(self, server: Server) -> Server:
        """Return the server with new entries of its memory of clients moved to the host."""
        old = self.snapshot.server.memory
        return server._replace(memory={k: s if s is old.get(k) else self._kept(s) for k, s in server.memory.items()})

    def close(self) -> None:
        """Close the fleet; the snapshot remains."""
        self.fleet.close()

    def model(self) -> Weights:
        return self.federation.method.deploy(self.federation.net, self.snapshot.server)

    def tested(self, model: Weights) -> Tested:
        """Return all test measures of a model, under the headline's normalization."""
        federation = self.federation
        tests = read_tested(self.test(model), federation.task.num_classes, federation.holdings.groups)
        return dict(zip(federation.norms, tests, strict=True))[self.headline]

    def validated(self, model: Weights) -> Tested | None:
        """Return the same measures on the validation part; None if there is none."""
        return read_tested(self.validate(model), self.federation.task.num_classes)[0] if self.validate else None

    def models(self) -> dict[str, Weights]:
        """Return the model under its name in `server.ship`, and the smoothed model if there is one."""
        smooth = {"ema": self.snapshot.smooth} if self.snapshot.smooth.params else {}
        return {"plain": self.model(), **smooth}


def marked(scores: Tensor, statistics: list[Tensor]) -> Tensor:
    """Return a model's test scores, with a NaN loss if a running statistic is not finite."""
    # The loss may hide it: an infinite variance makes features 0, and the loss finite. The mark is set on the device,
    # in a number that the host reads anyway.
    if not statistics:
        return scores
    flaw = (0 * torch.cat([each.flatten() for each in statistics])).sum()  # 0 or NaN
    return torch.cat([scores[:, :1] + flaw, scores[:, 1:]], 1)


def check_parameters(round: int, before: Server, after: Server) -> None:
    """Reject a model that lacks parameters of the previous one."""
    # A mean is empty where every upload has weight 0.
    lacking = [name for name in before.weights.params if name not in after.weights.params]
    if lacking:
        raise RunError(
            f"round {round}: the method's `aggregate` returns a model without {lacking[0]}; a mean of uploads that all"
            " count 0 is empty, and the server's model then stays as it is"
        )


def check_losses(result: RoundResult) -> None:
    """Reject a round in which a loss of a client, the server or the global model is not finite."""
    tallies = zip(result.clients, result.tally, strict=True)
    bad = [f"the loss of client {client}" for client, tally in tallies if not np.isfinite(tally).all()]
    bad += ["the loss of the server"] * (not all(np.isfinite(total).all() for total in result.own_sums.values()))
    is_finite = all(np.isfinite(test.loss) for test in result.tests.values())
    bad += ["the loss or a running statistic of the global model"] * (not is_finite)
    if bad:
        kept = "; the checkpoint before it is kept" if result.round > 1 else ""
        raise NotFiniteError(
            f"round {result.round}: {bad[0]} is not finite{kept}. "
            "Try a smaller train.lr, or `fssl run --debug` to save the step that fails"
        )


MakeEngine = Callable[[Federation], Engine]
