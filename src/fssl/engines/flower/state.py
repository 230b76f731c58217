"""What a client keeps at its site: one checksummed file per round, as far back as the server may have to go.

The server knows each client's last round that counted, keeps that in its checkpoints, and says it with every job. So a
state of a round that was given up (the server went back, the upload came too late or was refused) is never used.
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
        """The state after its last round that counted: a server that goes back finds its clients as they were."""
        files = self._files()
        if not counted or not files:  # it is new, keeps nothing, or was let start anew
            return None
        data = next((read_intact(file, checksum_in(file)) for file in files if round_of(file) == counted), None)
        if data is None:
            where = self.folder.relative_to(self.site)  # the server is told, and need not know the site's disk
            damaged = f"its state after round {counted} is damaged or gone"
            raise SiteError(f"{damaged}; remove {where} in the site's folder to let it start anew")
        return load(data)

    def keep(self, round: int, state: State, counted: int, resumable: int) -> None:
        """Write this round's; what did not count goes, and so does what no resumed server can ask for."""
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
