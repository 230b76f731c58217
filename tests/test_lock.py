"""constraints.txt pins every package of every extra, and `make` installs nothing else."""

import subprocess
import sys
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
LINES = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]


def version_of(pin: Requirement) -> str:
    (exact,) = pin.specifier
    assert exact.operator == "=="
    return exact.version


def pins(name: str) -> list[Requirement]:
    """Lines of one package; several where versions of Python need different ones."""
    return [pin for pin in map(Requirement, LINES) if canonicalize_name(pin.name) == canonicalize_name(name)]


def applies(requirement: Requirement, extra: str = "") -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def needed(name: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]) -> set[str]:
    """Names of all packages that `name[extras]` brings into this environment, as the installed ones say."""
    if (name, extras) in seen:
        return set()
    seen.add((name, extras))
    try:
        asked = [Requirement(line) for line in metadata.requires(name) or []]
    except metadata.PackageNotFoundError:
        return {name}
    here = [r for r in asked if any(applies(r, extra) for extra in (extras or {""}))]
    return {name}.union(*(needed(canonicalize_name(r.name), frozenset(r.extras), seen) for r in here))


def test_a_line_is_one_package_and_one_version() -> None:
    for line in LINES:
        pin = Requirement(line)
        assert (pin.url, pin.extras) == (None, set())
        assert version_of(pin)
    assert len({*LINES}) == len(LINES) > 100


@pytest.mark.parametrize("line", [*PROJECT["dependencies"], *(line for lines in EXTRAS.values() for line in lines)])
def test_pins_are_within_what_pyproject_asks_for(line: str) -> None:
    asked = Requirement(line)
    if asked.name == PROJECT["name"]:
        return
    assert pins(asked.name), f"{asked.name} is not pinned: make lock"
    assert all(asked.specifier.contains(version_of(pin)) for pin in pins(asked.name)), "make lock"


@pytest.mark.skipif(not (Path(sys.prefix) / ".testable").exists(), reason="not the environment of make test")
@pytest.mark.slow
def test_what_is_installed_is_what_is_pinned() -> None:
    names = needed("fssl", frozenset(EXTRAS), set()) - {"fssl"}
    assert len(names) > 100
    pinned = {name: {version_of(pin) for pin in pins(name) if applies(pin)} for name in {*names, "uv"}}
    assert not [name for name, versions in pinned.items() if len(versions) != 1]
    # Not all that can be imported: setuptools, once used, adds copies of its own.
    found = metadata.distributions(path=[sysconfig.get_path("purelib")])
    installed = {canonicalize_name(one.name): Version(one.version).public for one in found}
    assert {name: version for name, version in installed.items() if {version} != pinned.get(name, {version})} == {}


def test_both_commands_install_pinned_versions_only(tmp_path: Path) -> None:
    words = ["make", "--dry-run", f"VENV={tmp_path}", "demo", "test"]
    planned = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    installs = [part for part in planned.replace("||", "\n").splitlines() if " install " in part and "pip" in part]
    assert len(installs) == 6  # uv, PyTorch, and what each of the two commands needs, by uv or else by pip
    for tool in ("PIP", "UV"):
        for constraint in ("CONSTRAINT", "BUILD_CONSTRAINT"):
            assert all(f"{tool}_{constraint}=constraints.txt" in part for part in installs)
