"""What the command rejects about Flower, in one line and before anything starts; and what clients take of Ray."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fssl.cli import app as cli
from fssl.config import override, parse

Refused = Callable[..., str]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """The one line with which a command is rejected."""

    def line_of(*words: str) -> str:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["fssl", *words])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        assert exit.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line.removeprefix("fssl: ")

    return line_of


NOISY = ("--set", "privacy.clip=1", "--set", "privacy.noise=1")
CASES = {
    (
        "--set",
        "compute.engine=flower",
        "--set",
        "protocol=authors",
    ): "compute.engine = 'flower' does not work with protocol = 'authors': it carries momentum from client to",
    ("--set", "compute.engine=flowr"): "compute.engine 'flowr' is unknown; did you mean 'flower'?",
    (
        "--set",
        "compute.engine=flower",
        "--debug",
    ): "compute.engine = 'flower': only the local engine can check single steps",
    (
        "--set",
        "compute.clients_per_gpu=2",
    ): "compute.clients_per_gpu = 2 has no effect with compute.engine = 'local'; remove it, or use 'flower'",
    (
        "--set",
        "compute.ray_address=auto",
    ): "compute.ray_address = 'auto' has no effect with compute.engine = 'local'; remove it, or use 'flower'",
    (
        "--set",
        "privacy.clip=1",
    ): "privacy.clip = 1 does not work with compute.engine = 'local'; remove it, or use 'flower'",
    (
        "--set",
        "privacy.delta=1e-6",
    ): "privacy.delta = 1e-06 has no effect with privacy.noise = 0; remove it, or give privacy.noise",
    (
        "--set",
        "privacy.noise=1",
    ): "privacy.noise = 1 does not work with privacy.clip unset: noise is a multiple of it; remove it",
    (
        "--set",
        "compute.engine=flower",
        *NOISY,
        "--set",
        "records.checkpoint_every=2",
    ): "records.checkpoint_every = 2 does not work with privacy.noise = 1: a resumed run would",
    (
        "--set",
        "compute.engine=flower",
        *NOISY,
        "--set",
        "server.static_norm=sites",
    ): "server.static_norm = 'sites' does not work with privacy.noise = 1: a resumed run would repeat",
    (
        "--set",
        "privacy.aggregation=secagg+",
    ): "privacy.aggregation = 'secagg+' does not work with compute.engine = 'local'; remove it, or use 'flower'",
    (
        "--set",
        "compute.engine=flower",
        "--set",
        "compute.clients_per_gpu=0",
    ): "compute.clients_per_gpu = 0: expected a number from 1 to 64",
}


@pytest.mark.parametrize("words", CASES)
def test_what_does_not_go_together(words: tuple[str, ...], tmp_path: Path, refused: Refused) -> None:
    line = refused("run", "smoke", "--out", str(tmp_path / "run"), *words)
    assert line.startswith(CASES[words])
    assert not (tmp_path / "run").exists()


def test_flower_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    for name in [name for name in sys.modules if name.startswith("fssl.engines.flower.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.setitem(sys.modules, "ray", None)
    line = refused("run", "smoke", "--set", "compute.engine=flower", "--out", str(tmp_path / "run"))
    assert line.startswith("compute.engine = 'flower' needs packages: pip install 'fssl[flower]'")


def test_a_deployments_run_is_not_resumed_without_its_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["fssl", "run", "smoke", "--set", "train.rounds=1", "--out", str(tmp_path / "run")]
    )
    with pytest.raises(SystemExit):
        cli.main()
    (tmp_path / "run/deployment.json").write_text('{"run": "0123456789abcdef"}')
    words = ("run", "smoke", "--set", "train.rounds=2", "--out", str(tmp_path / "run"), "--resume")
    assert "is a deployment's run, whose sites keep the clients' states" in refused(*words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("start", "smoke"), "server.toml is missing: the server's settings; `fssl deploy init` writes them"),
        (("server",), "server.toml is missing"),
        (("site", "site-1"), "site-1 has no site.toml"),
    ],
)
def test_commands_of_a_deployment_without_one(
    words: tuple[str, ...], expected: str, tmp_path: Path, refused: Refused
) -> None:
    assert expected in refused("deploy", *words, "--home", str(tmp_path))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--set", "partition.clients=4"), "partition.clients = 4, but server.toml names 3 sites"),
        (
            ("--set", "protocol=authors"),
            "does not work with Flower's app: it carries momentum from client to client, which sites cannot",
        ),
        (("--set", "method.name=sagge"), "method 'sagge' is unknown; did you mean 'sage'?"),
        (("--set", "grid.seed=[1,2]"), "expected a single run, but the configuration has a [grid]"),
    ],
)
def test_a_start_that_cannot_work(words: tuple[str, ...], expected: str, tmp_path: Path, refused: Refused) -> None:
    from fssl.deploy.home import init

    init(tmp_path / "home", 3)
    tables = "[partition]\nkind = 'dirichlet'\n[model]\nname = 'cnn'\nwidth = 1\n"
    (tmp_path / "own.toml").write_text(tables)
    home = ("--home", str(tmp_path / "home"), "--out", str(tmp_path / "run"))
    assert expected in refused("deploy", "start", str(tmp_path / "own.toml"), *home, *words)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:ray", "ray://127.0.0.1:1"])
def test_a_cluster_that_is_not_there(address: str, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'fssl[flower]'")
    from fssl.engines.flower.simulation import check_address
    from fssl.errors import UserError

    with pytest.raises(UserError, match=f"compute.ray_address = '{address}': no Ray cluster answers"):
        check_address(address)
    check_address(None)
    check_address("auto")


@pytest.mark.parametrize(
    ("device", "settings", "expected"),
    [
        ("cpu", ["compute.threads=3"], {"num_cpus": 3, "num_gpus": 0}),
        ("cpu", [], {"num_cpus": 1, "num_gpus": 0}),
        (
            "cuda",
            ["compute.engine=flower", "compute.clients_per_gpu=4", "compute.threads=3"],
            {"num_cpus": 1, "num_gpus": 0.25},
        ),
        ("cuda", [], {"num_cpus": 1, "num_gpus": 1}),
    ],
)
def test_what_a_client_takes_of_a_cluster(
    device: str, settings: list[str], expected: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'fssl[flower]'")
    from fssl.engines.flower import simulation

    monkeypatch.setattr(simulation, "choose_device", lambda config: torch.device(device))
    assert simulation.client_resources(parse(override({}, settings))) == expected


def test_what_a_cluster_over_several_machines_opens_is_said_before_it_is_joined(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'fssl[flower]'")
    from fssl.engines.flower import simulation
    from fssl.errors import UserError

    def join(**options: object) -> None:
        raise ConnectionError(f"joined after: {capsys.readouterr().err}")

    monkeypatch.setattr(simulation, "check_address", lambda address: None)
    monkeypatch.setattr(ray, "init", join)
    config = parse({"compute": {"engine": "flower", "ray_address": "HEAD:6379"}})
    said = (
        "joined after: fssl: WARNING: compute.ray_address = 'HEAD:6379': .*runs code for anyone who reaches these ports"
    )
    with pytest.raises(UserError, match=said), simulation.cluster(config, {}, ""):
        pass


def test_files_of_ray_and_flower_have_a_folder_for_the_time_of_a_simulation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'fssl[flower]'")
    from fssl.engines.flower import simulation

    started: list[dict[str, object]] = []
    monkeypatch.setattr(ray, "init", lambda **options: started.append(options))
    monkeypatch.setattr(simulation, "count_actors", lambda resources: 1)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    for own, expected in (("", ""), ("/mine", "/mine")):
        if own:
            monkeypatch.setenv("FLWR_HOME", own)
        else:
            monkeypatch.delenv("FLWR_HOME", raising=False)
        with simulation.left_behind() as folder, simulation.cluster(parse({}), {}, folder):
            assert os.environ["FLWR_HOME"] == (expected or folder)
            assert started.pop()["_temp_dir"] == folder
            Path(folder, "session").mkdir()
        assert os.environ.get("FLWR_HOME", "") == own
        assert [*tmp_path.iterdir()] == []
