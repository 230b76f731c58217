"""Commands that share results and repeat them: `fssl submit`, `fssl verify` and `fssl reproduce`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import RunError, UserError, complain, several
from ..system.machine import check_folder
from .options import Overwrite, Sets, console, say
from .running import as_settings, checked_early, planned_runs, ready_runs

if TYPE_CHECKING:
    from ..config import Config
    from ..records.rounds import Line
    from ..runner.planned import PlannedRun

FEW = 3  # rounds that `fssl verify` trains, unless a number is given
DIFFERS = 1  # exit code
OUR_ENTRIES = Path("results/benchmark/entries")  # in a clone
WIDE = 60  # characters of a verdict that are not folded


def submit(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs, or folders that contain them.")],
    out: Annotated[Path, typer.Option(help="Folder for the entries.")] = Path("entries"),
    overwrite: Overwrite = False,
) -> None:
    """Pack runs as entries of the benchmark: one file of a few KB per run.

    An entry contains settings, curves, digests, environment, cost and a checksum, but no folder, host or address of
    your machine. `fssl verify` checks it on any machine. `fssl docs benchmark` explains how to take part.

    Example: `fssl submit runs/mine --out entries`
    """
    from ..reports.entries import entry_name, entry_of, entry_text
    from ..reports.runs import find_runs
    from ..reports.tracks import nearest_track, track_of
    from ..system.files import write_file
    from ..system.machine import check_new

    check_folder("out", out)
    found = find_runs(runs)
    if found.unreadable:
        raise UserError(found.left_out[0])
    texts = {out / entry_name(run): (run, entry_text(entry_of(run))) for run in found.runs}
    if len(texts) < len(found.runs):
        raise UserError("two of these runs have the same method and seed; submit them into two folders", "out")
    for file in texts:
        check_new("out", file, overwrite)
    for file, (run, text) in texts.items():
        write_file(file, text)
        track = track_of(run)
        say(f"{file}: {len(text) / 1e3:.1f} kB, {f'track {track}' if track else nearest_track(run)}")


def verify(
    entry: Annotated[Path, typer.Argument(help="An entry, as `fssl submit` writes it.")],
    rounds: Annotated[
        int | None, typer.Option(min=0, help=f"Number of first rounds to train again, by default {FEW}; 0: none.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the dataset's files.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
) -> None:
    """Check the checksum and the result of an entry, and train its first rounds again.

    On a CPU of the same kind with the same versions, rounds must be equal bit for bit. On a GPU or with other versions,
    they must agree within a tolerance, which the verdict states. Exit code 0: agrees; 1: differs; 2: not a valid entry.

    Example: `fssl verify entries/sage-seed7.json --rounds 10 --data-dir DATA`
    """
    from ..reports.entries import as_run, compare_rounds, described, read_entry

    facts = read_entry(entry)
    say(f"{entry}: {described(facts, as_run(entry, facts))}; checksum and result are correct")
    rounds = min(FEW, facts["rounds"]) if rounds is None else rounds
    if rounds > facts["rounds"]:
        raise UserError(f"--rounds {rounds}: the entry has only {several(facts['rounds'], 'round')}")
    if rounds:
        lines, session = trained_again(settings_again(facts, data_dir, device), rounds)
        agrees, text = compare_rounds(facts, lines, session)
        say(text)
        if not agrees:
            raise typer.Exit(DIFFERS)


def settings_again(facts: "Line", data_dir: Path | None, device: str | None) -> "Config":
    """Return an entry's settings for this machine: its folder of images and its device, and the local engine."""
    from ..config import override, parse
    from ..reports.entries import without_places

    tables = without_places(facts["settings"])  # an entry from elsewhere must not name files of this machine
    compute = tables.get("compute", {})
    tables["compute"] = {key: compute[key] for key in ("compile", "kernels") if key in compute}
    tables["records"] = {**tables.get("records", {}), "tensorboard": False, "wandb": "off"}
    tables.get("data", {}).pop("dir", None)
    given = as_settings({"data.dir": data_dir and str(data_dir), "compute.device": device})
    return parse(override(tables, given))


def trained_again(config: "Config", rounds: int) -> tuple[list["Line"], dict[str, Any]]:
    """Train the first rounds of settings; return their lines, and a description of this machine."""
    named, nowhere = [("", config)], Path("none")  # nothing is written
    datasets = checked_early(named, nowhere, debug=False, trains=True)
    from ..console import RunView
    from ..runner.again import first_lines, session_here
    from ..runner.costs import cost_lines

    (planned,) = ready_runs(planned_runs(named, nowhere, datasets), datasets, resume=False)
    for text in cost_lines(planned.experiment, rounds=rounds):
        say(text)
    lines = []
    with RunView(console, config.method.name) as view:
        view.started(replace(config, train=replace(config.train, rounds=rounds)), [])
        for line in first_lines(planned.experiment, rounds):
            view.round(line)
            lines.append(line)
    return lines, session_here(planned.experiment)


def reproduce(
    what: Annotated[str, typer.Argument(help="A table (table1, proxyfl …), a figure (fig4 …), benchmark or track-a.")],
    out: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs/reproduce"),
    runs: Annotated[list[Path] | None, typer.Option(help="Other folders whose runs count (repeatable).")] = None,
    settings: Sets = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the dataset's files.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    entries: Annotated[
        Path | None, typer.Option(help="Folder of entries to compare benchmark runs with; default: those of a clone.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print costs and verdicts without training.")] = False,
) -> None:
    """Train the missing runs of a published table, a figure or the benchmark, and compare every cell.

    Presets list the runs. Finished runs in `--out` and `--runs` count, and begun ones are resumed. fssl first prints
    the number of missing runs and their cost on this machine. At the end it prints for every cell the published number,
    ours, and whether they agree within the run-to-run noise. `--set` selects some of the runs.

    Example: `fssl reproduce table1 --set grid.seed=[7] --data-dir DATA --dry-run`
    """
    from ..paper.reproduce import find_target, plan
    from ..reports.formats import print_grid
    from ..reports.runs import Reader

    at_hand = next((place for place in (entries, OUR_ENTRIES) if place and place.exists()), None)
    if entries and not entries.exists():
        raise UserError(f"{entries} does not exist", "entries")
    target = find_target(what, at_hand)
    check_folder("out", out)
    places = [place for place in (out, *(runs or [])) if place.exists() or place != out]
    found = Reader().read(places)
    given = [*(settings or []), *as_settings({"data.dir": data_dir and str(data_dir), "compute.device": device})]
    done, missing = plan(target, given, found)
    say(f"{what}: {several(done + len(missing), 'run')}; {done} finished, {len(missing)} missing")
    try:
        failures = run_missing(missing, out, dry_run) if missing else 0
    except KeyboardInterrupt:
        complain(f"stopped; finished rounds are kept in {out}: the same command continues")
        raise
    found = Reader().read([place for place in (out, *(runs or [])) if place.exists()])
    print_grid(console, target.judge(found), WIDE)
    if failures:
        raise RunError(f"{failures} of {len(missing)} runs stopped early; the same command tries them again")


def run_missing(missing: "list[tuple[str, Config]]", out: Path, dry_run: bool) -> int:
    """Print what these runs cost here, and train them unless only that is wanted; return the number of failures."""
    datasets = checked_early(missing, out, debug=False, trains=not dry_run)
    from ..runner.costs import cost_lines
    from ..runner.planned import is_at_hand, run_in_turn

    planned = planned_runs(missing, out, datasets)
    alike: dict[object, list[PlannedRun]] = {}
    for run in planned:
        alike.setdefault((run.config.data.name, run.config.model.name, run.config.rounds), []).append(run)
    for first, *others in alike.values():
        if is_loaded := is_at_hand(first.config):
            first.experiment.load(datasets)
        for text in cost_lines(first.experiment, is_loaded, 1 + len(others)):
            say(f"{first.config.data.name}: {text}")
    if dry_run:
        return 0
    return run_in_turn(console, ready_runs(planned, datasets, resume=True), resume=True, debug=False)
