"""A run that trains a part of its network, from the command to files: checkpoints are small, models are ordinary."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import fssl
from fssl.config import load_toml, parse
from fssl.console import Quiet
from fssl.core.experiment import prepare
from fssl.models import build_net
from fssl.records.tensors import sealed
from fssl.reports.groups import repetitions
from fssl.reports.runs import find_runs
from fssl.runner.conduct import run_experiment
from helpers.command import SMALL, Fssl
from helpers.small import StopAfter, tiny_config

pytestmark = pytest.mark.slow
ADAPTERS = (
    "method.name=sage",
    "model.name=resnet8",
    "model.trainable=adapters",
    "train.steps_per_round=3",
    "train.optimizer=adamw",
    "train.lr=0.01",
)


@pytest.fixture
def body(tmp_path: Path) -> Path:
    first = build_net("resnet8", 3, 10, 1, seed=99).first
    place = tmp_path / "body.safetensors"
    place.write_bytes(sealed({**first.params, **first.buffers}, {}))
    return place


def plain_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.partition(".")[2]: t for name, t in tensors.items()}


def trained(out: Path, *settings: str) -> Path:
    run_experiment(prepare(tiny_config(*ADAPTERS, *settings)), out, Quiet())
    return out


def test_a_model_file_is_of_an_ordinary_network(body: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", f"model.start={body}", "records.keep_best=true", "data.validation=0.3")
    first = load_file(body)
    for file in ("model.safetensors", "model-best.safetensors"):
        found = plain_names(load_file(run / file))
        moved = {name for name, t in found.items() if not torch.equal(t, first[name])}
        assert found.keys() == first.keys()
        assert moved == {f"layer{i}.shortcut.0.weight" for i in (2, 3)} | {"head.linear.weight", "head.linear.bias"}
    stored = {name.rpartition(".params.")[2] for name in load_file(next(run.glob("checkpoint/round-*.safetensors")))}
    assert not stored & (first.keys() - {"head.linear.weight", "head.linear.bias"})


def test_an_interrupted_run_has_the_model_and_resumes_with_the_same_bits(body: Path, tmp_path: Path) -> None:
    start, out = f"model.start={body}", tmp_path / "cut"
    straight = trained(tmp_path / "straight", start)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(prepare(tiny_config(*ADAPTERS, start)), out, StopAfter(1))
    one_round = trained(tmp_path / "one", start, "train.rounds=1")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    of_cut, of_one = (fssl.load(run).predict(pixels).probabilities for run in (out, one_round))
    np.testing.assert_array_equal(of_cut, of_one)
    run_experiment(prepare(parse(load_toml(out / "config.toml", "cut"))), out, Quiet(), resume=True)
    assert (out / "model.safetensors").read_bytes()[-1000:] == (straight / "model.safetensors").read_bytes()[-1000:]
    a, b = (load_file(run / "model.safetensors") for run in (out, straight))
    assert all(torch.equal(t, b[name]) for name, t in a.items())


def test_a_resumed_run_needs_the_file_of_what_does_not_train(fssl: Fssl, body: Path) -> None:
    words = [word for setting in (*ADAPTERS[1:3], f"model.start={body}") for word in ("--set", setting)]
    first = build_net("resnet8", 1, 10, 1, seed=99).first
    body.write_bytes(sealed({**first.params, **first.buffers}, {}))
    assert fssl("run", "smoke", *SMALL, *words, "--set", "train.rounds=1", "--out", "run").code == 0
    shutil.copy(body, "kept")
    body.unlink()
    code, _, said = fssl("run", "run", "--resume", "--set", "train.rounds=2", "--out", "run")
    assert (code, "no such run folder or file" in said) == (2, True)
    shutil.copy("kept", body)
    assert fssl("run", "run", "--resume", "--set", "train.rounds=2", "--out", "run").code == 0


def test_export_and_evaluate_see_an_ordinary_network(fssl: Fssl) -> None:
    words = ("--set", "model.name=resnet8", "--set", "model.trainable=adapters")
    code, said, _ = fssl("run", "smoke", *SMALL, *words, "--out", "run")
    assert code == 0
    assert "clients train and send 1,226 parameters; the network has" in said
    assert "a client receives 4.9 kB and sends 4.9 kB per round" in said
    (session,) = json.loads(Path("run/env.json").read_text())["sessions"]
    assert session["traffic"] == {"down": 4 * 1226, "up": 4 * 1226}
    for kind in ("safetensors", "pt2"):
        assert fssl("export", "run", "--to", kind, "--out", f"model.{kind}").code == 0
    exported = load_file("model.safetensors")
    assert exported.keys() == plain_names(load_file("run/model.safetensors")).keys()
    net = build_net("resnet8", 1, 10, 1)
    assert exported.keys() == {*net.first.params, *net.first.buffers}
    assert load_toml(Path("run/config.toml"), "run")["model"]["frozen_digest"] != ""


def test_runs_of_two_seeds_are_repetitions(fssl: Fssl) -> None:
    words = ("--set", "model.trainable=head", "--set", "train.rounds=1", "--set", "grid.seed=[7, 8]")
    assert fssl("run", "smoke", *SMALL, *words, "--out", "runs").code == 0
    (group,) = repetitions(find_runs([Path("runs")]).runs).values()
    digests = {run.config.model.frozen_digest for run in group}
    assert len(group) == len(digests) == 2
    assert fssl("run", str(group[0].path), "--set", "seed=9", "--out", "again").code == 0
    assert load_toml(Path("again/config.toml"), "run")["model"]["frozen_digest"] not in digests
