"""The best round so far, by images that nobody reports: what keeping a model and stopping early go by."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..config import Config
from .rounds import MEASURES, Line


class Chosen(NamedTuple):
    """A round, and its measure on the images to choose by."""

    round: int
    value: float


class BestRound:
    """The best round of those that it was told of, the first of equal ones, and how many came after it."""

    def __init__(self, config: Config, lines: Iterable[Line] = ()) -> None:
        self._by, self._measure = config.chosen_by, config.records.metrics
        self._patience = config.train.patience
        self.best: Chosen | None = None
        self._round = 0
        for line in lines:
            self.take(line)

    def take(self, line: Line) -> bool:
        """Hear of the next round; returns whether it is the best so far."""
        self._round = line["round"]
        value = (line.get("validation", {}) if self._by == "validation" else line).get(self._measure)
        if self._by is None or value is None or (self.best and value <= self.best.value):
            return False
        self.best = Chosen(self._round, value)
        return True

    @property
    def is_over(self) -> bool:
        """Whether as many rounds as the patience has were no better."""
        since = self._round - (self.best.round if self.best else 0)
        return self._patience is not None and since >= self._patience

    def facts(self, stops: bool) -> dict[str, Any]:
        """What the summary says of the choice, and why the run stopped, if it did before its last round."""
        if self.best is None:
            return {}
        images = "validation part" if self._by == "validation" else "tuning half of the test"
        best = {"round": self.best.round, "by": self._by, "measure": self._measure, "value": self.best.value}
        since = self._round - self.best.round
        why = f"no better {MEASURES[self._measure]} on the {images} in {since} round{'s' * (since != 1)}"
        stopped = {"round": self._round, "patience": self._patience, "best_round": self.best.round, "why": why}
        return {"chosen": best, **({"stopped": stopped} if stops else {})}


def would_have_ended(lines: Sequence[Line], config: Config) -> int | None:
    """The round after which the settings' patience would have ended a run that has more rounds."""
    progress = BestRound(config)
    for line in lines[:-1]:
        progress.take(line)
        if progress.is_over:
            return int(line["round"])
    return None


def is_over(summary: Mapping[str, Any], config: Config) -> bool:
    """Whether a run has ended, with all of its rounds or before."""
    return bool(summary) and (summary.get("rounds") == config.rounds or has_stopped(summary, config))


def has_stopped(summary: Mapping[str, Any], config: Config) -> bool:
    """Whether a run has stopped early; with another patience it goes on."""
    stopped, patience = summary.get("stopped"), config.train.patience
    return patience is not None and isinstance(stopped, dict) and stopped.get("patience") == patience
