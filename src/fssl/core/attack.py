"""Simulated malicious clients: the uploads they send instead of honest ones."""

import numpy as np
import torch

from ..config import Config
from ..data.partition import Index
from ..seeds import stream
from ..training.plan import Site
from ..types import Payload, State, Upload, Weights

VARIANCE = "running_var"  # suffix of BatchNorm's variances, which a server expects to be positive


def attacked_upload(config: Config, round: int, upload: Upload, payload: Payload) -> Upload:
    """Return a client's upload, changed by the attack if the client is malicious."""
    attack = config.attack
    if attack.kind in ("none", "labels") or upload.client >= attack.attackers:
        return upload
    rng = stream(config.seed, "attack", round, upload.client)
    factor = attack.factor if attack.kind != "sign" else -attack.factor

    def changed(sent: State, honest: State) -> State:
        return {name: plausible(name, one(sent[name], tensor)) for name, tensor in honest.items()}

    def one(sent: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        update = tensor - sent
        if attack.kind != "noise":
            return sent + factor * update
        noise = torch.from_numpy(rng.standard_normal(update.shape)).to(tensor)
        return tensor + factor * update.square().mean().sqrt() * noise

    pairs = zip(payload.weights, upload.weights, strict=True)
    return upload._replace(weights=Weights(*(changed(sent, honest) for sent, honest in pairs)))


def plausible(name: str, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clamp(min=0) if name.endswith(VARIANCE) else tensor


def mislabeled(config: Config, sites: list[Site]) -> Index:
    """Return the rows whose labels are reversed: labeled images of malicious clients."""
    bad = sites[: config.attack.attackers] if config.attack.kind == "labels" else []
    return np.concatenate([np.zeros(0, np.int64), *(site.labeled for site in bad)])
