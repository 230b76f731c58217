"""RSCFed's network (Liang et al. 2022): two convolutions and four linear layers, no norm."""

from torch import Tensor, nn

from ..errors import UserError
from .resnet import Head

SMALLEST = 16  # pixels: with fewer, nothing is left after two convolutions and two maxima


class SimpleCnn(nn.Module):
    """The published network at width 4: 6 and 16 channels, 120, 84 and 84 units, 256 features."""

    def __init__(self, channels: int, classes: int, width: int = 4, size: int = 32) -> None:
        super().__init__()
        if size < SMALLEST:
            raise UserError(f"network 'simple-cnn' needs images of {SMALLEST} pixels or more, these have {size}")
        a, b, c, d, e, f = (n * width // 4 for n in (6, 16, 120, 84, 84, 256))
        left = ((size - 4) // 2 - 4) // 2  # pixels each way after both
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, a, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(a, b, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(b * left**2, c), nn.ReLU()),
            *(nn.Linear(c, d), nn.ReLU(), nn.Linear(d, e), nn.ReLU(), nn.Linear(e, f)),
        )
        self.head = Head(f, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        feature, logits = self.head(self.body(x))
        return feature, logits
