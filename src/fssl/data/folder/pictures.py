"""Decode one image file of any size and mode to pixels of one shape, or explain why not."""

import logging
import warnings
import zlib
from collections.abc import MutableSequence
from importlib.util import find_spec
from io import BytesIO
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from ...errors import UserError

# Naming the formats halves the time per WebP image: Pillow otherwise tries some forty in turn.
IMAGE_FORMATS = ("PNG", "WEBP", "JPEG", "TIFF", "BMP")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".dcm", ".dicom")
MAX_BYTES = 256 * 2**20  # a WebP file is read completely before its header is known
MAX_PIXELS = 2**30 // 12  # 89 million, the size from which Pillow suspects a decompression bomb
PIXELS = f"pixels, expected at most {MAX_PIXELS // 10**6} million"
MARK, MARK_AT = b"DICM", 128  # of a DICOM file, after an arbitrary preamble
META, JPEG_EXTENDED = 2, "1.2.840.10008.1.2.4.51"  # its head's group; of 12 bits, which Pillow calls damaged
MOST_INFLATED = MAX_BYTES  # of a deflated file: as many bytes as any other may have
BACKDROP = (128, 128, 128, 255)  # behind transparent pixels: about 0 after normalization


class PictureError(ValueError):
    """The reason why a file is not a usable image, as text to follow its name."""


def read_picture(source: Path | bytes, size: int, channels: int) -> NDArray[np.uint8]:
    """Return pixels [size, size, channels]: upright, over grey, 8 bits, squeezed into a square without cropping.

    `source` is a file, or its content.
    """
    try:
        num_bytes = len(source) if isinstance(source, bytes) else source.stat().st_size
        if not 0 < num_bytes <= MAX_BYTES:
            size_found = f"{num_bytes / 2**20:,.0f} MiB, expected at most {MAX_BYTES // 2**20}"
            raise PictureError(size_found if num_bytes else "an empty file")
        with warnings.catch_warnings(action="ignore"):  # unusual metadata; the size is checked here
            return _pixels(_decoded(source), size, channels)
    except (PictureError, UserError):  # the second: a package is missing
        raise
    except Image.DecompressionBombError:
        raise PictureError(f"too many {PIXELS}") from None
    except UnidentifiedImageError:
        raise PictureError("not a PNG, JPEG, WebP, TIFF, BMP or DICOM image") from None
    except Exception as error:  # a damaged image makes Pillow raise almost anything
        if isinstance(error, OSError) and error.strerror:
            raise PictureError(f"cannot be read ({error.strerror})") from error
        raise PictureError(f"damaged or truncated ({str(error) or type(error).__name__})") from error


def fit_pixels(pixels: NDArray[np.uint8], size: int, channels: int) -> NDArray[np.uint8]:
    """Return a decoded image [H, W, 1, 3 or 4] in the form of `read_picture`."""
    return _pixels(Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels), size, channels)


def is_image(path: Path) -> bool:
    """Return whether a file has a suffix of an image, or starts like a DICOM file."""
    if path.suffix.lower() in SUFFIXES:
        return True
    try:
        return path.is_file() and is_dicom(path)
    except OSError:
        return False


def _decoded(source: Path | bytes) -> Image.Image:
    if is_dicom(source):
        return read_dicom(source)
    with Image.open(BytesIO(source) if isinstance(source, bytes) else source, formats=IMAGE_FORMATS) as image:
        width, height = image.size  # from the header: nothing is decoded yet
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
    """Scale 16-bit grey to 8 bits, so that the brightest possible value is 255; Pillow itself would clip."""
    if image.mode == "F":
        raise PictureError("values are floating-point numbers, expected 8 or 16 bits")
    if not image.mode.startswith("I"):
        return image
    values = np.asarray(image).astype(np.int64).clip(0, 65535)
    return Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))


def _flat(image: Image.Image) -> Image.Image:
    """Return an L or RGB image without transparency."""
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, BACKDROP), image.convert("RGBA"))
    return image.convert("L" if image.mode in ("1", "L") else "RGB")


# A DICOM file as a picture of 8 bits: one frame, through its window, bright where the patient's image is bright. Of the
# header only what describes the pixels is read; no name, date or number of a patient leaves the file.


def is_dicom(source: Path | bytes) -> bool:
    """Whether it begins as a DICOM file does; many have no suffix."""
    if isinstance(source, bytes):
        head = source[: MARK_AT + len(MARK)]
    else:
        with source.open("rb") as file:
            head = file.read(MARK_AT + len(MARK))
    return head[MARK_AT:] == MARK


def read_dicom(source: Path | bytes) -> Image.Image:
    """The picture in a file, or in what is in one; of several frames the middle one."""
    try:
        import pydicom  # noqa: F401
        from pydicom.pixels import apply_color_lut, pixel_array
    except ImportError:
        raise UserError("DICOM files need a package: pip install 'fssl[medical]'") from None
    logging.getLogger("pydicom").setLevel(logging.CRITICAL)  # the caller reports what is wrong with a file
    data = dicom_data(source if isinstance(source, bytes) else source.read_bytes())
    if "PixelData" not in data:
        raise PictureError(f"a DICOM file without pixels ({data.get('Modality', 'of no modality')})")
    rows, columns = int(data.Rows), int(data.Columns)
    if rows * columns > MAX_PIXELS:
        raise PictureError(f"{columns} x {rows} {PIXELS}")
    frames = int(data.get("NumberOfFrames") or 1)
    try:
        pixels = pixel_array(data, index=frames // 2)
    except (RuntimeError, NotImplementedError) as error:
        syntax = data.file_meta.TransferSyntaxUID
        is_of_12_bits = syntax == JPEG_EXTENDED and int(data.BitsAllocated) > 8
        if "missing" not in str(error) and not (is_of_12_bits and find_spec("libjpeg") is None):
            raise
        raise PictureError(f"{syntax.name}: its decoder is not installed: pip install 'fssl[medical]'") from error
    kind = data.PhotometricInterpretation
    if kind == "PALETTE COLOR":
        return Image.fromarray(eight_bits(apply_color_lut(pixels, data)[..., :3]))
    if pixels.ndim == 3:
        return Image.fromarray(eight_bits(pixels))
    grey = shown(data, pixels)
    return Image.fromarray(255 - grey if kind == "MONOCHROME1" else grey)


def dicom_data(content: bytes) -> Any:
    """A file as pydicom reads it. Deflated ones are inflated here: pydicom has no limit."""
    from pydicom import FileMetaDataset, dcmread
    from pydicom.filereader import read_dataset
    from pydicom.uid import DeflatedExplicitVRLittleEndian, ExplicitVRLittleEndian

    file = BytesIO(content)
    file.seek(MARK_AT + len(MARK))
    meta = read_dataset(file, is_implicit_VR=False, is_little_endian=True, stop_when=lambda tag, *_: tag.group != META)
    if meta.get("TransferSyntaxUID") != DeflatedExplicitVRLittleEndian:
        return dcmread(BytesIO(content))
    inflated = zlib.decompressobj(-zlib.MAX_WBITS).decompress(content[file.tell() :], MOST_INFLATED + 1)
    if len(inflated) > MOST_INFLATED:
        raise PictureError(f"inflates to more than {MOST_INFLATED // 2**20} MiB")
    data = read_dataset(BytesIO(inflated), is_implicit_VR=False, is_little_endian=True)
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    return data


def eight_bits(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """The upper eight bits of colors."""
    return (pixels >> (8 * (pixels.dtype.itemsize - 1))).astype(np.uint8)


def shown(data: Any, pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Grey values as a viewer shows them first: in the modality's units, through the file's own window."""
    from pydicom.pixels import apply_modality_lut, apply_voi

    values = apply_modality_lut(pixels, data)
    if "VOILUTSequence" in data:
        table = data.VOILUTSequence[0]
        bright = apply_voi(values, data, 0) / (2.0 ** int(table.LUTDescriptor[2]) - 1)
    elif "WindowWidth" in data and "WindowCenter" in data:
        center, width = first(data, "WindowCenter"), first(data, "WindowWidth")
        if not (isfinite(center) and 0 < width < inf):
            raise PictureError(f"its window has center {center:g} and width {width:g}; correct it, or remove both")
        bright = windowed(values, center, width, data.get("VOILUTFunction") or "LINEAR")
    else:
        bright = stretched(values)
    if not np.isfinite(bright).all():
        raise PictureError("values in the modality's units are not finite (RescaleSlope, RescaleIntercept)")
    return np.asarray(np.rint(255 * np.clip(bright, 0, 1)).astype(np.uint8))


def first(data: Any, name: str) -> float:
    """A number of the header, the first of several; 0 without one."""
    value = data.get(name)
    return float(value[0] if isinstance(value, MutableSequence) else value or 0)


def windowed(values: NDArray[Any], center: float, width: float, function: str) -> NDArray[np.float64]:
    """0 below the window, 1 above, and what DICOM's PS3.3 C.11.2.1.2 and C.11.2.1.3 say in between."""
    x = np.asarray(values, np.float64)
    if function == "SIGMOID":
        return np.asarray(1 / (1 + np.exp(-4 * (x - center) / width)))
    if function == "LINEAR_EXACT":
        return np.asarray((x - center) / width + 0.5)
    return np.asarray((x - (center - 0.5)) / max(width - 1, 1e-9) + 0.5)


def stretched(values: NDArray[Any]) -> NDArray[np.float64]:
    """From the frame's darkest value to its brightest, where the file has no window."""
    x = np.asarray(values, np.float64)
    return np.asarray((x - x.min()) / max(x.max() - x.min(), 1e-9))
