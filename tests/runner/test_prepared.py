"""One prepared run: its method is built once, and few frames lie between the command and a method's step."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from fssl import start
from fssl.config import override, parse, read_toml
from fssl.console import Quiet
from fssl.core import compatibility, experiment, images
from fssl.core.experiment import prepare
from fssl.errors import RunError
from fssl.records import writer
from fssl.runner import conduct, planned
from fssl.system.user_code import loaded
from helpers.command import ENVIRONMENT, SMALL, Fssl
from helpers.small import tiny_config

MINE = """
import traceback
from dataclasses import dataclass
from pathlib import Path
import torch
import fssl
from fssl.methods.fixmatch import FixMatch

BUILT, FRAMES = [], set()

@dataclass(frozen=True)
class Mine(FixMatch):
    def step(self, net, server, local, batch):
        if not isinstance(batch.y, torch._subclasses.FakeTensor):
            package = Path(fssl.__file__).parent  # a clone, too, may lie in a folder called fssl
            frames = traceback.extract_stack()
            inside = [f.name for f in frames if package in Path(f.filename).parents or f.name == "step"]
            FRAMES.add(tuple(inside[inside.index("run"):]))
        return super().step(net, server, local, batch)

def mine(mu_u: float = 1.0):
    BUILT.append(mu_u)
    return Mine(mu_u=mu_u)
"""


def test_a_command_builds_its_method_once_and_calls_it_within_ten_frames(fssl: Fssl) -> None:
    Path("mine.py").write_text(MINE)
    said = fssl("run", "smoke", *SMALL, "--set", "method.name=mine.py:mine", "--set", "compute.lanes=1", "--out", "run")
    assert (said.code, said.err) == (0, "")
    module = loaded(Path("mine.py").resolve())
    assert module.BUILT == [1.0]
    module.BUILT.clear()
    said = fssl("run", "smoke", *SMALL, "--set", "method.name=mine.py:mine", "--set", "method.mu_u=2", "--dry-run")
    assert (said.code, module.BUILT) == (0, [2.0, 1.0])  # and once more without the setting: does it change anything?
    (frames,) = (found for found in module.FRAMES if "estimate" not in found)
    assert frames[0] == "run"
    assert frames[-1] == "step"
    assert len(frames) <= 10, " ".join(frames)


MADE = (
    (images, "make_partition"),
    (experiment, "first_weights"),
    (start, "read_weights"),
    (compatibility, "try_step"),
    (planned, "check_can_take"),  # when the run is planned,
    (writer, "check_can_take"),  # and when it has its turn
)


@pytest.mark.slow
def test_what_a_run_is_made_of_is_made_once(fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fssl("run", "smoke", *SMALL, "--out", "first").code == 0
    calls: Counter[tuple[Any, str]] = Counter()

    def counted(module: Any, name: str) -> Any:
        plain = getattr(module, name)
        return lambda *args, **kwargs: calls.update([(module, name)]) or plain(*args, **kwargs)

    for module, name in MADE:
        monkeypatch.setattr(module, name, counted(module, name))
    assert fssl("run", "smoke", *SMALL, "--set", "model.start=first", "--out", "run").code == 0
    assert calls == dict.fromkeys(MADE, 1)


WITHOUT_COMPILER = """
import sys
from fssl.cli import main
try:
    main()
except SystemExit:
    print("torch._dynamo" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels of a GPU are made known to the compiler")
def test_a_run_on_a_cpu_does_not_import_the_compiler(tmp_path: Path) -> None:
    """It takes seconds."""
    words = [sys.executable, "-c", WITHOUT_COMPILER, "run", "smoke", *SMALL, "--out", str(tmp_path / "run")]
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_a_prepared_run_is_complete_and_prepared_again_the_same() -> None:
    first = prepare(parse(override(read_toml("smoke"), ["method.name=flexmatch+sage", "compute.device=cpu"])))
    again = prepare(first.config)
    assert again.config == first.config
    assert again.method == first.method
    assert dict(first.config.method.settings).keys() == first.defaults.keys()
    assert (first.config.train.precision, first.config.train.rounds) == ("fp32", 8)


def test_compiling_is_announced_before_it_begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It takes a minute or more, in which nothing else is said."""

    def never(*args: object) -> None:
        raise RunError("here it would compile")

    monkeypatch.setattr(conduct, "LocalEngine", never)
    for choice, said in (("on", [conduct.COMPILING]), ("off", [])):
        listener = Quiet()
        with pytest.raises(RunError, match="here it would compile"):
            conduct.run_experiment(prepare(tiny_config(f"compute.compile={choice}")), tmp_path / choice, listener)
        assert listener.said == said
