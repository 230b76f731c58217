"""Shared parts of the paper's figures: curves for each alpha, confidences above a threshold, sweeps, ranks."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..config import MethodChoice
from ..probes.host import FINE, FINE_FROM
from ..reports.drawing import COLUMN, band, bars, boxes, by_rounds, legend, level, points, sheet
from ..reports.look import BLUE, Style, method_style
from ..reports.runs import Numbers, Read, value
from .selection import Selection, choice_name

Size = tuple[float, float]  # inches: width, height
LPL, GPL, SAGE = "fixmatch-lpl", "fixmatch-gpl", "sage"
ACCURACY, COUNT = "test accuracy (%)", "labels per round (thousands)"
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
RANKS = 5  # places shown one by one; the rest together
THOUSAND = 1000


def thousands(key: str) -> Read:
    """Return a count of the record's sums in thousands."""
    return lambda line: None if (count := value(line, "sums", key)) is None else count / THOUSAND


def dashed(style: Style) -> Style:
    return style._replace(dash="dash", marker="diamond")


def alpha_name(alpha: float) -> str:
    return f"α = {alpha:g}"


def letters(axes: Any, titles: Sequence[str]) -> None:
    """Write (a), (b), ... before each panel's title."""
    for letter, panel, title in zip("abcdefghi", axes.flat, titles, strict=False):
        panel.set_title(f"({letter}) {title}")


def look_of(choice: MethodChoice) -> Style:
    return dashed(method_style(choice.name)) if choice.settings else method_style(choice.name)


# By round.


class Curve(NamedTuple):
    """A line by round: its quantity, its runs, and its style."""

    read: str | Read
    method: str | MethodChoice
    label: str
    style: Style


def by_method(runs: Selection, read: str | Read) -> list[Curve]:
    """Return the same quantity of every method."""
    return [Curve(read, method, choice_name(method), look_of(method)) for method in runs.methods]


def curves_by_alpha(runs: Selection, curves: Sequence[Curve], size: Size, unit: str, columns: int) -> Any:
    """Draw curves by round from zero, a panel for each alpha."""

    def draw(panel: Any, alpha: float) -> None:
        for curve in curves:
            band(panel, *runs.by_round(curve.read, curve.method, alpha), curve.label, curve.style)
        by_rounds(panel)

    fig = panels_by_alpha(runs, draw, size, unit, columns)
    fig.axes[0].set_ylim(bottom=0)  # of all panels, once they are drawn: an empty one has no upper limit of its own
    return fig


def panels_by_alpha(runs: Selection, draw: Callable[[Any, float], None], size: Size, unit: str, columns: int) -> Any:
    """Draw a panel for each alpha, side by side on one scale, above a legend with this number of columns."""
    fig, axes = sheet(*size, 1, len(runs.alphas), sharex=True, sharey=True)
    for panel, alpha in zip(axes.flat, runs.alphas, strict=True):
        draw(panel, alpha)
        panel.set_title(alpha_name(alpha))
    axes[0, 0].set_ylabel(unit)
    legend(fig, columns)
    return fig


# The paper does not name the model of a confidence: here each model in the run that it labels for, and both in SAGE's.
VOTERS = (
    ("local, FixMatch-LPL", "l", LPL, method_style(LPL)),
    ("global, FixMatch-GPL", "g", GPL, method_style(GPL)),
    ("local, SAGE", "l", SAGE, method_style(SAGE)),
    ("global, SAGE", "g", SAGE, dashed(method_style(SAGE))),
)
# The number of images of which each model is sure.
SURE = [Curve(thousands(f"n_{who}"), method, label, style) for label, who, method, style in VOTERS]


# Confidences, ranks and results.


def confidences(runs: Selection, axes: Sequence[Any], threshold: float) -> None:
    """Draw the share above a threshold, and the distribution there, for each alpha and model."""
    width = 0.8 / len(VOTERS)
    for i, (label, who, method, style) in enumerate(VOTERS):
        at = np.arange(len(runs.alphas)) + (i - 1.5) * width
        fine = [runs.late(f"confidence_{who}_top", method, alpha) for alpha in runs.alphas]
        whole = [runs.late(f"confidence_{who}", method, alpha) for alpha in runs.alphas]
        pairs = [zip(t, w, strict=True) for t, w in zip(fine, whole, strict=True)]
        shares = [[100 * share_above(t, w, threshold) for t, w in pair] for pair in pairs]
        if not any(shares):
            continue
        bars(axes[0], list(at), shares, label, style, 0.9 * width)
        pooled = {x: np.sum(h, 0) for x, h in zip(at, fine, strict=True) if len(h)}
        known = {x: quantiles_above(h, threshold) for x, h in pooled.items() if h[top_bins(threshold) :].any()}
        boxes(axes[1], list(known), list(known.values()), style, 0.8 * width)
    axes[0].set(ylabel="share of images (%)", title=f"confidence ≥ {threshold:g}")
    axes[1].set(ylabel="confidence", xticks=range(len(runs.alphas)), xticklabels=map(alpha_name, runs.alphas))
    for panel in axes:
        panel.grid(axis="x", visible=False)
        panel.set_xlim(-0.6, len(runs.alphas) - 0.4)


def top_bins(threshold: float) -> int:
    """Return the first bin of the finer histogram that lies above a threshold."""
    return round((threshold - FINE_FROM) / (1 - FINE_FROM) * FINE)


def share_above(fine: Numbers, whole: Numbers, threshold: float) -> float:
    return float(fine[top_bins(threshold) :].sum() / whole.sum())


def quantiles_above(fine: Numbers, threshold: float) -> list[float]:
    """Return quantiles of a histogram's upper part, with linear interpolation in bins."""
    counts = fine[top_bins(threshold) :]
    edges = np.linspace(threshold, 1, len(counts) + 1)
    total = np.concatenate([[0], counts.cumsum()])
    return [float(np.interp(q * total[-1], total, edges)) for q in QUANTILES]


def first_ranks(counts: Numbers) -> Numbers:
    """Return shares of the first places one by one, and of all others."""
    shares: Numbers = np.append(counts[:RANKS], counts[RANKS:].sum()) / max(counts.sum(), 1)
    return shares


def histogram_entropy(counts: Numbers) -> float:
    """Return the entropy of a histogram in nats; an empty bin adds nothing."""
    q = counts[counts > 0] / counts.sum()
    return float(-(q * np.log(q)).sum())


def by_setting(runs: Selection, key: str, name: str, default: str, unset: float = 0.0) -> Any:
    """Draw the result by the value of a setting of SAGE; `unset` is without it, a line shows the default."""
    fixed = {dict(method.settings).get(key, unset): method for method in runs.methods if method.settings}
    fig, axes = sheet(COLUMN, 2.3)
    results = {value: runs.result(method) for value, method in sorted(fixed.items())}
    known = {value: result for value, result in results.items() if result}
    if known:
        points(axes[0, 0], list(known), list(known.values()), "fixed", Style(BLUE, "solid", "square"))
    dynamic = runs.result(SAGE)
    if dynamic:
        level(axes[0, 0], dynamic, default, method_style(SAGE))
    axes[0, 0].set(xlabel=name, ylabel=ACCURACY, xticks=list(fixed))
    legend(fig, 2)
    return fig
