"""What `python -m build` makes: everything that an installed fssl needs, with its facts, and nothing by accident."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

import fssl

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
needs_builder = pytest.mark.skipif(
    subprocess.run([sys.executable, "-c", "import hatchling"], capture_output=True).returncode != 0,
    reason="the builder is not installed (pip install hatchling)",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel and a source archive, by the builder that pyproject.toml names."""
    folder = tmp_path_factory.mktemp("dist")
    words = ["-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(folder)]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel unpacked, which is all that installing a wheel of Python files does."""
    folder = tmp_path_factory.mktemp("site")
    ZipFile(next(built.glob("*.whl"))).extractall(folder)
    return folder


def test_one_version_everywhere() -> None:
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert ("version" in PROJECT, PROJECT["dynamic"]) == (False, ["version"])  # read from the package
    assert citation["version"] == fssl.__version__
    assert f"## {fssl.__version__} " in (ROOT / "CHANGELOG.md").read_text()
    assert (citation["cff-version"], citation["type"]) == ("1.2.0", "software")
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"] == PROJECT["authors"]
    assert {"message", "title"} <= citation.keys()


@needs_builder
@pytest.mark.slow
@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package_and_its_facts(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"fssl-{fssl.__version__}-py3-none-any.whl"
    files = ZipFile(wheel)
    ours = {str(file.relative_to(ROOT / "src")) for file in (ROOT / "src/fssl").rglob("*") if file.is_file()}
    ours = {name for name in ours if "__pycache__" not in name}
    ours |= {f"fssl/docs/{page.relative_to(ROOT / 'docs')}" for page in (ROOT / "docs").rglob("*.md")}
    info = f"fssl-{fssl.__version__}.dist-info"
    assert {name for name in files.namelist() if not name.startswith(info)} == ours
    needed = {
        "py.typed",
        "presets/smoke.toml",
        "data/digits.npz",
        "reports/page/page.js",
        "catalog/costs.json",
        "catalog/methods.json",
    }
    assert {f"fssl/{name}" for name in needed} <= ours
    assert b"Apache License" in files.read(f"{info}/licenses/LICENSE")
    facts = message_from_bytes(files.read(f"{info}/METADATA"))
    assert (facts["License-Expression"], facts["Author"]) == ("Apache-2.0", "The fssl authors")
    assert {"Typing :: Typed", "Programming Language :: Python :: 3.11"} <= {*(facts.get_all("Classifier") or [])}
    needs = {re.split(r"[\s<>=]", line)[0] for line in facts.get_all("Requires-Dist") or [] if "extra ==" not in line}
    assert needs == {"torch", "numpy", "pillow", "pyarrow", "safetensors", "typer", "rich"}


@needs_builder
@pytest.mark.slow
def test_the_source_archive_has_what_builds_and_tests_it_but_no_caches_and_no_results(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    wanted = "pyproject.toml README.md LICENSE CITATION.cff CHANGELOG.md src/fssl/py.typed tests/test_package.py"
    wanted += " examples/own_rule.py examples/serve.py"
    assert {*wanted.split()} <= names
    assert not [name for name in names if name.startswith("results")]
    assert {name for name in names if any(part.startswith(".") for part in name.split("/"))} <= {".gitignore"}


@needs_builder
@pytest.mark.slow
def test_a_wheel_within_a_repository_of_others_has_no_commit(built: Path, tmp_path: Path) -> None:
    """Such as in the environment of a project; the clone's own commit is in every record."""
    identity = ["-c", "user.name=x", "-c", "user.email=x"]
    for words in (["init", "--quiet"], [*identity, "commit", "--quiet", "--allow-empty", "--message=x"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    ZipFile(next(built.glob("*.whl"))).extractall(tmp_path)
    code = "from fssl.records.environment import git_revision; print(git_revision())"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"


@needs_builder
@pytest.mark.slow
@pytest.mark.slow
def test_an_installed_wheel_runs_and_reports(installed: Path, tmp_path: Path) -> None:
    """Away from the clone."""
    pytest.importorskip("plotly")
    environment = {**os.environ, "PYTHONPATH": str(installed), "FSSL_CACHE": str(tmp_path / "cache")}

    def call(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert Path(call("-c", "import fssl; print(fssl.__file__)").strip()).is_relative_to(installed)
    small = ["--set", "train.rounds=1", "--set", "train.steps_per_round=1", "--device", "cpu"]
    call("-m", "fssl", "run", "smoke", *small)
    call("-m", "fssl", "report", "runs/smoke", "--out", "report.html")
    assert (tmp_path / "report.html").stat().st_size > 10**6
    assert "table1" in call("-m", "fssl", "presets")
    assert call("-m", "fssl", "docs", "sage") == (ROOT / "docs/methods/sage.md").read_text()
    assert call("-m", "fssl", "docs", "security") == (ROOT / "docs/SECURITY.md").read_text()
