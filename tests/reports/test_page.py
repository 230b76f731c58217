"""The report's page: its numbers are those of the records, and nothing in a record can break it."""

import base64
import gzip
import hashlib
import html
import json
import re
import shlex
import shutil
from html.parser import HTMLParser
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from fssl.config import parse, read_toml, to_toml
from fssl.errors import UserError
from fssl.records.accepted import accept
from fssl.records.rounds import OF_TAIL
from fssl.records.sealing import write_facts
from fssl.records.store import RunFolder
from fssl.reports import runs
from fssl.reports.groups import named_groups
from fssl.reports.page import write as page
from fssl.reports.page.content import QUANTITIES, curves_of, for_page
from fssl.reports.runs import Reader, Run, edited, find_runs
from fssl.system.files import write_atomic
from helpers import report_speed, run_folders
from helpers.command import exit_code
from helpers.handmade import append, write_probes, write_run
from helpers.run_folders import write_settings

pytest.importorskip("plotly")
SAGE, LPL = 'method.name="sage"', 'method.name="fixmatch-lpl"'


def embedded(text: str, name: str = "data") -> str:
    (found,) = re.findall(rf'<script type="text/plain" id="{name}">([\w+/=]*)</script>', text)
    return gzip.decompress(base64.b64decode(found)).decode()


def read(folder: Path) -> Run:
    (run,) = find_runs([folder]).runs
    return run


def report(tmp_path: Path, *paths: Path) -> dict[str, Any]:
    """What a browser finds in the page."""
    page.write_page([*paths] or [tmp_path / "runs"], tmp_path / "report.html")
    data: dict[str, Any] = json.loads(embedded((tmp_path / "report.html").read_text()))
    return data


# Numbers.


def test_the_numbers_are_those_of_the_records(tmp_path: Path) -> None:
    """Twelve rounds, so the result is the mean of rounds 3 to 12; shares become percent."""
    curves = {7: [float(10 * r) for r in range(12)], 8: [float(r * r) for r in range(12)]}
    right = [None, 0.25, *[0.5] * 10]
    for seed, curve in curves.items():
        settings = (SAGE, f"seed={seed}")
        folder = write_run(tmp_path / f"runs/sage{seed}", curve, *settings, pl_accuracy=right, utilization=[0.125] * 12)
        for round in (2, 3, 12):  # round 2 is not among the last ten
            write_probes(folder, round, [[4, 0, 1], [4, 0, 0]], [[1, 0, 1], [3, 0, 0]])
    write_run(tmp_path / "runs/lpl7", [30.0] * 12, LPL, "seed=7")
    data = report(tmp_path)
    (task,) = data["tasks"]
    sage, lpl = task["groups"]
    assert (sage["name"], lpl["name"], sage["seeds"], lpl["seeds"]) == ("SAGE", "FixMatch-LPL", [7, 8], [7])
    results = [mean(curve[-10:]) for curve in curves.values()]  # 65 and 50.5
    assert sage["result"] == pytest.approx([mean(results), stdev(results)])
    assert sage["result"][0] == 57.75
    assert lpl["result"] == [30.0, None]
    assert task["last"] == 10
    assert sage["last"] == pytest.approx([115.5, stdev([110, 121])])
    assert sage["right"] == [50.0, 0.0]
    assert sage["used"] == [12.5, 0.0]
    assert lpl["right"] == [None, None]
    assert sage["seconds"] == 3.25  # the median of 0.5, 1, ... 6
    assert sage["labels_by_class"] == [2 * 2 * 8, 0, 2 * 2 * 1]
    assert sage["right_by_class"] == [50.0, None, 100.0]
    alone = curves_of([read(tmp_path / "runs/sage7")])
    assert alone["accuracy"]["mean"] == curves[7]
    assert alone["pl_accuracy"]["mean"] == [None, 25.0, *[50.0] * 10]
    assert "lam_sure" not in alone
    assert data["curves"][str(tmp_path / "runs/sage7")]["accuracy"]["mean"] == [
        mean(pair) for pair in zip(*curves.values(), strict=True)
    ]
    assert data["facts"] == {
        **{"runs": 3, "finished": 3, "methods": 2, "seeds": [7, 8], "rounds": 36},
        "seconds": pytest.approx(3 * 39.0),
    }
    (machine,) = data["hardware"]
    assert (machine["device"], machine["torch"], machine["runs"], machine["seconds"]) == ("cpu", "2.13.0", 3, 3 * 39.0)


CLOSE = "Neighbors too close to rank (up to 1.2 points apart with a single seed, or within their spreads)"


def test_a_line_says_what_its_runs_cost(tmp_path: Path) -> None:
    """Two seeds; round r took r / 2 seconds, and the first round counts as the median one."""
    for seed, peak in ((7, 2**30), (8, 3 * 2**30)):
        run = write_run(tmp_path / f"runs/{seed}", [50.0, 60.0, 70.0], SAGE, f"seed={seed}", clients=[[0, 1]] * 3)
        env = json.loads((run / "env.json").read_text())
        env["sessions"][0]["traffic"] = {"down": 3_000_000, "up": 1_000_000}
        (run / "env.json").write_text(json.dumps(env))
        timing = [{"seconds": 0.5 * round, "gpu_memory": peak} for round in (1, 2, 3)]
        lines = [{**line, "timing": each} for line, each in zip(run_folders.lines_of(run), timing, strict=True)]
        run_folders.write_lines(run, lines)
    write_run(tmp_path / "runs/old", [50.0, 60.0, 70.0], LPL)
    old, line = sorted(report(tmp_path)["tasks"][0]["groups"], key=lambda line: line["name"])
    assert (line["total"], line["sent"], line["memory"]) == (1.0 + 1.0 + 1.5, 8e6, 3 * 2**30)
    assert line["spent"] == {"seconds": [1.0, 2.0, 3.5], "traffic": [0.008, 0.016, 0.024]}
    assert (old["sent"], old["memory"], old["spent"]["traffic"], old["smoothed"]) == (None, None, [], [None, None])


def test_the_conclusions_name_the_leader_and_where_sage_does_not_lead(tmp_path: Path) -> None:
    for seed, ours, theirs in ((7, 50.0, 52.0), (8, 60.0, 59.5)):
        write_run(tmp_path / f"runs/a{seed}", [ours], SAGE, f"seed={seed}")
        write_run(tmp_path / f"runs/b{seed}", [theirs], LPL, f"seed={seed}")
    (task,) = report(tmp_path)["tasks"]
    short = "Fewer than 10 rounds: results are means of all 1."
    assert task["words"] == [
        "FixMatch-LPL leads SAGE by 0.75 points (seed by seed -0.50 to +2.00; 95 % interval -15.13 to +16.63): "
        "not in every seed, so this does not separate them.",
        *("SAGE is number 2 of 2, 0.75 points behind.", "Seeds 7, 8."),
        *(f"{CLOSE}: FixMatch-LPL and SAGE.", short),
    ]
    write_run(tmp_path / "runs/c", [40.0], 'method.name="fedavg"', "seed=7")
    (task,) = report(tmp_path)["tasks"]
    assert "With fewer seeds than the others: FedAvg." in task["words"]
    assert task["words"][-2:] == [f"{CLOSE}: FixMatch-LPL and SAGE.", short]
    assert {line["name"]: line["place"] for line in task["groups"]} == {"FixMatch-LPL": 1, "SAGE": 1, "FedAvg": 3}


def test_what_cannot_be_compared_is_named_and_has_no_rank(tmp_path: Path) -> None:
    """Not a method that knows the labels, nor one that has not come as far, wherever its number stands."""
    finals = {"sage": 60.0, "fixmatch-lpl": 60.001, "fedavg": 50.0, "fixmatch-gpl": 40.0}
    finals |= {"fedavg-sl": 90.0, "fixmatch-lpl+oracle": 80.0}
    for method, final in finals.items():
        write_run(tmp_path / "runs" / method, [final] * 12, f'method.name="{method}"')
    early = write_run(tmp_path / "runs/early", [99.0] * 11, 'method.name="flexmatch"', "train.rounds=12")
    (early / "summary.json").unlink()
    (task,) = report(tmp_path)["tasks"]
    assert {line["name"]: line["rank"] for line in task["groups"]} == {
        **{"FlexMatch": None, "FedAvg-SL": None, "FixMatch-LPL + oracle": None},
        **{"FixMatch-LPL": 1, "SAGE": 1, "FedAvg": 2, "FixMatch-GPL": 3},  # as they are shown
    }
    assert task["groups"][task["leader"]]["name"] == "FixMatch-LPL"
    assert task["words"] == [
        *("FixMatch-LPL and SAGE are level.", "Seed 7.", f"{CLOSE}: FixMatch-LPL and SAGE."),
        "Shorter than the others, so not compared: FlexMatch (round 11 of 12).",
        "With the true labels, an upper bound: FedAvg-SL (90.00 %), FixMatch-LPL + oracle (80.00 %).",
    ]


def test_a_seed_counts_once(tmp_path: Path) -> None:
    """A copy of a run, or the same seed again, would make the spread too small."""
    for name, seed, curve in (("a", 7, [50.0, 50.0]), ("copy", 7, [50.0]), ("b", 8, [60.0, 60.0])):
        write_run(tmp_path / "runs" / name, curve, SAGE, f"seed={seed}", "train.rounds=2")
    data = report(tmp_path)
    (line,) = data["tasks"][0]["groups"]
    assert (line["seeds"], line["result"]) == ([7, 8], [55.0, pytest.approx(stdev([50, 60]))])
    assert data["notes"] == [
        f"{tmp_path}/runs/copy: left out, a run that is as long or longer has its settings and seed"
    ]
    assert data["facts"]["runs"] == 2


def test_only_runs_of_one_task_are_compared(tmp_path: Path) -> None:
    """Other data, skews or numbers of labels are other tasks; an ablation is another line of the same."""
    cells = [("a", [SAGE]), ("b", [SAGE, "method.cpg=false"]), ("c", [SAGE, "partition.alpha=0.1"])]
    cells += [("d", [LPL, "partition.alpha=0.1"]), ("e", [LPL, "partition.alpha=0.1", "train.lr=0.05"])]
    for name, settings in cells:
        write_run(tmp_path / "runs" / name, [50.0], *settings)
    tasks = report(tmp_path)["tasks"]
    assert [(task["alpha"], [group["name"] for group in task["groups"]]) for task in tasks] == [
        (0.1, ["SAGE", "FixMatch-LPL"]),
        (0.5, ["SAGE, cpg=true", "SAGE, cpg=false"]),
        (0.1, ["FixMatch-LPL"]),
    ]
    commands = {group["command"].partition(" --out ")[2] for task in tasks for group in task["groups"]}
    assert len(commands) == 5  # no two lines meet in one folder
    first = "digits · α = 0.1 · 8 labels per class · 6 clients"
    assert [task["title"] for task in tasks] == [
        f"{first} · train.lr = 0.1",
        "digits · α = 0.5 · 8 labels per class · 6 clients · train.lr = 0.1",
        f"{first} · train.lr = 0.05",
    ]


def test_images_of_a_folder_have_names_and_no_skew(tmp_path: Path) -> None:
    """The classes of clients' unlabeled images may be unknown."""
    folder = write_run(tmp_path / "runs/a", [50.0], SAGE)
    settings = read_toml(str(folder / "config.toml"))
    settings["data"] = {"name": "folder", "dir": "/data/scans", "classes": ["bone", "lung"], "digest": "d"}
    settings["partition"] = {"clients": 3}
    write_settings(folder, to_toml(settings))
    write_facts(folder / "partition.json", {"labeled": [[1, 2], [3, 0], [0, 0]], "unlabeled": None})
    data = report(tmp_path)
    (task,) = data["tasks"]
    assert (task["title"], task["alpha"], task["labels"]) == ("folder scans · 3 clients", None, None)
    assert task["classes"] == ["bone", "lung"]
    assert task["partition"] == {"labeled": [[1, 2], [3, 0], [0, 0]], "unlabeled": None, "server": None}
    assert data["notes"] == []


def test_the_loss_and_the_labels_of_a_server_are_shown_where_it_has_some(tmp_path: Path) -> None:
    """Also with clients that have them; in a deployment only the server knows what it holds."""
    losses = {7: [2.0, 1.0], 8: [1.0, 0.5]}
    for seed, loss in losses.items():
        settings = (SAGE, "partition.labels='server'", f"seed={seed}")
        write_run(tmp_path / f"runs/server{seed}", [50.0, 60.0], *settings, server_loss=loss, loss_s=[None, None])
    write_run(tmp_path / "runs/clients", [50.0, 60.0], SAGE, loss_s=[3.0, 2.0])
    counts = {"labeled": None, "unlabeled": None, "server": [4, 0, 2]}
    write_facts(tmp_path / "runs/server7/partition.json", counts)
    data = report(tmp_path)
    server, clients = (data["curves"][str(tmp_path / "runs" / name)] for name in ("server7", "clients"))
    assert server["server_loss"]["mean"] == [1.5, 0.75]
    assert "loss_s" not in server
    assert clients["loss_s"]["mean"] == [3.0, 2.0]
    assert "server_loss" not in clients
    assert "Loss of the server on its labels" in [quantity["title"] for quantity in data["quantities"]]
    assert [task["partition"] for task in data["tasks"] if "labels at the server" in task["title"]] == [
        {"labeled": None, "unlabeled": None, "server": [[4, 0, 2]]}
    ]
    assert data["notes"] == []


@pytest.mark.parametrize("row", ["7", "[]", '"x"', "[1.5]", "[[1, 2]]", "{}"])
def test_labels_of_a_server_that_cannot_be_read_are_named(tmp_path: Path, row: str) -> None:
    folder = write_run(tmp_path / "runs/a", [50.0], SAGE, "partition.labels='server'")
    counts = {"labeled": [[0, 0]], "unlabeled": [[5, 6]], "server": json.loads(row)}
    write_facts(folder / "partition.json", counts)
    data = report(tmp_path)
    assert data["tasks"][0]["partition"] is None
    assert data["notes"] == [f"{folder}: partition.json is damaged"]


def test_a_setting_that_only_some_groups_have_distinguishes_them(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [50.0], SAGE)
    write_run(tmp_path / "b", [50.0], SAGE, "train.steps_per_round=1")
    assert sorted(named_groups(find_runs([tmp_path]).runs)) == ["sage, local_epochs=1", "sage, steps_per_round=1"]


@pytest.mark.slow
def test_a_line_of_the_table_can_be_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command on the page gives the same records, all seeds of it; also from a folder with a space."""
    monkeypatch.chdir(tmp_path)
    words = ["run", "smoke", "--set", "train.rounds=1", "--set", "train.steps_per_round=1", "--device", "cpu"]
    fssl(monkeypatch, *words, "--set", "grid.seed=[7,8]", "--out", "my runs")
    (task,) = report(tmp_path, Path("my runs"))["tasks"]
    (line,) = task["groups"]
    found = re.fullmatch(
        r"fssl run 'my runs/seed7/config.toml' --set 'grid.seed=\[7,8\]' --out (again/sage-\w{8})", line["command"]
    )
    assert found
    assert line["recorded"] == [f"fssl {shlex.join(words)} --set 'grid.seed=[7,8]' --out 'my runs'"]
    fssl(monkeypatch, *shlex.split(line["command"])[1:])
    for seed in ("seed7", "seed8"):
        records = [json.loads((Path(base) / seed / "rounds.jsonl").read_text()) for base in ("my runs", found[1])]
        aside = {"timing": None, "check": None}
        assert records[0] | aside == records[1] | aside
    Path("own.toml").write_text(line["settings"])
    assert parse(read_toml("own.toml")) == parse(read_toml("my runs/seed7/config.toml"))


def fssl(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    assert exit_code(monkeypatch, *words) == 0


# Damage.


def test_damage_is_counted_and_named_but_never_fatal(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    whole = write_run(runs / "whole", [50.0, 60.0], SAGE, "seed=7")
    write_probes(whole, 2, [[2.0]], [[1.0]])
    torn = write_run(runs / "torn", [50.0, 60.0, 70.0], SAGE, "seed=8", "train.rounds=2")
    lines = (torn / "rounds.jsonl").read_text().splitlines()
    kept = [lines[0], lines[1][:40], '{"round": 2, "accuracy": NaN}', '{"round": 2, "accuracy": 1e300}', "[]"]
    kept += ['{"round": 1e99, "accuracy": 1}', lines[2]]
    (torn / "rounds.jsonl").write_text("\n".join(kept) + '\n{"round": 4, "accu')
    (torn / "env.json").unlink()
    (torn / "summary.json").write_text("{")
    (torn / "partition.json").write_text('{"labeled": [[1, 2], [3]], "unlabeled": "x"}')
    (torn / "probes").mkdir()
    (torn / "probes/000003.safetensors").write_bytes(b"\x08\x00")
    lost = write_run(runs / "lost", [50.0], SAGE, "seed=9")
    (lost / "config.toml").write_text("seed = ")
    odd = write_run(runs / "odd", [50.0], SAGE, "seed=10", pl_accuracy=["high"], loss_s=[{}], gap_sure=[1e999])
    write_probes(odd, 1, [[1e38], [3e38]], [[1.0], [float("inf")]])
    (odd / "env.json").write_text('{"sessions": [3, {"packages": [], "from_round": "one", "device": 5}]}')
    (runs / "empty").mkdir()
    (runs / "empty/rounds.jsonl").write_text("")
    data = report(tmp_path)
    assert data["damaged"] == 6
    assert sorted(data["runs"]) == [str(runs / name) for name in ("odd", "torn", "whole")]
    assert curves_of([read(torn)])["accuracy"]["mean"] == [50.0, None, 70.0]
    notes = [note.removeprefix(f"{runs}/").partition(": Invalid value")[0] for note in data["notes"]]
    assert set(data["curves"][str(odd)]) == {"accuracy", "seconds"}
    assert sorted(notes) == [
        f"left out: {runs}/empty: no config.toml",
        f"left out: {lost}: {lost}/config.toml: not valid TOML",
        "odd: probes of 1 of the last 1 rounds are damaged",
        "torn: env.json is missing or damaged: hardware unknown",
        "torn: partition.json is damaged",
        "torn: probes of 1 of the last 2 rounds are damaged",
        "torn: rounds.jsonl: lines 2, 3, 4, 5, 6 and 1 more are damaged or half-written, and skipped",
        "torn: summary.json cannot be read; the numbers here come from rounds.jsonl",
    ]
    for folder in ("whole", "torn", "odd"):
        shutil.rmtree(runs / folder)
    (runs / "empty/rounds.jsonl").unlink()
    with pytest.raises(UserError, match=r"no runs in .* \(.*lost/config.toml: not valid TOML"):
        report(tmp_path)


def test_rates_that_the_settings_do_not_give_leave_a_run_out_as_compare_does(tmp_path: Path) -> None:
    """Also where the settings change while the page is open; a damaged line takes no other round's rate."""
    runs = tmp_path / "runs"
    whole, other = (
        write_run(runs / name, [50.0] * 4, SAGE, f"seed={seed}", "train.cooldown=2", rate=[1.0, 1.0, 1.0, 0.5])
        for seed, name in enumerate(("whole", "other"))
    )
    lines = (other / "rounds.jsonl").read_text().splitlines(keepends=True)
    (other / "rounds.jsonl").write_text("".join([*lines[:2], "half\n", lines[3]]))
    reader = Reader()
    assert [run.remark for run in reader.read([runs]).runs] == ["", ""]
    file = other / "config.toml"
    file.write_text(file.read_text().replace("cooldown = 2", "cooldown = 4"))
    fault = "config.toml was edited: round 2 was trained with another learning rate"
    left_out = f"left out: {other}: {edited(fault)}"
    assert [run.path for run in reader.read([runs]).runs] == [whole]
    assert reader.read([runs]).left_out == [left_out]
    data = report(tmp_path)
    assert [*data["runs"]] == [str(whole)]
    assert left_out in data["notes"]
    assert find_runs([runs]).left_out == [left_out]
    accept(RunFolder(other), "on purpose")
    assert [run.remark for run in reader.read([runs]).runs] == ["on purpose", ""]
    data = report(tmp_path)
    assert len(data["runs"]) == 2
    assert f"{other}: an edited record, accepted: on purpose" in data["notes"]


SHAPES = ("[" * 10**5, "[]", "7", '"x"', "null", "{}", '{"sessions": 3}', '{"sessions": [[], 3]}')
SHAPES += (f'{{"sessions": [{{"device": {"[" * 500 + "]" * 500}}}]}}',)


@pytest.mark.parametrize("shape", SHAPES)
def test_an_environment_of_another_shape_is_no_obstacle(tmp_path: Path, shape: str) -> None:
    folder = write_run(tmp_path / "runs/a", [50.0], SAGE)
    (folder / "env.json").write_text(shape)
    data = report(tmp_path)
    assert data["hardware"] == []
    assert data["notes"] == [f"{folder}: env.json is missing or damaged: hardware unknown"]


@pytest.mark.parametrize("key", ["command", "from_round", "device", "packages", "processor", "threads", "revision"])
@pytest.mark.slow
def test_facts_of_another_type_are_no_obstacle(tmp_path: Path, key: str) -> None:
    folder = write_run(tmp_path / "runs/a", [50.0], SAGE)
    whole = json.loads((folder / "env.json").read_text())["sessions"][0]
    for odd in (None, True, [], [[1]], {}, {"a": {}}, "x", -1, 10**400, 1e308, float("nan")):
        (folder / "env.json").write_text(json.dumps({"sessions": [{**whole, key: odd}, {**whole, key: odd}]}))
        data = report(tmp_path)
        assert (len(data["hardware"]), data["notes"]) == (1, [])


# One file, and nothing that a record holds can break it.

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


class Outline(HTMLParser):
    """The elements of a page and where they point."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]


def test_a_record_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "plain", [50.0], SAGE)
    page.write_page([folder], tmp_path / "plain.html")
    hostile = folder.rename(tmp_path / HOSTILE.replace("/", "∕"))
    session = {"device": HOSTILE, "command": f"run {HOSTILE}", "packages": {"torch": HOSTILE}}
    (hostile / "env.json").write_text(json.dumps({"sessions": [session]}))
    tables = read_toml(str(hostile / "config.toml"))
    tables["method"] = {"name": HOSTILE}
    tables["data"] = {"name": "folder", "dir": HOSTILE, "classes": [HOSTILE, "b"]}
    tables["partition"] = {"clients": 6}
    write_settings(hostile, to_toml(tables))
    data = report(tmp_path, hostile)
    assert data["tasks"][0]["classes"] == [HOSTILE, "b"]
    assert data["tasks"][0]["groups"][0]["name"] == HOSTILE
    text = (tmp_path / "report.html").read_text()
    assert data["hardware"][0]["device"] == HOSTILE
    assert HOSTILE.replace("/", "∕") in html.unescape(text)
    assert "<img" not in text
    assert Outline(text).tags == Outline((tmp_path / "plain.html").read_text()).tags


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a\udcff$script", [50.0], SAGE)
    assert list(report(tmp_path, folder)["runs"]) == [str(folder)]
    assert "<h1>a?$script</h1>" in (tmp_path / "report.html").read_text()


def test_the_page_needs_no_other_host(tmp_path: Path) -> None:
    write_run(tmp_path / "runs/a", [50.0], SAGE)
    report(tmp_path)
    text = (tmp_path / "report.html").read_text()
    assert set(Outline(text).links) == {"#main", "data:,"}
    policy = html.unescape(re.findall(r'Content-Security-Policy" content="([^"]*)"', text)[0])
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert (rules["default-src"], rules["connect-src"]) == ("'none'", "'none'")
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    sources = [script, embedded(text, "plotly")]
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in sources]
    assert rules["script-src"] == " ".join(f"'sha256-{h}'" for h in hashes)
    assert "innerHTML" not in script


def test_a_page_says_that_it_loads_and_that_its_table_scrolls() -> None:
    """The script replaces the first; only a phone shows the second."""
    text = page.page("mine", None)
    assert '<p id="subtitle" class="quiet">Loading the runs …</p>' in text
    assert 'class="hint swipe"' in text
    hidden, _, narrow = text.partition("@media (max-width: 640px)")
    assert re.search(r"\.swipe {\s*display: none;", hidden)
    assert re.search(r"\.swipe {\s*display: block;", narrow)


@pytest.mark.parametrize("name", ["index.html", "page.css", "page.js"])
def test_no_line_of_the_page_is_longer_than_those_of_python(name: str) -> None:
    """A formatter breaks code, but neither texts nor comments."""
    assert [line for line in (page.PAGE_FILES / name).read_text("utf-8").splitlines() if len(line) > 120] == []


# Size and speed.


def test_many_runs_are_read_by_several_processes_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report_speed.write_records(tmp_path, 9, 3)
    monkeypatch.setattr("fssl.reports.runs.MANY_FOLDERS", 5)
    one, two = (find_runs([tmp_path], prepare=for_page, processes=processes).runs for processes in (1, 2))
    assert [run.path for run in one] == [run.path for run in two]
    for a, b in zip(one, two, strict=True):
        assert curves_of([a]) == curves_of([b])
        assert a.lines == b.lines
        assert a.config == b.config
        assert [str(values) for values in a.extras.by_class] == [str(values) for values in b.extras.by_class]


def test_generated_records_have_every_quantity(tmp_path: Path) -> None:
    """Else the benchmark would measure less than a report of real runs."""
    report_speed.write_records(tmp_path / "runs", 3, 12)
    data = report(tmp_path)
    assert data["notes"] == []
    assert len(data["curves"]) == 3
    for curves in data["curves"].values():
        assert set(curves) == {quantity.key for quantity in QUANTITIES} - {*OF_TAIL}
    assert all(len(group["right_by_class"]) == 100 for task in data["tasks"] for group in task["groups"])


def test_the_benchmark_reports_seconds_and_megabytes(capsys: pytest.CaptureFixture[str]) -> None:
    report_speed.main(2, 3)
    said = re.fullmatch(
        r"2 runs of 3 rounds, 0 MB of records\nreport: \d+\.\d s, (\d\.\d) MB\n", capsys.readouterr().out
    )
    assert said
    assert 1.5 < float(said[1]) < 3  # nearly all of it is the plotting library


def test_rounds_of_a_run_that_starts_anew_are_forgotten(tmp_path: Path) -> None:
    folder, reader = write_run(tmp_path / "a", [50.0, 60.0], SAGE), Reader()
    assert [run.last_round for run in reader.read([folder]).runs] == [2]
    write_atomic(folder / "rounds.jsonl", "")  # as --resume does without a checkpoint
    assert reader.read([folder]) == ([], {folder: "no finished round"})


def test_a_folder_is_read_again_only_when_a_file_of_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (write_run(tmp_path / name, [50.0, 60.0], SAGE) for name in "ab")
    parsed: list[int] = []

    def count(chain: Any, texts: Any) -> Any:
        parsed.append(len(texts))
        return whole_lines(chain, texts)

    whole_lines = runs.whole_lines
    monkeypatch.setattr(runs, "whole_lines", count)
    reader = Reader()

    def read() -> list[Run]:
        parsed.clear()
        return reader.read([tmp_path]).runs

    before = read()
    assert ([run.path for run in before], parsed) == ([first, second], [2, 2])
    assert (read() == before, parsed) == (True, [])  # the very same
    append(second, 3, 70.0)
    whole = (second / "rounds.jsonl").read_text()
    append(second, 4, 80.0)
    longer = (second / "rounds.jsonl").read_text()
    (second / "rounds.jsonl").write_text(longer[: len(whole) + 17])
    same, other = read()
    assert (same is before[0], parsed, other.curve, other.damaged) == (True, [4], [50.0, 60.0, 70.0], [4])
    (second / "rounds.jsonl").write_text(longer)
    other = read()[1]
    assert (parsed, other.curve, other.damaged) == ([4], [50.0, 60.0, 70.0, 80.0], [])
    (second / "env.json").unlink()
    assert (read()[1].sessions, parsed) == ([], [4])
    (second / "new").write_text("".join(longer.splitlines(keepends=True)[:1]))
    (second / "new").replace(second / "rounds.jsonl")  # as a resumed run does
    assert read()[1].curve == [50.0]
    shutil.rmtree(second)
    assert (read(), parsed) == ([same], [])
