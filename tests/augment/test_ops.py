"""Every image operation against Pillow, value for value, and the arithmetic behind it by exhaustion."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from fssl.augment.ops import NUM_LEVELS, OPS, _mix, _over, apply_op, cutout
from fssl.augment.pillow import op_pil
from fssl.engines.compiler import ForShapes, as_traced

Images = NDArray[np.uint8]  # [B, H, W, C]

# What a compiled step runs, every family for every image; eager code on a CPU takes them one at a time.
captured = ForShapes(apply_op, as_traced)


def pictures(rng: np.random.Generator, num: int, size: int, channels: int) -> Images:
    """Noise, low contrast, one value, gradients and few values, in turn."""
    shape = (size, size, channels)

    def picture(kind: int) -> NDArray[np.generic]:
        low = rng.integers(0, 240)
        ramp = np.add.outer(*(rng.uniform(-8, 8, 2)[:, None] * np.arange(size)))[..., None]
        return (
            rng.integers(0, 256, shape),
            rng.integers(low, low + rng.integers(2, 16), shape),
            np.broadcast_to(rng.integers(0, 256, channels), shape),
            (ramp + rng.integers(0, 256, channels)).clip(0, 255),
            rng.choice(rng.integers(0, 256, 4), shape),
        )[kind]

    return np.stack([picture(i % 5).astype(np.uint8) for i in range(num)])


def to_pil(image: Images) -> Image.Image:
    return Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)


def by_pillow(images: Images, op: Tensor, level: Tensor, negative: Tensor) -> Tensor:
    numbers = zip(op.tolist(), level.tolist(), negative.tolist(), strict=True)
    changed = [np.asarray(op_pil(to_pil(i), *n)) for i, n in zip(images, numbers, strict=True)]
    return to_planes(np.stack(changed).reshape(images.shape))


def to_planes(images: Images) -> Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()


def on_ramp(name: str, level: int) -> list[int]:
    """What becomes of the 256 gray values."""
    ramp = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    op = torch.tensor([OPS.index(name)])
    return apply_op(ramp, op, torch.tensor([level]), torch.tensor([0])).flatten().tolist()


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("size", [32, 8])
@pytest.mark.parametrize("name", OPS)
def test_operation_equals_pillow_at_every_level_and_sign(name: str, size: int, channels: int) -> None:
    """216 images: twelve for each of 9 levels and 2 signs."""
    images = pictures(np.random.default_rng(OPS.index(name)), 216, size, channels)
    op = torch.full((216,), OPS.index(name))
    level, negative = torch.arange(216) % NUM_LEVELS + 1, torch.arange(216) // NUM_LEVELS % 2
    expected = by_pillow(images, op, level, negative)
    assert torch.equal(apply_op(to_planes(images), op, level, negative), expected)
    assert torch.equal(captured(to_planes(images), op, level, negative), expected)


@pytest.mark.parametrize("size", [16, 24])
def test_mixed_batch_equals_pillow_image_by_image(size: int) -> None:
    rng = np.random.default_rng(size)
    images = pictures(rng, 300, size, 3)
    op, level, negative = (torch.from_numpy(rng.integers(*r, 300)) for r in ((0, 14), (1, 10), (0, 2)))
    planes = to_planes(images)
    assert torch.equal(apply_op(planes, op, level, negative), by_pillow(images, op, level, negative))
    assert torch.equal(planes, to_planes(images)), "the argument was written to"


def test_equalize_where_the_histogram_step_is_large() -> None:
    """128 x 128 pixels: steps up to 64. Below 16 x 16 the step is 0 and nothing changes."""
    images = pictures(np.random.default_rng(0), 20, 128, 3)
    numbers = [torch.full((20,), number) for number in (OPS.index("Equalize"), 1, 0)]
    assert torch.equal(apply_op(to_planes(images), *numbers), by_pillow(images, *numbers))


def test_autocontrast_of_every_span() -> None:
    """Ramps from low to high: Pillow's doubles fall short of a whole number for 18 % of the 32,640 pairs."""
    pairs = [(low, low + span) for span in range(1, 256) for low in range(0, 256 - span, 17)]
    ramps = np.stack([np.arange(256).clip(*pair).astype(np.uint8).reshape(16, 16, 1) for pair in pairs])
    numbers = [torch.full((len(pairs),), number) for number in (OPS.index("AutoContrast"), 1, 0)]
    expected = np.stack([np.asarray(ImageOps.autocontrast(to_pil(ramp))) for ramp in ramps])
    stretched = apply_op(to_planes(ramps), *numbers)
    assert torch.equal(stretched, to_planes(expected[..., None]))
    assert (stretched.flatten(1)[:, -1] == 254).sum() > 100, "no pair falls short of 255: a formula would do"


@pytest.mark.parametrize("level", range(1, 10))
def test_blend_of_every_pair_of_values(level: int) -> None:
    plain, x = torch.meshgrid(torch.arange(256), torch.arange(256), indexing="ij")
    grids = [Image.fromarray(values.to(torch.uint8).numpy()) for values in (plain, x)]
    expected = torch.from_numpy(np.array(Image.blend(*grids, alpha=level * 0.9 / 10 + 0.05)))
    percent = torch.tensor(9 * level + 5)
    assert torch.equal(_mix(plain, x, percent, torch.tensor(129 if level == 6 else 0)), expected)
    short = (100 * plain + percent * (x - plain)) // 100 - expected
    assert short.sum() == (17 if level == 6 else 0)


@pytest.mark.parametrize("divisor", [13, 100])
def test_division_by_multiplication_is_exact(divisor: int) -> None:
    dividend = torch.arange(1 << 15, dtype=torch.int32)
    assert torch.equal(_over(dividend, divisor), dividend // divisor)


def test_published_thresholds_and_bits() -> None:
    first_inverted = [next(v for v, new in enumerate(on_ramp("Solarize", n)) if new != v) for n in range(1, 10)]
    assert first_inverted == [231, 205, 180, 154, 128, 103, 77, 52, 26]
    num_values = [len(set(on_ramp("Posterize", level))) for level in range(1, 10)]
    assert num_values == [16, 16, 32, 32, 64, 64, 64, 128, 128]


def test_published_factors() -> None:
    """Brightness keeps 14, 23, ... 86 percent: of 100 gray, that many. Level 6 shows Pillow's 58.999996."""
    assert [on_ramp("Brightness", level)[100] for level in range(1, 10)] == [14, 23, 32, 41, 50, 58, 68, 77, 86]


def test_published_shifts_and_their_direction() -> None:
    """Positive moves content left or up by 0..8 pixels of 32."""
    columns = torch.arange(1, 33, dtype=torch.uint8).expand(9, 1, 32, 32)
    levels = torch.arange(1, 10)
    for name, planes in (("TranslateX", columns), ("TranslateY", columns.transpose(2, 3))):
        op = torch.full((9,), OPS.index(name))
        left, right = (apply_op(planes.contiguous(), op, levels, torch.full((9,), n)) for n in (0, 1))
        assert left[:, 0, 0, 0].tolist() == list(range(1, 10))
        assert [(plane == 0).sum().item() // 32 for plane in right[:, 0]] == list(range(9))
        assert right[8, 0, 31, 31] == 32 - 8


def test_cutout_facts_by_enumeration() -> None:
    """17 pixels for 24 of 32 centers, at least 9, a mean area of 24.6 %."""
    y, x = (grid.flatten() for grid in torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij"))
    erased = cutout(torch.zeros(1024, 1, 32, 32, dtype=torch.uint8), y, x)[:, 0] == 127
    widths, heights = erased.any(1).sum(1), erased.any(2).sum(1)
    assert torch.equal(erased.sum((1, 2)), widths * heights), "not a rectangle"
    assert widths[:32].tolist() == [17] * 24 + [16, 15, 14, 13, 12, 11, 10, 9]
    assert torch.equal(heights.view(32, 32)[:, 0], widths[:32])
    assert erased.float().mean() == pytest.approx((508 / 32 / 32) ** 2)  # 0.2461
    assert erased[0, :17, :17].all()
    assert erased[-1, 23:, 23:].all()


def test_cutout_leaves_the_rest_alone() -> None:
    planes = to_planes(pictures(np.random.default_rng(3), 64, 8, 3))
    center = torch.arange(64)
    y, x = center // 8, center % 8
    cut = cutout(planes, y, x)
    assert torch.equal(cut[x < 5, :, :, 7], planes[x < 5, :, :, 7])  # from x - 2 (or 0) over four more pixels
    assert torch.equal(cut[y < 5, :, 7], planes[y < 5, :, 7])
    assert torch.equal(torch.where(cut == 127, planes, cut), planes)
