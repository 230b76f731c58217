"""`import fssl` in a script: the same as the command line, and nothing heavy until it is asked for."""

import subprocess
import sys
from pathlib import Path

import pytest

import fssl
from conftest import SMALL, Fssl, records
from fssl.errors import UserError


def test_a_script_writes_what_the_command_line_writes(fssl: Fssl) -> None:
    import fssl as package  # the fixture has the name of the command

    assert fssl("run", "smoke", *SMALL, "--out", "typed").code == 0
    small = package.experiment("smoke", "train.rounds=2", "train.steps_per_round=2", "compute.device=cpu")
    summary = package.run(small, "written")
    assert records("written") == records("typed")
    (run,) = package.runs("written", "written")
    assert (summary["result"], len(run.lines)) == (run.result, 2)
    assert Path("written/model.safetensors").read_bytes() == Path("typed/model.safetensors").read_bytes()
    assert package.model("written").classes == tuple("0123456789")


def test_a_grid_has_names_and_everything_is_checked_first() -> None:
    grid = fssl.experiments({"method": {"name": "sage"}, "grid": {"seed": [7, 8]}}, "data.name=digits")
    assert {name: experiment.config.seed for name, experiment in grid.items()} == {"seed7": 7, "seed8": 8}
    for wrong in ("method.tua=0.9", "train.lr=fast", "method.name=sgae", "compute.ray_address=x"):
        with pytest.raises(UserError):
            fssl.experiment("smoke", wrong)
    with pytest.raises(UserError, match="one run at a time"):
        fssl.experiment("smoke", "grid.seed=[7, 8]")


def test_what_is_misunderstood_is_told() -> None:
    with pytest.raises(UserError, match=r"takes what fssl\.experiment returns"):
        fssl.run("smoke", "runs/x")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="then strings"):
        fssl.experiment("smoke", ["seed=7"])  # type: ignore[arg-type]
    with pytest.raises(UserError, match="which folders"):
        fssl.runs()


def test_what_a_run_logs_does_not_depend_on_who_starts_it(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    config = fssl.experiment("smoke", "train.rounds=1", "train.steps_per_round=1", "records.tensorboard=true")
    fssl.run(config, tmp_path / "run")
    assert any((tmp_path / "run/tensorboard").iterdir())


def test_names_are_there_but_cost_nothing() -> None:
    assert {"experiment", "experiments", "model", "run", "runs"} <= {*dir(fssl)}
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        _ = fssl.runn  # type: ignore[attr-defined]
    code = "import fssl, sys; print(fssl.__version__, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{fssl.__version__} False\n"
