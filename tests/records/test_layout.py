"""The number of a run folder's layout: a later version's folder is rejected in one line."""

import json
from pathlib import Path

import pytest

import fssl as package
from fssl.errors import UserError
from helpers.command import SMALL, Fssl
from helpers.handmade import write_run


def test_a_newer_one_is_rejected_in_a_line(fssl: Fssl) -> None:
    """Before its settings are read, which may have unknown keys."""
    assert fssl("run", "smoke", *SMALL, "--out", "runs/new").code == 0
    environment, settings = Path("runs/new/env.json"), Path("runs/new/config.toml")
    known = json.loads(environment.read_text())
    assert known["format"] == 1
    environment.write_text(json.dumps({**known, "format": 2}))
    settings.write_text(f"{settings.read_text()}\n[later]\nkey = 1\n")
    line = "its format is 2, but this version reads up to 1; upgrade fssl"
    for words in (["show", "runs/new"], ["compare", "runs"], ["predict", "runs/new"], ["run", "runs/new", "--resume"]):
        said = fssl(*words)
        assert (said.code, said.err.count("\n"), line in said.err) == (2, 1, True), said
    with pytest.raises(UserError, match="was written by a newer fssl"):
        package.load("runs/new")


@pytest.mark.parametrize("odd", ["2", None, 1, 0, True, [2]])
def test_a_wrong_format_number_does_not_block_reading(fssl: Fssl, odd: object) -> None:
    folder = write_run(Path("run"), [50.0], 'method.name="sage"')
    known = json.loads((folder / "env.json").read_text())
    (folder / "env.json").write_text(json.dumps({**known, "format": odd}))
    assert fssl("show", "run").code == 0
