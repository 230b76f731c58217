"""Errors that a user can fix, each reported in one line."""

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches

LONGEST = 1000  # characters of a line on the error stream
COMPLAINT = "fssl: "  # the prefix of a line
MOST_LISTED = 30  # names that are listed together with a hint


class FsslError(Exception):
    """An error whose message is for the user.

    The first argument is the message. Any others name arguments or settings that help, by their Python names; the
    command line adds the matching options.
    """

    code = 1

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UserError(FsslError, ValueError):
    """Bad input. The command line prints the message as one line and exits with code 2."""

    code = 2


class ProblemsError(UserError):
    """Several problems at once: a headline, a line for each of the first problems, and the number of the others."""

    def __init__(self, headline: str, problems: Sequence[str] = (), most: int = 20, code: int = 2) -> None:
        """Store the headline and problems; code 1 means that everything else was done."""
        self.code = code
        lines = [" ".join(line.splitlines()) for line in problems[:most]]
        rest = len(problems) - len(lines)
        super().__init__("\n  ".join([headline, *lines, *([f"and {rest} more"] if rest else [])]))


class RunError(FsslError, RuntimeError):
    """A failed run whose input was valid: diverged training, a full disk. Exit code 1."""


def unknown(what: str, given: object, known: Iterable[str], elsewhere: Iterable[str] = ()) -> UserError:
    """Return an error like `method 'flexmatc' is unknown; did you mean 'flexmatch'? (known: ...)`.

    A long list of known names is omitted if there is a suggestion.
    """
    names = sorted(known, key=lambda name: ("/" in name, name))  # presets in folders last
    near = list(elsewhere) or nearest(str(given).lower(), names)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    listed = "" if near and len(names) > MOST_LISTED else f" (known: {', '.join(names)})"
    return UserError(f"{what} '{given}' is unknown{hint}{listed}")


def nearest(given: str, names: Sequence[str]) -> list[str]:
    """Return the names that begin with the given one if they are few, otherwise the most similar one."""
    longer = [name for name in names if name.startswith(given)]
    if longer:
        return longer if len(longer) <= 3 else []
    return get_close_matches(given, names, n=1)


def shortened(names: Sequence[str], most: int) -> str:
    """Return `a, b, c and 7 more`."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def any_of(texts: Iterable[str]) -> str:
    """Return `a, b or c`."""
    *others, last = texts
    return f"{', '.join(others)} or {last}" if others else last


def several(number: int, thing: str) -> str:
    """Return `1 round` or `8 rounds`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def as_typed(value: object) -> str:
    """Return a setting's value as in a file or after --set: `true`, `'x'`, `0.5`."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def error_text(error: BaseException) -> str:
    """Return `KeyError: 'x'` in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def escape_unprintable(text: str) -> str:
    r"""Return the text with only visible characters and spaces, others escaped, so that a terminal cannot obey it."""
    return text if text.isprintable() else "".join(c if c.isprintable() else escaped(c) for c in text)


def escaped(character: str) -> str:
    r"""Return `\n`, `\x1b` or `\u202e`; `\xe9` for a byte that is not UTF-8, which Python reads as a surrogate."""
    byte = ord(character) - 0xDC00
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else character.encode("unicode_escape").decode()


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out."""
    # PyTorch has an exception class for it on a GPU; on a CPU only the message shows it.
    said_so = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return said_so or isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def complain(message: str) -> None:
    """Write one line to the error stream; cut the middle out of a very long message."""
    line = escape_unprintable(" ".join(message.splitlines()))
    if len(line) > LONGEST:
        line = f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"
    with suppress(AttributeError, OSError):  # no reader: the stream is closed, or its disk is full
        sys.stderr.write(f"{COMPLAINT}{line}\n")
