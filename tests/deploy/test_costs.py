"""The commands of docs/flower.md, run as the page gives them, and the costs in results/README.md."""

import subprocess
import sys
from pathlib import Path

import pytest

from helpers.command import ENVIRONMENT
from helpers.pages import commands_of

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "flower.md"
MEASURED = ROOT / "results" / "README.md"
RUNS = [words for words in commands_of(PAGE) if words[0] == "fssl" and "DATA" not in words]


def costs(what: str) -> str:
    """What the command prints that the page names."""
    assert f"`PYTHONPATH=tests python -m helpers.flower_costs {what.removesuffix('-of-10')}`" in MEASURED.read_text()
    command = [sys.executable, "-m", "helpers.flower_costs", what]
    env = ENVIRONMENT | {"PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}:{ROOT / 'tests'}"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "what", ["bytes", "masked-bytes-of-10", pytest.param("masked-bytes", marks=pytest.mark.deploy)]
)
def test_the_page_has_the_bytes_that_are_measured(what: str) -> None:
    assert costs(what) in MEASURED.read_text(), "run: make regenerate"


@pytest.mark.deploy
def test_seconds_are_measured_as_documented() -> None:
    """And a deployment ends with the bits of the other engines, in rounds of a few seconds."""
    *_, deployment = costs("seconds").splitlines()
    name, _, _, _, median = deployment.strip("| ").split(" | ")
    assert name == "deployment, 4 sites, TLS"
    assert float(median) < 8 + 2 * 1.5  # s; an idle machine needs less than 8, of which 1.5 are the clients' work


@pytest.mark.deploy
@pytest.mark.parametrize("words", RUNS, ids=" ".join)
def test_a_run_of_the_page_ends_well(words: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fssl", *words[1:]], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / words[words.index("--out") + 1] / "summary.json").is_file()


def test_there_are_runs() -> None:
    assert len(RUNS) >= 2
