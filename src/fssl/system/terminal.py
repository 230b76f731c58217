"""The terminal: text is shown there as it is, and never obeyed."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from ..errors import printable


class Screen(Console):
    """A console on which no name is taken for markup, an emoji or a command to the terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """A string as text to measure and to print."""
        return super().render_str(by_line(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The parts of anything printed: all of it passes here, whoever made its text."""
        for part in super().render(renderable, options):
            yield part if part.control else Segment(by_line(part.text), part.style)


def by_line(text: str) -> str:
    """Printable text that keeps its lines."""
    return "\n".join(map(printable, text.split("\n")))
