"""The presets of docs/benchmark.md: what each track runs, and that its parts differ only where the page says so."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from fssl.config import Config, expand, read_toml

PAGE = Path(__file__).parents[2] / "docs" / "benchmark.md"
HOSTS = ("flexmatch", "freematch", "softmatch", "feddb", "feddure", "fedlabel", "proxyfl")
# The methods for labels at all clients when the benchmark was drawn up.
METHODS = {
    "fedavg",
    "fedprox",
    "fedavg-sl",
    "fixmatch-lpl",
    "fixmatch-gpl",
    "fedprox+fixmatch",
    "flexmatch",
    "freematch",
}
METHODS |= {"fedlabel", "fedlabel-2m", "feddb", "sage", "fedloke", "proxyfl", "feddure", "feddure-full", "fedmatch"}
LATER = {"uda", "softmatch", "adamatch", "twin-sight"}  # methods that fssl got afterwards
RUNS = {"track-a": 27 * 3, "track-a-fedmatch": 3, "track-a-server": 26 * 3, "track-b": 12 * 3, "track-c": 14 * 3}


def cells(track: str) -> dict[str, Config]:
    return dict(expand(read_toml(f"benchmark/{track}")))


def methods_of(track: str) -> set[str]:
    return {config.method.name for config in cells(track).values()}


def shared(track: str) -> Config:
    """The settings that all runs of a track have, apart from method and seed."""
    first, *rest = {replace(c, method=Config().method, seed=7) for c in cells(track).values()}
    assert not rest
    return first


def differences(one: Config, other: Config) -> dict[str, tuple[object, object]]:
    flat = [dict(settings(asdict(config))) for config in (one, other)]
    return {key: (flat[0][key], flat[1][key]) for key in flat[0] if flat[0][key] != flat[1][key]}


def settings(tables: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    return [
        pair
        for key, value in tables.items()
        for pair in (settings(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(prefix + key, value)])
    ]


@pytest.mark.parametrize("track", RUNS)
def test_runs_are_counted_and_have_three_seeds(track: str) -> None:
    assert len(cells(track)) == RUNS[track]
    assert {config.seed for config in cells(track).values()} == {7, 8, 9}


def test_the_page_has_the_presets_numbers() -> None:
    rows = dict(line.strip("|").split("|", 1) for line in PAGE.read_text().splitlines() if line.startswith("| "))
    shown = {key.strip(): [cell.strip() for cell in cells.split("|")] for key, cells in rows.items()}
    tracks = ("track-a", "track-b", "track-c")
    counts = [RUNS["track-a"] + RUNS["track-a-fedmatch"], RUNS["track-b"], RUNS["track-c"]]
    assert shown["Runs"] == [str(number) for number in counts]
    assert f"of {sum(counts)} runs" in PAGE.read_text()
    trains = [shared(track).train for track in tracks]
    assert shown["Rounds, last ones with a falling rate"] == [f"{t.rounds}, {t.cooldown}" for t in trains]
    drawn = [f"{shared(t).partition.clients}, {shared(t).train.clients_per_round}" for t in tracks]
    assert shown["Clients, drawn each round"] == drawn
    assert shown["Preset"] == [f"`benchmark/{track}`" for track in tracks]
    assert [len(methods_of(track)) for track in tracks[1:]] == [int(number) for number in shown["Methods"][1:]]


def test_folders_are_named_by_method_and_seed() -> None:
    assert "sage/seed7" in cells("track-a")
    assert "cbafed_burn_in42/seed9" in cells("track-c")


def test_track_a_has_every_method_with_labels_at_all_clients_and_sage_on_its_hosts() -> None:
    plain = methods_of("track-a") | methods_of("track-a-fedmatch")
    assert plain == METHODS | LATER | {f"{host}+sage" for host in HOSTS}
    assert len(plain) == 21 + 7
    assert methods_of("track-a-server") == plain - {"fedmatch", "fedavg-sl"}


def test_track_a_is_the_paper_s_cell_but_for_rounds_and_a_falling_rate() -> None:
    """Every setting that is not a default."""
    assert differences(Config(), shared("track-a")) == {
        "data.name": ("digits", "cifar100"),
        "data.label_fraction": (None, 0.1),
        "partition.alpha": (1.0, 0.1),
        "train.rounds": (None, 120),
        "train.cooldown": (0, 15),
        "server.ema": (None, 0.9),
    }


def test_the_other_presets_of_track_a_differ_in_one_thing() -> None:
    assert differences(shared("track-a"), shared("track-a-fedmatch")) == {"train.cooldown": (15, 0)}
    assert differences(shared("track-a"), shared("track-a-server")) == {
        "server.optimizer": ("mean", "momentum"),
        "server.momentum": (0.9, 0.5),
    }
    deployable = next(expand(read_toml("settings/deployable")))[1]
    server = shared("track-a-server").server
    assert replace(server, ship="ema") == deployable.server


def test_track_b_is_a_cell_of_semifl_with_the_round_of_flfl() -> None:
    flfl = dict(expand(read_toml("settings/flfl")))[
        "cifar10_labels_per_class4/kindbalanced-dirichlet_alpha0.3/flfl/seed7"
    ]
    track = shared("track-b")
    assert differences(replace(flfl, method=track.method), track) == {
        "data.labels_per_class": (4, 400),
        "train.rounds": (800, 200),
        "train.cooldown": (0, 25),
        "server.batch": (10, None),
        "server.warmup": (10, 0),
        "server.ema": (None, 0.9),
    }
    assert track.server_batch == 250


def test_track_c_is_rscfed_s_setting_with_its_weight_for_all() -> None:
    rscfed = next(expand(read_toml("settings/rscfed")))[1]
    track = shared("track-c")
    assert differences(replace(rscfed, method=track.method), track) == {
        "train.rounds": (1000, 500),
        "train.cooldown": (0, 60),
        "train.labeled_weight": (0, 5),
        "server.ema": (None, 0.9),
    }


def test_nothing_is_tuned() -> None:
    """Only two first stages are set: CBAFed's, 42 rounds of 11 epochs, then 458, and SemiAnAgg's."""
    given = {c.method.name: c.method.settings for track in RUNS for c in cells(track).values() if c.method.settings}
    assert given == {"cbafed": (("burn_in", 42),), "semianagg": (("burn_in", 42),)}
    assert (42 - 1) * 11 < 500 - 42 < 42 * 11
