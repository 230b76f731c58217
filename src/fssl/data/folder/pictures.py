"""One image file of any size and mode in, pixels of one shape out, or the reason why not."""

import warnings
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from ...errors import UserError
from . import dicom

# Naming the formats halves the time per WebP image: Pillow otherwise tries some forty in turn.
IMAGE_FORMATS = ("PNG", "WEBP", "JPEG", "TIFF", "BMP")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", *dicom.DICOM_SUFFIXES)
MAX_BYTES = 256 * 2**20  # a WebP file is read whole before its header is known
MAX_PIXELS = 2**30 // 12  # 89 million, where Pillow begins to suspect a decompression bomb
PIXELS = f"pixels, expected at most {MAX_PIXELS // 10**6} million"
BACKDROP = (128, 128, 128, 255)  # seen through transparent pixels: about 0 once it is normalized


class PictureError(ValueError):
    """Why a file is no image to train on, in words that follow its name."""


def read_picture(source: Path | bytes, size: int, channels: int) -> NDArray[np.uint8]:
    """Pixels [size, size, channels]: upright, over grey, 8 bits, squeezed into a square with nothing cut off.

    `source` is a file, or what is in one.
    """
    try:
        num_bytes = len(source) if isinstance(source, bytes) else source.stat().st_size
        if not 0 < num_bytes <= MAX_BYTES:
            size_found = f"{num_bytes / 2**20:,.0f} MiB, expected at most {MAX_BYTES // 2**20}"
            raise PictureError(size_found if num_bytes else "an empty file")
        with warnings.catch_warnings(action="ignore"):  # odd metadata, and the size that is checked here
            return _pixels(_decoded(source), size, channels)
    except (PictureError, UserError):  # the second: a package is missing
        raise
    except dicom.DicomError as error:
        raise PictureError(str(error)) from None
    except Image.DecompressionBombError:
        raise PictureError(f"too many {PIXELS}") from None
    except UnidentifiedImageError:
        raise PictureError("no PNG, JPEG, WebP, TIFF, BMP or DICOM image") from None
    except Exception as error:  # a damaged image makes Pillow raise almost anything
        if isinstance(error, OSError) and error.strerror:
            raise PictureError(f"cannot be read ({error.strerror})") from error
        raise PictureError(f"damaged or cut short ({str(error) or type(error).__name__})") from error


def fit_pixels(pixels: NDArray[np.uint8], size: int, channels: int) -> NDArray[np.uint8]:
    """An image [H, W, 1, 3 or 4] that is decoded already, as `read_picture` makes it."""
    return _pixels(Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels), size, channels)


def is_image(path: Path) -> bool:
    """Whether a file is an image by its name, or begins as a DICOM file does."""
    if path.suffix.lower() in SUFFIXES:
        return True
    try:
        return path.is_file() and dicom.is_dicom(path)
    except OSError:
        return False


def _decoded(source: Path | bytes) -> Image.Image:
    if dicom.is_dicom(source):
        return dicom.read_dicom(source, MAX_PIXELS)
    with Image.open(BytesIO(source) if isinstance(source, bytes) else source, formats=IMAGE_FORMATS) as image:
        width, height = image.size  # as the header has it: nothing is decoded yet
        if width * height > MAX_PIXELS:
            raise PictureError(f"{width} x {height} {PIXELS}")
        image.load()
        return ImageOps.exif_transpose(image)


def _pixels(image: Image.Image, size: int, channels: int) -> NDArray[np.uint8]:
    square = _flat(_eight_bits(image)).convert("RGB" if channels == 3 else "L")
    if square.size != (size, size):
        square = square.resize((size, size), Image.Resampling.BICUBIC)
    return np.asarray(square).reshape(size, size, channels)


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit grey scaled down, so that its brightest value is 255; Pillow itself would clip."""
    if image.mode == "F":
        raise PictureError("values are floating-point numbers, expected 8 or 16 bits")
    if not image.mode.startswith("I"):
        return image
    values = np.asarray(image).astype(np.int64).clip(0, 65535)
    return Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))


def _flat(image: Image.Image) -> Image.Image:
    """L or RGB, with nothing transparent."""
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, BACKDROP), image.convert("RGBA"))
    return image.convert("L" if image.mode in ("1", "L") else "RGB")
