"""Train one experiment: take rounds from the engine, and write lines, checkpoints and a summary to the folder."""

import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from ..config import Config
from ..core.device import choose_device, device_facts, forget_peaks
from ..core.experiment import Experiment
from ..core.federation import Federation
from ..core.privacy import privacy_notes
from ..engines.engine import Engine, MakeEngine
from ..engines.failure import SAVED, ClientError
from ..engines.lanes import compiles
from ..engines.local import LocalEngine
from ..engines.named_tensors import to
from ..engines.snapshot import Snapshot, restore
from ..engines.stopwatch import begin_run, start_seconds
from ..errors import RunError, UserError, error_text, is_out_of_memory
from ..records.checkpoint import Saved
from ..records.layout import SPLIT
from ..records.rounds import Line
from ..records.sealing import write_facts
from ..records.start_checks import is_bare
from ..records.store import ERRORS, SKIPPED, RunFolder
from ..records.writer import RunWriter
from ..system.files import write_atomic
from ..system.user_code import user_place
from .checks import flower_simulation
from .costs import recorded_cost, traffic
from .loggers import Listener, Logged
from .record import Choice, Measure, record, save_state, write_result

COMPILED_AFTER = 1  # round, in which steps and tests are compiled
COMPILING = "compiling the training step: a minute or more; the next run of this shape starts faster"


def run_experiment(
    experiment: Experiment,
    out: Path,
    listener: Listener,
    resume: bool = False,
    debug: bool = False,
    make: MakeEngine | None = None,
    measure: Measure | None = None,
) -> Line:
    """Train or resume an experiment in a folder; return its summary.

    Args:
        experiment: The experiment to run.
        out: The run folder.
        listener: Gets a call for every round.
        resume: Whether to continue after the newest checkpoint.
        debug: Whether to check each step.
        make: Makes the engine after the folder is locked; by default the engine that the settings name.
        measure: Returns further metrics of the model after each round.
    """
    config, folder = experiment.config, RunFolder(out)
    if make is None and folder.deployment_file.is_file():
        raise UserError(f"{out} is a deployment's run, whose sites keep the clients' states; use `fssl deploy start`")
    if make is None and config.compute.engine == "flower":
        again = partial(run_experiment, experiment, out, listener, resume, debug, measure=measure)
        summary: Line = flower_simulation()(experiment.config_here, out / "flower.log", again)
        return summary
    if resume and folder.config_file.is_file():
        experiment.ask_again(folder.config())
    make = make or partial(local_engine, listener, out, debug)
    begin_run()
    with closing(folder.lock), explained(config, folder), closing(Logged(listener, config, out)) as logged:
        writer = RunWriter(folder)
        federation, saved = opened(experiment, writer, resume, logged)
        forget_peaks(federation.devices)
        with closing(make(federation)) as engine:
            if resume:
                engine.snapshot = resumed(saved, writer, engine, logged)
            choice = Choice(config, folder.rounds(), saved.parts if saved else {})
            if engine.snapshot.round == 0:
                save_state(writer, engine, choice)
            sizes = traffic(experiment, federation.counts(0))._asdict()
            facts = {**device_facts(federation.device), "start": start_seconds(), "traffic": sizes}
            writer.write_env(facts, engine.snapshot.round)
            named = {"names": federation.dataset.site_names} if federation.dataset.site_names else {}
            write_facts(folder.partition_file, {**federation.holdings.facts(), **named})
            logged.started(config, folder.rounds())
            while engine.snapshot.round < config.rounds and not choice.progress.is_over:
                logged.round(record(writer, engine, engine.round(config.rounds), choice, measure))
                if shows_time(engine) and not resume:
                    for text in recorded_cost(config, folder.rounds()[-1:]):
                        logged.say(text)
            summary = write_result(writer, engine, choice)
            for name in (ERRORS, SAVED):  # of an earlier start, whose error did not recur
                (out / name).unlink(missing_ok=True)
            return summary


def shows_time(engine: Engine) -> bool:
    """Return whether a GPU has finished its first round at full speed; its time cannot be estimated earlier."""
    return engine.device.type == "cuda" and engine.snapshot.round == COMPILED_AFTER + 1


def local_engine(listener: Listener, out: Path, debug: bool, federation: Federation) -> Engine:
    """Return this machine's engine; if steps are compiled, say so before building it."""
    if compiles(federation, debug):
        listener.say(COMPILING)
    return LocalEngine(federation, out, debug)


def opened(
    experiment: Experiment, writer: RunWriter, resume: bool, listener: Listener
) -> tuple[Federation, Saved | None]:
    """Lock the folder, write a new run's first files, and return the federation and the state to resume from."""
    dataset = experiment.dataset
    config, notes = experiment.config, experiment.notes  # computed first: a rejected new run leaves no folder
    if not resume or is_bare(writer.folder):
        notes = [*experiment.start.notes, *notes]
    writer.open(config, resume, experiment.defaults, experiment.reads_rounds)
    saved = writer.resume_point(listener.say) if resume else None
    for text in [*notes, *privacy_notes(config)]:
        listener.say(text)
    for file in config.own_files:
        writer.keep(file)
    if config.partition.file is not None:
        writer.keep(Path(config.partition.file), SPLIT)  # its own name may collide with a file of the run
    if dataset.skipped:
        write_atomic(writer.folder.path / SKIPPED, "".join(f"{line}\n" for line in dataset.skipped))
    return Federation(experiment, begins=saved is None), saved


@contextmanager
def explained(config: Config, folder: RunFolder) -> Iterator[None]:
    """Turn an error into a one-line message, and write the traceback of an unexpected one into the folder.

    The traceback is written only if this process holds the folder's lock.
    """
    out = folder.path
    try:
        yield
    except ClientError as error:
        raise ClientError(write_down(str(error), error, config, out)) from error
    except (UserError, RunError):
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"{out}: {reason}; finished rounds are kept; resume the run to continue", "resume") from error
    except Exception as error:
        if is_out_of_memory(error):
            raise RunError(
                f"{out}: not enough memory on {choose_device(config).type}; fewer compute.lanes need less; then resume"
                " the run (another train.batch needs a new run)",
                "resume",
            ) from error
        if not folder.lock.is_held:  # the folder may belong to another run
            raise
        raise RunError(write_down(error_text(error), error, config, out)) from error


def write_down(reason: str, error: Exception, config: Config, out: Path) -> str:
    """Write an error's traceback into the run folder; return the reason with the names of the files."""
    text = "".join(traceback.format_exception(error))
    (out / ERRORS).write_text(text, "utf-8", "backslashreplace")  # a name in it may be in any encoding
    place = user_place(error, config.own_files)
    return f"{reason} ({f'{place}; ' if place else ''}traceback: {out / ERRORS})"


def resumed(saved: Saved | None, writer: RunWriter, engine: Engine, listener: Listener) -> Snapshot:
    """Return the state after the last round that a checkpoint covers, or the initial state."""
    snapshot = engine.snapshot
    if saved is not None:
        snapshot = restore(snapshot, saved._replace(tensors=to(saved.tensors, engine.device)))
        listener.say(f"resuming {writer.folder.path} after round {saved.round}")
        before, now = writer.folder.config().train.cooldown, engine.federation.config.train.cooldown
        if before != now:
            listener.say(f"train.cooldown is {now} from here on; it was {before}")
    writer.renew(engine.federation.experiment.config)  # last: a rejected run leaves the record unchanged
    return snapshot
