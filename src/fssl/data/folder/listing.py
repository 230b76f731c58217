"""List the images in a folder, by client and class, and all its problems.

A site is `labeled/CLASS/*`, `unlabeled/*` and `test/CLASS/*`, each of them optional. A federation on one machine is
`clients/NAME/`, one site each, and the server's images: `test/CLASS/*` and, if the server has the labels,
`server/CLASS/*`. Images that are dealt out later are `train/CLASS/*` and `test/CLASS/*`, or `val/CLASS/*`. Below a
class, and below `unlabeled`, there may be folders at any depth, such as one for each patient.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from ...errors import UserError
from .pictures import SUFFIXES, is_image

ROLES = ("labeled", "unlabeled", "test")
TESTS = ("test", "val", "valid", "validation")  # names of the test folder, best first
SPLIT_OFF = "data.test_share, such as 0.2, to split some off"
NOT_OURS = ("thumbs.db", "desktop.ini")  # file managers create them, like names that start with a dot


class File(NamedTuple):
    """One image: its path, its name relative to the root, its class, its size, and its times of change."""

    path: Path
    name: str
    label: str | None
    num_bytes: int
    times: tuple[int, int]


ByClass = dict[str, list[File]]


class SiteFiles(NamedTuple):
    """The files of one client."""

    name: str
    labeled: ByClass
    unlabeled: list[File]
    test: ByClass


class Listing(NamedTuple):
    """The files of all clients and of the server, and one line per problem."""

    root: Path
    sites: list[SiteFiles]
    test: ByClass
    problems: list[str]
    skipped: Sequence[str] = ()  # files that were skipped, if that is allowed, with reasons
    server: ByClass = {}  # its labeled images, if it has the labels  # noqa: RUF012 (never changed in place)
    warnings: Sequence[str] = ()  # of what may be wrong

    def files(self) -> Iterator[File]:
        for site in self.sites:
            yield from site.unlabeled
            yield from of_all(site.labeled)
            yield from of_all(site.test)
        yield from of_all(self.server)
        yield from of_all(self.test)


def of_all(files: ByClass) -> Iterator[File]:
    for members in files.values():
        yield from members


def is_federation(root: Path) -> bool:
    """Return whether a folder holds several clients, rather than one site's images."""
    return (root / "clients").is_dir() or not any((root / role).is_dir() for role in ROLES)


def is_site(root: Path) -> bool:
    return not (is_federation(root) or (root / "train").is_dir())


def listed(root: Path) -> Listing:
    """List a folder of any of the three kinds."""
    if is_site(root):
        return list_site(root)
    if (root / "train").is_dir():
        return list_classes(root, splits=True)
    return list_federation(root, at_server=(root / "server").is_dir() and not any(root.glob("clients/*/labeled")))


def list_classes(root: Path, skip_bad: bool = False, splits: bool = False) -> Listing:
    """List `train/CLASS/*` as the labeled images of a single site that holds all of them.

    Test images are in the first existing folder of TESTS; with `splits`, there may be none, since a run splits them
    off.
    """
    walk = Walk(root, skip_bad)
    known = {p.name: p for p in walk.folders(root)}
    test = next((name for name in TESTS if name in known), "test")
    parts = {name: walk.by_class(known.get(name)) for name in ("train", test)}
    for name, files in parts.items():
        if not any(of_all(files)) and not (splits and name not in known):
            share = "" if name in known or name == "train" else f", or {SPLIT_OFF}"
            walk.note(root, f"no images in {name}, expected some in {name}/CLASS/*{share}")
    return Listing(
        root, [SiteFiles("(to be dealt out)", parts["train"], [], {})], parts[test], walk.problems, walk.skipped
    )


def list_site(root: Path, skip_bad: bool = False, at_server: bool = False) -> Listing:
    walk = Walk(root, skip_bad)
    site = walk.site(root)
    if at_server:
        walk.reject_labels(root, site)
    return Listing(root, [site], {}, walk.problems, walk.skipped)


def list_server(root: Path, skip_bad: bool = False, at_server: bool = False) -> Listing:
    """List only the server's images: `test/CLASS/*` and, if it has the labels, `server/CLASS/*`."""
    walk = Walk(root, skip_bad)
    known = {p.name: p for p in walk.folders(root)}
    test = walk.by_class(known.get("test"))
    if not any(of_all(test)):
        walk.note(root, "no test images, expected some in test/CLASS/*")
    return Listing(root, [], test, walk.problems, walk.skipped, walk.server(known.get("server"), at_server))


def list_images(path: Path) -> Listing:
    """List every image below a folder, or a single one, as a site without labels. Other files are skipped."""
    if not path.exists():
        raise UserError(f"'{path}': no such file or folder; expected images")
    walk = Walk(path if path.is_dir() else path.parent)
    if path.is_file() and not is_image(path):
        raise UserError(f"'{path}' has no image suffix, expected {', '.join(SUFFIXES)}")
    files = [file for file in (walk.below(path) if path.is_dir() else [walk.image(path, None)]) if file]
    if not files and not walk.problems:
        walk.note(walk.root, f"no image, expected {', '.join(SUFFIXES)}")
    return Listing(walk.root, [SiteFiles("", {}, files, {})], {}, walk.problems, walk.skipped)


def list_federation(root: Path, skip_bad: bool = False, at_server: bool = False) -> Listing:
    if not is_federation(root):
        raise UserError(f"'{root}' is the folder of a single site; expected {root}/clients/NAME/labeled/CLASS/*")
    walk = Walk(root, skip_bad)
    known = {p.name: p for p in walk.folders(root)}
    for name in sorted(known.keys() - {"clients", "test"}):
        near = get_close_matches(name.lower(), ("clients", "test"), 1, 0.8)
        if name in ROLES:
            walk.note(known[name], "belongs to a client; move it into clients/NAME")
        elif near:  # other entries are allowed: records of runs, for example
            walk.note(known[name], f"did you mean '{near[0]}'?")
    sites = [walk.site(p) for p in walk.distinct(walk.folders(known["clients"]))] if "clients" in known else []
    if not sites:
        walk.note(root, "no clients, expected clients/NAME/labeled/CLASS/* and clients/NAME/unlabeled/*")
    test = walk.by_class(known.get("test"))
    if not any(of_all(test)) and not any(any(of_all(site.test)) for site in sites):
        walk.note(root, "no test images, expected some in test/CLASS/* or clients/NAME/test/CLASS/*")
    if at_server:
        for site in sites:
            walk.reject_labels(known["clients"] / site.name, site)
    elif sites and not any(any(of_all(site.labeled)) for site in sites):
        walk.note(
            root,
            "no client has a labeled image, expected some in clients/NAME/labeled/CLASS/*, or in server/CLASS/* with"
            " partition.labels = 'server'",
        )
    return Listing(root, sites, test, walk.problems, walk.skipped, walk.server(known.get("server"), at_server))


def normalize_name(name: str) -> str:
    """Normalize a name's Unicode: some file systems write an accent as a separate character."""
    return unicodedata.normalize("NFC", name)


class Walk:
    """A walk through a folder in an order independent of the file system. It collects problems instead of raising."""

    def __init__(self, root: Path, skip_bad: bool = False) -> None:
        if not root.is_dir():
            where = "" if root.is_absolute() else f" in {Path.cwd()}"  # a run may be started in another folder
            raise UserError(f"'{root}' is not a folder{where}; expected one with images, see `fssl docs own-images`")
        self.root, self.inside, self.skip_bad = root, root.resolve(), skip_bad
        self.problems: list[str] = []
        self.skipped: list[str] = []

    def skip(self, path: Path, why: str) -> None:
        self.skipped.append(f"{self.name(path)}: {why}")

    def bad(self, path: Path, what: str) -> None:
        """Note or skip, as the settings say, a bad file or a folder without files."""
        (self.skip if self.skip_bad else self.note)(path, what)

    def note(self, path: Path, what: str) -> None:
        self.problems.append(f"{self.name(path)}: {what}")

    def name(self, path: Path) -> str:
        return normalize_name(path.relative_to(self.root).as_posix())

    def entries(self, folder: Path) -> list[Path]:
        try:
            found = sorted(folder.iterdir(), key=lambda p: (normalize_name(p.name), p.name))
        except OSError as error:
            self.note(folder, f"cannot be read ({error.strerror})")
            return []
        visible = [p for p in found if not p.name.startswith(".") and p.name.lower() not in NOT_OURS]
        return [p for p in visible if self.is_sound(p)]

    def is_sound(self, path: Path) -> bool:
        """Return whether a name is printable and, for a link, whether its target is below the root."""
        if not path.name.isprintable():
            self.note(path.parent, f"the name {path.name!a} is not plain text; rename it")
            return False
        try:
            target = path.resolve(strict=True) if path.is_symlink() else self.inside
        except (OSError, RuntimeError):  # a missing target, or a circle
            self.bad(path, "a broken link")
            return False
        if not target.is_relative_to(self.inside):
            complain = self.note if target.is_dir() else self.bad
            complain(path, f"a link to {target}, outside the folder; copy the files instead")
            return False
        return True

    def folders(self, folder: Path) -> list[Path]:
        """Return the folders in a folder; note images among them as problems."""
        found = self.entries(folder)
        for path in found:
            if path.is_file() and is_image(path):
                self.note(path, "an image in the wrong place")
        return [p for p in found if p.is_dir()]

    def distinct(self, folders: list[Path]) -> list[Path]:
        """Remove entries whose names look the same as another's."""
        seen: dict[str, Path] = {}
        for path in folders:
            twin = seen.setdefault(normalize_name(path.name).strip().casefold(), path)
            if twin is not path:
                self.note(path, f"differs from {twin.name!r} only in case, spaces or accents; merge them")
        return list(seen.values())

    def images(self, folder: Path, label: str | None = None) -> list[File]:
        """Return the images at any depth below a folder."""
        files, waiting = [], [folder]  # the next one last; recursion would reach Python's limit
        while waiting:
            path = waiting.pop()
            if path is folder or (path.is_dir() and not path.is_symlink()):
                found = self.entries(path)
                if not found:
                    self.bad(path, "an empty folder; add images or remove it")
                waiting += reversed(found)
            elif file := self.image(path, label):
                files.append(file)
        return files

    def below(self, folder: Path) -> Iterator[File | None]:
        """Yield the images below a folder; skip links to folders, whose images are listed at their own place."""
        waiting = [folder]
        while waiting:
            path = waiting.pop()
            if path is folder or (path.is_dir() and not path.is_symlink()):
                waiting += reversed(self.entries(path))
            elif path.is_dir():
                self.skip(path, "a link to a folder")
            elif is_image(path):
                yield self.image(path, None)
            else:
                self.skip(path, "no image suffix")

    def image(self, path: Path, label: str | None) -> File | None:
        if path.is_dir():
            self.bad(path, "a link to a folder, expected images")
        elif not path.is_file():
            self.bad(path, "not an ordinary file")
        elif not is_image(path):
            self.bad(path, f"no image suffix, expected {', '.join(SUFFIXES)}")
        else:
            stat = path.stat()
            return File(path, self.name(path), label, stat.st_size, (stat.st_mtime_ns, stat.st_ctime_ns))
        return None

    def by_class(self, folder: Path | None) -> ByClass:
        if folder is None:
            return {}
        found = self.folders(folder)
        if not found:
            self.note(folder, "a folder without classes; add class folders or remove it")
        return {normalize_name(p.name): self.images(p, normalize_name(p.name)) for p in self.distinct(found)}

    def site(self, folder: Path) -> SiteFiles:
        known = {p.name: p for p in self.folders(folder)}
        for name in sorted(known.keys() - set(ROLES)):
            near = get_close_matches(name.lower(), ROLES, 1)
            self.note(known[name], f"did you mean '{near[0]}'?" if near else f"expected only {', '.join(ROLES)}")
        labeled, test = self.by_class(known.get("labeled")), self.by_class(known.get("test"))
        unlabeled = self.images(known["unlabeled"]) if "unlabeled" in known else []
        if not (unlabeled or any(of_all(labeled))):
            self.note(folder, "no images to train on, expected some in labeled/CLASS/* or unlabeled/*")
        return SiteFiles(normalize_name(folder.name or folder.resolve().name), labeled, unlabeled, test)

    def server(self, folder: Path | None, at_server: bool) -> ByClass:
        """Return the server's labeled images; without any it is a problem if the server has the labels."""
        files = self.by_class(folder) if at_server else {}
        if at_server and not any(of_all(files)):
            self.note(self.root, "no labeled images of the server, expected some in server/CLASS/*")
        return files

    def reject_labels(self, folder: Path, site: SiteFiles) -> None:
        """Note a client's labeled images as a problem if only the server has labels."""
        if any(of_all(site.labeled)):
            self.note(
                folder,
                "has labeled images, but partition.labels = 'server'; move them to unlabeled, or remove the setting",
            )
