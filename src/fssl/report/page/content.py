"""Everything the page shows, as plain data: numbers are worked out here and in `curves`, the page only draws them."""

import shlex
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from ... import __version__
from ...config import applies, as_tables, to_toml
from ...probes.host import divided
from ...records.rounds import LAST, MEASURES
from ..groups import distinct, group_key, method_of, named_groups, repetitions, shown_color, shown_name
from ..look import chosen_styles, method_label
from ..runs import Numbers, mean_std, without
from ..tasks import Task, group_by_task
from ..verdicts import by_result, gains, last_rounds, mean_result, not_compared, rivals, smoothed, verdict
from .curves import Json, curves_of, plain
from .reading import QUANTITIES, Reading

MACHINE = ("device", "processor", "threads", "python", "cuda", "revision")
MACHINE_PACKAGES = ("fssl", "torch", "numpy")


def content(readings: Sequence[Reading], title: str, since: int = -1) -> Json:
    """The page's data; of the runs, and of the curves of lines, only those that changed after version `since`."""
    known = [r for r in readings if r.is_shown]
    measure = readings[0].measure if readings else "accuracy"
    shown = distinct(known)
    repeats = {r.path for r in known} - {r.path for r in shown}
    return {
        "title": title,
        "made": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "fssl": __version__,
        "last": LAST,
        "measure": MEASURES[measure],
        "quantities": [{**q._asdict(), "digits": q.digits} for q in sorted(QUANTITIES, key=lambda q: q.key != measure)],
        "facts": headline_facts(shown),
        "tasks": task_list(shown),
        "hardware": hardware_table(shown),
        "notes": [
            *(note for r in readings for note in r.problems),
            *(f"{r.path}: privacy of one client: {r.private}" for r in readings if r.private),
            *(f"{r.path}: left out, {without(measure)}" for r in readings if r.is_known and not r.has_measure),
            *(
                f"{path}: left out, a run that is as long or longer has its settings and seed"
                for path in sorted(repeats)
            ),
        ],
        "damaged": sum(len(r.skipped) for r in readings),
        "unfinished": sum(not r.is_finished for r in shown),
        "runs": {str(r.path): run_data(r) for r in shown if r.version > since},
        "curves": {  # by the first run of a line
            str(line[0].path): curves_of(line) for line in repetitions(shown).values() if line[0].line_version > since
        },
    }


def headline_facts(runs: Sequence[Reading]) -> Json:
    """The numbers at the top of the page."""
    return {
        "runs": len(runs),
        "finished": sum(r.is_finished for r in runs),
        "methods": len({method_of(r) for r in runs}),
        "seeds": sorted({r.config.seed for r in runs}),
        "rounds": sum(len(r.rounds) for r in runs),
        "seconds": float(np.nansum([np.nansum(r.values("seconds")) for r in runs])),
    }


def run_data(run: Reading) -> Json:
    """One run: its place and its state."""
    return {
        "seed": run.config.seed,
        "rounds": run.rounds[-1],
        "planned": run.config.rounds,
        "finished": run.is_finished,
        "damaged": len(run.skipped),
        "changed": bool(run.remark),
        "result": round(run.result, 6),
        "models": run.models,
    }


# Settings that can be compared: the same task, other methods.


def task_list(runs: Sequence[Reading]) -> list[Json]:
    """Tasks with something to compare first, each with its methods ranked and a verdict."""
    out = [task_data(task) for task in group_by_task(runs)]
    return sorted(out, key=lambda task: (len(task["groups"]) < 2, task["dataset"], task["alpha"] or 0, task["title"]))


def task_data(task: Task[Reading]) -> Json:
    runs, config = task.runs, task.runs[0].config
    groups = {label(name, members): members for name, members in named_groups(runs).items()}
    order, ranked = by_result(groups), rivals(groups)
    styles = chosen_styles([method_of(groups[name][0]) for name in order], [shown_color(groups[n]) for n in order])
    place = places({name: mean_result(groups[name]) for name in ranked})
    lines = [{**group_data(name, groups[name]), "rank": place.get(name)} for name in order]
    return {
        "title": task.title,
        "extra": task.extra,
        "dataset": config.data.name,
        "alpha": config.partition.alpha if applies(config, "partition.alpha") else None,
        "labels": config.labels_per_class if config.picks_labels else None,
        "last": last_rounds(runs),
        "classes": config.data.classes,
        "words": words(groups, ranked),
        "leader": order.index(ranked[0]) if ranked else 0,
        "groups": [{**line, "style": style._asdict()} for line, style in zip(lines, styles, strict=True)],
        "partition": next((r.partition for r in runs if r.partition), None),
    }


def label(name: str, members: Sequence[Reading]) -> str:
    """A group's name with the method as people write it."""
    method = method_of(members[0])
    return method_label(method) + name.removeprefix(method) if shown_name(members) == method else name


def places(results: Mapping[str, float]) -> dict[str, int]:
    """1 for the best number as it is shown, and so on: equal ones share a place, and one alone has none."""
    shown = {name: round(result, 2) for name, result in results.items()}
    order = sorted(set(shown.values()), reverse=True)
    return {name: order.index(number) + 1 for name, number in shown.items()} if len(shown) > 1 else {}


def words(groups: Mapping[str, Sequence[Reading]], ranked: Sequence[str]) -> list[str]:
    """Sentences on the results: the leader and its margin, SAGE's place if it is not ahead, missing runs."""
    seeds = sorted({r.config.seed for runs in groups.values() for r in runs})
    said = [verdict(groups)]
    ours = [name for name in ranked if groups[name][0].config.method.name == "sage"]
    behind = mean_result(groups[ranked[0]]) - mean_result(groups[ours[0]]) if ours else 0
    if round(behind, 2) > 0:
        said.append(f"{ours[0]} is number {ranked.index(ours[0]) + 1} of {len(ranked)}, {behind:.2f} points behind.")
    said.append(f"{'Seeds' if len(seeds) > 1 else 'Seed'} {', '.join(map(str, seeds))}.")
    uneven = [name for name in groups if len({r.config.seed for r in groups[name]}) < len(seeds)]
    if uneven:
        said.append(f"Over fewer seeds than the others: {'; '.join(uneven)}.")
    if changed := [name for name in groups if any(r.remark for r in groups[name])]:
        said.append(f"From edited records that were accepted: {', '.join(changed)}.")
    smooth = {
        name: [x for r in runs if r.measure == "accuracy" and (x := r.late("ema_accuracy")) is not None]
        for name, runs in groups.items()
    }
    said += [*gains(groups), *smoothed(smooth), *not_compared(groups)]
    if (most := last_rounds(r for runs in groups.values() for r in runs)) < LAST:
        said.append(f"Fewer than {LAST} rounds: results are means of all {most}.")
    return said


def group_data(name: str, runs: list[Reading]) -> Json:
    """A line of the table: means and spread over its seeds."""
    runs = sorted(runs, key=lambda run: run.config.seed)
    labels, correct = by_class(runs)
    return {
        "name": name,
        "method": runs[0].config.method.name,
        "runs": [str(run.path) for run in runs],
        "seeds": [run.config.seed for run in runs],
        "rounds": [min(run.last_round for run in runs), runs[0].config.rounds],
        "result": mean_and_deviation([run.result for run in runs]),
        "last": mean_and_deviation([run.at_last for run in runs]),
        "right": mean_and_deviation([run.late("pl_accuracy") for run in runs]),
        "used": mean_and_deviation([run.late("utilization") for run in runs]),
        "seconds": middle(np.concatenate([run.values("seconds") for run in runs])),
        "labels_by_class": plain(labels, 0),
        "right_by_class": plain(100 * divided(correct, labels), 2),
        "command": command(runs),
        "recorded": recorded_commands(runs),
        "settings": to_toml(as_tables(runs[0].config)),
    }


def mean_and_deviation(values: Sequence[float | None]) -> Sequence[float | None]:
    """Mean and sample standard deviation over runs that have a value."""
    known = [v for v in values if v is not None]
    return mean_std(known) if known else (None, None)


def by_class(runs: Sequence[Reading]) -> tuple[Numbers, Numbers]:
    """Pseudo-labels and correct ones by class, over the last rounds of all seeds."""
    known = [r for r in runs if len(r.labels_by_class)]
    if not known:
        return np.zeros(0), np.zeros(0)
    return np.sum([r.labels_by_class for r in known], 0), np.sum([r.correct_by_class for r in known], 0)


def middle(values: Numbers) -> float | None:
    return None if np.isnan(values).all() else float(np.nanmedian(values))


def command(runs: Sequence[Reading]) -> str:
    """The command that repeats the line with all its seeds: a run folder's settings are complete."""
    first = runs[0]
    words = ["fssl", "run", str(first.folder.config_file)]
    seeds = sorted({run.config.seed for run in runs})
    words += ["--set", f"grid.seed={seeds}".replace(" ", "")] if len(seeds) > 1 else []
    mark = crc32(group_key(first).encode())  # lines of one method must not meet in one folder
    return shlex.join([*words, "--out", f"again/{method_of(first)}-{mark:08x}"])


def recorded_commands(runs: Sequence[Reading]) -> list[str]:
    """The commands that made these runs, as their folders have them."""
    said = [text for run in runs for session in run.sessions if isinstance(text := session.get("command"), str)]
    return [f"fssl {text}" for text in dict.fromkeys(said)]


# Where it ran.


def hardware_table(runs: Sequence[Reading]) -> list[Json]:
    """Machines and versions, with the runs and the time each has spent on them."""
    rows: dict[str, Json] = {}
    members: dict[str, set[Path]] = defaultdict(set)
    seconds: Counter[str] = Counter()
    for run in runs:
        for session, spent in zip(run.sessions, time_by_session(run), strict=True):
            row = machine(session)
            key = repr(row)
            rows[key] = row
            members[key].add(run.path)
            seconds[key] += spent  # type: ignore[assignment]  # a Counter of seconds adds up just as well
    return [{**row, "runs": len(members[key]), "seconds": seconds[key]} for key, row in rows.items()]


def machine(session: Mapping[str, Any]) -> Json:
    packages = session.get("packages")
    versions = packages if isinstance(packages, dict) else {}
    facts = {name: session.get(name) for name in MACHINE} | {name: versions.get(name) for name in MACHINE_PACKAGES}
    return {name: None if value is None else str(value) for name, value in facts.items()}


def time_by_session(run: Reading) -> list[float]:
    """Seconds of the rounds between one start and the next."""
    starts = [s["from_round"] if isinstance(s.get("from_round"), int) else 1 for s in run.sessions]
    rounds, seconds = np.array(run.rounds), np.nan_to_num(run.values("seconds"))
    ends = [*starts, int(rounds[-1]) + 1][1:]
    return [float(seconds[(rounds >= a) & (rounds < b)].sum()) for a, b in zip(starts, ends, strict=True)]
