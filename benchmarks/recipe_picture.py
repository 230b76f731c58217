"""Draws docs/recipe.png: SAGE on CIFAR-100 with the recipe that sites can run, beside the other two.

    python benchmarks/recipe_picture.py

It reads the records below results/ and needs the extra `plots`.
"""

from pathlib import Path

from fssl.records.store import RunFolder
from fssl.reports import drawing
from fssl.reports.look import GREY

ROOT = Path(__file__).parents[1]
# A curve's name, its record, what it shows of a line, from which round on, color and line.
CURVES = (
    ("defaults (clean), 120 rounds", "cifar100/alpha1.0/sage-clean-seed7", "test", 1, "#999999", "-"),
    ("momentum passed on (authors)", "cifar100/alpha1.0/sage-authors-seed7-500", "test", 1, "#D55E00", "-"),
    ("recipe, constant rate", "deployable/sage-constant-seed7", "test", 1, "#56B4E9", "-"),
    ("recipe, constant rate, smoothed", "deployable/sage-constant-seed7", "ema_test", 1, "#0072B2", "--"),
    ("recipe, falling rate, smoothed", "deployable/sage-cooled-seed7", "ema_test", 440, "#0072B2", "-"),
)
PRINTED = {"printed for SAGE": 56.06, "printed for ProxyFL": 58.24}

with drawing.settings():
    figure, panels = drawing.sheet(drawing.PAGE, 3.0)
    axes = panels[0, 0]
    for label, place, key, first, color, line in CURVES:
        shown = [each for each in RunFolder(ROOT / "results" / place).rounds() if each["round"] >= first]
        accuracy = [each[key]["train_norm"]["accuracy"] for each in shown]
        axes.plot([each["round"] for each in shown], accuracy, line, label=label, color=color)
    for name, value in PRINTED.items():
        axes.axhline(value, color=GREY, linewidth=0.8, linestyle=":")
        axes.text(2, value + 0.25, f"{value} {name}", color=GREY, fontsize=7, va="bottom")
    axes.set(xlabel="round", ylabel="test accuracy (%)", xlim=(0, 500), ylim=(20, 63))
    axes.set_title("SAGE on CIFAR-100, α = 1, 10 % labels, one seed; the recipe on half of the test images")
    drawing.legend(figure, 3)
    drawing.make_room(figure, 0)
    (ROOT / "docs" / "recipe.png").write_bytes(drawing.render(figure, ("png",), dpi=150)["png"])
