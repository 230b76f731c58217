"""`fssl show`: one run in the terminal."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ..console import say, size_text
from ..errors import UserError, nearest, several
from ..records.layout import BEST
from ..records.rounds import ALL_MEASURES, MEASURES, MEMORY
from ..records.start_checks import resume_error
from ..records.store import RunFolder
from .classes import class_remarks
from .costs import costs_of
from .groups import dataset_name, shown_name
from .overview import parts_of_round, seconds_per_round
from .runs import (
    Extras,
    Run,
    accepted_text,
    by_round,
    damage_texts,
    late,
    number,
    privacy_text,
    read_run,
    run_folders,
    source_of,
    value,
)

SHARES = {
    "pl_accuracy": "labels right",
    "utilization": "labels used",
    "fallback_share": "only the global model sure",
    "disagreement": "models disagree",
    "lam_sure": "weight of the local vote",
}
SHIPPED = {"plain": "the plain model", "ema": "the smoothed model"}
CLIENTS = 12  # with local test images, at most this many are listed
BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: list[float], width: int = 60) -> str:
    """Return a curve as one line of text."""
    step = max(1, -(-len(values) // width))
    points = [float(np.mean(values[i : i + step])) for i in range(0, len(values), step)]
    low, high = min(points), max(points)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0
    return "".join(BLOCKS[round((p - low) * scale)] for p in points)


def print_run(console: Console, path: Path) -> None:
    """Print a run's facts and its curve."""
    folder = RunFolder(path)
    if not folder.config_file.is_file():
        near = " or ".join(near_runs(path))
        hint = f"did you mean {near}?" if near else "`fssl run` creates one; `fssl compare` reads several"
        raise UserError(f"{path} is not a run folder (no config.toml); {hint}")
    run = read_run(folder)
    if run is None:
        if folder.has_rounds:
            raise UserError(f"{folder.record} is damaged: no line of it can be read")
        raise UserError(
            f"{path} has no finished round in {folder.rounds_file.name}; {resume_effect(resume_error(folder))}"
        )
    say(console, f"{shown_name([run])} on {dataset_name(run.config)}, seed {run.config.seed}: {path}")
    if not run.has_end:
        say(console, unfinished(folder, run))
    table = Table(show_header=False)
    for name, text in (*run_facts(run), *end_facts(run)):
        table.add_row(name, text)
    console.print(table)
    for text in damage_texts(folder.record, run):
        say(console, text)
    for text in class_remarks({shown_name([run]): [run]}) if run.has_end else []:
        say(console, text)
    if run.remark:
        say(console, accepted_text(run.remark))
    say(console, f"{min(run.curve):5.1f} % {sparkline(run.curve)} {max(run.curve):.1f} %")


def near_runs(path: Path) -> list[str]:
    """Return likely intended runs: one that contains the path, else a few with similar names."""
    if above := next((folder for folder in path.parents if RunFolder(folder).is_of_a_run), None):
        return [str(above)]
    place = next(folder for folder in (path, *path.parents) if folder.is_dir())
    if place in (Path(), Path(path.anchor)):  # too many folders to search
        return []
    return nearest(str(path), [str(folder) for folder in run_folders([place]) if folder != path])


def unfinished(folder: RunFolder, run: Run) -> str:
    """Return the progress of a run without a final summary, and how to continue it."""
    rounds, summary = f"{len(run.lines)} of {run.config.rounds} rounds", folder.summary_file
    said = f"unfinished: {rounds}"
    if summary.is_file() and not run.extras.summary:
        said = f"{summary} is damaged; {rounds} are recorded"
    elif run.is_finished:
        said = f"{rounds}, but no {summary.name} of the last one"
    why = resume_error(folder)
    is_at_its_end = run.is_finished and why  # so there is nothing to resume
    return said if is_at_its_end else f"{said}; {resume_effect(why)}"


def resume_effect(why: str | None) -> str:
    """Return the effect of `--resume` on a run, given the reason to reject it."""
    return f"it cannot be resumed: {why}" if why else "continue with --resume"


def run_facts(run: Run) -> Iterator[tuple[str, str]]:
    """Yield names and values of a run's facts."""
    last, rounds = run.lines[-1], several(run.averaged, "round")
    of_last = f"mean of the last {rounds}"
    curve = by_round(run, number(run.measure))
    best = max(curve, key=curve.__getitem__)
    yield f"{MEASURES[run.measure]}, {of_last}", f"{run.result:.2f} %"
    if run.config.data.test != "all":
        yield "test images", f"the {run.config.data.test} half (data.test)"
    yield "last round", f"{run.curve[-1]:.2f} %"
    yield "best round (chosen by the test, so not a result)", f"{curve[best]:.2f} % (round {best})"
    tests = {norm: value(last, "test", norm, run.measure) for norm in ("train_norm", "authors_norm")}
    if len(set(tests.values())) > 1:
        yield from ((f"last round, {norm}", f"{test:.2f} %") for norm, test in tests.items() if test is not None)
    for measure, title in ALL_MEASURES.items():
        if measure != run.measure and (mean := late(run, number(measure))) is not None:
            yield f"{title}, {of_last}", f"{mean:.2f} %"
    if (smooth := late(run, number(f"ema_{run.measure}"))) is not None:
        yield f"smoothed model (server.ema), {of_last}", f"{smooth:.2f} %"
        if (at_last := value(last, f"ema_{run.measure}")) is not None:
            yield "smoothed model, last round", f"{at_last:.2f} %"
        yield "model.safetensors (server.ship)", SHIPPED[run.config.server.ship]
    if (loss := value(last, "server_loss")) is not None:
        yield "loss of the server on its labels (server_loss)", f"{loss:.3f} in the last round"
    for key, words in SHARES.items():
        if (share := late(run, number(key))) is not None:
            yield f"{words} ({key})", f"{share:.3f} in the last {rounds}"
    yield "seconds per round (median)", seconds_per_round([run])
    if parts := parts_of_round(run):
        yield "of these", parts
    yield from cost_facts(run)
    yield "commit", ", ".join(map(start_text, source_changes(run.sessions))) or source_of({})


def cost_facts(run: Run) -> Iterator[tuple[str, str]]:
    """Yield peak memory and traffic, as far as the run has recorded them."""
    costs = costs_of(run)
    if costs.memory:
        yield MEMORY[costs.memory.kind], size_text(costs.memory.num_bytes)
    if costs.traffic is not None:
        yield "sent per round, all clients, both ways", size_text(costs.traffic)


def end_facts(run: Run) -> Iterator[tuple[str, str]]:
    """Yield the facts of a finished run; none for a resumed one, whose files are from an earlier end."""
    if not run.has_end:
        return
    yield from choice_facts(run.extras)
    yield from client_facts(run.extras, run.measure)
    if not run.extras.models and run.extras.folder.measures_file.is_file():
        yield run.extras.folder.measures_file.name, "the measures of the final models are damaged"
    if private := privacy_text(run):
        yield "privacy of one client", private


def choice_facts(extras: Extras) -> Iterator[tuple[str, str]]:
    """Yield the round that validation chose, its model's test result, and why the run stopped."""
    summary, best = extras.summary, extras.models.get(BEST, {})
    if isinstance(chosen := summary.get("chosen"), dict):
        where, title = {"test": "tuning half"}.get(chosen["by"], f"{chosen['by']} part"), MEASURES[chosen["measure"]]
        yield f"best round by {title} on the {where}", f"{chosen['value']:.2f} % (round {chosen['round']})"
        if (tested := value(best, "test", chosen["measure"])) is not None:
            yield f"its model (model-{BEST}.safetensors), {title} of the test", f"{tested:.2f} %"
    if isinstance(stopped := summary.get("stopped"), dict):
        yield f"stopped after round {stopped['round']}", str(stopped["why"])


def client_facts(extras: Extras, measure: str) -> Iterator[tuple[str, str]]:
    """Yield the final model's result on each client's test images, for clients that have some."""
    clients = extras.models.get("plain", {}).get("clients", {})
    for client, facts in [*clients.items()][:CLIENTS]:
        if (tested := value(facts, measure)) is not None:
            yield f"{MEASURES[measure]} on the {facts['images']} test images of client {client}", f"{tested:.2f} %"
    if len(clients) > CLIENTS:
        yield f"and {len(clients) - CLIENTS} more clients", f"see {extras.folder.measures_file.name}"


def source_changes(sessions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the starts of a run with another commit or version than the one before."""
    return [next(group) for _, group in groupby(sessions, source_of)]


def start_text(session: Mapping[str, Any]) -> str:
    """Return the commit or version of a start of the run, and the round that it began with."""
    first, commit = session.get("from_round"), source_of(session)
    return f"{commit} from round {first}" if isinstance(first, int) and first > 1 else commit
