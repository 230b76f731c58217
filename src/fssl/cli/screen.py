"""The one console that all commands print to."""

from ..system.terminal import Screen

console = Screen()


def say(text: str) -> None:
    """Print a line without markup, colors or wrapping."""
    from ..console import say as show

    show(console, text)
