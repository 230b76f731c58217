"""The paper's presets: what each runs, which runs they share, and what their README says about both."""

import re
import shlex
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fssl.config import PRESETS, Config, by_card, expand, override, presets, read_toml
from fssl.core.assembly import make_recipe
from fssl.label.assign import KAPPA_STAR, ConfidenceGap, Constant, GlobalOnly, LocalOnly, Sage, hard, soft
from fssl.methods.fixmatch import FixMatch
from fssl.methods.names import METHODS
from fssl.types import Counts
from helpers.command import Fssl
from helpers.small import method_of

README = (PRESETS / "paper" / "README.md").read_text()

# Cells: datasets x alphas x methods x seeds.
CELLS = {
    "table1": 4 * 3 * 13 * 3,
    "table2": 1 * 1 * 6 * 3,
    "table3": 2 * 3 * 4 * 3,
    "table4": 2 * 3 * 8 * 3,
    "table5": 1 * 3 * 6 * 3,
    "table6": 1 * 1 * 6 * 3,
    "table7": 1 * 1 * 6 * 3,
    "table8": 4 * 3 * 12 * 3,
    "fig1": 1 * 3 * 2 * 3,
    "fig1-central": 1 * 1 * 1 * 3,
    "fig1-fedsgd": 1 * 3 * 2 * 3,
    "fig2": 1 * 3 * 3 * 3,
    "fig4": 1 * 1 * 13 * 3,
    "fig5": 1 * 1 * 12 * 3,
    "fig-counts": 1 * 3 * 10 * 3,
    "fig-cpg": 1 * 1 * 3 * 3,
    "fig8-consensus": 1 * 3 * 3 * 3,
    "fig9-confidence": 1 * 3 * 3 * 3,
    "fig10-lambda": 1 * 3 * 1 * 3,
    "fig11": 1 * 2 * 3 * 3,
    "fig12-entropy": 1 * 3 * 3 * 3,
    "fig13": 1 * 2 * 3 * 3,
    "fig14-kappa": 1 * 1 * 11 * 3,
    "fig15": 1 * 2 * 13 * 3,
}
FIG1 = ("fig1", "fig1-central", "fig1-fedsgd")
ROUNDS = {"cifar10": 300, "cifar100": 500, "svhn": 150, "cinic10": 400}
TENTH = {"cifar10": 500, "cifar100": 50, "svhn": 460, "cinic10": 900}


@cache
def cells(preset: str) -> dict[str, Config]:
    pairs = list(expand(read_toml(f"paper/{preset}")))
    assert len({name for name, _ in pairs}) == len(pairs), "two cells would share a folder"
    return dict(pairs)


def by_method(preset: str) -> dict[str, FixMatch]:
    """One built method for each folder name of the method axis."""
    built = {name.split("/")[2]: method_of(config) for name, config in cells(preset).items()}
    return {name: method for name, method in built.items() if isinstance(method, FixMatch)}


def runs_of(preset: str, start: str) -> dict[str, Config]:
    return {name: config for name, config in cells(preset).items() if name.startswith(start)}


def test_one_file_for_each():
    assert {name.removeprefix("paper/") for name in presets() if name.startswith("paper/")} == {*CELLS, "sanity"}


@pytest.mark.parametrize("preset", CELLS)
def test_cells_build_and_are_counted(preset: str):
    assert len(cells(preset)) == CELLS[preset]
    for config in cells(preset).values():
        method_of(config)


@pytest.mark.parametrize("preset", CELLS)
def test_first_line_says_what_it_runs(preset: str):
    first = (PRESETS / "paper" / f"{preset}.toml").read_text().splitlines()[0]
    number = {"fig-counts": "Figure 6", "fig-cpg": "Figure 7"}.get(preset)
    number = number or re.sub(r"^(table|fig)(\d+).*", r"\1 \2", preset).replace("fig ", "Figure ").capitalize()
    assert re.fullmatch(rf"# {number}\b.*\.", first)


@pytest.mark.parametrize("preset", CELLS)
def test_seed_is_the_last_folder(preset: str):
    for name, config in cells(preset).items():
        *_, method, seed = name.split("/")
        assert name.startswith(f"{config.data.name}/")
        assert method.startswith(config.method.name)
        assert seed == f"seed{config.seed}"
    assert {c.seed for c in cells(preset).values()} == {7, 8, 9}


def test_folder_names():
    assert "cifar100/alpha1.0/sage/seed7" in cells("table2")
    assert "cinic10/alpha0.1/sage_cdscfalse/seed9" in cells("table3")


@pytest.mark.parametrize("preset", [p for p in CELLS if p not in FIG1])
def test_protocol(preset: str):
    """Everything but rounds and the share of labels is the paper's default."""
    rounds = ROUNDS | ({"cifar100": 600} if preset in ("table2", "table6", "table7", "fig4", "fig15") else {})
    times = 2 if preset == "table8" else 1
    for config in map(by_card, cells(preset).values()):
        part, train = config.partition, config.train
        assert (part.kind, part.clients, part.seed, train.clients_per_round) == ("paired-dirichlet", 20, 0, 8)
        assert (train.local_epochs, train.steps_per_round) == (5, None)
        assert (train.batch, train.unlabeled_ratio) == (128, 2)
        assert (train.lr, train.momentum, train.weight_decay) == (0.1, 0.9, 1e-4)
        assert (config.model.name, config.model.width, config.data.flip) == ("resnet8", 4, True)
        assert (config.protocol, config.records.probes) == ("authors", "all")
        assert config.rounds == rounds[config.data.name]
        assert config.data.labels_per_class == times * TENTH[config.data.name]


def test_what_is_no_cell_of_the_paper_keeps_the_default_protocol():
    """FedSGD as an average of gradients needs momentum from zero; ProxyFL's code carries it on as SAGE's."""
    clean = {name for name in presets() if all(c.protocol == "clean" for _, c in expand(read_toml(name)))}
    others = {name for name in presets() if name.startswith(("settings/", "benchmark/")) and "proxyfl" not in name}
    assert clean == {"smoke", "demo", "paper/sanity", "paper/fig1-fedsgd", *others}


def test_a_paper_cell_says_which_protocol_it_runs(fssl: Fssl):
    said = fssl("run", "paper/table2", "--set", "seed=7", "--set", "method.name=sage", "--dry-run").out
    assert "protocol authors: momentum passes from client to client" in said
    assert "protocol = 'clean'" in said
    elsewhere = fssl("run", "smoke", "--set", "protocol=authors", "--set", "method.name=rscfed", "--dry-run").out
    assert elsewhere.splitlines()[0] == said.splitlines()[0]  # which is true of a run that is no cell, too
    for words in (["smoke"], ["paper/table2", "--set", "protocol=clean"]):
        assert "protocol" not in fssl("run", *words, "--dry-run").out


def test_alphas_and_datasets():
    for preset in ("table1", "table8"):
        found = {(c.data.name, c.partition.alpha) for c in cells(preset).values()}
        assert found == {(data, alpha) for data in ROUNDS for alpha in (0.1, 0.5, 1.0)}
    alphas = {p: {c.partition.alpha for c in cells(p).values()} for p in CELLS}
    assert (alphas["table2"], alphas["table6"], alphas["table7"]) == ({1.0}, {0.1}, {0.5})
    assert (alphas["fig4"], alphas["fig15"]) == ({1.0}, {0.1, 0.5})
    assert (alphas["fig-cpg"], alphas["fig13"], alphas["fig11"]) == ({0.1}, {0.5, 1.0}, {1.0, 10.0})
    others = [p for p in CELLS if p not in ("table1", "table3", "table4", "table8")]
    assert {c.data.name for p in others for c in cells(p).values()} == {"cifar100"}


TABLE_1 = ["fedavg", "fedprox", "fedavg-sl", "fixmatch-lpl", "fixmatch-gpl", "fedprox+fixmatch", "flexmatch"]
TABLE_1 += ["fedmatch", "fedlabel", "fedloke", "feddure", "feddb", "sage"]


def test_table_1_has_the_paper_s_rows():
    rows = TABLE_1
    assert list(dict.fromkeys(c.method.name for c in cells("table1").values())) == rows
    assert list(dict.fromkeys(c.method.name for c in cells("table8").values())) == [r for r in rows if r != "fedavg-sl"]
    assert set(rows) <= set(METHODS)


def test_convergence_tables_have_the_paper_s_rows():
    rows = ["fixmatch-lpl", "fixmatch-gpl", "fedlabel", "feddb", "feddure", "sage"]
    for preset in ("table2", "table6", "table7"):
        assert list(dict.fromkeys(c.method.name for c in cells(preset).values())) == rows


def test_sanity_runs_every_method_and_every_plug_in_of_the_paper():
    runs = cells("sanity")
    names = [c.method.name for c in runs.values()]
    assert {*TABLE_1, "freematch", "fedlabel-2m", "feddure-full", "proxyfl"} <= set(names)
    hosts = {"fedprox+fixmatch", "flexmatch", "fedlabel", "feddure", "feddb"}
    assert {f"{host}+sage" for host in hosts} <= set(names)
    assert {(c.data.name, c.partition.alpha, c.seed, c.rounds) for c in runs.values()} == {("cifar10", 0.1, 7, 20)}
    assert {c.labels_per_class for c in runs.values()} == {500}
    assert names[0] == "fedavg", "what the others are held against comes first"


def test_table_3_switches_one_idea_at_a_time():
    assert {name: method.assign for name, method in by_method("table3").items()} == {
        "fixmatch-lpl": LocalOnly(hard),
        "sage_cdscfalse": Sage(Constant(1.0), supplement=True),
        "sage_cpgfalse": Sage(ConfidenceGap(KAPPA_STAR), supplement=False),
        "sage": Sage(ConfidenceGap(KAPPA_STAR), supplement=True),
    }


def test_table_4_plugs_sage_into_a_host_that_keeps_its_thresholds():
    methods = by_method("table4")
    hosts = ["flexmatch", "feddure", "feddb"]
    assert list(methods) == ["fixmatch-lpl", "sage", *(row for host in hosts for row in (host, f"{host}+sage"))]
    for host, guest in ((methods[name], methods[f"{name}+sage"]) for name in hosts):
        assert (type(guest), type(guest.accept)) == (type(host), type(host.accept))
        assert guest.assign == methods["sage"].assign != host.assign


def test_table_5_differs_in_the_vote():
    assert {name: method.assign for name, method in by_method("table5").items()} == {
        "fixmatch-lpl": LocalOnly(hard),
        "fixmatch-lpl_votesoft": LocalOnly(soft),
        "fixmatch-gpl": GlobalOnly(hard),
        "fixmatch-gpl_votesoft": GlobalOnly(soft),
        "sage": Sage(vote=hard),
        "sage_votesoft": Sage(vote=soft),
    }


def test_figure_5_sweeps_lambda_with_cpg_on():
    *fixed, dynamic = (method.assign for method in by_method("fig5").values())
    assert fixed == [Sage(Constant(i / 10), supplement=True) for i in range(11)]
    assert dynamic == Sage()


def test_figure_14_sweeps_kappa():
    kappas = [*(float(k) for k in range(2, 21, 2)), KAPPA_STAR]
    assert [method.assign for method in by_method("fig14-kappa").values()] == [Sage(ConfidenceGap(k)) for k in kappas]


def test_figure_1_sees_equally_many_images_a_round_in_all_three():
    """20 clients of 2500 images take 2500 // 128 = 19 steps; 20 x 19 = 380; 500 x 19 = 9500 single steps."""

    def steps(preset: str) -> tuple[int, int]:
        config = next(iter(cells(preset).values()))
        pool = config.card.num_train // config.partition.clients
        counts = Counts(config.labels_per_class * config.card.num_classes // config.partition.clients, pool)
        recipe = make_recipe(config, method_of(config), config.card)
        return config.train.clients_per_round * recipe.num_steps(counts), config.rounds

    assert steps("fig1") == (380, 500)
    assert steps("fig1-central") == (380, 500)
    assert steps("fig1-fedsgd") == (20, 9500)
    assert {c.partition.clients for p in ("fig1", "fig1-fedsgd") for c in cells(p).values()} == {20}
    assert {(c.partition.kind, c.partition.clients) for c in cells("fig1-central").values()} == {("iid", 1)}
    oracle = {name: (method.oracle, method.assign) for name, method in by_method("fig1").items()}
    assert oracle == {"fixmatch-lpl": (False, LocalOnly()), "fixmatch-lpl+oracle": (True, LocalOnly())}


@pytest.mark.parametrize(
    ("part", "whole"),
    [
        *((p, "table1") for p in ("fig2", "fig-counts", "fig8-consensus", "fig9-confidence", "fig10-lambda")),
        ("fig12-entropy", "table1"),
        ("fig-cpg", "table3"),
        ("fig13", "table3"),
        ("table2", "fig4"),
        ("table6", "fig15"),
        ("table7", "fig15"),
    ],
)
def test_shared_runs_are_the_same_runs(part: str, whole: str):
    assert cells(part).items() <= cells(whole).items()


def test_partly_shared_runs():
    first, ablation, hosts = cells("table1").items(), cells("table3").items(), cells("table4").items()
    assert len(first & ablation) == CELLS["table3"] // 2
    assert {n.split("/")[2] for n, _ in hosts - first} == {"flexmatch+sage", "feddure+sage", "feddb+sage"}
    assert {n.split("/")[2] for n, _ in cells("table5").items() - first} == {
        "fixmatch-lpl_votesoft",
        "fixmatch-gpl_votesoft",
        "sage_votesoft",
    }
    assert runs_of("fig11", "cifar100/alpha1.0").items() <= first
    assert runs_of("fig5", "cifar100/alpha1.0/sage_cdscfalse").items() <= ablation
    for preset in ("fig5", "fig14-kappa"):
        assert len(first & cells(preset).items()) == 3


def readme_rows() -> list[tuple[str, str, list[str]]]:
    rows = re.findall(r"^\| .* \| `fssl run paper/(\S+) --out (\S+)` \| (.*) \|$", README, re.M)
    return [(preset, out, numbers.split(" | ")) for preset, out, numbers in rows]


def gpu_hours(configs: list[Config]) -> float:
    """3 s for 8 clients x 95 steps."""
    total = 0.0
    for c in configs:
        epoch = c.card.num_train // c.partition.clients // c.train.batch
        steps = c.train.steps_per_round or c.train.local_epochs * epoch
        total += c.rounds * c.train.clients_per_round * steps * 3 / (8 * 95)
    return total / 3600


def test_readme_counts_runs_and_hours():
    """A folder never holds two different runs under one name, and its table is right."""
    folders: dict[str, dict[str, Config]] = {}
    for preset, out, numbers in readme_rows():
        folder = folders.setdefault(out, {})
        for name, config in cells(preset).items():
            assert folder.get(name, config) == config, f"{out}/{name} would be two runs"
        new = {name: config for name, config in cells(preset).items() if name not in folder}
        folder |= new
        hours = [f"{gpu_hours(list(part.values())):.1f}" for part in (cells(preset), new)]
        assert numbers == [str(CELLS[preset]), hours[0], str(len(new)), hours[1]], preset
    assert sorted(preset for preset, _, _ in readme_rows()) == sorted(CELLS)
    every = [config for folder in folders.values() for config in folder.values()]
    assert f"All of it is {len(every)} runs and about {gpu_hours(every):.0f} GPU hours." in README


def test_gpu_hours_of_one_run_each():
    """CIFAR-100: 500 x 3 s = 25 min. SVHN: 150 x 3 s x 140/95. CINIC-10: 400 x 3 s x 175/95."""
    hours = [gpu_hours([cells("table1")[f"{d}/alpha1.0/sage/seed7"]]) * 60 for d in ("cifar100", "svhn", "cinic10")]
    assert hours == pytest.approx([25.0, 7.5 * 140 / 95, 20 * 175 / 95])


def test_readme_commands_work():
    commands = [shlex.split(line) for line in re.findall(r"^ *(fssl run .*)$", README, re.M)]
    assert len(commands) > 5
    for _, _, preset, *rest in commands:
        settings = [value for flag, value in pairwise(rest) if flag == "--set"]
        selected = list(expand(override(read_toml(preset), settings)))
        assert 0 < len(selected) <= len(cells(Path(preset).name))
        for name, config in selected:
            method_of(config)
            assert name.count("/") == 3


def test_readme_counts_figure_16():
    """Client 0 of the released split at alpha 0.1."""
    scope: dict[str, dict[float, dict[str, np.ndarray]]] = {}
    exec(re.search(r"```python\n(.*?)```", README, re.S).group(1), scope)
    counts = scope["bubbles"][0.1]
    assert counts["labeled"][0].tolist() == [57, 38, 3, 0, 9, 0, 28, 7, 57, 51]
    assert counts["unlabeled"][0].tolist() == [446, 460, 0, 3, 13, 0, 441, 0, 435, 452]
