"""`fssl compare` and `fssl show`: repetitions, damage, and words that claim no more than the runs show."""

import json
from pathlib import Path

import pytest
from handmade import append, write_run

from fssl.cli import console
from fssl.report import compare
from fssl.report.compare import compare_runs, print_run

SAGE = 'method.name="sage"'


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_what_is_left_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", [50.0, 50.0], SAGE)
    write_run(tmp_path / "b", [80.0, 80.0], 'method.name="fedavg-sl"')
    write_run(tmp_path / "c", [70.0], SAGE, "train.rounds=2")  # the same seed, shorter
    write_run(tmp_path / "d", [60.0, 60.0], SAGE, "seed=8")
    (write_run(tmp_path / "e", [60.0, 60.0], SAGE, "seed=9") / "config.toml").unlink()
    with (tmp_path / "a/rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "acc')
    compare_runs(console, [tmp_path], None)
    text = said(capsys)
    assert "sage 7 8 55.00 ± 7.07" in text
    assert "Nothing to compare yet. Told the true labels, an upper bound: fedavg-sl (80.00 %)." in text
    assert f"left out: {tmp_path}/e: no config.toml" in text
    assert "1 damaged or half-written lines" in text
    assert "left out: 1 run(s) with the settings and the seed of another" in text


def test_a_line_that_is_lost_shifts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round 2 of one seed is damaged: the curve has rounds 1 and 3, and the best round keeps its number."""
    for seed, curve in ((7, [10.0, 20.0, 30.0]), (8, [20.0, 90.0, 50.0])):
        write_run(tmp_path / str(seed), curve, SAGE, f"seed={seed}")
    lines = (tmp_path / "7/rounds.jsonl").read_text().replace('"seconds"', '"hours"').splitlines()
    (tmp_path / "7/rounds.jsonl").write_text("\n".join([lines[0], lines[1][:20], lines[2]]) + "\n")
    bands = []
    monkeypatch.setattr(compare, "band", lambda axes, rounds, values, *look: bands.append((rounds, values.tolist())))
    compare_runs(console, [tmp_path], tmp_path / "x.png")
    assert bands[0] == ([1, 3], [[10, 30], [20, 50]])
    capsys.readouterr()
    print_run(console, tmp_path / "7")
    text = said(capsys)
    assert "30.00 % (round 3)" in text
    assert "seconds per round (median) │ –" in text
    assert "1 damaged or half-written lines" in text


def test_a_record_of_an_odd_shape_can_still_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "a", [50.0], SAGE, "train.rounds=2")
    append(folder, 2, 60.0)
    line = {"round": 3, "accuracy": 61.0, "test": [], "pl_accuracy": "many", "lam_sure": 0.25}
    with (folder / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    print_run(console, folder)
    text = said(capsys)
    assert "61.00 % (round 3)" in text
    assert "lam_sure │ 0.250" in text
    assert "pl_accuracy" not in text
