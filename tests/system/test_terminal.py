"""What reaches a terminal: names of others are shown there, and never obeyed."""

import io
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from fssl.console import GridView, RunView, print_table, say
from fssl.errors import LONGEST, complain, escape_unprintable
from fssl.system.terminal import Screen
from helpers.small import tiny_config

HOSTILE = "a\x1b[31m\x1b]0;owned\x07\x9b2J\r\x08\u202e\u2066[/][bold]:smile:b"
SHOWN = r"a\x1b[31m\x1b]0;owned\x07\x9b2J\r\x08\u202e\u2066[/][bold]:smile:b"


def is_shown(text: str) -> bool:
    """Whether text has nothing in it but what is visible, and ends of lines."""
    return text.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain, α = 0.5 ± 1 – 雪 é", "plain, α = 0.5 ± 1 – 雪 é"),
        (HOSTILE, SHOWN),
        ("two\nlines\tand a tab", r"two\nlines\tand a tab"),
        ("caf\udce9", r"caf\xe9"),  # bytes of a name that is not UTF-8
        ("\ud800\x00\u200b\ufeff\u2028", r"\ud800\x00\u200b\ufeff\u2028"),
        ("\U000e0001", r"\U000e0001"),
    ],
)
def test_what_a_terminal_would_obey_is_shown(text: str, expected: str) -> None:
    assert escape_unprintable(text) == expected
    assert escape_unprintable(expected) == expected


def test_lines_and_tables_show_names_as_they_are() -> None:
    """As text of any kind, in a pipe and on a terminal; no name is taken for markup, and columns stay in line."""
    for is_terminal in (False, True):
        out = io.StringIO()
        screen = Screen(file=out, width=200, force_terminal=is_terminal, color_system=None)
        table = Table("name", HOSTILE)
        table.add_row(HOSTILE, "1")
        table.add_row("short", Text(HOSTILE))
        print_table(screen, table)
        screen.print(table)
        say(screen, f"{HOSTILE}\nno second line")
        screen.print(HOSTILE, Text(HOSTILE))
        text = out.getvalue()
        assert is_shown(text)
        lines = text.splitlines()
        assert len({len(line) for line in lines[:-2]}) == 1
        assert sum(SHOWN in line for line in lines) == 6
        assert lines[-2] == rf"{SHOWN}\nno second line"


def test_bars_show_names_as_they_are() -> None:
    out = io.StringIO()
    out.isatty = lambda: True  # type: ignore[method-assign]
    screen = Screen(file=out, width=200, force_terminal=True, force_interactive=True)
    line = {"round": 1, "accuracy": 50.0, "timing": {"seconds": 1.0}}
    with RunView(screen, HOSTILE) as view:
        view.started(tiny_config(), [line])
    with GridView(screen, 1) as grid:
        grid.running(HOSTILE, 2, [line])
        grid.ended(HOSTILE, [f"{HOSTILE}: 50 %"])
    text = out.getvalue()
    assert text.count(SHOWN) >= 4
    assert not [part for part in ("\x1b[31m\x1b", "\x1b]0", "\x07", "\x9b", "\u202e") if part in text]


def test_complaints_are_one_line_of_a_readable_length(capsys: pytest.CaptureFixture[str]) -> None:
    complain(f"{HOSTILE}\nmore")
    assert capsys.readouterr().err == f"fssl: {SHOWN.replace(chr(92) + 'r', ' ')} more\n"
    complain(f"--out {'x' * 4000}: {Path('y')} is too long")
    said = capsys.readouterr().err
    assert said.startswith("fssl: --out xxx")
    assert said.endswith("xxx: y is too long\n")
    assert len(said) < LONGEST + 20
