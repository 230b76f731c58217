"""Which runs can be compared: those of one task, that is of the same settings but for the method's."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from ..config import Config, Partition
from ..errors import several
from .groups import Repetition, comparable_settings, what_varies

R = TypeVar("R", bound=Repetition)


class Task(NamedTuple, Generic[R]):
    """Runs of one task."""

    name: str  # dataset, skew, labels and clients
    extra: str  # the settings in which it differs from its namesakes
    runs: list[R]

    @property
    def title(self) -> str:
        return " · ".join(filter(None, (self.name, self.extra)))


def group_by_task(runs: Iterable[R], aside: str = "") -> list[Task[R]]:
    """Runs by task, in the order in which these come; one task may hold several values of the setting `aside`."""
    tasks: dict[str, list[R]] = defaultdict(list)
    namesakes: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for run in runs:
        settings = task_settings(run, aside)
        tasks[repr(settings)].append(run)
        namesakes[short_title(run, aside)][repr(settings)] = settings
    differences = {title: {k for k, _ in what_varies([*own.values()])} for title, own in namesakes.items()}
    return [describe_task(members, differences, aside) for members in tasks.values()]


def describe_task(runs: list[R], differences: dict[str, set[str]], aside: str) -> Task[R]:
    settings, name = task_settings(runs[0], aside), short_title(runs[0], aside)
    extra = " · ".join(f"{k} = {settings[k]}" for k in settings if k in differences[name])
    return Task(name, extra, runs)


def task_settings(run: Repetition, aside: str) -> dict[str, Any]:
    """What two methods must have in common to be compared."""
    own = {k: v for k, v in comparable_settings(run, aside).items() if not k.startswith("method.")}
    return {**dict(sorted(own.items())), "method.name": ""}


def short_title(run: Repetition, aside: str) -> str:
    """Dataset, skew, labels and clients; a folder of images has no more to say than where it was."""
    config = run.config
    part = config.partition
    facts, name = config.card, config.data.name
    if facts.is_folder:
        name = f"{name} {Path(config.data.dir or '').name}".strip()
    dealt = {
        "partition.alpha": skew(part, aside),
        "data.labels_per_class": f"{config.labels_per_class} labels per class" if config.picks_labels else "",
    }
    words = {
        "data.name": name,
        **(dealt if facts.is_dealt else {}),
        "partition.clients": several(part.clients, "client"),
        "partition.labeled_clients": who_knows(config),
        "partition.labels": "labels at the server" if config.has_server_labels else "",
        "data.test": "" if config.data.test == "all" else f"{config.data.test} half of the test",
    }
    return " · ".join(text for key, text in words.items() if text and key != aside) or "all runs"


def who_knows(config: Config) -> str:
    """Which clients have labels where not all do, in a few words."""
    number = config.partition.labeled_clients
    if number is None:
        return ""
    if config.picks_labels:
        return f"labels at {number}"
    return "1 client knows all its labels" if number == 1 else f"{number} clients know all their labels"


def skew(part: Partition, aside: str) -> str:
    """How classes are mixed over clients, in a few words."""
    if part.file is not None:
        return f"split of {Path(part.file).name}"
    words = {"iid": "even split", "shards": f"{part.classes_per_client} shards per client"}
    where = {"dirichlet": " over all clients", "balanced-dirichlet": " over all clients, balanced"}
    wide = where.get(part.kind, "") if aside != "partition.kind" else ""
    return words.get(part.kind, f"α = {part.alpha:g}{wide}")
