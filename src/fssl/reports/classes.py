"""Classes that need attention: only one site has them, or a final model never recognizes them."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ..errors import shortened
from .runs import Numbers, Run

SHOWN = 5  # classes that a sentence lists


def class_remarks(groups: Mapping[str, Sequence[Run]]) -> list[str]:
    """Return a sentence on classes at one site only, and one for each group whose models have a recall of 0."""
    runs = [run for members in groups.values() for run in members]
    said = []
    if alone := next((found for run in runs if (found := classes_at_one_site(run))), []):
        said.append(f"Classes whose images only one site has: {shortened(alone, SHOWN)}.")
    for name, members in groups.items():
        if never := never_recognized(members):
            said.append(f"Classes with a recall of 0 in {name}: {shortened(never, SHOWN)}.")
    return said


def classes_at_one_site(run: Run) -> list[str]:
    """Return the classes with known images at one site only, each with the site; none if there is a single site."""
    partition = run.extras.partition or {}
    tables = [np.array(table) for key in ("labeled", "unlabeled") if (table := partition.get(key))]
    if not tables or len(tables[0]) < 2:
        return []
    held = np.sum(tables, 0) > 0  # [clients, classes]
    if partition.get("server") and np.any(partition["server"]):  # then the server has labels as well
        held[:, np.array(partition["server"][0]) > 0] = False
    names = partition.get("names") or [f"client {k}" for k in range(len(held))]
    found = [(c, int(held[:, c].argmax())) for c in np.flatnonzero(held.sum(0) == 1).tolist()]
    return [f"{class_name(run, c)} ({names[k]})" for c, k in found]


def never_recognized(runs: Sequence[Run]) -> list[str]:
    """Return the classes of which no test image is classified correctly, over the seeds of a setting."""
    tables = [*confusions(runs)]
    if not tables or any(table.shape != tables[0].shape for table in tables):
        return []
    total = np.sum(tables, 0)
    return [class_name(runs[0], c) for c in np.flatnonzero((total.sum(1) > 0) & (total.diagonal() == 0)).tolist()]


def confusions(runs: Sequence[Run]) -> Iterator[Numbers]:
    """Yield the confusion matrix of each run's model of the last round."""
    for run in runs:
        if found := run.extras.confusions.get("plain"):
            yield np.array(found["confusion"])


def class_name(run: Run, number: int) -> str:
    """Return a class's name, or its number where the dataset has no names."""
    names = run.config.data.classes
    return names[number] if names and number < len(names) else str(number)
