"""The runs below results/: small, whole, all on the page; its tables once more from their lines, and its claims."""

import hashlib
import json
import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fssl.config import expand, read_toml
from fssl.paper.published import other_tables
from fssl.paper.scoreboard import texts
from fssl.records.packed import unpacked
from fssl.reports.entries import read_entry
from helpers import benchmark_page
from helpers.results_page import RESULTS, SECTIONS, board, on_record

PAGE = (RESULTS / "README.md").read_text()
BENCHMARK, LEADERBOARD = ((RESULTS.parent / "docs" / f"{page}.md").read_text() for page in ("benchmark", "leaderboard"))
ENTRIES = RESULTS / "benchmark" / "entries"
NAMES = sorted(str(file.parent.relative_to(RESULTS)) for file in RESULTS.rglob("config.toml"))
BENCHMARK_RUNS = [name.removeprefix("benchmark/") for name in NAMES if name.startswith("benchmark/")]
Line = dict[str, Any]


@cache
def lines_of(name: str) -> list[Line]:
    """A run's lines, straight from its file."""
    return [json.loads(text) for text in unpacked((RESULTS / name / "rounds.json.xz").read_bytes()).splitlines()]


# The files.


def test_the_folder_stays_small_and_its_records_packed() -> None:
    assert sum(file.stat().st_size for file in RESULTS.rglob("*") if file.is_file()) <= 5e6
    assert [*RESULTS.rglob("rounds.jsonl")] == []


def test_every_run_is_read_without_damage_and_named_on_the_page() -> None:
    found = on_record()
    assert found.unreadable == {}
    assert sorted(str(run.path.relative_to(RESULTS)) for run in found.runs) == NAMES
    assert [run.path for run in found.runs if run.damaged or run.remark] == []
    assert sum(not (run.path / "summary.json").is_file() for run in found.runs) == 5  # as the page says
    table = PAGE.split("<!-- commits -->")[1].split("<!-- end of commits -->")[0]
    assert sorted(re.findall(r"[\w+./-]+/[\w+./-]+", table.split("\n\n")[0])) == NAMES
    in_sections = {
        run for section in SECTIONS.values() for place in section.places for run in NAMES if below(run, place)
    }
    others = {run for run in {*NAMES} - in_sections if not below(run, "benchmark")}  # which has its own page
    assert sorted(others) == ["bench/flfl-svhn250"]  # which only times rounds


def below(run: str, place: str) -> bool:
    return run == place or run.startswith(f"{place}/")


def test_all_ran_on_what_the_page_says() -> None:
    starts = [start for run in on_record().runs for start in run.sessions]
    assert {(start["device"], start["packages"]["torch"]) for start in starts} == {("NVIDIA H200", "2.11.0")}
    assert all(
        run.config.train.precision == ("fp32" if "fp32" in run.path.name else "bf16") for run in on_record().runs
    )


def test_records_name_no_place_of_a_machine() -> None:
    paths = [p for p in RESULTS.rglob("*") if p.name in ("config.toml", "env.json")]
    assert len(paths) == 2 * len(NAMES)
    for path in paths:
        text = path.read_text()
        folders = re.findall(r'^dir = "(.*)"', text, re.MULTILINE) + re.findall(r'--data-dir ([^\s"]+)', text)
        assert {*folders} <= {"DATA"}, path
        assert not re.search(r"/(root|home|tmp)\b", text), path


# The tables, computed once more from the lines.


def on_both_halves(line: Line) -> float:
    tested = line["test"]["train_norm"]["accuracy"]
    return float(np.mean([tested, line["validation"]["accuracy"]])) if "validation" in line else tested


READ = {  # by what stands before the rounds in a column's name
    "": lambda x: x["accuracy"],
    "smoothed, ": lambda x: x["ema_accuracy"],
    "other half, smoothed, ": lambda x: x["ema_accuracy"],
    "half to choose by, ": lambda x: x["validation"]["accuracy"],
    "half to choose by, smoothed, ": lambda x: x["ema_validation"]["accuracy"],
    "released normalization, smoothed, ": lambda x: x["ema_test"]["authors_norm"]["accuracy"],
    "λ, ": lambda x: x.get("lam"),
    "right, ": lambda x: x.get("pl_accuracy", np.nan) * 100,
    "used, ": lambda x: x.get("utilization", np.nan) * 100,
}


def mean_of(run: str, column: str, section: str) -> float | None:
    """The mean that a column is named after, from a run's lines; None where it has none."""
    lines = lines_of(run)
    if found := re.fullmatch(r"(.*?)(\d+) to (\d+)", column):
        first, last = int(found[2]), int(found[3])
        read = on_both_halves if section == "momentum" and not found[1] else READ[found[1]]
        part = lines[first - 1 : last] if len(lines) >= last else []
    else:
        part = lines if column == "best round" else lines[-10:]
        read = {
            "last 10, training's normalization": lambda x: x["test"]["train_norm"]["accuracy"],
            "right": READ["right, "],
            "used": READ["used, "],
        }.get(column, READ[""])
    try:
        values = [read(line) for line in part]
    except KeyError:  # no validation part, or no smoothed model
        return None
    if not values or None in values or np.isnan(values).any():
        return None
    return float(max(values) if column == "best round" else np.mean(values))


def cell(runs: list[str], column: str, section: str) -> str:
    if found := re.fullmatch(r"(\d+) % after", column):
        reached = [next((x["round"] for x in lines_of(run) if x["accuracy"] >= int(found[1])), "–") for run in runs]
        return ", ".join(map(str, reached))
    if column == "s/round":
        return f"{np.median([x['timing']['seconds'] for run in runs for x in lines_of(run)]):.2f}"
    means = [mean for run in runs if (mean := mean_of(run, column, section)) is not None]
    digits = 1 if column in ("right", "used") else 2
    spread = f" ± {np.std(means, ddof=1):.{digits}f}" if len(means) > 1 else ""
    return f"{np.mean(means):.{digits}f}{spread}" if means else "–"


@pytest.mark.parametrize("name", [name for name, section in SECTIONS.items() if section.columns])
def test_every_cell_is_what_the_lines_say(name: str) -> None:
    part = PAGE.split(f"<!-- {name} -->\n")[1].split("\n\n")[0].split("\n<!--")[0]
    head, _, *rows = ([text.strip() for text in row.strip("|").split("|")] for row in part.splitlines())
    assert len(rows) >= 2
    for run, seeds, *cells in rows:
        runs = [each for each in NAMES if re.sub(r"-seed\d+", "", each) == run.strip("`")]
        assert len(runs) == len(seeds.split()), run
        assert cells == [cell(runs, column, name) for column in head[2:]], run


def test_every_score_is_what_the_lines_say() -> None:
    assert len(board().scores) >= 14
    for score in board().scores:
        curves = [[x["accuracy"] for x in lines_of(str(run.path.relative_to(RESULTS)))] for run in score.runs]
        at = score.wanted.end.rounds if score.column.target is None else int(score.printed)
        ours = [float(np.mean(c[at - 10 : at])) if score.column.target is None else c[at - 1] for c in curves]
        said = f"{np.mean(ours):.2f}" + (f" ± {np.std(ours, ddof=1):.2f}" if len(ours) > 1 else "")
        assert texts(score)[3] == said
        assert f"| {score.row.name} | {texts(score)[2]} | {said} |" in PAGE
        apart = round(abs(round(np.mean(ours), 2) - score.expected), 2)
        assert texts(score)[5] == ("below 0.3" if apart < 0.3 else "0.3 to 1.15" if apart <= 1.15 else "above 1.15")


# What the page says without a number.


def curve(name: str) -> NDArray[np.float64]:
    return np.array([line["accuracy"] for line in lines_of(name)])


def end(name: str) -> float:
    return float(curve(name)[-10:].mean())


CIFAR10 = "cifar10/alpha0.1/{}-authors-seed{}"
LONG = "cifar100/alpha1.0/{}-authors-seed7-500"
SITES = "settings/{}/{}"


def test_the_opening_is_true() -> None:
    rows = {
        (score.column.dataset, score.column.alpha, score.row.name, score.column.target): score
        for score in board().scores
    }
    close = [("cifar100", 1, None), ("cifar10", 1, None), ("svhn", 0.1, None)]
    close += [("cifar100", 1, target) for target in (30, 40, 50)]
    assert all(rows[data, alpha, "SAGE", target].agrees for data, alpha, target in close)
    assert rows["svhn", 0.1, "FlexMatch + SAGE", None].agrees
    assert rows["svhn", 0.1, "FedAvg+FlexMatch", None].ours[0] < 10.5
    apart = {
        name: rows["cifar10", 0.1, name, None].difference for name in ("SAGE", "FixMatch-GPL", "FixMatch-LPL", "FedAvg")
    }
    assert [round(gap) for gap in apart.values()] == [-1, 1, 1, -3]
    assert rows["cifar100", 1, "FixMatch-LPL", 30].difference > 1
    run = {score.column.dataset for score in board().scores}
    assert (run, {score.column.alpha for score in board().scores}) == ({"cifar10", "cifar100", "svhn"}, {0.1, 1})
    assert {score.table.label_fraction for score in board().scores} == {0.1}


def test_where_sage_is_not_ahead_is_said() -> None:
    assert end(LONG.format("proxyfl")) > 58.24 > 56.06 > end(LONG.format("sage"))  # printed, both
    assert min(end(f"sanity/{name}") for name in ("fedlabel", "proxyfl")) > end("sanity/sage")
    few = {name: curve(SITES.format("few-clients", name)) for name in ("sage", "fixmatch-lpl")}
    lead = (few["sage"] - few["fixmatch-lpl"]).reshape(5, 100).mean(1)
    assert (lead[:3] > 0).all()
    assert lead[4] < 0
    clients = {name: end(SITES.format("clients", name)) for name in ("sage", "fedavg", "cbafed", "rscfed")}
    assert clients["sage"] < clients["fedavg"]
    assert [name for name, mean in clients.items() if mean > clients["fedavg"] + 1] == ["cbafed"]


def test_sage_leads_on_the_way_on_cifar10_and_not_surely_at_the_end() -> None:
    sage, gpl = (np.array([curve(CIFAR10.format(m, seed)) for seed in (7, 8, 9)]) for m in ("sage", "fixmatch-gpl"))
    lead = (sage - gpl).reshape(3, 30, 10).mean(2)
    assert (lead[:, :17] > 0).all()
    assert (lead[:, -1] > 0).tolist() == [True, False, True]
    trained = [
        [x["test"]["train_norm"]["accuracy"] for x in lines_of(CIFAR10.format("sage", s))[-10:]] for s in (7, 8, 9)
    ]
    assert abs(np.mean(trained) - 87.05) < 0.1
    half = 4.3027 * lead[:, -1].std(ddof=1) / np.sqrt(3)  # Student's t: 97.5 % with two degrees of freedom
    assert lead[:, -1].mean() < half
    assert (sage[:, -10:].mean(1) < 87.05).all()
    assert (gpl[:, -10:].mean(1) > 84.56).all()


def test_runs_that_are_compared_drew_the_same_clients() -> None:
    groups = [
        [LONG.format("sage"), LONG.format("proxyfl")],
        [SITES.format("twin-sight", name) for name in ("sage", "fixmatch-lpl", "fedavg")],
        ["cifar100/alpha1.0/sage-authors-seed7", "cifar100/alpha1.0/sage-clean-seed7"],
    ]
    for group in groups:
        first, *others = ([sorted(line["clients"]) for line in lines_of(name)] for name in group)
        assert all(other == first for other in others)


def test_what_is_said_of_momentum_is_so() -> None:
    ends, smooth = {}, {}
    for name in [run for run in NAMES if run.startswith("momentum/")]:
        last = lines_of(name)[110:120]
        method, what, _ = name.removeprefix("momentum/").split("-")
        ends[method, what] = np.mean([on_both_halves(line) for line in last])
        smooth[method, what] = np.mean([line["ema_accuracy"] - line["accuracy"] for line in last])
    carried = {"sage": "cifar100/alpha1.0/sage-authors-seed7", "proxyfl": LONG.format("proxyfl")}
    for method, name in carried.items():
        ends[method, "carried"] = np.mean([on_both_halves(line) for line in lines_of(name)[110:120]])
    ends["sage", "zero"] = np.mean(
        [on_both_halves(line) for line in lines_of("cifar100/alpha1.0/sage-clean-seed7")[-10:]]
    )
    for method in carried:
        assert max((value, what) for (of, what), value in ends.items() if of == method)[1] == "server"
    assert all(
        ends["proxyfl", what] > ends["sage", what] for what in ("zero", "broadcast", "kept", "server", "carried")
    )
    assert ends["sage", "cosine"] < ends["sage", "zero"]
    assert sorted(key for key, gain in smooth.items() if gain > 0.1) == [("proxyfl", "server"), ("sage", "server")]


def test_what_is_said_of_the_recipe_is_so() -> None:
    constant, cooled = (lines_of(f"deployable/sage-{name}-seed7") for name in ("constant", "cooled"))
    assert [x["test"] for x in constant[:440]] == [x["test"] for x in cooled[:440]]
    chosen = {
        (name, key): np.mean([line[key]["accuracy"] for line in lines[-10:]])
        for name, lines in (("constant", constant), ("cooled", cooled))
        for key in ("validation", "ema_validation")
    }
    assert max(chosen, key=chosen.__getitem__) == ("cooled", "ema_validation")
    table = other_tables()["proxyfl"]
    column = [column.name for column in table.columns].index("CIFAR-100, α = 1")
    assert np.nanmax([row.printed[column] for row in table.rows if row.printed]) == 58.24
    assert np.mean([line["ema_accuracy"] for line in cooled[-10:]]) > 58.24


def test_what_is_said_of_other_settings_is_so() -> None:
    assert max(line["balanced_accuracy"] for line in lines_of("svhn/alpha0.1/flexmatch-authors-seed7")) < 10.5  # chance
    twin = {name: curve(SITES.format("twin-sight", name)) for name in ("sage", "fixmatch-lpl", "fedavg-labeled")}
    assert (np.diff((twin["sage"] - twin["fixmatch-lpl"]).reshape(5, 100).mean(1)) > 0).all()
    for name, printed in {"fixmatch-lpl": 63.58, "fedavg-labeled": 61.58}.items():
        assert printed - end(SITES.format("twin-sight", name)) > 10 > 5 > abs(twin[name].max() - printed)
    for place, rounds in (("clients", slice(-10, None)), ("server", slice(14, 17))):
        ours, other = (
            np.mean([line["pl_accuracy"] for line in lines_of(SITES.format(place, name))[rounds]])
            for name in ("sage", "sage-global-first")
        )
        assert ours > other + 0.1
    server = {run: curve(run)[14:17].mean() for run in NAMES if run.startswith("settings/server/")}
    assert min(server, key=server.__getitem__) == "settings/server/fedavg"
    semifl, flfl = (curve(SITES.format("svhn250", name)) for name in ("semifl", "flfl"))
    assert semifl[-1] > 2 * 40 - 2
    assert np.diff(semifl.reshape(4, 10).mean(1))[-1] > 1
    assert 0 < (flfl - semifl)[-10:].mean() < 5


def test_what_is_said_of_labels_and_roughness_is_so() -> None:
    last = [lines_of(LONG.format(name))[-10:] for name in ("proxyfl", "sage")]
    used, right = ([np.mean([x[key] for x in lines]) for lines in last] for key in ("utilization", "pl_accuracy"))
    assert used[0] > used[1] + 0.05
    assert 0 < right[1] - right[0] < 0.01
    names = [f"cifar100/alpha1.0/{name}-authors-seed7" for name in ("fixmatch-lpl", "fixmatch-gpl", "sage")]
    scatter = [np.std(np.diff(curve(name)[60:120]), ddof=1) for name in names]
    assert scatter[0] > 2 * max(scatter[1:])


def test_kernels_train_as_well() -> None:
    """In rounds 51 to 60, two runs of one kind are farther apart than two of both kinds."""
    on, off = "kernels/sage-authors-seed7-on", "kernels/sage-authors-seed7-off"
    older, long = "cifar100/alpha1.0/sage-authors-seed7", LONG.format("sage")
    means = {name: curve(name)[50:60].mean() for name in (on, off, older, long)}
    within = max(abs(means[on] - means[long]), abs(means[off] - means[older]))
    assert abs(means[on] - means[off]) < within
    assert abs(means[long] - means[off]) < within
    precise, rounded = (
        curve("cifar100/alpha1.0/sage-fp32-seed7")[10:60],
        curve("cifar100/alpha1.0/sage-clean-seed7")[10:60],
    )
    assert abs((precise - rounded).mean()) < 0.1
    seconds = [
        np.median([x["timing"]["seconds"] for x in lines_of(f"cifar100/alpha1.0/sage-{kind}-seed7")])
        for kind in ("fp32", "clean")
    ]
    assert round(seconds[0] / seconds[1]) == 7


# The benchmark, on docs/leaderboard.md and docs/benchmark.md.


def test_every_cell_of_the_benchmark_is_what_the_lines_say() -> None:
    part = LEADERBOARD.split("## Track A\n\n")[1].split("\n## ")[0]
    table = "\n".join(line for line in part.splitlines() if line.startswith("|"))
    head, _, *rows = ([text.strip() for text in row.strip("|").split("|")] for row in table.splitlines())
    assert head[1:5] == ["method", "accuracy", "smoothed", "seconds"]
    assert head[6] == "GiB"
    memory = json.loads((RESULTS / "benchmark" / "memory.json").read_text())
    shown = []
    for _, method, accuracy, smoothed, seconds, _, peak, _, _, entries in rows:
        seeds = re.findall(r"\[(\d+)\]\(\.\./results/benchmark/entries/", entries)
        names = [f"track-a/{method.strip('`')}-seed{seed}" for seed in seeds]
        runs = [lines_of(f"benchmark/{name}") for name in names]
        assert {len(lines) for lines in runs} == {120}
        shown += names
        for cell, key in ((accuracy.strip("*"), "accuracy"), (smoothed, "ema_accuracy")):
            means = [np.mean([line[key] for line in lines[-10:]]) for lines in runs]
            spread = f" ± {np.std(means, ddof=1):.2f}" if len(means) > 1 else ""
            assert cell == f"{np.mean(means):.2f}{spread}", method
        later = np.mean([sum(line["timing"]["seconds"] for line in lines[1:]) for lines in runs])
        assert 1.003 < float(seconds) / later < 1.014  # one round of 120 more
        peaks = [memory.get(name) for name in names]
        assert peak == ("–" if None in peaks else f"{max(memory[name] for name in names) / 2**30:.2f}"), method
    assert sorted(shown) == sorted(n.removeprefix("benchmark/") for n in NAMES if below(n, "benchmark"))
    assert {*memory} <= {*shown}
    planned = [
        config for preset in ("track-a", "track-a-fedmatch") for _, config in expand(read_toml(f"benchmark/{preset}"))
    ]
    listed = {f"track-a/{config.method.name}-seed{config.seed}" for config in planned}
    assert f"{len(listed & {*shown})} of 162 runs are on record" in BENCHMARK
    assert f"{len(shown)} entries: {len(listed & {*shown})} of 84 planned runs" in part
    assert "; record `results/benchmark/track-a/NAME-seedSEED`\n" in part
    for name in shown:
        method, _, seed = name.removeprefix("track-a/").rpartition("-seed")
        commands = re.findall(r"`fssl ([^`]+) --out ", part.replace("NAME", method).replace("SEED", seed))
        sessions = json.loads((RESULTS / "benchmark" / name / "env.json").read_text())["sessions"]
        assert {session["command"].partition(" --out ")[0] for session in sessions} <= {*commands}, name


def test_the_entry_of_every_run_is_whole_and_says_what_its_record_says() -> None:
    """Read like anyone else's; no entry is without a run, and each is a file of a few KB."""
    runs = {f"{name}.json": lines_of(f"benchmark/{name}") for name in BENCHMARK_RUNS}
    files = {str(file.relative_to(ENTRIES)): file for file in ENTRIES.rglob("*.json")}
    assert sorted(files) == sorted(runs)
    for name, file in files.items():
        facts, lines = read_entry(file), runs[name]
        assert file.stat().st_size < 10_000
        assert facts["curves"]["accuracy"] == [line["accuracy"] for line in lines]
        assert facts["result"] == pytest.approx(np.mean([line["accuracy"] for line in lines[-10:]]))
        points = {point["round"]: point for point in facts["points"]}
        assert [*points] == [*range(1, 11), *range(20, 121, 10)]
        for r, point in points.items():
            compared = {key: value for key, value in lines[r - 1].items() if key not in ("timing", "after", "check")}
            digest = hashlib.sha256(json.dumps(compared, sort_keys=True).encode()).hexdigest()[:16]
            assert (point["line"], point["clients"], point["loss_s"]) == (
                digest,
                compared["clients"],
                compared["loss_s"],
            )
        packed = (RESULTS / "benchmark" / name.removesuffix(".json") / "rounds.json.xz").read_bytes()
        assert facts["record"] == hashlib.sha256(unpacked(packed)).hexdigest()


@pytest.mark.parametrize("name", [run.path.name for run in benchmark_page.our_runs()])
def test_an_entry_is_what_its_run_gives(name: str) -> None:
    (run,) = (run for run in benchmark_page.our_runs() if run.path.name == name)
    assert benchmark_page.entry_file(run).read_text() == benchmark_page.our_entry(run), "run: make regenerate"


def test_what_is_said_of_track_a_is_so() -> None:
    names = ("fedavg-sl", "proxyfl", "sage", "fixmatch-lpl", "fixmatch-gpl", "fedavg")
    runs = {name: lines_of(f"benchmark/track-a/{name}-seed7") for name in names}
    of = {name: np.array([line["accuracy"] for line in lines]) for name, lines in runs.items()}
    end = {name: values[-10:].mean() for name, values in of.items()}
    assert [f"{end[a] - end['sage']:.1f}" for a in ("proxyfl", "fixmatch-lpl", "fixmatch-gpl")] == [
        "5.0",
        "-3.6",
        "-5.2",
    ]
    assert [round(of[name][10:20].mean()) for name in ("proxyfl", "sage")] == [20, 20]
    assert (np.diff((of["proxyfl"] - of["sage"])[20:100].reshape(4, 20).mean(1)) > 0).all()
    gap = of["fixmatch-lpl"] - of["fixmatch-gpl"]
    assert f"{gap[-10:].mean():.1f}" == "1.6"
    assert np.abs(gap[:100].reshape(10, 10).mean(1)).max() < 0.8
    gained = [values[-10:].mean() - values[95:105].mean() for values in of.values()]
    assert min(gained) > 1.5
    assert max(gained) < 4.5
    smooth = {name: np.mean([line["ema_accuracy"] for line in lines[-10:]]) - end[name] for name, lines in runs.items()}
    up = {"fedavg", "fedavg-sl", "fixmatch-lpl"}
    assert all(
        (0.6 if name in up else -1.04) < round(x, 2) < (1.3 if name in up else -0.6) for name, x in smooth.items()
    )
