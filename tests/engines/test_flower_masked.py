"""Masked uploads by Flower's own SecAgg+, its client's mod and its server's workflow, without any Flower process."""

import copy
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.core.privacy import MASK_BITS, privacy_notes
from fssl.data.sources import Dataset
from fssl.engines.engine import Engine, Missing, RoundResult
from fssl.engines.local import LocalEngine
from fssl.engines.named_tensors import named
from fssl.engines.snapshot import Snapshot, flat, parts, restore
from fssl.errors import RunError
from fssl.records.checkpoint import Saved
from helpers.small import refusal, tiny_config

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.common import bytes_to_ndarray, ndarray_to_bytes
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.supercore.primitives.asymmetric import generate_key_pairs

from fssl.engines.flower import client_app as flower_client
from fssl.engines.flower.fleet import FlowerFleet, Policy
from fssl.engines.flower.internals import MODULUS, SECAGG, ClientFacts, MaskedSum, MaskTerms, mask, to_be_masked
from fssl.engines.flower.masked import MaskedFleet, make_fleet
from fssl.engines.flower.messages import MEASURE, Job, order
from helpers.fleet import RUN, ByNumber, Grid, Handler

pytestmark = pytest.mark.slow
MASKED = "privacy.aggregation=secagg+"
UNEQUAL = ("partition.kind=dirichlet", "partition.alpha=1", "partition.clients=6", "train.clients_per_round=5")
STAGES = ("setup", "share_keys", "collect_masked_vectors", "unmask")
Spoil = Callable[[str, int, Message], Message | None]  # of a stage, a client and its reply, what goes out


@pytest.fixture(autouse=True)
def one_process_plays_all_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_client, "workshop", lru_cache(maxsize=16)(flower_client.workshop.__wrapped__))


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logging.Logger.isEnabledFor", lambda *given: False)


def federation_of(*settings: str) -> Federation:
    few = ("train.steps_per_round=2", "data.labels_per_class=2", "train.clients_per_round=3")
    return Federation(prepare(tiny_config(*few, *settings)))


class Sites:
    """Clients with Flower's mod, each with the memory that Flower keeps for it; messages travel as copies."""

    def __init__(
        self, spoil: Spoil = lambda stage, client, reply: reply, folder: Path | None = None, settings: str = ""
    ) -> None:
        self.spoil, self.folder, self.settings = spoil, folder, settings
        self.contexts: dict[int, Context] = {}
        self.seen: list[tuple[str, int, RecordDict]] = []  # what the server gets: of a stage, from a client

    def __call__(self, message: Message) -> Message | None:
        client, message = message.metadata.dst_node_id, copy.deepcopy(message)
        stage = str(message.content[SECAGG]["stage"]) if SECAGG in message.content else "plain"
        try:
            reply = flower_client.app(message, self.context(client))
        except Exception as error:  # as Flower does
            reply = Message(Error(2, str(error)), reply_to=message)
        if reply.has_content():
            self.seen.append((stage, client, copy.deepcopy(reply.content)))
        return self.spoil(stage, client, reply)

    def context(self, client: int) -> Context:
        if client not in self.contexts:
            node: dict[str, Any] = {}
            if self.folder:
                place = self.folder / f"site-{client}"
                place.mkdir()
                (place / "site.toml").write_text(self.settings)
                node = {"partition-id": client, "num-partitions": 4, "folder": str(place)}
            self.contexts[client] = Context(1, client, node, RecordDict(), {})
        return self.contexts[client]


def fleet_of(federation: Federation, handle: Handler, said: list[str] | None = None, **policy: Any) -> FlowerFleet:
    grid: Any = Grid(handle, policy.pop("nodes", range(federation.config.partition.clients)))
    rules = Policy(**{"window": 8, "strict": False, "poll": 0.0, "answer": 0.0, **policy})
    return make_fleet(federation, grid, ByNumber(grid), rules, (said if said is not None else []).append)


def engine_of(federation: Federation, handle: Handler, said: list[str] | None = None, **policy: Any) -> Engine:
    return Engine(federation, fleet_of(federation, handle, said, **policy))


def one_round(engine: Engine) -> RoundResult:
    (result,) = engine.rounds(engine.snapshot.round + 1)
    return result


def apart(a: Snapshot, b: Snapshot) -> float:
    one, other = named(server=a.server), named(server=b.server)
    return max(float((t.double() - other[name].double()).abs().max()) for name, t in one.items())


def bound(federation: Federation, used: list[int], asked: int) -> float:
    """A step of the rounding for each upload and half a step for its weight, over the sum of weights; then float32.

    Each value is rounded to one of `levels` numbers from -range to range, so by less than a step; a weight is a
    multiple of 1 / levels of the largest one, so off by half of that, which moves a value below the range by as much.
    """
    weights = [federation.method.num_samples(federation.counts(k)) for k in range(federation.config.partition.clients)]
    limit = federation.config.privacy.range
    step = 2 * limit / (MODULUS >> asked.bit_length())
    shares = sum(weights[k] for k in used) / max(weights)
    ulp = 2.0**-22  # of values below 4, as these are; a plain mean of float32 is off by that for each upload
    return len(used) * (1.5 * step / shares + ulp)


# The mean.


def test_flowers_mod_and_workflow_give_the_mean_that_we_work_out() -> None:
    """Weights 1, 2 and 3; (1*0.5 + 2*(-1) + 3*2) / 6 = 0.75, (1*1 + 2*1 + 3*(-1)) / 6 = 0, and 4 is 4 for all."""
    uploads = {10: (1, [0.5, 1.0, 4.0]), 20: (2, [-1.0, 1.0, 4.0]), 30: (3, [2.0, -1.0, 4.0])}
    contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in uploads}

    def ask(messages: list[Message]) -> list[Message]:
        return [answer(copy.deepcopy(message)) for message in messages]

    def answer(message: Message) -> Message:
        node = message.metadata.dst_node_id
        weight, values = uploads[node]

        def app(message: Message, context: Context) -> Message:
            return Message(to_be_masked([np.array(values)], ClientFacts(weight, {"said": node})), reply_to=message)

        return mask(message, contexts[node], app)

    masked = MaskedSum(ask, {node: RecordDict() for node in uploads}, MaskTerms(3, 3, 8.0, 2**30))
    facts = masked.run(1, lambda facts: None)
    assert facts == {node: ClientFacts(weight, {"said": node}) for node, (weight, _) in uploads.items()}
    step = 16 / 2**30
    np.testing.assert_allclose(masked.mean[0], [0.75, 0.0, 4.0], rtol=0, atol=3 * 1.5 * step / 2)  # shares 1/3, 2/3, 1


def test_masks_do_not_hide_whether_anybody_has_labels() -> None:
    engine = engine_of(federation_of(MASKED), Sites())
    assert isinstance(engine.fleet, FlowerFleet)
    watch = engine.fleet.labels
    assert watch.is_over  # all is known of dealt images
    watch.is_over = False
    result = one_round(engine)
    assert watch.unheard == {0, 1, 2, 3} - set(result.clients)
    assert watch.is_over  # they have


@pytest.mark.parametrize("method", ["sage", "flexmatch", "fedloke", "fedavg"])
def test_a_round_ends_with_the_plain_mean_up_to_the_rounding(method: str) -> None:
    federation = federation_of(MASKED, *UNEQUAL, f"method.name={method}")
    weights = {federation.method.num_samples(federation.counts(k)) for k in range(6)}
    assert len(weights) > 2  # else it would also be an unweighted mean
    engine, plain = engine_of(federation, Sites()), LocalEngine(federation)
    assert type(engine.fleet) is MaskedFleet
    before = plain.snapshot
    result, expected = one_round(engine), one_round(plain)
    assert (result.clients, result.missing) == (expected.clients, [])
    np.testing.assert_array_equal(result.tally, expected.tally)
    assert 0 < apart(engine.snapshot, plain.snapshot) <= bound(federation, result.clients, 5) < 1e-5
    assert apart(plain.snapshot, before) > 1e-3  # something was learned
    for client, state in plain.snapshot.clients.items():
        assert all(torch.equal(t, engine.snapshot.clients[client][name]) for name, t in state.items())


@pytest.mark.parametrize("what", ["head", "adapters"])
def test_masks_cover_what_trains(what: str) -> None:
    """The sum has as many numbers as the part of the network that trains."""
    federation = federation_of(MASKED, "model.name=resnet8", f"model.trainable={what}")
    sites = Sites()
    engine, plain = engine_of(federation, sites), LocalEngine(federation)
    result, _ = one_round(engine), one_round(plain)
    assert apart(engine.snapshot, plain.snapshot) <= bound(federation, result.clients, 3)
    trained = sum(t.numel() for tree in federation.net.first for t in tree.values())
    assert trained < 5000
    assert max(len(blob(content)) for content in of_collect(sites)) < 8 * trained + 5000


def test_a_smaller_range_makes_finer_steps() -> None:
    errors = []
    for limit in (1e6, 1e3, 4):
        federation = federation_of(MASKED, f"privacy.range={limit}")
        engine, plain = engine_of(federation, Sites()), LocalEngine(federation)
        one_round(engine), one_round(plain)
        errors.append(apart(engine.snapshot, plain.snapshot))
    assert errors[0] > 100 * errors[1] > 1000 * errors[2]


@pytest.mark.parametrize("number", [3, 4, 7, 8, 1000])
def test_sums_of_all_clients_stay_below_the_modulus(number: int) -> None:
    federation = federation_of(MASKED)
    fleet = fleet_of(federation, Sites())
    assert isinstance(fleet, MaskedFleet)
    terms = fleet.terms(number, number)
    assert number * terms.levels < MODULUS <= 4 * number * terms.levels
    assert terms.threshold == max(3, round(2 * number / 3))


def test_a_resumed_run_resumes_as_a_plain_one_would() -> None:
    federation = federation_of(MASKED, "method.name=flexmatch", "method.tau=0.3")
    engine = engine_of(federation, Sites())
    one_round(engine)
    first, results = engine.snapshot, []
    for other in (engine_of(federation, Sites()), LocalEngine(federation)):
        other.snapshot = restore(other.snapshot, Saved(1, flat(first), parts(first)))
        results.append((one_round(other), other.snapshot))
    (masked, after), (plain, expected) = results
    assert masked.round == plain.round == 2
    assert apart(after, expected) <= bound(federation, masked.clients, 3)
    np.testing.assert_array_equal(masked.tally, plain.tally)


def test_states_stay_at_the_sites(tmp_path: Path) -> None:
    federation = federation_of(MASKED, "method.name=flexmatch", "method.tau=0.3")
    sites = Sites(folder=tmp_path)
    engine = engine_of(federation, sites, run=RUN)
    for round in (1, 2):
        used = one_round(engine).clients
        assert all(int(engine.snapshot.clients[k]["round"]) == round for k in used)
    assert len(list(tmp_path.glob("site-*/state/*/*/round-000002*"))) == 3
    assert not [1 for _, _, content in sites.seen if "state" in content.get("fitres.metrics", {})]


# What the server sees.


def blob(content: RecordDict) -> bytes:
    """All bytes of a message."""
    arrays = [array.data for record in content.array_records.values() for array in record.values()]
    values = [value for record in content.config_records.values() for value in record.values()]
    lists = [each for value in values if isinstance(value, list) for each in value]
    return b"".join(each for each in (*arrays, *values, *lists) if isinstance(each, bytes))


def of_collect(sites: Sites) -> Iterator[RecordDict]:
    return (content for stage, _, content in sites.seen if stage == "collect_masked_vectors")


def test_no_upload_is_in_a_message() -> None:
    """The largest tensor of each client's own model; without masks the same look finds it."""
    found: dict[str, list[bool]] = {}
    for aggregation in ("plain", "secagg+"):
        federation = federation_of(f"privacy.aggregation={aggregation}")
        sites, uploads = Sites(), []
        local = LocalEngine(federation)
        train = local.fleet.train

        def watched(*given: Any, train: Any = train, uploads: Any = uploads) -> Iterator[Any]:
            for result in train(*given):
                uploads.append(result.upload)
                yield result

        local.fleet.train = watched  # type: ignore[method-assign]
        one_round(local)
        one_round(engine_of(federation, sites))
        sent = [blob(content) for _, _, content in sites.seen]
        largest = [max(u.weights.params.values(), key=torch.Tensor.numel) for u in uploads]
        forms = [form.numpy().tobytes() for t in largest for form in (t, t.double())]
        found[aggregation] = [any(form in each for each in sent) for form in forms]
    assert found == {"plain": [True, False] * 3, "secagg+": [False, False] * 3}


def test_what_is_sent_is_spread_over_all_numbers() -> None:
    """Unmasked, the whole numbers of a model lie around levels / 2 = 2^29; masked, anywhere below 2^32."""
    federation, sites = federation_of(MASKED), Sites()
    one_round(engine_of(federation, sites))
    (first, *others) = [
        np.concatenate([bytes_to_ndarray(b).ravel() for b in content[SECAGG]["masked_params"][1:]])
        for content in of_collect(sites)
    ]
    assert len(others) == 2
    assert len(first) > 10_000
    for sent in (first, *others):
        counts = np.bincount(sent >> 28, minlength=16) / len(sent)  # a sixteenth each
        assert counts.shape == (16,)
        np.testing.assert_allclose(counts, 1 / 16, atol=0.02)
    total = sum(others, first) % MODULUS  # private masks are left, so the sum is no model either
    np.testing.assert_allclose(np.bincount(total >> 28, minlength=16) / len(total), 1 / 16, atol=0.02)


def ordered(sites: Sites, federation: Federation, kind: str, run: str = "", **more: Any) -> str:
    """The error with which client 0 answers an order of this type, whose message may have further records."""
    config = fleet_of(federation, sites).config
    content = order(Job(config, 1, 0, run), federation.payload(federation.first_server(), {}, 0), None)
    content.update(more)
    reply = sites(Message(content, dst_node_id=0, message_type=kind))
    assert reply is not None
    return reply.error.reason or ""


def test_an_order_without_masks_is_rejected() -> None:
    """Also one that looks as if it were part of SecAgg+: Flower's mod leaves types other than its own as they are."""
    federation, pretended = federation_of(MASKED), {SECAGG: ConfigRecord({"stage": "collect_masked_vectors"})}
    refused = "privacy.aggregation = 'secagg+', but the order has no masks"
    assert refused in ordered(Sites(), federation, MessageType.TRAIN)
    assert refused in ordered(Sites(), federation, f"{MessageType.TRAIN}.default", **pretended)
    assert refused in ordered(Sites(), federation, MEASURE, **pretended)


WANTED = "privacy.aggregation = 'plain', but the operator of this site requires 'secagg+' (masked in site.toml)"


def test_a_site_whose_operator_wants_masks_takes_part_in_masked_rounds_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sites, said = Sites(folder=tmp_path, settings="masked = true"), list[str]()
    assert one_round(engine_of(federation_of(MASKED), sites, run=RUN)).missing == []
    capsys.readouterr()
    plain = federation_of()
    monkeypatch.setattr(flower_client, "prepare", lambda *given: pytest.fail("it looks for its images"))
    sites.seen.clear()
    with pytest.raises(RunError, match="round 1: 0 of 3 clients sent usable uploads, 1 needed"):
        one_round(engine_of(plain, sites, said, run=RUN))
    drawn = sorted(plain.drawn_clients(1))
    assert said[:3] == [f"round 1: client {k} is missing: {WANTED}" for k in drawn]
    assert f"fssl: round 1: this site cannot take part: {WANTED}\n" in capsys.readouterr().err
    assert not sites.seen  # nothing left them


@pytest.mark.parametrize(("masked", "is_refused"), [("true", True), ('"yes"', True), ("0", True), ("false", False)])
def test_only_a_plain_false_means_that_masks_are_not_wanted(masked: str, is_refused: bool, tmp_path: Path) -> None:
    """`fssl deploy site` rejects the others; the file may change while it runs."""
    sites = Sites(folder=tmp_path, settings=f"masked = {masked}")
    fleet = fleet_of(federation_of(), sites, run=RUN, nodes=[0])
    result = next(iter(fleet.train(1, [0], Engine(fleet.federation, fleet).snapshot)))
    assert isinstance(result, Missing) == is_refused


def test_a_site_takes_no_order_of_a_simulation(tmp_path: Path) -> None:
    """Such an order names no run, and no setting of a site would count for it."""
    sites = Sites(folder=tmp_path)
    refused = "the order comes from a simulation; this site accepts only orders of `fssl deploy start`"
    for kind in (MessageType.TRAIN, MEASURE):
        assert refused in ordered(sites, federation_of(), kind)


def test_a_mask_between_two_clients_has_few_seeds() -> None:
    """The limit in docs/flower.md: with another generator in Flower this fails, and the page must change."""
    folded, used = set(), 0
    for _ in range(200):
        (secret, _), (_, public) = generate_key_pairs(), generate_key_pairs()
        key = generate_shared_key(secret, public)
        words = np.frombuffer(key, "<u4")
        seed = int(np.bitwise_xor.reduce(words))
        folded.add(seed)
        used |= seed
        (sent,) = pseudo_rand_gen(key, MODULUS, [(5,)])
        again = np.random.RandomState(seed).randint(0, MODULUS - 1, 5, dtype=np.int64)
        np.testing.assert_array_equal(sent, again)
    assert len(folded) == 200
    assert used.bit_count() == MASK_BITS


# Clients that leave, and too few.


def leaving(at: str, who: int, how: str = "silent") -> Spoil:
    gone: set[int] = set()

    def spoil(stage: str, client: int, reply: Message) -> Message | None:
        if stage == at and client == who:
            gone.add(client)
        if client not in gone:
            return reply
        return None if how == "silent" else Message(Error(2, "no room on disk"), reply_to=reply)

    return spoil


@pytest.mark.parametrize("how", ["silent", "failing"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_client_may_leave_at_any_time(stage: str, how: str) -> None:
    federation = federation_of(MASKED, *UNEQUAL)
    drawn = federation.drawn_clients(1)
    left = drawn[1]
    result = one_round(engine := engine_of(federation, Sites(leaving(stage, left, how))))
    reason = "no answer within 0 s" if how == "silent" else "no room on disk"
    is_in = stage == "unmask"  # its upload was there, and the others have shares enough to open it
    assert result.missing == ([] if is_in else [Missing(left, reason)])
    assert result.clients == [k for k in drawn if is_in or k != left]
    plain = Federation(prepare(tiny_config("train.steps_per_round=2", "data.labels_per_class=2", *UNEQUAL)))
    there = [k for k in range(6) if is_in or k != left]
    expected = engine_of(plain, Sites(), nodes=there)
    assert type(expected.fleet) is FlowerFleet
    one_round(expected)
    assert apart(engine.snapshot, expected.snapshot) <= bound(federation, result.clients, 5)


def test_a_client_that_is_not_connected_is_missing_from_the_mean() -> None:
    federation = federation_of(MASKED, *UNEQUAL)
    drawn = federation.drawn_clients(1)
    engine = engine_of(federation, sites := Sites(), nodes=[k for k in range(6) if k != drawn[1]])
    result = one_round(engine)
    assert result.missing == [Missing(drawn[1], "not connected")]
    assert result.clients == [k for k in drawn if k != drawn[1]]
    assert {client for _, client, _ in sites.seen} == {*result.clients}


def test_two_may_leave_one_early_and_one_late() -> None:
    federation = federation_of(MASKED, *UNEQUAL)
    drawn = federation.drawn_clients(1)
    early, late = leaving("share_keys", drawn[0]), leaving("collect_masked_vectors", drawn[3])

    def spoil(stage: str, client: int, reply: Message) -> Message | None:
        given = early(stage, client, reply)
        return late(stage, client, given) if given else None

    result = one_round(engine := engine_of(federation, Sites(spoil)))
    assert result.clients == [drawn[1], drawn[2], drawn[4]]
    expected = LocalEngine(federation)
    train = expected.fleet.train

    def without(*given: Any) -> Iterator[Any]:
        return (r for r in train(*given) if r.upload.client in result.clients)  # type: ignore[union-attr]

    expected.fleet.train = without  # type: ignore[method-assign]
    one_round(expected)
    assert apart(engine.snapshot, expected.snapshot) <= bound(federation, result.clients, 5)


def test_a_mean_of_two_is_never_opened() -> None:
    federation, said = federation_of(MASKED), []
    sites = Sites(leaving("collect_masked_vectors", federation.drawn_clients(1)[0]))
    with pytest.raises(RunError, match="round 1: 0 of 3 clients sent usable uploads, 3 needed; tried 3 times"):
        one_round(engine_of(federation, sites, said))
    assert {stage for stage, _, _ in sites.seen} == {"setup", "share_keys", "collect_masked_vectors"}
    assert sum("once more" in text for text in said) == 2
    unopened = [text for text in said if "nothing was opened" in text]
    assert len(unopened) == 3  # once for each try: it is no single client's doing
    assert all(text.startswith("round 1: nothing was opened: too few clients were left") for text in unopened)


def test_nothing_is_opened_that_would_not_be_used() -> None:
    """Four of five are enough for SecAgg+, and the operator wants five: the next try may have one more."""
    federation = federation_of(MASKED, *UNEQUAL)
    sites = Sites(leaving("collect_masked_vectors", federation.drawn_clients(1)[0]))
    with pytest.raises(RunError, match="0 of 5 clients sent usable uploads, 5 needed"):
        one_round(engine_of(federation, sites, quorum=5))
    assert "unmask" not in {stage for stage, _, _ in sites.seen}


def test_two_connected_clients_are_too_few() -> None:
    federation = federation_of(MASKED)
    sites = Sites()
    with pytest.raises(RunError, match="round 1: 2 of 3 clients connected, 3 needed"):
        one_round(engine_of(federation, sites, nodes=federation.drawn_clients(1)[:2], quorum=1))
    assert sites.seen == []


def test_clients_without_a_weight_add_no_privacy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean of one client's upload and of others that count nothing is that upload.

    If sites have their own images, it is unknown before which ones have labels.
    """
    monkeypatch.setattr("fssl.core.compatibility.check_counted", lambda config: None)
    knowing = ("partition.labels=knowing-clients", "partition.labeled_clients=1", "partition.kind=iid")
    few = ("train.steps_per_round=2", "train.clients_per_round=4", "method.name=fedavg")
    config = tiny_config(MASKED, *knowing, *few)
    federation, sites, said = Federation(prepare(config)), Sites(), []
    with pytest.raises(RunError, match="0 of 4 clients"):
        one_round(engine_of(federation, sites, said))
    reason = "round 1: nothing was opened: fewer than 3 clients have a weight in the mean"
    assert said.count(reason) == 3
    assert "unmask" not in {stage for stage, _, _ in sites.seen}
    with pytest.raises(RunError, match=f"^{reason}; the checkpoint before it is kept$"):
        one_round(engine_of(federation, Sites(), strict=True))


def test_a_strict_fleet_names_the_failed_clients() -> None:
    federation = federation_of(MASKED)
    last = federation.drawn_clients(1)[-1]
    sites = Sites(leaving("collect_masked_vectors", last, "failing"))
    with pytest.raises(RunError, match=f"round 1, client {last}: no room on disk; the checkpoint before it is kept"):
        one_round(engine_of(federation, sites, strict=True))


def test_two_clients_at_one_node_are_rejected() -> None:
    federation = federation_of(MASKED)
    engine = engine_of(federation, Sites())

    class OneNode(ByNumber):
        def of(self, clients: list[int]) -> Any:
            return super().of(clients)._replace(nodes=dict.fromkeys(clients, 0))

    engine.fleet.nodes = OneNode(engine.fleet.grid)  # type: ignore[attr-defined]
    with pytest.raises(RunError, match="needs a node for each client"):
        one_round(engine)


def another_shape(content: RecordDict) -> None:
    content[SECAGG]["masked_params"] = [ndarray_to_bytes(np.zeros(7, np.int64))]  # type: ignore[index]


def no_tally(content: RecordDict) -> None:
    del content["fitres.metrics"]["tally"]  # type: ignore[union-attr]


def another_client(content: RecordDict) -> None:
    content["fitres.metrics"]["client"] = 99  # type: ignore[index]


def heavy(content: RecordDict) -> None:
    content["fitres.num_examples"]["num_examples"] = 10**6  # type: ignore[index]


@pytest.mark.parametrize("how", [another_shape, no_tally, another_client, heavy])
def test_an_answer_of_another_form_stops_the_round_and_not_the_server(how: Callable[[RecordDict], None]) -> None:
    federation, said = federation_of(MASKED), []
    bad, times = federation.drawn_clients(1)[0], []

    def spoil(stage: str, client: int, reply: Message) -> Message:
        if stage == "collect_masked_vectors" and client == bad and len(times) < 2:
            times.append(stage)
            how(reply.content)
        return reply

    engine, plain = engine_of(federation, Sites(spoil), said), LocalEngine(federation)
    result, _ = one_round(engine), one_round(plain)
    assert len(result.clients) == 3
    assert sum("once more" in text for text in said) == 2
    assert apart(engine.snapshot, plain.snapshot) <= bound(federation, result.clients, 3)


# What a client rejects, and what a run does.


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("privacy.range=0.01", r"weights\.params\.\S+ has a value of \S+, not below privacy\.range = 0\.01"),
        ("privacy.max_weight=1", r"its weight in the mean is \d+, above privacy\.max_weight = 1"),
        ("train.lr=1e30", r"weights\.\S+ has a value of (nan|inf), not below privacy\.range = 64"),
    ],
)
def test_what_rounding_would_spoil_is_rejected_by_the_client(setting: str, reason: str) -> None:
    federation = federation_of(MASKED, setting)
    with pytest.raises(RunError, match=rf"round 1, client \d: {reason}; the checkpoint"):
        one_round(engine_of(federation, Sites(), strict=True))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            ("privacy.clip=1",),
            "privacy.clip = 1 does not work with privacy.aggregation = 'secagg+': it hides single uploads",
        ),
        (("train.clients_per_round=2",), "train.clients_per_round = 2: expected 3 to"),
        (("method.name=fedmatch",), "privacy.aggregation = 'secagg+': method 'fedmatch' reads more than"),
        (("method.name=feddb",), "privacy.aggregation = 'secagg+': method 'feddb' reads more than"),
        (
            ("method.name=fedavg", "partition.labels=server"),
            "privacy.aggregation = 'secagg+': method 'fedavg' averages only clients with labels, and a round may draw",
        ),
        (
            ("method.name=fedavg", "partition.labeled_clients=3", "partition.clients=4"),
            "privacy.aggregation = 'secagg+': method 'fedavg' averages only clients with labels, and a round may draw",
        ),
        (
            ("privacy.aggregation=plain", "privacy.range=8"),
            "privacy.range = 8 has no effect with privacy.aggregation = 'plain'; remove it, or use 'secagg+'",
        ),
        (
            ("privacy.aggregation=plain", "privacy.max_weight=8"),
            "privacy.max_weight = 8 has no effect with privacy.aggregation = 'plain'",
        ),
    ],
)
def test_what_does_not_go_together(settings: tuple[str, ...], line: str, tiny_data: Dataset) -> None:
    assert refusal(["train.clients_per_round=3", MASKED, *settings], tiny_data).startswith(line)


def test_a_run_says_how_much_the_masks_hide() -> None:
    (line,) = privacy_notes(tiny_config(MASKED))
    assert line == "privacy: secagg+ hides uploads from a reader, not from an attacker: mask seeds have 28 bits"
