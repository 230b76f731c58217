"""Around the code: workflows, forms and hooks call what exists, with the versions of constraints.txt."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from packaging.specifiers import SpecifierSet

from fssl.config import Config

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
if not (ROOT / ".git").exists():
    pytest.skip("a source archive has no settings of tools", allow_module_level=True)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").glob("*.yml")}
ACTION = ROOT / ".github/actions/python/action.yml"
FORMS = ROOT / ".github/ISSUE_TEMPLATE"
HOOKS = {
    hook["id"]: hook
    for source in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    for hook in source["hooks"]
}


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, workflow in WORKFLOWS.items():
        for key, job in workflow["jobs"].items():
            yield f"{name}:{key}", job


def commands(job: dict[str, Any]) -> str:
    return "\n".join(step.get("run", "") for step in job["steps"])


# Workflows.


def test_workflows_call_targets_of_the_makefile() -> None:
    targets = {*re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)}
    called = {name: re.findall(r"\bmake (\S+)", commands(job)) for name, job in jobs()}
    assert called == {
        "tests.yml:check": ["check"],
        "tests.yml:test": ["test"],
        "docs.yml:site": ["docs"],
        "nightly.yml:deployments": ["deployments"],
        "nightly.yml:soak": ["soak"],
        "wheel.yml:build": [],
        "wheel.yml:publish": [],
    }
    assert {target for words in called.values() for target in words} - targets == set()


def test_every_python_of_the_classifiers_is_tested() -> None:
    """The oldest by all tests: the action's default."""
    start = "Programming Language :: Python :: 3."
    promised = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if line.startswith(start)]
    assert WORKFLOWS["tests.yml"]["jobs"]["check"]["strategy"]["matrix"]["python"] == promised
    assert yaml.safe_load(ACTION.read_text())["inputs"]["version"]["default"] == promised[0]
    minors = [int(version.removeprefix("3.")) for version in promised]
    assert minors == [*range(minors[0], minors[-1] + 1)]
    supported = SpecifierSet(PROJECT["requires-python"])
    assert [supported.contains(f"3.{minor}") for minor in (minors[0] - 1, *minors)] == [False, *[True] * len(minors)]


def test_actions_are_pinned_to_one_commit_each() -> None:
    found: dict[str, set[str]] = {}
    for path in [ACTION, *(ROOT / ".github/workflows").glob("*.yml")]:
        for line in re.findall(r"uses: (.*)", path.read_text()):
            if line.startswith("./"):
                assert (ROOT / line / "action.yml") == ACTION
                continue
            pinned = re.fullmatch(r"([\w-]+/[\w-]+)@([0-9a-f]{40} # v\d+\.\d+\.\d+)", line)
            assert pinned, f"{path.name}: {line}: expected OWNER/NAME@COMMIT # vX.Y.Z"
            found.setdefault(pinned[1], set()).add(pinned[2])
    assert {"actions/checkout", "actions/setup-python", "actions/cache"} <= found.keys()
    assert {name: commits for name, commits in found.items() if len(commits) > 1} == {}


def test_workflows_may_read_and_only_a_tag_publishes() -> None:
    for name, workflow in WORKFLOWS.items():
        assert workflow["permissions"] == {"contents": "read"}, name
        assert workflow["concurrency"]["cancel-in-progress"] is True, name
    more = {name: job for name, job in jobs() if "permissions" in job}
    assert {name: job["permissions"] for name, job in more.items()} == {"wheel.yml:publish": {"id-token": "write"}}
    publish = more["wheel.yml:publish"]
    assert (publish["if"], publish["needs"]) == ("github.ref_type == 'tag'", "build")
    assert [name for name, job in jobs() if "gh-action-pypi-publish" in str(job)] == ["wheel.yml:publish"]


def test_packages_are_cached_until_the_constraints_change() -> None:
    (cache,) = (step for step in yaml.safe_load(ACTION.read_text())["runs"]["steps"] if "cache" in step.get("uses", ""))
    assert cache["with"]["path"].split() == ["~/.cache/pip", "~/.cache/uv"]
    assert cache["with"]["key"].endswith("-${{ inputs.version }}-${{ hashFiles('constraints.txt') }}")


# Forms.


def test_a_bug_comes_with_its_run_and_without_private_data() -> None:
    form = yaml.safe_load((FORMS / "bug.yml").read_text())["body"]
    asked = " ".join(field["attributes"]["label"] for field in form if field["type"] == "textarea")
    assert {"fssl show RUN", "config.toml", "env.json"} <= {*re.findall(r"`([^`]+)`", asked)}
    named = {*re.findall(r"`([a-z]+\.[a-z_]+)`", form[0]["attributes"]["value"])} - {"config.toml", "env.json"}
    sections = {key: kind for key, kind in get_type_hints(Config).items() if is_dataclass(kind)}
    assert "data.classes" in named
    assert named <= {f"{key}.{field.name}" for key, kind in sections.items() for field in fields(kind)}


def test_questions_go_to_the_discussions() -> None:
    """Of the public address, once there is one."""
    config = yaml.safe_load((FORMS / "config.yml").read_text())
    (link,) = config["contact_links"]
    source = PROJECT.get("urls", {}).get("Source", "https://github.com/OWNER/fssl")
    assert (config["blank_issues_enabled"], link["url"]) == (False, f"{source}/discussions")


# Hooks.


def test_hooks_have_the_versions_of_the_constraints_and_environments_of_their_own() -> None:
    assert {hook["language"] for hook in HOOKS.values()} == {"python", "pygrep"}
    asked = {word for hook in HOOKS.values() for word in hook.get("additional_dependencies", ())}
    packages = {word for word in asked if not word.startswith("-")}
    assert {"ruff", "mypy", "deno", "torch"} <= {package.partition("==")[0] for package in packages}
    assert packages <= {line.partition(" ;")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}


@pytest.mark.parametrize(
    ("message", "is_refused"),
    [
        ("tests: say what is wrong", False),
        ("x" * 72, False),
        ("x" * 73, True),
        ("ü" * 72, False),
        ("–" * 73, True),
        (f"short\n\n{'x' * 200}", False),
        (f"\n\n{'x' * 73}\n\nbody", True),
        (f"{'x' * 72}\n{'x' * 200}\n", False),
    ],
    ids=lambda value: f"{value[:6].strip()}-{len(value)}" if isinstance(value, str) else "",
)
def test_a_subject_has_at_most_72_characters(message: str, is_refused: bool) -> None:
    """As pre-commit's pygrep looks for an expression: in bytes, and in the whole file."""
    hook = HOOKS["subject"]
    assert (hook["language"], hook["args"], hook["stages"]) == ("pygrep", ["--multiline"], ["commit-msg"])
    expression = re.compile(hook["entry"].encode(), re.MULTILINE | re.DOTALL)
    assert bool(expression.search(message.encode())) == is_refused
