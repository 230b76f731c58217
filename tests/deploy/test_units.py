"""Unit files, container files, certificates that end soon, and the status for monitoring."""

import datetime
import json
import subprocess
from pathlib import Path
from shutil import which

import pytest

from fssl.deploy.home import init, server_part
from fssl.deploy.units import container_files, escape_path, unit_files
from helpers.command import Fssl


def test_units_are_what_systemd_takes(fssl: Fssl, tmp_path: Path) -> None:
    assert fssl("deploy", "init", "ho me", "--sites", "2", "--systemd").code == 0
    units = sorted((tmp_path / "ho me").glob("*/*.service"))
    assert [unit.name for unit in units] == ["fssl-server.service", "fssl-site-1.service", "fssl-site-2.service"]
    text = units[0].read_text()
    assert f" -m fssl deploy server --home {escape_path(str(tmp_path))}/ho\\x20me/server\n" in text
    for line in ("NoNewPrivileges=yes", "ProtectSystem=strict", "CapabilityBoundingSet=", "UMask=0077"):
        assert f"\n{line}\n" in text
    if which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed, so the units are not verified")
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_site_may_use_a_gpu_and_the_server_no_device(tmp_path: Path) -> None:
    made = init(tmp_path / "home", 1)
    server, site = unit_files(made).values()
    assert "\nPrivateDevices=yes\n" in server
    assert "\n# PrivateDevices=yes" in site


def test_container_files_name_each_part(tmp_path: Path) -> None:
    made = init(tmp_path / "home", 2)
    image, compose = container_files(tmp_path / "home", made).values()
    assert "pip install --no-cache-dir 'fssl[flower]==" in image
    assert [compose.count(f"\n  {part}:\n") for part in ("server", "site-1", "site-2")] == [1, 1, 1]
    assert compose.count("we have not run it") == image.count("we have not run it") == 1


@pytest.mark.parametrize(
    ("days", "says"), [(31, ""), (30, ""), (29, "ends in 29 days"), (0, "ends in 0 days"), (-1, "has ended")]
)
def test_a_certificate_that_ends_soon_is_announced(
    days: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cryptography", reason="cryptography is not installed: pip install 'fssl[flower]'")
    from fssl.deploy import keys

    init(tmp_path / "home", 1)
    server = server_part(tmp_path / "home")
    keys.make_keys(server, tmp_path / "home")
    end = keys.read_certificate(server.keys / "server.pem").not_valid_after_utc
    later = end - datetime.timedelta(days=days, seconds=5 if days >= 0 else 0)

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> "Clock":
            return cls.fromtimestamp(later.timestamp(), tz)

    monkeypatch.setattr(keys.datetime, "datetime", Clock)
    said = keys.expiry_warning(server)
    assert (
        said.startswith(f"the server's certificate {says}, then no site can connect: remove ") if says else said == ""
    )


@pytest.mark.parametrize(
    ("statuses", "warning", "code"),
    [(["online", "online"], "", 0), (["online", "offline"], "", 3), (["online"], "the server's certificate ends", 3)],
)
def test_the_status_for_monitoring(
    statuses: list[str], warning: str, code: int, fssl: Fssl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fssl[flower]'")
    from fssl.deploy import admission, control, keys

    init(tmp_path / "home", len(statuses))
    rows = [admission.AdmittedSite(f"site-{k}", str(k), status, "") for k, status in enumerate(statuses)]
    monkeypatch.setattr(admission, "look", lambda part: (rows, []))
    monkeypatch.setattr(control, "is_insecure", lambda part: False)
    monkeypatch.setattr(control, "flwr", lambda part, *words: {"runs": [{"run-id": "7"}]})
    monkeypatch.setattr(keys, "expiry_warning", lambda part: warning)
    said = fssl("deploy", "status", "--home", "home", "--json")
    assert said.code == code
    found = json.loads(said.out)
    assert [site["status"] for site in found["sites"]] == statuses
    assert (found["warnings"], found["runs"]) == ([warning] if warning else [], [{"run-id": "7"}])
