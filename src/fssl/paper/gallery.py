"""The paper's figures from run folders: one small function for each, named and described as in the paper."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..catalog.facts import registry
from ..data.partition import class_counts, make_partition
from ..report.drawing import COLUMN, PAGE, band, bars, by_rounds, legend, log_percents, sheet
from ..report.look import GREY, Style, alpha_style, method_label, method_style
from ..report.runs import Run, percent
from .panels import (
    ACCURACY,
    COUNT,
    GPL,
    LPL,
    MODELS,
    RANKS,
    SAGE,
    SURE,
    alpha_name,
    by_method,
    confidences,
    curves_by_alpha,
    dashed,
    first_ranks,
    histogram_entropy,
    letters,
    look_of,
    panels_by_alpha,
    sweep,
    thousands,
)
from .selection import Selection, choice_name
from .setups import Setup

KAPPA_STAR = registry().methods["sage"].settings["kappa"].default


class Selector:
    """Selects the runs of the presets that a figure asks for, and remembers the selections."""

    def __init__(self, known: Mapping[Setup, list[Run]]) -> None:
        self._known = known
        self.selections: dict[str, Selection] = {}

    def __call__(self, preset: str, *alphas: float) -> Selection:
        """The runs of a preset, or of some of its alphas only."""
        if preset not in self.selections:
            self.selections[preset] = Selection(preset, self._known, *alphas)
        return self.selections[preset]


class Figure(NamedTuple):
    """A figure of the paper: its name, what it shows, what was decided where the paper leaves it open."""

    name: str
    title: str
    caption: str
    draw: Callable[[Selector], Any]


FIGURES: dict[str, Figure] = {}


def figure(name: str, title: str, caption: str) -> Callable[[Callable[[Selector], Any]], Callable[[Selector], Any]]:
    """Register a function that draws."""

    def register(draw: Callable[[Selector], Any]) -> Callable[[Selector], Any]:
        FIGURES[name] = Figure(name, title, " ".join(caption.split()), draw)
        return draw

    return register


SOURCE_OF_MODELS = """Local labels are those of the FixMatch-LPL runs and global labels those of the FixMatch-GPL runs;
SAGE's runs show both models at once (the paper does not say which run it draws)."""
LATE = "Summed over clients and the last ten recorded rounds (the paper names no round)."


# Figures 1 and 2.


def label_accuracy(runs: Selection) -> Any:
    fig, axes = sheet(COLUMN, 2.7)
    for alpha in runs.alphas:
        used, every = (runs.by_round(percent(key), LPL, alpha) for key in ("pl_accuracy", "accuracy_l_all"))
        style = alpha_style(alpha)
        band(axes[0, 0], *used, f"{alpha_name(alpha)}, used", style)
        band(axes[0, 0], *every, f"{alpha_name(alpha)}, all", style._replace(dash="dot"))
    by_rounds(axes[0, 0])
    axes[0, 0].set(ylabel="correct pseudo-labels (%)")
    legend(fig, 2)
    return fig


def oracle_gap(runs: Selection, central: Selection | None = None) -> Any:
    fig, axes = sheet(COLUMN, 2.9)
    for alpha in runs.alphas:
        style = alpha_style(alpha)
        band(axes[0, 0], *runs.by_round("accuracy", LPL, alpha), f"{alpha_name(alpha)}, all labels", style)
        oracle = runs.by_round("accuracy", f"{LPL}+oracle", alpha)
        band(axes[0, 0], *oracle, f"{alpha_name(alpha)}, only right labels", dashed(style))
    if central:
        curve = central.by_round("accuracy", LPL)
        band(axes[0, 0], *curve, "centralized FixMatch", Style(GREY, "dot", "star"))
    by_rounds(axes[0, 0])
    axes[0, 0].set(ylabel=ACCURACY, ylim=(0, None))
    legend(fig, 2)
    return fig


SGD_FSSL = """The paper names neither dataset nor α; its "FedSGD" with a local epoch is FixMatch-LPL with all clients in
every round and one local epoch."""
STRICT = "FedSGD in the strict sense: FixMatch-LPL, all clients, one step a round."
USED = "Solid: labels that are used (confidence at least τ); dotted: all predictions of the local model."
ORACLE = "Dashed: the same with wrong pseudo-labels removed."
CENTRAL = "The centralized run sees as many unlabeled images a round as all clients together."


@figure("1a", "Pseudo-label accuracy by heterogeneity", f"{SGD_FSSL} {USED}")
def figure_1a(select: Selector) -> Any:
    return label_accuracy(select("fig1"))


@figure("1b", "Test accuracy, with wrong labels removed, and centralized", f"{SGD_FSSL} {ORACLE} {CENTRAL}")
def figure_1b(select: Selector) -> Any:
    return oracle_gap(select("fig1"), select("fig1-central"))


@figure("1a-fedsgd", "Pseudo-label accuracy by heterogeneity, one step a round", f"{STRICT} {USED}")
def figure_1a_fedsgd(select: Selector) -> Any:
    return label_accuracy(select("fig1-fedsgd"))


@figure("1b-fedsgd", "Test accuracy, with wrong labels removed, one step a round", f"{STRICT} {ORACLE}")
def figure_1b_fedsgd(select: Selector) -> Any:
    return oracle_gap(select("fig1-fedsgd"))  # a step a round is another clock: nothing centralized


CONFIDENCE = f"""Top: share of unlabeled images above the threshold, mean and standard deviation over runs. Bottom: how
the confidences above it are spread (box: quartiles, whiskers: 5 and 95 %, all runs together). {SOURCE_OF_MODELS}
{LATE}"""


@figure("2a", "Confidences above 0.99, local and global model", CONFIDENCE)
def figure_2a(select: Selector) -> Any:
    fig, axes = sheet(COLUMN, 3.6, 2, 1, sharex=True)
    confidences(select("fig2"), axes[:, 0], 0.99)
    legend(fig, 2)
    return fig


@figure("2b", "Pseudo-labels by round, local and global model, α = 0.1", SOURCE_OF_MODELS)
def figure_2b(select: Selector) -> Any:
    return curves_by_alpha(select("fig2", 0.1), SURE, (COLUMN, 2.5), COUNT, 2)


# Figures 4 to 8.


@figure("4", "Test accuracy by round, CIFAR-100, α = 1", "Mean over seeds; bands are one standard deviation.")
def figure_4(select: Selector) -> Any:
    runs = select("fig4")
    return curves_by_alpha(runs, by_method(runs, "accuracy"), (COLUMN, 4.2), ACCURACY, 2)


@figure(
    "5",
    "Fixed and dynamic λ",
    """λ weighs the local vote, as the formula says (part of the paper's text has it reversed). With CPG on, λ = 1 is
    CPG alone and λ = 0 the global label under both masks: neither is FixMatch-LPL or -GPL. The paper names neither
    dataset nor α: CIFAR-100, α = 1.""",
)
def figure_5(select: Selector) -> Any:
    fixed = {dict(m.settings).get("lam", 1.0): m for m in select("fig5").methods if m.settings}
    return sweep(select("fig5"), fixed, "fixed λ (weight of the local vote)", "dynamic λ (SAGE)")


@figure("6", "Pseudo-labels used by round", "The paper does not state α: all three.")
def figure_6(select: Selector) -> Any:
    runs = select("fig-counts")
    return curves_by_alpha(runs, by_method(runs, thousands("n_valid")), (PAGE, 2.7), COUNT, 5)


CPG = """The paper does not say whether its "CPG" is CPG alone or the whole of SAGE: both, beside FixMatch-LPL. Labels
that CPG adds are those of images where only the global model is sure."""


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


@figure("7", "What CPG adds, α = 0.1", CPG)
def figure_7(select: Selector) -> Any:
    return cpg_in_depth(select("fig-cpg"))


@figure(
    "8",
    "Consensus: rank of one model's label in the other's prediction",
    f"""Top: place of the local model's class in the global prediction, over images of which the local model is sure.
    Bottom: the converse. With SAGE, and without it (FixMatch-LPL and -GPL). A tie goes to the better place. {LATE}""",
)
def figure_8(select: Selector) -> Any:
    runs = select("fig8-consensus")
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


# Figures 9 to 12.


@figure("9", "Confidences above 0.95, 0.96, 0.97 and 0.98, local and global model", CONFIDENCE)
def figure_9(select: Selector) -> Any:
    fig, axes = sheet(PAGE, 3.7, 2, 4, sharex=True)
    for column, threshold in zip(axes.T, (0.95, 0.96, 0.97, 0.98), strict=True):
        confidences(select("fig9-confidence"), column, threshold)
    for panel in axes[:, 1:].flat:
        panel.set_ylabel("")
    for panel in axes[1]:
        panel.set_xticklabels([f"{alpha:g}" for alpha in select("fig9-confidence").alphas])
        panel.set_xlabel("α")
    letters(axes, [panel.get_title(loc="left") for panel in axes[0]])
    legend(fig, 4)
    return fig


@figure(
    "9e", "The whole distribution of confidences, local and global model", f"{SOURCE_OF_MODELS} {LATE} Bins of 0.01."
)
def figure_9e(select: Selector) -> Any:
    runs = select("fig9-confidence")

    def draw(panel: Any, alpha: float) -> None:
        for label, who, method, style in MODELS:
            shares = [100 * h / h.sum() for h in runs.late(f"confidence_{who}", method, alpha)]
            if shares:
                middle = (np.arange(len(shares[0])) + 0.5) / len(shares[0])
                band(panel, middle, np.array(shares), label, style)
        log_percents(panel)
        panel.set_xlabel("confidence")

    return panels_by_alpha(runs, draw, (PAGE, 2.6), "share of images (%)", 4)


@figure(
    "10",
    "λ by round, (a) by heterogeneity, (b) for majority and minority classes",
    """λ is the weight of the local vote, averaged over images of which the local model is sure, solid, and over all
    images, dotted (the paper does not say which). The paper's text says that λ grows with heterogeneity and that this
    means more reliance on the global model; by its formula a larger λ relies more on the local one. The measured curve
    is shown. A majority class of a client is one of which it holds more unlabeled images than its mean per class; the
    class is the local model's (the paper defines neither).""",
)
def figure_10(select: Selector) -> Any:
    runs = select("fig10-lambda")
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


@figure("11", "Pseudo-labels by round, local and global model, α = 1 and 10", SOURCE_OF_MODELS)
def figure_11(select: Selector) -> Any:
    return curves_by_alpha(select("fig11"), SURE, (PAGE, 2.5), COUNT, 4)


@figure(
    "12",
    "Entropy of pseudo-label confidence, (a) global, (b) local",
    """The paper does not say which entropy; in nats. Top: mean entropy of a prediction over all images. Bottom: entropy
    of the histogram of confidences (100 bins) over clients. Solid: the FixMatch runs that the model labels for (GPL,
    LPL); dashed: SAGE's runs.""",
)
def figure_12(select: Selector) -> Any:
    runs = select("fig12-entropy")
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


# Figures 13 to 16.


@figure("13", "What CPG adds, α = 0.5 and 1", CPG)
def figure_13(select: Selector) -> Any:
    return cpg_in_depth(select("fig13"))


@figure(
    "14",
    "Accuracy by κ, CIFAR-100, α = 1",
    f"The default κ = ln 2 / 0.05 = {KAPPA_STAR:.2f} across. The paper's largest κ is not known: 20 here.",
)
def figure_14(select: Selector) -> Any:
    fixed = {dict(m.settings)["kappa"]: m for m in select("fig14-kappa").methods if m.settings}
    return sweep(select("fig14-kappa"), fixed, "κ", f"κ = {KAPPA_STAR:.2f} (default)")


@figure("15", "Test accuracy by round, CIFAR-100, α = 0.1 and 0.5", "Mean over seeds; bands: standard deviation.")
def figure_15(select: Selector) -> Any:
    runs = select("fig15")
    return curves_by_alpha(runs, by_method(runs, "accuracy"), (PAGE, 3.6), ACCURACY, 4)


@figure(
    "16",
    "Images by client and class, CIFAR-10, 10 % labels",
    """The split of the released code, from class sizes and seed alone; no run is needed. Areas are counts. Unlabeled
    images are counted before a client's labeled ones join its pool, as the released code prints them.""",
)
def figure_16(select: Selector) -> Any:
    alphas, labels = (0.1, 0.5, 1.0), np.repeat(np.arange(10), 5000)
    fig, axes = sheet(PAGE, 4.7, 2, len(alphas), sharex=True, sharey=True)
    clients, classes = np.meshgrid(np.arange(20), np.arange(10), indexing="ij")
    for column, alpha in zip(axes.T, alphas, strict=True):
        split = make_partition(labels, 10, kind="paired-dirichlet", alpha=alpha, clients=20, per_class=500)
        for panel, part, largest in ((column[0], split.labeled, 60), (column[1], split.unlabeled, 500)):
            areas = class_counts(part, labels, 10) / largest * 36
            color = alpha_style(alpha).color
            panel.scatter(clients.ravel(), classes.ravel(), s=areas.ravel(), color=color, linewidths=0)
            panel.set(xlim=(-0.8, 19.8), ylim=(-0.8, 9.8), xticks=range(0, 20, 5), yticks=range(0, 10, 3))
            panel.grid(visible=False)
        column[0].set_title(alpha_name(alpha))
        column[1].set_xlabel("client")
    for panel, kind, largest, sizes in (
        (axes[0, 0], "labeled", 60, (6, 60)),
        (axes[1, 0], "unlabeled", 500, (50, 500)),
    ):
        panel.set_ylabel(f"class ({kind} images)")
        for size in sizes:
            panel.scatter([], [], s=size / largest * 36, color=GREY, linewidths=0, label=f"{size} {kind}")
    legend(fig, 4)
    return fig
