"""Central differential privacy with Flower's clipping and noise: what one client adds to the mean is bounded.

Only parameters are clipped and get noise. BatchNorm's running statistics never enter the norm, and the
guarantee does not cover them.
"""

from typing import Any, NamedTuple

import torch
from flwr.supercore.differential_privacy import add_gaussian_noise_inplace, compute_clip_model_update, compute_stdv
from numpy.typing import NDArray

from ...core.federation import Federation
from ...errors import UserError
from ...methods import Method
from ...types import Server, State, Upload
from .messages import Forms


class Privacy(NamedTuple):
    """A bound on each client's update, and the noise on the mean in multiples of what one client can add."""

    clip: float
    noise: float

    def clipped(self, upload: Upload, payload: Server) -> Upload:
        """The upload moved towards what the client got; all clients count the same, whatever they say they hold."""
        old = payload.weights.params
        new = [t.double().cpu().numpy() for t in upload.weights.params.values()]
        sent = [old[name].double().cpu().numpy() for name in upload.weights.params]
        if any((a != b).any() for a, b in zip(new, sent, strict=True)):  # else there is no direction to keep
            compute_clip_model_update(new, sent, self.clip)
        params = as_before(upload.weights.params, new)
        return upload._replace(weights=upload.weights._replace(params=params), num_samples=1)

    def noised(self, server: Server, used: int) -> Server:
        """The mean of `used` clients with noise. Its randomness is the system's: from a seed it could be undone."""
        params = server.weights.params
        arrays = [t.double().cpu().numpy().copy() for t in params.values()]
        add_gaussian_noise_inplace(arrays, compute_stdv(self.noise, self.clip, used))
        return server._replace(weights=server.weights._replace(params=as_before(params, arrays)))


def as_before(like: State, arrays: list[NDArray[Any]]) -> State:
    return {name: torch.from_numpy(a).to(t) for (name, t), a in zip(like.items(), arrays, strict=True)}


def privacy_of(federation: Federation, forms: Forms) -> Privacy | None:
    """What the configuration asks for; refused where a method uses more of an upload than its mean."""
    settings, method = federation.config.privacy, federation.method
    if settings.clip is None:
        return None
    if type(method).aggregate is not Method.aggregate or forms.upload.extras:
        name = federation.config.method.name
        raise UserError(
            f"privacy.clip: method '{name}' uses more of an upload than the mean of its parameters, "
            "which clipping and noise do not cover; choose another method"
        )
    return Privacy(settings.clip, settings.noise)
