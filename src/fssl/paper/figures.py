"""The paper's figures as files, with an index of their content, their runs, and what is missing."""

from collections.abc import Mapping, Sequence
from os.path import commonpath
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from ..console import RULED, say
from ..errors import unknown
from ..reports.drawing import PICTURE_FORMATS, mark_empty, save, settings, stamp
from ..reports.formats import Grid, as_code, escape_markdown, terminal
from ..reports.runs import Run, find_runs
from ..system.files import write_atomic
from ..system.machine import check_folder
from .gallery import FIGURES, Figure, Selector
from .setups import Setup, by_setup


class Outcome(NamedTuple):
    """A drawn figure: the picture (None if there is nothing to draw), its sources and what is missing."""

    figure: Figure
    picture: Any | None
    sources: list[str]
    missing: list[str]  # missing parts, each with the command that produces it

    @property
    def file(self) -> str:
        return f"fig{self.figure.name}"

    @property
    def state(self) -> str:
        return "not drawn" if self.picture is None else "in part" if self.missing else "drawn"


def make_figures(console: Console, paths: list[Path], out: Path, only: list[str]) -> None:
    """Draw every figure, or some, into a folder; the index lists all requested ones."""
    names = [chosen(name) for name in only] or list(FIGURES)
    check_folder("out", out)
    with settings():
        found = find_runs(paths)
        known, strange = by_setup(found.runs)
        out.mkdir(parents=True, exist_ok=True)
        outcomes = []
        for name in names:
            outcome = draw(FIGURES[name], known)
            if outcome.picture is not None:
                save(outcome.picture, out, outcome.file)
            outcomes.append(outcome._replace(picture=outcome.picture and True))
    earlier = [figure for name, figure in FIGURES.items() if name not in names and (out / f"fig{name}.png").is_file()]
    write_atomic(out / "README.md", index(outcomes, earlier))
    print_summary(console, outcomes, out)
    for text in (*(f"left out: {path}: {why}" for path, why in strange.items()), *found.remarks):
        say(console, text)


def chosen(name: str) -> str:
    """Return a figure's name for what people type: `4`, `fig4` or `Figure 4`."""
    short = name.lower().removeprefix("fig").removeprefix("ure").strip(" .")
    if short not in FIGURES:
        raise unknown("figure", name, FIGURES)
    return short


def draw(figure: Figure, known: Mapping[Setup, list[Run]]) -> Outcome:
    select = Selector(known)
    picture = figure.draw(select)
    asked = list(select.selections.values())
    drawn = [selection for selection in asked if selection.drawn]
    remarks = [text for selection in asked if (text := selection.remark())]
    mark_empty(picture)
    if remarks:
        stamp(picture, "; ".join(remarks))
    sources = [f"{escape_markdown(selection.describe())} {folders(selection.sources)}" for selection in drawn]
    missing = [line for selection in asked for line in selection.lacks()]
    return Outcome(figure, picture if drawn or not asked else None, sources, missing)


def folders(runs: list[Run]) -> str:
    """Return the folders of runs, with the shared part of their paths once."""
    base = Path(commonpath([run.path.parent for run in runs]))
    names = sorted(dict.fromkeys(str(run.path.relative_to(base)) for run in runs))
    return f"Runs in {as_code(str(base))}: {', '.join(map(as_code, names))}."


def index(outcomes: list[Outcome], earlier: Sequence[Figure] = ()) -> str:
    """Return a page with every picture, its caption, its runs and missing parts; earlier pictures come last."""
    lines = ["# The paper's figures, from records of runs", ""]
    lines += ["Figure 3 is a diagram of the method. Bands and bars are one standard deviation over seeds.", ""]
    for outcome in outcomes:
        lines += [f"## Figure {outcome.figure.name}. {outcome.figure.title}", ""]
        if outcome.picture is not None:
            others = ", ".join(f"[{kind.upper()}]({outcome.file}.{kind})" for kind in PICTURE_FORMATS[1:])
            lines += [f"![Figure {outcome.figure.name}]({outcome.file}.png)", "", f"Also as {others}.", ""]
        lines += [outcome.figure.caption, ""]
        for text in outcome.sources:
            lines += [f"Drawn from {text}", ""]
        if outcome.missing:
            lines += ["Missing:", "", *(f"- {text}" for text in outcome.missing), ""]
    for figure in earlier:
        lines += [f"## Figure {figure.name}. {figure.title}", "", f"![Figure {figure.name}](fig{figure.name}.png)", ""]
        lines += ["Drawn by an earlier command; draw it again to see from which runs.", ""]
    return "\n".join(lines).rstrip() + "\n"


def print_summary(console: Console, outcomes: list[Outcome], out: Path) -> None:
    rows = [[outcome.figure.name, outcome.state, outcome.figure.title] for outcome in outcomes]
    console.print(terminal(Grid(("figure", "state", "what it shows"), rows), RULED, whole=0))
    commands = dict.fromkeys(text for outcome in outcomes for text in outcome.missing)
    if commands:
        say(console, "Missing:")
    for text in commands:
        say(console, f"  {text}")
    say(console, f"written: {out}/README.md, and each drawn figure as {', '.join(PICTURE_FORMATS)}")
