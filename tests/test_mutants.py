"""The tool that asks whether tests notice: which mutants it makes, and what it says of a project of two functions."""

import subprocess
from pathlib import Path

import pytest

from helpers.mutants import main
from helpers.mutants_points import mutants

LIMIT = "LIMIT = 1.5\n"
TOY = f"""{LIMIT}

def is_few(n: int) -> bool:
    # below the limit
    return n < LIMIT


def doubled(n: int) -> int:
    return n + n


def unused(n: int) -> int:
    return -n
"""
TESTS = """from toy import doubled, is_few


def test_few():
    assert is_few(1)
    assert not is_few(1.5)


def test_doubled():
    assert doubled(0) == 0
"""


def changes(source: str, *lines: int) -> list[tuple[str, str]]:
    """What is replaced by what in some lines, or in all."""
    return [(m.old, m.new) for m in mutants(source.encode(), lines or range(99))]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a <= b", [("<=", "<"), ("<=", ">")]),
        ("x = (a)is  not(b)", [("is  not", "is")]),
        ("x = (a  # or < b\n  not in b)", [("not in", "in")]),
        ("x = a and b", [("a and b", "(a)"), ("a and b", "(b)"), ("and", "or")]),
        ("x = not a", [("not a", "(a)")]),
        ("x = v[:-1]", [("-1", ""), ("1", "0"), ("1", "2")]),
        ("x = True, 0.5, 'or'", [("True", "False"), ("0.5", "1.0")]),
        ("x = r.argmin() + max(a)", [("argmin", "argmax"), ("+", "-"), ("max", "min")]),
        ("x -= ä - b", [("-", "+"), ("-", "+")]),
        ("if a:\n    f(\n        b)", [("a", "(not a)"), ("f(\n        b)", "pass\n")]),
        ("x = [a for a in b if f(a)]", [("f(a)", "True")]),
        ("def f(n: int | None, p: Annotated[int, Range(0, x)]) -> A | B: ...", [("0", "-1"), ("0", "1")]),
        ("assert a < b\nx = f'{a < b}'\n'a < b'", []),
    ],
)
def test_every_mutant_of_a_line(source: str, expected: list[tuple[str, str]]) -> None:
    assert changes(source) == expected


def test_only_the_given_lines_are_changed() -> None:
    assert changes(TOY, 1) == [("1.5", "3.0")]
    assert changes(TOY, 10, 14) == [("+", "-"), ("-n", "(n)")]


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose only commit has the constant and the tests."""
    project = tmp_path / "a toy"
    for name, text in {"src/toy.py": LIMIT, "tests/test_toy.py": TESTS}.items():
        (project / name).parent.mkdir(parents=True)
        (project / name).write_text(text)
    monkeypatch.chdir(project)
    for words in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "-m", "toy: begin")):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)
    return project


@pytest.mark.slow
def test_a_mutant_is_killed_survives_or_is_uncovered(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of the lines that changed, and of one that did not and runs when the module is imported."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # a second less for each mutant
    (toy / "src/toy.py").write_text(TOY)
    assert main(["src/toy.py", "src/toy.py:1", "--jobs", "1"]) == 1
    *lines, summary = capfd.readouterr().out.splitlines()
    assert lines == [
        "5 mutants of 14 lines in 1 file",
        "all tests once without a mutant, to see which lines each of them runs:",
        "[1/5] killed    src/toy.py:1: 1.5 -> 3.0  (tests/test_toy.py::test_few)",
        "[2/5] killed    src/toy.py:6: < -> <=  (tests/test_toy.py::test_few)",
        "[3/5] killed    src/toy.py:6: < -> >=  (tests/test_toy.py::test_few)",
        "[4/5] survived  src/toy.py:10: + -> -  (1 test)",
        "[5/5] uncovered src/toy.py:14: -n -> (n)  (no test runs it)",
    ]
    assert summary.startswith("3 killed, 1 survived, 1 uncovered, 0 timed out; ")
    assert (toy / "src/toy.py").read_text() == TOY


def test_wrong_input_is_explained_in_a_line(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {
        (): "nothing changed in src since",
        ("src/toy.py",): "nothing changed in src/toy.py since",
        ("src/no.py:3",): "src/no.py: no such file",
        ("tests/test_toy.py",): "tests/test_toy.py: expected a Python file in src",
        ("--base", "yesterday"): "--base yesterday: no such commit",
    }
    for words, complaint in wrong.items():
        assert main(words) == 2
        said, error = capsys.readouterr()
        assert (said, error.count("\n")) == ("", 1)
        assert error.startswith(f"mutants: {complaint}")
    monkeypatch.chdir(tmp_path)
    assert main([]) == 2
    assert "not a git repository" in capsys.readouterr().err
