"""Run folders as the page needs them: a few numbers per round, read on from where the last look ended."""

import os
from array import array
from collections.abc import Iterable
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...catalog.facts import with_defaults
from ...config import Config
from ...errors import UserError
from ...records.accepted import ACCEPTED, acceptance, rate_fault
from ...records.chain import Chain
from ...records.choice import has_stopped
from ...records.probes import read_probe
from ...records.rounds import MEASURES, start_of_last
from ...records.store import RunFolder
from ...system.workers import forked, mapped
from ..runs import (
    NO_ROUND,
    Numbers,
    accepted_text,
    choose_measure,
    damage_text,
    edited,
    privacy_text,
    value,
    whole_lines,
)

MANY = 40  # runs from which a second process pays for its start


TESTED = (*MEASURES, "ema_accuracy")  # recorded in percent; all other shares are not


class Quantity(NamedTuple):
    """One curve of the page: a key of a record's line, and how it is shown."""

    key: str
    title: str
    unit: str
    about: str

    @property
    def scale(self) -> float:
        return 100.0 if self.unit == "%" and self.key not in TESTED else 1.0

    @property
    def digits(self) -> int:
        return 3 if self.unit in ("%", "s") else 4


QUANTITIES = (
    Quantity("accuracy", "Test accuracy", "%", "share of test images that the global model classifies correctly"),
    Quantity("balanced_accuracy", "Balanced accuracy", "%", "recall averaged over classes, so that rare ones count"),
    Quantity("macro_f1", "Macro F1", "%", "F1 averaged over classes"),
    Quantity("auroc", "AUROC", "%", "area under the ROC curve of each class against the rest, averaged"),
    Quantity("ece", "Calibration error", "%", "how far confidence and accuracy are apart, over 15 bins"),
    Quantity("ema_accuracy", "Test accuracy, smoothed model", "%", "the same of the mean over rounds (server.ema)"),
    Quantity("pl_accuracy", "Pseudo-label accuracy", "%", "correct among the pseudo-labels that were used"),
    Quantity("utilization", "Pseudo-labels used", "%", "share of unlabeled images with a pseudo-label"),
    Quantity("fallback_share", "Global fallback", "%", "share of images where only the global model is sure"),
    Quantity(
        "fallback_accuracy", "Fallback accuracy", "%", "correct global labels where only the global model is sure"
    ),
    Quantity("disagreement", "Disagreement", "%", "local and global model name different classes"),
    Quantity("lam_sure", "Weight of the local vote, λ", "", "mean λ over images where the local model is sure"),
    Quantity("gap_sure", "Confidence gap", "", "difference of both confidences where the local model is sure"),
    Quantity("entropy_l", "Entropy, local model", "nats", "of its predictions; lower is more decided"),
    Quantity("entropy_g", "Entropy, global model", "nats", "of its predictions; lower is more decided"),
    Quantity("loss_s", "Loss of clients on labels", "", "L_s, mean over steps of clients that have some"),
    Quantity("server_loss", "Loss of the server on its labels", "", "mean over its own steps in a round"),
    Quantity("loss_u", "Loss on pseudo-labels", "", "L_u, mean over steps, before its weight"),
    Quantity("seconds", "Time per round", "s", "training, averaging and test"),
)

PLACES = [("timing", "seconds") if q.key == "seconds" else (q.key,) for q in QUANTITIES]  # where a line has them


class Reading:
    """One run folder. `update` takes in what was written since the last time; damage is counted, never fatal."""

    def __init__(self, path: Path) -> None:
        self.path, self.folder = path, RunFolder(path)
        self.version = 0  # of the page's content when this run last changed
        self.line_version = 0  # and when the line of the table that it is the first run of did
        self.measure = "accuracy"  # that it is judged by, among the others
        self._seen: list[object] = []
        self._file = 0  # which file the record was: a resumed run writes a new one
        self._forget()

    def _forget(self) -> None:
        self.rounds: list[int] = []
        self.columns = [array("d") for _ in QUANTITIES]
        self._rates: dict[int, object] = {}  # by round, where a line tells one
        self.damaged: list[int] = []  # numbers of lines
        self._place = self._lines = 0  # bytes and lines that were read
        self._is_torn = False  # whether the last line is not whole yet
        self.problems: list[str] = []
        self.private = ""  # what it spent of one client's privacy
        self.settings: Config | None = None
        self.fault: str | None = None  # what of the record was edited since it was written
        self.remark = ""  # of an edited record that was accepted
        self._chain: Chain | None = None

    @property
    def config(self) -> Config:
        assert self.settings is not None  # only asked of runs that are shown
        return self.settings

    @property
    def is_shown(self) -> bool:
        return self.is_known and self.has_measure

    @property
    def is_known(self) -> bool:
        """Whether the record and its settings can be taken."""
        return bool(self.rounds) and self.settings is not None and not self.fault

    @property
    def has_measure(self) -> bool:
        return self.late(self.measure) is not None

    @property
    def result(self) -> float:
        return float(np.nanmean(self.last_values(self.measure)))

    @property
    def averaged(self) -> int:
        """How many rounds the result is the mean of; a damaged line is none."""
        return int(np.isfinite(self.last_values(self.measure)).sum())

    @property
    def at_last(self) -> float | None:
        """The headline measure in the last round."""
        last = float(self.values(self.measure)[-1])
        return None if np.isnan(last) else last

    @property
    def last_round(self) -> int:
        return self.rounds[-1]

    @property
    def skipped(self) -> list[int]:
        """Numbers of the lines that are not shown: damaged ones, and the last while it is half-written."""
        return [*self.damaged, *([self._lines + 1] if self._is_torn else [])]

    @property
    def reached(self) -> int:
        """How far it has come: one that has stopped early is at its end."""
        return self.config.rounds if self.is_stopped else self.last_round

    def values(self, key: str) -> Numbers:
        """A quantity by round; nan where nothing was counted."""
        place, quantity = next((i, q) for i, q in enumerate(QUANTITIES) if q.key == key)
        return np.array(self.columns[place]) * quantity.scale

    def last_values(self, key: str) -> Numbers:
        """The same of the last ten rounds, as far as they can be read."""
        return self.values(key)[start_of_last(self.rounds) :]

    def late(self, key: str) -> float | None:
        """The mean of the last rounds, as far as they have the quantity."""
        last = self.last_values(key)
        return float(np.nanmean(last)) if not np.isnan(last).all() else None

    def update(self) -> bool:
        """Read what was added; return whether anything changed."""
        seen = [signature(file) for file in self._watched()]
        if seen == self._seen:
            return False
        self._seen, self.problems = [*seen], []
        try:
            self._read_rounds()
        except OSError as error:
            self._note(f"rounds.jsonl cannot be read: {error.strerror}")
        except UserError:  # of the settings, without which no record can be checked
            self._forget()
        self._read_rest()
        return True

    def _watched(self) -> Iterable[Path]:
        of = self.folder
        files = of.config_file, of.env_file, of.partition_file, of.record, of.summary_file, of.measures_file
        return *files, self.path / ACCEPTED

    def _read_rounds(self) -> None:
        if not self.folder.has_rounds:
            self._forget()
            return self._note(NO_ROUND)
        chunk = self._unread()
        self._chain = self._chain or self.folder.chain()
        whole = chunk.rfind(b"\n") + 1
        last = self.rounds[-1] if self.rounds else 0
        texts = chunk[:whole].splitlines()
        lines, self.damaged = whole_lines(self._chain, texts, last, self.damaged, self._lines + 1)
        self._place, self._lines = self._place + whole, self._lines + len(texts)
        self._is_torn = whole < len(chunk)
        for line in lines:
            self.rounds.append(line["round"])
            if "rate" in line:
                self._rates[line["round"]] = line["rate"]
            for column, place in zip(self.columns, PLACES, strict=True):
                found = value(line, *place)
                column.append(nan if found is None else found)
        if self.skipped:
            self._note(damage_text("rounds.jsonl", self.skipped))

    def _unread(self) -> bytes:
        """What the record has more than at the last look; all of it, if it is another file, or packed."""
        if self.folder.is_packed:
            self._forget()
            try:
                return self.folder.text()
            except UserError as error:
                self._note(f"left out: {str(error).removeprefix(f'{self.path}/')}")
                return b""
        with self.folder.rounds_file.open("rb") as file:
            facts = os.fstat(file.fileno())
            if facts.st_ino != self._file or facts.st_size < self._place:
                self._forget()
                self._file = facts.st_ino
            file.seek(self._place)
            return file.read()

    def _read_rest(self) -> None:
        try:
            self.settings = with_defaults(self.folder.config()) if self.folder.config_file.is_file() else None
            if not self.settings:
                self._note("left out, it has no config.toml")
        except UserError as error:
            self.settings = None
            self._note(f"left out, its settings cannot be read: {error}")
        self._look_for_fault()
        self.sessions = self._sessions()
        self.is_finished, self.private = self.folder.is_finished, privacy_text(self.folder)
        self.is_stopped = self.settings is not None and has_stopped(self.folder.summary(), self.settings)
        if not self.folder.summary() and self.folder.summary_file.is_file():
            self._note("summary.json cannot be read; the numbers here come from rounds.jsonl")
        self.partition = self._partition()
        self.models = self._models()
        self.labels_by_class, self.correct_by_class = self._by_class()

    def _look_for_fault(self) -> None:
        lines = [{"round": r, **({"rate": self._rates[r]} if r in self._rates else {})} for r in self.rounds]
        facts = acceptance(self.path)
        rates = rate_fault(lines, self.settings, facts) if self.settings else None
        self.fault = (self._chain.fault or rates) if self._chain else None
        self.remark = facts.get("remark", "")
        if self.fault:
            self._note(f"left out: {edited(self.fault)}")
        elif self.remark:
            self._note(accepted_text(self.remark))

    def _note(self, text: str) -> None:
        self.problems.append(f"{self.path}: {text}")

    def _sessions(self) -> list[dict[str, Any]]:
        sessions = self.folder.sessions()
        if not sessions:
            self._note("env.json is missing or damaged: hardware unknown")
        return sessions

    def _partition(self) -> dict[str, list[list[int]] | None] | None:
        """Client x class counts, and the server's as one row, none where it has no labels.

        Earlier versions did not record them, and null is what this computer cannot know.
        """
        facts = self.folder.partition()
        stored = {name: facts.get(name, "") for name in ("labeled", "unlabeled")}
        stored["server"] = None if (own := facts.get("server")) is None else [own]
        counts = {name: table_of_counts(rows) for name, rows in stored.items()}
        is_damaged = any(counts[name] is None and rows is not None for name, rows in stored.items())
        if is_damaged and self.folder.partition_file.is_file():
            self._note("partition.json is damaged")
        return None if is_damaged else counts

    def _models(self) -> dict[str, dict[str, Any]]:
        """The confusion matrix of each final model, and the round that it is of; earlier versions have none."""
        models = self.folder.measures().get("models", {})
        if not models and self.folder.measures_file.is_file():
            self._note("measures.json is damaged")
        tables = {name: table_of_counts(facts.get("test", {}).get("confusion")) for name, facts in models.items()}
        return {
            name: {"round": models[name].get("round"), "confusion": table} for name, table in tables.items() if table
        }

    def _by_class(self) -> tuple[Numbers, Numbers]:
        """Pseudo-labels used and correct, by the class they name, in the last rounds; none if truth is not known."""
        totals: tuple[Numbers, Numbers] = (np.zeros(0), np.zeros(0))
        unreadable = 0
        last = self.rounds[start_of_last(self.rounds) :]
        for round in last:
            file = self.folder.probe_file(round)
            labels, correct = (read_probe(file, f"{name}_by_class") for name in ("labels", "correct"))
            if labels is None or correct is None or len(correct) not in (0, len(labels)):
                unreadable += 1
            elif len(correct) and len(totals[0]) in (len(labels), 0):
                totals = (totals[0] + labels, totals[1] + correct) if len(totals[0]) else (labels, correct)
        if unreadable:
            self._note(f"probes of {unreadable} of the last {len(last)} rounds are damaged")
        return totals


def judge_by(readings: Iterable[Reading], wanted: str = "") -> str:
    """Have all runs shown by one measure: the one that is asked for, or that all name; returns it."""
    readings = list(readings)
    measure = choose_measure((reading.config for reading in readings if reading.is_known), wanted)
    for reading in readings:
        reading.measure = measure
    return measure


def table_of_counts(rows: Any) -> list[list[int]] | None:
    """Rows of equal length with whole numbers, else nothing."""
    try:
        table = np.array(rows)
    except ValueError:
        return None
    is_table = table.ndim == 2 and table.size > 0 and np.issubdtype(table.dtype, np.integer)
    return table.tolist() if is_table else None


def signature(path: Path) -> tuple[int, int, int] | None:
    """A value that changes whenever the file does."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def read(folder: Path) -> Reading:
    reading = Reading(folder)
    reading.update()
    return reading


def read_all(folders: Iterable[Path], processes: int) -> list[Reading]:
    """Every folder once. Many are shared out: parsing JSON takes most of a report's time, on one core each."""
    folders = list(folders)
    with forked(processes if len(folders) >= MANY else 1) as pool:
        return mapped(pool, read, folders, at_once=4)
