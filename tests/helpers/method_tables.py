"""The tables about methods on the pages, written from what is known of every method (`make regenerate`)."""

from collections.abc import Iterable, Sequence

from fssl.catalog.entries import entries, entry, footnote, keeps, source, step_cost, traffic
from fssl.catalog.facts import registry


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    first, *others = (f"| {' | '.join(cells)} |\n" for cells in (head, *rows))
    return "".join([first, "|" + "---|" * len(head) + "\n", *others])


def overview() -> str:
    """All methods, as `fssl methods` has them."""
    rows = []
    for e in entries():
        name = f"[`{e.name}`](methods/{e.source.page}.md)" if e.source else f"`{e.name}`"
        paper, follows = source(e)
        rows.append([name, e.about, paper, keeps(e), traffic(e), step_cost(e), follows])
    head = ["name", "what it does", "paper", "keeps", "MB down / up", "step", "follows"]
    return f"{markdown(head, rows)}\n{footnote()}\n"


def compatibility_facts() -> str:
    """What each method supports."""
    rows = {name: entry(name).compatibility_facts for name in registry().methods}
    head = ["method", *next(iter(rows.values()))]
    return markdown(head, ([f"`{name}`", *row.values()] for name, row in rows.items()))
