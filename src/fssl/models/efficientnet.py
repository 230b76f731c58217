"""EfficientNet-Lite0 (Tan and Le 2019; Lite: Liu and Tan 2020): MBConv blocks with ReLU6, without squeeze-and-excite.

Its weights for ImageNet can be installed: `model.start = "imagenet"`.
"""

import re

import torch.nn.functional as F
from torch import Tensor, nn

from .dropout import DropPath
from .norm import NormName, make_norm
from .resnet import Head, initialize

# Of each stage: blocks, kernel size, stride of the first block, expansion and channels.
STAGES = ((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192))
LAST_STAGE = (1, 3, 1, 6, 320)
NUM_BLOCKS = sum(stage[0] for stage in (*STAGES, LAST_STAGE))
STEM, FEATURES = 32, 1280
EPSILON, MOMENTUM = 1e-3, 0.01  # of BatchNorm: TensorFlow's, as published
# Names of layers in the published weights.
OUTER_LAYERS = {
    "_conv_stem": "stem.conv",
    "_bn0": "stem.bn",
    "_conv_head": "last.conv",
    "_bn1": "last.bn",
    "_fc": "head.linear",
}
PARTS = ("expand", "depthwise", "project")  # of a block; its norms are numbered in this order there


class SameConv(nn.Conv2d):
    """A convolution with a stride that pads as TensorFlow does: an odd pixel goes below and to the right."""

    def forward(self, x: Tensor) -> Tensor:
        (k, _), (s, _) = self.kernel_size, self.stride
        missing = [max((-(-n // s) - 1) * s + k - n, 0) for n in (x.shape[3], x.shape[2])]
        sides = [part for n in missing for part in (n // 2, n - n // 2)]
        return F.conv2d(F.pad(x, sides), self.weight, None, self.stride, 0, 1, self.groups)


class ConvNorm(nn.Module):
    """A convolution, its norm and, unless it is linear, ReLU6."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: int,
        norm: NormName,
        stride: int = 1,
        groups: int = 1,
        linear: bool = False,
    ) -> None:
        super().__init__()
        kind, padding = (nn.Conv2d, size // 2) if stride == 1 else (SameConv, 0)
        self.conv = kind(inputs, outputs, size, stride, padding, groups=groups, bias=False)
        self.bn, self.is_linear = make_norm(outputs, norm), linear
        self.bn.eps = EPSILON
        if isinstance(self.bn, nn.BatchNorm2d):
            self.bn.momentum = MOMENTUM

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.bn(self.conv(x))
        return maps if self.is_linear else F.relu6(maps)


class MBConv(nn.Module):
    """Expand, convolve each channel, project; the input is added if it has the result's shape."""

    def __init__(
        self, inputs: int, outputs: int, size: int, stride: int, expansion: int, norm: NormName, drop: float = 0.0
    ) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expand = ConvNorm(inputs, inner, 1, norm) if expansion > 1 else nn.Identity()
        self.depthwise = ConvNorm(inner, inner, size, norm, stride, groups=inner)
        self.project = ConvNorm(inner, outputs, 1, norm, linear=True)
        self.adds = stride == 1 and inputs == outputs
        self.drop_path = DropPath(drop) if drop and self.adds else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.project(self.depthwise(self.expand(x)))
        return x + self.drop_path(out) if self.adds else out


class EfficientNetLite0(nn.Module):
    """Stem, 16 blocks and 1280 features at width 4, as published: 4.65 M parameters with 1000 classes.

    `drop_path` is the probability to drop the branch of a last block; that of the first block is 0, with equal steps
    between. The published network was trained with 0.2, and 0.2 of dropout before its last layer.
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        width: int = 4,
        norm: NormName = "batch",
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        inputs = scaled(STEM, width)
        self.stem = ConvNorm(channels, inputs, 3, norm, stride=2)
        blocks: list[nn.Module] = []
        for number, size, stride, expansion, published in (*STAGES, LAST_STAGE):
            outputs = scaled(published, width)
            for place in range(number):
                drop = drop_path * len(blocks) / NUM_BLOCKS
                blocks.append(MBConv(inputs, outputs, size, stride if place == 0 else 1, expansion, norm, drop))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.last = ConvNorm(inputs, scaled(FEATURES, width), 1, norm)
        self.head = Head(scaled(FEATURES, width), classes, dropout)
        initialize(self)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        feature, logits = self.head(self.last(self.blocks(self.stem(x))))
        return feature, logits

    @staticmethod
    def our_name(name: str) -> str:
        """Return fssl's name for a tensor of the published PyTorch weights."""
        if name.startswith("_blocks."):
            name = re.sub(r"_bn(\d)", lambda found: f"{PARTS[int(found[1])]}.bn", name)
            return re.sub(r"^_(blocks\.\d+)\._?(\w+?)_conv\.", r"\1.\2.conv.", name).replace("_blocks", "blocks")
        layer, _, last = name.rpartition(".")
        return f"{OUTER_LAYERS.get(layer, layer)}.{last}"


def scaled(channels: int, width: int) -> int:
    """Return the channels at a width in quarters: a multiple of 8, and at least 90 % of the exact number."""
    exact = channels * width / 4
    rounded = max(8, int(exact + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * exact else rounded + 8
