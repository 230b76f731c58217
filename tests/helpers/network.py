"""Which addresses a command and all that it starts look up, call and listen on, as the kernel sees it."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from shutil import which
from typing import NamedTuple

CALLS = "connect,sendto,sendmsg,sendmmsg,listen"
TRACE = ("strace", "-f", "-qq", "-yy", "--seccomp-bpf", "-e", f"trace={CALLS}", "-e", "signal=none", "-o")
ADDRESS = re.compile(
    r'sin6?_port=htons\((?P<port>\d+)\).*?(?:inet_addr\("(?P<v4>[^"]+)"\)|inet_pton\(AF_INET6, "(?P<v6>[^"]+)")'
)
LISTENS = re.compile(r"^\d+ +listen\(\d+<TCP(?:v6)?:\[(?P<host>.*):(?P<port>\d+)\]>")
RESOLVER = re.compile(r'^\d+ +connect\(.*sun_path="[^"]*(?:resolve|nscd)[^"]*".* = 0$')
NETWORK_OF_ITS_OWN = ("unshare", "--map-root-user", "--net")  # with nothing but a loopback device, which is down
LOOPBACK_UP = """
import fcntl, os, socket, struct, sys
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 0x41))
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Heard(NamedTuple):
    """What a traced command did, each with the line of the trace."""

    code: int
    said: str
    abroad: list[str]  # look-ups, and packets to other machines
    open_doors: list[str]  # sockets that listen on more than the loopback device


def traced(words: Sequence[str], folder: Path, **options: object) -> Heard:
    """Run a command, in a network of its own where the kernel allows that."""
    trace = folder / "trace.txt"
    alone = (*NETWORK_OF_ITS_OWN, sys.executable, "-c", LOOPBACK_UP) if has_namespaces() else ()
    done = subprocess.run(
        [*alone, *TRACE, str(trace), *words], cwd=folder, capture_output=True, text=True, timeout=600, **options
    )
    lines = trace.read_text(errors="replace").splitlines()
    doors = [line for line in lines if (door := LISTENS.match(line)) and not is_near(door["host"])]
    return Heard(done.returncode, done.stdout + done.stderr, list(filter(goes_abroad, lines)), doors)


def goes_abroad(line: str) -> bool:
    """Whether a traced call asks for a name or reaches for another machine."""
    if "listen(" in line:
        return False
    found = ADDRESS.search(line)
    if found is None:
        return RESOLVER.match(line) is not None
    return found["port"] == "53" or not is_near(found["v4"] or found["v6"])


def is_near(host: str) -> bool:
    address = ip_address(host.strip("[]"))
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def can_trace() -> bool:
    return (
        which("strace") is not None and subprocess.run(["strace", "-qq", "true"], capture_output=True).returncode == 0
    )


@cache
def has_namespaces() -> bool:
    return (
        which("unshare") is not None
        and not subprocess.run([*NETWORK_OF_ITS_OWN, "true"], capture_output=True).returncode
    )


def fssl_words(*words: str) -> list[str]:
    return [sys.executable, "-m", "fssl", *words]


def unsilenced() -> dict[str, str]:
    """The environment of a user who has switched nothing off."""
    from fssl.system.silence import SWITCHED_OFF

    return {name: value for name, value in os.environ.items() if name not in SWITCHED_OFF}
