"""Tables that pages show between two marks, and what writes them."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from . import method_tables

DOCS = Path(__file__).parents[2] / "docs"


class Generated(NamedTuple):
    """A table that a page shows between two marks, and what writes it."""

    page: Path
    name: str
    write: Callable[[], str]

    def split(self) -> tuple[str, str, str]:
        """The page before the table, the table, and what follows."""
        start, end = f"<!-- {self.name} -->\n", f"<!-- end of {self.name} -->"
        before, _, rest = self.page.read_text().partition(start)
        inside, _, after = rest.partition(end)
        return before + start, inside, end + after

    def renew(self) -> bool:
        """Write the table into its page; return whether anything changed."""
        before, old, after = self.split()
        new = self.write()
        if new != old:
            self.page.write_text(before + new + after)
        return new != old


OF_METHODS = [
    Generated(DOCS / "methods.md", "methods", method_tables.overview),
    Generated(DOCS / "methods.md", "what goes with what", method_tables.compatibility_facts),
]
