"""A DICOM file as a picture of 8 bits: one frame, through its window, bright where the patient's image is bright.

Of the header only what describes the pixels is read; no name, date or number of a patient leaves the file.
"""

import logging
from collections.abc import MutableSequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...errors import UserError

DICOM_SUFFIXES = (".dcm", ".dicom")
MARK, MARK_AT = b"DICM", 128  # after a preamble that may be anything
Values = NDArray[np.float64]


class DicomError(ValueError):
    """Why there is no picture in a DICOM file, in words that follow its name."""


def is_dicom(source: Path | bytes) -> bool:
    """Whether it begins as a DICOM file does; many have no suffix."""
    if isinstance(source, bytes):
        head = source[: MARK_AT + len(MARK)]
    else:
        with source.open("rb") as file:
            head = file.read(MARK_AT + len(MARK))
    return head[MARK_AT:] == MARK


def read_dicom(source: Path | bytes, max_pixels: int) -> Image.Image:
    """The picture in a file, or in what is in one; of several frames the middle one."""
    try:
        from pydicom import dcmread
        from pydicom.pixels import pixel_array
    except ImportError:
        raise UserError("DICOM files need a package: pip install 'fssl[medical]'") from None
    logging.getLogger("pydicom").setLevel(logging.CRITICAL)  # what is wrong with a file is told once, by us
    data = dcmread(BytesIO(source) if isinstance(source, bytes) else source)
    if "PixelData" not in data:
        raise DicomError(f"a DICOM file without pixels ({data.get('Modality', 'of no modality')})")
    rows, columns = int(data.Rows), int(data.Columns)
    if rows * columns > max_pixels:
        raise DicomError(f"{columns} x {rows} pixels, expected at most {max_pixels // 10**6} million")
    frames = int(data.get("NumberOfFrames") or 1)
    try:
        pixels = pixel_array(data, index=frames // 2)
    except (RuntimeError, NotImplementedError) as error:
        if "missing" not in str(error):
            raise
        syntax = data.file_meta.TransferSyntaxUID.name
        raise DicomError(f"{syntax}: its decoder for pydicom is not installed (see pylibjpeg)") from error
    kind = data.PhotometricInterpretation
    if kind == "PALETTE COLOR":
        return Image.fromarray(colored(data, pixels))
    if pixels.ndim == 3:
        return Image.fromarray(eight_bits(pixels))
    grey = shown(data, pixels)
    return Image.fromarray(255 - grey if kind == "MONOCHROME1" else grey)


def colored(data: Any, pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """What the palette says of each value."""
    from pydicom.pixels import apply_color_lut

    return eight_bits(apply_color_lut(pixels, data)[..., :3])


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
    elif first(data, "WindowWidth"):
        function = data.get("VOILUTFunction") or "LINEAR"
        bright = windowed(values, first(data, "WindowCenter"), first(data, "WindowWidth"), function)
    else:
        bright = stretched(values)
    return np.asarray(np.rint(255 * np.clip(bright, 0, 1)).astype(np.uint8))


def first(data: Any, name: str) -> float:
    """A number of the header, the first of several; 0 without one."""
    value = data.get(name)
    return float(value[0] if isinstance(value, MutableSequence) else value or 0)


def windowed(values: NDArray[Any], center: float, width: float, function: str) -> Values:
    """0 below the window, 1 above, and what DICOM's PS3.3 C.11.2.1.2 and C.11.2.1.3 say in between."""
    x = np.asarray(values, np.float64)
    if function == "SIGMOID":
        return np.asarray(1 / (1 + np.exp(-4 * (x - center) / width)))
    if function == "LINEAR_EXACT":
        return np.asarray((x - center) / width + 0.5)
    return np.asarray((x - (center - 0.5)) / max(width - 1, 1e-9) + 0.5)


def stretched(values: NDArray[Any]) -> Values:
    """From the frame's darkest value to its brightest, where the file has no window."""
    x = np.asarray(values, np.float64)
    return np.asarray((x - x.min()) / max(x.max() - x.min(), 1e-9))
