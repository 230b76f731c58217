"""BatchNorm, sum and ReLU on a GPU, forward and backward, in as few passes over the tensors as possible.

`models/fused.py` has the definition. A tensor [B, C, H, W] in channels-last memory is a matrix here, a row per position
and a column per channel. Each program iterates over tiles of rows of one slice of the channels. To sum over all rows,
every program of one kernel writes a partial sum, and every program of the next adds them in a fixed order. There are no
atomics, so results are the same in every run, and no kernel only adds.

Import this module on a CUDA device only: Triton comes with PyTorch's CUDA build.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .fused import THIN, empty_in_order, empty_output

SLICE = 64  # channels of a program: 128 bytes of a row
OTHER = (0, 1, 2, 2)  # the kernels' code for a summand (0 none, 1 plain, 2 normed) by its number of tensors
FEW = 16  # rows of partial sums added at a time


class Shape(NamedTuple):
    """The launch shape of a kernel, measured on an H200."""

    tile: int  # elements
    warps: int
    per_sm: int  # programs; 0: one for each tile


MOMENTS, APPLY = Shape(8192, 8, 2), Shape(8192, 4, 2)
REDUCE, REDUCE_SUM = Shape(16384, 16, 1), Shape(8192, 16, 1)  # with one summand, and with two
SPREAD, SPREAD_SUM = Shape(8192, 4, 3), Shape(4096, 8, 2)  # with one normed summand, and with two
STEM, STEM_BACKWARD = Shape(8192, 4, 0), Shape(8192, 4, 2)


@triton.jit
def _columns(C: tl.constexpr, BLOCK: tl.constexpr) -> Any:
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    return c, c < C


@triton.jit
def _added(parts, row, c, is_column, P: tl.constexpr, K: tl.constexpr, C: tl.constexpr, FEW: tl.constexpr,
           BLOCK: tl.constexpr) -> Any:  # fmt: skip
    """Return the sum over all programs' rows `row` of `parts` [P, K, C]."""
    total = tl.zeros([FEW, BLOCK], tl.float32)
    for first in range(0, P, FEW):
        p = first + tl.arange(0, FEW)
        at = parts + (p[:, None] * K + row) * C + c[None, :]
        total += tl.load(at, mask=(p < P)[:, None] & is_column[None, :], other=0.0)
    return tl.sum(total, 0)


@triton.jit
def _moments_of(parts, c, is_column, N, ROWS: tl.constexpr, P: tl.constexpr, C: tl.constexpr, FEW: tl.constexpr,
                BLOCK: tl.constexpr) -> Any:  # fmt: skip
    """Return mean and variance of all rows, from each program's mean and sum of squared deviations."""
    # Adding the means as distances from the first program's mean keeps the digits of a large mean.
    base = tl.load(parts + c, mask=is_column, other=0.0)
    first_order = tl.zeros([FEW, BLOCK], tl.float32)
    second_order = tl.zeros([FEW, BLOCK], tl.float32)
    tiles = tl.cdiv(N, ROWS)
    for first in range(0, P, FEW):
        p = first + tl.arange(0, FEW)
        rows = ((tiles - 1 - p) // P + 1) * ROWS - tl.where(p == (tiles - 1) % P, tiles * ROWS - N, 0)
        is_there = (p < P)[:, None] & is_column[None, :]
        at = parts + p[:, None] * 2 * C + c[None, :]
        away = tl.where(is_there, tl.load(at, mask=is_there, other=0.0) - base[None, :], 0.0)
        weighed = away * rows[:, None].to(tl.float32)
        first_order += weighed
        second_order += weighed * away + tl.load(at + C, mask=is_there, other=0.0)
    away = tl.sum(first_order, 0) / N
    return base + away, tl.maximum(tl.sum(second_order, 0) / N - away * away, 0.0)


@triton.jit
def _moments(x, parts, N, C: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, P: tl.constexpr) -> None:
    """Write mean and sum of squared deviations of each program's rows to `parts` [P, 2, C]."""
    c, is_column = _columns(C, BLOCK)
    me = tl.program_id(0)
    rows = me * ROWS + tl.arange(0, ROWS)
    is_there = (rows < N)[:, None] & is_column[None, :]
    first = tl.load(x + rows[:, None].to(tl.int64) * C + c[None, :], mask=is_there, other=0.0).to(tl.float32)
    shift = tl.sum(first, 0) / tl.minimum(N - me * ROWS, ROWS)  # near the mean: squares of small numbers lose nothing
    s = tl.zeros([ROWS, BLOCK], tl.float32)
    q = tl.zeros([ROWS, BLOCK], tl.float32)
    turns = (tl.cdiv(N, ROWS) - 1 - me) // P + 1
    for turn in range(turns):
        rows = ((turns - 1 - turn) * P + me) * ROWS + tl.arange(0, ROWS)  # backwards: the end is still in the cache
        is_there = (rows < N)[:, None] & is_column[None, :]
        value = tl.load(x + rows[:, None].to(tl.int64) * C + c[None, :], mask=is_there, other=0.0).to(tl.float32)
        away = tl.where(is_there, value - shift[None, :], 0.0)
        s += away
        q += away * away
    n = turns * ROWS - tl.where(me == (tl.cdiv(N, ROWS) - 1) % P, tl.cdiv(N, ROWS) * ROWS - N, 0)
    mean = tl.sum(s, 0) / n
    at = parts + me * 2 * C + c
    tl.store(at, shift + mean, mask=is_column)
    tl.store(at + C, tl.sum(q, 0) - n * mean * mean, mask=is_column)


@triton.jit
def _compact(rows, H: tl.constexpr, W: tl.constexpr) -> Any:
    """Return the index of each row in a map of every second position and line, and which rows are in it."""
    image, h, w = rows // (H * W), rows // W % H, rows % W
    return (image * ((H + 1) // 2) + h // 2) * ((W + 1) // 2) + w // 2, (h % 2 == 0) & (w % 2 == 0)


@triton.jit
def _apply(x, weight, bias, parts, other, other_weight, other_bias, other_parts, y, small, stats, N, eps, other_eps,
           H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
           P: tl.constexpr, SUMMED: tl.constexpr, FEW: tl.constexpr, OTHER: tl.constexpr,
           SMALL: tl.constexpr) -> None:  # fmt: skip
    """Write y, its every second position if asked for, and the statistics `stats` [2 or 4, C]."""
    c, is_column = _columns(C, BLOCK)
    mean, var = _moments_of(parts, c, is_column, N, SUMMED, P, C, FEW, BLOCK)
    scale = tl.load(weight + c, mask=is_column, other=0.0) * tl.rsqrt(var + eps)
    shift = tl.load(bias + c, mask=is_column, other=0.0)
    if OTHER == 2:
        other_mean, other_var = _moments_of(other_parts, c, is_column, N, SUMMED, P, C, FEW, BLOCK)
        other_scale = tl.load(other_weight + c, mask=is_column, other=0.0) * tl.rsqrt(other_var + other_eps)
        shift += tl.load(other_bias + c, mask=is_column, other=0.0)
    if tl.program_id(0) == 0:
        tl.store(stats + c, mean, mask=is_column)
        tl.store(stats + C + c, var, mask=is_column)
        if OTHER == 2:
            tl.store(stats + 2 * C + c, other_mean, mask=is_column)
            tl.store(stats + 3 * C + c, other_var, mask=is_column)
    for tile in range(tl.program_id(0), tl.cdiv(N, ROWS), tl.num_programs(0)):
        rows = tile * ROWS + tl.arange(0, ROWS)
        is_there = (rows < N)[:, None] & is_column[None, :]
        at = rows[:, None].to(tl.int64) * C + c[None, :]
        z = (tl.load(x + at, mask=is_there, other=0.0).to(tl.float32) - mean[None, :]) * scale[None, :]
        z += shift[None, :]
        if OTHER == 1:
            z += tl.load(other + at, mask=is_there, other=0.0).to(tl.float32)
        if OTHER == 2:
            value = tl.load(other + at, mask=is_there, other=0.0).to(tl.float32)
            z += (value - other_mean[None, :]) * other_scale[None, :]
        z = tl.maximum(z, 0.0).to(y.dtype.element_ty)
        tl.store(y + at, z, mask=is_there)
        if SMALL:
            row, is_even = _compact(rows, H, W)
            tl.store(small + row[:, None].to(tl.int64) * C + c[None, :], z, mask=is_there & is_even[:, None])


@triton.jit
def _masked(dy, dy2, x, mean, scale, shift, other, other_mean, other_scale, rows, c, is_there, H: tl.constexpr,
            W: tl.constexpr, C: tl.constexpr, OTHER: tl.constexpr, FORK: tl.constexpr) -> Any:  # fmt: skip
    """Return the gradient of the ReLU's input, and the distances of x and of the other from their means."""
    at = rows[:, None].to(tl.int64) * C + c[None, :]
    g = tl.load(dy + at, mask=is_there, other=0.0).to(tl.float32)
    if FORK == 1:
        g += tl.load(dy2 + at, mask=is_there, other=0.0).to(tl.float32)
    if FORK == 2:
        row, is_even = _compact(rows, H, W)
        at2 = row[:, None].to(tl.int64) * C + c[None, :]
        g += tl.load(dy2 + at2, mask=is_there & is_even[:, None], other=0.0).to(tl.float32)
    away = tl.load(x + at, mask=is_there, other=0.0).to(tl.float32) - mean[None, :]
    z = away * scale[None, :] + shift[None, :]
    other_away = away
    if OTHER == 1:
        z += tl.load(other + at, mask=is_there, other=0.0).to(tl.float32)
    if OTHER == 2:
        other_away = tl.load(other + at, mask=is_there, other=0.0).to(tl.float32) - other_mean[None, :]
        z += other_away * other_scale[None, :]
    return tl.where(z > 0, g, 0.0), away, other_away


@triton.jit
def _factors(weight, bias, stats, other_weight, other_bias, c, is_column, eps, other_eps, C: tl.constexpr,
             OTHER: tl.constexpr) -> Any:  # fmt: skip
    """Return means, 1 / deviations and scales of x and of the other, and the total shift."""
    mean = tl.load(stats + c, mask=is_column, other=0.0)
    r = tl.rsqrt(tl.load(stats + C + c, mask=is_column, other=0.0) + eps)
    scale = tl.load(weight + c, mask=is_column, other=0.0) * r
    shift = tl.load(bias + c, mask=is_column, other=0.0)
    other_mean, other_r, other_scale = mean, r, scale
    if OTHER == 2:
        other_mean = tl.load(stats + 2 * C + c, mask=is_column, other=0.0)
        other_r = tl.rsqrt(tl.load(stats + 3 * C + c, mask=is_column, other=0.0) + other_eps)
        other_scale = tl.load(other_weight + c, mask=is_column, other=0.0) * other_r
        shift += tl.load(other_bias + c, mask=is_column, other=0.0)
    return mean, r, scale, shift, other_mean, other_r, other_scale


@triton.jit
def _reduce(dy, dy2, x, weight, bias, stats, other, other_weight, other_bias, g_out, parts, N, eps, other_eps,
            H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
            OTHER: tl.constexpr, FORK: tl.constexpr, K: tl.constexpr) -> None:  # fmt: skip
    """Write each program's sums of g, g (x - mean) and g (other - its mean) to `parts` [P, K, C].

    With a plain other, also write g.
    """
    c, is_column = _columns(C, BLOCK)
    mean, _, scale, shift, other_mean, _, other_scale = _factors(
        weight, bias, stats, other_weight, other_bias, c, is_column, eps, other_eps, C, OTHER
    )
    s = tl.zeros([ROWS, BLOCK], tl.float32)
    sx = tl.zeros([ROWS, BLOCK], tl.float32)
    so = tl.zeros([ROWS, BLOCK], tl.float32)
    tiles = tl.cdiv(N, ROWS)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        rows = (tiles - 1 - tile) * ROWS + tl.arange(0, ROWS)  # backwards, as above
        is_there = (rows < N)[:, None] & is_column[None, :]
        g, away, other_away = _masked(
            dy, dy2, x, mean, scale, shift, other, other_mean, other_scale, rows, c, is_there, H, W, C, OTHER, FORK
        )
        if OTHER == 1:
            g = g.to(g_out.dtype.element_ty)
            tl.store(g_out + rows[:, None].to(tl.int64) * C + c[None, :], g, mask=is_there)
            g = g.to(tl.float32)
        s += g
        sx += g * away
        if OTHER == 2:
            so += g * other_away
    at = parts + tl.program_id(0) * K * C + c
    tl.store(at, tl.sum(s, 0), mask=is_column)
    tl.store(at + C, tl.sum(sx, 0), mask=is_column)
    if OTHER == 2:
        tl.store(at + 2 * C, tl.sum(so, 0), mask=is_column)


@triton.jit
def _spread(dy, dy2, x, weight, bias, stats, other, other_weight, other_bias, parts, dx, d_other, d_affine, N, eps,
            other_eps, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
            P: tl.constexpr, FEW: tl.constexpr, OTHER: tl.constexpr, FORK: tl.constexpr, K: tl.constexpr,
            ) -> None:  # fmt: skip
    """Write dx, the gradient of a normed other, and those of weights and biases: `d_affine` [2 or 4, C].

    With a plain other, `dy` is g already.
    """
    c, is_column = _columns(C, BLOCK)
    mean, r, scale, shift, other_mean, other_r, other_scale = _factors(
        weight, bias, stats, other_weight, other_bias, c, is_column, eps, other_eps, C, OTHER
    )
    s = _added(parts, 0, c, is_column, P, K, C, FEW, BLOCK)
    sx = _added(parts, 1, c, is_column, P, K, C, FEW, BLOCK)
    slope, level = r * r * sx / N, s / N
    if tl.program_id(0) == 0:
        tl.store(d_affine + c, sx * r, mask=is_column)
        tl.store(d_affine + C + c, s, mask=is_column)
    other_slope = slope
    if OTHER == 2:
        so = _added(parts, 2, c, is_column, P, K, C, FEW, BLOCK)
        other_slope = other_r * other_r * so / N
        if tl.program_id(0) == 0:
            tl.store(d_affine + 2 * C + c, so * other_r, mask=is_column)
            tl.store(d_affine + 3 * C + c, s, mask=is_column)
    for tile in range(tl.program_id(0), tl.cdiv(N, ROWS), tl.num_programs(0)):
        rows = tile * ROWS + tl.arange(0, ROWS)
        is_there = (rows < N)[:, None] & is_column[None, :]
        at = rows[:, None].to(tl.int64) * C + c[None, :]
        if OTHER == 1:
            g = tl.load(dy + at, mask=is_there, other=0.0).to(tl.float32)
            away = tl.load(x + at, mask=is_there, other=0.0).to(tl.float32) - mean[None, :]
            other_away = away
        else:
            g, away, other_away = _masked(
                dy, dy2, x, mean, scale, shift, other, other_mean, other_scale, rows, c, is_there, H, W, C, OTHER, FORK
            )
        g -= level[None, :]
        value = (g - away * slope[None, :]) * scale[None, :]
        tl.store(dx + at, value.to(dx.dtype.element_ty), mask=is_there)
        if OTHER == 2:
            value = (g - other_away * other_slope[None, :]) * other_scale[None, :]
            tl.store(d_other + at, value.to(d_other.dtype.element_ty), mask=is_there)


@triton.jit
def _patches(x, rows, N, H: tl.constexpr, W: tl.constexpr, CIN: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
             KH: tl.constexpr, KW: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr, TOP: tl.constexpr,
             LEFT: tl.constexpr, THIN: tl.constexpr) -> Any:  # fmt: skip
    """Return each output's input patch as a row of [ROWS, THIN], with the channels of a pixel adjacent."""
    k = tl.arange(0, THIN)
    high = (rows // OW % OH * DOWN - TOP)[:, None] + (k // (KW * CIN))[None, :]
    wide = (rows % OW * RIGHT - LEFT)[:, None] + (k // CIN % KW)[None, :]
    is_there = (rows < N)[:, None] & (k < KH * KW * CIN)[None, :] & (high >= 0) & (high < H) & (wide >= 0) & (wide < W)
    image = (rows // (OH * OW)).to(tl.int64)[:, None]
    return tl.load(x + ((image * H + high) * W + wide) * CIN + (k % CIN)[None, :], mask=is_there, other=0.0)


@triton.jit
def _matrix(weight, c, is_column, CIN: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, THIN: tl.constexpr) -> Any:
    """Return a convolution's weight [C, CIN, KH, KW] as the matrix [THIN, BLOCK] that multiplies patches."""
    k = tl.arange(0, THIN)
    at = c[None, :] * (CIN * KH * KW) + (k % CIN * (KH * KW) + k // CIN)[:, None]
    return tl.load(weight + at, mask=(k < KH * KW * CIN)[:, None] & is_column[None, :], other=0.0)


@triton.jit
def _thin(x, weight, bias, y, N, H: tl.constexpr, W: tl.constexpr, CIN: tl.constexpr, OH: tl.constexpr,
          OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr,
          TOP: tl.constexpr, LEFT: tl.constexpr, THIN: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
          ROWS: tl.constexpr, RELU: tl.constexpr) -> None:  # fmt: skip
    """Write a convolution of few channels, with bias and ReLU if asked for: patches times a matrix."""
    c, is_column = _columns(C, BLOCK)
    matrix = _matrix(weight, c, is_column, CIN, KH, KW, THIN).to(x.dtype.element_ty)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    patches = _patches(x, rows, N, H, W, CIN, OH, OW, KH, KW, DOWN, RIGHT, TOP, LEFT, THIN)
    value = tl.dot(patches, matrix, input_precision="ieee")
    if RELU:
        value = tl.maximum(value + tl.load(bias + c, mask=is_column, other=0.0).to(tl.float32)[None, :], 0.0)
    at = rows[:, None].to(tl.int64) * C + c[None, :]
    tl.store(y + at, value.to(y.dtype.element_ty), mask=(rows < N)[:, None] & is_column[None, :])


@triton.jit
def _stem_weight(dy, dy2, x, z, weight, bias, stats, parts, d_weight, d_affine, N, eps, H: tl.constexpr,
                 W: tl.constexpr, CIN: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr,
                 KW: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr, TOP: tl.constexpr, LEFT: tl.constexpr,
                 THIN: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, P: tl.constexpr,
                 FEW: tl.constexpr, FORK: tl.constexpr) -> None:  # fmt: skip
    """Write `d_weight` [programs, THIN, C]: the convolution's gradient (see `_spread`) times its patches."""
    c, is_column = _columns(C, BLOCK)
    mean, r, scale, shift, _, _, _ = _factors(weight, bias, stats, weight, bias, c, is_column, eps, eps, C, 0)
    s = _added(parts, 0, c, is_column, P, 2, C, FEW, BLOCK)
    sx = _added(parts, 1, c, is_column, P, 2, C, FEW, BLOCK)
    slope, level = r * r * sx / N, s / N
    if tl.program_id(0) == 0:
        tl.store(d_affine + c, sx * r, mask=is_column)
        tl.store(d_affine + C + c, s, mask=is_column)
    total = tl.zeros([THIN, BLOCK], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(N, ROWS), tl.num_programs(0)):
        rows = tile * ROWS + tl.arange(0, ROWS)
        is_there = (rows < N)[:, None] & is_column[None, :]
        g, away, _away = _masked(dy, dy2, z, mean, scale, shift, z, mean, scale, rows, c, is_there, OH, OW, C, 0, FORK)
        value = tl.where(is_there, (g - level[None, :] - away * slope[None, :]) * scale[None, :], 0.0)
        patches = _patches(x, rows, N, H, W, CIN, OH, OW, KH, KW, DOWN, RIGHT, TOP, LEFT, THIN)
        total = tl.dot(tl.trans(patches), value.to(x.dtype.element_ty), total, input_precision="ieee")
    at = (tl.program_id(0) * THIN + tl.arange(0, THIN))[:, None] * C + c[None, :]
    tl.store(d_weight + at, total, mask=is_column[None, :])


@cache
def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 3


def spread_over(x: Tensor, shape: Shape, narrowest: int = 1) -> tuple[tuple[int, int], dict[str, Any]]:
    """Return the grid of programs for a tensor, and its constants."""
    batch, channels, height, width = x.shape
    block = max(narrowest, min(SLICE, triton.next_power_of_2(channels)))
    rows, slices = shape.tile // block, triton.cdiv(channels, block)
    tiles = triton.cdiv(batch * height * width, rows)
    programs = min(tiles, max(1, processors(x.device) * shape.per_sm // slices)) if shape.per_sm else tiles
    return (programs, slices), {"C": channels, "BLOCK": block, "ROWS": rows, "num_warps": shape.warps}


def moments(x: Tensor) -> Tensor:
    """Return mean and sum of squared deviations of each program's rows, [P, 2, C]."""
    grid, constants = spread_over(x, MOMENTS)
    parts = x.new_empty(grid[0], 2, x.shape[1], dtype=torch.float32)
    _moments[grid](x, parts, rows_of(x), P=grid[0], **constants)
    return parts


def rows_of(x: Tensor) -> int:
    return x.numel() // x.shape[1]


def forward(tensors: Sequence[Tensor], eps: Sequence[float], reader: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return relu(norm(x) + other), its every second position (or nothing), and mean and variance of x and other.

    Args:
        tensors: x, weight and bias; other, if there is one; its weight and bias, if it is normed.
        eps: The number added to each variance.
        reader: 2 if a convolution of stride 2 will read every second position.
    """
    x, weight, bias, *rest = tensors
    _, channels, height, width = x.shape
    is_normed = len(rest) == 3
    other, other_weight, other_bias = rest if is_normed else ((*rest, x)[0], weight, bias)
    parts, summed = moments(x), spread_over(x, MOMENTS)[1]["ROWS"]
    other_parts = moments(other) if is_normed else parts
    y, small = torch.empty_like(x), empty_in_order(x[:, :, ::2, ::2] if reader == 2 else x[:0])
    stats = x.new_empty(4 if is_normed else 2, channels, dtype=torch.float32)
    grid, constants = spread_over(x, APPLY)
    _apply[grid](
        *(x, weight, bias, parts, other, other_weight, other_bias, other_parts, y, small, stats),
        *(rows_of(x), *eps),
        **{"H": height, "W": width, "P": len(parts), "SUMMED": summed, "FEW": FEW},
        **{"OTHER": OTHER[len(rest)], "SMALL": reader == 2},
        **constants,
    )
    return y, small, stats


def backward(
    grads: Sequence[Tensor], tensors: Sequence[Tensor], stats: Tensor, eps: Sequence[float]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, of the other (or nothing), and of weights and biases [2 or 4, C].

    Args:
        grads: The result's gradient, and that of a second reader, if there is one.
        tensors: As in `forward`.
        stats: Mean and variance that `forward` found.
        eps: As in `forward`.
    """
    x, rest = tensors[0], tensors[3:]
    dx, d_other, d_affine = torch.empty_like(x), torch.empty_like(x if rest else x[:0]), torch.empty_like(stats)
    parts, given, shared = reduce(grads, tensors, stats, eps, d_other)
    grid, constants = spread_over(x, SPREAD_SUM if len(rest) == 3 else SPREAD)
    g = d_other if len(rest) == 1 else grads[0]
    sums = {"P": len(parts), "FEW": FEW}
    _spread[grid](g, grads[-1], *given, parts, dx, d_other, d_affine, rows_of(x), *eps, **sums, **shared, **constants)
    return dx, d_other, d_affine


def reduce(
    grads: Sequence[Tensor], tensors: Sequence[Tensor], stats: Tensor, eps: Sequence[float], g: Tensor
) -> tuple[Tensor, tuple[Tensor, ...], dict[str, int]]:
    """Return each program's sums and the next kernel's arguments; with a plain other, g becomes its gradient."""
    x, weight, bias, *rest = tensors
    _, channels, height, width = x.shape
    other, other_weight, other_bias = rest if len(rest) == 3 else ((*rest, x)[0], weight, bias)
    fork = 0 if len(grads) == 1 else 1 if grads[0].shape == grads[1].shape else 2
    k = 3 if len(rest) == 3 else 2
    shared = {"H": height, "W": width, "OTHER": OTHER[len(rest)], "FORK": fork, "K": k}
    given = (x, weight, bias, stats, other, other_weight, other_bias)
    grid, constants = spread_over(x, REDUCE_SUM if rest else REDUCE)
    parts = x.new_empty(grid[0], k, channels, dtype=torch.float32)
    _reduce[grid](grads[0], grads[-1], *given, g, parts, rows_of(x), *eps, **shared, **constants)
    return parts, given, shared


class Window(NamedTuple):
    """The window that a convolution reads for one position of its result."""

    size: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]

    def of(self, x: Tensor, y: Tensor) -> dict[str, int]:
        """Return the kernels' constants for images x and their maps y."""
        sizes = {"H": x.shape[2], "W": x.shape[3], "CIN": x.shape[1], "OH": y.shape[2], "OW": y.shape[3], "THIN": THIN}
        seen = {"KH": self.size[0], "KW": self.size[1], "DOWN": self.stride[0], "RIGHT": self.stride[1]}
        return {**sizes, **seen, "TOP": self.padding[0], "LEFT": self.padding[1]}


LEAST = 16  # the matrix units' smallest number of columns


def thin(x: Tensor, weight: Tensor, bias: Tensor | None, window: Window) -> Tensor:
    """Return a convolution of images with few channels; with a bias, relu(convolution + bias)."""
    y = empty_output(x, weight, window.stride, window.padding)
    grid, constants = spread_over(y, STEM, LEAST)
    given = (x, weight, weight if bias is None else bias, y, rows_of(y))
    _thin[grid](*given, RELU=bias is not None, **window.of(x, y), **constants)
    return y


def stem(tensors: Sequence[Tensor], eps: float, reader: int, window: Window) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the convolution of images with few channels, and the results of `forward` for it.

    Args:
        tensors: Images, the convolution's weight, and weight and bias of the norm.
        eps: The number added to the variance.
        reader: As in `forward`.
        window: The convolution's window.
    """
    x, matrix, weight, bias = tensors
    z = thin(x, matrix, None, window)
    return z, *forward((z, weight, bias), (eps, eps), reader)


def stem_backward(
    grads: Sequence[Tensor], tensors: Sequence[Tensor], z: Tensor, stats: Tensor, eps: float, window: Window
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the convolution's weight, as parts [P, THIN, C] to sum, and of the norm's [2, C]."""
    x, _, weight, bias = tensors
    parts, _, shared = reduce(grads, (z, weight, bias), stats, (eps, eps), z)
    shape = STEM_BACKWARD._replace(tile=STEM_BACKWARD.tile * 2 // x.element_size())  # as large as shared memory allows
    grid, constants = spread_over(z, shape, LEAST)
    d_weight, d_affine = x.new_empty(grid[0], THIN, z.shape[1], dtype=torch.float32), torch.empty_like(stats)
    _stem_weight[grid](
        *(grads[0], grads[-1], x, z, weight, bias, stats, parts, d_weight, d_affine, rows_of(z), eps),
        **{"P": len(parts), "FEW": FEW, "FORK": shared["FORK"]},
        **window.of(x, z),
        **constants,
    )
    return d_weight, d_affine
