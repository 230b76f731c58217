"""Methods in files of one's own: from the command line to the record, and what is said of a file that does not fit."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import fssl as fssl_api
from fssl.config import METHOD_KEYS, Config, MethodChoice, as_tables
from fssl.config.conditions import SCHEMAS
from fssl.data.cards import CARDS
from fssl.deploy.home import init, server_part
from fssl.errors import RunError, UserError
from fssl.methods.fixmatch import FixMatch
from fssl.methods.names import build_method, full_settings, split_name
from fssl.reports.page.write import write_page
from fssl.system.user_code import loaded, source_digest, user_file
from helpers.command import SMALL, Fssl, records

FILE = """
from fssl.label.accept import FixedThreshold
from fssl.methods.fixmatch import FixMatch

open("runs.txt", "a").write("once ")

def mine(tau: float = 0.5, mu_u: float = 1.0) -> FixMatch:
    return FixMatch(accept=FixedThreshold(tau), mu_u=mu_u)

def needs(tau: float) -> FixMatch:
    return mine(tau)

def number() -> int:
    return 3

text = "no function"

class Mine(FixMatch):
    pass
"""


CHANGED = FILE.replace("mu_u=mu_u", "mu_u=2 * mu_u")


@pytest.fixture(autouse=True)
def _desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text(FILE)


def test_names() -> None:
    assert user_file("my.py:mine+sage") == user_file("my.py:mine") == Path("my.py")
    assert user_file("sage") is user_file("my.py") is user_file("my.py:") is None
    assert split_name("a/my.py:mine+sage") == ("a/my.py:mine", ["sage"])


@pytest.mark.slow
def test_it_is_the_method_that_the_function_makes(fssl: Fssl) -> None:
    """The same bits as the method of the package that it equals, alone and with SAGE on it."""
    names = {
        "own": "my.py:mine",
        "ours": "fixmatch-lpl",
        "own+sage": "my.py:mine+sage",
        "ours+sage": "fixmatch-lpl+sage",
    }
    for out, name in names.items():
        words = ["--set", f"method.name={name}", "--set", "method.tau=0.5", "--out", out]
        assert fssl("run", "smoke", *SMALL, *words)[0] == 0
    assert records("own") == records("ours")
    assert records("own+sage") == records("ours+sage")
    assert Path("own/my.py").read_text() == FILE
    assert fssl("run", "own", "--resume", "--set", "train.rounds=3")[0] == 0
    assert len(records("own")) == 3


ADDS = """
from dataclasses import dataclass, replace

from fssl.label.accept import FixedThreshold
from fssl.label.assign import GlobalOnly
from fssl.methods.fixmatch import FixMatch
from fssl.methods.terms import Proximal

class Sure(FixedThreshold):
    pass

@dataclass(frozen=True)
class Derived(FixMatch):
    pass

def rule() -> FixMatch:
    return FixMatch(assign=GlobalOnly())

def threshold() -> FixMatch:
    return FixMatch(accept=FixedThreshold(0.5), mu_u=2.0)

def term() -> FixMatch:
    return FixMatch(terms=(Proximal(0.1),))

def accept() -> FixMatch:
    return FixMatch(accept=Sure())

def derived() -> FixMatch:
    return Derived()
"""


@pytest.mark.parametrize(
    ("name", "is_told"),
    [
        ("adds.py:rule+sage", True),
        ("adds.py:threshold+sage", True),
        ("adds.py:term+sage", False),
        ("adds.py:accept+sage", False),
        ("adds.py:derived+sage", False),
        ("adds.py:rule", False),
        ("fixmatch-gpl+sage", False),  # whose page says it
    ],
)
def test_a_plug_in_that_replaces_a_whole_method_is_reported(name: str, is_told: bool, fssl: Fssl) -> None:
    """Else a table would show SAGE's own numbers as those of a method with SAGE on it."""
    Path("adds.py").write_text(ADDS)
    text = f"method '{name}': the plug-in replaces all that the method adds to fixmatch-lpl, so this is SAGE itself"
    code, said, _ = fssl("run", "smoke", "--set", f"method.name={name}", "--dry-run")
    assert (code, text in said, "SAGE itself" in said) == (0, is_told, is_told)


@pytest.mark.slow
def test_a_record_can_be_read_without_running_the_file(fssl: Fssl) -> None:
    assert fssl("run", "smoke", *SMALL, "--set", "method.name=my.py:mine", "--out", "own")[0] == 0
    for path in (Path("my.py"), Path("own/my.py")):
        path.write_text("raise RuntimeError('run all the same')")
    loaded.cache_clear()
    for words in (
        ["show", "own"],
        ["compare", "own"],
        ["report", "own"],
        ["predict", "own"],
        ["tables", "own"],
        ["figures", "own"],
    ):
        assert fssl(*words)[0] == 0
    Path("my.py").unlink()
    code, _, said = fssl("run", "own", "--resume", "--set", "train.rounds=3")
    assert (code, f"there is no file {Path('my.py').resolve()}" in said) == (2, True)


def test_a_run_resumes_with_the_file_it_began_with(fssl: Fssl) -> None:
    assert fssl("run", "smoke", *SMALL, "--set", "method.name=my.py:mine", "--out", "own")[0] == 0
    before = records("own")
    Path("my.py").write_text(CHANGED)
    loaded.cache_clear()
    code, _, said = fssl("run", "own", "--resume", "--set", "train.rounds=3")
    assert (code, "mine of my.py has changed: method.digest is" in said) == (2, True)
    assert records("own") == before
    assert Path("own/summary.json").is_file()
    assert Path("own/my.py").read_text() == FILE


def test_two_versions_of_a_file_are_two_methods(fssl: Fssl) -> None:
    """In a grid that is given again, and in a comparison."""
    grid = ["run", "smoke", *SMALL, "--set", 'grid.method.name=["my.py:mine"]', "--out", "grid", "--set"]
    assert fssl(*grid, "grid.seed=[7]")[0] == 0
    Path("my.py").write_text(CHANGED)
    loaded.cache_clear()
    code, _, said = fssl(*grid, "grid.seed=[7, 8]")
    assert (code, "contains another run: method.digest is" in said) == (2, True)
    assert not Path("grid/my.py_mine/seed8").exists()
    assert (
        fssl("run", "smoke", *SMALL, "--set", "method.name=my.py:mine", "--set", "seed=8", "--out", "grid/new")[0] == 0
    )
    code, said, _ = fssl("compare", "grid")
    assert (code, len(set(re.findall(r"my\.py:mine, digest=(\w+)", said)))) == (0, 2), said


@pytest.mark.slow
def test_a_comment_and_what_is_not_used_make_no_other_method(fssl: Fssl) -> None:
    """Seed 7 before, seed 8 after: one line of the table, and the first run can be resumed."""
    words = ["run", "smoke", *SMALL, "--set", "method.name=my.py:mine"]
    assert fssl(*words, "--out", "runs/7").code == 0
    Path("my.py").write_text("# A new remark.\n" + FILE.replace("return 3", "return 4"))
    loaded.cache_clear()
    assert fssl(*words, "--set", "seed=8", "--out", "runs/8").code == 0
    code, said, _ = fssl("compare", "runs")
    assert (code, len(re.findall(r"^ *my\.py:mine +7 8 ", said, re.MULTILINE))) == (0, 1), said
    assert fssl("run", "runs/7", "--resume", "--set", "train.rounds=3").code == 0


@pytest.mark.slow
def test_a_file_is_the_same_by_any_path(fssl: Fssl, tmp_path: Path) -> None:
    for seed, name in ((7, "my.py:mine"), (8, f"{tmp_path}/my.py:mine")):
        words = ["--set", f"method.name={name}", "--set", f"seed={seed}", "--out", f"runs/{seed}"]
        assert fssl("run", "smoke", *SMALL, *words).code == 0
    code, said, _ = fssl("compare", "runs")
    assert (code, len(re.findall(r"^ *my\.py:mine +7 8 ", said, re.MULTILINE))) == (0, 1), said
    longer = ["--resume", "--set", "train.rounds=3", "--out", "runs/8", "--set", "seed=8"]
    assert fssl("run", "smoke", *SMALL, "--set", "method.name=my.py:mine", *longer).code == 0


@pytest.mark.slow
def test_a_label_and_a_color_are_what_people_see(fssl: Fssl) -> None:
    """In the table, LaTeX and the page; they make no other run, and may come later."""
    look = ["--set", "method.label=Ours, of 2026", "--set", "method.color=#112233"]
    words = ["run", "smoke", *SMALL, "--set", "method.name=my.py:mine"]
    assert fssl(*words, "--out", "runs/7").code == 0
    assert fssl(*words, *look, "--set", "seed=8", "--out", "runs/8").code == 0
    assert fssl("run", "smoke", *SMALL, "--out", "runs/sage").code == 0
    code, said, _ = fssl("compare", "runs", "--tex", "t.tex", "--svg", "c.svg", "--pdf", "c.pdf", "--png", "c.png")
    assert (code, len(re.findall(r"^ *Ours, of 2026 +7 8 ", said, re.MULTILINE))) == (0, 1), said
    assert "Ours, of 2026 &" in Path("t.tex").read_text()
    assert "#112233" in Path("c.svg").read_text()
    assert Path("c.pdf").read_bytes().startswith(b"%PDF")
    assert Path("c.png").read_bytes().startswith(b"\x89PNG")
    lines = write_page([Path("runs")], Path("report.html"), False)["tasks"][0]["groups"]
    assert {line["name"]: line["style"]["color"] for line in lines} == {"Ours, of 2026": "#112233", "SAGE": "#D55E00"}
    assert fssl("run", "runs/7", "--resume", "--set", "train.rounds=3", *look).code == 0
    assert 'label = "Ours, of 2026"' in Path("runs/7/config.toml").read_text()
    assert "Ours, of 2026 on digits" in fssl("show", "runs/7").out


@pytest.mark.slow
def test_a_finished_run_gets_a_label_and_keeps_it(fssl: Fssl) -> None:
    """By a command that trains nothing; a grid that is given again without one leaves it, also if it is prolonged."""
    grid = ["run", "smoke", *SMALL, "--set", "grid.seed=[7,8]", "--out", "runs"]
    assert fssl(*grid).code == 0
    untouched = Path("runs/seed7/summary.json").stat().st_mtime_ns
    said = fssl("run", "runs/seed7", "--resume", "--set", "method.label=Mine", "--set", "method.color=#112233")
    assert said == (0, "runs/seed7: finished already; now method.label = Mine, method.color = #112233\n", "")
    assert fssl("compare", "runs/seed7").out.count("Mine") == 1
    assert fssl("show", "runs/seed7").out.startswith("Mine on digits")
    for more in ([], ["--resume"]):
        assert fssl(*grid, *more).out == "runs/seed7: finished already\nruns/seed8: finished already\n"
    assert Path("runs/seed7/summary.json").stat().st_mtime_ns == untouched
    assert fssl(*grid, "--resume", "--set", "train.rounds=3").code == 0
    assert 'label = "Mine"\ncolor = "#112233"' in Path("runs/seed7/config.toml").read_text()
    assert fssl(*grid, "--set", "train.rounds=3", "--set", "method.label=Ours").out == (
        "runs/seed7: finished already; resume it to change method.label\n"
        "runs/seed8: finished already; resume it to change method.label\n"
    )


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("method.label=''", "method.label = '': expected a line of 1 to 60 characters"),
        ("method.color=red", "method.color = 'red': expected six hexadecimal digits"),
    ],
)
def test_a_look_that_cannot_be_shown_is_rejected(fssl: Fssl, setting: str, message: str) -> None:
    code, _, said = fssl("run", "smoke", "--set", setting, "--dry-run")
    assert (code, message in said) == (2, True), said


def test_two_methods_of_one_label_are_distinguished(fssl: Fssl) -> None:
    for name in ("fedavg", "sage"):
        words = ["--set", f"method.name={name}", "--set", "method.label=Ours", "--out", f"runs/{name}"]
        assert fssl("run", "smoke", *SMALL, *words).code == 0
    said = fssl("compare", "runs").out
    assert "Ours (fedavg)" in said
    assert "Ours (sage)" in said


def test_files_of_one_name_are_two_modules() -> None:
    for folder, tau in (("a", 0.25), ("b", 0.75)):
        Path(folder).mkdir()
        Path(folder, "my.py").write_text(FILE.replace("0.5", str(tau)))
    methods: list[Any] = [build_method(f"{folder}/my.py:mine", {}) for folder in "ab"]
    assert [method.accept.tau for method in methods] == [0.25, 0.75]
    assert len({module.__name__ for module in map(loaded, (Path("a/my.py").resolve(), Path("b/my.py").resolve()))}) == 2


def test_annotations_may_be_strings(fssl: Fssl) -> None:
    """As `from __future__ import annotations` makes them."""
    Path("late.py").write_text(
        "from __future__ import annotations\n" + FILE.replace("mu_u: float", "on: bool = True, mu_u: float")
    )
    build_method("late.py:mine", {"tau": 1, "on": False})
    with pytest.raises(UserError, match=r"method\.on = 3: expected true or false"):
        build_method("late.py:mine", {"on": 3})


BRANCH = """
from dataclasses import dataclass
from fssl.label.assign import LocalOnly
from fssl.methods.fixmatch import FixMatch

class Branches(LocalOnly):
    def __call__(self, p_l, p_g, sure_l, sure_g):
        if sure_l.any():
            return super().__call__(p_l, p_g, sure_l, sure_g)

class Picks(LocalOnly):
    def __call__(self, p_l, p_g, sure_l, sure_g):
        return super().__call__(p_l[sure_l], p_g, sure_l, sure_g)

class Writes(FixMatch):
    def extra(self, net, payload, local, batch, seen):
        payload.weights.params["head.linear.bias"].mul_(0.9)
        return seen.x.logits.sum() * 0, local.state

def mine() -> FixMatch:
    return FixMatch(assign=Branches())

def picks() -> FixMatch:
    return FixMatch(assign=Picks())

def writes() -> FixMatch:
    return Writes()

def strings(kind: str = "a") -> FixMatch:
    return mine()
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "mine",
            r"its step fails: a value or a branch depends on data .*`fssl docs adding-a-method` \(branch\.py, line 8\)",
        ),
        (
            "picks",
            r"its step fails: a shape depends on data \(t\[mask\].*`fssl docs adding-a-method` \(branch\.py, line 13\)",
        ),
        (
            "writes",
            r"its step changes payload\.weights\.params\['head\.linear\.bias'\] in place; .*",
        ),
    ],
)
def test_a_mistake_in_a_step_is_rejected_with_its_place_before_any_compute(
    name: str, expected: str, fssl: Fssl
) -> None:
    Path("branch.py").write_text(BRANCH)
    code, _, said = fssl("run", "smoke", *SMALL, "--set", f"method.name=branch.py:{name}", "--out", "out")
    assert (code, said.count("\n")) == (2, 1), said
    assert re.search(rf"method 'branch\.py:{name}': {expected}$", said.strip()), said
    assert not Path("out").exists()


RETURNS = """
from dataclasses import dataclass
from typing import Any, ClassVar

from fssl.label.assign import hard
from fssl.methods.fixmatch import FixMatch
from fssl.types import PseudoLabels

@dataclass(frozen=True)
class Rule:
    kind: str
    uses_global: ClassVar[bool] = True

    def __call__(self, p_l, p_g, sure_l, sure_g) -> Any:
        return {
            "one": hard(p_l),
            "three": (hard(p_l), sure_l, sure_g),
            "classes": PseudoLabels(p_l.argmax(-1), sure_l),
            "column": PseudoLabels(hard(p_l), sure_l.unsqueeze(-1)),
        }[self.kind]

@dataclass(frozen=True)
class Extra(FixMatch):
    kind: str = ""

    def extra(self, net, payload, local, batch, seen) -> Any:
        term = seen.weak.logits.square()
        return {
            "alone": term.mean(),
            "many": (term.sum(-1), local.state),
            "stateless": (term.mean(), None),
            "plain": (0.0, local.state),
        }[self.kind]

@dataclass(frozen=True)
class Votes(FixMatch):
    kind: str = ""

    def vote(self, p_l, p_g, payload, state, batch) -> Any:
        votes = super().vote(p_l, p_g, payload, state, batch)
        return {
            "none": None,
            "few": {"p_l": p_l, "target": votes["target"], "sure_l": votes["sure_l"]},
            "wide": {**votes, "mask": p_l},
        }[self.kind]

class Labeled(FixMatch):
    def supervised(self, x, batch) -> Any:
        return x.logits.mean(-1)

def mine() -> FixMatch:
    return METHOD
"""


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("Labeled()", r"`supervised` returns float32 \[\d+\]; expected a scalar loss$"),
        ("FixMatch(assign=Rule('one'))", r"`assign` returns float32 \[32, 10\]; expected PseudoLabels\(target, mask\)"),
        (
            "FixMatch(assign=Rule('three'))",
            r"`assign` returns \(float32 \[32, 10\], bool \[32\], bool \[32\]\); expected",
        ),
        (
            "FixMatch(assign=Rule('classes'))",
            r"`assign` returns \(int64 \[32\], bool \[32\]\); .* target \[32, 10\] and mask \[32\]$",
        ),
        ("FixMatch(assign=Rule('column'))", r"`assign` returns \(float32 \[32, 10\], bool \[32, 1\]\); expected"),
        (
            "Extra(kind='alone')",
            r"`extra` returns float32 \[\]; expected \(term, state\) with a scalar term$",
        ),
        ("Extra(kind='many')", r"`extra` returns \(float32 \[32\], dict\); expected \(term, state\)"),
        ("Votes(kind='none')", r"`vote` returns NoneType; expected a dict of p_l, p_g, sure_l, sure_g, target, mask$"),
        ("Votes(kind='few')", r"`vote` returns dict without p_g, sure_g, mask; expected a dict"),
        (
            "Votes(kind='wide')",
            r"`vote` returns target float32 \[32, 10\] and mask float32 \[32, 10\]; expected \[32, 10\] and \[32\]$",
        ),
        ("Extra(kind='stateless')", r"`extra` returns \(float32 \[\], NoneType\); expected \(term, state\)"),
    ],
)
def test_an_answer_of_another_form_is_named(method: str, expected: str, fssl: Fssl) -> None:
    """Otherwise torch reports a shape in later code, without the function that returned it."""
    Path("own.py").write_text(RETURNS.replace("METHOD", method))
    code, _, said = fssl("run", "smoke", *SMALL, "--set", "method.name=own.py:mine", "--out", "out")
    assert (code, said.count("\n")) == (2, 1), said
    assert re.search(rf"method 'own\.py:mine': its {expected}", said.strip()), said
    assert not Path("out").exists()


def test_a_term_may_be_a_plain_number(fssl: Fssl) -> None:
    Path("own.py").write_text(RETURNS.replace("METHOD", "Extra(kind='plain')"))
    assert fssl("run", "smoke", *SMALL, "--set", "method.name=own.py:mine", "--out", "out").code == 0
    assert fssl("run", "smoke", *SMALL, "--set", "method.name=fixmatch-lpl", "--out", "ours").code == 0
    assert records("out") == records("ours")


RAMP = """
from dataclasses import dataclass
from fssl.label.assign import hard
from fssl.methods.fixmatch import FixMatch

@dataclass(frozen=True)
class Ramp(FixMatch):
    def vote(self, p_l, p_g, payload, state, batch):
        sure = p_l.amax(-1) > 0.1 * batch.clock.round / batch.clock.rounds
        return {"p_l": p_l, "p_g": p_g, "sure_l": sure, "sure_g": sure, "target": hard(p_l), "mask": sure}

def mine() -> Ramp:
    return Ramp()
"""


def test_an_oracle_drops_wrong_labels_of_any_vote(fssl: Fssl) -> None:
    Path("own.py").write_text(RAMP)
    for name in ("mine", "mine+oracle"):
        assert fssl("run", "smoke", *SMALL, "--set", f"method.name=own.py:{name}", "--out", name).code == 0
    right, of_oracle = ([line["pl_accuracy"] for line in records(name)] for name in ("mine", "mine+oracle"))
    assert max(right) < 1
    assert set(of_oracle) == {1.0}


def test_a_vote_that_takes_no_note_of_the_rule_is_no_host_of_sage(fssl: Fssl) -> None:
    Path("own.py").write_text(RAMP)
    code, _, said = fssl("run", "smoke", *SMALL, "--set", "method.name=own.py:mine+sage", "--out", "out")
    assert (code, said.count("\n")) == (2, 1), said
    assert "+sage has no effect: its `vote` never calls `self.assign`, which +sage replaces; remove +sage" in said


def test_a_run_whose_steps_read_its_length_keeps_it(fssl: Fssl) -> None:
    """Its first rounds were steps of another run."""
    Path("own.py").write_text(RAMP)
    assert fssl("run", "smoke", *SMALL, "--set", "method.name=own.py:mine", "--out", "out").code == 0
    before = records("out")
    code, _, said = fssl("run", "out", "--resume", "--set", "train.rounds=5")
    assert (code, said.count("\n")) == (2, 1), said
    assert "train.rounds = 5: method 'own.py:mine' reads `batch.clock.rounds`" in said
    assert records("out") == before
    experiment = fssl_api.experiment("smoke", *SMALL[1:4:2], "method.name=own.py:mine", "train.rounds=5")
    with pytest.raises(UserError, match=r"reads `batch\.clock\.rounds`"):
        fssl_api.run(experiment, "out", resume=True)


def test_a_run_resumes_with_its_copy_of_code_that_is_not_found(fssl: Fssl) -> None:
    Path("own.py").write_text(RAMP.replace(" / batch.clock.rounds", ""))
    assert fssl("run", "smoke", *SMALL, "--set", "method.name=own.py:mine", "--out", "out").code == 0
    Path("own.py").unlink()
    code, _, said = fssl("run", "out", "--resume", "--set", "train.rounds=5")
    assert code == 0, said
    assert len(records("out")) == 5
    assert 'name = "own.py:mine"' in Path("out/config.toml").read_text()
    Path("out/own.py").unlink()
    code, _, said = fssl("run", "out", "--resume", "--set", "train.rounds=6")
    assert (code, "there is no file" in said) == (2, True), said


@pytest.mark.parametrize("text", ["method = 5", "method.name = 5", "partition = []", 'model = "x"'])
def test_settings_of_another_form_are_rejected_before_a_copy_is_looked_for(text: str, fssl: Fssl) -> None:
    Path("out").mkdir()
    Path("out/config.toml").write_text(f"{text}\n")
    code, _, said = fssl("run", "out", "--resume")
    assert (code, said.count("\n")) == (2, 1), said


CONSTANT = """
from fssl.methods.base import Method, descend
from fssl.types import Trace

class Constant(Method):
    def step(self, net, payload, local, batch):
        def loss(weights, state):
            buffers, (x,) = net.fit(weights, batch.x)
            return x.logits.square().mean(), (buffers, state, Trace({}, {}))
        return descend(loss, self.optimizer, local)

def mine() -> Constant:
    return Constant()
"""


def test_a_step_that_leaves_the_schedule_out_is_rejected(fssl: Fssl) -> None:
    Path("constant.py").write_text(CONSTANT)
    own = ("--set", "method.name=constant.py:mine", "--set", "train.schedule=cosine")
    code, _, said = fssl("run", "smoke", *SMALL, *own, "--out", "out")
    assert (code, said.count("\n")) == (2, 1), said
    assert "method 'constant.py:mine': train.schedule or train.cooldown has no effect" in said
    assert not Path("out").exists()


DRAWS = """
import random
from dataclasses import dataclass
from threading import Thread
import numpy as np
import torch
from fssl.methods.fixmatch import FixMatch

seen = []

@dataclass(frozen=True)
class Draws(FixMatch):
    kind: str = ""

    def vote(self, p_l, p_g, payload, state, batch):
        if self.kind == "torch":
            p_l = p_l + torch.rand_like(p_l)
        elif self.kind == "dropout":
            p_l = torch.dropout(p_l, 0.5, True)
        elif self.kind == "numpy":
            p_l = p_l * np.random.rand()
        elif self.kind == "python":
            p_l = p_l * random.random()
        elif self.kind == "beside" and not seen:
            seen.append(thread := Thread(target=random.random))
            thread.start()
            thread.join()
        return super().vote(p_l, p_g, payload, state, batch)

def torch_(): return Draws(kind="torch")
def dropout(): return Draws(kind="dropout")
def numpy(): return Draws(kind="numpy")
def python(): return Draws(kind="python")
def nothing(): return Draws()
def beside(): return Draws(kind="beside")
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("torch_", "(rand_like), so the same seed would not repeat the result"),
        ("dropout", "a step draws random numbers ("),
        ("numpy", "(NumPy's or Python's global generator)"),
        ("python", "(NumPy's or Python's global generator)"),
    ],
)
def test_random_numbers_in_a_step_are_rejected(fssl: Fssl, name: str, expected: str) -> None:
    Path("draws.py").write_text(DRAWS)
    for words in (["--dry-run"], ["--out", "out"]):
        code, _, said = fssl("run", "smoke", *SMALL, "--set", f"method.name=draws.py:{name}", *words)
        assert (code, said.count("\n"), expected in said) == (2, 1, True), said
    assert not Path("out").exists()
    for honest in ("nothing", "beside"):  # the second while another thread draws, once
        assert fssl("run", "smoke", "--set", f"method.name=draws.py:{honest}", "--dry-run").code == 0


FAILS = """
from dataclasses import dataclass
import torch
from fssl.methods.fixmatch import FixMatch

@dataclass(frozen=True)
class Fails(FixMatch):
    def vote(self, p_l, p_g, payload, state, batch):
        if not isinstance(p_l, torch._subclasses.FakeTensor) and batch.clock.round == 2 and batch.clock.step == 1:
            raise KeyError("absent")
        return super().vote(p_l, p_g, payload, state, batch)

def mine(): return Fails()
"""


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.slow
def test_a_step_that_fails_is_named_saved_and_can_be_taken_again(fssl: Fssl, jobs: str) -> None:
    """Alone, in a grid, and in a worker whose error could not travel as it is."""
    Path("fails.py").write_text(FAILS)
    grid = ["--set", "grid.seed=[7, 8]", "--jobs", jobs]
    place = (
        r"round 2, client \d, step 2: KeyError: 'absent'; `fssl replay (\S+)` .* \(fails\.py, line 10; traceback: \S+\)"
    )
    for words, runs in (([], 1), (grid, 2)) if jobs == "1" else ((grid, 2),):
        code, _, said = fssl(
            "run", "smoke", *SMALL, "--set", "method.name=fails.py:mine", "--out", f"out{runs}", *words
        )
        found = re.findall(place, said)
        assert (code, len(found)) == (1, runs), said
    assert "KeyError: 'absent'" in Path("out2/seed7/error.txt").read_text()
    code, out, said = fssl("replay", found[0])
    assert code == 1
    assert re.match(
        r"out2/seed\d/failed-step.safetensors: round 2, client \d, step 2 of out2/seed\d/fails.py:mine\n", out
    )
    assert said.endswith("KeyError: 'absent'\n")
    assert 'fails.py", line 10, in vote' in said
    Path(found[0]).with_name("fails.py").write_text(FAILS.replace("== 2", "== 3"))
    loaded.cache_clear()
    said = fssl("replay", found[0]).err
    assert "its method.name = 'fails.py:mine' differs from its run folder's; check it, then trust it (--trust)" in said
    Path("fails.py").write_text(FAILS.replace("== 2", "== 3"))
    assert "has changed: method.digest is" in fssl("replay", found[0], "--trust").err
    Path("no.safetensors").write_bytes(b"nothing")
    assert fssl("replay", "no.safetensors").err.startswith("fssl: no.safetensors is not a saved step")


ODD_FACTS = ("[" * 10**5, "[]", "3", "null", "{}", '{"config": 3}', '{"config": "a = [[", "client": 0, "where": ""}')


@pytest.mark.parametrize("facts", ODD_FACTS)
def test_a_saved_step_with_odd_facts_is_rejected(fssl: Fssl, facts: str) -> None:
    save_file({"x": torch.zeros(1)}, "odd.safetensors", {"failed-step": facts})
    code, _, said = fssl("replay", "odd.safetensors")
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith("fssl: odd.safetensors is not a saved step (")


FORGETS = """
from dataclasses import dataclass
import torch
from fssl.label.accept import FlexThreshold
from fssl.methods.fixmatch import FixMatch

@dataclass(frozen=True)
class Extra(FixMatch):
    def extra(self, net, payload, local, batch, seen):
        return torch.zeros_like(batch.has_labels), {}

@dataclass(frozen=True)
class Remember(FixMatch):
    def remember(self, votes, batch, state):
        return {}

@dataclass(frozen=True)
class Step(FixMatch):
    def step(self, net, payload, local, batch):
        after, trace = super().step(net, payload, local, batch)
        return after._replace(velocity={}), trace

def extra(): return Extra(accept=FlexThreshold())
def remember(): return Remember(accept=FlexThreshold())
def step(): return Step()
"""


@pytest.mark.parametrize(
    ("function", "what"),
    [
        ("extra", "the client's state without 'flex.table'"),
        ("remember", "the client's state without 'flex.table'"),
        ("step", "the momentum without '"),
    ],
)
def test_a_step_that_forgets_is_rejected_before_it_trains(fssl: Fssl, function: str, what: str) -> None:
    Path("forgets.py").write_text(FORGETS)
    code, _, said = fssl("run", "smoke", *SMALL, "--set", f"method.name=forgets.py:{function}", "--out", "run")
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith(f"fssl: method 'forgets.py:{function}': its step returns {what}")
    assert not Path("run").exists()


def test_a_string_needs_its_choices() -> None:
    Path("branch.py").write_text(BRANCH)
    with pytest.raises(UserError, match=r"method\.kind: unsupported type; annotate it as .* Literal"):
        build_method("branch.py:strings", {"kind": "a"})


def test_a_number_must_be_finite() -> None:
    """Else the record could not be read again."""
    for value in (float("inf"), float("nan")):
        with pytest.raises(UserError, match=r"method\.mu_u = (inf|nan): expected a"):
            build_method("my.py:mine", {"mu_u": value})
    Path("wild.py").write_text(FILE.replace("mu_u", "wild"))
    with pytest.raises(UserError, match=r"method\.wild = inf: expected a finite number"):
        build_method("wild.py:mine", {"wild": float("inf")})


def test_the_file_is_run_once() -> None:
    for _ in range(3):
        assert isinstance(build_method("my.py:mine", {"tau": 0.3}), FixMatch)
    assert Path("runs.txt").read_text() == "once "


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my.py", "names no function of the file; write my.py:FUNCTION"),
        ("my.py:yours", "there is no function 'yours' in my.py"),
        ("my.py:text", "there is no function 'text' in my.py"),
        ("my.py:Mine", "'Mine' is a class; give the function that builds it, my.py:FUNCTION"),
        ("my.py:number", "is 'int', expected a fssl.methods.Method"),
        ("my.py:mine+sagee", "plug-in 'sagee' is unknown; did you mean 'sage'?"),
        ("my.py:needs", "cannot be built: TypeError: needs() missing 1 required positional argument"),
        ("my.py+sage", "names no function of the file; write my.py:FUNCTION"),
        ("broken.py:mine", "broken.py cannot be loaded: SyntaxError"),
        ("script.py:mine", "script.py cannot be loaded: SystemExit: 3"),
        ("exits.py:mine", "method 'exits.py:mine' cannot be built: SystemExit: 4"),
        ("absent.py:mine", "there is no file"),
    ],
)
def test_what_does_not_fit_is_one_line(name: str, message: str, fssl: Fssl) -> None:
    Path("broken.py").write_text("def mine(:")
    Path("script.py").write_text("raise SystemExit(3)")
    Path("exits.py").write_text("def mine():\n    raise SystemExit(4)")
    code, _, said = fssl("run", "smoke", "--set", f"method.name={name}", "--out", "run")
    assert (code, said.count("\n"), message in said) == (2, 1, True), said
    assert not Path("run").exists()


def test_a_site_runs_its_own_file_and_only_as_allowed(tmp_path: Path) -> None:
    """By name, from its own folder, with the run's checksum; whatever the server says, nothing else is run."""
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
    from fssl.engines.flower.client_app import OwnSite, at_site

    site = OwnSite(0, 2, tmp_path / "site", None)
    (site.folder / "own").mkdir(parents=True)
    settings, own = site.folder / "site.toml", site.folder / "own/my.py"
    good = source_digest(FILE, "mine")

    def asked(name: str = "/far/away/my.py:mine", digest: str | None = good) -> str:
        return at_site(Config(method=MethodChoice(name, digest=digest)), site).method.name

    def refused(message: str, **facts: Any) -> None:
        with pytest.raises(RunError, match=message):
            asked(**facts)

    settings.write_text("")
    own.write_text(FILE)
    refused("my.py:mine: the operator of this site has not allowed it")
    settings.write_text('own = "my.py:mine"')  # a text is no list, whose parts could be names
    refused("has not allowed it")
    settings.write_text('own = ["my.py:mine"]')
    assert asked() == f"{own}:mine"
    assert asked("/far/away/my.py:mine+sage") == f"{own}:mine+sage"
    refused("has not allowed it", name="my.py:needs")
    refused("has not allowed it", name="your.py:mine")
    refused("differs from the run's file", digest=None)
    refused("differs from the run's file", digest="0" * 16)
    own.write_text(CHANGED)
    refused("differs from the run's file")
    own.unlink()
    Path("my.py").write_text(FILE)
    refused("this site has no file own/my.py", name="my.py:mine")  # in the working folder there is one
    assert not Path("runs.txt").exists()
    assert at_site(Config(), site).method.name == "sage"


def test_an_order_names_the_file_for_a_process_in_another_folder(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
    from fssl.deploy.orders import check, for_sites, needed_at_sites

    init(tmp_path / "home", 2)
    tables = for_sites({"method": {"name": "my.py:mine+sage"}, "partition": {"kind": "iid"}}, 2)
    run = check(server_part(tmp_path / "home"), tables, tmp_path / "out", False)
    assert run.method.name == f"{tmp_path.resolve()}/my.py:mine+sage"
    assert needed_at_sites(run) == [
        "my.py:mine: only sites with the same file in own/ that allow it in site.toml take part"
    ]


def test_settings_mean_what_their_file_declares() -> None:
    """Not what one of fssl's methods declares under the same name."""
    Path("free.py").write_text(
        "from fssl.methods.fixmatch import FixMatch\n\n"
        "def mine(beta: float = -0.5, ramp_rounds: float = 3.0) -> FixMatch:\n"
        "    return FixMatch(mu_u=beta + ramp_rounds)\n"
    )
    choice = MethodChoice("free.py:mine", (("beta", -2.0),))
    assert full_settings(choice, CARDS["cifar10"]) == {"beta": -2.0, "ramp_rounds": 3.0}
    assert full_settings(MethodChoice("fedloke"), CARDS["cifar10"])["ramp_rounds"] == 120
    method = build_method("free.py:mine", {"beta": -2.0, "ramp_rounds": 3.0})
    assert isinstance(method, FixMatch)
    assert method.mu_u == 1
    with pytest.raises(UserError, match=r"method.kappa = -1.0: expected a number from 0"):
        build_method("free.py:mine+sage", {"kappa": -1.0})  # the plug-in is fssl's


@pytest.mark.parametrize("key", METHOD_KEYS)
def test_a_setting_may_not_be_called_like_a_key_of_every_method(
    fssl: Fssl, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """The builder would never hear of it, or the record of the run could not be read."""
    Path(f"{key}.py").write_text(
        "from fssl.methods.fixmatch import FixMatch\n\n"
        f"def mine({key}: float = 1.0) -> FixMatch:\n    return FixMatch(mu_u={key})\n"
    )
    monkeypatch.setattr("fssl.runner.planned.run_experiment", None)  # so that nothing can be computed
    expected = (
        f"fssl: mine: its setting '{key}' needs another name; [method] keeps name, digest, label, color for itself\n"
    )
    for name in (f"{key}.py:mine", f"{key}.py:mine+sage"):
        assert fssl("run", "smoke", "--set", f"method.name={name}", "--out", "run")[::2] == (2, expected)
        assert fssl("methods", name)[::2] == (2, expected)
    assert not Path("run").exists()


def test_the_keys_of_every_method_are_those_that_are_checked_and_written_down() -> None:
    assert {*METHOD_KEYS} == {*SCHEMAS["method"]}
    choice = MethodChoice("my.py:mine", (("tau", 0.5),), digest="d", label="Ours", color="#D55E00")
    written = {"name": "my.py:mine", "tau": 0.5, "digest": "d", "label": "Ours", "color": "#D55E00"}
    assert [*as_tables(Config(method=choice))["method"].items()] == [*written.items()]


DECLARED = """
from typing import Annotated
from fssl.config import ByDataset, Range
from fssl.methods.fixmatch import FixMatch

def mine(
    floor: Annotated[float, Range(0, 1), "least confidence"] = 0.5,
    warmup: Annotated[float, ByDataset(lambda card: card.rounds / 10)] = 5.0,
    classes: Annotated[int, ByDataset(lambda card: card.num_classes or None)] = 3,
) -> FixMatch:
    return FixMatch(mu_u=floor)
"""


@pytest.mark.parametrize("late", ["", "from __future__ import annotations\n"])
def test_a_range_in_a_signature_is_checked_and_printed(fssl: Fssl, monkeypatch: pytest.MonkeyPatch, late: str) -> None:
    Path("declared.py").write_text(late + DECLARED)
    loaded.cache_clear()
    monkeypatch.setattr("fssl.runner.planned.run_experiment", None)  # so that nothing can be computed
    for name in ("declared.py:mine", "declared.py:mine+sage"):
        code, _, said = fssl(
            "run", "smoke", "--set", f"method.name={name}", "--set", "method.floor=1.5", "--out", "run"
        )
        assert (code, said) == (2, "fssl: method.floor = 1.5: expected a number from 0 to 1\n")
        assert not Path("run").exists()
        code, said, _ = fssl("methods", name)
        lines = [line.split() for line in said.splitlines() if "method." in line]
        assert lines[:2] == [
            ["method.floor", "0.5", "0", "to", "1", "least", "confidence"],
            ["method.warmup", "by", "dataset"],
        ]


def test_a_default_may_be_the_dataset_s() -> None:
    """Unknown as long as the dataset does not say."""
    Path("declared.py").write_text(DECLARED)
    choice = MethodChoice("declared.py:mine")
    assert full_settings(choice, CARDS["cifar100"]) == {"floor": 0.5, "warmup": 50.0, "classes": 100}
    assert full_settings(choice, CARDS["folder"]) == {"floor": 0.5, "warmup": 10.0}
    given = MethodChoice("declared.py:mine", (("warmup", 2),))
    assert full_settings(given, CARDS["cifar100"])["warmup"] == 2.0


CHOOSES = """
from dataclasses import dataclass, replace
import torch
from fssl.label.losses import cross_entropies, masked_mean
from fssl.methods.base import Method, Needs, descend
from fssl.types import Trace

TABLE = "mine.table"

@dataclass(frozen=True)
class Chooses(Method):
    kind: str = ""

    @property
    def needs(self):
        if self.kind == "of before":
            return Needs(chooses=True)
        return Needs(groups=2 if self.kind == "groups" else 1)

    def recipe(self, usual):
        if self.kind == "nothing":
            return None
        odd = {"alone": {"sweep": False}, "epoch": {"epoch": "labeled"}, "misspelt": {"choose": 1}}.get(self.kind, {})
        numbers = (lambda rng, steps: rng.random(steps + 1)) if self.kind == "numbers" else None
        return replace(usual, views=("u_strong",), chooses=True, numbers=numbers, **{"sweep": True, **odd})

    def client_state(self, payload, task, counts):
        return {TABLE: torch.zeros(task.max_slots, task.num_classes)}

    def keep(self, local):
        return {"other": local.state[TABLE]} if self.kind == "keep" else {}

    def visit(self, net, payload, local, u_weak, sweep):
        if self.kind == "unseen":
            return super().visit(net, payload, local, u_weak, sweep)
        q = net.infer(payload.weights, u_weak).logits.softmax(-1)
        if self.kind == "forgets":
            return local._replace(state={})
        return local._replace(state={TABLE: local.state[TABLE].index_add(0, sweep.u_slot, sweep.real[:, None] * q)})

    def chosen(self, local):
        if self.kind == "unchosen":
            return super().chosen(local)
        table = local.state[TABLE]
        odd = {"floats": table[:, 0], "square": table > 0.5, "list": [True], "few": table[:3, 0] > 0.5}
        if self.kind == "random":
            return torch.rand(len(table)) > 0.5
        return odd.get(self.kind, table.amax(-1) > 0.1)

    def votes(self, local):
        table = local.state[TABLE]
        odd = {"silent": {}, "half": {"p_l": table}, "short": {"p_l": table[:3], "target": table[:3]}}
        return odd.get(self.kind, {"p_l": table, "target": table})

    def step(self, net, payload, local, batch):
        def loss(weights, state):
            buffers, (u,) = net.fit(weights, batch.u_strong)
            y = state[TABLE][batch.u_slot].argmax(-1)
            l_u = masked_mean(cross_entropies(u.logits, y), batch.extras["real"])
            return l_u, (buffers, state, Trace({"l_u": l_u.detach()}, {}))
        return descend(loss, self.optimizer.at(batch.clock), local)

def mine(): return Chooses()
"""
REFUSED = {
    "of before": r"its `needs` fails: TypeError: .*unexpected keyword argument 'chooses' \(own\.py, line 17\)",
    "misspelt": r"its `recipe` fails: TypeError: .*unexpected keyword argument 'choose' \(own\.py, line 25\)",
    "nothing": "its `recipe` returns NoneType; expected the default one, changed with `replace`",
    "alone": "its `recipe` sets chooses=True, which needs sweep=True, epoch='pool' and one group of clients",
    "groups": "its `recipe` sets chooses=True, which needs sweep=True",
    "epoch": "its `recipe` sets chooses=True, which needs sweep=True",
    "numbers": r"the `numbers` of its recipe have \d+ rows; expected one for each of \d+ steps",
    "unseen": "its step fails: NotImplementedError: a method whose recipe has sweep=True must define `visit`",
    "forgets": r"its visit returns the client's state without 'mine\.table'",
    "unchosen": "its step fails: NotImplementedError: a method whose recipe has chooses=True must define `chosen`",
    "floats": r"its `chosen` returns float32 \[\d+\]; expected a boolean for each slot of the pool",
    "square": r"its `chosen` returns bool \[\d+, 10\]; expected",
    "few": r"its `chosen` returns bool \[3\]; expected",
    "list": "its `chosen` returns list; expected",
    "random": r"a step draws random numbers \(rand\)",
    "half": r"its `votes` returns \{'p_l': float32 \[\d+, 10\]\}; expected 'p_l' and 'target' \[slots, classes\]",
    "short": r"its `votes` returns \{'p_l': float32 \[3, 10\], 'target': float32 \[3, 10\]\}; expected",
    "keep": r"its `keep` returns \['other'\]; expected all of \['mine\.table'\], or an empty dict",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_choice_that_a_round_cannot_use_is_rejected_before_any_compute(fssl: Fssl, kind: str) -> None:
    Path("own.py").write_text(CHOOSES.replace("return Chooses()", f"return Chooses(kind={kind!r})"))
    code, _, said = fssl("run", "smoke", *SMALL, "--set", "method.name=own.py:mine", "--out", "out")
    assert (code, said.count("\n")) == (2, 1), said
    assert re.search(rf"method 'own\.py:mine': {REFUSED[kind]}", said), said
    assert not Path("out").exists()


@pytest.mark.slow
def test_records_of_a_choice_count_each_image_of_the_pool(fssl: Fssl) -> None:
    """Everything is chosen here; a method without votes says nothing of labels."""
    for kind in ("", "silent"):
        Path("own.py").write_text(CHOOSES.replace("return Chooses()", f"return Chooses(kind={kind!r})"))
        loaded.cache_clear()
        own = ("--set", "method.name=own.py:mine", "--set", "partition.labels=server")
        assert fssl("run", "smoke", *SMALL, *own, "--out", f"out{kind}").code == 0
    said, silent = records("out")[-1], records("outsilent")[-1]
    assert said["utilization"] == 1
    assert said["sums"]["n"] == said["sums"]["n_valid"] > 0
    assert "utilization" not in silent
    assert silent["loss_u"] == said["loss_u"]


NO_NUMBER = """
from dataclasses import dataclass
from typing import ClassVar

from fssl.methods.fixmatch import FixMatch

@dataclass(frozen=True)
class Mine(FixMatch):
    extra_loss: ClassVar[str] = "l_mine"

    def extra(self, net, payload, local, batch, seen):
        return (seen.weak.logits.mean() - 1e9).log(), local.state

def mine():
    return Mine()
"""


def test_debug_names_the_term_that_is_no_number(fssl: Fssl) -> None:
    """The logarithm of a negative number, in a method's own term; its file has no other fault."""
    Path("own.py").write_text(NO_NUMBER)
    code, _, said = fssl("run", "smoke", *SMALL, "--set", "method.name=own.py:mine", "--debug", "--out", "out")
    assert (code, said.count("\n")) == (1, 1), said
    assert re.search(r"round 1, client \d+, step 1: l_mine is not finite; `fssl replay out/failed-step", said), said
    code, out, said = fssl("replay", "out/failed-step.safetensors")
    assert (code, out.splitlines()[1]) == (1, "in this step, batch.clock.step is 0: it counts from 0")
    assert "l_mine is not finite; it begins in aten.log" in said.splitlines()[-1]
    line = NO_NUMBER.splitlines().index(next(text for text in NO_NUMBER.splitlines() if ".log()" in text)) + 1
    assert f'own.py", line {line}, in extra' in said


@pytest.mark.parametrize("method", ["semifl", "flfl"])
def test_a_failed_step_on_chosen_images_can_be_taken_again(fssl: Fssl, method: str) -> None:
    words = ("--set", f"method.name={method}", "--set", "method.tau=1e-9", "--set", "train.lr=1e12", "--debug")
    code, _, said = fssl("run", "smoke", *SMALL, *words, "--out", "out")
    assert (code, "is not finite; `fssl replay out/failed-step.safetensors`" in said) == (1, True), said
    code, out, said = fssl("replay", "out/failed-step.safetensors")
    assert (code, f"of {method}\n" in out, "is not finite" in said) == (1, True, True), said
    said = fssl("replay", "nowhere.safetensors").err
    assert said.startswith("fssl: there is no file 'nowhere.safetensors'; a run writes failed-step.safetensors")


BY_LABELS = """
from fssl.methods.base import mean_weights
from fssl.methods.fixmatch import FixMatch
from fssl.types import Server

class ByLabels(FixMatch):
    def num_samples(self, counts):
        return counts.labeled

    def aggregate(self, net, server, uploads, rng):
        return Server(mean_weights(uploads), {})

def mine() -> FixMatch:
    return ByLabels()
"""


def test_a_mean_over_no_clients_is_named(fssl: Fssl) -> None:
    """No client has labels, so no upload counts, and the mean is empty."""
    Path("own.py").write_text(BY_LABELS)
    words = ("--set", "method.name=own.py:mine", "--set", "partition.labels=server")
    code, _, said = fssl("run", "smoke", *SMALL, *words, "--out", "out")
    assert (code, said.count("\n")) == (1, 1), said
    assert "round 1: the method's `aggregate` returns a model without " in said
