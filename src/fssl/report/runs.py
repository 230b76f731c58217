"""Run folders as a report sees them: read without failing on a damaged line, grouped into repetitions, averaged."""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..config import Config, flatten
from ..console import setting_text
from ..errors import UserError, unknown
from ..methods import with_defaults
from ..records.rounds import LAST
from ..records.store import INSIDE_A_RUN, RunFolder
from .look import split_plugins

Numbers = NDArray[np.float64]
LARGEST = 1e15  # of a number; one beyond is damage
NO_ROUND = "no finished round"
GAP = 10  # rounds that may be missing without a trace


class Repetition(Protocol):
    """What grouping and ranking ask of a run, however much of its record is kept."""

    @property
    def config(self) -> Config: ...
    @property
    def result(self) -> float: ...
    @property
    def last_round(self) -> int: ...


R = TypeVar("R", bound=Repetition)
Read = Callable[[dict[str, Any]], float | None]


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

    @property
    def last_round(self) -> int:
        return int(self.lines[-1]["round"])


class Series(NamedTuple):
    """A quantity by round: the rounds that all runs have, and [runs, rounds]."""

    rounds: list[int]
    values: Numbers


class Found(NamedTuple):
    runs: list[Run]
    unreadable: dict[Path, str]  # folders with a record that cannot be used, and why

    @property
    def remarks(self) -> list[str]:
        """What of the records is not in a result, for the terminal."""
        said = [f"left out: {path}: {why}" for path, why in self.unreadable.items()]
        damaged = sum(run.damaged for run in self.runs)
        return said + ([f"{damaged} damaged or half-written lines of rounds.jsonl are skipped"] if damaged else [])


def read_run(folder: RunFolder) -> Run | None:
    """The run in a folder with settings; None where not one line of a round can be read."""
    file = folder.rounds_file
    lines, damaged = whole_lines(file.read_bytes().splitlines() if file.is_file() else ())
    return Run(folder.path, folder.config(), lines, damaged) if lines else None


def whole_lines(texts: Sequence[bytes], after: int = 0, damaged: int = 0) -> tuple[list[dict[str, Any]], int]:
    """The lines that can be read and come after a round, and the number of damaged ones, earlier ones included.

    A run that goes on must stop at the first damaged line; a reader need not. A damaged line costs a round, or two
    where a line's end was lost: a number that jumps much farther is damaged itself, and would hide all that follow.
    """
    lines: list[dict[str, Any]] = []
    for text in texts:
        try:
            line = json.loads(text)
            is_next = type(line["round"]) is int and after < line["round"] <= after + GAP + 2 * damaged
            is_whole = is_next and is_number(line["accuracy"])
        except (ValueError, KeyError, TypeError, RecursionError):
            is_whole = False
        if is_whole:
            lines.append(line)
            after = line["round"]
        else:
            damaged += 1
    return lines, damaged


def is_number(value: object) -> bool:
    """Whether sums of such values stay finite: no text, no nan, and nothing that only damage can write."""
    return isinstance(value, int | float) and -LARGEST < value < LARGEST


def value(line: object, *keys: str) -> float | None:
    """A number of a line, or of a table in it; None where there is none, be it null, missing or damaged."""
    for key in keys:
        line = line.get(key) if isinstance(line, dict) else None
    return float(line) if is_number(line) else None  # type: ignore[arg-type]  # just checked


def read_probe(path: Path, name: str) -> Numbers | None:
    """An array by bin or class of a round's probes, summed over clients; empty if there is none, None if damaged."""
    if not path.is_file():
        return np.zeros(0)
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            if name not in file.keys():  # noqa: SIM118 (not a mapping)
                return np.zeros(0)
            total = np.asarray(file.get_tensor(name), np.float64).sum(0)
            return total if total.ndim == 1 and np.isfinite(total).all() else None
    except (OSError, ValueError, SafetensorError):
        return None


def run_folders(paths: Iterable[Path]) -> Iterator[Path]:
    """Every folder of a run at or below the given ones, each once, also of one that failed before its first record."""
    seen = set()
    for path in paths:
        if not path.exists():
            raise UserError(f"{path} does not exist")
        for root, folders, files in os.walk(path):
            folders[:] = sorted(name for name in folders if name not in INSIDE_A_RUN)
            folder = Path(root)
            run = RunFolder(folder)
            is_run = run.rounds_file.name in files or {run.config_file.name, run.env_file.name} <= {*files}
            if is_run and (place := folder.resolve()) not in seen:
                seen.add(place)
                yield folder


def find_runs(paths: Iterable[Path]) -> Found:
    """Every run with at least one round below the given folders; what cannot be read costs itself only."""
    paths = list(paths)
    found = Found([], {})
    for folder in (RunFolder(path, with_defaults) for path in run_folders(paths)):
        try:
            if not folder.config_file.is_file():
                found.unreadable[folder.path] = "no config.toml"
            elif run := read_run(folder):
                found.runs.append(run)
            else:
                found.unreadable[folder.path] = "no line of rounds.jsonl can be read" if folder.has_rounds else NO_ROUND
        except (UserError, OSError) as error:
            found.unreadable[folder.path] = str(error)
    if not found.runs:
        raise no_runs(paths, next(iter(found.unreadable.values()), ""))
    return found


def no_runs(paths: Iterable[Path], why: str) -> UserError:
    return UserError(f"no runs in {', '.join(map(str, paths))}; `fssl run` makes one" + (f" ({why})" if why else ""))


def one_per_seed(runs: Iterable[R], length: Callable[[R], int] = attrgetter("last_round")) -> list[R]:
    """The longest run of each seed, seeds in order: a longer one passes through the same rounds."""
    chosen: dict[int, R] = {}
    for run in runs:
        seed = run.config.seed
        if seed not in chosen or length(run) > length(chosen[seed]):
            chosen[seed] = run
    return [chosen[seed] for seed in sorted(chosen)]


def distinct(runs: Iterable[R]) -> list[R]:
    """One run of each setting and seed: a copy, or the same seed once more, is no further repetition."""
    return [run for members in repetitions(runs).values() for run in one_per_seed(members)]


def settings_of(run: Repetition, aside: str = "") -> dict[str, Any]:
    """Everything but the seed and what changes no result: runs that differ in nothing else are repetitions.

    Here and below `aside` is a setting that may differ as well, because results are told by its values.
    """
    ignored = {"seed", "data.dir", aside}
    ignored |= {"partition.alpha"} if run.config.partition.kind == "iid" else set()
    ignored |= {"train.local_epochs"} if run.config.train.steps_per_round else set()
    flat = flatten(run.config).items()
    return {k: v for k, v in flat if k not in ignored and not k.startswith(("compute.", "records."))}


def group_key(run: Repetition, aside: str = "") -> str:
    return json.dumps(settings_of(run, aside), sort_keys=True)


def repetitions(runs: Iterable[R], aside: str = "") -> dict[str, list[R]]:
    """Runs of one setting together, under its key."""
    groups: dict[str, list[R]] = defaultdict(list)
    for run in runs:
        groups[group_key(run, aside)].append(run)
    return groups


def groups_of(runs: Iterable[R], aside: str = "") -> dict[str, list[R]]:
    """Repetitions under a short name that says in what the groups differ."""
    groups = repetitions(runs, aside)
    settings = [json.loads(key) for key in groups]
    varying = what_varies(settings)
    named = {}
    for mine, members in zip(settings, groups.values(), strict=True):
        extra = [f"{k.rsplit('.', 1)[-1]}={setting_text(v)}" for k, v in mine.items() if peers(k, mine) in varying]
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


def seeds_of(runs: Iterable[Repetition]) -> str:
    """Seeds as a table shows them; those of unfinished runs have a star."""
    stars = {run.config.seed: "" if run.last_round >= run.config.rounds else "*" for run in runs}
    return " ".join(f"{seed}{stars[seed]}" for seed in sorted(stars))


def mean_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation; no spread from a single run."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None


def spread(values: list[float], digits: int = 2) -> str:
    """Mean ± standard deviation; a dash where there is nothing."""
    if not values:
        return "–"
    mean, std = mean_std(values)
    return f"{mean:.{digits}f}" + (f" ± {std:.{digits}f}" if std is not None else "")


def number(*keys: str) -> Read:
    """Reads a number of a line."""
    return lambda line: value(line, *keys)


def percent(key: str) -> Read:
    """Reads a share of a line, in percent."""
    return lambda line: None if (share := value(line, key)) is None else 100 * share


def by_round(run: Run, read: Read) -> dict[int, float]:
    """A quantity by round, where it was counted."""
    numbers = ((line["round"], read(line)) for line in run.lines)
    return {round: number for round, number in numbers if number is not None}


def joined(curves: Iterable[Mapping[int, float]]) -> Series:
    """Curves over the rounds that all of them have."""
    given = list(curves)
    rounds = sorted(set.intersection(*(set(curve) for curve in given))) if given else []
    return Series(rounds, np.array([[curve[r] for r in rounds] for curve in given]).reshape(len(given), len(rounds)))


def late(run: Run, read: Read) -> float | None:
    """The mean of a quantity over the last rounds, as far as they have it."""
    values = [number for line in run.lines[-LAST:] if (number := read(line)) is not None]
    return float(np.mean(values)) if values else None


def label_quality(runs: list[Run], key: str) -> str:
    """Mean and spread over runs of a quantity's last rounds, where they have it."""
    known = [mean for run in runs if (mean := late(run, percent(key))) is not None]
    return spread(known, 1)


def is_bound(method: str) -> bool:
    """Whether a method is told true labels: an upper bound, no competitor."""
    base, plugins = split_plugins(method)
    return base == "fedavg-sl" or "oracle" in plugins


def reach(runs: Sequence[Repetition]) -> int:
    """The round that all of these have come to."""
    return min(run.last_round for run in runs)


def rivals(groups: Mapping[str, Sequence[Repetition]]) -> list[str]:
    """Groups that can be compared, best first: no upper bound, and all as far as the one that is farthest."""
    names = [name for name, runs in groups.items() if not is_bound(runs[0].config.method.name)]
    farthest = max((reach(groups[name]) for name in names), default=0)
    return by_result({name: groups[name] for name in names if reach(groups[name]) == farthest})


def by_result(groups: Mapping[str, Sequence[Repetition]]) -> list[str]:
    """Names, best first."""
    return sorted(groups, key=lambda name: -mean_result(groups[name]))


def mean_result(runs: Sequence[Repetition]) -> float:
    return float(np.mean([run.result for run in runs]))


def verdict(groups: Mapping[str, Sequence[Repetition]]) -> str:
    """What came out, in words: who leads, and whether every seed says so."""
    order = rivals(groups)
    if len(order) < 2:
        return "One setting only: nothing to compare." if len(groups) < 2 else "Nothing to compare yet."
    first, second = order[:2]
    lead = margin(groups[first], groups[second])
    if round(lead, 2) == 0:
        return f"{first} and {second} are level{where(groups[first], groups[second])}."
    if lead < 0:  # the better mean is that of other seeds
        first, second, lead = second, first, -lead
    return f"{first} leads {second} by {lead:.2f} points" + how_sure(lead, groups[first], groups[second])


def margin(first: Sequence[Repetition], second: Sequence[Repetition]) -> float:
    """How far one is ahead: in the seeds that both have, or, where they share none, on average."""
    pairs = paired(first, second)
    return float(np.mean(pairs)) if pairs else mean_result(first) - mean_result(second)


def where(first: Sequence[Repetition], second: Sequence[Repetition]) -> str:
    shared = len(paired(first, second))
    return " in the seeds that both have" if shared and shared < max(len(first), len(second)) else ""


def how_sure(difference: float, first: Sequence[Repetition], second: Sequence[Repetition]) -> str:
    """The end of a sentence on a difference: what its seeds say one by one."""
    pairs, shared = paired(first, second), where(first, second)
    if len(pairs) > 1:
        low, high = min(pairs), max(pairs)
        is_clear = low > 0 if difference > 0 else high < 0
        end = "." if is_clear else ": not in every seed, so this does not separate them."
        return f"{shared} (seed by seed {low:+.2f} to {high:+.2f}){end}"
    return f"{shared}: a single seed says little." if pairs else ": no seed in common, so this says little."


def gains(groups: Mapping[str, Sequence[Repetition]]) -> list[str]:
    """What SAGE as a plug-in adds to its host, a sentence for each host that is there as well."""
    said = []
    ranked = rivals(groups)
    for name in ranked:
        host = host_of(groups[name][0], {other: groups[other] for other in ranked})
        if host and {name, host} != {*ranked[:2]}:  # of those two the verdict tells
            said.append(beside_text(name, host, groups))
    return said


def beside(name: str, groups: Mapping[str, Sequence[Repetition]]) -> list[str]:
    """A sentence on each other group that can be compared with the named one."""
    if name not in groups:
        raise unknown("--against", name, groups)
    ranked = rivals(groups)
    if name not in ranked:
        return []
    return [beside_text(name, other, groups) for other in ranked if other != name]


def beside_text(name: str, other: str, groups: Mapping[str, Sequence[Repetition]]) -> str:
    gain = margin(groups[name], groups[other])
    return f"{name} {gain:+.2f} points beside {other}{how_sure(gain, groups[name], groups[other])}"


def host_of(run: Repetition, groups: Mapping[str, Sequence[Repetition]]) -> str | None:
    """The group of the method that this one is a plug-in on, with the same settings."""
    method = run.config.method.name
    if not method.endswith("+sage"):
        return None
    mine = settings_of(run)
    hosts = {name: runs[0] for name, runs in groups.items() if runs[0].config.method.name == method[: -len("+sage")]}
    for name, host in hosts.items():
        if all(mine.get(k) == v for k, v in settings_of(host).items() if k != "method.name"):
            return name
    return None


def not_compared(groups: Mapping[str, Sequence[Repetition]]) -> list[str]:
    """A sentence for each kind of group that the verdict leaves out."""
    left = [name for name in by_result(groups) if name not in rivals(groups)]
    bounds = [name for name in left if is_bound(groups[name][0].config.method.name)]
    behind = [f"{n} (round {reach(groups[n])} of {groups[n][0].config.rounds})" for n in left if n not in bounds]
    known = [f"{name} ({mean_result(groups[name]):.2f} %)" for name in bounds]
    said = [f"Not as far as the others, so not compared: {', '.join(behind)}."] if behind else []
    return said + ([f"Told the true labels, an upper bound: {', '.join(known)}."] if known else [])


def paired(first: Sequence[Repetition], second: Sequence[Repetition]) -> list[float]:
    """Differences between runs of the same seed."""
    other = {r.config.seed: r.result for r in second}
    return [r.result - other[r.config.seed] for r in first if r.config.seed in other]
