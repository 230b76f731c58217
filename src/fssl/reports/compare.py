"""`fssl compare`: runs compared, as tables in the terminal, a picture, CSV and LaTeX."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

from rich.console import Console

from ..console import say, setting_text
from ..errors import UserError, several, shortened
from ..records.rounds import ALL_MEASURES, MEASURES, MEMORY, OF_TAIL
from ..system.files import as_csv, write_file
from ..system.machine import check_file
from .costs import peak_memory
from .drawing import (
    PAGE,
    band,
    by_rounds,
    head,
    legend,
    letters_across,
    level,
    make_room,
    mark_empty,
    name_ends,
    points,
    render,
    settings,
    sheet,
)
from .formats import Grid, markdown, print_grid
from .groups import comparable_settings, distinct, group_by_task, named_groups, styles_of
from .look import Style
from .overview import (
    Groups,
    by_value,
    check_against,
    check_by,
    conclusions,
    conclusions_by,
    latex_table,
    make_overview,
    overview_by,
)
from .runs import (
    SHOWN,
    FoundRuns,
    Read,
    Run,
    by_round,
    commits_of,
    find_runs,
    joined,
    late,
    number,
    own_metrics,
    percent,
)
from .verdicts import by_result, last_rounds, mean_result

ROW = 3.2  # inches: height of a task's panels
MOST_ROWS = 12  # in one picture
RUN_FIELDS = (
    "task",
    "method",
    "seed",
    "rounds",
    "measure",
    "result",
    "last",
    "ema_result",
    *MEASURES,
    "pl_accuracy",
    "utilization",
    "commits",
    "folder",
)


class Files(NamedTuple):
    """The files to write in addition to the tables in the terminal."""

    png: Path | None = None
    svg: Path | None = None
    pdf: Path | None = None
    csv: Path | None = None
    tex: Path | None = None
    title: str = ""  # of a picture with a single panel

    @property
    def pictures(self) -> dict[str, Path]:
        """Return the pictures' files by format."""
        formats = {"png": self.png, "svg": self.svg, "pdf": self.pdf}
        return {kind: file for kind, file in formats.items() if file}

    def check(self) -> None:
        """Reject files that cannot be written, before the work."""
        for kind in ("png", "svg", "pdf", "csv", "tex"):
            if file := getattr(self, kind):
                check_file(kind, file, f".{kind}")
        if self.title and not self.pictures:
            raise UserError("--title has no effect without a picture; add --png, --svg or --pdf")


NO_FILES = Files()


@dataclass(frozen=True)
class Comparison:
    """The comparison of runs. `print` shows its tables and sentences; a notebook renders them.

    Attributes:
        tasks: By task, the groups of runs that differ only in their seed.
        tables: By task, the table.
        sentences: By task, sentences on commits, the leading method and its margin.
        remarks: Remarks on all tables.
        by: The setting that the columns show; empty without one.

    Examples:
        >>> comparison = fssl.compare("runs", by="partition.alpha")
        >>> [(row["method"], row["result"]) for row in comparison.results]
    """

    tasks: dict[str, Groups]
    tables: dict[str, Grid]
    sentences: dict[str, list[str]]
    remarks: list[str]
    by: str

    @property
    def results(self) -> list[dict[str, Any]]:
        """Return a row for each run, unrounded, as `--csv` writes them."""
        return runs_table(self.tasks)[1]

    def __str__(self) -> str:
        """Return what `fssl compare` prints, with tables in Markdown."""
        parts = [f"{title}\n\n{markdown(self.tables[title])}" for title in self.tables]
        said = ["\n".join(self.sentences[title]) for title in self.tables]
        texts = [text for pair in zip(parts, said, strict=True) for text in pair]
        return "\n".join([*texts, *self.remarks])

    def _repr_markdown_(self) -> str:
        """Return what a notebook shows."""
        return str(self)

    def check(self, files: Files) -> None:
        """Reject a title over several panels."""
        if files.title and (self.by or len(self.tasks) > 1):
            raise UserError("--title draws one panel of one task, by round; remove --by, or name runs of one task")

    def write(self, files: Files) -> Iterator[str]:
        """Write the files and yield a line for each."""
        if files.csv:
            write_file(files.csv, as_csv(*runs_table(self.tasks)))
            yield f"numbers: {files.csv}"
        if files.tex:
            latex = [latex_table(title, self.tables[title], groups) for title, groups in self.tasks.items()]
            write_file(files.tex, "\n".join(latex))
            yield f"LaTeX: {files.tex}"
        if files.pictures:
            yield from write_pictures(self.tasks, self.by, files)


def compare(paths: list[Path], by: str = "", against: str = "", measure: str = "") -> Comparison:
    """Compare runs task by task; runs of different tasks are not ranked together.

    Args:
        paths: Run folders, or folders of them.
        by: A setting: results are shown for each of its values, and a task may hold several of them.
        against: A line of the table that is compared with each of the others.
        measure: What runs are judged by; by default what their settings name.
    """
    every = find_runs(paths)
    found = every.by_measure(measure)
    runs = distinct(found.runs)
    if by:
        check_by(by, runs)
    tasks = {task.title: named_groups(task.runs, by) for task in group_by_task(runs, by)}
    if against:
        check_against(against, tasks.values())
    tables = {title: overview_by(by, groups) if by else make_overview(groups) for title, groups in tasks.items()}
    sentences = {
        title: [*on_commits(groups), *(conclusions_by(by, groups, against) if by else conclusions(groups, against))]
        for title, groups in tasks.items()
    }
    last = [footer(tasks, by), *signs(tables.values()), *remarks(every, found, runs, measure)]
    return Comparison(tasks, tables, sentences, last, by)


def compare_runs(
    console: Console,
    paths: list[Path],
    files: Files = NO_FILES,
    by: str = "",
    against: str = "",
    measure: str = "",
) -> None:
    """Print a comparison and write its files."""
    files.check()
    compared = compare(paths, by, against, measure)
    compared.check(files)
    for title, table in compared.tables.items():
        if len(compared.tables) > 1:
            say(console, "")
            say(console, title)
        print_grid(console, table)
        quiet = on_commits(compared.tasks[title])
        for text in compared.sentences[title]:
            say(console, text, "dim" if text in quiet else "")
    for text in compared.remarks:
        say(console, text)
    for text in compared.write(files):
        say(console, text)


def on_commits(groups: Groups) -> list[str]:
    """Return a sentence with the commits of a table's runs, if there are several."""
    commits = commits_of(run for runs in groups.values() for run in runs)
    text = f"Runs of several commits: {', '.join(commits)} (`fssl show RUN` names that of a run)."
    return [text] * (len(commits) > 1)


def footer(tasks: Mapping[str, Groups], by: str) -> str:
    """Return a sentence that explains the tables' numbers."""
    runs = [[run for members in groups.values() for run in members] for groups in tasks.values()]
    most = sorted({*map(last_rounds, runs)})
    rounds = " or ".join([*map(str, most[:-1]), several(most[-1], "round")])
    others = ")" if by else f"; last round), labels right and used (mean of the last {rounds})"
    kinds = {memory.kind for members in runs for run in members if (memory := peak_memory([run]))}
    about = "" if by or not kinds else f" GiB: {' or '.join(MEMORY[kind] for kind in MEMORY if kind in kinds)}."
    return f"In percent: test {MEASURES[runs[0][0].measure]} (mean of the last {rounds}{others}.{about}"


def signs(overviews: Iterable[Grid]) -> list[str]:
    """Return an explanation of each mark after seeds, if there are any."""
    seen = {sign for overview in overviews for texts in overview.rows for sign in texts[1]}
    meanings = {
        "*": "* unfinished: the mean of its last rounds so far",
        "!": "! a record that was edited and accepted",
    }
    return [text for sign, text in meanings.items() if sign in seen]


def remarks(every: FoundRuns, judged: FoundRuns, shown: Sequence[Run], measure: str) -> list[str]:
    """Return sentences on runs that the tables omit, or judge by another measure than their settings name."""
    named = sorted({run.config.records.metrics for run in every.runs})
    several_measures = f"These runs have different headline measures ({', '.join(named)}); choose one with --measure"
    used = {run.path for run in shown}
    repeats = [str(run.path) for run in judged.runs if run.path not in used]
    left_out = (
        f"left out: {len(repeats)} run(s) with the settings and the seed of another that is as long or longer:"
        f" {shortened(repeats, SHOWN)}"
    )
    return [*[several_measures] * (len(named) > 1 and not measure), *judged.remarks, *[left_out] * bool(repeats)]


def write_pictures(tasks: Mapping[str, Groups], by: str, files: Files) -> Iterator[str]:
    """Write the pictures, one for each format; yield a line for each."""
    pictures = files.pictures
    if len(tasks) > MOST_ROWS:
        which = f"the first {MOST_ROWS} of {len(tasks)} tasks"
        yield f"the picture shows {which}: name fewer folders to choose, or give --by"
    shown = dict(islice(tasks.items(), MOST_ROWS))
    if files.title:
        (groups,) = shown.values()
        made = drawn_alone(groups, files.title, [*pictures])
    else:
        made = drawn_tasks(shown, by, [*pictures])
    for kind, content in made.items():
        write_file(pictures[kind], content)
        yield f"picture: {pictures[kind]}"


def runs_table(tasks: dict[str, Groups]) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the columns and a row per run: its results, then every setting in which the runs differ."""
    runs = [(title, name, run) for title, groups in tasks.items() for name in by_result(groups) for run in groups[name]]
    chosen = [comparable_settings(run) for *_, run in runs]
    keys = dict.fromkeys(key for mine in chosen for key in mine)
    own = {f"metrics.{name}": number("metrics", name) for name in own_metrics(run for *_, run in runs)}
    varying = [key for key in keys if len({repr(mine.get(key)) for mine in chosen}) > 1]
    rows = [
        {
            **run_record(*each),
            **{name: late(each[-1], read) for name, read in own.items()},
            **{k: mine.get(k) for k in varying},
        }
        for each, mine in zip(runs, chosen, strict=True)
    ]
    some = [name for name in (*OF_TAIL, "memory") if any(row[name] is not None for row in rows)]
    return [*RUN_FIELDS, *some, *own, *varying], rows


def run_record(title: str, name: str, run: Run) -> dict[str, Any]:
    """Return the row of one run, unrounded."""
    numbers = {"rounds": run.last_round, "measure": run.measure, "result": run.result, "last": run.curve[-1]}
    smooth = {"ema_result": late(run, number(f"ema_{run.measure}"))}
    smooth |= {measure: late(run, number(measure)) for measure in ALL_MEASURES}
    quality = {key: late(run, percent(key)) for key in ("pl_accuracy", "utilization")}
    memory = peak_memory([run])
    smooth["memory"] = None if memory is None else memory.num_bytes
    source = {"commits": " ".join(run.commits), "folder": run.path}
    return {"task": title, "method": name, "seed": run.config.seed, **numbers, **smooth, **quality, **source}


def drawn_tasks(tasks: dict[str, Groups], by: str, formats: Sequence[str]) -> Mapping[str, bytes]:
    """Draw the headline measure and pseudo-labels right and used, a row of panels per task.

    Curves show mean and spread over seeds by round; with `by`, points show the last rounds by a setting's values.
    """
    runs_of = {name: runs for groups in tasks.values() for name, runs in groups.items()}
    style_of = styles_of(runs_of, sorted(runs_of))
    measure = measure_of(runs_of)
    titles = (f"test {MEASURES[measure]}", "pseudo-label accuracy", "pseudo-labels used")
    reads = (number(measure), percent("pl_accuracy"), percent("utilization"))
    with settings():
        figure, axes = sheet(9, ROW * len(tasks), len(tasks), 3)
        lines = 0
        for panels, (task, groups) in zip(axes, tasks.items(), strict=True):
            columns = by_value(by, groups) if by else {}
            for panel, read, title in zip(panels, reads, titles, strict=True):
                for i, name in enumerate(sorted(groups)):
                    if by:
                        aside = 0.04 * (i - (len(groups) - 1) / 2)
                        draw_by(panel, by, columns, name, read, style_of[name], aside)
                    else:
                        draw_rounds(panel, groups[name], name, read, style_of[name])
                low, high = panel.get_ylim()
                panel.set(title=title, xlabel=by, ylabel="%", ylim=(max(low, 0), min(high, 100)))
            if not by:
                by_rounds(*panels)
            if len(tasks) > 1:
                lines += head(panels, task)
        mark_empty(figure)
        legend(figure, 4)
        make_room(figure, lines)
        return render(figure, formats, 200)


def drawn_alone(groups: Groups, title: str, formats: Sequence[str]) -> Mapping[str, bytes]:
    """Draw the headline measure of one task by round in a single panel, with names and results at the ends of lines."""
    style_of = styles_of(groups, sorted(groups))
    measure = measure_of(groups)
    with settings():
        figure, axes = sheet(PAGE, ROW)
        (panel,) = axes.flat
        for name in sorted(groups):
            draw_rounds(panel, groups[name], name, number(measure), style_of[name])
        low, high = panel.get_ylim()
        panel.set(ylabel=f"test {MEASURES[measure]}, %", ylim=(max(low, 0), min(high, 100)))
        panel.set_title(fill(title, letters_across(figure) // 2), fontsize=11, weight="bold")
        by_rounds(panel)
        panel.margins(x=0)
        name_ends(panel, {name: (mean_result(runs), style_of[name].color) for name, runs in groups.items()})
        return render(figure, formats, 200)


def measure_of(groups: Groups) -> str:
    """Return the measure that all of these runs are judged by."""
    return next(run.measure for runs in groups.values() for run in runs)


def draw_rounds(panel: Any, runs: Sequence[Run], name: str, read: Read, style: Style) -> None:
    """Draw a method's curve with its spread over seeds."""
    series = [by_round(run, read) for run in runs]
    band(panel, *joined(curve for curve in series if curve), name, style)


def draw_by(
    panel: Any, key: str, columns: dict[str, Groups], name: str, read: Read, style: Style, aside: float
) -> None:
    """Draw a method's points, shifted a little from the others'; a horizontal line if it lacks the setting."""
    known = {v: [x for run in here.get(name, []) if (x := late(run, read)) is not None] for v, here in columns.items()}
    nowhere = setting_text(None) if key.startswith("method.") else ""
    places = [value for value in columns if value != nowhere]
    panel.set_xticks(range(len(places)), places)
    if across := known.pop(nowhere, []):
        level(panel, across, name, style)
    at = [i for i, value in enumerate(places) if known[value]]
    if at:
        points(panel, [i + aside for i in at], [known[places[i]] for i in at], name, style)
