"""Which runs can be compared: those of one task, that is of the same settings but for the method's."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from .runs import Repetition, settings_of, what_varies

R = TypeVar("R", bound=Repetition)


class Task(NamedTuple, Generic[R]):
    """Runs of one task."""

    name: str  # dataset, skew, labels and clients
    extra: str  # the settings in which it differs from its namesakes
    runs: list[R]

    @property
    def title(self) -> str:
        return " · ".join(filter(None, (self.name, self.extra)))


def tasks_of(runs: Iterable[R]) -> list[Task[R]]:
    """Runs by task, in the order in which these come."""
    tasks: dict[str, list[R]] = defaultdict(list)
    namesakes: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for run in runs:
        settings = task_settings(run)
        tasks[repr(settings)].append(run)
        namesakes[short_title(run)][repr(settings)] = settings
    differences = {title: {k for k, _ in what_varies([*own.values()])} for title, own in namesakes.items()}
    return [task_of(members, differences[short_title(members[0])]) for members in tasks.values()]


def task_of(runs: list[R], differing: set[str]) -> Task[R]:
    settings = task_settings(runs[0])
    extra = " · ".join(f"{k} = {settings[k]}" for k in settings if k in differing)
    return Task(short_title(runs[0]), extra, runs)


def task_settings(run: Repetition) -> dict[str, Any]:
    """What two methods must have in common to be compared."""
    own = {k: v for k, v in settings_of(run).items() if not k.startswith("method.")}
    return {**dict(sorted(own.items())), "method.name": ""}


def short_title(run: Repetition) -> str:
    """Dataset, skew, labels and clients; a folder of images has no more to say than where it was."""
    config = run.config
    part = config.partition
    clients = f"{part.clients} clients" + (f", {part.labeled_clients} with labels" if part.labeled_clients else "")
    facts, name = config.card, config.data.name
    if facts.is_folder:
        name = f"{name} {Path(config.data.dir or '').name}".strip()
    if not facts.is_dealt:
        return " · ".join((name, clients))
    kinds = {"iid": "even split", "dirichlet": f"α = {part.alpha:g} over all clients"}
    deal = kinds.get(part.kind, f"α = {part.alpha:g}")
    return " · ".join((name, deal, f"{config.labels_per_class} labels per class", clients))
