"""ProxyFL's tuning on a GPU: all its steps in one kernel of one program, which holds the rows in registers.

Imported on a CUDA device only: Triton comes with PyTorch's build for it.
"""

import triton
import triton.language as tl
from torch import Tensor

ELEMENTS_PER_WARP = 2048
MOST_WARPS = 16


@triton.jit
def _tune(omega, data, order, steps, lr, rho, C, D, BATCH: tl.constexpr, ROWS: tl.constexpr,
          COLUMNS: tl.constexpr) -> None:  # fmt: skip
    """Write the rows `omega` [C, D] after so many steps; `order` [steps, BATCH] has rows of `data`, and -1 for none."""
    c, k = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    is_class, is_column = c < C, k < D
    is_there = is_class[:, None] & is_column[None, :]
    rows = tl.load(omega + c[:, None] * D + k[None, :], mask=is_there, other=0.0)
    for step in range(steps):
        gradient = tl.zeros([ROWS, COLUMNS], tl.float32)
        number = 0.0
        for b in tl.static_range(BATCH):
            row = tl.load(order + step * BATCH + b)
            counts = (row >= 0).to(tl.float32)
            w = tl.load(data + tl.maximum(row, 0) * D + k, mask=is_column, other=0.0)
            away = rows - w[None, :]
            distance = tl.sqrt(tl.sum(away * away, 1))
            is_y = (c == row % C).to(tl.float32)  # data has the rows of one client after the other's
            score = tl.where(is_class, -distance - rho * is_y, float("-inf"))
            q = tl.exp(score - tl.max(score, 0))
            q = q / tl.sum(q, 0)
            force = counts * (is_y - q) / tl.where(distance > 0, distance, 1.0)
            gradient += force[:, None] * away
            number += counts
        rows -= lr * gradient / number
    tl.store(omega + c[:, None] * D + k[None, :], rows, mask=is_there)


def sizes(omega: Tensor) -> tuple[int, int]:
    return triton.next_power_of_2(len(omega)), triton.next_power_of_2(omega.shape[1])


def fits(omega: Tensor, batch: int) -> bool:
    """Return whether one program can hold the rows, and unroll the loop over a batch."""
    rows, columns = sizes(omega)
    return rows * columns <= MOST_WARPS * ELEMENTS_PER_WARP and batch <= 16


def tuned(omega: Tensor, data: Tensor, order: Tensor, lr: float, rho: float) -> Tensor:
    """Return the rows after all steps, without synchronizing with the host."""
    out, (rows, columns) = omega.float().contiguous().clone(), sizes(omega)
    warps = min(MOST_WARPS, max(1, rows * columns // ELEMENTS_PER_WARP))
    steps, batch = order.shape
    _tune[(1,)](out, data, order, steps, lr, rho, *omega.shape, batch, rows, columns, num_warps=warps)
    return out
