"""Methods look the same everywhere, and none like another."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import pytest

from fssl.catalog.facts import registry
from fssl.methods.names import METHODS
from fssl.reports import look
from fssl.reports.look import Style, method_label, method_style, method_styles


def test_every_method_has_a_name_and_a_look_of_its_own() -> None:
    """Of its source, or one that is free."""
    assert {method_style(name).dash for name in ("sage+sage", "sage+oracle")} == {"dashdot", "longdash"}
    styles = [method_style(name) for name in METHODS]
    assert len({(s.color, s.dash) for s in styles}) == len(METHODS)
    assert len({method_label(name) for name in METHODS}) == len(METHODS)
    assert {s.dash for s in styles} <= set(look.DASHES)
    assert {s.marker for s in styles} <= set(look.MARKERS)


@pytest.fixture
def _many_methods(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sixty methods more, whose sources name no look."""
    known, plain = registry(), replace(registry().methods["sage"], source=None)
    more = replace(known, methods={**known.methods, **{f"new{i}": plain for i in range(60)}})
    monkeypatch.setattr(look, "registry", lambda: more)
    look.listed_styles.cache_clear()
    yield
    look.listed_styles.cache_clear()


@pytest.mark.usefixtures("_many_methods")
def test_looks_do_not_run_out() -> None:
    """No two share color and dash, colors are distinguishable, and older methods keep theirs."""
    styles = look.listed_styles()
    assert len(styles) == len(METHODS) + 60
    assert len({(s.color, s.dash) for s in styles.values()}) == len(styles)
    assert {s.dash for s in styles.values()} == {"solid", "dash", "dot"}
    assert (styles["sage"], styles["fedavg-sl"]) == (Style("#D55E00"), Style("#7F7F7F", "solid", "star"))
    colors = [*dict.fromkeys(s.color for s in styles.values())][:13]  # of the first 18 new methods
    distances = [sum(abs(a - b) for a, b in zip(*pair, strict=True)) for pair in combinations(map(rgb, colors), 2)]
    assert min(distances) > 60


def rgb(color: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(color[1:]))


@pytest.mark.parametrize("name", ["flexmatch", "mine.py:mine"])
def test_a_plug_in_keeps_the_color_and_changes_the_dash_and_the_marker(name: str) -> None:
    alone, plugged = method_styles([name, f"{name}+sage"])
    assert alone.color == plugged.color
    assert (alone.dash != plugged.dash, alone.marker != plugged.marker) == (True, True)


def test_a_plug_in_has_a_dash_that_no_method_has() -> None:
    assert method_style("flexmatch+sage").color == method_style("flexmatch").color
    assert method_style("flexmatch+sage").dash not in {method_style(name).dash for name in METHODS}
    assert method_label("fedprox+fixmatch+sage") == "FedProx+FixMatch + SAGE"
    assert method_label("fixmatch-lpl+oracle") == "FixMatch-LPL + oracle"
    assert method_style("fixmatch-lpl+oracle") != method_style("fixmatch-lpl+sage")


def test_a_users_method_looks_the_same_twice() -> None:
    assert method_label("mine") == "mine"
    assert method_label("mine+sage") == "mine + SAGE"
    assert method_style("mine") == Style("#E69F00", "longdashdot", "circle")  # in every process
    assert method_style("mine").dash not in {method_style(name).dash for name in METHODS}


def test_settings_of_one_method_differ_in_dash_and_marker() -> None:
    styles = method_styles(["sage", "fixmatch-lpl", "sage", "sage"])
    assert styles[:2] == [method_style("sage"), method_style("fixmatch-lpl")]
    assert {styles[i].color for i in (0, 2, 3)} == {look.VERMILION}
    assert len({styles[i][1:] for i in (0, 2, 3)}) == 3


def test_a_method_of_ones_own_takes_a_color_that_is_free() -> None:
    """Its look by name may be SAGE's color; next to SAGE it is another, and alone in a picture always the same."""
    for name in (f"own{i}.py:mine" for i in range(30)):
        mine, sage, lpl = method_styles([name, "sage", "fixmatch-lpl"])
        assert mine.color not in (sage.color, lpl.color)
        assert method_styles([name, "sage", "fixmatch-lpl"])[0] == mine
