"""`fssl compare` and `fssl show`: repetitions, damage, and words that claim no more than the runs show."""

import csv
import json
import re
from io import StringIO
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fssl.cli.options import console
from fssl.errors import UserError
from fssl.paper.fill import fill_tables
from fssl.records.sealing import write_facts
from fssl.reports import compare
from fssl.reports.compare import Files, compare_runs
from fssl.reports.drawing import band, head, legend, render, sheet
from fssl.reports.drawing import settings as settings_of_pictures
from fssl.reports.formats import escape_latex, terminal
from fssl.reports.groups import group_by_task, named_groups
from fssl.reports.look import method_style
from fssl.reports.overview import make_overview, seconds_per_round
from fssl.reports.runs import by_round, find_runs, joined, number
from fssl.reports.show import print_run, sparkline
from fssl.reports.verdicts import caution, interval, last_rounds
from helpers import run_folders
from helpers.command import Fssl
from helpers.handmade import append, write_run

SAGE = 'method.name="sage"'


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_what_is_left_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", [50.0, 50.0], SAGE)
    write_run(tmp_path / "b", [80.0, 80.0], 'method.name="fedavg-sl"')
    write_run(tmp_path / "c", [70.0], SAGE, "train.rounds=2")  # the same seed, shorter
    write_run(tmp_path / "d", [60.0, 60.0], SAGE, "seed=8")
    (write_run(tmp_path / "e", [60.0, 60.0], SAGE, "seed=9") / "config.toml").unlink()
    with (tmp_path / "a/rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "acc')
    compare_runs(console, [tmp_path])
    text = said(capsys)
    assert "sage 7 8 55.00 ± 7.07" in text
    assert "Nothing to compare yet. With the true labels, an upper bound: fedavg-sl (80.00 %)." in text
    assert f"left out: {tmp_path}/e: no config.toml" in text
    assert f"{tmp_path}/a/rounds.jsonl: line 3 is damaged or half-written, and skipped" in text
    assert "left out: 1 run(s) with the settings and the seed of another that is as long or longer" in text
    assert f"longer: {tmp_path}/c" in text


def test_a_line_that_is_lost_shifts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round 2 of one seed is damaged: the curve has rounds 1 and 3, and the best round keeps its number."""
    for seed, curve in ((7, [10.0, 20.0, 30.0]), (8, [20.0, 90.0, 50.0])):
        write_run(tmp_path / str(seed), curve, SAGE, f"seed={seed}")
    without_times = [{**line, "timing": {"hours": 1.0}} for line in run_folders.lines_of(tmp_path / "7")]
    run_folders.write_lines(tmp_path / "7", without_times)
    lines = (tmp_path / "7/rounds.jsonl").read_text().splitlines()
    (tmp_path / "7/rounds.jsonl").write_text("\n".join([lines[0], lines[1][:20], lines[2]]) + "\n")
    bands = []
    monkeypatch.setattr(compare, "band", lambda axes, rounds, values, *look: bands.append((rounds, values.tolist())))
    compare_runs(console, [tmp_path], Files(png=tmp_path / "x.png"))
    assert bands[0] == ([1, 3], [[10, 30], [20, 50]])
    capsys.readouterr()
    print_run(console, tmp_path / "7")
    text = said(capsys)
    assert "30.00 % (round 3)" in text
    assert "seconds per round (median) │ –" in text
    assert "of these" not in text
    assert f"{tmp_path}/7/rounds.jsonl: line 2 is damaged or half-written, and skipped" in text


def test_a_damaged_line_is_no_round_of_a_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line of three is lost: table, remark, LaTeX and page report a mean of two rounds, as `fssl show` does."""
    file = write_run(tmp_path / "runs/7", [10.0, 20.0, 30.0], SAGE) / "rounds.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], lines[1][:20], lines[2]]) + "\n")
    compare_runs(console, [tmp_path / "runs"], Files(tex=tmp_path / "x.tex"))
    text = said(capsys)
    assert "method seeds last 2 last" in text
    assert "mean of the last 2 rounds" in text
    assert "mean of the last 2 rounds" in (tmp_path / "x.tex").read_text()
    print_run(console, tmp_path / "runs/7")
    assert "mean of the last 2 rounds" in said(capsys)
    (run,) = find_runs([tmp_path / "runs/7"]).runs
    assert (run.result, last_rounds([run])) == (20, 2)


def test_the_last_ten_rounds_are_ten_numbers_and_reach_no_farther_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Line 5 of 12 is lost: the mean is of nine of the rounds 3 to 12, and not of round 2 as well."""
    file = write_run(tmp_path / "runs/7", [float(r) for r in range(1, 13)], SAGE) / "rounds.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:4], lines[4][:20], *lines[5:]]) + "\n")
    expected = (sum(range(3, 13)) - 5) / 9
    (run,) = find_runs([tmp_path / "runs"]).runs
    assert (run.result, run.averaged) == (expected, 9)
    print_run(console, tmp_path / "runs/7")
    assert "mean of the last 9 rounds │ 7.78 %" in said(capsys)


@pytest.mark.parametrize(("rounds", "shown"), [(1, [1]), (3, [1, 2, 3]), (300, [0, 100, 200, 300])])
def test_an_axis_of_rounds_has_whole_numbers(
    rounds: int, shown: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "a", [10.0] * rounds, SAGE)
    figures: list[Any] = []
    monkeypatch.setattr(compare, "render", lambda figure, *how: figures.append(figure) or render(figure, *how))
    compare_runs(console, [tmp_path], Files(png=tmp_path / "c.png"))
    panel = figures[0].axes[0]
    low, high = panel.get_xlim()
    assert [tick for tick in panel.get_xticks() if low <= tick <= high] == shown
    assert panel.get_xlabel() == "round"


def test_an_axis_of_percentages_ends_at_0_and_100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(compare, "render", lambda figure, *how: figures.append(figure) or {"png": b""})
    for name, curve in (("wide", [0.0, 100.0]), ("narrow", [40.0, 60.0])):
        write_run(tmp_path / name, curve, SAGE)
        compare_runs(console, [tmp_path / name], Files(png=tmp_path / "c.png"))
    assert [figure.axes[0].get_ylim() for figure in figures] == [(0, 100), pytest.approx((39, 61))]


def test_a_run_shows_where_its_time_went(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Medians by part, as far as lines have them."""
    parts = [{"clients": 4.0, "test": 1.0}, {"clients": 2.0, "server": 0.25, "test": "long"}, {"clients": 3.0}, None]
    timing = [{"seconds": 5.0, "parts": each} for each in parts]
    print_run(console, run_folders.write_run(tmp_path / "a", run_folders.config_of(SAGE), [10.0] * 4, timing=timing))
    assert "of these │ clients 3.00, test 1.00, server 0.25" in said(capsys)


def test_a_line_of_the_table_has_the_last_round_and_the_best_is_bold(tmp_path: Path) -> None:
    for method, seed, curve in (("sage", 7, [50.0, 60.0]), ("sage", 8, [52.0, 64.0]), ("fedavg", 7, [40.0, 30.0])):
        write_run(tmp_path / f"{method}{seed}", curve, f"method.name={method}", f"seed={seed}")
    overview = make_overview(named_groups(find_runs([tmp_path]).runs))
    assert overview.rows == [
        ["sage", "7 8", "56.50 ± 2.12", "62.0 ± 2.8", "–", "–", "0.75"],
        ["fedavg", "7", "35.00", "30.0", "–", "–", "0.75"],
    ]
    styles = [[cell.style for cell in column.cells] for column in terminal(overview).columns]
    assert styles == [["", ""], ["", ""], ["bold", ""], *[["", ""]] * 4]


def test_seconds_are_the_median_of_all_rounds(tmp_path: Path) -> None:
    """0.5, 1, 1.5 and 2 s, and once more 0.5 and 1 s: their mean would be 1.08."""
    write_run(tmp_path / "long", [50.0] * 4)
    write_run(tmp_path / "short", [50.0] * 2)
    assert seconds_per_round(find_runs([tmp_path]).runs) == "1.00"


@pytest.mark.parametrize("damaged", [1e15, -1e15, float("inf"), float("-inf"), float("nan"), "1", None, [1.0]])
def test_a_number_that_only_damage_can_write_is_none(damaged: object) -> None:
    read = number("test", "loss")
    assert read({"test": {"loss": damaged}}) is None
    assert read({"test": {"loss": -9e14}}) == -9e14


def test_a_curve_is_a_line_of_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of five values on three places, means of two: 5, 70 and 40."""
    assert sparkline([float(x) for x in range(8)]) == "▁▂▃▄▅▆▇█"
    assert sparkline([0.0, 10.0, 70.0, 70.0, 40.0], width=3) == "▁█▅"
    assert sparkline([5.0, 5.0]) == "▁▁"
    print_run(console, write_run(tmp_path / "a", [20.0, 10.0, 90.0, 50.0], SAGE))
    assert said(capsys).endswith("10.0 % ▂▁█▅ 90.0 %")


def test_of_many_clients_with_test_images_the_first_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "a", [50.0], SAGE)
    for clients in (12, 14):
        tested = {str(k): {"images": 3 + k, "accuracy": 50.0 + k} for k in range(clients)}
        write_facts(folder / "measures.json", {"models": {"plain": {"clients": tested}}})
        print_run(console, folder)
        text = said(capsys)
        assert "accuracy on the 14 test images of client 11 │ 61.00 %" in text
        assert ("of client 12" in text, "and 2 more clients │ see measures.json" in text) == (False, clients == 14)


FIRST, SECOND = "3e18041718aa43715472cd031216bea53e610747", "9aa9b3f2b+"


@pytest.mark.parametrize(
    ("one", "other", "listed"),
    [
        ([FIRST], [FIRST], ""),
        ([None], [], ""),
        ([FIRST], [SECOND], "3e18041, 9aa9b3f+"),
        ([FIRST], [None], "3e18041, unknown"),
        ([FIRST, SECOND], [FIRST], "3e18041, 9aa9b3f+"),
    ],
)
def test_a_table_of_several_commits_lists_them(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    one: list[str | None],
    other: list[str | None],
    listed: str,
) -> None:
    for seed, revisions in ((7, one), (8, other)):
        folder = write_run(tmp_path / str(seed), [50.0], SAGE, f"seed={seed}")
        sessions = [{"from_round": 1, "revision": revision} for revision in revisions]
        (folder / "env.json").write_text(json.dumps({"sessions": sessions}))
    compare_runs(console, [tmp_path])
    lines = [line for line in capsys.readouterr().out.splitlines() if "commit" in line]
    expected = f"Runs of several commits: {listed} (`fssl show RUN` names that of a run)."
    assert lines == [expected] * bool(listed)


def test_commits_are_printed_dim(tmp_path: Path) -> None:
    for seed, revision in ((7, FIRST), (8, SECOND)):
        folder = write_run(tmp_path / str(seed), [50.0], SAGE, f"seed={seed}")
        (folder / "env.json").write_text(json.dumps({"sessions": [{"from_round": 1, "revision": revision}]}))
    compare_runs(Console(file=(out := StringIO()), force_terminal=True, width=200), [tmp_path])
    dim = [line for line in out.getvalue().splitlines() if line.startswith("\x1b[2m")]
    assert dim == ["\x1b[2mRuns of several commits: 3e18041, 9aa9b3f+ (`fssl show RUN` names that of a run).\x1b[0m"]


def test_tables_of_one_commit_each_list_none_and_the_csv_file_has_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for alpha, revisions in (("0.1", [FIRST]), ("1.0", [SECOND, SECOND]), ("10.0", [FIRST, SECOND])):
        folder = write_run(tmp_path / alpha, [50.0], SAGE, f"partition.alpha={alpha}")
        (folder / "env.json").write_text(json.dumps({"sessions": [{"revision": r} for r in revisions]}))
    compare_runs(console, [tmp_path / "0.1", tmp_path / "1.0"])
    assert "commit" not in capsys.readouterr().out
    compare_runs(console, [tmp_path], Files(csv=tmp_path / "runs.csv"))
    rows = {row["partition.alpha"]: row["commits"] for row in csv.DictReader((tmp_path / "runs.csv").open())}
    assert rows == {"0.1": "3e18041", "1.0": "9aa9b3f+", "10.0": "3e18041 9aa9b3f+"}


@pytest.mark.parametrize(
    ("revisions", "text"),
    [
        (["3e18041718aa43715472cd031216bea53e610747"], "3e18041 │"),
        (["3e18041718aa43715472cd031216bea53e610747", "9aa9b3f2b+"], "3e18041, 9aa9b3f+ from round 76 │"),
        ([None], "unknown │"),
        (["[red]3e18041\x1b"], "unknown │"),
        ([], "unknown │"),
    ],
)
def test_show_names_the_commit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], revisions: list[str | None], text: str
) -> None:
    folder = write_run(tmp_path / "a", [50.0], SAGE, "train.rounds=1")
    sessions = [{"from_round": 1 + 75 * i, "revision": revision} for i, revision in enumerate(revisions)]
    (folder / "env.json").write_text(json.dumps({"sessions": sessions}))
    print_run(console, folder)
    assert f"│ commit │ {text}" in said(capsys)


def test_labels_are_of_the_same_rounds_in_show_and_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of twelve rounds the first two do not count: 9 of 10 are right in one of the last ten, all in the others."""
    right, used = [0.0, 0.0, *[1.0] * 9, 0.9], [1.0, 1.0, *[0.5] * 5, *[0.7] * 5]
    folder = write_run(tmp_path / "a", [50.0] * 12, SAGE, pl_accuracy=right, utilization=used)
    print_run(console, folder)
    text = said(capsys)
    assert "labels right (pl_accuracy) │ 0.990 in the last 10 rounds │" in text
    assert "labels used (utilization) │ 0.600 in the last 10 rounds │" in text
    compare_runs(console, [folder])
    text = said(capsys)
    assert "50.00 50.0 99.0 60.0 " in text
    assert text.endswith(
        "(mean of the last 10 rounds; last round), labels right and used (mean of the last 10 rounds)."
    )


def test_a_record_of_an_odd_shape_can_still_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "a", [50.0], SAGE, "train.rounds=2")
    append(folder, 2, 60.0)
    line = {"round": 3, "accuracy": 61.0, "test": [], "pl_accuracy": "many", "lam_sure": 0.25}
    run_folders.write_lines(folder, [*run_folders.lines_of(folder), line])
    print_run(console, folder)
    text = said(capsys)
    assert "61.00 % (round 3)" in text
    assert "weight of the local vote (lam_sure) │ 0.250 in the last 3 rounds" in text
    assert "pl_accuracy" not in text


def tasks_with_long_names(folder: Path, number: int) -> None:
    """Runs whose tasks differ in many settings, and whose method has a name that is longer than a line."""
    many = ("train.nesterov=true", "train.clip=1", "train.decay_on='weights'", "data.normalization='plain'")
    label = "method.label='A name of sixty letters that needs a line for itself, or so'"
    for i in range(number):
        more = ("server.optimizer='adam'", "server.ema=0.9") if i % 2 else ()
        own = (*many[: 1 + i % 3], *more, f"train.lr={0.01 * (i + 1):g}")
        write_run(folder / f"s{i}", [50.0, 60.0], SAGE, *own)
        write_run(folder / f"f{i}", [40.0, 50.0], 'method.name="fedavg"', label, *own)


@pytest.mark.parametrize("number", [1, 3, 9, 14])
@pytest.mark.slow
def test_a_picture_has_room_for_every_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Panels of one size, names inside the picture and apart from the rows above; 12 rows at most."""
    figures = []
    monkeypatch.setattr(compare, "render", lambda figure, *how: figures.append(figure) or render(figure, *how))
    tasks_with_long_names(tmp_path, number)
    compare_runs(console, [tmp_path], Files(png=tmp_path / "c.png"))
    left_out = "the picture shows the first 12 of 14 tasks: name fewer folders to choose, or give --by"
    assert (left_out in said(capsys)) == (number == 14)
    (figure,) = figures
    figure.draw_without_rendering()  # places in its own resolution again
    panels = [axes.get_window_extent() for axes in figure.axes]
    assert len(panels) == 3 * min(number, 12)
    inches = {(round(panel.width / figure.dpi, 1), round(panel.height / figure.dpi, 1)) for panel in panels}
    assert [*inches] == [pytest.approx((2.5, 2.5), abs=0.21)], "one size, whatever their number"
    names = [text for axes in figure.axes for text in axes.texts if "digits" in text.get_text()]
    boxes = [name.get_window_extent() for name in names]
    assert len(names) == (min(number, 12) if number > 1 else 0)
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1 for box in boxes)
    rows = [figure.axes[i : i + 3] for i in range(0, len(panels), 3)]
    below = [min(axes.xaxis.label.get_window_extent().y0 for axes in row) for row in rows]
    above = [max(axes._left_title.get_window_extent().y1 for axes in row) for row in rows]
    assert all(lowest > box.y1 for lowest, box in zip(below, boxes[1:], strict=False))
    assert all(lowest > high for lowest, high in zip(below, above[1:], strict=False))


def test_no_warning_of_the_drawing_library_is_seen(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    write_run(tmp_path / "a", [50.0, 60.0], SAGE, "method.label='我们'")  # letters that the font lacks
    compare_runs(console, [tmp_path], Files(png=tmp_path / "c.png"))
    assert [str(warning.message) for warning in recwarn] == []


@pytest.mark.parametrize("results", [(90.0, 89.5, 89.0, 60.0), (90.0, 60.5, 60.3, 60.0), (1.0, 1.0, 1.0, 99.0)])
def test_a_titled_picture_is_one_panel_with_names_at_the_ends_of_lines(
    results: tuple[float, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names have their results, are apart from each other, inside the picture, in the order of the results."""
    figures: list[Any] = []
    monkeypatch.setattr(compare, "render", lambda figure, *how: figures.append(figure) or render(figure, *how))
    methods = ("sage", "fixmatch-lpl", "fixmatch-gpl", "fedavg")
    for method, result in zip(methods, results, strict=True):
        write_run(tmp_path / method, [50.0, *[result] * 10], f'method.name="{method}"')
    title = "Words that say in a picture what a stranger shall see, over more than one of its lines"
    compare_runs(console, [tmp_path], Files(png=tmp_path / "c.png", title=title))
    (figure,) = figures
    (panel,) = figure.axes
    figure.draw_without_rendering()
    assert " ".join(panel.get_title(loc="left").split()) == title
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("round", "test accuracy, %")
    assert panel.get_xlim() == (1, 11)
    best_first = sorted(panel.texts, key=lambda text: -text.get_window_extent().y0)
    assert {t.get_text().strip(): t.get_color() for t in best_first} == {
        f"{method} {result:.1f} %": method_style(method).color for method, result in zip(methods, results, strict=True)
    }
    numbers = [float(text.get_text().split()[1]) for text in best_first]
    assert numbers == sorted(results, reverse=True)
    boxes = [text.get_window_extent() for text in (*best_first, panel._left_title)]
    assert all(lower.y1 < higher.y0 for higher, lower in pairwise(boxes[:-1]))
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1 for box in boxes)
    assert all(box.x0 >= panel.get_window_extent().x1 for box in boxes[:-1])


def test_a_title_is_rejected_where_there_is_no_single_panel(tmp_path: Path) -> None:
    for alpha in (0.1, 1.0):
        write_run(tmp_path / "runs" / str(alpha), [50.0], SAGE, f"partition.alpha={alpha}")
    picture = Files(png=tmp_path / "never.png", title="Two tasks")
    with pytest.raises(UserError, match="--title draws one panel of one task, by round; remove --by, or name runs"):
        compare_runs(console, [tmp_path / "runs"], picture)
    with pytest.raises(UserError, match="--title draws one panel"):
        compare_runs(console, [tmp_path / "runs"], picture, by="partition.alpha")
    with pytest.raises(UserError, match="--title has no effect without a picture; add --png, --svg or --pdf"):
        compare_runs(console, [tmp_path / "runs/1.0"], Files(title="No picture"))
    assert not (tmp_path / "never.png").exists()


def test_a_long_name_in_a_legend_is_broken() -> None:
    with settings_of_pictures():
        figure, axes = sheet(3, 3)
        axes[0, 0].plot([1, 2], label="sage, " + ", ".join(f"setting{i} = {i}" for i in range(9)))
        legend(figure, 4)
        figure.draw_without_rendering()
        (box,) = (each.get_window_extent() for each in figure.legends)
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1


def test_a_name_of_a_row_has_three_lines_at_most() -> None:
    with settings_of_pictures():
        _, axes = sheet(9, 3, 1, 3)
        assert head(axes[0], " · ".join(f"train.setting{i} = {i}" for i in range(99))) == 4
        (name,) = axes[0, 0].texts
    assert name.get_text().count("\n") == 2
    assert name.get_text().endswith("…")


def test_tasks_are_not_ranked_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A harder task is no worse method: a table and a verdict each, and a picture with a row for each."""
    for alpha, ours, theirs in ((0.1, 50.0, 40.0), (1.0, 70.0, 65.0)):
        for seed in (7, 8):
            write_run(tmp_path / f"s{alpha}-{seed}", [ours + seed], SAGE, f"partition.alpha={alpha}", f"seed={seed}")
            other = 'method.name="fedavg"'
            write_run(tmp_path / f"f{alpha}-{seed}", [theirs + seed], other, f"partition.alpha={alpha}", f"seed={seed}")
    compare_runs(console, [tmp_path], Files(png=tmp_path / "c.png", csv=tmp_path / "new/c.csv"))
    text = said(capsys)
    assert "α = 0.1" in text
    assert "α = 1 " in text
    assert "sage leads fedavg by 10.00 points (seed by seed +10.00 to +10.00; 95 % interval +10.00 to +10.00):" in text
    assert "sage leads fedavg by 5.00 points" in text
    assert text.count("leads") == 2
    rows = list(csv.DictReader((tmp_path / "new/c.csv").open()))
    assert len(rows) == 8
    first = rows[0]
    assert (first["method"], first["seed"], float(first["result"]), first["utilization"]) == ("sage", "7", 57.0, "")
    assert "α = 0.1" in first["task"]
    assert [row["partition.alpha"] for row in rows] == ["0.1"] * 4 + ["1.0"] * 4  # settings that vary have a column
    assert "partition.clients" not in first


def test_the_footer_has_the_rounds_of_the_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "short", [50.0] * 8, "partition.alpha=0.1")
    compare_runs(console, [tmp_path])
    assert "(mean of the last 8 rounds; last round)" in said(capsys)
    write_run(tmp_path / "long", [60.0] * 12, "partition.alpha=1.0")
    write_run(tmp_path / "young", [60.0] * 3, "partition.alpha=1.0", "train.rounds=12", "seed=8")
    compare_runs(console, [tmp_path])
    text = said(capsys)
    assert [head in text for head in ("last 8 ", "last 10 ")] == [True, True]
    assert "(mean of the last 8 or 10 rounds; last round)" in text


def test_a_band_stays_within_what_a_percentage_can_be() -> None:
    with settings_of_pictures():
        _, ((axes,),) = sheet(3, 3)
        band(axes, [1, 2], np.array([[90.0, 1.0], [100.0, 9.0]]), "sage", method_style("sage"))
        band(axes, [1, 2], np.array([[90.0, 1.0], [110.0, 9.0]]), "more", method_style("sage"), most=np.inf)
        heights = [area.get_paths()[0].vertices[:, 1] for area in axes.collections]
    assert [(h.min(), h.max()) for h in heights] == [(0, 100), (0, pytest.approx(100 + 200**0.5))]


def test_the_gain_of_sage_is_reported_seed_by_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """FlexMatch 50, 52 and with SAGE 51, 55: +1 and +3. FreeMatch's gain is lost in one of two seeds."""
    results = {"flexmatch": (50, 52), "flexmatch+sage": (51, 55), "freematch": (40, 40), "freematch+sage": (45, 39)}
    results |= {"sage": (30, 30), "fixmatch-lpl": (31, 31)}
    for method, (a, b) in results.items():
        write_run(tmp_path / method / "7", [float(a)], f"method.name='{method}'")
        write_run(tmp_path / method / "8", [float(b)], f"method.name='{method}'", "seed=8")
    write_run(tmp_path / "other", [90.0], "method.name='flexmatch'", "method.tau=0.5")
    compare_runs(console, [tmp_path])
    text = said(capsys)
    assert "flexmatch+sage is 2.00 points ahead of flexmatch, tau=0.95 (seed by seed +1.00 to +3.00; " in text
    assert "95 % interval -10.71 to +14.71): two seeds are weak evidence." in text
    assert "freematch+sage is 2.00 points ahead of freematch (seed by seed -1.00 to +5.00; " in text
    assert "95 % interval -36.12 to +40.12): not in every seed, so this" in text
    assert text.count("points ahead of") == 2


def test_an_interval_of_student_and_its_cautions() -> None:
    """Differences 1, 2, 3: 2 ± 4.303 / sqrt(3). The quantiles of 9 and 29 degrees of freedom are 2.262 and 2.045."""
    assert interval([1.0, 2.0, 3.0]) == pytest.approx((-0.4844, 4.4844), abs=1e-4)
    for seeds, quantile in ((10, 2.262), (12, 2.201), (30, 2.045)):
        values = [0.0, 2.0] * (seeds // 2)
        half = (seeds / (seeds - 1)) ** 0.5 / seeds**0.5
        assert interval(values) == pytest.approx((1 - quantile * half, 1 + quantile * half), abs=1e-3)
    assert caution(2, [1.0, 2.0, 3.0]) == ": the interval includes 0, so more seeds are needed."
    assert (caution(5, [4.0, 5.0, 6.0]), caution(-5, [-4.0, -5.0, -6.0])) == (".", ".")
    assert caution(5, [5.0, 5.1]) == ": two seeds are weak evidence."
    assert caution(1, [-1.0, 3.0]).startswith(": not in every seed")


def test_the_best_cell_of_a_sweep_has_the_words_of_its_final_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FixMatch is best at 0.7, and 60 is the best number of all; SAGE's upper bound does not count."""
    results = {("sage", 0.7): 50, ("sage", 0.9): 55, ("fixmatch-gpl", 0.7): 60, ("fixmatch-gpl", 0.9): 58}
    results[("sage+oracle", 0.7)] = 99
    for i, ((method, tau), result) in enumerate(results.items()):
        settings = (f"method.name='{method}'", f"method.tau={tau}", "data.test='tuning'", "train.lr=0.05")
        write_run(tmp_path / str(i), [float(result)], *settings)
    compare_runs(console, [tmp_path], by="method.tau")
    line = next(line for line in said(capsys).split("Best cell: ")[1:])
    words = "--set method.name=fixmatch-gpl --set method.tau=0.7 --set data.test=final"
    assert line.startswith(f"fixmatch-gpl with method.tau = 0.7, 60.00 %: {words} ")


def test_headings_have_the_first_digits_of_checksums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for k, digest in enumerate(("0123456789abcdef" * 4, "fedcba9876543210" * 4)):
        settings = ("partition.file='split.json'", f"partition.digest='{digest}'")
        write_run(tmp_path / str(k), [50.0], SAGE, *settings)
    compare_runs(console, [tmp_path])
    text = said(capsys)
    assert ("partition.digest = 0123456" in text, "partition.digest = fedcba9" in text) == (True, True)
    assert "01234567" not in text


def test_images_in_memory_are_called_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = ("data.name='imagefolder'", "data.classes=['a', 'b']", "data.size=8", "data.channels=1", "data.digest='1'")
    write_run(tmp_path / "a", [50.0], SAGE, *own)
    write_run(tmp_path / "b", [50.0], SAGE, *own, "partition.alpha=7")
    compare_runs(console, [tmp_path])
    print_run(console, tmp_path / "a")
    text = said(capsys)
    assert ("arrays · " in text, "sage on arrays, seed" in text, "imagefolder" in text) == (True, True, False)


def test_a_run_of_an_installed_package_names_its_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "a", [50.0], SAGE)
    write_facts(run / "env.json", {"sessions": [{"revision": None, "packages": {"fssl": "0.1.0"}}]})
    print_run(console, run)
    text = said(capsys)
    assert ("fssl 0.1.0" in text, "unknown" in text) == (True, False)


def test_a_second_by_is_rejected(three_alphas: Path, fssl: Fssl) -> None:
    words = ("compare", str(three_alphas / "runs"), "--by", "partition.alpha", "--by", "train.lr")
    given = fssl(*words)
    assert (given.code, given.err.count("\n")) == (2, 1)
    assert "--by partition.alpha --by train.lr: results are shown by one setting" in given.err


def test_where_the_file_of_a_partition_was_does_not_part_repetitions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its checksum does."""
    for k, digest in enumerate(("abc", "abc", "def")):
        file = f"partition.file='{k}/split.json'"
        write_run(tmp_path / str(k), [50.0 + 10 * k], SAGE, file, f"partition.digest='{digest}'", f"seed={7 + k}")
    compare_runs(console, [tmp_path])
    assert "sage 7 8 55.00 ± 7.07" in (text := said(capsys))
    assert "sage 9 70.00" in text


@pytest.mark.parametrize(
    ("settings", "title"),
    [
        ([], "digits · α = 0.5 · 8 labels per class · 6 clients"),
        (["partition.labeled_clients=2"], "digits · α = 0.5 · 8 labels per class · 6 clients · labels at 2"),
        (
            [
                "partition.labels='knowing-clients'",
                "partition.labeled_clients=2",
                "partition.kind='balanced-dirichlet'",
            ],
            "digits · α = 0.5 over all clients, balanced · 6 clients · 2 clients know all their labels",
        ),
        (
            ["partition.labels='knowing-clients'", "partition.labeled_clients=1"],
            "digits · α = 0.5 · 6 clients · 1 client knows all its labels",
        ),
        (
            ["partition.kind='shards'", "partition.classes_per_client=5"],
            "digits · 5 shards per client · 8 labels per class · 6 clients",
        ),
        (["partition.file='a/split.json'", "partition.clients=9"], "digits · split of split.json · 9 clients"),
    ],
)
def test_a_task_is_called_by_its_partition(tmp_path: Path, settings: list[str], title: str) -> None:
    write_run(tmp_path / "a", [50.0], SAGE, *settings)
    (task,) = group_by_task(find_runs([tmp_path])[0])
    assert task.name == title


def test_a_setting_of_another_optimizer_is_not_reported(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [50.0], SAGE)
    write_run(tmp_path / "b", [50.0], SAGE, "train.optimizer=adamw", "train.beta2=0.9")
    first, second = (task.extra for task in group_by_task(find_runs([tmp_path])[0]))
    assert ("beta2" in first, "train.beta2 = 0.9" in second) == (False, True)


def test_other_crops_are_another_task(tmp_path: Path) -> None:
    for crop in ("pad", "resize"):
        write_run(tmp_path / crop, [50.0], SAGE, f"data.crop={crop}")
    tasks = group_by_task(find_runs([tmp_path])[0])
    assert [task.extra for task in tasks] == ["data.crop = pad", "data.crop = resize"]


def test_a_title_names_every_difference_between_tasks_of_a_dataset(tmp_path: Path) -> None:
    """Also with a skew that already distinguishes them; defaults of other datasets are not compared."""
    for alpha, lr in ((0.1, 0.05), (0.5, 0.1)):
        write_run(tmp_path / f"{lr}", [50.0], SAGE, f"partition.alpha={alpha}", f"train.lr={lr}")
    write_run(tmp_path / "c", [50.0], SAGE, "data.name='cifar10'", "model.name='resnet8'", "train.lr=0.2")
    tasks = group_by_task(find_runs([tmp_path])[0])
    assert [task.extra for task in tasks] == ["train.lr = 0.05", "train.lr = 0.1", ""]
    assert tasks[0].title.startswith("digits · α = 0.1 · ")


def test_a_title_counts_what_would_make_it_long(tmp_path: Path) -> None:
    """Groups of one name are distinguished by all their differences."""
    other = ["partition.alpha=0.3", "train.batch=9", "train.lr=0.2", "train.momentum=0.5", "train.weight_decay=0.1"]
    write_run(tmp_path / "a", [50.0], SAGE)
    write_run(tmp_path / "b", [50.0], SAGE, "data.crop='resize'", "data.flip=true")
    write_run(tmp_path / "c", [50.0], SAGE, *other)
    shared = "train.batch = 16 · train.lr = 0.1 · train.momentum = 0.9 · train.weight_decay = 0.0001"
    tasks = group_by_task(find_runs([tmp_path])[0])
    assert tasks[0].extra == f"data.crop = pad · data.flip = false · {shared}"
    write_run(tmp_path / "d", [50.0], SAGE, *other, "train.unlabeled_ratio=3")
    extras = [task.extra for task in group_by_task(find_runs([tmp_path])[0])]
    assert extras[0] == "data.crop = pad · data.flip = false · 5 more settings differ"
    assert extras[1] == "data.crop = resize · data.flip = true · 5 more settings differ"
    assert extras[3] == "train.unlabeled_ratio = 3 · 6 more settings differ"


def test_lines_of_a_table_stay_whole_in_a_file(tmp_path: Path) -> None:
    for seed in range(7, 12):
        write_run(tmp_path / str(seed), [50.0 + seed], 'method.name="fedprox+fixmatch+sage"', f"seed={seed}")
    file = StringIO()
    compare_runs(Console(file=file, width=40), [tmp_path])
    (line,) = (line for line in file.getvalue().splitlines() if "fedprox" in line)
    assert "fedprox+fixmatch+sage  7 8 9 10 11  59.00 ± 1.58" in line


@pytest.mark.parametrize(("width", "num_tables"), [(40, 3), (60, 2), (80, 1), (100, 1)])
def test_no_two_lines_look_alike_on_a_terminal(tmp_path: Path, width: int, num_tables: int) -> None:
    """Long names are folded, and columns without room follow in further tables: nothing is cut off."""
    methods, taus = ("fixmatch-lpl", "fixmatch-gpl", "fedprox+fixmatch", "fedprox+fixmatch+sage"), (0.9, 0.95)
    for method, tau, seed in product(methods, taus, (7, 8, 9)):
        settings = (f"method.name='{method}'", f"method.tau={tau}", f"seed={seed}")
        write_run(tmp_path / f"{method}{tau}{seed}", [40.0 + seed], *settings)
    out = StringIO()
    compare_runs(Console(file=out, width=width, force_terminal=True, color_system=None), [tmp_path])
    lines = out.getvalue().split(" and ")[0].splitlines()[:-1]
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    heads = [i for i, line in enumerate(lines) if line.startswith(" method")]
    assert len(heads) == num_tables
    shown = " ".join(lines[i].removeprefix(" method").replace("last 1", "last-1") for i in heads).split()
    assert shown == ["seeds", "last-1", "last", "right", "used", "s/round"]
    for i, end in zip(heads, [*heads[1:], len(lines)], strict=True):
        across = len(lines[i]) - len(lines[i].removeprefix(" method").lstrip())  # the names' column
        names = "".join(line[:across] for line in lines[i + 2 : end]).replace(" ", "")
        assert sorted(re.findall(r"[\w+-]+,tau=0\.95?", names)) == sorted(
            f"{m},tau={t}" for m, t in product(methods, taus)
        )
    assert out.getvalue().count("48.00 ± 1.00") == len(methods) * len(taus)


@pytest.fixture
def three_alphas(tmp_path: Path) -> Path:
    """Two methods at three alphas, seeds 7 and 8; at 0.5 they are level, at 1 only one of them was run."""
    results = {"sage": {10.0: (80, 82), 0.1: (50, 54), 0.5: (60, 60)}, "fedavg": {0.1: (40, 44), 0.5: (59, 61)}}
    for method, by_alpha in results.items():
        for alpha, values in by_alpha.items():
            for seed, result in zip((7, 8), values, strict=True):
                settings = (f"method.name='{method}'", f"partition.alpha={alpha}", f"seed={seed}")
                write_run(tmp_path / f"runs/{method}{alpha}{seed}", [float(result)] * 2, *settings)
    return tmp_path


def test_results_by_a_setting(three_alphas: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A column for each value, numbers in order; the words say who leads at each, and every seed counts once."""
    compare_runs(console, [three_alphas / "runs"], by="partition.alpha")
    text = said(capsys)
    assert "method seeds alpha=0.1 alpha=0.5 alpha=10.0" in text
    assert "sage 7 8 52.00 ± 2.83 60.00 ± 0.00 81.00 ± 1.41" in text
    assert "fedavg 7 8 42.00 ± 2.83 60.00 ± 1.41 – " in text
    lead = "partition.alpha = 0.1: sage leads fedavg by 10.00 points (seed by seed +10.00 to +10.00; "
    assert lead + "95 % interval +10.00 to +10.00): two seeds are weak evidence." in text
    assert "partition.alpha = 0.5: fedavg and sage are level." in text
    assert "partition.alpha = 10.0" not in text
    assert "test set" not in text  # who has which skew is no choice of the researcher


def test_a_servers_setting_is_a_choice_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for momentum in (0.5, 0.9):
        settings = ("server.optimizer='momentum'", f"server.momentum={momentum}")
        write_run(tmp_path / f"{momentum}", [50.0], SAGE, *settings)
    compare_runs(console, [tmp_path], by="server.momentum")
    assert "A choice of server.momentum from this table is made on the test set" in said(capsys)


def test_results_by_a_methods_own_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What has no such setting stands in a column of its own, and the reader is warned of choosing by the test."""
    for tau in (0.9, 0.7):
        write_run(tmp_path / f"{tau}", [50 + 10 * tau], SAGE, f"method.tau={tau}")
    write_run(tmp_path / "f", [40.0], 'method.name="fedavg"')
    compare_runs(console, [tmp_path], by="method.tau")
    text = said(capsys)
    assert "method seeds tau=0.7 tau=0.9 tau=unset" in text
    assert "sage 7 57.00 59.00 –" in text
    assert "fedavg 7 – – 40.00" in text
    assert "A choice of method.tau from this table is made on the test set" in text
    for tau in (0.9, 0.7):
        write_run(tmp_path / f"apart/{tau}", [50.0], SAGE, f"method.tau={tau}", "data.test='tuning'")
    compare_runs(console, [tmp_path / "apart"], by="method.tau")
    assert "on the test set" not in said(capsys)  # that half is for choosing


def test_a_comparison_in_latex(three_alphas: Path) -> None:
    """The best of each column is bold, ties too; seeds are a remark."""
    compare_runs(console, [three_alphas / "runs"], Files(tex=three_alphas / "new/t.tex"), by="partition.alpha")
    lines = (three_alphas / "new/t.tex").read_text().splitlines()
    assert lines[0].startswith("% digits · ")
    assert "α" not in lines[0]
    assert lines[1].endswith("over seeds 7 8")
    head, *rows = (line for line in lines if line.endswith(r" \\"))
    assert head == r"method & alpha=0.1 & alpha=0.5 & alpha=10.0 \\"
    rules = [line for line in lines if line.endswith("rule")]
    assert [lines.index(rule) - lines.index(head) for rule in rules] == [-1, 1, 4]
    assert rules == [r"\toprule", r"\midrule", r"\bottomrule"]
    assert rows == [
        r"sage & \textbf{52.00 $\pm$ 2.83} & \textbf{60.00 $\pm$ 0.00} & 81.00 $\pm$ 1.41 \\",
        r"fedavg & 42.00 $\pm$ 2.83 & \textbf{60.00 $\pm$ 1.41} & -- \\",
    ]
    compare_runs(console, [three_alphas / "runs"], Files(tex=three_alphas / "all.tex"))
    text = (three_alphas / "all.tex").read_text()
    assert text.count(r"\begin{tabular}{lcccc}") == text.count(r"\end{tabular}") == 3  # a table for each task


def test_a_picture_by_a_setting(three_alphas: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = {}
    monkeypatch.setattr(compare, "points", lambda axes, at, values, name, style: drawn.setdefault(name, (at, values)))
    compare_runs(console, [three_alphas / "runs"], Files(png=three_alphas / "a.png"), by="partition.alpha")
    assert drawn["sage"] == ([0.02, 1.02, 2.02], [[50, 54], [60, 60], [80, 82]])
    assert drawn["fedavg"] == ([-0.02, 0.98], [[40, 44], [59, 61]])
    assert (three_alphas / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("alpha", "--by 'alpha' is unknown; did you mean 'partition.alpha'?"),
        ("partition.clients", "--by partition.clients: it is 6 in all runs; what varies: partition.alpha"),
        (
            "method.name",
            "--by method.name: results are means over seeds, with a line per method",
        ),
        ("seed", "--by seed: results are means over seeds"),
    ],
)
def test_a_setting_that_distinguishes_nothing_is_rejected(three_alphas: Path, key: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        compare_runs(console, [three_alphas / "runs"], Files(png=three_alphas / "never.png"), by=key)
    assert message in str(refused.value)
    assert not (three_alphas / "never.png").exists()


def test_a_lead_is_that_in_the_seeds_that_both_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SAGE has easy seeds of its own: its mean is higher, but it is behind in both seeds that it shares."""
    for seed, ours, theirs in ((7, 40, 50), (8, 41, 50), (9, 90, None), (10, 90, None)):
        write_run(tmp_path / f"s{seed}", [float(ours)], SAGE, f"seed={seed}")
        if theirs:
            write_run(tmp_path / f"f{seed}", [float(theirs)], 'method.name="fedavg"', f"seed={seed}")
    compare_runs(console, [tmp_path])
    text = said(capsys)
    lead = "fedavg leads sage by 9.50 points in the seeds that both have (seed by seed +9.00 to +10.00; "
    assert lead + "95 % interval +3.15 to +15.85): two seeds are weak evidence." in text


@pytest.mark.parametrize(
    ("ours", "verdict"), [(50.004, "fedavg and sage are level"), (50.006, "sage leads fedavg by 0.01")]
)
def test_a_lead_that_is_not_shown_is_none(
    ours: float, verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "a", [50.0], 'method.name="fedavg"')
    write_run(tmp_path / "b", [ours], SAGE)
    compare_runs(console, [tmp_path])
    assert verdict in said(capsys).replace("sage and fedavg are", "fedavg and sage are")


def test_how_far_a_method_has_come_is_how_far_all_its_seeds_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for method, seed, rounds in (("sage", 7, 3), ("sage", 8, 1), ("fedavg", 7, 4), ("fedprox", 7, 4)):
        settings = (f"method.name={method}", f"seed={seed}", "train.rounds=4")
        write_run(tmp_path / f"{method}{seed}", [50.0] * rounds, *settings)
    compare_runs(console, [tmp_path])
    assert "Shorter than the others, so not compared: sage (round 1 of 4)." in said(capsys)


@pytest.mark.parametrize("key", ["data.mean", "data.classes"])
def test_results_by_a_list(tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str) -> None:
    lists = {"data.mean": ("[0.5, 0.5, 0.5]", "[0.4, 0.5, 0.5]"), "data.classes": ('["a", "b"]', '["a", "c"]')}
    for i, value in enumerate(lists[key]):
        folder = ("data.name='folder'", "data.dir='x'", "partition.clients=6", "train.rounds=1")
        write_run(tmp_path / str(i), [50.0 + i], SAGE, *folder, f"{key}={value}")
    compare_runs(console, [tmp_path], by=key)
    assert "50.00 51.00" in said(capsys).replace("51.00 50.00", "50.00 51.00")


def test_a_wrong_number_of_a_round_hides_no_other(tmp_path: Path) -> None:
    """Line 5 of 30 says round 905, and the end of line 8 is lost: these and round 9 are missing, 27 count."""
    folder = write_run(tmp_path / "a", [float(r) for r in range(1, 31)], SAGE)
    text = (folder / "rounds.jsonl").read_text().replace('{"round": 5,', '{"round": 905,', 1)
    head, tail = text.split('\n{"round": 9,')
    (folder / "rounds.jsonl").write_text(head + '{"round": 9,' + tail)
    (run,) = find_runs([tmp_path]).runs
    assert [line["round"] for line in run.lines] == [r for r in range(1, 31) if r not in (5, 8, 9)]
    assert run.damaged == [5, 8]
    assert run.result == 25.5


def test_a_name_with_dollars_is_no_formula(tmp_path: Path) -> None:
    """Neither to the library that draws, nor to LaTeX, where a name is one line."""
    method = r"$\nothing{$^^_.py:mine"
    for i, name in enumerate(("sage", method)):
        write_run(tmp_path / str(i), [50.0, 51.0], SAGE, f"data.labels_per_class={10 * i + 10}")
        text = (tmp_path / str(i) / "config.toml").read_text()
        run_folders.write_settings(tmp_path / str(i), text.replace('name = "sage"', f"name = '{name}'"))
    compare_runs(console, [tmp_path], Files(png=tmp_path / "x.png", tex=tmp_path / "x.tex"))
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    escaped = r"\$\textbackslash{}nothing\{\$\textasciicircum{}\textasciicircum{}\_.py:mine"
    assert (tmp_path / "x.tex").read_text().count(escaped) == 1
    assert escape_latex("a\n\\end{tabular}\x1b") == (
        r"a\textbackslash{}n\textbackslash{}end\{tabular\}\textbackslash{}x1b"
    )


LINES = ("[" * 10**5, "9" * 5000, "[]", "null", '"x"', "{}", '{"round": 2}', '{"round": [2], "accuracy": 5}', "\x00")


@pytest.mark.parametrize("text", LINES)
def test_a_line_of_another_shape_is_named_and_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    folder = write_run(tmp_path / "a", [50.0, 60.0, 70.0], SAGE)
    whole = (folder / "rounds.jsonl").read_text().splitlines()
    (folder / "rounds.jsonl").write_text("\n".join([whole[0], text, whole[2]]) + "\n")
    for read in (lambda: print_run(console, folder), lambda: compare_runs(console, [tmp_path])):
        read()
        assert f"{folder}/rounds.jsonl: line 2 is damaged or half-written, and skipped" in said(capsys)
    assert fill_tables(find_runs([folder])).unused == {folder: "no table has digits"}
    (folder / "rounds.jsonl").write_text(f"{text}\n")
    with pytest.raises(UserError, match=r"no line of rounds\.jsonl can be read"):
        compare_runs(console, [tmp_path])


def test_a_run_that_failed_in_its_first_round_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "good", [50.0], SAGE)
    (write_run(tmp_path / "bad", [50.0], SAGE, "train.lr=1000") / "rounds.jsonl").unlink()
    compare_runs(console, [tmp_path])
    assert f"left out: {tmp_path}/bad: no finished round" in said(capsys)


def test_unfinished_runs_have_a_star(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", [50.0, 60.0], SAGE)
    write_run(tmp_path / "b", [70.0], SAGE, "seed=8", "train.rounds=2")
    compare_runs(console, [tmp_path], Files(tex=tmp_path / "t.tex"))
    text = said(capsys)
    assert "sage 7 8* 62.50 ± 10.61" in text
    assert "* unfinished: the mean of its last rounds so far" in text
    assert "over seeds 7 8* (* unfinished)" in (tmp_path / "t.tex").read_text()


def test_one_method_against_every_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = {"sage": (50, 54), "fedavg": (40, 50), "fixmatch-lpl": (52, 53), "fedavg-sl": (90, 90)}
    for method, values in results.items():
        for seed, result in zip((7, 8), values, strict=True):
            write_run(tmp_path / f"{method}{seed}", [float(result)], f"method.name='{method}'", f"seed={seed}")
    compare_runs(console, [tmp_path], against="sage")
    text = said(capsys)
    assert "sage is 0.50 points behind fixmatch-lpl (seed by seed -2.00 to +1.00; 95 % interval -19.56 to" in text
    assert "sage is 7.00 points ahead of fedavg (seed by seed +4.00 to +10.00; 95 % interval -31.12 to" in text
    assert "leads" not in text
    assert "upper bound: fedavg-sl" in text
    with pytest.raises(UserError, match="--against 'sgae': no such line in the table; there are fedavg; fedavg-sl"):
        compare_runs(console, [tmp_path], against="sgae")
    write_run(tmp_path / "elsewhere", [50.0], "method.name='fedavg'", "partition.alpha=10")
    compare_runs(
        console, [tmp_path], Files(csv=tmp_path / "all.csv"), against="sage"
    )  # where it is missing, the rest is shown
    assert (tmp_path / "all.csv").is_file()


def test_a_legend_of_long_names_fits(tmp_path: Path) -> None:
    """Six lines with long names stand below each other, and none is cut off."""
    for tau in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6):
        settings = ("method.name='fedprox+fixmatch+sage'", f"method.tau={tau}", f"method.mu_prox={tau / 3}")
        write_run(tmp_path / f"{tau}", [50.0, 60.0], *settings)
    groups = named_groups(find_runs([tmp_path]).runs)
    with settings_of_pictures():
        figure, axes = sheet(9, 3.4)
        for name, runs in groups.items():
            band(axes[0][0], *joined([by_round(runs[0], number("accuracy"))]), name, method_style("sage"))
        legend(figure, 4)
        figure.canvas.draw()
        box, page = figure.legends[0].get_window_extent(), figure.bbox
    assert page.x0 <= box.x0
    assert box.x1 <= page.x1


def test_by_a_setting_unfinished_runs_have_a_star_and_full_rows_come_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "a", [50.0], SAGE, "partition.alpha=0.1", "train.rounds=2")
    write_run(tmp_path / "b", [80.0, 80.0], SAGE, "partition.alpha=1")
    write_run(tmp_path / "c", [70.0, 70.0], 'method.name="fedavg"', "partition.alpha=1")
    compare_runs(console, [tmp_path], by="partition.alpha")
    text = said(capsys)
    assert "sage 7* 50.00 80.00 fedavg 7 – 70.00" in text


def test_by_a_network_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file's checksum goes with its name."""
    write_run(tmp_path / "a", [50.0], SAGE)
    text = (write_run(tmp_path / "b", [60.0], SAGE) / "config.toml").read_text()
    own = text.replace('name = "cnn"', 'name = "wide.py:net"\ndigest = "0123456789abcdef"')
    run_folders.write_settings(tmp_path / "b", own)
    compare_runs(console, [tmp_path], by="model.name")
    text = said(capsys)
    assert "name=cnn name=wide.py:net" in text
    assert "sage 7 50.00 60.00" in text


def test_nothing_varies(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [50.0], SAGE)
    with pytest.raises(UserError, match="--by tau: no setting varies between these runs"):
        compare_runs(console, [tmp_path], by="tau")


SMOOTH = {"ema_accuracy": [55.0, 57.0]}


def test_which_model_is_shipped_parts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, ship in ((7, "plain"), (8, "ema")):
        settings = ("server.ema=0.9", f"server.ship='{ship}'", f"seed={seed}")
        write_run(tmp_path / ship, [50.0 + seed] * 2, SAGE, *settings, **SMOOTH)
    compare_runs(console, [tmp_path])
    assert "sage 7 8 57.50 ± 0.71" in said(capsys)


def test_by_settings_that_only_some_runs_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "mean", [50.0] * 2, SAGE)
    write_run(tmp_path / "smooth", [50.0] * 2, SAGE, "server.ema=0.9", **SMOOTH)
    compare_runs(console, [tmp_path], by="server.ema")
    text = said(capsys)
    assert "ema=0.9 ema=unset " in text
    assert " sage 7 50.00 50.00 " in text
    assert "server.ema = 0.9: Smoothed models (server.ema), in percent: sage 56.00." in text


def test_a_momentum_without_use_parts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "mean", [50.0], SAGE)
    write_run(tmp_path / "momentum", [60.0], SAGE, "server.optimizer='momentum'", "server.momentum=0.5")
    write_run(tmp_path / "more", [70.0], SAGE, "server.optimizer='momentum'")
    compare_runs(console, [tmp_path])
    text = said(capsys)
    assert "server.optimizer = mean" in text
    assert "server.momentum = 0.9 · server.optimizer = mean" not in text
    assert "server.lr = 1.0 · server.momentum = 0.5 · server.optimizer = momentum" in text
    assert "server.lr = 1.0 · server.optimizer = mean" not in text  # which takes no step
    assert "server.beta2" not in text  # adam's
    compare_runs(console, [tmp_path], by="server.optimizer")
    text = said(capsys)
    assert "optimizer=mean optimizer=momentum optimizer=momentum, momentum=0.5 " in text
    assert " sage 7 50.00 70.00 60.00 " in text


def test_show_names_the_shipped_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", [50.0, 51.0], SAGE, "server.ema=0.9", "server.ship='ema'", **SMOOTH)
    print_run(console, tmp_path / "a")
    text = said(capsys)
    assert "smoothed model (server.ema), mean of the last 2 rounds │ 56.00 %" in text
    assert "smoothed model, last round │ 57.00 %" in text
    assert "model.safetensors (server.ship) │ the smoothed model" in text
    (tmp_path / "a/rounds.jsonl").write_text("half a li")
    with pytest.raises(UserError, match=r"rounds\.jsonl is damaged: no line of it can be read"):
        print_run(console, tmp_path / "a")
