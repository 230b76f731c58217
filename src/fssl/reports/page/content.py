"""The page's contents as plain data: this module computes all numbers, and the page only draws them."""

import math
import shlex
import time
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from ... import __version__
from ...config import applies, as_tables, to_toml
from ...probes.host import divided
from ...records.rounds import ALL_MEASURES, LAST, MEASURES, OF_TAIL
from ..classes import class_remarks
from ..costs import mean_costs, spent_by_round
from ..groups import (
    TaskRuns,
    dataset_name,
    distinct,
    group_by_task,
    group_key,
    method_of,
    named_groups,
    repetitions,
    shown_name,
    styles_of,
)
from ..leaderboard import close_pairs, neighbors, places_of
from ..look import method_label
from ..runs import (
    FoundRuns,
    Numbers,
    Run,
    accepted_text,
    damage_texts,
    late,
    mean_std,
    number,
    own_metrics,
    percent,
    privacy_text,
    value,
)
from ..verdicts import by_result, gains, last_rounds, mean_result, not_compared, rivals, smoothed_results, verdict

Json = dict[str, Any]
DIGITS_SHOWN = 3  # significant digits of a standard deviation in a curve's tooltip
TESTED = (*ALL_MEASURES, "ema_accuracy")  # recorded in percent; all other shares are not
MACHINE = ("device", "processor", "threads", "python", "cuda", "revision")
MACHINE_PACKAGES = ("fssl", "torch", "numpy")

ABOUT_GROUPS = "of a long tail: many is more than 100 labeled images of a class, few is fewer than 20"


class Quantity(NamedTuple):
    """One curve of the page: a key of a record's line, and how it is shown."""

    key: str
    title: str
    unit: str
    about: str

    @property
    def place(self) -> tuple[str, ...]:
        """Return the keys that lead to the quantity in a line of a record."""
        return ("timing", "seconds") if self.key == "seconds" else tuple(self.key.split(".", 1))

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
    *(Quantity(key, f"{title[0].upper()}{title[1:]}", "%", ABOUT_GROUPS) for key, title in OF_TAIL.items()),
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
    Quantity("loss_s", "Loss of clients on labels", "", "L_s, mean over steps of clients with labels"),
    Quantity("server_loss", "Loss of the server on its labels", "", "mean over its own steps in a round"),
    Quantity("loss_u", "Loss on pseudo-labels", "", "L_u, mean over steps, before its weight"),
    Quantity("seconds", "Time per round", "s", "training, averaging and test"),
)

SECONDS = QUANTITIES[-1]
LINE_KEYS = ("round", "clients", "timing", "metrics", "sites", *(quantity.key for quantity in QUANTITIES))  # of a line


class News(NamedTuple):
    """The runs and lines that a page does not have yet."""

    runs: Container[Path]
    lines: Container[Path]  # of the table, by their first run


def content(found: FoundRuns, title: str, news: News | None = None) -> Json:
    """Return the page's data; with `news`, only its runs and the curves of its lines."""
    shown = distinct(found.runs)
    repeats = {run.path for run in found.runs} - {run.path for run in shown}
    measure = shown[0].measure if shown else "accuracy"
    quantities = sorted(quantities_of(shown), key=lambda quantity: quantity.key != measure)
    lines = [line for line in repetitions(shown).values() if news is None or line[0].path in news.lines]
    return {
        "title": title,
        "made": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "fssl": __version__,
        "last": LAST,
        "measure": MEASURES[measure],
        "quantities": [{**quantity._asdict(), "digits": quantity.digits} for quantity in quantities],
        "facts": headline_facts(shown),
        "tasks": task_list(shown),
        "hardware": hardware_table(shown),
        "notes": [
            *found.left_out,
            *(f"{run.path}: {text}" for run in found.runs for text in notes(run)),
            *(
                f"{path}: left out, a run that is as long or longer has its settings and seed"
                for path in sorted(repeats)
            ),
        ],
        "damaged": sum(len(run.damaged) for run in found.runs),
        "unfinished": sum(not run.has_end for run in shown),
        "runs": {str(run.path): run_data(run) for run in shown if news is None or run.path in news.runs},
        "curves": {str(line[0].path): curves_of(line) for line in lines},  # by the first run of a line
    }


def notes(run: Run) -> list[str]:
    """Return remarks on damaged and edited files of a run, and on its privacy loss."""
    private = privacy_text(run)
    return [
        *damage_texts("rounds.jsonl", run),
        *([accepted_text(run.remark)] if run.remark else []),
        *run.extras.damage,
        *([f"privacy of one client: {private}"] if private else []),
    ]


def headline_facts(runs: Sequence[Run]) -> Json:
    """Return the numbers at the top of the page."""
    return {
        "runs": len(runs),
        "finished": sum(r.has_end for r in runs),
        "methods": len({method_of(r) for r in runs}),
        "seeds": sorted({r.config.seed for r in runs}),
        "rounds": sum(len(r.lines) for r in runs),
        "seconds": float(np.nansum([np.nansum(by_round(r, SECONDS)) for r in runs])),
    }


def run_data(run: Run) -> Json:
    """Return the data of one run: its progress, result and state."""
    return {
        "seed": run.config.seed,
        "rounds": run.last_round,
        "planned": run.config.rounds,
        "finished": run.has_end,
        "damaged": len(run.damaged),
        "changed": bool(run.remark),
        "result": round(run.result, 6),
        "models": run.extras.confusions,
    }


# Comparable settings: the same task with different methods.


def task_list(runs: Sequence[Run]) -> list[Json]:
    """Return all tasks, each with ranked methods and a verdict; those with several groups come first."""
    out = [task_data(task) for task in group_by_task(runs)]
    return sorted(out, key=lambda task: (len(task["groups"]) < 2, task["dataset"], task["alpha"] or 0, task["title"]))


def task_data(task: TaskRuns) -> Json:
    runs, config = task.runs, task.runs[0].config
    groups = {label(name, members): members for name, members in named_groups(runs).items()}
    order, ranked = by_result(groups), rivals(groups)
    styles = styles_of(groups, order)
    rank, places = rank_places({name: mean_result(groups[name]) for name in ranked}), places_of(groups)
    lines = [{**group_data(name, groups[name]), "rank": rank.get(name), "place": places.get(name)} for name in order]
    return {
        "title": task.title,
        "extra": task.extra,
        "dataset": dataset_name(config),
        "alpha": config.partition.alpha if applies(config, "partition.alpha") else None,
        "labels": config.labels_per_class if config.picks_labels else None,
        "last": last_rounds(runs),
        "classes": config.data.classes,
        "words": words(groups, ranked),
        "leader": order.index(ranked[0]) if ranked else 0,
        "groups": [{**line, "style": styles[line["name"]]._asdict()} for line in lines],
        "partition": next((r.extras.partition for r in runs if r.extras.partition), None),
    }


def label(name: str, members: Sequence[Run]) -> str:
    """Return a group's name with its method's label."""
    method = method_of(members[0])
    return method_label(method) + name.removeprefix(method) if shown_name(members) == method else name


def rank_places(results: Mapping[str, float]) -> dict[str, int]:
    """Return ranks from 1 by the results as shown; equal ones share a rank, and a single one has none."""
    shown = {name: round(result, 2) for name, result in results.items()}
    order = sorted(set(shown.values()), reverse=True)
    return {name: order.index(number) + 1 for name, number in shown.items()} if len(shown) > 1 else {}


def words(groups: Mapping[str, Sequence[Run]], ranked: Sequence[str]) -> list[str]:
    """Return sentences on the results: the leader and its margin, SAGE's rank if it does not lead, missing runs."""
    seeds = sorted({r.config.seed for runs in groups.values() for r in runs})
    said = [verdict(groups)]
    ours = [name for name in ranked if groups[name][0].config.method.name == "sage"]
    behind = mean_result(groups[ranked[0]]) - mean_result(groups[ours[0]]) if ours else 0
    if round(behind, 2) > 0:
        said.append(f"{ours[0]} is number {ranked.index(ours[0]) + 1} of {len(ranked)}, {behind:.2f} points behind.")
    said.append(f"{'Seeds' if len(seeds) > 1 else 'Seed'} {', '.join(map(str, seeds))}.")
    uneven = [name for name in groups if len({r.config.seed for r in groups[name]}) < len(seeds)]
    if uneven:
        said.append(f"With fewer seeds than the others: {'; '.join(uneven)}.")
    if changed := [name for name in groups if any(r.remark for r in groups[name])]:
        said.append(f"With edited and accepted records: {', '.join(changed)}.")
    said += [*gains(groups), *([neighbors(ranked, groups)] if close_pairs(ranked, groups) else [])]
    said += [*smoothed_results(groups), *not_compared(groups)]
    said += class_remarks(groups)
    if (most := last_rounds(r for runs in groups.values() for r in runs)) < LAST:
        said.append(f"Fewer than {LAST} rounds: results are means of all {most}.")
    return said


def group_data(name: str, runs: list[Run]) -> Json:
    """Return a line of the table: means and spread over its seeds."""
    runs = sorted(runs, key=lambda run: run.config.seed)
    labels, correct = by_class(runs)
    costs = mean_costs(runs)
    return {
        "name": name,
        "method": runs[0].config.method.name,
        "runs": [str(run.path) for run in runs],
        "seeds": [run.config.seed for run in runs],
        "rounds": [min(run.last_round for run in runs), runs[0].config.rounds],
        "result": mean_and_deviation([run.result for run in runs]),
        "last": mean_and_deviation([value(run.lines[-1], run.measure) for run in runs]),
        "right": mean_and_deviation([late(run, percent("pl_accuracy")) for run in runs]),
        "used": mean_and_deviation([late(run, percent("utilization")) for run in runs]),
        "seconds": middle(np.concatenate([by_round(run, SECONDS) for run in runs])),
        "smoothed": mean_and_deviation([late(run, number(f"ema_{run.measure}")) for run in runs]),
        "total": costs.seconds or None,
        "sent": costs.traffic,
        "memory": costs.memory and costs.memory.num_bytes,
        "spent": {what: spent(runs, what) for what in ("seconds", "traffic")},
        "labels_by_class": plain(labels, 0),
        "right_by_class": plain(100 * divided(correct, labels), 2),
        "sites": by_site(runs),
        "command": command(runs),
        "recorded": recorded_commands(runs),
        "settings": to_toml(as_tables(runs[0].config)),
    }


def spent(runs: Sequence[Run], what: str) -> list[Any]:
    """Return what a line had cost after each round from 1; empty if a run does not record it."""
    curves = [spent_by_round(run, what) for run in runs]
    last = min(run.last_round for run in runs)
    means = [[curve.get(r, math.nan) for r in range(1, last + 1)] for curve in curves if curve]
    return plain(np.mean(means, 0), 6) if len(means) == len(curves) else []


def mean_and_deviation(values: Sequence[float | None]) -> Sequence[float | None]:
    """Return mean and sample standard deviation over runs that have a value."""
    known = [v for v in values if v is not None]
    return mean_std(known) if known else (None, None)


def by_class(runs: Sequence[Run]) -> tuple[Numbers, Numbers]:
    """Return the used and the correct pseudo-labels by class, over the last rounds of all seeds."""
    known = [run.extras.by_class for run in runs if len(run.extras.by_class[0])]
    if not known:
        return np.zeros(0), np.zeros(0)
    return np.sum([labels for labels, _, _ in known], 0), np.sum([correct for _, correct, _ in known], 0)


def by_site(runs: Sequence[Run]) -> Json | None:
    """Return the accuracy on each site's own images after the newest round that measured it, averaged over seeds.

    The images are the sites' test images, or those held out for validation where a run has no others.
    """
    for part in ("test", "validation"):
        found: dict[int, list[float]] = defaultdict(list)
        for run in runs:
            newest = next((of_sites for line in reversed(run.lines) if (of_sites := table(line, "sites", part))), {})
            for client in table(newest, "clients"):
                if client.isdecimal() and (accuracy := value(newest, "clients", client, "accuracy")) is not None:
                    found[int(client)].append(accuracy)
        if found:
            clients = sorted(found)
            return {"part": part, "clients": clients, "accuracy": [round(fmean(found[k]), 2) for k in clients]}
    return None


def table(line: Json, *keys: str) -> Json:
    """Return a table in a line; an empty one if it is missing or damaged."""
    found: Any = line
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def middle(values: Numbers) -> float | None:
    return None if np.isnan(values).all() else float(np.nanmedian(values))


def command(runs: Sequence[Run]) -> str:
    """Return the command that repeats the line with all its seeds; a run folder's settings are complete."""
    first = runs[0]
    words = ["fssl", "run", str(first.extras.folder.config_file)]
    seeds = sorted({run.config.seed for run in runs})
    words += ["--set", f"grid.seed={seeds}".replace(" ", "")] if len(seeds) > 1 else []
    mark = crc32(group_key(first).encode())  # lines of one method need separate folders
    return shlex.join([*words, "--out", f"again/{method_of(first)}-{mark:08x}"])


def recorded_commands(runs: Sequence[Run]) -> list[str]:
    """Return the commands that started these runs, as recorded in their folders."""
    said = [text for run in runs for session in run.sessions if isinstance(text := session.get("command"), str)]
    return [f"fssl {text}" for text in dict.fromkeys(said)]


# Hardware.


def hardware_table(runs: Sequence[Run]) -> list[Json]:
    """Return machines and versions, each with its number of runs and its total time."""
    rows: dict[str, Json] = {}
    members: dict[str, set[Path]] = defaultdict(set)
    seconds: Counter[str] = Counter()
    for run in runs:
        for session, spent in zip(run.sessions, time_by_session(run), strict=True):
            row = machine(session)
            key = repr(row)
            rows[key] = row
            members[key].add(run.path)
            seconds[key] += spent  # type: ignore[assignment]  # a Counter can add seconds as well
    return [{**row, "runs": len(members[key]), "seconds": seconds[key]} for key, row in rows.items()]


def machine(session: Mapping[str, Any]) -> Json:
    packages = session.get("packages")
    versions = packages if isinstance(packages, dict) else {}
    facts = {name: session.get(name) for name in MACHINE} | {name: versions.get(name) for name in MACHINE_PACKAGES}
    return {name: None if value is None else str(value) for name, value in facts.items()}


def time_by_session(run: Run) -> list[float]:
    """Return the seconds of the rounds between one start and the next."""
    starts = [s["from_round"] if isinstance(s.get("from_round"), int) else 1 for s in run.sessions]
    rounds, seconds = np.arange(1, run.last_round + 1), np.nan_to_num(by_round(run, SECONDS))
    ends = [*starts, run.last_round + 1][1:]
    return [float(seconds[(rounds >= a) & (rounds < b)].sum()) for a, b in zip(starts, ends, strict=True)]


# Curves: their mean and spread by round over the seeds of a line.


def for_page(run: Run) -> Run:
    """Return a run with only the keys of each line that the page needs, and with its other files read."""
    assert run.extras.damage is not None  # reads all of them
    return replace(run, lines=[{key: line[key] for key in LINE_KEYS if key in line} for line in run.lines])


def by_round(run: Run, quantity: Quantity) -> Numbers:
    """Return an array with a quantity at index round - 1; nan where it was not recorded."""
    values = np.full(run.last_round, np.nan)
    for line in run.lines:
        if (number := value(line, *quantity.place)) is not None:
            values[line["round"] - 1] = number * quantity.scale
    return values


def quantities_of(runs: Iterable[Run]) -> list[Quantity]:
    """Return all quantities, with the metrics that scripts recorded."""
    own = (Quantity(f"metrics.{name}", name, "", "recorded by the script that ran it") for name in own_metrics(runs))
    return [*QUANTITIES, *own]


def curves_of(runs: Sequence[Run]) -> Json:
    """Return every quantity that a line's runs have, over its seeds, by round from 1; gaps are null."""
    quantities = quantities_of(runs)
    known = {q: [values for run in runs if not np.isnan(values := by_round(run, q)).all()] for q in quantities}
    return {q.key: over_seeds(series, q.digits) for q, series in known.items() if series}


def over_seeds(series: Sequence[Numbers], digits: int) -> Json:
    """Return mean and sample standard deviation over the seeds that have a round, and their number."""
    values = np.full((len(series), max(map(len, series))), np.nan)
    for row, each in zip(values, series, strict=True):
        row[: len(each)] = each
    seeds = (~np.isnan(values)).sum(0)
    mean = divided(np.nansum(values, 0), seeds)
    std = np.sqrt(divided(np.nansum((values - mean) ** 2, 0), seeds - 1))
    return {"mean": plain(mean, digits), "std": plain(significant(std), digits + DIGITS_SHOWN), "seeds": seeds.tolist()}


def significant(values: Numbers) -> Numbers:
    """Return numbers from 0 rounded to the digits shown, to keep the page small."""
    size = np.floor(np.log10(values, out=np.zeros(len(values)), where=values > 0))
    scale = 10.0 ** (DIGITS_SHOWN - 1 - size)
    return np.round(values * scale) / scale


def plain(values: Numbers, digits: int) -> list[Any]:
    """Return numbers for JSON: rounded, and null for nan."""
    rounded: list[float] = np.round(values, digits).tolist()
    return [None if math.isnan(value) else value for value in rounded] if np.isnan(values).any() else rounded
