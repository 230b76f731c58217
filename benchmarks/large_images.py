"""Seconds and memory of SAGE's rounds on images of 224 pixels, as a GPU trains them: synthetic images, ResNet-18.

    python benchmarks/large_images.py [--size 224] [--rounds 3] [32 128]

Numbers are labeled images of a step; twice as many unlabeled ones come in two views each. Every round, 4 of 8 clients
take 20 steps each, and 200 images are tested. Each number is measured in a process of its own.
"""

import argparse
import json
import subprocess
import sys

CLASSES, TRAIN, TEST = 10, 64, 20  # images of a class


def measured(size: int, batch: int, rounds: int, settings: list[str]) -> dict[str, object]:
    from fssl.bench.speed import measure
    from fssl.config import override, parse
    from fssl.core.experiment import prepare
    from fssl.data.sources import load

    tables = {
        "data": {"name": "synthetic", "labels_per_class": 50},
        "partition": {"kind": "iid", "clients": 8},
        "method": {"name": "sage"},
        "model": {"name": "resnet18", "stem": "imagenet"},
        "train": {"clients_per_round": 4, "steps_per_round": 20, "batch": batch},
    }
    images = load("synthetic", num_classes=CLASSES, size=size, channels=3, train_per_class=TRAIN, test_per_class=TEST)
    return measure(prepare(parse(override(tables, settings)), images), rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("batches", nargs="*", type=int, default=[32, 128])
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a further setting")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        print(json.dumps(measured(given.size, given.batches[0], given.rounds, given.set)))
        return
    options = [f"--size={given.size}", f"--rounds={given.rounds}", *(f"--set={s}" for s in given.set), "--alone"]
    print("batch | s per round (smallest to largest) | ms per step | peak memory, GiB | start, s | device")
    for batch in given.batches:
        command = [sys.executable, __file__, *options, str(batch)]
        found = json.loads(
            subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
        )
        low, high = found["seconds_per_round_min_max"]
        print(
            f"{batch} | {found['seconds_per_round']:.3f} ({low:.3f} to {high:.3f}) | {found['ms_per_step']:.1f}"
            f" | {found['peak_bytes'] / 2**30:.2f} | {found['start_seconds']:.1f} | {found['device']}",
            flush=True,
        )


if __name__ == "__main__":
    main()
