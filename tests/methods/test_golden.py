"""Golden rounds: every method under both protocols, and every plug-in combination, gives the bits that it gave.

`make regenerate` adds those of new methods to tests/golden/methods.json; `make regenerate METHODS=sage` also makes
sage's anew. Do that only for a change that is meant to change results, and show the numbers before and after in
CHANGELOG.md.
"""

import json
from pathlib import Path

import pytest

from fssl.data.sources import Dataset
from helpers import golden
from helpers.golden import CASES, FILE, machine, outcome


@pytest.mark.parametrize(("name", "protocol"), CASES)
@pytest.mark.slow
def test_it_gives_the_bits_that_it_gave(name: str, protocol: str, tiny_data: Dataset) -> None:
    content = json.loads(FILE.read_text())
    *expected, where = [*content["outcomes"][f"{name} {protocol}"], content["machine"]][:5]
    found = outcome(name, protocol, tiny_data)
    assert found[2:] == pytest.approx(expected[2:], rel=0.1, abs=0.05)
    if where == machine():
        assert found == expected


def test_the_golden_rounds_see_every_method() -> None:
    """Those that train alike by definition are alike here; all others differ. All that label images use some."""
    outcomes = {key: value[:4] for key, value in json.loads(FILE.read_text())["outcomes"].items()}
    assert {*outcomes} == {f"{name} {protocol}" for name, protocol in CASES}, "run: make regenerate"
    assert {key.split()[0] for key, (*_, l_u) in outcomes.items() if not l_u} == {"fedavg", "fedprox", "fedavg-sl"}
    models: dict[str, list[str]] = {}
    for key, (model, *_) in outcomes.items():
        models.setdefault(model, []).append(key)
    assert models[outcomes["sage clean"][0]] == ["sage clean", "fixmatch-lpl+sage clean"]
    assert models[outcomes["fedmatch clean"][0]] == ["fedmatch clean", "fedmatch authors"]  # without momentum
    assert len(models) == len(outcomes) - 2


def test_a_line_is_added_without_touching_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the machine of the others as it is, and with its name on another."""
    content = json.loads(FILE.read_text())
    del content["outcomes"]["sage clean"]
    monkeypatch.setattr(golden, "FILE", tmp_path / "golden.json")
    monkeypatch.setattr(golden, "outcome", lambda name, protocol, data: ["model", "record", 1.0, 0.5])
    for mark in ([], [{"processor": "another"}]):
        golden.FILE.write_text(json.dumps(content))
        monkeypatch.setattr(golden, "machine", lambda mark=mark: mark[0] if mark else content["machine"])
        golden.write(again=["fedavg"])
        written = json.loads(golden.FILE.read_text())["outcomes"]
        changed = {key: value for key, value in written.items() if value != content["outcomes"].get(key)}
        assert {*changed} == {"sage clean", "fedavg clean", "fedavg authors"}
        assert all(value == ["model", "record", 1.0, 0.5, *mark] for value in changed.values())
        assert [*written] == [f"{name} {protocol}" for name, protocol in CASES]
