"""The guarantee of noise, compared with the exact law of the Gaussian mechanism."""

from dataclasses import replace
from math import exp, sqrt
from pathlib import Path
from statistics import NormalDist

import pytest

from fssl.config.settings import Privacy
from fssl.console import Quiet
from fssl.core.experiment import prepare
from fssl.core.privacy import epsilon, most_rounds, privacy_notes, spent
from fssl.data.sources import Dataset
from fssl.engines.local import LocalEngine
from fssl.records.store import RunFolder
from fssl.records.writer import RunWriter
from fssl.reports.page.content import content
from fssl.reports.runs import find_runs, privacy_text
from fssl.runner.conduct import run_experiment
from helpers.small import tiny_config

CUMULATIVE = NormalDist().cdf


def exact_delta(epsilon: float, sigma: float) -> float:
    """Balle and Wang 2018, Theorem 8, with a sensitivity of 1."""
    return CUMULATIVE(0.5 / sigma - epsilon * sigma) - exp(epsilon) * CUMULATIVE(-0.5 / sigma - epsilon * sigma)


@pytest.mark.parametrize(("noise", "rounds"), [(4.0, 1), (20.0, 30), (60.0, 300)])
def test_it_bounds_the_exact_guarantee_closely(noise: float, rounds: int) -> None:
    """Rounds in a row are one mechanism with sqrt(rounds) less noise; a replaced client moves the sum by two clips."""
    sigma, found = noise / 2 / sqrt(rounds), epsilon(noise, rounds, 1e-5)
    assert exact_delta(found, sigma) <= 1e-5
    assert exact_delta(0.8 * found, sigma) > 1e-5


def test_a_secret_draw_of_few_clients_spends_less() -> None:
    whole, few, all_of_them = (epsilon(10.0, 50, 1e-5, s) for s in (None, (100, 5), (100, 100)))
    assert few < 0.2 * whole
    assert all_of_them == whole


def test_a_run_prints_its_costs_before_it_starts() -> None:
    config = tiny_config("train.rounds=20", "train.clients_per_round=2", "partition.clients=4")
    assert privacy_notes(config) == []
    config = replace(config, privacy=Privacy(clip=1.0, noise=30.0))
    found = spent(config, 20)
    assert found is not None
    assert (found.rounds, found.most_rounds) == (20, most_rounds(config, 20))
    assert 10 <= found.most_rounds < 20
    assert found.known == epsilon(30.0, found.most_rounds, 1e-5)
    assert found.hidden <= min(found.known, epsilon(30.0, 20, 1e-5, (4, 2)))
    line, norms = privacy_notes(config)
    assert f"epsilon {found.hidden:.3g} against an adversary" in line
    assert f"(at most {found.most_rounds} rounds)" in line
    assert "model.norm = 'group'" in norms


def test_without_noise_nothing_is_guaranteed() -> None:
    config = replace(tiny_config(), privacy=Privacy(clip=1.0))
    assert spent(config, 20) is None
    assert "there is no guarantee" in privacy_notes(config)[0]


@pytest.mark.slow
def test_a_run_says_records_and_shows_what_it_spends(tmp_path: Path, tiny_data: Dataset) -> None:
    config = replace(tiny_config("train.rounds=2", "train.steps_per_round=1"), privacy=Privacy(clip=1.0, noise=30.0))
    heard, folder, found = Quiet(), RunFolder(tmp_path / "run"), spent(config, 2)
    summary = run_experiment(prepare(config, tiny_data), folder.path, heard, False, make=LocalEngine)
    assert heard.said[:1] == privacy_notes(config)[:1]
    assert found is not None
    assert summary["privacy"] == found._asdict()
    known = f"{found.known:.3g} against an adversary who knows the participants"
    text = f"epsilon {found.hidden:.3g} with delta 1e-05; {known}"
    found_runs = find_runs([folder.path])
    assert privacy_text(found_runs.runs[0]) == text
    assert f"{folder.path}: privacy of one client: {text}" in content(found_runs, "")["notes"]
    RunWriter(folder).renew(prepare(replace(config, train=replace(config.train, rounds=4)), tiny_data).config)
    (longer,) = find_runs([folder.path]).runs
    assert privacy_text(longer) == ""  # what two rounds spent is too little for an extended run
