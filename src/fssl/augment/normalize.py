"""From pixels to the network's units."""

from collections.abc import Sequence

import torch
from torch import Tensor


class Normalize:
    """uint8 [B, H, W, C] to float32 [B, C, H, W]; the memory stays channels-last.

    The constants are tensors made once: a step that is being captured on a GPU cannot copy from the host.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], device: torch.device | str) -> None:
        self.scale = torch.tensor([1 / (255 * s) for s in std], device=device)
        self.shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device)

    def __call__(self, images: Tensor) -> Tensor:
        return (images * self.scale + self.shift).permute(0, 3, 1, 2)
