"""Seconds and memory of a round against registered clients, 8 of whom take part; synthetic images, two per client.

    python benchmarks/scale.py [--method flexmatch] [--kind iid] [20 1000 10000 100000]

Each number of clients is measured in a process of its own, on one lane. Seconds are of the processor, so that other
work on the machine matters little.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import replace
from statistics import median

CLASSES, ROUNDS = 10, 9


def measure(clients: int, method: str, kind: str) -> dict[str, float]:
    from fssl.config import parse
    from fssl.core.experiment import prepare
    from fssl.core.federation import Federation
    from fssl.data.sources import load
    from fssl.engines.local import LocalEngine

    per_class = max(200, 2 * clients // CLASSES)
    data = load("synthetic", num_classes=CLASSES, size=8, channels=3, train_per_class=per_class, test_per_class=20)
    tables = {
        "data": {"name": "synthetic", "labels_per_class": 10},
        "partition": {"kind": kind, "clients": 8, "alpha": 1.0},
        "method": {"name": method},
        "model": {"name": "cnn", "width": 1},
        "train": {"rounds": 100, "clients_per_round": 8, "steps_per_round": 5, "batch": 8},
        "compute": {"device": "cpu", "lanes": 1},
    }
    config = parse(tables)  # the settings' own checks know a smaller set of synthetic images
    config = replace(
        config,
        data=replace(config.data, labels_per_class=per_class // 2 if kind == "dirichlet" else per_class),
        partition=replace(config.partition, clients=clients),
    )
    before, begin = peak(), time.process_time()
    federation = Federation(prepare(config, data))
    planned = time.process_time() - begin
    engine = LocalEngine(federation)
    engine.round(10**6)
    seconds = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        engine.round(10**6)
        seconds.append(time.process_time() - begin)
    return {"plan": planned, "round": median(seconds), "images": before, "all": peak()}


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # MiB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", type=int, nargs="*", default=[20, 1000, 10_000, 100_000])
    parser.add_argument("--method", default="flexmatch")
    parser.add_argument("--kind", default="iid")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.here:
        print(json.dumps(measure(asked.clients[0], asked.method, asked.kind)))
        return
    print(
        "| registered clients | dealing out and planning, s | a round, s | peak memory, MiB | before dealing out, MiB |"
    )
    print("|---|---|---|---|---|")
    for clients in asked.clients:
        words = [str(clients), "--method", asked.method, "--kind", asked.kind, "--here"]
        said = subprocess.run([sys.executable, __file__, *words], check=True, capture_output=True, text=True).stdout
        found = json.loads(said)
        print(
            f"| {clients:,} | {found['plan']:.2f} | {found['round']:.3f} | {found['all']:.0f} | {found['images']:.0f} |"
        )


if __name__ == "__main__":
    main()
