"""The residual network of the experiments: CIFAR style, 6n + 2 layers with n = 1, and a width multiplier."""

import torch
from torch import Tensor, nn

from .norm import Maps, conv_norm_relu


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


def initialize(module: nn.Module) -> None:
    """Convolutions N(0, 2 / (k^2 c_out)); everything else keeps the framework's default."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            fan_out = layer.kernel_size[0] * layer.kernel_size[1] * layer.out_channels
            nn.init.normal_(layer.weight, 0.0, (2.0 / fan_out) ** 0.5)


class Head(nn.Module):
    """The last layer of every network: mean over positions, then a linear layer.

    It computes in fp32 even where the rest computes in bf16, since confidences are compared with 0.95.

    Args:
        features: Channels of the feature maps.
        classes: Number of classes; the linear layer has a row for each.

    Returns:
        When called with maps [B, features, H, W]: features [B, features] and logits [B, classes].

    Example:
        >>> feature, logits = Head(16, 10)(torch.zeros(2, 16, 4, 4))
        >>> feature.shape, logits.shape
        (torch.Size([2, 16]), torch.Size([2, 10]))
    """

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, classes)

    def forward(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(maps.device.type, enabled=False):
            feature = maps.float().mean((2, 3))
            return feature, self.linear(feature)


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, post-activation."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3x3(inputs, outputs, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = conv3x3(outputs, outputs), nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: Maps, reader: int = 0) -> Maps:
        """The maps after the block; `reader` is the stride of the next block's shortcut."""
        out = conv_norm_relu(x.main, self.conv1, self.bn1)
        return conv_norm_relu(out.main, self.conv2, self.bn2, x.side, self.shortcut, reader)


class ResNet8(nn.Module):
    """Stem and three blocks of 16w, 32w and 64w channels; width 4 is the paper's 1.23 M parameters."""

    def __init__(self, channels: int, classes: int, width: int = 4) -> None:
        super().__init__()
        c = 16 * width
        self.conv, self.bn = conv3x3(channels, c), nn.BatchNorm2d(c)
        self.layer1 = Block(c, c, 1)
        self.layer2 = Block(c, 2 * c, 2)
        self.layer3 = Block(2 * c, 4 * c, 2)
        self.head = Head(4 * c, classes)
        initialize(self)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = self.layer1(conv_norm_relu(x, self.conv, self.bn, reader=1), reader=2)
        maps = self.layer3(self.layer2(maps, reader=2))
        feature, logits = self.head(maps.main)
        return feature, logits


class SmallCnn(nn.Module):
    """Three convolutions for small images: the demo's network."""

    def __init__(self, channels: int, classes: int, width: int = 1) -> None:
        super().__init__()
        c = 16 * width
        self.body = nn.Sequential(
            *(conv3x3(channels, c), nn.BatchNorm2d(c), nn.ReLU()),
            *(conv3x3(c, 2 * c, 2), nn.BatchNorm2d(2 * c), nn.ReLU()),
            *(conv3x3(2 * c, 2 * c), nn.BatchNorm2d(2 * c), nn.ReLU()),
        )
        self.head = Head(2 * c, classes)
        initialize(self)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        feature, logits = self.head(self.body(x))
        return feature, logits
