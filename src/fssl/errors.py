"""What goes wrong for reasons a user can fix, and how it is said: in one line."""

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches

LONGEST = 1000  # characters of a line on the error stream
COMPLAINT = "fssl: "  # how it begins
MOST_LISTED = 30  # names that are listed beside a hint


class FsslError(Exception):
    """An error whose message is for the user.

    The first argument is the message. Any others name arguments or settings that help, as Python calls them: the
    command line adds its options.
    """

    code = 1

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UserError(FsslError, ValueError):
    """Bad input. The command line prints the message as one line and exits with code 2."""

    code = 2


class ProblemsError(UserError):
    """Several things wrong at once: a headline, then a line for each of the first, and how many more there are."""

    def __init__(self, headline: str, problems: Sequence[str] = (), most: int = 20, code: int = 2) -> None:
        """Code 1 says that everything else was done."""
        self.code = code
        lines = [" ".join(line.splitlines()) for line in problems[:most]]
        rest = len(problems) - len(lines)
        super().__init__("\n  ".join([headline, *lines, *([f"and {rest} more"] if rest else [])]))


class RunError(FsslError, RuntimeError):
    """A run that cannot go on, though its input was fine: training blew up, the disk is full. Exit code 1."""


def unknown(what: str, given: object, known: Iterable[str], elsewhere: Iterable[str] = ()) -> UserError:
    """`method 'flexmatc' is unknown; did you mean 'flexmatch'? (known: ...)`; a long list is left out beside a hint."""
    names = sorted(known, key=lambda name: ("/" in name, name))  # presets in folders last
    near = list(elsewhere) or nearest(str(given).lower(), names)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    listed = "" if near and len(names) > MOST_LISTED else f" (known: {', '.join(names)})"
    return UserError(f"{what} '{given}' is unknown{hint}{listed}")


def nearest(given: str, names: Sequence[str]) -> list[str]:
    """What may be meant: those that begin like this, if they are few, else one that looks like it."""
    longer = [name for name in names if name.startswith(given)]
    if longer:
        return longer if len(longer) <= 3 else []
    return get_close_matches(given, names, n=1)


def shortened(names: Sequence[str], most: int) -> str:
    """`a, b, c and 7 more`."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def several(number: int, thing: str) -> str:
    """`1 round`, `8 rounds`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def as_typed(value: object) -> str:
    """A setting's value as it stands in a file or after --set: `true`, `'x'`, `0.5`."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def described(error: BaseException) -> str:
    """`KeyError: 'x'`, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def printable(text: str) -> str:
    r"""Text that a terminal shows and does not obey: what is no visible character or space is escaped, as `\x1b` is."""
    return text if text.isprintable() else "".join(c if c.isprintable() else escaped(c) for c in text)


def escaped(character: str) -> str:
    r"""`\n`, `\x1b` or `\u202e`; a byte of a name that is not UTF-8, which Python reads as a surrogate, is `\xe9`."""
    byte = ord(character) - 0xDC00
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else character.encode("unicode_escape").decode()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out. Torch has a class for it on a GPU; on a CPU only its words tell."""
    said_so = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return said_so or isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def complain(message: str) -> None:
    """One line on the error stream, whatever the message holds; the middle of a very long one is left out."""
    line = printable(" ".join(message.splitlines()))
    if len(line) > LONGEST:
        line = f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"
    with suppress(AttributeError, OSError):  # nobody listens: the stream is closed, or its disk is full
        sys.stderr.write(f"{COMPLAINT}{line}\n")
