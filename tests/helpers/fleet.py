"""The fleet behind Flower without any Flower process: a grid that calls the clients' app, and sites that lie."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.engines.flower.client_app import measure, score, train
from fssl.engines.flower.fleet import FlowerFleet, Policy
from fssl.engines.flower.messages import MEASURE, SCORE, TENSORS, pack, unpack
from fssl.engines.flower.nodes import Connected

from .small import tiny_config

SETTINGS = ("train.steps_per_round=2", "data.labels_per_class=2", "train.clients_per_round=3")
RUN = "0123456789abcdef"
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # messages want to know who sends them
Handler = Callable[[Message], Message | None]


class Grid:
    """Flower's grid as far as a fleet uses it: a message is handled when its reply is asked for."""

    def __init__(self, handle: Handler, nodes: Iterable[int]) -> None:
        self.handle, self.nodes = handle, list(nodes)
        self.messages: dict[str, Message] = {}
        self.most_under_way = 0

    def get_node_ids(self) -> list[int]:
        return self.nodes

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            ids.append(f"{len(self.messages)}-{message.metadata.dst_node_id}-{id(message)}")
            self.messages[ids[-1]] = message
        self.most_under_way = max(self.most_under_way, len(self.messages))
        return ids

    def pull_messages(self, ids: Iterable[str]) -> Iterator[Message]:
        for number in ids:
            reply = self.handle(self.messages[number])
            if reply is not None:
                del self.messages[number]
                yield reply


def federation_of(*settings: str) -> Federation:
    return Federation(prepare(tiny_config(*SETTINGS, *settings)))


def at_client(message: Message, context: Context) -> Message:
    """What the client's app does with a message of this type."""
    return {MEASURE: measure, SCORE: score}.get(message.metadata.message_type, train)(message, context)


def at_sites(folder: Path, settings: str = "") -> Handler:
    """Every client at a site of its own, with a folder on disk."""

    def handle(message: Message) -> Message:
        client = message.metadata.dst_node_id
        place = folder / f"site-{client}"
        place.mkdir(exist_ok=True)
        (place / "site.toml").write_text(settings)
        node = {"partition-id": client, "num-partitions": 4, "folder": str(place)}
        return at_client(message, Context(1, client, node, RecordDict(), {}))

    return handle


class ByNumber:
    """Client k is node k."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def of(self, clients: list[int]) -> Connected:
        return Connected({k: k for k in clients if k in self.grid.nodes}, {})


def fleet_of(federation: Federation, handle: Handler, said: list[str] | None = None, **policy: Any) -> FlowerFleet:
    grid: Any = Grid(handle, policy.pop("nodes", range(federation.config.partition.clients)))
    rules = Policy(**{"window": 4, "strict": False, "run": RUN, "poll": 0.0, **policy})
    return FlowerFleet(federation, grid, ByNumber(grid), rules, (said if said is not None else []).append)


def attacked_upload(content: RecordDict, how: str) -> None:
    arrays, facts = content["upload"], content["facts"]
    tensors = unpack(arrays)
    name = max(tensors)
    changed = {
        "nan": torch.full_like(tensors[name], torch.nan),
        "shape": torch.zeros(3, 1),
        "type": tensors[name].double(),
    }
    if how in changed:
        content["upload"] = pack({**tensors, name: changed[how]})
    elif how == "lost":
        content["upload"] = pack({key: value for key, value in tensors.items() if key != name})
    elif how == "count":
        facts["num_samples"] = 10**15
    elif how == "negative":
        facts["num_samples"] = -1
    elif how == "another":
        facts["client"] = 99
    elif how == "garbage":
        arrays[TENSORS].data = b"no array"
    elif how == "bytes":
        arrays[TENSORS] = Array(np.zeros(100, np.uint8))
    elif how == "cut":
        arrays[TENSORS] = Array(arrays[TENSORS].numpy()[:-1])
    elif how == "name":
        content["upload"] = ArrayRecord({"x": arrays[TENSORS]})
    elif how == "empty":
        del content["upload"]
    elif how == "huge":
        content["upload"] = pack({**tensors, name: torch.full_like(tensors[name], 3e38)})
    elif how == "variance":
        name = max(key for key in tensors if key.endswith("running_var"))
        content["upload"] = pack({**tensors, name: -torch.ones_like(tensors[name])})
    elif how == "unknown":
        content["upload"] = pack({**tensors, "more": torch.zeros(10)})
    elif how == "weight":
        facts["num_samples"] = 10**8
    elif how == "steps":
        content["tally"] = pack({"tally": -unpack(content["tally"])["tally"]})
    elif how == "sums":
        content["tally"] = pack({"tally": unpack(content["tally"])["tally"] + 1e30})
    elif how == "tally":
        content["tally"] = pack({"tally": torch.full_like(unpack(content["tally"])["tally"], torch.inf)})
