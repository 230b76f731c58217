"""`fssl deploy`: from nothing to a running deployment in six commands."""

import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from ..errors import RunError, UserError, complain

if TYPE_CHECKING:
    from .home import ServerPart, SitePart

app = typer.Typer(
    help="Sites with their own images train together, over Flower's own programs, encrypted and authenticated.\n\n"
    "In order: `init`, `keys`, then `server` and one `site` per site (each in a terminal of its own), then `start`. "
    "docs/deploy.md is a tutorial.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
console = Console()

Home = Annotated[Path, typer.Option("--home", help="The deployment's folder, or the part of it for this machine.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="No encryption, no keys: for a trial on one machine.")]
HERE = Path()
NODES = "nodes.json"  # which number Flower gave each site
ADMISSION, PAUSE = 600, 10  # seconds in which a site that is refused tries again, and between two times
CONNECTED = "SuperNode ID:"  # in a SuperNode's log
REFUSED = "Failed to activate SuperNode"  # Flower's words for a key that is not registered


def say(text: str) -> None:
    console.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)


def warn(insecure: bool) -> None:
    if insecure:
        complain("WARNING: --insecure: whoever reaches the port can read all traffic, join, and run code at every site")


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    sites: Annotated[int, typer.Option(min=1, max=1000, help="How many sites.")] = 3,
) -> None:
    """Write a folder with commented settings for a server and its sites.

    Example: `fssl deploy init hospitals --sites 3`
    """
    from .home import init as write
    from .home import server_part

    made = write(folder, sites)
    say(f"{folder}: {', '.join(path.name for path in made)}; server on port {server_part(folder).port}")
    say(f"next: fssl deploy keys --home {folder}")


@app.command()
def keys(home: Home = HERE) -> None:
    """Make the CA, the server's certificate and one key pair per site; what exists stays as it is.

    Each site's folder then holds its private key and the CA's certificate: hand it over by a safe way.

    Example: `fssl deploy keys --home hospitals`
    """
    from .home import server_part
    from .keys import DAYS, make_keys

    server = server_part(home)
    made = make_keys(server, home if server.folder != home.resolve() else server.folder / "new-sites")
    for path in made:
        say(f"made {path}")
    say(f"certificate for {', '.join(server.names)}, valid for {DAYS} days" if made else "all keys exist already")


@app.command()
def server(home: Home = HERE, insecure: Insecure = False) -> None:
    """Start the server (Flower's SuperLink) and admit the sites; it runs until Ctrl-C.

    Example: `fssl deploy server --home hospitals`
    """
    from .home import server_part
    from .programs import check_port, connect, last_words, started, superlink, wait_until_listening

    part = server_part(home)
    warn(insecure)
    words, log = superlink(part, insecure), part.folder / "logs" / "superlink.log"
    check_port(part.listen, part.port)
    connect(part, insecure)
    with started(words, part.folder, log) as process, until_asked():
        wait_until_listening(process, part, log)
        say(f"server: {part.listen} port {part.port}, {'NOT ENCRYPTED' if insecure else 'TLS and keys'}; log {log}")
        if not insecure:
            say(f"admitted: {', '.join(admit(part))}")
        process.wait()
        raise RunError(f"the SuperLink ended: {last_words(log)}")


def admit(part: "ServerPart") -> list[str]:
    """Register the public keys that are not known yet, under their sites' names."""
    from ..records.atomic import read_json, write_atomic
    from .programs import CONNECTION, existing, flwr, nodes

    file, there = part.folder / NODES, nodes(part)
    ids = {name: number for name, number in read_json(file).items() if number in there}
    for name in part.sites:
        if name not in ids:
            public = existing(part.keys / f"{name}.pub")
            ids[name] = str(flwr(part, "supernode", "register", str(public), CONNECTION, "--name", name)["node-id"])
            write_atomic(file, json.dumps(ids) + "\n")
    return list(part.sites)


@app.command()
def site(
    name: Annotated[str | None, typer.Argument(help="Which site, if --home holds several.")] = None,
    data: Annotated[Path | None, typer.Option(help="This site's images: labeled/CLASS/*, unlabeled/*.")] = None,
    home: Home = HERE,
    insecure: Insecure = False,
) -> None:
    """Start a site (Flower's SuperNode); it runs until Ctrl-C. Its images and its state stay here.

    Examples:

    - `fssl deploy site site-1 --data /data/images --home hospitals`: one of several on this machine

    - `fssl deploy site --data /data/images --home my-part`: with only this site's part of the folder
    """
    from .home import site_part
    from .programs import check_port, supernode

    part = site_part(home, name)
    images = data or (part.folder / part.data if part.data else None)
    if images and not images.is_dir():
        raise UserError(f"the site's images: there is no folder {images}")
    warn(insecure)
    words, log = supernode(part, images.resolve() if images else None, insecure), part.folder / "logs" / "supernode.log"
    check_port("127.0.0.1", part.port)
    say(f"{part.name}: client {part.client} of {part.clients}, server {part.server}; log {log}")
    with until_asked():
        attend(part, words, log)


def attend(part: "SitePart", words: list[str], log: Path) -> None:
    """Run a site's SuperNode; one that the server does not know yet is started again for a while."""
    from .programs import last_words, started, wait_for

    until, told = time.monotonic() + ADMISSION, False
    while True:
        with started(words, part.folder, log) as process:
            if not wait_for(CONNECTED, process, log, 20) and process.poll() is None:
                say(f"{part.name}: no answer from {part.server} yet; it goes on trying")
            if wait_for(CONNECTED, process, log):
                say(f"{part.name}: connected")
            process.wait()
        reason = last_words(log)
        if REFUSED not in reason or time.monotonic() > until:
            raise RunError(f"{part.name} ended: {reason}")
        if not told:
            told = True
            say(f"{part.name}: the server has not admitted this key; trying again for {ADMISSION // 60} minutes")
        time.sleep(PAUSE)


class until_asked:  # noqa: N801 (a context)
    """SIGTERM ends a foreground command as Ctrl-C does, so that what it started ends, too."""

    def __enter__(self) -> None:
        import signal

        def stop(number: int, frame: Any) -> None:
            raise KeyboardInterrupt

        self._before = signal.signal(signal.SIGTERM, stop)

    def __exit__(self, *details: object) -> None:
        import signal

        signal.signal(signal.SIGTERM, self._before)


@app.command()
def start(
    config: Annotated[str, typer.Argument(help="A preset (see `fssl presets`) or a TOML file.")],
    settings: Annotated[list[str] | None, typer.Option("--set", help="Change a setting (repeatable).")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: the name of CONFIG below runs/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on after the newest checkpoint in --out.")] = False,
    home: Home = HERE,
    insecure: Insecure = False,
) -> None:
    """Train: a run of the connected sites, on the server's machine. Ctrl-C stops it; --resume goes on.

    The run folder is the same as that of `fssl run`.

    Example: `fssl deploy start smoke --set partition.kind=dirichlet --set partition.clients=3 --home hospitals`
    """
    from ..config import override, read_toml
    from ..console import result_line
    from ..records.store import RunFolder
    from .home import server_part
    from .programs import CONNECTION, connect, flwr

    part, out = server_part(home), out or Path("runs") / Path(config.removesuffix(".toml")).name
    warn(insecure)
    tables = for_sites(override(read_toml(config), settings or []), len(part.sites))
    check(part, tables, out, resume)
    connect(part, insecure)
    order, journal = write_order(part, tables, out, resume, insecure)
    answer = flwr(part, "run", str(part.folder / "app"), CONNECTION, "-c", str(order))
    number = str(answer["run-id"])
    say(f"run {number} of {len(part.sites)} sites; folder {out}")
    try:
        with until_asked():
            follow(journal, lambda: run_status(part, number))
    except KeyboardInterrupt:
        flwr(part, "stop", number, CONNECTION)
        complain(f"stopped; finished rounds are kept in {out}: the same command with --resume goes on")
        raise
    if lost := absences(RunFolder(out).rounds()):
        say(lost)
    say(result_line(out, RunFolder(out).summary()))


def absences(rounds: list[dict[str, Any]]) -> str:
    """Who was missing how often, and how many uploads were rejected; nothing, if all were there."""
    from ..engines.flower.fleet import REJECTED

    reasons = [(int(client), why) for line in rounds for client, why in line.get("missing", {}).items()]
    times = Counter(client for client, _ in reasons)
    rejected = sum(why.startswith(REJECTED) for _, why in reasons)
    listed = ", ".join(f"client {client} in {times[client]} of {len(rounds)} rounds" for client in sorted(times))
    return f"missing: {listed}; uploads rejected: {rejected}" if listed else ""


def for_sites(tables: dict[str, Any], sites: int) -> dict[str, Any]:
    """The settings with one client per site, all of them in every round unless they say otherwise."""
    from ..config import override

    part, train = tables.get("partition", {}), tables.get("train", {})
    if part.get("clients", sites) != sites:
        raise UserError(
            f"partition.clients = {part['clients']}, but server.toml names {sites} sites; set it to {sites}"
        )
    given = [f"partition.clients={sites}"]
    if "clients_per_round" not in train or train["clients_per_round"] > sites:
        given.append(f"train.clients_per_round={sites}")
    return override(tables, given)


def check(part: "ServerPart", tables: dict[str, Any], out: Path, resume: bool) -> None:
    """Everything that can be refused before the sites are asked."""
    from ..config import expand
    from ..core.federation import method_of
    from ..engines.flower.server import sites_own
    from ..engines.run import written_out
    from ..records.store import RunFolder

    (_, config), *more = expand(tables)
    if more:
        raise UserError("one run at a time: the configuration has a [grid]; choose a cell with --set")
    if config.protocol == "authors":
        raise UserError("protocol 'authors' carries momentum from client to client, which sites cannot")
    method_of(config)
    if config.data.name == "folder":
        sites_own(config, part.test_images, len(part.sites))
    RunFolder(out).check(written_out(config), resume)


def write_order(
    part: "ServerPart", tables: dict[str, Any], out: Path, resume: bool, insecure: bool
) -> tuple[Path, Path]:
    """The run's settings for the server's app, and where it will report."""
    from ..config import to_toml
    from ..records.atomic import write_atomic

    folder, name = part.folder / "logs", f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    folder.mkdir(parents=True, exist_ok=True)
    config, order, journal = (folder / f"{name}{end}" for end in ("-config.toml", "-order.toml", ".jsonl"))
    write_atomic(config, to_toml(tables))
    terms = {
        "config": str(config),
        "out": str(out.resolve()),
        "resume": resume,
        "log": str(journal),
        "sites": "\n".join(part.sites),
        "insecure": insecure,
        "test": str(part.test_images or ""),
        "quorum": part.quorum,
        "wait": part.wait_seconds,
        "answer": part.answer_seconds,
    }
    write_atomic(order, to_toml(terms))
    return order, journal


def run_status(part: "ServerPart", number: str) -> str:
    from .programs import CONNECTION, flwr

    try:
        runs = flwr(part, "ls", CONNECTION, "--run-id", number).get("runs", [])
    except RunError:
        raise RunError("the server does not answer; start it again, then resume with --resume") from None
    return str(runs[0]["status"]) if runs else "unknown"


def follow(journal: Path, status: Callable[[], str], patience: float = 15) -> None:
    """Show a run as its journal tells it, until it ends; a run that dies silently is noticed."""
    total = 0
    for event in events(journal, status, patience):
        ((kind, content),) = event.items()
        if kind == "started":
            total = content["rounds"]
        elif kind == "round":
            say(round_line(content, total))
        elif kind == "said":
            say(content)
        elif kind == "stopped":
            raise RunError(content)
        elif kind == "finished":
            return


def round_line(line: dict[str, Any], total: int) -> str:
    from ..console import numbers

    missing = line.get("missing", {})
    lost = f"  missing: {', '.join(missing)}" if missing else ""
    return f"round {line['round']:>4}/{total}  {numbers(line)}  {line['timing']['seconds']:.1f} s{lost}"


def events(journal: Path, status: Callable[[], str], patience: float) -> Iterator[dict[str, Any]]:
    """What a run writes down, as it comes; in silence the server is asked whether the run still lives."""
    position, heard, ended = 0, time.monotonic(), ""
    while True:
        text = journal.read_text()[position:] if journal.is_file() else ""
        whole = text[: text.rfind("\n") + 1]
        for line in whole.splitlines():
            yield json.loads(line)
        if whole:
            position, heard = position + len(whole), time.monotonic()
        elif ended:  # and nothing came after that
            raise RunError(f"the run ended without a word ({ended}); see the server's log beside {journal.name}")
        elif time.monotonic() - heard > patience:
            now, heard = status(), time.monotonic()
            ended = now if now.startswith("finished") else ""
        time.sleep(0.5)


@app.command()
def status(home: Home = HERE) -> None:
    """List the sites and whether they are connected, and the runs so far.

    Example: `fssl deploy status --home hospitals`
    """
    from ..records.atomic import read_json
    from .home import server_part
    from .programs import CONNECTION, flwr, nodes

    part = server_part(home)
    ids, there = read_json(part.folder / NODES), nodes(part)
    table = Table("site", "client", "status", "since")
    for client, name in enumerate(part.sites):
        node = there.pop(ids.get(name, ""), {"status": "not admitted"})
        since = node.get("online-at" if node["status"] == "online" else "offline-at", "")
        table.add_row(name, str(client), node["status"], since)
    for node in there.values():  # those of --insecure
        if node["status"] == "online":
            table.add_row("without a key", "?", node["status"], node.get("online-at", ""))
    console.print(table)
    runs = Table(Column("run", no_wrap=True), Column("status", no_wrap=True), "seconds", "bytes in", "bytes out")
    for run in flwr(part, "ls", CONNECTION).get("runs", []):
        traffic = run.get("network-traffic", {})
        sizes = (f"{traffic.get(key, 0):,}" for key in ("inbound-bytes", "outbound-bytes"))
        runs.add_row(run["run-id"], run["status"], f"{run['elapsed']:.0f}", *sizes)
    console.print(runs)
