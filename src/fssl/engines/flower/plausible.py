"""Checks of a site's upload: its form is right, but can training give such values?

One site must not end a run or take it over. The bounds follow from what the server knows: the model that it
sent, and how many images the site can have. Within these bounds a site can still send any values.
"""

import math
from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

from torch import Tensor

from ...core.federation import Federation
from ...probes.tally import STEPS, Layout
from ...types import Payload, State, Upload
from .messages import BadUploadError

FAR = 1e4  # a value may move by so many times the largest one of the tensor that was sent, or of 1
LARGEST = 1e9  # of any other number of a message
MOST_STEPS = 10**7  # of a client in a round
VARIANCE = "running_var"  # ends the names of those that BatchNorm keeps
HALF, OUTSTANDING = 0.5, 10  # share of all weights; times the median of the updates
NOTABLE = 0.1  # of the model's own norm: smaller updates do no harm, and sites without labels hardly move at first
MOST_MOVED = 3.0  # times the model's own norm: one such update ruins the model


class Move(NamedTuple):
    """The norms of an update's parameters and buffers, as shares of the norms of the sent ones."""

    params: float
    buffers: float


MOVED = ("the model", "BatchNorm's statistics")  # in messages, in the order of Move


def check_values(upload: Upload, payload: Payload, tally: Tensor, layout: Layout) -> None:
    """Raise BadUploadError for negative variances, values far outside the broadcast model, and absurd sums."""
    sent = payload.weights
    for kind, new, old in zip(("params", "buffers"), upload.weights, sent, strict=True):
        for name, tensor in new.items():
            check_tensor(f"weights.{kind}.{name}", tensor, old.get(name))
    for name, tensor in upload.extras.items():
        check_tensor(f"extras.{name}", tensor, payload.extras.get(name))
    check_size("tally", tally)
    if STEPS in layout.sums:
        steps = float(tally[0, layout.sums.index(STEPS)])
        if not -0.5 < steps <= MOST_STEPS:
            raise BadUploadError(f"it counts {steps:g} steps, expected 0 to {MOST_STEPS:.0e}")


def check_tensor(name: str, tensor: Tensor, sent: Tensor | None) -> None:
    if name.endswith(VARIANCE) and tensor.numel() and float(tensor.min()) < 0:
        raise BadUploadError(f"{name} has a negative variance, {float(tensor.min()):g}")
    if sent is None or sent.shape != tensor.shape or not tensor.is_floating_point() or not tensor.numel():
        check_size(name, tensor)
        return
    sent = sent.to(tensor)
    moved, most = float((tensor - sent).abs().max()), FAR * max(1.0, float(sent.abs().max()))
    if moved > most:
        raise BadUploadError(f"{name} is {moved:.3g} away from the broadcast value, expected {most:.3g} at most")


def check_size(name: str, tensor: Tensor) -> None:
    largest = float(tensor.double().abs().max()) if tensor.numel() else 0.0
    if largest > LARGEST:
        raise BadUploadError(f"{name} has a value of {largest:.3g}, expected {LARGEST:.0e} at most")


def check_weight(samples: int, client: int, federation: Federation, most: int) -> None:
    """Raise BadUploadError for a weight other than that of the images dealt to a client, or above the server's cap."""
    if federation.config.data.name != "folder":
        known = federation.method.num_samples(federation.counts(client))
        if samples != known:
            raise BadUploadError(f"num_samples is {samples}, but this client was dealt {known}")
    elif most and samples > most:
        raise BadUploadError(f"num_samples is {samples}; most_images in server.toml allows {most}")


def moved_by(upload: Upload, payload: Payload) -> Move:
    return Move(*map(share_moved, upload.weights, payload.weights))


def share_moved(new: State, sent: State) -> float:
    """Return the norm of an update, as a share of the norm of the sent tensors."""
    update = {name: tensor - sent[name].to(tensor) for name, tensor in new.items() if name in sent}
    return norm(update) / max(norm({name: sent[name] for name in update}), 1e-12)


def norm(tensors: State) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors.values()))


def outstanding(weights: Mapping[int, int], moves: Mapping[int, Move]) -> list[str]:
    """Return a line per client with more than half of the weight, or an update of more than ten times the median."""
    total = sum(weights.values())
    heavy = [
        f"client {client} has {weight / total:.0%} of the weight in the mean"
        for client, weight in weights.items()
        if len(weights) > 2 and weight > HALF * total
    ]
    return heavy + [f"client {client} {how}" for client, how in far_ahead(moves, NOTABLE).items()]


def far_ahead(moves: Mapping[int, Move], least: float) -> dict[int, str]:
    """Return the clients whose update is longer than `least` and than ten times the median, with both lengths."""
    found: dict[int, str] = {}
    if len(moves) > 2:  # of two, either may be the wrong one
        for part, shares in zip(MOVED, zip(*moves.values(), strict=True), strict=True):
            usual = median(shares)
            for client, share in zip(moves, shares, strict=True):
                if share > max(OUTSTANDING * usual, least):
                    how = f"moved {part} by {share:.0%} of its norm, the median client by {usual:.2%}"
                    found.setdefault(client, how)
    return found
