"""Residual networks: the paper's ResNet-8, CIFAR style with 6n + 2 layers and n = 1, and ResNet-18; and a small CNN.

Widths are in quarters: 4 is the network as published, and 1 has a quarter of its channels.
"""

import re
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from .norm import Maps, NormName, conv_norm_relu, make_norm

Stem = Literal["cifar", "imagenet"]


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


def initialize(module: nn.Module) -> None:
    """Initialize convolutions with N(0, 2 / (k^2 c_out / groups)); all other layers keep PyTorch's default."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            fan_out = layer.kernel_size[0] * layer.kernel_size[1] * layer.out_channels // layer.groups
            nn.init.normal_(layer.weight, 0.0, (2.0 / fan_out) ** 0.5)


class Head(nn.Module):
    """The last layer of every network: mean over positions, then a linear layer.

    It computes in fp32 even where the rest computes in bf16, since confidences are compared with 0.95.

    Args:
        features: Channels of the feature maps.
        classes: Number of classes; the linear layer has a row for each.
        dropout: Share of the features that the linear layer does not see in a step of training.

    Returns:
        Features [B, features] and logits [B, classes], when called with maps [B, features, H, W] or with
        [B, features] that already are means.

    Examples:
        >>> feature, logits = Head(16, 10)(torch.zeros(2, 16, 4, 4))
        >>> feature.shape, logits.shape
        (torch.Size([2, 16]), torch.Size([2, 10]))
    """

    def __init__(self, features: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.linear = nn.Linear(features, classes)
        self.dropout = nn.Dropout(dropout) if dropout else None

    def forward(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(maps.device.type, enabled=False):
            feature = maps.float() if maps.ndim == 2 else maps.float().mean((2, 3))
            return feature, self.linear(self.dropout(feature) if self.dropout else feature)


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, post-activation."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: NormName = "batch") -> None:
        super().__init__()
        self.stride = stride
        self.conv1, self.bn1 = conv3x3(inputs, outputs, stride), make_norm(outputs, norm)
        self.conv2, self.bn2 = conv3x3(outputs, outputs), make_norm(outputs, norm)
        same = stride == 1 and inputs == outputs
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), make_norm(outputs, norm))
        )

    def forward(self, x: Maps, reader: int = 0) -> Maps:
        """Return the maps after the block; `reader` is the stride of the next block's shortcut."""
        out = conv_norm_relu(x.main, self.conv1, self.bn1)
        return conv_norm_relu(out.main, self.conv2, self.bn2, x.side, self.shortcut, reader)


def in_turn(maps: Maps, blocks: Sequence[Block]) -> Maps:
    """Return the maps after all blocks, passing each block the stride of the next one's shortcut."""
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        maps = block(maps, reader=following.stride if following else 0)
    return maps


class ResNet8(nn.Module):
    """Stem and three blocks of 16w, 32w and 64w channels; width 4 is the paper's 1.23 M parameters."""

    def __init__(self, channels: int, classes: int, width: int = 4, norm: NormName = "batch") -> None:
        super().__init__()
        c = 16 * width
        self.conv, self.bn = conv3x3(channels, c), make_norm(c, norm)
        self.layer1 = Block(c, c, 1, norm)
        self.layer2 = Block(c, 2 * c, 2, norm)
        self.layer3 = Block(2 * c, 4 * c, 2, norm)
        self.head = Head(4 * c, classes)
        initialize(self)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = conv_norm_relu(x, self.conv, self.bn, reader=self.layer1.stride)
        maps = in_turn(maps, [self.layer1, self.layer2, self.layer3])
        feature, logits = self.head(maps.main)
        return feature, logits


class ResNet18(nn.Module):
    """Stem and eight blocks, two each of 16w, 32w, 64w and 128w channels; He et al. 2016 at width 4.

    The stem for small images is a 3x3 convolution; that for ImageNet is 7x7 with stride 2, then a maximum over 3x3 with
    stride 2.
    """

    def __init__(
        self, channels: int, classes: int, width: int = 4, norm: NormName = "batch", stem: Stem = "cifar"
    ) -> None:
        super().__init__()
        c, is_large = 16 * width, stem == "imagenet"
        self.conv1 = nn.Conv2d(channels, c, 7, 2, padding=3, bias=False) if is_large else conv3x3(channels, c)
        self.bn1 = make_norm(c, norm)
        self.pool = nn.MaxPool2d(3, 2, padding=1) if is_large else None
        self.layer1 = nn.ModuleList([Block(c, c, 1, norm), Block(c, c, 1, norm)])
        self.layer2 = nn.ModuleList([Block(c, 2 * c, 2, norm), Block(2 * c, 2 * c, 1, norm)])
        self.layer3 = nn.ModuleList([Block(2 * c, 4 * c, 2, norm), Block(4 * c, 4 * c, 1, norm)])
        self.layer4 = nn.ModuleList([Block(4 * c, 8 * c, 2, norm), Block(8 * c, 8 * c, 1, norm)])
        self.head = Head(8 * c, classes)
        initialize(self)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = conv_norm_relu(x, self.conv1, self.bn1, reader=0 if self.pool else 1)
        if self.pool:
            maps = Maps(*[self.pool(maps.main)] * 2)
        maps = in_turn(maps, [*self.layer1, *self.layer2, *self.layer3, *self.layer4])
        feature, logits = self.head(maps.main)
        return feature, logits

    @staticmethod
    def our_name(name: str) -> str:
        """Return fssl's name for a tensor of torchvision's or timm's weights of this network."""
        return re.sub(r"^fc\.", "head.linear.", name.replace(".downsample.", ".shortcut."))


class SmallCnn(nn.Module):
    """Three convolutions for small images: the demo's network."""

    def __init__(self, channels: int, classes: int, width: int = 1, norm: NormName = "batch") -> None:
        super().__init__()
        c = 16 * width
        self.body = nn.Sequential(
            *(conv3x3(channels, c), make_norm(c, norm), nn.ReLU()),
            *(conv3x3(c, 2 * c, 2), make_norm(2 * c, norm), nn.ReLU()),
            *(conv3x3(2 * c, 2 * c), make_norm(2 * c, norm), nn.ReLU()),
        )
        self.head = Head(2 * c, classes)
        initialize(self)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        feature, logits = self.head(self.body(x))
        return feature, logits
