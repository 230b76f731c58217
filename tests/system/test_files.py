"""Files that are whole or missing, also with several writers and after a kill."""

import csv
import errno
import os
import stat
import time
from pathlib import Path

import pytest

from fssl.errors import UserError
from fssl.system import files
from fssl.system.files import STALE, as_csv, atomic, is_draft, parse_json, read_json, sweep, write_atomic


def nested(levels: int) -> bytes:
    """A table with lists in it, so many levels in all."""
    return b'{"a": %s}' % (b"[" * (levels - 1) + b"]" * (levels - 1))


def test_two_writers_of_one_file_do_not_disturb_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one begins and ends just before the first one's bytes are on disk."""
    path, flush = tmp_path / "file", os.fsync

    def interrupted(handle: int) -> None:
        monkeypatch.setattr(os, "fsync", flush)
        write_atomic(path, "second, and longer")
        assert path.read_text() == "second, and longer"
        flush(handle)

    monkeypatch.setattr(os, "fsync", interrupted)
    write_atomic(path, "first")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("file", "first")]


def test_a_file_is_not_there_before_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with atomic(path, 0o600) as out:
        out.write(b"half")
        (draft,) = tmp_path.iterdir()
        assert is_draft(draft)
        assert stat.S_IMODE(draft.stat().st_mode) == 0o600
        out.write(b", whole")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("file", "half, whole")]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, "new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("file", "old")]


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"a": ', b"\xff\xfe", b"[" * 10**5, b"9" * 5000, nested(51)])
def test_json_that_is_not_a_whole_table_reads_as_empty(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    assert read_json(path) == {}
    path.write_bytes(content)
    assert read_json(path) == {}


def test_json_of_any_shape_is_read_unless_it_is_deeper_than_ours() -> None:
    assert parse_json(b'{"a": [%s]}' % b",".join([b"[1]"] * 1000)) == {"a": [[1]] * 1000}
    assert parse_json(nested(50)).keys() == {"a"}
    for deep in (nested(51), b"[" * 10**5):
        with pytest.raises(ValueError, match="nested deeper than 50 levels"):
            parse_json(deep)


def test_text_in_a_csv_file_is_no_formula() -> None:
    """Numbers are numbers, be they written out or not; everything else that a spreadsheet computes is text."""
    formulas = ["=1+1", "+x", "-x", "@a", "-1+1", "--5", "\uff1d1", "-", "=cmd|' /C x'!A0", Path("-x")]
    numbers = [-0.5, -3, "-0.5", "+1e-07", "-12", None, True, float("-inf"), 1.5]
    texts = {
        "\t=x": r"\t=x",
        "\r=x": r"\r=x",
        "a\n=x": r"a\n=x",
        "a,b": "a,b",
        "'x": "'x",
        'a"': 'a"',
        "\x1b[31m": r"\x1b[31m",
    }
    text = as_csv(["=head", "b"], [{"=head": value, "b": 1} for value in (*formulas, *numbers, *texts)])
    head, *rows = csv.reader(text.splitlines())
    assert head == ["'=head", "b"]
    found = [row[0] for row in rows]
    assert found[: len(formulas)] == [f"'{formula}" for formula in formulas]
    assert found[len(formulas) : -len(texts)] == ["-0.5", "-3", "-0.5", "+1e-07", "-12", "", "True", "-inf", "1.5"]
    assert found[-len(texts) :] == [*texts.values()]


def test_names_that_are_not_utf8_are_shown_in_tables_and_rejected_in_records(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    assert as_csv(["a"], [{"a": name}]) == "a\ncaf\\xe9\n"
    with pytest.raises(UserError, match=r"record: cannot be written: it contains a name that is not UTF-8"):
        write_atomic(tmp_path / "record", f'dir = "{name}"')
    assert list(tmp_path.iterdir()) == []


def test_drafts_of_killed_processes_are_removed_after_a_day(tmp_path: Path) -> None:
    names = ("film.part", "other.0123.part", f"other.{16 * 'a'}.part", f"other.{16 * 'b'}.part")
    *not_ours, old, new = (tmp_path / name for name in names)
    for path in (*not_ours, old, new):
        path.touch()
    for path in (*not_ours, old):
        os.utime(path, (time.time() - 2 * STALE,) * 2)
    write_atomic(tmp_path / "file", "x")
    assert {*tmp_path.iterdir()} == {tmp_path / "file", *not_ours, new}
    sweep(tmp_path)
    assert {*tmp_path.iterdir()} == {tmp_path / "file", *not_ours}


def test_a_folder_is_listed_once_per_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[Path] = []
    monkeypatch.setattr(files, "sweep", lambda folder, seconds: swept.append(folder))
    for number in range(3):
        write_atomic(tmp_path / f"{number}", "x")
    assert swept == [tmp_path]
