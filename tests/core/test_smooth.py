"""The smoothed model: by hand, in the record, in files, and after a resume."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fssl.config import Config, override, parse, read_toml
from fssl.console import Quiet
from fssl.core.experiment import prepare
from fssl.core.server_optimizer import smooth
from fssl.data.sources import Dataset
from fssl.errors import UserError
from fssl.inference.trained import load_trained
from fssl.runner.conduct import run_experiment
from fssl.types import Weights
from helpers.command import Fssl, outcome, records
from helpers.small import StopAfter, tiny_config

SMALL = ("train.rounds=3", "train.steps_per_round=2", "train.batch=4", "compute.device=cpu")


def config(*settings: str) -> Config:
    return parse(override(read_toml("smoke"), [*SMALL, *settings]))


def run(out: Path, *settings: str, resume: bool = False) -> Path:
    run_experiment(prepare(config(*settings)), out, Quiet(), resume=resume)
    return out


def test_the_smoothed_model_by_hand() -> None:
    """Models 1, 2, 4 at decay 0.5: 1; (2 + 0.5) / 1.5; (4 + 1 + 0.25) / 1.75. What was before does not count."""
    e, found = Weights({"w": torch.tensor(99.0)}, {"m": torch.tensor(-99.0)}), []
    for round, w in enumerate((1.0, 2.0, 4.0), 1):
        e = smooth(e, Weights({"w": torch.tensor(w)}, {"m": torch.tensor(-w)}), 0.5, round)
        found.append((e.params["w"].item(), e.buffers["m"].item()))
    assert found == [(pytest.approx(x), pytest.approx(-x)) for x in (1.0, 2.5 / 1.5, 5.25 / 1.75)]


def test_no_decay_is_the_plain_model(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", "server.ema=0")
    for line in records(folder):
        assert (line["ema_accuracy"], line["ema_test"]) == (line["accuracy"], line["test"])
    plain, smoothed = (load_file(folder / name) for name in ("model.safetensors", "model-ema.safetensors"))
    assert all(torch.equal(plain[name], smoothed[name]) for name in plain | smoothed)


def test_it_changes_only_what_is_reported(tmp_path: Path) -> None:
    plain, both = run(tmp_path / "plain"), run(tmp_path / "both", "server.ema=0.9")
    lines = [{k: v for k, v in line.items() if not k.startswith("ema_")} for line in records(both)]
    assert lines == records(plain)
    assert not list(plain.glob("model-*"))
    models = [load_file(folder / "model.safetensors") for folder in (plain, both)]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0] | models[1])


def test_record_summary_and_files_have_both(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", "server.ema=0.9")
    summary, lines = json.loads((folder / "summary.json").read_text()), records(folder)
    assert summary["ema_result"] == pytest.approx(sum(line["ema_accuracy"] for line in lines) / 3)
    assert summary["ema"]["train_norm"]["last"] == lines[-1]["ema_test"]["train_norm"]["accuracy"]
    assert summary["result"] == pytest.approx(sum(line["accuracy"] for line in lines) / 3)
    plain, smoothed = (load_file(folder / name) for name in ("model.safetensors", "model-ema.safetensors"))
    assert plain.keys() == smoothed.keys()
    assert any(not torch.equal(plain[name], smoothed[name]) for name in plain)


@pytest.mark.slow
def test_the_half_to_choose_by_sees_both(tmp_path: Path) -> None:
    """So that the choice between them needs no reported image."""
    lines = records(run(tmp_path / "same", "server.ema=0", "data.test=final"))
    assert all(line["ema_validation"] == line["validation"] for line in lines)
    folder = run(tmp_path / "run", "server.ema=0.9", "data.test=final")
    last = records(folder)[-1]
    models = json.loads((folder / "measures.json").read_text())["models"]
    for key, name in {"validation": "plain", "ema_validation": "ema"}.items():
        assert last[key]["loss"] == pytest.approx(models[name]["validation"]["loss"])
    assert last["ema_validation"]["loss"] != last["validation"]["loss"]
    assert not any("ema_validation" in line for line in records(run(tmp_path / "all", "server.ema=0.9")))


def test_a_setting_chooses_the_model_that_is_used(tmp_path: Path) -> None:
    """Also afterwards: a finished run that is resumed writes its models anew, and trains nothing."""
    folder = run(tmp_path / "run", "server.ema=0.9")
    plain, smoothed = (load_file(folder / name) for name in ("model.safetensors", "model-ema.safetensors"))
    before = records(folder)
    run(folder, "server.ema=0.9", "server.ship=ema", resume=True)
    assert records(folder) == before
    used = load_trained(folder).weights.params
    assert all(torch.equal(t, smoothed[f"params.{name}"]) for name, t in used.items())
    other = load_file(folder / "model-plain.safetensors")
    assert all(torch.equal(t, plain[name]) for name, t in other.items())
    kept = load_file(folder / "model-ema.safetensors")
    assert all(torch.equal(t, smoothed[name]) for name, t in kept.items())


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file of a run, and when it was written."""
    return {f.name: (f.read_bytes(), f.stat().st_mtime_ns) for f in folder.rglob("*") if f.is_file()}


def test_a_finished_run_ships_its_other_model_by_a_command(fssl: Fssl) -> None:
    """There and back, with the same bytes and nothing trained; without a change no file is touched."""
    words = ["run", "smoke", *(f"--set={each}" for each in SMALL), "--set", "server.ema=0.9", "--out", "run"]
    assert fssl(*words).code == 0
    folder, before = Path("run"), contents(Path("run"))
    assert fssl(*words, "--resume") == (0, "run: finished already\n", "")
    assert contents(folder) == before
    to_ema = [*words, "--set", "server.ship=ema"]
    assert fssl(*to_ema, "--resume") == (0, "run: finished already; now server.ship = ema\n", "")
    after = contents(folder)
    assert after["model.safetensors"][0] == before["model-ema.safetensors"][0] != before["model.safetensors"][0]
    assert {name for name in before if after[name] != before[name]} - {".lock"} == {"config.toml", "model.safetensors"}
    used, smoothed = load_trained(folder).weights.params, load_file(folder / "model-ema.safetensors")
    assert all(torch.equal(t, smoothed[f"params.{name}"]) for name, t in used.items())
    assert fssl(*to_ema, "--resume") == (0, "run: finished already\n", "")
    assert contents(folder) == after
    assert fssl("run", "run", "--resume", "--set", "server.ship=plain").code == 0
    back = contents(folder)
    assert {name: text for name, (text, _) in back.items()} == {name: text for name, (text, _) in before.items()}


@pytest.mark.parametrize("harm", [Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:-1])])
def test_a_model_that_is_lost_is_not_shipped(fssl: Fssl, harm: Callable[[Path], object]) -> None:
    words = ["run", "smoke", *(f"--set={each}" for each in SMALL), "--set", "server.ema=0.9", "--out", "run"]
    assert fssl(*words).code == 0
    harm(Path("run/model-ema.safetensors"))
    before = contents(Path("run"))
    code, _, said = fssl(*words, "--set", "server.ship=ema", "--resume")
    assert (code, said.startswith("fssl: run/model-ema.safetensors"), said.count("\n")) == (2, True, 1), said
    assert {name: f for name, f in contents(Path("run")).items() if name != ".lock"} == {
        name: f for name, f in before.items() if name != ".lock"
    }


@pytest.mark.parametrize("method", ["sage", "proxyfl", "fedmatch"])
@pytest.mark.slow
def test_a_resumed_run_smooths_on(tmp_path: Path, method: str) -> None:
    """Also of a method whose model is not the server's weights."""
    settings = (f"method.name={method}", "server.ema=0.8")
    straight = run(tmp_path / "straight", *settings)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run_experiment(prepare(config(*settings)), tmp_path / "run", StopAfter(), resume=True)
    broken = run(tmp_path / "run", *settings, resume=True)
    assert outcome(broken) == outcome(straight)
    assert (broken / "model-ema.safetensors").read_bytes() == (straight / "model-ema.safetensors").read_bytes()


def test_commands_report_it(fssl: Fssl, tmp_path: Path) -> None:
    folder = run(tmp_path / "run", "server.ema=0.9")
    result = json.loads((folder / "summary.json").read_text())["ema_result"]
    assert f"{result:.2f} %" in next(line for line in fssl("show", folder).out.splitlines() if "smoothed" in line)
    said = fssl("compare", folder, "--csv", "n.csv").out
    assert f"Smoothed models (server.ema), in percent: sage {result:.2f}." in said
    head, row = (line.split(",") for line in Path("n.csv").read_text().splitlines()[:2])
    assert float(row[head.index("ema_result")]) == pytest.approx(result)


def test_a_model_that_is_not_there_cannot_be_shipped(tiny_data: Dataset) -> None:
    with pytest.raises(
        UserError, match=r"server\.ship = 'ema' does not work with server\.ema unset: there is no smoothed model"
    ):
        prepare(tiny_config("server.ship=ema"), tiny_data)
