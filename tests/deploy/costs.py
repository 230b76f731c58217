"""What Flower costs, measured: `python tests/deploy/costs.py` prints the tables of docs/flower.md."""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trial import COMMAND, Trial, lines

from fssl.config import override, parse, read_toml
from fssl.core.client import ClientResult
from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.engines.flower.messages import Job, answer, message_forms, order
from fssl.methods.names import METHODS
from fssl.types import Server, Upload

ROUNDS = 6
DEMO = [  # the demo's clients with a site each
    "method.name=sage",
    "seed=7",
    "partition.clients=4",
    "train.clients_per_round=4",
    f"train.rounds={ROUNDS}",
    "compute.device=cpu",
]


def num_bytes(content: object) -> int:
    """All array bytes of a message, headers of the arrays included."""
    records = content.array_records.values()  # type: ignore[attr-defined]
    return sum(len(array.data) for record in records for array in record.values())


def wire(method: str, model: list[str]) -> tuple[int, int]:
    """Bytes down to and up from one client in a round."""
    tables = {k: v for k, v in read_toml("demo").items() if k != "grid"}
    federation = Federation(prepare(parse(override(tables, [f"method.name={method}", "compute.device=cpu", *model]))))
    forms = message_forms(federation)
    import torch

    def real(server: Server) -> Server:
        from torch.utils._pytree import tree_map

        made: Server = tree_map(lambda t: torch.zeros(t.shape, dtype=t.dtype), server)
        return made

    payload, sent = real(forms.payload), real(forms.upload)
    job = Job("", 1, 0)
    result = ClientResult(Upload(0, sent.weights, 1, sent.extras), {}, {}, torch.zeros(forms.tally.shape))
    return num_bytes(order(job, payload, None)), num_bytes(answer(job, result, with_state=False))


def print_bytes() -> None:
    print("| method | small CNN: down | up | ResNet-8×4: down | up |\n|---|---|---|---|---|")
    for method in METHODS:
        small, large = wire(method, []), wire(method, ["model.name=resnet8", "model.width=4"])
        print(f"| `{method}` | {' | '.join(f'{n:,}' for n in (*small, *large))} |")


def seconds(run: Path) -> tuple[float, float, float]:
    """Of the first round, the fastest of the others and their median."""
    first, *others = (line["timing"]["seconds"] for line in lines(run))
    return first, min(others), statistics.median(others)


def timed(words: list[str], out: Path) -> tuple[float, float, float, float]:
    begin = time.perf_counter()
    subprocess.run([*COMMAND, *words, "--out", str(out)], check=True, capture_output=True)
    return (time.perf_counter() - begin, *seconds(out))


def print_seconds(folder: Path) -> None:
    sets = [word for setting in DEMO for word in ("--set", setting)]
    rows = {
        "local": timed(["run", "demo", *sets], folder / "local"),
        "Flower simulation": timed(["run", "demo", *sets, "--engine", "flower"], folder / "simulation"),
    }
    trial = Trial(folder / "deployment", sites=4)
    try:
        trial.server()
        for number in range(1, 5):
            trial.site(number)
        trial.connected(4)
        rows["deployment, 4 sites, TLS"] = timed(
            ["deploy", "start", "demo", *sets, "--home", str(trial.home)], folder / "deployed"
        )
    finally:
        trial.end()
    models = {p.read_bytes() for p in folder.glob("*/model.safetensors")}
    assert len(models) == 1
    print("| engine | whole command, s | first round, s | fastest round, s | median round, s |\n|---|---|---|---|---|")
    for name, (total, *rest) in rows.items():
        print(f"| {name} | {total:.1f} | {' | '.join(f'{s:.2f}' for s in rest)} |")


if __name__ == "__main__":
    if "seconds" not in sys.argv[1:]:
        print_bytes()
    if "bytes" not in sys.argv[1:]:
        print_seconds(Path(tempfile.mkdtemp()))
