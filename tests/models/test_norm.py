"""BatchNorm, sum and ReLU: one function however it is computed."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fssl.models import NormReLU, norm_relu
from fssl.models.fused import definition
from fssl.models.norm import conv_norm_relu, fold, track
from fssl.models.resnet import Block


def test_the_layer_is_batchnorm_and_relu_bit_for_bit() -> None:
    torch.manual_seed(0)
    x, residual = torch.randn(3, 4, 5, 5), torch.randn(3, 4, 5, 5)
    ours, theirs = NormReLU(4), nn.BatchNorm2d(4)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert torch.equal(ours(x), F.relu(theirs(x)))
    assert torch.equal(ours(x, residual), F.relu(theirs(x) + residual))
    assert torch.equal(ours.running_var, theirs.running_var)
    assert torch.equal(ours.eval()(x), F.relu(theirs.eval()(x)))
    assert torch.equal(norm_relu(x, theirs, residual), F.relu(theirs(x) + residual))


@pytest.mark.parametrize("stride", [1, 2])
def test_a_block_is_what_it_says(stride: int) -> None:
    torch.manual_seed(0)
    block, x = Block(4, 4 * stride, stride), torch.randn(3, 4, 6, 6)
    main, side = conv_norm_relu(x, block.conv1, block.bn1)
    assert main is side
    out = block.bn2(block.conv2(main))
    assert torch.equal(
        conv_norm_relu(main, block.conv2, block.bn2, x, block.shortcut).main, F.relu(out + block.shortcut(x))
    )


def test_running_statistics_move_as_pytorch_moves_them() -> None:
    x, ours, theirs = torch.randn(3, 4, 5, 5) * 3 + 1, nn.BatchNorm2d(4, momentum=0.3), nn.BatchNorm2d(4, momentum=0.3)
    for _ in range(2):
        theirs(x)
        var, mean = torch.var_mean(x, (0, 2, 3), correction=0)
        track(ours, mean, var, 75)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)


@pytest.mark.parametrize("reader", [0, 1, 2])
@pytest.mark.parametrize("num_others", [0, 1, 3])
def test_the_definition_is_the_layers(num_others: int, reader: int) -> None:
    x, other = torch.randn(2, 4, 5, 5), torch.randn(2, 4, 5, 5)
    a, b = nn.BatchNorm2d(4, eps=1e-3), nn.BatchNorm2d(4)
    nn.init.normal_(a.weight)
    nn.init.normal_(b.bias)
    tensors = [x, a.weight, a.bias, other, b.weight, b.bias][: 3 + num_others]
    want = F.relu(a(x) + [0, other, None, b(other)][num_others])
    got = definition(tensors, (1e-3, 1e-5), reader)
    assert torch.equal(got[0], want)
    assert len(got) == (2 if reader else 1)
    if reader:
        assert torch.equal(got[1], want[:, :, ::reader, ::reader])


def test_a_folded_norm_is_part_of_the_convolution() -> None:
    torch.manual_seed(0)
    conv, bn, x = nn.Conv2d(4, 5, 3, bias=False), nn.BatchNorm2d(5).eval(), torch.randn(2, 4, 7, 7)
    made: list[Tensor | None] = [bn.weight, bn.bias, bn.running_mean]
    for t in made:
        nn.init.normal_(t)
    bn.running_var += torch.rand(5)
    weight, bias = fold(conv, bn)
    torch.testing.assert_close(F.conv2d(x, weight.float(), bias), bn(conv(x)), atol=0.03, rtol=0.03)
    assert weight.is_contiguous(memory_format=torch.channels_last)
