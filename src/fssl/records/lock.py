"""The lock of a run folder: one process writes there at a time."""

import fcntl
from pathlib import Path
from typing import IO

from ..errors import UserError

LOCK = ".lock"


class Lock:
    """A file that the process which writes into a folder holds.

    It is there from a run's first moment on, so a folder without it is not ours. It stays: removing it would let a
    third process lock a new one beside it.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / LOCK
        self._held: IO[str] | None = None

    @property
    def is_held(self) -> bool:
        """Whether it was taken here, and not given back yet."""
        return self._held is not None

    @property
    def is_in_use(self) -> bool:
        """Whether another process writes here."""
        if not self.file.is_file():
            return False
        with self.file.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def take(self) -> None:
        """Keep other processes out until `close`; refused while another one is at it."""
        file = self.file.open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise UserError(f"{self.file.parent} is in use by another process") from None
        self._held = file

    def close(self) -> None:
        """Give it back, if it was taken."""
        if self._held:
            self._held.close()
            self._held = None
