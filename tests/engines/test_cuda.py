"""On a CUDA device only: exact views, the captured step, and no synchronization inside a client's round."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
import torch

from fssl.augment.policies import crop_room, draw_strong, draw_weak, enlarged, strong, weak
from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.data.sources import load
from fssl.engines.compiler import compiled
from fssl.engines.local import LocalEngine
from fssl.engines.named_tensors import to
from fssl.methods.names import METHODS
from fssl.types import Weights
from helpers.small import known_to_all, seconds_of, tiny_config

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
Make = Callable[..., Federation]


def models(rounds: int, *federations: Federation) -> Iterator[Weights]:
    """The model of each federation after some rounds, on the host."""
    for federation in federations:
        engine = LocalEngine(federation)
        list(engine.rounds(rounds))
        yield to(engine.model(), torch.device("cpu"))


def made(view: Callable[..., torch.Tensor], *given: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = compiled(view, *given)(*given)
    return out.cpu()


@pytest.mark.parametrize(("size", "channels"), [(32, 3), (8, 1)])
def test_compiled_views_equal_the_cpus_value_for_value(size: int, channels: int) -> None:
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (500, size, size, channels), dtype=np.uint8))
    rows = torch.from_numpy(rng.integers(0, 500, 2000))
    for view, draw in ((weak, draw_weak), (strong, draw_strong)):
        noise = torch.from_numpy(draw(rng, (2000,), size))
        on_gpu = made(view, images.cuda(), rows.cuda(), noise.cuda())
        assert torch.equal(on_gpu, view(images, rows, noise))
        larger = enlarged(images.cuda(), crop_room(size))
        assert torch.equal(larger.cpu(), enlarged(images, crop_room(size)))
        on_gpu = made(partial(view, size=size), larger, rows.cuda(), noise.cuda())
        assert torch.equal(on_gpu, view(larger.cpu(), rows, noise, size))


SOME_PLUGGED = ["flexmatch+sage", "freematch+sage", "feddure+sage", "feddb+sage", "fedlabel+sage"]


@pytest.mark.parametrize("method", [*METHODS, *SOME_PLUGGED])
def test_the_captured_step_is_the_eager_one(method: str, make_federation: Make) -> None:
    settings = (f"method.name={method}", "train.precision=fp32", "train.steps_per_round=5")
    eager, captured = models(1, *(make_federation(*settings, f"compute.device={where}") for where in ("cpu", "cuda")))
    torch.testing.assert_close(captured.params, eager.params, rtol=2e-3, atol=2e-4)


TRAINED = {
    "kept": ("train.keep_momentum=true", "train.nesterov=true", "train.clip=1", "train.decay_on=weights"),
    "adamw": ("train.optimizer=adamw", "train.lr=0.0003", "train.keep_momentum=true", "train.clip=1"),
    "broadcast": ("server.broadcast_momentum=true", "server.optimizer=momentum", "server.momentum=0.5"),
    "adam": ("server.optimizer=adam", "server.lr=0.01"),
}
SCHEDULE = ("train.schedule=cosine", "train.schedule_over=steps")


@pytest.mark.parametrize("rule", TRAINED)
@pytest.mark.parametrize("method", ["sage", "feddure"])
def test_captured_rounds_follow_the_schedule(method: str, rule: str, make_federation: Make) -> None:
    """A rate frozen into the graph would be wrong from the second step on; two rounds, all clients."""
    settings = (f"method.name={method}", "train.precision=fp32", "train.steps_per_round=5", "train.clients_per_round=4")
    changes = []
    for device in ("cpu", "cuda"):
        engine = LocalEngine(make_federation(*settings, *TRAINED[rule], *SCHEDULE, f"compute.device={device}"))
        before = torch.cat([p.flatten().cpu() for p in engine.model().params.values()])
        list(engine.rounds(2))
        changes.append(torch.cat([p.flatten().cpu() for p in engine.model().params.values()]) - before)
    assert (changes[1] - changes[0]).norm() < 0.02 * changes[0].norm()


CHOOSING = ["semifl", "flfl"]  # their images: they wait once, for their steps
MODES = [
    *((method, ()) for method in METHODS if method not in CHOOSING),
    *(("sage", (*rule, *SCHEDULE)) for rule in TRAINED.values()),
]


@pytest.mark.parametrize(("method", "rule"), MODES)
def test_a_clients_round_never_waits_for_the_device(method: str, rule: tuple[str, ...], make_federation: Make) -> None:
    settings = (f"method.name={method}", "train.steps_per_round=20", "train.clients_per_round=4", *rule)
    federation = make_federation("compute.device=cuda", *settings)
    engine = LocalEngine(federation)
    list(engine.rounds(1))
    fleet, snapshot = engine.fleet, engine.snapshot
    (plan,) = fleet.plans(2, federation.drawn_clients(2))[:1]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with fleet.lanes[0].scope():  # its state comes from the host, as in every round
            payload = federation.payload(snapshot.server, snapshot.optimizer, plan.client)
            fleet.client(fleet.lanes[0], plan, payload, snapshot.clients.get(plan.client))
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("method", CHOOSING)
def test_steps_without_a_chosen_image_are_left_out(method: str, make_federation: Make) -> None:
    """As on a CPU: the same steps taken, every image counted once, the same change of the model."""
    settings = (f"method.name={method}", "method.tau=0.2735", "train.precision=fp32", "train.unlabeled_ratio=1")
    settings += ("partition.labels=server", "data.labels_per_class=4")
    changes, counts = [], []
    for device in ("cpu", "cuda"):
        engine = LocalEngine(make_federation(*settings, f"compute.device={device}"))
        before = torch.cat([p.flatten().cpu() for p in engine.model().params.values()])
        (result,) = engine.rounds(1)
        changes.append(torch.cat([p.flatten().cpu() for p in engine.model().params.values()]) - before)
        sums = engine.layout.unpack(result.tally)
        counts.append([sums[name].tolist() for name in ("steps", "n", "n_valid")])
    assert counts[0] == counts[1]
    federation, ((steps, _), *_) = engine.federation, counts[0][0]
    assert 0 < steps < federation.num_steps(federation.drawn_clients(1)[0])
    assert (changes[1] - changes[0]).norm() < 0.05 * changes[0].norm()


@pytest.mark.parametrize("method", ["sage", "feddure-full"])
def test_a_residual_network_in_bf16_is_the_same_captured_and_never_waits(method: str, make_federation: Make) -> None:
    """Its layers have kernels of their own; FedDure's regulator differentiates their gradient."""
    settings = (f"method.name={method}", "model.name=resnet8", "train.steps_per_round=1", "compute.device=cuda")
    settings += ("compute.kernels=on",)
    changes = []
    for choice in ("off", "on"):
        engine = LocalEngine(make_federation(*settings, f"compute.compile={choice}"))
        before = torch.cat([p.flatten() for p in engine.model().params.values()])
        list(engine.rounds(1))
        changes.append(torch.cat([p.flatten() for p in engine.model().params.values()]) - before)
    assert (changes[1] - changes[0]).norm() < 0.15 * changes[0].norm()  # as far apart as bf16 is from fp32
    lane, federation = engine.fleet.lanes[0], engine.federation
    (plan,) = engine.fleet.plans(2, federation.drawn_clients(2))[:1]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with lane.scope():
            payload = federation.method.payload(engine.snapshot.server, plan.client)
            engine.fleet.client(lane, plan, payload, engine.snapshot.clients.get(plan.client))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_deep_residual_network_is_compiled(make_federation: Make) -> None:
    """Messages that write out every layer with all layers before it would not end."""
    settings = ("method.name=fedavg", "model.name=resnet18", "train.steps_per_round=1", "compute.device=cuda")
    (result,) = LocalEngine(make_federation(*settings, "compute.kernels=on")).rounds(1)
    assert np.isfinite(result.tally).all()


def test_lanes_agree(make_federation: Make) -> None:
    settings = ("compute.device=cuda", "train.precision=fp32")
    one, two = models(2, *(make_federation(*settings, f"compute.lanes={lanes}") for lanes in (1, 2)))
    torch.testing.assert_close(two.params, one.params, rtol=5e-3, atol=5e-4)


@pytest.mark.parametrize("settings", [["compute.compile=off"], ["train.steps_per_round=1"]])
def test_eager_steps_and_one_step_rounds_work_too(settings: list[str], make_federation: Make) -> None:
    engine = LocalEngine(make_federation("compute.device=cuda", *settings))
    assert [r.round for r in engine.rounds(2)] == [1, 2]


@pytest.mark.parametrize("method", ["fedloke", "fedmatch"])
def test_a_thousand_clients_cost_no_device_memory_and_no_time(method: str) -> None:
    """ResNet-8x4, all registered clients known: twenty and a thousand of them, rounds in turn, the fastest of each."""
    images = load("synthetic", num_classes=10, size=32, channels=3, train_per_class=300, test_per_class=10)
    settings = (f"method.name={method}", "model.name=resnet8", "model.width=4", "compute.device=cuda")
    steps = ("train.clients_per_round=8", "train.steps_per_round=20", "train.batch=32", "train.lr=0.01")
    engines, peaks, rounds = [], [], []
    for clients in (20, 1000):
        part = ("partition.kind=iid", "data.labels_per_class=100", f"partition.clients={clients}")
        config = tiny_config(*settings, *steps, *part)
        engines.append(known_to_all(LocalEngine(Federation(prepare(config, images)))))
        rounds.append(seconds_of(engines[-1]))
        next(rounds[-1])
    for each in rounds:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        next(each)
        peaks.append(torch.cuda.max_memory_allocated() - before)
    model = sum(t.nbytes for t in engines[0].model().params.values())
    assert abs(peaks[1] - peaks[0]) < 8 * model, peaks  # the eight under way overlap more or less
    states = [s for e in engines for d in (e.snapshot.clients, e.snapshot.server.memory) for s in d.values()]
    assert states
    assert all(t.device.type == "cpu" for state in states for t in state.values())
    fastest = [min(pair) for pair in zip(*((next(a), next(b)) for a, b in [rounds] * 25), strict=True)]
    assert fastest[1] < 1.15 * fastest[0], fastest  # 50 times the clients; other tests may use the GPU, too


@pytest.mark.parametrize("who", ["all", "sites"])
def test_static_norms_are_the_cpus(who: str, make_federation: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fssl.core.static_norm.BATCH", 16)  # so that some batches are whole, and compiled
    settings = (
        "partition.labels=server",
        f"server.static_norm={who}",
        "train.precision=fp32",
        "train.steps_per_round=2",
    )
    on_cpu, on_gpu = models(1, *(make_federation(*settings, f"compute.device={where}") for where in ("cpu", "cuda")))
    torch.testing.assert_close(on_gpu.buffers, on_cpu.buffers, rtol=2e-3, atol=2e-3)


def test_a_gpu_that_is_listed_twice_agrees_with_itself(make_federation: Make) -> None:
    """Two groups of lanes with graphs, streams and threads of their own; only one GPU is at hand."""
    settings, lists = ("compute.device=auto", "train.precision=fp32"), ('["cuda:0"]', '["cuda:0", "cuda:0"]')
    once, twice = models(2, *(make_federation(*settings, f"compute.devices={devices}") for devices in lists))
    torch.testing.assert_close(twice.params, once.params, rtol=5e-3, atol=5e-4)
