"""The state that a client keeps at its site: a checksummed file per round, as far back as the server may resume.

The server stores each client's last round that counted in its checkpoints, and sends it with every job. So the state
of an abandoned round (the server resumed earlier, or the upload was late or rejected) is never used.
"""

import re
from pathlib import Path

from safetensors.torch import load

from ...records.manifests import checksum, read_intact
from ...records.tensors import as_bytes
from ...system.files import write_atomic
from ...types import State
from .messages import SiteError


class SiteState:
    """One client's states in one run, by round. They never leave the site."""

    def __init__(self, site: Path, run: str, client: int) -> None:
        if not re.fullmatch(r"[0-9a-f]{8,64}", run):  # it comes from outside and names a folder
            raise SiteError(f"'{run}' does not name a run")
        self.site, self.folder = site, site / "state" / run / f"client-{client}"

    def after(self, counted: int) -> State | None:
        """Return the state after the last round that counted; a server that resumes earlier finds its older states."""
        files = self._files()
        if not counted or not files:  # it is new, keeps nothing, or was started anew
            return None
        data = next((read_intact(file, checksum_in(file)) for file in files if round_of(file) == counted), None)
        if data is None:
            where = self.folder.relative_to(self.site)  # reported to the server, which need not know the site's disk
            damaged = f"its state after round {counted} is damaged or missing"
            raise SiteError(f"{damaged}; remove {where} in the site's folder to let it start anew")
        return load(data)

    def keep(self, round: int, state: State, counted: int, resumable: int) -> None:
        """Write this round's state; delete those that did not count or that no resumed server can need."""
        if not state:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        files = self._files()
        oldest = max((round_of(file) for file in files if round_of(file) <= min(counted, resumable)), default=0)
        for file in files:
            if not oldest <= round_of(file) <= counted:
                file.unlink()
        data = as_bytes(state)
        write_atomic(self.folder / f"round-{round:06d}.{checksum(data)}.safetensors", data)

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("round-*.safetensors"))


def round_of(file: Path) -> int:
    return int(file.name.split(".")[0].removeprefix("round-"))


def checksum_in(file: Path) -> str:
    return file.name.split(".")[1]
