"""Sites and their server: keys are admitted under names, and a site waits until its own is."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from ..engines.flower.internals import CONNECTED, REFUSED
from ..errors import RunError
from ..system.files import read_json, write_atomic
from .home import ServerPart, SitePart
from .programs import CONNECTION, background_program, flwr, last_words, nodes, require_file, wait_for

NODES = "nodes.json"  # which number Flower gave each site
ADMISSION, PAUSE = 600, 10  # seconds in which a site that is refused tries again, and between two times


def admit(part: ServerPart) -> list[str]:
    """Register the public keys that are not known yet, under their sites' names."""
    file, there = part.folder / NODES, nodes(part)
    ids = {name: number for name, number in read_json(file).items() if number in there}
    for name in part.sites:
        if name not in ids:
            public = require_file(part.keys / f"{name}.pub")
            ids[name] = str(flwr(part, "supernode", "register", str(public), CONNECTION, "--name", name)["node-id"])
            write_atomic(file, json.dumps(ids) + "\n")
    return list(part.sites)


def attend(part: SitePart, words: list[str], log: Path, say: Callable[[str], None]) -> None:
    """Run a site's SuperNode; restart it for a while if the server has not admitted its key yet."""
    until, told = time.monotonic() + ADMISSION, False
    while True:
        with background_program(words, part.folder, log) as process:
            if not wait_for(CONNECTED, process, log, 20) and process.poll() is None:
                say(f"{part.name}: no answer from {part.server} yet; it goes on trying")
            if wait_for(CONNECTED, process, log):
                say(f"{part.name}: connected")
            process.wait()
        reason = last_words(log)
        if REFUSED not in reason or time.monotonic() > until:
            raise RunError(f"{part.name} ended: {reason}")
        if not told:
            told = True
            say(f"{part.name}: the server has not admitted this key; trying again for {ADMISSION // 60} minutes")
        time.sleep(PAUSE)
