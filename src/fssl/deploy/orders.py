"""A run of the connected sites: check it, order it at the server, and follow it to its end."""

import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, NamedTuple

from ..config import ENGINE, Config, as_tables, check_fact, override, to_toml
from ..console import result_line, round_text
from ..core.experiment import prepare
from ..core.images import split_for_test
from ..data.folder.listing import list_server, of_all
from ..engines.flower.bundle import app_files, code_digest
from ..engines.flower.internals import has_finished
from ..errors import RunError, UserError, complain
from ..methods.names import check_effect
from ..records.audit import TRAIL, append
from ..records.environment import masked_arguments
from ..records.start_checks import check_can_take
from ..records.store import RunFolder
from ..start import with_absolute_start
from ..system.files import parse_json, write_atomic
from ..system.machine import existing_parent
from ..system.user_code import absolute_name, short_name, user_file
from .control import CONNECTION, check_security, connect, flwr
from .home import ServerPart
from .keys import admitted_sites
from .programs import SUPERLINK_LOG, TailedFile

ROOM = 2**20  # bytes for a run's settings, journal and first lines; the size of its models is not known yet
LEFT_ALONE = "so the run cannot be followed; it continues at the server, and `fssl deploy start --resume` waits for it"


class Wanted(NamedTuple):
    """A run that is requested of a deployment."""

    tables: dict[str, Any]  # its settings, as given
    out: Path
    resume: bool = False
    insecure: bool = False


def start_run(part: ServerPart, wanted: Wanted, say: Callable[[str], None]) -> None:
    """Check a run, order it at the server, follow it to its end and report the outcome."""
    out, insecure = wanted.out, wanted.insecure
    run = check(part, for_sites(wanted.tables, len(part.sites)), out, wanted.resume)
    for text in [*needed_at_sites(run), *unused_labels(run, part.test_images)]:
        say(text)
    check_security(part, insecure)
    await_folder(out, part.wait_seconds, say)
    check_room(out, part.folder / "logs")
    connect(part, insecure)
    order, journal = write_order(part, run, out, wanted.resume, insecure)
    settings = sha256(to_toml(as_tables(run)).encode()).hexdigest()
    facts = {"by": os.getuid(), "out": out.name, "settings": settings, "code": code_digest()}
    append(part.folder / TRAIL, "ordered", **facts, command=masked_arguments(), sites=part.sites)
    number = submit(part, order)
    try:
        say(f"run {number} of {len(part.sites)} sites; folder {out}")
        follow(journal, lambda: run_status(part, number), say)
    except KeyboardInterrupt:
        append(part.folder / TRAIL, "stopped by the operator", out=out.name)
        flwr(part, "stop", number, CONNECTION)
        complain(f"stopped; finished rounds are kept in {out}: the same command with --resume continues")
        raise
    except OSError as error:
        raise RunError(f"{error.filename or 'output'}: {error.strerror or error}, {LEFT_ALONE}") from error
    except SystemExit as error:  # raised by rich if the output is a closed pipe
        raise RunError(f"output: closed, {LEFT_ALONE}") from error
    folder = RunFolder(out)
    if lost := absences(folder.rounds()):
        say(lost)
    say(result_line(out, folder.summary()))


def submit(part: ServerPart, order: Path) -> str:
    """Start the run at the server; return its number. Its app is the one that sites of this version build."""
    with TemporaryDirectory() as folder:
        for name, text in app_files().items():
            file = Path(folder, "fsslapp", name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return str(flwr(part, "run", str(Path(folder, "fsslapp")), CONNECTION, "-c", str(order))["run-id"])


def for_sites(tables: dict[str, Any], sites: int) -> dict[str, Any]:
    """Return the settings with one client per site, all of them in every round unless set otherwise."""
    clients = raw_setting(tables, "partition", "clients")
    per_round = raw_setting(tables, "train", "clients_per_round")
    if clients not in (None, sites):
        raise UserError(f"partition.clients = {clients!r}, but server.toml names {sites} sites; set it to {sites}")
    settings = [f"partition.clients={sites}"]
    if per_round is None or (isinstance(per_round, int) and per_round > sites):
        settings.append(f"train.clients_per_round={sites}")
    return override(tables, settings)


def raw_setting(tables: Mapping[str, Any], section: str, key: str) -> Any:
    """Return the value in the tables, unchecked; None if it is missing."""
    table = tables.get(section)
    return table.get(key) if isinstance(table, Mapping) else None


def check(part: ServerPart, tables: dict[str, Any], out: Path, resume: bool) -> Config:
    """Return the run's settings, after all checks that need no site."""
    from .server_app import parse_run, server_dataset

    config = with_absolute_files(with_absolute_start(parse_run(tables)))
    check_fact(config, ENGINE, "deployment", "a deployment")
    dataset = server_dataset(config, part.test_images, len(part.sites)) if config.data.name == "folder" else None
    experiment = prepare(config, dataset)
    check_effect([(config, experiment.method)])
    if dataset:
        split_for_test(config, dataset)
    check_can_take(RunFolder(out), experiment.config, resume, experiment.defaults, experiment.reads_rounds)
    return config


def with_absolute_files(config: Config) -> Config:
    """Return the settings for a process in another folder; sites look for files of these names in their own folder."""
    method, model = (absolute_name(choice.name) for choice in (config.method, config.model))
    return replace(config, method=replace(config.method, name=method), model=replace(config.model, name=model))


def needed_at_sites(config: Config) -> list[str]:
    """Return a line for each function of a file that sites must have and allow."""
    names = [name for name in (config.method.name, config.model.name) if user_file(name)]
    wanted = [short_name(name).partition("+")[0] for name in names]
    return [f"{name}: only sites with the same file in own/ that allow it in site.toml take part" for name in wanted]


def unused_labels(config: Config, images: Path | None) -> list[str]:
    """Return a line if the server's folder has labeled images that the run does not train on."""
    if config.data.name != "folder" or config.has_server_labels or images is None:
        return []
    if not any(of_all(list_server(images, skip_bad=True, at_server=True).server)):
        return []
    unused = f"{images / 'server'} has labeled images that partition.labels = '{config.partition.labels}' does not use"
    return [f"{unused}; --set partition.labels=server trains on them"]


def await_folder(out: Path, seconds: float, say: Callable[[str], None]) -> None:
    """Wait while another run writes into the folder: a stopped run takes a moment to end."""
    until, lock = time.monotonic() + seconds, RunFolder(out).lock
    if not lock.is_in_use:
        return
    say(f"{out} is in use by a run that continues at the server; waiting up to {seconds:.0f} s for its end")
    while lock.is_in_use:
        if time.monotonic() > until:
            after = "`fssl deploy status` lists it; resume with --resume once it has ended"
            raise RunError(f"{out}: the run that writes there is not finished; waited {seconds:.0f} s. {after}")
        time.sleep(1)


def check_room(*folders: Path) -> None:
    """Reject a folder that cannot be written, or whose disk is full, before any site is asked; leave nothing behind."""
    for folder in folders:
        try:
            with TemporaryFile(dir=existing_parent(folder)) as trial:
                trial.write(bytes(ROOM))
                trial.flush()
                os.fsync(trial.fileno())
        except OSError as error:
            raise UserError(f"{folder}: cannot be written: {error.strerror}; no run was started") from None


def write_order(part: ServerPart, run: Config, out: Path, resume: bool, insecure: bool) -> tuple[Path, Path]:
    """Write the run's settings for the server's app; return that file and the journal's path."""
    folder, name = part.folder / "logs", f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    folder.mkdir(parents=True, exist_ok=True)
    config, order, journal = (folder / f"{name}{end}" for end in ("-config.toml", "-order.toml", ".jsonl"))
    write_atomic(config, to_toml(as_tables(run)))
    terms = {
        "config": str(config),
        "out": str(out.resolve()),
        "command": masked_arguments(),
        "resume": resume,
        "log": str(journal),
        "sites": "\n".join(part.sites if insecure else [f"{name} {key}" for name, key in admitted_sites(part)]),
        "insecure": insecure,
        "test": str(part.test_images or ""),
        "quorum": part.quorum,
        "wait": part.wait_seconds,
        "answer": part.answer_seconds,
        "most": part.most_images,
        "trail": str(part.folder / TRAIL),
    }
    write_atomic(order, to_toml(terms))
    return order, journal


def run_status(part: ServerPart, number: str) -> str:
    try:
        runs = flwr(part, "ls", CONNECTION, "--run-id", number).get("runs", [])
    except RunError:
        raise RunError("the server does not answer; start it again, then resume with --resume") from None
    return str(runs[0]["status"]) if runs else "unknown"


def follow(journal: Path, status: Callable[[], str], say: Callable[[str], None], patience: float = 15) -> None:
    """Print a run's journal until it ends; detect a run that dies silently."""
    total, measure = 0, "accuracy"
    for event in events(journal, status, patience):
        ((kind, content),) = event.items()
        if kind == "started":
            total, measure = content["rounds"], content.get("measure", measure)
        elif kind == "round":
            say(with_missing(content, total, measure))
        elif kind == "said":
            say(content)
        elif kind == "stopped":
            raise RunError(content)
        elif kind == "cut off":
            raise RunError(f"the server was stopped or restarted, and the run with it{resume_hint(journal)}")
        elif kind == "finished":
            return


def with_missing(line: dict[str, Any], total: int, measure: str) -> str:
    """Return a round's line with the missing clients."""
    missing = line.get("missing", {})
    lost = f"  missing: {', '.join(missing)}" if missing else ""
    return f"{round_text(line, total, measure)}  {line['timing']['seconds']:.1f} s{lost}"


def events(journal: Path, status: Callable[[], str], patience: float) -> Iterator[dict[str, Any]]:
    """Yield a run's events as they are written; after a silence, ask the server whether the run has ended."""
    growing, heard, ended = TailedFile(journal), time.monotonic(), ""
    while True:
        lines = growing.news().splitlines()
        for line in lines:
            yield event_of(line, journal)
        if lines:
            heard = time.monotonic()
        elif ended:  # and no event came after that
            why = "perhaps the server was stopped or restarted, or its disk is full"
            raise RunError(f"the run ended without a message ({ended}), {why}{resume_hint(journal)}")
        elif time.monotonic() - heard > patience:
            now, heard = status(), time.monotonic()
            ended = now if has_finished(now) else ""
        time.sleep(0.5)


def resume_hint(journal: Path) -> str:
    """Return the end of a line about an interrupted run: how to resume it."""
    return f"; once the server runs, the same command with --resume continues (log: {journal.parent / SUPERLINK_LOG})"


def event_of(line: str, journal: Path) -> dict[str, Any]:
    """Return the event of a journal's line."""
    try:
        event = parse_json(line.encode())
    except ValueError:
        event = None
    if not isinstance(event, dict) or len(event) != 1:
        raise RunError(f"{journal}: damaged, {LEFT_ALONE}")
    return event


def absences(rounds: list[dict[str, Any]]) -> str:
    """Return missing clients with their counts, and the number of rejected uploads; empty if there are none."""
    from ..engines.flower.fleet import REJECTED

    reasons = [(int(client), why) for line in rounds for client, why in line.get("missing", {}).items()]
    times = Counter(client for client, _ in reasons)
    rejected = sum(why.startswith(REJECTED) for _, why in reasons)
    listed = ", ".join(f"client {client} in {times[client]} of {len(rounds)} rounds" for client in sorted(times))
    return f"missing: {listed}; uploads rejected: {rejected}" if listed else ""
