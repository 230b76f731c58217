"""FedAvg's rounds here and in pfl-research, in turn: the same images, clients, network and number of steps.

    python benchmarks/beside_pfl.py [--shape digits] [--rounds 15] [--device cuda]

Shapes: `digits` (the demo's clients), `cifar10` (pfl-research's own benchmark: 1,000 clients of 50 images, 50 a round,
five steps of 10 images each, its network without dropout) and `flute` (FLUTE's image benchmark: ResNet-18 with
GroupNorm, 500 clients of 100 images, 10 a round, five steps of 20 images each). The images of the last two are made up.

The first time, pfl-research is installed into benchmarks/.pfl, for this script only. fssl makes views, measures
probes and tests after every round; pfl-research does none of that here. Printed are medians of a round's and a step's
time by the clock and, where one process does all the work, of the processor's time, which other work changes less.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from torch import Tensor, nn

PFL = (
    *("pfl==0.6.0", "multiprocess", "dill", "scipy", "dp-accounting", "prv-accountant"),
    *("absl-py", "attrs", "dm-tree", "wrapt", "mpmath"),
)
HOME = Path(__file__).resolve().parent / ".pfl"
ENDLESS = 999_999  # rounds
WARM_UP = 2  # rounds after the first that are not counted
# Name of a side -> its variables in the environment.
CPU_SIDES = {
    "fssl": {},
    "fssl, compiled": {"FSSL_SET": "compute.compile=on"},
    "fssl, one lane": {"FSSL_SET": "compute.lanes=1"},
    "pfl-research, one thread": {"OMP_NUM_THREADS": "1"},
    "pfl-research, a thread per core": {},
}
GPU_SIDES = {"fssl": {}, "fssl, one lane": {"FSSL_SET": "compute.lanes=1"}, "pfl-research": {}}
ALONE = ("fssl, one lane", "pfl-research, one thread")  # one process and one thread


class Cnn(nn.Module):
    """The network of pfl-research's benchmark without dropout: two convolutions, one layer of 128 units."""

    def __init__(self, channels: int, classes: int, width: int) -> None:
        super().__init__()
        from fssl.models import Head

        convolutions = (nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2))
        self.body = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU())
        self.head = Head(128, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        feature, logits = self.head(self.body(x))
        return feature, logits


def federation_of(shape: str, device: str) -> Any:
    """FedAvg on a shape, every image labeled where the images are made up."""
    from fssl.config import only_run, override, read_toml
    from fssl.core.experiment import prepare
    from fssl.core.federation import Federation
    from fssl.data.sources import load

    settings = ["method.name=fedavg", f"compute.device={device}", f"train.rounds={ENDLESS}"]
    settings += filter(None, [os.environ.get("FSSL_SET")])
    if shape == "digits":
        tables = {k: v for k, v in read_toml("settings/digits").items() if k != "grid"}
        return Federation(prepare(only_run(override(tables, settings))))
    clients, a_round, batch, name = {
        "cifar10": (1000, 50, 10, {"name": f"{__file__}:Cnn"}),
        "flute": (500, 10, 20, {"name": "resnet18", "width": 1, "norm": "group"}),
    }[shape]
    made_up: dict[str, Any] = {
        "data": {"name": "cifar10", "labels_per_class": 5000},
        "partition": {"kind": "iid", "clients": clients},
        "model": name,
        "train": {"rounds": 1, "clients_per_round": a_round, "batch": batch, "local_epochs": 1, "momentum": 0.0},
    }
    images = load("synthetic", num_classes=10, size=32, channels=3, train_per_class=5000, test_per_class=1000)
    return Federation(prepare(only_run(override(made_up, settings)), images))


def fssl_rounds(shape: str, device: str) -> Iterator[int]:
    """Train one round after another; yield the number of steps."""
    from fssl.engines.local import LocalEngine

    federation = federation_of(shape, device)
    for result in LocalEngine(federation).rounds(ENDLESS):
        yield sum(map(federation.num_steps, result.clients))


def pfl_rounds(shape: str, device: str, wait: Callable[[int], None]) -> None:
    """Train the same number of steps on the same images, each with its label; call `wait` after each round."""
    import numpy as np
    import torch
    import torch.nn.functional as F
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    from fssl.models.net import find_network

    federation = federation_of(shape, device)
    config, card = federation.config, federation.dataset.card
    train, batch = config.train, config.train.batch
    images, labels = (torch.from_numpy(np.array(part)) for part in federation.dataset.train)
    images = (images.permute(0, 3, 1, 2) / 255).contiguous().to(device)  # before the first round: copied once
    labels = labels.long().to(device)
    steps = 0

    def user(client: int) -> PyTorchTensorDataset:
        nonlocal steps
        num_images = batch * federation.recipe.epoch_steps(federation.counts(client))
        rows = torch.from_numpy(np.resize(federation.sites[client].pool, num_images)).long().to(device)
        steps += federation.num_steps(client)
        return PyTorchTensorDataset((images[rows], labels[rows]))

    drawn = (client for round in range(1, ENDLESS) for client in federation.drawn_clients(round))
    more = {"norm": "group"} if config.model.norm == "group" else {}
    net = find_network(config.model.name)(card.channels, card.num_classes, config.model.width, **more).to(device)
    net.loss = lambda x, y, eval=False: F.cross_entropy(net(x)[1], y)
    net.metrics = lambda x, y, eval=False: {}
    model = PyTorchModel(
        net,
        lambda parameters, lr: torch.optim.SGD(
            parameters, lr=lr, momentum=train.momentum, weight_decay=train.weight_decay
        ),
        torch.optim.SGD(net.parameters(), lr=1.0),
    )

    class Waiting(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):  # type: ignore[no-untyped-def]
            nonlocal steps
            if device == "cuda":
                torch.cuda.synchronize()
            done, steps = steps, 0
            wait(done)
            return False, Metrics()

    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=ENDLESS,
            evaluation_frequency=10 * ENDLESS,
            train_cohort_size=train.clients_per_round,
            val_cohort_size=0,
        ),
        SimulatedBackend(FederatedDataset(user, lambda: next(drawn)), None),
        model,
        NNTrainHyperParams(local_num_epochs=train.local_epochs, local_learning_rate=train.lr, local_batch_size=batch),
        callbacks=[Waiting()],
        send_metrics_to_platform=False,
    )


def take_turns(side: str, shape: str, device: str) -> None:
    """In a process of its own: train a round for each line read, then print its steps and seconds by both clocks."""
    begin = 0.0, 0.0

    def wait(steps: int) -> None:
        nonlocal begin
        print(json.dumps([steps, time.perf_counter() - begin[0], time.process_time() - begin[1]]), flush=True)
        if not sys.stdin.readline():
            sys.exit()
        begin = time.perf_counter(), time.process_time()

    if side == "fssl":
        for steps in fssl_rounds(shape, device):
            wait(steps)
    else:
        pfl_rounds(shape, device, wait)


def started(name: str, variables: dict[str, str], shape: str, device: str) -> "subprocess.Popen[str]":
    path = os.pathsep.join([*([str(HOME)] if name.startswith("pfl") else []), *sys.path[1:]])
    side = name.split(",")[0].removesuffix("-research")
    command = [sys.executable, __file__, "--side", side, "--shape", shape, "--device", device]
    own = {"PFL_PYTORCH_DEVICE": device, **variables, "PYTHONPATH": path}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env={**os.environ, **own}, stdin=pipe, stdout=pipe, text=True)


def printed(milliseconds: list[float]) -> str:
    return f"{median(milliseconds):.2f} ({min(milliseconds):.2f} to {max(milliseconds):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=["digits", "cifar10", "flute"], default="digits")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--side", choices=["fssl", "pfl"], help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side:
        return take_turns(asked.side, asked.shape, asked.device)
    if not HOME.is_dir():
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(HOME), *PFL]
        subprocess.run(install, check=True)
    kinds = GPU_SIDES if asked.device == "cuda" else CPU_SIDES
    sides = {name: started(name, variables, asked.shape, asked.device) for name, variables in kinds.items()}
    times: dict[str, list[tuple[int, float, float]]] = {name: [] for name in sides}
    for process in sides.values():
        process.stdout.readline()  # the first round, with everything that is done once
    for turn in range(WARM_UP + asked.rounds):
        for name, process in sides.items():
            process.stdin.write("\n")
            process.stdin.flush()
            found = json.loads(process.stdout.readline())
            if turn >= WARM_UP:
                times[name].append(found)
    for process in sides.values():
        process.stdin.close()
        process.wait()
    for name, rounds in times.items():
        a_round = printed([1000 * wall for _, wall, _ in rounds])
        a_step, processor = (printed([1000 * each[i] / each[0] for each in rounds]) for i in (1, 2))
        alone = f", {processor} of the processor" if name in ALONE and asked.device == "cpu" else ""
        print(f"{name:34} ms a round {a_round:32} ms a step {a_step}{alone}")


if __name__ == "__main__":
    main()
