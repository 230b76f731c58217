"""The environment of a run: versions, hardware, the commit and the command."""

import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..system.machine import processor

PACKAGES = ("fssl", "torch", "numpy", "pillow", "pyarrow", "safetensors", "flwr", "ray")

COMMIT = re.compile(r"([0-9a-f]{7})[0-9a-f]*(\+?)")  # seven digits mark a commit
UNKNOWN_COMMIT = "unknown"
SECRET = re.compile(r"(?i)(?:token|password|passwd|secret|api[-_]?key|credentials?)$")  # the end of an option's name
IN_ADDRESS = re.compile(r"(?<=//)[^/@\s]+(?=@)")  # a user's name and password


def environment(device: Mapping[str, Any]) -> dict[str, Any]:
    """Return versions, hardware, commit and command; `device` is what `core.device.device_facts` returns."""
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "packages": {name: installed_version(name) for name in PACKAGES},
        "device": device["device"],
        "cuda": device["cuda"],
        "processor": processor(),
        "threads": device["threads"],
        "start": device.get("start", {}),  # seconds by part, of a run that compiles
        "traffic": device.get("traffic", {}),  # bytes that a client receives and sends in a round
        "revision": git_revision(),
        "command": masked_arguments(),
    }


def masked_arguments() -> str:
    """Return the words after this command's name, with `***` for anything that looks like a password or a token."""
    words, hide = [], False
    for word in sys.argv[1:]:
        name, equals, _ = word.partition("=")
        is_secret = SECRET.search(name) is not None
        words.append("***" if hide else f"{name}=***" if is_secret and equals else IN_ADDRESS.sub("***", word))
        hide = is_secret and not equals and word.startswith("-")
    return shlex.join(words)


@cache
def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def short_commit(revision: object) -> str:
    """Return `3e18041` for a recorded revision, with its '+'; UNKNOWN_COMMIT if it is damaged or missing."""
    known = COMMIT.fullmatch(revision) if isinstance(revision, str) else None
    return known[1] + known[2] if known else UNKNOWN_COMMIT


@cache
def git_revision() -> str | None:
    """Return the commit of this package's source tree, with '+' if files differ from it; None if it is installed."""
    here = Path(__file__).parent
    try:
        git(here, "ls-files", "--error-unmatch", Path(__file__).name)  # otherwise the repository around it is another's
        commit = git(here, "rev-parse", "HEAD")
        return commit + ("+" if git(here, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def git(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=10
    ).stdout.strip()
