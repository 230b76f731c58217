"""Tables of other papers: printed numbers next to our runs, with a few made-up ones."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fssl.config import expand, override, parse, read_toml
from fssl.paper.fill import TableCell, Tables, fill_tables
from fssl.paper.markup import grid
from fssl.paper.published import other_tables, paper_tables
from fssl.paper.setups import differences, setup_of
from fssl.paper.tables import count_text, fill_other, other_page, without_cell
from fssl.reports.formats import MARKDOWN
from fssl.reports.runs import find_runs
from helpers.command import Fssl
from helpers.run_folders import write_run
from helpers.small import method_of

TABLES = other_tables()


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.slow
def test_every_cell_is_a_run_of_its_preset(name: str) -> None:
    """And every run of the preset has a cell, in which nothing of it is a difference."""
    table = TABLES[name]
    wanted = {
        setup_of(config): config
        for row in table.rows
        for column in table.columns
        if (config := table.config(row, column))
    }
    runs = [config for preset in table.presets for _, config in expand(read_toml(preset))]
    for run in runs:
        assert differences(replace(run, train=replace(run.train, precision="fp32")), wanted[setup_of(run)]) == []
    # Training on the server, whatever the partition; and methods without SemiAnAgg's loss of labeled images.
    alone = {"semifl": {"fedavg"}, "semianagg": {"fedavg-sl", "fedavg", "rscfed", "cbafed"}}.get(name, set())
    assert {config.method.name for config in wanted.values()} - {run.method.name for run in runs} == alone
    for row in table.rows:
        assert len(row.printed) in (0, len(table.columns))
        assert len(row.std) in (0, len(row.printed))
        assert row.printed or row.method
        for column in table.columns:
            if config := table.config(row, column):
                method_of(config)  # rejects what does not fit


def test_twin_sight_s_setting() -> None:
    table = TABLES["twin-sight"]
    config = table.config(table.rows[2], table.columns[0])
    assert config is not None
    part, train = config.partition, config.train
    assert (part.kind, part.alpha, part.clients, part.labels) == ("balanced-dirichlet", 0.1, 10, "knowing-clients")
    assert (part.labeled_clients, train.clients_per_round, config.rounds, train.local_epochs) == (4, 5, 500, 1)
    assert (train.batch, train.lr, config.model.name) == (64, 0.01, "resnet18")
    assert (train.momentum, train.weight_decay, train.keep_momentum, train.labels_alone) == (0.9, 1e-4, True, True)
    rows = {row.name: row for row in table.rows}
    floor = table.config(rows["FedAvg on the 4 labeled"], table.columns[0])
    assert floor is not None
    assert (floor.train.draw, floor.train.clients_per_round, floor.drawable) == ("labeled", 2, 4)
    printed = {row.name: row.printed for row in table.rows}
    assert printed["Twin-sight"] == [70.06, 49.98, 62.94, 79.95]
    assert printed["FedAvg + FixMatch"][0] == 63.58
    assert printed["FedAvg on the 4 labeled"] == [61.58, 48.36, 51.10, 72.46]


PROXYFL_GAINS = {  # over the best other method with some labels, as ProxyFL prints them
    ("proxyfl", 1): [1.51, 1.95, 0.88, 3.32, 2.93, 2.18, 1.24, 0.91, 0.61, 3.39, 3.22, 2.91],
    ("proxyfl-20", 8): [1.10, 0.69, 0.97, 1.71, 1.60, 1.18, 0.72, 0.84, 0.66, 3.29, 2.79, 2.69],
}


@pytest.mark.parametrize(("name", "number"), PROXYFL_GAINS)
def test_proxyfl_is_printed_with_the_numbers_of_the_sage_paper(name: str, number: int) -> None:
    """It prints them to the digit, and its gains are over the best of them."""
    ours = {row.name: row for row in TABLES[name].rows}
    theirs = next(table for table in paper_tables() if table.number == number)
    for row in theirs.rows:
        if row.name in ours:
            assert ours[row.name].printed == row.printed, row.name
    best = np.max([row.printed for row in theirs.rows if not row.is_bound], axis=0)
    assert np.round(np.subtract(ours["ProxyFL"].printed, best), 2).tolist() == PROXYFL_GAINS[name, number]


def test_proxyfl_s_setting() -> None:
    """That of SAGE's paper, with each part of the method alone."""
    table = TABLES["proxyfl"]
    rows, column = {row.name: row for row in table.rows}, table.columns[5]
    config = table.config(rows["ProxyFL"], column)
    assert config is not None
    assert (config.data.name, config.partition.alpha, config.rounds, config.protocol) == ("cifar100", 1, 500, "authors")
    assert rows["ProxyFL"].printed[5] == 58.24
    parts = {"tuning alone (GPT)": (0, 10), "contrast alone (ICPL)": (1, 0), "neither: its labels alone": (0, 0)}
    for name, expected in parts.items():
        config = table.config(rows[f"ProxyFL, {name}"], column)
        assert config is not None
        method = method_of(config)
        assert (method.beta, method.tuning.epochs) == expected, name


def add(folder: Path, last: float, *settings: str, rounds: int = 500) -> None:
    base = {key: value for key, value in read_toml("settings/twin-sight").items() if key != "grid"}
    config = parse(override(base, ["data.name=cifar10", "train.precision=fp32", *settings]))
    write_run(folder, config, [10.0] * (rounds - 10) + [last] * 10)


@pytest.fixture
def filled(tmp_path: Path) -> Tables:
    for seed, value in ((7, 60.0), (8, 62.0), (9, 64.0)):
        add(tmp_path / f"runs/sage{seed}", value, "method.name=sage", f"seed={seed}")
    labeled = ("train.draw=labeled", "train.clients_per_round=2")
    add(tmp_path / "runs/fedavg", 55.0, "method.name=fedavg", *labeled, "train.lr=0.1")
    add(tmp_path / "runs/of all", 54.0, "method.name=fedavg")
    add(tmp_path / "runs/short", 55.0, "method.name=fixmatch-lpl", rounds=20)
    return fill_other(TABLES["twin-sight"], find_runs([tmp_path / "runs"]))


def ours(filled: Tables, row: str) -> list[TableCell | None]:
    (cells,) = (line.cells for line in filled.tables[0].lines if (line.row, line.source) == (row, "ours"))
    return cells


def all_cells(filled: Tables) -> list[TableCell]:
    """All of ours."""
    return [cell for line in filled.tables[0].lines if line.source == "ours" for cell in line.cells if cell]


def test_the_paper_s_own_tables_point_to_these(filled: Tables, fssl: Fssl, tmp_path: Path) -> None:
    """Where they have no cell of a run; one of a setting that no table has gets no hint."""
    config = parse(override({"protocol": "authors"}, ["data.name=svhn", "method.name=proxyfl"]))
    write_run(tmp_path / "runs/proxyfl", config, [10.0] * 150)
    write_run(tmp_path / "runs/lonely", replace(config, partition=replace(config.partition, alpha=3.0)), [10.0] * 150)
    assert fssl("tables", tmp_path / "runs", "--out", tmp_path / "out").code == 0
    page = (tmp_path / "out/tables.md").read_text()
    said = {name: next(line for line in page.splitlines() if f"runs/{name}`" in line) for name in SAID}
    assert {name: line.partition(": ")[2] for name, line in said.items()} == SAID


SAID = {
    "sage7": "no table has train.keep_momentum = true; --setting twin-sight has a cell for it",
    "proxyfl": "no table has this method, or these settings of it, in that column; --setting proxyfl has a cell for it",
    "lonely": "no table has alpha 3",
}


def test_runs_are_compared_with_printed_numbers(filled: Tables) -> None:
    (table,) = filled.tables
    lines = [
        [str(cell) if isinstance(cell, str) else MARKDOWN.cell(cell, 0) for cell in row] for row in grid(table).rows
    ]
    above = lines.index(["FedAvg on the 4 labeled", "printed", "61.58", "48.36", "51.10", "72.46"])
    assert lines[above + 1] == ["", "ours", "55.00 (1)<sup>a,b</sup>", "", "", ""]
    assert "|  | ours | 55.00 (1)<sup>a,b</sup> |" in other_page(filled)  # its name stands above, once
    assert table.reasons == ["train.lr = 0.1 (paper: 0.01)", "1 of 3 seeds"]
    assert "- <sup>a</sup> train.lr = 0.1 (paper: 0.01)\n- <sup>b</sup> 1 of 3 seeds\n" in other_page(filled)
    assert ["FedAvg, 5 of all 10 drawn", "ours", "54.00 (1)<sup>b</sup>", "", "", ""] in lines
    assert ["SAGE", "ours", "62.00 ± 2.00 (3)", "", "", ""] in lines
    assert ours(filled, "FedAvg + FixMatch") == [None] * 4  # its run is too short


def test_a_run_without_a_setting_that_the_paper_has_is_another_setting(tmp_path: Path) -> None:
    """Not a second seed of the same."""
    table = TABLES["semifl"]
    row, column = next(row for row in table.rows if row.name == "SemiFL, IID"), table.columns[0]
    config = table.config(row, column)
    assert config.train.clip == 1
    bare = replace(config, seed=8, train=replace(config.train, clip=None))
    for name, one, value in (("with", config, 88.0), ("without", bare, 60.0)):
        write_run(tmp_path / "runs" / name, one, [value] * config.rounds)
    filled = fill_other(table, find_runs([tmp_path / "runs"]))
    assert [cell.value for cell in all_cells(filled)] == [88.0]
    alone = fill_other(table, find_runs([tmp_path / "runs" / "without"]))
    (cell,) = all_cells(alone)
    assert "train.clip = unset (paper: 1.0)" in cell.marks


def test_short_runs_are_shown_where_asked_for(filled: Tables, tmp_path: Path) -> None:
    again = fill_other(TABLES["twin-sight"], find_runs([tmp_path / "runs"]), short=True)
    first = ours(again, "FedAvg + FixMatch")[0]
    assert first is not None
    assert "unfinished: read at round 20 of 500" in first.marks


def test_runs_that_are_not_in_the_table_are_counted_by_reason(filled: Tables, tmp_path: Path) -> None:
    """All that `fssl tables` counts without --setting count here, too."""
    runs = tmp_path / "runs"
    add(runs / "other place of labels", 50.0, "method.name=sage", "partition.labeled_clients=3")
    add(runs / "of a method without a cell", 50.0, "method.name=flexmatch")
    add(runs / "chosen too short", 50.0, "method.name=sage", "seed=10", "train.rounds=20", rounds=20)
    add(runs / "farther from the setting", 50.0, "method.name=sage", "seed=11", "train.lr=0.1")
    add(runs / "young", 50.0, "method.name=sage", "seed=12")
    (runs / "young/rounds.jsonl").write_text("")
    add(runs / "broken", 50.0, "method.name=sage", "seed=13")
    (runs / "broken/config.toml").write_text("seed = ")
    found = find_runs([runs])
    again = fill_other(TABLES["twin-sight"], found)
    assert count_text(again) == (
        "5 of 12 runs are in the table; not in it: 2 of no cell, 1 unfinished (--short shows such runs), 1 too short"
        " (--short shows such runs), 1 without a finished round, 1 with a record that cannot be used, 1 replaced by"
        " runs that are longer or closer to its setting."
    )
    assert without_cell(again) == {
        runs / "of a method without a cell": "no cell has this method, or these settings of it, in that column",
        runs / "other place of labels": "no cell has partition.kind = balanced-dirichlet with labeled_clients = 3 and"
        " first_clients = [1, 3, 6, 8] and labels = knowing-clients",
    }
    assert again.num_runs == fill_tables(found).num_runs
    assert count_text(again) in other_page(again)
    assert "--short" not in count_text(fill_other(TABLES["twin-sight"], found, short=True))


def test_runs_of_no_cell_are_named_with_the_reason(fssl: Fssl, tmp_path: Path) -> None:
    """The first ten in the terminal, all of them in the file."""
    for seed in range(10, 22):
        add(tmp_path / f"runs/{seed}", 50.0, "method.name=flexmatch", f"seed={seed}", rounds=20)
    said = fssl("tables", "runs", "--setting", "twin-sight").out
    assert "0 of 12 runs are in the table; not in it: 12 of no cell." in said
    assert "Runs without a cell:\n  runs/10: no cell has this method, or these settings of it, in that column\n" in said
    assert ("runs/19:" in said, "runs/20:" in said) == (True, False)
    assert "  and 2 more, in tables/twin-sight.md\n" in said
    written = (tmp_path / "tables/twin-sight.md").read_text()
    assert "- `runs/21`: no cell has this method" in written


def test_the_command_prints_and_writes(filled: Tables, fssl: Fssl, tmp_path: Path) -> None:
    said = fssl("tables", tmp_path / "runs", "--setting", "twin-sight", "--out", tmp_path / "out")
    assert said.code == 0
    assert "62.00 ± 2.00 (3)" in said.out
    assert "82.78" in said.out
    assert max(map(len, said.out.splitlines())) <= 120
    assert (tmp_path / "out/twin-sight.md").read_text() == other_page(filled)
    rows = (tmp_path / "out/twin-sight.csv").read_text().splitlines()
    assert rows[1] == 'twin-sight,"FedAvg, all 10 labeled",CIFAR-10,printed,82.78,,,,'
    assert any(row.startswith("twin-sight,SAGE,CIFAR-10,ours,62.0,2.0,3,") for row in rows)


def test_a_terminal_shows_no_lines_without_numbers(tmp_path: Path, fssl: Fssl) -> None:
    """Of (FL)² three datasets have a printed number; none of its own for CIFAR-10, nor any for CIFAR-100."""
    add(tmp_path / "runs/of-another-table", 60.0, "method.name=sage")
    said = fssl("tables", tmp_path / "runs", "--setting", "flfl", "--out", tmp_path / "out").out
    lines = said.split("Ours:")[0].splitlines()
    heads = [line.split("source")[1].strip() for line in lines if line.startswith(" method")]
    assert heads == ["CIFAR-10, 10   CIFAR-10, 40", "SVHN, 40   SVHN, 250", "FMNIST, 40"]
    names = [line.split("  ")[0].strip() for line in lines if " printed" in line]
    assert names == ["SemiFL, IID", "SemiFL, IID", "(FL)², Dir(0.3)", "SemiFL, IID"]
    assert "(FL)², IID" not in said.split("Ours:")[0]
    assert "| (FL)², IID | ours |" in (tmp_path / "out/flfl.md").read_text()  # what could be run is in the file


def test_wrong_words_are_one_line(fssl: Fssl, tmp_path: Path) -> None:
    said = fssl("tables", tmp_path, "--setting", "twinsight")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "did you mean 'twin-sight'" in said.err
    said = fssl("tables", tmp_path, "--setting", "twin-sight", "--table", "1")
    assert (said.code, "--table and --dataset have no effect" in said.err) == (2, True)


def test_semifl_s_setting() -> None:
    """Labels of the server: 250 of 10 classes are 25 each; CIFAR-100 has the wider network, SVHN no flips."""
    table = TABLES["semifl"]
    shards = next(row for row in table.rows if row.name == "SemiFL, K = 2")
    configs = [table.config(shards, column) for column in table.columns]
    labels, nets, flips = zip(
        *((c.labels_per_class * c.card.num_classes, c.model.name, c.data.flip) for c in configs if c), strict=True
    )
    assert labels == (250, 4000, 250, 1000, 2500, 10000)
    assert nets == (*["wrn-28-2"] * 4, *["wrn-28-8"] * 2)
    assert flips == (True, True, False, False, True, True)
    assert [c.server_batch for c in configs if c] == [10, 250, 10, 10, 250, 250]
    first = configs[0]
    assert first is not None
    part, train, server = first.partition, first.train, first.server
    assert (part.clients, part.labels, part.classes_per_client, train.clients_per_round) == (100, "server", 2, 10)
    assert (first.rounds, train.local_epochs, train.batch, train.lr, train.schedule) == (800, 5, 10, 0.03, "cosine")
    assert (train.nesterov, train.keep_momentum, train.clip, train.weight_decay) == (True, True, 1, 5e-4)
    assert (server.optimizer, server.momentum, server.static_norm, first.server_epochs) == ("momentum", 0.5, "all", 5)
    assert (shards.printed, shards.std) == ([60.0, 85.3, 87.5, 92.2, 35.2, 62.1], [0.9, 0.3, 1.1, 0.8, 0.3, 0.4])


def test_flfl_s_setting() -> None:
    table = TABLES["flfl"]
    configs = [config for column in table.columns if (config := table.config(table.rows[0], column))]
    assert [c.labels_per_class * c.card.num_classes for c in configs] == [10, 40, 40, 250, 100, 400, 40]
    assert {(c.train.batch, c.train.schedule, c.server_batch) for c in configs} == {(32, "constant", 10)}
    assert [c.server.warmup for c in configs] == [10, 10, 102, 16, 0, 0, 10]  # 2040 or 2000 steps on SVHN
    few = ["data.name=svhn", "data.labels_per_class=4", "server.warmup=102"]  # as the note has it
    (named,) = (note for note in table.notes if note.startswith("SVHN with 40 labels"))
    assert all(setting in named for setting in few)
    runs = [config for _, config in expand(override(read_toml("settings/flfl-svhn"), [*few, "train.precision=fp32"]))]
    cells = {setup_of(c): c for row in table.rows if (c := table.config(row, table.columns[2]))}
    assert [differences(run, cells[setup_of(run)]) for run in runs] == [[]] * 27
