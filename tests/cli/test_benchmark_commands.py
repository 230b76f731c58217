"""`fssl submit`, `fssl verify` and `fssl reproduce`, with small runs on the digits."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fssl.paper.published import PublishedTable, parse_table
from fssl.reports.entries import entry_text, read_entry
from fssl.reports.runs import find_runs
from helpers.command import SMALL, Fssl
from helpers.run_folders import config_of, write_run

ENTRY = "entries/sage-seed7.json"


@pytest.fixture
def submitted(fssl: Fssl) -> Fssl:
    """With a run of two rounds and its entry."""
    assert fssl("run", "smoke", *SMALL, "--out", "runs/a").code == 0
    said = fssl("submit", "runs/a")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"{ENTRY}: ")
    assert said.out.endswith(
        " kB, in no track of the benchmark: data.name is digits, but cifar100 in the nearest, track A\n"
    )
    return fssl


def changed(**facts: Any) -> str:
    """The entry with other facts and a checksum that fits them, in a file of its own."""
    Path("changed.json").write_text(entry_text({**read_entry(Path(ENTRY)), **facts}))
    return "changed.json"


@pytest.mark.slow
def test_what_is_trained_again_agrees_bit_for_bit(submitted: Fssl) -> None:
    said = submitted("verify", ENTRY, "--rounds", "2", "--device", "cpu")
    first, cost, *_, last = said.out.splitlines()
    assert cost.startswith("estimate for this machine: ")
    assert (said.code, said.err) == (0, "")
    assert first.startswith(f"{ENTRY}: sage on digits, seed 7, 2 rounds on cpu: ")
    assert first.endswith(" % (mean of the last 2 rounds); checksum and result are correct")
    assert last == "agrees bit for bit: rounds 1 to 2 of 2"
    assert sorted(map(str, Path().iterdir())) == ["entries", "runs"]  # nothing is left behind


@pytest.mark.slow
def test_other_numbers_are_found_by_training_again(submitted: Fssl) -> None:
    """Of another seed, and of a better curve; each checksum fits."""
    facts = read_entry(Path(ENTRY))
    words = ("--rounds", "1", "--device", "cpu")
    said = submitted("verify", changed(settings={**facts["settings"], "seed": 8}), *words)
    assert (said.code, said.err) == (1, "")
    assert said.out.splitlines()[-1].startswith("differs: ")
    better = [value + 10 for value in facts["curves"]["accuracy"]]
    said = submitted("verify", changed(curves={"accuracy": better}, result=sum(better) / 2), *words)
    assert said.code == 1
    assert said.out.splitlines()[-1].startswith("differs: round 1 is ")


@pytest.mark.slow
def test_bad_input_is_one_line_before_any_training(submitted: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fssl.runner.again.first_lines", lambda *_: pytest.fail("a round was trained"))
    facts = read_entry(Path(ENTRY))
    data = {**facts["settings"]["data"], "name": "cifar10"}
    cases = {
        f"verify {ENTRY} --rounds 3": "--rounds 3: the entry has only 2 rounds",
        "verify none.json": "none.json: no such file",
        "verify runs/a/summary.json": "runs/a/summary.json is not an entry",
        f"verify {changed(settings={**facts['settings'], 'data': data})} --data-dir none": "none",
        "submit runs/a": f"{ENTRY}: already exists",
        "submit none": "none does not exist",
    }
    for words, why in cases.items():
        said = submitted(*words.split())
        assert (said.code, said.err.count("\n")) == (2, 1), words
        assert why in said.err
    assert submitted("submit", "runs/a", "--overwrite").code == 0
    assert submitted("verify", ENTRY, "--rounds", "0").code == 0


def test_two_runs_of_one_seed_need_two_folders(fssl: Fssl) -> None:
    for name in "ab":
        write_run(Path("runs", name), config_of("train.rounds=1"), [50.0], clients=[[0]])
    said = fssl("submit", "runs")
    assert said.code == 2
    assert said.err == "fssl: two of these runs have the same method and seed; submit them into two folders (--out)\n"
    assert not Path("entries").exists()


def test_a_run_of_a_track_is_named(fssl: Fssl) -> None:
    words = ["data.label_fraction=0.1", "partition.alpha=0.1", "train.rounds=120", "train.cooldown=15"]
    config = config_of(*words, "server.ema=0.9", "protocol=clean")
    write_run(Path("run"), config, [50.0] * 120, clients=[[0]] * 120)
    assert fssl("submit", "run").out.endswith(" kB, track A\n")


# Reproduce.

TINY = """
protocol = "clean"
data = { name = "digits", labels_per_class = 8 }
partition = { kind = "paired-dirichlet", alpha = 0.5, clients = 4 }
model = { name = "cnn", width = 1 }
train = { rounds = 2, clients_per_round = 2, steps_per_round = 1, batch = 8 }
compute = { device = "cpu" }

[grid]
method.name = ["sage", "fedavg"]
seed = [7, 8]
"""


def table_of(printed: Mapping[str, float]) -> PublishedTable:
    """A paper's table: two methods that fssl has, and one that it lacks."""
    rows = [{"name": name.upper(), "method": name, "printed": [number]} for name, number in printed.items()]
    columns = [{"name": "digits", "set": {"data.name": "digits"}}]
    entry = {"title": "A tiny table", "preset": "tiny.toml", "columns": columns}
    return parse_table("tiny", {"tiny": {**entry, "rows": [*rows, {"name": "Other", "printed": [1.0]}]}})


def publish(monkeypatch: pytest.MonkeyPatch, **printed: float) -> None:
    Path("tiny.toml").write_text(TINY)
    monkeypatch.setattr("fssl.paper.reproduce.other_tables", lambda: {"tiny": table_of(printed)})


def verdicts(out: str) -> dict[str, list[str]]:
    """The last lines by cell."""
    rows = [line.strip().split(maxsplit=5) for line in out.splitlines() if ", digits" in line]
    return {row[0].rstrip(","): row[2:] for row in rows}


@pytest.mark.slow
def test_a_table_is_reproduced_and_judged(fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, sage=50.0, fedavg=50.0)
    planned = fssl("reproduce", "tiny", "--dry-run")
    assert planned.code == 0
    assert planned.out.startswith("tiny: 4 runs; 0 finished, 4 missing\n")
    assert "digits: estimate for this machine: " in planned.out
    assert "digits: 4 runs like this one, one after another: " in planned.out
    assert verdicts(planned.out) == {name: ["50.00", "–", "–", "not run"] for name in ("SAGE", "FEDAVG")}
    assert not Path("runs").exists()

    assert fssl("reproduce", "tiny", "--set", "grid.seed=[7]").code == 0
    assert sorted(str(run.path) for run in find_runs([Path("runs")]).runs) == [
        f"runs/reproduce/tiny/{name}/seed7" for name in ("fedavg", "sage")
    ]
    done = fssl("reproduce", "tiny")
    assert done.out.startswith("tiny: 4 runs; 2 finished, 2 missing\n")
    results: dict[str, list[float]] = {"sage": [], "fedavg": []}
    for run in find_runs([Path("runs")]).runs:
        results[run.config.method.name].append(run.result)
    assert {len(each) for each in results.values()} == {2}

    means = {name: sum(each) / 2 for name, each in results.items()}
    publish(monkeypatch, sage=round(means["sage"], 2) + 1.0, fedavg=round(means["fedavg"], 2) - 3.0)
    monkeypatch.setattr("fssl.runner.planned.run_experiment", lambda *_: pytest.fail("a run was started"))
    again = fssl("reproduce", "tiny")
    assert again.out.startswith("tiny: 4 runs; 4 finished, 0 missing\n")
    lines = {line.split(",")[0].strip(): line for line in again.out.splitlines() if ", digits" in line}
    assert "−1.00  agrees within the run-to-run noise of 0.3 to 1.15" in lines["SAGE"]
    assert "+3.00  differs: 1.85 beyond the run-to-run noise of 0.3 to 1.15" in lines["FEDAVG"]


@pytest.mark.slow
def test_runs_elsewhere_count_and_begun_ones_are_resumed(fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, sage=50.0, fedavg=50.0)
    one = ["--set", 'grid.method.name=["sage"]', "--set", "grid.seed=[7]"]
    assert fssl("run", "tiny.toml", *one, "--out", "mine").code == 0
    assert fssl("reproduce", "tiny", "--runs", "mine", *one).out.startswith("tiny: 1 run; 1 finished, 0 missing")
    assert fssl("run", "tiny.toml", *one, "--set", "train.rounds=1", "--out", "runs/reproduce/tiny").code == 0
    said = fssl("reproduce", "tiny", *one)
    assert said.code == 0
    assert "resuming runs/reproduce/tiny/sage/seed7 after round 1" in said.out


@pytest.mark.slow
def test_a_track_is_judged_by_the_entries(fssl: Fssl) -> None:
    words = ["data.label_fraction=0.1", "partition.alpha=0.1", "train.rounds=120", "train.cooldown=15"]
    for name, result, method in (("a", 50.0, "sage"), ("b", 40.0, "fedavg"), ("c", 40.0, "fixmatch-lpl")):
        config = config_of(*words, "server.ema=0.9", "protocol=clean", f"method.name={method}")
        write_run(Path("there", name), config, [result] * 120, clients=[[0]] * 120)
        if method != "fedavg":
            write_run(Path("here", name), config, [41.0] * 120, clients=[[0]] * 120)
    assert fssl("submit", "there", "--out", "entries").code == 0
    said = fssl("reproduce", "track-a", "--runs", "here", "--entries", "entries", "--set", "grid.seed=[7]", "--dry-run")
    assert said.code == 0, said.err
    assert said.out.startswith("track-a: 28 runs; 2 finished, 26 missing\n")
    lines = {line.split()[1]: line for line in said.out.splitlines() if line.startswith(" A: ")}
    assert "50.00      41.00  −9.00  differs: 7.85 beyond the run-to-run noise of 0.3 to 1.15; place 1" in lines["sage"]
    assert "+1.00  agrees within the run-to-run noise of 0.3 to 1.15; place 1" in lines["fixmatch-lpl"]
    assert lines["fedavg"].split()[2:] == ["on", "record", "–", "–", "not", "run"]


def test_a_misspelt_name_is_one_line(fssl: Fssl) -> None:
    said = fssl("reproduce", "tabel1")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("fssl: table, figure or track 'tabel1' is unknown; did you mean 'table1'?")


def test_a_bad_entry_is_one_line_before_any_run(fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fssl.cli.benchmark.run_missing", lambda *_: pytest.fail("a run was planned"))
    Path("entries").mkdir()
    Path("entries/sage-seed7.json").write_text("{}")
    said = fssl("reproduce", "track-a", "--entries", "entries")
    assert (said.code, said.out) == (2, "")
    assert said.err == "fssl: entries/sage-seed7.json is not an entry; `fssl submit RUN` writes one\n"


@pytest.mark.slow
def test_a_figure_names_its_curves(fssl: Fssl) -> None:
    pytest.importorskip("matplotlib")
    said = fssl("reproduce", "Figure 4", "--set", "grid.seed=[7]", "--dry-run")
    assert said.code == 0
    assert said.out.startswith("Figure 4: 13 runs; 0 finished, 13 missing\n")
    assert (
        len([line for line in said.out.splitlines() if line.endswith("no run") or line.rstrip().endswith("no run")])
        == 13
    )
