"""The same views one image at a time with Pillow, as a reference for tests of the batched ones."""

from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from .ops import OPS

Call = Callable[[Image.Image, int, int], Image.Image]  # image, level, sign


def weak_pil(image: Image.Image, noise: Sequence[int], enlarge: bool = False) -> Image.Image:
    """Flip, reflect-pad by an eighth, crop; with `enlarge`, enlarge by as much instead of padding."""
    flip, top, left = (int(number) for number in noise[:3])
    size, width = image.width, image.width // 8
    if enlarge:
        image, width = image.resize((size + 2 * width, size + 2 * width), Image.Resampling.BILINEAR), 0
    pixels = np.asarray(ImageOps.mirror(image) if flip else image)
    margin = [(width, width)] * 2 + [(0, 0)] * (pixels.ndim - 2)
    padded = np.pad(pixels, margin, mode="reflect")
    return Image.fromarray(padded[top : top + size, left : left + size])


def strong_pil(image: Image.Image, noise: Sequence[int], enlarge: bool = False) -> Image.Image:
    """Return a weak view with two operations, each used or not, and cutout."""
    image = weak_pil(image, noise, enlarge)
    for first in (3, 7):
        op, level, use, negative = (int(number) for number in noise[first : first + 4])
        if use:
            image = op_pil(image, op, level, negative)
    return _cutout(image, int(noise[11]), int(noise[12]))


def op_pil(image: Image.Image, op: int, level: int, negative: int) -> Image.Image:
    """Apply operation `OPS[op]` with the released code's parameter at this level."""
    return _CALLS[OPS[op]](image, level, -1 if negative else 1)


def _cutout(image: Image.Image, y: int, x: int) -> Image.Image:
    size = image.width
    x0, y0 = max(0, x - size // 4), max(0, y - size // 4)
    x1, y1 = min(size, x0 + size // 2), min(size, y0 + size // 2)
    image = image.copy()
    ImageDraw.Draw(image).rectangle((x0, y0, x1, y1), 127 if image.mode == "L" else (127, 127, 127))
    return image


def _scaled(level: int, top: float) -> float:
    return float(level) * top / 10


def _enhance(enhancer: Callable[[Image.Image], ImageEnhance._Enhance]) -> Call:
    return lambda image, level, sign: enhancer(image).enhance(_scaled(level, 0.9) + 0.05)


def _affine(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix)


def _pixels(image: Image.Image, level: int, sign: int) -> int:
    return int(sign * _scaled(level, 0.3) * image.width)


_CALLS: dict[str, Call] = {
    "AutoContrast": lambda image, level, sign: ImageOps.autocontrast(image),
    "Brightness": _enhance(ImageEnhance.Brightness),
    "Color": _enhance(ImageEnhance.Color),
    "Contrast": _enhance(ImageEnhance.Contrast),
    "Equalize": lambda image, level, sign: ImageOps.equalize(image),
    "Identity": lambda image, level, sign: image,
    "Posterize": lambda image, level, sign: ImageOps.posterize(image, int(_scaled(level, 4)) + 4),
    "Rotate": lambda image, level, sign: image.rotate(sign * int(_scaled(level, 30))),
    "Sharpness": _enhance(ImageEnhance.Sharpness),
    "ShearX": lambda image, level, sign: _affine(image, 1, sign * _scaled(level, 0.3), 0, 0, 1, 0),
    "ShearY": lambda image, level, sign: _affine(image, 1, 0, 0, sign * _scaled(level, 0.3), 1, 0),
    "Solarize": lambda image, level, sign: ImageOps.solarize(image, 256 - int(_scaled(level, 256))),
    "TranslateX": lambda image, level, sign: _affine(image, 1, 0, _pixels(image, level, sign), 0, 1, 0),
    "TranslateY": lambda image, level, sign: _affine(image, 1, 0, 0, 0, 1, _pixels(image, level, sign)),
}
