"""Networks of timm: their values, their weights from a file, and one line where there is no timm or no such network."""

import sys
from pathlib import Path

import pytest
import torch

from fssl.core.experiment import prepare
from fssl.models import build_net
from fssl.types import Weights
from helpers.command import SMALL, Fssl, records
from helpers.small import tiny_config

try:
    import timm
except Exception:  # not installed, or with a torchvision that was built for another torch
    timm = None

needs_timm = pytest.mark.skipif(timm is None, reason="timm cannot be imported: pip install 'fssl[timm]'")


def test_without_timm_it_is_one_line(fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)  # as Python does for a module that is not there
    code, _, said = fssl("run", "smoke", *SMALL, "--set", "model.name=timm:resnet18", "--out", "run")
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith(
        "fssl: network 'timm:resnet18' needs packages: pip install 'fssl[timm]' (ModuleNotFoundError"
    )
    assert not Path("run").exists()


@needs_timm
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.name=timm:resnet19", "model.width=4"], "is unknown to timm"),
        (["model.name=timm:resnet19", "model.width=4"], "did you mean timm:resnet18?"),
        (["model.name=timm:hf-hub:someone/something", "model.width=4"], "is unknown to timm"),
        (["model.name=timm:resnet18"], "model.width = 1: network 'timm:resnet18' has a single width"),
        (
            ["model.name=timm:resnet18", "model.norm=group"],
            "model.norm = 'group': network 'timm:resnet18' does not take this setting",
        ),
        (["model.name=timm:swin_tiny_patch4_window7_224", "model.width=4"], "network 'timm:swin_tiny"),
    ],
)
def test_what_does_not_fit_is_one_line(settings: list[str], message: str, fssl: Fssl) -> None:
    words = [word for setting in settings for word in ("--set", setting)]
    code, _, said = fssl("run", "smoke", *SMALL, *words, "--out", "run")
    assert (code, said.count("\n"), message in said) == (2, 1, True), said
    assert not Path("run").exists()


@needs_timm
@pytest.mark.parametrize("name", ["resnet18", "convnext_atto", "vit_tiny_patch16_224", "mobilenetv3_small_050"])
def test_values_and_weights_are_timm_s(name: str) -> None:
    """The state dict of the whole network, its own classifier with it, is read by its names."""
    torch.manual_seed(3)
    size = 224 if name.startswith("vit") else 32
    theirs = timm.create_model(name, num_classes=10).eval()
    net = build_net(f"timm:{name}", 3, 10, 4, size=size)
    named = {net.our_name(k): t for k, t in theirs.state_dict().items() if not k.endswith("num_batches_tracked")}
    assert named.keys() == {*net.first.params, *net.first.buffers}
    weights = Weights({k: named[k] for k in net.first.params}, {k: named[k] for k in net.first.buffers})
    x = torch.randn(2, 3, size, size)
    with torch.no_grad():
        torch.testing.assert_close(net.infer(weights, x).logits, theirs(x))


@needs_timm
def test_our_resnet18_is_timm_s() -> None:
    theirs = timm.create_model("resnet18", num_classes=10).eval()
    net = build_net("resnet18", 3, 10, 4, stem="imagenet")
    named = {net.our_name(k): t for k, t in theirs.state_dict().items() if not k.endswith("num_batches_tracked")}
    weights = Weights({k: named[k] for k in net.first.params}, {k: named[k] for k in net.first.buffers})
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(net.infer(weights, x).logits, theirs(x))


@needs_timm
def test_a_run_starts_from_timm_s_weights_trains_and_predicts(fssl: Fssl) -> None:
    theirs = timm.create_model("resnet18", num_classes=1000, in_chans=1)
    torch.save(theirs.state_dict(), "w.pth")
    settings = ["model.name=timm:resnet18", "model.width=4", "model.start=w.pth", "model.start_partial=true"]
    config = tiny_config("data.name=digits", *settings)
    fitted = prepare(config).start
    assert torch.equal(fitted.weights.params["body.conv1.weight"], theirs.conv1.weight)
    assert len(fitted.notes) == 1
    assert "head.linear.weight ([1000, 512], here [10, 512])" in fitted.notes[0]
    words = [word for setting in settings for word in ("--set", setting)]
    assert fssl("run", "smoke", *SMALL, *words, "--set", "train.steps_per_round=1", "--out", "run")[0] == 0
    code, said, _ = fssl("predict", "run")
    assert (code, f"{records('run')[-1]['accuracy']:.2f} %" in said) == (0, True), said
