"""The app that a server ships with a run: Flower requires one, and sites do not use it.

A site runs its installed fssl. It builds the same app itself and rejects a run that ships another one,
before anything of it is unpacked.
"""

from functools import cache
from hashlib import sha256
from pathlib import Path

from ... import __version__
from ...config import toml_text
from .internals import ForeignAppError, packed_app

PACKAGE = Path(__file__).parents[2]
PROJECT = """# A Flower app whose code is the installed package fssl: `flwr run` starts it as well.
[project]
name = "fsslapp"
version = "{version}"
description = "Federated semi-supervised learning with fssl"
license = "Apache-2.0"
dependencies = ["flwr>=1.41,<1.42"]

[tool.flwr.app]
publisher = "fssl"

[tool.flwr.app.components]
serverapp = "fsslapp.server_app:app"
clientapp = "fsslapp.client_app:app"

[tool.flwr.app.config]
config = "smoke"     # a preset, or the absolute path of a TOML file
settings = ""        # as after --set, one per line
out = {out}
command = ""
resume = false
log = ""
sites = ""
insecure = false
test = ""
quorum = 2
wait = 600
answer = 3600
most = 0
trail = ""
"""
MODULE = (
    '"""The installed package does the work, with code {digest}."""\n\nfrom {module} import app\n\n__all__ = ["app"]\n'
)


def app_files(out: str = "") -> dict[str, str]:
    """Return the app's files by name; `out` is the run folder if an order names none."""
    digest = code_digest()
    return {
        "pyproject.toml": PROJECT.format(version=__version__, out=toml_text(out)),
        "fsslapp/__init__.py": '"""fssl as a Flower app."""\n',
        "fsslapp/server_app.py": MODULE.format(module="fssl.deploy.server_app", digest=digest),
        "fsslapp/client_app.py": MODULE.format(module="fssl.engines.flower.client_app", digest=digest),
    }


@cache
def code_digest() -> str:
    """Return the SHA-256 of this package's Python files, to distinguish different code of the same version."""
    total = sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        content = path.read_bytes()
        total.update(f"{path.relative_to(PACKAGE).as_posix()} {len(content)}\n".encode() + content)
    return total.hexdigest()


@cache
def app_digest() -> str:
    """Return the SHA-256 of the app as Flower packs it; files are stored uncompressed, so all machines agree."""
    return sha256(packed_app(app_files())).hexdigest()


def check_app(digest: str, version: str) -> None:
    """Raise ForeignAppError if a server's app, with the version it states, is not the one built here."""
    if digest == app_digest():
        return
    said = "".join(filter(str.isprintable, version))[:40]
    there = f"this site has fssl {__version__}, code {code_digest()[:12]}"
    why = (
        f"the server runs fssl {said}; install the same version of fssl and Flower at the server and at every site"
        if said not in ("", __version__)
        else "the server ships other code, or its fssl differs; install the same source and Flower version everywhere"
    )
    raise ForeignAppError(f"rejected the server's app {digest[:12]}, without running it: {there}; {why}")
