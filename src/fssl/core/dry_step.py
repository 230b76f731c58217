"""Try a method on shapes only: which tensors travel, what a step measures, whether it draws random numbers."""

import logging
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves

from ..data.cards import Card
from ..errors import UserError
from ..methods.base import Method
from ..models import Net
from ..probes.tally import Layout
from ..probes.training import Probe
from ..seeds import stream
from ..training.plan import Recipe, Site, plan_extras
from ..types import BY_CLASS, Batch, Clock, Counts, Local, Payload, State, Sweep, Task, Trace, Weights
from .step import votes_at

T = TypeVar("T")
LOOKS = 5  # attempts to see the generators unmoved


class RandomStepError(UserError):
    """A step that draws random numbers: the same seed would give other results."""


@contextmanager
def sketch(
    method: Method, net: Net, task: Task, counts: Counts, client: int = 0, values: bool = False
) -> Iterator[tuple[Payload, Local]]:
    """Yield a client's payload and initial state. Unless `values` is set, tensors in the context only have shapes."""
    with torch.no_grad() if values else shapes_alone():
        payload = method.payload(method.init(net, net.first if values else without_values(net), task), client)
        yield payload, method.start(payload, method.client_state(payload, task, counts))


@contextmanager
def shapes_alone() -> Iterator[None]:
    """Make tensors with shapes and without values."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), silenced("torch._subclasses.fake_tensor"):
        yield


def without_values(net: Net) -> Weights:
    """Return the shapes of a network's weights."""
    return Weights(*({k: torch.empty(t.shape, dtype=t.dtype) for k, t in tree.items()} for tree in net.first))


def try_network(net: Net, card: Card, batch: int = 4) -> None:
    """Call a network on shapes only, as in training and as in a test."""
    with shapes_alone():
        weights, images = without_values(net), torch.zeros(batch, card.channels, card.size, card.size)
        net.fit(weights, images)
        net.infer(weights, images)


@contextmanager
def silenced(logger: str) -> Iterator[None]:
    """Disable a logger temporarily: torch would print the traceback of an error that is raised anyway."""
    found = logging.getLogger(logger)
    before, found.disabled = found.disabled, True
    try:
        yield
    finally:
        found.disabled = before


class Sizes(NamedTuple):
    """The numbers that decide the shapes of a step."""

    task: Task
    counts: Counts
    recipe: Recipe
    card: Card
    by_class: tuple[str, ...] = ()  # what the run gives the loss of labeled images, of BY_CLASS
    values: bool = False  # take the step on black images, which is faster than on shapes if there are few


class Tried(NamedTuple):
    """The findings of one step on shapes only."""

    layout: Layout  # the positions of measured sums in a tally
    reads_rounds: bool  # whether the step reads the planned number of rounds
    hooks: set[str]  # hooks of the method that its step calls


def try_step(method: Method, net: Net, sizes: Sizes, probe: Probe) -> Tried:
    """Take one step on shapes only, together with the rest of a client's round.

    Raises:
        RandomStepError: The method draws random numbers.
        UserError: A return value does not fit the rest of the round.
    """
    task, counts, recipe, card, by_class, values = sizes
    method, hooks = on_trial(method)
    pool = np.arange(recipe.unlabeled_batch)  # any images work
    site = Site(pool, pool, by_class={name: np.ones(task.num_classes, np.float32) for name in by_class})
    forms = {k: (t.shape[1:], t.dtype) for k, t in plan_extras(site, recipe, partial(stream, 0)).items()}
    with sketch(method, net, task, counts, values=values) as (payload, local):
        pixels = (card.channels, card.size, card.size)
        views = {view: torch.zeros(recipe.images(view), *pixels) for view in recipe.views}
        slots, one = torch.zeros(recipe.unlabeled_batch, dtype=torch.long), torch.zeros(())
        truth, rounds = torch.zeros_like(slots), torch.ones(())
        known = {"u": truth} if method.needs.truth else {}
        extras = {name: torch.zeros(shape, dtype=kind) for name, (shape, kind) in forms.items()}
        clock = Clock(one, one, one, rounds=rounds)
        batch = Batch(views, slots[: recipe.batch], slots, one, clock, known, extras)
        if values:
            black = black_trace(method, net, (payload, local, batch), recipe)
            return Tried(Layout.of(probe(black, truth)), False, hooks)
        if recipe.sweep:
            local = try_visit(method, net, payload, local, recipe, pixels)
        given = {"payload": payload, "local": local, "batch": batch}
        asked = {"has_unlabeled": batch.has_unlabeled, "truth": truth, **{name: extras[name] for name in by_class}}
        with Looks({**asked, "rounds": rounds}) as looks:
            after, trace = unchanged(given, lambda: method.step(net, payload, local, batch))
        has_labels = method.labels_at_clients  # otherwise only the server's loss uses them
        for name in by_class:
            if has_labels and name not in looks.found:
                raise UserError(
                    f"{BY_CLASS[name]} has no effect: its loss ignores it; use `supervised_loss`, or remove the setting"
                )
        if recipe.labels_alone and "has_unlabeled" not in looks.found:
            raise UserError(
                "train.labels_alone has no effect: its step never reads `batch.has_unlabeled`; remove the setting"
            )
        if known and "truth" not in looks.found:
            raise UserError("+oracle has no effect: its step never reads `batch.truth`; remove +oracle")
        check_whole(local, after)
        if mismatch := kept_mismatch(method.client_state(payload, task, counts), method.keep(after)):
            raise UserError(f"its {mismatch}")
        if recipe.chooses:
            trace = trace._replace(votes=try_choice(method, local, task, slots))
        return Tried(Layout.of(probe(trace, truth)), "rounds" in looks.found, hooks)


def on_trial(method: Method) -> tuple[Method, set[str]]:
    """Return a copy of the method that checks its hooks' results, and the growing set of hooks called."""
    trial, asked = copy(method), set[str]()
    for name in method.hooks:
        object.__setattr__(trial, name, Checked(name, getattr(trial, name), asked))
    return trial, asked


class Checked:
    """A method's hook, or a rule in one of its fields, with a check of its result."""

    def __init__(self, name: str, hook: Any, asked: set[str]) -> None:
        self._name, self._hook, self._asked = name, hook, asked

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._asked.add(self._name)
        answer = self._hook(*args, **kwargs)
        if fault := FAULTS[self._name](answer, next(iter((*args, *kwargs.values())))):
            raise UserError(f"its `{self._name}` returns {fault}")
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hook, name)


def fault_in_labels(found: Any, p_l: Tensor) -> str:
    """Describe what is wrong with the labels that an `assign` returned; empty if nothing is."""
    if isinstance(found, tuple) and are_labels(found, p_l):
        return ""
    rows, classes = p_l.shape
    return f"{form(found)}; expected PseudoLabels(target, mask), target [{rows}, {classes}] and mask [{rows}]"


def fault_in_votes(found: Any, p_l: Tensor) -> str:
    """Describe what is wrong with the result of a `vote`; empty if nothing is."""
    given = found if isinstance(found, dict) else {}
    if missing := [name for name in IN_VOTES if name not in given]:
        lacks = f" without {', '.join(missing)}" if given else ""
        return f"{form(found)}{lacks}; expected a dict of {', '.join(IN_VOTES)}"
    labels, (rows, classes) = (found["target"], found["mask"]), p_l.shape
    said = f"target {form(labels[0])} and mask {form(labels[1])}"
    return "" if are_labels(labels, p_l) else f"{said}; expected [{rows}, {classes}] and [{rows}]"


def are_labels(found: tuple[Any, ...], p_l: Tensor) -> bool:
    """Return whether these are a target and a mask for these predictions."""
    return tuple(getattr(part, "shape", None) for part in found) == (p_l.shape, p_l.shape[:1])


def fault_in_loss(found: Any, _: object) -> str:
    """Describe what is wrong with the loss that a `supervised` returned; empty if nothing is."""
    return "" if getattr(found, "shape", None) == () else f"{form(found)}; expected a scalar loss"


def fault_in_term(found: Any, _: object) -> str:
    """Describe what is wrong with the term and state that an `extra` returned; empty if nothing is."""
    is_pair = isinstance(found, tuple) and len(found) == 2
    if is_pair and getattr(found[0], "shape", ()) == () and isinstance(found[1], dict):
        return ""
    return f"{form(found)}; expected (term, state) with a scalar term"


# By hook: describes what is wrong with a result, given the hook's first argument.
FAULTS: dict[str, Callable[[Any, Any], str]] = {
    "assign": fault_in_labels,
    "vote": fault_in_votes,
    "supervised": fault_in_loss,
    "extra": fault_in_term,
}
IN_VOTES = ("p_l", "p_g", "sure_l", "sure_g", "target", "mask")


def form(value: object) -> str:
    """Return `float32 [8, 10]`, the same for each part of a tuple, or the name of a type."""
    if isinstance(value, tuple):
        return f"({', '.join(map(form, value))})"
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def black_trace(method: Method, net: Net, given: tuple[Payload, Local, Batch], recipe: Recipe) -> Trace:
    """Return the trace of a step on black images, without any checks."""
    payload, local, batch = given
    if recipe.sweep:
        sweep = Sweep(batch.u_slot, batch.u_slot, torch.zeros(recipe.unlabeled_batch, 3), batch.u_slot.float() + 1)
        local = method.visit(net, payload, local, torch.zeros_like(batch.views[recipe.views[-1]]), sweep)
    trace = method.step(net, payload, local, batch)[1]
    return (
        trace._replace(votes=votes_at(batch.u_slot, method.votes(local), method.chosen(local)))
        if recipe.chooses
        else trace
    )


def try_visit(
    method: Method, net: Net, payload: Payload, local: Local, recipe: Recipe, pixels: tuple[int, ...]
) -> Local:
    """Return a client's state after one batch of its sweep."""
    slot, noise = torch.zeros(recipe.unlabeled_batch, dtype=torch.long), torch.zeros(recipe.unlabeled_batch, 3)
    sweep = Sweep(slot, slot, noise, torch.ones(recipe.unlabeled_batch))
    views = torch.zeros(recipe.unlabeled_batch, *pixels)
    after = without_draws(lambda: method.visit(net, payload, local, views, sweep))
    check_whole(local, after, "visit")
    return after


def try_choice(method: Method, local: Local, task: Task, slot: Tensor) -> State:
    """Return a client's votes on its pool after the sweep; reject choices or votes of another form."""
    chosen = without_draws(lambda: method.chosen(local))
    if not isinstance(chosen, Tensor) or chosen.dtype != torch.bool or chosen.shape != (task.max_slots,):
        raise UserError(f"its `chosen` returns {form(chosen)}; expected a boolean for each slot of the pool")
    votes = without_draws(lambda: method.votes(local))
    wanted = (task.max_slots, task.num_classes)
    if votes and any(not isinstance(t := votes.get(name), Tensor) or t.shape != wanted for name in ("p_l", "target")):
        found = ", ".join(f"'{name}': {form(value)}" for name, value in votes.items())
        raise UserError(
            f"its `votes` returns {{{found}}}; expected 'p_l' and 'target' [slots, classes], or an empty dict"
        )
    return votes_at(slot, votes, chosen)


def kept_mismatch(new: State, kept: State) -> str:
    """Describe a client's kept tensors that do not match its initial ones; empty if they match."""
    fits = not kept or kept.keys() == new.keys()
    return "" if fits else f"`keep` returns {sorted(kept)}; expected all of {sorted(new)}, or an empty dict"


def check_whole(before: Local, after: Local, what: str = "step") -> None:
    """Reject a step, or a part of one such as `extra`, that returns less than the next step needs."""
    parts = {
        "the client's state": (before.state, after.state),
        "the model's parameters": (before.weights.params, after.weights.params),
        "the model's buffers": (before.weights.buffers, after.weights.buffers),
        "the momentum": (before.velocity, after.velocity),
    }
    for part, (held, returned) in parts.items():
        if lost := held.keys() - returned.keys():
            raise UserError(
                f"its {what} returns {part} without '{min(lost)}'; `{what}`, `remember` and `extra` must return every"
                " entry that they receive, as in {**local.state, ...}"
            )


def unchanged(given: dict[str, Any], step: Callable[[], T]) -> T:
    """Return a step's result; reject random numbers, and a step that changes its inputs in place."""
    before = [t._version for t in tree_leaves(given)]
    result = without_draws(step)
    for (path, t), version in zip(tree_flatten_with_path(given)[0], before, strict=True):
        if t._version != version:
            name = keystr(path).replace("['", "", 1).replace("']", "", 1)  # payload.weights.params['w']
            raise UserError(f"its step changes {name} in place; return a new tensor (t + 1, not t.add_(1))")
    return result


def without_draws(step: Callable[[], T]) -> T:
    """Return a step's result; reject random numbers from torch, NumPy or Python.

    The generators of the last two belong to the whole process, and other threads draw from them (Flower's do, for their
    pauses). So a step counts as drawing only if the generators move in every attempt.
    """
    for _ in range(LOOKS):
        before = (random.getstate(), repr(np.random.get_state()))
        with Deterministic():  # type: ignore[no-untyped-call]  # torch's own constructor
            result = step()
        if (random.getstate(), repr(np.random.get_state())) == before:
            return result
    raise drawn("NumPy's or Python's global generator")


class Deterministic(TorchDispatchMode):
    """A mode that rejects torch operations that draw random numbers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and dropout_in(func, args, kwargs) != 0:
            raise drawn(str(func).removeprefix("aten.").partition(".")[0])
        return func(*args, **kwargs)


class Looks(TorchDispatchMode):
    """A mode that records which of some tensors are inputs of operations."""

    def __init__(self, tensors: Mapping[str, Tensor | None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own constructor
        self.names = {id(tensor): name for name, tensor in tensors.items() if tensor is not None}
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.found |= {self.names[id(t)] for t in (*args, *kwargs.values()) if id(t) in self.names}
        return func(*args, **kwargs)


def dropout_in(func: Any, args: Any, kwargs: Any) -> float | None:
    """Return the dropout of an operation such as attention (0: no random draw); None for other operations."""
    for i, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            value = args[i] if i < len(args) else kwargs.get("dropout_p", argument.default_value)
            return float(value)
    return None


def drawn(source: str) -> RandomStepError:
    return RandomStepError(
        f"a step draws random numbers ({source}), so the same seed would not repeat the result;"
        " add `views` to its `recipe`, or compute with `batch.clock`"
    )
