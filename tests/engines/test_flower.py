"""Flower's simulation gives the bits of the local engine, whatever the method; one Ray cluster serves all of this."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from torch.utils._pytree import tree_map

from fssl.console import Quiet
from fssl.core.experiment import Experiment, prepare
from fssl.core.federation import Federation
from fssl.engines.engine import Engine
from fssl.engines.local import LocalEngine
from fssl.engines.named_tensors import named
from fssl.engines.snapshot import Snapshot, flat, parts, restore
from fssl.errors import RunError
from fssl.methods.names import METHODS, split_name
from fssl.records.checkpoint import Saved
from fssl.runner.conduct import run_experiment
from helpers.matrix import ALL, STATEFUL
from helpers.small import KNOWING, LABELING, tiny_config

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
pytest.importorskip("ray", reason="Ray is not installed: pip install 'fssl[flower]'")
from fssl.engines.flower.messages import message_forms
from fssl.engines.flower.simulation import simulate

Make = Callable[[Federation], Engine]
ROUNDS = 3
pytestmark = pytest.mark.slow  # Ray starts
SHORT = ("train.steps_per_round=2", "data.labels_per_class=2", "train.clients_per_round=2")
# What three rounds would not reach with the defaults.
REACHED = {
    "fedmatch": ("method.helper_interval=2",),
    "fedlabel-2m": ("method.burn_in=1",),
    **LABELING,
    "cbafed": (*LABELING["cbafed"], "method.burn_in=1"),
}
# Every method, and what a plug-in could change of a message: what a client remembers are other labels, and an oracle
# needs the truth where it trains. Names, shapes and types are those of the host: see the test of all combinations.
SENT = [*METHODS, "flexmatch+sage", "sage+oracle"]
# Those of which a resumed run has more to bring back than the model: with clients, on the server, or both.
RESUMED = [*STATEFUL, "flexmatch+sage"]
KEEPING = "flexmatch"  # a method whose clients remember
# What of the training itself travels, or stays with clients and server.
TRAINED = {
    "kept": ("method.name=flexmatch", "train.keep_momentum=true", "train.nesterov=true", "train.clip=1"),
    "adamw": ("method.name=sage", "train.optimizer=adamw", "train.lr=0.001", "train.keep_momentum=true"),
    "broadcast": (
        "method.name=sage",
        "server.broadcast_momentum=true",
        "train.schedule=cosine",
        "train.rounds=3",
        "server.ema=0.5",
    ),
    "two broadcast": ("method.name=fedloke", "server.broadcast_momentum=true", "server.optimizer=momentum"),
    "adapters": ("method.name=sage", "model.name=resnet8", "model.trainable=adapters"),
    "adam": ("method.name=proxyfl", "server.optimizer=adam", "server.lr=0.01"),
    "labels at the server": ("method.name=sage", "partition.labels=server", "train.keep_momentum=true"),
    "class weights": ("method.name=sage", "train.class_weights=1", "data.labels_per_class=8", "partition.alpha=0.5"),
    "krum among attackers": (
        "method.name=flexmatch",
        "server.aggregate=krum",
        "attack.kind=noise",
        "server.malicious=0",
        "train.clients_per_round=4",
    ),
    "labels reversed": (
        "method.name=sage",
        "server.aggregate=clipped",
        "attack.kind=labels",
        "train.clients_per_round=4",
    ),
    "enlarged images": ("method.name=sage", "data.crop=resize"),
    "enlarged images at the server": ("method.name=sage", "data.crop=resize", "partition.labels=server"),
    "statistics": ("method.name=flfl", "partition.labels=server", "server.static_norm=all", "server.when=before"),
    "statistics of sites": (
        "method.name=fedlabel-2m",
        "method.burn_in=1",
        "server.static_norm=sites",
        "data.validation=0.3",
        "data.labels_per_class=8",
    ),
    "statistics of sites and server": (
        "method.name=flfl",
        "partition.labels=server",
        "server.static_norm=sites",
        "server.when=before",
    ),
}


def settings(name: str) -> tuple[str, ...]:
    given = (f"method.name={name}", *SHORT, *REACHED.get(name.split("+")[0], ()))
    return tuple(each for each in given if KNOWING[0] not in given or not each.startswith("data.labels_per_class"))


def digest(snapshot: Snapshot) -> str:
    """SHA-256 of the global state: names, shapes and bytes."""
    hasher = hashlib.sha256()
    memory = {str(client): state for client, state in snapshot.server.memory.items()}
    server = snapshot.server._replace(memory=memory)
    trees = {"optimizer": snapshot.optimizer, "smooth": snapshot.smooth, "training": snapshot.training}
    for name, tensor in sorted(named(server=server, **trees).items()):
        hasher.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode() + tensor.numpy().tobytes())
    return hasher.hexdigest()


class Course(NamedTuple):
    """How a run went: a digest for each round, and the state after the first."""

    digests: list[str]
    first: Snapshot


def course(engine: Engine) -> Course:
    snapshots = [engine.snapshot for _ in engine.rounds(ROUNDS)]
    return Course([digest(s) for s in snapshots], snapshots[0])


def resumed(engine: Engine, first: Snapshot) -> list[str]:
    """The digests of an engine that continues from the content of the first round's checkpoint."""
    engine.snapshot = restore(engine.snapshot, Saved(1, flat(first), parts(first)))
    return [digest(engine.snapshot), *(digest(engine.snapshot) for _ in engine.rounds(ROUNDS))]


class Found(NamedTuple):
    """Everything that needs a cluster, done in one."""

    local: dict[str, list[str]]
    flower: dict[str, list[str]]
    resumed: dict[str, list[str]]
    failure: str
    masked: dict[str, float]
    runs: dict[str, Path]
    left: list[str]  # files of Ray and Flower after the cluster has ended


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("flower")

    def work(make: Make) -> Found:
        local, flower, again = {}, {}, {}
        for name in (*SENT, *TRAINED):
            federation = Federation(
                prepare(tiny_config(*(SHORT + TRAINED[name] if name in TRAINED else settings(name))))
            )
            local[name] = course(LocalEngine(federation)).digests
            straight = course(make(federation))
            flower[name] = straight.digests
            if name in ("sage", *RESUMED, *TRAINED):
                again[name] = resumed(make(federation), straight.first)
        near = masked(make)  # before a failing run, whose orders under way would meet it at the same nodes
        return Found(local, flower, again, failing(make), near, switched(make, folder), left=[])

    with TemporaryDirectory() as home, pytest.MonkeyPatch.context() as patch:  # a short path: it names sockets
        patch.setenv("HOME", home)
        patch.setenv("RAY_TMPDIR", home)
        patch.delenv("FLWR_HOME", raising=False)
        result = simulate(tiny_config(), folder / "flower.log", work)
        return result._replace(left=[path.name for path in Path(home).iterdir() if path.name != ".cache"])


def test_neither_ray_nor_flower_leaves_files_behind(found: Found) -> None:
    assert found.left == []
    assert "FLWR_HOME" not in os.environ


def failing(make: Make) -> str:
    """What a run says whose clients blow up."""
    with pytest.raises(RunError) as error:
        list(make(Federation(prepare(tiny_config(*SHORT, "train.lr=1e30")))).rounds(1))
    return str(error.value)


def masked(make: Make) -> dict[str, float]:
    """How far the mean of masked uploads is from the plain one, in the first round and in a resumed one."""
    config = tiny_config(*settings(KEEPING), "train.clients_per_round=3", "privacy.aggregation=secagg+")
    federation, found = Federation(prepare(config)), {}
    before = make(federation).snapshot
    for name in ("first", "resumed"):
        engine, plain = make(federation), LocalEngine(federation)
        engine.snapshot = plain.snapshot = restore(before, Saved(before.round, flat(before), parts(before)))
        for each in (engine, plain):
            list(each.rounds(before.round + 1))
        ours, expected = (named(server=each.snapshot.server) for each in (engine, plain))
        found[name] = max(float((t - expected[key]).abs().max()) for key, t in ours.items())
        before = engine.snapshot
    return found


def experiment(rounds: int) -> Experiment:
    return prepare(tiny_config(*settings(KEEPING), "method.tau=0.3", f"train.rounds={rounds}"))


def switched(make: Make, folder: Path) -> dict[str, Path]:
    """Runs that change the engine in the middle, both ways, compared with one that does not."""

    def local(federation: Federation) -> Engine:
        return LocalEngine(federation)

    engines: dict[str, tuple[Any, Any]] = {"stays": (local, local), "away": (local, make), "back": (make, local)}
    for name, (before, after) in engines.items():
        run_experiment(experiment(1), folder / name, Quiet(), False, make=before)
        run_experiment(experiment(ROUNDS), folder / name, Quiet(), True, make=after)
    return {name: folder / name for name in engines}


def test_every_method_gives_the_same_bits_in_every_engine(found: Found) -> None:
    assert len(STATEFUL) >= 8
    assert {*found.local} == {*SENT, *TRAINED}
    assert all(len(set(digests)) == ROUNDS for digests in found.local.values())  # each round learned something
    assert [name for name in found.local if found.flower[name] != found.local[name]] == []
    assert {*found.resumed} == {"sage", *RESUMED, *TRAINED}
    assert [name for name in found.resumed if found.resumed[name] != found.local[name]] == []


def message_of(federation: Federation) -> Any:
    """Names, shapes and types of what goes down, of what comes up, and of what a client starts with."""
    state = federation.new_state(federation.method.payload(federation.first_server(), 0), 0)
    return tree_map(lambda t: (tuple(t.shape), t.dtype), (*message_forms(federation), state))


@pytest.mark.parametrize("host", dict.fromkeys(split_name(name)[0] for name in ALL if name not in METHODS))
def test_a_plug_in_changes_no_message(host: str, make_federation: Callable[..., Federation]) -> None:
    """So that the combinations need no cluster: what travels is the host's."""
    combinations = [name for name in ALL if split_name(name)[0] == host]
    own, *others = (message_of(make_federation(f"method.name={name}")) for name in combinations)
    assert combinations[0] == host
    assert others == [own] * (len(combinations) - 1)
    assert others


def test_a_run_may_change_its_engine_when_it_is_resumed(found: Found) -> None:
    models = {name: (folder / "model.safetensors").read_bytes() for name, folder in found.runs.items()}
    assert models["away"] == models["stays"]
    assert models["back"] == models["stays"]


def test_a_client_that_blows_up_is_named(found: Found) -> None:
    assert found.failure.startswith("round 1, client ")
    assert "not finite" in found.failure


def test_masked_uploads_have_the_plain_mean(found: Found) -> None:
    """Three equal clients, values below 64 in steps of 2^7 / 2^30; test_flower_masked.py has the bound."""
    assert {*found.masked} == {"first", "resumed"}
    assert all(0 < far <= 1.5 * 2**-23 + 3 * 2**-22 for far in found.masked.values())
