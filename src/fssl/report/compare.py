"""Records of runs as a table in the terminal, a small curve, or a picture."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Column, Table

from ..console import PLAIN, print_table, say
from ..errors import UserError
from ..files import as_csv, write_atomic
from ..machine import check_file
from ..methods import with_defaults
from ..records.rounds import LAST
from ..records.store import RunFolder
from .drawing import band, legend, settings, sheet
from .look import styles_of
from .runs import (
    Run,
    by_result,
    by_round,
    distinct,
    find_runs,
    gains,
    groups_of,
    joined,
    label_quality,
    late,
    not_compared,
    number,
    percent,
    read_run,
    settings_of,
    spread,
    value,
    verdict,
)
from .tasks import tasks_of

SHARES = {
    "pl_accuracy": "labels right",
    "utilization": "labels used",
    "fallback_share": "only the global model sure",
    "disagreement": "models disagree",
    "lam_sure": "weight of the local vote",
}
BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: list[float], width: int = 60) -> str:
    """A curve in one line of text."""
    step = max(1, -(-len(values) // width))
    points = [float(np.mean(values[i : i + step])) for i in range(0, len(values), step)]
    low, high = min(points), max(points)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0
    return "".join(BLOCKS[round((p - low) * scale)] for p in points)


def print_run(console: Console, path: Path) -> None:
    folder = RunFolder(path, with_defaults)
    if not folder.config_file.is_file():
        raise UserError(f"{path} is not a run folder (no config.toml); `fssl run` makes one, `fssl compare` takes many")
    run = read_run(folder)
    if run is None:
        raise UserError(f"{path} has no finished round yet; `fssl run ... --resume` goes on with it")
    say(console, f"{run.config.method.name} on {run.config.data.name}, seed {run.config.seed}: {path}")
    if not folder.is_finished:
        say(console, f"unfinished: {len(run.lines)} of {run.config.rounds} rounds; go on with --resume")
    table = Table(show_header=False)
    for name, text in facts_of(run):
        table.add_row(name, text)
    console.print(table)
    if run.damaged:
        say(console, f"{run.damaged} damaged or half-written lines of rounds.jsonl are skipped")
    say(console, f"{min(run.curve):5.1f} % {sparkline(run.curve)} {max(run.curve):.1f} %")


def facts_of(run: Run) -> Iterator[tuple[str, str]]:
    """What there is to say of a run, line by line."""
    last, best = run.lines[-1], max(run.lines, key=lambda line: float(line["accuracy"]))
    yield f"accuracy, mean of the last {min(LAST, len(run.lines))} rounds", f"{run.result:.2f} %"
    yield "last round", f"{last['accuracy']:.2f} %"
    yield "best round (no result: the test chose it)", f"{best['accuracy']:.2f} % (round {best['round']})"
    tests = {norm: value(last, "test", norm, "accuracy") for norm in ("train_norm", "authors_norm")}
    if len(set(tests.values())) > 1:
        yield from ((f"last round, {norm}", f"{test:.2f} %") for norm, test in tests.items() if test is not None)
    for key, words in SHARES.items():
        if (share := value(last, key)) is not None:
            yield f"{words} ({key})", f"{share:.3f}"
    yield "seconds per round (median)", seconds_per_round([run])


def compare_runs(console: Console, paths: list[Path], png: Path | None, csv: Path | None = None) -> None:
    """Tables and words for each task; runs of different tasks are not ranked together."""
    if png:
        check_file("--png", png, ".png")
    if csv:
        check_file("--csv", csv, ".csv")
    found = find_runs(paths)
    runs = distinct(found.runs)
    tasks = {task.title: groups_of(task.runs) for task in tasks_of(runs)}
    for title, groups in tasks.items():
        if len(tasks) > 1:
            say(console, f"\n{title}")
        print_table(console, table_of(groups))
        for text in (verdict(groups), *gains(groups), *not_compared(groups)):
            say(console, text)
    most = last_rounds(run for groups in tasks.values() for members in groups.values() for run in members)
    say(console, f"In percent: test accuracy (mean of the last {most} rounds; last round), labels right, labels used.")
    for text in found.remarks:
        say(console, text)
    if repeats := len(found.runs) - len(runs):
        say(console, f"left out: {repeats} run(s) with the settings and the seed of another that is as long or longer")
    if csv:
        csv.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(csv, csv_text(tasks))
        say(console, f"numbers: {csv}")
    if png:
        draw(tasks, png)
        say(console, f"curves: {png}")


def last_rounds(runs: Iterable[Run]) -> int:
    """How many rounds a result is the mean of, at most."""
    return min(LAST, max(run.last_round for run in runs))


def table_of(groups: dict[str, list[Run]]) -> Table:
    words = (Column("method", no_wrap=True), Column("seeds", min_width=5))
    most = last_rounds(run for runs in groups.values() for run in runs)
    numbers = (Column(name, no_wrap=True) for name in (f"last {most}", "last", "right", "used", "s/round"))
    table = Table(*words, *numbers, **PLAIN)
    for name in by_result(groups):
        table.add_row(*row(name, groups[name]))
    return table


CSV_FIELDS = ("task", "method", "seed", "rounds", "result", "last", "pl_accuracy", "utilization", "folder")


def csv_text(tasks: dict[str, dict[str, list[Run]]]) -> str:
    """A line per run: what came out, then every setting in which the runs differ."""
    runs = [(title, name, run) for title, groups in tasks.items() for name in by_result(groups) for run in groups[name]]
    chosen = [settings_of(run) for *_, run in runs]
    keys = dict.fromkeys(key for mine in chosen for key in mine)
    varying = [key for key in keys if len({repr(mine.get(key)) for mine in chosen}) > 1]
    rows = (
        {**csv_row(*each), **{key: mine.get(key) for key in varying}} for each, mine in zip(runs, chosen, strict=True)
    )
    return as_csv([*CSV_FIELDS, *varying], rows)


def csv_row(title: str, name: str, run: Run) -> dict[str, Any]:
    """One run, unrounded."""
    numbers = {"rounds": run.last_round, "result": run.result, "last": run.curve[-1]}
    quality = {key: late(run, percent(key)) for key in ("pl_accuracy", "utilization")}
    return {"task": title, "method": name, "seed": run.config.seed, **numbers, **quality, "folder": run.path}


def row(name: str, runs: list[Run]) -> list[str]:
    """One setting's line of the table: means and spread over its seeds."""
    quality = [label_quality(runs, key) for key in ("pl_accuracy", "utilization")]
    accuracy = [spread([run.result for run in runs]), spread([run.curve[-1] for run in runs], 1)]
    return [name, " ".join(str(run.config.seed) for run in runs), *accuracy, *quality, seconds_per_round(runs)]


def seconds_per_round(runs: list[Run]) -> str:
    """The median."""
    times = [value(line, "timing", "seconds") for run in runs for line in run.lines]
    known = [time for time in times if time is not None]
    return f"{np.median(known):.2f}" if known else "–"


def draw(tasks: dict[str, dict[str, list[Run]]], png: Path) -> None:
    """Test accuracy, pseudo-labels right and used by round, mean and spread over seeds; a row of panels per task."""
    method_of = {name: runs[0].config.method.name for groups in tasks.values() for name, runs in groups.items()}
    style_of = dict(zip(sorted(method_of), styles_of([method_of[name] for name in sorted(method_of)]), strict=True))
    titles = ("test accuracy", "pseudo-label accuracy", "pseudo-labels used")
    reads = (number("accuracy"), percent("pl_accuracy"), percent("utilization"))
    with settings():
        figure, axes = sheet(9, 3.4 * len(tasks), len(tasks), 3)
        for panels, (task, groups) in zip(axes, tasks.items(), strict=True):
            for name, runs in sorted(groups.items()):
                for panel, read in zip(panels, reads, strict=True):
                    series = [by_round(run, read) for run in runs]
                    band(panel, *joined(curve for curve in series if curve), name, style_of[name])
            for panel, title in zip(panels, titles, strict=True):
                low, high = panel.get_ylim()
                panel.set(title=title, xlabel="round", ylabel="%", ylim=(max(low, 0), min(high, 100)))
            if len(tasks) > 1:
                panels[0].set_title(f"{task}\n{titles[0]}", loc="left")
        legend(figure, 4)
        png.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(png, dpi=200)
