"""Print the costs of Flower in results/README.md, measured: `PYTHONPATH=tests python -m helpers.flower_costs`."""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from logging import ERROR, getLogger
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import save
from torch.utils._pytree import tree_map

from fssl.config import override, parse, read_toml
from fssl.core.client import ClientResult
from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.core.static_norm import NormSums
from fssl.engines.flower.internals import LOGGER, ClientFacts, MaskedSum, MaskTerms, mask, to_be_masked
from fssl.engines.flower.messages import Job, answer, message_forms, order, sums_answer
from fssl.engines.named_tensors import named
from fssl.methods.names import METHODS
from fssl.types import Payload, Server, Upload

from .method_tables import markdown
from .trial import COMMAND, Trial, lines

ROUNDS = 6
PRESET = "settings/digits"
DIGITS = [  # as many clients as sites
    "method.name=sage",
    "seed=7",
    "partition.clients=4",
    "train.clients_per_round=4",
    f"train.rounds={ROUNDS}",
    "compute.device=cpu",
]


def num_bytes(content: RecordDict) -> int:
    """All array bytes of a message, headers of the arrays included."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())


def federation_of(method: str, model: list[str]) -> Federation:
    tables = {k: v for k, v in read_toml(PRESET).items() if k != "grid"}
    return Federation(prepare(parse(override(tables, [f"method.name={method}", "compute.device=cpu", *model]))))


def wire(method: str, model: list[str]) -> tuple[int, int]:
    """Bytes down to and up from one client in a round."""
    forms = message_forms(federation_of(method, model))

    def real(server: Server) -> Server:
        made: Server = tree_map(lambda t: torch.zeros(t.shape, dtype=t.dtype), server)
        return made

    payload, sent = real(forms.payload), real(forms.upload)
    job = Job("", 1, 0)
    result = ClientResult(Upload(0, sent.weights, 1, sent.extras), {}, {}, torch.zeros(forms.tally.shape))
    return num_bytes(order(job, payload, None)), num_bytes(answer(job, result, with_state=False))


def measured_wire(model: list[str]) -> tuple[int, int]:
    """Bytes down to and up from one client for a measurement of a model."""
    federation, job = federation_of("sage", model), Job("", 1, 0)
    sums = {name: torch.zeros(t.shape) for name, t in message_forms(federation).sums.items()}
    return num_bytes(order(job, Payload(federation.net.first, {}), None)), num_bytes(
        sums_answer(job, NormSums(sums, 1))
    )


def all_bytes(content: RecordDict) -> int:
    """The same, and all keys, shares and masked numbers."""
    values = [value for record in content.config_records.values() for value in record.values()]
    single = [each for value in values for each in (value if isinstance(value, list) else [value])]
    return num_bytes(content) + sum(len(each) for each in single if isinstance(each, bytes))


def masked_wire(clients: int, model: list[str]) -> tuple[int, int]:
    """Bytes down to and up from one client in the four exchanges of a masked round."""
    forms, (down, up) = message_forms(federation_of("sage", model)), (0, 0)
    arrays = [np.zeros(t.shape) for t in named(weights=forms.upload.weights).values()]
    facts = {"tally": save({"tally": torch.zeros(forms.tally.shape)})}
    contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in range(clients)}
    payload = tree_map(lambda t: torch.zeros(t.shape, dtype=t.dtype), forms.payload)

    def app(message: Message, context: Context) -> Message:
        return Message(to_be_masked(arrays, ClientFacts(1, facts)), reply_to=message)

    def ask(messages: list[Message]) -> list[Message]:
        nonlocal down, up
        down += all_bytes(messages[0].content)
        replies = [mask(deepcopy(each), contexts[each.metadata.dst_node_id], app) for each in messages]
        up += all_bytes(replies[0].content)
        return replies

    orders = {node: order(Job("", 1, node), payload, None) for node in range(clients)}
    terms = MaskTerms(max(3, round(2 * clients / 3)), 1, 64.0, 2**32 >> clients.bit_length())
    MaskedSum(ask, orders, terms).run(1, lambda facts: None)
    return down, up


def print_masked_bytes(most: int) -> None:
    """The rows of at most so many clients: each agrees on a key with each other one, which takes its time."""
    getLogger(LOGGER).setLevel(ERROR)
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # messages want to know who sends them
    print("| `sage` | small CNN: down | up | ResNet-8×4: down | up |\n|---|---|---|---|---|")
    models = ([], ["model.name=resnet8", "model.width=4"])
    print(f"| plain | {' | '.join(f'{n:,}' for model in models for n in wire('sage', model))} |")
    for clients in (n for n in (3, 10, 50) if n <= most):
        numbers = [n for model in models for n in masked_wire(clients, model)]
        print(f"| `secagg+`, {clients} clients a round | {' | '.join(f'{n:,}' for n in numbers)} |")


def bytes_table() -> str:
    """Of methods that send the same, the first."""
    models = ([], ["model.name=resnet8", "model.width=4"])
    wires = {f"`{method}`": partial(wire, method) for method in METHODS} | {"any, a measurement": measured_wire}
    head = ["method", "small CNN: down", "up", "ResNet-8×4: down", "up"]
    rows: dict[tuple[str, ...], str] = {}
    for name, of in wires.items():
        rows.setdefault(tuple(f"{n:,}" for model in models for n in of(model)), name)
    return markdown(head, ([name, *numbers] for numbers, name in rows.items()))


def seconds(run: Path) -> tuple[float, float, float]:
    """Of the first round, the fastest of the others and their median."""
    first, *others = (line["timing"]["seconds"] for line in lines(run))
    return first, min(others), statistics.median(others)


def timed(words: list[str], out: Path) -> tuple[float, float, float, float]:
    begin = time.perf_counter()
    subprocess.run([*COMMAND, *words, "--out", str(out)], check=True, capture_output=True)
    return (time.perf_counter() - begin, *seconds(out))


@contextmanager
def deployment(folder: Path) -> Iterator[Trial]:
    """Four sites and a server."""
    trial = Trial(folder, sites=4)
    try:
        trial.server()
        for number in range(1, 5):
            trial.site(number)
        trial.connected(4)
        yield trial
    finally:
        trial.end()


def print_seconds(folder: Path) -> None:
    sets = [word for setting in DIGITS for word in ("--set", setting)]
    rows = {
        "local": timed(["run", PRESET, *sets], folder / "local"),
        "Flower simulation": timed(["run", PRESET, *sets, "--set", "compute.engine=flower"], folder / "simulation"),
    }
    with deployment(folder / "deployment") as trial:
        rows["deployment, 4 sites, TLS"] = timed(
            ["deploy", "start", PRESET, *sets, "--home", str(trial.home)], folder / "deployed"
        )
    models = {p.read_bytes() for p in folder.glob("*/model.safetensors")}
    assert len(models) == 1
    print_rows(rows)


def print_masked_seconds(folder: Path) -> None:
    rows = {}
    with deployment(folder / "deployment") as trial:
        for kind in ("plain", "secagg+"):
            sets = [word for setting in (*DIGITS, f"privacy.aggregation={kind}") for word in ("--set", setting)]
            simulated = ["run", PRESET, *sets, "--set", "compute.engine=flower"]
            rows[f"Flower simulation, {kind}"] = timed(simulated, folder / f"simulation-{kind}")
            deployed = ["deploy", "start", PRESET, *sets, "--home", str(trial.home)]
            rows[f"deployment, 4 sites, TLS, {kind}"] = timed(deployed, folder / f"deployed-{kind}")
    print_rows(dict(sorted(rows.items(), reverse=True)))


def print_rows(rows: dict[str, tuple[float, float, float, float]]) -> None:
    print("| engine | whole command, s | first round, s | fastest round, s | median round, s |\n|---|---|---|---|---|")
    for name, (total, *rest) in rows.items():
        print(f"| {name} | {total:.1f} | {' | '.join(f'{s:.2f}' for s in rest)} |")


PARTS = {
    "bytes": lambda: print(bytes_table(), end=""),
    "seconds": lambda: print_seconds(Path(tempfile.mkdtemp())),
    "masked-bytes": lambda: print_masked_bytes(50),
    "masked-bytes-of-10": lambda: print_masked_bytes(10),
    "masked-seconds": lambda: print_masked_seconds(Path(tempfile.mkdtemp())),
}

if __name__ == "__main__":
    for name in sys.argv[1:] or PARTS:
        PARTS[name]()
