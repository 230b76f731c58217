"""The paper's figures: what is drawn is what the records say, and what is missing is a command that works."""

import io
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fssl.cli import app as cli
from fssl.config import PRESETS, expand, override, read_toml
from fssl.errors import UserError
from fssl.label.assign import KAPPA_STAR
from fssl.paper.figures import Outcome, chosen, draw, index, make_figures
from fssl.paper.gallery import FIGURES, Selector
from fssl.paper.panels import first_ranks, histogram_entropy, quantiles_above, share_above
from fssl.paper.selection import (
    FIGURE_FOLDERS,
    SHARED_FOLDER,
    Selection,
    deviations,
    inline,
    kind_of_run,
    probe,
    probe_files,
)
from fssl.paper.setups import by_setup
from fssl.records import sealing
from fssl.reports import drawing
from fssl.reports.drawing import COLUMN, PAGE, render, settings
from fssl.reports.look import alpha_style, method_style
from fssl.reports.runs import Run, find_runs
from helpers.run_folders import config_of, imitate, imitate_preset, write_run

pytest.importorskip("matplotlib")
ROUNDS = 12


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up records of every figure, twelve rounds and two seeds each."""
    out = tmp_path_factory.mktemp("grid")
    two = ("grid.seed=[7, 8]",)
    for preset in ("fig2", "fig-counts", "fig-cpg", "fig13", "fig5", "fig11", "fig14-kappa", "fig4", "fig15"):
        imitate_preset(f"paper/{preset}", out / "paper", ROUNDS, 2, *two)
    for preset in ("fig1", "fig1-central", "fig1-fedsgd"):
        imitate_preset(f"paper/{preset}", out / preset, ROUNDS, 100, *two)
    return out


@pytest.fixture(scope="module")
def runs(grid: Path) -> list[Run]:
    return find_runs([grid]).runs


def drawn(name: str, runs: list[Run]) -> Outcome:
    with settings():
        return draw(FIGURES[name], by_setup(runs)[0])


def select(runs: list[Run], preset: str) -> Selection:
    return Selection(preset, by_setup(runs)[0])


def line(axes: Any, label: str) -> Any:
    (found,) = (x for x in axes.get_lines() if x.get_label() == label)
    return found


def of(runs: list[Run], method: str, alpha: float, folder: str = "paper", **options: Any) -> list[Run]:
    """Runs by hand: what the selection should find; SAGE as it is unless options say otherwise."""
    if method == "sage":
        options = {"cdsc": True, "kappa": KAPPA_STAR, "lam": None} | options
    return [
        run
        for run in runs
        if (run.config.method.name, run.config.partition.alpha) == (method, alpha)
        and f"/{folder}/" in str(run.path)
        and all(dict(run.config.method.settings).get(k) == v for k, v in options.items())
    ]


def mean_of(runs: list[Run], key: str, scale: float = 1) -> list[float]:
    return list(np.mean([[scale * x[key] for x in run.lines] for run in runs], 0))


# Everything together.


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.slow
def test_every_figure_is_drawn_from_a_whole_grid(name: str, runs: list[Run]) -> None:
    outcome = drawn(name, runs)
    assert (outcome.state, outcome.missing) == ("drawn", [])
    picture = outcome.picture
    assert picture is not None
    assert picture.get_figwidth() in (COLUMN, PAGE)
    picture.canvas.draw()
    texts = [t for t in picture.findobj(lambda x: hasattr(x, "get_fontsize")) if t.get_text()]
    assert min(t.get_fontsize() for t in texts) >= 7
    for axes in picture.axes:
        assert axes.has_data()
        assert axes.get_ylabel() or not axes.get_subplotspec().is_first_col()


def test_the_gallery_is_complete() -> None:
    assert list(FIGURES) == [
        *("1a", "1b", "1a-fedsgd", "1b-fedsgd", "2a", "2b", "4", "5", "6", "7", "8", "9", "9e", "10", "11", "12"),
        *("13", "14", "15", "16"),
    ]


@pytest.mark.slow
def test_the_same_records_give_the_same_bytes(runs: list[Run]) -> None:
    def draw_again() -> Any:
        with settings():
            return render(draw(FIGURES["7"], by_setup(runs)[0]).picture)

    first = draw_again()
    assert first == draw_again()
    assert first["png"].startswith(b"\x89PNG")
    assert first["pdf"].startswith(b"%PDF")
    assert b"<svg" in first["svg"]


# What is drawn.


def test_curves_are_means_over_seeds_with_a_standard_deviation(runs: list[Run]) -> None:
    (axes,) = drawn("4", runs).picture.axes
    mine = of(runs, "sage", 1.0)
    assert len(mine) == 2
    curve = line(axes, "SAGE")
    assert list(curve.get_xdata()) == list(range(1, ROUNDS + 1))
    assert list(curve.get_ydata()) == pytest.approx(mean_of(mine, "accuracy"))
    assert curve.get_color() == method_style("sage").color
    corners = [c.get_paths()[0].vertices for c in axes.collections]
    last = [run.lines[-1]["accuracy"] for run in mine]
    top = np.mean(last) + np.std(last, ddof=1)
    assert any(np.isclose(v, [ROUNDS, top]).all(1).any() for v in corners)


def test_a_method_has_its_color_everywhere(runs: list[Run]) -> None:
    for name in ("4", "6", "15"):
        for axes in drawn(name, runs).picture.axes:
            for method, label in (("sage", "SAGE"), ("flexmatch", "FlexMatch"), ("fixmatch-lpl", "FixMatch-LPL")):
                found = line(axes, label)
                assert (found.get_color(), found.get_marker()) == (
                    method_style(method).color,
                    drawing.MARKS[method_style(method).marker],
                )


def test_figure_1(runs: list[Run]) -> None:
    (axes,) = drawn("1a", runs).picture.axes
    mine = of(runs, "fixmatch-lpl", 0.5, "fig1")
    assert list(line(axes, "α = 0.5, used").get_ydata()) == pytest.approx(mean_of(mine, "pl_accuracy", 100))
    assert list(line(axes, "α = 0.5, all").get_ydata()) == pytest.approx(mean_of(mine, "accuracy_l_all", 100))
    (axes,) = drawn("1b", runs).picture.axes
    oracle = of(runs, "fixmatch-lpl+oracle", 0.1, "fig1")
    assert list(line(axes, "α = 0.1, only right labels").get_ydata()) == pytest.approx(mean_of(oracle, "accuracy"))
    central = [run for run in runs if run.config.partition.clients == 1]
    assert list(line(axes, "centralized FixMatch").get_ydata()) == pytest.approx(mean_of(central, "accuracy"))
    (axes,) = drawn("1b-fedsgd", runs).picture.axes
    steps = of(runs, "fixmatch-lpl", 1.0, "fig1-fedsgd")
    assert list(line(axes, "α = 1, all labels").get_ydata()) == pytest.approx(mean_of(steps, "accuracy"))


@pytest.mark.parametrize(("name", "panel", "alpha"), [("2b", 0, 0.1), ("11", 0, 1.0), ("11", 1, 10.0)])
def test_sure_labels_are_counted_in_thousands(runs: list[Run], name: str, panel: int, alpha: float) -> None:
    axes = drawn(name, runs).picture.axes[panel]
    for label, method, key in (
        ("local, FixMatch-LPL", "fixmatch-lpl", "n_l"),
        ("global, FixMatch-GPL", "fixmatch-gpl", "n_g"),
        ("global, SAGE", "sage", "n_g"),
    ):
        counts = [[x["sums"][key] / 1000 for x in r.lines] for r in of(runs, method, alpha)]
        assert list(line(axes, label).get_ydata()) == pytest.approx(list(np.mean(counts, 0)))


def test_figures_6_and_7(runs: list[Run]) -> None:
    axes = drawn("6", runs).picture.axes[2]
    counts = [[x["sums"]["n_valid"] / 1000 for x in r.lines] for r in of(runs, "flexmatch", 1.0)]
    assert list(line(axes, "FlexMatch").get_ydata()) == pytest.approx(list(np.mean(counts, 0)))
    left, right = drawn("7", runs).picture.axes
    alone = of(runs, "sage", 0.1, cdsc=False)
    assert len(alone) == 2
    assert list(line(left, "CPG alone").get_ydata()) == pytest.approx(mean_of(alone, "pl_accuracy", 100))
    added = [[x["sums"]["n_fallback"] / 1000 for x in r.lines] for r in alone]
    assert list(line(right, "CPG alone").get_ydata()) == pytest.approx(list(np.mean(added, 0)))
    assert [x.get_label() for x in right.get_lines()] == ["CPG alone", "SAGE"]


def test_sweeps_show_results_not_best_rounds(runs: list[Run]) -> None:
    (axes,) = drawn("5", runs).picture.axes
    (bars,) = axes.containers
    places, means = bars.lines[0].get_data()
    assert list(places) == pytest.approx([i / 10 for i in range(11)])
    middle = [np.mean(r.curve[-10:]) for r in of(runs, "sage", 1.0, lam=0.3)]
    assert means[3] == pytest.approx(np.mean(middle))
    alone = [np.mean(r.curve[-10:]) for r in of(runs, "sage", 1.0, cdsc=False)]
    assert means[10] == pytest.approx(np.mean(alone))
    (axes,) = drawn("14", runs).picture.axes
    places, means = axes.containers[0].lines[0].get_data()
    assert list(places) == list(range(2, 21, 2))
    dynamic = [np.mean(r.curve[-10:]) for r in of(runs, "sage", 1.0)]
    label = f"κ = {KAPPA_STAR:.2f} (default)"
    assert line(axes, label).get_ydata()[0] == pytest.approx(np.mean(dynamic))


def test_figure_10(runs: list[Run]) -> None:
    left, right = drawn("10", runs).picture.axes
    mine = of(runs, "sage", 0.1)
    for axes, label, key in (
        (left, "sure", "lam_sure"),
        (left, "all", "lam"),
        (right, "majority", "lam_sure_majority"),
        (right, "minority", "lam_sure_minority"),
    ):
        curve = line(axes, f"α = 0.1, {label}")
        assert list(curve.get_ydata()) == pytest.approx(mean_of(mine, key))
        assert curve.get_color() == alpha_style(0.1).color


def test_figure_12_shows_both_entropies(runs: list[Run]) -> None:
    above = drawn("12", runs).picture.axes
    mine = of(runs, "fixmatch-gpl", 0.5)
    assert list(line(above[0], "α = 0.5, FixMatch").get_ydata()) == pytest.approx(mean_of(mine, "entropy_g"))
    assert list(line(above[2], "α = 0.5, SAGE").get_xdata()) == [2, *range(3, ROUNDS + 1)]


# Arithmetic of the histograms.


def test_entropy_of_a_histogram() -> None:
    assert histogram_entropy(np.array([5.0, 0, 5])) == pytest.approx(np.log(2))
    assert histogram_entropy(np.array([0.0, 7, 0])) == 0
    assert histogram_entropy(np.ones(100)) == pytest.approx(np.log(100))


def test_shares_above_a_threshold() -> None:
    fine, whole = np.arange(50.0), np.full(100, 20.0)
    assert share_above(fine, whole, 0.95) == pytest.approx(1225 / 2000)
    assert share_above(fine, whole, 0.99) == pytest.approx(sum(range(40, 50)) / 2000)
    assert share_above(fine, whole, 0.96) == pytest.approx(sum(range(10, 50)) / 2000)


def test_quantiles_above_a_threshold() -> None:
    even = quantiles_above(np.ones(50), 0.99)
    assert even == pytest.approx([0.9905, 0.9925, 0.995, 0.9975, 0.9995])
    top = np.zeros(50)
    top[-1] = 8
    assert quantiles_above(top, 0.95) == pytest.approx([0.99905, 0.99925, 0.9995, 0.99975, 0.99995])


def test_ranks_beyond_the_fifth_are_one_bar() -> None:
    assert list(first_ranks(np.array([50.0, 20, 10, 5, 5, 4, 3, 3]))) == pytest.approx([0.5, 0.2, 0.1, 0.05, 0.05, 0.1])


def write_probes(run: Path, round: int, **arrays: Any) -> None:
    (run / "probes").mkdir(exist_ok=True)
    written = {k: np.asarray(v, np.float32) for k, v in arrays.items()}
    sealing.write_probes(run / "probes" / f"{round:06d}.safetensors", round, written)


def test_histograms_are_summed_over_clients_and_the_last_ten_rounds(tmp_path: Path) -> None:
    """Two clients; the first two rounds are not among the last ten."""
    run = write_run(tmp_path / "x", config_of("partition.alpha=0.1", "method.name=fixmatch-lpl"), [10.0] * 12)
    for r in range(1, 13):
        first = [9.0, 1, 0, 0, 0, 0, 0, 0] if r > 2 else [0.0, 0, 0, 0, 0, 0, 0, 99]
        write_probes(run, r, rank_l_in_g=[first, [7.0, 1, 1, 0, 0, 0, 0, 1]])
    mine = find_runs([tmp_path]).runs
    (counts,) = select(mine, "fig8-consensus").late("rank_l_in_g", "fixmatch-lpl", 0.1)
    assert list(counts) == [160, 20, 10, 0, 0, 0, 0, 10]
    picture = drawn("8", mine).picture
    heights = [bar.get_height() for bar in picture.axes[0].containers[1]]
    assert heights == pytest.approx([80, 10, 5, 0, 0, 5])


def test_probes_are_read_at_some_sixty_rounds_and_at_the_last_ten(tmp_path: Path) -> None:
    """Up to the round at which the figure reads: of 130 rounds every second one; later ones are none of its."""
    for round in range(1, 141):
        write_probes(tmp_path, round, counts=[[1.0, 2.0], [3.0, 4.0]])
    found = probe_files(tmp_path, "counts", 130)
    assert [int(path.stem) for path in found] == sorted({*range(1, 131, 2), *range(121, 131)})
    assert probe(found[0], "counts").tolist() == [4, 6]


def test_a_model_that_is_never_sure_has_no_box(tmp_path: Path) -> None:
    for method, who in (("fixmatch-lpl", "l"), ("fixmatch-gpl", "g")):
        run = write_run(tmp_path / method, config_of("partition.alpha=0.1", f"method.name={method}"), [10.0])
        top = [0.0] * 49 + [10.0 if who == "l" else 0.0]
        write_probes(run, 1, **{f"confidence_{who}_top": [top], f"confidence_{who}": [[1.0] * 100]})
    above, below = drawn("2a", find_runs([tmp_path]).runs).picture.axes
    heights = {c.get_label(): [bar.get_height() for bar in c] for c in above.containers if c.get_label()[0] != "_"}
    assert heights == {"local, FixMatch-LPL": [10], "global, FixMatch-GPL": [0]}
    assert len([x for x in below.get_lines() if x.get_color() == "black"]) == 1


def test_damaged_probes_are_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "x", config_of("partition.alpha=0.1", "method.name=fixmatch-lpl"), [10.0] * 3)
    write_probes(run, 1, rank_l_in_g=[[3.0, 1]])
    write_probes(run, 2, other=[[3.0, 1]])
    (run / "probes" / "000003.safetensors").write_bytes(b"half of a file")
    (counts,) = select(find_runs([tmp_path]).runs, "fig8-consensus").late("rank_l_in_g", "fixmatch-lpl", 0.1)
    assert list(counts) == [3, 1]


def test_figure_2a_shows_shares_and_quartiles(runs: list[Run]) -> None:
    above, below = drawn("2a", runs).picture.axes
    containers = [c for c in above.containers if c.get_label() == "local, FixMatch-LPL"]
    fine, whole = (
        select(runs, "fig2").late(name, "fixmatch-lpl", 0.1) for name in ("confidence_l_top", "confidence_l")
    )
    shares = [100 * f[40:].sum() / w.sum() for f, w in zip(fine, whole, strict=True)]
    assert containers[0][0].get_height() == pytest.approx(np.mean(shares))
    medians = [x.get_ydata()[0] for x in below.get_lines() if x.get_color() == "black"]
    assert len(medians) == 12  # three alphas, four models
    assert quantiles_above(sum(fine), 0.99)[2] == pytest.approx(medians[0])


def test_figure_16_has_the_golden_counts() -> None:
    """Client 0 of the released split at alpha 0.1, without any run."""
    picture = drawn("16", []).picture
    labeled, unlabeled = picture.axes[0].collections[0], picture.axes[3].collections[0]
    assert list(labeled.get_sizes()[:10] / 36 * 60) == pytest.approx([57, 38, 3, 0, 9, 0, 28, 7, 57, 51])
    assert list(unlabeled.get_sizes()[:10] / 36 * 500) == pytest.approx([446, 460, 0, 3, 13, 0, 441, 0, 435, 452])


# Which runs.


def test_runs_of_different_settings_are_not_mixed(tmp_path: Path) -> None:
    """Three methods in one setting win over two in another, even one that is nearer to the paper."""
    for method, value in (("sage", 50.0), ("fixmatch-lpl", 40.0), ("fixmatch-gpl", 45.0)):
        config = config_of("partition.alpha=1.0", f"method.name={method}", "protocol=clean")
        write_run(tmp_path / "clean" / method, config, [value])
    for method in ("sage", "fixmatch-lpl"):
        config = config_of("partition.alpha=1.0", f"method.name={method}", "protocol=authors")
        write_run(tmp_path / "authors" / method, config, [60.0])
    outcome = drawn("4", find_runs([tmp_path]).runs)
    values = {x.get_label(): x.get_ydata()[0] for x in outcome.picture.axes[0].get_lines()}
    assert values == {"SAGE": 50, "FixMatch-LPL": 40, "FixMatch-GPL": 45}
    assert "Not the paper's setting: protocol = clean (paper: authors); 1 round (paper: 600)" in outcome.sources[0]


def test_of_several_settings_the_nearest_to_the_papers_is_drawn_then_that_of_more_seeds(tmp_path: Path) -> None:
    for name, given in (
        ("other", ["protocol=clean", "train.batch=32"]),
        ("one", ["protocol=clean"]),
        ("more", ["protocol=authors", "model.width=1"]),
        ("more again", ["protocol=authors", "model.width=1", "seed=8"]),
    ):
        write_run(tmp_path / name, config_of(*given), [10.0])
    runs = {run.path.name: run for run in find_runs([tmp_path]).runs}
    chosen = select([*runs.values()], "fig4").runs("sage")
    assert [run.path.name for run in chosen] == ["more", "more again"]
    chosen = select([runs["other"], runs["one"]], "fig4").runs("sage")
    assert [run.path.name for run in chosen] == ["one"]


def test_another_dataset_is_drawn_if_there_is_no_other_and_says_so(tmp_path: Path) -> None:
    write_run(tmp_path / "a", config_of("data.name=digits"), [80.0, 90.0])
    outcome = drawn("4", find_runs([tmp_path]).runs)
    assert outcome.state == "in part"
    assert outcome.picture.get_suptitle().replace("\n", " ").startswith("digits instead of cifar100; missing: FixMatch")
    assert "data.name = digits (paper: cifar100)" in outcome.sources[0]
    assert outcome.missing == ["all runs on cifar100: `fssl run paper/fig4 --out runs/paper-600`"]
    write_run(tmp_path / "b", config_of("method.name=fedavg"), [30.0])
    (axes,) = drawn("4", find_runs([tmp_path]).runs).picture.axes
    assert [x.get_label() for x in axes.get_lines()] == ["FedAvg"]


def test_runs_that_a_figure_does_not_ask_for_do_not_decide(tmp_path: Path) -> None:
    """Figure 2(b) wants alpha 0.1 only: runs of the paper's dataset at another alpha do not stand in its way."""
    sums = [{"n_l": 2000, "n_g": 1000}]
    write_run(tmp_path / "a", config_of("partition.alpha=1.0"), [10.0], sums=sums)
    write_run(tmp_path / "b", config_of("partition.alpha=0.1", "data.name=digits"), [10.0], sums=sums)
    outcome = drawn("2b", find_runs([tmp_path]).runs)
    assert list(line(outcome.picture.axes[0], "local, SAGE").get_ydata()) == [2]
    (command,) = commands_in(outcome)
    assert command[-1] == "grid.partition.alpha=[0.1]"


def test_the_kind_of_a_federation_is_never_mixed() -> None:
    assert kind_of_run(config_of()) == "usual"
    assert kind_of_run(config_of("train.clients_per_round=20")) == "usual"
    assert kind_of_run(config_of("train.clients_per_round=20", "train.local_epochs=1")) == "one epoch"
    assert kind_of_run(config_of("train.clients_per_round=20", "train.steps_per_round=1")) == "fedsgd"
    one = ("partition.kind=iid", "partition.clients=1", "train.clients_per_round=1")
    assert kind_of_run(config_of(*one)) == "central"


def test_seeds_of_different_length_are_drawn_over_the_rounds_that_all_have(tmp_path: Path) -> None:
    for seed, values in ((7, [10.0, 20, 30]), (8, [20.0, 40])):
        write_run(tmp_path / str(seed), config_of(f"seed={seed}"), values)
    (axes,) = drawn("4", find_runs([tmp_path]).runs).picture.axes
    assert [list(v) for v in line(axes, "SAGE").get_data()] == [[1, 2], [15, 30]]


def test_a_longer_run_is_read_where_the_figure_ends(tmp_path: Path) -> None:
    """Figure 5 reads all results at round 500, also of a run that continued to 600."""
    write_run(tmp_path / "x", config_of("train.rounds=600"), [50.0] * 500 + [90.0] * 100)
    (axes,) = drawn("5", find_runs([tmp_path]).runs).picture.axes
    assert line(axes, "dynamic λ (SAGE)").get_ydata()[0] == 50
    assert select(find_runs([tmp_path]).runs, "fig5").by_round("accuracy", "sage").rounds == [*range(1, 501)]


def test_all_numbers_of_a_figure_are_read_at_one_round(tmp_path: Path) -> None:
    """Where most runs end: a longer one is read there, a shorter one is left out and asked for again."""
    ends = {0.0: 40, 0.1: 40, 0.3: 40, 0.5: 90, 0.7: 20}
    for lam, rounds in ends.items():
        rising = [float(r) for r in range(1, rounds + 1)]
        write_run(tmp_path / f"{lam}", config_of("partition.alpha=1.0", f"method.lam={lam}"), rising)
    outcome = drawn("5", find_runs([tmp_path]).runs)
    (points,) = outcome.picture.axes[0].containers
    assert [list(v) for v in points.lines[0].get_data()] == [[0, 0.1, 0.3, 0.5], [35.5] * 4]
    assert "40 to 90 rounds" in outcome.sources[0]
    assert "Other numbers are read at round 40." in outcome.sources[0]
    (text,) = (text for text in outcome.missing if text.startswith("its runs end before the others"))
    assert "lam=0.7" in text


def error_text(folder: Path, preset: str) -> str:
    """What is said of the runs that a preset's figure draws."""
    selection = select(find_runs([folder]).runs, preset)
    for cell in selection.cells:
        selection.runs(cell.method, cell.alpha)
    return selection.describe()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "ends", "expected"),
    [
        ("cifar100", (600,), "50 labels per class, 600 rounds, protocol authors."),
        (
            *("cifar100", (40, 600)),
            "50 labels per class, 40 to 600 rounds, protocol authors. Other numbers are read at round 600."
            " Not the paper's setting: 40 to 600 rounds (paper: 600).",
        ),
        (
            *("digits", (1,)),
            "14 labels per class, 1 round, protocol authors."
            " Not the paper's setting: data.name = digits (paper: cifar100); labels per class = 14 (paper: 50).",
        ),
    ],
)
def test_rounds_are_said_to_be_fewer_than_the_papers_on_its_dataset_alone(
    tmp_path: Path, data: str, ends: tuple[int, ...], expected: str
) -> None:
    for seed, rounds in enumerate(ends, 7):
        config = config_of(f"data.name={data}", "protocol=authors", "train.rounds=600", f"seed={seed}")
        write_run(tmp_path / str(seed), config, [10.0] * rounds)
    said = error_text(tmp_path, "fig4").partition("), ")[2]
    assert said == expected


@pytest.mark.parametrize(
    ("protocol", "expected"),
    [("authors", []), ("clean", ["protocol = clean (paper: authors)"])],
)
def test_a_preset_without_a_protocol_is_held_against_the_papers(protocol: str, expected: list[str]) -> None:
    (_, wanted), *_ = expand(read_toml("paper/fig1-fedsgd"))
    mine = replace(wanted, protocol=protocol, train=replace(wanted.train, precision="fp32"))
    assert deviations(mine, wanted) == expected


def test_copies_of_a_run_do_not_decide_where_numbers_are_read(tmp_path: Path) -> None:
    for name, rounds in (("copy", 20), ("older copy", 20), ("whole", 40)):
        write_run(tmp_path / name, config_of("train.rounds=40"), [10.0] * rounds)
    assert select(find_runs([tmp_path]).runs, "fig4").read_at == 40


def test_panels_without_runs_say_so(tmp_path: Path) -> None:
    write_run(tmp_path / "x", config_of("partition.alpha=0.1"), [10.0])
    left, right = drawn("15", find_runs([tmp_path]).runs).picture.axes
    assert ([t.get_text() for t in left.texts], [t.get_text() for t in right.texts]) == ([], ["no records"])


def test_an_empty_panel_leaves_the_scale_to_the_others(tmp_path: Path) -> None:
    write_run(tmp_path / "x", config_of("partition.alpha=0.5"), [10.0, 60.0])
    left, right = drawn("15", find_runs([tmp_path]).runs).picture.axes
    assert [t.get_text() for t in left.texts] == ["no records"]
    bottom, top = right.get_ylim()
    assert (bottom, 60 < top < 70) == (0, True)


def test_damaged_numbers_are_left_out_of_curves_and_bars(tmp_path: Path) -> None:
    config = config_of("partition.alpha=0.1")
    sums = [{"n_l": 1000, "n_g": 500}, 3, {"n_l": "x"}, {"n_l": 4000, "n_g": 1e999}]
    folder = write_run(tmp_path / "x", config, [10.0] * 4, sums=sums)
    (folder / "probes").mkdir()
    for round, array in ((1, [[1.0] * 3]), (2, [[9.0] * 2]), (3, [[5.0, 0, 0]]), (4, [[np.nan] * 3])):
        write_probes(folder, round, rank_l_in_g=array)
    mine = find_runs([tmp_path]).runs
    (axes,) = drawn("2b", mine).picture.axes
    assert [list(v) for v in line(axes, "local, SAGE").get_data()] == [[1, 4], [1, 4]]
    assert [list(v) for v in line(axes, "global, SAGE").get_data()] == [[1], [0.5]]
    (counts,) = select(mine, "fig8-consensus").late("rank_l_in_g", "sage", 0.1)
    assert counts.tolist() == [6, 1, 1]


# What is missing.


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """One run that no figure wants."""
    folder = tmp_path_factory.mktemp("alone")
    write_run(folder / "x", config_of("partition.alpha=3.0"), [10.0])
    return find_runs([folder]).runs


def commands_in(outcome: Outcome) -> list[list[str]]:
    return [shlex.split(command) for text in outcome.missing for command in re.findall(r"`(.*)`", text)]


@pytest.mark.parametrize("name", [name for name in FIGURES if name != "16"])
def test_a_figure_without_records_names_runs_that_exist(
    name: str, alone: list[Run], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    outcome = drawn(name, alone)
    assert (outcome.state, outcome.picture, outcome.sources) == ("not drawn", None, [])
    commands = commands_in(outcome)
    assert commands
    monkeypatch.chdir(tmp_path)
    for words in commands:
        assert words[:2] == ["fssl", "run"]
        monkeypatch.setattr(sys, "argv", [*words, "--dry-run"])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        assert exit.value.code == 0


def test_the_commands_give_what_is_missing_and_nothing_else(tmp_path: Path) -> None:
    """After running what is named, figure 7 and figure 8 are complete."""
    imitate(tmp_path / "have", config_of("partition.alpha=0.1", "method.name=fixmatch-lpl", "protocol=clean"), 12, 1)
    for name in ("7", "8"):
        outcome = drawn(name, find_runs([tmp_path]).runs)
        assert outcome.state == "in part"
        for _, _, preset, _, _, *rest in commands_in(outcome):
            settings = [word for word in rest if word != "--set"]
            for cell, config in expand(override(read_toml(preset), [*settings, "train.precision=fp32"])):
                where = tmp_path / "new" / cell
                assert config.method.name != "fixmatch-lpl" or config.partition.alpha > 0.1
                if config.seed == 7 and not where.exists():
                    imitate(where, config, 12, 1)
        assert drawn(name, find_runs([tmp_path]).runs).state == "drawn"


def test_a_command_is_as_narrow_as_what_is_missing(tmp_path: Path) -> None:
    for method in ("sage", "fixmatch-gpl"):
        config = config_of("partition.alpha=0.1", f"method.name={method}")
        write_run(tmp_path / method, config, [10.0], sums=[{"n_l": 1000, "n_g": 1000}])
    outcome = drawn("2b", find_runs([tmp_path]).runs)
    assert outcome.missing == [
        "no run: `fssl run paper/fig2 --out runs/paper --set 'grid.partition.alpha=[0.1]'"
        " --set 'grid.method.name=[\"fixmatch-lpl\"]' --set protocol=clean`"
    ]
    assert outcome.picture.get_suptitle() == "missing: FixMatch-LPL"


def test_a_run_without_probes_needs_another_folder(tmp_path: Path) -> None:
    write_run(tmp_path / "x", config_of("partition.alpha=0.1"), [10.0])
    outcome = drawn("8", find_runs([tmp_path]).runs)
    again = [text for text in outcome.missing if text.startswith("no probes folder")]
    assert again == [
        "no probes folder: `fssl run paper/fig8-consensus --out runs/paper-again"
        " --set 'grid.partition.alpha=[0.1]' --set 'grid.method.name=[\"sage\"]'`"
    ]
    assert outcome.picture is None
    lacking = drawn("10", find_runs([tmp_path]).runs).missing
    assert any(
        text.startswith("no pseudo-label records (records.probes=all makes them): `fssl run") for text in lacking
    )


def test_folders_are_those_of_the_presets_page() -> None:
    page = (PRESETS / "paper" / "README.md").read_text()
    named = dict(re.findall(r"`fssl run paper/(fig\S+) --out (\S+)`", page))
    assert len(named) == 16
    assert {preset: FIGURE_FOLDERS.get(preset, SHARED_FOLDER) for preset in named} == named


def test_inline_toml() -> None:
    assert inline([{"name": "sage", "cdsc": False, "lam": 0.1}]) == '[{name="sage", cdsc=false, lam=0.1}]'


# The command.


def said_by(paths: list[Path], out: Path, *only: str) -> str:
    console = Console(file=io.StringIO(), width=120)
    make_figures(console, paths, out, list(only))
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_command_writes_files_and_an_index(grid: Path, tmp_path: Path) -> None:
    text = said_by([grid], tmp_path / "new", "Figure 4", "fig16")
    assert {p.name for p in (tmp_path / "new").iterdir()} == {
        "README.md",
        *(f"fig{name}.{kind}" for name in ("4", "16") for kind in ("png", "svg", "pdf")),
    }
    page = (tmp_path / "new" / "README.md").read_text()
    assert "## Figure 4. Test accuracy by round" in page
    assert "![Figure 4](fig4.png)" in page
    assert (
        "26 run(s) on cifar100 (2 per curve, seed(s) 7, 8), 50 labels per class, 12 rounds, protocol authors." in page
    )
    assert f"Runs in `{grid}/paper/cifar100/alpha1.0`: `fedavg-sl/seed7`" in page
    assert re.search(r"^ *4 +drawn", text, re.M)


def test_the_index_lists_what_would_complete_a_figure(alone: list[Run]) -> None:
    page = index([drawn("14", alone)])
    assert "## Figure 14. Accuracy by κ" in page
    assert "- no run: `fssl run paper/fig14-kappa --out runs/paper`" in page
    assert "![" not in page


def test_names_of_figures() -> None:
    assert [chosen(name) for name in ("2a", "fig2a", "Figure 2a", "FIG9e")] == ["2a", "2a", "2a", "9e"]
    with pytest.raises(UserError, match="figure '3' is unknown"):
        chosen("3")


def test_without_the_library_the_command_says_what_to_install(
    grid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"pip install 'fssl\[plots\]'"):
        said_by([grid], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_selector_remembers_a_selection(runs: list[Run]) -> None:
    select = Selector(by_setup(runs)[0])
    assert select("fig2") is select("fig2")


@pytest.mark.slow
def test_the_index_keeps_pictures_of_an_earlier_command(grid: Path, tmp_path: Path) -> None:
    said_by([grid], tmp_path, "16")
    said_by([grid], tmp_path, "4")
    page = (tmp_path / "README.md").read_text()
    assert [f"](fig{name}.png)" in page for name in ("4", "16", "15")] == [True, True, False]
    assert page.count("Drawn by an earlier command") == 1
