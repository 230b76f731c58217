"""The local engine: this machine's CPU, or its GPUs."""

from pathlib import Path

from ..core.federation import Federation
from .devices import Spread
from .engine import Engine
from .forked_lanes import ForkedLanes, forks
from .lanes import Lanes, compiles, set_up_torch
from .server_training import own_training


class LocalEngine(Engine):
    """Rounds on this machine's CPU, or on one or several GPUs."""

    fleet: Lanes | Spread

    def __init__(self, federation: Federation, folder: Path | None = None, debug: bool = False) -> None:
        set_up_torch(federation)
        own = own_training(federation, debug)
        super().__init__(federation, fleet(federation, debug), compiles(federation, debug), own=own)
        self.folder = folder


def fleet(federation: Federation, debug: bool) -> Lanes | Spread:
    """Return lanes on one device or several; on a CPU they are processes or threads."""
    if len(federation.devices) > 1:
        return Spread(federation, debug)
    return (ForkedLanes if forks(federation, debug) else Lanes)(federation, debug)
