"""Golden rounds: every method under both protocols, and every plug-in combination, gives the bits that it gave.

`python tests/methods/test_golden.py` writes tests/golden/methods.json anew. Do that only for a change that is meant to
change results, and show the numbers before and after in CHANGELOG.md.
"""

import hashlib
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.data.sources import Dataset, load
from fssl.engines.local import LocalEngine
from fssl.engines.tensors import named
from fssl.methods import METHODS, PLUGINS
from fssl.methods.fixmatch import FixMatch
from fssl.methods.names import split_name
from fssl.records.rounds import MEASURES
from fssl.records.tensors import as_bytes
from fssl.runner.record import describe
from fssl.system.machine import processor
from helpers.small import LABELING, tiny_config

FILE = Path(__file__).parents[1] / "golden" / "methods.json"
LABELERS = [name for name, builder in METHODS.items() if isinstance(builder(), FixMatch)]
NAMES = [*METHODS, *(f"{name}+{plugin}" for name in LABELERS for plugin in PLUGINS if name != plugin)]
# What protocol `authors` changes lies in hosts (losses, weights of clients) and in engines, not in plug-ins.
CASES = [*((name, "clean") for name in NAMES), *((name, "authors") for name in METHODS)]
EASY = {"tau": 0.4, "delta": 1.2, "burn_in": 1, "helper_interval": 2}  # so that labels are used in so few steps
EASIER = {"fixmatch-gpl": 0.3, "feddb": 0.255, "semifl": 0.27, "flfl": 0.27}  # a global model says little at first
SHORT = ("train.rounds=3", "train.steps_per_round=4", "train.lr=0.1", "train.clients_per_round=3")


def machine() -> dict[str, str]:
    """Whose bits these are: other processors and versions add in another order."""
    path = Path("/proc/cpuinfo")
    flags = [line for line in path.read_text().splitlines() if line.startswith("flags")] if path.is_file() else []
    instructions = hashlib.sha256("".join(flags[:1]).encode()).hexdigest()[:16]
    return {"processor": processor(), "instructions": instructions, "torch": torch.__version__}


def images() -> Dataset:
    return load("synthetic", num_classes=4, size=8, channels=3, train_per_class=40, test_per_class=10)


def outcome(name: str, protocol: str, dataset: Dataset) -> list[Any]:
    """Checksums of the model and of three rounds' records, and the last round's losses."""
    base = split_name(name)[0]
    easy = {**EASY, "tau": EASIER.get(base, EASY["tau"])}
    known = inspect.signature(METHODS[base]).parameters
    unused = ("tau",) if base == "fedloke" else ()  # it filters by entropy
    settings = [f"method.{key}={value}" for key, value in easy.items() if key in known and key not in unused]
    config = tiny_config(f"method.name={name}", f"protocol={protocol}", *SHORT, *LABELING.get(base, ()), *settings)
    engine = LocalEngine(Federation(prepare(config, dataset)))
    lines = [describe(engine.federation, engine.layout, result)[0] for result in engine.rounds(3)]
    model = hashlib.sha256(as_bytes(named(**engine.model()._asdict()))).hexdigest()[:16]
    record = hashlib.sha256(json.dumps([without_measures(line) for line in lines]).encode()).hexdigest()[:16]
    return [model, record, lines[-1]["loss_s"], lines[-1]["loss_u"]]


def without_measures(line: dict[str, Any]) -> dict[str, Any]:
    """The line as it was before measures stood beside accuracy and loss; they follow from the same answers."""
    kept = {name: value for name, value in line.items() if name not in {*MEASURES} - {"accuracy"}}
    tests = {norm: {name: test[name] for name in ("accuracy", "loss")} for norm, test in line["test"].items()}
    return {**kept, "test": tests}


@pytest.mark.parametrize(("name", "protocol"), CASES)
@pytest.mark.slow
def test_it_gives_the_bits_that_it_gave(name: str, protocol: str, tiny_data: Dataset) -> None:
    golden = json.loads(FILE.read_text())
    found, expected = outcome(name, protocol, tiny_data), golden["outcomes"][f"{name} {protocol}"]
    assert found[2:] == pytest.approx(expected[2:], rel=0.1, abs=0.05)
    if golden["machine"] == machine():
        assert found == expected


def test_the_golden_rounds_see_every_method() -> None:
    """Those that train alike by definition are alike here; all others differ. All that label images use some."""
    outcomes = json.loads(FILE.read_text())["outcomes"]
    assert {*outcomes} == {f"{name} {protocol}" for name, protocol in CASES}
    assert {key.split()[0] for key, (*_, l_u) in outcomes.items() if not l_u} == {"fedavg", "fedprox", "fedavg-sl"}
    models: dict[str, list[str]] = {}
    for key, (model, *_) in outcomes.items():
        models.setdefault(model, []).append(key)
    assert models[outcomes["sage clean"][0]] == ["sage clean", "fixmatch-lpl+sage clean"]
    assert models[outcomes["fedmatch clean"][0]] == ["fedmatch clean", "fedmatch authors"]  # without momentum
    assert len(models) == len(outcomes) - 2


if __name__ == "__main__":
    data = images()
    made = {f"{name} {protocol}": outcome(name, protocol, data) for name, protocol in CASES}
    rows = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in made.items())
    FILE.write_text(f'{{"machine": {json.dumps(machine())}, "outcomes": {{\n{rows}\n}}}}\n')
