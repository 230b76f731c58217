"""Processes of a pool end with the one that they work for, even if that is killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import fssl

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(fssl.__file__).parents[1])}
POOLS = {
    "forked": """
import time
from fssl.workers import forked
with forked(2) as pool:
    list(pool.map(time.sleep, [600, 600]))
""",
    "spawned": """
import time
from fssl.workers import spawned
if __name__ == "__main__":
    with spawned() as pool:
        pool.submit(time.sleep, 600).result()
""",
    "reading records": """
import os
from pathlib import Path
from fssl.report.page.reading import MANY, read_all
folders = [Path(str(number)) for number in range(MANY)]
for folder in folders:
    folder.mkdir()
    os.mkfifo(folder / "rounds.jsonl")  # who opens it to read waits for a writer
read_all(folders, 2)
""",
}


def children(parent: int) -> set[int]:
    """Processes that a process started, as Linux tells."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            rest = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(rest[1]) == parent:
            found.add(int(stat.parent.name))
    return found


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes as Linux lists them")
@pytest.mark.parametrize("kind", POOLS)
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
