"""The table of a comparison as strings: a line per method, for the screen and for LaTeX."""

import shlex
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from ..config import toml_text
from ..config.conditions import chosen_parts
from ..console import setting_text
from ..errors import UserError, escape_unprintable, several, unknown
from ..records.rounds import MEASURES
from .costs import gibibytes, peak_memory
from .formats import Grid, latex, some_columns
from .groups import comparable_settings, peers, seeds_text, varying_settings
from .runs import Run, is_number, label_quality, late, number, own_metrics, spread, value
from .verdicts import (
    by_result,
    differences,
    gains,
    last_rounds,
    mean_result,
    not_compared,
    rivals,
    smoothed_results,
    verdict,
)

Groups = dict[str, list[Run]]
NOT_PRINTED = ("seeds", "s/round", "GiB")  # columns of the screen that the LaTeX table omits


def make_overview(groups: Groups) -> Grid:
    """Return a table with a line per setting, best first."""
    most = last_rounds(run for runs in groups.values() for run in runs)
    names = by_result(groups)
    own = own_metrics(run for runs in groups.values() for run in runs)
    more = ["GiB"] if any(peak_memory([run]) for runs in groups.values() for run in runs) else []
    rows = [
        [
            *row(name, groups[name]),
            *[gibibytes(peak_memory(groups[name]))][: len(more)],
            *(late_spread(groups[name], metric) for metric in own),
        ]
        for name in names
    ]
    best = {(names.index(name), 2): 1 for name in leaders(groups)}
    return Grid(["method", "seeds", f"last {most}", "last", "right", "used", "s/round", *more, *own], rows, best)


def late_spread(runs: list[Run], metric: str) -> str:
    """Return mean and spread of a script's metric in the last rounds."""
    values = [late(run, number("metrics", metric)) for run in runs]
    return spread([value for value in values if value is not None], 4)


def leaders(groups: Groups) -> set[str]:
    """Return the best of the comparable groups, and those with the same result as shown."""
    order = rivals(groups)
    if len(order) < 2:
        return set()
    return {name for name in order if shown_result(groups[name]) == shown_result(groups[order[0]])}


def shown_result(runs: list[Run]) -> str:
    return f"{mean_result(runs):.2f}"


def latex_table(title: str, overview: Grid, groups: Groups) -> str:
    """Return the table for a paper, with seeds and contents as a remark above it."""
    runs = [run for members in groups.values() for run in members]
    seeds = seeds_text(runs)
    seeds += " (* unfinished)" if "*" in seeds else ""
    seeds += " (! edited records, accepted)" if "!" in seeds else ""
    what = "" if runs[0].measure == "accuracy" else f"{MEASURES[runs[0].measure]}, "
    last = several(last_rounds(runs), "round")
    what += f"mean of the last {last}, then mean ± sample standard deviation over seeds {seeds}"
    wanted = [j for j, name in enumerate(overview.head) if name not in NOT_PRINTED]
    return latex(some_columns(overview, wanted), (title, what))


def conclusions(groups: Groups, against: str = "") -> list[str]:
    """Return sentences on the leader and on SAGE's gains, or on a named group compared with each other one."""
    first = differences(against, groups) if against else [verdict(groups), *gains(groups)]
    return [*first, *smoothed_results(groups), *not_compared(groups)]


def row(name: str, runs: list[Run]) -> list[str]:
    """Return one setting's line of the table: means and spread over its seeds."""
    quality = [label_quality(runs, key) for key in ("pl_accuracy", "utilization")]
    accuracy = [spread(results(runs)), spread([run.curve[-1] for run in runs], 1)]
    return [name, seeds_text(runs), *accuracy, *quality, seconds_per_round(runs)]


def seconds_per_round(runs: list[Run]) -> str:
    """Return the median seconds per round as text."""
    times = [value(line, "timing", "seconds") for run in runs for line in run.lines]
    known = [time for time in times if time is not None]
    return f"{np.median(known):.2f}" if known else "–"


def parts_of_round(run: Run) -> str:
    """Return the median seconds of each part of a round; empty for records without them."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for line in run.lines:
        timing = line.get("timing")
        parts = timing.get("parts") if isinstance(timing, dict) else None
        for name in parts if isinstance(parts, dict) else ():
            if (seconds := value(parts, name)) is not None:
                found[name].append(seconds)
    return ", ".join(f"{escape_unprintable(name)} {np.median(times):.2f}" for name, times in found.items())


def check_against(name: str, tasks: Iterable[Groups]) -> None:
    names = sorted({known for groups in tasks for known in groups})
    if name not in names:
        raise UserError(f"--against '{name}': no such line in the table; there are {'; '.join(names)}")


# By the values of a setting.


def check_by(key: str, runs: list[Run]) -> None:
    """Reject a setting that does not have several values among the runs."""
    every = [comparable_settings(run) for run in runs]
    values: dict[str, set[str]] = defaultdict(set)
    for name in dict.fromkeys(name for mine in every for name in mine):
        has_all = name.startswith("method.")  # only some methods have it; any other setting may be unset
        values[name] = {setting_text(mine.get(name)) for mine in every if name in mine or not has_all}
    varying = [name for name, choices in values.items() if len(choices) > 1 and name != "method.name"]
    if key in varying:
        return
    what = f"what varies: {', '.join(varying)}" if varying else "no setting varies between these runs"
    if key in ("seed", "method.name"):
        raise UserError(f"--by {key}: results are means over seeds, with a line per method; {what}")
    if key in values:
        raise UserError(f"--by {key}: it is {values[key].pop()} in all runs; {what}")
    if not varying:
        raise UserError(f"--by {key}: {what}")
    raise unknown("--by", key, varying, [name for name in varying if name.endswith(f".{key}")])


def by_value(key: str, groups: Groups) -> dict[str, Groups]:
    """Return the groups of each value, numbers in order; the value is unset for methods without the setting."""
    found: dict[str, Groups] = defaultdict(lambda: defaultdict(list))
    places = {}
    for name, runs in groups.items():
        for run in runs:
            choice = comparable_settings(run).get(key)
            text = setting_text(choice) + parts_text(key, run)
            found[text][name].append(run)
            places[text] = (0, choice, text) if is_number(choice) else (1, 0, text)
    return {text: found[text] for text in sorted(found, key=places.__getitem__)}


def parts_text(key: str, run: Run) -> str:
    """Return settings chosen together with a setting's value, such as `, lr=0.01` of a server's optimizer."""
    chosen = chosen_parts(run.config, key)
    return "".join(f", {part.rpartition('.')[2]}={setting_text(value)}" for part, value in chosen.items())


def overview_by(key: str, groups: Groups) -> Grid:
    """Return a table with a line per method and a column per value."""
    columns = by_value(key, groups)
    names = sorted(by_result(groups), key=lambda name: -sum(name in here for here in columns.values()))  # fullest first
    texts = [[spread(results(here.get(name, []))) for here in columns.values()] for name in names]
    rows = [[name, seeds_text(groups[name]), *cells] for name, cells in zip(names, texts, strict=True)]
    best = {(names.index(name), j): 1 for j, here in enumerate(columns.values(), 2) for name in leaders(here)}
    return Grid(["method", "seeds", *(f"{key.rsplit('.', 1)[-1]}={value}" for value in columns)], rows, best)


def results(runs: list[Run]) -> list[float]:
    return [run.result for run in runs]


def conclusions_by(key: str, groups: Groups, against: str = "") -> list[str]:
    """Return the sentences of `conclusions` for each value."""
    said = [
        f"{key} = {value}: {text}"
        for value, here in by_value(key, groups).items()
        for text in (conclusions(here, against) if len(here) > 1 else smoothed_results(here))
    ]
    is_apart = all(run.config.data.test == "tuning" for runs in groups.values() for run in runs)
    if key.startswith(("method.", "train.", "model.", "server.")):
        said += best_cell(key, groups, is_apart)
        if not is_apart:
            said.append(
                f"A choice of {key} from this table is made on the test set; say so, or use data.test=tuning,"
                " which sets half of the test set apart for it."
            )
    return said


def best_cell(key: str, groups: Groups, is_apart: bool) -> list[str]:
    """Return a line on the best cell of a sweep, with its settings as options for the final run."""
    cells = [(name, here[name]) for here in by_value(key, groups).values() for name in rivals(here)]
    if len(cells) < 2:
        return []
    name, runs = max(cells, key=lambda cell: mean_result(cell[1]))
    every = [comparable_settings(run) for _, members in cells for run in members]
    mine, varying = comparable_settings(runs[0]), varying_settings(every)
    chosen = {k: v for k, v in mine.items() if v is not None and (k == key or peers(k, mine) in varying)}
    words = {"method.name": runs[0].config.method.name} | chosen | ({"data.test": "final"} if is_apart else {})
    texts = {k: v if isinstance(v, str) else toml_text(v) for k, v in words.items()}
    settings = " ".join(f"--set {shlex.quote(f'{k}={text}')}" for k, text in texts.items())
    return [f"Best cell: {name} with {key} = {setting_text(mine.get(key))}, {spread(results(runs))} %: {settings}"]
