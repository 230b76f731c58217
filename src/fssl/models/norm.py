"""Convolution, BatchNorm, sum and ReLU, the parts of networks: in plain PyTorch, and as computed fastest on a GPU.

`plain` is the definition. On a Hopper GPU in bf16 the same function is computed in fewer passes over memory: in
training by kernels (`fused.py`), with running statistics by a convolution that includes BatchNorm.
"""

from importlib.util import find_spec
from typing import Literal, NamedTuple, TypeGuard, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .fused import conv_relu, fused, fused_stem, is_thin

Norm = nn.BatchNorm2d | nn.GroupNorm
NormName = Literal["batch", "group"]
MOST_IN_GROUP = 32  # channels of GroupNorm that share their mean and variance


class Maps(NamedTuple):
    """Feature maps, and the shortcut's input: the maps, or only the positions that its stride reads."""

    main: Tensor
    side: Tensor


class NormReLU(nn.BatchNorm2d):
    """BatchNorm and ReLU in one layer; in training on a GPU in bf16 faster than the two.

    Its parameters and buffers are those of `nn.BatchNorm2d`.

    Returns:
        relu(norm(maps)), or relu(norm(maps) + residual), when called with maps [B, C, H, W].

    Examples:
        >>> layer = NormReLU(16)
        >>> layer(torch.zeros(2, 16, 4, 4), residual=torch.ones(2, 16, 4, 4)).mean()
        tensor(1., grad_fn=<MeanBackward0>)
    """

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return norm_relu(x, self, residual)


def make_norm(channels: int, name: NormName) -> Norm:
    """Return BatchNorm, or GroupNorm with the largest equal groups of at most 32 channels."""
    if name == "batch":
        return nn.BatchNorm2d(channels)
    size = next(n for n in range(min(channels, MOST_IN_GROUP), 0, -1) if channels % n == 0)
    return nn.GroupNorm(channels // size, channels)


def norm_relu(x: Tensor, bn: Norm, residual: Tensor | None = None) -> Tensor:
    """Return relu(bn(x) + residual)."""
    return summed(x, bn, residual, None, 0).main


def conv_norm_relu(
    x: Tensor,
    conv: nn.Conv2d,
    bn: Norm,
    side: Tensor | None = None,
    shortcut: nn.Module | None = None,
    reader: int = 0,
) -> Maps:
    """Return relu(bn(conv(x)) + shortcut(side)).

    Args:
        x: Feature maps, or images.
        conv: A plain convolution: a size, a stride, zero padding, no bias.
        bn: The norm of the convolution's result; PyTorch computes GroupNorm.
        side: The shortcut's input: `Maps.side` of the previous layer.
        shortcut: nn.Identity(), or a 1x1 convolution without a bias and its norm.
        reader: The stride of the shortcut that will read the result; 0 without one.
    """
    if computes_in_bf16(x) and isinstance(bn, nn.BatchNorm2d) and not bn.training:
        return folded(x, conv, bn, side, shortcut)
    if computes_in_bf16(x) and side is None and is_thin(conv.weight) and is_ordinary(bn):
        return stem(x, conv, bn, reader)
    out = conv(x)
    if side is None or not isinstance(shortcut, nn.Sequential):
        return summed(out, bn, side, None, reader)
    other, other_bn = layers_of(shortcut)
    # If the previous layer omitted the positions that the stride skips, the stride is already applied.
    raw = F.conv2d(side, other.weight) if side.shape[2:] == out.shape[2:] else other(side)
    return summed(out, bn, raw, other_bn, reader)


def layers_of(shortcut: nn.Sequential) -> tuple[nn.Conv2d, Norm]:
    conv, bn = shortcut
    return cast(nn.Conv2d, conv), cast(Norm, bn)


def computes_in_bf16(x: Tensor) -> bool:
    """Return whether a convolution of x would be computed in bf16 on a GPU."""
    kind = x.device.type
    return has_kernels(x) and torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16


def has_kernels(x: Tensor) -> bool:
    return x.is_cuda and _kernels_are_on


_kernels_are_on = False


def switch_kernels(device: torch.device, wanted: bool) -> None:
    """Turn kernels on or off in this process; they run only on GPUs of Hopper's generation or later, as measured."""
    global _kernels_are_on
    is_hopper = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    _kernels_are_on = wanted and is_hopper and find_spec("triton") is not None


def summed(x: Tensor, bn: Norm, other: Tensor | None, other_bn: Norm | None, reader: int) -> Maps:
    """Return relu(bn(x) + other_bn(other))."""
    given = [bn] if other_bn is None else [bn, other_bn]
    norms = [norm for norm in given if is_ordinary(norm)]
    is_alike = other is None or (other.shape, other.dtype) == (x.shape, x.dtype)
    if not (has_kernels(x) and x.dtype == torch.bfloat16 and is_alike and len(norms) == len(given)):
        return Maps(*[plain(x, bn, other, other_bn)] * 2)
    tensors = [x, bn.weight, bn.bias] if other is None else [x, bn.weight, bn.bias, other]
    if other_bn is not None:
        tensors += [other_bn.weight, other_bn.bias]
    y, side, stats = fused((bn.eps, norms[-1].eps), reader, *tensors)
    for norm, mean, var in zip(norms, *stats.detach().unflatten(0, (-1, 2)).unbind(1), strict=True):
        track(norm, mean, var, x.numel() // x.shape[1])
    return Maps(y, side if reader else y)


def plain(x: Tensor, bn: Norm, other: Tensor | None, other_bn: Norm | None) -> Tensor:
    """Return relu(bn(x) + other_bn(other)) in plain PyTorch, as the definition."""
    out = nn.BatchNorm2d.forward(bn, x) if isinstance(bn, nn.BatchNorm2d) else bn(x)  # NormReLU's forward adds ReLU
    if other is not None:
        out = out + (other if other_bn is None else other_bn(other))
    return F.relu(out)


def is_ordinary(bn: Norm) -> TypeGuard[nn.BatchNorm2d]:
    """Return whether a norm uses its batch's statistics, fp32 weights and a fixed momentum."""
    is_batch_norm = isinstance(bn, nn.BatchNorm2d) and bn.training and bn.affine
    return is_batch_norm and bn.weight.dtype == torch.float32 and bn.momentum is not None


def track(bn: nn.BatchNorm2d, mean: Tensor, var: Tensor, n: int) -> None:
    """Update the running statistics as `nn.BatchNorm2d` does: with the unbiased variance."""
    if bn.running_mean is not None and bn.running_var is not None and bn.momentum is not None:
        bn.running_mean.mul_(1 - bn.momentum).add_(mean, alpha=bn.momentum)
        bn.running_var.mul_(1 - bn.momentum).add_(var, alpha=bn.momentum * n / max(n - 1, 1))


def stem(x: Tensor, conv: nn.Conv2d, bn: nn.BatchNorm2d, reader: int) -> Maps:
    """Return relu(bn(conv(x))) for images with few channels: patches times a matrix, without a gradient by x."""
    settings = (bn.eps, reader, conv.stride, conv.padding)
    y, side, stats = fused_stem(settings, x.to(torch.bfloat16), conv.weight, bn.weight, bn.bias)
    mean, var = stats.detach()
    track(bn, mean, var, y.numel() // y.shape[1])
    return Maps(y, side if reader else y)


def folded(x: Tensor, conv: nn.Conv2d, bn: nn.BatchNorm2d, side: Tensor | None, shortcut: nn.Module | None) -> Maps:
    """Return the layer's maps with BatchNorm's running statistics folded into the convolution's weight and bias."""
    weight, bias = fold(conv, bn)
    if isinstance(shortcut, nn.Sequential) and side is not None:
        other, other_bn = layers_of(shortcut)
        other_weight, other_bias = fold(other, cast(nn.BatchNorm2d, other_bn))
        side, bias = F.conv2d(side, other_weight, None, other.stride), bias + other_bias
    stride, padding = conv.stride, cast(tuple[int, int], conv.padding)
    bias = bias if is_thin(weight) else bias.to(torch.bfloat16)  # as cuDNN requires
    maps = conv_relu(x.to(torch.bfloat16), weight, bias, side, stride, padding)
    return Maps(maps, maps)


def fold(conv: nn.Conv2d, bn: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Return the weight and bias of a convolution with its norm folded in."""
    mean, var = cast(Tensor, bn.running_mean), cast(Tensor, bn.running_var)
    scale = bn.weight * torch.rsqrt(var + bn.eps)
    order = torch.contiguous_format if is_thin(conv.weight) else torch.channels_last
    weight = (conv.weight * scale[:, None, None, None]).to(torch.bfloat16, memory_format=order)
    return weight, bn.bias - mean * scale
