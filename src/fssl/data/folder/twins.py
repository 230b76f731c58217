"""Find images shared by training and test: the same file, the same patient, or nearly the same picture."""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from .listing import File, Listing, of_all
from .split import group_of

THUMBNAIL = 8  # pixels of the compared pictures
NEAR, CLOSE = 6, 6.0  # most differing signs of 112, and the largest difference of values up to 255, for near twins
MOST_PAIRS = 10**10  # with more pairs, which take minutes, pictures are not compared
AT_ONCE = 2**24  # pairs
Pictures = NDArray[np.uint8]  # [N, 8, 8, 3]


def shared(listing: Listing) -> list[str]:
    """Return a line for each test image whose file, or whose patient's folder, is in training too.

    Files are compared in the whole listing. Names of folders are compared within a site, and between the server's test
    images and all sites: folders of the same name at two sites are different patients.
    """
    return [*same_files(listing), *same_patients(listing)]


def same_files(listing: Listing) -> Iterator[str]:
    """Yield a line for each test image whose file is in training too; only files of equal size are read."""
    by_size: dict[int, list[File]] = defaultdict(list)
    for file in training(listing):
        by_size[file.num_bytes].append(file)
    digests: dict[int, dict[bytes, File]] = {}
    for file in tested(listing):
        if alike := by_size.get(file.num_bytes):
            known = digests.setdefault(file.num_bytes, {digest(each): each for each in reversed(alike)})
            if twin := known.get(digest(file)):
                yield f"{file.name}: is the same file as {twin.name}, a training image; remove one of them"


def digest(file: File) -> bytes:
    try:
        with file.path.open("rb") as content:
            return hashlib.file_digest(content, "sha256").digest()
    except OSError:  # reading it as an image reports the error
        return file.name.encode()


def same_patients(listing: Listing) -> Iterator[str]:
    parts = [([*site.unlabeled, *of_all(site.labeled)], [*of_all(site.test)]) for site in listing.sites]
    parts.append(([*training(listing)], [*of_all(listing.test)]))
    for train, test in parts:
        folders = {group_of(file): file.name for file in test if group_of(file).endswith("/")}
        for group in dict.fromkeys(group_of(file) for file in train):
            if group in folders:
                where = next(file.name for file in train if group_of(file) == group)
                why = f"folder '{group}' has images in training too, such as {where}"
                yield f"{folders[group]}: {why}; move them to one side"


def training(listing: Listing) -> Iterator[File]:
    for site in listing.sites:
        yield from chain(site.unlabeled, of_all(site.labeled))
    yield from of_all(listing.server)


def tested(listing: Listing) -> Iterator[File]:
    yield from chain(*(of_all(site.test) for site in listing.sites), of_all(listing.test))


def near(listing: Listing, files: Sequence[File], pictures: Pictures) -> list[str]:
    """Return a line for each test image that nearly equals a training image, such as a resized or recompressed one.

    Args:
        listing: The images of training and test.
        files: All its files.
        pictures: The files, decoded as thumbnails.
    """
    place = {file.name: i for i, file in enumerate(files)}
    marks, has_contrast = signs(pictures)
    rows, others = (
        np.array([place[file.name] for file in part if has_contrast[place[file.name]]], np.int64)
        for part in (tested(listing), training(listing))
    )
    if not len(rows) or not len(others) or len(rows) * len(others) > MOST_PAIRS:
        return []
    found = []
    for some in np.array_split(rows, -(-len(rows) * len(others) // AT_ONCE)):
        differ = sum(np.bitwise_count(marks[some, None, i] ^ marks[None, others, i]) for i in range(marks.shape[1]))
        best = np.argmin(differ, axis=1)
        for row, twin, number in zip(some, others[best], np.min(differ, axis=1), strict=True):
            if number <= NEAR and np.abs(pictures[row].astype(np.float64) - pictures[twin]).mean() <= CLOSE:
                found.append(f"{files[row].name}: looks almost like {files[twin].name}, a training image")
    return found


def signs(pictures: Pictures) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return where a picture gets brighter to the right and downwards, as 112 bits, and whether it has contrast."""
    grey = pictures.astype(np.int64).sum(-1)
    right, down = np.diff(grey, axis=2) > 0, np.diff(grey, axis=1) > 0
    bits = np.concatenate([each.reshape(len(grey), -1) for each in (right, down)], axis=1)
    packed = np.packbits(np.pad(bits, ((0, 0), (0, 128 - bits.shape[1]))), axis=1).view(np.uint64)
    return packed, grey.std(axis=(1, 2)) > 3
