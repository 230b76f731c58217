"""What a folder of images holds, as a table: to look at before training."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from ..config import Data, check_value, read_toml, schema_of
from ..console import RunView, say
from ..data.cache import Loading
from ..data.cards import check_class_names
from ..data.folder.listing import SPLIT_OFF, ByClass, is_site, of_all
from ..data.folder.load import check, raise_problems
from ..errors import UserError
from ..system.machine import cores


def agreed_classes(source: str) -> tuple[str, ...]:
    """The classes that a run's settings name; nothing else of them is looked at."""
    table = read_toml(source).get("data")
    names = table.get("classes") if isinstance(table, Mapping) else None
    if names is None:
        raise UserError(f'{source}: data.classes is missing: the classes that sites agree on, e.g. ["cat", "dog"]')
    classes: tuple[str, ...] = check_value("data.classes", names, schema_of(Data)["classes"], f"{source}: ")
    check_class_names(f"{source}: data.classes", classes)
    return classes


def print_folder(console: Console, root: Path, agreed: tuple[str, ...] = ()) -> None:
    """Images by client and class; then every problem, if there are any, other classes than the agreed ones too."""
    with RunView(console, "images", transient=True) as view:
        listing = check(root, agreed, Loading(progress=view.loading(), workers=cores()))
    client, labeled, test = (Column(name, overflow="fold") for name in ("client", "labeled", "test"))
    table = Table(client, labeled, Column("unlabeled", justify="right"), test)
    for site in listing.sites:
        table.add_row(site.name, counts(site.labeled), str(len(site.unlabeled)), counts(site.test))
    if listing.test or listing.server:
        table.add_row("(server)", counts(listing.server) if listing.server else "", "", counts(listing.test))
    console.print(table)
    raise_problems(listing, most=len(listing.problems))
    found = {name for files in (listing.server, *(s.labeled for s in listing.sites)) for name in files}
    say(console, f"{labeled_classes(found, agreed)}. No problems.")
    if not is_site(root) and not any(any(of_all(files)) for files in (listing.test, *(s.test for s in listing.sites))):
        say(console, f"No test images: a run needs some in test/CLASS/*, or {SPLIT_OFF}.")


def labeled_classes(labeled: set[str], agreed: tuple[str, ...]) -> str:
    """Of which classes there are labeled images, and of which of the agreed ones there are none."""
    if not labeled:
        return "No labels: this site trains on unlabeled images alone"  # of several sites that would be a problem
    if not agreed:
        return f"{len(labeled)} classes: {', '.join(sorted(labeled))}"
    found, missing = ([name for name in agreed if (name in labeled) == there] for there in (True, False))
    without = f"; without labeled images, which is allowed: {', '.join(missing)}" if missing else ""
    return f"{len(found)} of {len(agreed)} agreed classes: {', '.join(found)}{without}"


def counts(files: ByClass) -> str:
    """`25 (cat: 12 · dog: 13)`."""
    each = " · ".join(f"{name}: {len(members)}" for name, members in files.items())
    return f"{sum(map(len, files.values()))} ({each})" if files else "–"
