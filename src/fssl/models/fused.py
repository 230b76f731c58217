"""The kernels as functions with gradients, usable in compiled code and captured graphs.

Each kernel is a custom operation with a shape rule, wrapped in an autograd function. The definition in plain PyTorch is
next to it: tests compare the two, and second derivatives use the definition.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

THIN = 32  # most numbers of a patch for which a convolution is computed as a matrix product


def is_thin(weight: Tensor) -> bool:
    """Return whether a matrix product is faster than cuDNN, which pads 3 channels to 8 or more."""
    return weight[0].numel() <= THIN


def before_relu(tensors: Sequence[Tensor], eps: Sequence[float]) -> Tensor:
    """Return norm(x), or norm(x) + other, where the other may have a separate norm."""
    x, weight, bias, *rest = tensors
    out = F.batch_norm(x, None, None, weight, bias, True, 0.0, eps[0])
    if rest:
        other, *affine = rest
        out = out + (F.batch_norm(other, None, None, affine[0], affine[1], True, 0.0, eps[1]) if affine else other)
    return out


def definition(tensors: Sequence[Tensor], eps: Sequence[float], reader: int) -> tuple[Tensor, ...]:
    """Return relu(norm(x) + other), and the part that a second reader uses: what the kernels must compute."""
    y = F.relu(before_relu(tensors, eps))
    return (y, y[:, :, ::reader, ::reader]) if reader else (y,)


@torch.library.custom_op("fssl::norm_relu", mutates_args=())
def forward_op(tensors: Sequence[Tensor], eps: Sequence[float], reader: int) -> tuple[Tensor, Tensor, Tensor]:
    from .kernels import forward

    return forward(tensors, eps, reader)


@forward_op.register_fake
def _(tensors: Sequence[Tensor], eps: Sequence[float], reader: int) -> tuple[Tensor, Tensor, Tensor]:
    x, weight = tensors[:2]
    small = x[:, :, ::2, ::2] if reader == 2 else x[:0]
    return empty_in_order(x), empty_in_order(small), weight.new_empty(4 if len(tensors) == 6 else 2, len(weight))


@torch.library.custom_op("fssl::norm_relu_backward", mutates_args=())
def backward_op(
    grads: Sequence[Tensor], tensors: Sequence[Tensor], stats: Tensor, eps: Sequence[float]
) -> tuple[Tensor, Tensor, Tensor]:
    from .kernels import backward

    return backward(grads, tensors, stats, eps)


@backward_op.register_fake
def _(
    grads: Sequence[Tensor], tensors: Sequence[Tensor], stats: Tensor, eps: Sequence[float]
) -> tuple[Tensor, Tensor, Tensor]:
    x = tensors[0]
    return empty_in_order(x), empty_in_order(x if len(tensors) > 3 else x[:0]), torch.empty_like(stats)


def in_order(t: Tensor) -> Tensor:
    """Return a tensor in channels-last memory, as the kernels read it; convolutions give that order anyway."""
    return t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t


def empty_in_order(t: Tensor) -> Tensor:
    return torch.empty(t.shape, dtype=t.dtype, device=t.device, memory_format=torch.channels_last)


class Fused(Function):
    """The kernels as a function with a gradient."""

    @staticmethod
    def forward(eps: tuple[float, float], reader: int, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, small, stats = forward_op([in_order(t) for t in tensors], eps, reader)
        return y, y.view_as(y) if reader == 1 else small, stats

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.eps, ctx.reader, *tensors = inputs
        ctx.mark_non_differentiable(*output[2 if ctx.reader else 1 :])
        ctx.save_for_backward(output[2], *tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        stats, *tensors = ctx.saved_tensors
        readers = grads[: 2 if ctx.reader else 1]
        dx, d_other, d_affine = FusedBackward.apply(  # type: ignore[no-untyped-call]
            ctx.eps, ctx.reader, len(readers), stats, *readers, *tensors
        )
        return None, None, *[dx, *d_affine[:2], d_other, *d_affine[2:]][: len(tensors)]


class FusedBackward(Function):
    """The gradient as a function with a gradient, that of the definition; FedDure's regulator needs it."""

    @staticmethod
    def forward(eps: tuple[float, float], reader: int, n: int, stats: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        return cast(
            tuple[Tensor, ...],
            backward_op(*([in_order(t) for t in part] for part in (tensors[:n], tensors[n:])), stats, eps),
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.eps, ctx.reader, ctx.n, _, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        def first_order(*tensors: Tensor) -> tuple[Tensor, ...]:
            made = torch.func.vjp(lambda *t: definition(t, ctx.eps, ctx.reader), *tensors[ctx.n :])[1](tensors[: ctx.n])
            dx, weight, bias, *rest = made
            other = rest[0] if rest else dx[:0]
            return dx, other, torch.stack([weight, bias, *rest[1:]])

        return None, None, None, None, *torch.func.vjp(first_order, *ctx.saved_tensors)[1](grads)


def fused(eps: tuple[float, float], reader: int, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return cast(tuple[Tensor, Tensor, Tensor], Fused.apply(eps, reader, *tensors))  # type: ignore[no-untyped-call]


def empty_output(x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    """Return an uninitialized tensor for a convolution's result."""
    high, wide = ((x.shape[i + 2] + 2 * padding[i] - weight.shape[i + 2]) // stride[i] + 1 for i in (0, 1))
    size = (len(x), len(weight), high, wide)
    return torch.empty(size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


@torch.library.custom_op("fssl::stem", mutates_args=())
def stem_op(
    tensors: Sequence[Tensor], eps: float, reader: int, stride: Sequence[int], padding: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from .kernels import Window, stem

    return stem(tensors, eps, reader, Window(tensors[1].shape[2:], stride, padding))


@stem_op.register_fake
def _(
    tensors: Sequence[Tensor], eps: float, reader: int, stride: Sequence[int], padding: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, matrix, weight, _ = tensors
    z = empty_output(x, matrix, stride, padding)
    small = z[:, :, ::2, ::2] if reader == 2 else z[:0]
    return z, empty_in_order(z), empty_in_order(small), weight.new_empty(2, len(weight))


@torch.library.custom_op("fssl::stem_backward", mutates_args=())
def stem_backward_op(
    grads: Sequence[Tensor],
    tensors: Sequence[Tensor],
    z: Tensor,
    stats: Tensor,
    eps: float,
    stride: Sequence[int],
    padding: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Return the gradient of the weight as [THIN, C], and of the norm's weight and bias as [2, C]."""
    from .kernels import Window, stem_backward

    parts, d_affine = stem_backward(grads, tensors, z, stats, eps, Window(tensors[1].shape[2:], stride, padding))
    return parts.sum(0), d_affine


@stem_backward_op.register_fake
def _(
    grads: Sequence[Tensor],
    tensors: Sequence[Tensor],
    z: Tensor,
    stats: Tensor,
    eps: float,
    stride: Sequence[int],
    padding: Sequence[int],
) -> tuple[Tensor, Tensor]:
    return stats.new_empty(THIN, z.shape[1]), torch.empty_like(stats)


def stem_definition(
    tensors: Sequence[Tensor], eps: float, reader: int, stride: tuple[int, int], padding: tuple[int, int]
) -> tuple[Tensor, ...]:
    """Return `definition` of a convolution; tensors are images, its weight, and weight and bias of the norm."""
    x, matrix, weight, bias = tensors
    z = F.conv2d(x, matrix.to(x.dtype), None, stride, padding)
    return definition((z, weight, bias), (eps, eps), reader)


class FusedStem(Function):
    """A convolution of few channels with its norm and ReLU, as a function with a gradient."""

    @staticmethod
    def forward(settings: tuple[Any, ...], *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        z, y, small, stats = stem_op([in_order(tensors[0]), *tensors[1:]], *settings)
        return y, y.view_as(y) if settings[1] == 1 else small, stats, z

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.settings, *tensors = inputs
        ctx.n = 2 if ctx.settings[1] else 1
        ctx.mark_non_differentiable(*output[ctx.n :])
        ctx.save_for_backward(*output[2:], *tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        stats, z, *tensors = ctx.saved_tensors
        if ctx.needs_input_grad[1]:  # rare: nothing here differentiates by images
            made = torch.func.vjp(lambda *t: stem_definition(t, *ctx.settings), *tensors)[1](grads[: ctx.n])
        else:
            d_weight, d_affine = StemBackward.apply(  # type: ignore[no-untyped-call]
                ctx.settings, ctx.n, stats, z, *grads[: ctx.n], *tensors
            )
            made = None, d_weight, *d_affine
        return None, *made


class StemBackward(Function):
    """The gradient of the weights only; its gradient, for FedDure's regulator, is that of the definition."""

    @staticmethod
    def forward(settings: tuple[Any, ...], n: int, stats: Tensor, z: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        grads, (x, weight, *affine) = [in_order(t) for t in tensors[:n]], tensors[n:]
        eps, _, stride, padding = settings
        matrix, d_affine = stem_backward_op(grads, [in_order(x), weight, *affine], z, stats, eps, stride, padding)
        used = matrix[: weight[0].numel()].T.reshape(len(weight), *weight.shape[2:], -1)
        return used.permute(0, 3, 1, 2).contiguous(), d_affine

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.settings, ctx.n, _, _, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        def first_order(*tensors: Tensor) -> tuple[Tensor, ...]:
            pull = torch.func.vjp(lambda *t: stem_definition(t, *ctx.settings), *tensors[ctx.n :])[1]
            _, d_weight, *d_affine = pull(tensors[: ctx.n])
            return d_weight, torch.stack(d_affine)

        return None, None, None, None, *torch.func.vjp(first_order, *ctx.saved_tensors)[1](grads)


def fused_stem(settings: tuple[Any, ...], *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, the same for a second reader, and the statistics; settings are eps, reader, stride and padding."""
    return cast(tuple[Tensor, Tensor, Tensor], FusedStem.apply(settings, *tensors)[:3])  # type: ignore[no-untyped-call]


@torch.library.custom_op("fssl::conv_relu", mutates_args=())
def conv_relu_op(
    x: Tensor, weight: Tensor, bias: Tensor, side: Tensor | None, stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    if side is None and is_thin(weight):
        from .kernels import Window, thin

        return thin(x, weight, bias, Window(weight.shape[2:], stride, padding))
    if side is None:
        return torch.cudnn_convolution_relu(x, weight, bias, stride, padding, (1, 1), 1)
    return torch.cudnn_convolution_add_relu(x, weight, side, 1.0, bias, stride, padding, (1, 1), 1)


@conv_relu_op.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor, side: Tensor | None, stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    return empty_output(x, weight, stride, padding)


class ConvReLU(Function):
    """cuDNN's convolution with bias, sum and ReLU as a function with a gradient."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, side: Tensor | None, stride: tuple[int, int], padding: tuple[int, int]
    ) -> Tensor:
        return cast(Tensor, conv_relu_op(in_order(x), weight, bias, side, stride, padding))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight, bias, side, ctx.stride, ctx.padding = inputs
        ctx.has_side = side is not None
        ctx.save_for_backward(x, weight, bias, output)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, y = ctx.saved_tensors
        dz = dy * (y > 0)
        convolve = partial(F.conv2d, stride=ctx.stride, padding=ctx.padding)
        dx, dw, db = torch.func.vjp(convolve, x, weight, bias.to(x.dtype))[1](dz)
        return dx, dw, db.to(bias.dtype), dz if ctx.has_side else None, None, None


def conv_relu(
    x: Tensor, weight: Tensor, bias: Tensor, side: Tensor | None, stride: tuple[int, ...], padding: tuple[int, ...]
) -> Tensor:
    return cast(Tensor, ConvReLU.apply(x, weight, bias, side, stride, padding))  # type: ignore[no-untyped-call]
