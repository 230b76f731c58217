"""A server's operator who ships foreign code, for the soak and tests: what a site makes of random apps."""

import hashlib
import random
import zipfile
from collections.abc import Callable
from io import BytesIO
from types import SimpleNamespace
from typing import Any

from flwr.app import Message, RecordDict
from flwr.cli.build import build_fab_from_files
from flwr.supercore.fab import Fab
from flwr.supercore.task_identity import TaskIdentity

from fssl import __version__
from fssl.engines.flower.bundle import app_digest, app_files, check_app, code_digest
from fssl.engines.flower.internals import packed_app, reject_foreign_apps

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # messages want to know who sends them
CLIENT = "fsslapp/client_app.py"
MISCHIEF = "raise SystemExit('foreign code runs')\n"
Files = dict[str, str]


def packed(files: Files) -> Fab:
    content, _ = build_fab_from_files({name: text.encode() for name, text in files.items()})
    return fab(content)


def fab(content: bytes) -> Fab:
    return Fab(hashlib.sha256(content).hexdigest(), content, {})


class Site:
    """Flower's half of a turn, as far as it fetches a run's app; it counts how often it looks into one."""

    def __init__(self) -> None:
        self.looked_into, self.answers, self.rejected = 0, list[Any](), list[str]()
        reject_foreign_apps(self, check_app, self.rejected.append)

    def _pull_and_store_message(self, receive: Any, get_run: Any, get_fab: Any, state: Any, object_store: Any) -> Any:
        message, _ = receive()
        run = get_run(message.metadata.run_id)
        get_fab(run.fab_hash, message.metadata.run_id)
        self.looked_into += 1
        return message.metadata.run_id

    def _insert_message(self, reply: Any, state: Any, object_store: Any) -> None:
        self.answers.append(reply)

    def turn(self, fab: Fab, claimed: str = "", version: str = __version__) -> int:
        order = Message(RecordDict(), dst_node_id=5, message_type="train")
        order.metadata.__dict__["_run_id"] = 9
        run = SimpleNamespace(fab_hash=claimed or fab.hash_str, fab_version=version)
        given: dict[str, Any] = {"receive": lambda: (order, None), "get_run": lambda number: run}
        return int(self._pull_and_store_message(**given, get_fab=lambda *names: fab, state=None, object_store=None))


def changed(files: Files, **texts: str) -> bytes:
    return packed_app({**files, **texts})


def with_bytes(content: bytes, draw: random.Random) -> bytes:
    """Return the app with some bytes changed, cut or added."""
    data = bytearray(content)
    match draw.randrange(3):
        case 0:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        case 1:
            del data[draw.randrange(len(data)) :]
        case 2:
            data += draw.randbytes(draw.randrange(1, 200))
    return bytes(data)


def archive(files: Files, how: int = zipfile.ZIP_STORED, **more: str) -> bytes:
    """Return the app as an ordinary archive, with names that Flower's own packing would not take."""
    with zipfile.ZipFile(out := BytesIO(), "w", how) as packed:
        for name, text in {**files, **more}.items():
            packed.writestr(name, text)
    return out.getvalue()


APPS: dict[str, Callable[[Files, random.Random], bytes]] = {
    "other code": lambda files, draw: changed(files, **{CLIENT: MISCHIEF}),
    "more code": lambda files, draw: changed(files, **{f"fsslapp/m{draw.randrange(99)}.py": MISCHIEF}),
    "code that runs first": lambda files, draw: changed(files, **{"fsslapp/__init__.py": MISCHIEF}),
    "an empty line": lambda files, draw: changed(files, **{CLIENT: files[CLIENT] + "\n"}),
    "changed source": lambda files, draw: packed_app(
        {name: text.replace(code_digest(), draw.randbytes(32).hex()) for name, text in files.items()}
    ),
    "an older version": lambda files, draw: packed_app(
        {name: text.replace(f'version = "{__version__}"', 'version = "0.0.9"') for name, text in files.items()}
    ),
    "a file less": lambda files, draw: packed_app({k: v for k, v in files.items() if k != "fsslapp/__init__.py"}),
    "a setting": lambda files, draw: changed(
        files, **{"pyproject.toml": files["pyproject.toml"].replace("quorum = 2", "quorum = 1")}
    ),
    "changed bytes": lambda files, draw: with_bytes(packed_app(files), draw),
    "a path outside": lambda files, draw: archive(files, **{"../" * draw.randrange(1, 9) + "site.toml": MISCHIEF}),
    "compressed": lambda files, draw: archive(files, zipfile.ZIP_DEFLATED),
    "a bomb": lambda files, draw: archive(files, zipfile.ZIP_DEFLATED, **{"fsslapp/x.py": "#" * 10**7}),
    "garbage": lambda files, draw: draw.randbytes(draw.randrange(3000)),
}
VERSIONS = (__version__, "0.0.9", "99.0", "", "0.0.9\x1b[2J\n" + 100 * "x")


def foreign_app(draw: random.Random) -> str:
    """One run of a hostile operator; returns what is wrong: an app that is looked into, or not named in one line."""
    kind = draw.choice(sorted(APPS))
    app, site = fab(APPS[kind](app_files(), draw)), Site()
    claimed, version = draw.choice(("", app_digest())), draw.choice(VERSIONS)
    try:
        site.turn(app, claimed, version)
    except BaseException as error:
        return f"{kind}: {type(error).__name__}: {error}"
    if site.looked_into or len(site.answers) != 1:
        return f"{kind}: looked into {site.looked_into} times, {len(site.answers)} answers"
    reason = site.answers[0].error.reason
    is_named = reason.startswith(f"rejected the server's app {app.hash_str[:12]}, without running it")
    return "" if is_named and reason.isprintable() and len(reason) < 400 else f"{kind}: {reason!r}"
