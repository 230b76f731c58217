"""How long a report takes: records of any size, written by the same code as a run's but without training."""

import json
import time
from collections.abc import Callable
from itertools import islice, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from rich.console import Console

from ..config import Config, as_tables, override, parse, resolved, to_toml
from ..console import say
from ..methods import METHODS
from ..records.environment import environment
from ..records.rounds import LAST, by_majority, rates, scalars, summarize
from ..records.store import RunFolder
from .page import plotly, write_page

CLASSES, CLIENTS, CHOSEN, STEPS = 100, 20, 8, 95  # of the paper's CIFAR-100
IMAGES = STEPS * 256  # unlabeled ones that a client draws in a round


def bench_report(console: Console, runs: int, rounds: int, json_file: Path | None) -> None:
    plotly()
    with TemporaryDirectory() as folder:
        say(console, f"writing records of {runs} runs with {rounds} rounds")
        size = write_records(Path(folder) / "runs", runs, rounds)
        begin = time.perf_counter()
        out = Path(folder) / "report.html"
        write_page([Path(folder) / "runs"], out)
        seconds = time.perf_counter() - begin
        result = {"runs": runs, "rounds": rounds, "records_mb": size / 1e6, "seconds": seconds}
        result["report_mb"] = out.stat().st_size / 1e6
    say(console, "{runs} runs of {rounds} rounds, {records_mb:.0f} MB of records".format_map(result))
    say(console, "report: {seconds:.1f} s, {report_mb:.1f} MB".format_map(result))
    if json_file:
        json_file.write_text(json.dumps(result, indent=1) + "\n")


def write_records(folder: Path, runs: int, rounds: int) -> int:
    """As many run folders as asked for: skews, then seeds, then methods; returns the bytes of their records."""
    alphas = np.round(np.linspace(0.1, 10, max(1, runs // (3 * len(METHODS)) + 1)), 2).tolist()
    env = json.dumps({"sessions": [{"from_round": 1, **environment(torch.device("cpu"))}]})
    written = 0
    for number, (alpha, seed, method) in enumerate(islice(product(alphas, (7, 8, 9), METHODS), runs)):
        settings = [f"partition.alpha={alpha}", f"seed={seed}", f'method.name="{method}"', f"train.rounds={rounds}"]
        config = resolved(parse(override({"data": {"name": "cifar100"}}, settings)))
        written += write_run(folder / f"{number:04d}", config, number, env)
    return written


def write_run(path: Path, config: Config, number: int, env: str) -> int:
    path.mkdir(parents=True)
    folder, rounds, random = RunFolder(path), config.rounds, np.random.default_rng(number)
    counts = random.integers(0, 60, (CLIENTS, CLASSES))
    folder.config_file.write_text(to_toml(as_tables(config)))
    lines = [line_of(round, rounds, counts, random, folder.write_probes) for round in range(1, rounds + 1)]
    folder.rounds_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    folder.write_partition(counts // 10, counts)
    (path / "env.json").write_text(env)
    (path / "summary.json").write_text(json.dumps(summarize(lines, "train_norm")))
    return folder.rounds_file.stat().st_size


def line_of(
    round: int, rounds: int, counts: Any, random: np.random.Generator, write_probes: Callable[..., None]
) -> dict[str, Any]:
    """A line with every quantity that a run records, all of them random; probes only where a report reads them."""
    clients = sorted(random.choice(CLIENTS, CHOSEN, replace=False).tolist())
    sums = random_sums(random, round / rounds)
    accuracy = float(np.round(60 * round / (round + 0.2 * rounds) + random.normal(), 2))
    if round > rounds - LAST:
        write_probes(round, {name: v.astype(np.float32) for name, v in sums.items()})
    return {
        "round": round,
        "clients": clients,
        "accuracy": accuracy,
        "test": {norm: {"accuracy": accuracy, "loss": random.random()} for norm in ("train_norm", "authors_norm")},
        **rates(scalars(sums)),
        **by_majority(sums, counts[clients]),
        "sums": scalars(sums),
        "last_epoch": scalars(sums),
        "timing": {"seconds": 2.9 + 0.1 * random.random(), "record_seconds": random.random()},
    }


def random_sums(random: np.random.Generator, progress: float) -> dict[str, Any]:
    """Accumulators by client that respect each other: counts of a part never exceed the whole."""
    n = np.full(CHOSEN, float(IMAGES))

    def part(whole: Any, share: float) -> Any:
        return np.floor(whole * np.clip(share + 0.05 * random.standard_normal(CHOSEN), 0, 1))

    n_l, n_g, n_fallback = part(n, 0.7 * progress), part(n, 0.5 * progress), part(n, 0.1)
    sums = {"steps": np.full(CHOSEN, float(STEPS)), "n": n, "n_l": n_l, "n_g": n_g, "n_valid": n_l + n_fallback}
    sums |= {"n_fallback": n_fallback, "correct_fallback": part(n_fallback, 0.6), "disagree": part(n, 0.5)}
    sums |= {"correct_valid": part(sums["n_valid"], 0.8), "disagree_sure": part(n_l, 0.2)}
    for who, sure in (("l", n_l), ("g", n_g)):
        sums |= {f"correct_{who}": part(n, 0.5), f"correct_{who}_sure": part(sure, 0.8)}
        sums |= {f"entropy_{who}": n * random.random(), f"entropy_{who}_sure": sure * random.random()}
    sums |= {name: STEPS * random.random(CHOSEN) for name in ("l_s", "l_u")}
    for name, whole in (("lam", n), ("lam_sure", n_l), ("gap", n), ("gap_sure", n_l)):
        sums[name] = whole * random.random(CHOSEN)
    labels = random.integers(0, 500, (CHOSEN, CLASSES)).astype(float)
    shares = random.random((2, CHOSEN, CLASSES))
    sums |= {"labels_by_class": labels, "correct_by_class": np.floor(labels * shares[0]), "n_sure_by_class": labels}
    return sums | {"lam_sure_by_class": labels * shares[0], "gap_sure_by_class": labels * shares[1]}
