"""A thousand registered clients: nothing is kept for those who never took part, and a round takes as long as before."""

import gc
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.data.sources import Dataset, load
from fssl.engines.local import LocalEngine
from fssl.engines.snapshot import flat, parts
from fssl.records import checkpoint as part_files
from fssl.records.checkpoint import Checkpoints
from helpers.small import known_to_all, tiny_config

pytestmark = pytest.mark.slow
FEW, MANY = 20, 1000
KEEPERS = ("fedloke", "fedmatch", "flexmatch")  # a model with the client, one on the server, a table with the client


@pytest.fixture(scope="module")
def images() -> Dataset:
    return load("synthetic", num_classes=10, size=8, channels=3, train_per_class=300, test_per_class=10)


def engine_of(images: Dataset, method: str, clients: int) -> LocalEngine:
    settings = ("partition.kind=iid", "data.labels_per_class=100", "train.clients_per_round=4", "compute.lanes=1")
    steps = ("train.steps_per_round=4", f"partition.clients={clients}", f"method.name={method}")
    return LocalEngine(Federation(prepare(tiny_config(*settings, *steps), images)))


def live_bytes() -> int:
    """Of all tensors there are."""
    gc.collect()
    tensors = (t for t in gc.get_objects() if type(t) in (torch.Tensor, torch.nn.Parameter))
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


@pytest.mark.parametrize("method", KEEPERS)
def test_only_clients_that_took_part_have_a_state(images: Dataset, method: str) -> None:
    engine = engine_of(images, method, MANY)
    seen: set[int] = set()
    for result in engine.rounds(3):
        seen.update(result.clients)
    assert 4 < len(seen) <= 12
    kept = engine.snapshot.server.memory if method == "fedmatch" else engine.snapshot.clients
    assert set(kept) == seen
    assert len(parts(engine.snapshot)) == len(seen)
    assert all(t.device.type == "cpu" for state in kept.values() for t in state.values())


@pytest.mark.usefixtures("quick_collections")
@pytest.mark.parametrize("method", KEEPERS)
def test_memory_does_not_grow_with_registered_clients(images: Dataset, method: str) -> None:
    """Tensors of a run with a thousand clients, less those of one with twenty: not even one more client's state."""
    used = {}
    for clients in (FEW, MANY, FEW, MANY):  # the second pair: what is made once per process is there by then
        before = live_bytes()
        engine = engine_of(images, method, clients)
        list(engine.rounds(1))
        used[clients] = live_bytes() - before
        model = sum(t.nbytes for t in engine.model().params.values())
        del engine
    assert used[MANY] - used[FEW] < model


def processor_seconds(engine: LocalEngine) -> Iterator[float]:
    rounds = engine.rounds(10**6)
    while True:
        begin = time.process_time()
        next(rounds)
        yield time.process_time() - begin


@pytest.mark.parametrize("method", ["fedloke", "fedmatch"])
def test_a_round_does_not_take_longer(images: Dataset, method: str) -> None:
    """Rounds of both in turn, by processor time; of each the fastest, since other work on the machine can only add."""
    few, many = (processor_seconds(known_to_all(engine_of(images, method, clients))) for clients in (FEW, MANY))
    fastest_few, fastest_many = next(few), next(many)
    for number in range(80):
        fastest_few, fastest_many = min(fastest_few, next(few)), min(fastest_many, next(many))
        if number > 15 and fastest_many < 1.05 * fastest_few:
            return
    said = f"{1000 * fastest_many:.1f} ms with {MANY} clients, {1000 * fastest_few:.1f} ms with {FEW}"
    assert fastest_many < 1.4 * fastest_few, said  # on a machine with much other work; a walk over all costs more


def test_a_checkpoint_writes_only_participants(
    images: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when every one of the thousand has a state by now."""
    engine, checkpoints = engine_of(images, "fedloke", MANY), Checkpoints(tmp_path)
    known_to_all(engine)
    checkpoints.save(1, flat(engine.snapshot), parts(engine.snapshot), None)
    written: list[str] = []
    write = part_files.write_atomic
    monkeypatch.setattr(part_files, "write_atomic", lambda path, data: (written.append(path.name), write(path, data)))
    (second,) = engine.rounds(2)
    checkpoints.save(2, flat(engine.snapshot), parts(engine.snapshot), None)
    of_clients = [name for name in written if name.startswith("clients.")]
    assert of_clients == [f"clients.{k}.round-000002.safetensors" for k in sorted(second.clients)]
    assert {*written} - {*of_clients} == {"round-000002.safetensors", "round-000002.json"}
    found = Checkpoints(tmp_path).load([None] * 3, lambda text: None)
    assert found is not None
    assert len(found.parts) == MANY
    for k in second.clients:
        for name, t in engine.snapshot.clients[k].items():
            assert torch.equal(found.parts[f"clients.{k}"][name], t)
