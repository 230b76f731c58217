"""ELPV: photographs of solar cells, in the Python package `elpv-dataset` (Deitsch et al. 2019).

Each cell has a probability of a defect: 0, 1/3, 2/3 or 1. Only 0 and 1 are labels here. The other images are unlabeled.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from ..errors import UserError
from ..system.packages import package_folder
from ..system.workers import forked, map_pieces
from .cache import ALONE, Loading, cached_split
from .cards import UNKNOWN, Card
from .dataset import Dataset, Split
from .folder.pictures import PictureError, read_picture

PACKAGE = "elpv_dataset"
LABELS = "labels.csv"
INSTALL = "pip install elpv-dataset"
TYPES = ("mono", "poly")  # of the module that a cell belongs to
LEVELS = (0, 1, 2, 3)  # thirds of the probability of a defect
COUNTS = {"mono": (588, 117, 56, 313), "poly": (920, 178, 50, 402)}  # of images, by type and level
CLASS_OF = {0: 0, 3: 1}  # good and defective, by level
PIECE = 16  # images per task of a decoding process


class Cell(NamedTuple):
    """One image."""

    file: Path
    level: int
    type: str

    @property
    def label(self) -> int:
        return CLASS_OF.get(self.level, UNKNOWN)


def lacking_elpv(dir: Path | None = None) -> str:
    """Reject a place without the images; return an empty text, since nothing is downloaded."""
    find_elpv(dir)
    return ""


def find_elpv(dir: Path | None = None) -> Path:
    """Return the file with the labels: in this folder, or in the installed package."""
    root = dir or package_folder(PACKAGE)
    if root is None:
        raise UserError(f"data.name = 'elpv' needs its images: {INSTALL}, or set data.dir", "data.dir")
    for folder in (root, root / "data", root / PACKAGE / "data"):
        if (folder / LABELS).is_file():
            return folder / LABELS
    raise UserError(f"elpv: '{root}' has no {LABELS}; {INSTALL}", "data.dir")


def load_elpv(facts: Card, dir: Path | None = None, how: Loading = ALONE) -> Dataset:
    """Load the images at the card's size: a quarter of the labeled ones of each class and type for the test."""
    file = find_elpv(dir)
    cells = list_cells(file)
    is_test = test_part(cells)
    parts = {
        "train": [cell for cell, chosen in zip(cells, is_test, strict=True) if not chosen],
        "test": [cell for cell, chosen in zip(cells, is_test, strict=True) if chosen],
    }

    def decoded(split: str) -> Iterator[Split]:
        return decode(parts[split], facts, how.workers)

    train, test = (
        cached_split(facts, split, [file, *(cell.file for cell in part)], decoded, how) for split, part in parts.items()
    )
    return Dataset(facts, train, test, origins=np.array([TYPES.index(cell.type) for cell in parts["train"]], np.int64))


def list_cells(file: Path) -> list[Cell]:
    """Return all images in the order of the file with their labels; reject other numbers than those published."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"elpv: '{file}' cannot be read ({error})") from None
    cells = []
    for number, line in enumerate(lines, 1):
        try:
            cells.append(as_cell(file.parent, line))
        except ValueError:
            expected = "expected an image, a probability from 0 to 1, and mono or poly"
            raise UserError(f"elpv: '{file}', line {number}: {expected}; {INSTALL}") from None
    check_counts(file, cells)
    return cells


def as_cell(folder: Path, line: str) -> Cell:
    """Return the image that a line describes; raise ValueError if it describes none."""
    name, probability, kind = line.split()
    level = round(3 * float(probability))
    if level not in LEVELS or kind not in TYPES or ".." in Path(name).parts:
        raise ValueError(line)
    return Cell(folder / name, level, kind)


def check_counts(file: Path, cells: list[Cell]) -> None:
    found = Counter((cell.type, cell.level) for cell in cells)
    for kind, expected in COUNTS.items():
        numbers = [found[kind, level] for level in LEVELS]
        if numbers != [*expected]:
            raise UserError(
                f"elpv: '{file}' has {numbers} {kind} cells by probability; expected {[*expected]}; {INSTALL}"
            )


def test_part(cells: list[Cell]) -> NDArray[np.bool_]:
    """Return whether an image is for the test: a quarter of each class of each type, always the same ones."""
    random, is_test = RandomState(0), np.zeros(len(cells), bool)
    for kind in TYPES:
        for level in CLASS_OF:
            rows = np.array([i for i, cell in enumerate(cells) if (cell.type, cell.level) == (kind, level)])
            is_test[random.permutation(rows)[: len(rows) // 4]] = True
    return is_test


def decode(cells: list[Cell], facts: Card, workers: int) -> Iterator[Split]:
    """Yield images and labels in batches."""
    pieces = [cells[i : i + PIECE] for i in range(0, len(cells), PIECE)]
    with forked(workers) as pool:
        yield from map_pieces(pool, partial(read_cells, facts.size), pieces)


def read_cells(size: int, cells: list[Cell]) -> Split:
    """Return gray images [N, size, size, 1] and their labels."""
    images = []
    for cell in cells:
        try:
            images.append(read_picture(cell.file, size, 1))
        except PictureError as error:
            raise UserError(f"elpv: '{cell.file}': {error}; {INSTALL}") from None
    return Split(np.stack(images), np.array([cell.label for cell in cells], np.int64))
