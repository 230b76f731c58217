"""The cost of a training step of each method, relative to FixMatch-LPL measured in turn with it."""

import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..catalog.entries import BASELINE, combinations
from ..console import PLAIN, say
from ..core.experiment import Experiment, prepare
from ..core.federation import Federation
from ..engines.lanes import Lanes, set_up_torch
from ..methods.names import METHODS
from ..system.files import read_json, write_atomic
from ..system.machine import cores, processor
from .shapes import config_of, images_of

# Without probes: they would run the global model also for methods that do not need it.
OWN_WORK = ("records.probes=losses", "compute.lanes=1")


class Client:
    """One client's round of a method on one lane: sweep, steps, upload; without server and test."""

    def __init__(self, experiment: Experiment) -> None:
        self.federation = Federation(experiment)
        set_up_torch(self.federation)
        self.lanes, self.server = Lanes(self.federation, most=1), self.federation.first_server()
        (self.plan,) = self.lanes.plans(1, [0])
        self.num_steps = len(self.plan.draw.x_row)

    def ms_per_step(self) -> float:
        device, (lane,) = self.federation.device, self.lanes.lanes
        # A lane on a CPU is one thread: its processor time does not depend on the machine's load.
        clock = time.perf_counter if device.type == "cuda" else time.process_time
        begin = clock()
        payload = self.federation.method.payload(self.server, 0)
        with torch.no_grad(), lane.scope():
            self.lanes.client(lane, self.plan, payload, None)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return 1000 * (clock() - begin) / self.num_steps


def run_method_bench(
    console: Console, shape: str, names: list[str], rounds: int, json_file: Path | None, settings: list[str]
) -> None:
    """Measure every method and SAGE on its hosts, or the named ones; add to a file of the same shape and settings."""
    names = names or [*METHODS, *combinations()]
    configs = {name: config_of(shape, name, [*OWN_WORK, *settings]) for name in (BASELINE, *names)}
    for config in configs.values():
        prepare(config)  # reject bad names and settings
    images = images_of(shape, configs[BASELINE])
    base = Client(prepare(configs[BASELINE], images))
    base.ms_per_step()
    here = facts(base, shape, settings)
    result = known(json_file, here)
    elsewhere = {} if result["device"] == here["device"] else {"device": here["device"]}
    columns = (f"{here['device']}, {shape} shape", f"in steps of {BASELINE}", "smallest to largest", "ms per step")
    table = Table(*columns, **PLAIN)
    for name in names:
        say(console, f"timing {rounds} rounds of a client with {name}, in turn with {BASELINE}")
        cost = cost_of(Client(prepare(configs[name], images)), base, rounds)
        result["methods"][name] = {**cost, **elsewhere}
        low, high = cost["min_max"]
        numbers = (f"{cost['ratio']:.2f}", f"{low:.2f} to {high:.2f}", f"{cost['ms_per_step']:.2f}")
        table.add_row(Text(name, "bold"), *numbers)
        if json_file:  # after each method, so that a stopped command keeps its measurements
            write_atomic(json_file, json.dumps(result, indent=1) + "\n")
    console.print(table)


def cost_of(client: Client, base: Client, rounds: int) -> dict[str, Any]:
    """Time each round relative to the baseline's round just before it, under the same load of the machine."""
    client.ms_per_step()  # warm-up
    pairs = [(base.ms_per_step(), client.ms_per_step()) for _ in range(rounds)]
    ratios = [own / reference for reference, own in pairs]
    return {
        "ratio": median(ratios),
        "min_max": [min(ratios), max(ratios)],
        "rounds": rounds,
        "ms_per_step": median(own for _, own in pairs),
    }


def facts(base: Client, shape: str, settings: list[str]) -> dict[str, Any]:
    """Return the settings and hardware that the measurements in one table share."""
    federation = base.federation
    on_gpu = federation.device.type == "cuda"
    return {
        "baseline": BASELINE,
        "shape": shape,
        "device": torch.cuda.get_device_name() if on_gpu else f"{processor()}, 1 of {cores()} cores",
        "precision": federation.config.train.precision,
        "torch": torch.__version__,
        "settings": settings,
        "command": " ".join(["fssl bench --methods --shape", shape, *(f"--set {s}" for s in settings)]),
    }


def known(json_file: Path | None, here: dict[str, Any]) -> dict[str, Any]:
    """Return the file's measurements if its baseline, shape and settings are the same, else an empty table."""
    before = read_json(json_file) if json_file else {}
    same = all(before.get(key) == here[key] for key in ("baseline", "shape", "settings"))
    return before if same and isinstance(before.get("methods"), dict) else {**here, "methods": {}}
