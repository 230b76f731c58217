"""Commands that share results and repeat them: `fssl submit`, `fssl verify` and `fssl reproduce`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UserError, several
from .options import Overwrite, console, say
from .running import as_settings, checked_early, planned_runs, ready_runs

if TYPE_CHECKING:
    from ..config import Config
    from ..records.rounds import Line

FEW = 3  # rounds that `fssl verify` trains, unless a number is given
DIFFERS = 1  # exit code


def submit(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them; every run must be finished.")],
    out: Annotated[Path, typer.Option(help="Folder for the entries.")] = Path("entries"),
    overwrite: Overwrite = False,
) -> None:
    """Pack runs as entries of the benchmark: one file of a few KB per run.

    An entry holds settings, curves, digests, environment, cost and a checksum, and no folder, host or address of your
    machine. `fssl verify` checks it anywhere. `fssl docs benchmark` says how to take part.

    Example: `fssl submit runs/mine --out entries`
    """
    from ..reports.entries import entry_name, entry_of, entry_text
    from ..reports.runs import find_runs
    from ..reports.tracks import nearest_track, track_of
    from ..system.files import write_file
    from ..system.machine import check_folder, check_new

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
    rounds: Annotated[int, typer.Option(min=0, help="Rounds to train again; 0 only reads the entry.")] = FEW,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the dataset's files.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
) -> None:
    """Check an entry: its checksum, its result, and its first rounds, trained again here.

    On a CPU of the same kind with the same versions, rounds must be equal bit for bit; on a GPU or with other versions
    within a tolerance, which the verdict states. Exit code 0: agrees; 1: differs; 2: not a valid entry.

    Example: `fssl verify entries/sage-seed7.json --rounds 10 --data-dir DATA`
    """
    from ..reports.entries import as_run, compare_rounds, described, read_entry

    facts = read_entry(entry)
    say(f"{entry}: {described(facts, as_run(entry, facts))}; its checksum and result are right")
    if rounds > facts["rounds"]:
        raise UserError(f"--rounds {rounds}: the entry has {several(facts['rounds'], 'round')}")
    if rounds:
        lines, session = trained_again(settings_again(facts, data_dir, device), rounds)
        agrees, text = compare_rounds(facts, lines, session)
        say(text)
        if not agrees:
            raise typer.Exit(DIFFERS)


def settings_again(facts: "Line", data_dir: Path | None, device: str | None) -> "Config":
    """Return an entry's settings for this machine: its folder of images and its device, and the local engine."""
    from ..config import override, parse

    tables = {key: dict(table) if isinstance(table, dict) else table for key, table in facts["settings"].items()}
    tables["compute"] = {key: tables["compute"][key] for key in ("compile", "kernels") if key in tables["compute"]}
    tables["records"] = {**tables["records"], "tensorboard": False, "wandb": "off"}
    tables["data"].pop("dir", None)
    given = as_settings({"data.dir": data_dir and str(data_dir), "compute.device": device})
    return parse(override(tables, given))


def trained_again(config: "Config", rounds: int) -> tuple[list["Line"], dict[str, Any]]:
    """Train the first rounds of settings; return their lines, and a description of this machine."""
    named, nowhere = [("", config)], Path("none")  # nothing is written
    datasets = checked_early(named, nowhere, debug=False, trains=True)
    from ..console import RunView
    from ..runner.again import first_lines, session_here

    (planned,) = ready_runs(planned_runs(named, nowhere, datasets), datasets, resume=False)
    lines = []
    with RunView(console, config.method.name) as view:
        view.started(replace(config, train=replace(config.train, rounds=rounds)), [])
        for line in first_lines(planned.experiment, rounds):
            view.round(line)
            lines.append(line)
    return lines, session_here(planned.experiment)
