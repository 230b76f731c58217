"""Entries: whole, small, without places of a machine, and judged by what training again gives."""

import getpass
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fssl.errors import UserError
from fssl.records.accepted import accept
from fssl.records.rounds import Line
from fssl.records.store import RunFolder
from fssl.reports.entries import (
    LOSS_APART,
    POINTS_APART,
    as_run,
    clean_command,
    compare_rounds,
    entry_name,
    entry_of,
    entry_text,
    line_digest,
    read_entry,
)
from fssl.reports.runs import Run, find_runs, read_run
from helpers import run_folders
from helpers.handmade import ENV, write_run

CURVE = [float(r) for r in range(1, 26)]
HERE = {**ENV, "revision": "abc", "packages": {"torch": "2.13.0", "numpy": None, "fssl": None}, "command": ""}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """25 rounds with clients and losses."""
    more = {"clients": [[0, 1]] * 25, "loss_s": [2 - r / 25 for r in range(25)], "ema_accuracy": CURVE[::-1]}
    folder = write_run(tmp_path / "run", CURVE, **more)
    return read_of(folder)


def read_of(folder: Path) -> Run:
    found = read_run(RunFolder(folder))
    assert found
    return found


def lines_of(run: Run, rounds: int, **changed: Any) -> list[Line]:
    """The first lines of a run as training again gives them, the last with other numbers."""
    lines: list[Line] = [dict(line) for line in run.lines[:rounds]]
    lines[-1] |= changed
    return lines


def test_an_entry_reads_back_as_its_run(run: Run, tmp_path: Path) -> None:
    file = tmp_path / entry_name(run)
    file.write_text(entry_text(entry_of(run)))
    again = as_run(file, read_entry(file))
    assert file.name == "sage-seed7.json"
    assert (again.curve, again.result, again.last_round, again.is_finished) == (CURVE, run.result, 25, True)
    assert again.config.method == run.config.method
    assert [point["round"] for point in read_entry(file)["points"]] == [*range(1, 11), 20, 25]
    assert file.stat().st_size < 6000


def test_curves_have_four_digits(tmp_path: Path) -> None:
    run = read_of(write_run(tmp_path / "run", [100 / 3], clients=[[0]]))
    assert entry_of(run)["curves"]["accuracy"] == [33.3333]


@pytest.mark.parametrize(
    ("command", "cleaned"),
    [
        ("run smoke --out runs/deep/mine", "run smoke --out mine"),
        ("run demo --data-dir /home/jane/data --out /srv/x/run", "run demo --data-dir DATA --out run"),
        ("run demo --data-dir data", "run demo --data-dir DATA"),
        ("run demo --set data.dir=images --set seed=8", "run demo --set data.dir=DATA --set seed=8"),
        ("run ~/my.toml --set model.start=../old/m.pt", "run PATH --set model.start=PATH"),
        ("run x --set compute.ray_address=ray://gpu7:10001", "run x --set compute.ray_address=ADDRESS"),
        ("run x --set 'model.start=\"/mnt/a b/c\"'", "run x --set 'model.start=\"PATH PATH\"'"),
        ("run benchmark/track-a --set 'grid.seed=[7]'", "run benchmark/track-a --set 'grid.seed=[7]'"),
        ("run jane/my.toml --set method.name=jane/my.py:mine", "run PATH --set method.name=PATH"),
        ("run x --data-dir=jane --set=data.dir=jane --out=jane/a", "run x --data-dir DATA --set data.dir=DATA --out a"),
        ("run x --set 'grid.model.start=[\"jane/a.pt\"]'", "run x --set 'grid.model.start=[\"PATH\"]'"),
        ("run 'unfinished", ""),
    ],
)
def test_a_command_names_no_place(command: str, cleaned: str) -> None:
    assert clean_command(command) == cleaned


def test_an_entry_names_no_folder_host_or_user(tmp_path: Path) -> None:
    settings = ("data.dir=/home/jane/images", f"compute.ray_address={socket.gethostname()}:6379")
    folder = write_run(tmp_path / "run", [50.0], "data.name=cifar10", clients=[[0]])
    text = (folder / "config.toml").read_text().replace('name = "cifar10"', f'name = "cifar10"\ndir = "{tmp_path}"')
    run_folders.write_settings(folder, text)
    session = {**ENV, "command": f"run {tmp_path}/my.toml --set {settings[0]} --set {settings[1]} --out {folder}"}
    session |= {"host": socket.gethostname(), "packages": {"torch": "2.13.0", "secret": "token"}}
    (folder / "env.json").write_text(json.dumps({"sessions": [session]}))
    text = entry_text(entry_of(read_of(folder)))
    assert '"dir": "DATA"' in text
    for private in (str(tmp_path), "jane", socket.gethostname(), "token", "/home", f"/{getpass.getuser()}"):
        assert private not in text


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda folder: (folder / "summary.json").unlink(), "unfinished: 25 of 25 rounds"),
        (
            lambda folder: (folder / "rounds.jsonl").write_text((folder / "rounds.jsonl").read_text() + "half"),
            "lines of its record are damaged",
        ),
        (lambda folder: edit(folder), "its record was edited, and accepted"),
    ],
)
def test_only_a_finished_run_as_recorded_is_an_entry(run: Run, spoil: Callable[[Path], Any], why: str) -> None:
    spoil(run.path)
    (found,) = find_runs([run.path]).runs
    with pytest.raises(UserError, match=why):
        entry_of(found)


def test_a_run_that_no_reader_would_accept_is_not_packed(tmp_path: Path) -> None:
    """Its measure is missing in one round."""
    run = read_of(write_run(tmp_path / "run", CURVE, clients=[[0]] * 25, auroc=[*CURVE[:-1], None])).by("auroc")
    with pytest.raises(UserError, match="cannot be an entry: its curves do not have a number for each of 25 rounds"):
        entry_of(run)


def edit(folder: Path) -> None:
    file = folder / "config.toml"
    file.write_text(file.read_text().replace("lr = 0.1", "lr = 0.2"))
    accept(RunFolder(folder), "why")


def sealed(facts: Line, **changed: Any) -> str:
    return entry_text({**facts, **changed})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda f: entry_text(f).replace("sage", "sega"), "its checksum does not match"),
        (lambda f: "[]", "is not an entry"),
        (lambda f: "{", "is not an entry"),
        (lambda f: sealed(f, format=2), "was written by a newer fssl"),
        (lambda f: sealed(f, result=99.0), r"its result is 99.0, but .* a mean of 20.5000"),
        (lambda f: sealed(f, result=None), "its result is None"),
        (lambda f: sealed(f, rounds=24), "do not have a number for each of 24 rounds"),
        (lambda f: sealed(f, rounds="25"), "its rounds, curves or points are missing"),
        (lambda f: sealed(f, curves={**f["curves"], "timing": CURVE}), "other curves than an entry"),
        (lambda f: sealed(f, curves={"accuracy": ["x"] * 25}), "do not have a number"),
        (lambda f: sealed(f, points=[{"round": 1}]), "points without a round, clients or digest"),
        (lambda f: sealed(f, points=[]), "its points are not those of the first 10 rounds"),
        (lambda f: sealed(f, points=f["points"][1:]), "its points are not those of the first 10 rounds"),
        (lambda f: sealed(f, points=f["points"][-1:]), "its points are not those of the first 10 rounds"),
        (lambda f: sealed(f, sessions=["x"]), "its environment is missing"),
        (lambda f: sealed(f, memory={"seconds": 3}), "its memory is not a number of bytes"),
    ],
)
def test_a_bad_file_is_one_line(run: Run, tmp_path: Path, change: Callable[[Line], str], why: str) -> None:
    file = tmp_path / "entry.json"
    file.write_text(change(entry_of(run)))
    with pytest.raises(UserError, match=why) as error:
        read_entry(file)
    assert "\n" not in str(error.value)


def test_equal_rounds_agree_bit_for_bit(run: Run) -> None:
    facts = entry_of(run)
    assert compare_rounds(facts, lines_of(run, 3), {}) == (True, "agrees bit for bit: rounds 1 to 3 of 25")
    later = [{**line, "timing": {"seconds": 99.0}, "metrics": {"mine": 1.0}} for line in lines_of(run, 1)]
    assert compare_rounds(facts, later, {}) == (True, "agrees bit for bit: round 1 of 25")


def test_on_an_equal_cpu_a_digit_makes_the_difference(run: Run) -> None:
    facts = entry_of(run)
    check = compare_rounds(facts, lines_of(run, 2, accuracy=2.01), HERE)
    assert not check.agrees
    assert check.text == (
        "differs: round 2 is not the same bit for bit on an equal CPU; accuracy 2.01 % here, 2.00 % in the entry"
    )


@pytest.mark.parametrize(
    "other",
    [
        {"device": "gpu"},
        {"processor": "other"},
        {"revision": "def"},
        {"packages": {"torch": "3"}},
        {"revision": "abc+"},
    ],
)
def test_elsewhere_a_tolerance_decides(run: Run, other: Line) -> None:
    facts, there = entry_of(run), {**HERE, **other}
    near = lines_of(run, 2, accuracy=2 + POINTS_APART, loss_s=run.lines[1]["loss_s"] * (1 + LOSS_APART - 1e-6))
    assert compare_rounds(facts, near, there) == (
        True,
        "agrees within 2.5 points and 6% of L_s: rounds 1 to 2 of 25, at most 2.50 points and 6.0% of L_s apart",
    )
    far = compare_rounds(facts, lines_of(run, 2, accuracy=2.01 + POINTS_APART), there)
    assert far == (
        False,
        "differs: round 2 is more than 2.5 points apart; accuracy 4.51 % here, 2.00 % in the entry",
    )
    loss = compare_rounds(facts, lines_of(run, 2, loss_s=run.lines[1]["loss_s"] * 1.07), there)
    assert loss == (False, "differs: in round 2 L_s differs by 7.0%, more than 6%")
    clients = compare_rounds(facts, lines_of(run, 2, clients=[0, 2]), there)
    assert clients == (False, "differs: other clients took part in round 2")


def test_a_round_without_details_is_compared_by_its_accuracy(run: Run) -> None:
    """Rounds 11 to 19 have no digest; their accuracy still counts."""
    facts, lines = entry_of(run), lines_of(run, 15, accuracy=90.0)
    assert compare_rounds(facts, lines, HERE).text.startswith("differs: round 15 is not the same bit for bit")
    check = compare_rounds(facts, lines, {**HERE, "device": "gpu"})
    assert check.text.startswith("differs: round 15 is more than 2.5 points apart")


def test_a_digest_covers_all_but_times_and_checks() -> None:
    line = {"round": 1, "accuracy": 1.0, "timing": {"seconds": 1.0}, "after": "a", "check": "b", "metrics": {}}
    assert line_digest(line) == line_digest({"accuracy": 1.0, "round": 1})
    assert line_digest(line) != line_digest({"accuracy": 1.0, "round": 2})
