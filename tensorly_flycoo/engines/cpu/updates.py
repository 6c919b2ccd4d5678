"""Multiplicative updates of the factors of counts, and their extrapolation."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray as Array

from . import threads
from .compiling import kernel, subroutine
from .records import smaller

#: Rows whose columns are added up together.
_BLOCK_SIZE = 1024


def add_up(blocks: Callable[..., None], arrays: tuple[Any, ...], sums: Array) -> None:
    """Run a kernel over blocks of rows of the first array, and add up their sums, (n, R) each."""
    num_blocks = -(-arrays[0].shape[0] // _BLOCK_SIZE)
    block_sums = np.zeros((num_blocks, *sums.shape))
    threads.launch(blocks, num_blocks, *arrays, block_sums, work_ns=2 * arrays[0].size)
    block_sums.sum(axis=0, out=sums)


@subroutine
def _list_rows(block: int, num_rows: int) -> range:
    """Return the rows of a block."""
    return range(block * _BLOCK_SIZE, smaller((block + 1) * _BLOCK_SIZE, num_rows))


@subroutine
def _find_steps(t0: Array, t1: Array, t2: Array, i: int, r: int) -> tuple[float, float]:
    """Return an element of t1 - t0 and of t2 - 2 t1 + t0."""
    change = t1[i, r] - t0[i, r]
    return change, t2[i, r] - t1[i, r] - change


@kernel
def scale_blocks(
    first_block: int, last_block: int, product: Array, factor: Array, scales: Array, sums: Array
) -> None:
    """Multiply some blocks of rows of `product` by `factor` and `scales`; add up their columns."""
    num_rows, rank = product.shape
    last_scale = scales.shape[0] - 1
    for block in range(first_block, last_block):
        for i in _list_rows(block, num_rows):
            for r in range(rank):
                updated = product[i, r] * factor[i, r] * scales[smaller(i, last_scale), r]
                product[i, r] = updated
                sums[block, 0, r] += updated


@kernel
def measure_blocks(first: int, last: int, t0: Array, t1: Array, t2: Array, sums: Array) -> None:
    """Add up the squares of the columns of t1 - t0 and of t2 - 2 t1 + t0 in some blocks of rows."""
    num_rows, rank = t0.shape
    for block in range(first, last):
        for i in _list_rows(block, num_rows):
            for r in range(rank):
                change, bend = _find_steps(t0, t1, t2, i, r)
                sums[block, 0, r] += np.float64(change) * np.float64(change)
                sums[block, 1, r] += np.float64(bend) * np.float64(bend)


@kernel
def extrapolate_blocks(
    first_block: int, last_block: int, moved: Array, factors: Any, powers: Array, sums: Array
) -> None:
    """Write the extrapolation of some blocks of rows to `moved`; add up its columns."""
    num_rows, rank = moved.shape
    t0, t1, t2 = factors
    for block in range(first_block, last_block):
        for i in _list_rows(block, num_rows):
            for r in range(rank):
                change, bend = _find_steps(t0, t1, t2, i, r)
                number = t0[i, r] + powers[0] * change + powers[1] * bend
                moved[i, r] = number if number > 0 else t2[i, r]
                sums[block, 0, r] += moved[i, r]
