"""Trials with real processes: an operator who ships other code to a site, and what other users of the machine read."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fssl import __version__
from fssl.config import override, read_toml
from fssl.deploy.home import server_part
from fssl.errors import RunError
from helpers.command import ENVIRONMENT
from helpers.network import can_trace, traced, unsilenced
from helpers.trial import TINY, Trial

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
from fssl.deploy import orders
from fssl.engines.flower.bundle import app_files, code_digest

pytestmark = pytest.mark.deploy
CLIENT = "fsslapp/client_app.py"
MISCHIEF = """
from pathlib import Path
Path({mark!r}).touch()
from fssl.engines.flower.client_app import app

__all__ = ["app"]
"""


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    trial = Trial(tmp_path_factory.mktemp("operator"), sites=1)
    try:
        trial.server()
        trial.site(1)
        trial.connected(1)
        yield trial
    finally:
        trial.end()


def order(trial: Trial, name: str) -> tuple[list[str], Path]:
    """What a run says, to its end."""
    tables = override(read_toml("smoke"), [*TINY, "partition.clients=1", "train.clients_per_round=1", "train.rounds=1"])
    said: list[str] = []
    try:
        orders.start_run(server_part(trial.home), orders.Wanted(tables, trial.folder / name), said.append)
    except RunError as error:
        said.append(str(error))
    return said, trial.folder / name


SHIPPED: dict[str, Callable[[str, str], dict[str, str]]] = {
    "other code": lambda mark, digest: {CLIENT: MISCHIEF.format(mark=mark)},
    "more code": lambda mark, digest: {"fsslapp/more.py": MISCHIEF.format(mark=mark)},
    "changed source": lambda mark, digest: {k: t.replace(digest, "0" * 64) for k, t in app_files().items()},
    "another version": lambda mark, digest: {
        "pyproject.toml": app_files()["pyproject.toml"].replace(f'"{__version__}"', '"0.0.9"')
    },
}


@pytest.mark.parametrize("what", SHIPPED)
def test_a_site_runs_nothing_but_what_is_installed_there(
    trial: Trial, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = trial.folder / "mischief"
    shipped = {**app_files(), **SHIPPED[what](str(mark), code_digest())}
    monkeypatch.setattr(orders, "app_files", lambda: shipped)
    said, _ = order(trial, what)
    why = "the server runs fssl 0.0.9; install" if what == "another version" else "the server ships other code, or its"
    assert len(said) > 1, said
    assert f"this site has fssl {__version__}, code {code_digest()[:12]}; {why}" in said[1]
    assert said[1].startswith("round 1: client 0 is missing: rejected the server's app ")
    assert "0 of 1 clients sent usable uploads" in said[-1]
    assert f"site-1: rejected the server's app {said[1].split('app ')[1][:12]}" in trial.programs["site-1"].said
    assert not mark.exists()
    assert not list((trial.home / "site-1" / "flwr").rglob("fsslapp*"))  # nothing was unpacked


def test_no_secret_is_recorded_or_shown(trial: Trial) -> None:
    """During a run, every process's words are read, as any user of the machine can."""
    run = trial.start("honest", "partition.clients=1", "train.clients_per_round=1", "train.rounds=6")
    run.until("^round +2/6")
    shown = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert run.ends() == 0, run.said
    (server,) = [line for line in shown.splitlines() if "flwr-serverapp" in line and str(trial.home) in line]
    assert re.search(r" --token-file /dev/fd/\d+$", server)
    (session,) = json.loads((trial.folder / "honest" / "env.json").read_text())["sessions"]
    assert session["command"].startswith("deploy start smoke --home ")
    secret = (trial.home / "server" / "flwr" / "operator").read_text()
    for file in [*(trial.folder / "honest").rglob("*"), *(trial.home / "server" / "logs").rglob("*")]:
        if file.is_file():
            text = file.read_bytes().decode(errors="replace")
            assert secret not in text, file
            assert "--token" not in text, file


DEPLOYMENT = """
import sys
from pathlib import Path
from helpers.trial import Trial
trial = Trial(Path(sys.argv[1]), sites=1)
try:
    trial.server()
    trial.site(1)
    trial.connected(1)
    run = trial.start("traced", "partition.clients=1", "train.clients_per_round=1", "train.rounds=1")
    assert run.ends() == 0, run.said
finally:
    trial.end()
"""


@pytest.mark.skipif(not can_trace(), reason="strace is not installed, or may not trace: no other way to look")
def test_a_deployment_connects_to_no_other_host(tmp_path: Path) -> None:
    """Server, site, run and the operator's commands, with all programs of Flower."""
    path = os.pathsep.join([ENVIRONMENT["PYTHONPATH"], str(Path(__file__).parents[1])])
    heard = traced([sys.executable, "-c", DEPLOYMENT, str(tmp_path)], tmp_path, env=unsilenced() | {"PYTHONPATH": path})
    assert heard.code == 0, heard.said
    assert (heard.abroad, heard.open_doors) == ([], [])
