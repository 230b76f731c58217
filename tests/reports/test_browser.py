"""The page in a real browser: it opens from disk without a network, sorts, filters, toggles, zooms and follows runs."""

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest

from fssl.cli import app as cli
from fssl.records.sealing import write_facts
from fssl.reports.page import live
from fssl.reports.page.live import PageServer
from fssl.reports.page.write import write_page
from helpers.browser import Browser, Keys, webdriver
from helpers.handmade import append, write_run

pytest.importorskip("plotly")
pytestmark = pytest.mark.slow
ARTIFACTS = Path(__file__).parents[2] / "build"
# A low threshold, so that a few steps are enough for pseudo-labels.
METHODS = '[{name="sage", tau=0.3}, {name="fixmatch-lpl", tau=0.3}, {name="fedavg"}]'
TICKS = "return [...document.querySelectorAll(`#${arguments[0]} .xtick text`)].map(t => t.textContent)"
GRID = ["method", METHODS], ["partition.alpha", "[0.1, 0.5]"], ["seed", "[7, 8]"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve real runs: the demo's grid, shortened, at two skews."""
    folder = tmp_path_factory.mktemp("browser") / "demo"
    words = ["fssl", "run", "demo", "--out", str(folder), "--device", "cpu"]
    for setting in (
        "train.rounds=4",
        "train.cooldown=0",
        "train.steps_per_round=3",
        *(f"grid.{key}={values}" for key, values in GRID),
    ):
        words += ["--set", setting]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as exit:
            cli.main()
    assert exit.value.code == 0
    return folder


@pytest.fixture(scope="module")
def page(runs: Path) -> Path:
    write_page([runs], runs / "report.html")
    return runs / "report.html"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.driver.quit()


@pytest.fixture
def browser(chromium: Browser, page: Path) -> Browser:
    """The page, freshly opened from disk without a network."""
    chromium.resize(1280)
    chromium.offline()
    chromium.open(page.as_uri())
    return chromium


def test_confusion_matrices_are_the_sum_over_seeds(browser: Browser, runs: Path) -> None:
    """Of the line that is chosen; what is wrong is drawn apart from what is right, in percent of the true class."""
    name = browser.run("return document.getElementById('confusion-line').selectedOptions[0].textContent")
    paths = browser.run("return chartLines().find(line => line.title === arguments[0]).runs", name)
    found = [json.loads(Path(path, "measures.json").read_text())["models"]["plain"] for path in paths]
    total = sum(np.array(model["test"]["confusion"]) for model in found)
    browser.chart("plot-confusion")
    data = "return document.getElementById('plot-confusion').data"
    wrong, right = browser.run(data)
    assert np.array_equal(wrong["customdata"], total)
    shares = 100 * total / total.sum(1, keepdims=True)
    assert np.allclose([row[i] for i, row in enumerate(right["z"])], shares.diagonal())
    assert [row[i] for i, row in enumerate(wrong["z"])] == [None] * len(total)
    assert wrong["z"][0][1] == pytest.approx(shares[0, 1])
    assert f"{total.sum():,} answers of {len(paths)} seeds" in browser.one("#confusion-about").text
    options = browser.run("return [...document.getElementById('confusion-line').options].map(o => o.value)")
    browser.choose("confusion-line", options[1])
    assert not np.array_equal(browser.wait(data)[0]["customdata"], total)
    by_class = browser.run("return document.getElementById('plot-byclass').data.map(t => t.name)")
    assert by_class == ["precision", "recall", "F1"]
    ARTIFACTS.mkdir(exist_ok=True)
    browser.one("#confusion").screenshot(str(ARTIFACTS / "confusion.png"))


def test_the_page_opens_from_disk_without_a_network_or_a_complaint(browser: Browser, page: Path) -> None:
    assert len(browser.all("#results tbody tr")) == 6
    assert [card.text.split("\n")[0] for card in browser.all("#words .card")] == [
        f"digits · α = {alpha} · 3 labels per class · 4 clients" for alpha in ("0.1", "0.5")
    ]
    drawn = ["main", "ranking", "pl_accuracy", "macro_f1", "seconds", "confusion", "classes", "labeled", "unlabeled"]
    for name in drawn:
        browser.chart(f"plot-{name}")
    assert browser.run("return performance.getEntriesByType('resource').map(e => e.name)") == []
    assert browser.complaints() == []
    ARTIFACTS.mkdir(exist_ok=True)
    browser.run("scrollTo({top: 0, behavior: 'instant'})")
    browser.driver.save_screenshot(str(ARTIFACTS / "report.png"))
    assert (ARTIFACTS / "report.png").stat().st_size > 20_000


def test_the_table_is_a_leaderboard_with_what_runs_cost(browser: Browser, runs: Path) -> None:
    """Places, megabytes and memory of real runs; the chart stands over what all clients had received and sent."""
    heads = [head.text for head in browser.all("#results th button")]
    assert heads[-4:] == ["Seconds", "MB / round", "GiB", "Place"]  # none of these runs has a smoothed model
    folder = runs / "sage_tau0.3/seed7/alpha0.1"
    sent = json.loads((folder / "env.json").read_text())["sessions"][0]["traffic"]
    lines = [json.loads(text) for text in (folder / "rounds.jsonl").read_text().splitlines()]
    each = len(lines[0]["clients"]) * (sent["down"] + sent["up"])
    assert {f"{each / 1e6:.2f}"} <= {*browser.column(heads.index("MB / round") + 1)}
    assert all(float(text) > 0.05 for text in browser.column(heads.index("GiB") + 1))
    assert {*browser.column(heads.index("Place") + 1)} <= {*"123"}
    browser.all("#results th button")[heads.index("Seconds")].click()
    seconds = [float(text) for text in browser.column(heads.index("Seconds") + 1)]
    assert seconds == sorted(seconds, reverse=True)
    browser.chart("plot-by-seconds")
    browser.chart("plot-by-traffic")
    script = "return document.getElementById('plot-by-traffic').data.find(t => t.name === 'SAGE')"
    drawn = browser.run(script)
    assert drawn["x"] == pytest.approx([each * r / 1e9 for r in (1, 2, 3, 4)], rel=1e-3)
    assert len(drawn["y"]) == 4


def test_a_curve_on_the_page_is_that_of_the_records(browser: Browser, runs: Path) -> None:
    """The mean over both seeds, worked out here from the files, and what pointing at it shows."""
    files = [runs / f"sage_tau0.3/seed{seed}/alpha0.1/rounds.jsonl" for seed in (7, 8)]
    curves = [[json.loads(text)["accuracy"] for text in file.read_text().splitlines()] for file in files]
    expected = [sum(values) / 2 for values in zip(*curves, strict=True)]
    place = browser.chart("plot-main")
    script = "return document.getElementById('plot-main').data.find(t => t.name === 'SAGE').y"
    assert browser.run(script) == pytest.approx(expected, abs=1e-3)
    assert browser.run(TICKS, "plot-main") == [*"1234"]  # and no 1.5
    webdriver.ActionChains(browser.driver).move_to_element_with_offset(place, 10, 30).perform()
    browser.wait("return document.querySelector('#plot-main .hoverlayer').textContent.includes('SAGE')")
    shown = browser.run("return document.querySelector('#plot-main .hoverlayer').textContent")
    assert any(f"{value:.2f}".rstrip("0").rstrip(".") in shown for value in expected)
    assert "2 seeds" in shown


def test_a_band_is_one_standard_deviation_to_either_side(browser: Browser, runs: Path) -> None:
    files = [runs / f"sage_tau0.3/seed{seed}/alpha0.1/rounds.jsonl" for seed in (7, 8)]
    curves = [[json.loads(text)["accuracy"] for text in file.read_text().splitlines()] for file in files]
    means, stds = zip(*((mean(values), stdev(values)) for values in zip(*curves, strict=True)), strict=True)
    browser.chart("plot-main")
    find = "const data = document.getElementById('plot-main').data;"
    find += "const color = data.find(t => t.name === 'SAGE').line.color;"
    band = browser.run(find + "return data.find(t => t.fill && t.fillcolor.startsWith(color)).y")
    high = [m + s for m, s in zip(means, stds, strict=True)]
    low = [m - s for m, s in zip(means, stds, strict=True)]
    assert band == pytest.approx([*high, *reversed(low)], abs=0.02)  # three digits of a deviation are on the page


def test_the_table_sorts_by_mouse_and_by_keyboard(browser: Browser) -> None:
    def accuracies() -> list[float]:
        return [float(text.split(" ")[0]) for text in browser.column(2)]

    assert accuracies() == sorted(accuracies(), reverse=True)
    browser.one("[data-column=result]").click()
    assert accuracies() == sorted(accuracies())
    assert browser.one("th:has([data-column=result])").get_attribute("aria-sort") == "ascending"
    browser.one("[data-column=name]").send_keys(Keys.ENTER)
    names = browser.column(1)
    assert names == sorted(names, key=str.lower)
    assert browser.one("th:has([data-column=name])").get_attribute("aria-sort") == "ascending"
    assert browser.run("return document.activeElement.dataset.column") == "name"  # the focus stays
    browser.one("[data-column=used]").click()
    assert browser.column(8)[-2:] == ["–", "–"]  # unknown comes last
    browser.one("[data-column=used]").click()
    assert browser.column(8)[-2:] == ["–", "–"]


def test_filters_narrow_the_table_and_the_charts(browser: Browser) -> None:
    browser.choose("filter-alpha", "0.5")
    assert browser.column(4) == ["0.5"] * 3
    browser.choose("filter-method", "sage")
    assert browser.column(1) == ["SAGE"]
    assert [button.text for button in browser.all("#legend button")] == ["SAGE"]
    browser.choose("filter-method", "")
    browser.choose("filter-alpha", "")
    assert len(browser.column(1)) == 6
    browser.choose("task", "all")
    assert len(browser.all("#legend button:not(.all)")) == 6


def test_a_chosen_task_stays_chosen_when_another_comes_before_it(browser: Browser) -> None:
    """As with running runs: the live page gets new data."""
    shown = "return [$('task').selectedOptions[0].textContent, state.data.tasks[chartLines()[0].index].title]"
    browser.choose("task", "1")
    chosen = browser.run("return state.data.tasks[1].title")
    assert browser.run(shown) == [chosen, chosen]
    browser.run("show({...state.data, tasks: [{...state.data.tasks[0], title: 'first of all'}, ...state.data.tasks]})")
    assert browser.run(shown) == [chosen, chosen]


def test_the_legend_toggles_a_method_everywhere(browser: Browser) -> None:
    browser.chart("plot-main")
    assert browser.visible("plot-main") == [True] * 3
    button = browser.all("#legend button")[0]
    name = button.text
    button.send_keys(Keys.SPACE)
    hidden = (
        "return document.getElementById(arguments[0]).data.filter(t => t.visible === false && t.name).map(t => t.name)"
    )
    assert browser.run(hidden, "plot-main") == [name]
    assert browser.all("#legend button")[0].get_attribute("aria-pressed") == "false"
    assert name not in browser.run("return document.getElementById('plot-ranking').data[1].y")
    browser.chart("plot-pl_accuracy")
    assert browser.visible("plot-pl_accuracy").count(False) == (name != "FedAvg")
    browser.all("#legend button")[0].click()
    browser.chart("plot-main")
    assert browser.visible("plot-main") == [True] * 3


def test_one_button_hides_and_shows_all(browser: Browser) -> None:
    """So that two of many methods can be compared with three clicks."""
    browser.chart("plot-main")
    browser.one("#legend .all").send_keys(Keys.ENTER)
    assert browser.visible("plot-main") == [False] * 3
    assert browser.run("return document.activeElement.textContent") == "Show all"  # the focus stays
    browser.all("#legend button")[1].click()
    assert browser.visible("plot-main").count(True) == 1
    browser.one("#legend .all").click()
    assert browser.visible("plot-main") == [True] * 3


def test_best_and_second_of_each_task_are_marked(browser: Browser) -> None:
    for alpha in ("0.1", "0.5"):
        browser.choose("filter-alpha", alpha)
        numbers = [float(text.split(" ")[0]) for text in browser.column(2)]
        marked = [browser.one(f"#results tr.{rank} td.main").text for rank in ("best", "second")]
        assert [float(text.split(" ")[0]) for text in marked] == sorted(set(numbers), reverse=True)[:2]


def test_axes_of_shares_end_where_shares_do(browser: Browser) -> None:
    """With room for a line at 0 or 100 %."""
    browser.chart("plot-pl_accuracy")
    low, high = browser.run("return document.getElementById('plot-pl_accuracy')._fullLayout.yaxis.range")
    assert -2 <= low < high <= 102


def test_dragging_zooms_and_a_toggle_keeps_the_zoom(browser: Browser) -> None:
    place = browser.chart("plot-main")
    ranges = "return document.getElementById('plot-main')._fullLayout.xaxis.range"
    before = browser.run(ranges)
    webdriver.ActionChains(browser.driver).move_to_element_with_offset(place, -80, -40).click_and_hold().move_by_offset(
        160, 80
    ).release().perform()
    browser.wait(f"const r = (() => {{ {ranges} }})(); return r[1] - r[0] < {before[1] - before[0] - 0.1}")
    zoomed = browser.run(ranges)
    browser.all("#legend button")[0].click()
    assert browser.run(ranges) == zoomed


def test_copying_gives_the_command(browser: Browser, runs: Path) -> None:
    browser.run("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
    browser.choose("filter-method", "sage")
    browser.choose("filter-alpha", "0.5")
    browser.one("#results tbody button").click()
    command = browser.wait("return window.copied")
    file = runs / "sage_tau0.3/seed7/alpha0.5/config.toml"
    assert command.startswith(f"fssl run {file} --set 'grid.seed=[7,8]' --out again/sage-")
    browser.one("#again summary").click()
    assert browser.wait("return document.querySelector('#again pre')?.textContent") == command


def test_dark_mode_follows_the_system_until_it_is_switched(browser: Browser, page: Path) -> None:
    def look() -> tuple[str, str]:
        color = browser.run("return getComputedStyle(document.body).backgroundColor")
        return browser.run("return document.documentElement.dataset.theme"), color

    light = look()
    assert light[0] == "light"
    for value in ("dark", "light"):
        features = [{"name": "prefers-color-scheme", "value": value}]
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        browser.wait("return document.documentElement.dataset.theme === arguments[0]", value)
    browser.one("#theme").click()
    assert look()[0] == "dark"
    assert look()[1] != light[1]
    assert browser.one("#theme").get_attribute("aria-pressed") == "true"


def test_a_phone_needs_no_sideways_scrolling(browser: Browser, page: Path) -> None:
    browser.resize(390)
    browser.open(page.as_uri())
    browser.chart("plot-main")
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    narrow = "return [...document.querySelectorAll('main .card')].every(e => e.getBoundingClientRect().right <= 390)"
    assert browser.run(narrow)
    browser.driver.save_screenshot(str(ARTIFACTS / "report-phone.png"))


def test_the_keyboard_reaches_the_results_first(browser: Browser) -> None:
    browser.one("body").send_keys(Keys.TAB)
    assert browser.run("return document.activeElement.className") == "skip"
    browser.run("document.activeElement.click()")
    assert browser.run("return location.hash") == "#main"
    unnamed = "return [...document.querySelectorAll('button, select, [role=img], [role=region]')].filter(e => "
    unnamed += "!(e.textContent.trim() || e.ariaLabel || e.labels?.length)).length"
    assert browser.run(unnamed) == 0
    assert browser.run("return [...document.querySelectorAll('table')].every(t => t.caption.textContent)")


def test_short_runs_have_their_rounds_below_the_table_and_no_band_leaves_a_share(
    chromium: Browser, tmp_path: Path
) -> None:
    for seed, curve in ((7, [1.0] * 8), (8, [99.0] * 8)):
        write_run(tmp_path / f"runs/{seed}", curve, f"seed={seed}", pl_accuracy=[0.0 if seed == 7 else 1.0] * 8)
    write_page([tmp_path / "runs"], tmp_path / "report.html")
    chromium.open((tmp_path / "report.html").as_uri())
    for place in ("caption", "made"):
        assert "of the last 8 rounds" in chromium.run("return document.getElementById(arguments[0]).textContent", place)
    for id in ("plot-main", "plot-pl_accuracy"):
        chromium.chart(id)
        edges = chromium.run("return document.getElementById(arguments[0]).data.find(t => t.fill).y", id)
        assert {*edges} == {0, 100}
    title = "return document.getElementById('plot-ranking').layout.xaxis.title.text"
    chromium.chart("plot-ranking")
    assert chromium.run(title) == "test accuracy, last 8 rounds"


def test_a_server_with_labels_has_its_loss_and_stands_after_the_clients(chromium: Browser, tmp_path: Path) -> None:
    """Clients without labels keep their places; runs without such a server have no chart of its loss."""
    at_server = write_run(tmp_path / "runs/b", [50.0, 60.0], "partition.labels='server'", server_loss=[2.0, 1.0])
    at_clients = write_run(tmp_path / "runs/a", [70.0, 80.0])
    unlabeled = [[1, 2, 3]] * 6
    for folder, rows, more in ((at_server, [[0, 0, 0]] * 6, {"server": [4, 0, 2]}), (at_clients, unlabeled, {})):
        write_facts(folder / "partition.json", {"labeled": rows, "unlabeled": unlabeled, **more})
    write_page([tmp_path / "runs"], tmp_path / "report.html")
    chromium.open((tmp_path / "report.html").as_uri())
    titles = chromium.run("return state.data.tasks.map(task => task.title.includes('server'))")
    chromium.choose("task", str(titles.index(True)))
    loss = "return document.getElementById('plot-server_loss').data.filter(t => t.name).map(t => t.y)"
    is_hidden = "return document.getElementById('plot-server_loss').parentElement.hidden"
    chromium.chart("plot-server_loss")
    assert chromium.run(loss) == [[2.0, 1.0]]
    chromium.chart("plot-labeled")
    cells = "const [{x, y, customdata, text}] = document.getElementById('plot-labeled').data;"
    assert chromium.run(cells + "return [x, y, customdata, text]") == [[6, 6], [0, 2], [4, 2], ["server", "server"]]
    assert chromium.run(TICKS, "plot-labeled") == [*"012345", "server"]
    chromium.chart("plot-unlabeled")
    assert chromium.run(TICKS, "plot-unlabeled") == [*"012345"]
    ARTIFACTS.mkdir(exist_ok=True)
    chromium.one("[aria-labelledby=h-clients]").screenshot(str(ARTIFACTS / "holders.png"))
    chromium.choose("task", str(titles.index(False)))
    assert chromium.run(is_hidden)
    chromium.chart("plot-labeled")
    assert chromium.run(TICKS, "plot-labeled") == [*"012345"]
    assert chromium.run(cells + "return text.slice(0, 4)") == ["client 0"] * 3 + ["client 1"]
    chromium.choose("task", "all")
    assert not chromium.run(is_hidden)
    chromium.chart("plot-server_loss")
    assert chromium.run(loss) == [[2.0, 1.0]]


def test_many_lines_do_not_bury_a_chart_under_their_values(chromium: Browser, tmp_path: Path) -> None:
    methods = ("sage", "fixmatch-lpl", "fixmatch-gpl", "fedavg", "flexmatch", "fedlabel", "feddb")
    for number, method in enumerate(methods):
        write_run(tmp_path / "runs" / method, [10.0 + number, 20.0 + number], f'method.name="{method}"')
    write_page([tmp_path / "runs"], tmp_path / "report.html")
    chromium.open((tmp_path / "report.html").as_uri())
    chromium.chart("plot-main")
    mode = "return document.getElementById('plot-main')._fullLayout.hovermode"
    assert chromium.run(mode) == "closest"
    chromium.all("#legend button")[0].click()
    assert chromium.run(mode) == "x unified"


def test_hostile_names_stay_text(chromium: Browser, tmp_path: Path) -> None:
    name = "<img src=x onerror=document.title='broken'>"
    folder = write_run(tmp_path / name, [50.0, 60.0])
    session = {"device": name, "command": f"run {name}</script><script>document.title='broken'</script>"}
    (folder / "env.json").write_text(json.dumps({"sessions": [session]}))
    write_page([folder], tmp_path / "report.html")
    chromium.complaints()
    chromium.open((tmp_path / "report.html").as_uri())
    chromium.chart("plot-main")
    chromium.one("#again summary").click()
    assert chromium.one("h1").text == name
    assert chromium.all("main img") == []
    assert chromium.driver.title == f"{name} – fssl report"
    assert chromium.complaints() == []


def test_new_rounds_appear_without_a_reload(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "FRESH", 0.0)
    folder = write_run(tmp_path / "runs/a", [50.0], "train.rounds=3")
    (folder / "summary.json").unlink()
    browser = Browser(tmp_path_factory.mktemp("live"))
    try:
        with PageServer([tmp_path / "runs"], 0) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
            thread.start()
            try:
                follow(browser, server, folder)
            finally:
                server.shutdown()
                thread.join()
        browser.wait("return document.querySelector('#live.lost') !== null")
    finally:
        browser.driver.quit()


def follow(browser: Browser, server: PageServer, folder: Path) -> None:
    browser.open(server.address)
    browser.wait("return document.querySelector('#results tbody tr') !== null")
    assert browser.column(11) == ["1 of 3"]
    browser.chart("plot-main")
    assert browser.all("#plot-main .scatterlayer .point")  # one round is no line, and still seen
    browser.run("window.same = true")
    append(folder, 2, 70.0)
    browser.wait("return document.querySelector('#results').textContent.includes('2 of 3')")
    assert browser.column(2) == ["60.00"]
    browser.chart("plot-main")
    browser.wait("return document.getElementById('plot-main').data.at(-1).y.length === 2")
    write_run(folder.parent / "b", [80.0], 'method.name="fedavg"', "train.rounds=3")
    browser.wait("return document.querySelectorAll('#results tbody tr').length === 2")
    assert browser.run("return window.same") is True  # never reloaded
    assert browser.complaints() == []
