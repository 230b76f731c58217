"""Several devices: each has lanes, images and a copy of the model. Clients are split by their amount of work."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ..core.client import ClientResult
from ..core.federation import Federation
from ..core.site_scores import SiteScore
from ..core.static_norm import NormSums
from ..types import Weights
from .lanes import Lane, Lanes
from .named_tensors import to
from .snapshot import Snapshot


class Spread:
    """Clients on the lanes of several devices; results move to the first device, which computes the mean."""

    def __init__(self, federation: Federation, debug: bool = False) -> None:
        self.federation = federation
        most = -(-federation.config.train.clients_per_round // len(federation.devices))
        self.groups: list[Lanes] = []
        for device in federation.devices:
            with working_on(device):
                self.groups.append(Lanes(federation.on(device), debug, most))

    def train(self, round: int, clients: list[int], snapshot: Snapshot) -> Iterable[ClientResult]:
        """Train on all devices at once, one thread each, and return the results in the clients' order."""
        shares = self._shares(clients)
        pool = ThreadPoolExecutor(len(self.groups))
        try:
            jobs = [pool.submit(self._train_on, group, round, share, snapshot) for group, share in shares]
            made = [result for job in jobs for result in job.result()]
        finally:
            pool.shutdown(wait=False)  # an interrupt must not wait for the clients under way
        by_client = {result.upload.client: result for result in made}
        return [by_client[client] for client in clients]

    def _train_on(self, group: Lanes, round: int, clients: list[int], snapshot: Snapshot) -> list[ClientResult]:
        with working_on(group.device), torch.no_grad():
            server = snapshot.server._replace(**moved(snapshot, group.device))
            here = snapshot._replace(server=server, optimizer=to(snapshot.optimizer, group.device))
            return [to(result, self.federation.device) for result in group.train(round, clients, here)]

    def measure(self, round: int, weights: Weights) -> Iterable[NormSums]:
        """Return BatchNorm's statistics of each client, computed on the first device, where the model is."""
        return self.groups[0].measure(round, weights)

    def score(self, round: int, weights: Weights) -> Iterable[SiteScore]:
        """Return the model's score on each client's images, computed on the first device, where the model is."""
        return self.groups[0].score(round, weights)

    def prepare(self, round: int, clients: list[int]) -> None:
        for group, share in self._shares(clients):
            group.prepare(round, share)

    def _shares(self, clients: list[int]) -> list[tuple[Lanes, list[int]]]:
        shares = deal(clients, self.federation.work, len(self.groups))
        return [(group, share) for group, share in zip(self.groups, shares, strict=True) if share]

    @property
    def lanes(self) -> list[Lane]:
        return [lane for group in self.groups for lane in group.lanes]

    def close(self) -> None:
        for group in self.groups:
            group.close()


def moved(snapshot: Snapshot, device: torch.device) -> dict[str, Any]:
    """Return the server's state on a device, without its memory of clients, which stays on the host."""
    parts = snapshot.server._asdict()
    return {name: to(part, device) for name, part in parts.items() if name != "memory"}


def deal(clients: Sequence[int], work: Callable[[int], int], number: int) -> list[list[int]]:
    """Split clients into shares of roughly equal work (greedy, longest first), keeping their order within a share."""
    shares: list[list[int]] = [[] for _ in range(number)]
    loads = [0] * number
    for client in sorted(clients, key=work, reverse=True):
        least = loads.index(min(loads))
        shares[least].append(client)
        loads[least] += work(client)
    place = {client: i for i, client in enumerate(clients)}
    return [sorted(share, key=place.__getitem__) for share in shares]


def working_on(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which `cuda` means this GPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
