"""What every source of images returns."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .cards import Card
from .partition import Partition


class Split(NamedTuple):
    """Images [N, H, W, C] and labels [N], -1 where nobody knows; images may be a read-only memory map."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


class Dataset(NamedTuple):
    """Both splits, with the facts they were checked against."""

    card: Card
    train: Split
    test: Split
    partition: Partition | None = None  # who holds what, where the source itself says so
    digest: str | None = None  # of such a source: tells whether it changed
    skipped: tuple[str, ...] = ()  # files that could not be used, and why; only where that is allowed
    notes: tuple[str, ...] = ()  # what a user should know of the files, a line each
    groups: NDArray[np.int64] | None = None  # of each training image: images of one group show one patient, say
    test_groups: NDArray[np.int64] | None = None  # the same of each test image
    testers: NDArray[np.int64] | None = None  # whose test image each is: a client's number, -1 for the server's own
    test_names: tuple[str, ...] | None = None  # of each test image: its file, below the folder of one's own images
