"""Train the first rounds of recorded settings again, without a run folder."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from ..core.device import choose_device, device_facts
from ..core.experiment import Experiment
from ..core.federation import Federation
from ..engines.local import LocalEngine
from ..records.environment import environment
from ..records.rounds import Line
from .record import describe


def first_lines(experiment: Experiment, rounds: int) -> Iterator[Line]:
    """Yield the lines that a run of the experiment records for its first rounds."""
    federation = Federation(experiment)
    with closing(LocalEngine(federation)) as engine:
        for result in engine.rounds(rounds):
            yield {**describe(federation, engine.layout, result)[0], "timing": {"seconds": result.seconds}}


def session_here(experiment: Experiment) -> dict[str, Any]:
    """Return what a run of the experiment would record of this machine."""
    return environment(device_facts(choose_device(experiment.config)))
