"""A packed record is read as the plain one is, gives it back byte for byte, and shows damage in one line."""

import json
import lzma
import shutil
from pathlib import Path
from typing import Any

import pytest

import fssl as package
from fssl.errors import UserError
from fssl.records.packed import packed, read_packed, unpacked
from fssl.records.store import Lock, RunFolder
from fssl.reports.page.content import curves_of
from fssl.reports.runs import find_runs, read_run
from helpers.command import Fssl, exit_code
from helpers.run_folders import config_of, imitate

PLAIN, PACKED = "rounds.jsonl", "rounds.json.xz"


def text_of(*lines: Any) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@pytest.fixture(scope="module")
def four_rounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed") / "run"
    with pytest.MonkeyPatch.context() as patch:
        assert exit_code(patch, "run", "smoke", "--set", "train.rounds=4", "--out", str(folder)) == 0
    return folder


@pytest.fixture
def trained(fssl: Fssl, four_rounds: Path) -> Path:
    """A run of four rounds that can be resumed."""
    return Path(shutil.copytree(four_rounds, "run"))


# The form.


SUMS = {"steps": 4, "l_u": 3.0, "n": 0}


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [{"round": 1, "loss_u": 0.75, "share": None, "sums": SUMS}],
        [{"round": 1, "sums": SUMS}, {"round": 2, "missing": {"3": "späte Antwort"}, "sums": SUMS}, {"round": 3}],
        [{"a": {}, "b": [], "c": -0.0, "d": "l_u / steps", "e": True, "sums": {"steps": 4, "none": None}}],
        [{"a": 1e-300, "sums": {}}, {"a": 1, "sums": {}}, {"sums": [1]}, {"sums": 3}, "text", None, 5, [1, 2]],
        [{"loss_u": 0.75, "sums": SUMS}, {"loss_u": 0.5, "sums": SUMS}],
        [{"x": 1, "sums": {"a / b": 1, "b": 2}}, {"x": 0.5, "sums": {"a": 1, "b": 2}}],
    ],
)
def test_any_lines_come_back_byte_for_byte(lines: list[Any]) -> None:
    assert unpacked(packed(text_of(*lines))) == text_of(*lines)


def test_what_follows_from_sums_is_written_as_a_formula() -> None:
    lines = [{"round": r, "loss_u": r / 4, "near": r / 4 + 1e-12, "sums": {"l_u": r, "steps": 4}} for r in (1, 2, 3)]
    (block,) = json.loads(lzma.decompress(packed(text_of(*lines))))
    assert block == {
        "round": [1, 2, 3],
        "loss_u": "l_u / steps",
        "near": [0.250000000001, 0.500000000001, 0.750000000001],
        "sums": {"l_u": [1, 2, 3], "steps": [4, 4, 4]},
    }


@pytest.mark.parametrize("text", [b'{"round": 1, "acc', b'{"round": 1}', b'{"round":1}\n', b"\xff\n", b'{"a": 1}\r\n'])
def test_text_that_would_not_come_back_is_not_packed(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        packed(text)


BLOCKS = ["[3]", "3", '["a / b"]', '[{"x": "a / b"}]', '[{"x": [1], "y": [1, 2]}]', '[{"x": 5}]', "{", "[[[" * 50]


@pytest.mark.parametrize("data", [b"", b"text", *(lzma.compress(text.encode()) for text in BLOCKS)])
def test_a_file_that_holds_no_record_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / PACKED).write_bytes(data)
    with pytest.raises(UserError, match=rf"^{tmp_path}/{PACKED} is damaged; restore the file$"):
        read_packed(tmp_path / PACKED)


def test_a_file_that_holds_too_much_is_not_taken_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = text_of(*({"round": r} for r in range(1, 1000)))
    (tmp_path / PACKED).write_bytes(packed(text))
    assert read_packed(tmp_path / PACKED) == text
    monkeypatch.setattr("fssl.records.packed.MOST_BYTES", 1000)
    with pytest.raises(UserError, match="is damaged"):
        read_packed(tmp_path / PACKED)


def test_every_flipped_byte_shows(tmp_path: Path) -> None:
    file, text = tmp_path / PACKED, text_of(*({"round": r, "accuracy": r**0.5} for r in range(1, 9)))
    whole = packed(text)
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(UserError, match="is damaged"):
            read_packed(file)


# Reading.


@pytest.mark.usefixtures("trained")
@pytest.mark.slow
def test_every_reader_has_the_same_of_both(fssl: Fssl) -> None:
    """Lines and their checks, the page's numbers, and what the terminal shows."""
    shutil.copytree("run", "plain/run")
    for name in ("sage", "fixmatch-lpl"):
        imitate(Path("plain", name), config_of(f"method.name={name}", "train.rounds=40"), 40, 100)
    shutil.copytree("plain", "packed")
    said = fssl("pack", "packed")
    assert (said.code, said.out.count("\n"), said.err) == (0, 3, "")
    assert [*Path("packed").rglob(PLAIN)] == []
    for run in ("sage", "fixmatch-lpl", "run"):
        plain, small = RunFolder(Path("plain", run)), RunFolder(Path("packed", run))
        assert small.text() == plain.rounds_file.read_bytes()
        assert small.rounds() == plain.rounds() != []
        assert small.start().marks == plain.start().marks
        one, other = read_run(plain), read_run(small)
        assert one is not None
        assert other is not None
        assert (one.lines, one.damaged, one.remark) == (other.lines, other.damaged, other.remark)
        assert (one.sessions, one.extras.damage) == (other.sessions, other.extras.damage)
        assert repr(curves_of([one])) == repr(curves_of([other]))
    found, other_found = ([run.lines for run in package.runs(folder)] for folder in ("plain", "packed"))
    assert found == other_found
    for words in ("show {}/run", "compare {}"):
        answers = [fssl(*words.format(folder).split()) for folder in ("plain", "packed")]
        assert answers[0].code == 0
        assert answers[0].out.replace("plain/", "packed/") == answers[1].out, words


def test_packing_is_undone(fssl: Fssl, trained: Path) -> None:
    text = (trained / PLAIN).read_bytes()
    assert fssl("pack", "run", "--undo").out == "run: plain already\n"
    said = fssl("pack", ".").out
    size = (trained / PACKED).stat().st_size
    assert said == f"run/{PACKED}: {size:,} bytes, {len(text):,} before\n"
    assert size < len(text) / 2
    assert not (trained / PLAIN).exists()
    assert fssl("pack", "run").out == "run: packed already\n"
    assert fssl("pack", "run", "--undo").out == f"run/{PLAIN}: {len(text):,} bytes, {size:,} before\n"
    assert (trained / PLAIN).read_bytes() == text
    assert not (trained / PACKED).exists()


# Resuming.


def test_a_packed_run_is_resumed_as_the_plain_one_is(fssl: Fssl, trained: Path) -> None:
    shutil.copytree(trained, "twin")
    assert fssl("pack", "run").code == 0
    assert "finished already" in fssl("run", "smoke", "--resume", "--set", "train.rounds=4", "--out", "run").out
    assert (trained / PACKED).exists()
    for out in ("run", "twin"):
        assert fssl("run", "smoke", "--resume", "--set", "train.rounds=5", "--out", out).code == 0
    assert not (trained / PACKED).exists()
    one, other = RunFolder(trained).rounds(), RunFolder(Path("twin")).rounds()
    assert [line["test"] for line in one] == [line["test"] for line in other]
    assert len(one) == 5


def test_the_plain_record_counts_where_a_kill_left_both(fssl: Fssl, trained: Path) -> None:
    longer = (trained / PLAIN).read_bytes()
    (trained / PACKED).write_bytes(packed(b"".join(longer.splitlines(keepends=True)[:2])))
    assert len(RunFolder(trained).rounds()) == 4
    assert fssl("pack", "run").code == 0
    assert unpacked((trained / PACKED).read_bytes()) == longer


# Damaged files and rejected commands: one line each.


def test_a_damaged_packed_record_is_reported_in_one_line(fssl: Fssl, trained: Path) -> None:
    shutil.copytree(trained, "other")
    assert fssl("pack", "run").code == 0
    (trained / PACKED).write_bytes((trained / PACKED).read_bytes()[:-20])
    why = f"run/{PACKED} is damaged; restore the file"
    assert fssl("show", "run") == (2, "", f"fssl: {why}\n")
    resumed = fssl("run", "smoke", "--resume", "--set", "train.rounds=5", "--out", "run")
    assert resumed == (2, "", f"fssl: {why}\n")
    assert fssl("pack", "run", "--undo") == (2, "", f"fssl: {why}\n")
    said = fssl("compare", "run", "other")
    assert (said.code, f"left out: run: {why}" in " ".join(said.out.split())) == (0, True)
    assert find_runs([Path()]).unreadable == {trained: why}


def test_what_cannot_be_packed_is_rejected_and_left_alone(fssl: Fssl, trained: Path) -> None:
    lock = Lock(trained)
    lock.take()
    assert fssl("pack", "run") == (2, "", "fssl: run is in use by another process\n")
    lock.close()
    torn = (trained / PLAIN).read_bytes()[:-30]
    (trained / PLAIN).write_bytes(torn)
    why = f"fssl: run/{PLAIN} cannot be packed: a line is damaged or was edited\n"
    assert fssl("pack", "run") == (2, "", why)
    assert (trained / PLAIN).read_bytes() == torn
    assert not (trained / PACKED).exists()
    assert fssl("pack", "nowhere") == (2, "", "fssl: nowhere does not exist\n")
    Path("empty").mkdir()
    assert fssl("pack", "empty") == (2, "", "fssl: no runs in empty; `fssl run` makes one\n")
