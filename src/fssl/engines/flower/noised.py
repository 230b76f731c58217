"""Central differential privacy with Flower's clipping and noise: what one client adds to the mean is bounded.

Only parameters are clipped and get noise. BatchNorm's running statistics never enter the norm, and the
guarantee does not cover them.
"""

from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from ...core.federation import Federation
from ...types import Payload, Server, State, Upload
from .internals import add_noise, clip_update


class ClippedNoise(NamedTuple):
    """A bound on each client's update, and the noise on the mean in multiples of what one client can add."""

    clip: float
    noise: float

    def clipped(self, upload: Upload, payload: Payload) -> Upload:
        """Return the upload moved towards the payload; all clients have the same weight."""
        old = payload.weights.params
        new = [t.double().cpu().numpy() for t in upload.weights.params.values()]
        sent = [old[name].double().cpu().numpy() for name in upload.weights.params]
        if any((a != b).any() for a, b in zip(new, sent, strict=True)):  # without a change no direction exists
            clip_update(new, sent, self.clip)
        params = as_before(upload.weights.params, new)
        return upload._replace(weights=upload.weights._replace(params=params), num_samples=1)

    def noised(self, server: Server, used: int) -> Server:
        """Return the server with noise on the mean of `used` clients."""
        # The randomness is the system's: with a known seed the noise could be removed.
        params = server.weights.params
        arrays = [t.double().cpu().numpy().copy() for t in params.values()]
        add_noise(arrays, self.noise, self.clip, used)
        return server._replace(weights=server.weights._replace(params=as_before(params, arrays)))


def as_before(like: State, arrays: list[NDArray[Any]]) -> State:
    return {name: torch.from_numpy(a).to(t) for (name, t), a in zip(like.items(), arrays, strict=True)}


def make_privacy(federation: Federation) -> ClippedNoise | None:
    """Return the privacy of the settings; `prepare` rejects it for methods that use more than the mean."""
    settings = federation.config.privacy
    return None if settings.clip is None else ClippedNoise(settings.clip, settings.noise)
