"""FedAvg on pfl-research's CIFAR-10 benchmark: 1,000 clients of 50 images, 50 a round, five steps of 10 images each.

    python benchmarks/small_steps.py [--rounds 30] [--set compute.lanes=1] [--profile]

Its network is the benchmark's without dropout, its images are made up. Every round includes views,
probes and a test of 10,000 images.
"""

import argparse
import cProfile
import pstats
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from fssl.config import only_run, override
from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.data.sources import load
from fssl.engines.local import LocalEngine
from fssl.models import Head

TABLES: dict[str, Any] = {
    "data": {"name": "cifar10", "labels_per_class": 5000},
    "partition": {"kind": "iid", "clients": 1000},
    "model": {"name": f"{__file__}:Cnn"},
    "method": {"name": "fedavg"},
    "train": {"rounds": 10000, "clients_per_round": 50, "batch": 10, "local_epochs": 1, "momentum": 0.0},
}
WARM_UP = 3


class Cnn(nn.Module):
    """Two convolutions of 32 and 64 channels, one layer of 128 units."""

    def __init__(self, channels: int, classes: int, width: int) -> None:
        super().__init__()
        convolutions = (nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2))
        self.body = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU())
        self.head = Head(128, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        feature, logits = self.head(self.body(x))
        return feature, logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--profile", action="store_true", help="Print which functions of the host take the time.")
    asked = parser.parse_args()
    images = load("synthetic", num_classes=10, size=32, channels=3, train_per_class=5000, test_per_class=1000)
    engine = LocalEngine(Federation(prepare(only_run(override(TABLES, asked.set)), images)))
    list(engine.rounds(WARM_UP))
    profile = cProfile.Profile()
    if asked.profile:
        profile.enable()
    results = list(engine.rounds(WARM_UP + asked.rounds))
    profile.disable()
    times = [result.seconds for result in results]
    device = torch.cuda.get_device_name() if engine.device.type == "cuda" else "cpu"
    print(f"{device}: {median(times):.4f} s a round ({min(times):.4f} to {max(times):.4f})", asked.set)
    print({name: round(median(r.parts[name] for r in results), 4) for name in results[0].parts})
    if asked.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)


if __name__ == "__main__":
    main()
