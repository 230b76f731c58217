"""The catalog of methods: nothing in it is typed in that can be computed, and what is typed in agrees with that."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fssl.bench.methods import run_method_bench
from fssl.catalog import entries as catalog
from fssl.catalog import facts
from fssl.catalog.describe import measure_sizes
from fssl.catalog.entries import (
    BASELINE,
    Cost,
    Entry,
    combinations,
    costs,
    entries,
    entry,
    keeps,
    read_costs,
    source,
    step_cost,
    traffic,
)
from fssl.catalog.facts import MethodSizes, check_choice, parse_methods, registry, same_method
from fssl.catalog.listings import overview, print_method
from fssl.config import SOURCES, ByDataset, MethodChoice, Range, Source
from fssl.data.cards import CARDS, Card, card
from fssl.errors import UserError
from fssl.methods.base import Method
from fssl.methods.names import METHODS, PLUGINS, build_method, declared_by, defaults_on, full_settings, settings_of
from fssl.models import build_net
from helpers.method_facts import facts_text
from helpers.method_tables import overview as overview_table

# ResNet-8x4 with 10 classes: parameters as counted in the paper's code, and BatchNorm's mean, variance and counter.
PARAMETERS, BUFFERS = 4 * 1_227_594, 10_752
MODEL = PARAMETERS + BUFFERS


def printed(width: int, *things: object) -> list[str]:
    console = Console(width=width, record=True, file=StringIO())
    console.print(*things, sep="\n")
    return console.export_text().splitlines()


@pytest.mark.parametrize("builder", [*METHODS.values(), *PLUGINS.values()], ids=lambda b: b.__name__)
def test_every_builder_has_a_card(builder: object) -> None:
    source = SOURCES[builder]  # type: ignore[index]
    assert source.paper[-4:].isdigit()
    assert source.follows in ("released code", "paper", "reconstruction")


@pytest.mark.parametrize("builder", [*METHODS.values(), *PLUGINS.values()], ids=lambda b: b.__name__)
def test_every_setting_says_what_it_means(builder: Callable[..., Method]) -> None:
    assert {key for key, setting in settings_of(builder).items() if not setting.help} == set()


def test_tau_and_mu_u_mean_the_same_in_every_method() -> None:
    """But for (FL)²'s tau, which belongs to another term. Ranges are where they were, and so are `vote`'s choices."""
    builders = {*METHODS.values(), PLUGINS["sage"]} - {METHODS["flfl"]}
    for key, low, high in (("tau", 1e-9, 1.0), ("mu_u", 0.0, 1e6), ("kappa", 0.0, 1e9), ("lam", 0.0, 1.0)):
        found = {s for b in builders for k, s in settings_of(b).items() if k == key}
        assert {(s.limits, bool(s.help)) for s in found} == {(Range(low, high), True)}
        assert len({s.help for s in found}) == 1
    assert settings_of(METHODS["sage"])["vote"].options == ("hard", "soft")


@pytest.mark.parametrize("name", METHODS)
def test_a_source_names_what_is_kept_and_nothing_else(name: str) -> None:
    found = entry(name)
    assert found.source is not None
    assert found.sizes is not None
    assert bool(found.source.client) == (found.sizes.client > 0)
    assert bool(found.source.server) == (found.sizes.server + found.sizes.memory > 0)


def sizes(name: str) -> MethodSizes:
    found = entry(name).sizes
    assert found is not None
    return found


def test_bytes_by_hand() -> None:
    """A model each way, and what the methods add to it, in numbers of four bytes."""
    assert sizes("fedavg") == sizes("sage") == MethodSizes(MODEL, MODEL, 0, 0, 0)
    assert sizes("fedloke") == MethodSizes(MODEL, MODEL, client=MODEL, server=0, memory=0)
    assert sizes("feddb") == MethodSizes(MODEL, MODEL + 4 * 10, 0, 0, 0)  # the prior goes up
    assert sizes("fedlabel-2m") == MethodSizes(MODEL, 2 * MODEL + 4, 0, 0, 0)  # two models and a count
    heads = 4 * (2 * 256**2 + 256)
    assert sizes("proxyfl") == MethodSizes(MODEL + heads + 40, MODEL + heads + 40, 0, server=40, memory=0)
    assert sizes("flexmatch") == MethodSizes(
        MODEL, MODEL, client=8 * 2500, server=0, memory=0
    )  # one whole number an image
    assert sizes("freematch").client == 4 * (1 + 10 + 10)
    assert sizes("feddure-full").client == 4 * (10 * 100 + 100 + 100 + 1)
    assert sizes("cbafed") == MethodSizes(
        MODEL + 40, MODEL + 44, 0, server=MODEL + 84, memory=0
    )  # classes; an older model
    assert sizes("rscfed") == MethodSizes(
        MODEL, 3 * MODEL + 16, client=MODEL + 4, server=0, memory=0
    )  # groups; a teacher


def test_bytes_of_another_network_by_hand() -> None:
    """With 100 classes the last layer has 90 more rows of 256 weights and a bias; ProxyFL sends 90 more numbers."""
    net, larger = build_net("resnet8", 3, 100, 4), MODEL + 4 * 90 * 257
    assert measure_sizes(build_method("sage", {}), net)[:2] == (larger, larger)
    more = measure_sizes(build_method("proxyfl", {}), net).down - sizes("proxyfl").down
    assert more == 4 * 90 * (257 + 1)


def test_bytes_of_fedmatch_by_hand() -> None:
    """psi has the kernels only: all parameters but biases and BatchNorm's. Down: sigma, psi, two psi of helpers."""
    net = build_net("resnet8", 3, 10, 4)
    psi = sum(t.nbytes for t in net.first.params.values() if t.dim() > 1)
    found = sizes("fedmatch")
    assert found.up == MODEL + psi
    assert found.down == MODEL + 3 * psi + 4
    assert found.memory == psi + 4 * 10
    assert found.client == 0


def test_a_plug_in_keeps_and_sends_what_its_host_does() -> None:
    host, plugged = entry("flexmatch"), entry("flexmatch+sage")
    assert plugged.sizes == host.sizes
    assert keeps(plugged) == keeps(host) == "client: label table"
    assert plugged.source is not None
    assert (plugged.source.paper, plugged.source.follows) == ("Zhang et al. 2021; Liu et al. 2025", "reconstruction")


@pytest.mark.slow
def test_a_method_without_a_source_is_listed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine() -> object:
        """My own rule."""
        return build_method("sage", {})

    monkeypatch.setitem(METHODS, "mine", mine)
    known = parse_methods(facts_text())
    for module in (catalog, facts):
        monkeypatch.setattr(module, "registry", lambda: known)
    (found,) = (e for e in entries() if e.name == "mine")
    assert (found.about, found.source, step_cost(found)) == ("My own rule.", None, "?")
    assert "| `mine` | My own rule. |" in overview_table()


def test_the_overview_fits_eighty_columns() -> None:
    """A method's idea is next to its name, its numbers below in columns."""
    lines = printed(80, *overview())
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    head = next(line for line in lines if "MB down/up" in line)
    found = {e.name: e for e in entries()}
    assert set(found) <= {line.split()[0] for line in lines if line.strip()}
    for name, text in (("flexmatch", "FixMatch-LPL that accepts"), ("cbafed", "Clients without labels train")):
        start = next(i for i, line in enumerate(lines) if line.split()[:1] == [name])
        assert text in lines[start]
        facts = next(line for line in lines[start:] if line[head.index("MB") :].startswith(traffic(found[name])))
        cost, follows = facts[head.index("step") :], facts[head.index("follows") :]
        assert cost.startswith(step_cost(found[name]))
        assert follows.startswith(source(found[name])[1])
        assert facts[head.index("keeps") :].startswith(keeps(found[name])[:12])


@pytest.mark.parametrize("name", ["fedloke", "flexmatch+sage", "X+sage", "fedavg-sl"])
def test_one_method_in_full(name: str) -> None:
    console = Console(width=100, record=True, file=StringIO())
    print_method(console, name)
    text = console.export_text()
    expected = {
        "fedloke": [
            "plug-ins              none",
            "train.labels_alone    no",
            "method.mu_own",
            "4,921,128 bytes with each client",
            "fssl docs fedloke",
        ],
        "flexmatch+sage": ["method.persistent", "method.kappa", "4,921,128 bytes down"],
        "X+sage": ["method.kappa", "as X"],
        "fedavg-sl": ["no settings", "upper bound"],
    }
    assert [words for words in expected[name] if words not in text] == []


def test_a_wrong_name_is_one_line() -> None:
    with pytest.raises(UserError, match=r"'fedlok' is unknown; did you mean 'fedloke'"):
        print_method(Console(file=StringIO()), "fedlok")


# Facts: what is known without building a method.


def cards() -> Iterator[Card]:
    """Every dataset, and own images of as many classes as they may have."""
    yield from CARDS.values()
    for name, number in product(("folder", "imagefolder"), (2, 7, 99, 100, 101, 333, 1000, 5000)):
        yield replace(card(name), num_classes=number)


@pytest.mark.parametrize("name", [*METHODS, *(f"fixmatch-lpl+{plugin}" for plugin in PLUGINS)])
def test_facts_say_what_signatures_say(name: str) -> None:
    """But for rules by dataset, which are tables there: they give the same defaults."""
    written, declared = registry().declared_by(name), declared_by(name)
    rule = ByDataset(lambda card: None)
    assert [*written] == [*declared]
    for key, setting in declared.items():
        ours, theirs = (replace(s, by_dataset=s.by_dataset and rule) for s in (written[key], setting))
        assert ours == theirs
    for each in cards():
        assert registry().defaults_on(name, each) == defaults_on(name, each)


@pytest.mark.parametrize("host", METHODS)
def test_a_plug_in_changes_no_size(host: str) -> None:
    for plugin in PLUGINS.keys() - registry().methods[host].refuses.keys() - {host}:
        assert measure_sizes(build_method(f"{host}+{plugin}", {})) == registry().methods[host].sizes


WRONG: dict[str, dict[str, Any]] = {
    "sgae": {},
    "flexmach+sage": {},
    "sage+oracel": {},
    "sage+sage": {},
    "fedavg+flexmatch": {},
    "fedavg+sage": {},
    "fedloke+oracle": {},
    "my.py": {},
    "sage": {"tua": 0.9},
    "fixmatch-lpl+sage": {"tau": 2},
    "flexmatch": {"count": "fial"},
    "fedavg-sl": {"steps": "pool"},
    "fedlabel-2m": {"burn_in": 0.5},
    "feddure": {"student_rate": True, "tau": "high"},
}


@pytest.mark.parametrize("name", WRONG)
def test_text_is_rejected_in_the_words_of_a_run(name: str) -> None:
    choice = MethodChoice(name, tuple(WRONG[name].items()))
    with pytest.raises(UserError) as early:
        check_choice(choice, card("digits"))
    with pytest.raises(UserError) as late:
        build_method(name, dict(sorted(full_settings(choice, card("digits")).items())))
    assert str(early.value) == str(late.value)


SAME = {
    ("fixmatch-lpl+sage", ()): ("sage", ()),
    ("fixmatch-gpl+sage", (("vote", "soft"), ("tau", 0.9))): ("sage", (("tau", 0.9), ("vote", "soft"))),
    ("fixmatch-lpl+oracle+sage", (("label_bn", "eval"),)): ("sage+oracle", (("label_bn", "eval"),)),
    ("fixmatch-lpl+sage", (("lam", 0.3), ("mu_u", 2))): ("sage", (("lam", 0.3), ("mu_u", 2.0))),
    ("flexmatch+oracle+sage", (("count", "local"),)): ("flexmatch+sage+oracle", (("count", "local"),)),
    ("fedloke", (("ramp_rounds", 12),)): ("fedloke", ()),
}


@pytest.mark.parametrize(("one", "other"), SAME.items(), ids=str)
def test_methods_that_do_the_same_have_one_name(one: tuple[str, Any], other: tuple[str, Any]) -> None:
    """And only those: another setting is another method."""
    choices = [MethodChoice(*each) for each in (one, other, (one[0], (*one[1], ("mu_u", 0.5))))]
    named = [same_method(choice, card("digits")) for choice in choices]
    built = [build_method(choice.name, full_settings(choice, card("digits"))) for choice in choices]
    assert named[0] == named[1]
    assert built[0] == built[1]
    assert named[0] != named[2]
    assert built[0] != built[2]


# Costs.


def test_every_method_and_every_host_was_measured() -> None:
    known = costs()
    assert set(known) >= {*METHODS}, "run: make regenerate"
    assert set(known) >= {
        f"{host}+sage" for host in ("fedprox+fixmatch", "flexmatch", "freematch", "fedlabel", "feddb")
    }
    assert set(known) <= {*METHODS, *combinations()}
    assert all(cost.low <= cost.ratio <= cost.high for cost in known.values())
    assert known[BASELINE].ratio == pytest.approx(1, abs=0.1)  # held against itself: what noise there is
    assert known["fedavg"].ratio < 1 < known["sage"].ratio < known["fedloke"].ratio
    assert read_costs()["device"]
    assert read_costs()["command"].startswith("fssl bench --methods")


def test_a_plug_in_s_cost_is_the_median_over_its_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """1.5 / 1.2 = 1.25 and 2.1 / 2 = 1.05; a host that was not measured alone does not count."""
    ratios = {"flexmatch": 1.2, "flexmatch+sage": 1.5, "feddb": 2.0, "feddb+sage": 2.1, "fedlabel+sage": 9.0}
    monkeypatch.setattr(catalog, "costs", lambda: {name: Cost(r, r, r) for name, r in ratios.items()})
    assert catalog.plugin_cost("sage") == pytest.approx(1.15)
    assert catalog.plugin_cost("oracle") is None
    source = Source("", "paper", "")
    assert step_cost(Entry("X+sage", "", source, None, None)) == "1.15 X"


def bench(path: Path, *names: str, settings: tuple[str, ...] = ()) -> dict[str, dict[str, float]]:
    quick = ["train.steps_per_round=1", "train.batch=2", *settings]
    run_method_bench(Console(file=StringIO()), "demo", list(names), 2, path, quick)
    content: dict[str, dict[str, float]] = json.loads(path.read_text())["methods"]
    return content


def test_measurements_add_up_in_a_file_unless_they_differ(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    first = bench(path, "fedavg")
    assert set(first) == {"fedavg"}
    both = bench(path, "feddb", "fedavg")
    assert set(both) == {"fedavg", "feddb"}
    assert all(m["min_max"][0] <= m["ratio"] <= m["min_max"][1] and m["rounds"] == 2 for m in both.values())  # type: ignore[index]
    assert set(bench(path, "sage", settings=("train.batch=3",))) == {"sage"}


def test_a_bad_name_ends_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'fedprx' is unknown"):
        bench(tmp_path / "costs.json", "fedavg", "fedprx")
    assert not (tmp_path / "costs.json").exists()
