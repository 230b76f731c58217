"""What clients train: which tensors a choice leaves in the weights, what LoRA computes, and that the rest stays."""

from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from fssl.core.client import at
from fssl.core.experiment import Experiment, prepare
from fssl.core.federation import Federation
from fssl.engines.compiler import as_traced
from fssl.engines.local import LocalEngine
from fssl.engines.snapshot import flat, parts, restore
from fssl.errors import UserError
from fssl.methods.base import gradient, mean_weights
from fssl.methods.names import METHODS, build_method
from fssl.models import Head, Net, Trainable, build_net, narrowed
from fssl.models.from_timm import TimmNet
from fssl.records.checkpoint import Saved
from fssl.runner.costs import traffic
from fssl.types import Counts, Payload, Trace, Upload, Weights
from helpers.small import LABELING, tiny_config

PAGE = Path(__file__).parents[2] / "docs/trainable.md"
CHOICES = ("head", "norms", "last-1", "adapters")
RESNET = "model.name=resnet8"  # its shortcuts are 1x1 convolutions


class Mixer(nn.Module):
    """Patches, two blocks of linear layers with LayerNorm, and a norm after them, as transformers have."""

    def __init__(self, channels: int, classes: int, width: int = 1) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, 8, 4, 4)
        self.blocks = nn.ModuleList([nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)) for _ in range(2)])
        self.norm = nn.LayerNorm(8)
        self.head = Head(8, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.patches(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            rows = rows + block(rows)
        feature, logits = self.head(self.norm(rows).mean(1))
        return feature, logits


def net(name: str = "resnet8", seed: int = 3) -> Net:
    whole = build_net(name, 3, 10, 1, seed=seed)
    moved = {name: t + 0.1 * torch.rand_like(t) for name, t in whole.first.buffers.items()}  # a trained body's
    whole.first = whole.first._replace(buffers=moved)
    return whole


def part_of(whole: Net, what: str, **choice: Any) -> Net:
    return narrowed(whole, Trainable(what, **choice), whole.first)


def images(number: int = 4, channels: int = 3, size: int = 32) -> Tensor:
    return torch.rand(number, channels, size, size, generator=torch.Generator().manual_seed(0))


def layers_of(part: Net) -> set[str]:
    return {name.rpartition(".")[0] for tree in part.first for name in tree}


# What a choice leaves in the weights.


def test_head_trains_the_last_layer_only() -> None:
    part = part_of(net(), "head")
    assert list(part.first.params) == ["head.linear.weight", "head.linear.bias"]
    assert part.first.buffers == {} == dict.fromkeys(part.running, 0)
    assert sum(t.numel() for t in part.first.params.values()) == 64 * 10 + 10


def test_norms_train_with_their_statistics() -> None:
    whole = net()
    part = part_of(whole, "norms")
    norms = {"bn", *(f"layer{i}.bn{j}" for i in (1, 2, 3) for j in (1, 2)), "layer2.shortcut.1", "layer3.shortcut.1"}
    assert layers_of(part) == {"head.linear", *norms}
    assert part.running == whole.running
    assert sum(t.numel() for t in part.first.params.values()) == 650 + 2 * 16 * (1 + 2 + 3 * 2 + 3 * 4)


@pytest.mark.parametrize(
    ("name", "number", "parts"),
    [
        ("resnet8", 1, {"layer3"}),
        ("resnet8", 3, {"layer1", "layer2", "layer3"}),
        ("resnet18", 3, {"layer3", "layer4"}),
        ("wrn-28-2", 2, {"layer3", "bn"}),  # the norm after the last block trains, too
        ("cnn", 1, {"body"}),
        ("simple-cnn", 2, {"body"}),
    ],
)
def test_last_blocks_train_whole(name: str, number: int, parts: set[str]) -> None:
    whole = net(name)
    part = part_of(whole, f"last-{number}")
    assert {path.partition(".")[0] for path in layers_of(part)} == {"head", *parts}
    assert all(whole.first.params[name] is t for name, t in part.first.params.items())


def test_a_block_is_a_part_with_layers_inside() -> None:
    whole = Net(Mixer(3, 10), "mixer", 3, 10)
    part = part_of(whole, "last-1")
    assert layers_of(part) == {"blocks.1.0", "blocks.1.1", "norm", "head.linear"}


def test_the_body_of_a_timm_network_is_opened() -> None:
    """Its parts count as if they were the network's own."""

    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.default_cfg, self.num_features = {"classifier": "fc"}, 8
            self.conv_stem, self.bn1 = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
            self.blocks = nn.Sequential(*(nn.Sequential(Mixer(3, 10).blocks[0]) for _ in range(2)))

        def forward(self, x: Tensor) -> Tensor:
            return self.blocks(self.bn1(self.conv_stem(x)).mean((2, 3)))

    whole = Net(TimmNet(Body(), 10, 0.0), "timm:any", 3, 10)
    assert layers_of(part_of(whole, "last-1")) == {"body.blocks.1.0.0", "body.blocks.1.0.1", "head.linear"}
    assert part_of(whole, "adapters").adapted == ("body.blocks.0.0.1.weight", "body.blocks.1.0.1.weight")
    norms = {"body.bn1", "body.blocks.0.0.0", "body.blocks.1.0.0"}
    assert layers_of(part_of(whole, "norms")) == {*norms, "head.linear"}


def test_in_a_plain_network_a_block_is_a_layer_with_a_matrix() -> None:
    assert layers_of(part_of(net("cnn"), "last-2")) == {"body.3", "body.4", "body.6", "body.7", "head.linear"}
    assert layers_of(part_of(net("simple-cnn"), "last-2")) == {"body.11", "body.13", "head.linear"}


@pytest.mark.parametrize(("what", "number"), [("head", 2570), ("norms", 5258), ("last-1", 921_610), ("adapters", 4874)])
def test_the_page_has_the_numbers_of_parameters(what: str, number: int) -> None:
    whole = build_net("resnet8", 3, 10, 4)
    part = part_of(whole, what)
    assert sum(t.numel() for t in part.first.params.values()) == number
    assert f"{number:,} |" in PAGE.read_text()


def test_each_tensor_is_trained_or_frozen() -> None:
    whole = net()
    for what in CHOICES:
        part = part_of(whole, what)
        named = [*part.first.params, *part.first.buffers, *part.frozen]
        added = [name for name in named if ".adapter_" in name]
        assert len(named) == len(set(named))
        assert sorted(set(named) - set(added)) == sorted([*whole.first.params, *whole.first.buffers])


def test_a_parameter_that_the_network_freezes_stays_frozen() -> None:
    module = Mixer(3, 10)
    module.blocks[1][1].bias.requires_grad_(False)
    whole = Net(module, "mixer", 3, 10)
    part = part_of(whole, "last-1")
    assert "blocks.1.1.bias" in part.frozen
    assert "blocks.1.1.weight" in part.first.params


# LoRA.


def test_adapters_are_of_linear_layers_and_1x1_convolutions() -> None:
    part = part_of(net(), "adapters", rank=2)
    assert part.adapted == ("layer2.shortcut.0.weight", "layer3.shortcut.0.weight")
    shapes = {name: list(t.shape) for name, t in part.first.params.items() if "adapter" in name}
    assert shapes == {
        "layer2.shortcut.0.weight.adapter_a": [2, 16],
        "layer2.shortcut.0.weight.adapter_b": [32, 2],
        "layer3.shortcut.0.weight.adapter_a": [2, 32],
        "layer3.shortcut.0.weight.adapter_b": [64, 2],
    }


@pytest.mark.parametrize(("rank", "number"), [(4, 147_456), (16, 589_824)])
def test_vit_b_has_the_published_number_of_parameters(rank: int, number: int) -> None:
    """Query, key and value of 12 blocks with 768 numbers: 12 r (768 + 3 * 768)."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(768, 3 * 768, device="meta") for _ in range(12)])
            self.head = Head(768, 10)

    with torch.device("meta"):
        part = part_of(Net(Attention(), "vit", 3, 10), "adapters", rank=rank)
    sizes = {name: t.numel() for name, t in part.first.params.items()}
    assert sum(size for name, size in sizes.items() if "adapter" in name) == number
    assert sum(size for name, size in sizes.items() if "adapter" not in name) == 768 * 10 + 10


@pytest.mark.parametrize("what", CHOICES)
def test_the_first_logits_are_those_of_the_given_weights(what: str) -> None:
    """B = 0, so W + BA = W, bit for bit."""
    whole, x = net(), images()
    part = part_of(whole, what)
    assert torch.equal(part.infer(part.first, x).logits, whole.infer(whole.first, x).logits)


@pytest.mark.parametrize("name", ["resnet8", "mixer"])
def test_an_adapter_adds_ba(name: str) -> None:
    whole = net() if name == "resnet8" else Net(Mixer(3, 10), "mixer", 3, 10)
    part, x = part_of(whole, "adapters", rank=2), images()
    moved = part.first._replace(params={key: t + 0.1 for key, t in part.first.params.items()})
    by_hand = {key: t + 0.1 * key.startswith("head.") for key, t in whole.first.params.items()}
    for key in part.adapted:
        w, b, a = whole.first.params[key], moved.params[f"{key}.adapter_b"], moved.params[f"{key}.adapter_a"]
        by_hand[key] = w + (b @ a).view(w.shape)
    logits = part.infer(moved, x).logits
    assert torch.equal(logits, whole.infer(whole.first._replace(params=by_hand), x).logits)
    assert torch.equal(logits, whole.infer(part.whole(moved), x).logits)  # what a file contains
    assert [[*tree] for tree in part.whole(moved)] == [[*tree] for tree in whole.first]
    assert not torch.equal(logits, whole.infer(whole.first, x).logits)


def test_every_place_draws_the_same_a() -> None:
    first, again, other = (part_of(net(), "adapters", seed=seed).first.params for seed in (7, 7, 8))
    key = "layer2.shortcut.0.weight.adapter_a"
    assert torch.equal(first[key], again[key])
    assert not torch.equal(first[key], other[key])
    assert float(first[key].abs().max()) <= 16**-0.5


def test_freeze_a_keeps_a_out_of_the_weights() -> None:
    part = part_of(net(), "adapters", fixes_a=True)
    assert [name for name in part.first.params if name.endswith("_a")] == []
    assert sum(name.endswith(".adapter_a") for name in part.frozen) == len(part.adapted) == 2


def uploads(part: Net, *factors: tuple[float, float]) -> list[Upload]:
    """Uploads of equal weight whose factors have these values everywhere."""

    def filled(b: float, a: float) -> dict[str, Tensor]:
        value = {".adapter_b": b, ".adapter_a": a}
        return {
            key: torch.full_like(t, value.get(key[-10:], 0.0)) if "adapter" in key else t
            for key, t in part.first.params.items()
        }

    return [Upload(k, Weights(filled(*pair), part.first.buffers), 1, {}) for k, pair in enumerate(factors)]


def change(part: Net, weights: Weights) -> Tensor:
    """What an adapter adds to its matrix."""
    key = part.adapted[0]
    return (part.whole(weights).params[key] - part.frozen[key]).flatten()


def test_the_mean_of_factors_is_not_the_mean_of_products() -> None:
    """B = A = 1 and B = A = -1: both products are 1 (rank 1), and the product of the means is 0."""
    part = part_of(net(), "adapters", rank=1)
    sent = uploads(part, (1, 1), (-1, -1))
    for each in sent:
        torch.testing.assert_close(change(part, each.weights), torch.ones(32 * 16), atol=1e-6, rtol=0)
    assert not change(part, mean_weights(sent)).any()


def test_with_a_fixed_the_mean_is_exact() -> None:
    part = part_of(net(), "adapters", rank=1, fixes_a=True)
    sent = uploads(part, (1, 1), (-1, -1), (3, 3))
    of_each = torch.stack([change(part, each.weights) for each in sent])
    torch.testing.assert_close(change(part, mean_weights(sent)), of_each.mean(0))
    assert of_each.mean(0).abs().max() > 0.1


def test_the_mean_of_one_client_is_its_adapter() -> None:
    for fixes_a in (False, True):
        part = part_of(net(), "adapters", fixes_a=fixes_a)
        (one,) = uploads(part, (0.5, 2))
        assert torch.equal(change(part, mean_weights([one])), change(part, one.weights))


# Steps.


def test_frozen_norms_neither_move_nor_read_the_batch() -> None:
    whole, x = net(), images()
    part = part_of(whole, "head")
    buffers, (out,) = part.fit(part.first, x)
    assert buffers == {}
    assert torch.equal(out.logits, whole.infer(whole.first, x).logits)
    buffers, _ = part_of(whole, "norms").fit(part_of(whole, "norms").first, x)
    assert all(not torch.equal(t, whole.first.buffers[name]) for name, t in buffers.items())


def test_a_thread_s_copy_is_frozen_alike() -> None:
    part, x = part_of(net(), "head"), images()
    (_, (ours,)), (_, (copied,)) = part.fit(part.first, x), part.copy().fit(part.first, x)
    assert torch.equal(ours.logits, copied.logits)


def kept_for_backward(part: Net) -> int:
    """Bytes that the forward pass of a training step keeps."""
    sizes: dict[int, int] = {}

    def count(t: Tensor) -> Tensor:
        sizes[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    def loss(weights: Weights, state: Any) -> Any:
        buffers, (out,) = part.fit(weights, images())
        return out.logits.square().sum(), (buffers, state, Trace({}, {}))

    with saved_tensors_hooks(count, lambda t: t):
        grads, _ = gradient(loss, part.first, {})
    assert grads.keys() == part.first.params.keys()
    assert all(t.any() for t in grads.values() if t.dim() > 1) or part.adapted
    return sum(sizes.values())


def test_the_frozen_body_keeps_nothing_for_a_gradient() -> None:
    whole = net()
    head, last, every = (kept_for_backward(part) for part in (part_of(whole, "head"), part_of(whole, "last-1"), whole))
    assert head < 20_000 < last < every  # features [4, 64], logits and the head


def test_gradients_do_not_reach_frozen_tensors() -> None:
    part = part_of(net(), "last-1")
    leaves = {name: t.clone().requires_grad_() for name, t in part.first.params.items()}
    part.frozen = {name: t.clone().requires_grad_("running" not in name) for name, t in part.frozen.items()}
    _, (out,) = part.fit(Weights(leaves, part.first.buffers), images())
    asked = torch.autograd.grad(out.logits.sum(), [*leaves.values()], allow_unused=True)
    assert all(t is not None for t in asked)
    assert all(t.grad is None for t in part.frozen.values())


# Runs.

METHOD = "method.name=sage"
SHORT = ("train.steps_per_round=2", "data.labels_per_class=2", "train.clients_per_round=2", RESNET)


def experiment(*settings: str) -> Experiment:
    return prepare(tiny_config(*SHORT, *settings))


def trained(of: Experiment, rounds: int = 2) -> LocalEngine:
    engine = LocalEngine(Federation(of))
    list(engine.rounds(rounds))
    return engine


@pytest.mark.parametrize("what", CHOICES)
@pytest.mark.slow
def test_a_run_trains_and_sends_the_chosen_tensors_only(what: str) -> None:
    of = experiment(METHOD, f"model.trainable={what}")
    before = {name: t.clone() for name, t in of.net.frozen.items()}
    engine = trained(of)
    weights = engine.snapshot.server.weights
    assert [[*tree] for tree in weights] == [[*tree] for tree in of.net.first]
    still = [name for name, t in weights.params.items() if torch.equal(t, of.net.first.params[name])]
    assert still == []
    assert all(torch.equal(t, before[name]) for name, t in engine.federation.net.frozen.items())
    whole = of.net.whole(weights)
    unmoved = {name: t for tree in of.whole_net.first for name, t in tree.items() if name in before}
    found = {**whole.params, **whole.buffers}
    moved = {name for name, t in unmoved.items() if not torch.equal(found[name], t)}
    assert moved == set(of.net.adapted)
    stored = {
        name.removeprefix(f"server.weights.{kind}.") for name in flat(engine.snapshot) for kind in Weights._fields
    }
    assert not stored & {*before}


@pytest.mark.parametrize("what", ["norms", "last-1"])
@pytest.mark.slow
def test_sending_everything_gives_the_same_bits(what: str) -> None:
    """The same steps where frozen tensors are buffers that travel and are averaged, as a network may freeze its own."""
    part = experiment(METHOD, f"model.trainable={what}")
    everything = experiment(METHOD, f"model.trainable={what}")
    net = everything.net
    still, moving = dict(net.frozen), net.first
    net.frozen, net.first = {"": torch.zeros(0)}, moving._replace(buffers={**moving.buffers, **still})
    ours, theirs = (trained(of).snapshot.server.weights for of in (part, everything))
    assert theirs.buffers.keys() == {*moving.buffers, *still}
    assert all(torch.equal(t, theirs.params[name]) for name, t in ours.params.items())
    assert all(torch.equal(t, theirs.buffers[name]) for name, t in ours.buffers.items())
    assert all(torch.equal(t, theirs.buffers[name]) for name, t in still.items())


def test_traffic_is_what_trains() -> None:
    """Head of ResNet-8 at width 1: 64 * 10 + 10 numbers of 4 bytes, down and up."""
    of = experiment("method.name=fedavg", "model.trainable=head")
    assert traffic(of, Counts(2, 10)) == (2600, 2600)
    whole = experiment("method.name=fedavg")
    every = sum(4 * prod(t.shape) for tree in whole.net.first for t in tree.values())
    assert traffic(whole, Counts(2, 10)) == (every, every)
    factors = 2 * 4 * (16 + 32 + 32 + 64)
    of = experiment("method.name=fedavg", "model.trainable=adapters", "model.adapter_rank=2")
    assert traffic(of, Counts(2, 10)) == (2600 + factors, 2600 + factors)
    of = experiment(
        "method.name=fedavg", "model.trainable=adapters", "model.adapter_rank=2", "model.adapter_mean=freeze-a"
    )
    assert traffic(of, Counts(2, 10)) == (2600 + 2 * 4 * (32 + 64),) * 2


@pytest.mark.slow
@pytest.mark.parametrize("what", ["head", "adapters"])
def test_a_compiled_step_has_the_same_bits(what: str) -> None:
    """As traced for the compiler: frozen tensors are constants of the graph, which become arguments."""
    federation = Federation(experiment(METHOD, f"model.trainable={what}"))
    steps, server = federation.steps, federation.first_server()
    learn, tally = steps.learn(), torch.zeros(2, steps.layout.size)
    with torch.no_grad():
        shown = steps.show()(at(federation.plan(1, 0).draw, 0))
        given = federation.method.payload(server, 0), federation.method.start(Payload(server.weights, {}), {}), tally
        code = as_traced(learn, *given, shown)
        (expected, sums), (found, own_sums) = learn(*given, shown), code(*given, shown)
    assert torch.equal(sums, own_sums)
    assert all(torch.equal(t, found.weights.params[name]) for name, t in expected.weights.params.items())
    assert any(not torch.equal(t, given[1].weights.params[name]) for name, t in found.weights.params.items())


DEFINED_BY_ALL = ("fedmatch", "twin-sight", "semianagg")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in METHODS if name not in DEFINED_BY_ALL])
def test_every_other_method_trains_adapters(name: str) -> None:
    more = [each for each in LABELING.get(name, ()) if not each.startswith("data.labels_per_class")]
    settings = [each for each in (*SHORT, *more) if not (more and each.startswith("data.labels_per_class"))]
    of = prepare(tiny_config(*settings, f"method.name={name}", "model.trainable=adapters"))
    weights = trained(of, 1).snapshot.server.weights
    assert not [key for key in weights.params if any(key.endswith(frozen) for frozen in of.net.frozen)]


@pytest.mark.parametrize("name", DEFINED_BY_ALL)
def test_methods_of_all_weights_are_refused(name: str) -> None:
    assert build_method(name, {}).needs.all_weights
    more = LABELING.get(name, ())
    with pytest.raises(UserError, match=r"model.trainable = 'head': method '.*' is defined by all weights"):
        prepare(tiny_config(f"method.name={name}", "model.trainable=head", *more))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["head", "adapters"])
def test_a_resumed_run_gives_the_same_bits(what: str) -> None:
    of = experiment("method.name=flexmatch", f"model.trainable={what}", "train.keep_momentum=true")
    engine = LocalEngine(Federation(of))
    next(engine.rounds(1))
    first = engine.snapshot
    list(engine.rounds(3))
    other = LocalEngine(Federation(of))
    other.snapshot = restore(other.snapshot, Saved(1, flat(first), parts(first)))
    list(other.rounds(3))
    ours, theirs = flat(engine.snapshot), flat(other.snapshot)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(t, theirs[name]) for name, t in ours.items())


# Refused before a run.


def refusal(settings: tuple[str, ...]) -> str:
    with pytest.raises(UserError) as error:
        prepare(tiny_config(*settings))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            ("model.trainable=adapters",),
            "network 'cnn' has no linear layer or 1x1 convolution before its head; use 'last-N'",
        ),
        (("model.trainable=last-4",), "network 'cnn' has 3 blocks; use 'last-3' or fewer, or 'all'"),
        (("model.trainable=last-0",), "expected 'last-N' with a number of blocks, such as 'last-2'"),
        (("model.trainable=heads",), "model.trainable 'heads' is unknown; did you mean 'head'?"),
        (("model.trainable=norms", "model.name=simple-cnn"), "has no norm with weights to train; use 'head'"),
        (
            (RESNET, "model.trainable=adapters", "model.adapter_rank=17"),
            "model.adapter_rank = 17: 'layer2.shortcut.0.weight' of network 'resnet8' is 32 x 16; expected at most 16",
        ),
        ((RESNET, "model.trainable=adapters", "model.adapter_rank=0"), "model.adapter_rank = 0: expected"),
        (("model.adapter_rank=2",), "model.adapter_rank = 2 has no effect with model.trainable = 'all'; remove it"),
        (("model.trainable=head", "server.static_norm=all"), "has no BatchNorm that trains"),
        (("model.trainable=head", "model.frozen_digest=0123456789abcdef"), "the frozen tensors differ here"),
        (("model.trainable=head", "model.start=w.pt"), "model.start = 'w.pt' does not fit network 'cnn'"),
    ],
)
def test_what_cannot_train_is_refused(
    settings: tuple[str, ...], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"body.0.weight": torch.zeros(3, 3)}, "w.pt")
    assert line in refusal(settings)


def test_a_network_with_a_frozen_head_is_refused(tmp_path: Path) -> None:
    (tmp_path / "still.py").write_text(
        "from torch import nn\nfrom fssl.models import Head\n\n\n"
        "class Still(nn.Module):\n"
        "    def __init__(self, channels, classes, width):\n"
        "        super().__init__()\n"
        "        self.body, self.head = nn.Conv2d(channels, 8, 3), Head(8, classes)\n"
        "        self.requires_grad_(False)\n\n"
        "    def forward(self, x):\n"
        "        return self.head(self.body(x))\n"
    )
    line = refusal((f"model.name={tmp_path}/still.py:Still", "model.trainable=head"))
    assert line.endswith("its head is frozen; set requires_grad")


def test_a_broadcast_momentum_counts_as_received() -> None:
    """A second number for each parameter, down only."""
    of = experiment("method.name=fedavg", "model.trainable=head", "server.broadcast_momentum=true")
    assert traffic(of, Counts(2, 10)) == (2 * 2600, 2600)
