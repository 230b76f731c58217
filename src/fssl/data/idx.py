"""Read images from the four files of MNIST's format (IDX), with or without gzip."""

import gzip
import math
import zlib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from .cache import ALONE, SPLITS, Loading, cached_split, fit_images, from_environment, num_images
from .cards import Card
from .dataset import Dataset, Split

FILE_PREFIXES = {"train": "train", "test": "t10k"}
SUMS = {  # SHA-256 of the contents of the official files, by dataset and name
    "fmnist": {
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    }
}
BYTES = 0x08  # the code of bytes, the only type in these files
BATCH = 2048  # images resized at a time


class Files(NamedTuple):
    """The files of one split."""

    images: Path
    labels: Path


def find_idx(facts: Card, dir: Path | None = None) -> dict[str, Files] | None:
    """Return the files of both splits in `dir`, otherwise in $FSSL_DATA; None if there are none.

    They may be in a folder with the dataset's name. Datasets in other formats have none.
    """
    root = dir or from_environment("FSSL_DATA")
    for folder in (root / facts.name, root) if root and facts.name in SUMS else ():
        if any(_present(folder, name) for split in SPLITS for name in _names(split)):
            return {split: Files(*(_file(facts, folder, name) for name in _names(split))) for split in SPLITS}
    return None


def official_files(facts: Card) -> str:
    """Return `its four official files, a.gz, b.gz, c.gz and d.gz`; empty for a dataset in another format."""
    *names, last = [f"{name}.gz" for name in SUMS.get(facts.name, {})] or [""]
    return f"its four official files, {', '.join(names)} and {last}" if last else ""


def _names(split: str) -> tuple[str, str]:
    return f"{FILE_PREFIXES[split]}-images-idx3-ubyte", f"{FILE_PREFIXES[split]}-labels-idx1-ubyte"


def _present(folder: Path, name: str) -> list[Path]:
    return [path for path in (folder / f"{name}.gz", folder / name) if path.is_file()]


def _file(facts: Card, folder: Path, name: str) -> Path:
    if present := _present(folder, name):
        return present[0]
    raise UserError(f"{facts.name}: '{folder / name}.gz' is missing; put it next to the other files")


def load_idx(facts: Card, files: dict[str, Files], how: Loading = ALONE) -> Dataset:
    """Load the dataset from these files; read once into the cache, like Parquet files."""

    def decoded(split: str) -> Iterator[Split]:
        return _batches(facts, files[split], num_images(facts, split))

    train, test = (cached_split(facts, split, [*files[split]], decoded, how) for split in SPLITS)
    return Dataset(facts, train, test, notes=_notes(facts, [path for split in SPLITS for path in files[split]]))


def _notes(facts: Card, paths: list[Path]) -> tuple[str, ...]:
    """Return a note if files of the right shape are not the official ones: other images, or other labels."""
    known = SUMS[facts.name]
    others = [p for p in paths if sha256(_content(p)).hexdigest() != known[p.name.removesuffix(".gz")]]
    if not others:
        return ()
    names = ", ".join(f"'{path}'" for path in others)
    return (f"{facts.name}: differs from the published files (checksums in `fssl docs configuration`): {names}",)


def _batches(facts: Card, files: Files, number: int) -> Iterator[Split]:
    size = facts.file_size or facts.size
    images, labels = read_idx(files.images, (number, size, size)), read_idx(files.labels, (number,))
    wrong = np.flatnonzero(labels >= facts.num_classes)
    if len(wrong):
        row = int(wrong[0])
        raise UserError(f"'{files.labels}', row {row}: label {labels[row]}, expected 0 to {facts.num_classes - 1}")
    for first in range(0, number, BATCH):
        rows = slice(first, first + BATCH)
        yield Split(fit_images(images[rows, :, :, None], facts), labels[rows].astype(np.int64))


def read_idx(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return the numbers of one file; raise UserError if it has another shape."""
    content = _content(path)
    header = 4 + 4 * len(shape)
    start = bytes([0, 0, BYTES, len(shape)])
    if len(content) < header or content[:4] != start:
        raise UserError(f"'{path}' is not an IDX file of bytes with {len(shape)} axes; download it again")
    found = tuple(int(n) for n in np.frombuffer(content, ">u4", len(shape), 4))
    if found != shape:
        raise UserError(f"'{path}' has the shape {found}, expected {shape}; download it again")
    if len(content) != header + math.prod(shape):
        expected = header + math.prod(shape)
        raise UserError(f"'{path}' has {len(content):,} bytes, expected {expected:,}; download it again")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _content(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"'{path}' cannot be read ({reason}); download it again") from error
