"""One run from an experiment to its summary: rounds from the engine, lines and checkpoints to the folder."""

import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from ..config import Config
from ..core.device import choose_device, device_facts
from ..core.experiment import Experiment
from ..core.federation import Federation
from ..core.privacy import privacy_notes
from ..engines.engine import Engine, MakeEngine
from ..engines.failure import SAVED, ClientError
from ..engines.lanes import compiles
from ..engines.local import LocalEngine
from ..engines.snapshot import Snapshot, restore
from ..engines.tensors import to
from ..errors import RunError, UserError, described, is_out_of_memory
from ..records.checkpoint import Saved
from ..records.layout import SPLIT
from ..records.rounds import Line
from ..records.store import ERRORS, RunFolder
from ..system.user_code import user_place
from .checks import flower_simulation
from .loggers import Listener, Logged
from .record import Choice, record, save_state, write_result

COMPILING = "compiling the training step: a minute or more; the next run of this shape starts faster"


def run_experiment(
    experiment: Experiment, out: Path, listener: Listener, resume: bool = False, debug: bool = False
) -> Line:
    """Run or resume an experiment in a folder, on the engine that its settings name; returns its summary."""
    config = experiment.config_here
    if RunFolder(out).deployment_file.is_file():
        raise UserError(f"{out} is a deployment's run, its clients' states are at the sites: use `fssl deploy start`")
    if config.compute.engine == "flower":
        simulate = flower_simulation()
        summary: Line = simulate(config, out / "flower.log", partial(conduct, experiment, out, listener, resume))
        return summary

    def local_engine(federation: Federation) -> Engine:
        if compiles(federation, debug):
            listener.say(COMPILING)
        return LocalEngine(federation, out, debug)

    return conduct(experiment, out, listener, resume, local_engine)


def conduct(experiment: Experiment, out: Path, listener: Listener, resume: bool, make: MakeEngine) -> Line:
    """Train an experiment to its last round. The engine is made after the folder is locked."""
    config, folder = experiment.config, RunFolder(out)
    with closing(folder.lock), explained(config, folder), closing(Logged(listener, config, out)) as logged:
        federation, saved = opened(experiment, folder, resume, logged)
        with closing(make(federation)) as engine:
            if resume:
                engine.snapshot = resumed(saved, folder, engine, logged)
            choice = Choice(config, folder.rounds(), saved.parts if saved else {})
            if engine.snapshot.round == 0:
                save_state(folder, engine, choice)
            folder.write_env(device_facts(federation.device), engine.snapshot.round)
            folder.write_partition(federation.labeled_counts, federation.unlabeled_counts, federation.server_counts)
            logged.started(config, folder.rounds())
            while engine.snapshot.round < config.rounds and not choice.progress.is_over:
                logged.round(record(folder, engine, engine.round(config.rounds), choice))
            summary = write_result(folder, engine, choice)
            for name in (ERRORS, SAVED):  # of an earlier start; this one got past it
                (out / name).unlink(missing_ok=True)
            return summary


def opened(
    experiment: Experiment, folder: RunFolder, resume: bool, listener: Listener
) -> tuple[Federation, Saved | None]:
    """The federation, with its folder locked and the files in it that a run begins with; and where to resume."""
    config, federation = experiment.config, Federation(experiment)
    is_new = not resume or folder.is_bare
    notes = experiment.first_weights().notes if is_new else []  # refused before the folder is made
    folder.open(config, resume, experiment.defaults, experiment.reads_rounds)
    saved = folder.resume_point(listener.say) if resume else None
    federation.begins = saved is None
    for text in [*notes, *federation.notes, *privacy_notes(config)]:
        listener.say(text)
    for file in config.own_files:
        folder.keep(file)
    if config.partition.file is not None:
        folder.keep(Path(config.partition.file), SPLIT)  # its own name may be one that a run writes
    if federation.dataset.skipped:
        folder.write_skipped(federation.dataset.skipped)
    return federation, saved


@contextmanager
def explained(config: Config, folder: RunFolder) -> Iterator[None]:
    """Turn what ends a run into one line; what nobody foresaw goes into a file of its folder, once that is its own."""
    out = folder.path
    try:
        yield
    except ClientError as error:
        raise ClientError(write_down(str(error), error, config, out)) from error
    except (UserError, RunError):
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"{out}: {reason}; finished rounds are kept; resume the run to go on", "resume") from error
    except Exception as error:
        if is_out_of_memory(error):
            raise RunError(
                f"{out}: not enough memory on {choose_device(config).type}; fewer compute.lanes need less; then resume"
                " the run (with another train.batch it is another run)",
                "resume",
            ) from error
        if not folder.lock.is_held:  # it may be somebody's, or another run's
            raise
        raise RunError(write_down(described(error), error, config, out)) from error


def write_down(reason: str, error: Exception, config: Config, out: Path) -> str:
    """Write an error's traceback into the run folder; returns the reason with the places to look."""
    text = "".join(traceback.format_exception(error))
    (out / ERRORS).write_text(text, "utf-8", "backslashreplace")  # a name in it may be in any encoding
    place = user_place(error, config.own_files)
    return f"{reason} ({f'{place}; ' if place else ''}all of it: {out / ERRORS})"


def resumed(saved: Saved | None, folder: RunFolder, engine: Engine, listener: Listener) -> Snapshot:
    """The state after the last round that a checkpoint vouches for, or the beginning."""
    snapshot = engine.snapshot
    if saved is not None:
        snapshot = restore(snapshot, saved._replace(tensors=to(saved.tensors, engine.device)))
        listener.say(f"resuming {folder.path} after round {saved.round}")
        before, now = folder.config().train.cooldown, engine.federation.config.train.cooldown
        if before != now:
            listener.say(f"train.cooldown is {now} from here on; it was {before}")
    folder.renew(engine.federation.experiment.config)  # last: a refused run leaves the record as it is
    return snapshot
