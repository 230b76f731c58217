"""Build the parts that a run's settings name: network, optimizers, orders of images, probes."""

from dataclasses import replace
from typing import Any

from torch import nn

from ..config import Config, Model
from ..config.settings import NETWORKS, PRETRAINED
from ..data.cards import Card
from ..errors import UserError
from ..methods.base import Method
from ..methods.names import FROM_LABELS
from ..methods.optimizers import AdamW, Optimizer, Sgd
from ..models import USUAL_LAYERS, Net, Trainable, build_module, build_net, digest_of_tensors, narrowed
from ..models.trainable import ALL
from ..probes.training import LabelProbe, Probe, losses_only
from ..training.plan import Recipe
from ..types import Weights
from .robust import Aggregation
from .server_optimizer import ServerOptimizer

ALWAYS_FIT = ("resnet8", "cnn", "resnet18", "wrn-28-2", "wrn-28-8", PRETRAINED)  # networks for images of any size
AUTHORS_GUARD = 1e-10  # in the logarithm of the released L_u
AUTHORS_REPLICATION = 2000  # the released code counts replicated labeled images in its average


def with_training(config: Config, method: Method) -> Method:
    """Return the method with the optimizer, client weights and guard from the settings."""
    train = config.train
    released = config.protocol == "authors"
    return replace(
        method,
        optimizer=make_optimizer(config),
        labeled_weight=AUTHORS_REPLICATION if released else train.labeled_weight,
        guard=AUTHORS_GUARD if released else 0.0,
        watch=config.records.probes == "all",
        labels_at_clients=not config.has_server_labels,
    )


def make_server_method(config: Config) -> Method:
    """Return the server's training on its labels: cross-entropy, with the optimizer and schedule of clients."""
    return with_training(config, FROM_LABELS)


def make_optimizer(config: Config) -> Optimizer:
    """Return the optimizer of clients."""
    train = config.train
    facts: dict[str, Any] = {
        "lr": train.lr,
        "momentum": train.momentum,
        "weight_decay": train.weight_decay,
        "decay_on": train.decay_on,
        "clip": train.clip,
        "scheduled": config.schedule.moves,
    }
    return AdamW(**facts, beta2=train.beta2) if train.optimizer == "adamw" else Sgd(**facts, nesterov=train.nesterov)


def make_server_optimizer(config: Config) -> ServerOptimizer:
    """Return the rule that turns the clients' mean into the next global model."""
    server = config.server
    return ServerOptimizer(
        server.optimizer, server.lr, server.momentum, server.beta2, server.epsilon, server.broadcast_momentum
    )


def make_aggregation(config: Config) -> Aggregation:
    """Return the rule that combines uploads."""
    return Aggregation(config.server.aggregate, config.server.malicious)


def usual_recipe(config: Config, card: Card) -> Recipe:
    """Return the order and number of a client's training images, from the settings."""
    train = config.train
    return Recipe(
        batch=train.batch,
        unlabeled_ratio=train.unlabeled_ratio,
        local_epochs=train.local_epochs,
        epoch="pool",
        steps_per_round=train.steps_per_round,
        views=("x",),
        size=card.size,
        flip=config.data.flip,
        schedule=config.schedule,
        classes=card.num_classes,
        labels_alone=train.labels_alone,
        drops=may_drop(config.model),
    )


def make_recipe(config: Config, method: Method, card: Card) -> Recipe:
    """Return the usual recipe with the method's changes."""
    return method.recipe(usual_recipe(config, card))


def make_server_recipe(config: Config, card: Card) -> Recipe:
    """Return the order and number of the server's labeled images."""
    usual = replace(usual_recipe(config, card), batch=config.server_batch, unlabeled_ratio=1, steps_per_round=None)
    return FROM_LABELS.recipe(replace(usual, local_epochs=config.server_epochs))


def make_probe(config: Config, method: Method) -> Probe:
    """Return the probe of a step, with the method's own weights and threshold."""
    if config.records.probes == "losses":
        return losses_only
    return LabelProbe(*method.watched, knows_truth=config.card.knows_truth)


def make_net(config: Config, card: Card, bf16: bool = False) -> Net:
    """Return the network for these images, with the initial weights of the run's seed."""
    model = config.model
    sizes = (card.channels, card.num_classes, model.width)
    return build_net(model.name, *sizes, seed=config.seed, bf16=bf16, **choices(model, card))


def make_part(config: Config, whole: Net, weights: Weights) -> Net:
    """Return the network that clients train: the whole one, or a part, with these first weights."""
    model = config.model
    if model.trainable == ALL:
        return whole
    choice = Trainable(model.trainable, model.adapter_rank, model.adapter_mean == "freeze-a", config.seed)
    return with_same_rest(config, narrowed(whole, choice, weights))


def with_same_rest(config: Config, net: Net) -> Net:
    """Return the network; reject it if its frozen tensors differ from those that the run began with."""
    recorded, found = config.model.frozen_digest, digest_of_tensors(net.frozen)
    if recorded not in (None, found):
        raise UserError(
            f"model.frozen_digest = '{recorded}': the frozen tensors differ here ('{found}');"
            " use the same model.start, files and version of torch"
        )
    return net


def make_module(config: Config, card: Card) -> nn.Module:
    """Return the network as an ordinary module."""
    model = config.model
    return build_module(model.name, card.channels, card.num_classes, model.width, **choices(model, card))


def choices(model: Model, card: Card) -> dict[str, Any]:
    """Return the arguments that only some networks take: the user's choices, and facts about the images."""
    return {**options(model), "size": card.size}


def options(model: Model) -> dict[str, Any]:
    """Return the settings of layers that only some networks support."""
    return {key: getattr(model, key) for key in USUAL_LAYERS}


def may_drop(model: Model) -> bool:
    """Return whether the network may contain dropout: a setting adds it, or the network is a user's or timm's."""
    return bool(model.dropout or model.drop_path) or model.name not in NETWORKS


def is_untried(model: Model) -> bool:
    """Return whether a network may not fit: a user's, timm's, or one with an option that only some networks support."""
    return model.name not in ALWAYS_FIT or options(model) != USUAL_LAYERS
