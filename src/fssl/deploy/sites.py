"""A site and its server: the site waits until the server answers and accepts its key."""

import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Literal

from ..data.folder.listing import list_site
from ..data.folder.load import raise_problems
from ..engines.flower.bundle import code_digest
from ..engines.flower.internals import CONNECTED, DISMISSED, RECONNECTED, REFUSED, RETRYING, UNVERIFIED
from ..errors import COMPLAINT, RunError, UserError
from ..records.audit import TRAIL, append
from .home import SitePart
from .programs import TailedFile, background_program, exit_reason, since_start, wait_for

ADMISSION, PAUSE = 600, 10  # seconds for which a rejected site tries again, and between two attempts
LOOK = 2  # seconds between two checks for a server that does not answer
LOST = 5  # seconds that Flower's program waits before it retries, from which on the server counts as lost
UNSURE = "is ca.crt of this deployment, and `server` in site.toml one of the names in server.toml?"


DATASET_FILES = ("*.parquet", "*-ubyte", "*-ubyte.gz")  # a published dataset, which a site may have instead of images


def check_site(part: SitePart, images: Path | None) -> None:
    """Reject a missing device, and images that no run can use."""
    if part.device == "cuda" and not has_gpu():
        raise UserError(f"{part.folder / 'site.toml'}: device = 'cuda': no CUDA device is visible; use 'cpu' or 'auto'")
    if images and not images.is_dir():
        raise UserError(f"the site's images: there is no folder {images}")
    if images and not holds_dataset(images):
        raise_problems(list_site(images, skip_bad=True))  # a run decides whether bad files are allowed


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def holds_dataset(folder: Path) -> bool:
    """Return whether the folder has files of a published dataset, directly or as deep as the dataset's own folders."""
    return any(any(folder.glob(f"{above}{name}")) for above in ("", "*/", "*/*/") for name in DATASET_FILES)


def await_server(part: SitePart, insecure: bool, say: Callable[[str], None]) -> None:
    """Wait until a server answers; reject one that is encrypted if this site is not, or the other way round."""
    reported = False
    while not (manner := server_security(part.server)):
        if not reported:
            reported = True
            say(f"{part.name}: no server answers at {part.server} yet, trying again every {LOOK} s")
        time.sleep(LOOK)
    if manner == "TLS" and insecure:
        raise UserError(f"{part.name}: the server at {part.server} is encrypted; start this site without --insecure")
    if manner == "plain" and not insecure:
        hint = "restart it without --insecure, or for a trial on one machine start this site with --insecure, too"
        raise UserError(f"{part.name}: the server at {part.server} was started with --insecure; {hint}")


def server_security(address: str, seconds: float = 10) -> Literal["TLS", "plain"] | None:
    """Return "TLS" or "plain" for a reachable server, else None. Does not verify the certificate."""
    host, _, port = address.rpartition(":")
    place = (host.strip("[]"), int(port))
    anyone = ssl.create_default_context()
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection(place, seconds) as link, anyone.wrap_socket(link):
            return "TLS"
    except ssl.SSLError:  # of many kinds, one for each version of OpenSSL
        with suppress(OSError), socket.create_connection(place, seconds) as link:
            link.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return "plain" if link.recv(5) == b"HTTP/" else None
    except OSError:
        pass
    return None


def keep_connected(part: SitePart, words: list[str], log: Path, say: Callable[[str], None]) -> None:
    """Run a site's SuperNode; restart it for a while if the server does not accept its key."""
    until, reported = time.monotonic() + ADMISSION, False
    while True:
        with background_program(words, part.folder, log) as process:
            if not wait_for(CONNECTED, process, log, 20) and process.poll() is None:
                say(f"{part.name}: {part.server} does not admit sites yet; trying again")
            if wait_for(CONNECTED, process, log):
                say(f"{part.name}: connected")
                append(
                    part.folder / TRAIL, "connected", server=part.server, authority=authority(part), code=code_digest()
                )
                follow_site(process, log, lambda line: say(f"{part.name}: {line}"))
                append(part.folder / TRAIL, "disconnected", server=part.server)
            process.wait()
        if DISMISSED in since_start(log.read_text(errors="replace")):
            either = "the server no longer accepts its key, or Flower's program was stopped"
            raise RunError(f"{part.name} ended: {either} (log: {log})")
        reason = exit_reason(log)
        if REFUSED not in reason or time.monotonic() > until:
            raise RunError(f"{part.name} ended: {f'{UNSURE} ' if UNVERIFIED in reason else ''}{reason}")
        if not reported:
            reported = True
            say(
                f"{part.name}: the server rejects this key: it was not admitted, or another program uses it"
                f" (after a restart this takes up to a minute); trying again for {ADMISSION // 60} minutes"
            )
        time.sleep(PAUSE)


def authority(part: SitePart) -> str:
    """Return the fingerprint of the certificate by which this site knows its server; empty without encryption."""
    certificate = part.folder / "ca.crt"
    return sha256(certificate.read_bytes()).hexdigest() if certificate.is_file() else ""


def follow_site(process: subprocess.Popen[bytes], log: Path, say: Callable[[str], None]) -> None:
    """Report the rounds in a connected site's log, and whether the server answers."""
    growing, lost, ended = TailedFile(log), False, False
    while not ended:
        ended = process.poll() is not None  # read first, so that the last output is not missed
        for line in growing.news().rpartition(CONNECTED)[2].splitlines():
            wait = RETRYING.search(line)
            if line.startswith(COMPLAINT):
                say(line.removeprefix(COMPLAINT))
            elif wait and float(wait[1]) >= LOST and not lost:
                lost = True
                say("the server does not answer; trying again")
            elif lost and RECONNECTED in line:
                lost = False
                say("the server answers again")
        if not ended:
            time.sleep(0.5)
