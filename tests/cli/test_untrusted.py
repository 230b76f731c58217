"""Names and files of others, on the way through every command: shown, escaped or rejected, and never obeyed."""

import csv
import io
import os
import shutil
from pathlib import Path

import pytest

from fssl.api import experiment, run
from helpers.command import SMALL, Fssl

HOSTILE = "a\x1b[31m\x1b]0;owned\x07\x9b2J\u202e[/][bold]|`<b>:smile:\nb"
SHOWN = r"a\x1b[31m\x1b]0;owned\x07\x9b2J\u202e[/][bold]|`<b>:smile:"
LONG = "x" * 4000


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two rounds."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    run(experiment("smoke", "train.rounds=2", "train.steps_per_round=2", "compute.device='cpu'"), folder)
    return folder


def is_shown(text: str) -> bool:
    return text.replace("\n", "").isprintable()


@pytest.mark.slow
def test_a_hostile_name_is_shown_by_every_command(fssl: Fssl, trained: Path) -> None:
    shutil.copytree(trained, HOSTILE)
    shutil.copytree(trained, f"{HOSTILE}/2")
    shutil.copytree(trained, "more/=1+1")
    commands = {
        "run smoke --dry-run --out": 2,
        "run smoke --out": 2,
        "show": 0,
        "compare": 0,
        "compare --csv numbers.csv --tex tables.tex more": 0,
        "tables --out tables": 0,
        "report": 0,
        "pack": 0,
        "predict": 0,
        "run": 2,
        "replay": 2,
        "datasets --check": 2,
        "methods": 2,
        "presets": 2,
        "deploy keys --home": 2,
        "nothing": 2,
        "run smoke --set": 2,
    }
    for words, code in commands.items():
        said = fssl(*words.split(), HOSTILE)
        assert (said.code, is_shown(said.out + said.err)) == (code, True), (words, said)
        assert said.err.count("\n") <= 10
    assert SHOWN in fssl("show", HOSTILE).out
    assert SHOWN in fssl("show", f"{HOSTILE}/nothing").err


def test_a_line_of_a_hostile_name_is_no_line_of_ours(fssl: Fssl, trained: Path) -> None:
    name = "mine\nfssl: all is well\n"
    shutil.copytree(trained, name)
    for words in (["show", name], ["run", "smoke", "--dry-run", "--out", name], ["show", f"{name}/x"]):
        said = fssl(*words)
        assert not [line for line in said.out.splitlines() if line.strip().startswith("fssl: all")]
        assert not [line for line in said.err.splitlines() if line.startswith("fssl: all")]


def test_a_traceback_of_a_replayed_step_is_shown(fssl: Fssl) -> None:
    Path("mine.py").write_text(
        "import torch\nfrom dataclasses import dataclass\nfrom fssl.methods.fixmatch import FixMatch\n"
        "@dataclass(frozen=True)\nclass Mine(FixMatch):\n"
        "    def vote(self, p_l, *rest):\n"
        "        if not isinstance(p_l, torch._subclasses.FakeTensor):\n"
        "            raise RuntimeError('\\x1b[31m\\udce9')\n"
        "        return super().vote(p_l, *rest)\n"
        "def mine(): return Mine()\n"
    )
    said = fssl("run", "smoke", *SMALL, "--set", "method.name=mine.py:mine", "--out", "run")
    assert (said.code, is_shown(said.err)) == (1, True)
    assert "\\udce9" in Path("run/error.txt").read_text()
    said = fssl("replay", "run/failed-step.safetensors")
    assert (said.code, is_shown(said.err)) == (1, True)
    assert said.err.count("\n") > 5


def test_no_cell_of_a_table_is_a_formula(fssl: Fssl, trained: Path) -> None:
    """Names behind an apostrophe; numbers stay numbers."""
    for name in ("=1+1", "@SUM(A1)", "-1+1", "+x", "\tx", "-5"):
        shutil.copytree(trained, Path("runs") / name)
        config = Path("runs", name, "config.toml")
        config.write_text(config.read_text().replace("seed = 7", f"seed = {len(name) * 100 + ord(name[0])}", 1))
    os.chdir("runs")
    names = sorted(os.listdir())
    assert fssl("records", "accept", "--remark", "=2+2", "--", *names).code == 0
    assert fssl("compare", "--csv", "x.csv", "--", *names).code == 0
    rows = list(csv.DictReader(io.StringIO(Path("x.csv").read_text())))
    assert {row["folder"] for row in rows} == {"'=1+1", "'@SUM(A1)", "'-1+1", "'+x", r"\tx", "-5"}
    assert all(float(row["result"]) > 0 for row in rows)


@pytest.mark.slow
def test_a_name_in_another_encoding_is_kept(fssl: Fssl, trained: Path) -> None:
    """Of a run folder and of an output; a setting that would not fit into a record is rejected."""
    name = os.fsdecode(b"caf\xe9")
    shutil.copytree(trained, name)
    for words in (
        ["show", name],
        ["compare", name, "--csv", f"{name}.csv", "--tex", f"{name}.tex"],
        ["tables", name, "--out", f"{name}-tables"],
        ["report", name, "--out", f"{name}.html"],
        ["predict", name, "--out", f"{name}-labels.csv"],
        ["run", "smoke", *SMALL, "--out", f"{name}-again"],
        ["datasets", "--export-digits", f"{name}-sites"],
        ["datasets", "--check", f"{name}-sites"],
    ):
        said = fssl(*words)
        assert (said.code, said.err) == (0, ""), words
    (row,) = csv.DictReader(io.StringIO(Path(f"{name}.csv").read_text()))
    assert row["folder"] == r"caf\xe9"
    assert r"- `caf\xe9`: no table has digits" in Path(f"{name}-tables/tables.md").read_text()
    folder = ["--set", "data.name=folder", "--data-dir", f"{name}-sites"]
    said = fssl("run", "smoke", *folder, "--out", "own")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert said.err.startswith("fssl: data.dir = 'caf\\udce9-sites': expected UTF-8 text; rename the file or folder")
    assert not Path("own").exists()


WORDS = (
    "run smoke --out",
    "run",
    "run smoke --data-dir",
    "run smoke --set",
    "compare",
    "compare . --csv",
    "tables . --out",
    "figures . --out",
    "report . --out",
    "predict",
    "predict . --out",
    "show",
    "pack",
    "replay",
    "datasets --check",
    "datasets --export-digits",
    "methods",
    "presets",
    "bench --json",
    "deploy init",
    "deploy keys --home",
)


@pytest.mark.parametrize("words", WORDS)
def test_a_null_character_is_rejected(fssl: Fssl, words: str) -> None:
    said = fssl(*words.split(), "a\0b")
    assert said == (2, "", "fssl: a\\x00b: a null character cannot be part of a name or a setting\n")


@pytest.mark.parametrize("setting", ["method.name", "model.name", "data.dir", "compute.ray_address", "model.digest"])
def test_a_null_character_in_a_file_is_rejected(fssl: Fssl, setting: str) -> None:
    Path("mine.toml").write_text(f'{setting} = "a\\u0000.py:b"')
    said = fssl("run", "mine.toml")
    assert said == (2, "", f"fssl: {setting} = 'a\\x00.py:b': expected text without a null character\n")


@pytest.mark.parametrize("words", [w for w in WORDS if not w.endswith(("--set", "methods", "presets"))])
def test_a_name_too_long_for_any_file_is_rejected(fssl: Fssl, words: str) -> None:
    ending = {"compare . --csv": ".csv", "report . --out": ".html", "predict . --out": ".csv"}.get(words, "")
    for name in (LONG, "x/" * 2500):
        said = fssl(*words.split(), name.rstrip("/") + ending)
        assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
        assert len(said.err) < 1100
    assert list(Path().iterdir()) == []


def test_an_output_whose_name_is_too_long_is_rejected_before_the_work(fssl: Fssl, trained: Path) -> None:
    """255 bytes would do for the file, but not for its draft."""
    name = f"{'x' * 240}.csv"
    for words in (["predict", trained, "--out", name], ["compare", trained, "--csv", name]):
        said = fssl(*words)
        assert (said.code, said.out) == (2, "")
        assert said.err.endswith(f".csv: the name is too long ({words[-2]})\n")


@pytest.mark.parametrize("setting", ["model.start", "partition.file", "data.dir"])
def test_a_home_folder_that_is_not_known_is_rejected(fssl: Fssl, setting: str) -> None:
    images = ["--set", "data.name=folder"] if setting == "data.dir" else []
    said = fssl("run", "smoke", *SMALL, *images, "--set", f"{setting}=~nobody-here/x", "--out", "run")
    assert (said.code, said.err.count("\n"), "has no such home folder" in said.err) == (2, 1, True), said
    assert not Path("run").exists()


@pytest.mark.parametrize("cache", ["", "~nobody-here/x"])
def test_a_cache_in_no_known_home_folder_is_rejected(fssl: Fssl, cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may run as a user whom it does not know, without HOME."""

    def nobody_s(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("FSSL_CACHE", cache)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # which an earlier run of this process names
    monkeypatch.setattr(Path, "expanduser", nobody_s)
    monkeypatch.setattr(Path, "home", lambda: nobody_s(Path("~")))
    said = fssl("run", "smoke", *SMALL, "--out", "run")
    assert (said.code, said.err.count("\n"), "has no such home folder" in said.err) == (2, 1, True), said
    assert ("FSSL_CACHE" in said.err) == (not cache)
