"""The client's app: a payload and a job in, one client's round, an upload out."""

import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from ...config import parse
from ...core.federation import Federation
from ...types import State
from ..local import Lanes, set_up_torch
from ..rounds import to
from .messages import Forms, answer, fill, forms_of, job_of, unpack
from .state import SiteState

app = ClientApp()


class Workshop(NamedTuple):
    """What a process keeps between messages: only to be faster, never for the result."""

    federation: Federation
    lanes: Lanes
    forms: Forms


@lru_cache(maxsize=1)
def workshop(config: str, site: str) -> Workshop:
    federation = Federation(parse(with_site(tomllib.loads(config), site)))
    set_up_torch(federation)
    return Workshop(federation, Lanes(federation, most=1), forms_of(federation))


def with_site(tables: dict[str, Any], site: str) -> dict[str, Any]:
    """The server's settings, with the site's own say about where its images are and on what to compute."""
    own = tomllib.loads(site)
    return {**tables, **{section: {**tables.get(section, {}), **own[section]} for section in own}}


@app.query()
def who(message: Message, context: Context) -> Message:
    """Which client this node is."""
    return Message(RecordDict({"who": ConfigRecord({"client": number(context)})}), reply_to=message)


def number(context: Context) -> int:
    return int(context.node_config["partition-id"])


@app.train()
def train(message: Message, context: Context) -> Message:
    job = job_of(message.content)
    federation, lanes, forms = workshop(job.config, str(context.node_config.get("settings", "")))
    state_comes_along = not job.run
    if state_comes_along:
        kept: State | None = unpack(message.content["state"]) if "state" in message.content else None
    else:
        place = Path(str(context.node_config["folder"]))
        store = SiteState(place, job.run, job.client)
        kept = store.before(job.round)
    payload = to(fill(forms.payload, unpack(message.content["payload"])), federation.device)
    (plan,) = lanes.plans(job.round, [job.client])
    lane = lanes.lanes[0]
    with torch.no_grad(), lane.scope():
        result = lanes.client(lane, plan, payload, kept)
    if not state_comes_along:
        store.keep(job.round, result.state, job.resumable)
    return Message(answer(job, result, state_comes_along), reply_to=message)
