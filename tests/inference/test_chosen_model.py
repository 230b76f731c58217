"""Which model of a run is at work: the last, the best, or that of a run that is not finished; and its measures."""

import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn import metrics

from fssl import api
from fssl.config import Config, override, parse, read_toml
from fssl.console import Quiet
from fssl.core.experiment import prepare
from fssl.errors import UserError
from fssl.inference.quality import QUALITY_FILES, write_measures
from fssl.inference.trained import load_trained
from fssl.methods.names import METHODS
from fssl.probes.measures import answers_of
from fssl.records.store import RunFolder
from fssl.runner.conduct import run_experiment
from helpers.command import Fssl, records
from helpers.small import StopAfter

SMALL = [
    *("train.rounds=4", "train.steps_per_round=3", "data.labels_per_class=8", "partition.clients=4"),
    *("train.clients_per_round=2", "compute.device=cpu", "data.validation=0.2", "records.keep_best=true"),
]
CPU = torch.device("cpu")
SVG = "http://www.w3.org/2000/svg"


def small(*settings: str) -> Config:
    return parse(override(read_toml("smoke"), [*SMALL, *settings]))


def stopped(folder: Path, rounds: int, *settings: str) -> Path:
    with pytest.raises(KeyboardInterrupt):
        run_experiment(prepare(small(*settings)), folder, StopAfter(rounds))
    return folder


def right(path: str) -> float:
    rows = list(csv.DictReader(Path(path).read_text().splitlines()))
    return float(100 * np.mean([row["class"] == row["truth"] for row in rows]))


def accuracy_of(run: Path, round: int) -> float:
    return float(records(run)[round - 1]["accuracy"])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose best round is not its last one, by the seed."""
    for seed in range(7, 20):
        folder = tmp_path_factory.mktemp("chosen") / "run"
        summary = run_experiment(prepare(small(f"seed={seed}")), folder, Quiet())
        best = summary["chosen"]["round"]
        if best < 4 and accuracy_of(folder, best) != accuracy_of(folder, 4):
            return folder
    raise AssertionError


def test_the_best_model_has_the_accuracy_of_its_round(run: Path, fssl: Fssl) -> None:
    best = RunFolder(run).summary()["chosen"]["round"]
    said = fssl("predict", run, "--model", "best", "--out", "best.csv").out
    assert right("best.csv") == pytest.approx(accuracy_of(run, best))
    assert f"by the best model, that of round {best}" in said
    for words in ([], ["--model", "plain"]):
        said = fssl("predict", run, *words, "--out", "last.csv", "--overwrite").out
        assert right("last.csv") == pytest.approx(accuracy_of(run, 4))
        assert "by the" not in said
    assert api.load(run, "best").round == best
    assert api.load(run).round == 4


def test_a_run_can_start_from_the_best_model(run: Path, fssl: Fssl) -> None:
    code, _, _ = fssl(
        *("run", "smoke", "--device", "cpu", "--set", "train.lr=0", "--set", "train.rounds=1", "--out", "next"),
        *("--set", f"model.start={run / 'model-best.safetensors'}", "--set", "train.steps_per_round=1"),
    )
    best = load_trained(run, CPU, "best").weights.params
    begun = load_trained(Path("next"), CPU).weights.params
    assert code == 0
    assert all(torch.equal(best[name], begun[name]) for name in best)


def test_the_best_model_can_be_exported(run: Path, fssl: Fssl) -> None:
    assert fssl("export", run, "--to", "safetensors", "--model", "best", "--out", "best.safetensors").code == 0
    best, expected = load_file("best.safetensors"), load_trained(run, CPU, "best")
    assert all(torch.equal(best[name], value) for name, value in expected.tensors().items())
    assert json.loads(Path("best.safetensors.json").read_text())["round"] == expected.round
    assert "model 'worst' is unknown" in fssl("export", run, "--to", "pt2", "--model", "worst").err


def test_an_unfinished_run_runs_no_other_file_than_its_own(tmp_path: Path, fssl: Fssl) -> None:
    """Its method says what of a checkpoint is the model."""
    text = "from fssl.methods.fixmatch import FixMatch\n\ndef mine() -> FixMatch:\n    return FixMatch()\n"
    (tmp_path / "mine.py").write_text(text)
    run = stopped(tmp_path / "run", 2, f"method.name={tmp_path}/mine.py:mine")
    assert fssl("predict", run, "--out", "p.csv").code == 0
    (tmp_path / "mine.py").write_text(text.replace("FixMatch()", "FixMatch(mu_u=2.0)"))
    code, _, said = fssl("predict", run, "--out", "q.csv")
    assert (code, "mine.py has changed: method.digest is" in said) == (2, True)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.slow
def test_an_unfinished_run_has_the_model_of_its_newest_checkpoint(method: str, tmp_path: Path) -> None:
    """Bit for bit that of a run which ended there."""
    name = f"method.name={method}"
    folder = stopped(tmp_path / "run", 2, name)
    run_experiment(prepare(small(name, "train.rounds=2")), tmp_path / "two", Quiet())
    for which in ("", "best"):
        begun, whole = (load_trained(tmp_path / run, CPU, which) for run in ("run", "two"))
        assert begun.round == whole.round
        for one, other in zip(begun.weights, whole.weights, strict=True):
            assert list(one) == list(other)
            assert all(torch.equal(one[k], other[k]) for k in one)
    assert not (folder / "model.safetensors").exists()


@pytest.mark.slow
def test_a_run_that_was_prolonged_has_the_model_of_its_newest_checkpoint(tmp_path: Path, fssl: Fssl) -> None:
    """Not that of its last finish, whose files are still there; once it is finished again, that of the last round."""
    run, ship = tmp_path / "run", ("server.ema=0.5", "server.ship=ema")
    run_experiment(prepare(small(*ship, "train.rounds=2")), run, Quiet())
    with pytest.raises(KeyboardInterrupt):
        run_experiment(prepare(small(*ship, "train.rounds=5")), run, StopAfter(4), resume=True)
    assert load_trained(run, CPU).round == 4
    assert fssl("predict", run, "--out", "p.csv").code == 0
    assert right("p.csv") == pytest.approx(records(run)[3]["ema_accuracy"])
    code, _, said = fssl("run", "smoke", "--set", f"model.start={run}", "--out", "next")
    assert (code, f"model.start = '{run}': {run} was extended and is not finished" in said) == (2, True)
    run_experiment(prepare(small(*ship, "train.rounds=5")), run, Quiet(), resume=True)
    assert load_trained(run, CPU).round == 5


def test_a_run_without_a_best_round_says_so(tmp_path: Path, fssl: Fssl) -> None:
    run = stopped(tmp_path / "run", 2)
    for part in (run / "checkpoint" / "parts").glob("best.*"):
        part.unlink()
    for manifest in (run / "checkpoint").glob("round-*.json"):
        facts = json.loads(manifest.read_text())
        manifest.write_text(json.dumps({**facts, "parts": {}}))
    code, _, said = fssl("predict", run, "--model", "best", "--out", "p.csv")
    assert (code, "has no best round yet" in said) == (2, True)


def test_rounds_are_not_chosen_by_images_that_have_no_value(tmp_path: Path) -> None:
    """AUROC of a validation part with one class: patients of that class alone were held out, say."""
    few = ("data.labels_per_class=2", "partition.clients=19", "records.metrics=auroc")
    with pytest.raises(UserError, match="'auroc' is undefined: all images to choose by have the same class"):
        run_experiment(prepare(small(*few)), tmp_path / "run", Quiet())
    assert not (tmp_path / "run").exists()
    summary = run_experiment(prepare(small(*few, "records.keep_best=false")), tmp_path / "run", Quiet())
    assert summary["rounds"] == 4
    assert records(tmp_path / "run")[0]["validation"]["auroc"] is None


def test_predict_says_that_a_run_continues(tmp_path: Path, fssl: Fssl) -> None:
    run = stopped(tmp_path / "run", 3, "records.checkpoint_every=2", "server.ema=0.5")
    before = sorted(path for path in run.rglob("*") if path.is_file())
    said = fssl("predict", run, "--out", "p.csv")
    assert (said.code, "by the model of round 2; the run continues to round 4" in said.out) == (0, True)
    said = fssl("export", run, "--to", "safetensors", "--out", "m.safetensors")
    assert said.out.splitlines()[1:] == ["by the model of round 2; the run continues to round 4"]
    assert right("p.csv") == pytest.approx(accuracy_of(run, 2))
    assert fssl("predict", run, "--model", "ema", "--out", "ema.csv").code == 0
    assert right("ema.csv") == pytest.approx(records(run)[1]["ema_accuracy"])
    assert sorted(path for path in run.rglob("*") if path.is_file()) == before  # a reader removes nothing
    damaged = max((run / "checkpoint").glob("round-*.safetensors"))
    damaged.write_bytes(b"")
    assert "has no model yet" in fssl("predict", run, "--out", "none.csv").err  # before it there is round 0 alone


def test_measures_in_files_and_on_a_page(run: Path, fssl: Fssl) -> None:
    fssl("datasets", "--export-digits", "sites")
    said = fssl("predict", run, "sites/test", "--out", "p.csv", "--measures", "measures").out
    rows = list(csv.DictReader(Path("p.csv").read_text().splitlines()))
    truth, answer = ([row[key] for row in rows] for key in ("truth", "class"))
    facts = json.loads(Path("measures/measures.json").read_text())
    assert facts["confusion"] == metrics.confusion_matrix(truth, answer, labels=facts["class_names"]).tolist()
    assert facts["macro_f1"] == pytest.approx(100 * metrics.f1_score(truth, answer, average="macro"))
    assert f"macro F1 {facts['macro_f1']:.2f} %" in said
    assert facts["macro_f1"] == pytest.approx(records(run)[-1]["macro_f1"])  # of the same images in the last round
    assert facts["auroc"] == pytest.approx(records(run)[-1]["auroc"], abs=0.01)
    table = list(csv.DictReader(Path("measures/classes.csv").read_text().splitlines()))
    recall = metrics.recall_score(truth, answer, average=None, labels=facts["class_names"])
    assert [float(row["recall"]) for row in table] == pytest.approx(100 * recall)
    matrix = list(csv.reader(Path("measures/confusion.csv").read_text().splitlines()))
    assert [list(map(int, row[1:])) for row in matrix[1:]] == facts["confusion"]
    picture = ElementTree.parse("measures/confusion.svg").getroot()
    numbers = [e.text for e in picture.iter(f"{{{SVG}}}text") if "middle" in e.get("text-anchor", "")]
    assert [int(n) for n in numbers if n and n.isdigit()] == [n for row in facts["confusion"] for n in row if n]
    assert "http" not in Path("measures/index.html").read_text().replace(SVG, "").replace("http-equiv", "")


def test_the_page_shows_numbers_a_table_and_how_sure_the_model_is(tmp_path: Path) -> None:
    """Of two cats one is taken for a dog. F1 is 2/3 and 4/5; 0.1, 0.62, 0.18 and 0.3 are off in confidence."""
    p = np.array([[0.9, 0.1], [0.38, 0.62], [0.18, 0.82], [0.3, 0.7]], np.float32)
    write_measures(tmp_path / "m", answers_of(p, np.array([0, 0, 1, 1])), ["cat", "dog"], "my run: photos")
    page = (tmp_path / "m/index.html").read_text()
    assert re.findall("<(?:title|h1)>(.*?)</", page)[:2] == ["my run: photos"] * 2
    assert dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", page)) == {
        "accuracy": "75.00 %",
        "balanced accuracy": "75.00 %",
        "macro F1": "73.33 %",
        "AUROC": "100.00 %",
        "calibration error": "30.00 %",
        "images": "4",
    }
    rows = [re.findall("<t[hd]>(.*?)</t[hd]>", row) for row in re.findall("<tr>(.*?)</tr>", page)]
    assert rows == [
        ["class", "images", "precision", "recall", "F1", "AUROC"],
        ["cat", "2", "100.0", "50.0", "66.7", "100.0"],
        ["dog", "2", "66.7", "100.0", "80.0", "100.0"],
    ]
    assert '<div class="scroll"><table>' in page  # which scrolls by itself on a phone, and not the page
    assert ".scroll { overflow-x: auto }" in page
    _, calibration = (ElementTree.fromstring(svg) for svg in re.findall("<svg.*?</svg>", page, re.S))
    bars = {bar[0].text: float(bar.get("height", "")) for bar in calibration.iter(f"{{{SVG}}}rect")}
    assert bars == {
        "1 images: sure to 62.0 %, 0.0 % right": 0,
        "1 images: sure to 70.0 %, 100.0 % right": 300,
        "1 images: sure to 82.0 %, 100.0 % right": 300,
        "1 images: sure to 90.0 %, 100.0 % right": 300,
    }


def test_a_page_of_measures_is_written_over_only_if_asked(run: Path, fssl: Fssl) -> None:
    words = ("predict", run, "--measures", "measures", "--out")
    assert fssl(*words, "a.csv").code == 0
    said = fssl(*words, "b.csv")
    assert (said.code, "fssl: measures/index.html: already exists" in said.err) == (2, True)
    assert not Path("b.csv").exists()
    assert fssl(*words, "b.csv", "--overwrite").code == 0


@pytest.mark.parametrize("name", QUALITY_FILES)
def test_no_file_of_measures_is_written_over(name: str, run: Path, fssl: Fssl) -> None:
    Path("measures").mkdir()
    (Path("measures") / name).write_text("mine")
    code, _, said = fssl("predict", run, "--measures", "measures", "--out", "p.csv")
    there = "already exists; choose another name, or overwrite it (--measures, --overwrite)"
    assert (code, said) == (2, f"fssl: measures/{name}: {there}\n")
    assert ((Path("measures") / name).read_text(), Path("p.csv").exists()) == ("mine", False)


@pytest.mark.parametrize("more", [[], ["--overwrite"]])
def test_a_run_folder_keeps_its_own_measures(more: list[str], run: Path, fssl: Fssl) -> None:
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    code, _, said = fssl("predict", run, "--out", "p.csv", "--measures", run, *more)
    expected = f"fssl: {run}: is a run folder; choose another one, such as {run}/measures (--measures)\n"
    assert (code, said) == (2, expected)
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before


def test_no_measures_without_the_truth(run: Path, fssl: Fssl) -> None:
    fssl("datasets", "--export-digits", "sites")
    Path("flat").mkdir()
    next(Path("sites/test/3").iterdir()).rename("flat/a.png")
    said = fssl("predict", run, "flat", "--out", "p.csv", "--measures", "measures").out
    assert "measures is not written, because some images are not in a folder named like a class" in said
    assert not Path("measures").exists()


def test_a_class_may_be_called_anything(tmp_path: Path) -> None:
    classes = ["<script>alert(1)</script>", "a & b", "=1+1"]
    answers = answers_of(np.eye(3, dtype=np.float32), np.arange(3))
    write_measures(tmp_path / "m", answers, classes, "<i>run</i>")
    text = (tmp_path / "m/index.html").read_text()
    tags: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append(tag)  # type: ignore[method-assign]
    parser.feed(text)
    assert not {"script", "i"} & {*tags}
    ElementTree.parse(tmp_path / "m/confusion.svg")
    assert "'=1+1" in (tmp_path / "m/classes.csv").read_text()


def test_a_hundred_classes_are_drawn_without_numbers(tmp_path: Path) -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(100), 500).astype(np.float32)
    write_measures(tmp_path / "m", answers_of(p, np.arange(500) % 100), [str(c) for c in range(100)], "many")
    picture = ElementTree.parse(tmp_path / "m/confusion.svg").getroot()
    assert len(list(picture.iter(f"{{{SVG}}}rect"))) == 100 * 100 + 1
    assert len(list(picture.iter(f"{{{SVG}}}text"))) == 2 * 100 + 2  # every class twice, and what both are


@pytest.mark.slow
def test_of_more_classes_than_can_be_read_every_second_is_named(tmp_path: Path) -> None:
    """Once next to its row, once above its column."""
    p = np.eye(180, dtype=np.float32)
    write_measures(tmp_path / "m", answers_of(p, np.arange(180)), [f"class {i}" for i in range(180)], "many")
    texts = [each.text for each in ElementTree.parse(tmp_path / "m/confusion.svg").iter(f"{{{SVG}}}text")]
    assert texts == [*(f"class {i}" for i in range(0, 180, 2) for _ in range(2)), "predicted", "true"]
