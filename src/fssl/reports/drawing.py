"""The shared half of every picture: sizes, curves with bands, points with spread, boxes, legends, files."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from textwrap import fill, wrap
from typing import Any

import numpy as np

from ..errors import UserError
from ..system.files import write_atomic
from .look import GREY, Style
from .runs import Numbers, mean_std

COLUMN, PAGE = 3.3, 6.9  # inches: one column and both columns of a paper
PICTURE_FORMATS = ("png", "svg", "pdf")
LINES = {"solid": "-", "dash": (0, (4, 1.5)), "dot": (0, (1, 1.2)), "dashdot": (0, (4, 1.5, 1, 1.5))}
LINES |= {"longdash": (0, (8, 2)), "longdashdot": (0, (8, 2, 1, 2))}
MARKS = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "triangle-down": "v", "cross": "P"}
MARKS |= {"x": "X", "star": "*", "pentagon": "p"}
RC_SETTINGS: dict[Any, Any] = {  # dollars in a name are no formula
    **{"font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7},
    **{"legend.fontsize": 7, "legend.frameon": False, "legend.handlelength": 2.6, "legend.columnspacing": 1.2},
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6, "axes.titlelocation": "left"},
    **{"axes.grid": True, "axes.axisbelow": True, "grid.color": "#DDDDDD", "grid.linewidth": 0.5},
    **{"xtick.major.width": 0.6, "ytick.major.width": 0.6, "lines.linewidth": 1.2, "lines.markersize": 3.5},
    **{"text.parse_math": False, "pdf.fonttype": 42, "svg.hashsalt": "fssl"},
}


@contextmanager
def settings() -> Iterator[None]:
    """How text and lines look inside of a `with`; refuses where the library is not installed.

    The library's own warnings (a letter that its font lacks) give users of a picture nothing that they could change.
    """
    try:
        import matplotlib
    except ImportError:
        raise UserError("drawing needs matplotlib: pip install 'fssl[plots]'") from None
    with matplotlib.rc_context(RC_SETTINGS), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def sheet(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """An empty figure and its axes, [rows, columns]; it belongs to no window and no global list."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def band(
    axes: Any, rounds: Sequence[int] | Numbers, values: Numbers, label: str, style: Style, most: float = 100
) -> None:
    """The mean over runs by round, and one standard deviation to both sides; `values` is [runs, rounds].

    No band leaves 0 to `most`, which is what a percentage can be.
    """
    if not values.size:
        return
    mean = values.mean(0)
    every = max(1, len(mean) // 6)
    first = sum(map(ord, label)) % every  # so that markers of different curves do not pile up
    axes.plot(
        *(rounds, mean),
        **{"label": label, "color": style.color, "linestyle": LINES[style.dash]},
        **{"marker": MARKS[style.marker], "markevery": (first, every), "markeredgewidth": 0},
    )
    if len(values) > 1:
        std = values.std(0, ddof=1)
        low, high = np.clip([mean - std, mean + std], 0, most)
        axes.fill_between(rounds, low, high, color=style.color, alpha=0.18, linewidth=0)


def deviation(values: Sequence[float]) -> float:
    """The standard deviation over runs, as long as a whisker; a single run has none."""
    return mean_std(values)[1] or 0.0


def points(axes: Any, at: Sequence[float], values: Sequence[Sequence[float]], label: str, style: Style) -> None:
    """One mean with its standard deviation for each place on the axis, joined by a line."""
    means, stds = ([f(v) for v in values] for f in (np.mean, deviation))
    look = {"color": style.color, "linestyle": LINES[style.dash], "marker": MARKS[style.marker]}
    axes.errorbar(at, means, yerr=stds, label=label, capsize=2, elinewidth=0.8, markeredgewidth=0, **look)


def level(axes: Any, values: Sequence[float], label: str, style: Style) -> None:
    """A percentage that does not depend on the axis: a line across, with its spread as a band."""
    mean = float(np.mean(values))
    axes.axhline(mean, label=label, color=style.color, linestyle=LINES["dash"])
    if std := deviation(values):
        axes.axhspan(max(mean - std, 0), min(mean + std, 100), color=style.color, alpha=0.15, linewidth=0)


def bars(
    axes: Any, at: Sequence[float], values: Sequence[Sequence[float]], label: str, style: Style, wide: float
) -> None:
    """Means as bars, with the standard deviation over runs; hatched where the look has a dash."""
    known = [(x, v) for x, v in zip(at, values, strict=True) if len(v)]
    means, stds = ([f(v) for _, v in known] for f in (np.mean, deviation))
    face = style.color if style.dash == "solid" else "white"
    axes.bar(
        *([x for x, _ in known], means, wide),
        **{"label": label, "facecolor": face, "edgecolor": style.color, "linewidth": 0.7, "yerr": stds},
        **{"hatch": "" if style.dash == "solid" else "/////", "error_kw": {"elinewidth": 0.7, "capsize": 1.2}},
    )


def boxes(axes: Any, at: Sequence[float], quantiles: Sequence[Sequence[float]], style: Style, width: float) -> None:
    """Boxes from the 5, 25, 50, 75 and 95 % quantiles of each distribution."""
    names = ("whislo", "q1", "med", "q3", "whishi")
    line = {"color": style.color, "linewidth": 0.8}
    face = style.color if style.dash == "solid" else "white"
    axes.bxp(
        [dict(zip(names, q, strict=True)) for q in quantiles],
        **{"positions": at, "widths": width, "showfliers": False, "patch_artist": True, "manage_ticks": False},
        **{"boxprops": {"facecolor": face, "edgecolor": style.color, "linewidth": 0.8, "alpha": 0.75}},
        **{"medianprops": {"color": "black", "linewidth": 1.0}, "whiskerprops": line, "capprops": line},
    )


def legend(figure: Any, columns: int, by_first_word: bool = False) -> None:
    """One legend below all panels, every name once, in rows; names that begin alike may be put together."""
    named: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    labels = sorted(named, key=lambda label: label.split(",")[0]) if by_first_word else list(named)
    if labels:
        across = letters_across(figure) - 6  # to the right of its line
        longest = min(max(map(len, labels)), across) + 6
        width = min(columns, len(labels), max(1, letters_across(figure) // longest))
        down = [label for first in range(width) for label in labels[first::width]]  # the library fills columns
        words = [fill(label, across) for label in down]
        figure.legend([named[label] for label in down], words, loc="outside lower center", ncols=width)


def name_ends(axes: Any, ends: Mapping[str, tuple[float, str]]) -> None:
    """Write names and results to the right of the axes, each as near to the height of its result as the others let it.

    `ends` has the result and the color of each name.
    """
    low, high = axes.get_ylim()
    names = sorted(ends, key=lambda name: ends[name][0])
    lines = np.arange(len(names)) * (high - low) / 16  # as far apart as lines of text
    bare = np.array([ends[name][0] for name in names]) - lines
    after = range(1, len(names) + 1)
    # The least squares of what the names move, where none may be below the one before it (isotonic regression).
    places = [max(min(bare[a:b].mean() for b in after[i:]) for a in range(i + 1)) for i in range(len(names))] + lines
    for name, place in zip(names, places, strict=True):
        result, color = ends[name]
        where = {"xycoords": axes.get_yaxis_transform(), "annotation_clip": False, "va": "center"}
        axes.annotate(f" {name} {result:.1f} %", (1, place), color=color, fontsize=9, **where)


def head(panels: Sequence[Any], text: str) -> int:
    """Name a row of panels that have titles, in at most three lines above them; returns the lines of room it takes.

    It has no part in the layout, which would move panels aside for a title that is wider than its own; room is made by
    empty lines above the titles.
    """
    whole = "\xa0· ".join(part.replace(" ", "\xa0") for part in text.split(" · "))  # lines end between parts
    across = int(letters_across(panels[0].figure) * 0.7)  # bold letters of eight points, next to the axis
    lines = wrap(whole, across, max_lines=3, placeholder=" …", break_on_hyphens=False)
    for panel in panels:
        panel.set_title("\n" * (len(lines) + 1) + panel.get_title(loc="left"), loc="left")
    above = {"xycoords": "axes fraction", "xytext": (0, 20), "textcoords": "offset points", "annotation_clip": False}
    name = panels[0].annotate("\n".join(lines), (0, 1), va="bottom", weight="bold", **above)
    name.set_in_layout(False)
    return len(lines) + 1


def make_room(figure: Any, lines: int) -> None:
    """Make a figure higher by its legend and some lines of text, so that panels keep their height."""
    legends = sum(legend.get_window_extent().height / figure.dpi for legend in figure.legends)
    figure.set_figheight(figure.get_figheight() + legends + 0.14 * lines)


def letters_across(figure: Any) -> int:
    """How many letters of seven points fit into a line."""
    return int(figure.get_figwidth() * 17)


def by_rounds(*panels: Any) -> None:
    """Horizontal axes of rounds, which are whole numbers also where there are few of them."""
    from matplotlib.ticker import MaxNLocator

    for axes in panels:
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True, min_n_ticks=1))


def log_percents(axes: Any, *steps: int) -> None:
    """A vertical axis by powers of ten, and these multiples of them, with numbers that are written out."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, *steps)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def mark_empty(figure: Any) -> None:
    """Words in panels that have nothing to show."""
    for axes in figure.axes:
        if not axes.has_data():
            axes.text(0.5, 0.5, "no records", transform=axes.transAxes, ha="center", va="center", color=GREY)


def stamp(figure: Any, text: str) -> None:
    """A remark above the panels, in small grey letters."""
    figure.suptitle(fill(text, letters_across(figure)), x=0.02, ha="left", fontsize=7, color=GREY)


def render(figure: Any, formats: Sequence[str] = PICTURE_FORMATS, dpi: int = 300) -> Mapping[str, bytes]:
    """The picture in each format, without dates: the same records give the same bytes."""
    without = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    out = {}
    for kind in formats:
        buffer = BytesIO()
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=without[kind])
        out[kind] = buffer.getvalue()
    return out


def save(figure: Any, folder: Path, name: str) -> None:
    for kind, content in render(figure).items():
        write_atomic(folder / f"{name}.{kind}", content)
