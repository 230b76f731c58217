"""Functions shared by all pictures: sizes, curves with bands, points with spread, boxes, legends, files."""

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
RC_SETTINGS: dict[Any, Any] = {  # dollar signs in a name do not begin a formula
    **{"font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7},
    **{"legend.fontsize": 7, "legend.frameon": False, "legend.handlelength": 2.6, "legend.columnspacing": 1.2},
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6, "axes.titlelocation": "left"},
    **{"axes.grid": True, "axes.axisbelow": True, "grid.color": "#DDDDDD", "grid.linewidth": 0.5},
    **{"xtick.major.width": 0.6, "ytick.major.width": 0.6, "lines.linewidth": 1.2, "lines.markersize": 3.5},
    **{"text.parse_math": False, "pdf.fonttype": 42, "svg.hashsalt": "fssl"},
}


@contextmanager
def settings() -> Iterator[None]:
    """Set the look of text and lines inside the context; raise UserError if Matplotlib is not installed."""
    # Matplotlib's warnings (such as a letter that its font lacks) do not help the user of a picture.
    try:
        import matplotlib
    except ImportError:
        raise UserError("drawing needs matplotlib: pip install 'fssl[plots]'") from None
    with matplotlib.rc_context(RC_SETTINGS), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def sheet(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """Return an empty figure and its axes [rows, columns], independent of windows and of pyplot's global list."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def band(
    axes: Any, rounds: Sequence[int] | Numbers, values: Numbers, label: str, style: Style, most: float = 100
) -> None:
    """Draw the mean over runs by round, and a band of one standard deviation; `values` is [runs, rounds].

    The band is clipped to 0 to `most`, the range of a percentage.
    """
    if not values.size:
        return
    mean = values.mean(0)
    every = max(1, len(mean) // 6)
    first = sum(map(ord, label)) % every  # so that markers of different curves do not overlap
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
    """Return the standard deviation over runs, the length of a whisker; 0 for a single run."""
    return mean_std(values)[1] or 0.0


def points(axes: Any, at: Sequence[float], values: Sequence[Sequence[float]], label: str, style: Style) -> None:
    """Draw a mean with its standard deviation at each place on the axis, joined by a line."""
    means, stds = ([f(v) for v in values] for f in (np.mean, deviation))
    look = {"color": style.color, "linestyle": LINES[style.dash], "marker": MARKS[style.marker]}
    axes.errorbar(at, means, yerr=stds, label=label, capsize=2, elinewidth=0.8, markeredgewidth=0, **look)


def level(axes: Any, values: Sequence[float], label: str, style: Style) -> None:
    """Draw a percentage that does not depend on the axis: a horizontal line, with its spread as a band."""
    mean = float(np.mean(values))
    axes.axhline(mean, label=label, color=style.color, linestyle=LINES["dash"])
    if std := deviation(values):
        axes.axhspan(max(mean - std, 0), min(mean + std, 100), color=style.color, alpha=0.15, linewidth=0)


def bars(
    axes: Any, at: Sequence[float], values: Sequence[Sequence[float]], label: str, style: Style, wide: float
) -> None:
    """Draw means as bars with the standard deviation over runs; hatch bars whose style has a dash."""
    known = [(x, v) for x, v in zip(at, values, strict=True) if len(v)]
    means, stds = ([f(v) for _, v in known] for f in (np.mean, deviation))
    face = style.color if style.dash == "solid" else "white"
    axes.bar(
        *([x for x, _ in known], means, wide),
        **{"label": label, "facecolor": face, "edgecolor": style.color, "linewidth": 0.7, "yerr": stds},
        **{"hatch": "" if style.dash == "solid" else "/////", "error_kw": {"elinewidth": 0.7, "capsize": 1.2}},
    )


def boxes(axes: Any, at: Sequence[float], quantiles: Sequence[Sequence[float]], style: Style, width: float) -> None:
    """Draw boxes from the 5, 25, 50, 75 and 95 % quantiles of each distribution."""
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
    """Draw one legend below all panels, each name once, in rows; optionally group names by their first word."""
    named: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    labels = sorted(named, key=lambda label: label.split(",")[0]) if by_first_word else list(named)
    if labels:
        across = letters_across(figure) - 6  # to the right of its line
        longest = min(max(map(len, labels)), across) + 6
        width = min(columns, len(labels), max(1, letters_across(figure) // longest))
        down = [label for first in range(width) for label in labels[first::width]]  # Matplotlib fills columns
        words = [fill(label, across) for label in down]
        figure.legend([named[label] for label in down], words, loc="outside lower center", ncols=width)


def name_ends(axes: Any, ends: Mapping[str, tuple[float, str]]) -> None:
    """Write names and results to the right of the axes, as near to the height of each result as possible.

    `ends` has the result and the color of each name.
    """
    low, high = axes.get_ylim()
    names = sorted(ends, key=lambda name: ends[name][0])
    lines = np.arange(len(names)) * (high - low) / 16  # as far apart as lines of text
    bare = np.array([ends[name][0] for name in names]) - lines
    after = range(1, len(names) + 1)
    # Isotonic regression: minimize the squared moves of the names while keeping their order and distance.
    places = [max(min(bare[a:b].mean() for b in after[i:]) for a in range(i + 1)) for i in range(len(names))] + lines
    for name, place in zip(names, places, strict=True):
        result, color = ends[name]
        where = {"xycoords": axes.get_yaxis_transform(), "annotation_clip": False, "va": "center"}
        axes.annotate(f" {name} {result:.1f} %", (1, place), color=color, fontsize=9, **where)


def head(panels: Sequence[Any], text: str) -> int:
    """Write a heading above a row of panels with titles, in at most three lines, and return its number of lines."""
    # The layout ignores the heading, or it would move panels aside for a wide one; empty lines above the titles make
    # room for it.
    whole = "\xa0· ".join(part.replace(" ", "\xa0") for part in text.split(" · "))  # break lines only between parts
    across = int(letters_across(panels[0].figure) * 0.7)  # bold letters of eight points, next to the axis
    lines = wrap(whole, across, max_lines=3, placeholder=" …", break_on_hyphens=False)
    for panel in panels:
        panel.set_title("\n" * (len(lines) + 1) + panel.get_title(loc="left"), loc="left")
    above = {"xycoords": "axes fraction", "xytext": (0, 20), "textcoords": "offset points", "annotation_clip": False}
    name = panels[0].annotate("\n".join(lines), (0, 1), va="bottom", weight="bold", **above)
    name.set_in_layout(False)
    return len(lines) + 1


def make_room(figure: Any, lines: int) -> None:
    """Increase a figure's height by its legend and some lines of text, so that panels keep their height."""
    legends = sum(legend.get_window_extent().height / figure.dpi for legend in figure.legends)
    figure.set_figheight(figure.get_figheight() + legends + 0.14 * lines)


def letters_across(figure: Any) -> int:
    """Return how many letters of seven points fit into a line."""
    return int(figure.get_figwidth() * 17)


def by_rounds(*panels: Any) -> None:
    """Label the horizontal axes as rounds, with whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    for axes in panels:
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True, min_n_ticks=1))


def log_percents(axes: Any, *steps: int) -> None:
    """Make the vertical axis logarithmic, with written-out ticks at powers of ten and these multiples of them."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, *steps)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def mark_empty(figure: Any) -> None:
    """Write a note into panels that have nothing to show."""
    for axes in figure.axes:
        if not axes.has_data():
            axes.text(0.5, 0.5, "no records", transform=axes.transAxes, ha="center", va="center", color=GREY)


def stamp(figure: Any, text: str) -> None:
    """Write a remark above the panels, in small grey letters."""
    figure.suptitle(fill(text, letters_across(figure)), x=0.02, ha="left", fontsize=7, color=GREY)


def render(figure: Any, formats: Sequence[str] = PICTURE_FORMATS, dpi: int = 300) -> Mapping[str, bytes]:
    """Return the picture in each format, without dates: the same records give the same bytes."""
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
