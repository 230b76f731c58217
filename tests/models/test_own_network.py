"""Networks in files of one's own: the same bits as ours, and what is said of one that does not fit."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fssl.config import override, parse, read_toml
from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.engines.local import LocalEngine
from fssl.models import build_net
from fssl.system.user_code import loaded
from helpers.command import SMALL, Fssl, records

FILE = """
import torch
from torch import nn
from fssl.methods.fixmatch import fixmatch_gpl as mine
from fssl.models import Head
from fssl.models.resnet import SmallCnn

class Base(nn.Module):
    def __init__(self, channels, classes, norm=nn.Identity()):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(channels, 8, 3), norm, Head(8, classes)

    def forward(self, x):
        return self.head(self.norm(self.conv(x)).relu())

def same(channels, classes, width):
    return SmallCnn(channels, classes, width)

def groups(channels, classes, width):
    return Base(channels, classes, nn.GroupNorm(2, 8))

class Dropped(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.5, self.training)

def dropout(channels, classes, width):
    return Base(channels, classes, Dropped())

def counter(channels, classes, width):
    net = Base(channels, classes)
    net.register_buffer("seen", torch.zeros(1, dtype=torch.long))
    return net

def headless(channels, classes, width):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

def lazy(channels, classes, width):
    return Base(channels, classes, nn.LazyConv2d(8, 1))

def narrow(channels, classes, width):
    return Base(channels, classes - 1)

def logits_only(channels, classes, width):
    net = Base(channels, classes)
    net.forward = lambda x: Base.forward(net, x)[1]
    return net

def greedy(channels, classes, width):
    return Base(channels, classes, nn.Conv2d(8, 8, 99))

def number(channels, classes, width):
    return 3

class Vectors(nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        self.conv, self.head = nn.Conv2d(channels, 8, 3), Head(8, classes)

    def forward(self, x):
        return self.head(self.conv(x).relu().mean((2, 3)))

def vectors(channels, classes, width):
    return Vectors(channels, classes)

def maps(channels, classes, width):
    return Base(channels, classes)

def frozen(channels, classes, width):
    net = Base(channels, classes, nn.BatchNorm2d(8))
    net.conv.requires_grad_(False)
    return net

class Branch(Base):
    def forward(self, x):
        return super().forward(x if x.mean() > 5 else -x)

def branch(channels, classes, width):
    return Branch(channels, classes)

class Picks(Base):
    def forward(self, x):
        return super().forward(x * len(x[x > 0]))

def picks(channels, classes, width):
    return Picks(channels, classes)

def headlong(channels, classes, width):
    return Base(channels, classes).requires_grad_(False)

def two(channels, classes):
    return Base(channels, classes)
"""


@pytest.fixture(autouse=True)
def _desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(FILE)


def train(fssl: Fssl, out: str, name: str, *words: str) -> tuple[int, str, str]:
    return fssl("run", "smoke", *SMALL, "--set", f"model.name={name}", "--out", out, *words)


def test_a_copy_of_ours_gives_the_same_bits(fssl: Fssl) -> None:
    assert train(fssl, "own", "net.py:same")[0] == train(fssl, "ours", "cnn")[0] == 0
    assert records("own") == records("ours")
    own, ours = load_file("own/model.safetensors"), load_file("ours/model.safetensors")
    assert own.keys() == ours.keys()
    assert all(torch.equal(own[k], ours[k]) for k in own)
    assert Path("own/net.py").read_text() == FILE


def test_a_head_takes_vectors_as_it_takes_maps(fssl: Fssl) -> None:
    assert train(fssl, "vectors", "net.py:vectors")[0] == train(fssl, "maps", "net.py:maps")[0] == 0
    assert records("vectors") == records("maps")


@pytest.mark.parametrize("method", ["sage", "fedmatch", "proxyfl", "fedloke", "net.py:mine"])
def test_a_network_without_buffers_trains_resumes_and_predicts(method: str, fssl: Fssl) -> None:
    """Methods that average, split, copy or read the classifier; one of the network's own file, too."""
    words = ["--set", f"method.name={method}"]
    assert train(fssl, "run", "net.py:groups", *words)[0] == 0
    assert fssl("run", "run", "--resume", "--set", "train.rounds=3")[0] == 0
    code, said, _ = fssl("predict", "run")
    last = records("run")[-1]["test"]["train_norm"]["accuracy"]
    assert (code, f"{last:.2f} %" in said) == (0, True), said


@pytest.mark.parametrize("method", ["sage", "fedmatch", "proxyfl", "fedloke", "feddure-full", "flfl"])
def test_frozen_weights_stay_as_they_are_and_the_others_learn(method: str, fssl: Fssl) -> None:
    """To the last bit: neither decay, nor a mean, nor the server's optimizer, nor smoothing moves them."""
    words = [f"method.name={method}", "server.optimizer=momentum", "server.ema=0.9", "train.weight_decay=0.01"]
    words += ["train.lr=0.01"] * (method != "fedmatch")
    assert train(fssl, "run", "net.py:frozen", *(word for s in words for word in ("--set", s)))[0] == 0
    first = build_net("net.py:frozen", 1, 10, 1, seed=7).first
    assert set(first.buffers) == {"conv.weight", "conv.bias", "norm.running_mean", "norm.running_var"}
    for file in ("model.safetensors", "model-ema.safetensors"):
        after = load_file(f"run/{file}")
        assert all(
            torch.equal(after[f"buffers.conv.{name}"], first.buffers[f"conv.{name}"]) for name in ("weight", "bias")
        )
        assert not any(torch.equal(after[f"params.{name}"], t) for name, t in first.params.items())
    code, said, _ = fssl("predict", "run")
    assert (code, f"{records('run')[-1]['test']['train_norm']['accuracy']:.2f} %" in said) == (0, True), said


def test_predictions_run_the_file_only_if_it_is_still_the_same(fssl: Fssl) -> None:
    assert train(fssl, "run", "net.py:groups")[0] == 0
    for path, message in (("net.py", "net.py has changed: model.digest is"), ("", "there is no file")):
        if path:
            Path(path).write_text("raise RuntimeError('run all the same')")
        else:
            Path("net.py").unlink()
        loaded.cache_clear()
        code, _, said = fssl("predict", "run")
        assert (code, said.count("\n"), message in said) == (2, 1, True), said
    for words in (["show", "run"], ["compare", "run"]):
        assert fssl(*words)[0] == 0


def test_the_batch_counter_is_dropped() -> None:
    Path("bn.py").write_text(FILE.replace("nn.GroupNorm(2, 8)", "nn.BatchNorm2d(8)"))
    assert set(build_net("bn.py:groups", 1, 10, 1, seed=7).first.buffers) == {"norm.running_mean", "norm.running_var"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("net.py", "network 'net.py': names no function of the file; write net.py:FUNCTION"),
        ("resnet9", "did you mean 'resnet8'?"),
        ("absent.py:net", "there is no file"),
        ("net.py:absent", "network 'net.py:absent': there is no function 'absent' in net.py"),
        ("net.py:two", "network 'net.py:two' cannot be built: TypeError: two() takes 2 positional arguments"),
        ("net.py:number", "network 'net.py:number' is 'int', expected a torch.nn.Module"),
        ("net.py:headless", "its last layer must be self.head = fssl.models.Head(features, classes)"),
        ("net.py:headlong", "network 'net.py:headlong': its head is frozen; set requires_grad"),
        ("net.py:lazy", "'norm.weight' has no shape yet; give the layer its number of inputs"),
        ("net.py:counter", "buffer 'seen' is torch.int64, which clients cannot average"),
        ("net.py:dropout", "draws random numbers: the same images give other logits; use layers such as nn.Dropout"),
        ("net.py:narrow", "for 4 images logits are [4, 9], expected [4, 10]"),
        ("net.py:logits_only", "cannot be called with images [4, 1, 8, 8]"),
        ("net.py:greedy", "cannot be called with images [4, 1, 8, 8]: RuntimeError"),
        (
            "net.py:branch",
            "'net.py:branch': a value or a branch depends on data (.item(), float(t), if t.any());"
            " see `fssl docs own-network` (net.py, line ",
        ),
        ("net.py:picks", "'net.py:picks': a shape depends on data (t[mask], nonzero, unique); see"),
    ],
)
def test_what_does_not_fit_is_one_line(name: str, message: str, fssl: Fssl) -> None:
    code, _, said = train(fssl, "run", name)
    assert (code, said.count("\n"), message in said) == (2, 1, True), said
    assert not Path("run").exists()


def test_two_files_of_one_name_are_rejected(fssl: Fssl) -> None:
    Path("other").mkdir()
    Path("other/net.py").write_text(FILE)
    code, _, said = train(fssl, "run", "net.py:groups", "--set", "method.name=other/net.py:mine")
    assert (code, "rename one" in said) == (2, True)


TRANSFORMER = '''
import torch
from safetensors.torch import load_file
from torch import nn
from fssl.models import Head

BUILT = []

class Tokens(nn.Module):
    """Four rows of an 8x8 image are tokens; nn.TransformerEncoder copies its layer."""

    def __init__(self, channels, classes):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.embed, self.encoder = nn.Linear(8 * channels, 16), nn.TransformerEncoder(layer, 2)
        self.head = Head(16, classes)

    def forward(self, x):
        tokens = self.encoder(self.embed(x.transpose(1, 2).flatten(2)))
        return self.head(tokens.transpose(1, 2).unsqueeze(-1))

def tokens(channels, classes, width):
    BUILT.append([type(torch.empty(0)).__name__, str(torch.empty(0).device)])
    return Tokens(channels, classes)

def pretrained(channels, classes, width):
    net = tokens(channels, classes, width)
    net.load_state_dict(load_file("weights.safetensors"))
    return net
'''


def test_a_network_that_copies_layers_trains_and_is_built_once_on_real_tensors(fssl: Fssl) -> None:
    Path("tokens.py").write_text(TRANSFORMER)
    assert fssl("run", "smoke", *SMALL, "--dry-run", "--set", "model.name=tokens.py:tokens").code == 0
    said = fssl("run", "smoke", *SMALL, "--set", "model.name=tokens.py:tokens", "--out", "run")
    assert (said.code, said.err) == (0, "")
    assert len(records("run")) == 2
    built = loaded(Path("tokens.py").resolve()).BUILT
    assert built == [["Tensor", "cpu"]] * 2  # once for each command, in no fake or meta mode


def test_weights_that_a_network_loads_are_loaded_once_and_are_the_first_broadcast(fssl: Fssl) -> None:
    Path("tokens.py").write_text(TRANSFORMER)
    config = override(read_toml("smoke"), ["model.name=tokens.py:tokens", "compute.device=cpu"])
    other = prepare(parse({**config, "seed": 99})).net
    save_file({**other.first.params, **other.first.buffers}, "weights.safetensors")
    built = loaded(Path("tokens.py").resolve()).BUILT
    built.clear()
    experiment = prepare(parse(override(config, ["model.name=tokens.py:pretrained"])))
    engine = LocalEngine(Federation(experiment))
    first = engine.snapshot.server.weights
    assert first.params.keys() == other.first.params.keys()
    assert all(torch.equal(t, other.first.params[name]) for name, t in first.params.items())
    engine.round(1)
    assert len(built) == 1
    assert all(torch.equal(t, other.first.params[name]) for name, t in experiment.net.first.params.items())
