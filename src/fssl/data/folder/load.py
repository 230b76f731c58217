"""Load the images of one site, or of several on one machine: checked as a whole, then decoded once."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from itertools import accumulate, chain, compress, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import ProblemsError, shortened
from ...system.files import read_json, short_sum, write_atomic
from ...system.workers import forked, map_pieces
from ..cache import ALONE, Loading, cache_folder, cached_images, disk_errors
from ..cards import UNKNOWN, Agreed, Card
from ..dataset import Dataset, Split
from ..partition import Partition
from .listing import File, Listing, is_site, list_classes, list_federation, list_server, list_site, listed, of_all
from .pictures import PictureError, read_picture
from .split import class_folder, numbered_groups, remove_files, split_off
from .twins import THUMBNAIL, near, shared

FOLDER_FORMAT = 1  # of the cache; raise it when decoding changes
BATCH = 1024  # images decoded between two writes
Decoded = tuple[NDArray[np.uint8], NDArray[np.bool_]]  # images, and whether each could be read
PIECE = 16  # images per task of a decoding process
BAD = ".bad.json"  # the suffix, instead of .npy, of a list of unreadable files


def load_federation(root: Path, agreed: Agreed, how: Loading = ALONE) -> Dataset:
    """Load all clients of a folder. Without agreed classes, the classes are those of any client's labeled images."""
    return _load_all(list_federation(root, agreed.skip_bad, agreed.at_server), agreed, how)


def load_classes(root: Path, agreed: Agreed, how: Loading = ALONE) -> Dataset:
    """Load labeled images that are dealt to clients later; with a test share, split the test images off first."""
    share = agreed.test_share
    listing = list_classes(root, agreed.skip_bad, splits=share is not None)
    return _load_all(listing if share is None else split_off(listing, share), agreed, how)._replace(partition=None)


def load_site(root: Path, agreed: Agreed, client: int = 0, clients: int = 1) -> Dataset:
    """Load the images of one site, number `client` of `clients`; the others have none. There may be no test images."""
    dataset = _load(_usable(list_site(root, agreed.skip_bad, agreed.at_server), agreed, ALONE), agreed, ALONE)
    nothing, own = np.zeros(0, np.int64), dataset.partition
    assert own is not None
    labeled, unlabeled = (
        tuple(part[0] if k == client else nothing for k in range(clients)) for part in (own.labeled, own.unlabeled)
    )
    return dataset._replace(partition=Partition(labeled, unlabeled), testers=np.full(len(dataset.test.labels), client))


def load_server(root: Path, agreed: Agreed) -> Dataset:
    """Load the images of a server: test images and, if it has the labels, training images."""
    return _load(_usable(list_server(root, agreed.skip_bad, agreed.at_server), agreed, ALONE), agreed, ALONE)


def read_images(listing: Listing, card: Card, how: Loading = ALONE) -> Iterator[tuple[list[str], NDArray[np.uint8]]]:
    """Yield names and pixels of all images, in batches; unreadable ones become problems of the listing."""
    files, done = list(listing.files()), 0
    for images, is_read in _decoded(files, Agreed((), card.size, card.channels), how, listing.problems):
        names = [file.name for file in files[done : done + len(images)]]
        yield list(compress(names, is_read)), images[is_read]
        done += len(images)


def check(root: Path, classes: tuple[str, ...] = (), how: Loading = ALONE) -> Listing:
    """List the images of a federation's or a site's folder; unreadable images are added to the problems.

    Labeled folders are checked against these classes. Without classes a federation is checked against those found, a
    site is not checked.
    """
    listing = listed(root)
    _check_classes(listing, classes or (() if is_site(root) else found_classes(listing)))
    listing.problems.extend(shared(listing))
    files = list(listing.files())
    pictures = [images for images, _ in _decoded(files, Agreed((), THUMBNAIL), how, listing.problems)]
    return listing._replace(warnings=near(listing, files, np.concatenate(pictures)) if pictures else [])


def found_classes(listing: Listing) -> tuple[str, ...]:
    """Return all class names of labeled images, sorted by character.

    A folder whose images were all skipped names a class only if there are other images of it.
    """
    seen: dict[str, str] = {}
    holders = [*((site.name, site.labeled) for site in listing.sites), ("server", listing.server)]
    has_images = {file.label for file in listing.files()}
    names = [(holder, name) for holder, files in holders for name in files if name in has_images]
    for holder, name in names:
        twin = seen.setdefault(name.strip().casefold(), name)
        if twin != name:
            listing.problems.append(f"{holder}: class '{name}' is '{twin}' elsewhere; use one name")
    if len(seen) < 2 and any(any(of_all(files)) for _, files in holders):
        listing.problems.append(f".: only one class has labeled images ({', '.join(seen.values())}), expected two")
    return tuple(sorted({name for _, name in names}))


def listing_digest(listing: Listing) -> str:
    """Return a checksum of all names and sizes: equal for a copy, different when a file is added or removed.

    Changed pixels in a file of the same size go unnoticed: no file is read while decoded images are cached.
    """
    text = "\n".join(f"{file.name}\t{file.num_bytes}" for file in listing.files())
    return short_sum(text.encode())


def _load_all(listing: Listing, agreed: Agreed, how: Loading) -> Dataset:
    """Load a whole folder; without agreed classes its labels define them. Its digest identifies it."""
    listing = _usable(listing, agreed, how)
    if not agreed.classes:
        agreed = agreed._replace(classes=found_classes(listing))
    return _load(listing, agreed, how)._replace(digest=listing_digest(listing))


def _load(listing: Listing, agreed: Agreed, how: Loading) -> Dataset:
    _check_classes(listing, agreed.classes)
    listing.problems.extend(shared(listing))
    shares = [part for site in listing.sites for part in (site.unlabeled, list(of_all(site.labeled)))]
    shares.append(list(of_all(listing.server)))
    train = [file for share in shares for file in share]
    tests = [list(of_all(files)) for files in (listing.test, *(site.test for site in listing.sites))]
    test = [file for files in tests for file in files]
    images = _images(listing, [*train, *test], agreed, how)
    number = {name: c for c, name in enumerate(agreed.classes)}
    labels = np.array([number.get(file.label or "", UNKNOWN) for file in (*train, *test)], np.int64)
    cuts = [0, *accumulate(map(len, shares))]
    *rows, at_server = [np.arange(first, last) for first, last in pairwise(cuts)]
    n = len(train)
    return Dataset(
        agreed.card(n, len(test)),
        Split(images[:n], labels[:n]),
        Split(images[n:], labels[n:]),
        Partition(labeled=tuple(rows[1::2]), unlabeled=tuple(rows[::2]), server=at_server),
        skipped=tuple(listing.skipped),
        groups=numbered_groups([*((*s.unlabeled, *of_all(s.labeled)) for s in listing.sites), of_all(listing.server)]),
        test_groups=numbered_groups(tests),
        testers=np.repeat(np.arange(-1, len(listing.sites)), [*map(len, tests)]),
        site_names=tuple(site.name for site in listing.sites) or None,
        test_names=tuple(file.name for file in test),
    )


def _usable(listing: Listing, agreed: Agreed, how: Loading) -> Listing:
    """Return the listing without unreadable files, if a run may skip them.

    A file next to the cache stores their names.
    """
    if not agreed.skip_bad:
        return listing
    files = list(listing.files())
    memory = (cache_folder(how.cache) / _name(listing, files, Agreed(()))).with_suffix(BAD)
    bad = read_json(memory).get("bad")
    if not isinstance(bad, dict):
        lines: list[str] = []
        masks = [is_read for _, is_read in _decoded(files, Agreed((), 8), how, lines)]
        is_bad = ~np.concatenate([np.ones(0, bool), *masks])
        bad = {file.name: line for file, line in zip(compress(files, is_bad), lines, strict=True)}
        with disk_errors(memory.parent, 0):
            write_atomic(memory, json.dumps({"bad": bad}), 0o600)
        _remove_older(memory, BAD)
    return remove_files(listing, bad)


def _check_classes(listing: Listing, classes: tuple[str, ...]) -> None:
    """Note folders of classes other than the agreed ones, if there are any."""
    if not classes:
        return
    for folder, name in {class_folder(f): f.label for f in listing.files() if f.label}.items():
        if name not in classes:
            near = get_close_matches(name, classes, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"expected one of {shortened(classes, 10)}"
            listing.problems.append(f"{folder}: '{name}' is not one of the agreed classes; {hint}")


def _images(listing: Listing, files: Sequence[File], agreed: Agreed, how: Loading) -> NDArray[np.uint8]:
    """Return decoded images from the cache; a listing with problems is decoded again, to name all of them."""
    path = cache_folder(how.cache) / _name(listing, files, agreed)

    def batches() -> Iterator[NDArray[np.uint8]]:
        yield from (images for images, _ in _decoded(files, agreed, how, listing.problems))
        raise_problems(listing)

    shape = (len(files), agreed.size, agreed.size, agreed.channels)
    images = cached_images(path, shape, batches, is_private=True, afresh=bool(listing.problems))
    _remove_older(path)
    return images


def _remove_older(path: Path, ending: str = ".npy") -> None:
    """Remove cached images of earlier states of this folder; a process that has them mapped keeps them."""
    place = path.name.rpartition("-")[0]
    for older in path.parent.glob(f"{place}-*.images{ending}"):
        if older != path:
            with suppress(OSError):
                older.unlink()


def raise_problems(listing: Listing, most: int = 20) -> None:
    """Raise one error that lists all problems, if there are any."""
    if listing.problems:
        count = f"{len(listing.problems)} problem{'s' if len(listing.problems) > 1 else ''}"
        raise ProblemsError(f"'{listing.root}' cannot be used, {count}:", listing.problems, most)


def _name(listing: Listing, files: Sequence[File], agreed: Agreed) -> str:
    """Return the name of the cache file: a hash of the place and format, and one of the files.

    A rewritten image has another time. The root's inode distinguishes folders of one name on computers that share a
    cache.
    """
    root = listing.root.resolve()
    place = (str(root), root.stat().st_ino, agreed.size, agreed.channels, bool(listing.sites))
    content = ((file.name, file.num_bytes, file.times) for file in files)
    return f"folder-{_hash([place])}-{_hash(chain([FOLDER_FORMAT], content))}.images.npy"


def _hash(facts: Iterable[object]) -> str:
    digest = hashlib.sha256()
    for fact in facts:
        digest.update(repr(fact).encode())
    return digest.hexdigest()[:32]


def _decoded(files: Sequence[File], agreed: Agreed, how: Loading, problems: list[str]) -> Iterator[Decoded]:
    """Yield images in batches, and whether each could be read; the others are black and added to the problems."""
    decode = partial(_decode, agreed.size, agreed.channels)
    with forked(how.workers if len(files) > PIECE else 1) as pool:
        for first in range(0, len(files), BATCH):
            batch = files[first : first + BATCH]
            pieces = [batch[i : i + PIECE] for i in range(0, len(batch), PIECE)]
            results = map_pieces(pool, decode, pieces)
            problems += [line for *_, wrong in results for line in wrong]
            yield np.concatenate([images for images, *_ in results]), np.concatenate([read for _, read, _ in results])
            if how.progress:
                how.progress("reading images", first + len(batch), len(files))


def _decode(size: int, channels: int, files: Sequence[File]) -> tuple[NDArray[np.uint8], NDArray[np.bool_], list[str]]:
    images, is_read, wrong = np.zeros((len(files), size, size, channels), np.uint8), np.ones(len(files), bool), []
    for i, file in enumerate(files):
        try:
            images[i] = read_picture(file.path, size, channels)
        except PictureError as error:
            is_read[i] = False
            wrong.append(f"{file.name}: {error}")
    return images, is_read, wrong
