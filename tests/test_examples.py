"""The examples: short, explained by a sentence, and every command in them does what it says."""

import ast
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from fssl.methods import build_method
from fssl.models import build_net
from fssl.system.user_code import loaded
from fssl.types import Task, Upload, Weights
from helpers.command import SMALL, Fssl, records

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))


def opening(file: Path) -> str:
    return ast.get_docstring(ast.parse(file.read_text())) or ""


def commands_in(name: str) -> list[list[str]]:
    """The second paragraph of the docstring: a command on each line, in words."""
    return [shlex.split(line) for line in opening(FOLDER / name).split("\n\n")[1].splitlines()]


@pytest.fixture(autouse=True)
def _desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "cache"))
    shutil.copytree(FOLDER, "examples")


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[list[str]], str]:
    """A `python` command in this process; returns what it printed."""

    def run(words: list[str]) -> str:
        monkeypatch.setattr(sys, "argv", words[1:])
        runpy.run_path(words[1], run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_an_example_is_short_and_begins_with_a_sentence_and_its_commands(file: Path) -> None:
    assert re.fullmatch(r"[A-Z][^\n]*\.", opening(file).split("\n\n")[0])
    commands = commands_in(file.name)
    assert {words[0] for words in commands} <= {"fssl", "python", "pip", "curl"}
    assert any(f"examples/{file.name}" in word for words in commands for word in words)
    assert len(file.read_text().splitlines()) <= 60


def test_there_is_an_example_of_each_kind() -> None:
    names = ["onnx_file", "own_images", "own_network", "own_rule", "own_server", "serve"]
    assert [file.stem for file in EXAMPLES] == names


def test_the_rule_is_compared_with_sage(fssl: Fssl) -> None:
    run, compare = commands_in("own_rule.py")
    assert fssl(*run[1:], *SMALL).code == 0
    said = fssl(*compare[1:])
    assert (said.code, said.err) == (0, "")
    assert {*re.findall(r"^ (sage|own_rule.py:agree) +7 ", said.out, re.MULTILINE)} == {"sage", "own_rule.py:agree"}


def test_the_rule_weighs_an_image_by_the_mean_of_two_votes_for_one_class() -> None:
    """A vote each, no class in common, and a mean below the floor."""
    rule = build_method("examples/own_rule.py:agree", {"floor": 0.75}).assign  # type: ignore[attr-defined]
    p_l = torch.tensor([[0.5, 0.25, 0.25], [0.75, 0.25, 0.0], [0.5, 0.5, 0.0]])
    p_g = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.875, 0.125, 0.0]])
    labels = rule(p_l, p_g, None, None)
    assert labels.mask.tolist() == [0.75, 0.0, 0.0]
    assert labels.target[0].tolist() == [1.0, 0.0, 0.0]


def test_the_server_learns_the_shares_of_classes() -> None:
    """Two uploads of which one counts: the model is that one's, the shares are the mean of both."""
    method = build_method("examples/own_server.py:shares", {})
    first = method.init(build_net("resnet8", 1, 2, 1, seed=7), Weights({"w": torch.zeros(1)}, {}), Task(2, 4))
    assert first.extras["shares.mean"].tolist() == [0.5, 0.5]
    uploads = [
        Upload(0, Weights({"w": torch.ones(1)}, {}), 3, {"shares.mean": torch.tensor([1.0, 0.0])}),
        Upload(1, Weights({"w": torch.full((1,), 5.0)}, {}), 0, {"shares.mean": torch.tensor([0.5, 0.5])}),
    ]
    after = method.aggregate(None, first, uploads, None)  # type: ignore[arg-type]
    assert (after.weights.params["w"].item(), after.extras["shares.mean"].tolist()) == (1.0, [0.75, 0.25])


def test_the_server_keeps_its_model_in_a_round_without_labels_at_clients(fssl: Fssl) -> None:
    (run, show) = commands_in("own_server.py")
    assert fssl(*run[1:], *SMALL, "--set", "partition.labels=server", "--set", "server.epochs=0").code == 0
    first, second = (line["accuracy"] for line in records("runs/shares"))
    assert first == second
    assert fssl(*show[1:]).code == 0


def test_the_network_trains_and_predicts(fssl: Fssl) -> None:
    run, predict = commands_in("own_network.py")
    assert fssl(*run[1:], *SMALL).code == 0
    last = records("runs/wide")[-1]["accuracy"]
    said = fssl(*predict[1:])
    assert (said.code, f"{last:.2f} %" in said.out) == (0, True)


def test_the_deep_network_has_as_many_parameters_as_the_one_of_the_package() -> None:
    """Whose width counts in quarters: 4 is the network as published."""
    named = {"examples/own_network.py:wrn28": 2, "wrn-28-2": 4}
    nets = [build_net(name, 3, 10, width, seed=7).first.params for name, width in named.items()]
    assert [sum(map(torch.numel, params.values())) for params in nets] == [1_467_610] * 2


@pytest.mark.slow
def test_arrays_become_a_model_and_predictions(python: Callable[[list[str]], str]) -> None:
    said = python(commands_in("own_images.py")[0])
    assert float(re.findall(r"^test accuracy ([\d.]+) %", said)[0]) > 90
    _, truth = loaded(FOLDER / "own_images.py").stripes(5, seed=2)
    answers = re.findall(r"^\d: (\w+) \((?:0\.[5-9]\d|1\.00)\)$", said, re.MULTILINE)
    assert answers == [("flat", "upright")[k] for k in truth]


@pytest.mark.slow
def test_folders_become_a_model_and_predictions(python: Callable[[list[str]], str]) -> None:
    """The same stripes as files."""
    for split, number in (("train", 60), ("test", 10)):
        for i, (image, k) in enumerate(zip(*loaded(FOLDER / "own_images.py").stripes(number, seed=3), strict=True)):
            file = Path("photos", split, ("flat", "upright")[k], f"{i:02}.png")
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(file)
    said = python(commands_in("own_images.py")[1])
    answers = re.findall(r"^(\w+)/\d\d\.png: (\w+) ", said, re.MULTILINE)
    assert len(answers) == 10
    accuracy = 10 * sum(truth == label for truth, label in answers)
    assert said.startswith(f"test accuracy {accuracy}.0 %")


def test_the_server_starts_with_the_model_of_the_run(
    fssl: Fssl, python: Callable[[list[str]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it answers: tests/inference/test_export.py."""
    uvicorn = pytest.importorskip("uvicorn")
    pytest.importorskip("fastapi")
    _, run, serve, post = commands_in("serve.py")
    assert fssl(*run[1:], *SMALL).code == 0
    served = []
    monkeypatch.setattr(uvicorn, "run", served.append)
    python(serve)
    (app,) = served
    assert app.url_path_for("predict") in post[-1]
    assert [route.name for route in app.routes if "POST" in getattr(route, "methods", ())] == ["predict"]
