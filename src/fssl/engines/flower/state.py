"""What a client keeps at its site: one checksummed file per round, as far back as the server may have to go."""

import re
from pathlib import Path

from safetensors.torch import load

from ...records.atomic import write_atomic
from ...records.tensors import checksum, packed, read_intact
from ...types import State
from .messages import SiteError


class SiteState:
    """One client's states in one run, by round. They never leave the site."""

    def __init__(self, site: Path, run: str, client: int) -> None:
        if not re.fullmatch(r"[0-9a-f]{8,64}", run):  # it comes from outside and names a folder
            raise SiteError(f"'{run}' does not name a run")
        self.site, self.folder = site, site / "state" / run / f"client-{client}"

    def before(self, round: int) -> State | None:
        """The newest state of an earlier round: a server that goes back finds its clients as they were."""
        earlier = [file for file in self._files() if round_of(file) < round]
        if not earlier:
            return None
        data = read_intact(earlier[-1], earlier[-1].name.split(".")[1])
        if data is None:
            damaged = f"its state after round {round_of(earlier[-1])} is damaged"
            where = self.folder.relative_to(self.site)  # the server is told, and need not know the site's disk
            raise SiteError(f"{damaged}; remove {where} in the site's folder to let it start anew")
        return load(data)

    def keep(self, round: int, state: State, resumable: int) -> None:
        """Write this round's; what no resumed server can ask for goes, and so does what lies in its future."""
        if not state:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        data = packed(state)
        path = self.folder / f"round-{round:06d}.{checksum(data)}.safetensors"
        write_atomic(path, data)
        others = [file for file in self._files() if file != path]
        oldest = max((round_of(file) for file in others if round_of(file) <= resumable), default=0)
        for file in others:
            if not oldest <= round_of(file) < round:
                file.unlink()

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("round-*.safetensors"))


def round_of(file: Path) -> int:
    return int(file.name.split(".")[0].removeprefix("round-"))
