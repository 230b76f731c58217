"""Records of runs as a table in the terminal, a small curve, or a picture."""

from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from ..console import say
from ..errors import UserError
from ..records.rounds import LAST
from ..records.store import RunFolder
from .drawing import band, legend, settings, sheet
from .look import Style, styles_of
from .runs import Run, find_runs, groups_of, label_quality, percents, read_run, spread, verdict

BLOCKS = " ▁▂▃▄▅▆▇█"


def sparkline(values: list[float], width: int = 60) -> str:
    """A curve in one line of text."""
    step = max(1, -(-len(values) // width))
    points = [float(np.mean(values[i : i + step])) for i in range(0, len(values), step)]
    low, high = min(points), max(points)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0
    return "".join(BLOCKS[round((p - low) * scale)] for p in points)


def print_run(console: Console, path: Path) -> None:
    run = read_run(path)
    folder = RunFolder(path)
    last = run.lines[-1]
    say(console, f"{run.config.method.name} on {run.config.data.name}, seed {run.config.seed}: {path}")
    if not folder.is_finished:
        say(console, f"unfinished: {len(run.lines)} of {run.config.rounds} rounds; go on with --resume")
    table = Table(show_header=False)
    table.add_row(f"accuracy, mean of the last {min(LAST, len(run.lines))} rounds", f"{run.result:.2f} %")
    table.add_row("last round", f"{run.curve[-1]:.2f} %")
    table.add_row("best round", f"{max(run.curve):.2f} % (round {1 + int(np.argmax(run.curve))})")
    for norm, test in last["test"].items():
        table.add_row(f"last round, {norm}", f"{test['accuracy']:.2f} %")
    for key in ("pl_accuracy", "utilization", "fallback_share", "disagreement", "lam_sure"):
        if last.get(key) is not None:
            table.add_row(key, f"{last[key]:.3f}")
    seconds = float(np.median([line["timing"]["seconds"] for line in run.lines]))
    table.add_row("seconds per round (median)", f"{seconds:.2f}")
    console.print(table)
    say(console, f"{min(run.curve):5.1f} % {sparkline(run.curve)} {max(run.curve):.1f} %")


def compare_runs(console: Console, paths: list[Path], png: Path | None) -> None:
    if png and png.suffix.lower() != ".png":
        raise UserError(f"--png {png}: expected a name that ends with .png")
    groups = groups_of(find_runs(paths))
    order = sorted(groups, key=lambda name: -np.mean([r.result for r in groups[name]]))
    numbers = (Column(name, no_wrap=True) for name in (f"last {LAST}", "last", "right", "used", "s/round"))
    words = (Column("method", overflow="fold", min_width=12), Column("seeds", min_width=5))
    table = Table(*words, *numbers, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in order:
        table.add_row(*row(name, groups[name]))
    console.print(table)
    say(console, f"In percent: test accuracy (mean of the last {LAST} rounds; last round), labels right, labels used.")
    say(console, verdict(groups, order))
    if png:
        draw(groups, png)
        say(console, f"curves: {png}")


def row(name: str, runs: list[Run]) -> list[str]:
    """One setting's line of the table: means and spread over its seeds."""
    quality = [label_quality(runs, key) for key in ("pl_accuracy", "utilization")]
    seconds = float(np.median([line["timing"]["seconds"] for run in runs for line in run.lines]))
    accuracy = [spread([run.result for run in runs]), spread([run.curve[-1] for run in runs], 1)]
    return [name, " ".join(str(run.config.seed) for run in runs), *accuracy, *quality, f"{seconds:.2f}"]


def draw(groups: dict[str, list[Run]], png: Path) -> None:
    """Test accuracy and pseudo-label accuracy by round, mean and spread over seeds."""
    named = sorted(groups.items())
    styles = styles_of([runs[0].config.method.name for _, runs in named])
    titles = ("test accuracy", "pseudo-label accuracy", "pseudo-labels used")
    with settings():
        figure, axes = sheet(9, 3.4, 1, 3)
        for (name, runs), style in zip(named, styles, strict=True):
            curves(axes[0, 0], [run.curve for run in runs], name, style)
            for panel, key in zip(axes[0, 1:], ("pl_accuracy", "utilization"), strict=True):
                curves(panel, [percents(run, key) for run in runs if key in run.lines[-1]], name, style)
        for panel, title in zip(axes[0], titles, strict=True):
            panel.set(title=title, xlabel="round", ylabel="%")
        legend(figure, 4)
        png.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(png, dpi=200)


def curves(axes: Any, series: list[list[float]], name: str, style: Style) -> None:
    length = min(map(len, series), default=0)
    band(axes, range(1, length + 1), np.array([s[:length] for s in series]), name, style)
