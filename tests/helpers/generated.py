"""Tables and lists that files show between two marks, and what writes them."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from . import method_tables

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


class Generated(NamedTuple):
    """A table or a list that a file shows between two marks, and what writes it."""

    page: Path
    name: str
    write: Callable[[], str]

    def split(self) -> tuple[str, str, str]:
        """The page before the table, the table, and what follows."""
        line = "<!-- {} -->" if self.page.suffix == ".md" else "      # {}"
        start, end = line.format(self.name) + "\n", line.format(f"end of {self.name}")
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
    Generated(DOCS / "methods.md", "what goes with what", method_tables.goes_with),
    Generated(DOCS / "methods" / "sage.md", "hosts", method_tables.hosts),
    Generated(DOCS / "methods" / "sage.md", "methods without plug-ins", method_tables.refusing),
    Generated(ROOT / "mkdocs.yml", "pages of methods", method_tables.menu),
]
