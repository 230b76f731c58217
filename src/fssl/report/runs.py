"""Run folders as a report sees them: read without failing on a damaged line, grouped into repetitions, averaged."""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from ..config import Config, flatten
from ..errors import UserError
from ..records.rounds import LAST
from ..records.store import RunFolder

LONGEST = 1_000_000  # rounds; a number beyond is damage
LARGEST = 1e15
INSIDE_A_RUN = ("probes", "checkpoint", "tensorboard", "wandb")  # many files, and never a run


class Repetition(Protocol):
    """What grouping and ranking ask of a run, however much of its record is kept."""

    @property
    def config(self) -> Config: ...
    @property
    def result(self) -> float: ...


R = TypeVar("R", bound=Repetition)


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
    """Every whole line of a record in the order of rounds, and how many others there are."""
    return whole_lines(path.read_bytes().splitlines() if path.is_file() else ())


def whole_lines(texts: Sequence[bytes], after: int = 0) -> tuple[list[dict[str, Any]], int]:
    """The lines that can be read and come after a round, and the number of others.

    A run that goes on must stop at the first damaged line; a reader need not.
    """
    lines: list[dict[str, Any]] = []
    for text in texts:
        try:
            line = json.loads(text)
            if type(line["round"]) is int and after < line["round"] <= LONGEST and is_number(line["accuracy"]):
                lines.append(line)
                after = line["round"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return lines, len(texts) - len(lines)


def is_number(value: object) -> bool:
    """Whether sums of such values stay finite: no text, no nan, and nothing that only damage can write."""
    return isinstance(value, int | float) and -LARGEST < value < LARGEST


def run_folders(paths: Iterable[Path]) -> Iterator[Path]:
    """Every folder with a record at or below the given ones, each once."""
    seen = set()
    for path in paths:
        if not path.exists():
            raise UserError(f"{path} does not exist")
        for root, folders, files in os.walk(path):
            folders[:] = sorted(name for name in folders if name not in INSIDE_A_RUN)
            folder = Path(root)
            if "rounds.jsonl" in files and (place := folder.resolve()) not in seen:
                seen.add(place)
                yield folder


def find_runs(paths: Iterable[Path]) -> list[Run]:
    """Every run with at least one round below the given folders."""
    paths = list(paths)
    runs = []
    for folder in run_folders(paths):
        lines, damaged = read_lines(folder / "rounds.jsonl")
        if lines:
            runs.append(Run(folder, RunFolder(folder).config(), lines, damaged))
    if not runs:
        raise no_runs(paths)
    return runs


def no_runs(paths: Iterable[Path]) -> UserError:
    return UserError(f"no runs in {', '.join(map(str, paths))}; `fssl run` makes one")


def settings_of(run: Repetition) -> dict[str, Any]:
    """Everything but the seed and what changes no result: runs that differ in nothing else are repetitions."""
    ignored = ("seed", "data.dir")
    flat = flatten(run.config).items()
    return {k: v for k, v in flat if k not in ignored and not k.startswith(("compute.", "records."))}


def group_key(run: Repetition) -> str:
    return json.dumps(settings_of(run), sort_keys=True)


def groups_of(runs: Iterable[R]) -> dict[str, list[R]]:
    """Repetitions under a short name that says in what the groups differ."""
    groups: dict[str, list[R]] = defaultdict(list)
    for run in runs:
        groups[group_key(run)].append(run)
    settings = [json.loads(key) for key in groups]
    varying = what_varies(settings)
    named = {}
    for mine, members in zip(settings, groups.values(), strict=True):
        extra = [f"{k.rsplit('.', 1)[-1]}={v}" for k, v in mine.items() if peers(k, mine) in varying]
        named[", ".join([members[0].config.method.name, *extra])] = members
    return named


def what_varies(settings: Sequence[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """The settings that have more than one value among their peers, or that only some of these have."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for mine in settings:
        for key, value in mine.items():
            found[peers(key, mine)].append(repr(value))
    namesakes = Counter(mine["method.name"] for mine in settings) | {"": len(settings)}
    return {
        (key, method)
        for (key, method), values in found.items()
        if key != "method.name" and (len(set(values)) > 1 or len(values) < namesakes[method])
    }


def peers(setting: str, mine: Mapping[str, Any]) -> tuple[str, str]:
    """A method's own setting is compared among its namesakes, any other among all."""
    return setting, mine["method.name"] if setting.startswith("method.") else ""


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


def verdict(groups: Mapping[str, Sequence[Repetition]], order: Sequence[str]) -> str:
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


def paired(first: Sequence[Repetition], second: Sequence[Repetition]) -> list[float]:
    """Differences between runs of the same seed."""
    other = {r.config.seed: r.result for r in second}
    return [r.result - other[r.config.seed] for r in first if r.config.seed in other]
