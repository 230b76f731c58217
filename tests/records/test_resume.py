"""A run that is killed, interrupted or out of disk space ends up the same as one that was not."""

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fssl.config import Config, override, parse, read_toml
from fssl.console import Quiet
from fssl.core import evaluate
from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.engines.engine import Engine, RoundResult
from fssl.engines.snapshot import Snapshot
from fssl.errors import RunError, UserError
from fssl.methods.names import METHODS
from fssl.probes.measures import answers_of
from fssl.probes.tally import Layout
from fssl.records.accepted import accept
from fssl.records.chain import read_start
from fssl.records.checkpoint import Checkpoints
from fssl.records.start_checks import resume_error
from fssl.records.store import RunFolder
from fssl.records.writer import RunWriter
from fssl.reports.runs import read_run
from fssl.runner.conduct import run_experiment
from fssl.types import Server, Weights
from helpers.command import outcome, records, start
from helpers.small import KNOWING, LABELING, StopAfter, completed

Outcome = tuple[list[dict[str, Any]], dict[str, bytes]]


def config(*settings: str) -> Config:
    return parse(override(read_toml("smoke"), settings))


# A run whose learning is one line of arithmetic: everything but the engine is real, and it takes milliseconds.


class ToyEngine(Engine):
    def __init__(self, federation: Federation) -> None:
        self.federation, self.device = federation, torch.device("cpu")
        self.layout = Layout(("steps", "l_s", "l_u"), ())
        weights = Weights({"w": torch.linspace(0, 1, 5), "v": torch.zeros(2, 2)}, {"b": torch.ones(1)})
        self.snapshot = Snapshot(0, Server(weights, {"prior": torch.ones(3)}), {}, {})

    def round(self, until: int) -> RoundResult:
        round = self.snapshot.round + 1
        (weights, extras, memory), clients = self.snapshot.server, self.snapshot.clients
        moved = {k: torch.sin(t * 1.1 + round) for k, t in weights.params.items()}
        moved["v"] = moved["v"] + sum(m["last"].sum() for m in memory.values())
        seen = clients.get(round % 3, {"table": torch.zeros(4)})["table"]
        last = {**memory, round % 2: {"last": moved["w"]}}
        server = Server(Weights(moved, weights.buffers), {"prior": extras["prior"] * 0.9}, last)
        state = {**clients, round % 3: {"table": seen + moved["w"].sum()}}
        self.snapshot = Snapshot(round, server, state, {k: t * 0.5 for k, t in moved.items()})
        tests = {norm: evaluate.Test(10.0 * round, 1.0) for norm in self.federation.norms}
        return RoundResult(round, [0, 1], tests, np.full((2, 2, 3), round, np.float32), 0.1, [])

    def model(self) -> Weights:
        return self.snapshot.server.weights

    def validated(self, model: Weights) -> evaluate.Tested | None:
        return None

    def tested(self, model: Weights) -> evaluate.Tested:
        return evaluate.Tested(answers_of(np.eye(2, dtype=np.float32), np.arange(2)), float(model.params["w"].sum()))

    def close(self) -> None:
        """Nothing was started."""


TOY = config("train.rounds=4")
FLUSH, prepared = os.fsync, cache(prepare)


def go(folder: Path, settings: Config = TOY, resume: bool = True) -> list[str]:
    """Flushing is left out, unless a test watches it: what a killed process wrote stays in the system's memory."""
    listener, flush = Quiet(), (lambda handle: None) if os.fsync is FLUSH else os.fsync
    with patch.object(os, "fsync", flush):
        run_experiment(prepared(settings), folder, listener, resume, make=ToyEngine)
    return listener.said


def killed_at(number: int, folder: Path, arm: Callable[[int, Path], None]) -> bool:
    """Run in a forked process that dies at its n-th step on disk; whether there was such a step."""
    child = os.fork()
    if child == 0:
        arm(number, folder)
        go(folder)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def before_an_operation(number: int, folder: Path) -> None:
    """Die before the n-th file is opened, renamed, removed or folder made."""
    left = [number]

    def hook(event: str, details: tuple[Any, ...]) -> None:
        if event in ("open", "os.rename", "os.remove", "os.mkdir") and str(details[0]).startswith(str(folder)):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def in_the_middle_of_a_write(number: int, folder: Path) -> None:
    """Die at the n-th flush of a file, with its last bytes not written."""
    left, fsync = [number], os.fsync

    def die(handle: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            if not os.path.isdir(f"/proc/self/fd/{handle}"):
                os.truncate(f"/proc/self/fd/{handle}", max(0, os.fstat(handle).st_size - 10))
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(handle)

    patch.object(os, "fsync", die).start()  # in the forked process only


@pytest.mark.parametrize("arm", [before_an_operation, in_the_middle_of_a_write])
@pytest.mark.parametrize("begin", ["new", "half"])
@pytest.mark.slow
def test_a_kill_at_every_step_on_disk_changes_nothing(
    tmp_path: Path, begin: str, arm: Callable[[int, Path], None]
) -> None:
    """Also for a run that was killed before and is killed again while it is resumed."""
    go(tmp_path / "unbroken", resume=False)
    expected = outcome(tmp_path / "unbroken")
    if begin == "half":
        assert killed_at(25, tmp_path / "half", in_the_middle_of_a_write)
    for number in range(1000):
        folder = tmp_path / f"run{number}"
        if begin == "half":
            shutil.copytree(tmp_path / "half", folder)
        if not killed_at(number, folder, arm):
            break
        go(folder)
        assert outcome(folder) == expected, number
        assert RunFolder(folder).is_finished
        assert not list(folder.rglob("*.part"))
    assert outcome(folder) == expected
    assert number > (20 if begin == "new" else 10)


@pytest.mark.parametrize("short", [1, 2, 30])
def test_a_record_with_half_a_line_resumes_from_the_last_whole_one(tmp_path: Path, short: int) -> None:
    go(tmp_path / "run")
    expected = outcome(tmp_path / "run")
    (tmp_path / "run/summary.json").unlink()
    text = (tmp_path / "run/rounds.jsonl").read_bytes()
    (tmp_path / "run/rounds.jsonl").write_bytes(text[:-short])
    said = go(tmp_path / "run")
    assert ("rounds.jsonl is damaged after round 3; later rounds are computed again" in said) == (short > 1)
    assert outcome(tmp_path / "run") == expected


@pytest.mark.parametrize("lost", ["a line", "the file"])
def test_checkpoints_outlive_a_record_damaged_before_them(tmp_path: Path, lost: str) -> None:
    """Nothing is removed, so a copy of the record can be resumed."""
    run = tmp_path / "run"
    go(run)
    expected = outcome(run)
    (run / "summary.json").unlink()
    record, text = run / "rounds.jsonl", (run / "rounds.jsonl").read_text()
    if lost == "a line":
        record.write_text(text.replace('"round": 2', '"round": 7'))
    else:
        record.unlink()
    (run / "checkpoint/round-000003 (copy).json").touch()  # what a file manager leaves
    before = contents(run)
    with pytest.raises(UserError, match=r"nothing was changed: restore the files, or start again"):
        go(run)
    assert contents(run) == before
    record.write_text(text)
    assert "after round" in go(run)[0]
    assert outcome(run) == expected


def contents(run: Path) -> dict[str, bytes]:
    """Every file of a run but its lock, which is empty."""
    files = (path for path in run.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


@pytest.mark.parametrize("lost", ["all", "summary", "model", "rounds"])
@pytest.mark.parametrize("longer", [0, 3])
def test_without_a_checkpoint_a_finished_run_stays_as_it_is(tmp_path: Path, lost: str, longer: int) -> None:
    run = tmp_path / "run"
    go(run)
    shutil.rmtree(run / "checkpoint")
    for name in ("summary.json", "model.safetensors", "rounds.jsonl"):
        if lost in name:
            (run / name).unlink()
    before = contents(run)
    with pytest.raises(UserError, match=r"checkpoint has no checkpoint; nothing was changed: restore the files"):
        go(run, replace(TOY, train=replace(TOY.train, rounds=4 + longer)))
    assert contents(run) == before


def test_a_run_that_is_made_longer_keeps_its_model_and_summary_until_it_has_new_ones(tmp_path: Path) -> None:
    run, longer = tmp_path / "run", replace(TOY, train=replace(TOY.train, rounds=6))
    go(run)
    before = contents(run)

    class Stuck(ToyEngine):
        def round(self, until: int) -> RoundResult:
            if self.snapshot.round == 5:
                raise KeyboardInterrupt
            return super().round(until)

    with pytest.raises(KeyboardInterrupt):
        run_experiment(prepared(longer), run, Quiet(), True, make=Stuck)
    assert len(RunFolder(run).rounds()) == 5
    assert not RunFolder(run).is_finished
    for name in ("model.safetensors", "summary.json"):
        assert contents(run)[name] == before[name]
    go(run, longer)
    go(tmp_path / "unbroken", longer)
    assert outcome(run) == outcome(tmp_path / "unbroken")
    assert RunFolder(run).is_finished


@pytest.mark.parametrize(("damaged", "after"), [([3], 2), ([2, 3], None)])
def test_damaged_checkpoints_are_named_and_passed_over(tmp_path: Path, damaged: list[int], after: int | None) -> None:
    go(tmp_path / "unbroken")
    go(tmp_path / "run", replace(TOY, train=replace(TOY.train, rounds=3)))
    for round in damaged:
        path = tmp_path / f"run/checkpoint/round-{round:06d}.safetensors"
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    if after is None:
        before = contents(tmp_path / "run")
        with pytest.raises(UserError, match=r"no checkpoint in .* is usable \(damaged, or from another run\)"):
            go(tmp_path / "run")
        assert contents(tmp_path / "run") == before
        return
    said = go(tmp_path / "run")
    assert said[0].startswith("checkpoint damaged, or from another run: round-000003")
    assert f"after round {after}" in said[1]
    assert len(said) == 2
    assert outcome(tmp_path / "run") == outcome(tmp_path / "unbroken")
    sessions = json.loads((tmp_path / "run/env.json").read_text())["sessions"]
    assert [s["from_round"] for s in sessions] == [1, after + 1]


@pytest.mark.parametrize("damage", ["checkpoint", "line", "no checkpoint", "half a line"])
def test_a_round_with_noise_is_not_taken_again(tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients may have seen its model. Clients have not seen one whose checkpoint was never written."""
    run = tmp_path / "run"
    go(run, replace(TOY, train=replace(TOY.train, rounds=3)))
    path, lines = run / "checkpoint/round-000003.safetensors", run / "rounds.jsonl"
    if damage == "checkpoint":
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    elif damage == "line":
        lines.write_bytes(lines.read_bytes()[:-3] + b"x}\n")
    else:
        for file in (path, path.with_suffix(".json")):
            file.unlink()
        lines.write_bytes(lines.read_bytes()[: -9 if damage == "half a line" else None])
    plain = RunFolder.config
    noisy = replace(TOY.privacy, clip=1.0, noise=1.0)
    monkeypatch.setattr(RunFolder, "config", lambda folder: replace(plain(folder), privacy=noisy))
    before = contents(run)
    if damage in ("checkpoint", "line"):
        with pytest.raises(
            UserError, match=r"the line or the checkpoint of round 3 is damaged, and repeating the round"
        ):
            RunWriter(RunFolder(run)).resume_point(print)
        assert contents(run) == before
        assert "would draw fresh noise" in str(resume_error(RunFolder(run)))
    else:
        saved = RunWriter(RunFolder(run)).resume_point(print)
        assert saved is not None
        assert saved.round == 2


def test_noise_without_any_whole_checkpoint_is_rejected_as_any_other_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    go(run)
    for path in (run / "checkpoint").glob("*.safetensors"):
        path.write_bytes(b"")
    plain, noisy = RunFolder.config, replace(TOY.privacy, clip=1.0, noise=1.0)
    monkeypatch.setattr(RunFolder, "config", lambda folder: replace(plain(folder), privacy=noisy))
    before = contents(run)
    with pytest.raises(UserError, match=r"no checkpoint in .* is usable \(damaged, or from another run\)"):
        RunWriter(RunFolder(run)).resume_point(print)
    assert contents(run) == before


class Disk:
    """Takes so many flushes before it is full."""

    def __init__(self, room: int) -> None:
        self.room, self.flush = room, os.fsync

    def fsync(self, handle: int) -> None:
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= 1
        self.flush(handle)


@pytest.mark.slow
def test_a_full_disk_at_any_write_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(room=1000)
    with monkeypatch.context() as changed:
        changed.setattr(os, "fsync", disk.fsync)
        go(tmp_path / "unbroken")
    expected, used = outcome(tmp_path / "unbroken"), 1000 - disk.room
    assert used > 30
    for room in range(used):
        folder = tmp_path / f"run{room}"
        with monkeypatch.context() as changed:
            changed.setattr(os, "fsync", Disk(room).fsync)
            with pytest.raises((RunError, UserError), match=r"^[^\n]*No space left on device[^\n]*$"):
                go(folder)
        assert not list(folder.rglob("*.part"))
        go(folder)
        assert outcome(folder) == expected, room


def test_a_line_that_was_cut_by_a_full_disk_is_written_again(tmp_path: Path) -> None:
    """No file may grow beyond about the first 38 of 40 lines of rounds.jsonl; all others are smaller."""
    long = replace(TOY, train=replace(TOY.train, rounds=40))
    go(tmp_path / "unbroken", long)
    lines = (tmp_path / "unbroken/rounds.jsonl").read_text().splitlines(keepends=True)
    limit = len("".join(lines[:38])) + 30
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            go(tmp_path / "run", long)
        except RunError as error:
            os._exit(7 if "File too large" in str(error) else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    cut = (tmp_path / "run/rounds.jsonl").read_bytes()
    assert len(cut) == limit
    assert 30 < cut.count(b"\n") < 40
    assert go(tmp_path / "run", long)[-1].endswith(f"after round {len(cut.splitlines()) - 1}")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "unbroken")


def test_a_second_process_is_rejected_until_the_first_has_gone(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    RunWriter(first).open(completed(TOY), False, {})
    before = sorted(p.name for p in (tmp_path / "run").iterdir())
    with pytest.raises(UserError, match="in use by another process"):
        go(tmp_path / "run")
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == before
    with pytest.raises(UserError, match="in use by another process"):
        second.lock.take()
    assert (first.lock.is_held, second.lock.is_held, second.lock.is_in_use) == (True, False, True)
    first.lock.close()
    second.lock.take()
    assert (first.lock.is_held, second.lock.is_held) == (False, True)
    second.lock.close()


def test_what_a_folder_takes(tmp_path: Path) -> None:
    go(tmp_path / "run", resume=False)
    with pytest.raises(UserError, match="already contains a run; resume it"):
        go(tmp_path / "run", resume=False)
    with pytest.raises(UserError, match=r"another run: train\.lr is 0\.1 there and 0\.2 here"):
        go(tmp_path / "run", replace(TOY, train=replace(TOY.train, lr=0.2)))
    with pytest.raises(UserError, match=r"train\.rounds = 3: .* already has 4 rounds; expected at least 4"):
        go(tmp_path / "run", replace(TOY, train=replace(TOY.train, rounds=3)))
    go(tmp_path / "run", replace(TOY, compute=replace(TOY.compute, lanes=1)))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.txt").write_text("dear")
    for resume in (False, True):
        with pytest.raises(UserError, match="neither empty nor a run folder"):
            go(tmp_path / "mine", resume=resume)
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["letter.txt"]
    with pytest.raises(UserError, match="is a file, not a folder"):
        go(tmp_path / "mine/letter.txt")


def test_a_checkpoint_that_does_not_fit_is_rejected(tmp_path: Path) -> None:
    go(tmp_path / "run")

    class Grown(ToyEngine):
        def __init__(self, federation: Federation) -> None:
            super().__init__(federation)
            self.snapshot.server.weights.params["new"] = torch.zeros(1)

    with pytest.raises(UserError, match=r"the checkpoint does not fit: server\.weights\.params\.new is missing"):
        run_experiment(prepare(TOY), tmp_path / "run", Quiet(), True, make=Grown)


def test_a_checkpoint_with_unknown_content_is_rejected(tmp_path: Path) -> None:
    """As one would be that an older version wrote, with clients among the tensors."""
    go(tmp_path / "run")
    checkpoints, texts = Checkpoints(tmp_path / "run/checkpoint"), (tmp_path / "run/rounds.jsonl").read_bytes()
    marks = read_start(RunFolder(tmp_path / "run").run_id, texts.splitlines()).marks
    saved = checkpoints.load(marks, print)
    assert saved is not None
    checkpoints.save(4, {**saved.tensors, "clients.1.table": torch.zeros(1)}, saved.parts, marks[4])
    with pytest.raises(UserError, match=r"the checkpoint does not fit: this version does not know clients\.1\.table"):
        go(tmp_path / "run")


@pytest.mark.parametrize("content", ["{", "[]", "3", '{"sessions": 3}', '{"sessions": null}', "[" * 10**5])
def test_damaged_side_files_do_not_stop_a_run(tmp_path: Path, content: str) -> None:
    go(tmp_path / "run")
    expected = outcome(tmp_path / "run")
    for name in ("env.json", "summary.json"):
        (tmp_path / "run" / name).write_text(content)
    assert not RunFolder(tmp_path / "run").is_finished
    go(tmp_path / "run")
    assert outcome(tmp_path / "run") == expected
    assert RunFolder(tmp_path / "run").is_finished


# Real runs.


SHORT = ("train.rounds=5", "train.batch=8", "train.steps_per_round=3")
KINDS = {
    "sage": ("method.name=sage",),
    "fedavg": ("method.name=fedavg", "records.probes=losses"),
    "client state": ("method.name=flexmatch", "method.tau=0.4", "method.warmup=false", "compute.lanes=2"),
    "client's own model": ("method.name=fedloke", "records.checkpoint_every=2"),
    "server's memory": ("method.name=fedmatch", "method.helper_interval=1", "method.helpers=1"),
    "client's plateau": ("method.name=fedmatch", "method.patience=1", "method.lr=0.2", "method.helpers=1"),
    "groups and teachers": ("method.name=rscfed", "train.keep_momentum=true", "records.checkpoint_every=2", *KNOWING),
    "older weights": ("method.name=cbafed", *LABELING["cbafed"], "method.burn_in=1"),
    "carried momentum": ("protocol=authors", "records.checkpoint_every=2"),
    "kept momentum": ("train.keep_momentum=true", "train.nesterov=true", "train.schedule=cosine", "train.clip=1"),
    "kept moments": ("train.keep_momentum=true", "train.optimizer=adamw", "train.lr=0.001", "method.name=fedloke"),
    "server's momentum": ("server.optimizer=momentum", "server.momentum=0.5", "records.checkpoint_every=2"),
    "server's labels": (
        "partition.labels=server",
        "server.warmup=2",
        "server.static_norm=all",
        "train.keep_momentum=true",
        "method.name=semifl",
    ),
    "enlarged images": ("data.crop=resize", "partition.labels=server", "server.static_norm=all", "method.name=semifl"),
    "statistics of sites": ("server.static_norm=sites", "compute.lanes=2", "records.checkpoint_every=2"),
    "server's moments": ("server.optimizer=adam", "server.lr=0.01", "method.name=proxyfl"),
    "broadcast momentum": (
        "server.broadcast_momentum=true",
        "server.ema=0.9",
        "train.schedule=cosine",
        "train.schedule_over=steps",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_resumed_runs_are_bit_identical(tmp_path: Path, kind: str) -> None:
    settings = config(*SHORT, *KINDS[kind])
    run_experiment(prepare(settings), tmp_path / "unbroken", Quiet())
    for last in (1, 3, 4):
        with pytest.raises(KeyboardInterrupt):
            run_experiment(prepare(settings), tmp_path / "run", StopAfter(last), resume=True)
    run_experiment(prepare(settings), tmp_path / "run", Quiet(), resume=True)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "unbroken")


@pytest.mark.parametrize("protocol", ["clean", "authors"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.slow
def test_every_method_can_be_resumed(tmp_path: Path, method: str, protocol: str) -> None:
    """Whatever it keeps on the server and with its clients; all six clients take part in every round.

    Stopped once, with states of two rounds; a run that is stopped again and again is tried above, by kinds of states.
    """
    small = ("train.rounds=3", "train.batch=4", "train.steps_per_round=2", "train.clients_per_round=6")
    settings = config(*small, f"method.name={method}", f"protocol={protocol}")
    run_experiment(prepare(settings), tmp_path / "unbroken", Quiet())
    with pytest.raises(KeyboardInterrupt):
        run_experiment(prepare(settings), tmp_path / "run", StopAfter(2), resume=True)
    run_experiment(prepare(settings), tmp_path / "run", Quiet(), resume=True)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "unbroken")


@pytest.mark.slow
def test_a_finished_run_can_be_made_longer(tmp_path: Path) -> None:
    run_experiment(prepare(config(*SHORT)), tmp_path / "long", Quiet())
    run_experiment(prepare(config(*SHORT, "train.rounds=2")), tmp_path / "run", Quiet())
    listener = Quiet()
    run_experiment(prepare(config(*SHORT)), tmp_path / "run", listener, resume=True)
    assert listener.said == [f"resuming {tmp_path / 'run'} after round 2"]
    assert outcome(tmp_path / "run") == outcome(tmp_path / "long")
    assert RunFolder(tmp_path / "run").config().rounds == 5


@pytest.mark.parametrize("method", ["sage", "flexmatch"])
@pytest.mark.slow
def test_one_run_may_end_in_two_ways(tmp_path: Path, method: str) -> None:
    """A copy resumes with a cooldown, as if it had been set from the start: the line is at 1 in round 3."""
    usual = (*SHORT, f"method.name={method}")
    run_experiment(prepare(config(*usual, "train.rounds=3")), tmp_path / "trunk", Quiet())
    for name, cooldown in {"constant": 0, "cooled": 3}.items():
        ending = config(*usual, f"train.cooldown={cooldown}")
        shutil.copytree(tmp_path / "trunk", tmp_path / name)
        listener = Quiet()
        run_experiment(prepare(ending), tmp_path / name, listener, resume=True)
        assert ("train.cooldown is 3 from here on; it was 0" in listener.said) == (cooldown == 3)
        run_experiment(prepare(ending), tmp_path / f"whole-{name}", Quiet())
        assert outcome(tmp_path / name) == outcome(tmp_path / f"whole-{name}")
        rates = [line.get("rate", 1) for line in records(tmp_path / name)]
        assert rates == ([1] * 5 if name == "constant" else [1, 1, 1, 2 / 3, 1 / 3])
    models = [load_file(tmp_path / name / "model.safetensors") for name in ("constant", "cooled")]
    assert any(not torch.equal(tensor, models[1][name]) for name, tensor in models[0].items())
    assert RunFolder(tmp_path / "cooled").config().train.cooldown == 3
    with pytest.raises(UserError, match=r"train.rounds = 7 would change the learning rate of round 4"):
        run_experiment(prepare(config(*usual, "train.rounds=7")), tmp_path / "cooled", Quiet(), resume=True)


def test_a_cooldown_that_is_not_given_again_is_pointed_out(tmp_path: Path) -> None:
    settings = config(*SHORT, "train.cooldown=3")
    with pytest.raises(KeyboardInterrupt):
        run_experiment(prepare(settings), tmp_path / "run", StopAfter(2))
    listener = Quiet()
    run_experiment(prepare(config(*SHORT)), tmp_path / "run", listener, resume=True)
    assert listener.said[1:] == ["train.cooldown is 0 from here on; it was 3"]


def test_a_cooldown_that_was_changed_in_the_settings_shows(tmp_path: Path) -> None:
    """Rounds record their rates; the settings of a run may change on resume, so no digest covers them."""
    run_experiment(prepare(config(*SHORT, "train.cooldown=3")), tmp_path / "run", Quiet())
    file = tmp_path / "run" / "config.toml"
    file.write_text(file.read_text().replace("cooldown = 3", "cooldown = 0"))
    fault = "config.toml was edited: round 4 was trained with another learning rate"
    assert find_runs_fault(tmp_path) == f"{fault}; `fssl records accept` accepts an edited record"
    with pytest.raises(UserError, match=r"train.rounds = 9 would change the learning rate of round 4"):
        run_experiment(prepare(config(*SHORT, "train.rounds=9")), tmp_path / "run", Quiet(), resume=True)
    assert accept(RunFolder(tmp_path / "run"), "no cooldown") == fault
    assert read_run(RunFolder(tmp_path / "run")).remark == "no cooldown"  # type: ignore[union-attr]
    file.write_text(file.read_text().replace("cooldown = 0", "cooldown = 2"))  # another one is not accepted
    assert "another learning rate" in find_runs_fault(tmp_path)


def find_runs_fault(folder: Path) -> str:
    with pytest.raises(UserError) as error:
        read_run(RunFolder(folder / "run"))
    return str(error.value).removeprefix(f"{folder / 'run'}: ")


def wait_for(process: "subprocess.Popen[str]", condition: Callable[[], bool]) -> None:
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.0005)


def num_lines(folder: Path) -> int:
    path = folder / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The smoke run, in this process."""
    folder = tmp_path_factory.mktemp("smoke") / "run"
    run_experiment(prepare(config()), folder, Quiet())
    return outcome(folder)


def finish(folder: Path) -> None:
    process = start("run", "smoke", "--out", folder, "--resume")
    out, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, ""), out


@pytest.mark.slow
def test_kill_dash_nine_of_the_smoke_run(tmp_path: Path, unbroken: Outcome) -> None:
    """Killed as soon as a line appears, in the middle of a round, and while a checkpoint is written."""
    folder = tmp_path / "run"

    def lines(number: int) -> Callable[[], bool]:
        return lambda: num_lines(folder) >= number

    def is_writing() -> bool:
        return num_lines(folder) >= 4 and any((folder / "checkpoint").glob("*.part"))

    for condition, delay in ((lines(2), 0.0), (lines(3), 0.15), (is_writing, 0.0)):
        process = start("run", "smoke", "--out", folder, "--resume")
        wait_for(process, condition)
        time.sleep(delay)
        process.kill()
        assert "Traceback" not in process.communicate()[1]
    assert not RunFolder(folder).is_finished
    finish(folder)
    assert outcome(folder) == unbroken


@pytest.mark.slow
def test_interrupt_of_the_smoke_run(tmp_path: Path, unbroken: Outcome) -> None:
    """One line, exit code 130, and a second process is rejected while the first is at it."""
    folder = tmp_path / "run"
    process = start("run", "smoke", "--out", folder)
    wait_for(process, lambda: num_lines(folder) >= 2)
    with pytest.raises(UserError, match="in use by another process"):
        RunWriter(RunFolder(folder)).open(RunFolder(folder).config(), True, {})
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert errors == f"fssl: stopped; finished rounds are kept in {folder}: the same command with --resume continues\n"
    assert "round    1/8" in out  # its line comes before the second round
    finish(folder)
    assert outcome(folder) == unbroken


@pytest.mark.slow
def test_a_full_disk_ends_the_smoke_run_in_one_line(tmp_path: Path, unbroken: Outcome) -> None:
    """No file may be half as large as the model, and a checkpoint is larger."""
    size = len(unbroken[1]["model.safetensors"])

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2))

    process = start("run", "smoke", "--out", tmp_path / "run", preexec_fn=limit)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.count("\n") == 1
    assert "File too large; finished rounds are kept; resume the run to continue (--resume)" in errors
    finish(tmp_path / "run")
    assert outcome(tmp_path / "run") == unbroken
