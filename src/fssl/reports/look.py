"""The colors, dashes and markers of methods, the same in every figure and page."""

from collections import Counter
from collections.abc import Mapping, Sequence
from colorsys import hls_to_rgb
from functools import cache
from itertools import count, cycle
from typing import NamedTuple
from zlib import crc32

from ..catalog.facts import MethodFacts, registry

# Okabe-Ito: distinct for color-blind readers. Yellow is invisible on white pages and black on dark ones.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
GREY = "#7F7F7F"  # replaces black; readable on white and on dark pages
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star", "pentagon")


class Style(NamedTuple):
    """Color, dash and marker, in words that do not depend on the plotting library."""

    color: str
    dash: str = "solid"
    marker: str = "circle"


COLORS = {
    "blue": BLUE,
    "vermilion": VERMILION,
    "green": GREEN,
    "purple": PURPLE,
    "orange": ORANGE,
    "sky": SKY,
    "grey": GREY,
}
PLAIN = DASHES[:3]  # for methods without plug-ins; each plug-in has another dash, so that X and X+sage share a color
OTHERS = DASHES[-1]  # for unlisted methods

# Heterogeneity is a scale: the darker the color, the stronger the skew.
ALPHAS = {
    0.1: Style("#40309F", "solid", "circle"),
    0.5: Style("#1B9E8A", "solid", "square"),
    1.0: Style("#E08A00", "solid", "triangle-up"),
    10.0: Style("#882255", "solid", "diamond"),
}


def split_plugins(method: str) -> tuple[str, list[str]]:
    """Return the method and its plug-ins: `fedprox+fixmatch` and [`sage`] for `fedprox+fixmatch+sage`."""
    known, parts = registry(), method.split("+")
    cut = len(parts)
    while cut > 1 and "+".join(parts[:cut]) not in known.methods and parts[cut - 1] in known.plugins:
        cut -= 1
    return "+".join(parts[:cut]), parts[cut:]


def method_label(method: str) -> str:
    """Return a method's label, such as `FixMatch-LPL` for `fixmatch-lpl`; an unlisted method keeps its name."""
    base, plugins = split_plugins(method)
    known = registry()
    return " + ".join([label_of(known.methods, base), *(label_of(known.plugins, plugin) for plugin in plugins)])


def label_of(facts: Mapping[str, MethodFacts], name: str) -> str:
    source = facts[name].source if name in facts else None
    return (source and source.label) or name


def method_style(method: str, colors: Sequence[str] = (*COLORS.values(),)) -> Style:
    """Return a method's look; that of an unlisted method depends on its name only.

    A plug-in keeps the color and changes the dash and the marker.
    """
    base, plugins = split_plugins(method)
    number = crc32(base.encode())
    unlisted = Style(colors[number % len(colors)], OTHERS, MARKERS[number // len(COLORS) % len(MARKERS)])
    style = listed_styles().get(base, unlisted)
    source = registry().plugins[plugins[-1]].source if plugins else None
    return style._replace(dash=source.look, marker=step_along(MARKERS, style.marker, 1)) if source else style


@cache
def listed_styles() -> dict[str, Style]:
    """Return the look of every listed method; no two share both color and dash.

    Methods whose source names no look get further colors, in their order and in every dash.
    """
    looks = {name: facts.source.look if facts.source else "" for name, facts in registry().methods.items()}
    free = ((further_color(number // len(PLAIN)), PLAIN[number % len(PLAIN)]) for number in count())
    markers = cycle(MARKERS)
    return {name: style_from(look) if look else Style(*next(free), next(markers)) for name, look in looks.items()}


def style_from(look: str) -> Style:
    """Return the look of a text such as `blue dash cross`."""
    color, dash, marker = look.split()
    return Style(COLORS[color], dash, marker)


def further_color(number: int) -> str:
    """Return a further color by number: hues a golden section apart, the first ones far from the named colors."""
    red, green, blue = hls_to_rgb((0.75 + number * 0.618034) % 1, 0.45, 0.8)
    return "#" + "".join(f"{round(255 * part):02X}" for part in (red, green, blue))


def method_styles(methods: Sequence[str]) -> list[Style]:
    """Return the looks of several groups; groups of one method share its color and differ in dash and marker.

    An unlisted method gets a color that none of the listed ones has, if there is one.
    """
    seen: Counter[str] = Counter()
    styles = []
    taken = {method_style(method).color for method in methods if split_plugins(method)[0] in registry().methods}
    free = [color for color in COLORS.values() if color not in taken] or [*COLORS.values()]
    for method in methods:
        style, repeat = method_style(method, free), seen[method]
        dash, marker = (step_along(row, style[i], repeat) for i, row in ((1, DASHES), (2, MARKERS)))
        styles.append(style._replace(dash=dash, marker=marker))
        seen[method] += 1
    return styles


def step_along(row: Sequence[str], start: str, steps: int) -> str:
    return row[(row.index(start) + steps) % len(row)]


def alpha_style(alpha: float) -> Style:
    """Return the look of a Dirichlet concentration."""
    return ALPHAS.get(alpha, Style(GREY, "solid", "x"))
