"""Places, costs and sentences of a leaderboard, on runs whose numbers are known; and which track a run belongs to."""

from pathlib import Path

import pytest

from fssl.config import expand, override, read_toml
from fssl.reports.costs import Memory, mean_costs, seconds_by_round, spent_by_round
from fssl.reports.groups import named_groups
from fssl.reports.leaderboard import NEAR, draw, places_of, standings, words
from fssl.reports.runs import Run, find_runs
from fssl.reports.tracks import TRACKS, nearest_track, planned_cells, presets_of, track_of
from fssl.reports.verdicts import NOISE_BANDS, against_noise, noise_band
from helpers.handmade import write_run
from helpers.run_folders import write_run as write_config

TWO_METHODS = ("sage", "fixmatch-lpl")


def groups_of(folder: Path, results: dict[str, dict[int, float]]) -> dict[str, list[Run]]:
    for method, seeds in results.items():
        for seed, result in seeds.items():
            write_run(folder / f"{method}{seed}", [result], f"method.name={method}", f"seed={seed}")
    return named_groups(find_runs([folder]).runs)


@pytest.mark.parametrize(("gap", "second"), [(NEAR, 1), (NEAR + 0.01, 2)])
def test_one_seed_ranks_nothing_within_the_noise(tmp_path: Path, gap: float, second: int) -> None:
    assert NEAR == 1.2
    groups = groups_of(tmp_path, {"sage": {7: 50.0 + gap}, "fixmatch-lpl": {7: 50.0}})
    assert places_of(groups) == {"sage": 1, "fixmatch-lpl": second}


def test_with_seeds_the_spreads_decide(tmp_path: Path) -> None:
    """Deviations of 1 and 0.5: a lead of 1.5 separates nothing, one of 1.6 does; ties share a place, the next is 3."""
    ours, theirs = {7: 49.0, 8: 50.0, 9: 51.0}, {7: 48.0, 8: 48.5, 9: 49.0}
    groups = groups_of(tmp_path / "a", {"sage": ours, "fixmatch-lpl": theirs, "fedavg": {7: 10.0, 8: 11.0}})
    assert places_of(groups) == {"sage": 1, "fixmatch-lpl": 1, "fedavg": 3}
    lower = {seed: result - 0.1 for seed, result in theirs.items()}
    groups = groups_of(tmp_path / "b", {"sage": ours, "fixmatch-lpl": lower})
    assert places_of(groups) == {"sage": 1, "fixmatch-lpl": 2}
    assert (
        words(groups)[0] == "sage is first, 1.60 points ahead of fixmatch-lpl: more than the spread of both over seeds."
    )


def test_the_sentences_claim_no_more_than_the_runs_show(tmp_path: Path) -> None:
    groups = groups_of(
        tmp_path, {"sage": {7: 52.0}, "fixmatch-lpl": {7: 51.5}, "fedavg": {7: 40.0}, "fedavg-sl": {7: 90.0}}
    )
    assert words(groups) == [
        "sage and fixmatch-lpl share the first place: "
        "they differ by no more than run-to-run noise or the spread over seeds.",
        "Neighbors too close to rank (up to 1.2 points apart with a single seed, or within their spreads): "
        "sage and fixmatch-lpl.",
        "With the true labels, an upper bound: fedavg-sl (90.00 %).",
    ]
    lines = {line.name: (line.place, line.seeds, line.result) for line in standings(groups)}
    assert lines["fedavg-sl"] == (None, "7", "90.00")
    assert lines["fedavg"] == (3, "7", "40.00")
    alone = groups_of(tmp_path / "alone", {"sage": {7: 52.0}})
    assert words(alone) == ["One setting only: nothing to compare."]
    assert places_of(alone) == {}


def test_costs_come_from_the_record(tmp_path: Path) -> None:
    """Rounds of 9, 2, 4 s: the first one compiles and counts as the median, 4. Two clients, 3 + 1 MB each."""
    for seed, peak in ((7, 2**30), (8, 2**31)):
        timing = [{"seconds": seconds, "gpu_memory": peak} for seconds in (9.0, 2.0, 4.0)]
        config = next(expand(override(read_toml("smoke"), ["train.rounds=3", f"seed={seed}"])))[1]
        folder = write_config(tmp_path / str(seed), config, [1.0, 2.0, 3.0], timing=timing, clients=[[0, 1]] * 3)
        session = '{"from_round": 1, "device": "gpu", "traffic": {"down": 3000000, "up": 1000000}}'
        (folder / "env.json").write_text(f'{{"sessions": [{session}]}}')
    runs = find_runs([tmp_path]).runs
    assert seconds_by_round(runs[0]) == {1: 4.0, 2: 2.0, 3: 4.0}
    assert mean_costs(runs) == (10.0, Memory("gpu_memory", 2**31), 8e6)
    assert standings(named_groups(runs))[0].cost_texts == ["10", "8.0", "2.00"]
    assert spent_by_round(runs[0], "seconds") == {1: 4.0, 2: 6.0, 3: 10.0}
    assert spent_by_round(runs[0], "traffic") == {1: 0.008, 2: 0.016, 3: 0.024}


def test_an_older_record_has_no_memory_and_no_traffic(tmp_path: Path) -> None:
    groups = groups_of(tmp_path, {"sage": {7: 50.0}})
    assert standings(groups)[0].cost_texts[1:] == ["–", "–"]
    assert spent_by_round(groups["sage"][0], "traffic") is None


def test_the_picture_is_drawn_of_what_is_known(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [float(r) for r in range(30)], "method.name=sage")
    picture = draw(named_groups(find_runs([tmp_path]).runs), ["png"])["png"]
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 5000


def test_every_planned_run_is_of_its_track(tmp_path: Path) -> None:
    for track in TRACKS:
        for preset in presets_of(track):
            name, config = list(expand(read_toml(preset)))[-1]
            write_config(tmp_path / track / preset / name, config, [50.0])
    found = find_runs([tmp_path]).runs
    assert len(found) == 4
    assert all(track_of(run) == run.path.relative_to(tmp_path).parts[0] for run in found)
    assert sum(len(planned_cells(track)) for track in TRACKS) == 162


def test_another_setting_is_of_no_track(tmp_path: Path) -> None:
    _, config = next(expand(override(read_toml("benchmark/track-a"), ["train.lr=0.05"])))
    run = find_runs([write_config(tmp_path / "run", config, [50.0])]).runs[0]
    assert track_of(run) == ""
    assert nearest_track(run) == "in no track of the benchmark: train.lr is 0.05, but 0.1 in the nearest, track A"


@pytest.mark.parametrize(("apart", "band"), [(0.29, 0), (-0.3, 1), (1.15, 1), (-1.154, 1), (1.16, 2), (-9.0, 2)])
def test_the_noise_band(apart: float, band: int) -> None:
    assert noise_band(apart) == NOISE_BANDS[band]
    said = against_noise(apart)
    assert said.startswith("differs" if band == 2 else "agrees within the run-to-run noise of 0.3 to 1.15")
    assert against_noise(-2.0) == "differs: 0.85 beyond the run-to-run noise of 0.3 to 1.15"
