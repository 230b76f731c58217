"""Check that a method and a network fit the rest of a run: clients, labels, privacy and custom code."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from ..config import STEPS, Config, check_fact
from ..data.cards import Card
from ..errors import UserError, error_text
from ..methods.base import Method
from ..methods.names import split_name
from ..models import Net
from ..system.user_code import user_place
from ..training.plan import Recipe
from ..types import CLASS_WEIGHTS, LOG_PRIOR, Counts, Task
from .assembly import make_probe, make_recipe, usual_recipe
from .dry_step import Sizes, Tried, try_network, try_step
from .privacy import FEWEST_MASKED, MOST_MASKED
from .robust import assumed

T = TypeVar("T")


def check_method(config: Config, method: Method) -> None:
    """Reject a method that the federation cannot train."""
    name, clients = config.method.name, config.partition.clients
    check_answers(config, method)
    if 0 < clients < method.needs.min_clients:
        raise UserError(
            f"partition.clients = {clients}: method '{name}' needs at least {method.needs.min_clients} clients with"
            " these settings"
        )
    if method.needs.own_optimizer:
        check_fact(config, STEPS, "own", f"method '{name}', which uses its own optimizer")
    if method.needs.all_weights and config.model.trainable != "all":
        raise UserError(
            f"model.trainable = '{config.model.trainable}': method '{name}' is defined by all weights of its network;"
            " use 'all', or choose another method"
        )
    check_mean(config, method)
    check_groups(config, method)
    if config.has_server_labels:
        check_without_labels(config, method)
    if not config.card.knows_truth and (method.needs.labels == "all" or method.needs.truth):
        raise UserError(
            f"method '{name}' needs the true label of every image, which data.name = '{config.data.name}' does not"
            " provide; choose another method"
        )


def check_answers(config: Config, method: Method) -> None:
    """Reject needs or a recipe that fail, or contradict each other."""
    needs = ask_method(config, "needs", lambda: method.needs)
    recipe = ask_method(config, "recipe", lambda: make_recipe(config, method, config.card))
    if not isinstance(recipe, Recipe):
        found = f"its `recipe` returns {type(recipe).__name__}; expected the default one, changed with `replace`"
        raise UserError(f"method '{config.method.name}': {found}")
    if recipe.chooses and not (recipe.sweep and recipe.epoch == "pool" and needs.groups == 1):
        raise UserError(
            f"method '{config.method.name}': its `recipe` sets chooses=True, which needs sweep=True,"
            " epoch='pool' and one group of clients"
        )


def ask_method(config: Config, name: str, ask: Callable[[], T]) -> T:
    """Call a function of a method; an error names the function."""
    try:
        return ask()
    except Exception as error:
        raise own_error(config, error, f"its `{name}` fails") from error


def own_error(config: Config, error: Exception, what: str) -> UserError:
    """Return a one-line error of a method, with its place in the user's file."""
    reason = str(error) if isinstance(error, UserError) else f"{what}: {explain_error(error)}"
    return UserError(f"method '{config.method.name}': {reason}{place_of(config, error)}")


def place_of(config: Config, error: Exception) -> str:
    """Return ` (mine.py, line 17)`, or an empty string if the error is not in a user's file."""
    place = user_place(error, config.own_files)
    return f" ({place})" if place else ""


def explain_error(error: Exception, page: str = "adding-a-method") -> str:
    """Explain the error, replacing PyTorch-internal messages with clearer ones."""
    if isinstance(error, DataDependentOutputException):
        return f"a value or a branch depends on data (.item(), float(t), if t.any()); see `fssl docs {page}`"
    if isinstance(error, DynamicOutputShapeException):
        return f"a shape depends on data (t[mask], nonzero, unique); see `fssl docs {page}`"
    if "more than 1 value per channel" in str(error):
        return "BatchNorm needs more than 1 value per channel; use a larger batch, or model.norm = 'group'"
    return error_text(error)


def check_network(config: Config, net: Net, card: Card, batch: int = 4) -> None:
    """Reject a network that fails, or in which a branch or a shape depends on the images."""
    net.check(card.size)
    try:
        try_network(net, card, batch)
    except Exception as error:
        reason = explain_error(error, "own-network")
        raise UserError(f"network '{config.model.name}': {reason}{place_of(config, error)}") from error


def check_mean(config: Config, method: Method) -> None:
    """Reject a robust mean or privacy for a method or a number of clients that it does not cover."""
    name, privacy, drawn = config.method.name, config.privacy, config.train.clients_per_round
    check_robust(config, method)
    is_masked = privacy.aggregation == "secagg+"
    if not takes_plain_mean(method) and (is_masked or privacy.clip is not None):
        key = "privacy.aggregation = 'secagg+'" if is_masked else "privacy.clip"
        limit = "and only that mean is unmasked" if is_masked else "and clipping and noise cover only that mean"
        raise UserError(
            f"{key}: method '{name}' reads more than the mean of the uploaded parameters, {limit};"
            " choose another method"
        )
    if not is_masked:
        return
    if 0 < drawn < FEWEST_MASKED or drawn > MOST_MASKED:
        raise UserError(
            f"train.clients_per_round = {drawn}: expected {FEWEST_MASKED} to {MOST_MASKED} with privacy.aggregation ="
            " 'secagg+'; with two, each client could compute the other's upload from the mean"
        )
    has_some = config.has_server_labels or config.partition.labeled_clients is not None
    if has_some and method.num_samples(Counts(labeled=0, pool=1)) == 0:
        check_counted(config)


def takes_plain_mean(method: Method) -> bool:
    """Return whether the server uses only the mean of the uploaded models, weighted by numbers of images."""
    kind = type(method)
    return kind.aggregate is Method.aggregate and kind.share is Method.share


def check_robust(config: Config, method: Method) -> None:
    """Reject a robust mean for a method whose server does more than take a mean, or for too few clients."""
    server, drawn = config.server, config.train.clients_per_round
    if server.aggregate == "mean":
        return
    start = f"server.aggregate = '{server.aggregate}'"
    if type(method).aggregate is not Method.aggregate:
        raise UserError(
            f"{start}: method '{config.method.name}' uses more of an upload than a mean of models; use 'mean', or"
            " choose another method"
        )
    needed = 2 * assumed(server.malicious, drawn) + 3
    if server.aggregate == "krum" and 0 < drawn < needed:
        raise UserError(
            f"{start}: train.clients_per_round = {drawn} is too few for server.malicious = {server.malicious:g};"
            f" expected {needed} or more"
        )


def check_counted(config: Config) -> None:
    """Reject masks if a round may average too few uploads, because only clients with labels count."""
    clients, drawn, labeled = config.drawable, config.train.clients_per_round, config.partition.labeled_clients
    if drawn - (clients - (labeled or 0)) < FEWEST_MASKED:
        raise UserError(
            f"privacy.aggregation = 'secagg+': method '{config.method.name}' averages only clients with labels, and a"
            f" round may draw fewer than {FEWEST_MASKED} of them; choose another method, or use 'plain'"
        )


def check_groups(config: Config, method: Method) -> None:
    """Reject settings that need a single draw of clients per round, if a method makes several."""
    given = ["privacy.clip"] if config.privacy.clip is not None else []
    given += ["server.broadcast_momentum"] if config.server.broadcast_momentum else []
    if given and method.needs.groups > 1:
        raise UserError(
            f"{given[0]} needs a single group of clients per round, but method '{config.method.name}' draws"
            f" {method.needs.groups}; remove it"
        )


def check_without_labels(config: Config, method: Method) -> None:
    """Reject a method that needs labels at clients."""
    start = f"partition.labels = 'server': method '{config.method.name}'"
    if method.needs.labels == "all":
        raise UserError(f"{start} gives clients the true label of every image; choose another method")
    if method.needs.client_labels:
        raise UserError(f"{start} trains on labels of clients, which have none; choose another method")


def by_class_in(config: Config) -> tuple[str, ...]:
    """Return the settings by class that a run passes to the labeled loss."""
    asked = {CLASS_WEIGHTS: config.train.class_weights, LOG_PRIOR: config.train.logit_adjustment}
    return tuple(name for name, value in asked.items() if value)


def check_step(config: Config, method: Method, net: Net, card: Card, shapes: bool = True) -> Tried:
    """Try one step on shapes only, or on two black images.

    Reject a user's method whose step fails, draws random numbers, or ignores a plug-in. Shapes need PyTorch's compiler,
    which takes seconds to import.
    """
    usual = usual_recipe(config, card)
    recipe = method.recipe(usual if shapes else replace(usual, batch=2, unlabeled_ratio=1))
    slots = recipe.unlabeled_batch  # any number works: images have no values here
    task = Task(card.num_classes, slots, config.seed, card.size)
    sizes = Sizes(task, Counts(1, slots), recipe, card, by_class_in(config), values=not shapes)
    try:
        tried = try_step(method, net, sizes, make_probe(config, method))
        if "sage" in split_name(config.method.name)[1] and "assign" not in tried.hooks:
            raise UserError(
                "+sage has no effect: its `vote` never calls `self.assign`, which +sage replaces; remove +sage"
            )
    except Exception as error:
        if not shapes:  # the run has started, and explains its errors itself
            raise
        raise own_error(config, error, "its step fails") from error
    return tried
