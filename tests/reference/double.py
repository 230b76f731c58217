"""The package's ResNet-8 in float64, as a network of one's own: `model.name=double.py:resnet8`."""

from torch import Tensor

from fssl.models.resnet import Head, ResNet8


class DoubleHead(Head):
    """The head without its cast to float32."""

    def forward(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        feature = maps.mean((2, 3))
        return feature, self.linear(feature)


class DoubleResNet8(ResNet8):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x.double())


def resnet8(channels: int, classes: int, width: int) -> DoubleResNet8:
    """Its classifier is steep, so that an untrained network is sure of some images and not of others."""
    network = DoubleResNet8(channels, classes, width)
    network.head = DoubleHead(64 * width, classes)
    network.head.linear.weight.data *= 8
    return network.double()
