"""RandAugmentMC's fourteen operations and cutout on uint8 planes `[B, C, H, W]`, equal to Pillow's value for value."""

import math
from functools import cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.functional import embedding
from torch.utils._python_dispatch import _disable_current_modes

OPS = (
    "AutoContrast",
    "Brightness",
    "Color",
    "Contrast",
    "Equalize",
    "Identity",
    "Posterize",
    "Rotate",
    "Sharpness",
    "ShearX",
    "ShearY",
    "Solarize",
    "TranslateX",
    "TranslateY",
)
IDENTITY = OPS.index("Identity")
NUM_LEVELS = 9  # levels are 1..9: the released code draws below 10

WARPS = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")
TONES = ("AutoContrast", "Equalize", "Posterize", "Solarize")
BLENDS = ("Brightness", "Color", "Contrast", "Sharpness")
WARP, TONE, BLEND = 1, 2, 3  # families; 0 for the identity, which belongs to none

T = TypeVar("T")


# What decides a pixel is integer arithmetic or a lookup: a compiler may contract `a * b + c` into one rounding, and
# a float that is one ulp off changes a pixel. Tables keep their values while a step is traced on shapes alone.


class OperationSetting(NamedTuple, Generic[T]):
    """The numbers of an (operation, level, sign) for each family: plain numbers in the table, columns in a batch.

    `a` to `f` are the 16.16 fixed-point map from output to input coordinates, `curve` a fixed curve's place in the
    curve table, `percent` the image's share in a blend, `slip` its rounding (see `_mix`); the rest are 0 or 1.
    """

    a: T
    b: T
    c: T
    d: T
    e: T
    f: T
    curve: T
    autocontrast: T
    equalize: T
    percent: T
    slip: T
    color: T
    contrast: T
    sharpness: T
    family: T


def apply_op(planes: Tensor, op: Tensor, level: Tensor, negative: Tensor) -> Tensor:
    """Apply one layer: image `b` gets operation `OPS[op[b]]` at `level[b]` (1..9), reversed if `negative[b]` is 1."""
    key = (op.int() * NUM_LEVELS + level.int() - 1) * 2 + negative.int()
    settings = embedding(key, _settings(planes.shape[3], planes.device))
    # Eager code on a CPU may look at the values, and a family concerns a few images of each batch.
    if planes.device.type == "cpu" and not isinstance(planes, FakeTensor):
        return _by_family(planes, settings)
    family = settings[:, -1, None, None, None]
    others = torch.where(family == TONE, tone(planes, settings), blend(planes, settings))
    return torch.where(family == WARP, warp(planes, settings), others)


def _by_family(planes: Tensor, settings: Tensor) -> Tensor:
    """Compute the values of `apply_op` with each family only on its own images."""
    parts, origin, length = [planes], torch.arange(len(planes), device=planes.device), len(planes)
    for family, change in ((WARP, warp), (TONE, tone), (BLEND, blend)):
        row = (settings[:, -1] == family).nonzero().squeeze(1)
        if len(row):
            parts.append(change(planes.index_select(0, row), settings.index_select(0, row)))
            origin[row] = torch.arange(length, length + len(row), device=planes.device)
            length += len(row)
    return torch.cat(parts).index_select(0, origin)  # whole images: faster than writing into a copy


def _columns(settings: Tensor) -> OperationSetting[Tensor]:
    return OperationSetting(*settings[:, :, None, None, None].unbind(1))  # [B, 1, 1, 1] each


def warp(planes: Tensor, settings: Tensor) -> Tensor:
    """Nearest-neighbor affine map in 16.16 fixed point, black outside: Rotate, Shear and Translate."""
    _, channels, _, size = planes.shape
    by = _columns(settings)
    x = torch.arange(size, dtype=torch.int32, device=planes.device)
    y = x[:, None]
    from_x = (by.a * x + (by.b * y + by.c)) >> 16  # [B, 1, H, W]
    from_y = (by.d * x + (by.e * y + by.f)) >> 16
    inside = ((from_x | from_y) >= 0) & (torch.maximum(from_x, from_y) < size)
    pixel = ((from_y * size + from_x) * inside).flatten(2).long()
    return planes.flatten(2).gather(2, pixel.expand(-1, channels, -1)).view(planes.shape) * inside


def tone(planes: Tensor, settings: Tensor) -> Tensor:
    """Apply a curve of 256 values per channel: AutoContrast, Equalize, Posterize, Solarize."""
    pixels = planes.flatten(2).long()  # [B, C, H * W]
    one = torch.ones((), dtype=torch.int32, device=planes.device).expand_as(pixels)
    counts = torch.zeros(*planes.shape[:2], 256, dtype=torch.int32, device=planes.device)
    curves = _curves(counts.scatter_add(2, pixels, one), _columns(settings))
    return curves.gather(2, pixels).view(planes.shape)


def _curves(counts: Tensor, by: OperationSetting[Tensor]) -> Tensor:
    """Return each channel's curve, from its histogram: `[B, C, 256]`."""
    value = torch.arange(256, dtype=torch.int32, device=counts.device)
    upto = counts.cumsum(2, dtype=torch.int32)
    unfinished = upto < upto[..., -1:]
    low = (upto == 0).sum(2, keepdim=True, dtype=torch.int32)
    high = unfinished.sum(2, keepdim=True, dtype=torch.int32)
    step = (upto * unfinished).amax(2, keepdim=True) // 255  # of all pixels darker than the brightest
    equalized = ((step // 2 + upto - counts) // step.clamp(min=1)).clamp(max=255)
    span = high - low
    starts, values = _curve_tables(counts.device)
    stretched = embedding(span, starts).squeeze(-1) + low * span
    start = torch.where(by.autocontrast[..., 0] == 1, stretched, by.curve[..., 0])
    # No pixel lies outside low..high, and the table has no entries for AutoContrast there.
    entry = start + torch.maximum(torch.minimum(value, high), low)
    looked_up = embedding(entry, values).squeeze(-1)
    return torch.where(by.equalize[..., 0] * step > 0, equalized.to(torch.uint8), looked_up)


def blend(planes: Tensor, settings: Tensor) -> Tensor:
    """Blend the image with a plainer one: Brightness, Color, Contrast, Sharpness; others keep 100 % of the image."""
    by = _columns(settings)
    x = planes.int()
    luma = _luma(x)
    plain = by.color * luma + by.contrast * _rounded_mean(luma) + by.sharpness * _smooth(x)
    return _mix(plain, x, by.percent, by.slip)


def _mix(plain: Tensor, x: Tensor, percent: Tensor, slip: Tensor) -> Tensor:
    """Mix `percent` of `x` with the rest of `plain`, truncated to uint8 as in Pillow.

    Pillow cuts off a float32 sum. It equals the exact one everywhere except at 0.59 (level 6): there a difference of
    100 or 200 gives 58.999996 or 117.999992, and only sums above 64 or 128 round back up. `slip` is 129 there, else 0.
    """
    difference = x - plain
    hundredfold = 100 * plain + percent * difference
    short = 2 * hundredfold < slip * difference
    return _over(hundredfold - short.int(), 100).to(torch.uint8)


def _luma(x: Tensor) -> Tensor:
    """Return ITU-R 601 gray, rounded as in Pillow; a gray image is its own luma."""
    if x.shape[1] == 1:
        return x
    red, green, blue = x.split(1, dim=1)
    return torch.bitwise_right_shift(19595 * red + 38470 * green + 7471 * blue + 0x8000, 16)


def _rounded_mean(luma: Tensor) -> Tensor:
    """Return the mean per image, halves rounded up."""
    num_pixels = luma.shape[2] * luma.shape[3]
    total = luma.sum((1, 2, 3), keepdim=True, dtype=torch.int32)
    return (2 * total + num_pixels) // (2 * num_pixels)


def _smooth(x: Tensor) -> Tensor:
    """Pillow's SMOOTH filter: weight 5 for the center and 1 around it, over 13; the border stays."""
    down = x[:, :, :-2] + x[:, :, 1:-1] + x[:, :, 2:]
    weighted = down[..., :-2] + down[..., 1:-1] + down[..., 2:] + 4 * x[:, :, 1:-1, 1:-1]
    smoothed = x.clone()
    smoothed[:, :, 1:-1, 1:-1] = _over(weighted + 6, 13)
    return smoothed


def _over(dividend: Tensor, divisor: int) -> Tensor:
    """Return `dividend // divisor` for 0 <= dividend < 2**15 and divisors 13 and 100; division does not vectorize."""
    return torch.bitwise_right_shift(dividend * ((1 << 19) // divisor + 1), 19)


def cutout(planes: Tensor, center_y: Tensor, center_x: Tensor) -> Tensor:
    """Gray 127 over a square of nominally half the size, as the released code draws it.

    The square is moved inwards at the left and top edge, cut off at the right and bottom one, and both ends are
    filled: 17 pixels wide where it fits into 32.
    """
    rows, columns = (_covered(center.int()[:, None], planes.shape[3]) for center in (center_y, center_x))
    erased = rows[:, None, :, None] * columns[:, None, None, :]  # [B, 1, H, W]
    return planes * (1 - erased) + erased * 127  # on a CPU ten times as fast as a masked fill


def _covered(center: Tensor, size: int) -> Tensor:
    at = torch.arange(size, dtype=torch.int32, device=center.device)
    first = (center - size // 4).clamp(min=0)
    return ((at >= first) & (at <= first + size // 2)).to(torch.uint8)


@cache
def _settings(size: int, device: torch.device) -> Tensor:
    """The settings of every (operation, level, sign) for images of this size: `[14 * 9 * 2, 15]` int32."""
    rows = [_setting(name, level, sign, size) for name in OPS for level in _levels() for sign in (1, -1)]
    with _disable_current_modes():
        return torch.tensor(rows, dtype=torch.int32, device=device)


def _levels() -> range:
    return range(1, NUM_LEVELS + 1)


def _setting(name: str, level: int, sign: int, size: int) -> OperationSetting[int]:
    percent = 9 * level + 5 if name in BLENDS else 100  # the factor 0.09 v + 0.05
    coefficients = _fixed_point(_matrix(name, level, sign, size))
    return OperationSetting(
        **dict(zip("abcdef", coefficients, strict=True)),
        curve=256 * _fixed_curves().index(_curve(name, level)),
        autocontrast=name == "AutoContrast",
        equalize=name == "Equalize",
        percent=percent,
        slip=129 if percent == 59 else 0,
        color=name == "Color",
        contrast=name == "Contrast",
        sharpness=name == "Sharpness",
        family=WARP * (name in WARPS) + TONE * (name in TONES) + BLEND * (name in BLENDS),
    )


def _matrix(name: str, level: int, sign: int, size: int) -> tuple[float, float, float, float, float, float]:
    """Return the map from output to input coordinates, in the floats of Pillow and the released code."""
    shear = sign * (level * 0.3 / 10)
    pixels = sign * int(level * 0.3 / 10 * size)
    match name:
        case "Rotate":
            return _rotation(sign * 3 * level, size / 2)
        case "ShearX":
            return (1, shear, 0, 0, 1, 0)
        case "ShearY":
            return (1, 0, 0, shear, 1, 0)
        case "TranslateX":
            return (1, 0, pixels, 0, 1, 0)
        case "TranslateY":
            return (1, 0, 0, 0, 1, pixels)
    return (1, 0, 0, 0, 1, 0)


def _rotation(degrees: int, center: float) -> tuple[float, float, float, float, float, float]:
    angle = -math.radians(degrees % 360.0)
    cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
    x = cos * -center + sin * -center + center
    y = -sin * -center + cos * -center + center
    return (cos, sin, x, -sin, cos, y)


def _fixed_point(matrix: tuple[float, float, float, float, float, float]) -> list[int]:
    """Return 16.16 coefficients; the two offsets include the half pixel to a pixel's center."""
    a, b, c, d, e, f = matrix
    floats = (a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5)
    return [math.floor(value * 65536.0 + 0.5) for value in floats]


def _curve(name: str, level: int) -> tuple[int, ...]:
    """Return the curve of an operation: Posterize keeps the high bits, Solarize inverts from a threshold on."""
    if name == "Posterize":
        return tuple(value & ~(2 ** (4 - int(level * 4 / 10)) - 1) for value in range(256))
    if name == "Solarize":
        return tuple(value if value < 256 - int(level * 256 / 10) else 255 - value for value in range(256))
    return tuple(range(256))


@cache
def _fixed_curves() -> list[tuple[int, ...]]:
    """Return the distinct fixed curves. The identity comes first: a start of 0 leaves an image unchanged."""
    return list(dict.fromkeys([_curve("Identity", 1), *(_curve(name, v) for name in OPS for v in _levels())]))


@cache
def _curve_tables(device: torch.device) -> tuple[Tensor, Tensor]:
    """Where AutoContrast's curves for `high - low = span` begin, `[256, 1]`; and the values of all curves, `[N, 1]`.

    The fixed curves come first, a span of 0 changes nothing, and value v of (low, span) is at start + low * span + v.
    """
    fixed = np.array(_fixed_curves(), dtype=np.uint8).ravel()
    stretches = [_stretches(span).ravel() for span in range(1, 256)]
    starts = np.cumsum([fixed.size, *(curves.size for curves in stretches)])[:-1]
    with _disable_current_modes():
        table = torch.from_numpy(np.concatenate([fixed, *stretches]))  # 2.8 MB
        return torch.tensor([0, *starts], dtype=torch.int32, device=device)[:, None], table[:, None].to(device)


def _stretches(span: int) -> NDArray[np.uint8]:
    """Return AutoContrast of low..low + span for every low, in Pillow's doubles, which may be just below an integer."""
    low = np.arange(256 - span)[:, None]
    scale = 255.0 / span
    return ((low + np.arange(span + 1)) * scale + -low * scale).clip(0, 255).astype(np.uint8)
