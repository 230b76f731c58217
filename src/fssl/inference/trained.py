"""A run's final model, ready for new images."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..augment.normalize import Normalize
from ..config import Config
from ..core.evaluate import BATCH, headline_norm, model_facts, norms_for_test
from ..core.images import known_card
from ..core.network import make_net
from ..data.cards import Card
from ..engines.snapshot import in_order
from ..errors import UserError
from ..methods.names import with_defaults
from ..models import Net, switch_tf32_off
from ..records.store import RunFolder
from ..system.user_code import digest_of
from ..types import State, Weights, take

Facts = dict[str, Any]


class Trained(NamedTuple):
    """A model with everything it needs to look at an image; fp32, whatever it was trained with."""

    config: Config
    card: Card
    net: Net
    weights: Weights
    normalize: Normalize  # that of the run's result
    round: int | None = None  # that it was trained to; models of early versions do not tell

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names, or numbers where the dataset has no names."""
        return self.card.class_names

    def on(self, device: torch.device) -> "Trained":
        """This model on another device."""
        if self.normalize.scale.device.type == device.type:
            return self
        weights = Weights(*({name: t.to(device) for name, t in tree.items()} for tree in self.weights))
        return self._replace(weights=weights, normalize=normalize_of(self.config, self.card, device))

    def probabilities(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """[N, classes], for images [N, H, W, C] of the size that `card` says."""
        expected = (self.card.size, self.card.size, self.card.channels)
        if images.dtype != np.uint8 or images.shape[1:] != expected:
            raise ValueError(f"images are {images.dtype} {images.shape}, expected uint8 [N, {expected}]")
        size = BATCH[self.normalize.scale.device.type]
        parts = [self._batch(images[i : i + size]) for i in range(0, len(images), size)]
        return np.concatenate([np.zeros((0, len(self.classes)), np.float32), *parts])

    @torch.no_grad()
    def _batch(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        pixels = torch.from_numpy(np.array(images)).to(self.normalize.scale.device)
        return self.net.infer(self.weights, self.normalize(pixels)).logits.softmax(-1).cpu().numpy()


def best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def normalize_of(config: Config, card: Card, device: torch.device) -> Normalize:
    return norms_for_test(card, device)[headline_norm(config)]


def load_trained(run: Path, device: torch.device | None = None) -> Trained:
    """The final model of a finished run, by its folder; on a GPU, if there is one and no other device is named."""
    folder = RunFolder(run)
    folder.check_finished()
    switch_tf32_off()
    config, device = with_defaults(folder.config()), device or best_device()
    card = known_card(config)
    digest_of("model", config.model.name, config.model.digest)  # refuses to run another file than the run's
    net = make_net(config, card)
    tensors, facts = folder.model()
    check_facts(folder, facts, model_facts(config, card))
    weights = usable_weights(folder, tensors, net)
    weights = Weights(*({name: t.to(device) for name, t in tree.items()} for tree in weights))
    return Trained(config, card, net, weights, normalize_of(config, card, device), (facts or {}).get("round"))


def check_facts(folder: RunFolder, facts: Facts | None, expected: Facts) -> None:
    """Refuse a model that was trained for other images than this version would give it."""
    for name, value in expected.items():
        if facts and facts.get(name) != value:
            raise UserError(f"{folder.model_file} was trained with {name} = {facts.get(name)}, not with {value}")


def usable_weights(folder: RunFolder, tensors: State, net: Net) -> Weights:
    """Weights in the network's order; refused if they do not fit, or are not numbers."""
    refusal = f"{folder.model_file} does not fit the network of {folder.config_file}"
    found = zip(net.first, (take("params.", tensors), take("buffers.", tensors)), strict=True)
    weights = Weights(*(in_order(like, tree, refusal) for like, tree in found))
    for name, tensor in {**weights.params, **weights.buffers}.items():
        if not torch.isfinite(tensor).all():
            raise UserError(f"{folder.model_file}: {name} has values that are not finite; the training diverged")
    return weights
