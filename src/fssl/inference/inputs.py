"""Convert a script's images (files, their bytes, arrays or tensors) into a model's input."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.cards import Card
from ..data.folder.listing import Listing, SiteFiles, list_images
from ..data.folder.load import raise_problems, read_images
from ..data.folder.pictures import PictureError, fit_pixels, read_picture
from ..errors import UserError

Encoded = str | Path | bytes  # a file or a folder, or a file's bytes
Pixels = NDArray[Any] | Tensor
Given = Encoded | Sequence[Encoded] | Pixels
PLANES = (1, 3, 4)  # grey, color, color with transparency


def as_given(images: Given, card: Card) -> tuple[list[str], NDArray[Any]]:
    """Return names, and pixels [N, H, W, C] of the model's size: uint8, or floats from 0 to 1 for float input."""
    if isinstance(images, np.ndarray | Tensor):
        pixels = from_pixels(images, card)
        return [str(i) for i in range(len(pixels))], pixels
    several = list(images) if isinstance(images, list | tuple) else [images]
    if several and all(isinstance(item, bytes) for item in several):
        return [str(i) for i in range(len(several))], from_bytes(several, card)  # type: ignore[arg-type]
    if not several or not all(isinstance(item, str | Path) for item in several):
        raise UserError("expected a file or a folder, the bytes of a file, a list of these, an array or a tensor")
    return from_files([Path(item) for item in several], card)  # type: ignore[arg-type]


def from_files(paths: Sequence[Path], card: Card) -> tuple[list[str], NDArray[np.uint8]]:
    """Return every image at or below some paths; raise UserError that names an unreadable file."""
    listing = list_images(paths[0]) if len(paths) == 1 else listed_together(paths)
    batches = list(read_images(listing, card))
    raise_problems(listing, most=len(listing.problems))
    return list(chain(*(names for names, _ in batches))), np.concatenate([pixels for _, pixels in batches])


def listed_together(paths: Sequence[Path]) -> Listing:
    """Return several files and folders as one listing, each image named by its path."""
    found = [(path, list_images(path)) for path in paths]
    files = [
        file._replace(name=str(path / file.name if path.is_dir() else path))
        for path, listing in found
        for file in listing.files()
    ]
    problems = [f"{path}: {line}" for path, listing in found for line in listing.problems]
    return Listing(Path(), [SiteFiles("", {}, files, {})], {}, problems)


def from_bytes(files: Sequence[bytes], card: Card) -> NDArray[np.uint8]:
    read = []
    for number, content in enumerate(files):
        try:
            read.append(read_picture(content, card.size, card.channels))
        except PictureError as error:
            raise UserError(f"image {number}: {error}") from None
    return np.stack(read)


def from_pixels(images: Pixels, card: Card) -> NDArray[Any]:
    """Return the pixels of one image or a batch, with channels first, last or absent."""
    array = as_array(images) if isinstance(images, Tensor) else images
    batch, shape = channels_last(array, card.channels), (card.size, card.size, card.channels)
    if batch.dtype == np.uint8:
        if batch.shape[1:] == shape:
            return batch
        return np.array([fit_pixels(image, card.size, card.channels) for image in batch], np.uint8).reshape(-1, *shape)
    if not np.issubdtype(batch.dtype, np.floating):
        raise UserError(f"images are {batch.dtype}, expected uint8, or floats from 0 to 1")
    if batch.shape[1:] != shape:
        wanted = f"expected [N, {card.size}, {card.size}, {card.channels}]"
        raise UserError(f"floats have the shape {list(array.shape)}, {wanted}; only uint8 becomes the model's size")
    return batch.astype(np.float32)


def as_array(images: Tensor) -> NDArray[Any]:
    """Return a tensor as a NumPy array; bfloat16, which NumPy lacks, is converted."""
    array: NDArray[Any] = (images.float() if images.is_floating_point() else images).detach().cpu().numpy()
    return array


def channels_last(array: NDArray[Any], channels: int) -> NDArray[Any]:
    """Return a batch [N, H, W, C] of one or more images with channels first, last or, for a grey model, absent.

    For a grey model [3, H, W] is three images, as for `fssl.dataset`.
    """
    # Otherwise the shape's meaning would depend on the number of images.
    is_grey_batch = channels == 1 and array.ndim == 3 and array.shape[2] not in PLANES
    if array.ndim == 2 or is_grey_batch:
        array = array[..., None]
    batch = array[None] if array.ndim == 3 else array
    if batch.ndim == 4 and batch.shape[3] not in PLANES and batch.shape[1] in PLANES:
        batch = batch.transpose(0, 2, 3, 1)
    if batch.ndim != 4 or batch.shape[3] not in PLANES or 0 in batch.shape[1:]:
        three = "[N, H, W]" if channels == 1 else "[C, H, W]"
        wanted = f"expected [N, H, W, C], [N, C, H, W], [H, W, C], {three} or [H, W]"
        raise UserError(f"images have the shape {list(array.shape)}, {wanted}")
    return batch


def check_floats(images: NDArray[Any]) -> None:
    """Reject floats outside 0 to 1, such as pixels up to 255 or normalized ones."""
    if len(images) and not (images.min() >= 0 and images.max() <= 1):
        raise UserError(f"floats are from {images.min():.3g} to {images.max():.3g}, expected 0 to 1")


def as_pixels(images: NDArray[Any], device: torch.device) -> Tensor:
    """Return images on a device as pixel values from 0 to 255."""
    pixels = torch.from_numpy(np.array(images)).to(device)
    return pixels if images.dtype == np.uint8 else pixels * 255
