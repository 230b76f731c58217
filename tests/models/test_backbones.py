"""ResNet-18, wide residual networks and RSCFed's CNN: their sizes as published, their values written out plainly."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fssl.config import override, parse, read_toml
from fssl.config.settings import NETWORKS
from fssl.core.experiment import prepare
from fssl.models import MODELS, Net, build_net
from fssl.models.norm import make_norm
from fssl.types import Weights
from helpers.command import SMALL, Fssl, records

NEW = ["resnet18", "wrn-28-2", "wrn-28-8"]


def size_of(net: Net) -> int:
    return sum(p.numel() for p in net.first.params.values())


def conv(inputs: int, outputs: int, k: int = 3) -> int:
    return k * k * inputs * outputs


def norm(channels: int) -> int:
    return 2 * channels


def resnet18_size(channels: int, classes: int, k: int) -> int:
    """A stem, then stages of two blocks: 4 convolutions with norms, and a shortcut where channels change."""
    total, inputs = conv(channels, 64, k) + norm(64), 64
    for outputs in (64, 128, 256, 512):
        total += conv(inputs, outputs) + 3 * conv(outputs, outputs) + 4 * norm(outputs)
        total += conv(inputs, outputs, 1) + norm(outputs) if inputs != outputs else 0
        inputs = outputs
    return total + (512 + 1) * classes


def wide_size(factor: int, classes: int) -> int:
    """A convolution, stages of 4 units, a norm: each unit has a norm before each of two convolutions."""
    total, inputs = conv(3, 16), 16
    for outputs in (16 * factor, 32 * factor, 64 * factor):
        total += norm(inputs) + conv(inputs, outputs) + norm(outputs) + conv(outputs, outputs)
        total += conv(inputs, outputs, 1) + 3 * (2 * norm(outputs) + 2 * conv(outputs, outputs))
        inputs = outputs
    return total + norm(inputs) + (inputs + 1) * classes


@pytest.mark.parametrize(
    ("name", "classes", "stem", "by_hand", "published"),
    [
        ("resnet18", 10, "cifar", resnet18_size(3, 10, 3), 11_173_962),
        ("resnet18", 1000, "imagenet", resnet18_size(3, 1000, 7), 11_689_512),
        ("wrn-28-2", 10, "cifar", wide_size(2, 10), 1_467_610),
        ("wrn-28-8", 100, "cifar", wide_size(8, 100), 23_401_012),
    ],
)
def test_parameters_are_as_many_as_published(name: str, classes: int, stem: str, by_hand: int, published: int) -> None:
    assert size_of(build_net(name, 3, classes, 4, stem=stem)) == by_hand == published


def test_settings_name_every_network() -> None:
    assert tuple(MODELS) == NETWORKS


def test_rscfed_s_network_has_its_sizes() -> None:
    sizes = [p.shape for name, p in build_net("simple-cnn", 3, 10, 4, size=32).first.params.items() if "weight" in name]
    assert sizes == [(6, 3, 5, 5), (16, 6, 5, 5), (120, 400), (84, 120), (84, 84), (256, 84), (10, 256)]


def test_first_weights_are_kaiming_s_of_the_outputs() -> None:
    for name, layer, outputs in (("resnet18", "layer4.1.conv2", 512), ("wrn-28-2", "layer3.3.conv2", 128)):
        params = build_net(name, 3, 10, 4, seed=7).first.params
        assert params[f"{layer}.weight"].std().item() == pytest.approx((2 / (9 * outputs)) ** 0.5, rel=0.01)
    assert not params["head.linear.bias"].any()


class Basic(nn.Module):
    """The block of He et al. with torchvision's names."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(skip, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class PlainResNet18(nn.Module):
    def __init__(self, classes: int, c: int, stem: str) -> None:
        super().__init__()
        self.stem = stem
        self.conv1 = nn.Conv2d(3, c, *((7, 2, 3) if stem == "imagenet" else (3, 1, 1)), bias=False)
        self.bn1 = nn.BatchNorm2d(c)
        self.layer1 = nn.Sequential(Basic(c, c, 1), Basic(c, c, 1))
        self.layer2 = nn.Sequential(Basic(c, 2 * c, 2), Basic(2 * c, 2 * c, 1))
        self.layer3 = nn.Sequential(Basic(2 * c, 4 * c, 2), Basic(4 * c, 4 * c, 1))
        self.layer4 = nn.Sequential(Basic(4 * c, 8 * c, 2), Basic(8 * c, 8 * c, 1))
        self.fc = nn.Linear(8 * c, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        if self.stem == "imagenet":
            x = F.max_pool2d(x, 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class PlainUnit(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.changes = inputs != outputs
        if self.changes:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        o1 = F.relu(self.bn1(x))
        z = self.conv2(F.relu(self.bn2(self.conv1(o1))))
        return z + self.shortcut(o1) if self.changes else z + x


class PlainWide(nn.Module):
    def __init__(self, classes: int, c: int, factor: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, c, 3, 1, 1, bias=False)
        k = factor * c
        self.layer1 = nn.Sequential(PlainUnit(c, k, 1), *[PlainUnit(k, k, 1) for _ in range(3)])
        self.layer2 = nn.Sequential(PlainUnit(k, 2 * k, 2), *[PlainUnit(2 * k, 2 * k, 1) for _ in range(3)])
        self.layer3 = nn.Sequential(PlainUnit(2 * k, 4 * k, 2), *[PlainUnit(4 * k, 4 * k, 1) for _ in range(3)])
        self.bn = nn.BatchNorm2d(4 * k)
        self.fc = nn.Linear(4 * k, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.conv(x))))
        return self.fc(F.relu(self.bn(x)).mean((2, 3)))


PLAIN = {
    "resnet18": lambda stem: PlainResNet18(5, 16, stem),
    "wrn-28-2": lambda stem: PlainWide(5, 4, 2),
    "wrn-28-8": lambda stem: PlainWide(5, 4, 8),
}


@pytest.mark.parametrize(
    ("name", "stem", "size"),
    [("resnet18", "cifar", 17), ("resnet18", "imagenet", 64), ("wrn-28-2", "cifar", 16), ("wrn-28-8", "cifar", 12)],
)
@pytest.mark.slow
def test_values_are_those_of_the_plain_definition(name: str, stem: str, size: int) -> None:
    """Published weights fit by their names; training uses and keeps the batch's statistics, a test uses those kept."""
    torch.manual_seed(0)
    plain, net = PLAIN[name](stem), build_net(name, 3, 5, 1, stem=stem)
    for tensor in plain.parameters():
        tensor.data += 0.1 * torch.randn_like(tensor)
    state = {k: v for k, v in plain.state_dict().items() if not k.endswith("tracked")}
    named = {net.our_name(k).replace("fc.", "head.linear."): v.clone() for k, v in state.items()}
    assert named.keys() == {*net.first.params, *net.first.buffers}
    weights = Weights({k: named[k] for k in net.first.params}, {k: named[k] for k in net.first.buffers})
    x = torch.randn(4, 3, size, size)
    buffers, (out,) = net.fit(weights, x)
    torch.testing.assert_close(out.logits, plain.train()(x), rtol=2e-5, atol=1e-5)
    moved = {net.our_name(k): v for k, v in plain.state_dict().items()}
    for key, buffer in buffers.items():
        torch.testing.assert_close(buffer, moved[key])
    tested = net.infer(Weights(weights.params, buffers), x).logits
    torch.testing.assert_close(tested, plain.eval()(x), rtol=2e-5, atol=1e-5)  # logits of a hundred and more


@pytest.mark.parametrize("name", NEW)
def test_features_stand_before_the_classifier(name: str) -> None:
    net = build_net(name, 1, 10, 1)
    out = net.infer(net.first, torch.randn(2, 1, 8, 8))
    params = net.first.params
    torch.testing.assert_close(out.logits, out.feature @ params["head.linear.weight"].T + params["head.linear.bias"])


@pytest.mark.parametrize(
    ("channels", "groups"), [(16, 1), (32, 1), (64, 2), (512, 16), (48, 2), (40, 2), (37, 37), (4, 1)]
)
def test_groups_are_as_large_as_they_can_be(channels: int, groups: int) -> None:
    """At most 32 channels, and all of one size: 48 channels are two groups of 24."""
    layer = make_norm(channels, "group")
    assert isinstance(layer, nn.GroupNorm)
    assert layer.num_groups == groups


@pytest.mark.parametrize("name", ["resnet8", "cnn", *NEW])
def test_group_norm_keeps_nothing_and_sees_each_image_alone(name: str) -> None:
    net, batch = build_net(name, 3, 10, 1, norm="group"), build_net(name, 3, 10, 1)
    assert net.first.buffers == {}
    assert net.first.params.keys() == batch.first.params.keys()
    x = torch.randn(3, 3, 8, 8)
    buffers, (out,) = net.fit(net.first, x)
    assert buffers == {}
    torch.testing.assert_close(out.logits, net.infer(net.first, x).logits)
    torch.testing.assert_close(out.logits[:1], net.infer(net.first, x[:1]).logits)


def test_a_block_with_group_norm_is_what_it_says() -> None:
    net = build_net("resnet8", 3, 10, 2, norm="group")
    p, x = net.first.params, torch.randn(2, 3, 8, 8)

    def normed(x: Tensor, name: str) -> Tensor:
        weight = p[f"{name}.weight"]
        return F.group_norm(x, max(1, len(weight) // 32), weight, p[f"{name}.bias"])

    maps = F.relu(normed(F.conv2d(x, p["conv.weight"], padding=1), "bn"))
    for layer, stride in (("layer1", 1), ("layer2", 2), ("layer3", 2)):
        out = F.relu(normed(F.conv2d(maps, p[f"{layer}.conv1.weight"], None, stride, 1), f"{layer}.bn1"))
        out = normed(F.conv2d(out, p[f"{layer}.conv2.weight"], padding=1), f"{layer}.bn2")
        if stride == 2:
            maps = normed(F.conv2d(maps, p[f"{layer}.shortcut.0.weight"], None, 2), f"{layer}.shortcut.1")
        maps = F.relu(out + maps)
    torch.testing.assert_close(net.infer(net.first, x).feature, maps.mean((2, 3)))


@pytest.fixture
def _desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_desk")
@pytest.mark.parametrize(
    "settings",
    [
        ["model.name=resnet18"],
        ["model.name=resnet18", "model.stem=imagenet", "method.name=fedmatch"],
        ["model.name=wrn-28-2", "model.norm=group", "method.name=proxyfl"],
        ["model.name=wrn-28-8", "train.steps_per_round=1", "method.name=fedloke"],
        ["model.name=cnn", "model.norm=group"],
    ],
)
@pytest.mark.slow
def test_a_run_trains_resumes_and_predicts(settings: list[str], fssl: Fssl) -> None:
    words = [word for setting in settings for word in ("--set", setting)]
    assert fssl("run", "smoke", *SMALL, *words, "--out", "run")[0] == 0
    assert fssl("run", "run", "--resume", "--set", "train.rounds=3")[0] == 0
    code, said, _ = fssl("predict", "run")
    last = records("run")[-1]["test"]["train_norm"]["accuracy"]
    assert (code, f"{last:.2f} %" in said) == (0, True), said


@pytest.mark.usefixtures("_desk")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.name=simple-cnn"], "network 'simple-cnn' needs images of 16 pixels or more, these have 8"),
        (
            ["model.name=simple-cnn", "model.norm=group"],
            "model.norm = 'group': network 'simple-cnn' does not take this setting",
        ),
        (["model.stem=imagenet"], "model.stem = 'imagenet': network 'cnn' does not take this setting; remove it"),
        (["model.norm=layer"], "model.norm 'layer' is unknown"),
        (["model.norm=group", "method.label_bn=eval"], "method.label_bn = 'eval' needs BatchNorm's running"),
        (["model.name=wrn-28"], "did you mean 'wrn-28-2' or 'wrn-28-8'?"),
    ],
)
def test_what_does_not_fit_is_one_line(settings: list[str], message: str, fssl: Fssl) -> None:
    words = [word for setting in settings for word in ("--set", setting)]
    code, _, said = fssl("run", "smoke", *SMALL, *words, "--out", "run")
    assert (code, said.count("\n"), message in said) == (2, 1, True), said
    assert not Path("run").exists()


def test_a_network_of_one_s_own_may_take_the_choices(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from fssl.models.resnet import SmallCnn\n"
        "def mine(channels, classes, width, norm='batch', size=0):\n"
        "    assert size == 8\n"
        "    return SmallCnn(channels, classes, width, norm)\n"
    )
    settings = [f"model.name={file}:mine", "model.norm=group"]
    net = prepare(parse(override(read_toml("smoke"), settings))).net
    assert net.first.buffers == {}
