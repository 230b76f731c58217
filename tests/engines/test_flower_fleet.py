"""The fleet behind Flower without any Flower process: streaming, faults, and states that stay at the sites."""

import gc
import re
import shutil
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from fssl.config import override, parse, read_toml
from fssl.core.client import ClientResult
from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.core.images import split_to_choose_by
from fssl.core.site_scores import SiteScore
from fssl.core.static_norm import NormSums, mean_of
from fssl.data.sources import load
from fssl.engines.engine import Engine, Missing
from fssl.engines.local import LocalEngine
from fssl.engines.named_tensors import named
from fssl.engines.snapshot import Snapshot, flat, parts, restore
from fssl.errors import RunError, UserError
from fssl.records.checkpoint import Saved
from fssl.records.rounds import BestRound
from fssl.runner.record import describe
from fssl.types import Payload, Server, State, Upload, Weights
from helpers.small import completed, method_of, tiny_config

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fssl.engines.flower import client_app as flower_client
from fssl.engines.flower import fleet
from fssl.engines.flower.client_app import train
from fssl.engines.flower.fleet import FlowerFleet, Policy, flower_engine, resumable_from
from fssl.engines.flower.internals import unwrap_message
from fssl.engines.flower.messages import (
    MEASURE,
    TENSORS,
    BadUploadError,
    Job,
    answer,
    fill,
    message_forms,
    order,
    pack,
    read_job,
    read_result,
    read_score,
    read_sums,
    sums_answer,
    unpack,
)
from fssl.engines.flower.nodes import AnyNode
from fssl.engines.flower.noised import ClippedNoise
from fssl.engines.flower.plausible import MOST_MOVED, Move, check_weight, far_ahead, outstanding
from fssl.engines.flower.state import SiteState, round_of
from helpers.fleet import RUN, Grid, Handler, at_client, at_sites, attacked_upload, federation_of, fleet_of

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def each_site_keeps_its_workshop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site's process keeps one; here one process plays all sites, and would build it anew for every message."""
    monkeypatch.setattr(flower_client, "workshop", lru_cache(maxsize=16)(flower_client.workshop.__wrapped__))


def digests(engine: Engine, until: int) -> list[bytes]:
    found = []
    for _ in engine.rounds(until):
        found.append(b"".join(t.numpy().tobytes() for t in named(server=engine.snapshot.server).values()))
    return found


@pytest.mark.parametrize("method", ["sage", "flexmatch", "fedloke"])
def test_states_at_the_sites_give_the_bits_of_the_local_engine(method: str, tmp_path: Path) -> None:
    federation = federation_of(f"method.name={method}", *(["method.tau=0.3"] if method == "flexmatch" else []))
    expected = digests(LocalEngine(federation), 4)
    engine = Engine(federation, fleet_of(federation, at_sites(tmp_path)))
    first = [engine.snapshot for _ in engine.rounds(4)][1]
    assert {tuple(kept) for kept in engine.snapshot.clients.values()} == {("round",)}  # the server never saw a state
    again = Engine(federation, fleet_of(federation, at_sites(tmp_path)))
    again.snapshot = restore(again.snapshot, Saved(2, flat(first), parts(first)))
    assert digests(again, 4) == expected[2:]  # two rounds back: sites use their states of then
    assert bool(list(tmp_path.glob("site-*/state/*/*/*.safetensors"))) == (method != "sage")


@pytest.mark.parametrize("words", ["median noise", "trimmed scale", "clipped labels", "krum sign"])
def test_robust_means_at_a_server_have_the_bits_of_the_local_engine(words: str, tmp_path: Path) -> None:
    rule, attack = words.split()
    names = (f"server.aggregate={rule}", f"attack.kind={attack}", "train.clients_per_round=4")
    names += ("server.malicious=0.1",) if rule == "trimmed" else ("server.malicious=0",) if rule == "krum" else ()
    federation = federation_of("method.name=sage", *names)
    fleet_without_sites = fleet_of(federation, lambda message: at_client(message, simulated()), strict=True, run="")
    assert digests(Engine(federation, fleet_without_sites), 2) == digests(LocalEngine(federation), 2)


def simulated() -> Context:
    return Context(1, 1, {}, RecordDict(), {})


OWN_FILE = """
from fssl.label.accept import FixedThreshold
from fssl.methods.fixmatch import FixMatch
from fssl.models.resnet import SmallCnn

def mine(tau: float = 0.3) -> FixMatch:
    return FixMatch(accept=FixedThreshold(tau))

def net(channels: int, classes: int, width: int) -> SmallCnn:
    return SmallCnn(channels, classes, width)
"""


def test_sites_with_the_same_file_give_the_bits_of_the_local_engine(tmp_path: Path) -> None:
    """A method and a network of one's own; the third site has another version, and is missing with the reason."""
    (tmp_path / "server").mkdir()
    (tmp_path / "server/my.py").write_text(OWN_FILE)
    names = (f"method.name={tmp_path}/server/my.py:mine+sage", f"model.name={tmp_path}/server/my.py:net")
    federation = federation_of(*names, "train.clients_per_round=4")
    expected = digests(LocalEngine(federation), 2)
    allowed = at_sites(tmp_path, 'own = ["my.py:mine", "my.py:net"]')
    for k in range(4):
        (tmp_path / f"site-{k}/own").mkdir(parents=True)
        (tmp_path / f"site-{k}/own/my.py").write_text(f"# The copy of site {k}.\n{OWN_FILE}")
    assert digests(Engine(federation, fleet_of(federation, allowed)), 2) == expected
    flower_client.workshop.cache_clear()
    (tmp_path / "site-2/own/my.py").write_text(OWN_FILE.replace("0.3", "0.4"))
    (result,) = Engine(federation, fleet_of(federation, catching(allowed), quorum=3)).rounds(1)
    assert result.missing == [Missing(2, "my.py:mine: this site's own/my.py differs from the run's file")]


def last_states(folder: Path) -> list[str]:
    """Each client's newest state, by round and checksum."""
    return [max(file.name for file in client.iterdir()) for client in sorted(folder.glob("site-*/state/*/*"))]


def coming_and_going(federation: Federation, folder: Path, first: Snapshot | None = None, spoil: str = "") -> list[str]:
    """The states after round 4, from the beginning or `first` on; client 0 is away in round 2, or its upload is bad."""
    honest = at_sites(folder)

    def handle(message: Message) -> Message | None:
        reply = honest(message)
        if reply and spoil and read_job(message.content)[1:3] == (2, 0):
            attacked_upload(reply.content, spoil)
        return reply

    fleet = fleet_of(federation, handle)
    engine, grid = Engine(federation, fleet), cast("Grid", fleet.grid)
    if first:
        engine.snapshot = restore(engine.snapshot, Saved(first.round, flat(first), parts(first)))
    for round in range(engine.snapshot.round + 1, 5):
        grid.nodes = [1, 2, 3] if round == 2 and not spoil else [0, 1, 2, 3]
        list(engine.rounds(round))
    return last_states(folder)


@pytest.mark.parametrize("given_up", ["by a server that goes back", "since its upload is bad"])
def test_a_round_that_was_given_up_leaves_no_state(given_up: str, tmp_path: Path) -> None:
    """Client 0 had a part in round 2 that does not count; when it comes back in round 3 it is as it was after 1."""
    federation = federation_of("method.name=fedloke", "train.clients_per_round=4")
    calm, rough = tmp_path / "calm", tmp_path / "rough"
    for folder in (calm, rough):
        folder.mkdir()
    expected = coming_and_going(federation, calm)
    if given_up == "since its upload is bad":
        assert coming_and_going(federation, rough, spoil="nan") == expected
        return
    engine = Engine(federation, fleet_of(federation, at_sites(rough)))
    first, *_ = [engine.snapshot for _ in engine.rounds(3)]
    assert coming_and_going(federation, rough, first) == expected


def test_a_site_keeps_what_a_resumed_server_may_ask_for(tmp_path: Path) -> None:
    store = SiteState(tmp_path, RUN, 3)

    def kept() -> list[int]:
        return [round_of(file) for file in sorted(tmp_path.rglob("*.safetensors"))]

    for counted, round in ((0, 1), (1, 4), (4, 6), (6, 9)):
        store.keep(round, {"t": torch.tensor(round)}, counted, resumable=5)
    assert kept() == [4, 6, 9]  # 1 is older than anyone may go back to
    assert [int(store.after(r)["t"]) for r in (4, 6, 9)] == [4, 6, 9]  # type: ignore[index]
    assert store.after(0) is None  # no round of this client has counted
    store.keep(8, {"t": torch.tensor(80)}, counted=4, resumable=5)  # the server went back, and had nothing of it in 6
    assert kept() == [4, 8]
    store.keep(8, {"t": torch.tensor(81)}, counted=4, resumable=5)  # the round once more
    assert kept() == [4, 8]
    assert int(store.after(8)["t"]) == 81  # type: ignore[index]
    assert SiteState(tmp_path, "f" * 16, 3).after(99) is None  # another run's


def test_a_damaged_or_lost_state_is_named(tmp_path: Path) -> None:
    store = SiteState(tmp_path, RUN, 0)
    store.keep(1, {"t": torch.ones(3)}, counted=0, resumable=0)
    (file,) = tmp_path.rglob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-1] + b"\7")
    for round in (1, 2):
        what = f"state after round {round} is damaged or missing; remove state/{RUN}/client-0 in"
        with pytest.raises(RunError, match=what):
            store.after(round)
    file.unlink()
    assert store.after(1) is None  # it may start anew


@pytest.mark.parametrize("name", ["../../etc", f"{RUN}/../../etc", f"{RUN}\n", RUN.upper(), RUN[:7], ""])
def test_a_run_cannot_name_a_folder_elsewhere(name: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="does not name a run"):
        SiteState(tmp_path, name, 0)


@pytest.mark.parametrize(
    ("every", "begun", "round", "expected"),
    [
        *[(1, 0, 1, 0), (1, 0, 2, 0), (1, 0, 5, 3), (10, 0, 19, 0), (10, 0, 31, 20)],  # 10, 20, 30: two are kept
        *[(1, 10, 11, 0), (1, 10, 12, 10), (1, 10, 13, 11), (5, 12, 15, 0), (5, 12, 16, 12)],  # before 10: not known
    ],
)
def test_how_far_a_server_may_go_back(every: int, begun: int, round: int, expected: int) -> None:
    assert resumable_from(every, begun, round) == expected


# Uploads that cannot be used.


BAD = {
    "nan": r"weights\.params\.\S+ has a value that is not finite",
    "shape": r"weights\.params\.\S+ is torch.float32 of shape \[3, 1\], expected torch.float32 of \[",
    "type": r"is torch.float64 of shape",
    "lost": r"weights\.params\.\S+ is missing",
    "count": "num_samples is 1000000000000000, expected a whole number from 0 to 1e",
    "negative": "num_samples is -1",
    "another": "it is from client 99, round 1",
    "garbage": "it cannot be read",
    "bytes": "it cannot be read: SafetensorError",
    "cut": "it cannot be read: SafetensorError",
    "name": "it cannot be read: KeyError",
    "empty": "its message has no 'upload'",
    "tally": "tally has a value that is not finite",
    "huge": r"weights\.params\.\S+ is 3e\+38 away from the broadcast value, expected 1e\+04 at most",
    "variance": r"weights\.buffers\.\S+running_var has a negative variance, -1",
    "unknown": "it has 1 unexpected tensors, such as more",
    "weight": "num_samples is 100000000, but this client was dealt",
    "steps": "it counts -2 steps, expected 0 to 1e",
    "sums": r"tally has a value of 1e\+30, expected 1e\+09 at most",
}


@pytest.mark.parametrize("how", BAD)
def test_a_bad_upload_is_rejected_and_named_and_the_round_continues(how: str, tmp_path: Path) -> None:
    federation, honest = federation_of(), at_sites(tmp_path)
    clients = federation.drawn_clients(1)
    bad = clients[1]

    def handle(message: Message) -> Message | None:
        reply = honest(message)
        assert reply is not None
        if message.metadata.dst_node_id == bad:
            attacked_upload(reply.content, how)
        return reply

    said: list[str] = []
    engine = Engine(federation, fleet_of(federation, handle, said, quorum=2))
    (result,) = engine.rounds(1)
    assert result.clients == [k for k in clients if k != bad]
    line, probes = describe(federation, federation.layout, result)
    assert list(line["missing"]) == [str(bad)]
    assert np.array_equal(probes["clients"], result.clients)
    assert re.search(f"^upload rejected: .*{BAD[how]}", line["missing"][str(bad)])
    assert said == [f"round 1: client {bad} is missing: {line['missing'][str(bad)]}"]
    without = Engine(federation, fleet_of(federation, honest, nodes=[k for k in range(4) if k != bad]))
    assert digests(without, 1) == [
        b"".join(t.numpy().tobytes() for t in named(server=engine.snapshot.server).values())
    ]  # as if it had not been there


def test_a_client_that_fails_or_is_silent_is_missing(tmp_path: Path) -> None:
    federation, honest = federation_of("train.clients_per_round=4"), at_sites(tmp_path)

    def handle(message: Message) -> Message | None:
        client = message.metadata.dst_node_id
        if client == 0:
            from flwr.app import Error

            return Message(
                Error(2, "<class 'X'>:<'\nException X occurred. Message: no room on disk'>"), reply_to=message
            )
        return None if client == 1 else honest(message)

    engine = Engine(federation, fleet_of(federation, handle, answer=0.05, nodes=[0, 1, 2]))
    (result,) = engine.rounds(1)
    assert result.clients == [2]
    assert result.missing == [
        Missing(0, "no room on disk"),
        Missing(1, "no answer within 0 s"),
        Missing(3, "not connected"),
    ]


def test_a_silent_client_is_given_up_by_the_time_that_others_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In round 2 a process hangs: ten times the slowest answer so far is enough, not the hour of answer_seconds."""
    monkeypatch.setattr(fleet, "FEWEST_SECONDS", 0.2)
    monkeypatch.setattr(fleet, "SLOWER", 2)
    federation, honest = federation_of("train.clients_per_round=4"), at_sites(tmp_path)

    def handle(message: Message) -> Message | None:
        is_silent = message.metadata.group_id == "2" and message.metadata.dst_node_id == 3
        return None if is_silent else honest(message)

    engine = Engine(federation, fleet_of(federation, handle, answer=3600))
    begun = time.monotonic()
    assert engine.round(2).missing == []
    took = time.monotonic() - begun
    (missing,) = engine.round(2).missing
    assert (missing.client, missing.reason.startswith("no answer within ")) == (3, True)
    assert time.monotonic() - begun < 60 + 4 * took


# Too few.


def test_a_round_waits_for_its_quorum_and_then_stops(tmp_path: Path) -> None:
    federation, said = federation_of(), []
    fleet = fleet_of(federation, at_sites(tmp_path), said, nodes=federation.drawn_clients(1)[:1], quorum=2, wait=0.6)
    engine = Engine(federation, fleet)
    with pytest.raises(RunError, match=r"round 1: 1 of 3 clients connected, 2 needed; waited 1 s.*resume the run"):
        list(engine.rounds(1))
    assert len(said) == 1  # once, not every second
    assert said[0].startswith("round 1: 1 of 3 clients connected, 2 needed; waiting up to 1 s for clients ")
    assert engine.snapshot.round == 0


def test_a_quorum_that_comes_in_time_trains(tmp_path: Path) -> None:
    federation = federation_of()
    fleet = fleet_of(federation, at_sites(tmp_path), nodes=[], quorum=2, wait=60)
    grid: Any = fleet.grid

    def arrive(text: str) -> None:
        grid.nodes.append(federation.drawn_clients(1)[len(grid.nodes)])

    fleet.say = arrive
    engine = Engine(federation, fleet)
    (result,) = engine.rounds(1)
    assert result.clients == federation.drawn_clients(1)[:2]


@pytest.mark.parametrize("failures", [2, 3])
def test_a_round_of_which_too_little_came_back_is_done_again(failures: int, tmp_path: Path) -> None:
    federation, honest, left = federation_of("method.name=flexmatch"), at_sites(tmp_path), [failures * 2]

    def handle(message: Message) -> Message | None:
        reply = honest(message)
        if message.metadata.dst_node_id in federation.drawn_clients(1)[:2] and left[0]:
            left[0] -= 1
            assert reply is not None
            attacked_upload(reply.content, "nan")
        return reply

    check_tries(federation, handle, 2, failures, "1 of 3 clients sent usable uploads, 2 needed; tried 3 times")


def check_tries(federation: Federation, handle: Handler, quorum: int, failures: int, end: str) -> None:
    """Two failures are made good, with the bits of the local engine; a third ends the run."""
    said: list[str] = []
    engine = Engine(federation, fleet_of(federation, handle, said, quorum=quorum))
    if failures == 3:
        with pytest.raises(RunError, match=end):
            list(engine.rounds(1))
        return
    assert digests(engine, 1) == digests(LocalEngine(federation), 1)
    assert sum("once more" in text for text in said) == 2


def test_a_strict_fleet_stops_at_once(tmp_path: Path) -> None:
    federation = federation_of()
    with pytest.raises(RunError, match=r"round 1, client \d: not connected; the checkpoint before it is kept"):
        list(Engine(federation, fleet_of(federation, at_sites(tmp_path), strict=True, nodes=[], quorum=0)).rounds(1))


def test_reasons_lose_their_wrapping() -> None:
    assert (
        unwrap_message("<class 'x.ClientAppException'>:<'\nException ClientAppException occurred. Message: full'>")
        == "full"
    )
    assert unwrap_message("<class 'fssl.errors.RunError'>:<'no room'>") == "no room"
    assert unwrap_message("Node Unavailable") == "Node Unavailable"
    assert unwrap_message("") == "failed without a reason"


# Statistics that sites measure.

AT_SITES = ("server.static_norm=sites", "train.clients_per_round=2")


def is_measuring(message: Message) -> bool:
    return message.metadata.message_type == MEASURE


def statistics_of(federation: Federation, weights: Weights, clients: Iterable[int]) -> State:
    """What a model has whose sums come from these clients."""
    sums = federation.make_client_measure()
    return mean_of(sums(weights, client) for client in clients)


def same(ours: State, theirs: State) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(t, theirs[name]) for name, t in ours.items())


def test_all_sites_are_asked_and_give_the_bits_of_the_local_engine(tmp_path: Path) -> None:
    """Before the first round, and at the end of each; drawn or not. A resumed server does not ask before its first."""
    federation, honest = federation_of(*AT_SITES), at_sites(tmp_path)
    asked: list[tuple[int, int]] = []

    def handle(message: Message) -> Message | None:
        if is_measuring(message):
            asked.append(read_job(message.content)[1:3])
        return honest(message)

    expected = digests(LocalEngine(federation), 3)
    engine = Engine(federation, fleet_of(federation, handle))
    first, *_ = [engine.snapshot for _ in engine.rounds(3)]
    assert asked == [(round, client) for round in (1, 1, 2, 3) for client in range(4)]
    asked.clear()
    again = Engine(federation, fleet_of(federation, handle))
    again.snapshot = restore(again.snapshot, Saved(1, flat(first), parts(first)))
    assert digests(again, 3) == expected[1:]
    assert asked == [(round, client) for round in (2, 3) for client in range(4)]


def bad_sums(content: RecordDict, how: str) -> None:
    sums, facts = unpack(content["sums"]), content["facts"]
    name = max(sums)
    changed = {"nan": torch.full_like(sums[name], torch.nan), "shape": torch.zeros(3), "type": sums[name].double()}
    if how in changed:
        content["sums"] = pack({**sums, name: changed[how]})
    elif how == "lost":
        content["sums"] = pack({key: t for key, t in sums.items() if key != name})
    elif how == "empty":
        del content["sums"]
    elif how == "bytes":
        content["sums"][TENSORS] = Array(np.zeros(100, np.uint8))
    else:
        facts.update({"none": {"batches": 0}, "many": {"batches": 10**15}, "another": {"client": 99}}[how])


BAD_SUMS = {
    "nan": r"body\.7\.running_var has a value that is not finite",
    "shape": r"body\.7\.running_var is torch.float32 of shape \[3\], expected torch.float32 of \[",
    "type": "is torch.float64 of shape",
    "lost": r"body\.7\.running_var is missing",
    "empty": "its message has no 'sums'",
    "bytes": "it cannot be read: SafetensorError",
    "none": "batches is 0, expected a whole number from 1 to 1e",
    "many": "batches is 1000000000000000",
    "another": "it is from client 99, round 1",
}


def test_a_client_with_a_single_batch_is_measured() -> None:
    federation, job = federation_of(*AT_SITES), Job("", 1, 0)
    forms = message_forms(federation)
    sums = {name: torch.full(t.shape, 2.0) for name, t in forms.sums.items()}
    back = read_sums(sums_answer(job, NormSums(sums, 1)), job, forms)
    assert back.batches == 1
    assert all(torch.equal(back.total[name], t) for name, t in sums.items())
    with pytest.raises(BadUploadError, match=r"^batches is 0, expected a whole number from 1 to 1e\+08$"):
        read_sums(sums_answer(job, NormSums(sums, 0)), job, forms)


@pytest.mark.parametrize("how", BAD_SUMS)
def test_sums_that_cannot_be_used_are_left_out_and_named(how: str, tmp_path: Path) -> None:
    federation, honest, said = federation_of(*AT_SITES), at_sites(tmp_path), list[str]()

    def handle(message: Message) -> Message | None:
        reply = honest(message)
        if reply and is_measuring(message) and message.metadata.dst_node_id == 1:
            bad_sums(reply.content, how)
        return reply

    engine = Engine(federation, fleet_of(federation, handle, said, quorum=2))
    (result,) = engine.rounds(1)
    ((client, reason),) = result.unmeasured
    assert (client, result.missing) == (1, [])
    assert re.match(f"upload rejected: .*{BAD_SUMS[how]}", reason)
    assert said == [f"round 1: client 1 is not measured: {reason}"] * 2  # before the round, and at its end
    line, _ = describe(federation, federation.layout, result)
    assert line["unmeasured"] == {"1": reason}
    assert "missing" not in line
    weights = engine.model()
    assert same(weights.buffers, statistics_of(federation, weights, (0, 2, 3)))


def test_a_site_that_is_gone_is_left_out_and_counts_again_once_it_is_back(tmp_path: Path) -> None:
    """In round 2 client 0 is not connected, client 1 fails, and client 2 gives no answer: 3 measures alone."""
    federation, honest = federation_of(*AT_SITES), at_sites(tmp_path)

    def handle(message: Message) -> Message | None:
        client, round = message.metadata.dst_node_id, read_job(message.content).round
        if is_measuring(message) and round == 2:
            if client == 2:
                return None
            if client == 1:
                raise RunError("no room on disk")
        return honest(message)

    said: list[str] = []
    fleet = fleet_of(federation, catching(handle), said, answer=0.05)
    engine, grid = Engine(federation, fleet), cast("Grid", fleet.grid)
    found = []
    for round in (1, 2, 3):
        grid.nodes = [1, 2, 3] if round == 2 else [0, 1, 2, 3]
        (result,) = engine.rounds(round)
        found.append(result.unmeasured)
        measured = {*range(4)} - {missing.client for missing in result.unmeasured}
        assert same(engine.model().buffers, statistics_of(federation, engine.model(), sorted(measured)))
    reasons = ["not connected", "no room on disk", "no answer within 0 s"]
    assert found == [[], [Missing(k, reason) for k, reason in enumerate(reasons)], []]
    assert [text for text in said if "measured" in text] == [
        f"round 2: client {k} is not measured: {reason}" for k, reason in enumerate(reasons)
    ]


@pytest.mark.parametrize("failures", [2, 3])
def test_a_measurement_that_too_few_answer_is_made_again_with_the_same_model(failures: int, tmp_path: Path) -> None:
    """No client trains twice for it."""
    federation, honest, left = federation_of(*AT_SITES), at_sites(tmp_path), [failures * 2]
    orders: list[str] = []
    sent: set[bytes] = set()

    def handle(message: Message) -> Message | None:
        orders.append(message.metadata.message_type)
        reply = honest(message)
        if reply and is_measuring(message) and "train" in orders:
            sent.add(message.content["payload"][TENSORS].numpy().tobytes())
            if message.metadata.dst_node_id < 2 and left[0]:
                left[0] -= 1
                bad_sums(reply.content, "nan")
        return reply

    end = "round 1: 2 of 4 clients sent usable uploads, 3 needed; tried 3 times"
    check_tries(federation, handle, 3, failures, end)
    assert (orders.count("train"), orders.count(MEASURE), len(sent)) == (2, 4 + 3 * 4, 1)


@pytest.mark.parametrize("trained", [0, 6])  # orders: before the round's training, or after its third attempt
def test_a_measurement_has_attempts_of_its_own(trained: int, tmp_path: Path) -> None:
    federation, honest, left = federation_of(*AT_SITES), at_sites(tmp_path), [2 * 2]
    orders: list[str] = []

    def handle(message: Message) -> Message | None:
        orders.append(message.metadata.message_type)
        reply, times = honest(message), orders.count("train")
        assert reply is not None
        if not is_measuring(message) and times <= 2 * 2:
            attacked_upload(reply.content, "nan")
        if is_measuring(message) and times == trained and message.metadata.dst_node_id < 2 and left[0]:
            left[0] -= 1
            bad_sums(reply.content, "nan")
        return reply

    said: list[str] = []
    engine = Engine(federation, fleet_of(federation, handle, said, quorum=3))
    assert digests(engine, 1) == digests(LocalEngine(federation), 1)
    again = [text for text in said if "once more" in text]
    train, measure = (f"round 1: {n} clients sent usable uploads" for n in ("0 of 2", "2 of 4"))
    assert [text.partition(",")[0] for text in again] == sorted([train, train, measure, measure], reverse=not trained)


def test_a_strict_fleet_says_once_where_a_client_failed(tmp_path: Path) -> None:
    fleet = fleet_of(federation_of(), at_sites(tmp_path), strict=True)
    for reason in ("round 2, client 1, step 3: KeyError: 'x'", "round 2, client 1: no such file", "no such file"):
        with pytest.raises(RunError) as error:
            fleet.lost(2, 1, reason)
        assert str(error.value).count("round 2, client 1") == 1
        assert str(error.value).endswith(f"{reason}; the checkpoint before it is kept")


def test_a_strict_fleet_stops_where_a_client_is_not_measured(tmp_path: Path) -> None:
    federation = federation_of(*AT_SITES)
    fleet = fleet_of(federation, at_sites(tmp_path), strict=True, nodes=[0, 1, 2])
    with pytest.raises(RunError, match="round 1, client 3: not connected; the checkpoint before it is kept"):
        list(Engine(federation, fleet).rounds(1))


def test_a_site_measures_only_its_own_client_and_not_with_masks(tmp_path: Path) -> None:
    honest = at_sites(tmp_path)

    def to_another(message: Message) -> Message | None:
        message.metadata.dst_node_id = 3 - message.metadata.dst_node_id
        return honest(message)

    federation = federation_of(*AT_SITES)
    fleet = fleet_of(federation, catching(to_another), quorum=0)
    weights = Engine(federation, fleet).model()
    assert [*fleet.measure(1, weights)] == [
        Missing(k, f"this site is client {3 - k}, but the order is for client {k}") for k in range(4)
    ]
    masked = federation_of("privacy.aggregation=secagg+")
    fleet = fleet_of(masked, catching(honest), quorum=0)
    why = "privacy.aggregation = 'secagg+', but the order has no masks"
    assert [*fleet.measure(1, weights)] == [Missing(k, why) for k in range(4)]


def test_statistics_are_measured_with_bounds(tmp_path: Path) -> None:
    """They are not bounded, as those of clients are not."""
    engine = private_engine(tmp_path, *AT_SITES, "privacy.clip=0.01")
    list(engine.rounds(1))
    weights = engine.model()
    assert same(weights.buffers, statistics_of(engine.federation, weights, range(4)))


# Memory.


@pytest.mark.usefixtures("quick_collections")
@pytest.mark.parametrize("method", ["sage", "fedlabel-2m", "proxyfl", "fedloke", "fedmatch"])
def test_uploads_stream(method: str) -> None:
    """24 clients: never more than two uploads exist, and few orders are under way."""
    clients = range(24)
    settings = ("model.name=resnet8", "model.width=1", "partition.clients=24", "train.clients_per_round=24")
    config = completed(tiny_config(*settings, "data.labels_per_class=40", f"method.name={method}"))
    dataset = load("synthetic", num_classes=4, size=32, channels=3, train_per_class=40, test_per_class=1)
    federation = Federation(prepare(config, dataset))
    forms = message_forms(federation)
    alive: list[Any] = []
    most = 0

    def handle(message: Message) -> Message:
        job = read_job(message.content)
        sent = fill(forms.upload, {k: torch.zeros(t.shape) for k, t in named(**forms.upload._asdict()).items()})
        upload = Upload(job.client, sent.weights, 1, sent.extras)
        return Message(
            answer(job, ClientResult(upload, {}, {}, torch.zeros(forms.tally.shape)), True), reply_to=message
        )

    class Watched(FlowerFleet):
        def train(self, *arguments: Any) -> Iterator[ClientResult | Missing]:
            nonlocal most
            for result in super().train(*arguments):
                assert isinstance(result, ClientResult)
                alive.append(weakref.ref(next(iter(result.upload.weights.buffers.values()))))
                yield result
                del result
                gc.collect()
                most = max(most, sum(reference() is not None for reference in alive))

    grid: Any = Grid(handle, clients)
    fleet = Watched(federation, grid, AnyNode(grid), Policy(window=4, poll=0.0))
    engine = Engine(federation, fleet)
    uploads = (r.upload for r in fleet.train(1, list(clients), engine.snapshot) if isinstance(r, ClientResult))
    with torch.no_grad():
        federation.method.aggregate(federation.net, engine.snapshot.server, uploads, np.random.default_rng(0))
    assert len(alive) == 24
    assert 1 <= most <= 2
    assert grid.most_under_way == 4


# Messages.


def test_tensors_of_every_type_travel_bit_for_bit() -> None:
    tensors = {
        "half": torch.tensor([1.5, -0.0, torch.inf, 3e38]).bfloat16(),
        "float": torch.tensor([[0.1], [torch.nan]]),
        "whole": torch.tensor([-(2**62), 7]),
        "none": torch.zeros(0, 3),
        "scalar": torch.tensor(3),
        "yes": torch.tensor([True, False]),
        "strided": torch.arange(6).reshape(2, 3).T,
    }
    back = unpack(pack(tensors))
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert back[name].shape == tensor.shape
        assert bits(back[name]) == bits(tensor), name


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


def test_names_come_back_in_the_methods_order() -> None:
    federation = federation_of("method.name=fedmatch")
    payload = federation.method.payload(federation.first_server(), 1)
    job = Job("x", 3, 1, RUN, 2, 1)
    content = order(job, payload, None)
    shuffled = dict(sorted(unpack(content["payload"]).items(), reverse=True))
    back: Server = fill(message_forms(federation).payload, shuffled)
    assert list(back.weights.params) == list(payload.weights.params)
    assert list(back.extras) == list(payload.extras)
    assert all(torch.equal(a, b) for a, b in zip(back.extras.values(), payload.extras.values(), strict=True))
    assert read_job(content) == job


def test_a_result_of_another_form_is_rejected() -> None:
    federation = federation_of()
    content = RecordDict({"facts": ConfigRecord({"client": 0, "round": 1, "num_samples": 1}), "upload": ArrayRecord()})
    with pytest.raises(BadUploadError, match="no 'tally'"):
        read_result(content, Job("", 1, 0), message_forms(federation))


def test_a_site_cannot_leave_a_state_with_the_server(tmp_path: Path) -> None:
    federation, honest = federation_of("method.name=flexmatch"), at_sites(tmp_path)

    def handle(message: Message) -> Message | None:
        reply = honest(message)
        assert reply is not None
        reply.content["state"] = pack({"huge": torch.zeros(1000)})
        return reply

    engine = Engine(federation, fleet_of(federation, handle))
    (result,) = engine.rounds(1)
    assert result.clients == federation.drawn_clients(1)
    assert engine.snapshot.clients == {k: {"round": torch.tensor(1)} for k in result.clients}


# Privacy.


def private_engine(tmp_path: Path, *settings: str) -> Engine:
    federation = federation_of(*settings)
    return flower_engine(fleet_of(federation, at_sites(tmp_path)))


def moved(engine: Engine, before: Server) -> float:
    after = engine.snapshot.server.weights.params
    return sum(float((after[k].double() - t.double()).square().sum()) for k, t in before.weights.params.items()) ** 0.5


def test_a_wide_bound_without_noise_is_a_plain_mean(tmp_path: Path) -> None:
    wide = private_engine(tmp_path, "privacy.clip=1e6")
    list(wide.rounds(1))
    federation = federation_of()
    uploads = [
        r.upload._replace(num_samples=1)
        for r in LocalEngine(federation).fleet.train(1, federation.drawn_clients(1), LocalEngine(federation).snapshot)
    ]
    expected = federation.method.aggregate(federation.net, federation.first_server(), uploads, np.random.default_rng(0))
    for name, tensor in expected.weights.params.items():
        torch.testing.assert_close(wide.snapshot.server.weights.params[name], tensor, rtol=1e-5, atol=1e-6)


def test_updates_are_bounded_and_running_statistics_stay_out_of_the_norm(tmp_path: Path) -> None:
    engine = private_engine(tmp_path, "privacy.clip=0.01", "train.clients_per_round=1")
    before = engine.snapshot.server
    list(engine.rounds(1))
    assert moved(engine, before) == pytest.approx(0.01, rel=1e-3)
    free = LocalEngine(federation_of("train.clients_per_round=1"))
    list(free.rounds(1))
    assert moved(free, before) > 0.1
    ours, theirs = engine.snapshot.server.weights.buffers, free.snapshot.server.weights.buffers
    assert all(torch.equal(ours[name], t) for name, t in theirs.items())  # as sent, not scaled


def test_an_update_of_which_a_part_stayed_as_it_was_is_bounded_too() -> None:
    """An update of (3, 4) has length 5, and 1 is the bound. Without any update there is no direction to keep."""
    sent = {"still": torch.ones(2), "moved": torch.zeros(2)}
    payload, privacy = Payload(Weights(sent, {}), {}), ClippedNoise(clip=1.0, noise=0.0)
    for moved, expected in (([3.0, 4.0], [0.6, 0.8]), ([0.3, 0.4], [0.3, 0.4]), ([0.0, 0.0], [0.0, 0.0])):
        upload = Upload(2, Weights({**sent, "moved": torch.tensor(moved)}, {}), 9, {})
        params = (clipped := privacy.clipped(upload, payload)).weights.params
        assert params["moved"].tolist() == pytest.approx(expected)
        assert params["still"].tolist() == [1, 1]
        assert (clipped.client, clipped.num_samples) == (2, 1)  # all count the same


def test_noise_has_the_promised_size_and_differs_from_run_to_run(tmp_path: Path) -> None:
    engines = [private_engine(tmp_path, "privacy.clip=2", "privacy.noise=3") for _ in range(2)]
    quiet = private_engine(tmp_path, "privacy.clip=2")
    for engine in (*engines, quiet):
        list(engine.rounds(1))
    a, b, mean = (
        torch.cat([t.flatten() for t in e.snapshot.server.weights.params.values()]) for e in (*engines, quiet)
    )
    assert (a - mean).std().item() == pytest.approx(3 * 2 / 3, rel=0.1)  # noise * clip / clients
    assert not torch.equal(a, b)


@pytest.mark.parametrize("method", ["fedmatch", "proxyfl", "feddb", "fedlabel-2m"])
def test_methods_that_use_more_than_the_mean_are_rejected(method: str) -> None:
    """By their settings alone, before anything is started."""
    with pytest.raises(UserError, match=f"privacy.clip: method '{method}' reads more than the mean"):
        method_of(parse(override(read_toml("smoke"), ["privacy.clip=1", f"method.name={method}"])))


@pytest.mark.parametrize("method", ["sage", "flexmatch", "fedloke", "fedavg", "freematch", "feddure", "flexmatch+sage"])
def test_methods_that_average_are_not(method: str, tmp_path: Path) -> None:
    engine = private_engine(tmp_path, "privacy.clip=0.01", "train.clients_per_round=1", f"method.name={method}")
    before = engine.snapshot.server
    list(engine.rounds(1))
    assert moved(engine, before) == pytest.approx(0.01, rel=1e-3)


# A site's own images.


def write_images(folder: Path, number: int, seed: int) -> None:
    from PIL import Image

    folder.mkdir(parents=True)
    for i, pixels in enumerate(np.random.default_rng(seed).integers(0, 256, (number, 8, 8, 3), dtype=np.uint8)):
        Image.fromarray(pixels).save(folder / f"{i}.png")


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    """Three sites and a server's test images; the second site lacks a class, the third has no labels at all."""
    root = tmp_path / "images"
    for seed, (client, labeled, unlabeled) in enumerate((("a", ("cat", "dog"), 9), ("b", ("dog",), 5), ("c", (), 7))):
        for name in labeled:
            write_images(
                root / "clients" / client / "labeled" / name, 3 - (name == "cat"), 10 * seed + len(name) + ord(name[0])
            )
        write_images(root / "clients" / client / "unlabeled", unlabeled, 100 + seed)
    for name in ("cat", "dog"):
        write_images(root / "test" / name, 4, 1000 + ord(name[0]))
    return root


OWN = ("data.name=folder", 'data.classes=["cat", "dog"]', "data.size=8", "train.clients_per_round=3")


def own_config(method: str, *more: str) -> Any:
    from fssl.config import override, parse
    from helpers.small import TINY

    tables = {k: v for k, v in TINY.items() if k not in ("data", "partition")}
    return parse(override(tables, [*OWN, f"method.name={method}", "train.steps_per_round=2", *more]))


def images_at_sites(sites: Path, more: str = "") -> Handler:
    """Each client at a site that has its folder of images."""

    def handle(message: Message) -> Message:
        client = message.metadata.dst_node_id
        place = sites.parent / f"site-{client}"
        place.mkdir(exist_ok=True)
        (place / "site.toml").write_text(f'device = "cpu"\n{more}')
        data = str(sites / "clients" / "abc"[client])
        node = {"partition-id": client, "num-partitions": 3, "folder": str(place), "data": data}
        return at_client(message, Context(1, client, node, RecordDict(), {}))

    return handle


@pytest.mark.parametrize(
    "words",
    [
        ["sage"],
        ["flexmatch"],
        ["fedloke"],
        ["feddb"],
        ["sage", "train.class_weights=1"],
        ["sage", "server.static_norm=sites"],
    ],
    ids=" ".join,
)
def test_sites_with_their_own_images_give_the_bits_of_one_machine_with_all(words: list[str], sites: Path) -> None:
    from fssl.deploy.server_app import server_dataset

    together = Federation(prepare(own_config(*words, f'data.dir="{sites}"')))
    expected = digests(LocalEngine(together), 3)
    config = own_config(*words, "partition.clients=3")
    federation = Federation(prepare(config, server_dataset(config, sites, 3)))
    assert len(federation.dataset.train.labels) == 1  # the server has none of their images
    assert (federation.holdings.labeled, federation.holdings.unlabeled) == (None, None)  # and cannot count them
    assert digests(Engine(federation, fleet_of(federation, images_at_sites(sites))), 3) == expected


@pytest.mark.parametrize("static_norm", ["off", "server", "sites"])
def test_a_server_with_labels_and_sites_without_give_the_bits_of_one_machine(static_norm: str, sites: Path) -> None:
    """The server trains on its own folder, sites label their images; a site with labels of its own is left out."""
    from fssl.deploy.server_app import server_dataset

    at = ("partition.labels=server", "server.epochs=2", "server.batch=4", "train.keep_momentum=true")
    at = (*at, f"server.static_norm={static_norm}")
    for client in "abc":
        shutil.rmtree(sites / "clients" / client / "labeled", ignore_errors=True)
    for name in ("cat", "dog"):
        write_images(sites / "server" / name, 4, 7 + ord(name[0]))
    together = Federation(prepare(own_config("sage", *at, f'data.dir="{sites}"')))
    expected = digests(LocalEngine(together), 3)
    config = own_config("sage", *at, "partition.clients=3")
    federation = Federation(prepare(config, server_dataset(config, sites, 3)))
    engine = flower_engine(fleet_of(federation, catching(images_at_sites(sites))))
    assert digests(engine, 3) == expected
    write_images(sites / "clients" / "c" / "labeled" / "dog", 1, 3)
    cast(Any, flower_client.workshop).cache_clear()  # as in a process that starts again
    *_, result = engine.fleet.train(4, [0, 1, 2], engine.snapshot)
    assert isinstance(result, Missing)
    assert result.reason.startswith("this site's images cannot be used")


NO_LABELS = r"no client has a labeled image, and the server trains on none: expected some in labeled/CLASS/\* of a site"


def without_labels(sites: Path, *clients: str) -> None:
    for client in clients:
        shutil.rmtree(sites / "clients" / client / "labeled", ignore_errors=True)


def at_own_images(sites: Path, said: list[str], *settings: str) -> Engine:
    from fssl.deploy.server_app import server_dataset

    config = own_config("sage", "partition.clients=3", *settings)
    federation = Federation(prepare(config, server_dataset(config, sites, 3)))
    return flower_engine(fleet_of(federation, catching(images_at_sites(sites)), said))


@pytest.mark.parametrize("setting", ["records.probes=all", "records.probes=losses", "method.name=fedavg"])
def test_a_run_without_any_label_stops_after_its_first_round(setting: str, sites: Path) -> None:
    without_labels(sites, "a", "b", "c")
    engine = at_own_images(sites, said := [], setting)
    with pytest.raises(RunError, match=f"^round 1: {NO_LABELS}"):
        engine.round(3)
    assert (engine.snapshot.round, said) == (0, [])


def test_a_label_at_one_site_is_enough(sites: Path) -> None:
    without_labels(sites, "a", "c")
    engine = at_own_images(sites, said := [])
    assert [result.clients for result in engine.rounds(2)] == [[0, 1, 2]] * 2
    assert said == []


def test_clients_that_were_not_drawn_yet_may_have_labels(sites: Path) -> None:
    without_labels(sites, "a", "b", "c")
    engine = at_own_images(sites, said := [], "train.clients_per_round=2", "seed=1")
    heard = set(engine.round(9).clients)
    (other,) = {0, 1, 2} - heard
    assert said == [
        f"round 1: no client so far has a labeled image, and the server trains on none; not heard yet: client {other}"
    ]
    with pytest.raises(RunError, match=NO_LABELS):
        deque(engine.rounds(9), maxlen=0)
    assert other in engine.federation.drawn_clients(engine.snapshot.round + 1)
    assert len(said) == 1


def test_a_resumed_run_resumes_though_labels_are_known_by_heart(sites: Path) -> None:
    """Their loss may be 0 then, as it is here without labels."""
    without_labels(sites, "a", "b", "c")
    engine = at_own_images(sites, said := [])
    engine.snapshot = engine.snapshot._replace(round=7)
    assert engine.round(8).clients == [0, 1, 2]
    assert said == []


def test_what_cannot_be_chosen_by_is_rejected_and_the_tuning_half_is_not(sites: Path) -> None:
    from fssl.deploy.server_app import server_dataset

    for more, why in {
        ("privacy.aggregation=secagg+", "privacy.max_weight=99"): "would not be masked",
        ("records.metrics=macro_f1",): "report only accuracy and loss",
    }.items():
        with pytest.raises(UserError, match=rf"data\.validation = 0\.1: sites hold these images.* {why}"):
            server_dataset(own_config("sage", "partition.clients=3", "data.validation=0.1", *more), sites, 3)
    for half in ("tuning", "final"):
        config = own_config("sage", "partition.clients=3", f"data.test={half}", "records.keep_best=true")
        federation = Federation(prepare(config, server_dataset(config, sites, 3)))
        assert len(federation.test.labels) == 4
        held_out = split_to_choose_by(config, federation.dataset, federation.holdings.held_out)
        assert (held_out is not None) == (half == "final")


def scoring_sites(sites: Path, least: int) -> Handler:
    """Sites with test images of their own, whose operators want no score of fewer images."""
    for client, number in (("a", 3), ("b", 6)):
        write_images(sites / "clients" / client / "test" / "dog", number, ord(client))
    handle = images_at_sites(sites, f"least_measured = {least}")
    return catching(handle)


def test_sites_score_the_model_on_their_own_images_and_choose_by_them(sites: Path) -> None:
    from fssl.deploy.server_app import server_dataset

    names = ("partition.clients=3", "data.validation=0.4", "records.keep_best=true", "train.clients_per_round=2")
    config = own_config("sage", *names)
    federation = Federation(prepare(config, server_dataset(config, sites, 3)))
    engine = flower_engine(fleet_of(federation, scoring_sites(sites, 1), quorum=1))
    progress = BestRound(config)
    for result in engine.rounds(2):
        line, _ = describe(federation, federation.layout, result)
        assert {k: site["images"] for k, site in line["sites"]["test"]["clients"].items()} == {"0": 3, "1": 6}
        held = {k: site["images"] for k, site in line["sites"]["validation"]["clients"].items()}
        assert held == {"0": 2, "1": 1}  # each site holds out of its own; the third has no labels
        right = sum(site["accuracy"] * held[k] / 100 for k, site in line["sites"]["validation"]["clients"].items())
        assert line["validation"]["accuracy"] == pytest.approx(100 * right / 3)
        assert "unscored" not in line
        progress.take(line)
    assert progress.best is not None


def test_a_site_reports_no_score_of_few_images(sites: Path) -> None:
    from fssl.deploy.server_app import server_dataset

    config = own_config("sage", "partition.clients=3", "records.sites_every=2")
    federation = Federation(prepare(config, server_dataset(config, sites, 3)))
    first, second = flower_engine(fleet_of(federation, scoring_sites(sites, 4))).rounds(2)
    assert first.scores == []
    scores = [each for each in second.scores if isinstance(each, SiteScore)]
    assert {score.client: {*score.parts} for score in scores} == {0: set(), 1: {"test"}, 2: set()}


def test_the_usual_bound_hides_small_parts(sites: Path) -> None:
    (folder := sites.parent / "site").mkdir()
    for text, least in (("", 20), ("least_measured = 5", 5)):
        (folder / "site.toml").write_text(text)
        assert flower_client.least_measured(folder) == least


@pytest.mark.parametrize(
    ("sums", "why"),
    [
        ({"training": [1.0, 1.0, 0.0]}, "has a part 'training' that is unknown"),
        ({"test": [1.0, 1.0]}, "has a part 'test' that is unknown"),
        ({"test": [5.0, 6.0, 0.0]}, r"score of the test part is \[5\.0, 6\.0"),
        ({"test": [0.0, 0.0, 0.0]}, r"score of the test part is \[0\.0"),
        ({"test": [5.0, 1.0, float("nan")]}, r"score of the test part is \[5\.0, 1\.0, nan"),
        ({"test": 5.0}, "has a part 'test' that is unknown"),
    ],
)
def test_a_score_that_cannot_be_is_rejected(sums: dict[str, Any], why: str) -> None:
    content = RecordDict(
        {"facts": ConfigRecord({"client": 1, "round": 2, "num_samples": 0}), "score": ConfigRecord(sums)}
    )
    with pytest.raises(BadUploadError, match=why):
        read_score(content, Job("", 2, 1))


def test_a_site_without_data_says_so(sites: Path) -> None:
    from fssl.deploy.server_app import server_dataset

    config = own_config("sage", "partition.clients=3")
    federation = Federation(prepare(config, server_dataset(config, sites, 3)))
    fleet = fleet_of(federation, catching(at_sites(sites.parent)), nodes=[0])
    result = next(iter(fleet.train(1, [0], Engine(federation, fleet).snapshot)))
    assert result == Missing(0, "this site was started without --data, but the run needs each site's own images")


@pytest.mark.parametrize("clients", [2, 4])
def test_a_site_that_counts_other_clients_says_so(clients: int, sites: Path) -> None:
    """As after a site was withdrawn, or added, and the others still have the number of before."""
    from fssl.deploy.server_app import server_dataset

    config = own_config("sage", f"partition.clients={clients}", f"train.clients_per_round={clients}")
    federation = Federation(prepare(config, server_dataset(config, sites, clients)))
    fleet = fleet_of(federation, catching(images_at_sites(sites)), nodes=[0])
    result = next(iter(fleet.train(1, [0], Engine(federation, fleet).snapshot)))
    assert result == Missing(0, f"this site has clients = 3 in site.toml; the run has {clients} clients")


def bad_image(place: Path, images: Path) -> None:
    (images / "unlabeled" / "a-patient.png").write_text("no image")


def no_settings(place: Path, images: Path) -> None:
    (place / "site.toml").unlink()


def no_room(place: Path, images: Path) -> None:
    (place / "state").write_text("a file where a folder is to be")


@pytest.mark.parametrize(
    ("spoil", "expected", "here", "shown"),
    [
        (
            bad_image,
            "this site's images cannot be used (ProblemsError)",
            "unlabeled/a-patient.png",
            "'{images}' cannot be used, 1 problem:\n"
            "fssl:   unlabeled/a-patient.png: not a PNG, JPEG, WebP, TIFF, BMP or DICOM image",
        ),
        (
            no_settings,
            "this site failed (FileNotFoundError)",
            "site-0/site.toml",
            "FileNotFoundError: [Errno 2] No such file or directory: '{place}/site.toml'",
        ),
        (no_room, "this site failed (NotADirectoryError)", "site-0/state", "NotADirectoryError: [Errno 20] Not a"),
    ],
)
def test_a_site_keeps_the_names_of_its_files_to_itself(
    spoil: Callable[[Path, Path], None],
    expected: str,
    here: str,
    shown: str,
    sites: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from fssl.deploy.server_app import server_dataset

    config = own_config("flexmatch", "partition.clients=3")
    federation = Federation(prepare(config, server_dataset(config, sites, 3)))
    place, images, kept = sites.parent / "site-0", sites / "clients" / "a", []
    place.mkdir()
    (place / "site.toml").write_text("")
    spoil(place, images)
    node = {"partition-id": 0, "num-partitions": 3, "folder": str(place), "data": str(images)}

    def handle(message: Message) -> Message:
        try:
            return train(message, Context(1, 0, node, RecordDict(), {}))
        except RunError as error:
            kept.append(str(error.__cause__))  # Flower writes the whole chain into the site's log
            raise

    fleet = fleet_of(federation, catching(handle), nodes=[0])
    result = next(iter(fleet.train(1, [0], Engine(federation, fleet).snapshot)))
    assert result == Missing(0, f"{expected}; see logs/supernode.log at the site")
    assert here in kept[0]
    line = f"fssl: round 1: this site cannot take part: {shown.format(images=images, place=place)}"
    assert line in capsys.readouterr().err  # which `fssl deploy site` passes on


def test_a_site_reports_skipped_files_only_locally(sites: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad_image(sites, images := sites / "clients" / "a")
    engine = at_own_images(sites, said := [], "data.skip_bad=true", "train.rounds=2")
    result = engine.round(1)
    assert (result.clients, result.missing, said) == ([0, 1, 2], [], [])
    line = "unlabeled/a-patient.png: not a PNG, JPEG, WebP, TIFF, BMP or DICOM image"
    lines = capsys.readouterr().err.splitlines()
    rounds = [text for text in lines if re.fullmatch(r"fssl: round 1: answered after \d+\.\d s", text)]
    others = [text for text in lines if text not in rounds]
    terms = "fssl: a run of sage, 2 rounds: this site sends plain uploads, and the sums of all probes"
    assert (len(rounds), others) == (3, [f"fssl: skipped {line}", *[terms] * 3])
    assert (sites.parent / "site-0" / "skipped.txt").read_text() == f"{line}\n"
    assert [p.parent.name for p in sites.parent.glob("site-*/skipped.txt")] == ["site-0"]
    (images / "unlabeled" / "a-patient.png").unlink()
    cast(Any, flower_client.workshop).cache_clear()  # as in a process that starts again
    engine.round(2)
    assert [*sites.parent.glob("site-*/skipped.txt")] == []


def test_a_site_shows_what_a_run_asks_of_it() -> None:
    config = own_config("sage", "partition.clients=3", "train.rounds=1", "records.probes=losses")
    plain = "a run of sage, 1 round: this site sends plain uploads, and the sums of steps and losses only"
    assert flower_client.terms(config) == plain
    masked = replace(config, privacy=replace(config.privacy, aggregation="secagg+"))
    assert flower_client.terms(masked) == plain.replace("plain", "masked")


def catching(handle: Handler) -> Handler:
    """An exception at a client becomes an error reply, as Flower makes it."""

    def caught(message: Message) -> Message | None:
        from flwr.app import Error

        try:
            return handle(message)
        except Exception as error:
            return Message(Error(2, f"<class 'x'>:<'\nException X occurred. Message: {error}'>"), reply_to=message)

    return caught


def scaling(honest: Handler, bad: int, times: float, kind: str = ".params.") -> Handler:
    """One client's update of tensors with such names is so many times as long."""

    def handle(message: Message) -> Message | None:
        reply = honest(message)
        assert reply is not None
        if message.metadata.dst_node_id == bad:
            sent, tensors = unpack(message.content["payload"]), unpack(reply.content["upload"])
            names = {n for n in tensors if kind in n}
            scaled = {n: sent[n] + times * (t - sent[n]) if n in names else t for n, t in tensors.items()}
            reply.content["upload"] = pack(scaled)
        return reply

    return handle


def test_who_outweighs_or_outruns_the_others_is_named(tmp_path: Path) -> None:
    """Its update is too short to be rejected."""
    federation, honest = federation_of("partition.kind=dirichlet", "partition.alpha=0.1"), at_sites(tmp_path)
    bad, *_ = federation.drawn_clients(1)
    said: list[str] = []
    one_round = Engine(federation, fleet_of(federation, scaling(honest, bad, 50), said, quorum=2))
    list(one_round.rounds(1))
    (line,) = [line for line in said if "moved" in line]
    assert re.match(rf"round 1: WARNING: client {bad} moved the model by \d+% of its norm, the median client by", line)


@pytest.mark.parametrize(("kind", "part"), [(".params.", "the model"), ("running_mean", "BatchNorm's statistics")])
def test_one_update_that_ruins_the_model_is_left_out_and_named(kind: str, part: str, tmp_path: Path) -> None:
    """Each of its values is within the bounds, and its own test is finite; with it, no site could train on."""
    federation, said, honest = federation_of(), list[str](), at_sites(tmp_path)
    _, bad, _ = federation.drawn_clients(1)
    engine = flower_engine(fleet_of(federation, scaling(honest, bad, 1000, kind), said, quorum=2))
    (result,) = engine.rounds(1)
    (missing,) = result.missing
    reason = rf"upload rejected: moved {part} by \d+% of its norm, the median client by \d+\.\d\d%"
    assert missing.client == bad
    assert re.fullmatch(reason, missing.reason), missing.reason
    without = flower_engine(fleet_of(federation, honest, nodes=[k for k in range(4) if k != bad]))
    assert digests(without, 1) == [
        b"".join(t.numpy().tobytes() for t in named(server=engine.snapshot.server).values())
    ]  # as if it had not been there


def test_a_part_of_a_network_may_move_far(tmp_path: Path) -> None:
    """A head has a small norm: an honest client can move it by a multiple. The server warns only."""
    federation, said, honest = federation_of("model.trainable=head"), list[str](), at_sites(tmp_path)
    _, bad, _ = federation.drawn_clients(1)
    (result,) = Engine(federation, fleet_of(federation, scaling(honest, bad, 1000), said, quorum=2)).rounds(1)
    assert not result.missing
    assert any(re.match(rf"round 1: WARNING: client {bad} moved the model by \d+% of its norm", line) for line in said)


def test_bounds_of_an_update_that_is_left_out() -> None:
    usual = [Move(0.01, 0.5), Move(0.02, 0.5)]
    for move, found in (
        (Move(MOST_MOVED, MOST_MOVED), set()),
        (Move(3.1, 0.5), {2}),
        (Move(0.02, 5.0), set()),  # ten times the median
        (Move(0.02, 5.1), {2}),
    ):
        assert far_ahead({0: usual[0], 1: usual[1], 2: move}, MOST_MOVED).keys() == found
    assert not far_ahead({0: usual[0], 1: Move(1e6, 1e6)}, MOST_MOVED)  # of two, either may lie


def beyond_numbers(upload: ArrayRecord) -> ArrayRecord:
    """Each value is plausible, but a test of the model overflows: every layer multiplies its input."""
    tensors = unpack(upload)
    return pack({n: torch.full_like(t, 9e3) if n.startswith("weights.params.") else t for n, t in tensors.items()})


def spoiling(honest: Handler, bad: Iterable[int]) -> Handler:
    def handle(message: Message) -> Message | None:
        reply = honest(message)
        if message.metadata.dst_node_id in bad:
            assert reply is not None
            reply.content["upload"] = beyond_numbers(reply.content["upload"])
        return reply

    return handle


@pytest.mark.parametrize("method", ["sage", "flexmatch"])
def test_an_upload_that_makes_the_mean_infinite_is_left_out_and_named(method: str, tmp_path: Path) -> None:
    pair = "train.clients_per_round=2"  # of three, the longest update would be left out by its length
    federation, said = federation_of(f"method.name={method}", "model.name=resnet8", pair), list[str]()
    honest = at_sites(tmp_path)
    _, bad = federation.drawn_clients(1)
    engine = flower_engine(fleet_of(federation, spoiling(honest, [bad]), said))
    (result,) = engine.rounds(1)
    reason = "upload rejected: its model has no finite loss on the test images"
    assert result.missing == [Missing(bad, reason)]
    assert f"round 1: client {bad} is missing: {reason}" in said
    without = flower_engine(fleet_of(federation, honest, nodes=[k for k in range(4) if k != bad]))
    assert digests(without, 1) == [
        b"".join(t.numpy().tobytes() for t in named(server=engine.snapshot.server).values())
    ]  # as if it had not been there


def test_a_round_whose_uploads_all_fail_the_test_stops_the_run(tmp_path: Path) -> None:
    federation = federation_of("model.name=resnet8")
    handle = spoiling(at_sites(tmp_path), federation.drawn_clients(1))
    with pytest.raises(RunError, match="round 1: the loss or a running statistic of the global model is not finite"):
        list(flower_engine(fleet_of(federation, handle, quorum=2)).rounds(1))


def test_where_no_upload_fails_alone_the_largest_is_left_out(tmp_path: Path) -> None:
    """The mean itself overflows, as a method's own aggregate may."""
    federation = federation_of()
    fleet = fleet_of(federation, at_sites(tmp_path), quorum=2)
    results = list(fleet.train(1, clients := federation.drawn_clients(1), flower_engine(fleet).snapshot))
    fleet._moves = {client: Move(float(i % 2), 0.0) for i, client in enumerate(clients)}
    assert fleet.leave_out(1, lambda weights: True)
    again = list(fleet.train(1, clients, flower_engine(fleet).snapshot))
    reason = "upload rejected: the mean is not finite, and it moved the model most"
    assert again == [results[0], Missing(clients[1], reason), results[2]]


@pytest.mark.parametrize(
    ("weights", "moves", "expected"),
    [
        ({0: 5, 1: 5, 2: 10}, {0: 0.01, 1: 0.01, 2: 0.1}, []),  # exactly half, and exactly at the bounds
        ({0: 5, 1: 5, 2: 11}, {}, ["client 2 has 52% of the weight in the mean"]),
        ({0: 1, 1: 99}, {0: 0.001, 1: 0.9}, []),  # of two, one always has half
        (
            {0: 1, 1: 1, 2: 1},
            {0: 0.02, 1: 0.01, 2: 0.21},
            ["client 2 moved the model by 21% of its norm, the median client by 2.00%"],
        ),
        ({0: 1, 1: 1, 2: 1}, {0: 0.0, 1: 0.0, 2: 0.09}, []),
    ],
)
def test_bounds_of_the_warnings(weights: dict[int, int], moves: dict[int, float], expected: list[str]) -> None:
    assert outstanding(weights, {client: Move(share, 0.0) for client, share in moves.items()}) == expected


def test_a_site_with_images_of_its_own_may_have_as_many_as_the_server_allows() -> None:
    federation = SimpleNamespace(config=SimpleNamespace(data=SimpleNamespace(name="folder")))
    for samples, most in ((10, 0), (10**8, 0), (10, 10)):
        check_weight(samples, 0, cast("Any", federation), most)
    with pytest.raises(BadUploadError, match=r"num_samples is 11; most_images in server\.toml allows 10"):
        check_weight(11, 0, cast("Any", federation), 10)
