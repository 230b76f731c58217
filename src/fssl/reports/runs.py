"""Read run folders for reports, skipping damaged lines, and average their numbers."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from ..catalog.facts import with_defaults
from ..config import Config, Headline
from ..errors import UserError, shortened, unknown
from ..records.accepted import ACCEPTED, acceptance, rate_fault
from ..records.chain import ENDING, Chain, read_line
from ..records.environment import UNKNOWN_COMMIT, short_commit
from ..records.rounds import MEASURES, Line, has_stopped, is_over, of_last
from ..records.sealing import read_probe
from ..records.store import INSIDE_A_RUN, RunFolder
from ..system.workers import forked, map_pieces

Numbers = NDArray[np.float64]
LARGEST = 1e15  # numbers beyond this count as damage
NO_ROUND = "no finished round"
UNREAD = "no line of rounds.jsonl can be read"
GAP = 10  # most rounds that may be missing between two lines
MANY_FOLDERS = 40  # runs from which a second process saves time
SHOWN = 5  # damaged lines, or runs, that a remark lists
Read = Callable[[Line], float | None]
ClassCounts = list[list[int]]


class Extras:
    """The other files of a run folder, as they were when they were read.

    `damaged` names files that exist and cannot be read.
    """

    def __init__(self, folder: RunFolder, last: Sequence[int]) -> None:
        self.folder = folder
        self._last = last  # the last ten rounds

    @cached_property
    def sessions(self) -> list[dict[str, Any]]:
        """Return the entry of each start of the run in env.json."""
        return self.folder.sessions()

    def traffic(self, lines: Sequence[Line]) -> float | None:
        """Return the bytes that all clients of a round receive and send; None if the run has not recorded them."""
        ways = [(value(session, "traffic", "down"), value(session, "traffic", "up")) for session in self.sessions]
        sent = next((down + up for down, up in ways if down is not None and up is not None), None)
        drawn = [len(line["clients"]) for line in lines if isinstance(line.get("clients"), list)]
        return sent * float(np.mean(drawn)) if drawn and sent is not None else None

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Return the results of the run's last end; empty if it never finished."""
        return self.folder.summary()

    @cached_property
    def partition(self) -> dict[str, Any] | None:
        """Return client x class counts, the server's as one row, and the sites' names if they have any.

        Return None without a complete file. A table is None if this computer cannot know it, or the server has no
        labels.
        """
        facts = self.folder.partition()
        rows = {"labeled": facts.get("labeled", ""), "unlabeled": facts.get("unlabeled", "")}
        rows["server"] = None if (own := facts.get("server")) is None else [own]
        counts: dict[str, Any] = {name: table_of_counts(each) for name, each in rows.items()}
        is_damaged = any(counts[name] is None and each is not None for name, each in rows.items())
        names = facts.get("names")
        if isinstance(names, list) and len(names) == len(counts["labeled"] or counts["unlabeled"] or ()):
            counts["names"] = [*map(str, names)]
        return None if is_damaged else counts

    @cached_property
    def models(self) -> dict[str, Any]:
        """Return the entry of each final model in measures.json, by its name."""
        found: dict[str, Any] = self.folder.measures().get("models", {})
        return found

    @cached_property
    def confusions(self) -> dict[str, dict[str, Any]]:
        """Return the confusion matrix of each final model, with its round."""
        tables = {name: table_of_counts(facts.get("test", {}).get("confusion")) for name, facts in self.models.items()}
        return {
            name: {"round": self.models[name].get("round"), "confusion": table}
            for name, table in tables.items()
            if table
        }

    @cached_property
    def by_class(self) -> tuple[Numbers, Numbers, int]:
        """Return the used and the correct pseudo-labels of the last rounds by class, and the number of damaged files.

        The correct ones are 0 if the true classes are unknown.
        """
        labels, correct, damaged = np.zeros(0), np.zeros(0), 0
        for round in self._last:
            file = self.folder.probe_file(round)
            used, right = (read_probe(file, f"{name}_by_class") for name in ("labels", "correct"))
            if used is None or right is None or len(right) not in (0, len(used)):
                damaged += 1
            elif len(right) and len(labels) in (len(used), 0):
                labels, correct = (labels + used, correct + right) if len(labels) else (used, right)
        return labels, correct, damaged

    @property
    def damage(self) -> list[str]:
        """Return a remark on each file that is missing or cannot be read."""
        folder, lost = self.folder, self.by_class[-1]
        remarks = {
            "env.json is missing or damaged: hardware unknown": not self.sessions,
            "summary.json cannot be read; the numbers here come from rounds.jsonl": (
                not self.summary and folder.summary_file.is_file()
            ),
            "partition.json is damaged": self.partition is None and folder.partition_file.is_file(),
            "measures.json is damaged": not self.models and folder.measures_file.is_file(),
            f"probes of {lost} of the last {len(self._last)} rounds are damaged": lost > 0,
        }
        return [text for text, is_so in remarks.items() if is_so]


def table_of_counts(rows: Any) -> ClassCounts | None:
    """Return rows of whole numbers if they have equal length, else None."""
    try:
        table = np.array(rows)
    except ValueError:
        return None
    is_table = table.ndim == 2 and table.size > 0 and np.issubdtype(table.dtype, np.integer)
    return table.tolist() if is_table else None


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder at the time of reading; two objects are equal only if they are the same one.

    Attributes:
        path: The folder.
        config: All settings.
        lines: The lines of rounds.jsonl, one dict per round.
        damaged: Numbers of lines that cannot be read.
        has_edits: Whether a damaged line is complete except for its check, so that it may have been edited.
        remark: The remark on an edited record that was accepted.
        extras: Further files: summary, environment, partition and probes.
        measure: The test measure of `curve` and `result`.

    Examples:
        >>> run = fssl.runs("runs")[0]
        >>> run.config.seed, run.result, run.curve, run.lines[-1]["round"]
    """

    path: Path
    config: Config
    lines: list[Line]
    damaged: list[int]
    has_edits: bool
    remark: str
    extras: Extras
    measure: str

    @property
    def sessions(self) -> Sequence[Mapping[str, Any]]:
        """Return the entry of each start in env.json."""
        return self.extras.sessions

    @property
    def commits(self) -> list[str]:
        """Return the commits or versions that the run was trained with, in order; a resumed run may have several."""
        return list(dict.fromkeys(map(source_of, self.sessions))) or [UNKNOWN_COMMIT]

    @property
    def curve(self) -> list[float]:
        """Return the headline measure by round."""
        return [number for line in self.lines if (number := value(line, self.measure)) is not None]

    @property
    def result(self) -> float:
        """Return the mean of the last 10 rounds, or of all rounds if there are fewer."""
        return float(np.mean(self._averaged))

    @property
    def averaged(self) -> int:
        """Return how many rounds the result averages; a damaged line does not count."""
        return len(self._averaged)

    @property
    def _averaged(self) -> list[float]:
        return late_values(self.lines, number(self.measure))

    @property
    def last_round(self) -> int:
        """Return the number of the last recorded round."""
        return int(self.lines[-1]["round"])

    @property
    def reached(self) -> int:
        """Return the last round, or the planned number of rounds if the run stopped early."""
        return self.config.rounds if has_stopped(self.extras.summary, self.config) else self.last_round

    @property
    def is_finished(self) -> bool:
        """Return whether the run is complete."""
        return self.reached >= self.config.rounds

    @property
    def has_end(self) -> bool:
        """Return whether the summary is of the run's last round; a resumed run keeps the earlier summary."""
        return is_over(self.extras.summary, self.config)

    def by(self, measure: str) -> "Run":
        """Return the same run, judged by a measure."""
        return self if measure == self.measure else replace(self, measure=measure)


def source_of(session: Mapping[str, Any]) -> str:
    """Return the commit of a start of a run; the version where fssl was installed from a wheel."""
    commit, packages = short_commit(session.get("revision")), session.get("packages")
    version = packages.get("fssl") if isinstance(packages, dict) else None
    return f"fssl {version}" if commit == UNKNOWN_COMMIT and isinstance(version, str) else commit


class Series(NamedTuple):
    """A quantity by round: the rounds that all runs have, and its values [runs, rounds]."""

    rounds: list[int]
    values: Numbers


class FoundRuns(NamedTuple):
    runs: list[Run]
    unreadable: dict[Path, str]  # folders with an unusable record, and the reason

    def judged(self, measure: str) -> "FoundRuns":
        """Return the same runs judged by one measure; leave out runs whose record lacks it."""
        runs = [run.by(measure) for run in self.runs]
        lacking = {run.path: without(measure) for run in runs if not run.curve}
        return FoundRuns([run for run in runs if run.path not in lacking], {**self.unreadable, **lacking})

    def by_measure(self, wanted: str = "") -> "FoundRuns":
        """Return the runs judged by the wanted measure, or by the one all name; raise UserError if no record has it."""
        measure = choose_measure((run.config for run in self.runs), wanted)
        judged = self.judged(measure)
        if not judged.runs:
            raise UserError(f"--measure {measure}: {without(measure)}, in none of these runs")
        return judged

    @property
    def left_out(self) -> list[str]:
        """Return a line for each folder with an unusable record."""
        return [f"left out: {path}: {why}" for path, why in self.unreadable.items()]

    @property
    def remarks(self) -> list[str]:
        """Return remarks on records that the results omit, for the terminal."""
        said = self.left_out
        said += [f"{run.path}: {accepted_text(run.remark)}" for run in self.runs if run.remark]
        return said + [text for run in self.runs for text in damage_texts(RunFolder(run.path).record, run)]


def choose_measure(configs: Iterable[Config], wanted: str = "") -> str:
    """Return the measure that judges the runs: the wanted one, or the one that all of them name; else accuracy."""
    if wanted and wanted not in get_args(Headline):
        raise unknown("--measure", wanted, get_args(Headline))
    named = {config.records.metrics for config in configs}
    return wanted or (named.pop() if len(named) == 1 else "accuracy")


def without(measure: str) -> str:
    return f"its record has no {MEASURES[measure]}"


def read_run(folder: RunFolder) -> Run | None:
    """Return the run in a folder with settings; None if no line of a round can be read.

    Reject an edited record until it is accepted.
    """
    config = with_defaults(folder.config())
    chain = folder.chain()
    texts = folder.text().splitlines()
    lines, damaged = whole_lines(chain, texts)
    has_edits = any(ENDING.fullmatch(text := texts[number - 1]) and read_line(text) for number in damaged)
    facts = acceptance(folder.path)
    if fault := chain.fault or rate_fault(lines, config, facts):
        raise UserError(f"{folder.path}: {edited(fault)}")
    if not lines and has_edits:
        raise UserError(f"{folder.path}: {edited(UNREAD)}")
    if not lines:
        return None
    extras = Extras(folder, [line["round"] for line in of_last(lines)])
    return Run(folder.path, config, lines, damaged, has_edits, facts.get("remark", ""), extras, config.records.metrics)


def edited(fault: str) -> str:
    return f"{fault}; `fssl records accept` accepts an edited record"


def accepted_text(remark: str) -> str:
    return f"an edited record, accepted: {remark}"


def whole_lines(chain: Chain, texts: Iterable[bytes]) -> tuple[list[Line], list[int]]:
    """Return the readable lines, and the line numbers of the damaged ones."""
    # A resumed run must stop at the first damaged line; a reader need not. A damaged line costs a round, or two if its
    # end was lost. A round number that jumps much farther is damaged too, and would hide all later lines.
    lines: list[Line] = []
    damaged: list[int] = []
    after = 0
    for number, line in enumerate(chain.follow(texts), 1):
        round = line.get("round") if line else None
        is_next = type(round) is int and after < round <= after + GAP + 2 * len(damaged)
        if line and is_next and is_number(line.get("accuracy")):
            lines.append(line)
            after = line["round"]
        else:
            damaged.append(number)
    return lines, damaged


def damage_texts(file: Path | str, run: Run) -> list[str]:
    """Return `rounds.jsonl: lines 3, 8 are damaged or half-written, and skipped`; nothing for a complete record."""
    numbers = [*map(str, run.damaged)]
    which = f"line {numbers[0]} is" if len(numbers) == 1 else f"lines {shortened(numbers, SHOWN)} are"
    said = f"{file}: {which} damaged or half-written, and skipped"
    return [edited(said) if run.has_edits else said] if numbers else []


def is_number(value: object) -> bool:
    """Return whether a value is a finite number of plausible size, so that sums stay finite."""
    return isinstance(value, int | float) and -LARGEST < value < LARGEST


def value(line: object, *keys: str) -> float | None:
    """Return a number of a line, or of a table in it; None if it is null, missing or damaged."""
    for key in keys:
        line = line.get(key) if isinstance(line, dict) else None
    return float(line) if is_number(line) else None  # type: ignore[arg-type]  # just checked


def run_folders(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield every run folder at or below the given ones once, including runs that failed before their first record."""
    seen = set()
    for path in paths:
        if not path.exists():
            raise UserError(f"{path} does not exist")
        for root, folders, files in os.walk(path):
            folders[:] = sorted(name for name in folders if name not in INSIDE_A_RUN)
            folder = Path(root)
            run = RunFolder(folder)
            is_run = run.record.name in files or {run.config_file.name, run.env_file.name} <= {*files}
            if is_run and (place := folder.resolve()) not in seen:
                seen.add(place)
                yield folder


def as_read(run: Run) -> Run:
    return run


class Reader:
    """Reads run folders, and rereads a folder only if one of its files has changed."""

    def __init__(self, prepare: Callable[[Run], Run] = as_read, processes: int = 1) -> None:
        """Pass runs through `prepare`, in this many processes if there are many runs."""
        # Parsing JSON takes most of the time.
        self._read, self._processes = partial(read_folder, prepare=prepare), processes
        self._known: dict[Path, tuple[object, Run | str]] = {}  # by folder: its files, and the run or error

    def read(self, paths: Iterable[Path]) -> FoundRuns:
        """Return every run with at least one round below the given folders, skipping unreadable ones."""
        now = {folder: signature(folder) for folder in run_folders(paths)}
        new = [folder for folder in now if folder not in self._known or self._known[folder][0] != now[folder]]
        with forked(self._processes if len(new) >= MANY_FOLDERS else 1) as pool:
            read = dict(zip(new, map_pieces(pool, self._read, new, at_once=4), strict=True))
        self._known = {f: (now[f], read[f]) if f in read else self._known[f] for f in now}
        outcomes = {folder: outcome for folder, (_, outcome) in self._known.items()}
        return FoundRuns(
            [outcome for outcome in outcomes.values() if isinstance(outcome, Run)],
            {folder: outcome for folder, outcome in outcomes.items() if isinstance(outcome, str)},
        )


def read_folder(path: Path, prepare: Callable[[Run], Run]) -> Run | str:
    """Return the run in a folder, or the reason why its record is unusable."""
    folder = RunFolder(path)
    if not folder.config_file.is_file():
        return "no config.toml"
    try:
        run = read_run(folder)
    except (UserError, OSError) as error:
        return str(error).removeprefix(f"{path}: ")
    if run:
        return prepare(run)
    return UNREAD if folder.has_rounds else NO_ROUND


def signature(path: Path) -> list[tuple[int, int, int] | None]:
    """Return a value that changes whenever a file of the run that readers use changes."""
    of = RunFolder(path)
    files = of.config_file, of.env_file, of.partition_file, of.record, of.summary_file, of.measures_file
    return [state_of(file) for file in (*files, path / ACCEPTED)]


def state_of(file: Path) -> tuple[int, int, int] | None:
    try:
        facts = file.stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def find_runs(paths: Iterable[Path], prepare: Callable[[Run], Run] = as_read, processes: int = 1) -> FoundRuns:
    """Return every run below the given folders, and why others are left out; raise UserError if there is none.

    A record that was edited after it was written is left out until it is accepted.
    """
    paths = list(paths)
    found = Reader(prepare, processes).read(paths)
    if not found.runs:
        raise no_runs(paths, next(iter(found.unreadable.values()), ""))
    return found


def no_runs(paths: Iterable[Path], why: str) -> UserError:
    return UserError(f"no runs in {', '.join(map(str, paths))}; `fssl run` makes one" + (f" ({why})" if why else ""))


def privacy_text(run: Run) -> str:
    """Return the privacy loss of one client in a finished run with noise; empty if it is unknown."""
    # A resumed run keeps its earlier summary, which lacks the loss of later rounds.
    spent = run.extras.summary.get("privacy") if run.has_end else None
    if not isinstance(spent, dict) or not all(is_number(spent.get(key)) for key in ("hidden", "known", "delta")):
        return ""
    known = f"{spent['known']:.3g} against an adversary who knows the participants"
    return f"epsilon {spent['hidden']:.3g} with delta {spent['delta']:g}; {known}"


def commits_of(runs: Iterable[Run]) -> list[str]:
    """Return every commit that trained one of these runs, in order."""
    return list(dict.fromkeys(commit for run in runs for commit in run.commits))


def mean_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Return mean and sample standard deviation; None instead of a deviation for a single run."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None


def spread(values: list[float], digits: int = 2) -> str:
    """Return mean ± standard deviation as text; a dash without values."""
    if not values:
        return "–"
    mean, std = mean_std(values)
    return f"{mean:.{digits}f}" + (f" ± {std:.{digits}f}" if std is not None else "")


def number(*keys: str) -> Read:
    """Return a function that reads a number of a line."""
    return lambda line: value(line, *keys)


def percent(key: str) -> Read:
    """Return a function that reads a share of a line, in percent."""
    return lambda line: None if (share := value(line, key)) is None else 100 * share


def by_round(run: Run, read: Read) -> dict[int, float]:
    """Return a quantity by round, for rounds that recorded it."""
    numbers = ((line["round"], read(line)) for line in run.lines)
    return {round: number for round, number in numbers if number is not None}


def joined(curves: Iterable[Mapping[int, float]]) -> Series:
    """Return the curves over the rounds that all of them have."""
    given = list(curves)
    rounds = sorted(set.intersection(*(set(curve) for curve in given))) if given else []
    return Series(rounds, np.array([[curve[r] for r in rounds] for curve in given]).reshape(len(given), len(rounds)))


def late(run: Run, read: Read) -> float | None:
    """Return the mean of a quantity over those of the last rounds that recorded it."""
    values = late_values(run.lines, read)
    return float(np.mean(values)) if values else None


def late_values(lines: Sequence[Line], read: Read) -> list[float]:
    """Return a quantity in those of the last rounds that recorded it."""
    return [value for line in of_last(lines) if (value := read(line)) is not None]


def own_metrics(runs: Iterable[Run]) -> list[str]:
    """Return the names of the metrics that scripts recorded (`fssl.run(metrics=)`), in their order."""
    return list(dict.fromkeys(name for run in runs for line in run.lines for name in line.get("metrics") or ()))


def label_quality(runs: list[Run], key: str) -> str:
    """Return mean and spread over runs of a share in the last rounds, for runs that recorded it."""
    known = [mean for run in runs if (mean := late(run, percent(key))) is not None]
    return spread(known, 1)
