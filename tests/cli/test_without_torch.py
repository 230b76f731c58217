"""Commands that train nothing, and settings whose text shows that they are wrong, end without importing PyTorch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fssl.records.start_checks import resume_error
from fssl.records.store import RunFolder
from fssl.records.writer import RunWriter
from helpers.command import ENVIRONMENT
from helpers.run_folders import config_of, write_run

# Runs one command after another, as `fssl` does; says how each ended, and which one imported PyTorch.
SCRIPT = """
import json, sys
from fssl.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["fssl", *words]
    try:
        main()
    except SystemExit as exit:
        print(json.dumps([" ".join(words), exit.code, "torch" in sys.modules]), file=sys.stderr)
"""
READING = """
--help; --version; run --help; deploy --help
show runs/sage; show runs/begun; compare runs; compare runs --by method.tau --csv runs.csv --tex runs.tex
report runs --out report.html; tables runs; tables runs --setting proxyfl --out others; figures runs --only 4 --only 16
report runs --out measured.html --measure accuracy
submit runs/sage --out entries; verify entries/sage-seed7.json --rounds 0
methods; methods sage; methods flexmatch+sage; methods X+oracle; datasets; presets; presets demo; docs; docs sage
deploy init home --sites 2
"""
REJECTED = """
records accept runs/sage --remark x; records accept none --remark x; run smoke --gpu
run smok; run nothing.toml; run runs/none --resume; run smoke --rounds 3; rnu smoke; run smoke --set seed
run smoke --set train.lrr=1; run smoke --set train.lr=nan; run smoke --set model.name=resnet
run smoke --set server.lr=0.5; run smoke --set grid.seed=[1,1]; run smoke --set records.keep_best=true
run smoke --set method.name=sgae; run smoke --set method.name=flexmach+sage; run smoke --set method.name=sage+oracel
run smoke --set method.name=fedavg+sage; run smoke --set method.name=sage+sage; run smoke --set method.name=my.py
run smoke --set method.tua=0.9; run smoke --set method.tau=2; run smoke --set grid.method.tau=[0.5,2]
run smoke --data-dir images; run smoke --set compute.ray_address=auto; run smoke --debug --set compute.engine=flower
run smoke --set data.name=cifar10 --data-dir none; run smoke --set data.name=folder --data-dir none
run smoke --set data.name=folder; run smoke --set data.name=imagefolder --data-dir none
run smoke --set partition.file=none.json; run smoke --set model.start=none.pt; run demo --set method.name=sgae --dry-run
show none; show runs; compare none; compare runs --by nothing; compare runs --against nothing; compare runs --measure f2
report none; report runs --out report.txt; tables none; tables runs --setting nothing; figures none
figures runs --only 99
submit none; submit runs/begun; submit runs/sage --out runs/sage/config.toml; verify none.json
verify runs/sage/config.toml; reproduce tabl1; reproduce fig99; reproduce table1 --runs none
reproduce track-a --entries none
methods fedlok; methods sage+oracel; methods fedavg+sage; presets smok; docs sag; datasets --check none
bench --method sgae; bench --method sage --method fedavg; deploy status --home none; deploy start smoke --home none
deploy start smok --home home; predict none; predict runs/sage photos --data-dir data
"""


def commands(text: str) -> list[list[str]]:
    return [words.split() for line in text.strip().splitlines() for words in line.split(";")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a finished run, one of another method, and one that has begun."""
    write_run(tmp_path / "runs" / "sage", config_of("train.rounds=3"), [40, 50, 60], clients=[[0, 1]] * 3)
    write_run(tmp_path / "runs" / "flexmatch", config_of("method.name=flexmatch", "train.rounds=3"), [40, 45, 50])
    write_run(tmp_path / "runs" / "begun", config_of("method.tau=0.9", "train.rounds=3"), [40], finished=False)
    return tmp_path


def ends(folder: Path, words: list[list[str]]) -> list[list[object]]:
    """Each command, its exit code, and whether PyTorch is there by then."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(words)],
        **{"cwd": folder, "env": ENVIRONMENT, "capture_output": True, "text": True, "check": True},
    )
    return [json.loads(line) for line in done.stderr.splitlines() if line.startswith("[")]


@pytest.mark.slow
def test_reading_needs_no_torch(folder: Path) -> None:
    assert ends(folder, commands(READING)) == [[" ".join(words), 0, False] for words in commands(READING)]


def test_rejected_settings_need_no_torch(folder: Path) -> None:
    words = [["deploy", "init", "home"], *commands(REJECTED)]
    assert ends(folder, words)[1:] == [[" ".join(each), 2, False] for each in words[1:]]


def test_neither_do_nodes_of_a_deployment(folder: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed")
    words = ["deploy init home", "deploy keys --home home", "deploy status --home home"]
    codes = [0, 0, 1]  # the server has not been started
    assert ends(folder, [each.split() for each in words]) == [[w, c, False] for w, c in zip(words, codes, strict=True)]


def test_a_script_reads_runs_without_torch(folder: Path) -> None:
    code = "import fssl, sys; print([run.result for run in fssl.runs('runs')], 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.stdout == "[40.0, 45.0, 50.0] False\n", done.stderr


def test_a_run_that_resumes_needs_no_torch(folder: Path) -> None:
    """Whether its newest checkpoint is whole is looked up for the last line."""
    begun = RunFolder(folder / "runs" / "begun")
    RunWriter(begun).checkpoint(1, {"weight": torch.ones(3)}, {})
    begun.lock.take()
    begun.lock.close()
    assert resume_error(begun) is None
    assert ends(folder, [["show", "runs/begun"]]) == [["show runs/begun", 0, False]]


@pytest.mark.slow
def test_the_watch_sees_torch(folder: Path) -> None:
    """Facts that only a built method has need it: otherwise the tests above would prove nothing."""
    words = ["run", "smoke", "--set", "method.kappa=3", "--set", "method.cdsc=false"]
    assert ends(folder, [words]) == [[" ".join(words), 2, True]]
