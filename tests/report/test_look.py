"""Methods look the same everywhere, and none like another."""

from fssl.methods.names import METHODS, PLUGINS
from fssl.report import look
from fssl.report.look import Style, method_label, method_style, method_styles


def test_every_method_has_a_name_and_a_look_of_its_own() -> None:
    """Listed or by its name; what is listed is a method."""
    assert set(look.METHODS) <= set(METHODS)
    assert set(look.PLUGINS) == set(PLUGINS)
    styles = [method_style(name) for name in METHODS]
    assert len({(s.color, s.dash) for s in styles}) == len(METHODS)
    assert len({method_label(name) for name in METHODS}) == len(METHODS)
    assert {s.dash for s in styles} <= set(look.DASHES)
    assert {s.marker for s in styles} <= set(look.MARKERS)


def test_a_plug_in_keeps_the_color_and_changes_the_dash() -> None:
    assert method_style("flexmatch+sage").color == method_style("flexmatch").color
    assert method_style("flexmatch+sage").dash not in {method_style(name).dash for name in METHODS}
    assert method_label("fedprox+fixmatch+sage") == "FedProx+FixMatch + SAGE"
    assert method_label("fixmatch-lpl+oracle") == "FixMatch-LPL + oracle"
    assert method_style("fixmatch-lpl+oracle") != method_style("fixmatch-lpl+sage")


def test_a_method_of_somebody_else_looks_the_same_twice() -> None:
    assert method_label("mine") == "mine"
    assert method_label("mine+sage") == "mine + SAGE"
    assert method_style("mine") == Style("#E69F00", "longdashdot", "circle")  # in every process
    assert method_style("mine").dash not in {method_style(name).dash for name in METHODS}


def test_settings_of_one_method_are_told_apart_by_dash_and_marker() -> None:
    styles = method_styles(["sage", "fixmatch-lpl", "sage", "sage"])
    assert styles[:2] == [method_style("sage"), method_style("fixmatch-lpl")]
    assert {styles[i].color for i in (0, 2, 3)} == {look.VERMILION}
    assert len({styles[i][1:] for i in (0, 2, 3)}) == 3


def test_a_method_of_ones_own_takes_a_color_that_is_free() -> None:
    """Its look by name may be SAGE's color; beside SAGE it is another, and alone in a picture the same every time."""
    for name in (f"own{i}.py:mine" for i in range(30)):
        mine, sage, lpl = method_styles([name, "sage", "fixmatch-lpl"])
        assert mine.color not in (sage.color, lpl.color)
        assert method_styles([name, "sage", "fixmatch-lpl"])[0] == mine
