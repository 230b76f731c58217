"""What a soak does again and again: strange settings, damaged files, kills. One trial returns what is wrong, or ""."""

import contextlib
import io
import random
import shutil
import signal
import sys
import time
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

from fssl.cli import app as cli
from fssl.config import schema_of
from fssl.config.schema import Setting
from fssl.config.settings import SECTIONS, Config
from fssl.methods.names import METHODS, PLUGINS, declared_by

from .command import outcome, start

# Commands in this process.


class Ended(NamedTuple):
    """How a command ended; a code of None stands for an uncaught error."""

    code: object
    out: str
    err: str

    def wrong(self, *codes: int) -> str:
        """What is wrong with how it ended: one line and a code is the promise, whatever was asked."""
        if self.code not in codes:
            return f"exit code {self.code}, expected {codes}: {self.err[-2000:]}"
        if "Traceback" in self.out + self.err:
            return f"a traceback: {self.err[-2000:]}"
        if self.code != 0 and (self.err.count("\n") != 1 or not self.err.startswith("fssl: ")):
            return f"not one line: {self.err!r:.2000}"
        return ""


def fssl(*words: object) -> Ended:
    """A command in this process."""
    out, err = io.StringIO(), io.StringIO()
    before = sys.argv
    sys.argv = ["fssl", *map(str, words)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
        code: object = 0
    except SystemExit as exit:
        code = exit.code or 0
    except BaseException as error:  # what a soak is looking for
        code = None
        err.write(f"{type(error).__name__}: {error}")
    finally:
        sys.argv = before
    return Ended(code, out.getvalue(), err.getvalue())


# Settings.

ODD_TEXT = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["", " ", "nan", "-inf", "\x1b[31m", "a\x00b", "ä", "../..", "-1", "1e400", "[", "'", '"', "x" * 5000]
    ),
)
ODD_NUMBERS = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([0, -1, 1, 2**31, 2**63, 10**30, 1e-320, 1e300, float("nan"), float("inf"), True, 1.0]),
)


def as_text(value: Any) -> str:
    """A value as typed after --set KEY=."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(as_text, value)) + "]"
    return repr(value) if isinstance(value, int | float) else str(value)


def fitting(setting: Setting) -> st.SearchStrategy[Any]:
    """Values that a setting takes: at its ends, and in between."""
    if setting.options:
        one: st.SearchStrategy[Any] = st.sampled_from(setting.options)
    elif setting.kind is bool:
        one = st.booleans()
    elif setting.kind in (int, float):
        low, high = (setting.limits.low, setting.limits.high) if setting.limits else (-10, 10)
        usual = min(high, low + 12)
        if setting.kind is int:
            one = st.one_of(st.integers(int(low), int(usual)), st.integers(int(low), int(min(high, 2**63))))
        else:
            one = st.one_of(st.floats(low, usual), st.sampled_from([low, usual, high]))
    else:
        one = st.sampled_from(["x", "cat", "digits", "sage"])
    return st.lists(one, min_size=1, max_size=3) if setting.many else one


def values(setting: Setting) -> st.SearchStrategy[Any]:
    """Values of which some fit."""
    one = st.one_of(fitting(setting), ODD_NUMBERS, ODD_TEXT)
    return st.one_of(one, one, one, st.lists(one, max_size=3))


def known_settings(method: str) -> dict[str, Setting]:
    """Every setting of a run with this method, by its dotted name."""
    out = {key: setting for key, setting in schema_of(Config).items() if key not in SECTIONS}
    for section in SECTIONS:
        if section != "method":
            out |= {f"{section}.{key}": s for key, s in schema_of(type(getattr(Config(), section))).items()}
    return out | {f"method.{key}": setting for key, setting in declared_by(method).items()}


@st.composite
def run_words(draw: st.DrawFn, is_tame: bool | None = None) -> list[str]:
    """The words after `fssl run`: a preset, and settings; tame ones exist, and each by itself fits."""
    is_tame = draw(st.booleans()) if is_tame is None else is_tame
    method = draw(st.sampled_from([*METHODS, *(f"{m}+{p}" for m in ("fixmatch-lpl", "flexmatch") for p in PLUGINS)]))
    known = known_settings(method)
    chosen = draw(st.lists(st.sampled_from(sorted(known)), max_size=5, unique=True))
    words = ["smoke", f"--set=method.name={method}"]
    for key in chosen:
        strange = st.one_of(st.just(key), st.just(key), st.just(key), st.just(f"grid.{key}"), ODD_TEXT)
        typed, value = (key, fitting(known[key])) if is_tame else (draw(strange), values(known[key]))
        words.append(f"--set={typed}={as_text(draw(value))}")
    return words


# Stay small whatever the settings say; a later --set wins.
SMALL = [
    "train.rounds=1",
    "train.steps_per_round=1",
    "train.batch=4",
    "train.clients_per_round=2",
    "partition.clients=4",
]
SMALL += ["model.width=1", "compute.device=cpu", "compute.compile=off", "compute.engine=local", "data.name=digits"]


def planned(words: list[str]) -> str:
    """Settings are taken or rejected, before any compute."""
    begin = time.monotonic()
    wrong = fssl("run", *words, "--dry-run", "--out", "never").wrong(0, 2)
    took = time.monotonic() - begin
    return wrong or (f"silent for {took:.0f} s" if took > 20 else "") or ("a folder" if Path("never").exists() else "")


def trained(words: list[str], out: Path) -> str:
    """Settings that are taken can be trained with; a run that fails says why in a line."""
    small = [f"--set={setting}" for setting in SMALL]
    if fssl("run", *words, *small, "--dry-run", "--out", out).code != 0:
        return ""
    return fssl("run", *words, *small, "--out", out).wrong(0, 1, 2)


WORDS = ["run", "show", "predict", "compare", "tables", "figures", "report", "methods", "datasets", "presets", "bench"]
WORDS += [
    "deploy",
    "replay",
    "init",
    "keys",
    "server",
    "site",
    "start",
    "status",
    "smoke",
    "--out",
    "--resume",
    "--help",
]
WORDS += [
    "--set",
    "--jobs",
    "--by",
    "--csv",
    "--tex",
    "--png",
    "--table",
    "--only",
    "--data-dir",
    "--dry-run",
]
command_lines = st.lists(st.one_of(st.sampled_from(WORDS), ODD_TEXT), max_size=5)
HARMFUL = {"bench", "server", "site", "start", "--watch"}  # would really work, or wait for input


def understood(words: list[str]) -> str:
    """Any words are a command, or rejected in a line."""
    if HARMFUL & {*words} or ("run" in words and "--dry-run" not in words):
        words = ["--help", *words]
    ended = fssl(*words)
    return "" if ended.code == 2 and "Traceback" not in ended.err else ended.wrong(0, 1, 2)


# Damaged files.


class Damage(NamedTuple):
    """A run folder, whole and hurt, with what every command says of the whole one."""

    whole: Path
    other: Path  # another run of the same kind
    longer: tuple[list[dict[str, Any]], bytes]
    said: dict[str, str]


SETTINGS = [
    "train.rounds=4",
    "train.steps_per_round=2",
    "train.batch=8",
    "method.name=flexmatch+sage",
    "compute.device=cpu",
]
LONGER = ("--resume", "--set=train.rounds=5")


def run_small(out: Path, *more: str) -> None:
    ended = fssl("run", "smoke", *(f"--set={s}" for s in (*SETTINGS, *more)), "--out", out)
    assert ended.code == 0, ended.err


def make_damage(folder: Path) -> Damage:
    whole, other, longer = folder / "whole", folder / "other", folder / "longer"
    run_small(whole)
    run_small(other, "seed=8")
    shutil.copytree(whole, longer)
    assert fssl("run", longer, *LONGER).code == 0
    hurt = Path("hurt")
    shutil.copytree(whole, hurt)
    said = {name: fssl(*words).out for name, words in READERS.items()}
    said["predictions"] = Path("p.csv").read_text()
    shutil.rmtree(hurt)
    return Damage(whole, other, outcome(longer), said)


READERS: dict[str, tuple[object, ...]] = {
    "show": ("show", "hurt"),
    "compare": ("compare", "hurt", "--csv", "c.csv"),
    "report": ("report", "hurt", "--out", "r.html"),
    "predict": ("predict", "hurt", "--out", "p.csv"),
}
REMARKS = ("skipped", "left out", "damaged", "note", "changed", "unfinished", "no finished round", "*")


def hurt_file(path: Path, other: Path, draw: random.Random) -> str:
    """Damage a file as disks, editors and people do; returns the kind."""
    data = bytearray(path.read_bytes())
    at = draw.randrange(len(data)) if data else 0
    kind = draw.choice(["bit", "byte", "digit", "cut", "zeros", "gone", "another's", "twice", "more", "empty"])
    digits = [i for i, byte in enumerate(data) if 48 <= byte <= 57]
    if kind == "bit" and data:
        data[at] ^= 1 << draw.randrange(8)
    elif kind == "byte" and data:
        data[at] = draw.randrange(256)
    elif kind == "digit" and digits:
        data[draw.choice(digits)] = 48 + draw.randrange(10)
    elif kind == "cut":
        del data[at:]
    elif kind == "zeros":
        data[at : at + 64] = bytes(len(data[at : at + 64]))
    elif kind == "another's" and other.is_file():
        data = bytearray(other.read_bytes())
    elif kind == "twice":
        data[at:at] = data[at : at + draw.randrange(1, 200)]
    elif kind == "more":
        data += draw.randbytes(draw.randrange(1, 50))
    elif kind == "empty":
        data.clear()
    if kind == "gone":
        path.unlink()
    else:
        path.write_bytes(data)
    return kind


def contents(run: Path) -> dict[str, bytes]:
    """Every file that holds something finished."""
    aside = (".lock", "config.toml", "env.json", "error.txt", "partition.json")
    return {str(p.relative_to(run)): p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name not in aside}


def damaged(damage: Damage, draw: random.Random) -> str:
    """One damaged file: every command reports it, or is not affected; finished rounds stay."""
    hurt = Path("hurt")
    remove(hurt)
    shutil.copytree(damage.whole, hurt)
    files = sorted(path for path in hurt.rglob("*") if path.is_file() and path.name != ".lock")
    path = draw.choice(files)
    kind = hurt_file(path, damage.other / path.relative_to(hurt), draw)
    what = f"{kind} of {path}: "
    for name, words in READERS.items():
        ended = fssl(*words)
        if wrong := ended.wrong(0, 2):
            return f"{what}{name}: {wrong}"
        is_same = ended.out == damage.said[name] or any(remark in ended.out + ended.err for remark in REMARKS)
        if ended.code == 0 and not is_same:
            return f"{what}{name} says something else and nothing of the damage: {ended.out}"
        if name == "predict" and ended.code == 0 and Path("p.csv").read_text() != damage.said["predictions"]:
            return f"{what}predict is wrong"
    before, computes = contents(hurt), compute_table(hurt)
    ended = fssl("run", hurt, *LONGER)
    if wrong := ended.wrong(0, 1, 2):
        return f"{what}resume: {wrong}"
    if ended.code != 0 and contents(hurt) != before:
        return f"{what}resume refused, and changed {sorted(k for k, v in before.items() if contents(hurt).get(k) != v)}"
    if ended.code == 0 and computes == compute_table(damage.whole) and outcome(hurt) != damage.longer:
        return f"{what}resume led to another result: {ended.out}"
    return ""


def compute_table(run: Path) -> Any:
    """Settings that may differ after damage, and round differently."""
    try:
        return tomllib.loads((run / "config.toml").read_text()).get("compute")
    except (OSError, ValueError):
        return None


# Kills.

KILLED = {
    "sage": ("method.name=sage",),
    "states of clients": ("method.name=flexmatch", "records.checkpoint_every=2"),
    "carried momentum": ("protocol=authors",),
}


def killed_until_done(kind: str, out: Path, draw: random.Random, longest: float, most: int = 1000) -> tuple[int, str]:
    """Kill a run at random moments until it is through; returns how often, and what is wrong with it."""
    words = ("run", "smoke", *(f"--set={s}" for s in ("train.rounds=6", *KILLED[kind])), "--device", "cpu")
    if not out.with_name("unbroken").exists():
        start(*words, "--out", out.with_name("unbroken")).communicate(timeout=300)
    kills = 0
    while True:
        process = start(*words, "--out", out, "--resume")
        with contextlib.suppress(Exception):
            process.wait(draw.uniform(0, longest) if kills < most else 300)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills, longest = kills + 1, 1.1 * longest  # else a busy machine would never get to the end
        _, errors = process.communicate(timeout=60)
        if process.returncode == 0:
            same = outcome(out) == outcome(out.with_name("unbroken"))
            return kills, "" if same else f"{kind}: another result after {kills} kills"
        if process.returncode != -signal.SIGKILL:
            return kills, f"{kind}: exit code {process.returncode} after {kills} kills: {errors[-2000:]}"


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
