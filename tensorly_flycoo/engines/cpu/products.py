"""Products of tall matrices, and of the factors of a group of modes, compiled by numba.

NumPy's BLAS splits products among threads of its own, which spin for a while after each one
and take the cores from the engine's. Here a product's bits depend on no number of threads.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray as Array

from ..protocol import Group
from . import threads
from .compiling import allocating_kernel, kernel
from .mttkrp import add_product, count_lanes, fill_row, new_row_of_zeros, store_row

#: Rows of a block. Sums over it are in the matrices' own precision, those over blocks in float64.
_BLOCK_ROWS = 2048

#: Rows that stay in the nearest cache while each row of their product is computed.
_CACHED_ROWS = 64


def multiply_transposed(a: Array, b: Array) -> Array:
    """Compute ``a.T @ b`` of two tall matrices (I, J) and (I, K) of one dtype."""
    a, b = _require(a), _require(b)
    num_blocks = -(-a.shape[0] // _BLOCK_ROWS)
    products = np.zeros((num_blocks, a.shape[1], b.shape[1]), a.dtype)
    arguments = (a, b, products, (0,) * count_lanes(b))
    threads.launch(_multiply_blocks, num_blocks, *arguments, work_ns=a.size * b.shape[1] / 4)
    return products.sum(axis=0, dtype=np.float64).astype(a.dtype)


def multiply_rows(rows: Array, matrix: Array) -> Array:
    """Compute ``rows @ matrix`` of a tall matrix (I, J) and a small one (J, K) of one dtype."""
    rows, matrix = _require(rows), _require(matrix)
    product = np.empty((rows.shape[0], matrix.shape[1]), rows.dtype)
    num_blocks = -(-rows.shape[0] // _BLOCK_ROWS)
    arguments = (rows, matrix, product, (0,) * count_lanes(matrix))
    threads.launch(_multiply_rows, num_blocks, *arguments, work_ns=product.size * len(matrix) / 4)
    return product


def _require(matrix: Array) -> Array:
    """Return a matrix as the kernels were compiled for; a copy only if need be."""
    return np.require(matrix, requirements=("C", "A", "W"))


@kernel
def _multiply_blocks(
    first_block: int, last_block: int, a: Array, b: Array, products: Array, lanes: Any
) -> None:
    """Add ``a.T @ b`` of some blocks of rows to `products`, zeros at first."""
    num_rows, num_columns = a.shape[0], b.shape[1]
    factors, total = (b,), new_row_of_zeros(a.dtype.type(0), lanes)
    for block in range(first_block, last_block):
        end = min((block + 1) * _BLOCK_ROWS, num_rows)
        for start in range(block * _BLOCK_ROWS, end, _CACHED_ROWS):
            stop = np.uint64(min(start + _CACHED_ROWS, end))
            for j in range(np.uint64(a.shape[1])):
                for step in range(0, num_columns, len(lanes)):
                    # The last step may overlap the one before, and then adds only what is new.
                    column = np.uint64(min(step, num_columns - len(lanes)))
                    fill_row(total, 0.0, lanes)
                    for i in range(np.uint64(start), stop):
                        add_product(total, a[i, j], factors, (i,), column, lanes)
                    for lane in range(np.uint64(step) - column, np.uint64(len(lanes))):
                        products[block, j, column + lane] += total[lane]


@kernel
def _multiply_rows(
    first_block: int, last_block: int, rows: Array, matrix: Array, product: Array, lanes: Any
) -> None:
    """Multiply some blocks of rows by a matrix."""
    num_rows, num_columns = product.shape
    first, last = first_block * _BLOCK_ROWS, min(last_block * _BLOCK_ROWS, num_rows)
    factors, total = (matrix,), new_row_of_zeros(rows.dtype.type(0), lanes)
    for step in range(0, num_columns, len(lanes)):
        # The last step may overlap the one before: it computes columns twice, to the same bits.
        column = np.uint64(min(step, num_columns - len(lanes)))
        for i in range(np.uint64(first), np.uint64(last)):
            fill_row(total, 0.0, lanes)
            for j in range(np.uint64(rows.shape[1])):
                add_product(total, rows[i, j], factors, (j,), column, lanes)
            store_row(total, product, i, column, lanes)


def combine_rows(factors: Sequence[Array], bits: Sequence[int]) -> Array:
    """See `Engine.combine_rows`; rows that stand for no indices are zero."""
    combined = factors[-1]
    for n in range(len(factors) - 2, -1, -1):
        factor, num_rows = factors[n], 1 << bits[n]
        rows = np.zeros((factor.shape[0], num_rows, factor.shape[1]), factor.dtype)
        np.multiply(factor[:, None], combined, out=rows[:, : combined.shape[0]])
        combined = rows.reshape(-1, factor.shape[1])
    return combined


def contract_rows(
    rows: Array, factors: Group, bits: Sequence[int], out: Array, weights: Array | None = None
) -> None:
    """See `Engine.contract_rows`."""
    place = list(map(type, factors)).index(type(None))
    before: Any = factors[:place]
    after: Any = factors[place + 1 :]
    rank, ones = out.shape[1], np.ones((1, out.shape[1]), out.dtype)
    outer = combine_rows(before, [b - bits[place - 1] for b in bits[:place]]) if before else ones
    inner = combine_rows(after, bits[place + 1 :]) if after else ones
    outer, inner = map(np.ascontiguousarray, (outer, inner))
    size = 1 << (bits[place - 1] - bits[place]) if before else out.shape[0]
    blocks = rows.reshape(-1, size, 1 << bits[place], rank)
    work_ns = rows.size / 4  # four multiplications and additions in a nanosecond
    threads.launch(_contract, out.shape[0], blocks, outer, inner, out, work_ns=work_ns)
    if weights is not None:
        np.multiply(out, weights, out=out)


@allocating_kernel
def _contract(first: int, last: int, blocks: Array, outer: Array, inner: Array, out: Array) -> None:
    """Compute ``out[i] = sum over a of outer[a] * sum over b of blocks[a, i, b] * inner[b]``."""
    rank = out.shape[1]
    total = np.empty(rank, out.dtype)
    for i in range(first, last):
        for r in range(rank):
            out[i, r] = 0
        for a in range(outer.shape[0]):
            for r in range(rank):
                total[r] = 0
            for b in range(inner.shape[0]):
                for r in range(rank):
                    total[r] += blocks[a, i, b, r] * inner[b, r]
            for r in range(rank):
                out[i, r] += total[r] * outer[a, r]
