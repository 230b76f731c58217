"""Methods look the same everywhere, and none like another."""

from fssl.methods.names import METHODS, PLUGINS
from fssl.report import look
from fssl.report.look import label_of, style_of, styles_of


def test_every_method_has_a_name_and_a_look_of_its_own() -> None:
    """Listed or by its name; what is listed is a method."""
    assert set(look.METHODS) <= set(METHODS)
    assert set(look.PLUGINS) == set(PLUGINS)
    styles = [style_of(name) for name in METHODS]
    assert len({(s.color, s.dash) for s in styles}) == len(METHODS)
    assert len({label_of(name) for name in METHODS}) == len(METHODS)
    assert {s.dash for s in styles} <= set(look.DASHES)
    assert {s.marker for s in styles} <= set(look.MARKERS)


def test_a_plug_in_keeps_the_color_and_changes_the_dash() -> None:
    assert style_of("flexmatch+sage").color == style_of("flexmatch").color
    assert style_of("flexmatch+sage").dash not in {style_of(name).dash for name in METHODS}
    assert label_of("fedprox+fixmatch+sage") == "FedProx+FixMatch + SAGE"
    assert label_of("fixmatch-lpl+oracle") == "FixMatch-LPL + oracle"
    assert style_of("fixmatch-lpl+oracle") != style_of("fixmatch-lpl+sage")


def test_a_method_of_somebody_else_looks_the_same_twice() -> None:
    assert label_of("mine") == "mine"
    assert label_of("mine+sage") == "mine + SAGE"
    assert style_of("mine") == style_of("mine")
    assert style_of("mine").dash not in {style_of(name).dash for name in METHODS}


def test_settings_of_one_method_are_told_apart_by_dash_and_marker() -> None:
    styles = styles_of(["sage", "fixmatch-lpl", "sage", "sage"])
    assert styles[:2] == [style_of("sage"), style_of("fixmatch-lpl")]
    assert {styles[i].color for i in (0, 2, 3)} == {look.VERMILION}
    assert len({styles[i][1:] for i in (0, 2, 3)}) == 3


def test_a_method_of_ones_own_takes_a_color_that_is_free() -> None:
    """Its look by name may be SAGE's color; beside SAGE it is another, and alone in a picture the same every time."""
    for name in (f"own{i}.py:mine" for i in range(30)):
        mine, sage, lpl = styles_of([name, "sage", "fixmatch-lpl"])
        assert mine.color not in (sage.color, lpl.color)
        assert styles_of([name, "sage", "fixmatch-lpl"])[0] == mine
