"""Lanes that are processes: the same results and errors as threads, and nothing left behind."""

import gc
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fssl.core.federation import Federation
from fssl.engines.forked_lanes import ForkedLanes, receive, send
from fssl.engines.lanes import Lanes
from fssl.engines.local import LocalEngine
from fssl.errors import RunError
from fssl.system.workers import can_fork
from helpers.command import SMALL, Fssl, outcome, start
from helpers.processes import children, is_alive

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not can_fork(), reason="there is no fork here")]
Make = Callable[..., Federation]
TWO = ("compute.lanes=2", "compute.processes=on")
FAILING = """
from dataclasses import dataclass
from torch._subclasses import FakeTensor
from fssl.methods.fixmatch import FixMatch

@dataclass(frozen=True)
class Failing(FixMatch):
    def step(self, net, payload, local, batch):
        clock = batch.clock
        if not isinstance(clock.step, FakeTensor) and float(clock.round) == 2 and float(clock.step) == 1:
            raise ValueError("enough")
        return super().step(net, payload, local, batch)

def failing():
    return Failing()
"""


def processes_of(engine: LocalEngine) -> list[int]:
    assert isinstance(engine.fleet, ForkedLanes)
    return [int(lane.process.pid or 0) for lane in engine.fleet._companions]


def test_tensors_arrive_as_they_were_sent() -> None:
    ours, theirs = multiprocessing.Pipe()
    image_like = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    sent: Any = {
        "bits": (torch.randn(3, 5).bfloat16(), torch.tensor([True, False])),
        "strided": [image_like, torch.arange(12).view(3, 4).t(), torch.zeros(0), torch.tensor(7)],
        "plain": (None, 3, "word"),
    }
    send(ours, sent)
    came = receive(theirs)
    assert came["plain"] == (None, 3, "word")
    for a, b in zip((*sent["bits"], *sent["strided"]), (*came["bits"], *came["strided"]), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    assert came["strided"][0].stride() == image_like.stride()
    assert came["strided"][0].data_ptr() % 64 == 0  # as any new tensor: kernels may compute otherwise elsewhere


def test_long_runs_have_processes_and_short_ones_threads(make_federation: Make) -> None:
    two, long = "compute.lanes=2", "train.rounds=100"
    kinds = {
        (): Lanes,
        (long,): ForkedLanes,
        (long, "compute.processes=off"): Lanes,
        (long, "compute.lanes=1"): Lanes,
        (long, "compute.threads=2"): Lanes,
        (long, "protocol=authors", "compute.lanes=1"): Lanes,
        ("compute.processes=on",): ForkedLanes,
    }
    assert {given: type(LocalEngine(make_federation(two, *given)).fleet) for given in kinds} == kinds
    assert type(LocalEngine(make_federation(two, long), debug=True).fleet) is Lanes


def test_processes_end_with_their_engine(make_federation: Make) -> None:
    engine = LocalEngine(make_federation(*TWO))
    list(engine.rounds(1))
    first = processes_of(engine)
    engine.close()
    assert (len(first), any(map(is_alive, first))) == (2, False)
    list(engine.rounds(2))  # as good as new
    second = processes_of(engine)
    assert all(map(is_alive, second))
    del engine
    gc.collect()
    assert not any(map(is_alive, second))


def test_a_killed_lane_ends_the_round_in_one_line(make_federation: Make) -> None:
    engine = LocalEngine(make_federation(*TWO))
    list(engine.rounds(1))
    lanes = processes_of(engine)
    os.kill(lanes[0], signal.SIGKILL)
    with pytest.raises(RunError, match=r"^round 2: the process of a lane was killed \(out of memory\?\); finished"):
        list(engine.rounds(2))
    assert not any(map(is_alive, lanes))
    assert engine.snapshot.round == 1
    (result,) = engine.rounds(2)  # with new ones
    assert result.round == 2


def test_a_step_that_fails_is_reported_as_in_threads(fssl: Fssl) -> None:
    """Round, client, step, the line of the user's file, the traceback, and the saved step."""
    Path("mine.py").write_text(FAILING)
    long = ["--set", "train.steps_per_round=3", "--set", "method.name=mine.py:failing", "--set", "compute.lanes=2"]
    texts = []
    for how in ("on", "off"):
        said = fssl("run", "smoke", *SMALL, *long, "--set", f"compute.processes={how}", "--out", how)
        assert said.code == 1
        assert 'raise ValueError("enough")' in Path(how, "error.txt").read_text()
        assert fssl("replay", f"{how}/failed-step.safetensors").code == 1
        texts.append(re.sub(r"client \d|\b(on|off)/", "", said.err))
    assert "round 2, , step 2: ValueError: enough" in texts[0]
    assert "mine.py, line 11" in texts[0]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_a_run_that_is_stopped(number: signal.Signals, tmp_path: Path) -> None:
    """And the run folder is free at once."""
    many = ["--set", "train.steps_per_round=40", "--set", "compute.lanes=2", "--device", "cpu"]
    words = ["run", "smoke", *many, "--set", "train.rounds=50", "--out", tmp_path / "run"]
    process = start(*words)
    until = time.monotonic() + 60
    while not ((lanes := children(process.pid)) and (tmp_path / "run" / "probes").is_dir()):
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(number)
    process.wait(20)
    again = start(*words[:-1], tmp_path / "run", "--resume", "--set", "train.rounds=2")  # takes the lock
    said = again.communicate(timeout=100)
    assert again.returncode == 0, said
    assert len(lanes) == 2
    assert not any(map(is_alive, lanes))


def test_a_run_resumed_with_processes_is_the_same(fssl: Fssl) -> None:
    settings = [*SMALL, "--set", "method.name=flexmatch", "--set", "compute.lanes=2"]
    fssl("run", "smoke", *settings, "--set", "compute.processes=off", "--out", "whole")
    fssl("run", "smoke", *settings, "--set", "train.rounds=1", "--out", "parts")
    said = fssl("run", "smoke", *settings, "--set", "compute.processes=on", "--out", "parts", "--resume")
    assert (said.code, said.err) == (0, "")
    assert outcome("parts") == outcome("whole")
