"""The paper's figures from run folders, one small function each; figures.toml describes their content."""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..catalog.facts import registry
from ..data.partition import class_counts, make_partition
from ..reports.drawing import COLUMN, PAGE, band, bars, by_rounds, legend, log_percents, sheet
from ..reports.look import GREY, Style, alpha_style, method_label, method_style
from ..reports.runs import Run, percent
from .panels import (
    ACCURACY,
    COUNT,
    GPL,
    LPL,
    RANKS,
    SAGE,
    SURE,
    VOTERS,
    alpha_name,
    by_method,
    by_setting,
    confidences,
    curves_by_alpha,
    dashed,
    first_ranks,
    histogram_entropy,
    letters,
    look_of,
    panels_by_alpha,
    thousands,
)
from .selection import Selection, choice_name
from .setups import Setup

KAPPA_DEFAULT = registry().methods["sage"].settings["kappa"].default


class Selector:
    """Selects the runs of the presets that a figure needs, and remembers the selections."""

    def __init__(self, known: Mapping[Setup, list[Run]]) -> None:
        self._known = known
        self.selections: dict[str, Selection] = {}

    def __call__(self, preset: str, *alphas: float) -> Selection:
        """Return the runs of a preset, or of some of its alphas only."""
        if preset not in self.selections:
            self.selections[preset] = Selection(preset, self._known, *alphas)
        return self.selections[preset]


class Figure(NamedTuple):
    """A figure of the paper: its name, its content, and decisions that the paper leaves open."""

    name: str
    title: str
    caption: str
    draw: Callable[[Selector], Any]


# Curves and bars.


def label_accuracy(runs: Selection) -> Any:
    fig, ((panel,),) = sheet(COLUMN, 2.7)
    for alpha in runs.alphas:
        used, every = (runs.by_round(percent(key), LPL, alpha) for key in ("pl_accuracy", "accuracy_l_all"))
        style = alpha_style(alpha)
        band(panel, *used, f"{alpha_name(alpha)}, used", style)
        band(panel, *every, f"{alpha_name(alpha)}, all", style._replace(dash="dot"))
    by_rounds(panel)
    panel.set(ylabel="correct pseudo-labels (%)")
    legend(fig, 2)
    return fig


def oracle_gap(runs: Selection, central: Selection | None = None) -> Any:
    fig, ((panel,),) = sheet(COLUMN, 2.9)
    for alpha in runs.alphas:
        style, name = alpha_style(alpha), alpha_name(alpha)
        band(panel, *runs.by_round("accuracy", LPL, alpha), f"{name}, all labels", style)
        band(panel, *runs.by_round("accuracy", f"{LPL}+oracle", alpha), f"{name}, only right labels", dashed(style))
    if central:
        band(panel, *central.by_round("accuracy", LPL), "centralized FixMatch", Style(GREY, "dot", "star"))
    by_rounds(panel)
    panel.set(ylabel=ACCURACY, ylim=(0, None))
    legend(fig, 2)
    return fig


def accuracy_curves(runs: Selection, size: tuple[float, float], columns: int) -> Any:
    return curves_by_alpha(runs, by_method(runs, "accuracy"), size, ACCURACY, columns)


def count_curves(runs: Selection) -> Any:
    return curves_by_alpha(runs, by_method(runs, thousands("n_valid")), (PAGE, 2.7), COUNT, 5)


def cpg_in_depth(runs: Selection) -> Any:
    fig, axes = sheet(PAGE, 2.1 * len(runs.alphas) + 0.3, len(runs.alphas), 2)
    for row, alpha in zip(axes, runs.alphas, strict=True):
        for method in runs.methods:
            style = look_of(method)
            band(row[0], *runs.by_round(percent("pl_accuracy"), method, alpha), choice_name(method), style)
            if method.name == SAGE:
                added = runs.by_round(thousands("n_fallback"), method, alpha)
                band(row[1], *added, choice_name(method), style, most=np.inf)
        by_rounds(*row)
        row[0].set(ylabel="correct labels (%)")
        row[1].set(ylabel="labels added (thousands)", ylim=(0, None))
    letters(axes, [alpha_name(alpha) for alpha in runs.alphas for _ in range(2)])
    legend(fig, 3)
    return fig


def late_confidences(runs: Selection) -> Any:
    fig, axes = sheet(COLUMN, 3.6, 2, 1, sharex=True)
    confidences(runs, axes[:, 0], 0.99)
    legend(fig, 2)
    return fig


def consensus(runs: Selection) -> Any:
    fig, axes = sheet(PAGE, 3.8, 2, len(runs.alphas), sharex=True, sharey="row")
    places = np.arange(RANKS + 1)
    for row, name in zip(axes, ("rank_l_in_g", "rank_g_in_l"), strict=True):
        for panel, alpha in zip(row, runs.alphas, strict=True):
            for i, method in enumerate((LPL, GPL, SAGE)):
                shares = [100 * first_ranks(h) for h in runs.late(name, method, alpha)]
                if shares:
                    at = places + (i - 1) * 0.27
                    bars(panel, list(at), list(np.transpose(shares)), method_label(method), method_style(method), 0.25)
            log_percents(panel, 2, 5)
            panel.set(xlim=(-0.6, RANKS + 0.6), xticks=places, xticklabels=[*map(str, places[1:]), f"> {RANKS}"])
            panel.grid(axis="x", visible=False)
    for panel, alpha in zip(axes[0], runs.alphas, strict=True):
        panel.set_title(alpha_name(alpha))
    axes[0, 0].set_ylabel("sure local labels (%)")
    axes[1, 0].set_ylabel("sure global labels (%)")
    for panel, who in ((axes[0], "global"), (axes[1], "local")):
        panel[1].set_xlabel(f"place in the {who} prediction")
    legend(fig, 3)
    return fig


def confidences_by_threshold(runs: Selection) -> Any:
    fig, axes = sheet(PAGE, 3.7, 2, 4, sharex=True)
    for column, threshold in zip(axes.T, (0.95, 0.96, 0.97, 0.98), strict=True):
        confidences(runs, column, threshold)
    for panel in axes[:, 1:].flat:
        panel.set_ylabel("")
    for panel in axes[1]:
        panel.set_xticklabels([f"{alpha:g}" for alpha in runs.alphas])
        panel.set_xlabel("α")
    letters(axes, [panel.get_title(loc="left") for panel in axes[0]])
    legend(fig, 4)
    return fig


def whole_confidences(runs: Selection) -> Any:
    def draw(panel: Any, alpha: float) -> None:
        for label, who, method, style in VOTERS:
            shares = [100 * h / h.sum() for h in runs.late(f"confidence_{who}", method, alpha)]
            if shares:
                middle = (np.arange(len(shares[0])) + 0.5) / len(shares[0])
                band(panel, middle, np.array(shares), label, style)
        log_percents(panel)
        panel.set_xlabel("confidence")

    return panels_by_alpha(runs, draw, (PAGE, 2.6), "share of images (%)", 4)


def lambdas(runs: Selection) -> Any:
    fig, axes = sheet(PAGE, 2.7, 1, 2, sharey=True)
    for alpha in runs.alphas:
        style, name = alpha_style(alpha), alpha_name(alpha)
        dotted = style._replace(dash="dot")
        band(axes[0, 0], *runs.by_round("lam_sure", SAGE, alpha), f"{name}, sure", style)
        band(axes[0, 0], *runs.by_round("lam", SAGE, alpha), f"{name}, all", dotted)
        band(axes[0, 1], *runs.by_round("lam_sure_majority", SAGE, alpha), f"{name}, majority", style)
        band(axes[0, 1], *runs.by_round("lam_sure_minority", SAGE, alpha), f"{name}, minority", dashed(style))
    letters(axes, ["by heterogeneity", "by local class"])
    by_rounds(*axes[0])
    axes[0, 0].set(ylabel="mean λ", ylim=(0, None))
    legend(fig, 4, by_first_word=True)
    return fig


def entropies(runs: Selection) -> Any:
    fig, axes = sheet(PAGE, 4.3, 2, 2, sharex=True, sharey="row")
    for column, (who, method) in zip(axes.T, (("g", GPL), ("l", LPL)), strict=True):
        for alpha in runs.alphas:
            for name, end, style in (
                (method, "FixMatch", alpha_style(alpha)),
                (SAGE, "SAGE", dashed(alpha_style(alpha))),
            ):
                label = f"{alpha_name(alpha)}, {end}"
                band(column[0], *runs.by_round(f"entropy_{who}", name, alpha), label, style)
                spread = runs.probes_by_round(f"confidence_{who}", histogram_entropy, name, alpha)
                band(column[1], *spread, label, style)
        by_rounds(column[1])
    letters(axes, ["global model", "local model"])
    axes[0, 0].set_ylabel("mean entropy")
    axes[1, 0].set_ylabel("histogram entropy")
    legend(fig, 2)
    return fig


def split_by_class() -> Any:
    alphas, labels = (0.1, 0.5, 1.0), np.repeat(np.arange(10), 5000)
    fig, axes = sheet(PAGE, 4.7, 2, len(alphas), sharex=True, sharey=True)
    clients, classes = np.meshgrid(np.arange(20), np.arange(10), indexing="ij")
    for column, alpha in zip(axes.T, alphas, strict=True):
        split = make_partition(labels, 10, kind="paired-dirichlet", alpha=alpha, clients=20, per_class=500)
        for panel, part, largest in zip(column, (split.labeled, split.unlabeled), FULL_DOT.values(), strict=True):
            areas = class_counts(part, labels, 10) / largest * 36
            color = alpha_style(alpha).color
            panel.scatter(clients.ravel(), classes.ravel(), s=areas.ravel(), color=color, linewidths=0)
            panel.set(xlim=(-0.8, 19.8), ylim=(-0.8, 9.8), xticks=range(0, 20, 5), yticks=range(0, 10, 3))
            panel.grid(visible=False)
        column[0].set_title(alpha_name(alpha))
        column[1].set_xlabel("client")
    for panel, (kind, largest) in zip(axes[:, 0], FULL_DOT.items(), strict=True):
        panel.set_ylabel(f"class ({kind} images)")
        for size in (largest // 10, largest):
            panel.scatter([], [], s=size / largest * 36, color=GREY, linewidths=0, label=f"{size} {kind}")
    legend(fig, 4)
    return fig


FULL_DOT = {"labeled": 60, "unlabeled": 500}  # images that a dot of full size stands for


KAPPA = f"κ = {KAPPA_DEFAULT:.2f} (default)"
LAM = ("lam", "fixed λ (weight of the local vote)", "dynamic λ (SAGE)", 1.0)
DRAW: dict[str, Callable[[Selector], Any]] = {
    "1a": lambda select: label_accuracy(select("fig1")),
    "1b": lambda select: oracle_gap(select("fig1"), select("fig1-central")),
    "1a-fedsgd": lambda select: label_accuracy(select("fig1-fedsgd")),
    "1b-fedsgd": lambda select: oracle_gap(select("fig1-fedsgd")),  # another clock: nothing centralized
    "2a": lambda select: late_confidences(select("fig2")),
    "2b": lambda select: curves_by_alpha(select("fig2", 0.1), SURE, (COLUMN, 2.5), COUNT, 2),
    "4": lambda select: accuracy_curves(select("fig4"), (COLUMN, 4.2), 2),
    "5": lambda select: by_setting(select("fig5"), *LAM),
    "6": lambda select: count_curves(select("fig-counts")),
    "7": lambda select: cpg_in_depth(select("fig-cpg")),
    "8": lambda select: consensus(select("fig8-consensus")),
    "9": lambda select: confidences_by_threshold(select("fig9-confidence")),
    "9e": lambda select: whole_confidences(select("fig9-confidence")),
    "10": lambda select: lambdas(select("fig10-lambda")),
    "11": lambda select: curves_by_alpha(select("fig11"), SURE, (PAGE, 2.5), COUNT, 4),
    "12": lambda select: entropies(select("fig12-entropy")),
    "13": lambda select: cpg_in_depth(select("fig13")),
    "14": lambda select: by_setting(select("fig14-kappa"), "kappa", "κ", KAPPA),
    "15": lambda select: accuracy_curves(select("fig15"), (PAGE, 3.6), 4),
    "16": lambda select: split_by_class(),
}


def read_figures() -> dict[str, Figure]:
    """Return the figures by name; words between braces in a caption stand for a shared phrase."""
    content = tomllib.loads((Path(__file__).parent / "figures.toml").read_text("utf-8"))
    phrases = {**content.pop("phrases"), "kappa": f"{KAPPA_DEFAULT:.2f}"}
    phrases |= {name: text.format_map(phrases) for name, text in phrases.items()}  # phrases may contain others
    return {
        name: Figure(name, about["title"], about["caption"].format_map(phrases), DRAW[name])
        for name, about in content.items()
    }


FIGURES = read_figures()
