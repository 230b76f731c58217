"""Which runs can be compared: those of one task, that is of the same settings but for the method's."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ..config import Config, PartitionChoice, applies
from ..config.conditions import parts_of
from ..console import setting_text
from ..errors import several
from .groups import comparable_settings, what_varies
from .runs import Run

MOST_NAMED = 6  # settings beside a name, if some of them differ only from tasks of other names


class TaskRuns(NamedTuple):
    """Runs of one task."""

    name: str  # dataset, skew, labels and clients
    extra: str  # the settings in which it differs from its namesakes and, beyond the name, from others of its dataset
    runs: list[Run]

    @property
    def title(self) -> str:
        return " · ".join(filter(None, (self.name, self.extra)))


def group_by_task(runs: Iterable[Run], aside: str = "") -> list[TaskRuns]:
    """Runs by task, in the order in which these come; one task may hold several values of the setting `aside`."""
    tasks: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        tasks[repr(task_settings(run, aside))].append(run)
    firsts = [members[0] for members in tasks.values()]
    among = [name_differences(firsts, called, aside) for called in (short_title, dataset_title)]
    return [describe_task(members, among, aside) for members in tasks.values()]


def name_differences(runs: Iterable[Run], called: Callable[[Run, str], str], aside: str) -> dict[str, set[str]]:
    """What varies among runs of one name, by that name."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        groups[called(run, aside)].append(task_settings(run, aside))
    return {name: {key for key, _ in what_varies(own)} for name, own in groups.items()}


def describe_task(runs: list[Run], among: list[dict[str, set[str]]], aside: str) -> TaskRuns:
    """A task and what tells it from others: its namesakes, and those of its dataset, from which much may differ."""
    settings, name = task_settings(runs[0], aside), short_title(runs[0], aside)
    own, wider = among[0][name], among[1][dataset_title(runs[0], aside)] - title_words(runs[0], aside).keys()
    named = every if len(every := own | wider) <= MOST_NAMED else own
    texts = [f"{k} = {setting_text(settings[k])}" for k in settings if k in named]
    more = len(every - named)
    rest = [f"{several(more, 'more setting')} differ{'s' * (more == 1)}"] if more else []
    return TaskRuns(name, " · ".join([*texts, *rest]), runs)


def task_settings(run: Run, aside: str) -> dict[str, Any]:
    """What two methods must have in common to be compared."""
    own = {k: v for k, v in comparable_settings(run, aside).items() if not k.startswith("method.")}
    return {**dict(sorted(own.items())), "method.name": ""}


def short_title(run: Run, aside: str) -> str:
    """Dataset, skew, labels and clients; a folder of images has no more to say than where it was."""
    hidden = {aside, *parts_of(aside)}
    return " · ".join(text for key, text in title_words(run, aside).items() if text and key not in hidden) or "all runs"


def title_words(run: Run, aside: str) -> dict[str, str]:
    """What a title says of the settings that it covers; nothing of usual ones."""
    config = run.config
    part, is_dealt = config.partition, config.card.is_dealt
    return {
        "data.name": dataset_title(run, aside),
        "partition.file": f"split of {Path(part.file).name}" if part.file is not None else "",
        "partition.kind": "even split" if part.kind == "iid" and is_dealt and part.file is None else "",
        "partition.classes_per_client": f"{part.classes_per_client} shards per client" if part.kind == "shards" else "",
        "partition.alpha": skew(part, aside) if applies(config, "partition.alpha") else "",
        "data.labels_per_class": f"{config.labels_per_class} labels per class" if config.picks_labels else "",
        "partition.clients": several(part.clients, "client"),
        "partition.labeled_clients": who_knows(config),
        "partition.labels": "labels at the server" if config.has_server_labels else "",
        "data.test": "" if config.data.test == "all" else f"{config.data.test} half of the test",
    }


def dataset_title(run: Run, aside: str) -> str:
    """The dataset's name, of a folder also where it was; empty where results are shown by datasets."""
    data = run.config.data
    folder = Path(data.dir or "").name if run.config.card.is_folder else ""
    return f"{data.name} {folder}".strip() if aside != "data.name" else ""


def who_knows(config: Config) -> str:
    """Which clients have labels where not all do, in a few words."""
    number = config.partition.labeled_clients
    if number is None:
        return ""
    if config.picks_labels:
        return f"labels at {number}"
    return "1 client knows all its labels" if number == 1 else f"{number} clients know all their labels"


def skew(part: PartitionChoice, aside: str) -> str:
    """How classes are mixed over clients, in a few words."""
    where = {"dirichlet": " over all clients", "balanced-dirichlet": " over all clients, balanced"}
    return f"α = {part.alpha:g}{where.get(part.kind, '') if aside != 'partition.kind' else ''}"
