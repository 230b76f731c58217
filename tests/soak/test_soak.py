"""A short soak in every test run; `make soak` is the long one (docs/faults.md has its figures)."""

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from helpers import soak_harness

pytestmark = pytest.mark.slow
FEW = settings(max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("soak"))


@FEW
@given(soak_harness.run_words())
def test_any_settings_are_taken_or_rejected_in_a_line(words: list[str]) -> None:
    assert soak_harness.planned(words) == ""


@FEW
@given(soak_harness.command_lines)
def test_any_words_are_a_command_or_rejected(words: list[str]) -> None:
    assert soak_harness.understood(words) == ""


def test_damaged_files_show_or_do_no_harm() -> None:
    damage, draw = soak_harness.make_damage(Path.cwd()), random.Random(7)
    assert [wrong for _ in range(12) if (wrong := soak_harness.damaged(damage, draw))] == []


def test_a_site_that_lies_stops_and_owns_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
    from fssl.engines.flower import client_app
    from helpers.soak_malicious import Malicious

    monkeypatch.setattr(client_app, "workshop", client_app.workshop)  # which the trials replace
    run, draw = Malicious(Path("sites").absolute()), random.Random(7)
    assert [wrong for _ in range(12) if (wrong := run.trial(draw))] == []


def test_damaged_images_are_rejected_in_a_line() -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
    from helpers.soak_malicious import hostile_file, image_files

    files, draw = image_files(), random.Random(7)
    assert [wrong for _ in range(2000) if (wrong := hostile_file(files, draw))] == []


def test_foreign_apps_are_rejected_unread_and_named() -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
    from helpers.soak_operator import foreign_app

    draw = random.Random(7)
    assert [wrong for _ in range(100) if (wrong := foreign_app(draw))] == []


def test_damaged_weights_are_rejected_in_a_line() -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
    from helpers.soak_malicious import hostile_weights, weight_files

    files, draw = weight_files(Path.cwd()), random.Random(7)
    assert [wrong for _ in range(300) if (wrong := hostile_weights(files, draw))] == []


def test_kills_at_random_moments_change_nothing() -> None:
    """Three of them; the long soak has hundreds, of all kinds of runs."""
    run, draw = Path("run").absolute(), random.Random()
    assert soak_harness.killed_until_done("states of clients", run, draw, longest=4.0, most=3)[1] == ""
