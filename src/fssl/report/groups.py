"""Runs of one setting together: repetitions, what tells groups apart, and the longest run of each seed."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from ..config import flatten
from ..config.conditions import matters, parts_of, usual
from ..console import setting_text
from ..system.user_code import short_name
from .runs import Run


def one_per_seed(runs: Iterable[Run], length: Callable[[Run], int] = attrgetter("last_round")) -> list[Run]:
    """The longest run of each seed, seeds in order: a longer one passes through the same rounds."""
    chosen: dict[int, Run] = {}
    for run in runs:
        seed = run.config.seed
        if seed not in chosen or length(run) > length(chosen[seed]):
            chosen[seed] = run
    return [chosen[seed] for seed in sorted(chosen)]


def distinct(runs: Iterable[Run]) -> list[Run]:
    """One run of each setting and seed: a copy, or the same seed once more, is no further repetition."""
    return [run for members in repetitions(runs).values() for run in one_per_seed(members)]


def comparable_settings(run: Run, aside: str = "") -> dict[str, Any]:
    """Everything but the seed and what changes no result: runs that differ in nothing else are repetitions.

    Here and below `aside` is a setting that may differ as well, because results are shown by its values.
    """
    ignored = {"seed", aside, *parts_of(aside)}
    ignored |= {"model.start_digest"} if "{seed}" in run.config.model.start else set()  # another file for each seed
    flat = flatten(run.config)
    for key in ("method.name", "model.name"):
        flat[key] = short_name(flat[key])  # files of one name are told apart by their digests
    return {k: v for k, v in flat.items() if k not in ignored and matters(run.config, k)}


def group_key(run: Run, aside: str = "") -> str:
    return json.dumps(comparable_settings(run, aside), sort_keys=True)


def repetitions(runs: Iterable[Run], aside: str = "") -> dict[str, list[Run]]:
    """Runs of one setting together, under its key."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[group_key(run, aside)].append(run)
    return groups


def named_groups(runs: Iterable[Run], aside: str = "") -> dict[str, list[Run]]:
    """Repetitions under a short name that says in what the groups differ."""
    groups = repetitions(runs, aside)
    settings = [json.loads(key) for key in groups]
    varying = what_varies(settings)
    methods: dict[str, set[str]] = defaultdict(set)  # that go by a name
    for members in groups.values():
        methods[shown_name(members)].add(method_of(members[0]))
    named = {}
    for mine, members in zip(settings, groups.values(), strict=True):
        extra = [f"{k.rsplit('.', 1)[-1]}={setting_text(v)}" for k, v in mine.items() if peers(k, mine) in varying]
        name = shown_name(members)
        unclear = f" ({method_of(members[0])})" if len(methods[name]) > 1 else ""
        named[", ".join([name + unclear, *extra])] = members
    return named


def method_of(run: Run) -> str:
    """The method's name, a file of the user's without its folders."""
    return short_name(run.config.method.name)


def shown_name(runs: Sequence[Run]) -> str:
    """What a method is called in tables: the label that one of its runs has, or its name."""
    return next((label for run in runs if (label := run.config.method.label)), method_of(runs[0]))


def shown_color(runs: Sequence[Run]) -> str | None:
    """The color that one of a method's runs has chosen."""
    return next((color for run in runs if (color := run.config.method.color)), None)


def what_varies(settings: Sequence[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """The settings that have more than one value among their peers; one that some do not have is as usual there."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for mine in settings:
        for key, value in mine.items():
            found[peers(key, mine)].append(repr(value))
    namesakes = Counter(mine["method.name"] for mine in settings) | {"": len(settings)}
    for (key, method), values in found.items():
        values += [repr(usual(key))] * (namesakes[method] - len(values))
    return {(key, method) for (key, method), values in found.items() if key != "method.name" and len(set(values)) > 1}


def peers(setting: str, mine: Mapping[str, Any]) -> tuple[str, str]:
    """A method's own setting is compared among its namesakes, any other among all."""
    return setting, mine["method.name"] if setting.startswith("method.") else ""


def seeds_text(runs: Iterable[Run]) -> str:
    """Seeds as a table shows them: a star for unfinished runs, an exclamation mark for accepted edits."""
    marks: dict[int, set[str]] = defaultdict(set)
    for run in runs:
        marks[run.config.seed] |= {"*"} if run.reached < run.config.rounds else set()
        marks[run.config.seed] |= {"!"} if run.remark else set()
    return " ".join(f"{seed}{''.join(sorted(signs))}" for seed, signs in sorted(marks.items()))
