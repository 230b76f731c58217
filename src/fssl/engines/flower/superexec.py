"""What starts apps beside a SuperLink or SuperNode, with a secret to show.

A SuperExec that Flower starts by itself has none: whoever reached the port, any user of the machine, could take its
tasks, and so act as the server of a run or answer for a site.
"""

import os
import secrets
import subprocess
from pathlib import Path

from ...system.files import write_atomic

SECRET = "superexec"  # file; its owner's only, another at every start


def start_superexec(folder: Path, address: str, root: str | None) -> None:
    """Start it for a program at this address, which this process is about to be; it ends with this process."""
    write_atomic(folder / SECRET, secrets.token_bytes(32), mode=0o600)
    where = ["--root-certificates", root] if root else ["--insecure"]
    words = ["flower-superexec", *where, "--runtime-api-address", address, "--parent-pid", str(os.getpid())]
    subprocess.Popen([*words, *with_secret(folder)])


def isolated(folder: Path) -> list[str]:
    """Options of the program itself: it starts none of its own, and asks ours for the secret."""
    return ["--isolation", "process", *with_secret(folder)]


def with_secret(folder: Path) -> list[str]:
    return ["--superexec-auth-secret-file", str(folder / SECRET)]
