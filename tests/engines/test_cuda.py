"""On a CUDA device only: exact views, the captured step, and no synchronization inside a client's round."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fssl.augment.policies import draw_strong, draw_weak, strong, weak
from fssl.core.federation import Federation
from fssl.engines.local import LocalEngine

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
Make = Callable[..., Federation]


@pytest.mark.parametrize(("size", "channels"), [(32, 3), (8, 1)])
def test_compiled_views_equal_the_cpus_value_for_value(size: int, channels: int) -> None:
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (500, size, size, channels), dtype=np.uint8))
    rows = torch.from_numpy(rng.integers(0, 500, 2000))
    for view, draw in ((weak, draw_weak), (strong, draw_strong)):
        noise = torch.from_numpy(draw(rng, (2000,), size))
        compiled = torch.compile(view, fullgraph=True, dynamic=False)
        on_gpu = compiled(images.cuda(), rows.cuda(), noise.cuda()).cpu()
        assert torch.equal(on_gpu, view(images, rows, noise))


@pytest.mark.parametrize("method", ["sage", "flexmatch", "fedavg"])
def test_the_captured_step_is_the_eager_one(method: str, make_federation: Make) -> None:
    settings = (f"method.name={method}", "train.precision=fp32", "train.steps_per_round=5")
    uploads = []
    for device in ("cpu", "cuda"):
        engine = LocalEngine(make_federation(*settings, f"compute.device={device}"))
        list(engine.rounds(1))
        uploads.append({k: v.cpu() for k, v in engine.model().params.items()})
    for name, value in uploads[0].items():
        torch.testing.assert_close(uploads[1][name], value, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("method", ["sage", "flexmatch"])
def test_a_clients_round_never_waits_for_the_device(method: str, make_federation: Make) -> None:
    settings = (f"method.name={method}", "train.steps_per_round=20", "train.clients_per_round=4")
    federation = make_federation("compute.device=cuda", *settings)
    engine = LocalEngine(federation)
    list(engine.rounds(1))
    fleet, snapshot = engine.fleet, engine.snapshot
    (plan,) = fleet.plans(2, federation.clients_of(2))[:1]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with fleet.lanes[0].scope():  # its state comes from the host, as in every round
            fleet.client(fleet.lanes[0], plan, snapshot.server, snapshot.clients.get(plan.client))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_lanes_agree(make_federation: Make) -> None:
    models = []
    for lanes in (1, 2):
        engine = LocalEngine(make_federation("compute.device=cuda", f"compute.lanes={lanes}", "train.precision=fp32"))
        list(engine.rounds(2))
        models.append(engine.model().params)
    for name, value in models[0].items():
        torch.testing.assert_close(models[1][name], value, rtol=5e-3, atol=5e-4)


@pytest.mark.parametrize("settings", [["compute.compile=off"], ["train.steps_per_round=1"]])
def test_eager_steps_and_one_step_rounds_work_too(settings: list[str], make_federation: Make) -> None:
    engine = LocalEngine(make_federation("compute.device=cuda", *settings))
    assert [r.round for r in engine.rounds(2)] == [1, 2]
