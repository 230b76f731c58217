"""The part of a network that clients train. All other tensors are frozen: constants that every place of a run has.

LoRA (Hu et al. 2022) as in Zhang et al. 2025: a matrix W of the network becomes W + BA, with A drawn and B zero.
"""

import re
from collections.abc import Callable, Iterator
from hashlib import sha256
from math import prod
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ..errors import UserError
from ..seeds import stream
from ..system.files import SHORT_DIGITS
from ..types import State, Weights
from .net import ADAPTER_A, ADAPTER_B, CLASSIFIER, Net

ALL, HEAD, NORMS, LAST, ADAPTERS = "all", "head", "norms", "last-", "adapters"
NORM = re.compile(r"(?i)norm(\dd)?$")  # the end of a norm's class: LayerNorm, BatchNorm2d, RmsNorm
Belongs = Callable[[str, nn.Module], bool]  # whether a layer, by its path, trains entirely


class Trainable(NamedTuple):
    """A choice of what clients train, as the settings make it."""

    what: str
    rank: int = 4
    fixes_a: bool = False  # each A stays as drawn, so that the mean of products BA is the product of the means
    seed: int = 0  # of the run, for the draw of each A


def narrowed(net: Net, choice: Trainable, weights: Weights) -> Net:
    """Return the network with only the chosen tensors in its weights; the others are frozen with the values given.

    A norm that does not train keeps its running statistics, too, and normalizes by them.
    """
    module, every = net.module, {**weights.params, **weights.buffers}
    layers = trained_layers(net, choice)
    params = {name: t for name, t in weights.params.items() if owner(name) in layers}
    own_buffers = {name for name, _ in module.named_buffers()}  # the others are parameters that the network froze
    buffers = {name: t for name, t in weights.buffers.items() if owner(name) in layers and name in own_buffers}
    adapted = adapted_weights(net, choice) if choice.what == ADAPTERS else {}
    factors = new_factors(adapted, choice)
    held = {name: t for name, t in factors.items() if choice.fixes_a and name.endswith(ADAPTER_A)}
    params |= {name: t for name, t in factors.items() if name not in held}
    still = [path for path, layer in module.named_modules() if isinstance(layer, _NormBase) and path not in layers]
    frozen = {name: t for name, t in every.items() if name not in params and name not in buffers}
    other = net.part(Weights(params, buffers), {**frozen, **held}, tuple(adapted), still)

    def drawn(seed: int) -> Weights:
        anew, again = net.drawn(seed), new_factors(adapted, choice._replace(seed=seed))
        found = {**anew.params, **anew.buffers, **again}
        return Weights(*({name: found[name] for name in tree} for tree in (params, buffers)))

    other.drawn = drawn
    return other


def trained_layers(net: Net, choice: Trainable) -> set[str]:
    """Return the paths of the layers that train entirely; reject a choice that adds nothing to the head."""
    belongs = belonging(net, choice)
    layers = {path for path, layer in net.module.named_modules() if in_head(path) or belongs(path, layer)}
    if choice.what == NORMS and not any(
        owner(name) in layers and not in_head(owner(name)) for name in net.first.params
    ):
        raise refusal(net, choice, "has no norm with weights to train; use 'head'")
    return layers


def belonging(net: Net, choice: Trainable) -> Belongs:
    """Return the test of layers beyond the head."""
    if choice.what == NORMS:
        return lambda path, layer: is_norm(layer)
    if choice.what.startswith(LAST):
        tail = last_parts(net, choice)
        return lambda path, layer: any(path == part or path.startswith(f"{part}.") for part in tail)
    return lambda path, layer: False


def in_head(path: str) -> bool:
    """Return whether a layer is the network's head, or a part of it."""
    return path.partition(".")[0] == CLASSIFIER.partition(".")[0]


def is_norm(layer: nn.Module) -> bool:
    """Return whether a layer is a norm, also one of timm's or of the user's: by the names of its classes."""
    return any(NORM.search(kind.__name__) for kind in type(layer).__mro__)


def owner(name: str) -> str:
    """Return the path of the layer that a tensor belongs to."""
    return name.rpartition(".")[0]


def last_parts(net: Net, choice: Trainable) -> list[str]:
    """Return the paths of the last N blocks and of what follows them.

    A block is a part with layers inside; in a network without such parts, a layer with a matrix.
    """
    parts = [*in_order(net.module)]
    begins = [i for i, (_, part) in enumerate(parts) if any(has_weights(layer) for layer in part.children())]
    begins = begins or [i for i, (_, part) in enumerate(parts) if any(p.dim() > 1 for p in part.parameters())]
    number = int(choice.what.removeprefix(LAST))
    if number > len(begins):
        raise refusal(net, choice, f"has {len(begins)} blocks; use 'last-{len(begins)}' or fewer, or 'all'")
    return [path for path, _ in parts[begins[-number] :]]


def in_order(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the parts of a network's body in order; sequences of parts are opened, and so is the body itself."""
    path, children = "", weighty_children(module)
    while len(children) == 1 and weighty_children(children[0][1]):
        path, module = f"{path}{children[0][0]}.", children[0][1]
        children = weighty_children(module)
    for name, child in children:
        yield from opened(f"{path}{name}", child)


def opened(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    children = weighty_children(module)
    if isinstance(module, nn.Sequential | nn.ModuleList) and any(weighty_children(child) for _, child in children):
        for name, child in children:
            yield from opened(f"{path}.{name}", child)
    else:  # a sequence of single layers is a block
        yield path, module


def weighty_children(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the parts that have parameters, without the head."""
    return [(name, child) for name, child in module.named_children() if has_weights(child) and not in_head(name)]


def has_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def adapted_weights(net: Net, choice: Trainable) -> dict[str, tuple[int, int]]:
    """Return rows and columns of the matrices that get an adapter: of linear layers and 1x1 convolutions."""
    names = {id(p): name for name, p in net.module.named_parameters()}
    layers = [(path, layer) for path, layer in net.module.named_modules() if not in_head(path) and is_adaptable(layer)]
    sizes = {names[id(layer.weight)]: as_matrix(cast(Tensor, layer.weight)) for _, layer in layers}
    if not sizes:
        raise refusal(net, choice, "has no linear layer or 1x1 convolution before its head; use 'last-N'")
    for name, size in sizes.items():
        if choice.rank > min(size):
            raise UserError(
                f"model.adapter_rank = {choice.rank}: '{name}' of network '{net.name}' is {size[0]} x {size[1]};"
                f" expected at most {min(size)}"
            )
    return sizes


def is_adaptable(layer: nn.Module) -> bool:
    """Return whether a layer multiplies each position by one matrix."""
    is_pointwise = isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1) and layer.groups == 1
    return (isinstance(layer, nn.Linear) or is_pointwise) and "weight" in layer._parameters  # not computed from others


def as_matrix(weight: Tensor) -> tuple[int, int]:
    return weight.shape[0], prod(weight.shape[1:])


def new_factors(adapted: dict[str, tuple[int, int]], choice: Trainable) -> State:
    """Return A [r, d], drawn from U(-1/sqrt(d), 1/sqrt(d)), and B = 0 [c, r] of each adapted matrix [c, d]."""
    factors: State = {}
    for name, (rows, columns) in adapted.items():
        a = stream(choice.seed, f"adapter {name}").uniform(-(columns**-0.5), columns**-0.5, (choice.rank, columns))
        factors |= {name + ADAPTER_A: torch.from_numpy(a).float(), name + ADAPTER_B: torch.zeros(rows, choice.rank)}
    return factors


def refusal(net: Net, choice: Trainable, why: str) -> UserError:
    return UserError(f"model.trainable = '{choice.what}': network '{net.name}' {why}")


def digest_of_tensors(tensors: State) -> str:
    """Return the checksum of tensors with their names, shapes and types."""
    total = sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()[:SHORT_DIGITS]
