"""Dropout and stochastic depth: masks by hand, their rates, and the same bits wherever a step is computed."""

from collections.abc import Callable
from importlib.util import find_spec
from math import sqrt
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fssl.core.client import at
from fssl.core.federation import Federation
from fssl.engines.compiler import compiled
from fssl.engines.local import LocalEngine
from fssl.models import Head, Net, build_net
from fssl.models.dropout import DropPath, Masks, PlannedDropout, mixed, with_planned_masks
from fssl.system.user_code import remember
from helpers.command import SMALL, Fssl, records
from helpers.matrix import same

Make = Callable[..., Federation]
MINE = '''
import torch
from torch import nn
from fssl.models import Head
from fssl.models.dropout import DropPath

class Dropping(nn.Module):
    """Every kind of layer that drops, one of them twice."""

    def __init__(self, channels, classes, p):
        super().__init__()
        self.conv, self.drop2d, self.path = nn.Conv2d(channels, 8, 3, padding=1), nn.Dropout2d(p), DropPath(p)
        self.drop, self.head = nn.Dropout(p), Head(8, classes)

    def forward(self, x):
        maps = self.drop2d(self.conv(x).relu())
        return self.head(self.drop(maps + self.path(self.drop(maps).tanh())))

def half(channels, classes, width):
    return Dropping(channels, classes, 0.5)

def never(channels, classes, width):
    return Dropping(channels, classes, 0.0)

def plain(channels, classes, width):
    net = Dropping(channels, classes, 0.0)
    net.drop2d = net.path = net.drop = nn.Identity()
    return net

class Function(Dropping):
    def forward(self, x):
        return self.head(nn.functional.dropout(self.conv(x), 0.5, self.training))

def function(channels, classes, width):
    return Function(channels, classes, 0.0)
'''
TWO_MORE = ("compute.lanes=2", "compute.processes=off"), ("compute.lanes=2", "compute.processes=on")


def planned(layer: nn.Module, number: int | None) -> nn.Module:
    """The layer as in a step for which the plan drew this number."""
    module, masks = with_planned_masks(nn.Sequential(layer).train())
    masks.begin(None if number is None else torch.tensor(number))
    return module


def by_hand(numbers: list[int]) -> list[int]:
    """The hash in unlimited integers, cut to 32 bits where a register would be."""
    found = []
    for x in numbers:
        x %= 2**32
        x = (x ^ (x >> 16)) * 0x21F0AAAD % 2**32
        x = (x ^ (x >> 15)) * 0x735A2D97 % 2**32
        found.append(x ^ (x >> 15))
    return found


def test_hashes_are_those_of_32_bit_registers() -> None:
    numbers = [0, 1, 2, 65_536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**33 - 1]
    assert mixed(torch.tensor(numbers)).tolist() == by_hand(numbers)
    assert by_hand([1]) == by_hand([2**32 + 1])
    assert len({*mixed(torch.arange(100_000)).tolist()}) == 100_000  # each step can be undone


def test_a_mask_by_hand() -> None:
    """The second mask of a step whose number is 7, with p = 0.25 of 2^32."""
    masks = Masks()
    masks.begin(torch.tensor(7))
    first, second = (masks.keep(torch.tensor(7), 0.25, (2, 3)) for _ in range(2))
    (key,) = by_hand([7 + 2 * 0x1E3779B9])
    bits = by_hand([place + key for place in by_hand([*range(6)])])
    assert second.tolist() == [[b >= 2**30 for b in row] for row in (bits[:3], bits[3:])]
    masks.begin(torch.tensor(7))
    assert torch.equal(masks.keep(torch.tensor(7), 0.25, (2, 3)), first)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_rates_and_scale(p: float) -> None:
    """Of n values, n p are dropped within 4 standard deviations; the others are divided by 1 - p."""
    n, x = 100_000, torch.full((100, 1000), 3.0)
    out = planned(nn.Dropout(p), 11)(x)
    dropped = int((out == 0).sum())
    assert abs(dropped - n * p) < 4 * sqrt(n * p * (1 - p))
    torch.testing.assert_close(out[out != 0], torch.full((n - dropped,), 3.0 / (1 - p)))
    by_row = (out == 0).sum(1).float()
    assert (by_row - 1000 * p).abs().max() < 5 * sqrt(1000 * p * (1 - p))


def test_masks_of_layers_steps_and_neighbors_are_independent() -> None:
    """Of two independent masks with p = 1/2, half of the values agree."""
    n = 100_000
    masks = Masks()

    def two(number: int) -> list[Tensor]:
        masks.begin(torch.tensor(number))
        return [masks.keep(torch.tensor(number), 0.5, (n,)) for _ in range(2)]

    (a, b), (c, d) = two(5), two(6)
    neighbors = a.roll(1)
    for x, y in ((a, b), (a, c), (b, c), (c, d), (a, neighbors), (a, a.view(-1, 8).flip(1).flatten())):
        assert abs(int((x == y).sum()) - n / 2) < 4 * sqrt(n) / 2


@pytest.mark.parametrize(
    ("layer", "shape", "whole"),
    [
        (nn.Dropout1d(0.5), (64, 8, 5), (64, 8)),
        (nn.Dropout2d(0.5), (64, 8, 5, 5), (64, 8)),
        (nn.Dropout3d(0.5), (16, 8, 5, 2, 2), (16, 8)),
        (DropPath(0.5), (512, 3, 5, 5), (512,)),
        (DropPath(0.5), (512, 3), (512,)),
    ],
)
def test_channels_and_images_are_dropped_as_a_whole(
    layer: nn.Module, shape: tuple[int, ...], whole: tuple[int, ...]
) -> None:
    parts = planned(layer, 3)(torch.ones(shape)).flatten(len(whole))
    assert torch.equal(parts, parts[..., :1].expand_as(parts))
    n = parts[..., 0].numel()
    assert {*parts.unique().tolist()} == {0.0, 2.0}
    assert abs(int((parts[..., 0] == 0).sum()) - n / 2) < 4 * sqrt(n) / 2


def test_timm_s_layer_may_keep_the_scale() -> None:
    layer = DropPath(0.5)
    layer.scale_by_keep = False  # type: ignore[assignment]
    assert {*planned(layer, 3)(torch.ones(64, 2)).unique().tolist()} == {0.0, 1.0}


def test_limits() -> None:
    x = torch.randn(4, 6)
    assert torch.equal(planned(nn.Dropout(0.0), 3)(x), x)
    assert torch.equal(planned(nn.Dropout(0.5), None)(x), x)  # outside of steps
    assert torch.equal(planned(nn.Dropout(0.5), 3).eval()(x), x)
    assert torch.equal(planned(nn.Dropout(1.0), 3)(x), torch.zeros(4, 6))
    assert isinstance(planned(nn.Dropout(0.5), 3)[0], PlannedDropout)  # type: ignore[index]


def test_gradients_pass_where_values_do() -> None:
    x = torch.randn(4, 6, requires_grad=True)
    out = planned(nn.Dropout(0.25), 3)(x)
    out.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, (out != 0) / 0.75)


class Linear(nn.Module):
    def __init__(self, channels: int, classes: int, width: int) -> None:
        super().__init__()
        self.head = Head(channels, classes, dropout=0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        feature, logits = self.head(x)
        return feature, logits


def linear() -> Net:
    return build_net(remember("network", Linear, Linear), 3, 2, 1)


def test_a_net_drops_in_planned_training_only() -> None:
    """Of the features, whose mean over the image is 1; both weights of a class are 1 and its bias 0."""
    net, images = linear(), torch.ones(50, 3, 4, 4)
    net.first.params["head.linear.weight"].fill_(1)
    net.first.params["head.linear.bias"].zero_()

    def logits(net: Net) -> list[float]:
        (out,) = net.fit(net.first, images)[1]
        return out.logits[:, 0].tolist()

    assert {*logits(net)} == {3.0}
    net.masks.begin(torch.tensor(3))
    masked = logits(net)
    assert {*masked} == {0.0, 2.0, 4.0, 6.0}  # of three features, each is 0 or 2
    assert logits(net) != masked  # the next mask of the step
    other = net.copy()
    other.masks.begin(torch.tensor(3))
    assert logits(other) == masked
    net.masks.begin(None)
    assert (net.masks.number, other.masks.number is None) == (None, False)
    assert net.infer(net.first, images).logits.unique().tolist() == [3.0]


def test_drop_path_rises_from_block_to_block() -> None:
    """The published rule: 0.2 i / 16 in block i; blocks without a sum have none."""
    net = build_net("efficientnet-lite0", 3, 5, 1, drop_path=0.2, dropout=0.3)
    rates = {
        int(name.split(".")[1]): layer.p
        for name, layer in net._training.module.named_modules()
        if isinstance(layer, PlannedDropout) and name.startswith("blocks")
    }
    assert rates == {i: pytest.approx(0.2 * i / 16) for i in (2, 4, 6, 7, 9, 10, 12, 13, 14)}
    (head,) = [m for n, m in net._training.module.named_modules() if n == "head.dropout"]
    assert (type(head), head.p) == (PlannedDropout, 0.3)
    assert not any(isinstance(layer, PlannedDropout) for layer in net._evaluation.module.modules())
    plain = build_net("efficientnet-lite0", 3, 5, 1)
    assert plain.first.params.keys() == net.first.params.keys()
    images = torch.randn(4, 3, 16, 16)
    after, (out,) = net.fit(net.first, images)
    before, (usual,) = plain.fit(plain.first, images)
    assert torch.equal(out.logits, usual.logits)
    assert same(after, before)


@pytest.fixture
def mine(fssl: Fssl) -> Fssl:
    Path("mine.py").write_text(MINE)
    return fssl


def trained(fssl: Fssl, out: str, *settings: str, network: str = "half") -> dict[str, Tensor]:
    words = [word for setting in (f"model.name=mine.py:{network}", *settings) for word in ("--set", setting)]
    assert fssl("run", "smoke", *SMALL, *words, "--out", out)[0] == 0
    return load_file(f"{out}/model.safetensors")


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.slow
def test_rate_zero_is_a_network_without_dropout(mine: Fssl) -> None:
    never, plain, half = (trained(mine, name, network=name) for name in ("never", "plain", "half"))
    assert equal(never, plain)
    assert not equal(never, half)


@pytest.mark.slow
def test_lanes_threads_processes_and_a_resumed_run_have_the_same_bits(mine: Fssl) -> None:
    one = trained(mine, "one", "compute.lanes=1", "train.rounds=3")
    for place, settings in enumerate(TWO_MORE):
        assert equal(trained(mine, f"lanes{place}", *settings, "train.rounds=3"), one)
    trained(mine, "run", "train.rounds=1")
    assert mine("run", "run", "--resume", "--set", "train.rounds=3")[0] == 0
    assert equal(load_file("run/model.safetensors"), one)
    assert records("run") == records("one")
    assert not equal(trained(mine, "other", "seed=8", "train.rounds=3"), one)


@pytest.mark.skipif(not (find_spec("flwr") and find_spec("ray")), reason="needs pip install 'fssl[flower]'")
@pytest.mark.slow
def test_flower_has_the_same_bits(mine: Fssl) -> None:
    local = trained(mine, "local")
    assert equal(trained(mine, "flower", "compute.engine=flower"), local)


@pytest.fixture
def half(tmp_path: Path) -> str:
    """A small network with dropout of all kinds."""
    (tmp_path / "mine.py").write_text(MINE)
    return f"model.name={tmp_path}/mine.py:half"


@pytest.mark.parametrize("method", ["sage", "uda", "feddure"])
def test_every_round_of_a_method_repeats_its_bits(method: str, half: str, make_federation: Make) -> None:
    federation = make_federation(f"method.name={method}", half)
    numbers = federation.plan(1, 1).draw.extras["dropout"]
    assert len({*numbers.tolist()}) == len(numbers) > 1
    first, second = (LocalEngine(make_federation(f"method.name={method}", half)) for _ in range(2))
    for engine in (first, second):
        engine.round(1)
    assert same(first.snapshot.server.weights.params, second.snapshot.server.weights.params)


@pytest.mark.slow
def test_compiled_steps_have_the_masks_of_eager_ones(half: str, make_federation: Make) -> None:
    """Masks are whole numbers; other operations may be rounded differently."""
    federation = make_federation(half)
    net, images = federation.net, torch.randn(6, 3, 16, 16)

    def logits(number: Tensor, images: Tensor) -> Tensor:
        net.masks.begin(number)
        (out,) = net.fit(net.first, images)[1]
        net.masks.begin(None)
        return out.logits

    number = at(federation.plan(1, 1).draw, 0).extras["dropout"]
    with torch.no_grad():
        code = compiled(logits, number, images)
        for other in (number, number + 1):
            torch.testing.assert_close(code(other, images), logits(other, images))
        assert not torch.equal(logits(number, images), logits(number + 1, images))


def test_dropout_in_a_function_is_one_line(mine: Fssl) -> None:
    code, _, said = mine("run", "smoke", *SMALL, "--set", "model.name=mine.py:function", "--out", "run")
    assert (code, said.count("\n")) == (2, 1)
    assert "draws random numbers: the same images give other logits; use layers such as nn.Dropout" in said
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.dropout=0.5", "model.dropout = 0.5: network 'cnn' does not take this setting; remove it"),
        ("model.drop_path=0.5", "model.drop_path = 0.5: network 'cnn' does not take this setting; remove it"),
        ("model.dropout=1", "model.dropout = 1: expected a number from 0 to 0.99"),
    ],
)
def test_what_has_no_effect_is_one_line(setting: str, message: str, fssl: Fssl) -> None:
    code, _, said = fssl("run", "smoke", *SMALL, "--set", setting, "--out", "run")
    assert (code, said.count("\n"), message in said) == (2, 1, True), said
