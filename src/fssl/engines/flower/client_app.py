"""The client's app: answers a payload and a job with a client's round, or a request with measured sums."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from ...config import Compute, Config, check_value, load_toml, parse, parse_toml, schema_of
from ...core.experiment import prepare
from ...core.federation import Federation
from ...core.images import shared_format
from ...core.site_scores import rounds_between
from ...data.folder.load import load_site
from ...errors import ProblemsError, complain, error_text, several
from ...records.audit import TRAIL, append
from ...records.store import SKIPPED
from ...system.files import write_atomic
from ...types import Payload, State
from ..lanes import Lanes, set_up_torch
from ..named_tensors import fill, to
from .bundle import code_digest
from .internals import mask
from .masked import check_masks, check_promise, is_masked, masked_answer
from .messages import (
    MEASURE,
    SCORE,
    Forms,
    Job,
    SiteError,
    answer,
    message_forms,
    read_job,
    score_answer,
    sums_answer,
    unpack,
)
from .site_code import with_own_files, with_own_start
from .state import SiteState
from .trail import audited

LEAST_MEASURED = 20  # images of a site's test or validation part, unless site.toml sets another number

app = ClientApp(mods=[audited, mask])


class OwnSite(NamedTuple):
    """The place where a client keeps its state and its images: number `client` of `clients`."""

    client: int
    clients: int
    folder: Path
    data: Path | None


def read_site(context: Context) -> OwnSite:
    node = context.node_config
    number, total = (int(node[key]) for key in ("partition-id", "num-partitions"))
    return OwnSite(number, total, Path(str(node["folder"])), Path(str(node["data"])) if "data" in node else None)


class Workshop(NamedTuple):
    """The objects that a process keeps between messages, for speed only; they never change a result."""

    federation: Federation
    lanes: Lanes
    forms: Forms


@lru_cache(maxsize=1)
def workshop(config: str, site: OwnSite | None) -> Workshop:
    """Return the process's workshop; a site's settings choose its device and images, the server's all else."""
    settings = parse(parse_toml(config))
    if site is None:
        return make_workshop(Federation(prepare(settings)), 0)
    settings = at_site(settings, site)
    code, digest = code_digest(), sha256(config.encode()).hexdigest()
    append(site.folder / TRAIL, "order", terms=terms(settings), settings=digest, code=code)
    if settings.data.name != "folder":
        return make_workshop(Federation(prepare(settings)), site.client)
    if site.data is None:
        raise SiteError("this site was started without --data, but the run needs each site's own images")
    if (clients := settings.partition.clients) != site.clients:
        raise SiteError(f"this site has clients = {site.clients} in site.toml; the run has {clients} clients")
    with hide_details("this site's images cannot be used"):
        dataset = load_site(site.data, shared_format(settings), site.client, site.clients)
        report_skipped(dataset.skipped, site.folder)
        complain(terms(settings))
    return make_workshop(Federation(prepare(settings, dataset)), site.client)


def terms(config: Config) -> str:
    """Return what a run requires of a site's images, as text for the site's operator."""
    uploads = "masked" if is_masked(config) else "plain"
    sums = "steps and losses only" if config.records.probes == "losses" else "all probes"
    rounds, every = several(config.rounds, "round"), rounds_between(config, has_images=False)
    scores = f"; every {several(every, 'round')}: the accuracy of the model on its own images" if every else ""
    return f"a run of {config.method.name}, {rounds}: this site sends {uploads} uploads, and the sums of {sums}{scores}"


def report_skipped(lines: Sequence[str], folder: Path) -> None:
    """Write the files that this site skips to its log and folder only, replacing an earlier list."""
    for line in lines:
        complain(f"skipped {line}")
    if lines:
        write_atomic(folder / SKIPPED, "".join(f"{line}\n" for line in lines))
    else:
        (folder / SKIPPED).unlink(missing_ok=True)


@contextmanager
def hide_details(trouble: str) -> Iterator[None]:
    """Let only errors written for the server leave a site: other errors may name files and stay in its log."""
    try:
        yield
    except SiteError:
        raise
    except Exception as error:  # Flower logs the whole chain at the site, but sends the text of the last error
        raise SiteError(f"{trouble} ({type(error).__name__}); see logs/supernode.log at the site") from error


@contextmanager
def log_outcome(number: int) -> Iterator[None]:
    """Log a round's outcome with all details at the site; `fssl deploy site` shows these lines."""
    begun = time.perf_counter()
    try:
        yield
    except SiteError as error:
        cause = error.__cause__
        words = str(error) if cause is None else str(cause) if isinstance(cause, ProblemsError) else error_text(cause)
        for line in f"round {number}: this site cannot take part: {words}".split("\n"):
            complain(line)
        raise
    complain(f"round {number}: answered after {time.perf_counter() - begun:.1f} s")


def make_workshop(federation: Federation, client: int) -> Workshop:
    set_up_torch(federation)
    return Workshop(federation, Lanes(federation, most=1), message_forms(federation, client))


def at_site(config: Config, site: OwnSite) -> Config:
    if config.partition.file is not None:
        raise SiteError("partition.file: sites read no files that the server names")
    config = with_own_start(config, site.folder)
    own = load_toml(site.folder / "site.toml", "site.toml")
    check_promise(config, own.get("masked", False))
    device = check_value("device", own.get("device", "auto"), schema_of(Compute)["device"], "site.toml: ")
    allowed = own.get("own", [])
    config = with_own_files(config, site.folder, allowed if isinstance(allowed, list) else [])
    return replace(
        config,
        compute=replace(config.compute, device=device),
        data=replace(config.data, dir=str(site.data) if site.data else None),
    )


@app.query()
def report_client(message: Message, context: Context) -> Message:
    """Return which client this node is."""
    return Message(RecordDict({"who": ConfigRecord({"client": read_site(context).client})}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    return answered(message, context, trained)


@app.query(MEASURE.partition(".")[2])
def measure(message: Message, context: Context) -> Message:
    """Return the BatchNorm statistics of a model on a client's images."""
    return answered(message, context, measured)


@app.query(SCORE.partition(".")[2])
def score(message: Message, context: Context) -> Message:
    """Return a model's scores on a client's own test and validation images."""
    return answered(message, context, scored)


def answered(message: Message, context: Context, work: Callable[[Job, Message, OwnSite | None], RecordDict]) -> Message:
    """Return the reply to an order: in a simulation from any node, else only from the client's site."""
    job = read_job(message.content)
    if not job.run and "folder" not in context.node_config:
        return Message(work(job, message, None), reply_to=message)
    with log_outcome(job.round), hide_details("this site failed"):
        site = read_site(context)
        if not job.run:  # the order would name images and files, and the site's settings would not count
            raise SiteError("the order comes from a simulation; this site accepts only orders of `fssl deploy start`")
        if site.client != job.client:
            raise SiteError(f"this site is client {site.client}, but the order is for client {job.client}")
        return Message(work(job, message, site), reply_to=message)


def measured(job: Job, message: Message, site: OwnSite | None) -> RecordDict:
    """Return a model's statistics on the images of one client; the client keeps nothing of it."""
    federation, lanes, _ = workshop(job.config, site)
    check_masks(message, federation.config)
    form = Payload(federation.net.first, {})
    weights = to(fill(form, unpack(message.content["payload"])), federation.device).weights
    return sums_answer(job, lanes.client_sums(weights, job.client))


def scored(job: Job, message: Message, site: OwnSite | None) -> RecordDict:
    """Return sums over the client's own images; a site reports none for fewer images than its operator requires."""
    federation, lanes, _ = workshop(job.config, site)
    check_masks(message, federation.config)
    form = Payload(federation.net.first, {})
    weights = to(fill(form, unpack(message.content["payload"])), federation.device).weights
    found = lanes.site_score(weights, job.client)
    least = least_measured(site.folder) if site else 1
    return score_answer(job, found._replace(parts={k: s for k, s in found.parts.items() if s.images >= least}))


def least_measured(folder: Path) -> int:
    given = load_toml(folder / "site.toml", "site.toml").get("least_measured", LEAST_MEASURED)
    return given if isinstance(given, int) else LEAST_MEASURED


def trained(job: Job, message: Message, site: OwnSite | None) -> RecordDict:
    """Return the result of one client's round; its state stays at its site, or travels with the messages."""
    (federation, lanes, forms), content = workshop(job.config, site), message.content
    check_masks(message, federation.config)
    store = SiteState(site.folder, job.run, job.client) if site else None
    kept = store.after(job.counted) if store else sent_state(content)
    payload = to(fill(forms.payload, unpack(content["payload"])), federation.device)
    (plan,) = lanes.plans(job.round, [job.client])
    lane = lanes.lanes[0]
    with torch.no_grad(), lane.scope():
        result = lanes.client(lane, plan, payload, kept)
    if store:
        store.keep(job.round, result.state, job.counted, job.resumable)
    if is_masked(federation.config):
        return masked_answer(job, result, forms, federation.config, with_state=store is None)
    return answer(job, result, with_state=store is None)


def sent_state(content: RecordDict) -> State | None:
    return unpack(content["state"]) if "state" in content else None
