"""Run folders as a report sees them: read without failing on a damaged line, grouped into repetitions, averaged."""

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..config import Config, flatten
from ..errors import UserError
from ..records.rounds import LAST
from ..records.store import RunFolder


class Run(NamedTuple):
    path: Path
    config: Config
    lines: list[dict[str, Any]]
    damaged: int  # lines of rounds.jsonl that could not be read

    @property
    def curve(self) -> list[float]:
        return [line["accuracy"] for line in self.lines]

    @property
    def result(self) -> float:
        return float(np.mean(self.curve[-LAST:]))


def read_run(path: Path) -> Run:
    folder = RunFolder(path)
    if not folder.config_file.is_file():
        raise UserError(f"{path} is not a run folder (no config.toml); `fssl run` makes one, `fssl compare` takes many")
    lines, damaged = read_lines(folder.rounds_file)
    if not lines:
        raise UserError(f"{path} has no finished round yet; `fssl run ... --resume` goes on with it")
    return Run(path, folder.config(), lines, damaged)


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Every whole line of a record in the order of rounds, and how many others there are.

    A run that goes on must stop at the first damaged line; a reader need not.
    """
    lines: list[dict[str, Any]] = []
    damaged = 0
    for text in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            line = json.loads(text)
            fits = line["round"] > (lines[-1]["round"] if lines else 0) and np.isfinite(line["accuracy"])
        except (ValueError, KeyError, TypeError):
            fits = False
        if fits:
            lines.append(line)
        else:
            damaged += 1
    return lines, damaged


def find_runs(paths: Iterable[Path]) -> list[Run]:
    """Every run with at least one round below the given folders."""
    found: dict[Path, Run] = {}
    for path in paths:
        if not path.exists():
            raise UserError(f"{path} does not exist")
        for folder in sorted(p.parent for p in path.rglob("rounds.jsonl")):
            if folder.resolve() not in found and read_lines(folder / "rounds.jsonl")[0]:
                found[folder.resolve()] = read_run(folder)
    if not found:
        raise UserError(f"no runs in {', '.join(map(str, paths))}; `fssl run` makes one")
    return list(found.values())


def group_key(run: Run) -> str:
    """Everything but the seed: runs that differ in nothing else are repetitions."""
    ignored = ("seed", "data.dir")
    settings = {
        k: v for k, v in flatten(run.config).items() if k not in ignored and not k.startswith(("compute.", "records."))
    }
    return json.dumps(settings, sort_keys=True)


def groups_of(runs: list[Run]) -> dict[str, list[Run]]:
    """Repetitions under a short name that says in what the groups differ."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[group_key(run)].append(run)
    settings = {key: json.loads(key) for key in groups}
    named = {}
    for key, members in groups.items():
        extra = [f"{k.rsplit('.', 1)[-1]}={v}" for k, v in settings[key].items() if tells_apart(k, key, settings)]
        named[", ".join([members[0].config.method.name, *extra])] = members
    return named


def tells_apart(setting: str, key: str, settings: dict[str, dict[str, Any]]) -> bool:
    """Whether a setting varies: a method's own among its namesakes, any other among all groups."""
    if setting == "method.name":
        return False
    mine = settings[key]
    peers = [
        s for s in settings.values() if not setting.startswith("method.") or s["method.name"] == mine["method.name"]
    ]
    return any(s.get(setting) != mine[setting] for s in peers)


def mean_std(values: list[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation; no spread from a single run."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None


def spread(values: list[float], digits: int = 2) -> str:
    mean, std = mean_std(values)
    return f"{mean:.{digits}f}" + (f" ± {std:.{digits}f}" if std is not None else "")


def percents(run: Run, key: str) -> list[float]:
    """A quantity by round; nan where nothing was counted."""
    return [np.nan if line.get(key) is None else 100 * line[key] for line in run.lines]


def label_quality(runs: list[Run], key: str) -> str:
    """Mean and spread over runs of a quantity's last rounds, where they have it."""
    late = [[p for p in percents(run, key)[-LAST:] if not np.isnan(p)] for run in runs]
    known = [float(np.mean(values)) for values in late if values]
    return spread(known, 1) if known else "–"


def verdict(groups: dict[str, list[Run]], order: list[str]) -> str:
    """What came out, in words: who leads, and whether the lead is larger than the spread."""
    if len(order) < 2:
        return "One setting only: nothing to compare."
    first, second = (groups[name] for name in order[:2])
    lead = np.mean([r.result for r in first]) - np.mean([r.result for r in second])
    text = f"{order[0]} leads {order[1]} by {lead:.2f} points"
    pairs = paired(first, second)
    if len(pairs) > 1:
        low, high = min(pairs), max(pairs)
        text += f" (seed by seed {low:+.2f} to {high:+.2f})"
        text += "." if low > 0 else ": not in every seed, so this does not separate them."
        return text
    return text + ": a single seed says little."


def paired(first: list[Run], second: list[Run]) -> list[float]:
    """Differences between runs of the same seed."""
    other = {r.config.seed: r.result for r in second}
    return [r.result - other[r.config.seed] for r in first if r.config.seed in other]
