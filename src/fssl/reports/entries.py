"""Entries of a leaderboard: one small file per run, with its settings, curves, digests, environment and cost.

An entry names no folder, host or address, and is read as a run. Its checksum finds damage. Training its first rounds
again (`fssl verify`) finds numbers that the settings do not give.
"""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..catalog.facts import with_defaults
from ..config import parse, presets
from ..errors import UserError, several
from ..records.rounds import LAST, MEASURES, MEMORY, Line, of_last
from ..records.sealing import sum_of
from ..records.store import RunFolder
from ..system.files import parse_json, short_sum
from ..system.user_code import short_name
from .costs import Costs, costs_of
from .groups import method_of
from .runs import Extras, Run, is_number, value

FORMAT = 1
LARGEST = 2**20  # bytes of a file
POINTS = 10  # the first rounds, and every so many later ones, are recorded in detail
DIGITS = 4  # of a curve's values
KEYS = {key for measure in MEASURES for key in (measure, f"ema_{measure}")}
NOT_COMPARED = ("timing", "after", "check", "metrics")  # of a line: its time, its checks, and a script's own numbers
OF_SESSION = ("from_round", "started", "python", "device", "cuda", "processor", "threads", "revision", "traffic")
PACKAGES = ("fssl", "torch", "numpy")
# What decides the bits of a record on a CPU, apart from the settings.
DECIDES_BITS = ("device", "processor", "revision", "packages")

# Places of a machine: rooted and upward paths, addresses, and what follows an option that names one.
PLACE = re.compile(r"(?:\w+://|(?<![\w.])(?:~|/|\.\./|[A-Za-z]:\\))[^\s'\",\]]*")
RELATIVE = re.compile(r"[^\s'\"=,\[\]]+/[^\s'\",\]]*")  # also the name of a preset
ADDRESS = re.compile(r"(ray_address=)\S+")
NAMED_PLACES = {"--data-dir": "DATA", "--home": "HOME"}

# In repeated GPU runs (six pairs, 60 rounds, one H200) rounds differed by up to 2.2 points and 5.5 %.
POINTS_APART, LOSS_APART = 2.5, 0.06


def entry_of(run: Run, costs: Costs | None = None) -> Line:
    """Return the entry of a finished run; `costs` are those that its record lacks."""
    check_entry(run)
    folder, costs = run.extras.folder, costs or costs_of(run)
    keys = dict.fromkeys(("accuracy", run.measure, "ema_accuracy", f"ema_{run.measure}"))
    curves = {key: [value(line, key) for line in run.lines] for key in keys}
    facts = {
        "format": FORMAT,
        "rounds": run.last_round,
        "measure": run.measure,
        "result": run.result,
        "settings": without_places(folder.tables()),
        "curves": {key: rounded(curve) for key, curve in curves.items() if None not in curve},
        "seconds": [round(value(line, "timing", "seconds") or 0.0, 3) for line in run.lines],
        "points": [point_of(line) for line in run.lines if is_point(line["round"], run.last_round)],
        "sessions": [session_of(session) for session in run.sessions],
        "memory": {costs.memory.kind: costs.memory.num_bytes} if costs.memory else {},
        "traffic": costs.traffic,
        "record": sha256(folder.text()).hexdigest(),
    }
    if fault := find_fault(facts):
        raise UserError(f"{run.path}: cannot be an entry: {fault}")
    stopped = run.extras.summary.get("stopped")
    return {**facts, "stopped": stopped} if stopped else facts


def check_entry(run: Run) -> None:
    """Reject a run that is no result: unfinished, damaged or edited."""
    why = {
        f"unfinished: {run.last_round} of {run.config.rounds} rounds": not run.has_end,
        "lines of its record are damaged": bool(run.damaged),
        "its record was edited, and accepted": bool(run.remark),
        "lines of its record are missing": len(run.lines) != run.last_round,
    }
    if reason := next((text for text, is_so in why.items() if is_so), ""):
        raise UserError(f"{run.path}: {reason}; an entry needs a finished run as it was recorded")


def rounded(curve: Iterable[float | None]) -> list[float]:
    return [round(number, DIGITS) for number in curve if number is not None]


def is_point(round: int, last: int) -> bool:
    return round <= POINTS or round % POINTS == 0 or round == last


def point_of(line: Line) -> Line:
    """Return the clients, the loss and the digest of a round."""
    return {key: line.get(key) for key in ("round", "clients", "loss_s")} | {"line": line_digest(line)}


def line_digest(line: Mapping[str, Any]) -> str:
    """Return a digest of what a round's line says, without times."""
    compared = {key: value for key, value in line.items() if key not in NOT_COMPARED}
    return short_sum(json.dumps(compared, sort_keys=True).encode())


# Without places of a machine.


def only_name(path: str) -> str:
    return Path(path).name


NAMES_OF_FILES = (
    ("partition", "file", only_name),
    ("model", "start", only_name),
    ("method", "name", short_name),
    ("model", "name", short_name),
)


def without_places(tables: Mapping[str, Any]) -> Line:
    """Return recorded settings with `DATA` as the images' folder, and other files by their names only."""
    known = {key: dict(table) if isinstance(table, Mapping) else table for key, table in tables.items()}
    if "dir" in known.get("data", {}):
        known["data"]["dir"] = "DATA"
    for section, key, shorten in NAMES_OF_FILES:
        if isinstance(name := known.get(section, {}).get(key), str):
            known[section][key] = shorten(name)
    known["compute"] = {k: v for k, v in known.get("compute", {}).items() if k not in ("devices", "ray_address")}
    return known


def session_of(session: Mapping[str, Any]) -> Line:
    """Return the facts of a start that others need."""
    packages = session.get("packages")
    versions = {name: packages.get(name) for name in PACKAGES} if isinstance(packages, dict) else {}
    known = {key: session[key] for key in OF_SESSION if key in session}
    command = session.get("command")
    return {**known, "packages": versions, "command": clean_command(command if isinstance(command, str) else "")}


def clean_command(command: str) -> str:
    """Return a command without the places of the machine on which it was given."""
    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    cleaned = [NAMED_PLACES.get(option, word) for option, word in pairwise(["", *words])]
    cleaned = [Path(word).name if option == "--out" else word for option, word in pairwise(["", *cleaned])]
    cleaned = [re.sub(r"^data\.dir=.*", "data.dir=DATA", ADDRESS.sub(r"\1ADDRESS", word)) for word in cleaned]
    return shlex.join(RELATIVE.sub(kept_preset, PLACE.sub("PATH", word)) for word in cleaned)


def kept_preset(path: re.Match[str]) -> str:
    return path[0] if path[0] in presets() else "PATH"


# Files.


def entry_text(facts: Mapping[str, Any]) -> str:
    """Return an entry as JSON with its checksum, one key a line."""
    sealed = {**facts, "check": sum_of(facts)}
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in sealed.items()) + "\n}\n"


def entry_name(run: Run) -> str:
    """Return the name of a run's entry, such as `sage-seed7.json`."""
    method = re.sub(r"[^\w.+-]+", "-", method_of(run))
    return f"{method}-seed{run.config.seed}.json"


def read_entry(path: Path) -> Line:
    """Return an entry's facts; reject a file that is none, or that was changed."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; `fssl submit RUN` writes an entry")
    if path.stat().st_size > LARGEST:
        raise UserError(f"{path} is too large for an entry; `fssl submit RUN` writes one")
    try:
        facts = parse_json(path.read_bytes())
    except ValueError:
        facts = None
    if not isinstance(facts, dict) or not isinstance(facts.get("format"), int) or "settings" not in facts:
        raise UserError(f"{path} is not an entry; `fssl submit RUN` writes one")
    if facts["format"] > FORMAT:
        raise UserError(f"{path} was written by a newer fssl; upgrade fssl")
    if facts.pop("check", None) != sum_of(facts):
        raise UserError(f"{path}: its checksum does not match: it was edited or damaged")
    if fault := find_fault(facts):
        raise UserError(f"{path}: {fault}")
    return facts


def find_fault(facts: Mapping[str, Any]) -> str:
    """Return what is wrong with the parts of an entry whose checksum matches; empty if nothing is."""
    rounds, curves, points = facts.get("rounds"), facts.get("curves"), facts.get("points")
    if type(rounds) is not int or rounds < 1 or not isinstance(curves, dict) or not isinstance(points, list):
        return "its rounds, curves or points are missing"
    series = [*curves.values(), facts.get("seconds")]
    if not {"accuracy", facts.get("measure")} <= {*curves} or not all(is_curve(each, rounds) for each in series):
        return f"its curves do not have a number for each of {several(rounds, 'round')}"
    if not {*curves} <= KEYS or [*filter(is_whole_point, points)] != points:
        return "it has other curves than an entry, or points without a round, clients or digest"
    if [point["round"] for point in points] != [round for round in range(1, rounds + 1) if is_point(round, rounds)]:
        return f"its points are not those of the first {POINTS} rounds and of later ones"
    sessions, memory = facts.get("sessions"), facts.get("memory")
    if not isinstance(sessions, list) or not all(isinstance(session, dict) for session in sessions):
        return "its environment is missing"
    if not isinstance(memory, dict) or not {*memory} <= {*MEMORY} or not all(map(is_number, memory.values())):
        return "its memory is not a number of bytes"
    curve, result = curves[facts["measure"]], facts.get("result")
    mean = float(np.mean(curve[-LAST:]))
    if not is_number(result) or result is None or abs(result - mean) > 10**-DIGITS:
        return f"its result is {result}, but the last rounds of its curve have a mean of {mean:.{DIGITS}f}"
    return ""


def is_whole_point(point: object) -> bool:
    """Return whether a point can be compared."""
    if not isinstance(point, dict) or type(point.get("round")) is not int:
        return False
    clients, loss = point.get("clients"), point.get("loss_s")
    is_list = isinstance(clients, list) and all(type(client) is int for client in clients)
    return is_list and isinstance(point.get("line"), str) and (loss is None or is_number(loss))


def is_curve(values: object, rounds: int) -> bool:
    return isinstance(values, list) and len(values) == rounds and all(map(is_number, values))


class EntryExtras(Extras):
    """What an entry has of the other files of a run folder."""

    def __init__(self, file: Path, facts: Mapping[str, Any]) -> None:
        super().__init__(RunFolder(file), [])
        self._facts = facts

    @cached_property
    def sessions(self) -> list[Line]:
        return [session for session in self._facts["sessions"] if isinstance(session, dict)]

    @cached_property
    def summary(self) -> Line:
        return {"rounds": self._facts["rounds"], "stopped": self._facts.get("stopped")}

    def traffic(self, lines: Sequence[Line]) -> float | None:
        return value(self._facts, "traffic")


def as_run(file: Path, facts: Mapping[str, Any]) -> Run:
    """Return an entry as the run that it was made from, with the numbers that it has."""
    config = with_defaults(parse(facts["settings"]))
    columns = facts["curves"]
    lines = [
        {
            "round": i + 1,
            **{key: curve[i] for key, curve in columns.items()},
            "timing": {"seconds": facts["seconds"][i], **facts["memory"]},
        }
        for i in range(facts["rounds"])
    ]
    return Run(file, config, lines, [], False, "", EntryExtras(file, facts), facts["measure"])


def find_entries(folder: Path) -> Iterator[tuple[Path, Line]]:
    """Yield the entries at or below a folder, with their files."""
    for file in sorted(folder.rglob("*.json")) if folder.is_dir() else [folder]:
        yield file, read_entry(file)


# An entry compared with its first rounds, trained again.


class Check(NamedTuple):
    agrees: bool
    text: str


def compare_rounds(facts: Mapping[str, Any], lines: Sequence[Line], session: Mapping[str, Any]) -> Check:
    """Compare an entry with lines of its first rounds; `session` describes where these were trained.

    On a CPU of the same kind with the same versions they must be equal bit for bit, elsewhere within a tolerance.
    """
    points = {point["round"]: point for point in facts["points"]}
    seen = [points[line["round"]] for line in lines if line["round"] in points]
    other = [line["round"] for line in lines if not is_same(facts, line, points.get(line["round"]))]
    which = "round 1" if len(lines) == 1 else f"rounds 1 to {len(lines)}"
    of = f"{which} of {facts['rounds']}"
    if not other:
        return Check(True, f"agrees bit for bit: {of}")
    if has_same_bits(facts["sessions"], session):
        numbers = accuracies(facts, lines[other[0] - 1])
        return Check(False, f"differs: round {other[0]} is not the same bit for bit on an equal CPU; {numbers}")
    return within_tolerance(facts, lines, seen, of)


def is_same(facts: Mapping[str, Any], line: Line, point: Line | None) -> bool:
    """Return whether a round is what the entry says of it: its accuracy and, if it has one, its digest."""
    has_accuracy = round(line["accuracy"], DIGITS) == facts["curves"]["accuracy"][line["round"] - 1]
    return has_accuracy and (point is None or line_digest(line) == point["line"])


def has_same_bits(sessions: Sequence[Mapping[str, Any]], session: Mapping[str, Any]) -> bool:
    """Return whether all starts of the entry were on a CPU like this one, with the same versions."""
    here = session_of(session)
    there = [{key: each.get(key) for key in DECIDES_BITS} for each in sessions]
    is_clean = not str(here.get("revision")).endswith("+")  # else files may differ from the commit
    same = all(each == {key: here.get(key) for key in DECIDES_BITS} for each in there)
    return bool(there) and here.get("device") == "cpu" and is_clean and same


def within_tolerance(facts: Mapping[str, Any], lines: Sequence[Line], points: Sequence[Line], of: str) -> Check:
    """Return whether clients are the same, and each round's accuracy and loss near enough."""
    for point in points:
        line = lines[point["round"] - 1]
        if sorted(line["clients"]) != sorted(point["clients"]):
            return Check(False, f"differs: other clients took part in round {line['round']}")
        if (apart := loss_apart(line, point)) > LOSS_APART:
            text = f"L_s differs by {apart:.1%}, more than {LOSS_APART:.0%}"
            return Check(False, f"differs: in round {line['round']} {text}")
    curve = facts["curves"]["accuracy"]
    gaps = [abs(line["accuracy"] - there) for line, there in zip(lines, curve, strict=False)]
    if max(gaps) > POINTS_APART:
        worst = gaps.index(max(gaps))
        limit = f"more than {POINTS_APART} points apart"
        return Check(False, f"differs: round {worst + 1} is {limit}; {accuracies(facts, lines[worst])}")
    losses = max(loss_apart(lines[point["round"] - 1], point) for point in points)
    found = f"at most {max(gaps):.2f} points and {losses:.1%} of L_s apart"
    return Check(True, f"agrees within {POINTS_APART} points and {LOSS_APART:.0%} of L_s: {of}, {found}")


def loss_apart(line: Line, point: Line) -> float:
    """Return the relative difference of the losses on labels; 0 for a run without them."""
    here, there = value(line, "loss_s"), value(point, "loss_s")
    return abs(here / there - 1) if here and there else 0.0


def accuracies(facts: Mapping[str, Any], line: Line) -> str:
    there = facts["curves"]["accuracy"][line["round"] - 1]
    return f"accuracy {line['accuracy']:.2f} % here, {there:.2f} % in the entry"


def described(facts: Mapping[str, Any], run: Run) -> str:
    """Return a sentence on an entry that was read."""
    mean = several(len(of_last(run.lines)), "round")
    where = next((str(session.get("device")) for session in run.sessions), "unknown device")
    rounds = several(run.last_round, "round")
    what = f"{method_of(run)} on {run.config.data.name}, seed {run.config.seed}, {rounds} on {where}"
    return f"{what}: {facts['result']:.2f} % (mean of the last {mean})"
