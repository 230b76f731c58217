"""Enlarged images against Pillow, value for value, and by hand."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fssl.augment import policies
from fssl.augment.policies import crop_room, enlarged, weak


def by_pillow(images: NDArray[np.uint8], length: int) -> Tensor:
    pictures = (Image.fromarray(image[..., 0] if image.shape[2] == 1 else image) for image in images)
    made = [np.asarray(picture.resize((length, length), Image.Resampling.BILINEAR)) for picture in pictures]
    return torch.from_numpy(np.stack(made)).view(len(images), length, length, -1)


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("size", [1, 2, 8, 9, 13, 28, 31, 32, 33, 48, 64, 97, 224])
def test_it_equals_pillow(size: int, channels: int) -> None:
    images = np.random.default_rng(size).integers(0, 256, (20, size, size, channels), dtype=np.uint8)
    images[0], images[1] = 0, 255
    for length in (crop_room(size), size, size + 1, 2 * size + 3):
        made = enlarged(torch.from_numpy(images), length)
        assert made.dtype == torch.uint8
        assert torch.equal(made, by_pillow(images, length))


def test_as_many_at_once_as_fit_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine images in parts of two, one by one where each is more than a part, and none at all."""
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (9, 8, 8, 3), dtype=np.uint8))
    whole = enlarged(images, 10)
    for values in (2 * 300, 1):
        monkeypatch.setattr(policies, "AT_ONCE", values)
        assert torch.equal(enlarged(images, 10), whole)
    assert enlarged(images[:0], 10).shape == (0, 10, 10, 3)


def test_enlarged_by_hand() -> None:
    """8 pixels become 10: new pixel k lies at 0.8 (k + 0.5) - 0.5 = 0.8 k - 0.1, and edges hold what is beyond them."""
    row = [0, 7, 15, 23, 31, 39, 47, 55, 63, 70]
    images = (10 * torch.arange(8, dtype=torch.uint8)).expand(1, 8, 8)[..., None].contiguous()
    made = enlarged(images, 10)
    assert made[0, :, :, 0].tolist() == [row] * 10
    assert torch.equal(enlarged(images.transpose(1, 2), 10), made.transpose(1, 2))
    noise = torch.tensor([[0, 1, 1], [0, 0, 0], [0, 2, 2], [1, 1, 1], [1, 1, 0]], dtype=torch.uint8)
    views = weak(made, torch.zeros(5, dtype=torch.int64), noise, 8)
    assert views.shape == (5, 8, 8, 1)
    assert views[:, 7, :, 0].tolist() == [row[1:9], row[:8], row[2:], row[8:0:-1], row[:1:-1]]
    lines = weak(made.transpose(1, 2).contiguous(), torch.zeros(1, dtype=torch.int64), noise[2:3], 8)
    assert lines[0, :, 7, 0].tolist() == row[2:]


def test_both_passes_are_rounded() -> None:
    """1 pixel in 4 is 1, and 2 pixels become 3: 0.5 in the middle rounds up to 1, and half of 1 and 0 up again."""
    images = torch.tensor([[1, 0], [0, 0]], dtype=torch.uint8).view(1, 2, 2, 1)
    assert enlarged(images, 3)[0, :, :, 0].tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
