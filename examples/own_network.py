"""Train a network of your own: a wide residual network of any depth.

fssl run smoke --set model.name=examples/own_network.py:wrn10 --set model.width=1 --out runs/wide
fssl predict runs/wide
"""

from torch import Tensor, nn

from fssl.models import Head, NormReLU


class Unit(nn.Module):
    """BatchNorm and ReLU before each of two convolutions, and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = NormReLU(inputs), nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn2, self.conv2 = NormReLU(outputs), nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(self.bn2(self.conv1(self.bn1(x)))) + self.shortcut(x)


class WideResNet(nn.Module):
    """Three groups of units; methods find features, logits and classifier in `self.head`."""

    def __init__(self, channels: int, classes: int, width: int, depth: int) -> None:
        super().__init__()
        sizes, units = [16, 16 * width, 32 * width, 64 * width], (depth - 4) // 6
        self.stem = nn.Conv2d(channels, 16, 3, 1, 1, bias=False)
        self.body = nn.Sequential(
            *(
                Unit(sizes[g] if i == 0 else sizes[g + 1], sizes[g + 1], 2 if i == 0 and g > 0 else 1)
                for g in range(3)
                for i in range(units)
            )
        )
        self.bn = NormReLU(sizes[3])
        self.head = Head(sizes[3], classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(self.bn(self.body(self.stem(x))))


def wrn10(channels: int, classes: int, width: int) -> WideResNet:
    """Return the network for images of `channels`, with `model.width` as `width`."""
    return WideResNet(channels, classes, width, depth=10)


def wrn28(channels: int, classes: int, width: int) -> WideResNet:
    """Return the network with the 1.5 M parameters of `wrn-28-2` at width 2."""
    return WideResNet(channels, classes, width, depth=28)
