"""The command line: what it rejects, what it writes, and what a person sees."""

import json
import os
import pty
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from rich.console import Console
from safetensors.numpy import load_file
from torch._subclasses.fake_tensor import FakeTensor

from fssl.cli import app as cli
from fssl.cli import deploy
from fssl.cli.options import console
from fssl.config import by_card, parse, read_toml, to_toml
from fssl.console import GridView
from fssl.engines.engine import Engine
from fssl.engines.stopwatch import spending
from fssl.errors import UserError
from fssl.methods.fixmatch import FixMatch
from fssl.methods.names import METHODS
from fssl.records import writer
from fssl.reports.page import write as page
from fssl.runner.planned import share_of
from helpers.command import ENVIRONMENT, SMALL, Fssl, outcome, records, start
from helpers.processes import children, is_alive
from helpers.run_folders import write_run
from helpers.small import completed, tiny_config

TINY = """
[data]
name = "digits"
labels_per_class = 8
[partition]
clients = 4
[model]
name = "cnn"
width = 1
[train]
rounds = 3
clients_per_round = 2
steps_per_round = 2
batch = 4
"""


@pytest.fixture
def fssl(fssl: Fssl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fssl:
    """With a tiny configuration next to it."""
    monkeypatch.delenv("FSSL_DATA", raising=False)
    (tmp_path / "tiny.toml").write_text(TINY)
    return fssl


def forbid_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*words: object) -> str:
        raise AssertionError("a run was started")

    monkeypatch.setattr("fssl.runner.planned.run_experiment", start)


# Rejections.


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        ("run", ["config"]),
        ("rnu smoke", ["'rnu'. Did you mean 'run'?\n"]),
        ("run smoke --rounds 3", ["--rounds"]),
        ("run smoke more", ["more"]),
        ("run smok", ["'smok'", "did you mean 'smoke'?"]),
        ("run nothing.toml", ["there is no file nothing.toml"]),
        ("run nothing", ["'nothing'", "known: demo"]),
        ("run .", ["'.' is a folder"]),
        ("run smoke --set seed", ["seed: expected key=value", "(--set)\n"]),
        ("run smoke --set train.lrr=1", ["[train]", "did you mean 'lr'?"]),
        (
            "run smoke --set data.validation=0.1 --set grid.data.labels_per_class=[8,1]",
            ["data.validation = 0.1: too few labeled images"],
        ),
        (
            "run smoke --set data.validation=0.1 --set grid.data.labels_per_class=[8,1] --dry-run",
            ["data.validation = 0.1: too few labeled images"],
        ),
        (
            "run smoke --set model.name=resnet18 --set method.name=feddb --set train.batch=1",
            ["method 'feddb': its step fails: BatchNorm needs more than 1 value per channel", "model.norm = 'group'"],
        ),
        (
            "run smoke --set model.name=resnet18 --set partition.labels=server --set server.batch=1",
            ["network 'resnet18': BatchNorm needs more than 1 value per channel"],
        ),
        ("run smoke --set train.lr=nan", ["train.lr = nan"]),
        ("run smoke --set train.lr=1e300", ["train.lr = 1e+300", "from 0 to 1e+30"]),  # single precision ends before
        ("run smoke --set train.rounds=10000000000", ["train.rounds = 10000000000", "from 1 to 999999"]),
        ("run smoke --set train.batch=10000000", ["train.batch = 10000000", "from 1 to 65536"]),
        ("run smoke --set train.weight_decay=1e30", ["train.weight_decay = 1e+30", "from 0 to 1000"]),
        ("run smoke --set partition.alpha=1e30", ["partition.alpha = 1e+30", "from 0 to 1000000"]),
        ("run smoke --set records.checkpoint_every=1000000000000", ["from 1 to 999999"]),
        (
            "run smoke --set train.batch=65536 --set train.unlabeled_ratio=1000",
            ["65,601,536 images"],
        ),
        (
            "run smoke --set model.digest=abc",
            ["model.digest = 'abc' has no effect with model.name = 'cnn'; remove it, or use file.py:function"],
        ),
        ("run smoke --set method.digest=abc", ["method.digest = 'abc' has no effect with method.name = 'sage'"]),
        ("run smoke --set train.unlabeled_ratio=100000", ["train.unlabeled_ratio", "from 1 to 1000"]),
        ("run smoke --set method=sage", ["'method' is a section", "method.name = 'sage'"]),
        ("run smoke --set train=5", ["'train' is a section", "train.<key> = ..."]),
        ("run smoke --set grid.method.name=sage", ["grid.method.name = 'sage'", "for example ['sage']"]),
        ("run smoke --set grid.grid.seed=[7]", ["grid.grid", "directly below [grid]"]),
        ("run smoke --data-dir images", ["data.dir = 'images'", "digits needs no files", "data.name = 'folder'"]),
        ("run runs/nope --resume", ["'runs/nope': no such run folder"]),
        ("run nope --resume", ["'nope': no such run folder"]),
        ("run smok --resume", ["did you mean 'smoke'?"]),
        (
            "run smoke --set model.name=resnet",
            ["model.name 'resnet'", "(known: FILE.py:FUNCTION, cnn, ", ", timm:NAME"],
        ),
        (
            "run smoke --set records.keep_best=true",
            [
                "records.keep_best = true does not work with",
                "without validation images, only the reported test images could choose a round",
            ],
        ),
        (
            "run smoke --set server.lr=0.5",
            ["server.lr = 0.5 has no effect with server.optimizer = 'mean'; remove it, or use 'momentum' or 'adam'"],
        ),
        ("run paper", ["'paper' is unknown (known: demo"]),
        ("run smoke --set method.name=fixmatch", ["did you mean 'fixmatch-gpl' or 'fixmatch-lpl'?"]),
        ("run smoke --set grid=5", ["grid = 5"]),
        ("run smoke --set grid.seed=[1,1]", ["'seed1' twice"]),
        ("run smoke --set method.name=sgae", ["'sgae'", "did you mean 'sage'?"]),
        ("run smoke --set method.name=sage+oracel", ["plug-in 'oracel'", "did you mean 'oracle'?"]),
        ("run smoke --set method.name=fedavg+sage", ["plug-in 'sage'", "pseudo-labels"]),
        ("run smoke --set method.name=fedloke+sage", ["plug-in 'sage'", "that it can replace"]),
        ("run smoke --set method.name=flexmatch+sage+sage", ["repeats a plug-in"]),
        ("run smoke --set method.name=fedavg+flexmatch", ["flexmatch is a method, not a plug-in"]),
        ("run smoke --set method.name=feddure --set method.student_rate=0", ["method.student_rate = 0", "from 1e-09"]),
        ("run smoke --set method.name=feddure-full --set method.meta_lr=-1", ["method.meta_lr = -1"]),
        ("run smoke --set method.name=fedmatch --set method.helpers=0", ["method.helpers = 0", "from 1 to 100"]),
        (
            "run smoke --set method.name=fedmatch --set method.helpers=6",
            ["needs at least 7 clients", "partition.clients = 6"],
        ),
        ("run smoke --set method.name=fedavg-sl --set method.steps=pool", ["'fedavg-sl' has no settings"]),
        ("run smoke --set method.name=fedlabel --set method.winner=best", ["method.winner 'best'", "known: entropy"]),
        ("run smoke --set method.name=fedlabel-2m --set method.burn_in=0.5", ["method.burn_in = 0.5", "whole number"]),
        ("run smoke --set method.name=fedloke --set method.mu_own=1.1", ["method.mu_own = 1.1", "from 0 to 1"]),
        ("run smoke --set method.name=feddb --set method.dma=exct", ["method.dma 'exct'", "did you mean 'exact'?"]),
        ("run smoke --set method.name=proxyfl --set method.tuning_batch=0", ["method.tuning_batch = 0"]),
        ("run smoke --set method.name=flexmach+sage", ["did you mean 'flexmatch+sage'?"]),
        ("run smoke --set method.name=fedproxx+fixmatch+sage", ["did you mean 'fedprox+fixmatch+sage'?"]),
        ("run smoke --set method.name=flexmach+sag", ["did you mean 'flexmatch'?"]),
        (
            "run smoke --set method.name=freematch --set method.tau=0.9",
            ["'tau' is unknown", "known: ema, highest"],
        ),
        ("run smoke --set method.lam=0.3 --set method.cdsc=false", ["method.lam", "give one"]),
        ("run smoke --set method.kappa=3 --set method.cdsc=false", ["method.kappa = 3 has no effect in 'sage'"]),
        ("run smoke --set method.name=fedloke --set method.tau=0.9", ["method.tau = 0.9 has no effect in 'fedloke'"]),
        ("run smoke --set method.name=feddb+sage --set method.online=true", ["method.online = true has no effect"]),
        (
            "run smoke --set method.name=proxyfl+sage --set method.mask=global",
            ["method.mask = 'global' has no effect"],
        ),
        ("methods fedlok", ["'fedlok'", "did you mean 'fedloke'?"]),
        ("bench --methods --method fedlok", ["did you mean 'fedloke'?"]),
        ("bench --method sage --method fedavg", ["need --methods"]),
        ("bench --json .", ["fssl: .: is a folder; expected a file (--json)\n"]),
        ("bench --json tiny.toml/x.json", ["tiny.toml/x.json: tiny.toml is a file, not a folder (--json)\n"]),
        ("run smoke --set method.tua=0.9", ["'tua'", "did you mean 'tau'?"]),
        ("run smoke --set method.threshold=0.9", ["'threshold'", "did you mean 'tau'?"]),
        ("run smoke --set method.tau=2", ["method.tau = 2", "from 1e-09 to 1"]),
        ("run smoke --set method.tau=nan", ["method.tau = nan"]),
        ("run smoke --set method.tau=high", ["method.tau = 'high'", "expected a number"]),
        ("run smoke --set grid.method.tau=[0.5,2]", ["method.tau = 2"]),
        ("run smoke --set data.name=cifar10 --data-dir nowhere", ["cifar10", "'nowhere' is no such folder"]),
        ("run smoke --set data.name=cifar10 --data-dir .", ["'.' has no train-*.parquet files"]),
        ("run smoke --rounds 3", ["'--rounds'; it is a setting: --set train.rounds=3\n"]),
        ("run smoke --lr 0.1", ["it is a setting: --set train.lr=0.1 or --set server.lr=0.1\n"]),
        ("run smoke --epochs 3", ["--set train.local_epochs=3 or --set server.epochs=3\n"]),
        ("run smoke --local-epochs 3", ["it is a setting: --set train.local_epochs=3\n"]),
        ("run smoke --method sage", ["it is a setting: --set method.name=sage\n"]),
        ("run smoke --method", ["it is a setting: --set method.name=VALUE\n"]),
        ("run smoke --engine=flower", ["it is a setting: --set compute.engine=flower\n"]),
        ("run smoke --skip-bad --out x", ["it is a setting: --set data.skip_bad=true\n"]),
        ("run smoke --gpu", ["No such option '--gpu'; it is a setting: --set compute.device=cuda\n"]),
        ("run smoke --set train.lr 0.1", ["(0.1); expected an equals sign: --set train.lr=0.1\n"]),
        ("run smoke --set grid.seed=7,8,9", ["grid.seed = '7,8,9'", "for example [7, 8, 9]\n"]),
        ("run smoke --nonsense", ["No such option"]),
        ("run smoke seed=7", ["(seed=7); put --set before each setting: --set seed=7\n"]),
        ("run smoke seed=7 train.lr=1", ["put --set before each setting: --set seed=7 --set train.lr=1\n"]),
        ("show runs --rounds 3", ["No such option"]),  # `show` takes no settings
        ("run smoke --device gpu", ["compute.device 'gpu'", "did you mean 'cuda'?"]),
        ("run smoke --jobs 0", ["--jobs"]),
        ("run smoke --out tiny.toml", ["tiny.toml is a file, not a folder"]),
        ("run smoke --out tiny.toml/x", ["tiny.toml/x cannot be written: tiny.toml is a file"]),
        ("run smoke --out .", ["neither empty nor a run folder"]),
        ("show nowhere", ["nowhere is not a run folder"]),
        ("show .", [". is not a run folder"]),
        ("compare nowhere", ["nowhere does not exist"]),
        ("compare .", ["no runs in ."]),
        ("datasets --export-digits tiny.toml/x", ["'tiny.toml/x' cannot be written: tiny.toml is a file"]),
        ("compare . --png curves.tiff", ["curves.tiff: expected a name that ends with .png (--png)\n"]),
        ("compare . --png tiny.toml/x.png", ["tiny.toml/x.png: tiny.toml is a file, not a folder (--png)\n"]),
        ("compare . --png tiny.toml/a/x.png", ["tiny.toml/a/x.png: tiny.toml is a file"]),
        ("tables .", ["no runs in ."]),
        ("tables . --out tiny.toml", ["tiny.toml: tiny.toml is a file, not a folder (--out)\n"]),
        ("tables . --table 9", ["--table 9", "from 1 to 8"]),
        ("figures .", ["no runs in ."]),
        ("figures . --out tiny.toml/x", ["tiny.toml/x: tiny.toml is a file, not a folder (--out)\n"]),
        ("figures . --only 3", ["figure '3' is unknown"]),
        ("report nowhere", ["nowhere does not exist"]),
        ("report .", ["no runs in ."]),
        ("report . --out page.pdf", ["page.pdf: expected a name that ends with .html (--out)\n"]),
        ("report . --out tiny.toml/x.html", ["tiny.toml/x.html: tiny.toml is a file, not a folder (--out)\n"]),
        ("report nowhere --watch", ["there is no folder nowhere"]),
        ("report . --port 70000", ["--port"]),
        ("run smoke --wandb on", ["it is a setting: --set records.wandb=on\n"]),
        ("run smoke --set records.wandb=on", ["records.wandb 'on' is unknown", "off, offline, online"]),
        ("run smoke --set method.tau=[0.9,0.95]", ["method.tau = [0.9, 0.95]", "grid.method.tau=[0.9, 0.95]"]),
        ("run smoke --set method.tau=[2020-01-01]", ["method.tau = ", "expected a number, a string, true or false"]),
        ("run smoke --set train.lr=[0.1,nan]", ["train.lr = [0.1, nan]: expected a number"]),
        ("run smoke --set method.tau=2020-01-01", ["method.tau = ", "expected a number, a string, true or false"]),
        ('run smoke --set data.name=["digits","synthetic"]', ["grid.data.name="]),
        ("bench --shape paper --set data.name=digits", ["no effect with --shape paper"]),
        ("bench --method sgae", ["did you mean 'sage'?"]),
        ("bench --shape small", ["--shape 'small'", "known: demo, paper"]),
        ("", ["no command"]),
    ],
)
def test_bad_input_ends_in_one_line_before_anything_is_written(
    fssl: Fssl, monkeypatch: pytest.MonkeyPatch, words: str, fragments: list[str]
) -> None:
    forbid_training(monkeypatch)
    said = fssl(*words.split())
    assert said.code == 2
    assert said.err.startswith("fssl: ")
    assert said.err.count("\n") == 1
    for fragment in fragments:
        assert fragment.lower() in said.err.lower()  # typer 0.20 names arguments in capitals
    assert [p.name for p in Path().iterdir()] == ["tiny.toml"]


@pytest.mark.parametrize("key", ["method.name", "model.name"])
def test_a_name_without_its_ending_is_recognized(fssl: Fssl, key: str) -> None:
    Path("mine.py").touch()
    said = fssl("run", "smoke", "--set", f"{key}=mine:mine")
    assert (said.code, said.err.endswith("'mine:mine' is unknown; did you mean 'mine.py:mine'?\n")) == (2, True)


def test_a_message_stays_on_one_line_whatever_was_typed(fssl: Fssl) -> None:
    assert fssl("run", "smoke", "--set", "method.name=a\nb").err.startswith("fssl: method 'a b' is unknown")


def test_a_folder_that_cannot_be_written_is_rejected(fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_training(monkeypatch)
    Path("ro").mkdir()
    monkeypatch.setattr("os.access", lambda path, mode: path.name != "ro")  # root may write anywhere
    said = fssl("run", "tiny.toml", "--out", "ro/x")
    assert (said.code, said.err) == (
        2,
        "fssl: ro/x cannot be written: ro is read-only; choose another folder (--out)\n",
    )
    assert not any(Path("ro").iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("compare . --png a.png", "a.png: is a folder; expected a file (--png)"),
        ("report . --out a.html", "a.html: is a folder; expected a file (--out)"),
        ("compare . --png ro/x.png", "ro/x.png: ro is read-only (--png)"),
        ("tables . --out ro/x", "ro/x: ro is read-only (--out)"),
        ("figures . --out ro", "ro: ro is read-only (--out)"),
        ("report . --out ro/x/x.html", "ro/x/x.html: ro is read-only (--out)"),
        ("bench --json ro/x.json", "ro/x.json: ro is read-only (--json)"),
        ("bench --json ro/there.json", "ro/there.json: ro is read-only (--json)"),
    ],
)
def test_a_place_that_cannot_be_written_is_rejected_before_the_work(
    fssl: Fssl, monkeypatch: pytest.MonkeyPatch, words: str, message: str
) -> None:
    forbid_training(monkeypatch)
    for name in ("a.png", "a.html", "ro"):
        Path(name).mkdir()
    Path("ro/there.json").touch()  # would be replaced by another, which is written next to it first
    monkeypatch.setattr("os.access", lambda path, mode: Path(path).name != "ro" or mode != os.W_OK)  # root may write
    said = fssl(*words.split())
    assert (said.code, said.out, said.err) == (2, "", f"fssl: {message}\n")
    assert [path.name for path in Path("ro").iterdir()] == ["there.json"]


def test_text_of_other_editors_is_read_or_named(fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_training(monkeypatch)
    Path("marked.toml").write_text(TINY, "utf-8-sig")
    assert fssl("run", "marked.toml", "--dry-run").code == 0
    Path("latin.toml").write_bytes(b"# caf\xe9\n")
    said = fssl("run", "latin.toml")
    assert (said.code, said.err) == (2, "fssl: latin.toml: not UTF-8 text (byte 6); save it as UTF-8\n")


def test_a_gpu_that_is_not_there_is_rejected(fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    said = fssl("run", "tiny.toml", "--device", "cuda")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "compute.device = 'cuda': no CUDA device is visible" in said.err
    assert not Path("runs").exists()


def test_a_missing_extra_is_rejected(fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    said = fssl("run", "tiny.toml", "--set", "records.tensorboard=true")
    assert (said.code, said.err) == (2, "fssl: records.tensorboard needs a package: pip install 'fssl[tensorboard]'\n")
    monkeypatch.setitem(sys.modules, "wandb", None)
    said = fssl("run", "tiny.toml", "--set", "records.wandb=offline")
    assert (said.code, said.err) == (2, "fssl: records.wandb needs a package: pip install 'fssl[wandb]'\n")
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    page.plotly.cache_clear()
    said = fssl("report", ".")
    assert (said.code, said.err) == (2, "fssl: a report needs a package: pip install 'fssl[report]'\n")
    assert not Path("runs").exists()


def test_compiling_on_a_cpu_without_a_compiler_is_rejected(fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    said = fssl("run", "tiny.toml", "--device", "cpu", "--set", "compute.compile=on")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "compute.compile = 'on'" in said.err


@pytest.mark.slow
def test_a_run_that_blows_up_says_so_and_exits_with_1(fssl: Fssl) -> None:
    said = fssl("run", "tiny.toml", "--set", "train.lr=1e30")
    assert (said.code, said.err.count("\n")) == (1, 1)
    assert "the loss of client" in said.err
    assert "Try a smaller train.lr" in said.err


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, MemoryError])
def test_too_little_memory_is_said_in_one_line(
    fssl: Fssl, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def step(*words: object) -> object:
        if not isinstance(getattr(words[-1], "y", None), FakeTensor):  # not yet while the run is prepared
            raise kind("tried to allocate 80 GiB")
        return whole(*words)

    whole: Any = FixMatch.step
    monkeypatch.setattr(FixMatch, "step", step)
    said = fssl("run", "tiny.toml", "--device", "cpu")
    assert (said.code, said.err.count("\n")) == (1, 1)
    assert said.err.startswith("fssl: runs/tiny: not enough memory on cpu; fewer compute.lanes")


GREEDY = """
from dataclasses import dataclass
import torch
from fssl.methods.fixmatch import FixMatch

@dataclass(frozen=True)
class Greedy(FixMatch):
    where: str = "step"

    def step(self, net, payload, local, batch):
        if self.where == "step":
            torch.empty(2**50)  # four petabytes; while the run is prepared it is a shape only
        return super().step(net, payload, local, batch)

    def aggregate(self, net, server, uploads, rng):
        if self.where == "aggregate":
            torch.empty(2**50)
        return super().aggregate(net, server, uploads, rng)

def step(): return Greedy()
def aggregate(): return Greedy(where="aggregate")
"""


@pytest.mark.parametrize("where", ["step", "aggregate"])
def test_a_cpu_without_that_much_memory_says_so_in_one_line(fssl: Fssl, where: str) -> None:
    """The framework itself is asked for more than any machine has, and its error is no class of its own."""
    Path("greedy.py").write_text(GREEDY)
    said = fssl("run", "tiny.toml", "--device", "cpu", "--set", f"method.name=greedy.py:{where}")
    assert (said.code, said.err.count("\n")) == (1, 1)
    assert said.err.startswith("fssl: runs/tiny: not enough memory on cpu; fewer compute.lanes")
    assert not Path("runs/tiny/failed-step.safetensors").exists()


def test_other_commands_say_that_memory_is_short(fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fssl.reports.show.print_run", lambda *_: torch.empty(2**50))
    assert fssl("show", "run") == (1, "", "fssl: not enough memory\n")


def test_decoded_images_are_removed_by_one_command(fssl: Fssl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "cache"))
    Path("cache").mkdir()
    Path(f"cache/cifar10-train-{'a' * 32}.images.npy").write_bytes(bytes(2_500_000))
    listed = fssl("datasets", "--cache")
    total = "1 file of decoded images, 2.5 MB"
    assert (listed.code, listed.out.splitlines()[-1].endswith(f": {total}"), listed.out.count("\n")) == (0, True, 2)
    assert fssl("datasets", "--clear-cache") == (0, f"removed {total}\n", "")
    assert list(Path("cache").iterdir()) == []


# Help.


def test_shell_completion_is_in_the_help(fssl: Fssl) -> None:
    assert "--install-completion" in fssl("--help").out


COMMANDS: list[str] = [*typer.main.get_command(cli.app).commands]  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "deploy"])
def test_every_command_teaches_by_example(fssl: Fssl, command: str) -> None:
    said = fssl(command, "--help")
    assert (said.code, said.err) == (0, "")
    assert "Example" in said.out
    assert "fssl " in said.out


def test_help_explains_arguments(fssl: Fssl) -> None:
    """Versions of typer and click that do not fit leave it out."""
    assert "A preset (see fssl presets), a TOML file or a run" in fssl("run", "-h").out
    assert "Run folders, or folders of them." in fssl("compare", "--help").out


def test_the_version_is_that_of_the_package(fssl: Fssl) -> None:
    assert fssl("--version") == (0, f"fssl {version('fssl')}\n", "")


def test_help_names_every_command(fssl: Fssl) -> None:
    said = fssl("--help")
    assert said.code == 0
    assert all(f" {command} " in said.out for command in COMMANDS)
    assert "traffic, state, cost of a step, and source." in " ".join(said.out.split())  # not cut off


def test_help_is_fast() -> None:
    """Half a second of processor time at most (a busy machine changes that little), as nothing heavy is imported.

    Nor is what would draw boxes and read Markdown.
    """
    script = "import sys; from fssl.cli import main; sys.argv[1:] = ['--help']\ntry: main()\n"
    script += "except SystemExit: print({'torch', 'numpy', 'matplotlib', 'rich.markdown'} & sys.modules.keys())"

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    seconds = []
    for _ in range(3):
        begin = spent()
        command = [sys.executable, "-c", script]
        out = subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT).stdout
        seconds.append(spent() - begin)
        assert out.endswith("set()\n")
    assert 0 < min(seconds) < 0.5


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("methods", ["sage", "flexmatch", "released code"]),
        ("methods sage", ["kappa", "fssl docs sage"]),
        ("datasets", ["cifar10", "digits"]),
        ("presets", ["smoke", "demo"]),
    ],
)
def test_lists_name_what_there_is(fssl: Fssl, command: str, names: list[str]) -> None:
    said = fssl(*command.split())
    assert said.code == 0
    assert all(name in said.out for name in names)


def test_a_narrow_screen_cuts_nothing(fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_width", 80)
    commands = ("methods", "methods flexmatch+sage", "datasets", "presets", "run demo --dry-run")
    lists = {words: fssl(*words.split()).out for words in commands}
    for text in lists.values():
        assert "…" not in text
        assert "..." not in text
    assert {*METHODS} <= {line.split()[0] for line in lists["methods"].splitlines() if line.split()}
    names = [line.split()[0] for line in lists["presets"].splitlines() if line.startswith(" ") and line.split()]
    assert names.index("demo") < names.index("paper/fig2") < names.index("paper/fig10-lambda")


# One run.


def test_a_run_leaves_a_whole_record(fssl: Fssl) -> None:
    with spending("compiling"):  # as an earlier run of this process
        pass
    said = fssl("run", "tiny.toml")
    assert (said.code, said.err) == (0, "")
    folder = Path("runs/tiny")
    assert {p.name for p in folder.iterdir()} == {
        *(".lock", "config.toml", "env.json", "rounds.jsonl", "summary.json", "model.safetensors"),
        *("checkpoint", "probes", "partition.json", "measures.json"),
    }
    counts = json.loads((folder / "partition.json").read_text())
    assert [sum(client) for client in zip(*counts["labeled"], strict=True)] == [8] * 10  # labels per class
    assert sum(map(sum, counts["unlabeled"])) == 1437 - 80
    stored, given = parse(read_toml(str(folder / "config.toml"))), parse(read_toml("tiny.toml"))
    assert stored == completed(given)
    assert by_card(stored) == stored
    lines = [json.loads(text) for text in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    curve = [line["test"]["train_norm"]["accuracy"] for line in lines]
    assert curve == [line["accuracy"] for line in lines]
    summary = json.loads((folder / "summary.json").read_text())
    numbers = summary["train_norm"]
    assert (numbers["last"], numbers["best"]) == (curve[-1], max(curve))
    assert numbers["mean_last_10"] == summary["result"] == pytest.approx(sum(curve) / 3)
    assert set(numbers["rounds_to"]) == {"30", "40", "45", "50"}
    assert summary["timing"]["seconds_per_round"] == sorted(line["timing"]["seconds"] for line in lines)[1]
    session = json.loads((folder / "env.json").read_text())["sessions"][0]
    assert session["command"] == "run tiny.toml"
    assert session["start"] == {}
    assert set(session) >= {"started", "python", "packages", "device", "threads", "revision"}
    model = load_file(folder / "model.safetensors")
    assert all(name.startswith(("params.", "buffers.")) for name in model)
    assert model["params.head.linear.bias"].shape == (10,)
    assert {p.suffix for p in folder.rglob("*") if p.is_file()} <= {"", ".toml", ".json", ".jsonl", ".safetensors"}


def test_without_a_terminal_each_round_is_a_plain_line(fssl: Fssl) -> None:
    cost, *lines = fssl("run", "tiny.toml").out.splitlines()
    assert len(lines) == 5
    assert cost.startswith("estimate for this machine: ")
    assert lines[0] == "tiny  3 rounds"  # before anything is compiled
    for i, line in enumerate(lines[1:4], 1):
        assert re.fullmatch(rf"tiny  round +{i}/3  test .* %  \d+\.\d\d s  ETA \d+:\d\d", line)
    assert lines[4].startswith("runs/tiny: ")
    assert "(mean of the last 3 rounds)" in lines[4]
    lines = fssl("run", "tiny.toml", "--set", "grid.seed=[1,2]", "--out", "two").out.splitlines()
    assert [line.split("  ")[0] for line in lines if line[0] == "["] == ["[1/2] seed1"] * 4 + ["[2/2] seed2"] * 4


def test_a_folder_in_use_is_not_written_again(fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fssl("run", "tiny.toml").code == 0
    before = outcome(Path("runs/tiny"))
    forbid_training(monkeypatch)
    said = fssl("run", "tiny.toml")
    assert said.code == 2
    assert said.err == "fssl: runs/tiny already contains a run; resume it, or choose another folder (--resume, --out)\n"
    said = fssl("run", "tiny.toml", "--resume")
    assert said == (0, "runs/tiny: finished already\n", "")
    said = fssl("run", "tiny.toml", "--resume", "--set", "seed=8")
    assert said.code == 2
    assert (
        said.err == "fssl: runs/tiny contains another run: seed is 7 there and 8 here; choose another folder (--out)\n"
    )
    said = fssl("run", "tiny.toml", "--resume", "--set", "train.rounds=2")
    assert said.code == 2
    assert "train.rounds = 2: runs/tiny already has 3 rounds" in said.err
    assert outcome(Path("runs/tiny")) == before


@pytest.mark.slow
def test_a_finished_run_resumes_with_more_rounds(fssl: Fssl) -> None:
    fssl("run", "tiny.toml")
    said = fssl("run", "tiny.toml", "--resume", "--set", "train.rounds=5", "--set", "compute.lanes=1")
    assert (said.code, said.err) == (0, "")
    assert "\nresuming runs/tiny after round 3\n" in said.out
    fssl("run", "tiny.toml", "--set", "train.rounds=5", "--out", "long")
    assert outcome(Path("runs/tiny")) == outcome(Path("long"))


def test_a_damaged_configuration_in_a_run_folder_is_named(fssl: Fssl) -> None:
    fssl("run", "tiny.toml")
    Path("runs/tiny/config.toml").write_text("sed = 7")
    for words in (["show", "runs/tiny"], ["run", "tiny.toml", "--resume"]):
        said = fssl(*words)
        assert said.code == 2
        assert said.err.startswith("fssl: runs/tiny/config.toml: section or key 'sed' is unknown")


def test_tensorboard_events_hold_the_curve(fssl: Fssl) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert fssl("run", "tiny.toml", "--set", "records.tensorboard=true", "--set", "train.rounds=2").code == 0
    assert fssl("run", "tiny.toml", "--set", "records.tensorboard=true", "--resume").code == 0
    events = accumulator.EventAccumulator("runs/tiny/tensorboard").Reload()
    points = [(e.step, e.value) for e in events.Scalars("test_accuracy/train_norm")]
    lines = [json.loads(text) for text in Path("runs/tiny/rounds.jsonl").read_text().splitlines()]
    assert points == [(line["round"], pytest.approx(line["accuracy"], rel=1e-6)) for line in lines]


def test_letters_a_terminal_does_not_have_are_replaced(tmp_path: Path) -> None:
    environment = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii"}
    process = start("presets", env=environment, cwd=tmp_path)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert out.isascii()


# Reading runs.


@pytest.mark.slow
def test_show_and_compare_read_the_records(fssl: Fssl) -> None:
    for seed in (7, 8):
        fssl("run", "tiny.toml", "--set", f"seed={seed}", "--out", f"out/[a]{seed}")
    said = fssl("show", "out/[a]7")
    assert said.code == 0
    assert said.out.startswith("sage on digits, seed 7: out/[a]7\n")
    summary = json.loads(Path("out/[a]7/summary.json").read_text())
    assert f"{summary['train_norm']['best']:.2f} % (round {summary['train_norm']['best_round']})" in said.out
    said = fssl("compare", "out", "--png", "new/curves.PNG")
    assert (said.code, said.err) == (0, "")
    assert "7 8" in said.out
    fssl("run", "tiny.toml", "--set", "train.rounds=1", "--out", "one")
    assert "(mean of the last 1 round; last round)" in fssl("compare", "one").out
    assert "accuracy, mean of the last 1 round " in fssl("show", "one").out
    assert Path("new/curves.PNG").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_is_not_quite_there_is_suggested(fssl: Fssl) -> None:
    def hint(path: str) -> str:
        said = fssl("show", path)
        assert (said.code, said.err.count("\n")) == (2, 1)
        return said.err.removeprefix(f"fssl: {path} is not a run folder (no config.toml); ").strip()

    for seed in range(7, 11):
        write_run(Path(f"runs/demo/seed{seed}"), tiny_config(), [50.0])
    write_run(Path("runs/server/sage"), tiny_config(), [50.0])
    assert hint("runs/server/sage/seed7") == hint("runs/server/sagee") == "did you mean runs/server/sage?"
    assert hint("runs/server") == "did you mean runs/server/sage?"
    assert hint("runs/demo/seed1") == "did you mean runs/demo/seed10?"
    assert hint("runs/demo") == hint("nowhere") == "`fssl run` creates one; `fssl compare` reads several"


def test_show_says_that_a_run_is_unfinished(fssl: Fssl) -> None:
    fssl("run", "tiny.toml")
    run = Path("runs/tiny")
    (run / "summary.json").unlink()
    lines = (run / "rounds.jsonl").read_text().splitlines()
    (run / "rounds.jsonl").write_text("\n".join([*lines[:2], lines[2][:50]]))
    assert "unfinished: 2 of 3 rounds; continue with --resume\n" in fssl("show", run).out
    assert fssl("run", run, "--resume").code == 0
    (run / "summary.json").unlink()
    (run / "rounds.jsonl").write_text(lines[0] + "\n")
    why = fssl("run", run, "--resume").err.removeprefix("fssl: ").replace(" (--out)", "")
    assert why.startswith("no checkpoint in runs/tiny/checkpoint is usable")
    assert f"unfinished: 1 of 3 rounds; it cannot be resumed: {why}" in fssl("show", run).out


@pytest.mark.parametrize("kept", ["", "model.safetensors"])
def test_a_run_without_a_round_resumes_if_it_lost_none(kept: str, fssl: Fssl) -> None:
    fssl("run", "tiny.toml")
    run = Path("runs/tiny")
    (run / "rounds.jsonl").unlink()
    for path in (run / "probes", run / "checkpoint"):
        shutil.rmtree(path)
    for name in {"model.safetensors", "summary.json"} - {kept}:
        (run / name).unlink()
    said = fssl("show", run)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert said.err.startswith("fssl: runs/tiny has no finished round in rounds.jsonl; ")
    resumed = fssl("run", run, "--resume")
    assert (resumed.code, "continue with --resume" in said.err) == ((2, False) if kept else (0, True))
    assert said.err.endswith(
        f"it cannot be resumed: {resumed.err.removeprefix('fssl: ').replace(' (--out)', '')}" if kept else "--resume\n"
    )


def test_a_folder_with_only_settings_cannot_be_resumed(fssl: Fssl) -> None:
    Path("mine").mkdir()
    Path("mine/config.toml").write_text("seed = 7\n")
    said = fssl("show", "mine")
    assert "it cannot be resumed: mine/config.toml was not written by a run" in said.err


def test_show_names_a_damaged_summary(fssl: Fssl) -> None:
    fssl("run", "tiny.toml")
    run = Path("runs/tiny")
    summary = (run / "summary.json").read_text()
    (run / "summary.json").write_text(summary.replace("3", "4", 1))
    damaged = "runs/tiny/summary.json is damaged; 3 of 3 rounds are recorded"
    assert fssl("show", run).out.splitlines()[1] == f"{damaged}; continue with --resume"
    assert fssl("run", run, "--resume").code == 0
    assert (run / "summary.json").read_text() == summary
    (run / "summary.json").write_text(summary[:20])
    shutil.rmtree(run / "checkpoint")
    assert fssl("show", run).out.splitlines()[1] == damaged
    (run / "summary.json").unlink()
    assert fssl("show", run).out.splitlines()[1] == "3 of 3 rounds, but no summary.json of the last one"


# Grids.


@pytest.mark.slow
def test_a_grid_runs_each_cell_once(fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["run", "tiny.toml", "--out", "g", "--set", "grid.seed=[7,8]"]
    assert fssl(*words).code == 0
    assert sorted(p.name for p in Path("g").iterdir()) == ["seed7", "seed8"]
    first = Path("g/seed7/rounds.jsonl").stat().st_mtime_ns
    assert "g/seed9" in (said := fssl(*words[:-1], "grid.seed=[7,8,9]")).out
    assert said.out.startswith("g/seed7: finished already\ng/seed8: finished already\n")
    assert Path("g/seed7/rounds.jsonl").stat().st_mtime_ns == first
    forbid_training(monkeypatch)
    said = fssl(*words, "--set", "train.lr=0.3")
    assert said.code == 2
    assert said.err.startswith("fssl: g/seed7 contains another run: train.lr is 0.1 there and 0.3 here")


@pytest.mark.slow
def test_a_grid_and_a_run_do_not_share_a_folder(fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither way round; runs that lie so since an earlier version are still skipped, and can be resumed."""
    monkeypatch.setattr(console, "_width", 100)
    grid = ["run", "tiny.toml", "--set", "grid.seed=[7,8]", "--out"]
    assert fssl("run", "tiny.toml", "--out", "runs/kept").code == 0
    assert fssl(*grid, "runs/g").code == 0
    with monkeypatch.context() as patch:
        forbid_training(patch)
        assert fssl(*grid, "runs/kept") == (
            *(2, ""),
            "fssl: runs/kept/seed7 is inside the run folder runs/kept; choose another folder (--out)\n",
        )
        said = fssl(*grid, "runs/kept", "--dry-run")
        assert (said.code, said.out.count("in the way")) == (2, 2)
        assert said.err.startswith("fssl: 2 of 2 runs cannot start:\nfssl:   runs/kept/")
        assert fssl(*grid, "runs/kept/a/b").code == 2
        assert not Path("runs/kept/seed7").exists()
        said = fssl("run", "tiny.toml", "--out", "runs/g")
        assert said == (2, "", "fssl: runs/g is neither empty nor a run folder; choose another folder (--out)\n")
        dry = fssl("run", "tiny.toml", "--out", "runs/g", "--dry-run")
        assert ("in the way" in dry.out, dry.code, dry.err) == (True, 2, said.err)
        for seed in (7, 8):
            Path(f"runs/g/seed{seed}").rename(f"runs/kept/seed{seed}")
        assert fssl(*grid, "runs/kept").out.count("finished already") == 2
    assert fssl(*grid, "runs/kept", "--resume", "--set", "train.rounds=4").code == 0


def test_settings_next_to_runs_are_not_a_run(fssl: Fssl) -> None:
    Path("mine").mkdir()
    Path("tiny.toml").rename("mine/config.toml")
    assert fssl("run", "mine/config.toml", "--set", "grid.seed=[7,8]", "--out", "mine").code == 0


@pytest.mark.slow
def test_an_unfinished_cell_is_rejected_before_any_other_computes(fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["run", "tiny.toml", "--out", "g", "--set", "grid.seed=[6,7,8]"]
    fssl(*words)
    Path("g/seed8/summary.json").unlink()
    Path("g/seed6").rename("gone")
    with monkeypatch.context() as patch:
        forbid_training(patch)
        said = fssl(*words)
        assert (said.code, said.out) == (2, "")
        assert said.err.startswith("fssl: g/seed8 already contains a run; resume it")
        assert not Path("g/seed6").exists()
    assert fssl(*words, "--resume").code == 0
    assert outcome(Path("g/seed6")) == outcome(Path("gone"))


def test_a_cell_that_fails_leaves_the_others_alone(fssl: Fssl) -> None:
    said = fssl("run", "tiny.toml", "--out", "g", "--set", "grid.train.lr=[1e30,0.1]")
    assert said.code == 1
    assert said.err.startswith("fssl: lr1e+30: round 1: the loss of client")
    assert said.err.endswith("fssl: 1 of 2 runs stopped early; the same command with --resume tries them again\n")
    assert said.err.count("\n") == 2
    assert Path("g/lr0.1/summary.json").exists()


def test_a_dry_run_lists_the_cells_and_writes_nothing(fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_training(monkeypatch)
    said = fssl("run", "demo", "--dry-run", "--jobs", "2")
    assert said.code == 0
    assert said.out.count("fixmatch-gpl") >= 3
    assert [p.name for p in Path().iterdir()] == ["tiny.toml"]


def test_a_dry_run_shows_the_state_of_its_folders(fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_width", 100)
    assert fssl("run", "tiny.toml", "--out", "g/seed1", "--set", "seed=1").code == 0
    assert fssl("run", "tiny.toml", "--out", "g/seed2", "--set", "seed=1").code == 0
    assert fssl("run", "tiny.toml", "--out", "g/seed3", "--set", "seed=3").code == 0
    words = ("run", "tiny.toml", "--out", "g", "--set", "grid.seed=[1,2,3,4]", "--dry-run")
    Path("g/seed3/summary.json").unlink()
    states = [line.split("digits")[1].split()[3:] for line in fssl(*words).out.splitlines() if "digits" in line]
    assert states == [["finished"], ["in", "the", "way"], ["begun"], []]


def test_a_dry_run_names_datasets_whose_files_are_missing(fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each dataset, and not for those that need no files."""
    monkeypatch.setattr(console, "_width", 200)
    axes = ('grid.data.name=["svhn", "digits", "cifar10"]', "grid.seed=[7, 8]", "data.labels_per_class=4")
    words = [word for axis in axes for word in ("--set", axis)]
    said = fssl("run", "smoke", *words, "--data-dir", "DATA", "--dry-run")
    assert said.code == 0
    found = [line.split(";")[0] for line in said.out.splitlines() if line.startswith("missing: ")]
    assert found == [f"missing: {name}: 'DATA' is no such folder" for name in ("svhn", "cifar10")]
    assert "missing" not in fssl("run", "smoke", "--dry-run").out


# Several processes, and a terminal.


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def test_rounds_are_said_once_each_whatever_a_resumed_run_drops() -> None:
    """Six rounds are there; two are dropped and four trained before the next look: 5 to 8. Then all: 1 to 3."""
    out = StringIO()

    def lines(rounds: int, again_from: int) -> list[dict[str, Any]]:
        return [
            {"round": r, "accuracy": 50.0, "timing": {"seconds": 2.0 if r >= again_from else 1.0}}
            for r in range(1, rounds + 1)
        ]

    with GridView(Console(file=out), 1) as view:
        for seen in (lines(6, 9), lines(6, 9), lines(8, 5), lines(9, 5), lines(3, 1)):
            view.running("cell", 9, seen)
    said = [line.split()[1:3] for line in out.getvalue().splitlines()]
    assert said[0][0] == "preparing,"
    assert [text for _, text in said[1:]] == [f"{r}/9" for r in (5, 6, 7, 8, 9, 1, 2, 3)]


def test_lines_show_the_progress_of_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs at a time: two of five after 40 s, so three more take 60; the last one has nothing left."""
    out, now = StringIO(), iter([100.0, 130.0, 140.0, 170.0, 175.0])
    monkeypatch.setattr("fssl.console.monotonic", lambda: next(now))
    with GridView(Console(file=out), 5) as view:
        for name in "abcde":
            view.ended(name, [f"{name}: 50.00 %"] if name != "c" else [])  # c failed
    expected = ["a: 50.00 %", "1 of 5 runs ended  ETA 2:00", "b: 50.00 %", "2 of 5 runs ended  ETA 1:00"]
    expected += ["3 of 5 runs ended  ETA 0:47", "d: 50.00 %", "4 of 5 runs ended  ETA 0:19", "e: 50.00 %"]
    assert out.getvalue().splitlines() == expected


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.slow
def test_what_a_run_says_is_its_headline_measure(fssl: Fssl, jobs: str) -> None:
    """The rounds, and the last one in the closing line: what `show` says, too."""
    words = ("--set", "records.metrics=macro_f1", "--set", "grid.seed=[7, 8]", "--jobs", jobs, "--out", "runs")
    said = fssl("run", "smoke", *SMALL, *words).out
    for run in sorted(path.parent for path in Path("runs").glob("**/rounds.jsonl")):
        curve = [line["macro_f1"] for line in records(run)]
        assert all(f"macro F1 {value:5.2f} %" in said for value in curve)
        assert re.search(rf"{run}: .*\(macro F1, mean of the last 2 rounds\), last {curve[-1]:.2f} %", said)
        assert re.search(rf"last round +│ {curve[-1]:.2f} %", fssl("show", run).out)
    assert "test " not in said


def test_a_setting_may_be_without_effect_in_some_cells_of_a_grid(fssl: Fssl) -> None:
    axis = 'grid.method=[{name="sage"}, {name="sage", cdsc=false}]'
    assert fssl("run", "smoke", "--set", axis, "--set", "method.kappa=4", "--dry-run").code == 0
    axis = 'grid.method=[{name="sage", cpg=false, cdsc=false}, {name="sage", cdsc=false}]'
    said = fssl("run", "smoke", "--set", axis, "--set", "method.kappa=4", "--dry-run")
    assert (said.code, "method.kappa = 4 has no effect" in said.err) == (2, True)


@pytest.mark.slow
def test_a_grid_is_counted_before_it_is_built(fssl: Fssl) -> None:
    seeds, rates = (f"--set=grid.{key}={list(range(1, 1001))}" for key in ("seed", "train.lr"))
    for more in (("--dry-run",), ()):
        begin = time.monotonic()
        said = fssl("run", "smoke", seeds, rates, *more)
        assert said.code == 2
        assert said.err.startswith(
            "fssl: [grid] has 1,000,000 runs (1,000 seed × 1,000 train.lr: seed1/lr1, seed1/lr2,"
        )
        assert said.err.endswith(" more than 1,000; confirm that you want them all (--yes)\n")
        assert time.monotonic() - begin < 5
    assert "seed1003" in fssl("run", "smoke", f"--set=grid.seed={list(range(3, 1004))}", "--dry-run", "--yes").out


def test_a_rate_of_zero_is_pointed_out(fssl: Fssl) -> None:
    assert "train.lr = 0: the models stay as they are\n" in fssl("run", "smoke", "--set", "train.lr=0", "--dry-run").out
    assert "stay as they are" not in fssl("run", "smoke", "--dry-run").out
    said = fssl("run", "smoke", "--set", "server.optimizer=momentum", "--set", "server.lr=0", "--dry-run")
    assert "server.lr = 0: the global model's parameters stay as they are\n" in said.out
    words = ("--set", "server.optimizer=momentum", "--set", "server.lr=0", "--set", "partition.labels=server")
    assert "stay as they are" not in fssl("run", "smoke", *words, "--dry-run").out  # the server trains
    words = ("--set", "train.lr=0", "--set", "method.name=fedmatch")
    assert "stay as they are" not in fssl("run", "smoke", *words, "--dry-run").out  # it has a rule of its own
    words = ("--set", "server.optimizer=momentum", "--set", "grid.train.lr=[0, 0.1]", "--set", "grid.server.lr=[0, 1]")
    assert fssl("run", "smoke", *words, "--dry-run").out.count("stay as they are") == 2  # once of each, for all runs


def test_a_rate_that_a_method_does_not_use_is_pointed_out(fssl: Fssl) -> None:
    """Others of a grid may have it, so it is not rejected."""
    words = ("--set", "train.lr=0.05", "--set", "train.weight_decay=0", "--dry-run")
    notice = "train.lr = 0.05, train.weight_decay = 0: method 'fedmatch' has its own update rule"
    assert fssl("run", "smoke", "--set", 'grid.method.name=["sage", "fedmatch"]', *words).out.count(notice) == 1
    assert "own update rule" not in fssl("run", "smoke", *words).out
    assert "own update rule" not in fssl("run", "smoke", "--set", "method.name=fedmatch", "--dry-run").out


@pytest.mark.slow
def test_a_setting_newer_than_a_run_has_its_default_there(fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record from before `space` resumes only with its default, and newer runs are repetitions of it."""
    words = ["run", "tiny.toml", "--set", "method.name=proxyfl", "--set", "method.tuning_epochs=1"]
    with monkeypatch.context() as older:
        older.setattr(writer, "to_toml", lambda tables: to_toml(tables).replace('space = "heads"\n', ""))
        assert fssl(*words, "--out", "a/old").code == 0
    file = Path("a/old/config.toml")
    assert "space" not in file.read_text()
    assert fssl(*words, "--set", "seed=8", "--out", "a/new").code == 0
    assert "One setting only: nothing to compare." in fssl("compare", "a").out
    words += ["--out", "a/old", "--resume", "--set", "train.rounds=4"]
    assert "method.space is 'heads' there and 'raw' here" in fssl(*words, "--set", "method.space=raw").err
    assert fssl(*words).code == 0
    assert "space" not in file.read_text()  # what was recorded stays
    assert "rounds = 4" in file.read_text()
    assert fssl(*words, "--set", "train.rounds=5").code == 0


@pytest.mark.slow
def test_jobs_give_the_same_runs_and_survive_a_failure(fssl: Fssl) -> None:
    """Three cells in two processes: one blows up, the others end as they do one after another."""
    words = ["run", "tiny.toml", "--set", "grid.train.lr=[0.1,1e30,0.05]"]
    assert fssl(*words, "--out", "one").code == 1
    process = start(*words, "--out", "two", "--jobs", "2")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    said = out.splitlines()
    assert sorted(line.split(":")[0] for line in said if line.startswith("two/")) == ["two/lr0.05", "two/lr0.1"]
    for cell in ("lr0.05", "lr0.1"):
        lines = [" ".join(line.split()[1:3]) for line in said if line.split()[0] == cell]
        assert lines == ["preparing", "round 1/3", "round 2/3", "round 3/3"]
    assert err.count("\n") == 2
    assert err.startswith("fssl: lr1e+30: round 1: the loss of client")
    for cell in ("lr0.05", "lr0.1"):
        assert outcome(Path("one") / cell) == outcome(Path("two") / cell)
    config = parse(read_toml("two/lr0.1/config.toml"))
    assert config.compute.lanes is None  # it may be resumed without the others
    assert share_of(config, 0, 2).lanes == max(1, len(os.sched_getaffinity(0)) // 2)
    said = fssl(*words[:2], "--set", "grid.train.lr=[0.1,0.05]", "--out", "two", "--resume")
    assert (said.code, said.out.count("finished already")) == (0, 2)


def test_a_resumed_run_that_is_not_there_begins_and_says_so(fssl: Fssl) -> None:
    """Scripts that are started again may always give --resume; a mistyped --out is noticed."""
    said = fssl("run", "tiny.toml", "--out", "a/nwe", "--resume")
    assert said.code == 0
    assert "a/nwe: nothing to resume; starting from round 1\n" in said.out
    assert "nothing to resume" not in fssl("run", "tiny.toml", "--out", "a/nwe", "--resume").out


@pytest.mark.slow
def test_a_run_resumes_by_its_folder(fssl: Fssl) -> None:
    """Or by the settings in it; the file's own name would be another folder."""
    assert fssl("run", "tiny.toml", "--out", "a/run").code == 0
    for rounds, place in ((4, "a/run"), (5, "a/run/config.toml")):
        said = fssl("run", place, "--resume", "--set", f"train.rounds={rounds}")
        assert (said.code, f"resuming a/run after round {rounds - 1}" in said.out) == (0, True)
    assert len(Path("a/run/rounds.jsonl").read_text().splitlines()) == 5
    said = fssl("run", "a/run")
    assert (said.code, said.err) == (
        2,
        "fssl: a/run already contains a run; resume it, or choose another folder (--resume, --out)\n",
    )
    assert fssl("run", "a/run/config.toml", "--out", "a/again").code == 0
    assert not Path("runs").exists()


def test_a_folder_without_a_round_may_be_used_again(fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was to be run there failed before its first round, so nothing is lost."""
    with monkeypatch.context() as patch:
        patch.setattr("fssl.engines.engine.Engine.round", lambda *_: 1 / 0)
        assert fssl("run", "tiny.toml", "--out", "run").code == 1
    assert Path("run/config.toml").is_file()
    assert fssl("run", "tiny.toml", "--set", "train.lr=0.05", "--out", "run").code == 0
    assert parse(read_toml("run/config.toml")).train.lr == 0.05
    assert fssl("run", "tiny.toml", "--out", "run").code == 2


@pytest.mark.parametrize("kept", ["model.safetensors", "summary.json", "checkpoint", "probes", "deployment.json"])
def test_a_folder_that_holds_more_than_settings_is_not_taken(fssl: Fssl, kept: str) -> None:
    """A model by itself, for example, which needs no more than its settings to be used."""
    assert fssl("run", "tiny.toml", "--out", "run").code == 0
    Path("alone").mkdir()
    Path("run/config.toml").rename("alone/config.toml")
    (Path("alone") / kept).write_text("mine")
    said = fssl("run", "tiny.toml", "--set", "seed=9", "--out", "alone")
    assert (said.code, "contains another run: seed is 7 there and 9 here" in said.err) == (2, True)
    assert (Path("alone") / kept).read_text() == "mine"


def test_a_preset_is_meant_despite_a_folder_of_its_name(fssl: Fssl) -> None:
    assert fssl("run", "tiny.toml", "--set", "seed=3", "--out", "smoke").code == 0
    assert "runs/smoke" in fssl("run", "smoke", "--dry-run").out
    assert "finished" in fssl("run", "./smoke", "--dry-run").out


def test_a_preset_can_be_read_and_changed(fssl: Fssl) -> None:
    said = fssl("presets", "smoke")
    Path("own.toml").write_text(said.out)
    assert read_toml("own.toml") == read_toml("smoke")
    assert fssl("presets", "smok").err.startswith("fssl: preset 'smok' is unknown; did you mean 'smoke'?")


@pytest.mark.parametrize("way", ["asked to end", "nobody listens"])
@pytest.mark.slow
def test_a_run_that_is_stopped_from_outside_says_how_to_resume(fssl: Fssl, way: str) -> None:
    process = start("run", "tiny.toml", "--set", "train.rounds=100000", "--out", "run")
    assert process.stdout is not None
    while "round    2" not in process.stdout.readline():
        pass
    if way == "asked to end":
        process.terminate()
    else:
        process.stdout.close()
    assert process.stderr is not None
    assert "the same command with --resume continues" in process.stderr.read()
    assert process.wait(60) == (130 if way == "asked to end" else 1)


@pytest.mark.slow
def test_what_breaks_in_one_cell_leaves_the_next_alone(fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also an unexpected error, of a GPU for example."""
    whole = Engine.round

    def breaks(self: Engine, until: int) -> Any:
        if self.federation.config.seed == 1:
            raise RuntimeError("CUDA error: out of order")
        return whole(self, until)

    monkeypatch.setattr(Engine, "round", breaks)
    said = fssl("run", "tiny.toml", "--set", "grid.seed=[1,2]", "--out", "two")
    first = "fssl: seed1: RuntimeError: CUDA error: out of order (traceback: two/seed1/error.txt)"
    assert (said.code, said.err.splitlines()[0]) == (1, first)
    assert "in breaks" in Path("two/seed1/error.txt").read_text()
    assert "1 of 2 runs stopped early" in said.err
    assert Path("two/seed2/summary.json").is_file()
    said = fssl("run", "tiny.toml", "--set", "seed=1", "--out", "one")
    assert (said.code, said.err) == (1, "fssl: RuntimeError: CUDA error: out of order (traceback: one/error.txt)\n")
    monkeypatch.setattr(Engine, "round", whole)
    Path("one/failed-step.safetensors").touch()
    assert fssl("run", "one", "--resume").code == 0
    assert not {"error.txt", "failed-step.safetensors"} & {path.name for path in Path("one").iterdir()}


def test_a_folder_of_runs_is_no_configuration(fssl: Fssl) -> None:
    assert fssl("run", "tiny.toml", "--set", "grid.seed=[1,2]", "--out", "two").code == 0
    said = fssl("run", "two", "--resume")
    assert (
        said.code,
        "'two' contains several runs; to resume them, repeat the command that started them" in said.err,
    ) == (2, True)
    with pytest.raises(UserError, match="'two/seed1' is a run folder; give the preset or file that started it"):
        read_toml("two/seed1")


def test_nothing_is_no_configuration(fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_training(monkeypatch)
    Path("empty.toml").touch()
    said = fssl("run", "empty.toml")
    assert (said.code, said.err.startswith("fssl: empty.toml: contains no settings")) == (2, True)
    said = fssl("run", "")
    assert (said.code, "preset or configuration file '' is unknown" in said.err) == (2, True)


def test_an_empty_record_invents_nothing(fssl: Fssl) -> None:
    assert fssl("run", "tiny.toml", "--out", "run").code == 0
    Path("run/config.toml").write_text("")
    said = fssl("show", "run")
    assert (said.code, "config.toml is empty" in said.err) == (2, True)


def test_whole_numbers_are_numbers(fssl: Fssl) -> None:
    """Seeds with kappa 4 and 4.0 are repetitions of one setting."""
    for seed, kappa in ((7, "4"), (8, "4.0")):
        assert (
            fssl(
                "run", "tiny.toml", "--set", f"method.kappa={kappa}", "--set", f"seed={seed}", "--out", f"k/{seed}"
            ).code
            == 0
        )
    assert "One setting only: nothing to compare." in fssl("compare", "k").out
    assert Path("k/7/config.toml").read_text().count("kappa = 4.0") == 1


@pytest.mark.slow
def test_jobs_outlive_a_killed_worker_and_end_with_an_interrupt(fssl: Fssl) -> None:
    words = ["run", "tiny.toml", "--set", "train.rounds=400", "--set", "grid.seed=[1,2,3]", "--out", "g"]
    process = start(*words, "--jobs", "2")
    both = [Path("g/seed1/rounds.jsonl"), Path("g/seed2/rounds.jsonl")]
    while not all(path.exists() for path in both):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    workers = [pid for pid in children(process.pid) if "spawn_main" in command_of(pid)]
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    while not Path("g/seed3/rounds.jsonl").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    workers = list(children(process.pid))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    killed, stopped = err.splitlines()
    assert re.fullmatch(
        r"fssl: seed[12]: its process was killed .* resume the run to continue from its last round", killed
    )
    assert stopped == "fssl: stopped; finished rounds are kept in g: the same command with --resume continues"
    time.sleep(0.2)
    assert not any(map(is_alive, workers))


@pytest.mark.parametrize("redirected", ["2>&-", "2>/dev/full"])
def test_the_exit_code_is_right_with_a_closed_error_stream(redirected: str) -> None:
    command = f"{shlex.join([sys.executable, '-m', 'fssl', 'presets', 'nothing'])} {redirected}"
    assert subprocess.run(command, shell=True, env=ENVIRONMENT, check=False).returncode == 2


def seen(columns: int, *words: str) -> str:
    """What a terminal of this width gets to show."""
    screen, terminal = pty.openpty()
    environment = {**ENVIRONMENT, "TERM": "xterm", "COLUMNS": str(columns)}
    process = start(*words, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    text = b""
    try:
        while chunk := os.read(screen, 65536):
            text += chunk
    except OSError:  # the other end is closed
        pass
    assert process.wait(timeout=60) == 0
    return text.decode()


@pytest.mark.slow
def test_a_narrow_terminal_shows_whole_bars(fssl: Fssl) -> None:
    """A name as long as the demo's, on 80 columns."""
    words = ("run", "tiny.toml", "--out", "g", "--set", "grid.method.name=['fixmatch-gpl']", "--set", "grid.seed=[7]")
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen(80, *words)))
    bars = [line for line in lines if line.startswith("fixmatch-gpl/seed7") and "3/3" in line]
    assert bars
    assert all(re.search(r"test [\d ]{2}\.\d % · right [ –\d.]+ · used [ \d.]+ \d:\d\d:\d\d *$", bar) for bar in bars)
    assert all(len(bar) <= 80 for bar in bars)


@pytest.mark.slow
def test_a_terminal_shows_a_live_bar(fssl: Fssl) -> None:
    shown = seen(120, "run", "tiny.toml")
    assert "\x1b[?25l" in shown  # a live display hides the cursor
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")
    assert "3/3" in shown
    assert "ETA" not in shown
    assert "runs/tiny: " in shown


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_narrow_screen_cuts_no_number_of_a_deployment(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    out = StringIO()
    monkeypatch.setattr(deploy, "console", Console(file=out, width=width, force_terminal=True, no_color=True))
    traffic = {"inbound-bytes": 123_456_789_012, "outbound-bytes": 223_456_789_012}
    run = {"run-id": "12345678901234567890", "status": "finished:completed", "elapsed": 123_456.0}
    deploy.print_rows(("run", "status", "seconds", "in", "out"), [deploy.run_row({**run, "network-traffic": traffic})])
    said = out.getvalue()
    for word in ("12345678901234567890", "finished:completed", "123456", "123,456,789,012", "223,456,789,012"):
        assert f" {word} " in said
    assert max(map(len, re.sub("\x1b.*?m", "", said).splitlines())) <= width
