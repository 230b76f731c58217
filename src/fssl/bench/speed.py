"""Speed and memory of the engine, compared with an ordinary loop that does the same work in the same run."""

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..console import PLAIN, say
from ..core.assembly import make_module
from ..core.experiment import Experiment, prepare
from ..core.federation import Federation
from ..engines.engine import RoundResult
from ..engines.local import LocalEngine
from ..engines.stopwatch import start_seconds
from ..errors import complain, several
from ..system.files import write_atomic
from ..system.machine import cores, peak_of_process
from .reference import reference_ms_of_steps
from .shapes import config_of, images_of

BUSY = 0.5  # runnable processes per core, above which timings are unreliable


def busy_warning() -> list[str]:
    """Return a warning if other programs used the machine in the last minute."""
    load, number = os.getloadavg()[0], cores()
    where = f"load {load:.1f} on {several(number, 'core')}"
    text = f"WARNING: the machine is busy ({where}): times and ratio are unreliable"
    return [text] if load > BUSY * number else []


def peak_bytes(device: torch.device) -> int:
    """Return the peak device memory, or this process's peak resident memory on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    return peak_of_process()


def device_names(devices: list[torch.device]) -> str:
    names = [torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu" for device in devices]
    return ", ".join(f"{n} x {name}" if n > 1 else name for name, n in Counter(names).items())


def measure(experiment: Experiment, rounds: int) -> dict[str, Any]:
    """Time whole rounds, tests included, after one round of warm-up."""
    begin = time.perf_counter()
    federation = Federation(experiment)
    engine = LocalEngine(federation)
    results: list[RoundResult] = []
    for result in engine.rounds(rounds + 1):
        if not results:
            start = time.perf_counter() - begin
        results.append(result)
    seconds = [r.seconds for r in results[1:]]
    steps = sum(federation.num_steps(k) for group in federation.drawn_groups(rounds + 1) for k in group)
    images = sum(federation.recipe.images(view) for view in federation.recipe.views)
    median = float(np.median(seconds))
    return {
        "device": device_names(federation.devices),
        "precision": federation.config.train.precision,
        "lanes": len(engine.fleet.lanes),
        "steps_per_round": steps,
        "start_seconds": start,
        "start": start_seconds(),
        "seconds_per_round": median,
        "seconds_per_round_min_max": [min(seconds), max(seconds)],
        "ms_per_step": 1000 * median / steps,
        "images_per_second": images * steps / median,
        "peak_bytes": peak_bytes(engine.device),
    }


def run_bench(
    console: Console, shape: str, method: str, rounds: int, json_file: Path | None, settings: list[str]
) -> None:
    busy = busy_warning()  # before this command adds to the load
    config = config_of(shape, method, settings)
    prepare(config)  # reject bad names and settings before images are made
    dataset = images_of(shape, config)
    say(console, f"timing {rounds} rounds of {method}, shape {shape}; then an ordinary loop of SAGE's steps")
    ours = measure(prepare(config, dataset), rounds)
    train = config.train
    device = torch.device("cuda" if ours["device"] != "cpu" else "cpu")
    steps = 12 if shape == "paper" else 100
    torch.set_num_threads(cores())  # an ordinary loop's default; the engine changed it
    plain = reference_ms_of_steps(
        dataset.card,
        dataset.train,
        make_module(config, dataset.card),
        train.batch,
        train.unlabeled_ratio,
        steps,
        device,
    )
    result = {"shape": shape, "method": method, "busy": bool(busy), **compared(ours, plain)}
    console.print(table_of(result))
    for text in busy:
        complain(text)
    if json_file:
        write_atomic(json_file, json.dumps(result, indent=1) + "\n")


def compared(ours: dict[str, Any], plain: list[float]) -> dict[str, Any]:
    """Return both measurements and their ratio, each with its spread over rounds or steps."""
    steps, mean = ours["steps_per_round"], float(np.mean(plain))
    quickest, slowest = (1000 * seconds / steps for seconds in ours["seconds_per_round_min_max"])
    low, high = np.percentile(plain, [10, 90]).tolist()  # single steps vary more than rounds of many
    reference = {"ms_per_step": mean, "ms_per_step_p10_p90": [low, high], "seconds_per_round": mean * steps / 1000}
    ratios = {"ratio": mean / ours["ms_per_step"], "ratio_min_max": [low / slowest, high / quickest]}
    return {"ours": ours, "reference": reference, **ratios}


def table_of(result: dict[str, Any]) -> Table:
    ours, reference = result["ours"], result["reference"]
    low, high = ours["seconds_per_round_min_max"]
    ours_is, other = f"fssl ({ours['precision']})", "ordinary loop of SAGE (fp32)"
    table = Table(f"{ours['device']}, {result['shape']} shape", ours_is, other, **PLAIN)
    few, most = reference["ms_per_step_p10_p90"]
    plain = f"{reference['ms_per_step']:.1f} ({few:.1f} to {most:.1f} in 8 of 10 steps)"
    table.add_row("ms per step", f"{ours['ms_per_step']:.2f}", plain)
    table.add_row(
        f"s per round ({ours['steps_per_round']} steps)",
        f"{ours['seconds_per_round']:.3f} ({low:.3f} to {high:.3f}), test included",
        f"{reference['seconds_per_round']:.1f}, without test",
    )
    table.add_row("images per second", f"{ours['images_per_second']:,.0f}", "")
    table.add_row("peak memory", f"{ours['peak_bytes'] / 2**30:.2f} GiB", "")
    table.add_row("start (data, compile, first round)", f"{ours['start_seconds']:.1f} s", "")
    least, best = result["ratio_min_max"]
    table.add_row("ratio", Text(f"{result['ratio']:.1f}x ({least:.1f} to {best:.1f})", "bold"), "1x")
    return table
