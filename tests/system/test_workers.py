"""Processes of a pool end with the one that they work for, even if that is killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.command import ENVIRONMENT
from helpers.processes import children, is_alive

POOLS = {
    "forked": """
import time
from fssl.system.workers import forked
with forked(2) as pool:
    list(pool.map(time.sleep, [600, 600]))
""",
    "spawned": """
import time
from fssl.system.workers import spawned
if __name__ == "__main__":
    with spawned() as pool:
        pool.submit(time.sleep, 600).result()
""",
    "reading records": """
import time
from pathlib import Path
from fssl.reports import runs
folders = [Path(str(number)) for number in range(runs.MANY_FOLDERS)]
for folder in folders:
    folder.mkdir()
    (folder / "rounds.jsonl").write_text("{}")
    (folder / "config.toml").write_text("seed = 7")
runs.whole_lines = lambda *_: time.sleep(600)
runs.find_runs(folders, processes=2)
""",
}


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes as Linux lists them")
@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.slow
def test_no_process_outlives_a_killed_parent(kind: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(POOLS[kind])
    started: set[int] = set()
    with subprocess.Popen([sys.executable, script], cwd=tmp_path, env=ENVIRONMENT) as parent:
        try:
            wait_until(lambda: len(children(parent.pid)) >= 2)  # spawning starts a resource tracker as well
            time.sleep(1)  # until their first line
            started = children(parent.pid)
            parent.kill()
            wait_until(lambda: not any(map(is_alive, started)))
        finally:
            parent.kill()
            for process in filter(is_alive, started):
                os.kill(process, signal.SIGKILL)
