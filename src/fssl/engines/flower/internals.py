"""Flower's texts, statuses and private modules: all of this depends on Flower 1.41 and its Ray backend.

Look here first when Flower's version changes. Private modules are imported inside the functions, so that the command
line can use the texts without loading Flower.
"""

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

LOGGER = "flwr"  # the name of Flower's logger
ERROR = "ERROR"  # how a line of an error in a log begins
CONNECTED = "SuperNode ID:"  # in the log of a SuperNode once it is connected
REFUSED = "Failed to activate SuperNode"  # in the log of a SuperNode whose key is not registered
UNAVAILABLE = "SuperLink is unavailable"  # in an error of the `flwr` command
EMPTY_POOL = "ActorPool is empty"  # in the ValueError of a Ray cluster with too few resources
ONLINE = "online"  # status of a node; "online-at" and "offline-at" are the times
WRAPPING = ("Message: ", "occurred. ")  # what precedes an exception's own message


def has_finished(status: str) -> bool:
    """Whether a run's status is final: `finished:completed`, `finished:failed` or `finished:stopped`."""
    return status.startswith("finished")


def lacks_connection(reason: str, connection: str) -> bool:
    """Whether the `flwr` command failed because its configuration does not name this connection."""
    text = reason.lower()
    return f"connection '{connection}'" in text and "not found" in text


def tidy(reason: str) -> str:
    """The message of an exception at a client, without what Flower wraps around it."""
    text = re.sub(r"^<class '[^']*'>:<'", "", " ".join(reason.split()))
    for mark in WRAPPING:
        text = text.rpartition(mark)[2]
    return text.rstrip("'>") or "failed without a reason"


def count_actors(resources: dict[str, float]) -> int:
    """The number of clients with these resources that fit into the running Ray cluster."""
    from flwr.simulation.ray_transport.ray_actor import pool_size_from_resources

    return pool_size_from_resources(resources)


def clip_update(new: list["NDArray[Any]"], old: list["NDArray[Any]"], clip: float) -> None:
    """Move `new` towards `old`, in place, until their distance is at most `clip`."""
    from flwr.supercore.differential_privacy import compute_clip_model_update

    compute_clip_model_update(new, old, clip)


def add_noise(arrays: list["NDArray[Any]"], noise: float, clip: float, clients: int) -> None:
    """Add Gaussian noise, in place, to a mean over clients whose updates were clipped."""
    from flwr.supercore.differential_privacy import add_gaussian_noise_inplace, compute_stdv

    add_gaussian_noise_inplace(arrays, compute_stdv(noise, clip, clients))
