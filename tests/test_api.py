"""`import fssl` in a script: the same as the command line, and nothing heavy until it is asked for."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fssl
from fssl.console import Quiet
from fssl.errors import UserError
from fssl.models import Head
from helpers.command import SMALL, Fssl, records


def test_a_script_writes_what_the_command_line_writes(fssl: Fssl) -> None:
    import fssl as package  # the fixture has the name of the command

    assert fssl("run", "smoke", *SMALL, "--out", "typed").code == 0
    small = package.experiment("smoke", "train.rounds=2", "train.steps_per_round=2", "compute.device=cpu")
    summary = package.run(small, "written")
    assert records("written") == records("typed")
    (run,) = package.runs("written", "written")
    assert (summary["result"], len(run.lines)) == (run.result, 2)
    assert Path("written/model.safetensors").read_bytes() == Path("typed/model.safetensors").read_bytes()
    assert package.load("written").classes == tuple("0123456789")


def test_a_run_folder_stands_for_no_experiment_but_its_settings_do(tmp_path: Path) -> None:
    first = fssl.experiment("smoke", "train.rounds=1", "train.steps_per_round=1", "compute.device=cpu", "seed=8")
    fssl.run(first, tmp_path / "base")
    with pytest.raises(UserError) as refused:
        fssl.experiment(str(tmp_path / "base"))
    file = tmp_path / "base/config.toml"
    began = "is a run folder; give the preset or file that started it"
    assert str(refused.value) == f"'{tmp_path / 'base'}' {began}, or {file}"
    assert fssl.experiment(file).config == first.config


def test_runs_that_are_left_out_are_warned_of_at_the_caller_s_line(tmp_path: Path) -> None:
    """And those that are there say whether they are finished, and what of their record is damaged."""
    settings = ("train.rounds=3", "train.steps_per_round=1", "compute.device=cpu")
    for name in ("whole", "short", "torn", "edited"):
        fssl.run(fssl.experiment("smoke", *settings), tmp_path / name)
    for name, change in {
        "short": lambda text: "".join(text.splitlines(keepends=True)[:2]),
        "torn": lambda text: text.replace('"accuracy"', "accuracy", 1),
    }.items():
        record = tmp_path / name / "rounds.jsonl"
        record.write_text(change(record.read_text()))
    settings_file = tmp_path / "edited/config.toml"
    settings_file.write_text(settings_file.read_text().replace("seed = 7", "seed = 8", 1))
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong/rounds.jsonl").touch()
    with pytest.warns(UserWarning, match="^left out: ") as said:
        runs = {run.path.name: run for run in fssl.runs(tmp_path)}
    lines = sorted(str(warning.message) for warning in said)
    assert lines[1] == f"left out: {tmp_path}/wrong: no config.toml"
    assert re.fullmatch(
        rf"left out: {tmp_path}/edited: .*was edited; `fssl records accept` accepts an edited record", lines[0]
    ), lines[0]
    assert (len(lines), {warning.filename for warning in said}) == (2, {__file__})
    assert {name: (run.is_finished, run.damaged) for name, run in runs.items()} == {
        "whole": (True, []),
        "short": (False, []),
        "torn": (True, [1]),
    }


def test_a_grid_has_names_and_everything_is_checked_first() -> None:
    grid = fssl.experiments({"method": {"name": "sage"}, "grid": {"seed": [7, 8]}}, "data.name=digits")
    assert {name: experiment.config.seed for name, experiment in grid.items()} == {"seed7": 7, "seed8": 8}
    for wrong in ("method.tua=0.9", "train.lr=fast", "method.name=sgae", "compute.ray_address=x"):
        with pytest.raises(UserError):
            fssl.experiment("smoke", wrong)
    with pytest.raises(UserError, match=r"expected a single run, but the configuration has a \[grid\]"):
        fssl.experiment("smoke", "grid.seed=[7, 8]")


def test_misunderstood_words_are_reported() -> None:
    with pytest.raises(UserError, match=r"takes what fssl\.experiment returns"):
        fssl.run("smoke", "runs/x")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="then strings"):
        fssl.experiment("smoke", ["seed=7"])  # type: ignore[arg-type]
    with pytest.raises(UserError, match="expected folders of runs"):
        fssl.runs()


@pytest.mark.parametrize("path", [None, 7, b"runs/x"])
def test_a_text_that_is_no_path_is_reported(path: Any, tmp_path: Path) -> None:
    tiny = fssl.experiment("smoke", "train.rounds=1")
    calls = {
        "out": lambda: fssl.run(tiny, path),
        "folder": lambda: fssl.load(path),
        "folder ": lambda: fssl.runs(tmp_path, path),
        "folder  ": lambda: fssl.export(path, "digits.onnx"),
        "file": lambda: fssl.export(tmp_path, path),
    }
    for name, call in calls.items():
        with pytest.raises(UserError, match=f"^{name.strip()} = {re.escape(repr(path))}: expected a path$"):
            call()


class Deaf:
    """A listener without a method for rounds."""

    def started(self, config: object, done: object) -> None: ...

    def say(self, text: str) -> None: ...


@pytest.mark.parametrize("listener", [Deaf(), print, Quiet, 0])
def test_an_incomplete_listener_is_reported_before_anything_is_written(listener: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected an object with the methods started, round, say"):
        fssl.run(fssl.experiment("smoke", "train.rounds=1"), tmp_path / "run", listener=listener)
    assert not (tmp_path / "run").exists()


def test_errors_name_arguments_and_settings_instead_of_options(tmp_path: Path) -> None:
    tiny = fssl.experiment("smoke", "train.rounds=1", "train.steps_per_round=1", "compute.device=cpu")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.txt").touch()
    fssl.run(tiny, tmp_path / "run")
    messages = {
        lambda: fssl.run(tiny, tmp_path / "run"): "already contains a run; resume it, or choose another folder",
        lambda: fssl.run(tiny, tmp_path / "notes"): "is neither empty nor a run folder; choose another folder",
        lambda: fssl.experiment("smoke", "seed"): "seed: expected key=value",
        lambda: fssl.experiment("smoke", "seed=[1, 2]"): "for several runs use 'grid.seed=[1, 2]'",
        lambda: fssl.experiment("smoke", "grid.seed=[1, 2]"): "choose a run with a setting",
        lambda: fssl.experiment("smoke", "data.name=folder"): "needs a folder: set data.dir",
        lambda: fssl.experiment("smoke", f"data.dir='{tmp_path}'"): "remove data.dir, or use data.name = 'folder'",
        lambda: fssl.experiment("smoke", "privacy.clip=1"): "with compute.engine = 'local'; remove it, or use 'flower'",
    }
    for call, message in messages.items():
        with pytest.raises(UserError) as refused:
            call()
        assert message in str(refused.value)
        assert "--" not in str(refused.value)


def test_messages_that_python_may_see_name_no_options() -> None:
    """In the modules that `fssl.api` reaches: the command line adds its options itself."""
    root = Path(fssl.__file__).parent
    rooms = ("config", "core", "data", "data/folder", "engines", "inference/export.py", "records", "runner", "start.py")
    files = [file for room in rooms for file in ([root / room] if room.endswith(".py") else (root / room).glob("*.py"))]
    files = [file for file in files if file.name != "environment.py"]  # its options are those of git
    options = [words for file in files for words in re.findall(r"[\"' (]--[a-z][a-z-]+", file.read_text())]
    about_the_command = (" --set", " --resume", " --debug")  # comments, docstrings, and `fssl run --debug`
    assert [words for words in options if words not in about_the_command] == []


def test_the_logs_of_a_run_do_not_depend_on_its_starter(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    config = fssl.experiment("smoke", "train.rounds=1", "train.steps_per_round=1", "records.tensorboard=true")
    fssl.run(config, tmp_path / "run")
    assert any((tmp_path / "run/tensorboard").iterdir())


def test_names_are_there_but_cost_nothing() -> None:
    assert {"dataset", "experiment", "experiments", "load", "run", "runs"} <= {*dir(fssl)}
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        _ = fssl.runn  # type: ignore[attr-defined]
    code = "import fssl, sys; print(fssl.__version__, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{fssl.__version__} False\n"


# Networks that are objects of a script.


class Plain(nn.Module):
    """A user's small network."""

    def __init__(self, channels: int, classes: int, width: int = 1) -> None:
        super().__init__()
        self.body = nn.Conv2d(channels, 8 * width, 3)
        self.head = Head(8 * width, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(self.body(x).relu())  # type: ignore[no-any-return]


TINY = ("train.rounds=1", "train.steps_per_round=1", "compute.device=cpu", "train.lr=0")


def test_a_network_may_be_a_class_or_a_module_with_its_weights(tmp_path: Path) -> None:
    import numpy as np

    module = Plain(1, 10)
    for number, network in enumerate((Plain, module, lambda channels, classes, width: Plain(channels, classes))):
        out = tmp_path / str(number)
        fssl.run(fssl.experiment("smoke", *TINY, network=network), out)
        fssl.run(fssl.experiment("smoke", *TINY, "train.rounds=2", network=network), out, resume=True)
        assert len(records(out)) == 2
        images = np.full((3, 8, 8, 1), 200, np.uint8)
        assert fssl.load(out, network=network).predict(images).probabilities.shape == (3, 10)
    kept = fssl.load(tmp_path / "1", network=module).tensors()  # with a rate of 0, the weights that it was given with
    assert all(torch.equal(kept[name], value) for name, value in module.state_dict().items())
    assert 'name = "python:Plain"' in (tmp_path / "0/config.toml").read_text()


def test_a_network_that_does_not_fit_is_reported(tmp_path: Path, fssl: Fssl) -> None:
    import fssl as package

    with pytest.raises(UserError, match=r"its last layer must be self\.head"):
        package.experiment("smoke", network=nn.Linear(3, 4))
    with pytest.raises(UserError, match=r"expected a torch\.nn\.Module, or a function that makes one"):
        package.experiment("smoke", network="cnn")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="name two networks"):
        package.experiment("smoke", "model.name=cnn", network=Plain)
    for builder, message in {
        lambda classes: Plain(1, classes): "takes 1 positional argument but 3 were given",
        lambda channels, classes, width: nn.Conv2d(channels, "many", 3): "TypeError",  # type: ignore[arg-type]
        int: "no signature found",
    }.items():
        with pytest.raises(UserError, match=f"^network 'python:\\w+' cannot be built: .*{message}"):
            package.experiment("smoke", network=builder)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="nosuch is not a run folder"):
        package.load("nosuch", network=Plain)
    package.run(package.experiment("smoke", *TINY), tmp_path / "cnn")
    with pytest.raises(UserError, match="is a run of the network 'cnn'; leave out network="):
        package.load(tmp_path / "cnn", network=Plain)
    code, _, said = fssl("run", "smoke", "--set", "model.name=python:Unheard", "--dry-run")
    assert (code, "network 'python:Unheard' is an object of a Python script" in said) == (2, True), said


SHORT = ("train.rounds=2", "train.steps_per_round=1", "compute.device=cpu")


def surest(tau: float = 0.5) -> Any:
    """A method of this file."""
    from fssl.methods.names import build_method

    return build_method("fixmatch-lpl", {"tau": tau})


def test_a_method_may_be_a_function_with_settings_or_an_object(tmp_path: Path) -> None:
    """Both train as the method of that name does, and a changed one cannot resume the run."""
    fssl.run(fssl.experiment("smoke", *SHORT, "method.name=fixmatch-lpl", "method.tau=0.7"), tmp_path / "named")
    given = {"function": ("method.tau=0.7", surest), "object": (None, surest(0.7))}
    for name, (setting, method) in given.items():
        settings = (*SHORT, *([setting] if setting else []))
        fssl.run(fssl.experiment("smoke", *settings, method=method), tmp_path / name)
        runs = [*fssl.runs(tmp_path / "named"), *fssl.runs(tmp_path / name)]
        assert runs[0].curve == runs[1].curve
    function, made = fssl.runs(tmp_path / "function")[0].config.method, fssl.runs(tmp_path / "object")[0].config.method
    assert (function.name, dict(function.settings)) == ("python:surest", {"tau": 0.7})
    assert (made.name, made.settings) == ("python:FixMatch", ())
    longer = ("train.rounds=3", *SHORT[1:])
    fssl.run(fssl.experiment("smoke", *longer, method=surest(0.7)), tmp_path / "object", resume=True)
    assert len(records(tmp_path / "object")) == 3
    with pytest.raises(UserError, match=r"method\.digest"):
        fssl.run(fssl.experiment("smoke", *longer, method=surest(0.8)), tmp_path / "object", resume=True)
    assert fssl.load(tmp_path / "object").config.method.name == "python:FixMatch"


def test_a_method_that_does_not_fit_is_rejected(fssl: Fssl) -> None:
    import fssl as package

    with pytest.raises(UserError, match=r"expected a fssl\.methods\.Method, or a function that builds one"):
        package.experiment("smoke", method="sage")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"method= and method\.name name two methods; remove one of them"):
        package.experiment("smoke", "method.name=sage", method=surest)
    with pytest.raises(UserError, match=r"'int', expected a fssl\.methods\.Method"):
        package.experiment("smoke", method=lambda: 3)  # type: ignore[arg-type, return-value]
    code, _, said = fssl("run", "smoke", "--set", "method.name=python:unheard", "--dry-run")
    assert (code, "method 'python:unheard' is an object of a Python script; pass it as method=" in said) == (2, True)


def test_a_metric_of_a_script_is_in_the_record_and_in_comparisons(tmp_path: Path) -> None:
    """Its value is that of the model that is loaded after the last round; a wrong one ends the run before it begins."""
    import numpy as np

    images = np.random.default_rng(0).integers(0, 256, (6, 8, 8), np.uint8)

    def confidence(model: Any) -> float:
        return float(model.predict(images).confidence.mean())

    experiment = fssl.experiment("smoke", *SHORT)
    fssl.run(experiment, tmp_path / "runs/seven", metrics={"confidence": confidence})
    fssl.run(fssl.experiment("smoke", *SHORT, "seed=8"), tmp_path / "runs/eight")
    with_metric, without = records(tmp_path / "runs/seven"), records(tmp_path / "runs/eight")
    assert with_metric[-1]["metrics"] == {"confidence": confidence(fssl.load(tmp_path / "runs/seven"))}
    assert "metrics" not in without[-1]
    compared = fssl.compare(tmp_path / "runs", csv=tmp_path / "runs.csv")
    (table,) = compared.tables.values()
    mean = np.mean([line["metrics"]["confidence"] for line in with_metric])
    assert (table.head[-1], table.rows[0][-1]) == ("confidence", f"{mean:.4f}")
    by_seed = {row["seed"]: row["metrics.confidence"] for row in compared.results}
    assert by_seed == {7: pytest.approx(mean), 8: None}
    assert str(mean)[:8] in (tmp_path / "runs.csv").read_text()
    assert "| confidence |" in str(compared)
    for wrong, message in {
        (lambda model: model.nosuch): r"metrics\['bad'\] failed: AttributeError",
        (lambda model: float("nan")): r"metrics\['bad'\] returned nan, expected a finite number",
    }.items():
        with pytest.raises(UserError, match=message):
            fssl.run(experiment, tmp_path / "wrong", metrics={"bad": wrong})
    assert not (tmp_path / "wrong").exists()


def test_comparisons_reports_and_tables_are_those_of_the_commands(tmp_path: Path, fssl: Fssl) -> None:
    import fssl as package

    for seed in (7, 8):
        package.run(package.experiment("smoke", *SHORT, f"seed={seed}"), f"runs/{seed}")
    compared = package.compare("runs", csv="python.csv", tex="python.tex")
    assert fssl("compare", "runs", "--csv", "typed.csv", "--tex", "typed.tex").code == 0
    assert Path("python.csv").read_text() == Path("typed.csv").read_text()
    assert Path("python.tex").read_text() == Path("typed.tex").read_text()
    assert [row["seed"] for row in compared.results] == [7, 8]
    assert package.report("runs", out="page.html").read_text().lower().startswith("<!doctype html>")
    tables = package.tables("runs", out="tables")
    assert [*tables] == [f"Table {number}" for number in range(1, 9)]
    assert Path("tables/tables.md").is_file()
    for read in (package.compare, package.report, package.runs, package.tables):
        with pytest.raises(UserError, match="expected folders of runs"):
            read()
    with pytest.raises(UserError, match="--title has no effect without a picture"):
        package.compare("runs", title="x")


def test_reading_run_folders_from_python_needs_no_pytorch(tmp_path: Path) -> None:
    fssl.run(fssl.experiment("smoke", *SHORT), tmp_path / "run")
    script = (
        "import sys, fssl; fssl.compare(sys.argv[1]); fssl.report(sys.argv[1], out=sys.argv[2]);"
        " print('torch' in sys.modules)"
    )
    words = [sys.executable, "-c", script, str(tmp_path / "run"), str(tmp_path / "page.html")]
    assert subprocess.run(words, check=True, capture_output=True, text=True).stdout == "False\n"
