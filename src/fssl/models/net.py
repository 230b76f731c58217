"""Net: an architecture called with explicit weights. All other code calls modules through it."""

from collections.abc import Callable, Iterable
from copy import copy, deepcopy
from inspect import signature
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from ..errors import UserError, as_typed
from ..system.user_code import build, find_function, is_users, remember
from ..types import State, Weights, clone
from .dropout import with_planned_masks
from .efficientnet import EfficientNetLite0
from .from_timm import PREFIX, find_timm
from .lenet import SimpleCnn
from .resnet import ResNet8, ResNet18, SmallCnn
from .wide import wrn_28_2, wrn_28_8

CLASSIFIER = "head.linear.weight"  # [C, d] in every architecture: one row per class
ADAPTER_A, ADAPTER_B = ".adapter_a", ".adapter_b"  # after the name of the matrix W of which they make W + BA
# Takes channels, classes and width; some builders also take `norm`, `stem` or the images' `size`.
Builder = Callable[..., nn.Module]
MODELS: dict[str, Builder] = {
    "resnet8": ResNet8,
    "cnn": SmallCnn,
    "resnet18": ResNet18,
    "wrn-28-2": wrn_28_2,
    "wrn-28-8": wrn_28_8,
    "simple-cnn": SimpleCnn,
    "efficientnet-lite0": EfficientNetLite0,
}
# Assumed for a network without the choice; a network's own dropout stays unless a setting changes it.
USUAL_LAYERS = {"norm": "batch", "stem": "cifar", "dropout": 0.0, "drop_path": 0.0}


def find_network(name: str) -> Builder:
    """Return the builder of a listed network, of one of timm's, or of a function in a file."""
    if name.startswith(PREFIX):
        return find_timm(name)
    return find_function("network", name) if is_users(name) else MODELS[name]


def make_known(network: Builder | nn.Module, name: str = "") -> str:
    """Make an object of a script known to the settings: a function or class like those of MODELS, or a module.

    Returns:
        Its name in the settings, for this process.
    """
    if not isinstance(network, nn.Module) and not callable(network):
        raise UserError(f"network = {network!r:.60}: expected a torch.nn.Module, or a function that makes one")
    builder = copies_of(network) if isinstance(network, nn.Module) else network
    return remember("network", network, builder, name=name)


def copies_of(module: nn.Module) -> Builder:
    """Return a builder that copies a module as it is now, weights included."""
    kept = deepcopy(module)
    return lambda channels, classes, width: deepcopy(kept)


def switch_tf32_off() -> None:
    """Compute fp32 in full precision in this process, also on a GPU."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False


class Out(NamedTuple):
    """A network's outputs for a batch, in fp32.

    Attributes:
        logits: [B, C].
        feature: The input of the last layer [B, d].
    """

    logits: Tensor
    feature: Tensor


class Net:
    """A network as a function of its weights: `fit` in training mode, `infer` in evaluation mode.

    A call lends its weights to a module while it runs, so each thread needs its own Net: see `copy`.

    Attributes:
        name: The name in `model.name`.
        channels: Channels of an image.
        classes: The number of classes.
        bf16: Whether calls compute in bf16.
        size: Pixels per side.
        first: The first weights: parameters and buffers, by name.

    Examples:
        >>> buffers, (out,) = net.fit(weights, images)  # new BatchNorm statistics, outputs
        >>> net.infer(weights, images).logits
    """

    def __init__(
        self, module: nn.Module, name: str, channels: int, classes: int, bf16: bool = False, size: int = 32
    ) -> None:
        """Keep the first weights of a module, and copies of it without weights, which later calls use."""
        self.name, self.channels, self.classes, self.bf16, self.size = name, channels, classes, bf16, size
        trained, frozen = by_gradient(module)
        # Frozen weights are buffers here: no optimizer changes them, and the mean of equal ones is bit-identical.
        self.first = Weights(detached(trained), detached([*module.named_buffers(), *frozen]))
        self.frozen: State = {}  # constants of a network of which only a part trains, see trainable.py
        self.adapted: tuple[str, ...] = ()  # names of its matrices with an adapter
        self._names = [[*tree] for tree in self.first]
        training, self.masks = with_planned_masks(weightless(module).train())
        self._training, self._evaluation = Borrower(training), Borrower(weightless(module).eval())
        self._measuring = Borrower(forgetful(with_planned_masks(weightless(module).train())[0]))
        self.running = running_statistics(module)
        self.drawn: Callable[[int], Weights] = lambda seed: (
            self.first
        )  # first weights of another seed, if it has a name
        self.our_name: Callable[[str], str] = getattr(module, "our_name", str)  # for a tensor of the published weights

    def check(self, size: int) -> None:
        """Reject a network that a federation could not train, by calling it as a step and a test would."""
        if CLASSIFIER in self.first.buffers or CLASSIFIER in self.frozen:
            raise UserError(f"network '{self.name}': its head is frozen; set requires_grad")
        if CLASSIFIER not in self.first.params:
            raise UserError(
                f"network '{self.name}': its last layer must be self.head = fssl.models.Head(features, classes)"
            )
        for key, buffer in self.first.buffers.items():
            if not buffer.is_floating_point():
                raise UserError(
                    f"network '{self.name}': buffer '{key}' is {buffer.dtype}, which clients cannot average"
                )
        images = torch.linspace(-2, 2, 4 * self.channels * size**2).view(4, self.channels, size, size)
        try:
            with torch.no_grad():
                (_, (first,)), (_, (second,)) = self.fit(self.first, images), self.fit(self.first, images)
                shapes = [list(o.logits.shape) for o in (first, self.infer(self.first, images))]
        except Exception as error:
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            raise UserError(
                f"network '{self.name}' cannot be called with images {list(images.shape)}: {what}"
            ) from error
        if shapes != [[4, self.classes]] * 2:
            raise UserError(f"network '{self.name}': for 4 images logits are {shapes[0]}, expected {[4, self.classes]}")
        if not torch.equal(first.logits, second.logits):
            raise UserError(
                f"network '{self.name}' draws random numbers: the same images give other logits; use layers such as"
                " nn.Dropout, whose masks fssl plans, instead of functions"
            )

    def copy(self) -> "Net":
        """Return the same network for another thread, without calling its builder again."""
        other = copy(self)
        training, other.masks = deepcopy((self._training.module, self.masks))
        other._training = Borrower(training)
        for mode in ("_evaluation", "_measuring"):
            setattr(other, mode, Borrower(deepcopy(getattr(self, mode).module)))
        return other

    @property
    def module(self) -> nn.Module:
        """Return the network's layers, without values."""
        return self._training.module

    def part(self, first: Weights, frozen: State, adapted: tuple[str, ...], still: Iterable[str]) -> "Net":
        """Return the network with other first weights and some constants.

        Args:
            first: What a call gets as weights.
            frozen: All other tensors.
            adapted: The names of the matrices with an adapter.
            still: The paths of norms that use their running statistics in training, too, and do not update them.
        """
        other = self.copy()
        other.first, other.frozen, other.adapted = first, frozen, adapted
        other.running = [name for name in self.running if name in first.buffers]
        for path, mode in product(still, (other._training, other._measuring)):
            mode.module.get_submodule(path).eval()
        return other

    def on(self, device: torch.device) -> "Net":
        """Return the same network with its constants on a device."""
        if not self.frozen:
            return self
        other = copy(self)
        other.frozen = {name: t.to(device) for name, t in self.frozen.items()}
        return other

    def tensors(self, weights: Weights) -> State:
        """Return all tensors of the network, with the adapters added to their matrices, by name."""
        found = {**self.frozen, **weights.params, **weights.buffers}
        for name in self.adapted:
            found[name] = found[name] + (found[name + ADAPTER_B] @ found[name + ADAPTER_A]).view_as(found[name])
        return found

    def whole(self, weights: Weights) -> Weights:
        """Return the weights of the ordinary network that computes the same."""
        if not self.frozen:
            return weights
        found = self.tensors(weights)
        return Weights(*({name: found[name] for name in names} for names in self._names))

    def fit(self, weights: Weights, *views: Tensor) -> tuple[State, list[Out]]:
        """Run one joint batch in training mode.

        Args:
            weights: The weights to compute with, unchanged by the call.
            views: Images [B, C, H, W] of one or more views; BatchNorm treats them as one batch. Dropout is off outside
                of planned steps.

        Returns:
            The updated buffers (BatchNorm's statistics), and logits and features of each view.
        """
        buffers = clone(weights.buffers)
        out = self._call(self._training, Weights(weights.params, buffers), torch.cat(views))
        if len(views) == 1:
            return buffers, [out]
        sizes = [len(view) for view in views]
        logits, features = out.logits.split(sizes), out.feature.split(sizes)
        return buffers, [Out(a, b) for a, b in zip(logits, features, strict=True)]

    def infer(self, weights: Weights, x: Tensor) -> Out:
        """Run a batch in evaluation mode: BatchNorm uses its running statistics, and nothing is updated."""
        return self._call(self._evaluation, weights, x)

    def statistics(self, weights: Weights, x: Tensor) -> State:
        """Return BatchNorm's statistics of one batch in training mode, by the names of their buffers."""
        buffers = clone(weights.buffers)
        self._call(self._measuring, Weights(weights.params, buffers), x)
        return {name: buffers[name] for name in self.running}

    def _call(self, module: "Borrower", weights: Weights, x: Tensor) -> Out:
        tensors = self.tensors(weights)  # in fp32
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16):
            feature, logits = module(tensors, x)
        return Out(logits, feature)


class Borrower:
    """A module without weights, called with weights that are lent to it.

    It sets the tensors in places that were looked up once. `functional_call` looks them up at every call, which takes a
    twentieth of a small step on a CPU.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._places = places(module)

    def __call__(self, tensors: State, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the module's outputs; `tensors` may also hold a method's additional tensors."""
        out: tuple[Tensor, Tensor]
        for place in self._places:
            place.layer[place.key] = tensors[place.name]
        try:
            out = self.module(x)
        finally:
            for place in self._places:
                place.layer[place.key] = place.empty
        return out


class Place(NamedTuple):
    """The place of a tensor in a layer."""

    layer: dict[str, Any]  # its parameters, or its buffers
    key: str  # of the tensor among them
    name: str  # of the tensor in the weights: two layers may share one
    empty: Tensor  # the placeholder between calls


def places(module: nn.Module) -> list[Place]:
    """Return the places of all tensors in a module's layers."""
    found = [
        Place(tensors, key, f"{path}.{key}" if path else key, tensor)
        for path, layer in module.named_modules()
        for tensors in (layer._parameters, layer._buffers)
        for key, tensor in tensors.items()
        if tensor is not None
    ]
    names = {id(place.empty): place.name for place in reversed(found)}
    return [place._replace(name=names[id(place.empty)]) for place in found]


def build_net(
    name: str, channels: int, classes: int, width: int, seed: int = 0, bf16: bool = False, **choices: Any
) -> Net:
    """Return a network by its name, with the weights of its builder after seeding PyTorch with `seed`.

    The builder is called once, on ordinary tensors: it may copy layers, or load weights from a file. `choices` are
    `norm`, `stem`, `dropout`, `drop_path` and the images' `size`, see `build_module`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = build_module(name, channels, classes, width, **choices)
    net = Net(module, name, channels, classes, bf16, choices.get("size", 32))
    net.drawn = lambda other: build_net(name, channels, classes, width, other, bf16, **choices).first
    return net


def build_module(name: str, channels: int, classes: int, width: int, **choices: Any) -> nn.Module:
    """Return the module of a network; its builder receives the choices that it has arguments for."""
    builder = find_network(name)
    offered = build(signature, "network", name, builder).parameters  # some classes in C have none
    for key, usual in USUAL_LAYERS.items():
        if key not in offered and choices.get(key, usual) != usual:
            raise UserError(
                f"model.{key} = {as_typed(choices[key])}: network '{name}' does not take this setting; remove it"
            )
    unused = {key for key in ("dropout", "drop_path") if not choices.get(key)}
    taken = {key: value for key, value in choices.items() if key in offered and key not in unused}
    module = build(builder, "network", name, channels, classes, width, **taken)
    if not isinstance(module, nn.Module):
        raise UserError(f"network '{name}' is {type(module).__name__!r}, expected a torch.nn.Module")
    if lazy := next((key for key, p in module.named_parameters() if is_lazy(p)), None):
        raise UserError(f"network '{name}': '{lazy}' has no shape yet; give the layer its number of inputs")
    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            layer.num_batches_tracked = None  # an unused integer that averaging would corrupt
    return module


def by_gradient(module: nn.Module) -> tuple[list[tuple[str, Tensor]], list[tuple[str, Tensor]]]:
    """Return a module's trainable parameters, and its frozen ones."""
    named = list(module.named_parameters())
    return [pair for pair in named if pair[1].requires_grad], [pair for pair in named if not pair[1].requires_grad]


def detached(tensors: Iterable[tuple[str, Tensor]]) -> State:
    return {name: t.detach().clone() for name, t in tensors}


def running_statistics(module: nn.Module) -> list[str]:
    """Return the names of the buffers with BatchNorm's running statistics."""
    norms = {name: layer for name, layer in module.named_modules() if isinstance(layer, _BatchNorm)}
    kept = (name for name, layer in norms.items() if layer.running_mean is not None)
    return [f"{name}.{kind}" if name else kind for name in kept for kind in ("running_mean", "running_var")]


def forgetful(module: nn.Module) -> nn.Module:
    """Return the module with norms whose running statistics are those of the last batch only."""
    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            layer.momentum = 1.0
    return module


def weightless(module: nn.Module) -> nn.Module:
    """Return a copy whose parameters and buffers have shapes but no values; shared ones stay shared."""
    empty: dict[int, Tensor] = {id(b): torch.empty_like(b, device="meta") for b in module.buffers()}
    for p in module.parameters():
        empty[id(p)] = nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad)
    return deepcopy(module, empty)
