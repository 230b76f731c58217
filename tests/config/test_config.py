"""Settings: what is read, what is rejected and in which words, and what makes two runs the same."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fssl.config import (
    Config,
    as_tables,
    by_card,
    check_size,
    expand,
    first_difference,
    num_runs,
    only_run,
    override,
    parse,
    presets,
    read_toml,
    schema_of,
    to_toml,
)
from fssl.config.conditions import NOTES, RULES, SCHEMAS, applies, is_usual, noted
from fssl.config.rules import Decided
from fssl.config.settings import ENGINE, STEPS, PartitionChoice
from fssl.data.cards import CARDS
from fssl.data.shares import HAVE_ALPHA, MIN_ALPHA
from fssl.errors import UserError, unknown
from fssl.methods.names import METHODS, PLUGINS
from helpers.small import completed, method_of


def cells(tables: dict[str, Any]) -> dict[str, Config]:
    return dict(expand(tables))


def test_an_empty_configuration_is_the_default() -> None:
    assert parse({}) == Config()


def test_settings_arrive_with_their_types() -> None:
    config = parse({"seed": 3, "train": {"lr": 1, "batch": 5}, "data": {"flip": False}, "method": {"tau": 0.9}})
    assert (config.seed, config.train.lr, config.train.batch, config.data.flip) == (3, 1.0, 5, False)
    assert isinstance(config.train.lr, float)
    assert config.method.settings == (("tau", 0.9),)


def test_what_the_dataset_decides_is_filled_in() -> None:
    """Ten percent of CIFAR-100's 500 a class are 50; of SVHN's, counted as 4,600, 460; the paper's rounds."""
    for name, labels, rounds in (("cifar100", 50, 500), ("svhn", 460, 150), ("cifar10", 500, 300)):
        config = by_card(parse({"data": {"name": name}}))
        assert (config.data.labels_per_class, config.data.label_fraction) == (labels, None)
        assert config.train.rounds == rounds
    assert parse({"data": {"name": "cifar100", "label_fraction": 0.02}}).labels_per_class == 10
    few = {"data": {"name": "digits", "label_fraction": 0.001}, "partition": {"clients": 8}}
    assert parse(few).labels_per_class == 1


WRONG: list[tuple[str, Any, tuple[str, ...]]] = [
    # key, value, fragments of the message
    ("sed", 7, ("'sed'", "did you mean 'seed'?")),
    ("trian", {}, ("'trian'", "did you mean 'train'?")),
    ("lr", 0.1, ("did you mean 'train.lr' or 'server.lr'?",)),
    ("train.lrr", 0.1, ("[train]", "'lrr'", "did you mean 'lr'?", "known: batch")),
    ("train.alpha", 0.1, ("did you mean 'partition.alpha'?",)),
    ("train.seed", 0.1, ("did you mean 'seed' or 'partition.seed'?",)),
    ("train", 5, ("'train' is a section",)),
    ("seed", "7", ("seed = '7'", "whole number")),
    ("seed", 1.5, ("seed = 1.5", "whole number")),
    ("seed", "7,8, 9", ("seed = '7,8, 9'", "for several runs use 'grid.seed=[7, 8, 9]'")),
    ("grid", {"seed": [7, 8]}, ("'grid' describes several runs", "`expand`")),
    ("seed", True, ("seed = true", "whole number")),
    ("seed", -1, ("seed = -1", "from 0 to 2147483647")),
    ("seed", 2**31, ("seed = 2147483648",)),
    ("train.lr", float("nan"), ("train.lr = nan", "from 0 upwards")),
    ("train.lr", float("inf"), ("train.lr = inf", "from 0 to 1e+30")),
    ("train.lr", 10**400, ("train.lr = 1000", "from 0 to 1e+30")),
    ("train.lr", "fast", ("train.lr = 'fast'", "expected a number")),
    ("train.lr", {"x": 1}, ("train.lr = {'x': 1}",)),
    ("train.momentum", 1, ("from 0 to 0.9999",)),
    ("train.rounds", 0, ("train.rounds = 0", "from 1 to 999999")),
    ("train.epochs", 3, ("key in [train] 'epochs'", "did you mean 'train.local_epochs' or 'server.epochs'?")),
    ("train.round", 3, ("did you mean 'train.rounds'?",)),
    ("train.clients", 3, ("did you mean 'train.clients_per_round' or 'partition.clients'?",)),
    ("train.learning_rate", 0.1, ("did you mean 'train.lr'?",)),
    ("server.learning_rate", 0.1, ("did you mean 'server.lr'?",)),
    ("train.batch_size", 8, ("did you mean 'train.batch'?",)),
    ("train.l", 1, ("'l' is unknown (known: batch",)),  # four begin with it
    ("partition.client", 1, ("did you mean 'partition.clients'?",)),
    ("train.precision", "fp16", ("train.precision 'fp16'", "did you mean 'bf16'?")),
    ("data.name", "cifar11", ("data.name 'cifar11'", "did you mean 'cifar10'?")),
    ("data.name", 5, ("data.name '5'", "known: cifar10")),
    ("data.flip", 1, ("data.flip = 1", "true or false")),
    ("data.crop", "resized", ("data.crop 'resized'", "did you mean 'resize'?")),
    ("data.dir", 5, ("data.dir = 5", "a string")),
    ("data.label_fraction", 0, ("data.label_fraction = 0",)),
    ("data.labels_per_class", 139, ("data.labels_per_class = 139", "at most 138", "digits")),
    ("method.name", 5, ("method.name = 5", "a string")),
    ("model.name", "resnet9", ("did you mean 'resnet8'?",)),
    ("model.width", 65, ("model.width = 65", "from 1 to 64")),
    ("partition.clients", 6, ("train.clients_per_round = 8", "partition.clients = 6")),
    ("partition.clients", 142, ("partition.clients = 142", "140 labeled images")),
    ("partition.alpha", 0.001, ("partition.alpha = 0.001", "at least 0.01", "iid")),
    ("partition.kind", "iidd", ("did you mean 'iid'?",)),
    ("compute.device", "gpu", ("compute.device 'gpu'", "did you mean 'cuda'?")),
    ("records.metrics", "f1", ("records.metrics 'f1'", "did you mean 'macro_f1'?")),
    ("compute.lanes", 17, ("from 1 to 16",)),
    ("protocol", "author", ("did you mean 'authors'?",)),
    ("records.checkpoint_every", 0, ("from 1 to 999999",)),
]


@pytest.mark.parametrize(("key", "value", "fragments"), WRONG)
def test_a_wrong_setting_is_rejected_in_one_helpful_line(key: str, value: Any, fragments: tuple[str, ...]) -> None:
    section, dot, name = key.rpartition(".")
    with pytest.raises(UserError) as refused:
        parse({section: {name: value}} if dot else {key: value})
    message = str(refused.value)
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message


@pytest.mark.parametrize(
    ("tables", "fragment"),
    [
        ({"data": {"labels_per_class": 5, "label_fraction": 0.1}}, "exclude each other"),
        ({"partition": {"kind": "dirichlet", "alpha": 0}}, "partition.kind = 'iid'"),
        ({"partition": {"kind": "dirichlet", "clients": 1438}}, "1437 images are too few"),
        (
            {"partition": {"kind": "balanced-dirichlet", "alpha": 0}},
            "expected at least 0.01 with partition.kind = 'balanced-dirichlet'",
        ),
        ({"partition": {"kind": "shards"}}, "needs partition.classes_per_client"),
        (
            {"partition": {"kind": "shards", "classes_per_client": 3, "clients": 21}},
            "would get 63 shards; expected a multiple of the 10",
        ),
        (
            {"partition": {"classes_per_client": 2}},
            "= 2 has no effect with partition.kind = 'paired-dirichlet'; remove it, or use 'shards'",
        ),
        ({"partition": {"labels": "few-clients"}}, "needs partition.labeled_clients"),
        (
            {"partition": {"labels": "all-clients", "labeled_clients": 2}},
            "has no effect with partition.labels = 'all-clients'; remove it, or use 'few-clients' or 'knowing-clients'",
        ),
        (
            {"partition": {"labeled_clients": 2, "first_clients": [1]}},
            "has no effect with partition.labels = 'few-clients'; remove it, or use 'knowing-clients'",
        ),
        (
            {"partition": {"labels": "knowing-clients", "labeled_clients": 1, "first_clients": [20]}},
            r"partition.first_clients = \[20\]: expected clients from 0 to 19",
        ),
        (
            {"partition": {"labels": "knowing-clients", "labeled_clients": 1, "first_clients": [2, -1]}},
            r"partition.first_clients = \[2, -1\]: expected clients from 0 to 19",
        ),
        (
            {"partition": {"labels": "knowing-clients", "labeled_clients": 2, "first_clients": [3, 3]}},
            "expected each client once",
        ),
        ({"partition": {"labels": "knowing-clients", "labeled_clients": 21}}, "expected at most the 20 clients"),
        (
            {"partition": {"labels": "knowing-clients", "labeled_clients": 2}, "data": {"label_fraction": 0.2}},
            "data.label_fraction = 0.2 has no effect with partition.labels = 'knowing-clients'",
        ),
        (
            {"partition": {"labels": "knowing-clients"}},
            "'knowing-clients' needs partition.labeled_clients: their number",
        ),
        (
            {"data": {"name": "folder"}, "partition": {"labels": "knowing-clients"}},
            "partition.labels = 'knowing-clients' has no effect with data.name = 'folder'",
        ),
        (
            {"data": {"name": "folder"}, "partition": {"labels": "all-clients"}},
            "partition.labels = 'all-clients' has no effect with data.name = 'folder': its folders decide",
        ),
        (
            {"protocol": "authors", "compute": {"lanes": 2}},
            "compute.lanes = 2 does not work with protocol = 'authors': it carries momentum",
        ),
        (
            {"protocol": "authors", "train": {"labeled_weight": 5}},
            "train.labeled_weight = 5 does not work with protocol = 'authors'",
        ),
        (
            {"model": {"start_partial": True}},
            "model.start_partial = true has no effect with model.start = 'none'; remove it, or give model.start",
        ),
    ],
)
def test_impossible_combinations_are_rejected(tables: dict[str, Any], fragment: str) -> None:
    with pytest.raises(UserError, match=fragment):
        parse(tables)


def test_a_number_of_labeled_clients_alone_means_few_clients() -> None:
    """As in records that are older than the choice; these are also written as they were."""
    few = parse({"partition": {"labeled_clients": 2}})
    assert (few.partition.labels, parse({}).partition.labels) == ("few-clients", "all-clients")
    assert few == parse({"partition": {"labeled_clients": 2, "labels": "few-clients"}})
    assert not {"labels", "classes_per_client"} & {*as_tables(few)["partition"], *as_tables(Config())["partition"]}


def test_clients_that_know_all_their_labels_need_no_number_of_them() -> None:
    settings = ["partition.labels=knowing-clients", "partition.labeled_clients=2"]
    config = parse(override(read_toml("smoke"), settings))  # the preset has labels_per_class
    assert (config.picks_labels, config.data.labels_per_class) == (False, None)
    assert by_card(config).data.labels_per_class is None
    assert parse(as_tables(by_card(config))) == by_card(config)
    photos = {"data": {"name": "imagefolder", "dir": "photos"}}
    assert parse(override(photos, settings)).partition.labels == "knowing-clients"


def test_the_lowest_alpha_is_the_one_the_partition_can_draw() -> None:
    assert parse({"partition": {"alpha": MIN_ALPHA}}).partition.alpha == 0.01
    with pytest.raises(
        UserError,
        match=r"partition\.alpha = 0\.0099: expected at least 0\.01 with partition\.kind = 'paired-dirichlet'",
    ):
        parse({"partition": {"alpha": 0.0099}})
    even = parse({"partition": {"alpha": 0, "kind": "paired-dirichlet"}}).partition  # which reads it as even
    assert (even.kind, even.alpha) == ("paired-dirichlet", 0)


def test_nearest_names_are_given_only_where_one_is_near() -> None:
    assert str(unknown("method", "flexmatc", ["flexmatch", "sage"])) == (
        "method 'flexmatc' is unknown; did you mean 'flexmatch'? (known: flexmatch, sage)"
    )
    assert str(unknown("method", "xyz", ["flexmatch"])) == "method 'xyz' is unknown (known: flexmatch)"
    many = [*map(str, range(40)), "flexmatch"]
    assert str(unknown("method", "flexmatc", many)) == "method 'flexmatc' is unknown; did you mean 'flexmatch'?"
    assert "(known: 0, 1, 10," in str(unknown("method", "xyz", many))


def test_overrides_are_toml_or_text_and_leave_the_original_alone() -> None:
    tables = {"train": {"lr": 0.1}}
    out = override(tables, ["train.lr=0.5", "method.name=fedavg", "data.flip=false", "seed = 9", "data.dir='7'"])
    assert out == {
        "train": {"lr": 0.5},
        "method": {"name": "fedavg"},
        "data": {"flip": False, "dir": "7"},
        "seed": 9,
    }
    assert tables == {"train": {"lr": 0.1}}


def test_an_alpha_is_rejected_with_a_split_that_has_none() -> None:
    assert {*HAVE_ALPHA, "shards", "iid", "natural"} == {*schema_of(PartitionChoice)["kind"].options}
    has_none = "has no effect with partition.kind = 'iid'; remove it, or use 'paired-dirichlet', 'dirichlet' or"
    for alpha in ("0.5", "1"):  # also the default, since it was given on purpose
        with pytest.raises(UserError, match=rf"partition.alpha = {alpha} {has_none}"):
            parse(override({}, [f"partition.alpha={alpha}", "partition.kind=iid"]))
        with pytest.raises(UserError, match=rf"partition.alpha = {alpha} {has_none}"):
            parse({"partition": {"alpha": float(alpha), "kind": "iid"}})
    with pytest.raises(UserError, match=rf"partition.alpha = 0.5 {has_none}"):
        cells(override({}, ["grid.partition.alpha=[0.5]", "partition.kind=iid"]))
    with pytest.raises(UserError, match=r"partition.alpha = 0.5 has no effect with partition.kind = 'shards'"):
        parse(override({"partition": {"kind": "shards", "classes_per_client": 2}}, ["partition.alpha=0.5"]))


def test_an_alpha_of_a_file_gives_way_to_a_split_that_has_none() -> None:
    preset = {"partition": {"kind": "dirichlet", "alpha": 0.1}}
    assert override(preset, ["partition.kind=iid"]) == {"partition": {"kind": "iid"}}
    assert parse(override(preset, ["partition.kind=iid"])).partition.kind == "iid"
    assert parse(override(preset, ["partition.alpha=0.5"])).partition.alpha == 0.5
    assert "alpha" not in as_tables(parse({"partition": {"kind": "iid"}}))["partition"]
    both = override(preset, ["partition.alpha=0.5", 'grid.partition.kind=["dirichlet", "iid"]'])
    assert [(c.partition.kind, c.partition.alpha) for _, c in expand(both)] == [("dirichlet", 0.5), ("iid", 1.0)]


def test_epochs_are_rejected_with_steps_and_those_of_a_file_are_replaced() -> None:
    said = r"train.local_epochs = \d has no effect with train.steps_per_round = 2"
    for settings in (["train.local_epochs=5"], ["train.local_epochs=3"], ["grid.train.local_epochs=[5, 1]"]):
        with pytest.raises(UserError, match=said):
            cells(override({}, [*settings, "train.steps_per_round=2"]))
        with pytest.raises(UserError, match=said):
            cells(override({"train": {"steps_per_round": 2}}, settings))
    preset = override({"train": {"local_epochs": 5}}, ["train.steps_per_round=2"])
    assert preset == {"train": {"steps_per_round": 2}}
    assert parse(preset).train.steps_per_round == 2


# Rules.


def test_rules_name_settings_and_values_that_there_are() -> None:
    known = {"seed", "protocol", *(f"{section}.{key}" for section, schema in SCHEMAS.items() for key in schema)}
    assert {key for key in NOTES if key and key not in SCHEMAS} <= known
    decided = [(case, note) for _, note in noted(Decided) for case in note.cases]
    assert len(decided) > 90
    assert {case.key for case, _ in decided} - known == {ENGINE, STEPS}
    for case, _ in decided:
        if case.key in known and "." in case.key and (options := options_of(case.key)):
            assert {value for value in case.values if isinstance(value, str)} <= {*options}, case


def options_of(key: str) -> tuple[str, ...]:
    section, _, name = key.partition(".")
    return SCHEMAS[section][name].options


def test_a_usual_configuration_breaks_no_rule() -> None:
    """Else a default would be rejected, and `as_tables` could not be read again."""
    strict = {key: kept for key, rules in RULES.items() if (kept := [rule for rule in rules if rule.is_strict])}
    assert [key for key in NOTES if not is_usual(Config(), key) and key in strict] == []
    assert [
        key for key, rules in strict.items() if not applies(Config(), key) and rules[0].cases[0].key == ENGINE
    ] == []
    for name, card in CARDS.items():
        labels = {"labels_per_class": 4} if card.is_folder and card.is_dealt else {}
        config = parse({"data": {"name": name, **labels}})
        assert parse(as_tables(config)) == config


@pytest.mark.parametrize(
    ("file", "settings", "left"),
    [
        ({"train": {"optimizer": "adamw", "beta2": 0.9}}, ["train.optimizer=sgd"], {"train": {"optimizer": "sgd"}}),
        (
            {"server": {"optimizer": "adam", "beta2": 0.9}},
            ["server.optimizer=momentum"],
            {"server": {"optimizer": "momentum"}},
        ),
        (
            {"server": {"optimizer": "momentum", "momentum": 0.5, "broadcast_momentum": True}},  # which uses it too
            ["server.optimizer=mean"],
            {"server": {"optimizer": "mean", "momentum": 0.5, "broadcast_momentum": True}},
        ),
        (
            {"data": {"label_fraction": 0.2}, "partition": {"kind": "iid", "clients": 5, "labeled_clients": 2}},
            ["partition.file=s.json"],
            {"data": {}, "partition": {"file": "s.json"}},
        ),
        (
            {"partition": {"file": "s.json", "digest": "x", "clients": 5}, "train": {"clients_per_round": 2}},
            ["data.name=folder"],
            {"partition": {}, "train": {}, "data": {"name": "folder"}},
        ),
        (
            {"partition": {"clients": 5}, "grid": {"data": {"name": ["digits", "synthetic"]}}},
            ["train.lr=0.1"],
            {"partition": {"clients": 5}, "grid": {"data": {"name": ["digits", "synthetic"]}}, "train": {"lr": 0.1}},
        ),
    ],
)
def test_parts_of_a_choice_give_way_to_another(file: dict[str, Any], settings: list[str], left: dict[str, Any]) -> None:
    assert override(file, settings) == left


@pytest.mark.parametrize(
    ("file", "setting"),
    [
        ({"privacy": {"clip": 1.0}}, "privacy.aggregation=secagg+"),
        ({"server": {"broadcast_momentum": True}}, "train.optimizer=adamw"),
        ({"train": {"keep_momentum": True}}, "protocol=authors"),
        ({"records": {"keep_best": True}, "data": {"test": "final"}}, "data.test=all"),
    ],
)
def test_a_feature_is_never_dropped_silently(file: dict[str, Any], setting: str) -> None:
    (section,) = [key for key in file if key != "data"]
    with pytest.raises(UserError, match=rf"^{section}\.\w+ = \S+ does not work with .*; remove it"):
        parse(override(file, [setting]))


def test_an_axis_decides_what_gives_way_in_each_of_its_runs() -> None:
    """Before it is known, no rule speaks: a number of clients stays, as the splits of `digits` need it."""
    tables = {"train": {"beta2": 0.9}, "grid": {"train.optimizer": ["sgd", "adamw"]}}
    assert {name: c.train.beta2 for name, c in cells(override(tables, [])).items()} == {
        "optimizersgd": 0.999,
        "optimizeradamw": 0.9,
    }
    data = {"partition": {"clients": 12}, "grid": {"data.name": ["digits", "folder"]}}
    found = cells(override(data, ["train.clients_per_round=3"]))
    assert {name: c.partition.clients for name, c in found.items()} == {"digits": 12, "folder": 0}
    set_here = override(data, ["partition.clients=9"])  # a setting of --set is one of the file, for an axis
    assert [c.partition.clients for c in cells(set_here).values()] == [9, 0]
    tables_axis = {"partition": {"alpha": 0.1}, "grid": {"partition": [{"kind": "iid"}, {"seed": 3}]}}
    assert [c.partition.alpha for c in cells(override(tables_axis, ["partition.clients=9"])).values()] == [1.0, 0.1]


@pytest.mark.parametrize("setting", ["seed", "=5", " =5", ""])
def test_an_override_without_key_or_value_is_rejected(setting: str) -> None:
    with pytest.raises(UserError, match=r"expected key=value, for example train\.lr=0\.05"):
        override({}, [setting])


def test_an_override_below_a_value_is_rejected() -> None:
    with pytest.raises(UserError, match="'seed' is a single value"):
        override({"seed": 7}, ["seed.x=1"])


@pytest.mark.parametrize("text", ["2020-01-01", "12:30:00"])
def test_values_that_only_toml_knows_are_rejected_like_others(text: str) -> None:
    with pytest.raises(UserError, match=r"data\.dir = .*expected a string"):
        cells(override({}, [f"data.dir={text}"]))


def test_a_grid_is_every_combination_with_a_name_for_each() -> None:
    tables = tomllib.loads("seed = 1\n[grid]\nmethod.name = ['sage', 'fedavg']\npartition.alpha = [0.1, 1]")
    found = cells(tables)
    assert list(found) == ["sage/alpha0.1", "sage/alpha1", "fedavg/alpha0.1", "fedavg/alpha1"]
    assert (found["fedavg/alpha0.1"].method.name, found["fedavg/alpha0.1"].partition.alpha) == ("fedavg", 0.1)
    assert {config.seed for config in found.values()} == {1}


def test_a_grid_is_counted_without_building_it() -> None:
    """A billion runs: each would take some thirty microseconds to build."""
    tables = {"grid": {"seed": [*range(1000)], "train": {"lr": [*range(1000)], "batch": [*range(1, 1001)]}}}
    assert num_runs(tables) == 10**9
    assert (num_runs({}), num_runs({"grid": {"seed": [7]}})) == (1, 1)
    with pytest.raises(UserError, match=r"expected a single run, but the configuration has a \[grid\]"):
        only_run(tables)
    with pytest.raises(UserError, match=r"train\.batch: seed0/lr0/batch1, seed0/lr0/batch2, seed0/lr0/batch3, \.\.\."):
        check_size(tables, 1000)


def test_an_axis_of_tables_changes_several_keys_at_once() -> None:
    grid = {"data": [{"name": "cifar10", "labels_per_class": 10}, {"name": "svhn", "labels_per_class": 20}]}
    found = cells({"grid": grid})
    assert list(found) == ["cifar10_labels_per_class10", "svhn_labels_per_class20"]
    assert found["svhn_labels_per_class20"].data.labels_per_class == 20


def test_a_setting_given_on_the_command_line_leaves_the_grid() -> None:
    tables = {"grid": {"seed": [7, 8], "method": {"name": ["sage", "fedavg"]}}}
    assert list(cells(override(tables, ["seed=3"]))) == ["sage", "fedavg"]
    assert list(cells(override(tables, ["method.name=fedprox"]))) == ["seed7", "seed8"]
    assert list(cells(override(tables, ["grid.seed=[1]"]))) == ["seed1/sage", "seed1/fedavg"]
    quoted = {"grid": {"seed": [7, 8], "partition.alpha": [0.1, 1.0]}}
    assert list(cells(override(quoted, ["partition.alpha=0.5"]))) == ["seed7", "seed8"]
    assert list(cells(override(quoted, ["seed=3"]))) == ["alpha0.1", "alpha1.0"]
    mixed = {"grid": {"train.momentum": [0.8, 0.9], "train": [{"lr": 0.1}, {"lr": 0.2}]}}
    assert len(cells(override(mixed, []))) == len(cells(override(mixed, ["seed=1"]))) == 4


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("seed=[7,8]", "'grid.seed=[7, 8]'"),
        ("records.tensorboard=[true,false]", "'grid.records.tensorboard=[true, false]'"),
        ("method.name=['sage','fedavg']", """'grid.method.name=["sage", "fedavg"]'"""),
        ("model.name=['cnn','resnet8']", """'grid.model.name=["cnn", "resnet8"]'"""),
        ("method.tau=[0.5,0.9]", "'grid.method.tau=[0.5, 0.9]'"),
    ],
)
def test_who_gives_a_list_hears_of_grids(setting: str, hint: str) -> None:
    with pytest.raises(UserError) as refused:
        method_of(parse(override({}, [setting])))
    assert str(refused.value).endswith(hint)


@pytest.mark.parametrize("setting", ["grid.seed=[7,8", "grid.method.name=[sage, fedavg]", 'data.dir="a'])
def test_a_list_or_string_that_does_not_end_is_rejected(setting: str) -> None:
    with pytest.raises(UserError, match="a bracket or a quote is missing, or a string in it is not quoted"):
        override({}, [setting])


@pytest.mark.parametrize(
    ("grid", "fragment"),
    [
        (5, "grid = 5: expected a section of lists"),
        ({"seed": 5}, "grid.seed = 5: expected a list of values"),
        ({"seed": []}, "grid.seed = []"),
        ({"sed": [1, 2]}, "did you mean 'seed'?"),
        ({"train": {"lr": [0.1, "x"]}}, "train.lr = 'x'"),
        ({"seed": [7, 7]}, "creates the run 'seed7' twice"),
    ],
)
def test_a_wrong_grid_is_rejected(grid: Any, fragment: str) -> None:
    with pytest.raises(UserError) as refused:
        cells({"grid": grid})
    assert fragment in str(refused.value)


def test_names_of_cells_stay_below_their_folder() -> None:
    assert list(cells({"grid": {"data": {"dir": ["/../../etc", "a b"]}}})) == ["dir_.._.._etc", "dira_b"]
    some = {"train": [{}, {"lr": 0.05}], "seed": [7]}
    assert list(cells({"grid": some})) == ["unchanged/seed7", "lr0.05/seed7"]  # neither in another's folder


def test_files_are_read_by_path_and_presets_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text("seed = 5")
    assert read_toml("mine.toml") == {"seed": 5}
    assert read_toml(str(tmp_path / "mine.toml")) == {"seed": 5}
    assert read_toml("smoke")["train"]["rounds"] == 8
    (tmp_path / "smoke").write_text("seed = 6")
    assert read_toml("smoke") == {"seed": 6}


@pytest.mark.parametrize(
    ("name", "content", "fragment"),
    [
        ("half.toml", b"a = [1", "not valid TOML"),
        ("binary.toml", b"\xff\x00\xfe", "not UTF-8 text (byte 1)"),
        ("folder.toml", None, "is a folder; expected a TOML file or a preset"),
        ("smok", b"", "did you mean 'smoke'?"),
        ("", b"", "file '' is unknown"),
        ("empty.toml", b"# nothing\n", "empty.toml: contains no settings"),
        ("a/b", b"", "'a/b': no such run folder, file or preset (see `fssl presets`)"),
        ("paper/tabel2", b"", "did you mean 'paper/table2'?"),
        ("half.toml/x", b"", "cannot be read: Not a directory"),
        ("n" * 300, b"", "cannot be read: File name too long"),
    ],
)
def test_files_that_cannot_be_read_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes | None, fragment: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("half.toml").write_bytes(b"a = [1")
    if content is None:
        Path(name).mkdir()
    elif content:
        Path(name).write_bytes(content)
    with pytest.raises(UserError) as refused:
        read_toml(name)
    assert fragment in str(refused.value)


@pytest.mark.parametrize(
    ("name", "hint"), [("my.toml", ""), ("a/b.toml", ""), ("paper/table2.toml", "; the preset is called paper/table2")]
)
def test_a_file_that_is_not_there_is_no_preset_misspelt(name: str, hint: str) -> None:
    with pytest.raises(UserError) as refused:
        read_toml(name)
    assert str(refused.value) == f"there is no file {name}{hint}"


DEEP = [f"a = {'[' * 331}{']' * 331}", f"a = {'[' * 9999}", f"{'.'.join('a' * 999)} = 1", f"[{'.'.join('a' * 51)}]"]


@pytest.mark.parametrize("text", DEEP)
def test_settings_nested_beyond_reason_are_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / "deep.toml").write_text(text)
    with pytest.raises(UserError, match=r"^\S*deep\.toml: not valid TOML: nested deeper than 50 levels$"):
        read_toml(str(tmp_path / "deep.toml"))
    tables: dict[str, Any] = {}
    for _ in range(400):
        tables = {"a": tables}
    for given, settings in (({}, [f"{'.'.join('a' * 99)}=1"]), ({}, [f"a={'[' * 999}{']' * 999}"]), (tables, [])):
        with pytest.raises(UserError, match="nested deeper than 50 levels"):
            override(given, settings)


def test_a_number_with_thousands_of_digits_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "long.toml").write_text(f"seed = {'9' * 5000}")
    with pytest.raises(UserError, match=r"long\.toml: not valid TOML: Exceeds the limit"):
        read_toml(str(tmp_path / "long.toml"))
    with pytest.raises(UserError, match=r"seed = '999.*: expected a whole number"):
        parse(override({}, [f"seed={'9' * 5000}"]))


CONTROL = "".join(map(chr, [*range(1, 32), *range(127, 160)]))


def test_a_configuration_survives_being_written(tmp_path: Path) -> None:
    tables = {
        "data": {"dir": f'ä 💾 "x" \\ y {CONTROL}'},
        "train": {"lr": 3e22, "weight_decay": 1e-7},
        "method": {"name": "flexmatch", "warmup": False, "tau": 0.1 + 0.2},
    }
    config = by_card(parse(tables))
    (tmp_path / "c.toml").write_text(to_toml(as_tables(config)), "utf-8")
    assert parse(read_toml(str(tmp_path / "c.toml"))) == config


@pytest.mark.parametrize("name", presets())
def test_every_preset_is_valid(name: str) -> None:
    for config in {replace(cell, seed=7) for cell in cells(read_toml(name)).values()}:
        whole = completed(config)
        assert parse(tomllib.loads(to_toml(as_tables(whole)))) == whole


@pytest.mark.parametrize("name", [*METHODS, *(f"flexmatch+{plugin}" for plugin in PLUGINS)])
def test_a_resolved_run_names_every_setting_of_its_method_and_stays_the_same(name: str) -> None:
    config = parse({"method": {"name": name}})
    assert method_of(completed(config)) == method_of(config)
    assert completed(completed(config)) == completed(config)


def test_settings_given_win_over_defaults_when_resolved() -> None:
    settings = dict(completed(parse({"method": {"name": "sage", "tau": 0.5}})).method.settings)
    assert settings["tau"] == 0.5
    assert settings["kappa"] == pytest.approx(13.8629, abs=1e-4)


def test_a_resumed_run_may_differ_in_length_and_hardware_only() -> None:
    config = by_card(Config())
    train, compute = replace(config.train, rounds=99), replace(config.compute, lanes=2, device="cpu")
    data = replace(config.data, dir="elsewhere")
    assert first_difference(config, replace(config, train=train, compute=compute, data=data), {}) is None
    other = replace(config, train=replace(train, lr=0.2))
    assert first_difference(config, other, {}) == "train.lr is 0.1 there and 0.2 here"
    named = parse({"method": {"name": "fedavg", "mu": 1}})
    assert (
        first_difference(parse({"method": {"alpha": 2}}), named, {}) == "method.name is 'sage' there and 'fedavg' here"
    )
    older, newer = parse({"method": {"name": "sage"}}), parse({"method": {"name": "sage", "tau": 0.95}})
    assert first_difference(older, newer, {"tau": 0.95}) is None  # the record is older than the setting
    assert first_difference(older, newer, {"tau": 0.9}) == "method.tau is 0.9 there and 0.95 here"
    bare = parse({"method": {"tau": 1.0}})
    assert first_difference(config, bare, {}) == "data.labels_per_class is 14 there and None here"


def test_a_difference_of_runs_is_called_by_what_others_follow_from() -> None:
    there, here = (parse({"method": {"name": name, "tau": tau}}) for name, tau in (("sage", 0.95), ("flexmatch", 0.6)))
    names = "method.name is 'sage' there and 'flexmatch' here"
    assert first_difference(there, here, {"tau": 0.95, "kappa": 2.0}) == names
    other = replace(here, data=replace(here.data, name="svhn"))
    assert first_difference(there, other, {"tau": 0.95}) == "data.name is 'digits' there and 'svhn' here"
    labels = parse({"method": {"name": "sage", "tau": 0.95}, "partition": {"labels": "server"}})
    says = "partition.labels is {} there and {} here"
    assert first_difference(there, labels, {}) == says.format("'all-clients'", "'server'")
    assert first_difference(labels, there, {}) == says.format("'server'", "'all-clients'")


ROUNDS = {"cifar10": 300, "cifar100": 500, "svhn": 150, "cinic10": 400}  # of the paper
ROUNDS |= {"digits": 30, "synthetic": 30, "folder": 100, "imagefolder": 100, "fmnist": 150, "elpv": 100}


def test_every_dataset_has_a_configuration_with_its_rounds() -> None:
    assert ROUNDS.keys() == CARDS.keys()
    for name, card in CARDS.items():
        labels = {"labels_per_class": 4} if card.is_folder and card.is_dealt else {}
        assert (name, parse({"data": {"name": name, **labels}}).rounds) == (name, ROUNDS[name])


METHOD_AXIS = {"grid": {"method": [{"name": "sage", "tau": 0.9}, {"name": "fixmatch-lpl"}], "seed": [7, 8]}}


def names(*settings: str) -> list[str]:
    return [f"{c.method.name} {dict(c.method.settings)}" for _, c in expand(override(METHOD_AXIS, list(settings)))]


def test_a_setting_that_an_axis_of_tables_leaves_open_holds_for_all_its_cells() -> None:
    assert names("seed=7", "method.mu_u=0.5") == ["sage {'mu_u': 0.5, 'tau': 0.9}", "fixmatch-lpl {'mu_u': 0.5}"]


def test_a_setting_that_all_tables_of_an_axis_make_takes_its_place() -> None:
    assert names("method.name=fedavg") == ["fedavg {}", "fedavg {}"]


CELLS = {
    "grid": {
        "data": [
            {"name": "svhn", "labels_per_class": 25, "flip": False},
            {"name": "svhn", "labels_per_class": 100, "flip": False},
            {"name": "cifar10", "labels_per_class": 25},
        ],
        "method": [{"name": "sage"}, {"name": "sage", "cpg": False}, {"name": "rscfed", "groups": 2}],
        "seed": [7],
    }
}


def cells_left(*settings: str) -> list[str]:
    return [name for name, _ in expand(override(CELLS, list(settings)))]


def test_tables_of_an_axis_that_say_what_is_set_stay() -> None:
    assert cells_left("data.name=svhn", "method.name=sage") == [
        f"svhn_labels_per_class{number}_flipfalse/seed7" for number in (25, 100)
    ]
    assert cells_left("method.name=sage", "data.labels_per_class=25") == [
        "svhn_labels_per_class25_flipfalse/seed7",
        "cifar10_labels_per_class25/seed7",
    ]
    assert len(cells_left("data.name=svhn")) == 6


def test_a_single_table_that_says_what_is_set_is_no_axis_any_more() -> None:
    settings = ["data.name=svhn", "data.labels_per_class=100", "method.name=rscfed", "method.ema=0.9", "seed=8"]
    ((name, config),) = expand(override(CELLS, settings))
    assert (name, config.seed) == ("", 8)
    assert (config.data.name, config.data.labels_per_class, config.data.flip) == ("svhn", 100, False)
    assert dict(config.method.settings) == {"groups": 2, "ema": 0.9}


def test_what_all_tables_of_an_axis_set_must_not_get_lost() -> None:
    with pytest.raises(UserError, match=r"^data.name=digits: no table .* would lose data.labels_per_class;"):
        cells_left("data.name=digits")
    with pytest.raises(UserError, match=r"would lose data\.name; set them, too"):
        cells_left("data.labels_per_class=50")
    given = override(CELLS, ["data.name=digits", "data.labels_per_class=6", "method.name=fedavg"])
    assert [(name, config.method.settings) for name, config in expand(given)] == [("seed7", ())]


def test_a_setting_that_some_tables_of_an_axis_make_is_rejected() -> None:
    with pytest.raises(UserError, match=r"^method\.tau: only some values of grid\.method set it"):
        names("method.tau=0.8")


@pytest.mark.parametrize(
    ("data", "ramp", "epochs"),
    [("cifar10", 120, 100), ("cifar100", 200, 10), ("svhn", 60, 100), ("cinic10", 160, 100), ("digits", 12, 100)],
)
def test_the_dataset_decides_ramp_and_tuning_unless_they_are_set(data: str, ramp: float, epochs: int) -> None:
    """0.4 T rounds of ramp; 2000 steps of 4 rows over 8 C uploaded rows are 1000 / C epochs."""

    def built(**method: object) -> Any:
        return method_of(parse({"data": {"name": data}, "method": method}))

    assert built(name="fedloke").ramp_rounds == pytest.approx(ramp)
    assert built(name="proxyfl").tuning.epochs == epochs
    assert built(name="fedloke", ramp_rounds=3).ramp_rounds == 3


@pytest.mark.parametrize(
    ("axis", "setting"),
    [
        ('grid.server.optimizer=["mean", "momentum"]', "server.beta2=0.5"),
        ('grid.train.optimizer=["sgd"]', "train.beta2=0.9"),
        ("grid.data.labels_per_class=[2, 3]", "data.label_fraction=0.5"),
    ],
)
def test_a_setting_that_applies_in_no_run_of_a_grid_is_rejected(axis: str, setting: str) -> None:
    key, _, value = setting.partition("=")
    with pytest.raises(UserError, match=rf"^{key} = {value} has no effect with"):
        override({}, [axis, setting])


def test_a_setting_that_applies_in_some_runs_of_a_grid_is_left_out_of_the_others() -> None:
    tables = override({}, ['grid.train.optimizer=["sgd", "adamw"]', "train.nesterov=true"])
    assert [config.train.nesterov for _, config in expand(tables)] == [True, False]
