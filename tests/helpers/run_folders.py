"""Run folders made up for tests: a few known numbers, or whole experiments that look like the paper's."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fssl.config import Config, as_tables, expand, override, parse, read_toml, to_toml
from fssl.core.experiment import complete
from fssl.records.chain import linked, read_line
from fssl.records.rounds import MEASURES, by_majority, rates, scalars
from fssl.records.sealing import write_facts, write_probes
from fssl.records.store import RunFolder

PAPER = {"data": {"name": "cifar100"}, "train": {"precision": "fp32"}}


def config_of(*settings: str) -> Config:
    """A cell of the paper, CIFAR-100 unless a setting says otherwise."""
    return parse(override(PAPER, list(settings)))


def write_run(folder: Path, config: Config, curve: Sequence[float], finished: bool = True, **more: Any) -> Path:
    """A run with these accuracies; `more` holds further keys of a line, each with a list by round."""
    lines = [
        {
            "round": i + 1,
            "accuracy": value,
            "test": {"train_norm": {"accuracy": value}, "authors_norm": {"accuracy": value - 10}},
            "timing": {"seconds": 1.0},
            **{key: values[i] for key, values in more.items()},
        }
        for i, value in enumerate(curve)
    ]
    return write_files(folder, config, lines, finished)


def write_files(folder: Path, config: Config, lines: list[dict[str, Any]], finished: bool) -> Path:
    folder.mkdir(parents=True)
    precision = config.train.precision  # as given: what this machine would choose does not matter
    tables, schedule = as_tables(complete(config)), complete(config).schedule
    tables["train"]["precision"] = precision
    (folder / "config.toml").write_text(to_toml(tables))
    rates = [schedule.typical(line["round"]) for line in lines]
    lines = [({"rate": rate} if rate != 1 else {}) | line for line, rate in zip(lines, rates, strict=True)]
    write_lines(folder, lines)
    if finished:
        write_facts(folder / "summary.json", {"rounds": tables["train"]["rounds"]})
    return folder


def write_lines(folder: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Write a record with the checks of these lines and of the folder's settings."""
    text, after = "", RunFolder(folder).run_id
    for line in lines:
        text += (written := linked(line, after))
        after = written[-19:-3]
    (folder / "rounds.jsonl").write_text(text)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of a record without their checks, whatever these say."""
    return [read_line(text) or {} for text in (folder / "rounds.jsonl").read_bytes().splitlines()]


def write_settings(folder: Path, text: str) -> None:
    """Give a run other settings, as if it had begun with them."""
    (folder / "config.toml").write_text(text)
    write_lines(folder, lines_of(folder))


# Whole experiments.

FINAL = {"sage": 55, "fixmatch-lpl": 49, "fixmatch-gpl": 51, "flexmatch": 51, "fedprox+fixmatch": 48.5}
FINAL |= {"fedavg": 34, "fedprox": 34.5, "fedavg-sl": 69, "fixmatch-lpl+oracle": 60, "fedlabel": 52, "feddure": 51}
FINAL |= {"feddb": 50, "fedmatch": 33, "fedloke": 40}
UNLABELED = ("fedavg", "fedprox", "fedavg-sl")
CLASSES, DRAWN = 100, 95 * 256


def imitate_preset(preset: str, out: Path, rounds: int = 60, probe_every: int = 5, *settings: str) -> list[Path]:
    """Every cell of a preset as made-up records under its own folder name, with fewer rounds."""
    paths = []
    for name, config in expand(override(read_toml(preset), ["train.precision=fp32", *settings])):
        if not (out / name).exists():
            paths.append(imitate(out / name, config, rounds, probe_every))
    return paths


def imitate(folder: Path, config: Config, rounds: int, probe_every: int) -> Path:
    """A run whose quantities move as one would expect: smooth, a little noisy, consistent with one another."""
    name, options = config.method.name, dict(config.method.settings)
    key = [config.seed, round(1000 * config.partition.alpha), *name.encode(), *json.dumps(options).encode()]
    rng = np.random.default_rng(key)
    ease = np.log10(10 * config.partition.alpha) if config.partition.kind != "iid" else 1.2  # 0 at alpha 0.1
    final = FINAL.get(name, 45) + 1.5 * ease + rng.normal(0, 0.4)
    if "lam" in options or options.get("cdsc") is False or "kappa" in options:
        final -= 1 + 2 * abs(options.get("lam", 0.4) - 0.4) + 0.05 * abs(options.get("kappa", 14) - 14)
    clients = config.train.clients_per_round
    lines = []
    for r in range(1, rounds + 1):
        t = 1 - np.exp(-5 * r / rounds)
        accuracy = round(float(final * t + rng.normal(0, 0.3)), 2)
        sums = {"steps": np.full(clients, 95.0), "l_s": np.full(clients, 95 * (1.5 - t)), "l_u": np.full(clients, 30.0)}
        if name not in UNLABELED:
            sums |= label_sums(rng, clients, t, accuracy / 100, ease, name)
        if r % probe_every == 0 or r > rounds - 10:
            who = np.sort(rng.choice(max(clients, config.partition.clients), clients, replace=False))
            arrays = {k: v.astype(np.float32) for k, v in sums.items()} | {"clients": who}
            (folder / "probes").mkdir(parents=True, exist_ok=True)
            write_probes(folder / "probes" / f"{r:06d}.safetensors", r, arrays)
        total = {k: float(v.sum()) for k, v in sums.items() if v.ndim == 1}
        split = {}
        if "lam_sure_by_class" in sums:
            split = by_majority(sums, np.tile(np.arange(CLASSES), (clients, 1)))
        measures = {name: accuracy - place for place, name in enumerate(MEASURES)}
        tests = {norm: {**measures, "loss": 2.0} for norm in ("train_norm", "authors_norm")}
        line = {"round": r, "clients": list(range(clients)), **measures, "test": tests}
        line |= {**{f"ema_{name}": number for name, number in measures.items()}, "ema_test": tests}
        line |= {"server_loss": 1.5 - t, **rates(total, total["steps"]), **split}
        line |= {"sums": scalars(sums), "last_epoch": scalars(sums)}
        line["timing"] = {"seconds": 3.0, "record_seconds": 0.0}
        lines.append(line)
    if folder.exists():  # the probes are there already
        probes = folder.rename(folder.with_suffix(".part"))
        write_files(folder, config, lines, finished=True)
        (probes / "probes").rename(folder / "probes")
        probes.rmdir()
        return folder
    return write_files(folder, config, lines, finished=True)


def label_sums(
    rng: np.random.Generator, clients: int, t: float, accuracy: float, ease: float, name: str
) -> dict[str, np.ndarray]:
    """Accumulators of one round, by client."""
    noise = 1 + rng.normal(0, 0.02, clients)
    sage = "sage" in name
    share_l, share_g = (0.05 + 0.35 * t) * noise, (0.03 + (0.18 + 0.05 * ease) * t) * noise
    right_l, right_g = 0.6 + 0.2 * t + 0.02 * ease + 0.01 * sage, 0.65 + 0.18 * t + 0.02 * ease + 0.01 * sage
    n = np.full(clients, float(DRAWN))
    n_l, n_g = np.floor(n * share_l), np.floor(n * share_g)
    fallback = np.floor(0.25 * n_g)
    valid = n_l + fallback if sage else n_g if name == "fixmatch-gpl" else n_l
    by_class = rng.dirichlet(np.full(CLASSES, 5.0), clients)
    lam = 0.5 + 0.1 * ease - 0.2 * (1 - t)
    slope = np.linspace(-0.08, 0.08, CLASSES)  # the classes that a client has more of have a larger lambda
    ranks = 0.5 ** np.arange(CLASSES) * (0.4 if sage else 0.9)
    ranks[0] = 3.0 + t
    ranks /= ranks.sum()
    sums = {
        **{"n": n, "n_l": n_l, "n_g": n_g, "correct_l": n * accuracy, "correct_g": n * accuracy * 1.05},
        **{"correct_l_sure": np.floor(n_l * right_l), "correct_g_sure": np.floor(n_g * right_g)},
        **{"entropy_l": n * (2.2 - 1.2 * t - 0.1 * ease), "entropy_g": n * (2.4 - 1.1 * t - 0.1 * ease)},
        **{"entropy_l_sure": n_l * 0.065, "entropy_g_sure": n_g * 0.075},
        **{"n_valid": valid, "correct_valid": np.floor(valid * (right_l + 0.02 * sage))},
        **{"n_fallback": fallback, "correct_fallback": np.floor(0.65 * fallback)},
        **{"disagree": n * (0.5 - 0.1 * t), "disagree_sure": n_l * 0.11},
        **{"lam": n * (lam - 0.2), "lam_sure": n_l * lam, "gap": n * 0.18, "gap_sure": n_l * 0.12},
        **{"labels_by_class": valid[:, None] * by_class, "correct_by_class": 0.7 * valid[:, None] * by_class},
        **{"n_by_class": n[:, None] * by_class, "n_sure_by_class": n_l[:, None] * by_class},
        **{"lam_by_class": n[:, None] * by_class * (lam - 0.2), "gap_by_class": n[:, None] * by_class * 0.18},
        **{"lam_sure_by_class": n_l[:, None] * by_class * (lam + slope), "gap_sure_by_class": n_l[:, None] * by_class},
        **{"rank_l_in_g": n_l[:, None] * ranks, "rank_g_in_l": n_g[:, None] * ranks},
    }
    for who, count in (("l", n_l), ("g", n_g)):
        top = np.exp(np.linspace(0, 3.0 if who == "l" else 2.2, 50))
        low = np.exp(-np.linspace(0, 1.5, 95)) * np.linspace(0.2, 1, 95) ** 0.5
        fine = count[:, None] * top / top.sum()
        sums[f"confidence_{who}_top"] = fine
        sums[f"confidence_{who}"] = np.hstack(
            [(n - count)[:, None] * low / low.sum(), fine.reshape(clients, 5, 10).sum(-1)]
        )
    return sums
