"""Net: an architecture called with explicit weights. Nothing else in the project calls a module."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import UserError
from ..system.user_code import file_of, function_in, made
from ..types import State, Weights, clone
from .resnet import ResNet8, SmallCnn

CLASSIFIER = "head.linear.weight"  # [C, d] in every architecture: one row per class
Builder = Callable[[int, int, int], nn.Module]  # of channels, classes and width
MODELS: dict[str, Builder] = {"resnet8": ResNet8, "cnn": SmallCnn}


def builder_of(name: str) -> Builder:
    """A network of the list, or the function of a file."""
    file = file_of(name)
    return function_in(file, name, "network") if file else MODELS[name]


def switch_tf32_off() -> None:
    """In this process fp32 means fp32, also on a GPU."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False


class Out(NamedTuple):
    """What a network says of a batch."""

    logits: Tensor  # [B, C] fp32
    feature: Tensor  # [B, d] fp32


class Net:
    """One architecture, in training and in evaluation mode, without weights of its own.

    A call lends its weights to a module for its duration, so threads need a Net each: see `copy`.
    """

    def __init__(self, name: str, channels: int, classes: int, width: int, bf16: bool = False) -> None:
        self._shape = (name, channels, classes, width)
        self._bf16 = bf16
        with torch.device("meta"):
            self._training = self._build().train()
            self._evaluation = self._build().eval()
        self._names = [name for name, _ in (*self._training.named_parameters(), *self._training.named_buffers())]

    def _build(self) -> nn.Module:
        name, *sizes = self._shape
        module = made(builder_of(name), "network", name, *sizes)
        if not isinstance(module, nn.Module):
            raise UserError(f"network '{name}' is {type(module).__name__!r}, expected a torch.nn.Module")
        for layer in module.modules():
            if isinstance(layer, _BatchNorm):
                layer.num_batches_tracked = None  # an integer that nobody reads, and that averaging would spoil
        return module

    @property
    def channels(self) -> int:
        return self._shape[1]

    def check(self, size: int) -> None:
        """Refuse a network that a federation could not train, by calling it as a step and a test would."""
        name, channels, classes, _ = self._shape
        if CLASSIFIER not in self._names:
            raise UserError(f"network '{name}': its last layer must be self.head = fssl.models.Head(features, classes)")
        for key, buffer in self._training.named_buffers():
            if not buffer.is_floating_point():
                raise UserError(f"network '{name}': buffer '{key}' is {buffer.dtype}, which clients cannot average")
        images = torch.linspace(-2, 2, 4 * channels * size**2).view(4, channels, size, size)
        try:
            weights = self.init(0)
            with torch.no_grad():
                (_, (first,)), (_, (second,)) = self.fit(weights, images), self.fit(weights, images)
                shapes = [list(o.logits.shape) for o in (first, self.infer(weights, images))]
        except Exception as error:
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            raise UserError(f"network '{name}' cannot be called with images {list(images.shape)}: {what}") from error
        if shapes != [[4, classes]] * 2:
            raise UserError(f"network '{name}': for 4 images logits are {shapes[0]}, expected {[4, classes]}")
        if not torch.equal(first.logits, second.logits):
            raise UserError(f"network '{name}' draws random numbers (dropout?): the same images give other logits")

    def copy(self) -> "Net":
        name, channels, classes, width = self._shape
        return Net(name, channels, classes, width, self._bf16)

    def init(self, seed: int) -> Weights:
        """Initial weights: those of the first module built after seeding the framework with `seed`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self._build()
        params = {name: p.detach().clone() for name, p in module.named_parameters()}
        return Weights(params, {name: b.clone() for name, b in module.named_buffers()})

    def fit(self, weights: Weights, *views: Tensor) -> tuple[State, list[Out]]:
        """One joint batch in training mode: the updated buffers, and what it says of each view."""
        buffers = clone(weights.buffers)
        out = self._call(self._training, Weights(weights.params, buffers), torch.cat(views))
        sizes = [len(view) for view in views]
        logits, features = out.logits.split(sizes), out.feature.split(sizes)
        return buffers, [Out(a, b) for a, b in zip(logits, features, strict=True)]

    def infer(self, weights: Weights, x: Tensor) -> Out:
        """Evaluation mode: running statistics, nothing updated."""
        return self._call(self._evaluation, weights, x)

    def _call(self, module: nn.Module, weights: Weights, x: Tensor) -> Out:
        tensors = {**weights.params, **weights.buffers}
        own = {name: tensors[name] for name in self._names}  # a method may keep further tensors beside them
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self._bf16):
            feature, logits = functional_call(module, own, (x,))
        return Out(logits, feature)
