"""Trials with real processes over TLS, minutes each: `pytest -m deploy`. docs/faults.md shows what they print."""

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch

from fssl.config import parse, read_toml
from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.core.static_norm import mean_of
from fssl.deploy.home import site_part
from fssl.deploy.programs import background_program, exit_reason, supernode
from fssl.engines.lanes import set_up_torch
from fssl.engines.named_tensors import fill
from fssl.types import Weights
from helpers.trial import COMMAND, TINY, Trial, lines, states, without_time

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
pytestmark = pytest.mark.deploy

SPOILED = '''"""A client app whose second site sends what no server should accept, another kind in each round."""

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fssl.engines.flower.client_app import train as honest
from fssl.engines.flower.messages import pack, unpack

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    reply = honest(message, context)
    if context.node_config["partition-id"] == 1:
        tensors, round = unpack(reply.content["upload"]), message.content["job"]["round"]
        name = max(tensors)
        if round == 1:
            reply.content["upload"] = pack({**tensors, name: torch.full_like(tensors[name], torch.nan)})
        elif round == 2:
            reply.content["upload"] = pack({**tensors, name: torch.zeros(3)})
        else:
            reply.content["facts"]["num_samples"] = 10**15
    return reply
'''

SLOW = '''"""A client app whose second site is slow to measure the model at the end of round 2."""

import time
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fssl.engines.flower.client_app import measure as at_once
from fssl.engines.flower.client_app import train

app = ClientApp()
app.train()(train)


@app.query("measure")
def measure(message: Message, context: Context) -> Message:
    if (context.node_config["partition-id"], message.content["job"]["round"]) == (1, 2):
        (Path(context.node_config["folder"]) / "measuring").touch()
        time.sleep(300)
    return at_once(message, context)
'''


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    trial = Trial(tmp_path_factory.mktemp("deployment"))
    try:
        trial.server()
        for number in (1, 2, 3):
            trial.site(number)
        trial.connected(3)
        yield trial
    finally:
        trial.end()


@contextmanager
def changed_site(trial: Trial, app: str) -> Iterator[None]:
    """Site 2 runs this client's app meanwhile."""
    trial.programs["site-2"].stop()
    trial.site(2, changed=app)
    trial.connected(3)
    try:
        yield
    finally:
        trial.programs["site-2"].stop()
        trial.site(2)
        trial.connected(3)


RUNS = {
    "sage": ("method.name=sage",),
    "flexmatch": ("method.name=flexmatch",),
    "fedloke": ("method.name=fedloke",),
    "kept": ("method.name=flexmatch", "train.keep_momentum=true", "train.nesterov=true", "train.schedule=cosine"),
    "broadcast": ("method.name=sage", "server.broadcast_momentum=true", "server.optimizer=momentum"),
    "labels": (
        "method.name=semifl",
        "partition.labels=server",
        "server.static_norm=server",
        "train.keep_momentum=true",
    ),
    "sites": (
        "method.name=semifl",
        "partition.labels=server",
        "server.static_norm=sites",
        "server.when=before",
    ),
}


OWN = """
from fssl.label.accept import FixedThreshold
from fssl.methods.fixmatch import FixMatch

def mine(tau: float = 0.3) -> FixMatch:
    return FixMatch(accept=FixedThreshold(tau))
"""


def test_a_method_that_sites_have_and_allow(trial: Trial) -> None:
    """Sites 1 and 2 have the file and allow it, site 3 has it and does not."""
    (trial.folder / "mine.py").write_text(OWN)
    for number in (1, 2, 3):
        place = trial.home / f"site-{number}"
        (place / "own").mkdir()
        (place / "own/mine.py").write_text(f"# The copy of site {number}.\n{OWN}")
        if number < 3:
            settings = place / "site.toml"
            settings.write_text(f'{settings.read_text()}\nown = ["mine.py:mine"]\n')
    run = trial.start("own-method", f"method.name={trial.folder}/mine.py:mine", "train.rounds=2")
    assert run.ends() == 0, run.said
    for line in lines(trial.folder / "own-method"):
        why = "mine.py:mine: the operator of this site has not allowed it (own in site.toml)"
        assert (line["clients"], line["missing"]) == ([0, 1], {"2": why})


@pytest.mark.parametrize("name", RUNS)
def test_parity(trial: Trial, name: str) -> None:
    settings = (*RUNS[name], "train.rounds=3")
    run = trial.start(name, *settings)
    assert run.ends() == 0, run.said
    expected, given = trial.local(f"{name}-local", *settings), trial.folder / name
    assert without_time(given) == without_time(expected)
    assert (given / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()
    assert states(given) == states(expected)
    assert set(states(given)) == {"round-000002", "round-000003"}


def test_masked_uploads(trial: Trial) -> None:
    """One round, so that the models can be compared: values below 64 in steps of 2^7 / 2^30."""
    settings = ("method.name=flexmatch", "train.rounds=1")
    run = trial.start("masked", *settings, "privacy.aggregation=secagg+")
    assert run.ends() == 0, run.said
    assert "mask seeds have 28 bits" in run.said
    expected, given = trial.local("masked-local", *settings), trial.folder / "masked"
    models = [load_file(place / "model.safetensors") for place in (given, expected)]
    assert max(float(abs(t - models[1][name]).max()) for name, t in models[0].items()) < 1e-5
    assert not np.array_equal(*(next(iter(model.values())) for model in models))
    again = trial.start("masked", "method.name=flexmatch", "train.rounds=3", "privacy.aggregation=secagg+", resume=True)
    assert again.ends() == 0, again.said
    assert [line["clients"] for line in lines(given)] == [[0, 1, 2]] * 3


def test_a_site_that_wants_masks(trial: Trial) -> None:
    """Without them the run continues without the site; with them it takes part."""
    settings = trial.home / "site-3" / "site.toml"
    usual = settings.read_text()
    trial.programs["site-3"].stop()
    settings.write_text(usual.replace("# masked = true", "masked = true"))
    site = trial.site(3)
    site.until("; only masked uploads; log")
    trial.connected(3)
    why = "privacy.aggregation = 'plain', but the operator of this site requires 'secagg+' (masked in site.toml)"
    plain = trial.start("unmasked", "train.rounds=1")
    assert plain.ends() == 0, plain.said
    assert f"round 1: client 2 is missing: {why}\n" in plain.said
    assert f"site-3: round 1: this site cannot take part: {why}\n" in site.said
    assert [line["clients"] for line in lines(trial.folder / "unmasked")] == [[0, 1]]
    masked = trial.start("wanted", "train.rounds=1", "privacy.aggregation=secagg+")
    assert masked.ends() == 0, masked.said
    assert [line["clients"] for line in lines(trial.folder / "wanted")] == [[0, 1, 2]]
    trial.programs["site-3"].stop()
    settings.write_text(usual)
    trial.site(3)
    trial.connected(3)


def test_a_site_leaves_a_masked_round(trial: Trial) -> None:
    """Of three none may leave: the round is discarded, and repeated once the site is back."""
    run = trial.start("masked-leave", "train.rounds=12", "privacy.aggregation=secagg+")
    run.until("^round +1/12")
    trial.programs["site-3"].stop(signal.SIGTERM)
    run.until("2 of 3 clients connected, 3 needed|0 of 3 clients sent usable uploads, 3 needed; once more")
    trial.site(3)
    assert run.ends(600) == 0, run.said
    print(run.said)
    assert all(line["clients"] == [0, 1, 2] for line in lines(trial.folder / "masked-leave"))


def test_sites_start_from_weights_that_the_server_alone_has(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command is given a relative path; the server's app works in another folder."""
    monkeypatch.chdir(trial.folder)
    trial.local("first", "method.name=fedavg", "train.rounds=2")
    settings = ("model.start=first", "train.rounds=2")
    run = trial.start("warm", *settings)
    assert run.ends() == 0, run.said
    expected, given = trial.local("warm-local", *settings), trial.folder / "warm"
    assert without_time(given) == without_time(expected)
    assert states(given) == states(expected)


def test_bad_uploads(trial: Trial) -> None:
    """A site's owner changes the code there: this is what no server can prevent."""
    with changed_site(trial, SPOILED):
        run = trial.start("spoiled", "train.rounds=3")
        assert run.ends() == 0, run.said
    print(run.said)
    reasons = [line["missing"]["1"] for line in lines(trial.folder / "spoiled")]
    assert "not finite" in reasons[0]
    assert "shape [3]" in reasons[1]
    assert "num_samples is 1000000000000000" in reasons[2]
    assert all(line["clients"] == [0, 2] for line in lines(trial.folder / "spoiled"))


def test_a_site_goes_while_it_measures(trial: Trial) -> None:
    """The last model: what all sites trained, with the statistics of the two that are left."""
    settings = ("method.name=flexmatch", "server.static_norm=sites", "train.rounds=2")
    with changed_site(trial, SLOW):
        run = trial.start("measure", *settings)
        until = time.monotonic() + 240
        while not (trial.home / "site-2" / "measuring").exists():
            assert time.monotonic() < until, run.said
            time.sleep(0.2)
        trial.programs["site-2"].stop(signal.SIGTERM)
        assert run.ends() == 0, run.said
    print(run.said)
    first, second = lines(trial.folder / "measure")
    assert "unmeasured" not in first
    assert (second["clients"], [*second["unmeasured"]]) == ([0, 1, 2], ["1"])
    assert f"round 2: client 1 is not measured: {second['unmeasured']['1']}" in run.said
    expected, given = (
        load_torch(place / "model.safetensors")
        for place in (trial.local("measure-local", *settings), trial.folder / "measure")
    )
    federation = Federation(prepare(parse(read_toml(str(trial.folder / "measure" / "config.toml")))))
    set_up_torch(federation)
    weights: Weights = fill(federation.net.first, given)
    assert all(torch.equal(t, expected[f"params.{name}"]) for name, t in weights.params.items())
    sums = federation.make_client_measure()
    left = mean_of(sums(weights, client) for client in (0, 2))
    assert all(torch.equal(t, left[name]) for name, t in weights.buffers.items())
    assert not all(torch.equal(t, expected[f"buffers.{name}"]) for name, t in weights.buffers.items())


def test_sites_that_go_and_come_back(trial: Trial) -> None:
    """SIGTERM and SIGKILL in the middle of a round, then the same site again."""
    run = trial.start("come-and-go", "method.name=flexmatch", "train.rounds=60")
    run.until("^round +1/60")
    trial.programs["site-3"].stop(signal.SIGTERM)
    run.until("client 2 is missing")
    trial.site(3)
    trial.connected(3)
    back = len(lines(trial.folder / "come-and-go"))
    run.until(f"^round +{back + 2}/60")
    trial.programs["site-2"].kill_flower()
    run.until("client 1 is missing", 400)
    trial.site(2)
    assert run.ends(600) == 0, run.said
    print(run.said)
    record = lines(trial.folder / "come-and-go")
    gone = [set(line.get("missing", {})) for line in record]
    assert {"2"} in gone
    assert {"1"} in gone
    assert not gone[back + 1]  # everyone was there again
    assert len(record) == 60
    trial.connected(3)


def test_nothing_outlives_a_killed_command(trial: Trial) -> None:
    """SIGKILL for `fssl deploy site` alone: its SuperNode signs off and ends, and the site can be started again."""
    (node,) = trial.programs["site-2"].kill()
    trial.connected(2)
    until = time.monotonic() + 30
    while Path(f"/proc/{node}").exists() and time.monotonic() < until:
        time.sleep(0.2)
    assert not Path(f"/proc/{node}").exists()
    trial.site(2)
    trial.connected(3)


def test_all_but_one_gone(trial: Trial) -> None:
    trial.setting("wait_seconds", 30)
    for number in (2, 3):
        trial.programs[f"site-{number}"].stop()
    trial.connected(1)
    run = trial.start("alone", "train.rounds=2")
    assert run.ends() == 1
    print(run.said)
    assert "round 1: 1 of 3 clients connected, 2 needed; waiting up to 30 s for clients 1, 2" in run.said
    assert "waited 30 s. Start the sites, then resume the run" in run.said
    trial.setting("wait_seconds", 600)
    for number in (2, 3):
        trial.site(number)
    trial.connected(3)
    again = trial.start("alone", "train.rounds=2", resume=True)
    assert again.ends() == 0, again.said
    print(again.said)
    expected = trial.local("alone-local", "train.rounds=2")
    assert (trial.folder / "alone" / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()


def test_the_superlink_is_killed(trial: Trial) -> None:
    settings = ("method.name=flexmatch", "train.rounds=12")
    run = trial.start("killed", *settings)
    run.until("^round +2/12")
    trial.programs["server"].kill_flower()
    assert run.ends(300) == 1
    print(run.said, trial.programs["server"].said)
    trial.server()
    trial.connected(3, 300)
    again = trial.start("killed", *settings, resume=True)
    assert again.ends() == 0, again.said
    print(again.said)
    expected = trial.local("killed-local", *settings)
    assert (trial.folder / "killed" / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()
    assert without_time(trial.folder / "killed") == without_time(expected)


def test_a_start_after_one_that_was_killed_waits(trial: Trial) -> None:
    """The run itself continues at the server."""
    run = trial.start("left", "train.rounds=15")
    run.until("^round +1/15")
    run.kill()
    again = trial.start("left", "train.rounds=15", resume=True)
    assert again.ends() == 0, again.said
    print(again.said)
    assert "left is in use by a run that continues at the server; waiting up to 600 s for its end" in again.said
    expected = trial.local("left-local", "train.rounds=15")
    assert (trial.folder / "left" / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()


def test_a_run_whose_start_cannot_write_its_output_continues(trial: Trial) -> None:
    words = ("start", "smoke", "--home", str(trial.home), "--out", str(trial.folder / "unseen"))
    settings = [word for setting in (*TINY, "partition.clients=3", "train.rounds=15") for word in ("--set", setting)]
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*COMMAND, "deploy", *words, *settings], stdout=full, stderr=subprocess.PIPE, text=True)
    goes_on = "it continues at the server, and `fssl deploy start --resume` waits for it"
    said = f"fssl: output: No space left on device, so the run cannot be followed; {goes_on}\n"
    assert (done.returncode, done.stderr) == (1, said)
    until = time.monotonic() + 120
    while not (trial.folder / "unseen" / "rounds.jsonl").exists():
        assert time.monotonic() < until
        time.sleep(0.2)
    again = trial.start("unseen", "train.rounds=15", resume=True)
    assert again.ends() == 0, again.said
    assert "unseen is in use by a run that continues at the server" in again.said
    assert [line["clients"] for line in lines(trial.folder / "unseen")] == [[0, 1, 2]] * 15


def test_strangers_are_rejected(trial: Trial, tmp_path: Path) -> None:
    other = Trial(tmp_path / "other")  # keys and a CA that the server does not know
    trial.programs["site-3"].stop()
    mine = trial.home / "site-3"
    kept = tmp_path / "kept"
    shutil.copytree(mine, kept)
    strange = other.home / "site-3"
    cases = {"key": "the server rejects this key", "ca.crt": "certificate verify failed"}
    for file, reason in cases.items():
        shutil.copy(strange / file, mine / file)
        print(f"another {file}: {trial.site(3).until(reason, 90)}")
        trial.connected(2)
        trial.programs["site-3"].stop()
        shutil.copy(kept / file, mine / file)
    no_key = supernode(site_part(trial.home, "site-3"), None, insecure=False)
    no_key = no_key[: no_key.index("--auth-supernode-private-key")]
    plain = supernode(site_part(trial.home, "site-3"), None, insecure=True)
    for what, words in {"no key": no_key, "no TLS": plain}.items():
        log = tmp_path / f"{what}.log"
        with background_program(words, mine, log) as process:
            with suppress(subprocess.TimeoutExpired):
                process.wait(40)  # some keep trying for ever
            print(f"{what}: exit {process.poll()}: {exit_reason(log)}")
            assert process.poll() != 0
            trial.connected(2)
