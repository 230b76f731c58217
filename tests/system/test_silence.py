"""Nothing phones home: the kernel is asked which names our commands look up, and which machines they call.

docs/SECURITY.md names these commands. Each runs under strace, in a network namespace of its own where that is allowed.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from helpers.command import ENVIRONMENT
from helpers.network import can_trace, fssl_words, goes_abroad, traced, unsilenced

TINY = ("--set", "train.rounds=1", "--set", "train.steps_per_round=2", "--set", "compute.device=cpu")
LOGGED = ("--set", "records.tensorboard=true", "--set", "records.wandb=offline")
IMPORTS = "import fssl, fastapi, uvicorn, huggingface_hub, hf_xet, pydicom, plotly, matplotlib.pyplot, torch, ray, flwr"
COMMANDS = {
    "run, logged": fssl_words("run", "smoke", "--out", "logged", *TINY, *LOGGED),
    "run on Flower": fssl_words("run", "smoke", "--out", "ray", "--set", "compute.engine=flower", *TINY),
    "export to ONNX": fssl_words("export", "runs/smoke", "--to", "onnx", "--out", "smoke.onnx"),
    "predict": fssl_words("predict", "runs/smoke", "sites/test"),
    "report": fssl_words("report", "runs", "--out", "report.html"),
    "figures": fssl_words("figures", "runs"),
    "compare": fssl_words("compare", "runs"),
    "bench": fssl_words("bench", "--method", "sage", "--rounds", "2", "--set", "compute.device=cpu"),
    "imports": [sys.executable, "-c", IMPORTS],
}
traces = pytest.mark.skipif(not can_trace(), reason="strace is not installed, or may not trace: no other way to look")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, and images."""
    folder = tmp_path_factory.mktemp("silence")
    for words in (("run", "smoke", *TINY), ("datasets", "--export-digits", "sites")):
        subprocess.run(fssl_words(*words), cwd=folder, env=ENVIRONMENT, check=True, capture_output=True)
    return folder


@pytest.mark.slow
@traces
@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_looks_up_a_name_or_calls_another_machine(folder: Path, name: str) -> None:
    cache = {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": ENVIRONMENT["PYTHONPATH"]}
    heard = traced(COMMANDS[name], folder, env=unsilenced() | cache)
    assert heard.code == 0, heard.said
    assert heard.abroad == []
    assert heard.open_doors == []


@pytest.mark.slow
@traces
def test_what_is_looked_for_would_be_found(tmp_path: Path) -> None:
    """A look-up, a call, and a door to all machines."""
    noisy = (
        "import socket; s = socket.create_server(('0.0.0.0', 0)); "
        "u = socket.socket(type=socket.SOCK_DGRAM); u.connect_ex(('192.0.2.1', 9)); "
        "n = socket.socket(type=socket.SOCK_DGRAM); n.connect_ex(('127.0.0.1', 53))"
    )
    heard = traced([sys.executable, "-c", noisy], tmp_path)
    assert (len(heard.abroad), len(heard.open_doors)) == (2, 1)


@pytest.mark.parametrize(
    ("line", "is_abroad"),
    [
        (
            '7 connect(3<TCP:[1]>, {sa_family=AF_INET, sin_port=htons(443), sin_addr=inet_addr("192.0.2.1")}, 16) = 0',
            True,
        ),
        (
            '7 connect(3<UDP:[1]>, {sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr("127.0.0.53")}, 16) = 0',
            True,
        ),
        (
            '7 connect(3<TCP:[1]>, {sa_family=AF_INET, sin_port=htons(80), sin_addr=inet_addr("127.0.0.1")}, 16) = 0',
            False,
        ),
        (
            "7 connect(3<TCPv6:[1]>, {sa_family=AF_INET6, sin6_port=htons(80), sin6_flowinfo=htonl(0), "
            'inet_pton(AF_INET6, "::ffff:127.0.0.1", &sin6_addr), sin6_scope_id=0}, 28) = 0',
            False,
        ),
        ('7 connect(3<UNIX-STREAM:[1]>, {sa_family=AF_UNIX, sun_path="/run/systemd/resolve/io"}, 9) = 0', True),
        ('7 connect(3<UNIX-STREAM:[1]>, {sa_family=AF_UNIX, sun_path="/var/run/nscd/socket"}, 9) = -1 ENOENT', False),
        ('7 connect(3<UNIX-STREAM:[1]>, {sa_family=AF_UNIX, sun_path="/tmp/wandb/socket"}, 9) = 0', False),
    ],
)
def test_lines_of_a_trace(line: str, is_abroad: bool) -> None:
    assert goes_abroad(line) == is_abroad


def test_programs_of_this_machine_are_not_asked_through_a_proxy() -> None:
    """Also in a child of a child; what was excluded stays excluded."""
    inner = "import fssl, os; print(os.environ['NO_PROXY'])"
    outer = f"import fssl, subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    for given, expected in (("", "localhost,127.0.0.1,::1"), ("intern", "intern,localhost,127.0.0.1,::1")):
        env = {**ENVIRONMENT, "NO_PROXY": given}
        said = subprocess.run([sys.executable, "-c", outer], env=env, capture_output=True, text=True, check=True)
        assert said.stdout.strip() == expected
