"""The first pages of a stranger: commands and cells are run exactly as they are written."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.command import ENVIRONMENT

pytest.importorskip("matplotlib")
pytest.importorskip("plotly")

pytestmark = pytest.mark.slow
DOCS = Path(__file__).parents[1] / "docs"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**ENVIRONMENT, "FSSL_CACHE": str(tmp_path / "cache"), "MPLBACKEND": "agg", "CUDA_VISIBLE_DEVICES": ""}


def test_the_first_ten_minutes_end_with_a_report(tmp_path: Path, environment: dict[str, str]) -> None:
    section = (DOCS / "first-hour.md").read_text().partition("\n## The first ten minutes\n")[2].partition("\n## ")[0]
    assert section.index("pip wheel --no-deps -w dist .") < section.index('pip install "$(echo dist/*.whl)')
    said = {}
    for language, text in FENCE.findall(section):
        if language == "python":
            (tmp_path / text.split()[1]).write_text(text)
        for line in text.splitlines() if language == "console" else []:
            if line.startswith("fssl "):
                said[line] = run(["-m", *shlex.split(line)], tmp_path, environment)
            else:
                assert line.startswith(("python3 -m venv", ". fresh/", "pip install")), line
    assert len(said) == 6
    (table,) = (text for line, text in said.items() if line.startswith("fssl compare"))
    assert re.search(r"^ sage +7 8 9 ", table, re.MULTILINE)
    assert re.search(r"^ mine.py:mine +7 8 9 ", table, re.MULTILINE)
    assert (tmp_path / "runs/both.png").read_bytes().startswith(b"\x89PNG")
    assert "(6 runs" in said["fssl report runs/both --out runs/report.html"]
    assert (tmp_path / "runs/report.html").stat().st_size > 10**6


def test_the_notebook_s_cells_run_in_order(tmp_path: Path, environment: dict[str, str]) -> None:
    cells = json.loads((DOCS / "first.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 3
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in cells)
    out = run(["-c", "\n\n".join(code)], tmp_path, environment)
    assert run(["-c", "\n\n".join(code)], tmp_path, environment) == out, "in the same folder"
    found = re.findall(r"^\| (sage|python:mean_vote) \| 7 8 \| \**([\d.]+) ± ", out, re.MULTILINE)
    assert {name for name, accuracy in found if 34 < float(accuracy) < 100} == {"sage", "python:mean_vote"}
    assert re.search(r"\| confidence \|", out)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def run(words: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout
