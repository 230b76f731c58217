"""A run folder that commit 9635530 wrote: still read, compared, used and resumed."""

import json
import shutil
from pathlib import Path

import pytest

import fssl as package
from fssl.errors import UserError
from helpers.command import SMALL, Fssl

GOLDEN = Path(__file__).parents[1] / "golden"
LOSSES = ("steps", "l_s", "l_u")  # counts of labels may jump by one where a confidence is at the threshold
OLD, GOES_ON = GOLDEN / "run-9635530", GOLDEN / "run-9635530-goes-on.jsonl"


def test_it_is_read_compared_and_used(fssl: Fssl) -> None:
    (run,) = package.runs(OLD)
    assert (run.config.method.name, len(run.lines)) == ("flexmatch+sage", 2)
    assert run.result == json.loads((OLD / "summary.json").read_text())["result"]
    assert "flexmatch+sage on digits, seed 7" in fssl("show", OLD).out
    assert "flexmatch+sage" in fssl("compare", OLD).out
    assert fssl("predict", OLD, "--out", "p.csv").out.rstrip().endswith("p.csv")
    assert len(Path("p.csv").read_text().splitlines()) == 361


def test_a_newer_one_is_refused_in_a_line(fssl: Fssl) -> None:
    """Before its settings are read, which may have keys that nobody knows yet."""
    assert fssl("run", "smoke", *SMALL, "--out", "runs/new").code == 0
    environment, settings = Path("runs/new/env.json"), Path("runs/new/config.toml")
    known = json.loads(environment.read_text())
    assert known["format"] == 1
    environment.write_text(json.dumps({**known, "format": 2}))
    settings.write_text(f"{settings.read_text()}\n[later]\nkey = 1\n")
    line = "its format is 2, and this version reads up to 1; install the newer one"
    for words in (["show", "runs/new"], ["compare", "runs"], ["predict", "runs/new"], ["run", "runs/new", "--resume"]):
        said = fssl(*words)
        assert (said.code, said.err.count("\n"), line in said.err) == (2, 1, True), said
    with pytest.raises(UserError, match="was written by a newer fssl"):
        package.model("runs/new")


@pytest.mark.parametrize("odd", ["2", None, 1, 0, True, [2]])
def test_what_is_no_later_format_hinders_nobody(fssl: Fssl, odd: object) -> None:
    shutil.copytree(OLD, "run")
    Path("run/env.json").write_text(json.dumps({**json.loads(Path("run/env.json").read_text()), "format": odd}))
    assert fssl("show", "run").code == 0


@pytest.mark.parametrize("key", ["test", "accuracy", "timing", "seconds"])
def test_a_damaged_key_ends_the_record_before_it(fssl: Fssl, key: str) -> None:
    """Nothing but its missing numbers tells that a line without a check is damaged."""
    shutil.copytree(OLD, "run")
    record = Path("run/rounds.jsonl")
    first, second = record.read_text().splitlines(keepends=True)
    head, found, tail = second.rpartition(f'"{key}"')
    assert found
    record.write_text(first + head + f'"x{key[1:]}"' + tail)
    said = fssl("run", "run", "--resume", "--set", "train.rounds=4", "--device", "cpu")
    assert (said.code, "damaged after round 1; what follows is computed again" in said.out) == (0, True)
    assert len(record.read_text().splitlines()) == 4


@pytest.mark.slow
def test_it_goes_on_as_it_would_have_gone_on(fssl: Fssl) -> None:
    """Bit for bit where it began; on another processor the last digits of later rounds may differ."""
    shutil.copytree(OLD, "run")
    assert fssl("run", "run", "--resume", "--set", "train.rounds=4", "--device", "cpu").code == 0
    before = (OLD / "rounds.jsonl").read_text().splitlines()
    lines = Path("run/rounds.jsonl").read_text().splitlines()
    assert lines[:2] == before
    expected = [json.loads(line) for line in GOES_ON.read_text().splitlines()]
    for line, wanted in zip(map(json.loads, lines), expected, strict=True):
        assert line["clients"] == wanted["clients"]
        assert [line["sums"][key] for key in LOSSES] == pytest.approx([wanted["sums"][key] for key in LOSSES], rel=0.05)
    settings = ("method.tau=0.5", "train.lr=0.9")
    for setting in settings:
        said = fssl("run", "run", "--resume", "--set", "train.rounds=5", "--set", setting)
        assert (said.code, "holds another run" in said.err) == (2, True)
