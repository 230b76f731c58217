"""What a run will cost is said before it starts, and a long round is not silent."""

import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from torch.autograd.graph import saved_tensors_hooks

import fssl as package
from fssl import console as screen
from fssl.catalog.describe import measure_sizes
from fssl.config import Config, override, parse, read_toml
from fssl.console import GridView, Quiet, RunView, short_duration, size_text
from fssl.core.experiment import Experiment, prepare
from fssl.errors import UserError
from fssl.runner import conduct, costs
from fssl.runner.costs import Cost, Kept, Measured, cost_lines, estimate, recorded_cost, traffic
from helpers.command import Fssl

SMALL = ["train.rounds=3", "compute.device=cpu", "train.clients_per_round=2"]


def small(*settings: str) -> Config:
    return parse(override(read_toml("smoke"), [*SMALL, *settings]))


def test_steps_are_those_that_the_clients_take() -> None:
    """Two of six clients take part, each with four steps; an even share of the images gives the same."""
    experiment = prepare(small("train.steps_per_round=4"))
    assert [estimate(experiment, is_loaded).steps for is_loaded in (True, False)] == [8, 8]
    experiment = prepare(small("train.batch=16"))
    steps = [max(1, len(site.pool) // 16) for site in experiment.holdings.sites]
    epochs = experiment.config.train.local_epochs
    assert estimate(experiment, True).steps == pytest.approx(2 * epochs * sum(steps) / len(steps))


@pytest.mark.parametrize("method", ["sage", "fedavg", "fedmatch"])
def test_traffic_is_that_of_the_methods_page(method: str) -> None:
    experiment = prepare(small(f"method.name={method}"))
    sizes = measure_sizes(experiment.method, experiment.net)
    assert traffic(experiment, experiment.holdings.sites[0].counts) == (sizes.down, sizes.up)


def test_a_step_is_extrapolated_on_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 2 and 6 labeled images, which are 10 and 30 in all views, take 1 + n / 10 seconds."""
    assert Measured(2.0, 100.0).at(10, Measured(4.0, 300.0), 30, 100) == Measured(11.0, 1000.0)
    assert Measured(2.0, 100.0).at(10, Measured(1.0, 90.0), 30, 100) == Measured(1.0, 90.0)
    monkeypatch.setattr(costs, "measured", lambda _, recipe: Measured(1 + costs.images_of(recipe) / 10, 0.0))
    config = small("train.batch=50", "train.unlabeled_ratio=2", "train.steps_per_round=1", "compute.lanes=1")
    cost = estimate(prepare(config), True)
    test = config.card.num_test * 26.0 / 250 / 3
    assert cost.seconds == pytest.approx(2 * 26.0 + test + costs.ROUND)


def test_memory_counts_what_the_forward_pass_keeps() -> None:
    """The square keeps its input, in two views of one storage, and exp its result."""
    kept = Kept()
    with saved_tensors_hooks(kept.count, lambda tensor: tensor):
        x = torch.ones(500, requires_grad=True)
        (x.view(5, 100) * x.view(5, 100)).exp().sum().backward()
        torch.zeros(1000).exp()
    assert kept.num_bytes == 2 * 500 * 4


def test_an_estimate_imports_no_compiler() -> None:
    """It takes seconds to import, as long as a short run."""
    script = (
        "import sys; from fssl.runner.costs import cost_lines; import fssl;"
        " print(*cost_lines(fssl.experiment('smoke', 'compute.device=cpu'))); print('torch._dynamo' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    estimate, imported = said.splitlines()
    assert estimate.startswith("estimate for this machine: about ")
    assert imported == "False"


def test_a_run_of_days_and_one_without_room_say_what_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "memory", lambda: 8e9)
    cost = Cost(600, 95.0, 480.0, 9.2e9, 2e8, 340_000, 680_000)
    assert cost.line == (
        "estimate for this machine: about 95 steps per round, 8 min per round, 3.3 days in all; memory 9.2 GB,"
        " disk 200 MB; a client receives 340 kB and sends 680 kB per round"
    )
    days, room = cost.warnings
    assert days.startswith("this run takes days here: about 3.3 days; use a GPU (compute.device = 'cuda'), or")
    assert room.startswith("this run needs about 9.2 GB of memory, and the machine has 8 GB; use a smaller comp")
    assert cost._replace(seconds=1.0, memory=1e9).warnings == []
    on_gpu = cost._replace(seconds=None).line
    assert "95 steps per round, the first round shows its time; memory" in on_gpu


def test_numbers_are_said_in_two_digits() -> None:
    assert [short_duration(x) for x in (0.0351, 12.4, 300, 7300, 300_000)] == [
        "0.035 s",
        "12 s",
        "5 min",
        "2 h",
        "3.5 days",
    ]
    assert [size_text(x) for x in (340, 57_896, 1_450_000, 2.8e9)] == ["340 bytes", "58 kB", "1.4 MB", "2.8 GB"]


def test_on_a_gpu_the_first_round_shows_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = prepare(small("train.steps_per_round=1"))
    assert estimate(experiment, True).seconds is not None
    monkeypatch.setattr(costs, "choose_device", lambda _: torch.device("cuda"))
    assert estimate(experiment, True).seconds is None


def test_runs_at_a_time_share_the_cores_and_the_time(monkeypatch: pytest.MonkeyPatch, fssl: Fssl) -> None:
    """Five runs of 3 rounds of 2 s, two at a time, take three times 6 s; each has one of the two cores."""
    lanes: list[int | None] = []

    def cost(experiment: Experiment, is_loaded: bool) -> Cost:
        lanes.append(experiment.config_here.compute.lanes)
        return Cost(3, 8.0, 2.0, 1e8, 1e6, 1, 1)

    monkeypatch.setattr(costs, "estimate", cost)
    monkeypatch.setattr("fssl.runner.planned.cores", lambda: 2)
    words = ["run", "smoke", *(word for s in SMALL for word in ("--set", s)), "--set", "grid.seed=[1,2,3,4,5]"]
    said = fssl(*words, "--jobs", "2", "--dry-run")
    assert said.out.splitlines()[-1] == "5 runs like this one, 2 at a time: 18 s"
    said = fssl(*words, "--dry-run")
    assert said.out.splitlines()[-1] == "5 runs like this one, one after another: 30 s"
    assert lanes == [1, None]


@pytest.mark.slow
def test_runs_side_by_side_say_their_cost_first(fssl: Fssl) -> None:
    words = ["run", "smoke", *(word for s in SMALL for word in ("--set", s)), "--set", "grid.seed=[1,2]"]
    first, second, *_ = fssl(*words, "--jobs", "2").out.splitlines()
    assert first.startswith("estimate for this machine: about ")
    assert second.startswith("2 runs like this one, 2 at a time: ")


def test_a_resumed_run_is_estimated_from_its_record(monkeypatch: pytest.MonkeyPatch, fssl: Fssl) -> None:
    words = [word for s in [*SMALL, "train.steps_per_round=1"] for word in ("--set", s)]
    assert fssl("run", "smoke", *words, "--out", "run").code == 0
    monkeypatch.setattr(costs, "measured", lambda *_: 1 / 0)  # no step is tried
    first, *_ = fssl("run", "run", "--resume", "--set", "train.rounds=4").out.splitlines()
    assert first.startswith("estimate from its finished rounds: ")


def test_an_estimate_from_a_record_is_the_median_of_its_newest_rounds() -> None:
    config = small("train.rounds=100")
    lines: list[dict[str, Any]] = [
        {"round": i, "timing": {"seconds": 60.0 if i < 6 else i - 4.0}} for i in range(1, 17)
    ]
    said = "estimate from its finished rounds: 7.5 s per round, 10 min for the others"  # rounds 7 to 16: 3 to 12 s
    assert recorded_cost(config, lines) == [said]
    config, line = small("train.rounds=1001"), {"round": 1, "timing": {"seconds": 86.41}}
    said, warning = recorded_cost(config, [line])
    assert "86 s per round, 24 h for the others" in said
    assert warning.startswith("this run takes days here: about 24 h; use a GPU (compute.device = 'cuda'), or a smaller")
    assert len(recorded_cost(config, [{"round": 1, "timing": {"seconds": 86.4}}])) == 1  # exactly a day


def test_on_a_gpu_the_second_round_gives_the_estimate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first one compiles."""
    assert [conduct.shows_time(engine_at(kind, r)) for kind in ("cuda", "cpu") for r in (1, 2, 3)] == [
        *(False, True, False),
        *(False, False, False),
    ]
    monkeypatch.setattr(conduct, "shows_time", lambda engine: engine.snapshot.round == 2)
    view = Quiet()
    conduct.run_experiment(prepare(small("train.steps_per_round=1")), tmp_path / "run", view)
    assert [text.partition(":")[0] for text in view.said] == ["estimate from its finished rounds"]


def engine_at(kind: str, round: int) -> Any:
    return SimpleNamespace(device=torch.device(kind), snapshot=SimpleNamespace(round=round))


def test_python_returns_the_estimate() -> None:
    experiment = package.experiment("smoke", *SMALL, "train.steps_per_round=4")
    cost = package.estimate(experiment)
    assert (cost.rounds, cost.steps) == (3, 8.0)
    assert cost.seconds is not None
    assert cost.seconds > 0
    assert cost.line.startswith("estimate for this machine: about 8 steps per round, ")
    with pytest.raises(UserError, match=r"fssl\.estimate takes what fssl\.experiment returns, and got 'smoke'"):
        package.estimate("smoke")  # type: ignore[arg-type]


def test_an_estimate_that_fails_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "estimate", lambda *_: 1 / 0)
    assert cost_lines(prepare(small())) == []


def test_a_dry_run_and_a_run_say_what_they_cost(fssl: Fssl, tmp_path: Path) -> None:
    words = [word for setting in [*SMALL, "train.steps_per_round=1"] for word in ("--set", setting)]
    grid = fssl("run", "smoke", *words, "--set", "grid.seed=[7,8]", "--dry-run")
    lines = [line for line in grid.out.splitlines() if line.startswith(("estimate", "2 runs"))]
    assert lines[0].startswith("estimate for this machine: about 2 steps per round, ")
    assert lines[1].startswith("2 runs like this one, one after another: ")
    first, *_ = fssl("run", "smoke", *words).out.splitlines()
    assert first.startswith("estimate for this machine: about 2 steps per round, ")


def test_a_long_round_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a silence of 0.04 s instead of a minute, in a pipe; after the run the timer is off."""
    monkeypatch.setattr(screen, "SILENCE", 0.04)
    out = StringIO()
    with RunView(Console(file=out), "mine") as view:
        view.started(small(), [])
        until = time.monotonic() + 5
        while "so far" not in out.getvalue() and time.monotonic() < until:
            time.sleep(0.005)
    said = out.getvalue()
    assert said.splitlines()[1] == "mine  round 1: 0:00 so far"
    time.sleep(0.1)
    assert out.getvalue() == said


def test_a_long_round_of_a_grid_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    out = StringIO()
    with GridView(Console(file=out), 2) as view:
        view.running("a", 3, [])
        view.running("a", 3, [])
        assert out.getvalue() == "a  preparing\n"
        monkeypatch.setattr(screen, "SILENCE", 0.5)
        view.running("a", 3, [])
    assert out.getvalue().splitlines()[1:] == ["a  round 1 is under way"]
