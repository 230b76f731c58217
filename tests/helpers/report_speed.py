"""Time a report of 500 made-up runs of 500 rounds: `PYTHONPATH=tests python -m helpers.report_speed 500 500`."""

import json
import sys
import time
from itertools import islice, product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from fssl.core.device import device_facts
from fssl.methods.names import METHODS
from fssl.records.environment import environment
from fssl.records.sealing import write_facts
from fssl.records.store import RunFolder
from fssl.reports.page.write import write_page

from .run_folders import CLASSES, UNLABELED, config_of, imitate


def write_records(folder: Path, runs: int, rounds: int) -> int:
    """As many run folders as asked for: skews, then seeds, then methods; returns the bytes of their records."""
    methods = [name for name in METHODS if name not in UNLABELED]  # which record less
    alphas = np.round(np.linspace(0.1, 10, runs // (3 * len(methods)) + 1), 2).tolist()
    env = json.dumps({"sessions": [{"from_round": 1, **environment(device_facts(torch.device("cpu")))}]})
    counts = np.random.default_rng(0).integers(0, 60, (20, CLASSES))
    written = 0
    for number, (alpha, seed, method) in enumerate(islice(product(alphas, (7, 8, 9), methods), runs)):
        settings = (f"partition.alpha={alpha}", f"seed={seed}", f'method.name="{method}"', f"train.rounds={rounds}")
        run = RunFolder(imitate(folder / f"{number:04d}", config_of(*settings), rounds, probe_every=rounds))
        run.env_file.write_text(env)
        write_facts(run.partition_file, {"labeled": (counts // 10).tolist(), "unlabeled": counts.tolist()})
        written += run.rounds_file.stat().st_size
    return written


def main(runs: int, rounds: int) -> None:
    with TemporaryDirectory() as folder:
        size = write_records(Path(folder) / "runs", runs, rounds)
        print(f"{runs} runs of {rounds} rounds, {size / 1e6:.0f} MB of records")
        begin, out = time.perf_counter(), Path(folder) / "report.html"
        write_page([Path(folder) / "runs"], out)
        print(f"report: {time.perf_counter() - begin:.1f} s, {out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:] or (500, 500)))
