"""Starts apps for a SuperLink or SuperNode, with a secret, and clients in a process that stays alive.

A SuperExec that Flower starts has no secret: any user of the machine could connect to the port, take its tasks, and so
act as the server of a run or answer for a site. It also starts a process for every message to a
client, which imports everything and prepares the images of the site again.

    python -m fssl.engines.flower.superexec [options of flower-superexec]
"""

import os
import secrets
import subprocess
import sys
from concurrent.futures import Future, ProcessPoolExecutor, wait
from multiprocessing import active_children
from pathlib import Path

from ...system.files import write_atomic
from ...system.workers import spawned
from .internals import run_client_task, run_superexec

SECRET = "superexec"  # file; readable only by its owner, another at every start
PATIENCE = 10.0  # seconds that a task has for cleanup after its answer, before the next may start


def start_superexec(folder: Path, address: str, root: str | None) -> None:
    """Start a SuperExec for the program at this address, which this process will run next; both end together."""
    write_atomic(folder / SECRET, secrets.token_bytes(32), mode=0o600)
    where = ["--root-certificates", root] if root else ["--insecure"]
    words = [sys.executable, "-m", __name__, *where, "--runtime-api-address", address]
    subprocess.Popen([*words, "--parent-pid", str(os.getpid()), *with_secret(folder)])


def isolated(folder: Path) -> list[str]:
    """Return options for the program itself: it starts no SuperExec, and asks ours for the secret."""
    return ["--isolation", "process", *with_secret(folder)]


def with_secret(folder: Path) -> list[str]:
    return ["--superexec-auth-secret-file", str(folder / SECRET)]


class ClientProcess:
    """A process for a site's tasks, which keeps imported, loaded and compiled objects from one task to the next."""

    _pool: ProcessPoolExecutor | None = None
    _task: Future[None] | None = None

    def launch(self, address: str, token: str) -> None:
        """Run a task in the process; one that hangs, or whose process was killed, does not block the next."""
        if self._task and (wait([self._task], PATIENCE).not_done or self._task.exception()):
            self.close()
        self._pool = self._pool or spawned()
        self._task = self._pool.submit(run_client_task, address, token)

    def close(self) -> None:
        """End the process at once."""
        if self._pool is not None:
            for process in active_children():
                process.kill()
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = self._task = None


def main() -> None:
    client = ClientProcess()
    run_superexec(sys.argv[1:], client.launch, client.close)


if __name__ == "__main__":
    main()
