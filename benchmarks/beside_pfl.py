"""FedAvg's rounds here and in pfl-research, in turn: digits, their clients, network and number of steps.

    python benchmarks/beside_pfl.py [--rounds 15]

The first time, pfl-research is installed into benchmarks/.pfl, for this script only. fssl makes views, measures
probes and tests after every round; pfl-research does none of that here. Printed are medians of a step's time by the
clock and, where one process does all the work, of the processor's time, which other work changes less.
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

PFL = (
    *("pfl==0.6.0", "multiprocess", "dill", "scipy", "dp-accounting", "prv-accountant"),
    *("absl-py", "attrs", "dm-tree", "wrapt", "mpmath"),
)
HOME = Path(__file__).resolve().parent / ".pfl"
SETTINGS = ["method.name=fedavg", "compute.device=cpu", "train.rounds=1000"]
SIDES = {
    "fssl": {},
    "fssl, compiled": {"FSSL_COMPILE": "on"},
    "fssl, one lane": {"FSSL_LANES": "1"},
    "pfl-research, one thread": {"OMP_NUM_THREADS": "1"},
    "pfl-research, a thread per core": {},
}
ALONE = ("fssl, one lane", "pfl-research, one thread")  # one process and one thread


def fssl_rounds() -> Iterator[int]:
    """A round after another; yields its steps."""
    from fssl.config import only_run, override, read_toml
    from fssl.core.experiment import prepare
    from fssl.core.federation import Federation
    from fssl.engines.local import LocalEngine

    tables = {k: v for k, v in read_toml("settings/digits").items() if k != "grid"}
    own = [
        f"compute.{key.lower()}={os.environ[f'FSSL_{key}']}"
        for key in ("COMPILE", "LANES")
        if f"FSSL_{key}" in os.environ
    ]
    federation = Federation(prepare(only_run(override(tables, [*SETTINGS, *own]))))
    for result in LocalEngine(federation).rounds(10**6):
        yield sum(map(federation.num_steps, result.clients))


def pfl_rounds(wait: Callable[[int], None]) -> None:
    """The same number of steps on the same images, each with its label; `wait` is called after each round."""
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

    from fssl.config import only_run, override, read_toml
    from fssl.core.experiment import prepare
    from fssl.core.federation import Federation
    from fssl.models.net import find_network

    tables = {k: v for k, v in read_toml("settings/digits").items() if k != "grid"}
    federation = Federation(prepare(only_run(override(tables, SETTINGS))))
    train, batch = federation.config.train, federation.config.train.batch
    images, labels = federation.dataset.train
    steps = 0

    def user(client: int) -> PyTorchTensorDataset:
        nonlocal steps
        rows = np.resize(
            federation.sites[client].pool, batch * federation.recipe.epoch_steps(federation.counts(client))
        )
        steps += federation.num_steps(client)
        x = torch.from_numpy(np.array(images[rows])).permute(0, 3, 1, 2) / 255
        return PyTorchTensorDataset((x.contiguous(), torch.from_numpy(np.array(labels[rows]))))

    rounds = iter(range(1, 10**6))
    drawn = (client for round in rounds for client in federation.drawn_clients(round))
    net = find_network("cnn")(federation.dataset.card.channels, federation.dataset.card.num_classes, 1)
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
            done, steps = steps, 0
            wait(done)
            return False, Metrics()

    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=10**6,
            evaluation_frequency=10**7,
            train_cohort_size=train.clients_per_round,
            val_cohort_size=0,
        ),
        SimulatedBackend(FederatedDataset(user, lambda: next(drawn)), None),
        model,
        NNTrainHyperParams(local_num_epochs=train.local_epochs, local_learning_rate=train.lr, local_batch_size=batch),
        callbacks=[Waiting()],
        send_metrics_to_platform=False,
    )


def take_turns(side: str) -> None:
    """In a process of its own: a round whenever a line comes in, then a line with a step's seconds, by both clocks."""
    begin = 0.0, 0.0

    def wait(steps: int) -> None:
        nonlocal begin
        took = time.perf_counter() - begin[0], time.process_time() - begin[1]
        print(json.dumps([seconds / steps for seconds in took]), flush=True)
        if not sys.stdin.readline():
            sys.exit()
        begin = time.perf_counter(), time.process_time()

    if side == "fssl":
        for steps in fssl_rounds():
            wait(steps)
    else:
        pfl_rounds(wait)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--side", choices=["fssl", "pfl"], help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side:
        return take_turns(asked.side)
    if not HOME.is_dir():
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(HOME), *PFL]
        subprocess.run(install, check=True)
    sides = {}
    for name, variables in SIDES.items():
        path = os.pathsep.join([*([str(HOME)] if name.startswith("pfl") else []), *sys.path[1:]])
        command = [sys.executable, __file__, "--side", name.split(",")[0].removesuffix("-research")]
        sides[name] = subprocess.Popen(
            command,
            env={**os.environ, **variables, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    times: dict[str, list[list[float]]] = {name: [] for name in sides}
    for process in sides.values():
        process.stdout.readline()  # the first round, with everything that is done once
    for _ in range(asked.rounds):
        for name, process in sides.items():
            process.stdin.write("\n")
            process.stdin.flush()
            times[name].append([1000 * seconds for seconds in json.loads(process.stdout.readline())])
    for process in sides.values():
        process.stdin.close()
        process.wait()
    for name, found in times.items():
        wall, processor = (f"{median(ms):6.2f} ({min(ms):.2f} to {max(ms):.2f})" for ms in zip(*found, strict=True))
        print(f"{name:34} ms per step {wall:24}" + (f" processor {processor}" if name in ALONE else ""))


if __name__ == "__main__":
    main()
