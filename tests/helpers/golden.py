"""Golden rounds: three short rounds of every method and combination, as checksums in tests/golden/methods.json."""

import hashlib
import inspect
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.data.sources import Dataset, load
from fssl.engines.local import LocalEngine
from fssl.engines.named_tensors import named
from fssl.methods import METHODS
from fssl.methods.names import split_name
from fssl.records.rounds import MEASURES
from fssl.records.tensors import as_bytes
from fssl.runner.record import describe
from fssl.system.machine import processor

from .matrix import PAIRS
from .small import LABELING, tiny_config

FILE = Path(__file__).parents[1] / "golden" / "methods.json"
NAMES = [*METHODS, *PAIRS]
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
    """The line without the measures in addition to accuracy and loss, which follow from the same answers."""
    kept = {name: value for name, value in line.items() if name not in {*MEASURES} - {"accuracy"}}
    tests = {norm: {name: test[name] for name in ("accuracy", "loss")} for norm, test in line["test"].items()}
    return {**kept, "test": tests}


def write(again: Collection[str] = ()) -> None:
    """Add the rounds of new methods to the file, and make those of some methods anew; others keep their lines.

    A line of another machine than most names that machine.
    """
    golden, here, data = json.loads(FILE.read_text()), machine(), images()
    kept = {key: value for key, value in golden["outcomes"].items() if split_name(key.split()[0])[0] not in again}
    mark = [] if here == golden["machine"] else [here]
    keys = {f"{name} {protocol}": (name, protocol) for name, protocol in CASES}
    made = {key: kept[key] if key in kept else [*outcome(*case, data), *mark] for key, case in keys.items()}
    rows = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in made.items())
    FILE.write_text(f'{{"machine": {json.dumps(golden["machine"])}, "outcomes": {{\n{rows}\n}}}}\n')
