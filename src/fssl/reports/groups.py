"""Group runs into repetitions of one setting and into comparable tasks, and name both."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from ..config import Config, PartitionChoice, applies, flatten
from ..config.conditions import matters, parts_of, usual
from ..console import setting_text
from ..errors import several
from ..system.user_code import short_name
from .look import Style, method_styles
from .runs import Run

MOST_NAMED = 6  # most settings after a name, if some of them differ only from tasks of other names
DIGITS = 7  # of a checksum in a name, as in a short commit


# Repetitions of one setting.


def one_per_seed(runs: Iterable[Run], length: Callable[[Run], int] = attrgetter("last_round")) -> list[Run]:
    """Return the longest run of each seed, seeds in order: a longer run contains the rounds of a shorter one."""
    chosen: dict[int, Run] = {}
    for run in runs:
        seed = run.config.seed
        if seed not in chosen or length(run) > length(chosen[seed]):
            chosen[seed] = run
    return [chosen[seed] for seed in sorted(chosen)]


def distinct(runs: Iterable[Run]) -> list[Run]:
    """Return one run of each setting and seed: a copy, or a second run of a seed, does not count as a repetition."""
    return [run for members in repetitions(runs).values() for run in one_per_seed(members)]


def comparable_settings(run: Run, aside: str = "") -> dict[str, Any]:
    """Return all settings that affect results, without the seed: runs that agree in them are repetitions.

    Here and below `aside` is a setting that may differ as well, because results are shown by its values.
    """
    ignored = {"seed", aside, *parts_of(aside)}
    ignored |= {"model.start_digest"} if "{seed}" in run.config.model.start else set()  # another file for each seed
    flat = flatten(run.config)
    for key in ("method.name", "model.name"):
        flat[key] = short_name(flat[key])  # digests distinguish files of one name
    return {k: v for k, v in flat.items() if k not in ignored and matters(run.config, k)}


def group_key(run: Run, aside: str = "") -> str:
    return json.dumps(comparable_settings(run, aside), sort_keys=True)


def repetitions(runs: Iterable[Run], aside: str = "") -> dict[str, list[Run]]:
    """Return the runs of each setting under its key."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[group_key(run, aside)].append(run)
    return groups


def named_groups(runs: Iterable[Run], aside: str = "") -> dict[str, list[Run]]:
    """Return repetitions under short names that contain the settings in which the groups differ."""
    groups = repetitions(runs, aside)
    settings = [json.loads(key) for key in groups]
    varying = varying_settings(settings)
    methods: dict[str, set[str]] = defaultdict(set)  # with the same name
    for members in groups.values():
        methods[shown_name(members)].add(method_of(members[0]))
    named = {}
    for mine, members in zip(settings, groups.values(), strict=True):
        extra = [f"{k.rsplit('.', 1)[-1]}={named_value(k, v)}" for k, v in mine.items() if peers(k, mine) in varying]
        name = shown_name(members)
        unclear = f" ({method_of(members[0])})" if len(methods[name]) > 1 else ""
        named[", ".join([name + unclear, *extra])] = members
    return named


def named_value(key: str, value: object) -> str:
    """Return a setting's value for a name or a heading; the first digits of a checksum are enough there."""
    text = setting_text(value)
    return text[:DIGITS] if key.endswith("digest") and value is not None else text


def method_of(run: Run) -> str:
    """Return the method's name; for a user's file, without its folders."""
    return short_name(run.config.method.name)


def shown_name(runs: Sequence[Run]) -> str:
    """Return a method's name in tables: the label of one of its runs, or its name."""
    return next((label for run in runs if (label := run.config.method.label)), method_of(runs[0]))


def shown_color(runs: Sequence[Run]) -> str | None:
    """Return the color that the settings of one of a method's runs name."""
    return next((color for run in runs if (color := run.config.method.color)), None)


def styles_of(groups: Mapping[str, Sequence[Run]], names: Sequence[str]) -> dict[str, Style]:
    """Return the look of each group, in this order; a color that a run has chosen takes precedence."""
    styles = method_styles([method_of(groups[name][0]) for name in names])
    return {
        name: style._replace(color=shown_color(groups[name]) or style.color)
        for name, style in zip(names, styles, strict=True)
    }


def varying_settings(settings: Sequence[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Return the settings with more than one value among their peers; a missing one counts as its default.

    A setting that only some runs have because another one varies, such as the rate of a server's optimizer, is
    included with it, unless it is off by default.
    """
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for mine in settings:
        for key, value in mine.items():
            found[peers(key, mine)].append(repr(value))
    namesakes = Counter(mine["method.name"] for mine in settings) | {"": len(settings)}
    some = {(key, method) for (key, method), values in found.items() if len(values) < namesakes[method]}
    for key, method in some:
        found[key, method].append(repr(usual(key)))
    varying = {peer for peer, values in found.items() if peer[0] != "method.name" and len(set(values)) > 1}
    return varying | {(part, "") for key, _ in varying for part in parts_of(key) if usual(part)} & some


def peers(setting: str, mine: Mapping[str, Any]) -> tuple[str, str]:
    """Return a setting's peers: runs of the same method for a method's setting, all runs for any other."""
    return setting, mine["method.name"] if setting.startswith("method.") else ""


def seeds_text(runs: Iterable[Run]) -> str:
    """Return seeds for a table, with a star for unfinished runs and an exclamation mark for accepted edits."""
    marks: dict[int, set[str]] = defaultdict(set)
    for run in runs:
        marks[run.config.seed] |= {"*"} if run.reached < run.config.rounds else set()
        marks[run.config.seed] |= {"!"} if run.remark else set()
    return " ".join(f"{seed}{''.join(sorted(signs))}" for seed, signs in sorted(marks.items()))


# Tasks: runs with the same settings except for the method's.


class TaskRuns(NamedTuple):
    """Runs of one task."""

    name: str  # dataset, skew, labels and clients
    extra: str  # the settings in which it differs from its namesakes and, beyond the name, from others of its dataset
    runs: list[Run]

    @property
    def title(self) -> str:
        return " · ".join(filter(None, (self.name, self.extra)))


def group_by_task(runs: Iterable[Run], aside: str = "") -> list[TaskRuns]:
    """Return runs by task, in order of appearance; a task may hold several values of the setting `aside`."""
    tasks: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        tasks[repr(task_settings(run, aside))].append(run)
    firsts = [members[0] for members in tasks.values()]
    among = [name_differences(firsts, called, aside) for called in (short_title, dataset_title)]
    return [describe_task(members, among, aside) for members in tasks.values()]


def name_differences(runs: Iterable[Run], called: Callable[[Run, str], str], aside: str) -> dict[str, set[str]]:
    """Return the settings that vary among runs of one name, by that name."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        groups[called(run, aside)].append(task_settings(run, aside))
    return {name: {key for key, _ in varying_settings(own)} for name, own in groups.items()}


def describe_task(runs: list[Run], among: list[dict[str, set[str]]], aside: str) -> TaskRuns:
    """Name a task by the settings that distinguish it from its namesakes and from others of its dataset."""
    settings, name = task_settings(runs[0], aside), short_title(runs[0], aside)
    own, wider = among[0][name], among[1][dataset_title(runs[0], aside)] - title_words(runs[0], aside).keys()
    named = every if len(every := own | wider) <= MOST_NAMED else own
    texts = [f"{k} = {named_value(k, settings[k])}" for k in settings if k in named]
    more = len(every - named)
    rest = [f"{several(more, 'more setting')} differ{'s' * (more == 1)}"] if more else []
    return TaskRuns(name, " · ".join([*texts, *rest]), runs)


def task_settings(run: Run, aside: str) -> dict[str, Any]:
    """Return the settings that two methods must share to be compared."""
    own = {k: v for k, v in comparable_settings(run, aside).items() if not k.startswith("method.")}
    return {**dict(sorted(own.items())), "method.name": ""}


def short_title(run: Run, aside: str) -> str:
    """Return a title from dataset, skew, labels and clients, without the parts of the setting `aside`."""
    hidden = {aside, *parts_of(aside)}
    return " · ".join(text for key, text in title_words(run, aside).items() if text and key not in hidden) or "all runs"


def title_words(run: Run, aside: str) -> dict[str, str]:
    """Return the words of a title by setting; defaults have none."""
    config = run.config
    part, is_dealt = config.partition, config.card.is_dealt
    return {
        "data.name": dataset_title(run, aside),
        "partition.file": f"split of {Path(part.file).name}" if part.file is not None else "",
        "partition.kind": "even split" if part.kind == "iid" and is_dealt and part.file is None else "",
        "partition.classes_per_client": f"{part.classes_per_client} shards per client" if part.kind == "shards" else "",
        "partition.alpha": skew(part, aside) if applies(config, "partition.alpha") else "",
        "data.labels_per_class": f"{config.labels_per_class} labels per class" if config.picks_labels else "",
        "data.imbalance": f"long tail {config.data.imbalance:g}" if config.data.imbalance is not None else "",
        "partition.clients": several(part.clients, "client"),
        "partition.labeled_clients": label_holders(config),
        "partition.labels": "labels at the server" if config.has_server_labels else "",
        "data.test": "" if config.data.test == "all" else f"{config.data.test} half of the test",
    }


def dataset_title(run: Run, aside: str) -> str:
    """Return the dataset's name, with its folder if it has one; empty where results are shown by datasets."""
    folder = Path(run.config.data.dir or "").name if run.config.card.is_folder else ""
    return f"{dataset_name(run.config)} {folder}".strip() if aside != "data.name" else ""


def dataset_name(config: Config) -> str:
    """Return the dataset's name for readers; images that a script passed in memory have no folder."""
    return "arrays" if config.data.name == "imagefolder" and config.data.dir is None else config.data.name


def label_holders(config: Config) -> str:
    """Return in a few words which clients have labels, if not all do."""
    number = config.partition.labeled_clients
    if number is None:
        return ""
    if config.picks_labels:
        return f"labels at {number}"
    return "1 client knows all its labels" if number == 1 else f"{number} clients know all their labels"


def skew(part: PartitionChoice, aside: str) -> str:
    """Return in a few words how classes are distributed over clients."""
    where = {"dirichlet": " over all clients", "balanced-dirichlet": " over all clients, balanced"}
    return f"α = {part.alpha:g}{where.get(part.kind, '') if aside != 'partition.kind' else ''}"
