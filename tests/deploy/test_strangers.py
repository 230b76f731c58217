"""Trials with real processes: strangers before a server, and keys that change. docs/deploy.md says what they may do."""

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

import pytest

from fssl.deploy.control import CONNECTION
from fssl.deploy.home import site_part
from fssl.deploy.programs import program, program_environment
from helpers.trial import COMMAND, Trial, lines

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
pytestmark = pytest.mark.deploy


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    trial = Trial(tmp_path_factory.mktemp("strangers"))
    try:
        trial.server()
        for number in (1, 2):
            trial.site(number)
        trial.connected(2)
        yield trial
    finally:
        trial.end()


@pytest.fixture(scope="module")
def evil(trial: Trial) -> Path:
    """What a stranger has who knows ca.crt and site 3's settings: a key of their own, and Flower's command."""
    folder, site = trial.folder / "evil", site_part(trial.home, "site-3")
    (folder / "flwr").mkdir(parents=True)
    shutil.copy(site.folder / "ca.crt", folder)
    text = (site.folder / "site.toml").read_text()
    (folder / "site.toml").write_text(text.replace(f"port = {site.port}", f"port = {site.port + 1}"))
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(folder / "key")], check=True)
    (folder / "flwr" / "config.toml").write_text(
        f"[superlink]\ndefault = '{CONNECTION}'\n[superlink.{CONNECTION}]\n"
        f"address = '{site.server}'\nroot-certificates = '{folder / 'ca.crt'}'\n"
    )
    return folder


def flwr(home: Path, *words: str) -> str:
    """Flower's command with the settings of a stranger or of the operator."""
    done = subprocess.run(
        [program("flwr"), *words, "--format", "json"],
        env=program_environment(home),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def messages(folder: Path) -> int:
    """How many messages a SuperNode got."""
    return (folder / "logs" / "supernode.log").read_text().count("Receiving:")


def reasons(trial: Trial, out: str) -> dict[str, str]:
    (line,) = lines(trial.folder / out)
    missing: dict[str, str] = line["missing"]
    return missing


def test_a_stranger_cannot_register_a_key_or_start_a_run(trial: Trial, evil: Path) -> None:
    """Before, the first command gave the stranger a node, which trained as site 3."""
    app = str(trial.home / "server" / "app")
    for words in (("supernode", "register", str(evil / "key.pub"), CONNECTION, "--name", "site-3"), ("run", app)):
        said = flwr(evil, *words)
        assert "Authentication failed" in said
    stranger = trial.program("evil", "deploy", "site", "--home", str(evil))
    stranger.until("the server rejects this key")
    run = trial.start("refused", "train.rounds=1")
    assert run.ends() == 0, run.said
    assert reasons(trial, "refused") == {"2": "not connected"}
    assert messages(evil) == 0
    stranger.stop()


def test_other_users_of_a_machine_find_closed_doors(trial: Trial) -> None:
    """A SuperNode that starts its own SuperExec, as Flower's do, answers the last one with 200 and its tasks."""
    site = site_part(trial.home, "site-1")
    trust = ssl.create_default_context(cafile=str(site.folder / "ca.crt"))
    doors = {
        (site.server, "/v1/control/start-run"): 401,
        (site.server, "/v1/runtime/acquire-task"): 401,
        (site.server, "/v1/fleet/pull-messages"): 401,
        (site.server, "/docs"): 404,
        (f"127.0.0.1:{site.port}", "/v1/runtime/acquire-task"): 401,
    }
    found = {}
    for address, path in doors:
        link = HTTPSConnection(address, context=trust) if address == site.server else HTTPConnection(address)
        link.request("POST", path, headers={"Content-Type": "application/protobuf"})
        found[address, path] = link.getresponse().status
        link.close()
    assert found == doors


def test_of_two_nodes_for_a_site_neither_is_used(trial: Trial, evil: Path) -> None:
    """Only the operator's own credential can bring this about."""
    said = flwr(trial.home / "server", "supernode", "register", str(evil / "key.pub"), CONNECTION, "--name", "site-3")
    assert '"success": true' in said
    trial.program("evil", "deploy", "site", "--home", str(evil)).until("connected")
    alone = trial.status()
    print(alone)
    assert "STRANGER" in alone
    assert "registered as 'site-3') is not one of the sites, so it gets no messages" in alone
    trial.site(3).until("connected")
    both = trial.status()
    print(both)
    assert "DISPUTED" in both
    assert "WARNING: client 2: 2 nodes claim site-3, so none of them is used" in both
    run = trial.start("disputed", "train.rounds=1")
    assert run.ends() == 0, run.said
    print(run.said)
    assert reasons(trial, "disputed") == {"2": "2 nodes claim site-3, so none of them is used"}
    assert (messages(evil), messages(trial.home / "site-3")) == (0, 0)


def test_a_server_that_starts_withdraws_what_is_no_sites_key(trial: Trial) -> None:
    trial.programs["server"].stop()
    said = trial.server().said
    print(said)
    assert "withdrawn: node " in said
    assert trial.programs["evil"].ends(90) == 1
    print(trial.programs["evil"].said)
    trial.connected(3)
    assert "STRANGER" not in trial.status()
    run = trial.start("whole", "train.rounds=1")
    assert run.ends() == 0, run.said
    assert "missing" not in lines(trial.folder / "whole")[0]


def test_a_second_program_with_a_sites_key_waits_outside(trial: Trial) -> None:
    """While the site is connected; the two cannot be distinguished."""
    site = site_part(trial.home, "site-3")
    copy = trial.folder / "copy"
    shutil.copytree(site.folder, copy)
    path = copy / "site.toml"
    path.write_text(path.read_text().replace(f"port = {site.port}", f"port = {site.port + 2}"))
    second = trial.program("copy", "deploy", "site", "--home", str(copy))
    print(second.until("rejects this key: it was not admitted, or another program uses it"))
    trial.connected(3)
    second.stop()


def test_a_key_that_is_issued_again(trial: Trial) -> None:
    pub, old = trial.home / "server" / "keys" / "site-3.pub", trial.folder / "old"
    shutil.copytree(trial.home / "site-3", old)
    before = pub.read_bytes()
    pub.unlink()
    (trial.home / "site-3" / "key").unlink()
    subprocess.run([*COMMAND, "deploy", "keys", "--home", str(trial.home)], check=True, capture_output=True)
    assert "STRANGER" in trial.status()  # the old key is none of the sites' at once
    run = trial.start("between", "train.rounds=1")
    assert run.ends() == 0, run.said
    assert reasons(trial, "between") == {"2": "not connected"}
    trial.programs["server"].stop()
    assert "withdrawn: node " in trial.server().said
    trial.programs["site-3"].ends(90)
    assert "no longer accepts its key" in trial.programs["site-3"].said
    trial.program("old", "deploy", "site", "--home", str(old)).until("the server rejects this key")
    trial.programs["old"].stop()
    trial.site(3).until("connected")
    trial.connected(3)
    trial.programs["server"].stop()
    after = pub.read_bytes()
    pub.write_bytes(before)  # a key that was withdrawn comes back
    server = trial.program("server", "deploy", "server", "--home", str(trial.home))
    assert server.ends(90) == 2
    print(server.said)
    assert "site-3: this key was withdrawn, and Flower never accepts a withdrawn key again" in server.said
    pub.write_bytes(after)
    trial.server()  # nothing was withdrawn for it
    trial.connected(3)


def without_keys(trial: Trial) -> None:
    """Another start of the server, with --insecure and no site."""
    trial.end()
    trial.program("server", "deploy", "server", "--home", str(trial.home), "--insecure").until("NOT ENCRYPTED")


def test_a_site_that_speaks_otherwise_than_its_server(trial: Trial) -> None:
    trial.programs["site-1"].stop()
    plain = trial.program("plain", "deploy", "site", "site-1", "--home", str(trial.home), "--insecure")
    assert plain.ends(60) == 2
    print(plain.said)
    assert "is encrypted; start this site without --insecure" in plain.said
    without_keys(trial)
    coded = trial.site(1)
    assert coded.ends(60) == 2
    print(coded.said)
    assert "was started with --insecure" in coded.said


def test_two_sites_without_a_key_that_say_the_same(trial: Trial) -> None:
    without_keys(trial)
    path = trial.home / "site-2" / "site.toml"
    path.write_text(path.read_text().replace("client = 1", "client = 0"))
    for name in ("site-1", "site-2"):
        trial.program(name, "deploy", "site", name, "--home", str(trial.home), "--insecure").until("connected")
    trial.setting("wait_seconds", 20)
    run = trial.start("bare", "train.rounds=1", more=["--insecure"])
    assert run.ends() == 1
    print(run.said)
    assert "client 0: 2 nodes say that they are client 0, so none of them is used" in run.said
