"""The tables about methods on the pages, written from what is known of every method (`make regenerate`)."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from fssl.catalog.entries import entries, footnote, keeps, source, step_cost, traffic
from fssl.catalog.facts import MethodFacts, Traits, registry

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


def goes_with() -> str:
    """What each method goes with."""
    head = ["method", "`+sage`, `+oracle`", "labels at the server", "`train.labels_alone`"]
    head += ["`privacy.*`", "sure from", "further losses"]
    return markdown(head, ([f"`{name}`", *traits_of(facts)] for name, facts in registry().methods.items()))


def traits_of(facts: MethodFacts) -> list[str]:
    traits = facts.traits
    assert traits
    plugins = "yes" if not facts.refuses else "no" if len(facts.refuses) > 1 else "`+oracle`"
    alone = {"yes": "yes", "always": "always so", "no": "no"}[traits.labels_alone]
    losses = ", ".join(f"`{name}`" for name in traits.terms) or "–"
    return [plugins, is_yes(traits.at_server), alone, is_yes(traits.plain_mean), sure_from(facts, traits), losses]


def is_yes(value: bool) -> str:
    return "yes" if value else "no"


def sure_from(facts: MethodFacts, traits: Traits) -> str:
    """The confidence from which records count a prediction as sure, and whether it is a setting."""
    if traits.sure_from is None:
        return "–"
    return f"`tau` {traits.sure_from:g}" if "tau" in facts.settings else f"{traits.sure_from:g}"


def hosts() -> str:
    """Methods that take SAGE as a plug-in, with what their pages say of the pair."""
    rows = []
    for name, facts in registry().methods.items():
        if facts.source and "sage" not in facts.refuses:
            remark = "SAGE itself" if "sage" in facts.same else said_of(name, facts.source.page)
            rows.append([f"[`{name}`]({facts.source.page}.md)", remark])
    return markdown(["host", "what becomes of it"], rows)


def said_of(name: str, page: str) -> str:
    """The first sentence of the item `NAME+sage` on a method's page."""
    item = re.search(
        rf"^- `{re.escape(name)}\+sage`: (.*?)\.\s", (PAGES / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL
    )
    return " ".join(item[1].split()) if item else "–"


def refusing() -> str:
    """Methods that refuse the plug-ins."""
    return ", ".join(f"`{name}`" for name, facts in registry().methods.items() if "oracle" in facts.refuses) + "\n"


def menu() -> str:
    """The pages of methods in the site's menu."""
    pages = dict.fromkeys(facts.source.page for facts in registry().methods.values() if facts.source)
    return "".join(f"      - docs/methods/{page}.md\n" for page in pages)
