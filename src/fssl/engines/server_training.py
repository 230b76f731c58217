"""The server's training on its labeled images: one more site, in a separate lane."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.federation import OWN_NUMBER, Federation
from ..types import Payload, Server, State, Weights
from .lanes import Lanes


class OwnRound(NamedTuple):
    """The result of the server's training."""

    server: Server
    kept: State  # the server's momentum, if clients keep theirs
    tally: Tensor | None  # [2, P]; None before it has trained


class OwnTraining:
    """Steps of the server on its labeled images, the same as a client's, wherever clients train."""

    def __init__(self, federation: Federation, debug: bool = False) -> None:
        self.lanes = Lanes(federation, debug, most=1)

    def train(self, round: int, server: Server, kept: State, number: int = OWN_NUMBER) -> OwnRound:
        """Return the server after its epochs of a round; `kept` is its momentum from the previous round."""
        federation, (lane,) = self.lanes.federation, self.lanes.lanes
        own = {name: server.weights.params[name] for name in federation.net.first.params}  # a method may have more
        (plan,) = self.lanes.plans(round, [number])
        with torch.no_grad(), lane.scope():
            payload = Payload(Weights(own, server.weights.buffers), {})
            upload, state, _, tally = self.lanes.client(lane, plan, payload, kept or None)
        weights = Weights({**server.weights.params, **upload.weights.params}, upload.weights.buffers)
        return OwnRound(server._replace(weights=weights), state, tally)

    def warmed_up(self, before: OwnRound) -> OwnRound:
        """Return the server after `server.warmup` trainings before the first round, at that round's learning rate."""
        for times in range(self.lanes.federation.config.server.warmup):
            before = self.train(1, before.server, before.kept, OWN_NUMBER - 1 - times)
        return before._replace(tally=None)

    def sums(self, trained: OwnRound) -> dict[str, NDArray[np.float64]]:
        """Return the sums measured over the steps of a round, on the host."""
        assert trained.tally is not None
        return self.lanes.federation.layout.unpack(trained.tally[0].cpu().numpy())


def own_training(federation: Federation, debug: bool = False) -> OwnTraining | None:
    """Return the server's training; None if the server takes no steps."""
    return OwnTraining(federation.of_server(), debug) if federation.config.server_epochs else None
