"""The local engine: this machine's CPU, or its GPUs."""

from pathlib import Path

from ..core.federation import Federation
from .devices import Spread
from .engine import Engine, RoundResult
from .failure import ClientError, with_saved_step
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

    def round(self, until: int) -> RoundResult:
        """Train one round; save the inputs of a failing step in the folder, if there is one."""
        try:
            return super().round(until)
        except ClientError as error:
            if self.folder is None:
                raise
            # Here and not in a lane: of several that fail at once, the reported one is saved.
            raise with_saved_step(error, self.federation.config, self.folder) from error.__cause__


def fleet(federation: Federation, debug: bool) -> Lanes | Spread:
    """Return lanes on one device or several; on a CPU they are processes or threads."""
    if len(federation.devices) > 1:
        return Spread(federation, debug)
    return (ForkedLanes if forks(federation, debug) else Lanes)(federation, debug)
