"""The folder of a deployment: settings, keys, command lines, and how a run is followed."""

import datetime
import json
import os
import re
import shlex
import socket
import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryFile
from typing import Any, cast

import pytest

from fssl.config import only_run, override, read_toml
from fssl.deploy.control import close_gate, connect
from fssl.deploy.home import ServerPart, SitePart, init, is_free, server_part, site_part
from fssl.deploy.orders import events, follow, for_sites
from fssl.deploy.programs import NEW_START, wait_for
from fssl.errors import RunError, UserError
from helpers.command import Fssl

DEALT = {"partition": {"kind": "dirichlet"}}  # among all sites, not in pairs


@pytest.fixture
def home(tmp_path: Path) -> Path:
    init(tmp_path / "home", 3)
    return tmp_path / "home"


def test_the_next_command_can_be_pasted(fssl: Fssl) -> None:
    """From `init` and from `datasets --export-digits`, whatever their folder is called."""
    code, said, _ = fssl("deploy", "init", "de p ü's")
    assert (code, shlex.split(said.rpartition("next: ")[2])[-2:]) == (0, ["--home", "de p ü's"])
    code, said, _ = fssl("datasets", "--export-digits", "si tes")
    assert (code, "count them with `fssl datasets --check 'si tes'`" in " ".join(said.split())) == (0, True)


def test_a_new_folder_reads_back(home: Path) -> None:
    server, site = server_part(home), site_part(home, "site-2")
    assert server.sites == ["site-1", "site-2", "site-3"]
    assert (site.client, site.clients, site.server) == (1, 3, f"127.0.0.1:{server.port}")
    ports = [site_part(home, name).port for name in server.sites]
    assert len({server.port, *ports}) == 4
    assert all(map(is_free, ports))
    assert server_part(home / "server") == server  # the server's part by itself
    assert server.test_images is None
    assert server._replace(test="images").test_images == home / "server" / "images"
    assert site_part(home / "site-2", None) == site


def test_a_folder_with_something_in_it_is_rejected(home: Path) -> None:
    with pytest.raises(UserError, match="is not empty"):
        init(home, 3)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("quorum = 2", 'quorum = "two"', "quorum = 'two': expected a whole number"),
        ("quorum = 2", "qorum = 2", r"server.toml: key 'qorum' is unknown; did you mean 'quorum'\?"),
        ("port =", "# port =", "port is missing"),
        ("port =", "port", "not valid TOML"),
        ('"site-1", "site-2"', '"site-1", "site-1"', "expected different names"),
        ('"site-1", "site-2"', '"site-1", "../site-2"', "expected different names without spaces or '/'"),
        ("quorum = 2", "quorum = 0", "quorum = 0: expected a number from 1 to 100000000"),
        ("quorum = 2", "quorum = 4", "server.toml: quorum = 4: expected 3 at most, the number of `sites`"),
        ("wait_seconds = 600", "wait_seconds = -1", "wait_seconds = -1: expected a number from 0 to 100000000"),
        ('"site-1", "site-2"', "1, 2", r"sites = \[1, 2, 'site-3'\]: expected a list of strings"),
        ("port =", "port = 99999 #", "port = 99999: expected a number from 1 to 65535"),
        ('names = ["localhost", "127.0.0.1"]', "names = []", "names = \\[\\]: expected a list of strings"),
        ('listen = "127.0.0.1"', 'listen = ""', "listen = '': '' is not a host name or address"),
        ('"127.0.0.1"]', '""]', r"names = \['localhost', ''\]: '' is not a host name or address"),
        ('"127.0.0.1"]', '"a b"]', "'a b' is not a host name or address"),
        ('"127.0.0.1"]', '"*"]', r"'\*' is not a host name or address"),
        ('"127.0.0.1"]', '"bücher.example"]', "write 'bücher.example' as 'xn--bcher-kva.example'"),
        ('"site-1", "site-2"', '"site-1", "server"', "'server' is the name of the server's own folder"),
        ('"site-1", "site-2"', '"site-1", "Server"', "'Server' is the name of the server's own folder"),
    ],
)
def test_bad_settings_are_named(home: Path, old: str, new: str, message: str) -> None:
    path = home / "server" / "server.toml"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(UserError, match=message):
        server_part(home)


def test_one_site_is_a_quorum(tmp_path: Path) -> None:
    init(tmp_path / "one", 1)
    assert server_part(tmp_path / "one").quorum == 1


def test_settings_are_text(home: Path) -> None:
    path = home / "server" / "server.toml"
    text = path.read_bytes()
    path.write_bytes(b"\xef\xbb\xbf" + text)  # the mark with which some editors begin
    assert server_part(home).quorum == 2
    path.write_bytes(b"# caf\xe9\n" + text)
    with pytest.raises(UserError, match=r"server.toml: not UTF-8 text \(byte 6\)"):
        server_part(home)


def test_an_unknown_device_is_rejected(home: Path) -> None:
    path = home / "site-1" / "site.toml"
    path.write_text(path.read_text().replace('device = "auto"', 'device = "gpu"'))
    with pytest.raises(UserError, match=r"site\.toml: device 'gpu' is unknown; did you mean 'cuda'"):
        site_part(home, "site-1")


def test_whether_masks_are_wanted_is_yes_or_no(home: Path) -> None:
    assert not site_part(home, "site-1").masked
    path = home / "site-1" / "site.toml"
    text = path.read_text()
    path.write_text(text.replace("# masked = true", "masked = true"))
    assert site_part(home, "site-1").masked
    path.write_text(text.replace("# masked = true", 'masked = "secagg+"'))
    with pytest.raises(UserError, match=r"site\.toml: masked = 'secagg\+': expected true or false"):
        site_part(home, "site-1")


def refused_site(fssl: Fssl, home: Path, *more: str | Path) -> str:
    """What a site says that is rejected before it looks for its server."""
    said = fssl("deploy", "site", "site-1", "--home", home, *more)
    assert (said.code, said.out) == (2, "")
    return said.err.replace("fssl: ", "").strip()


def test_a_device_that_is_not_there_is_rejected_before_a_site_connects(
    home: Path, fssl: Fssl, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_keys(home)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    path = home / "site-1" / "site.toml"
    path.write_text(path.read_text().replace('device = "auto"', 'device = "cuda"'))
    said = refused_site(fssl, home)
    assert said == f"{path.resolve()}: device = 'cuda': no CUDA device is visible; use 'cpu' or 'auto'"


def test_images_that_no_run_can_use_are_rejected_before_a_site_connects(home: Path, fssl: Fssl) -> None:
    with_keys(home)
    (whole := home.parent / "images").mkdir()
    nothing = "no images to train on, expected some in labeled/CLASS/* or unlabeled/*"
    assert refused_site(fssl, home, "--data", whole) == f"'{whole}' cannot be used, 1 problem:\n  .: {nothing}"
    (whole / "clients" / "a" / "unlabeled").mkdir(parents=True)
    (whole / "clients" / "a" / "unlabeled" / "1.png").touch()
    problems = (
        f"'{whole}' cannot be used, 2 problems:\n  clients: expected only labeled, unlabeled, test\n  .: {nothing}"
    )
    assert refused_site(fssl, home, "--data", whole) == problems
    assert refused_site(fssl, home, "--data", whole / "b").endswith(f"there is no folder {whole / 'b'}")


def test_images_that_a_run_may_use_are_not_rejected(home: Path) -> None:
    from fssl.deploy.sites import check_site

    part, own, dataset = site_part(home, "site-1"), home.parent / "own", home.parent / "datasets"
    for path in (own / "unlabeled" / "1.png", own / "unlabeled" / "notes.txt", dataset / "cifar10" / "train-0.parquet"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for images in (own, dataset, None):
        check_site(part, images)


@pytest.mark.parametrize("name", ["ca.crt", "key"])
@pytest.mark.parametrize("text", ["junk", "", "-----BEGIN CERTIFICATE-----\njunk\n-----END CERTIFICATE-----\n"])
def test_a_damaged_key_or_certificate_is_rejected_before_a_site_connects(
    name: str, text: str, home: Path, fssl: Fssl
) -> None:
    with_keys(home)
    (home / "site-1" / name).write_text(text)
    again = "restore it, or ask the operator of the server for another"
    assert refused_site(fssl, home) == f"{(home / 'site-1' / name).resolve()} is damaged; {again}"


def test_a_key_of_another_kind_is_rejected(home: Path) -> None:
    from fssl.deploy.keys import check_site_keys, write_private

    with_keys(home)
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ed25519

    check_site_keys(home / "site-1")
    key = ed25519.Ed25519PrivateKey.generate()
    write_private(
        home / "site-1" / "key", key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    )
    with pytest.raises(UserError, match="site-1/key is damaged"):
        check_site_keys(home / "site-1")


def site_with(home: Path, server: str) -> SitePart:
    path = home / "site-1" / "site.toml"
    path.write_text(path.read_text().replace('server = "127.0.0.1:', f'server = "{server}"  # "'))
    return site_part(home, "site-1")


NO_HOST = "is not a host name or address"


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ("fl.example.org", "expected NAME:PORT$"),
        ("https://fl.example.org:8443", "expected NAME:PORT$"),
        ("fl.example.org:x", "expected NAME:PORT$"),
        (":8443", "expected NAME:PORT$"),
        ("localhost:٨", "expected NAME:PORT$"),
        ("localhost:0", "expected NAME:PORT with a port from 1 to 65535"),
        ("localhost:65536", "expected NAME:PORT with a port from 1 to 65535"),
        ("a..b:80", f"'a..b' {NO_HOST}"),
        (f"{'x' * 64}:80", f"'{'x' * 64}' {NO_HOST}"),
        (f"{'x.' * 127}:80", f"'{'x.' * 127}' {NO_HOST}"),
        ("*.example.org:80", rf"'\*.example.org' {NO_HOST}"),
        ("bücher.example:80", "write 'bücher.example' as 'xn--bcher-kva.example'"),
    ],
)
def test_an_address_that_is_none_is_rejected(home: Path, server: str, message: str) -> None:
    with pytest.raises(UserError, match=rf"site\.toml: server = '{re.escape(server)}': {message}"):
        site_with(home, server)


@pytest.mark.parametrize(
    "server", ["fl.example.org:1", "xn--bcher-kva.example:65535", f"{'x' * 63}.org.:80", "10.0.0.5:80", "[::1]:8443"]
)
def test_an_address_may_be_of_any_kind(home: Path, server: str) -> None:
    assert site_with(home, server).server == server


@pytest.mark.parametrize(
    ("listen", "names", "address"),
    [
        ("127.0.0.1", ["localhost", "127.0.0.1"], "127.0.0.1"),
        ("0.0.0.0", ["fl.example.org", "127.0.0.1"], "127.0.0.1"),
        ("0.0.0.0", ["fl.example.org", "localhost"], "localhost"),
        ("0.0.0.0", ["fl.example.org"], "fl.example.org"),
        ("10.0.0.5", ["fl.example.org", "10.0.0.5"], "10.0.0.5"),
    ],
)
def test_programs_of_the_server_reach_it_without_the_network(
    home: Path, listen: str, names: list[str], address: str
) -> None:
    server = server_part(home)._replace(listen=listen, names=names)
    assert server.address == f"{address}:{server.port}"


def test_a_client_that_there_is_not_is_rejected(home: Path) -> None:
    path = home / "site-1" / "site.toml"
    path.write_text(path.read_text().replace("client = 0", "client = 7"))
    with pytest.raises(UserError, match="client = 7: expected 0 to 2, as clients = 3"):
        site_part(home, "site-1")


@pytest.mark.parametrize("name", ["ä β 🐙", "a=b c='d' #e", "back\\slash", "rub\x7fout"])
def test_flower_reads_the_names_of_folders(home: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    config = pytest.importorskip("flwr.common.config", reason="Flower is not installed: pip install 'fssl[flower]'")
    from fssl.deploy import programs

    monkeypatch.setattr(programs, "program", lambda name: name)
    site, data = site_part(home, "site-1"), home / name
    words = programs.supernode(site, data, insecure=True)
    read = config.parse_config_args([words[words.index("--node-config") + 1]])
    assert read == {"partition-id": 0, "num-partitions": 3, "folder": str(site.folder), "data": str(data)}
    with pytest.raises(UserError, match="not contain a double quote"):
        programs.supernode(site, home / 'a"b', insecure=True)


def test_a_part_belongs_to_one_run(home: Path) -> None:
    assert [stat.S_IMODE(p.stat().st_mode) for p in sorted(home.iterdir()) if p.is_dir()] == [0o700] * 4


def test_an_unknown_site_is_named(home: Path) -> None:
    with pytest.raises(UserError, match="sites here: site-1, site-2, site-3"):
        site_part(home, "site-9")


@pytest.mark.parametrize("name", ['quo"te', "back\\slash", "rub\x7fout"])
def test_the_app_can_be_read_whatever_its_folder_is_called(tmp_path: Path, name: str) -> None:
    init(tmp_path / name, 1)
    app = tomllib.loads((tmp_path / name / "server/app/pyproject.toml").read_text())
    assert app["tool"]["flwr"]["app"]["config"]["out"] == str(tmp_path / name / "server/runs/flwr")


def test_the_app_offers_every_term() -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
    import tomllib

    from fssl.deploy.server_app import RunOptions
    from fssl.engines.flower.bundle import app_files

    offered = tomllib.loads(app_files("x")["pyproject.toml"])["tool"]["flwr"]["app"]["config"]
    assert offered | {"out": RunOptions().out} == RunOptions()._asdict()


def test_sites_are_waited_for_as_the_order_says(tmp_path: Path) -> None:
    """Under one name for each run folder, which no other engine has begun."""
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
    from fssl.deploy.server_app import RunOptions, deployment
    from fssl.engines.flower.fleet import Policy
    from fssl.engines.flower.identity import AdmittedSite
    from fssl.engines.flower.nodes import AdmittedNodes, AskedNodes

    grid, sites, terms = cast("Any", None), ["a aa", "b bb", "c cc"], RunOptions(quorum=2, wait=5, answer=7)
    policy, nodes = deployment(grid, terms, sites, tmp_path)
    assert policy == Policy(3, strict=False, run=policy.run, quorum=2, wait=5, answer=7, poll=0.25)
    assert isinstance(nodes, AdmittedNodes)
    assert nodes.sites == [AdmittedSite("a", "aa"), AdmittedSite("b", "bb"), AdmittedSite("c", "cc")]
    (tmp_path / "rounds.jsonl").touch()
    again, asked = deployment(grid, terms._replace(insecure=True), ["a", "b", "c"], tmp_path)
    assert again == policy
    assert isinstance(asked, AskedNodes)
    (other := tmp_path / "other").mkdir()
    assert deployment(grid, terms, sites, other)[0].run != policy.run
    (other / "deployment.json").rename(other / "rounds.jsonl")
    with pytest.raises(UserError, match="other was begun by another engine, so the sites lack their states; choose"):
        deployment(grid, terms, sites, other)


# Keys.


def test_keys_are_what_tls_and_flower_want(home: Path) -> None:
    pytest.importorskip("cryptography", reason="cryptography is not installed: pip install 'fssl[flower]'")
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1

    from fssl.deploy.keys import make_keys

    server = server_part(home)
    made = make_keys(server, home)
    ca, own = (x509.load_pem_x509_certificate((server.keys / name).read_bytes()) for name in ("ca.crt", "server.pem"))
    own.verify_directly_issued_by(ca)
    assert [each.subject.rfc4514_string() for each in (ca, own)] == ["CN=fssl deployment CA", "CN=localhost"]
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not own.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert own.not_valid_after_utc - datetime.datetime.now(datetime.UTC) > datetime.timedelta(days=364)
    assert ca.not_valid_after_utc - own.not_valid_after_utc > datetime.timedelta(days=3000)  # sites hold the CA's
    publics = set()
    for name in server.sites:
        key: Any = serialization.load_ssh_private_key((home / name / "key").read_bytes(), None)
        assert isinstance(key.curve, SECP384R1)
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        assert (server.keys / f"{name}.pub").read_bytes().strip() == public
        assert (home / name / "ca.crt").read_bytes() == (server.keys / "ca.crt").read_bytes()
        publics.add(public)
    assert len(publics) == 3
    private = [p for p in made if p.suffix in ("", ".key")]
    assert len(private) == 5
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in private)
    assert make_keys(server, home) == []  # nothing is made twice


def with_keys(home: Path) -> ServerPart:
    pytest.importorskip("cryptography", reason="cryptography is not installed: pip install 'fssl[flower]'")
    from fssl.deploy.keys import make_keys

    make_keys(server_part(home), home)
    return server_part(home)


def rewrite(home: Path, old: str, new: str) -> ServerPart:
    path = home / "server" / "server.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    return server_part(home)


def verifies(server: ServerPart, ca: bytes) -> bool:
    """Whether a site that holds this CA's certificate takes the server's."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    own = x509.load_pem_x509_certificate((server.keys / "server.pem").read_bytes())
    with suppress(InvalidSignature, ValueError):
        own.verify_directly_issued_by(x509.load_pem_x509_certificate(ca))
        return True
    return False


def test_a_site_is_added_while_the_key_of_the_ca_is_offline(home: Path) -> None:
    from fssl.deploy.keys import make_keys

    server = with_keys(home)
    before = {path.name: path.read_bytes() for path in server.keys.iterdir()}
    (server.keys / "ca.key").unlink()
    copyfile(server.keys / "site-1.pub", server.keys / "far.pub")  # of a site that makes its own, elsewhere
    more = rewrite(home, '"site-3"]', '"site-3", "site-4", "far"]')
    assert make_keys(more, home) == [home / "site-4" / "key", server.keys / "site-4.pub"]
    assert (home / "site-4" / "ca.crt").read_bytes() == before["ca.crt"]
    assert stat.S_IMODE((home / "site-4").stat().st_mode) == 0o700
    assert not (home / "far").exists()
    assert all((server.keys / name).read_bytes() == data for name, data in before.items() if name != "ca.key")


@pytest.mark.parametrize("lost", ["server.pem", "server.key", "ca.crt"])
def test_what_is_lost_is_signed_again_by_the_same_ca(lost: str, home: Path) -> None:
    from fssl.deploy.keys import describe_certificate, make_keys

    server = with_keys(home)
    held = (server.keys / "ca.crt").read_bytes()
    (server.keys / "ca.key").rename(home / "offline")
    (server.keys / lost).unlink()
    with pytest.raises(UserError, match=r"lacks ca.key, which has to sign what else is missing there; bring it back"):
        make_keys(server, home)
    (home / "offline").rename(server.keys / "ca.key")
    assert {path.name for path in make_keys(server, home)} == {lost, "server.pem"}
    assert verifies(server, held)
    assert describe_certificate(server).startswith("certificate for localhost, 127.0.0.1, valid until 20")


def test_another_cas_key_signs_nothing(home: Path, tmp_path: Path) -> None:
    from fssl.deploy.keys import make_keys

    init(tmp_path / "other", 1)
    server, other = with_keys(home), with_keys(tmp_path / "other")
    (other.keys / "ca.key").replace(server.keys / "ca.key")
    (server.keys / "server.pem").unlink()
    with pytest.raises(UserError, match=r"ca.key is not the key of .*ca.crt"):
        make_keys(server, home)


def test_a_certificate_for_other_names_is_said_and_renewed(home: Path) -> None:
    from fssl.deploy.keys import describe_certificate, make_keys

    server = with_keys(home)
    held = (server.keys / "ca.crt").read_bytes()
    renamed = rewrite(home, 'names = ["localhost", "127.0.0.1"]', 'names = ["fl.example.org", "::1"]')
    make_keys(renamed, home)
    reason = "certificate for localhost, 127.0.0.1, valid until .*, but server.toml names fl.example.org, ::1: "
    with pytest.raises(UserError, match=f"{reason}remove .*server.pem, call `fssl deploy keys` again"):
        describe_certificate(renamed)
    (server.keys / "ca.key").rename(home / "offline")
    with pytest.raises(UserError, match=f"{reason}bring back .*ca.key, remove .*server.pem"):
        describe_certificate(renamed)
    (home / "offline").rename(server.keys / "ca.key")
    (server.keys / "server.pem").unlink()
    make_keys(renamed, home)
    assert describe_certificate(renamed).startswith("certificate for fl.example.org, ::1, valid until")
    assert verifies(server, held)


def test_a_certificate_has_every_kind_of_name(home: Path) -> None:
    """Also a first one that is longer than a certificate's common name may be."""
    pytest.importorskip("cryptography", reason="cryptography is not installed: pip install 'fssl[flower]'")
    from fssl.deploy.keys import describe_certificate, make_keys

    names = [f"{'x' * 60}.example.org", "xn--bcher-kva.example", "*.example.org", "::1"]
    server = rewrite(home, '"localhost", "127.0.0.1"', ", ".join(f'"{name}"' for name in names))
    make_keys(server, home)
    assert describe_certificate(server).startswith(f"certificate for {', '.join(names)}, valid until")


def test_an_expired_certificate_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fssl.deploy import keys

    monkeypatch.setattr(keys, "SERVER_DAYS", 0)
    server = with_keys(home)
    assert keys.make_keys(server, home) == []
    with pytest.raises(UserError, match=r"valid until .*, which has passed: remove .*server.pem"):
        keys.describe_certificate(server)


def test_the_command_prints_the_certificate(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fssl.cli import app as cli

    with_keys(home)
    rewrite(home, '"127.0.0.1"]', '"fl.example.org"]')
    monkeypatch.setattr(sys, "argv", ["fssl", "deploy", "keys", "--home", str(home)])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    assert exit.value.code == 2
    said = capsys.readouterr()
    assert said.out == "all keys exist already\n"
    (line,) = said.err.splitlines()
    assert line.startswith("fssl: certificate for localhost, 127.0.0.1, valid until")


def test_a_private_key_without_its_public_half_gets_it(home: Path) -> None:
    from fssl.deploy.keys import make_keys

    server = with_keys(home)
    private, admitted = home / "site-2" / "key", server.keys / "site-2.pub"
    before = private.read_bytes(), admitted.read_bytes()
    admitted.unlink()
    (home / "site-2" / "key.pub").unlink()
    assert make_keys(server, home) == [admitted]
    assert (private.read_bytes(), admitted.read_bytes()) == before
    admitted.unlink()
    private.write_text("half")
    with pytest.raises(UserError, match="site-2/key is damaged; restore it, or remove it"):
        make_keys(server, home)


# Command lines.


def test_programs_are_safe_unless_asked_otherwise(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fssl.deploy import programs

    monkeypatch.setattr(programs, "program", lambda name: name)
    server, site = server_part(home), site_part(home, "site-1")
    with pytest.raises(UserError, match="`fssl deploy keys` makes"):
        programs.superlink(server, insecure=False)
    for path in (server.keys / "ca.crt", server.keys / "server.pem", server.keys / "server.key"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    for name in ("ca.crt", "key"):
        (site.folder / name).touch()
    link, node = programs.superlink(server, False), programs.supernode(site, None, False)
    assert "--enable-supernode-auth" in link
    assert "--disable-runtime-dependency-installation" in link
    assert "--insecure" not in [*link, *node]
    assert "--auth-supernode-private-key" in node
    assert "--allow-runtime-dependency-installation" not in node
    assert link[link.index("--host") + 1 :][:3] == ["127.0.0.1", "--port", str(server.port)]
    assert "--insecure" in programs.superlink(server, True)
    environment = programs.program_environment(server.folder)
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert environment["FLWR_HOME"] == str(server.folder / "flwr")


def test_a_port_in_use_is_said_before_anything_is_started() -> None:
    from fssl.deploy.programs import check_port

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            UserError, match=f"^port {port} on 127.0.0.1: Address already in use; stop the program that uses it"
        ):
            check_port("127.0.0.1", port)
    check_port("127.0.0.1", port)


def runs(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's prctl")
def test_a_program_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from fssl.deploy.programs import background_program\n"
        f"home = Path({str(tmp_path)!r})\n"
        "with background_program(['sleep', '600'], home, home / 'x.log') as process:\n"
        "    print(process.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        assert runs(child)
        parent.kill()
    until = time.monotonic() + 10
    while runs(child) and time.monotonic() < until:
        time.sleep(0.05)
    assert not runs(child)


FAKE = """
if [ $(grep -c "a new start" {log}) -lt {admitted} ]; then echo "ERROR : [code: 2004] Failed to activate SuperNode."
else echo "INFO : SuperNode ID: 1"; sleep 1; echo "ERROR : lost"; fi
"""


@pytest.mark.slow
@pytest.mark.parametrize(("patience", "end"), [(60, "ERROR : lost"), (-1, "Failed to activate SuperNode")])
def test_a_site_that_is_not_admitted_yet_tries_again(
    patience: int, end: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fssl.deploy import sites

    said: list[str] = []
    monkeypatch.setattr(sites, "ADMISSION", patience)
    monkeypatch.setattr(sites, "PAUSE", 0)
    part, log = site_part(home, "site-1"), home / "site-1" / "x.log"
    with pytest.raises(RunError, match=f"site-1 ended: .*{end}"):
        sites.keep_connected(part, ["sh", "-c", FAKE.format(log=log, admitted=3)], log, said.append)
    refused = "the server rejects this key: it was not admitted, or another program uses it"
    again = f"site-1: {refused} (after a restart this takes up to a minute); trying again for 1 minutes"
    assert said == ([again, "site-1: connected"] if patience > 0 else [])  # reported once, though rejected twice


def test_a_site_whose_key_was_withdrawn_does_not_try_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fssl.deploy import sites

    monkeypatch.setattr(sites, "ADMISSION", -1)
    part, log = site_part(home, "site-1"), home / "site-1" / "x.log"
    words = "INFO : SuperNode ID: 1\nINFO : SuperNode terminated gracefully\nERROR : Failed to activate SuperNode"
    with pytest.raises(RunError) as error:
        sites.keep_connected(part, ["echo", words], log, lambda text: None)
    why = "the server no longer accepts its key, or Flower's program was stopped"
    assert str(error.value) == f"site-1 ended: {why} (log: {log})"


ROUNDS = """
cat <<END
WARNING : Connection attempt failed, retrying in 9.00 seconds
INFO : SuperNode ID: 1
fssl: round 1: this site cannot take part: 'images' cannot be used, 1 problem:
fssl:   unlabeled/a.png: an empty file
INFO : fssl: inside a line
\033[93mWARNING \033[0m:   Connection attempt failed, retrying in 4.99 seconds
INFO :      Connection successful after 5.10 seconds and 2 tries.
WARNING :   Connection attempt failed, retrying in 5.00 seconds
WARNING :   Connection attempt failed, retrying in 17.07 seconds
INFO :      Connection successful after 30.00 seconds and 4 tries.
INFO :      Connection successful after 0.10 seconds and 2 tries.
END
sleep 1; echo "fssl: round 2: answered after 3.1 s"
"""


@pytest.mark.slow
def test_a_site_shows_how_its_rounds_went_and_whether_the_server_answers(home: Path) -> None:
    """Not what it said before this start or Flower says, nor short waits, nor those before it was connected."""
    from fssl.deploy import sites

    said: list[str] = []
    part, log = site_part(home, "site-1"), home / "site-1" / "x.log"
    log.write_text("INFO : SuperNode ID: 1\nfssl: round 9: answered after 1.0 s\n")
    with pytest.raises(RunError, match="site-1 ended: fssl: round 2"):
        sites.keep_connected(part, ["sh", "-c", ROUNDS], log, said.append)
    assert said == [
        "site-1: connected",
        "site-1: round 1: this site cannot take part: 'images' cannot be used, 1 problem:",
        "site-1:   unlabeled/a.png: an empty file",
        "site-1: the server does not answer; trying again",
        "site-1: the server answers again",
        "site-1: round 2: answered after 3.1 s",
    ]


@pytest.mark.parametrize(("words", "hint"), [("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed", True), ("lost", False)])
def test_a_server_with_another_certificate_comes_with_a_hint(words: str, hint: bool, home: Path) -> None:
    from fssl.deploy import sites

    part, log = site_part(home, "site-1"), home / "site-1" / "x.log"
    with pytest.raises(RunError) as error:
        sites.keep_connected(part, ["sh", "-c", f"echo 'ERROR : {words}'"], log, print)
    ask = "is ca.crt of this deployment, and `server` in site.toml one of the names in server.toml? "
    assert str(error.value) == f"site-1 ended: {ask if hint else ''}ERROR : {words} (log: {log})"


NO_ANSWER = r"the server does not answer at 127\.0\.0\.1:\d+; is `fssl deploy server` running\?$"


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ("Connection to the SuperLink is unavailable. Please check", NO_ANSWER),
        ('{"success": false, "error-message": "Connection to the SuperLink\\nis unavailable."}', NO_ANSWER),
        (
            "Authentication failed. Please run flwr login",
            r"was not started from .*/server, so it rejects this command$",
        ),
        (
            "SuperLink connection 'deployment' not found in the configuration",
            "^the server has not been started yet; start it with `fssl deploy server`$",
        ),
        ('{"success": false, "error-message": "no such run"}', "^`flwr ls deployment` failed: no such run$"),
        ("first " + "word " * 59, f"^`flwr ls deployment` failed: first {'word ' * 58}word$"),  # 300 letters
        ("start " + "letters " * 40, f"^`flwr ls deployment` failed: … {'letters ' * 36}letters$"),
    ],
)
def test_what_the_flwr_command_says_becomes_one_line(
    answer: str, line: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fssl.deploy import control

    script = home / "flwr"
    script.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
    script.chmod(0o755)
    monkeypatch.setattr(control, "program", lambda name: str(script))
    with pytest.raises(RunError, match=line):
        control.flwr(server_part(home), "ls", "deployment", "--run-id", "7")


def test_own_images_need_classes_and_test_images_before_a_site_is_asked(home: Path, tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
    from fssl.deploy.orders import check

    part, data = server_part(home), {"name": "folder", "classes": ["cat", "dog"]}
    tables = {"data": data, "partition": {"clients": 3}, "train": {"clients_per_round": 3}}
    with pytest.raises(UserError, match="`test` is missing"):
        check(part, tables, tmp_path / "out", resume=False)
    with pytest.raises(UserError, match="no test images"):
        check(part._replace(test=str(tmp_path)), tables, tmp_path / "out", resume=False)
    masked = {**tables, "privacy": {"aggregation": "secagg+"}}
    with pytest.raises(
        UserError, match=r"own images needs privacy\.max_weight: the number of images of the largest site"
    ):
        check(part._replace(test=str(tmp_path)), masked, tmp_path / "out", resume=False)
    elsewhere = {**tables, "data": {**data, "dir": "sites"}}
    with pytest.raises(
        UserError, match=r"data\.dir = 'sites' does not work with .*: site\.toml names a site's images, `test`"
    ):
        check(part._replace(test=str(tmp_path)), elsewhere, tmp_path / "out", resume=False)
    del data["classes"]
    with pytest.raises(UserError, match=r"own images needs data\.classes: a list that all sites agree on"):
        check(part, tables, tmp_path / "out", resume=False)


def test_labeled_images_that_a_run_does_not_use_are_pointed_out(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
    from fssl.config import parse
    from fssl.deploy.orders import unused_labels

    own = {"data": {"name": "folder", "classes": ["cat", "dog"]}}
    (tmp_path / "server" / "cat").mkdir(parents=True)
    assert unused_labels(parse(own), tmp_path) == []
    (tmp_path / "server" / "cat" / "1.png").touch()
    assert unused_labels(parse(own), tmp_path) == [
        f"{tmp_path}/server has labeled images that partition.labels = 'all-clients' does not use; --set"
        " partition.labels=server trains on them"
    ]
    assert unused_labels(parse({**own, "partition": {"labels": "server"}}), tmp_path) == []
    assert unused_labels(parse(own), None) == unused_labels(parse({}), tmp_path) == []


def test_a_runs_settings_fit_the_sites() -> None:
    assert for_sites({}, 3) == {"partition": {"clients": 3}, "train": {"clients_per_round": 3}}
    assert for_sites({"partition": {"clients": 3}, "train": {"clients_per_round": 20}}, 3) == for_sites({}, 3)
    assert for_sites({"train": {"clients_per_round": 2}}, 3)["train"] == {"clients_per_round": 2}
    with pytest.raises(UserError, match=r"partition.clients = 4, but server.toml names 3 sites"):
        for_sites({"partition": {"clients": 4}}, 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["train.clients_per_round=all"], "train.clients_per_round = 'all': expected a whole number"),
        (["partition=3"], "'partition' is a single value, not a section"),
        (["protocol=authors"], "which sites cannot"),
        (
            ["records.tensorboard=true"],
            "records.tensorboard = true does not work with Flower's app: rounds.jsonl",
        ),
        (["privacy.clip=1", "method.name=feddb"], "privacy.clip: method 'feddb' reads more"),
        (["privacy.aggregation=secagg+", "method.name=feddb"], r"'secagg\+': method 'feddb' reads more"),
        (["privacy.aggregation=secagg+", "train.clients_per_round=2"], "train.clients_per_round = 2: expected 3 to"),
    ],
)
def test_what_sites_cannot_do_is_rejected_before_they_are_asked(
    home: Path, tmp_path: Path, settings: list[str], message: str
) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
    from fssl.deploy.orders import check

    with pytest.raises(UserError, match=message):
        check(server_part(home), for_sites(override(DEALT, settings), 3), tmp_path / "out", resume=False)


def test_a_grid_of_one_cell_is_ordered_as_the_run_it_stands_for(home: Path, tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
    from fssl.deploy.orders import check, write_order

    part, out = with_keys(home), tmp_path / "out"
    tables = override(read_toml("demo"), ["grid.method.name=['sage']", "grid.seed=[9]"])
    run = check(part, for_sites({**tables, **DEALT}, 3), out, resume=False)
    order, _ = write_order(part._replace(test="images"), run, out, resume=True, insecure=False)
    terms = tomllib.loads(order.read_text())
    kept = {key: terms[key] for key in ("out", "resume", "insecure", "test", "quorum", "wait", "answer")}
    said = {"resume": True, "insecure": False, "test": str(part.folder / "images"), "quorum": 2}
    assert kept == {"out": str(out), **said, "wait": 600, "answer": 3600}
    assert [line.split()[0] for line in terms["sites"].splitlines()] == part.sites
    sent = only_run(read_toml(terms["config"]))
    assert sent == run
    assert (sent.method.name, sent.seed, sent.partition.clients) == ("sage", 9, 3)


def asked_of_flower(part: ServerPart, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What a start asks of a server that was started and takes everything."""
    from fssl.deploy import orders

    close_gate(part)
    connect(part, insecure=False)
    asked: list[tuple[str, ...]] = []

    def flwr(part: ServerPart, *words: str) -> dict[str, Any]:
        asked.append(words)
        return {"run-id": 7}

    monkeypatch.setattr(orders, "flwr", flwr)
    return asked


@pytest.mark.parametrize("full", ["out", "home/server/logs"])
def test_a_full_disk_is_found_before_a_run_is_ordered(
    full: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
    from fssl.deploy import orders

    def opened(dir: Path) -> Any:
        is_full = dir == tmp_path if full == "out" else dir == home / "server"  # neither folder is there yet
        return Path("/dev/full").open("wb") if is_full else TemporaryFile(dir=dir)

    asked = asked_of_flower(part := with_keys(home), monkeypatch)
    monkeypatch.setattr(orders, "TemporaryFile", opened)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError) as error:
        orders.start_run(part, orders.Wanted(DEALT, tmp_path / "out"), lambda text: None)
    assert str(error.value) == f"{tmp_path / full}: cannot be written: No space left on device; no run was started"
    assert (asked, sorted(tmp_path.rglob("*"))) == ([], before)


def test_a_folder_that_cannot_be_made_is_found_before_a_run_is_ordered(tmp_path: Path) -> None:
    from fssl.deploy.orders import check_room

    check_room(tmp_path / "runs" / "new")
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "runs").touch()
    with pytest.raises(UserError, match="runs/new: cannot be written: Not a directory; no run was started"):
        check_room(tmp_path / "runs" / "new")


def to_a_full_disk(text: str) -> None:
    with Path("/dev/full").open("w") as file:
        file.write(text)


def to_a_closed_pipe(text: str) -> None:
    raise SystemExit(1)  # as rich does


@pytest.mark.parametrize(("say", "why"), [(to_a_full_disk, "No space left on device"), (to_a_closed_pipe, "closed")])
def test_a_run_that_cannot_be_shown_continues(
    say: Callable[[str], None], why: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
    from fssl.deploy import orders

    asked = asked_of_flower(part := with_keys(home), monkeypatch)
    with pytest.raises(RunError) as error:
        orders.start_run(part, orders.Wanted(DEALT, tmp_path / "out"), say)
    goes_on = "it continues at the server, and `fssl deploy start --resume` waits for it"
    assert str(error.value) == f"output: {why}, so the run cannot be followed; {goes_on}"
    assert [words[0] for words in asked] == ["run"]  # and nothing was stopped


def test_a_run_that_is_interrupted_is_stopped_at_the_server(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
    from fssl.deploy import orders

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    said: list[str] = []
    asked = asked_of_flower(part := with_keys(home), monkeypatch)
    out = tmp_path / "out"
    monkeypatch.setattr(orders, "follow", interrupt)
    with pytest.raises(KeyboardInterrupt):
        orders.start_run(part, orders.Wanted(DEALT, out), said.append)
    (order,) = part.folder.glob("logs/*-order.toml")
    (_, app, *rest), stop = asked
    assert (rest, stop) == (["deployment", "-c", str(order)], ("stop", "7", "deployment"))
    assert Path(app).name == "fsslapp"
    assert said == [f"run 7 of 3 sites; folder {out}"]
    assert capsys.readouterr().err == (
        f"fssl: stopped; finished rounds are kept in {out}: the same command with --resume continues\n"
    )


# Following a run.


def journal(folder: Path, *events: dict[str, Any]) -> Path:
    path = folder / "journal.jsonl"
    path.write_text("".join(json.dumps(e) + "\n" for e in events) + '{"half')
    return path


LINE = {"round": 1, "accuracy": 50.0, "timing": {"seconds": 2.0}, "missing": {"2": "not connected"}}


def test_a_run_is_followed_to_its_end(tmp_path: Path) -> None:
    said: list[str] = []
    path = journal(
        tmp_path, {"started": {"rounds": 1, "done": 0}}, {"said": "hello"}, {"round": LINE}, {"finished": ""}
    )
    follow(path, lambda: "running", said.append)
    assert said == ["hello", "round    1/1  test 50.00 %  2.0 s  missing: 2"]


def test_a_run_that_is_silent_is_followed_as_long_as_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fssl.deploy.orders.time.sleep", lambda seconds: None)
    asked: list[str] = []

    def status() -> str:
        asked.append("running")
        if len(asked) == 3:
            journal(tmp_path, {"said": "a long round"}, {"finished": ""})
        return asked[-1]

    said: list[str] = []
    follow(tmp_path / "journal.jsonl", status, said.append, patience=-1)
    assert (said, len(asked)) == (["a long round"], 3)


def test_a_journal_is_read_on_from_where_one_was(tmp_path: Path) -> None:
    path = journal(tmp_path, {"said": "one"}, {"said": "two"})
    found = events(path, lambda: "running", 60)
    assert [next(found), next(found)] == [{"said": "one"}, {"said": "two"}]
    with path.open("r+b") as file:
        file.write(b"\xff" * 10)  # no text, but it is not read again
        file.seek(0, 2)
        file.write(b'": 1}\n')
    assert next(found) == {"half": 1}


@pytest.mark.slow
def test_a_log_is_read_on_from_where_one_was(tmp_path: Path) -> None:
    log = tmp_path / "x.log"

    class Process:
        """Each look at whether it runs is a step of its story."""

        def __init__(self, *story: Callable[[], object]) -> None:
            self.story = iter(story)

        def poll(self) -> int | None:
            step = next(self.story, None)
            if step:
                step()
            return None if step else 1

    def append(text: str) -> None:
        with log.open("a") as file:
            file.write(text)

    def waits(*story: Callable[[], object]) -> bool:
        log.write_text(f"SuperNode ID: of another day\n{NEW_START}INFO : on\n")
        process: Any = Process(*story)
        return wait_for("SuperNode ID:", process, log)

    assert waits(list, lambda: append("INFO : \x1b[1mSuper"), lambda: append("Node ID: 1\n"))  # in two pieces
    assert not waits(list, lambda: log.write_text("SuperNode ID: 1\n" + "INFO\n" * 9))  # where it was read already


def test_who_was_missing_is_counted() -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
    from fssl.deploy.orders import absences

    gone, bad = {"10": "not connected"}, {"2": "upload rejected: x", "10": "not connected"}
    rounds: list[dict[str, Any]] = [{"missing": gone}, {}, {"missing": bad}]
    assert absences(rounds) == "missing: client 2 in 1 of 3 rounds, client 10 in 2 of 3 rounds; uploads rejected: 1"
    assert absences([{}]) == ""


def test_a_run_that_stops_says_why(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no quorum"):
        follow(journal(tmp_path, {"stopped": "no quorum"}), lambda: "running", lambda text: None)


def test_the_status_of_a_run_is_that_of_the_server(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fssl.deploy import orders

    answers: list[dict[str, Any]] = [{"runs": [{"status": "finished:failed"}]}, {"runs": []}, {}]
    monkeypatch.setattr(orders, "flwr", lambda part, *words: answers.pop(0))
    assert [orders.run_status(server_part(home), "7") for _ in range(3)] == ["finished:failed", "unknown", "unknown"]

    def unanswered(part: ServerPart, *words: str) -> dict[str, Any]:
        raise RunError(NO_ANSWER)

    monkeypatch.setattr(orders, "flwr", unanswered)
    with pytest.raises(RunError, match=r"^the server does not answer; start it again, then resume with --resume$"):
        orders.run_status(server_part(home), "7")


GOES_ON = "once the server runs, the same command with --resume continues"


def test_a_run_that_dies_silently_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(RunError) as error:
        follow(tmp_path / "never", lambda: "finished:failed", lambda text: None, patience=0.0)
    why = "perhaps the server was stopped or restarted, or its disk is full"
    ended = f"the run ended without a message (finished:failed), {why}"
    assert str(error.value) == f"{ended}; {GOES_ON} (log: {tmp_path}/superlink.log)"


def test_a_run_that_its_server_cuts_off_says_how_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
    from fssl.deploy import server_app

    def ended(*given: object) -> None:
        raise SystemExit(0)  # as Flower's programs end when their SuperLink is gone

    class Terms:
        run_config = {"log": str(tmp_path / "journal.jsonl")}  # noqa: RUF012

    monkeypatch.setattr(server_app, "run", ended)
    context: Any = Terms()
    with pytest.raises(SystemExit):
        server_app.main(context, context)
    with pytest.raises(RunError) as error:
        follow(tmp_path / "journal.jsonl", lambda: "running", lambda text: None)
    why = "the server was stopped or restarted, and the run with it"
    assert str(error.value) == f"{why}; {GOES_ON} (log: {tmp_path}/superlink.log)"


@pytest.mark.parametrize("line", ["{", '{"round": 1, "said": "2"}', "7", "[" * 100_000])
def test_a_damaged_journal_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(RunError, match=re.escape(f"{path}: damaged")):
        follow(path, lambda: "running", lambda text: None)


def test_a_folder_whose_name_is_not_utf8_is_rejected_before_anything_is_written(tmp_path: Path) -> None:
    home = tmp_path / os.fsdecode(b"caf\xe9")
    with pytest.raises(UserError, match="it contains a name that is not UTF-8"):
        init(home, 2)
    assert not home.exists()


TALKS = """
import sys
print("\\x1b[92mINFO \\x1b[0m: begun")
print("fssl: a line of ours", file=sys.stderr)
for i in range(int(sys.argv[1])):
    print("x" * 99)
sys.exit("ERROR : the end")
"""


def test_a_log_has_times_and_no_colors_and_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fssl.deploy import programs

    monkeypatch.setattr(programs, "LOG_BYTES", 5000)
    log = tmp_path / "logs" / "x.log"
    with programs.background_program([sys.executable, "-c", TALKS, "0"], tmp_path, log) as process:
        while process.poll() is None:
            time.sleep(0.05)
        assert programs.exit_reason(log) == f"ERROR : the end (log: {log})"  # although it has only just ended
    lines = log.read_text().splitlines()
    for line in lines:
        at = datetime.datetime.strptime(line[:21], "%Y-%m-%dT%H:%M:%SZ ").replace(tzinfo=datetime.UTC)
        assert abs(datetime.datetime.now(datetime.UTC) - at) < datetime.timedelta(minutes=5)
    said = ["---- a new start ----", "INFO : begun", "fssl: a line of ours", "ERROR : the end"]
    assert sorted(line[21:] for line in lines) == sorted(said)  # two streams may come in either order
    growing = programs.TailedFile(log)
    assert "fssl: a line of ours" in growing.news().splitlines()
    with programs.background_program([sys.executable, "-c", TALKS, "1000"], tmp_path, log) as process:
        while process.poll() is None:
            time.sleep(0.05)
    files = sorted(file.name for file in log.parent.iterdir())
    assert files == ["x.log", *(f"x.log.{i}" for i in range(1, 6))]
    assert all(file.stat().st_size <= 5000 for file in log.parent.iterdir())
    assert "ERROR : the end" in growing.news()  # of the log that has begun anew


def test_the_last_words_of_a_program(tmp_path: Path) -> None:
    from fssl.deploy.programs import exit_reason

    log = tmp_path / "x.log"
    log.write_text(
        "INFO: on\n\x1b[91mERROR \x1b[0m:     Exit Code: 305\nNo link.\n\n[code: 2004] Refused.\nMore.\nINFO: off\n"
    )
    assert exit_reason(log) == f"ERROR : Exit Code: 305 No link. [code: 2004] Refused. (log: {log})"
    log.write_text("INFO: on\nINFO:   the end\n")
    assert exit_reason(log) == f"INFO: the end (log: {log})"
    log.write_text(f"ERROR: of another day\n2026-01-01 12:00:00 {NEW_START}INFO:   on\n")
    assert exit_reason(log) == f"INFO: on (log: {log})"
    log.write_text(f"ERROR: of another day\n2026-01-01 12:00:00 {NEW_START}")
    assert exit_reason(log) == f"without a message (log: {log})"
