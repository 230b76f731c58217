"""The tables about methods on the pages, written from what is known of every method (`make regenerate`)."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from fssl.catalog.entries import entries, entry, footnote, keeps, source, step_cost, traffic
from fssl.catalog.facts import registry

PAGES = Path(__file__).parents[2] / "docs" / "methods"


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
    """What each method goes with."""
    rows = {name: entry(name).compatibility_facts for name in registry().methods}
    head = ["method", *next(iter(rows.values()))]
    return markdown(head, ([f"`{name}`", *row.values()] for name, row in rows.items()))


def hosts() -> str:
    """Methods that take SAGE as a plug-in, with what their pages say of the pair."""
    rows = []
    for name, facts in registry().methods.items():
        if facts.source and "sage" not in facts.refuses:
            remark = "SAGE itself" if "sage" in facts.same else said_of(name, facts.source.page)
            rows.append([f"[`{name}`](methods/{facts.source.page}.md)", remark])
    return markdown(["host", "what becomes of it"], rows)


def said_of(name: str, page: str) -> str:
    """The first sentence of the item `NAME+sage` on a method's page."""
    item = re.search(
        rf"^- `{re.escape(name)}\+sage`: (.*?)\.\s", (PAGES / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL
    )
    return " ".join(item[1].split()) if item else "–"
