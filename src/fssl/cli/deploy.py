"""`fssl deploy`: from nothing to a running deployment in six commands."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import RunError, complain
from .options import Resume, Sets, SettingsCommand, console, say

app = typer.Typer(
    help="Train one model at sites that keep their images, over encrypted and authenticated connections (Flower).\n\n"
    "In order: `init`, `keys`, then `server` and one `site` per site (each in a terminal of its own), then `start`. "
    "`fssl docs deploy` is a tutorial.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Home = Annotated[Path, typer.Option("--home", help="The deployment's folder, or this machine's part of it.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="No encryption, no keys: for a trial on one machine.")]
HERE = Path()
LONGEST_WORD = 30  # letters of a run's number and of a state, which are copied as a whole
ATTENTION = 3  # exit code: a site is not connected, or there is a warning


def warn(insecure: bool) -> None:
    if insecure:
        complain(
            "WARNING: --insecure: anyone who reaches the port can read all traffic, join, and start runs at every site"
        )


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    sites: Annotated[int, typer.Option(min=1, max=1000, help="How many sites.")] = 3,
    systemd: Annotated[bool, typer.Option("--systemd", help="Also write a hardened unit file for each part.")] = False,
    container: Annotated[
        bool, typer.Option("--container", help="Also write a Containerfile and compose.yaml.")
    ] = False,
) -> None:
    """Write a folder with commented settings for a server and its sites.

    Example: `fssl deploy init hospitals --sites 3`
    """
    from ..deploy.home import init as write
    from ..deploy.home import server_part
    from ..deploy.units import container_files, unit_files
    from ..system.files import write_atomic

    made = write(folder, sites)
    more = (unit_files(made) if systemd else {}) | (container_files(folder, made) if container else {})
    for file, text in more.items():
        write_atomic(file, text)
    say(f"{folder}: {', '.join(path.name for path in made)}; server on port {server_part(folder).port}")
    for file in more:
        say(f"made {file}")
    say(f"next: {shlex.join(['fssl', 'deploy', 'keys', '--home', str(folder)])}")


@app.command()
def keys(home: Home = HERE) -> None:
    """Make the CA, the server's certificate and one key pair per site; existing ones stay.

    Each site's folder then holds its private key and the CA's certificate: send it over a secure channel. To renew the
    server's certificate, first remove `server.pem`; the same CA signs the new one. To replace a site's key, first
    remove its `.pub` file and private key; the restarted server withdraws the old key.

    Example: `fssl deploy keys --home hospitals`
    """
    from ..deploy.home import server_part
    from ..deploy.keys import describe_certificate, make_keys
    from ..deploy.programs import require_flower

    server = server_part(home)
    require_flower()
    made = make_keys(server, home if server.folder != home.resolve() else server.folder / "new-sites")
    for path in made:
        say(f"made {path}")
    say("restart the server to admit them" if made else "all keys exist already")
    say(describe_certificate(server))


@app.command()
def server(home: Home = HERE, insecure: Insecure = False) -> None:
    """Start the server (Flower's SuperLink) and admit the sites; it runs until Ctrl-C.

    Example: `fssl deploy server --home hospitals`
    """
    from ..deploy.admission import admit
    from ..deploy.control import check_gate, close_gate, connect, open_gate
    from ..deploy.home import server_part
    from ..deploy.keys import expiry_warning
    from ..deploy.programs import (
        SUPERLINK_LOG,
        background_program,
        check_port,
        exit_reason,
        require_flower,
        superlink,
        wait_until_listening,
    )
    from ..engines.flower.bundle import code_digest
    from ..records.audit import TRAIL, append

    part = server_part(home)
    require_flower()
    warn(insecure)
    words, log = superlink(part, insecure), part.folder / "logs" / SUPERLINK_LOG
    check_port(part.listen, part.port)
    close_gate(part)
    connect(part, insecure)
    with background_program(words, part.folder, log) as process:
        wait_until_listening(process, part, log)
        check_gate(part, insecure)
        say(f"server: {part.listen} port {part.port}, {'NOT ENCRYPTED' if insecure else 'TLS and keys'}; log {log}")
        if not insecure:
            admit(part, say)
            if text := expiry_warning(part):
                complain(f"WARNING: {text}")
        open_gate(part)
        append(part.folder / TRAIL, "started", encrypted=not insecure, code=code_digest())
        process.wait()
        raise RunError(f"the SuperLink ended: {exit_reason(log)}")


@app.command()
def site(
    name: Annotated[str | None, typer.Argument(help="Name of the site, if --home contains several.")] = None,
    data: Annotated[Path | None, typer.Option(help="This site's images: labeled/CLASS/*, unlabeled/*.")] = None,
    home: Home = HERE,
    insecure: Insecure = False,
) -> None:
    """Start a site (Flower's SuperNode); it runs until Ctrl-C. Its images and its state stay here.

    Example: `fssl deploy site site-1 --data /data/images --home hospitals`
    """
    from ..deploy.home import site_part
    from ..deploy.keys import check_site_keys
    from ..deploy.programs import check_port, require_flower, supernode
    from ..deploy.sites import await_server, check_site, keep_connected

    part = site_part(home, name)
    require_flower()
    images = data or (part.folder / part.data if part.data else None)
    check_site(part, images)
    warn(insecure)
    words, log = supernode(part, images.resolve() if images else None, insecure), part.folder / "logs" / "supernode.log"
    if not insecure:
        check_site_keys(part.folder)
    check_port("127.0.0.1", part.port)
    terms = "; only masked uploads" if part.masked else ""
    say(f"{part.name}: client {part.client} of {part.clients}, server {part.server}{terms}; log {log}")
    await_server(part, insecure, say)
    keep_connected(part, words, log, say)


@app.command(cls=SettingsCommand)
def start(
    config: Annotated[str, typer.Argument(help="A preset (see `fssl presets`) or a TOML file.")],
    settings: Sets = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: the name of CONFIG below runs/.")] = None,
    resume: Resume = False,
    home: Home = HERE,
    insecure: Insecure = False,
) -> None:
    """Train a run with the connected sites; call it at the server. Ctrl-C stops it; --resume continues.

    The run folder is the same as that of `fssl run`.

    Example: `fssl deploy start smoke --set partition.kind=dirichlet --set partition.clients=3 --home hospitals`
    """
    from ..config import override, read_toml
    from ..deploy.home import server_part
    from ..deploy.programs import require_flower

    part, out = server_part(home), out or Path("runs") / Path(config.removesuffix(".toml")).name
    require_flower()
    warn(insecure)
    tables = override(read_toml(config), settings or [])
    from ..deploy.orders import Wanted, start_run

    start_run(part, Wanted(tables, out, resume, insecure), say)


@app.command()
def status(
    home: Home = HERE,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON. Exit code: 0 if all is well, 3 with problems, 1 without an answer."),
    ] = False,
) -> None:
    """List the sites and whether they are connected, problems of connected nodes, and the runs.

    Examples:

    - `fssl deploy status --home hospitals`

    - `fssl deploy status --home hospitals --json`: the same for a program
    """
    from ..deploy.admission import look
    from ..deploy.control import CONNECTION, flwr, is_insecure
    from ..deploy.home import server_part
    from ..deploy.keys import expiry_warning
    from ..deploy.programs import require_flower

    part = server_part(home)
    require_flower()
    rows, warnings = look(part)
    warnings += [text for text in ([] if is_insecure(part) else [expiry_warning(part)]) if text]
    if as_json:
        found = {"sites": [row._asdict() for row in rows], "warnings": warnings}
        found["runs"] = flwr(part, "ls", CONNECTION).get("runs", [])
        typer.echo(json.dumps(found))
        raise typer.Exit(0 if not warnings and all(row.status in ("online", "") for row in rows) else ATTENTION)
    print_rows(("site", "client", "status", "since"), rows)
    for warning in warnings:
        complain(f"WARNING: {warning}")
    found_runs = flwr(part, "ls", CONNECTION).get("runs", [])
    print_rows(("run", "status", "seconds", "bytes in", "bytes out"), map(run_row, found_runs))


def run_row(run: Mapping[str, Any]) -> Sequence[str]:
    """Return the line of a run in the table: Flower's facts about it."""
    traffic = run.get("network-traffic", {})
    sizes = (f"{traffic.get(key, 0):,}" for key in ("inbound-bytes", "outbound-bytes"))
    return (str(run["run-id"]), str(run["status"]), f"{run['elapsed']:.0f}", *sizes)


def print_rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table that a narrow screen does not cut."""
    from ..reports.formats import Grid, print_grid

    print_grid(console, Grid(head, [*rows]), whole=LONGEST_WORD)


@app.command()
def audit(
    name: Annotated[str | None, typer.Argument(help="A site, if --home holds several; otherwise the server.")] = None,
    home: Home = HERE,
    last: Annotated[int, typer.Option(min=1, help="Number of newest entries to show.")] = 20,
    csv: Annotated[Path | None, typer.Option(help="Write all entries to this CSV file.")] = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="Write all entries to this JSON file.")] = None,
) -> None:
    """Show, check and export the audit trail of a site or of the server. The exit code is 1 if its chain is broken.

    Examples:

    - `fssl deploy audit --home hospitals`: the server's orders, admissions and messages

    - `fssl deploy audit site-1 --home hospitals --csv site-1.csv`
    """
    from ..deploy.trails import as_rows, export, open_trail

    file, trail = open_trail(home, name)
    rows = ([str(value) for value in row[:4]] for row in as_rows(trail.entries[-last:]))
    print_rows(("entry", "time", "what", "details"), rows)
    for place in (csv, as_json):
        if place:
            export(trail, place, as_json=place is as_json)
            say(f"{len(trail.entries)} entries: {place}")
    for fault in trail.faults:
        complain(f"{file}: {fault}")
    if trail.faults:
        raise RunError(f"{file}: the chain is broken: entries were changed, removed or damaged")
    say(f"{file}: {len(trail.entries)} entries, chain whole; the last digest is {trail.entries[-1].digest}")
