"""Split a listing: remove some files, or split off test images that share no patient with the rest."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath

import numpy as np
from numpy.typing import NDArray

from ...errors import UserError
from .listing import ByClass, File, Listing, of_all

Keep = Callable[[File], bool]


def class_folder(file: File) -> PurePath:
    """Return the folder of a labeled image's class; the image may be deeper."""
    return next((p for p in PurePath(file.name).parents if p.name == file.label), PurePath(file.name).parent)


def group_of(file: File) -> str:
    """Return an image's group: its folder below the class or below `unlabeled`, otherwise the image itself.

    Folders of one name below two classes are one group: a patient may have images of several classes.
    """
    path = PurePath(file.name)
    home = class_folder(file) if file.label else next((p for p in path.parents if p.name == "unlabeled"), path.parent)
    below = path.relative_to(home).parts
    return f"{below[0]}/" if len(below) > 1 else file.name


def numbered_groups(parts: Iterable[Iterable[File]]) -> NDArray[np.int64]:
    """Return each image's group number; equal names at two sites are different groups."""
    number: dict[tuple[int, str], int] = {}
    names = ((k, group_of(file)) for k, files in enumerate(parts) for file in files)
    return np.array([number.setdefault(name, len(number)) for name in names], np.int64)


def split_off(listing: Listing, share: float) -> Listing:
    """Return the listing of one site with a share of each class's images as test images; groups stay intact."""
    (site,) = listing.sites
    if any(of_all(listing.test)):
        raise UserError(f"data.test_share = {share}: '{listing.root}' already has test images; remove the setting")
    tested = groups_for_test(list(of_all(site.labeled)), share)
    test = kept(site.labeled, lambda file: group_of(file) in tested)
    rest = kept(site.labeled, lambda file: group_of(file) not in tested)
    for name, files in site.labeled.items():
        if files and not (test[name] and rest[name]):  # an empty folder is skipped, or a problem of its own
            why = f"class '{name}' has too few folders (of patients, for example) or images to split"
            raise UserError(f"data.test_share = {share}: {why}")
    return listing._replace(sites=[site._replace(labeled=rest)], test=test)


def groups_for_test(files: Iterable[File], share: float) -> set[str]:
    """Choose groups in an order that depends on names only, class by class, until each class has enough images."""
    sizes: dict[str, Counter[str]] = defaultdict(Counter)  # of each class: images by group
    for file in files:
        sizes[file.label or ""][group_of(file)] += 1
    tested: set[str] = set()
    for label in sorted(sizes):
        groups, wanted = sorted(sizes[label]), share * sizes[label].total()
        have = sum(sizes[label][group] for group in tested)
        for i in np.random.RandomState(0).permutation(len(groups)):
            if have >= wanted:
                break
            if groups[i] not in tested:
                tested.add(groups[i])
                have += sizes[label][groups[i]]
    return tested


def remove_files(listing: Listing, bad: Mapping[str, str]) -> Listing:
    """Return the listing without these files; their reasons are added to `skipped`."""

    def good(file: File) -> bool:
        return file.name not in bad

    sites = [
        site._replace(
            labeled=kept(site.labeled, good), unlabeled=list(filter(good, site.unlabeled)), test=kept(site.test, good)
        )
        for site in listing.sites
    ]
    skipped = [*listing.skipped, *bad.values()]
    for site in sites:
        if not (site.unlabeled or any(of_all(site.labeled))):
            listing.problems.append(f"{site.name}: no readable image to train on")
    test, server = (kept(files, good) for files in (listing.test, listing.server))
    if listing.server and not any(of_all(server)):
        listing.problems.append("server: no readable labeled image")
    return listing._replace(sites=sites, test=test, skipped=skipped, server=server)


def kept(files: ByClass, keep: Keep) -> ByClass:
    return {name: [file for file in members if keep(file)] for name, members in files.items()}
