"""Networks with explicit weights."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fssl.models import Head, Net, build_net
from fssl.types import Weights


@pytest.mark.parametrize(("classes", "count"), [(10, 1_227_594), (100, 1_250_724)])
def test_resnet8_has_the_papers_number_of_parameters(classes: int, count: int) -> None:
    weights = build_net("resnet8", 3, classes, 4, seed=7).first
    assert sum(p.numel() for p in weights.params.values()) == count
    assert sum(b.numel() for b in weights.buffers.values()) == 2_688


def test_stage_sizes() -> None:
    params = build_net("resnet8", 3, 10, 4, seed=7).first.params
    sizes = {"layer1.": 73_984, "layer2.": 230_144, "layer3.": 919_040, "head.": 2_570}
    for prefix, size in sizes.items():
        assert sum(p.numel() for name, p in params.items() if name.startswith(prefix)) == size


def test_initialization() -> None:
    params = build_net("resnet8", 3, 10, 4, seed=7).first.params
    conv = params["layer3.conv2.weight"]  # 3x3, 256 outputs
    assert conv.std().item() == pytest.approx((2 / (9 * 256)) ** 0.5, rel=0.01)
    assert params["head.linear.weight"].abs().max().item() <= 1 / 16
    assert torch.equal(params["bn.weight"], torch.ones(64))


def test_init_depends_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    a = build_net("cnn", 1, 10, 1, seed=7).first.params
    torch.manual_seed(2)
    before = torch.get_rng_state()
    b, c = (build_net("cnn", 1, 10, 1, seed=seed).first.params for seed in (7, 8))
    assert torch.equal(torch.get_rng_state(), before)  # global random numbers are not touched
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert not torch.equal(a["body.0.weight"], c["body.0.weight"])


def test_fit_is_one_joint_batch_and_leaves_its_arguments_alone() -> None:
    net = build_net("cnn", 3, 5, 1)
    weights = net.first
    kept = {k: b.clone() for k, b in weights.buffers.items()}
    x, u = torch.randn(4, 3, 8, 8), torch.randn(6, 3, 8, 8)
    buffers, (out_x, out_u) = net.fit(weights, x, u)
    _, (joint,) = net.fit(weights, torch.cat([x, u]))
    torch.testing.assert_close(torch.cat([out_x.logits, out_u.logits]), joint.logits)
    assert all(torch.equal(weights.buffers[k], kept[k]) for k in kept)
    # running mean after one step: 0.9 * old + 0.1 * the joint batch's mean
    first = torch.nn.functional.conv2d(torch.cat([x, u]), weights.params["body.0.weight"], padding=1)
    torch.testing.assert_close(buffers["body.1.running_mean"], 0.1 * first.mean((0, 2, 3)))


def test_infer_uses_running_statistics() -> None:
    net = build_net("cnn", 3, 5, 1)
    weights = net.first
    x = torch.randn(6, 3, 8, 8)
    alone, together = net.infer(weights, x[:1]).logits, net.infer(weights, x).logits[:1]
    torch.testing.assert_close(alone, together)
    moved = Weights(weights.params, {k: b + 0.5 for k, b in weights.buffers.items()})
    assert not torch.allclose(net.infer(moved, x).logits, net.infer(weights, x).logits)


def test_features_are_returned_with_logits() -> None:
    net = build_net("resnet8", 3, 10, 1)
    weights = net.first
    out = net.infer(weights, torch.randn(2, 3, 16, 16))
    linear = out.feature @ weights.params["head.linear.weight"].T + weights.params["head.linear.bias"]
    torch.testing.assert_close(out.logits, linear)


def test_bf16_keeps_the_head_in_fp32() -> None:
    net = build_net("resnet8", 3, 10, 1, bf16=True)
    weights = net.first
    x = torch.randn(4, 3, 16, 16)
    out, exact = net.infer(weights, x), build_net("resnet8", 3, 10, 1).infer(weights, x)
    assert out.logits.dtype == torch.float32
    torch.testing.assert_close(out.logits, exact.logits, atol=0.03, rtol=0.03)
    assert not torch.equal(out.logits, exact.logits)


class Sharing(nn.Module):
    """Two layers with one weight, one layer in two places, and a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4, bias=False), Head(4, 3)
        self.second.weight = self.first.weight
        self.again, self.scale = self.first, nn.Parameter(torch.ones(4))
        self.norm = nn.BatchNorm1d(4)
        self.norm.num_batches_tracked = None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = self.norm(self.again(self.second(self.first(x.flatten(1)))) * self.scale)
        feature, logits = self.head(out)
        return feature, logits


def test_lent_weights_are_those_of_a_functional_call() -> None:
    """Also where layers share them: the gradient of a shared one has both parts."""
    module = Sharing()
    net, x = Net(module, "sharing", 1, 3), torch.linspace(-1, 2, 32).view(8, 1, 2, 2)
    params = {name: (p + 0.1).requires_grad_() for name, p in net.first.params.items()}
    assert "second.weight" not in params
    assert "again.weight" not in params
    buffers, (out,) = net.fit(Weights(params, net.first.buffers), x)
    expected_buffers = {name: b.clone() for name, b in net.first.buffers.items()}
    feature, logits = functional_call(module.train(), {**params, **expected_buffers}, (x,))
    assert torch.equal(out.logits, logits)
    assert torch.equal(out.feature, feature)
    for name, b in expected_buffers.items():
        assert torch.equal(buffers[name], b)
        assert not torch.equal(b, net.first.buffers[name])
    grads = [torch.autograd.grad(y.square().sum(), list(params.values())) for y in (out.logits, logits)]
    for name, ours, expected in zip(params, *grads, strict=True):
        assert torch.equal(ours, expected), name


def test_what_was_lent_is_given_back_also_when_a_call_fails() -> None:
    net, x = build_net("cnn", 3, 4, 1, seed=7), torch.zeros(2, 3, 8, 8)
    net.infer(net.first, x)
    with pytest.raises(RuntimeError, match="channels"):
        net.infer(net.first, x[:, :1])
    module = net._evaluation.module
    assert all(t.is_meta for t in (*module.parameters(), *module.buffers()))
    assert torch.equal(net.copy().infer(net.first, x).logits, net.infer(net.first, x).logits)
