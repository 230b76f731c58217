"""The scoreboard: the paper's numbers that were run here to their round, and which agree how far they are apart."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from rich.table import Table

from ..console import RULED
from ..records.rounds import LAST
from ..reports.drawing import MARKS, PAGE, legend, sheet
from ..reports.formats import Grid, markdown, terminal
from ..reports.look import GREY, MARKERS, Style, step_along
from ..reports.runs import Run, commits_of, mean_std, spread
from ..reports.verdicts import NOISE, NOISE_BANDS, noise_band
from .fill import FilledTable, TableCell
from .markup import signed
from .panels import look_of
from .published import TITLES, Column, PublishedTable, Row, Wanted
from .setups import PROTOCOLS, changes_since, result_at

POINT = NOISE[1]  # of accuracy, in percent: differences up to this are within the run-to-run noise
ROUNDING = "train.precision = "  # the one difference from the paper that a scored run may have
HEAD = ("setting", "method", "paper", "ours", "apart", "noise", "seeds", "commit")

BOARD_LEGEND = (
    f"Accuracy in percent: the mean of the last {LAST} rounds up to the paper's last one; where the paper prints the "
    "round of an accuracy, ours in that round. Mean ± standard deviation over seeds. Apart: ours minus the paper's. "
    f"Noise: how far they are apart, next to what separates repeated GPU runs of one seed ({NOISE[0]} to {NOISE[1]})."
)


class ScoredNumber(NamedTuple):
    """A number of the paper and the result of our runs; None if none reached its round.

    If the paper prints the round of an accuracy, ours is the accuracy in that round: both are in points.
    """

    table: PublishedTable
    row: Row
    column: Column
    wanted: Wanted
    printed: float
    runs: tuple[Run, ...] = ()
    ours: tuple[float, ...] = ()  # accuracy in percent, run by run

    @property
    def expected(self) -> float:
        """Return the accuracy that the paper prints."""
        return float(self.column.target or self.printed)

    @property
    def difference(self) -> float:
        """Return ours minus the paper's, as the numbers are shown."""
        return round(mean_std(self.ours)[0], 2) - self.expected

    @property
    def agrees(self) -> bool:
        return round(abs(self.difference), 2) <= POINT

    @property
    def cell(self) -> object:
        """Return a key, equal for a number printed in several tables; methods with all labels have no label share."""
        setup = self.wanted.setups[0]
        setup = setup._replace(labels_per_class=0) if self.row.is_bound else setup
        return setup, self.column.target, self.printed


class Scoreboard(NamedTuple):
    total: int  # numbers that the paper prints, each once
    scores: list[ScoredNumber]  # those with runs

    def sentence(self) -> str:
        """Return a sentence with how many numbers were run, and how far they are apart."""
        bands = Counter(noise_band(score.difference) for score in self.scores)
        counts = "; ".join(f"{band}: {bands[band]}" for band in NOISE_BANDS)
        return (
            f"The paper prints {self.total} different numbers. For {len(self.scores)} of them our runs reached the "
            f"paper's round under its protocol (`{PROTOCOLS[0]}`). Repeated runs of one seed differ by {NOISE[0]} to "
            f"{NOISE[1]} points. Differences from the paper: {counts}."
        )


def scoreboard(tables: Iterable[FilledTable]) -> Scoreboard:
    """Return the paper's numbers with the runs that reach their rounds, from the filled tables."""
    every: dict[object, ScoredNumber] = {}
    for score in (score for filled in tables for score in scores_in(filled)):
        every.setdefault(score.cell, score)
    return Scoreboard(len(every), sorted((score for score in every.values() if score.runs), key=place))


def place(score: ScoredNumber) -> tuple[float, int, float]:
    """Return a sort key: settings one after another, in the paper's order."""
    return score.table.label_fraction, list(TITLES).index(score.column.dataset), score.column.alpha


def scores_in(filled: FilledTable) -> Iterator[ScoredNumber]:
    table = filled.table
    lines = {line.row: line.cells for line in filled.lines if line.source == PROTOCOLS[0]}
    for row, wanted in zip(table.rows, table.wanted, strict=True):
        cells = lines.get(row.name, [None] * len(table.columns))
        for column, place, printed, cell in zip(table.columns, wanted, row.printed, cells, strict=True):
            if place and printed == printed:  # not nan, which is a target that the paper does not reach
                yield filled_in(ScoredNumber(table, row, column, place, printed), cell)


def filled_in(score: ScoredNumber, cell: TableCell | None) -> ScoredNumber:
    """Return a number with our runs, if all reach its round and differ from the paper only in rounding."""
    if cell is None or not all(score.row.is_bound or mark.startswith(ROUNDING) for mark in cell.setting):
        return score
    ours = [accuracy_of(run, score) for run in cell.runs]
    known = tuple(number for number in ours if number is not None)
    return score._replace(runs=cell.runs, ours=known) if len(known) == len(ours) else score


def accuracy_of(run: Run, score: ScoredNumber) -> float | None:
    """Return our number in points: the mean of the last ten rounds, or the accuracy in the paper's round."""
    if score.column.target is None:
        return result_at(run, score.wanted.end.rounds)
    there = (float(line["accuracy"]) for line in run.lines if line["round"] == score.printed)
    return next(there, None)


# In words.


def texts(score: ScoredNumber) -> list[str]:
    """Return a line of the scoreboard, in the columns of HEAD."""
    column = score.column
    setting = f"{TITLES[column.dataset]}, α = {column.alpha:g}, {100 * score.table.label_fraction:g} % labels"
    paper = f"{score.printed:.2f}" if column.target is None else f"{score.expected:g} % after {score.printed:g}"
    return [
        *(setting, score.row.name, paper, spread(list(score.ours))),
        signed(score.difference),
        noise_band(score.difference),
        ", ".join(str(run.config.seed) for run in score.runs),
        ", ".join(commits_of(score.runs)),
    ]


def markdown_board(board: Scoreboard, picture: str = "") -> str:
    """Return the sentence, the picture and a table of the numbers that were run."""
    parts = [board.sentence(), *([f"![The paper's numbers and ours]({picture})"] if picture else [])]
    if board.scores:
        parts += [markdown(Grid(HEAD, [*map(texts, board.scores)])).rstrip(), BOARD_LEGEND, *board_remarks(board)]
    return "\n\n".join(parts) + "\n"


def board_remarks(board: Scoreboard) -> list[str]:
    """Return sentences on runs of several commits, and on runs older than a change of results."""
    mixed = any(len(commits_of(score.runs)) > 1 for score in board.scores)
    said = ["Several commits: a run was resumed with another, or seeds were run with different ones."] if mixed else []
    older: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for score in board.scores:
        for remark in changes_since(score.runs):
            older[remark][TITLES[score.column.dataset]].append(score.row.name)
    return said + [f"{by_dataset(who)}: {remark}." for remark, who in older.items()]


def by_dataset(methods: Mapping[str, Sequence[str]]) -> str:
    """Return `SAGE, FixMatch-GPL on CIFAR-10; FedAvg on SVHN`."""
    return "; ".join(f"{', '.join(dict.fromkeys(who))} on {dataset}" for dataset, who in methods.items())


def terminal_board(board: Scoreboard) -> Iterator[Table]:
    """Yield tables for a screen of 80 columns, setting by setting; agreeing numbers are bold."""
    for setting, group in groupby(board.scores, key=lambda score: texts(score)[0]):
        scores = list(group)
        styles = ["bold" if score.agrees else "" for score in scores]
        look = {**RULED, "title": setting, "title_justify": "left"}
        yield terminal(Grid(HEAD[1:], [texts(score)[1:] for score in scores]), look, styles, whole=0)


# As a picture.


def draw_board(board: Scoreboard) -> Any:
    """Draw our numbers over the paper's, with their differences, in which a point is visible."""
    fig, axes = sheet(PAGE, 3.1, 1, 2)
    both, apart = axes[0]
    low, high = limits(number for score in board.scores for number in (score.expected, *score.ours))
    both.fill_between((low, high), (low - POINT, high - POINT), (low + POINT, high + POINT), **BAND)
    both.plot((low, high), (low, high), color=GREY, linewidth=0.8)
    apart.fill_between((low, high), -POINT, POINT, **BAND)
    apart.axhline(0, color=GREY, linewidth=0.8)
    looks = dot_styles(score.row for score in board.scores)
    for score, aside in side_by_side(board.scores):
        mean, std = mean_std(score.ours)
        style = looks[score.row.name]
        dot(both, score, style, score.expected, mean, std)
        x, shown = score.expected + aside, min(max(score.difference, -FAR), FAR)
        is_far = shown != score.difference
        dot(apart, score, style, x, shown, None if is_far else std)
        if is_far:
            apart.annotate(signed(score.difference, digits=1), (x, shown), **BESIDE)
    both.set(xlabel="paper (%)", ylabel="ours (%)", title="test accuracy", xlim=(low, high), ylim=(low, high))
    both.set_aspect("equal")
    apart.set(
        xlabel="paper (%); equal numbers drawn side by side",
        ylabel="ours − paper (points)",
        title=f"difference; filled: within {NOISE[1]} points",
        xlim=(low, high),
    )
    legend(fig, 4)
    return fig


BAND: dict[str, Any] = {"color": GREY, "alpha": 0.22, "linewidth": 0}
FAR = 6.0  # points: larger differences are drawn at the edge with their number, so that one point stays visible
BESIDE: dict[str, Any] = {"xytext": (6, 0), "textcoords": "offset points", "verticalalignment": "center"}


def limits(numbers: Iterable[float]) -> tuple[float, float]:
    """Return limits at multiples of ten, with all numbers well inside."""
    known = list(numbers) or [0.0, 100.0]
    return 10 * ((min(known) - 4) // 10), 10 * ((max(known) + 4) // 10 + 1)


def side_by_side(scores: Iterable[ScoredNumber]) -> Iterator[tuple[ScoredNumber, float]]:
    """Yield scores with a horizontal offset for equal numbers, such as targets in the tables of rounds."""
    same: dict[float, list[ScoredNumber]] = defaultdict(list)
    for score in scores:
        same[score.expected].append(score)
    for members in same.values():
        for i, score in enumerate(members):
            yield score, 1.6 * (i - (len(members) - 1) / 2)


def dot_styles(rows: Iterable[Row]) -> dict[str, Style]:
    """Return styles by name; dots have no dashes, so a row whose color and marker are taken gets another marker."""
    looks: dict[str, Style] = {}
    for row in rows:
        style = look_of(row.choice)
        taken = {look.marker for name, look in looks.items() if look.color == style.color and name != row.name}
        others = (step_along(MARKERS, style.marker, step) for step in range(len(MARKERS)))
        looks[row.name] = style._replace(marker=next((m for m in others if m not in taken), style.marker))
    return looks


def dot(panel: Any, score: ScoredNumber, style: Style, x: float, y: float, std: float | None) -> None:
    look: dict[str, Any] = {"color": style.color, "marker": MARKS[style.marker], "markersize": 5.5, "linestyle": ""}
    face = style.color if score.agrees else "white"
    if std is not None:
        panel.errorbar(x, y, yerr=std, color=style.color, elinewidth=0.9, capsize=2)
    panel.plot(x, y, **look, markeredgewidth=1.1, markerfacecolor=face)
    panel.plot([], [], **look, label=score.row.name)  # in the legend every method has a filled dot
