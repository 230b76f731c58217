"""What a folder of images holds, as a table: to look at before training."""

from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from ..console import RunView, say
from ..data.folder import Loading, check, raise_problems
from ..data.listing import SPLIT_OFF, ByClass, is_site, of_all
from ..system.machine import cores


def print_folder(console: Console, root: Path) -> None:
    """Images by client and class; then every problem, if there are any."""
    with RunView(console, "images", transient=True) as view:
        listing = check(root, Loading(progress=view.loading(), workers=cores()))
    client, labeled, test = (Column(name, overflow="fold") for name in ("client", "labeled", "test"))
    table = Table(client, labeled, Column("unlabeled", justify="right"), test)
    for site in listing.sites:
        table.add_row(site.name, counts(site.labeled), str(len(site.unlabeled)), counts(site.test))
    if listing.test or listing.server:
        table.add_row("(server)", counts(listing.server) if listing.server else "", "", counts(listing.test))
    console.print(table)
    raise_problems(listing, most=len(listing.problems))
    classes = sorted({name for labeled in (listing.server, *(s.labeled for s in listing.sites)) for name in labeled})
    alone = "No labels: this site trains on unlabeled images alone"  # of several sites that would be a problem
    found = f"{len(classes)} classes: {', '.join(classes)}" if classes else alone
    say(console, f"{found}. No problems.")
    if not is_site(root) and not any(any(of_all(files)) for files in (listing.test, *(s.test for s in listing.sites))):
        say(console, f"No test images: a run needs some in test/CLASS/*, or {SPLIT_OFF}.")


def counts(files: ByClass) -> str:
    """`25 (cat: 12 · dog: 13)`."""
    each = " · ".join(f"{name}: {len(members)}" for name, members in files.items())
    return f"{sum(map(len, files.values()))} ({each})" if files else "–"
