"""The local engine: this machine's CPU or one GPU."""

from pathlib import Path

from ..core.federation import Federation
from .engine import Engine
from .lanes import Lanes, compiles, set_up_torch
from .processes import ForkedLanes, forks


class LocalEngine(Engine):
    """Rounds on this machine's CPU or one GPU."""

    fleet: Lanes

    def __init__(self, federation: Federation, folder: Path | None = None, debug: bool = False) -> None:
        set_up_torch(federation)
        lanes = ForkedLanes if forks(federation, debug) else Lanes
        super().__init__(federation, lanes(federation, folder, debug), compiles(federation, debug))
