"""Wide residual networks (Zagoruyko and Komodakis 2016): 28 layers, norm and ReLU before each convolution."""

import torch.nn.functional as F
from torch import Tensor, nn

from .norm import NormName, conv_norm_relu, make_norm, norm_relu
from .resnet import Head, conv3x3, initialize

UNITS = 4  # of a stage: 28 = 6 * 4 + 4 layers


def at_its_stride(maps: Tensor, conv: nn.Conv2d) -> Tensor:
    """Return a 1x1 convolution of the positions that its stride reads."""
    # Torch 2.13 may crash on a CPU if the convolution has the stride.
    down, right = conv.stride
    return F.conv2d(maps[:, :, ::down, ::right], conv.weight)


class Unit(nn.Module):
    """Two 3x3 convolutions, each after a norm and ReLU, and a shortcut around both.

    As released: where channels or size change, the shortcut reads the first ReLU's output, else the unit's input.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, norm: NormName) -> None:
        super().__init__()
        self.bn1, self.conv1 = make_norm(inputs, norm), conv3x3(inputs, outputs, stride)
        self.bn2, self.conv2 = make_norm(outputs, norm), conv3x3(outputs, outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = norm_relu(x, self.bn1)
        side = x if self.shortcut is None else at_its_stride(active, self.shortcut)
        maps: Tensor = self.conv2(conv_norm_relu(active, self.conv1, self.bn2).main)
        return maps + side


class WideResNet(nn.Module):
    """Three stages of four units with 16k, 32k and 64k channels, k = `factor`; without dropout."""

    def __init__(self, factor: int, channels: int, classes: int, width: int = 4, norm: NormName = "batch") -> None:
        super().__init__()
        c = 4 * width
        sizes = [c, factor * c, 2 * factor * c, 4 * factor * c]
        self.conv = conv3x3(channels, c)
        self.layer1, self.layer2, self.layer3 = (
            nn.Sequential(
                Unit(inputs, outputs, stride, norm), *(Unit(outputs, outputs, 1, norm) for _ in range(UNITS - 1))
            )
            for inputs, outputs, stride in zip(sizes, sizes[1:], (1, 2, 2), strict=False)
        )
        self.bn = make_norm(sizes[-1], norm)
        self.head = Head(sizes[-1], classes)
        initialize(self)
        nn.init.zeros_(self.head.linear.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = self.layer3(self.layer2(self.layer1(self.conv(x))))
        feature, logits = self.head(norm_relu(maps, self.bn))
        return feature, logits


def wrn_28_2(channels: int, classes: int, width: int = 4, norm: NormName = "batch") -> WideResNet:
    return WideResNet(2, channels, classes, width, norm)


def wrn_28_8(channels: int, classes: int, width: int = 4, norm: NormName = "batch") -> WideResNet:
    return WideResNet(8, channels, classes, width, norm)
