"""What a run folder holds besides its record: each file is read once, when it is first needed."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..records.probes import read_probe
from ..records.store import RunFolder

ClassCounts = list[list[int]]
ClassValues = NDArray[np.float64]


class Extras:
    """The other files of a run folder as they were when they were read.

    `damaged` names those that are there and cannot be read.
    """

    def __init__(self, folder: RunFolder, last: Sequence[int]) -> None:
        self.folder = folder
        self._last = last  # the last ten rounds

    @cached_property
    def sessions(self) -> list[dict[str, Any]]:
        """What env.json says of each start of the run."""
        return self.folder.sessions()

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The results when the run was last finished; empty otherwise."""
        return self.folder.summary()

    @cached_property
    def partition(self) -> dict[str, ClassCounts | None] | None:
        """Client x class counts, and the server's as one row, none where it has no labels; None without a whole file.

        Null is what this computer cannot know.
        """
        facts = self.folder.partition()
        rows = {"labeled": facts.get("labeled", ""), "unlabeled": facts.get("unlabeled", "")}
        rows["server"] = None if (own := facts.get("server")) is None else [own]
        counts = {name: table_of_counts(each) for name, each in rows.items()}
        is_damaged = any(counts[name] is None and each is not None for name, each in rows.items())
        return None if is_damaged else counts

    @cached_property
    def models(self) -> dict[str, Any]:
        """What measures.json says of each final model, by its name."""
        found: dict[str, Any] = self.folder.measures().get("models", {})
        return found

    @cached_property
    def confusions(self) -> dict[str, dict[str, Any]]:
        """The confusion matrix of each final model, and the round that it is of."""
        tables = {name: table_of_counts(facts.get("test", {}).get("confusion")) for name, facts in self.models.items()}
        return {
            name: {"round": self.models[name].get("round"), "confusion": table}
            for name, table in tables.items()
            if table
        }

    @cached_property
    def by_class(self) -> tuple[ClassValues, ClassValues, int]:
        """Pseudo-labels used and correct, by the class they name, in the last rounds; then how many files are damaged.

        None are correct if truth is not known.
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
        """A remark on each file that is missing or cannot be read."""
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
    """Rows of equal length with whole numbers, else nothing."""
    try:
        table = np.array(rows)
    except ValueError:
        return None
    is_table = table.ndim == 2 and table.size > 0 and np.issubdtype(table.dtype, np.integer)
    return table.tolist() if is_table else None
