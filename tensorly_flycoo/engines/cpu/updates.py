"""Multiplicative updates of a factor, and their extrapolation, with the sums of its columns."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...array_modules import Array
from . import launch
from .compiling import kernel

#: Rows whose columns are added up together.
_BLOCK_SIZE = 1024


def scale_rows(product: Array, factor: Array, scales: Array, sums: Array) -> None:
    """Do what `Engine.scale_rows` does."""
    _add_up(_scale_blocks, (product, factor, scales), sums[None])


def measure_steps(factors: Sequence[Array], sums: Array) -> None:
    """Do what `Engine.measure_steps` does."""
    _add_up(_measure_blocks, tuple(factors), sums)


def extrapolate(factors: Sequence[Array], step: float, sums: Array) -> Array:
    """Do what `Engine.extrapolate` does."""
    moved = np.empty(factors[0].shape, factors[0].dtype)
    powers = np.array([2 * step, step**2], moved.dtype)
    _add_up(_extrapolate_blocks, (moved, *factors, powers), sums[None])
    return moved


def _add_up(blocks: Callable[..., None], arrays: tuple[Any, ...], sums: Array) -> None:
    """Run a kernel over blocks of rows of the first array, and add up their sums, (n, R) each."""
    num_blocks = -(-arrays[0].shape[0] // _BLOCK_SIZE)
    block_sums = np.zeros((num_blocks, *sums.shape))
    launch.launch(blocks, num_blocks, *arrays, block_sums)
    block_sums.sum(axis=0, out=sums)


@kernel
def _scale_blocks(
    first_block: int, last_block: int, product: Array, factor: Array, scales: Array, sums: Array
) -> None:
    """Multiply some blocks of rows of `product` by `factor` and `scales`; add up their columns."""
    num_rows, rank = product.shape
    last_scale = scales.shape[0] - 1
    for block in range(first_block, last_block):
        for i in range(block * _BLOCK_SIZE, min((block + 1) * _BLOCK_SIZE, num_rows)):
            for r in range(rank):
                updated = product[i, r] * factor[i, r] * scales[min(i, last_scale), r]
                product[i, r] = updated
                sums[block, 0, r] += updated


@kernel
def _measure_blocks(
    first_block: int, last_block: int, t0: Array, t1: Array, t2: Array, sums: Array
) -> None:
    """Add up the squares of the columns of t1 - t0 and of t2 - 2 t1 + t0 in some blocks of rows."""
    num_rows, rank = t0.shape
    for block in range(first_block, last_block):
        for i in range(block * _BLOCK_SIZE, min((block + 1) * _BLOCK_SIZE, num_rows)):
            for r in range(rank):
                change = t1[i, r] - t0[i, r]
                bend = t2[i, r] - t1[i, r] - change
                sums[block, 0, r] += np.float64(change) * np.float64(change)
                sums[block, 1, r] += np.float64(bend) * np.float64(bend)


@kernel
def _extrapolate_blocks(
    first_block: int,
    last_block: int,
    moved: Array,
    t0: Array,
    t1: Array,
    t2: Array,
    powers: Array,
    sums: Array,
) -> None:
    """Extrapolate some blocks of rows, and add up their columns."""
    num_rows, rank = moved.shape
    for block in range(first_block, last_block):
        for i in range(block * _BLOCK_SIZE, min((block + 1) * _BLOCK_SIZE, num_rows)):
            for r in range(rank):
                change = t1[i, r] - t0[i, r]
                bend = t2[i, r] - t1[i, r] - change
                number = t0[i, r] + powers[0] * change + powers[1] * bend
                moved[i, r] = number if number > 0 else t2[i, r]
                sums[block, 0, r] += moved[i, r]
