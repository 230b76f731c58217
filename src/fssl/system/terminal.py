"""The terminal: text is shown verbatim, and never interpreted."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from ..errors import escape_unprintable


class Screen(Console):
    """A console that interprets no text as markup, an emoji or a terminal command."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string as text to measure and to print."""
        return super().render_str(by_line(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render anything printed; all output passes here."""
        for part in super().render(renderable, options):
            yield part if part.control else Segment(by_line(part.text), part.style)


def by_line(text: str) -> str:
    """Make text printable, keeping its lines."""
    return "\n".join(map(escape_unprintable, text.split("\n")))
