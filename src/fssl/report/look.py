"""How methods look, the same in every figure and page."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

# Okabe-Ito: distinct for color-blind readers. Without yellow and black: one is lost on white, one on dark pages.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
GREY = "#7F7F7F"  # black's place, readable on white and on dark pages
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star", "pentagon")


class Style(NamedTuple):
    """Color, dash and marker in words that are the same for any plotting library."""

    color: str
    dash: str = "solid"
    marker: str = "circle"


# A method's name for people and its look, where they do not follow from its name. No two share color and dash;
# plug-ins have dashes of their own, so that X and X+sage are one color.
METHODS = {
    "sage": ("SAGE", Style(VERMILION, "solid", "circle")),
    "fixmatch-lpl": ("FixMatch-LPL", Style(BLUE, "solid", "square")),
    "fixmatch-gpl": ("FixMatch-GPL", Style(SKY, "solid", "triangle-up")),
    "flexmatch": ("FlexMatch", Style(GREEN, "solid", "diamond")),
    "fedlabel": ("FedLabel", Style(PURPLE, "solid", "triangle-down")),
    "feddure": ("FedDure", Style(ORANGE, "solid", "pentagon")),
    "fedavg-sl": ("FedAvg-SL", Style(GREY, "solid", "star")),
    "fedprox+fixmatch": ("FedProx+FixMatch", Style(BLUE, "dash", "cross")),
    "feddb": ("FedDB", Style(GREEN, "dash", "x")),
    "fedmatch": ("FedMatch", Style(PURPLE, "dash", "star")),
    "fedloke": ("FedLoKe", Style(ORANGE, "dash", "triangle-up")),
    "freematch": ("FreeMatch", Style(SKY, "dash", "diamond")),
    "proxyfl": ("ProxyFL", Style(VERMILION, "dash", "square")),
    "fedavg": ("FedAvg", Style(GREY, "dash", "circle")),
    "fedprox": ("FedProx", Style(GREY, "dot", "square")),
    "fedlabel-2m": ("FedLabel-2M", Style(PURPLE, "dot", "triangle-up")),
    "semifl": ("SemiFL", Style(BLUE, "dot", "pentagon")),
    "flfl": ("(FL)²", Style(VERMILION, "dot", "triangle-down")),
    "feddure-full": ("FedDure-full", Style(ORANGE, "dot", "x")),
    "cbafed": ("CBAFed", Style(SKY, "dot", "diamond")),
    "rscfed": ("RSCFed", Style(GREEN, "dot", "pentagon")),
}
PLUGINS = {"sage": ("SAGE", "dashdot"), "oracle": ("oracle", "longdash")}
UNKNOWN = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, GREY)

# Heterogeneity is a scale, not a set of names: the darker, the more skewed.
ALPHAS = {
    0.1: Style("#40309F", "solid", "circle"),
    0.5: Style("#1B9E8A", "solid", "square"),
    1.0: Style("#E08A00", "solid", "triangle-up"),
    10.0: Style("#882255", "solid", "diamond"),
}


def split_plugins(method: str) -> tuple[str, list[str]]:
    """`fedprox+fixmatch+sage` is `fedprox+fixmatch` with one plug-in; an unknown name is a method of its own."""
    parts = method.split("+")
    cut = len(parts)
    while cut > 1 and "+".join(parts[:cut]) not in METHODS and parts[cut - 1] in PLUGINS:
        cut -= 1
    return "+".join(parts[:cut]), parts[cut:]


def method_label(method: str) -> str:
    """`FixMatch-LPL` for `fixmatch-lpl`; a method of somebody else keeps the name that it has."""
    base, plugins = split_plugins(method)
    known = METHODS[base][0] if base in METHODS else base
    return " + ".join([known, *(PLUGINS[p][0] for p in plugins)])


def method_style(method: str, colors: Sequence[str] = UNKNOWN) -> Style:
    """A method's look; one that is not listed gets a look by its name, so that it is the same in every picture."""
    base, plugins = split_plugins(method)
    number = crc32(base.encode())
    if base in METHODS:
        style = METHODS[base][1]
    else:
        style = Style(colors[number % len(colors)], DASHES[-1], MARKERS[number // len(UNKNOWN) % len(MARKERS)])
    return style._replace(dash=PLUGINS[plugins[-1]][1]) if plugins else style


def method_styles(methods: Sequence[str]) -> list[Style]:
    """Looks of several groups; those that share a method share its color and get other dashes and markers.

    A method that is not listed takes a color that no listed one of these has, if there is one.
    """
    seen: Counter[str] = Counter()
    styles = []
    taken = {method_style(method).color for method in methods if split_plugins(method)[0] in METHODS}
    free = [color for color in UNKNOWN if color not in taken] or UNKNOWN
    for method in methods:
        style, repeat = method_style(method, free), seen[method]
        dash, marker = (step_along(row, style[i], repeat) for i, row in ((1, DASHES), (2, MARKERS)))
        styles.append(style._replace(dash=dash, marker=marker))
        seen[method] += 1
    return styles


def chosen_styles(methods: Sequence[str], colors: Sequence[str | None]) -> list[Style]:
    """Looks of several groups, some of which have a color that their user chose."""
    made = zip(method_styles(methods), colors, strict=True)
    return [style._replace(color=color) if color else style for style, color in made]


def step_along(row: Sequence[str], start: str, steps: int) -> str:
    return row[(row.index(start) + steps) % len(row)]


def alpha_style(alpha: float) -> Style:
    """The look of a Dirichlet concentration."""
    return ALPHAS.get(alpha, Style(GREY, "solid", "x"))
