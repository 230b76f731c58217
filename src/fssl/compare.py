"""Records of runs as a table in the terminal, a small curve, or a picture. Reads run folders, nothing else."""

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from .config import Config, flatten
from .console import say
from .errors import UserError
from .records.rounds import LAST
from .records.store import RunFolder

BLOCKS = " ▁▂▃▄▅▆▇█"
# Okabe-Ito: distinct for colour-blind readers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")


class Run(NamedTuple):
    path: Path
    config: Config
    lines: list[dict[str, Any]]

    @property
    def curve(self) -> list[float]:
        return [line["accuracy"] for line in self.lines]

    @property
    def result(self) -> float:
        return float(np.mean(self.curve[-LAST:]))


def read_run(path: Path) -> Run:
    folder = RunFolder(path)
    if not folder.config_file.is_file():
        raise UserError(f"{path} is not a run folder (no config.toml); `fssl run` makes one, `fssl compare` takes many")
    lines = folder.rounds()
    if not lines:
        raise UserError(f"{path} has no finished round yet; `fssl run ... --resume` goes on with it")
    return Run(path, folder.config(), lines)


def find_runs(paths: Iterable[Path]) -> list[Run]:
    """Every run with at least one round below the given folders."""
    found = []
    for path in paths:
        if not path.exists():
            raise UserError(f"{path} does not exist")
        folders = sorted(p.parent for p in path.rglob("rounds.jsonl"))
        found += [read_run(folder) for folder in folders if RunFolder(folder).rounds()]
    if not found:
        raise UserError(f"no runs in {', '.join(map(str, paths))}; `fssl run` makes one")
    return found


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


def group_key(run: Run) -> str:
    """Everything but the seed: runs that differ in nothing else are repetitions."""
    ignored = ("seed", "data.dir")
    settings = {
        k: v for k, v in flatten(run.config).items() if k not in ignored and not k.startswith(("compute.", "records."))
    }
    return json.dumps(settings, sort_keys=True)


def groups_of(runs: list[Run]) -> dict[str, list[Run]]:
    """Repetitions under a short name that says in what the groups differ."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[group_key(run)].append(run)
    settings = {key: json.loads(key) for key in groups}
    named = {}
    for key, members in groups.items():
        extra = [f"{k.rsplit('.', 1)[-1]}={v}" for k, v in settings[key].items() if tells_apart(k, key, settings)]
        named[", ".join([members[0].config.method.name, *extra])] = members
    return named


def tells_apart(setting: str, key: str, settings: dict[str, dict[str, Any]]) -> bool:
    """Whether a setting varies: a method's own among its namesakes, any other among all groups."""
    if setting == "method.name":
        return False
    mine = settings[key]
    peers = [
        s for s in settings.values() if not setting.startswith("method.") or s["method.name"] == mine["method.name"]
    ]
    return any(s.get(setting) != mine[setting] for s in peers)


def mean_std(values: list[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation; no spread from a single run."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None


def spread(values: list[float], digits: int = 2) -> str:
    mean, std = mean_std(values)
    return f"{mean:.{digits}f}" + (f" ± {std:.{digits}f}" if std is not None else "")


def percents(run: Run, key: str) -> list[float]:
    """A quantity by round; nan where nothing was counted."""
    return [np.nan if line.get(key) is None else 100 * line[key] for line in run.lines]


def label_quality(runs: list[Run], key: str) -> str:
    """Mean and spread over runs of a quantity's last rounds, where they have it."""
    late = [[p for p in percents(run, key)[-LAST:] if not np.isnan(p)] for run in runs]
    known = [float(np.mean(values)) for values in late if values]
    return spread(known, 1) if known else "–"


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


def verdict(groups: dict[str, list[Run]], order: list[str]) -> str:
    """What came out, in words: who leads, and whether the lead is larger than the spread."""
    if len(order) < 2:
        return "One setting only: nothing to compare."
    first, second = (groups[name] for name in order[:2])
    lead = np.mean([r.result for r in first]) - np.mean([r.result for r in second])
    text = f"{order[0]} leads {order[1]} by {lead:.2f} points"
    pairs = paired(first, second)
    if len(pairs) > 1:
        low, high = min(pairs), max(pairs)
        text += f" (seed by seed {low:+.2f} to {high:+.2f})"
        text += "." if low > 0 else ": not in every seed, so this does not separate them."
        return text
    return text + ": a single seed says little."


def paired(first: list[Run], second: list[Run]) -> list[float]:
    """Differences between runs of the same seed."""
    other = {r.config.seed: r.result for r in second}
    return [r.result - other[r.config.seed] for r in first if r.config.seed in other]


def draw(groups: dict[str, list[Run]], png: Path) -> None:
    """Test accuracy and pseudo-label accuracy by round, mean and spread over seeds."""
    try:
        import matplotlib
    except ImportError:
        raise UserError("drawing needs matplotlib: pip install 'fssl[plots]'") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4), constrained_layout=True)
    for (name, runs), colour in zip(sorted(groups.items()), COLOURS * 9, strict=False):
        band(left, [r.curve for r in runs], name, colour)
        for axes, key in ((middle, "pl_accuracy"), (right, "utilization")):
            series = [percents(r, key) for r in runs if key in r.lines[-1]]
            if series:
                band(axes, series, name, colour)
    titles = ("test accuracy", "pseudo-label accuracy", "pseudo-labels used")
    for axes, title in zip((left, middle, right), titles, strict=True):
        axes.set(title=title, xlabel="round", ylabel="%")
        axes.grid(alpha=0.3)
    left.legend(frameon=False)
    png.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(png, dpi=150)
    plt.close(figure)


def band(axes: Any, series: list[list[float]], name: str, colour: str) -> None:
    length = min(map(len, series))
    values = np.array([s[:length] for s in series])
    rounds, mean, std = np.arange(1, length + 1), values.mean(0), values.std(0)
    axes.plot(rounds, mean, label=name, color=colour)
    axes.fill_between(rounds, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)
