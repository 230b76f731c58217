"""Write everything that is generated from the source: `make regenerate`.

Facts about methods, tables on pages, and the golden rounds and costs of methods that have none yet.
`make regenerate METHODS="uda sage"` also makes the golden rounds and costs of these methods anew.
"""

import sys
from collections.abc import Collection, Iterator
from importlib.util import find_spec

import torch
from rich.console import Console

from fssl.bench.methods import run_method_bench
from fssl.catalog import facts
from fssl.catalog.entries import COSTS, costs, read_costs

from .generated import DOCS, Generated
from .method_facts import facts_text

ROUNDS = 9  # of a client, for the cost of a step


def regenerate(again: Collection[str] = ()) -> None:
    """Write what is generated, and make the measured parts of some methods anew."""
    facts.FILE.write_text(facts_text())  # first: all that follows reads it
    facts.registry.cache_clear()
    add_costs(again)
    torch.set_num_threads(1)
    from . import benchmark_page, golden

    benchmark_page.write_entries()
    golden.write(again)
    from test_docs import GENERATED, RESULTS, draw_pictures

    changed = [part for part in (*GENERATED, *bytes_of_messages()) if part.renew()]
    if any(part.page.is_relative_to(RESULTS) or part.name == "leaderboard" for part in changed):
        draw_pictures()


def add_costs(again: Collection[str]) -> None:
    if missing := [name for name in facts.registry().methods if name not in costs() or name in again]:
        run_method_bench(Console(), "demo", missing, ROUNDS, COSTS, [])
        read_costs.cache_clear()


def bytes_of_messages() -> Iterator[Generated]:
    """The table of what Flower sends; left as it is where Flower is not installed."""
    if find_spec("flwr"):
        from .flower_costs import bytes_table

        yield Generated(DOCS.parent / "results" / "README.md", "bytes", bytes_table)


if __name__ == "__main__":
    regenerate(sys.argv[1:])
