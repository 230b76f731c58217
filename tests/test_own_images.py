"""Runs on a site's own images: from the command line to the record, and what is not known there."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from fssl.cli.options import console
from fssl.config import Config, as_tables, expand, first_difference, override, parse, read_toml
from fssl.console import Quiet, brief, numbers
from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.core.images import rows_for_test, shared_format
from fssl.data.dataset import Dataset, Split
from fssl.data.folder.load import load_site
from fssl.data.partition import Partition
from fssl.data.sources import synthetic
from fssl.errors import UserError
from fssl.methods.names import METHODS
from fssl.runner.conduct import run_experiment
from helpers.command import Fssl
from helpers.small import method_of

SMALL = {
    "data": {"name": "folder", "size": 8},
    "model": {"name": "cnn", "width": 1},
    "train": {"rounds": 2, "clients_per_round": 4, "local_epochs": 2, "batch": 4},
    "compute": {"device": "cpu"},
}


@pytest.fixture(scope="session")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four clients: one with everything, one that lacks a class, one without labels, one with labels alone."""
    root = tmp_path_factory.mktemp("own") / "sites"
    _, (images, labels), (tests, truth), *_ = synthetic(num_classes=3, size=16, train_per_class=20, test_per_class=4)
    places = {
        "ann": lambda i: "unlabeled" if i >= 6 else f"labeled/{'abc'[labels[i]]}",
        "bob": lambda i: f"labeled/{'abc'[labels[i]]}" if i < 22 and labels[i] < 2 else "unlabeled",
        "cem": lambda i: "unlabeled",
        "dot": lambda i: f"labeled/{'abc'[labels[i]]}",
    }
    for i, image in enumerate(images):
        name = list(places)[i // 15]
        save(root / "clients" / name / places[name](i) / f"{i:02}.png", image)
    for i, image in enumerate(tests):
        save(root / "test" / "abc"[truth[i]] / f"{i:02}.png", image)
    return root


def save(path: Path, image: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "cache"))


def small(sites: Path, *settings: str) -> Config:
    return parse(override(SMALL, [f"data.dir='{sites}'", *settings]))


@pytest.fixture
def fssl(fssl: Fssl, monkeypatch: pytest.MonkeyPatch) -> Fssl:
    monkeypatch.setattr(console, "_width", 100)
    return fssl


KNOWN = [name for name in METHODS if name != "fedavg-sl"]


@pytest.mark.parametrize("name", [*KNOWN, "flexmatch+sage"])
@pytest.mark.slow
def test_every_method_trains_where_some_have_no_labels_or_nothing_else(name: str, sites: Path, tmp_path: Path) -> None:
    config = small(sites, f"method.name={name}")
    federation = Federation(prepare(config))
    assert [tuple(federation.counts(k)) for k in range(4)] == [(6, 15), (5, 15), (0, 15), (15, 15)]
    summary = run_experiment(prepare(config), tmp_path / "run", Quiet())
    assert summary["rounds"] == 2
    for line in map(json.loads, (tmp_path / "run/rounds.jsonl").read_text().splitlines()):
        assert line["clients"] == [0, 1, 2, 3]
        assert np.isfinite([line["loss_s"], line["loss_u"], line["test"]["train_norm"]["loss"]]).all()
    model = load_file(tmp_path / "run/model.safetensors")
    assert all(np.isfinite(values).all() for values in model.values())


def test_a_client_without_labels_learns_nothing_from_labels(sites: Path, tmp_path: Path) -> None:
    """Client 2 alone has no labels: its supervised loss is exactly nothing."""
    run_experiment(prepare(small(sites, "method.name=fixmatch-lpl")), tmp_path / "run", Quiet())
    l_s = load_file(tmp_path / "run/probes/000001.safetensors")["l_s"]
    assert l_s[2] == 0
    assert (l_s[[0, 1, 3]] > 0).all()


def test_what_needs_true_labels_is_null_and_the_rest_is_not(sites: Path, tmp_path: Path) -> None:
    run_experiment(prepare(small(sites, "method.tau=0.34")), tmp_path / "run", Quiet())
    line = json.loads((tmp_path / "run/rounds.jsonl").read_text().splitlines()[-1])
    unknown = {"pl_accuracy", "pl_accuracy_l", "pl_accuracy_g", "accuracy_l_all", "accuracy_g_all", "fallback_accuracy"}
    unknown |= {f"{name}_sure_{part}" for name in ("lam", "gap") for part in ("majority", "minority")}
    assert unknown <= {name for name, value in line.items() if value is None}
    assert json.loads((tmp_path / "run/partition.json").read_text())["names"] == ["ann", "bob", "cem", "dot"]
    assert line["utilization"] > 0
    assert line["entropy_l"] > 0
    assert line["lam"] > 0
    assert re.fullmatch(r"test [ \d.]{5} % · labels used [ \d.]{4,5} %", numbers(line))  # and not "right – %"
    assert re.fullmatch(r"test [ \d.]{4} % · used [ \d.]{4,5}", brief(line))
    arrays = load_file(tmp_path / "run/probes/000002.safetensors")
    assert not [name for name in (*line["sums"], *line["last_epoch"], *arrays) if "correct" in name]
    assert arrays["labels_by_class"].sum() > 0


@pytest.mark.parametrize("name", ["fedavg-sl", "sage+oracle", "feddure+oracle"])
def test_methods_that_ask_for_true_labels_are_rejected(name: str, sites: Path) -> None:
    with pytest.raises(UserError, match="needs the true label of every image"):
        method_of(small(sites, f"method.name={name}"))


def test_a_run_records_what_its_folder_decided_and_can_be_repeated(fssl: Fssl, sites: Path) -> None:
    where = ("--data-dir", str(sites), "--set", "data.name=folder", "--set", "data.size=8")
    short = ("--set", "train.rounds=2", "--set", "train.clients_per_round=2", "--set", "train.steps_per_round=2")
    assert fssl("run", "smoke", *where, *short)[0] == 0
    stored = parse(read_toml("runs/smoke/config.toml"))
    assert stored.data.classes == ("a", "b", "c")
    assert (stored.partition.clients, stored.data.labels_per_class, stored.data.channels) == (4, None, 3)
    assert stored.data.digest is not None
    assert parse(as_tables(stored)) == stored
    assert fssl("run", "runs/smoke/config.toml", "--out", "runs/again")[0] == 0
    assert Path("runs/smoke/model.safetensors").read_bytes() == Path("runs/again/model.safetensors").read_bytes()
    assert fssl("show", "runs/smoke")[0] == fssl("compare", "runs")[0] == 0


@pytest.mark.slow
def test_settings_that_classes_decide_are_filled_in_with_them(fssl: Fssl, sites: Path) -> None:
    """ProxyFL tunes for 1000 epochs over the number of classes, here 3; the folder says so only when it is read."""
    where = ("--data-dir", str(sites), "--set", "data.name=folder", "--set", "data.size=8", "--out", "runs/x")
    short = ("--set", "train.clients_per_round=2", "--set", "train.steps_per_round=1", "--set", "method.name=proxyfl")
    assert fssl("run", "smoke", *where, *short, "--set", "train.rounds=1")[0] == 0
    stored = parse(read_toml("runs/x/config.toml"))
    assert dict(stored.method.settings)["tuning_epochs"] == 333
    assert method_of(stored) == Federation(prepare(small(sites, "method.name=proxyfl"))).method
    assert fssl("run", "smoke", *where, *short, "--set", "train.rounds=2", "--resume")[0] == 0
    assert fssl("run", "runs/x/config.toml", "--out", "runs/x", "--set", "train.rounds=3", "--resume")[0] == 0


@pytest.mark.slow
def test_a_resumed_run_is_the_same_and_other_images_are_rejected(fssl: Fssl, sites: Path, tmp_path: Path) -> None:
    config = small(sites, "method.name=flexmatch", "train.rounds=3")
    run_experiment(prepare(config), tmp_path / "whole", Quiet())
    run_experiment(prepare(small(sites, "method.name=flexmatch", "train.rounds=1")), tmp_path / "parts", Quiet())
    run_experiment(prepare(config), tmp_path / "parts", Quiet(), resume=True)
    assert (tmp_path / "whole/model.safetensors").read_bytes() == (tmp_path / "parts/model.safetensors").read_bytes()
    copy = shutil.copytree(sites, tmp_path / "copy")
    longer = ("method.name=flexmatch", "train.rounds=4")
    run_experiment(prepare(small(copy, *longer)), tmp_path / "whole", Quiet(), resume=True)  # the same images elsewhere
    next((copy / "clients/cem/unlabeled").iterdir()).unlink()
    with pytest.raises(UserError, match=r"contains another run: data\.digest is '\w{16}' there and '\w{16}' here"):
        run_experiment(prepare(small(copy, *longer)), tmp_path / "parts", Quiet(), resume=True)


@pytest.mark.parametrize("crop", ["pad", "resize"])
def test_a_site_trains_by_itself_as_it_does_among_all(sites: Path, crop: str) -> None:
    """What a deployed site computes from its own folder: the same plan and the same images."""
    config = small(sites, f"data.crop={crop}")
    everyone = Federation(prepare(config))
    agreed = shared_format(everyone.config)
    for k, name in enumerate(("ann", "bob", "cem", "dot")):
        site = Federation(prepare(everyone.config, load_site(sites / "clients" / name, agreed, k, 4)))
        even = small(sites, "train.steps_per_round=2")  # for those whose images are elsewhere as well
        assert Federation(prepare(even, load_site(sites / "clients" / name, agreed, k, 4))).longest_plan().client == k
        ours, theirs = site.plan(1, k), everyone.plan(1, k)
        assert ours.counts == theirs.counts
        assert ours.draw.u_slot.tolist() == theirs.draw.u_slot.tolist()
        for row in ("x_row", "u_row"):
            mine, same = getattr(ours.draw, row), getattr(theirs.draw, row)
            assert site.pool.images[mine].equal(everyone.pool.images[same])
            assert site.pool.labels[mine].equal(everyone.pool.labels[same])


def test_a_site_weighs_its_classes_by_itself_as_it_does_among_all(sites: Path) -> None:
    """Ann has as many labels of each class, Bob of one class alone, Cem none; Dot has 5, 3 and 7."""
    everyone = Federation(prepare(small(sites, "train.class_weights=1")))
    agreed = shared_format(everyone.config)
    for k, name in enumerate(("ann", "bob", "cem", "dot")):
        site = Federation(prepare(everyone.config, load_site(sites / "clients" / name, agreed, k, 4)))
        ours, theirs = (f.plan(1, k).draw.extras["class_weights"][0].tolist() for f in (site, everyone))
        counts = np.bincount(site.dataset.train.labels[site.dataset.train.labels >= 0], minlength=3)
        assert ours == theirs == pytest.approx([counts.sum() / (np.sum(counts > 0) * n) if n else 1 for n in counts])
        assert (len(set(ours)) > 1) == (name == "dot")


def test_a_site_without_test_images_trains_whatever_the_server_tests_with(sites: Path) -> None:
    config = small(sites, "data.test=tuning")
    agreed = shared_format(Federation(prepare(config)).config)
    site = Federation(prepare(config, load_site(sites / "clients/ann", agreed, 0, 4)))
    assert len(site.dataset.test.labels) == 0
    assert site.plan(1, 0).counts.pool > 0
    with pytest.raises(UserError, match="'tuning': 0 test images are too few for two halves"):
        _ = site.test


# Settings.


def test_all_sites_take_part_unless_the_settings_say_otherwise(sites: Path) -> None:
    folder = ["data.name=folder", "data.size=8", f"data.dir='{sites}'", "compute.device=cpu"]
    for settings, expected in (([], 4), (["train.clients_per_round=2"], 2)):
        config = parse(override(read_toml("smoke"), [*folder, *settings]))
        complete = prepare(config).config
        assert (complete.partition.clients, complete.train.clients_per_round) == (4, expected)
        assert parse(as_tables(complete)) == complete
        assert prepare(parse(as_tables(config))).config == complete  # also of settings that are not complete yet


@pytest.mark.parametrize(
    ("settings", "fragment"),
    [
        (["train.clients_per_round=5"], "train.clients_per_round = 5: there are only 4 client folders"),
        (["partition.clients=5"], "partition.clients = 5, but there are 4 client folders"),
        (["data.digest=abc"], "data.digest = 'abc'"),
        (["data.classes=['a', 'b']"], "labeled/c: 'c' is not one of the agreed classes"),
    ],
)
def test_a_folder_that_does_not_fit_is_rejected(sites: Path, settings: list[str], fragment: str) -> None:
    with pytest.raises(UserError) as refused:
        Federation(prepare(small(sites, *settings)))
    assert fragment in str(refused.value)


@pytest.mark.parametrize(
    ("key", "value", "fragment"),
    [
        ("partition.alpha", 0.1, "partition.alpha = 0.1 has no effect with data.name = 'folder'"),
        ("partition.kind", "iid", "partition.kind = 'iid' has no effect with data.name = 'folder'"),
        ("data.labels_per_class", 5, "data.labels_per_class = 5 has no effect with data.name = 'folder'"),
        ("data.label_fraction", 0.5, "data.label_fraction = 0.5 has no effect with data.name = 'folder'"),
        ("data.size", 257, "from 8 to 256"),
        ("data.channels", 2, "3 (color) or 1 (grey)"),
        ("data.classes", "cat", "expected a list of strings"),
        ("data.classes", ["cat", 5], "expected a list of strings"),
        ("data.classes", ["cat"], "at least two different names"),
        ("data.classes", ["cat", "dog", "cat"], "at least two different names"),
        ("data.classes", ["cat", "d\nog"], "at least two different names"),
        ("data.classes", ["Ba\u0308r", "B\u00e4r"], "at least two different names"),
        ("data.mean", [0.5], "expected 3 numbers from 0 to 1"),
        ("data.std", [0.5, 0.5, 0], "expected 3 numbers from 1e-06 to 1"),
        ("data.mean", [0.5, 0.5, float("nan")], "data.mean = nan: expected a finite number"),
        ("data.mean", [True, 0.5, 0.5], "expected a list of numbers"),
    ],
)
def test_settings_that_do_not_fit_a_folder_are_rejected(key: str, value: Any, fragment: str) -> None:
    section, _, name = key.partition(".")
    tables = {"data": {"name": "folder"}}
    tables.setdefault(section, {})[name] = value
    with pytest.raises(UserError) as refused:
        parse(tables)
    assert fragment in str(refused.value)


@pytest.mark.parametrize(
    ("channels", "value", "expected"),
    [
        (1, 0.5, "data.mean = 0.5: expected a list of 1 number, one per channel, like [0.5]"),
        (3, 0.5, "data.mean = 0.5: expected a list of 3 numbers, one per channel, like [0.5, 0.5, 0.5]"),
        (1, [0.5] * 3, "data.mean = [0.5, 0.5, 0.5]: expected 1 number from 0 to 1, one per channel, like [0.5]"),
        (3, [0.5], "data.mean = [0.5]: expected 3 numbers from 0 to 1, one per channel, like [0.5, 0.5, 0.5]"),
    ],
)
def test_what_each_channel_has_is_asked_for_with_an_example_that_fits(channels: int, value: Any, expected: str) -> None:
    with pytest.raises(UserError) as refused:
        parse({"data": {"name": "folder", "channels": channels, "mean": value}})
    assert str(refused.value) == expected


def test_settings_of_a_folder_are_rejected_elsewhere() -> None:
    with pytest.raises(
        UserError,
        match=r"data\.size = 16 has no effect with data\.name = 'digits'; remove it, "
        r"or use 'folder', 'imagefolder' or 'elpv'",
    ):
        parse({"data": {"name": "digits", "size": 16}})


def test_a_folder_chosen_on_the_command_line_takes_the_place_of_what_a_file_deals_out() -> None:
    tables = override(read_toml("smoke"), ["data.name=folder"])
    (config,) = (config for _, config in expand(tables))
    assert (config.data.labels_per_class, config.partition.clients, config.train.rounds) == (None, 0, 8)
    grid = {"data": {"size": 9}, "grid": {"partition": {"alpha": [0.1, 1.0]}, "seed": [7, 8]}}
    assert [name for name, _ in expand(override(grid, ["data.name=folder"]))] == ["seed7", "seed8"]
    assert list(override(grid, ["data.name=digits"])["data"]) == ["name"]
    with pytest.raises(UserError, match=r"partition\.alpha = 1 has no effect with data\.name = 'folder'"):
        parse(override(read_toml("smoke"), ["data.name=folder", "partition.alpha=1"]))


def test_either_way_of_counting_labels_takes_the_place_of_the_other() -> None:
    """138 digits a class: a fifth of them is 28."""
    assert parse(override(read_toml("smoke"), ["data.label_fraction=0.2"])).labels_per_class == 28
    assert parse(override({"data": {"label_fraction": 0.2}}, ["data.labels_per_class=9"])).labels_per_class == 9
    with pytest.raises(UserError, match="exclude each other"):
        parse(override({}, ["data.labels_per_class=9", "data.label_fraction=0.2"]))
    axis = {"grid": {"data": [{"name": "digits", "labels_per_class": 5}, {"name": "synthetic", "labels_per_class": 6}]}}
    found = {name: config.labels_per_class for name, config in expand(override(axis, ["data.label_fraction=0.5"]))}
    assert found == {"digits": 69, "synthetic": 50}


def test_settings_decided_by_a_folder_may_be_left_open_on_resume(sites: Path) -> None:
    found, again = prepare(small(sites)).config, prepare(small(sites))
    assert first_difference(found, again.config, again.defaults) is None
    other = prepare(small(sites, "data.classes=['c', 'b', 'a']"))
    assert "data.classes" in str(first_difference(found, other.config, other.defaults))


# Fssls.


def test_a_dry_run_names_the_problems(fssl: Fssl, sites: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(sites, tmp_path / "copy")
    (copy / "clients/ann/labeled/a/x.png").write_bytes(b"nothing")
    (copy / "clients/bob/labelled").mkdir()
    code, out, err = fssl("run", "smoke", "--set", "data.name=folder", "--data-dir", str(copy), "--dry-run")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        f"fssl: '{copy}' cannot be used, 2 problems:",
        "fssl:   clients/bob/labelled: did you mean 'labeled'?",
        "fssl:   clients/ann/labeled/a/x.png: not a PNG, JPEG, WebP, TIFF, BMP or DICOM image",
    ]
    assert not Path("runs").exists()
    code, out, err = fssl("datasets", "--check", str(copy))
    assert code == 2
    assert re.search(r"│ cem +│ – +│ +15 │", out)
    assert len(err.splitlines()) == 3


def test_a_dry_run_knows_how_many_clients_a_method_needs(fssl: Fssl, sites: Path) -> None:
    words = ["--set", "data.name=folder", "--data-dir", str(sites), "--dry-run"]
    code, _, err = fssl("run", "smoke", *words, "--set", "method.name=fedmatch", "--set", "method.helpers=9")
    assert (code, "needs at least 10 clients" in err) == (2, True)


def test_a_check_counts_images_by_client_and_class(fssl: Fssl, sites: Path) -> None:
    code, out, _ = fssl("datasets", "--check", str(sites))
    assert code == 0
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    by_client = {row[0]: row[1:] for row in rows}
    assert [by_client[name][1] for name in ("ann", "bob", "cem", "dot")] == ["9", "10", "15", "0"]
    assert by_client["dot"][0].startswith("15 (a: ")
    assert by_client["(server)"][2] == "12 (a: 4 · b: 4 · c: 4)"
    assert "3 classes: a, b, c. No problems." in out
    code, out, _ = fssl("datasets", "--check", str(sites / "clients/bob"))
    assert code == 0
    assert "bob" in out
    code, out, _ = fssl("datasets", "--check", str(sites / "clients/cem"))
    assert code == 0
    assert out.splitlines()[-1] == "No labels: this site trains only on unlabeled images. No problems."


def test_a_site_is_held_against_the_classes_of_a_run(fssl: Fssl, sites: Path, tmp_path: Path) -> None:
    """Of which only the list is looked at: the method of this one is a file that the site does not have."""
    site, agreed = sites / "clients/bob", tmp_path / "agreed.toml"

    def checked(classes: str, folder: Path = site) -> tuple[int, str, str]:
        agreed.write_text(f'[method]\nname = "theirs.py:theirs"\n[data]\nname = "folder"\n{classes}')
        code, out, err = fssl("datasets", "--check", str(folder), "--classes-of", str(agreed))
        return code, " ".join(out.rpartition("┘")[2].split()), err

    found = "1 of 4 agreed classes: b; without labeled images, which is allowed: c, a, d. No problems."
    assert checked('classes = ["c", "b", "a", "d"]') == (0, found, "")
    assert checked('classes = ["a", "b", "c"]', sites)[:2] == (0, "3 of 3 agreed classes: a, b, c. No problems.")
    code, _, err = checked('classes = ["a", "c"]')
    assert (code, err.splitlines()) == (
        2,
        [
            f"fssl: '{site}' cannot be used, 1 problem:",
            "fssl:   labeled/b: 'b' is not one of the agreed classes; expected one of a, c",
        ],
    )
    agreed_on = 'list the classes of all sites, e.g. ["cat", "dog"]'
    assert checked("") == (2, "", f"fssl: {agreed}: data.classes is missing; {agreed_on}\n")
    assert checked('classes = "a"')[2].startswith(f"fssl: {agreed}: data.classes = 'a': expected a list of strings")
    both = f"fssl: {agreed}: data.classes = ['a', 'a']: expected at least two different names\n"
    assert checked('classes = ["a", "a"]') == (2, "", both)
    assert (
        fssl("datasets", "--classes-of", str(agreed)).err
        == "fssl: --classes-of has no effect without --check FOLDER; add it\n"
    )


@pytest.mark.slow
def test_a_server_with_labels_trains_with_sites_that_have_none(fssl: Fssl) -> None:
    """The same folder counted, tried, trained and resumed; what it has decides the server's batch."""
    assert fssl("datasets", "--export-digits", "sites", "--labels-at-server")[0] == 0
    code, out, _ = fssl("datasets", "--check", "sites")
    assert (code, out.count("100 (0: 10")) == (0, 1)
    words = ["run", "smoke", "--set", "data.name=folder", "--set", "data.size=8", "--set", "data.channels=1"]
    words += ["--data-dir", "sites", "--out", "runs/own", "--set", "partition.labels=server"]
    assert fssl(*words, "--set", "train.rounds=1")[0] == 0
    assert fssl("run", "runs/own", "--resume", "--set", "train.rounds=3")[0] == 0
    lines = [json.loads(line) for line in Path("runs/own/rounds.jsonl").read_text().splitlines()]
    assert [line["server_steps"] for line in lines] == [50] * 3  # 5 epochs of 100 images in tens
    assert lines[-1]["server_loss"] < lines[0]["server_loss"]
    recorded = Path("runs/own/config.toml").read_text()
    assert 'labels = "server"' in recorded
    assert json.loads(Path("runs/own/partition.json").read_text())["server"] == [10] * 10
    code, _, err = fssl(*words[:-1], "partition.labels=few-clients", "--set", "partition.labeled_clients=1")
    assert (code, "has no effect with data.name = 'folder'" in err) == (2, True)
    code, _, err = fssl("datasets", "--labels-at-server")
    assert (code, err.count("\n")) == (2, 1)


@pytest.mark.parametrize(("number", "batch"), [(1000, 10), (1001, 250)])
def test_a_server_with_many_images_takes_larger_steps(number: int, batch: int, sites: Path) -> None:
    config = small(sites, "partition.labels=server", "partition.clients=2", "train.clients_per_round=2")
    rows = np.arange(number) + 2
    image = np.zeros((number + 2, 8, 8, 3), np.uint8)
    labels = np.concatenate(([-1, -1], rows % 3))
    nothing = rows[:0]
    held = Partition((nothing, nothing), (np.zeros(1, np.int64), np.ones(1, np.int64)), rows)
    split = Split(image, labels)
    dataset = Dataset(shared_format(config)._replace(classes=("a", "b", "c")).card(number + 2, 3), split, split, held)
    assert prepare(config, dataset).config.server.batch == batch
    assert (
        prepare(
            small(
                sites, "partition.labels=server", "server.batch=7", "partition.clients=2", "train.clients_per_round=2"
            ),
            dataset,
        ).config.server.batch
        == 7
    )


@pytest.mark.slow
def test_the_digits_can_be_written_out_and_trained_on(fssl: Fssl) -> None:
    assert fssl("datasets", "--export-digits", "sites")[0] == 0
    words = ("--set", "data.name=folder", "--set", "data.size=8", "--set", "data.channels=1", "--data-dir", "sites")
    assert fssl("run", "smoke", *words, "--set", "train.rounds=1")[0] == 0
    line = json.loads(Path("runs/smoke/rounds.jsonl").read_text())
    assert line["accuracy"] > 15
    code, _, err = fssl("datasets", "--export-digits", "sites")
    assert code == 2
    assert "already exists" in err


def test_clients_with_test_images_of_their_own_have_measures_of_their_own(
    fssl: Fssl, sites: Path, tmp_path: Path
) -> None:
    """By the same model as the test of all: what `predict` says of a client's folder."""
    root = tmp_path / "own-tests"
    shutil.copytree(sites, root)
    for client, count in {"ann": 2, "dot": 1}.items():
        for label in "abc":
            for file in sorted((root / "test" / label).iterdir())[:count]:
                save(root / "clients" / client / "test" / label / file.name, np.array(Image.open(file)))
    run_experiment(prepare(small(root, "records.metrics=macro_f1")), tmp_path / "run", Quiet())
    model = json.loads((tmp_path / "run/measures.json").read_text())["models"]["plain"]
    assert {client: facts["images"] for client, facts in model["clients"].items()} == {"0": 6, "3": 3}
    assert sum(map(sum, model["test"]["confusion"])) == 12 + 6 + 3
    for client, name in {"0": "ann", "3": "dot"}.items():
        fssl("predict", tmp_path / "run", root / "clients" / name / "test", "--out", f"{name}.csv", "--measures", name)
        alone = json.loads((Path(name) / "measures.json").read_text())
        keys = ("accuracy", "balanced_accuracy", "macro_f1", "auroc", "ece")
        assert {k: model["clients"][client][k] for k in keys} == pytest.approx({k: alone[k] for k in keys}, rel=1e-4)
    shown = fssl("show", tmp_path / "run").out
    assert "macro F1 on the 6 test images of client 0" in shown


@pytest.mark.slow
def test_a_report_finds_nothing_wrong_with_what_cannot_be_known(fssl: Fssl, sites: Path, tmp_path: Path) -> None:
    run_experiment(prepare(small(sites)), tmp_path / "run", Quiet())
    code, _, said = fssl("report", tmp_path / "run", "--out", "page.html")
    assert (code, said) == (0, "")
    (tmp_path / "run/probes/000002.safetensors").write_bytes(b"no probes")
    assert "1 note on the records" in fssl("report", tmp_path / "run", "--out", "page.html").err


def test_a_validation_part_of_own_images_is_held_out(sites: Path) -> None:
    plain, held = (Federation(prepare(small(sites, *words))) for words in ([], ["data.validation=0.2"]))
    assert len(plain.holdings.held_out) == 0
    before, after = ([tuple(f.counts(k)) for k in range(4)] for f in (plain, held))
    assert sum(x for x, _ in before) - sum(x for x, _ in after) == len(held.holdings.held_out) > 0
    assert (plain.dataset.train.labels[held.holdings.held_out] >= 0).all()
    assert after[2] == before[2]  # who has no labels keeps all images


def test_a_patient_s_test_images_are_in_one_half(fssl: Fssl, sites: Path, tmp_path: Path) -> None:
    """Six patients with images of two classes each, at the server and at a client; the halves make the whole."""
    root = tmp_path / "patients"
    shutil.copytree(sites, root)
    for place in ("test", "clients/ann/test"):
        for c, label in enumerate("abc"):
            for i, file in enumerate(sorted((sites / "test" / label).iterdir())):
                where = root / place / label / f"p{(i // 2 + c) % 3}" / file.name
                save(where, np.array(Image.open(file)))
                (root / place / label / file.name).unlink(missing_ok=True)
    halves = {part: Federation(prepare(small(root, f"data.test={part}"))) for part in ("tuning", "final")}
    data = halves["final"].dataset
    groups = data.test_groups
    assert groups is not None
    assert len(set(groups)) == 6
    rows = {part: rows_for_test(f.config, data) for part, f in halves.items()}
    assert sorted(np.concatenate([*rows.values()])) == list(range(24))
    assert not set(groups[rows["tuning"]]) & set(groups[rows["final"]])
    assert [np.bincount(f.test.labels).tolist() for f in halves.values()] == [[4, 4, 4]] * 2
    run_experiment(prepare(small(root, "data.test=final")), tmp_path / "run", Quiet())
    assert fssl("predict", tmp_path / "run").code == 0
    names = [line.partition(",")[0] for line in Path("predictions.csv").read_text().splitlines()[1:]]
    assert data.test_names is not None
    assert names == [data.test_names[row] for row in rows["final"]]
    assert all((root / name).is_file() for name in names)
    assert [name.split("/")[-3] for name in names] == ["abc"[label] for label in halves["final"].test.labels]


def test_patients_that_are_too_few_for_two_halves_are_rejected(sites: Path) -> None:
    """One patient of each class: all are in the first half, where it makes no difference."""
    federation = Federation(prepare(small(sites, "data.test=final")))
    data = federation.dataset._replace(test_groups=federation.dataset.test.labels)
    assert len(rows_for_test(small(sites, "data.test=tuning"), data)) == 12
    with pytest.raises(
        UserError, match=r"'final': 12 test images of 3 groups \(folders of patients, say\) are too few"
    ):
        rows_for_test(federation.config, data)


def test_a_test_of_one_class_has_no_area_to_be_judged_by(fssl: Fssl, sites: Path, tmp_path: Path) -> None:
    shutil.copytree(sites, tmp_path / "one")
    for label in "bc":
        shutil.rmtree(tmp_path / "one/test" / label)
    config = small(tmp_path / "one", "records.metrics=auroc")
    with pytest.raises(UserError, match="'auroc' is undefined: all test images have the same class"):
        run_experiment(prepare(config), tmp_path / "run", Quiet())
    run_experiment(prepare(small(tmp_path / "one")), tmp_path / "run", Quiet())
    assert json.loads((tmp_path / "run/measures.json").read_text())["models"]["plain"]["test"]["auroc"] is None
