"""The network that an experiment's settings name."""

from typing import Any

from torch import nn

from ..config import Config, Model
from ..data.cards import Card
from ..models import Net, build_module, build_net

ALWAYS_FIT = ("resnet8", "cnn", "resnet18", "wrn-28-2", "wrn-28-8")  # whatever the images' size


def make_net(config: Config, card: Card, bf16: bool = False) -> Net:
    """The network for these images, with the weights that the run's seed gives it."""
    model = config.model
    sizes = (card.channels, card.num_classes, model.width)
    return build_net(model.name, *sizes, seed=config.seed, bf16=bf16, **choices(model, card))


def make_module(config: Config, card: Card) -> nn.Module:
    """The network as an ordinary module."""
    model = config.model
    return build_module(model.name, card.channels, card.num_classes, model.width, **choices(model, card))


def choices(model: Model, card: Card) -> dict[str, Any]:
    """What some networks let their user choose, or must know of the images."""
    return {"norm": model.norm, "stem": model.stem, "size": card.size}


def is_untried(model: Model) -> bool:
    """Whether a network may not fit: one of the user's or of timm, or one with a choice that not all have."""
    return model.name not in ALWAYS_FIT or (model.norm, model.stem) != ("batch", "cifar")
