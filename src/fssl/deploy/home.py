"""The folder of a deployment: one part for the server, and one for each site, each with comments."""

import re
import socket
from contextlib import suppress
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

from ..config import MANY, Device, Range, check_table, load_toml, schema_of
from ..engines.flower.bundle import app_files
from ..errors import UserError
from ..system.files import encoded, write_file

SERVER = """# The server of this deployment.
listen = "127.0.0.1"        # the network interface to listen on; "0.0.0.0" for sites on other machines
names = ["localhost", "127.0.0.1"]  # every name and address by which sites reach it; goes into its certificate
port = {port}
sites = [{sites}]  # in client order: the first is client 0

quorum = {quorum}                  # least number of clients to begin a round, and of usable uploads to finish it
wait_seconds = 600          # how long to wait for them before the run stops (it can be resumed)
answer_seconds = 3600       # how long one client may take for a round
# most_images = 10000       # for data.name = "folder": the most images that a site may have; larger claims are rejected
# test = "images"           # for data.name = "folder": the server's own images, images/test/CLASS/* to test with, and
#                           # images/server/CLASS/* to train on with partition.labels = "server"
"""

SITE = """# One site of this deployment. The key in this folder is the site's identity: keep it here.
name = "{name}"
client = {client}                  # its number in the run
clients = {clients}
server = "127.0.0.1:{port}"   # the server's name, as in its certificate, and port
port = {own}                # of this site's SuperNode, for its own use on this machine
device = "auto"             # auto, cpu or cuda
# data = "/path/to/images"  # labeled/CLASS/*, unlabeled/*; or a dataset's Parquet files. Same as --data
# least_measured = 20       # a test of the model on fewer of this site's own images is not reported
# masked = true             # reject runs whose uploads are not masked (privacy.aggregation = "secagg+")
# own = ["margin.py:margin_match"]  # methods and networks that may run here, from files in own/: `fssl docs deploy`
"""

SERVER_PORT, SITE_PORT = 8443, 9094
NAME = re.compile(r"\w[\w.-]*")  # of a site: it is part of file names
ADDRESS = re.compile(r"[^\s/]+:[0-9]{1,5}")
HOST = re.compile(r"[A-Za-z0-9_.-]{1,253}")
LAST_PORT = 65535
Port = Annotated[int, Range(1, LAST_PORT)]
Part = TypeVar("Part", "ServerPart", "SitePart")


class ServerPart(NamedTuple):
    """The server's folder and settings."""

    folder: Path
    listen: str
    names: list[str]
    port: Port
    sites: list[str]
    quorum: Annotated[int, Range(1, MANY)]
    wait_seconds: Annotated[int, Range(0, MANY)]
    answer_seconds: Annotated[int, Range(1, MANY)]
    most_images: Annotated[int, Range(0, MANY)] = 0
    test: str = ""

    @property
    def address(self) -> str:
        """Return where programs on this machine reach the server: a name that its certificate has."""
        near = ("127.0.0.1", "localhost") if self.listen in ("0.0.0.0", "127.0.0.1", "localhost") else (self.listen,)
        return f"{next((name for name in near if name in self.names), self.names[0])}:{self.port}"

    @property
    def flower(self) -> Path:
        """Return the folder with the data of Flower's programs and their credential for the server."""
        return self.folder / "flwr"

    @property
    def keys(self) -> Path:
        return self.folder / "keys"

    @property
    def test_images(self) -> Path | None:
        return (self.folder / self.test).resolve() if self.test else None


class SitePart(NamedTuple):
    """A site's folder and settings."""

    folder: Path
    name: str
    client: int
    clients: Annotated[int, Range(1, MANY)]
    server: str
    port: Port
    device: Device = "auto"
    data: str = ""
    least_measured: Annotated[int, Range(1, MANY)] = 20  # results on fewer test images of the site are not reported
    masked: bool = False  # reject runs whose uploads are not masked
    own: tuple[str, ...] = ()  # functions of files in the folder own/ that runs may name


def init(home: Path, sites: int) -> list[Path]:
    """Write a deployment's folder; return the created paths."""
    if home.exists() and any(home.iterdir()):
        raise UserError(f"{home} is not empty; choose another folder")
    names = [f"site-{k + 1}" for k in range(sites)]
    port, *own = [*free_ports(SERVER_PORT, 1), *free_ports(SITE_PORT, sites)]
    quoted = ", ".join(f'"{name}"' for name in names)
    files = {home / "server" / "server.toml": SERVER.format(port=port, sites=quoted, quorum=min(2, sites))}
    for k, name in enumerate(names):
        files[home / name / "site.toml"] = SITE.format(name=name, client=k, clients=sites, port=port, own=own[k])
    app = app_files(str(home.resolve() / "server" / "runs" / "flwr"))
    files |= {home / "server" / "app" / name: text for name, text in app.items()}
    files[home / ".gitignore"] = "# keys, states and logs stay on their machines\n*\n"
    made = [home / "server", *(home / name for name in names)]
    contents = {path: encoded(path, text) for path, text in files.items()}  # raises before anything is written
    for folder in made:
        folder.mkdir(mode=0o700, parents=True)  # keys, states and logs are for the owner only
    for path, content in contents.items():
        write_file(path, content)
    return made


def free_ports(first: int, number: int) -> list[int]:
    """Return the lowest free ports of this machine."""
    return list(islice(filter(is_free, range(first, LAST_PORT + 1)), number))


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def server_part(home: Path) -> ServerPart:
    """Return the server's part of a deployment folder, or of that part's own folder."""
    folder = home if (home / "server.toml").is_file() else home / "server"
    path = folder / "server.toml"
    part = read(path, ServerPart, "the server's settings; `fssl deploy init` writes them")
    if len(set(part.sites)) < len(part.sites) or not all(map(NAME.fullmatch, part.sites)):
        raise UserError(f"{path}: sites = {part.sites}: expected different names without spaces or '/'")
    if own := [name for name in part.sites if name.lower() == "server"]:  # some file systems ignore case
        raise UserError(f"{path}: sites = {part.sites}: {own[0]!r} is the name of the server's own folder")
    if part.quorum > len(part.sites):
        raise UserError(f"{path}: quorum = {part.quorum}: expected {len(part.sites)} at most, the number of `sites`")
    for name in part.names:
        if fault := host_fault(name.removeprefix("*.")):
            raise UserError(f"{path}: names = {part.names}: {fault}")
    if fault := host_fault(part.listen):
        raise UserError(f"{path}: listen = {part.listen!r}: {fault}")
    return part


def site_part(home: Path, name: str | None) -> SitePart:
    """Return a site's part of a deployment folder by its name, or of that part's own folder."""
    folder = home / name if name else home
    path = folder / "site.toml"
    if not path.is_file():
        known = sorted(p.parent.name for p in home.glob("*/site.toml"))
        raise UserError(f"{folder} has no site.toml" + (f"; sites here: {', '.join(known)}" if known else ""))
    part = read(path, SitePart, "a site's settings")
    if not 0 <= part.client < part.clients:
        expected = f"expected 0 to {part.clients - 1}, as clients = {part.clients}"
        raise UserError(f"{path}: client = {part.client}: {expected}")
    if fault := address_fault(part.server):
        raise UserError(f"{path}: server = {part.server!r}: {fault}")
    return part


def address_fault(address: str) -> str:
    """Return the fault of a server's name and port; empty if there is none."""
    if not ADDRESS.fullmatch(address):
        return "expected NAME:PORT"
    host, _, port = address.rpartition(":")
    if not 1 <= int(port) <= LAST_PORT:
        return f"expected NAME:PORT with a port from 1 to {LAST_PORT}"
    return host_fault(host.strip("[]"))


def host_fault(host: str) -> str:
    """Return the fault of a machine's name or address; empty if there is none.

    An international name must be in its ASCII form, the only one in certificates.
    """
    with suppress(ValueError):
        ip_address(host)
        return ""
    try:
        name = host.encode("idna").decode()
    except UnicodeError:  # a part of it is empty or too long
        name = ""
    if not HOST.fullmatch(name):
        return f"{host!r} is not a host name or address"
    return "" if host.isascii() else f"write {host!r} as {name!r}, as certificates do"


def read(path: Path, kind: type[Part], what: str) -> Part:
    """Return the settings in a file of a deployment, checked as their record declares them."""
    try:
        table = load_toml(path, str(path))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: {what}") from None
    schema = {key: setting for key, setting in schema_of(kind).items() if key != "folder"}
    return kind(path.parent.resolve(), **check_table(table, schema, where=f"{path}: "))
