"""Seconds and memory of a round against registered clients, 8 of whom take part; synthetic images, two per client.

    python benchmarks/scale.py [--method flexmatch] [--kind iid] [--device cuda] [20 1000 10000 100000]

Each number of clients is measured in a process of its own, on a CPU with one lane. Seconds of a CPU are of the
processor, so that other work on the machine matters little; with a GPU they are of the clock.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import replace
from statistics import median

CLASSES, ROUNDS, A_ROUND = 10, 9, 8


def measure(clients: int, method: str, kind: str, device: str) -> dict[str, float]:
    import torch

    from fssl.config import parse
    from fssl.core.experiment import prepare
    from fssl.core.federation import Federation
    from fssl.data.sources import load
    from fssl.engines.local import LocalEngine

    per_class = max(200, 2 * clients // CLASSES)
    data = load("synthetic", num_classes=CLASSES, size=8, channels=3, train_per_class=per_class, test_per_class=20)
    tables = {
        "data": {"name": "synthetic", "labels_per_class": 10},
        "partition": {"kind": kind, "clients": A_ROUND} | ({"alpha": 1.0} if kind != "iid" else {}),
        "method": {"name": method},
        "model": {"name": "cnn", "width": 1},
        "train": {"rounds": 100, "clients_per_round": A_ROUND, "steps_per_round": 5, "batch": 8},
        "compute": {"device": device} | ({"lanes": 1} if device == "cpu" else {}),
    }
    config = parse(tables)  # the settings' own checks know a smaller set of synthetic images
    config = replace(
        config,
        data=replace(config.data, labels_per_class=per_class // 2 if kind == "dirichlet" else per_class),
        partition=replace(config.partition, clients=clients),
    )
    clock = time.perf_counter if device == "cuda" else time.process_time
    before, begin = peak(), clock()
    federation = Federation(prepare(config, data))
    planned = clock() - begin
    engine = LocalEngine(federation)
    engine.round(10**6)
    seconds = []
    for _ in range(ROUNDS):
        begin = clock()
        engine.round(10**6)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(clock() - begin)
    on_gpu = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else 0
    return {"plan": planned, "round": median(seconds), "images": before, "all": peak(), "gpu": on_gpu}


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # MiB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", type=int, nargs="*", default=[20, 1000, 10_000, 100_000])
    parser.add_argument("--method", default="flexmatch")
    parser.add_argument("--kind", default="iid")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.here:
        print(json.dumps(measure(asked.clients[0], asked.method, asked.kind, asked.device)))
        return
    columns = ["registered clients", "dealing out and planning, s", "a round, s", "clients per second"]
    columns += ["peak memory, MiB", "before dealing out, MiB", *(["on the GPU, MiB"] if asked.device == "cuda" else [])]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for clients in asked.clients:
        words = [str(clients), "--method", asked.method, "--kind", asked.kind, "--device", asked.device, "--here"]
        said = subprocess.run([sys.executable, __file__, *words], check=True, capture_output=True, text=True).stdout
        found = json.loads(said)
        row = [f"{clients:,}", f"{found['plan']:.2f}", f"{found['round']:.4f}", f"{A_ROUND / found['round']:.0f}"]
        row += [f"{found[name]:.0f}" for name in ("all", "images", "gpu")]
        print(f"| {' | '.join(row[: len(columns)])} |", flush=True)


if __name__ == "__main__":
    main()
