"""A run's model for new images: the final one, the best one, or that of the newest checkpoint."""

from pathlib import Path, PurePath
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..augment.policies import Normalize
from ..catalog.facts import with_defaults
from ..config import Config
from ..core.assembly import make_module, make_net, make_part
from ..core.evaluate import BATCH, headline_norm, model_facts, norms_for_test
from ..core.images import known_card
from ..data.cards import Card
from ..engines.snapshot import fitted, models_in
from ..errors import UserError, shortened, unknown
from ..methods.names import build_method
from ..models import Net, switch_tf32_off
from ..models.trainable import ALL
from ..records.checkpoint import Saved
from ..records.layout import BEST
from ..records.saved_models import Models
from ..records.store import RunFolder
from ..start import first_weights
from ..system.user_code import digest_of
from ..types import State, Weights, packed, unpacked
from .inputs import Given, as_given, as_pixels, check_floats

Facts = dict[str, Any]
LENT = Lock()  # a call lends its weights to the network's module, so only one thread of a server may call it
CLASSES_SHOWN = 10  # classes in a model's one-line description
WHICH = ("", BEST, "plain", "ema")  # the run's default model, or one of several


class Predictions(NamedTuple):
    """Predictions with one entry per image; `truth` is set if it is known for all images."""

    classes: tuple[str, ...]
    names: list[str]
    probabilities: NDArray[np.float32]
    truth: NDArray[np.int64] | None

    @property
    def said(self) -> NDArray[np.int64]:
        return np.asarray(self.probabilities.argmax(-1))

    @property
    def labels(self) -> list[str]:
        """Return the name of the likeliest class of each image."""
        return [self.classes[c] for c in self.said]

    @property
    def confidence(self) -> NDArray[np.float32]:
        return np.asarray(self.probabilities.max(-1))


class Trained(NamedTuple):
    """A trained model with everything it needs to classify images, in fp32.

    Attributes:
        config: The settings of its run.
        card: The facts about its images, such as `size` and `channels`.
        net: The network, without weights.
        weights: The weights.
        normalize: The normalization of the run's result.
        round: The last round of its training.

    Examples:
        >>> model = fssl.load("runs/smoke")
        >>> model.classes, model.predict("photos").labels
    """

    config: Config
    card: Card
    net: Net
    weights: Weights
    normalize: Normalize
    round: int

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the classes' names, or numbers if the dataset has no names."""
        return self.card.class_names

    def __repr__(self) -> str:
        """Return a one-line description, without the weights."""
        method, network, card = self.config.method.name, self.config.model.name, self.card
        images = f"{card.size}x{card.size}x{card.channels}"
        return (
            f"Trained(method={method!r}, network={network!r}, data={self.config.data.name!r}, images={images!r},"
            f" classes=({shortened([*map(repr, self.classes)], CLASSES_SHOWN)}), round={self.round})"
        )

    def on(self, device: torch.device) -> "Trained":
        """Return this model on another device."""
        if self.normalize.scale.device.type == device.type:
            return self
        weights = Weights(*({name: t.to(device) for name, t in tree.items()} for tree in self.weights))
        return self._replace(weights=weights, normalize=normalize_of(self.config, self.card, device))

    def predict(self, images: Given) -> Predictions:
        """Return the model's predictions for images.

        Args:
            images: Files or folders, the bytes of image files, or an array or tensor: uint8 of any size, or floats from
                0 to 1 of the model's size. Files, bytes and uint8 pixels become the model's size as in training. To a
                model of one channel [N, H, W] is N gray images.

        Returns:
            `labels` (names of the likeliest classes), `confidence`, `probabilities` [N, classes], `names`, `classes`.

        Raises:
            UserError: An image cannot be read, or the pixels are invalid.

        Examples:
            >>> fssl.load("runs/smoke").predict("photos/cat.jpg").labels
        """
        names, pixels = as_given(images, self.card)
        is_pixels = isinstance(images, np.ndarray | torch.Tensor)
        truth = None if is_pixels else truth_of(names, self.classes)
        return Predictions(self.classes, names, self.probabilities(pixels), truth)

    def probabilities(self, images: NDArray[Any]) -> NDArray[np.float32]:
        """Return probabilities [N, classes] for images [N, H, W, C] of `card`'s size: uint8, or float32 from 0 to 1."""
        expected = (self.card.size, self.card.size, self.card.channels)
        if images.dtype not in (np.uint8, np.float32) or images.shape[1:] != expected:
            wanted = f"expected uint8, or float32 from 0 to 1, of [N, {', '.join(map(str, expected))}]"
            raise UserError(f"images are {images.dtype} {list(images.shape)}, {wanted}")
        if images.dtype == np.float32:
            check_floats(images)
        size = BATCH[self.normalize.scale.device.type]
        parts = [self._batch(images[i : i + size]) for i in range(0, len(images), size)]
        return np.concatenate([np.zeros((0, len(self.classes)), np.float32), *parts])

    @torch.no_grad()
    def _batch(self, images: NDArray[Any]) -> NDArray[np.float32]:
        pixels = as_pixels(images, self.normalize.scale.device)
        with LENT:
            return self.net.infer(self.weights, self.normalize(pixels)).logits.softmax(-1).cpu().numpy()

    def module(self) -> nn.Module:
        """Return the network as a module with these weights, in evaluation mode; it returns features and logits."""
        module = make_module(self.config, self.card)
        # Names are checked already. With strict=True, a BatchNorm without its counter would reject the one it adds.
        module.load_state_dict(self.tensors(), strict=False)
        return module.eval().requires_grad_(False).to(self.normalize.scale.device)

    def tensors(self) -> State:
        """Return parameters and buffers by their names in the network."""
        return {name: t.contiguous() for tree in self.weights for name, t in tree.items()}


def truth_of(names: list[str], classes: tuple[str, ...]) -> NDArray[np.int64] | None:
    """Return the true classes if every image lies in or below a folder named after a class; else None."""
    found = [class_above(name, classes) for name in names]
    return np.array([classes.index(c) for c in found if c]) if all(found) else None


def class_above(name: str, classes: tuple[str, ...]) -> str | None:
    """Return the nearest folder above an image that has a class's name."""
    return next((folder.name for folder in PurePath(name).parents if folder.name in classes), None)


def best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def normalize_of(config: Config, card: Card, device: torch.device) -> Normalize:
    return norms_for_test(card, device)[headline_norm(config)]


class FoundModel(NamedTuple):
    """A model in a run folder: its file, its tensors and its recorded facts."""

    file: Path
    tensors: State
    facts: Facts


def load_trained(run: Path, device: torch.device | None = None, which: str = "") -> Trained:
    """Load a model from a run folder, onto a GPU if there is one and `device` names no other.

    Args:
        run: The run folder.
        device: The device to compute on.
        which: "best", "plain" or "ema" for one of several; by default the run's model of its last round. An unfinished
            run has the models of its newest checkpoint.
    """
    if which not in WHICH:
        raise unknown("model", which, WHICH[1:])
    folder = RunFolder(run)
    folder.check_run()
    switch_tf32_off()
    config, device = with_defaults(folder.config()), device or best_device()
    card = known_card(config)
    digest_of("model", config.model.name, config.model.digest)  # reject a file other than the run's
    net = make_net(config, card)
    model = find_model(folder, config, which)
    check_facts(model, model_facts(config, card))
    weights = usable_weights(folder, model, net)
    return as_trained(config, card, net, weights, model.facts["round"]).on(device)


def as_trained(config: Config, card: Card, net: Net, weights: Weights, round: int) -> Trained:
    """Return the model of these weights, on their device."""
    device = next(iter(weights.params.values())).device
    return Trained(config, card, net, weights, normalize_of(config, card, device), round)


def model_notes(model: Trained, run: Path, which: str) -> list[str]:
    """Return lines that name the model of its run, where it may be mistaken for another."""
    said = []
    if which == BEST:
        said = [f"by the best model, that of round {model.round}"]
    elif model.round < model.config.rounds and not RunFolder(run).is_finished:
        said = [f"by the model of round {model.round}; the run continues to round {model.config.rounds}"]
    if not which and model.config.server.ship == "ema":
        said += ["by the smoothed model (server.ship = ema); --model plain uses the other"]
    return said


def find_model(folder: RunFolder, config: Config, which: str) -> FoundModel:
    """Return the model in its file, or that of the newest checkpoint if it is newer."""
    models = Models(folder)
    file = models.named(which) if which else folder.model_file
    if which == "plain" and not file.is_file():  # a run with a single model writes only model.safetensors
        file = folder.model_file
    saved = models.newest_state() if models.was_extended or not file.is_file() else None
    if saved is None and file.is_file():
        return FoundModel(file, *models.read(file))
    if which == BEST and not config.records.keep_best:
        raise UserError(f"{folder.path} keeps no best model; runs with records.keep_best = true do")
    if which == "ema" and config.server.ema is None:
        raise UserError(f"{folder.path} has no smoothed model; runs with server.ema do")
    return model_in_checkpoint(folder, config, which, saved)


def model_in_checkpoint(folder: RunFolder, config: Config, which: str, saved: Saved | None) -> FoundModel:
    """Return a model of an unfinished run."""
    if saved is None or saved.round == 0:
        raise UserError(
            f"{folder.path} has no model yet: it has no finished round with a checkpoint; resume the run", "resume"
        )
    file, round, name = folder.path / "checkpoint", saved.round, which or config.server.ship
    server, model = models_in(saved.tensors)
    net = net_of_rounds(config)
    if name == "plain":
        digest_of("method", config.method.name, config.method.digest)  # and another method
        model = build_method(config.method.name, dict(config.method.settings)).deploy(net, server)
    if name == BEST:
        if not saved.parts:
            raise UserError(f"{folder.path} has no best round yet")
        part, tensors = next(iter(saved.parts.items()))
        model, round = unpacked("", tensors), int(part.partition(".")[2])
    tensors = packed("", net.whole(model))
    return FoundModel(file, tensors, {"round": round, **model_facts(config, known_card(config))})


def net_of_rounds(config: Config) -> Net:
    """Return the network whose weights a checkpoint contains: all of it, or the part that trains."""
    net = make_net(config, card := known_card(config))
    return net if config.model.trainable == ALL else make_part(config, net, first_weights(config, card, net).weights)


def check_facts(model: FoundModel, expected: Facts) -> None:
    """Reject a model that was trained for other inputs than this version would pass to it."""
    for name, value in expected.items():
        if model.facts.get(name) != value:
            raise UserError(f"{model.file} was trained with {name} = {model.facts.get(name)}, not with {value}")
    round = model.facts.get("round")
    if not isinstance(round, int):
        raise UserError(f"{model.file} was trained to round {round!r:.60}, expected a whole number")


def usable_weights(folder: RunFolder, model: FoundModel, net: Net) -> Weights:
    """Return weights in the network's order; reject them if they do not fit or are not finite."""
    refusal = f"{model.file} does not fit the network of {folder.config_file}"
    weights: Weights = fitted(net.first, model.tensors, refusal)
    for name, tensor in {**weights.params, **weights.buffers}.items():
        if not torch.isfinite(tensor).all():
            raise UserError(f"{model.file}: {name} has values that are not finite; the training diverged")
    return weights
