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
from .compiling import kernel
from .mttkrp import add_product, count_lanes, fill_row, new_row_of_zeros, store_row

#: A block has at least so many rows, and for each column, lest the blocks' Gram matrices take as
#: much memory as the rows; more if there would be more blocks than that.
_MIN_BLOCK_ROWS, _ROWS_PER_COLUMN, _MAX_BLOCKS = 256, 16, 512

#: Rows that stay in the nearest cache while all is computed with them. Sums over them are in the
#: matrices' own precision, those over more rows in float64.
_CACHED_ROWS = 64


def _split_rows(num_rows: int, num_columns: int) -> tuple[int, int]:
    """Return the rows of a block, and the number of blocks: whatever the number of threads."""
    least = max(_MIN_BLOCK_ROWS, _ROWS_PER_COLUMN * num_columns)
    block_rows = max(least, -(-num_rows // _MAX_BLOCKS))
    return block_rows, -(-num_rows // block_rows)


def multiply_transposed(a: Array, b: Array) -> Array:
    """Compute ``a.T @ b`` of two tall matrices (I, J) and (I, K) of one dtype."""
    a, b = _require(a), _require(b)
    block_rows, num_blocks = _split_rows(a.shape[0], b.shape[1])
    products = np.zeros((num_blocks, a.shape[1], b.shape[1]))
    arguments = (block_rows, a, b, products, (0,) * count_lanes(b))
    threads.launch(_multiply_blocks, num_blocks, *arguments, work_ns=a.size * b.shape[1] / 4)
    return products.sum(axis=0).astype(a.dtype)


def multiply_rows(rows: Array, matrix: Array) -> Array:
    """Compute ``rows @ matrix`` of tall rows (I, J) and a small matrix (J, K)."""
    return multiply_and_sum(rows, matrix, wants_sums=False)[0]


def multiply_and_sum(
    rows: Array, matrix: Array, wants_sums: bool = True
) -> tuple[Array, Array, float]:
    """Compute ``y = rows @ matrix`` of tall rows (I, J) and a small matrix (J, J), in one pass.

    Returns y, in the dtype of `rows`; ``y.T @ y``, the same to the bit as by `multiply_transposed`;
    and the inner product of `rows` and y. So rows are read from memory once, and y is only written.
    """
    rows, matrix = _require(rows), _require(matrix.astype(np.float64, copy=False))
    num_rows, num_columns = rows.shape[0], matrix.shape[1]
    block_rows, num_blocks = _split_rows(num_rows, num_columns)
    y, num_sums = np.empty((num_rows, num_columns), rows.dtype), num_blocks * wants_sums
    grams, inner = np.zeros((num_sums, num_columns, num_columns)), np.zeros(num_sums)
    lanes = [(0,) * count_lanes(array) for array in (matrix, y)]
    arguments = (block_rows, rows, matrix, y, grams, inner, *lanes)
    work_ns = rows.size * num_columns * (1 + wants_sums) / 4
    threads.launch(_multiply_rows, num_blocks, *arguments, work_ns=work_ns)
    return y, grams.sum(axis=0).astype(y.dtype), float(inner.sum())


def _require(matrix: Array) -> Array:
    """Return a matrix as the kernels were compiled for; a copy only if need be."""
    return np.require(matrix, requirements=("C", "A", "W"))


@kernel
def _multiply_blocks(
    first: int, last: int, block_rows: int, a: Array, b: Array, products: Array, lanes: Any
) -> None:
    """Add ``a.T @ b`` of some blocks of rows to `products`, zeros at first."""
    total = new_row_of_zeros(a.dtype.type(0), lanes)
    for block in range(first, last):
        end = min((block + 1) * block_rows, a.shape[0])
        for start in range(block * block_rows, end, _CACHED_ROWS):
            stop = min(start + _CACHED_ROWS, end)
            _add_products(start, stop, a, b, products, block, total, lanes)


@kernel
def _add_products(
    start: Any, stop: Any, a: Array, b: Array, products: Array, block: Any, total: Any, lanes: Any
) -> None:
    """Add ``a.T @ b`` of a few rows to ``products[block]``."""
    num_columns = b.shape[1]
    for j in range(np.uint64(a.shape[1])):
        for step in range(0, num_columns, len(lanes)):
            # The last step may overlap the one before, and then adds only what is new.
            column = np.uint64(min(step, num_columns - len(lanes)))
            fill_row(total, 0.0, lanes)
            for i in range(np.uint64(start), np.uint64(stop)):
                add_product(total, a[i, j], (b,), (i,), column, lanes)
            for lane in range(np.uint64(step) - column, np.uint64(len(lanes))):
                products[block, j, column + lane] += total[lane]


@kernel
def _multiply_rows(
    first: int,
    last: int,
    block_rows: int,
    rows: Array,
    matrix: Array,
    y: Array,
    grams: Array,
    inner: Array,
    exact_lanes: Any,
    lanes: Any,
) -> None:
    """Multiply some blocks of rows by a float64 matrix, and add up what `grams` has room for."""
    num_columns, one = y.shape[1], y.dtype.type(1)
    exact = new_row_of_zeros(matrix.dtype.type(0), exact_lanes)
    total = new_row_of_zeros(y.dtype.type(0), lanes)
    for block in range(first, last):
        end = min((block + 1) * block_rows, rows.shape[0])
        for start in range(block * block_rows, end, _CACHED_ROWS):
            stop = min(start + _CACHED_ROWS, end)
            for step in range(0, num_columns, len(exact_lanes)):
                # The last step may overlap the one before: computes columns twice, to the same bits.
                column = np.uint64(min(step, num_columns - len(exact_lanes)))
                for i in range(np.uint64(start), np.uint64(stop)):
                    fill_row(exact, 0.0, exact_lanes)
                    for j in range(np.uint64(rows.shape[1])):
                        value = np.float64(rows[i, j])
                        add_product(exact, value, (matrix,), (j,), column, exact_lanes)
                    for lane in range(np.uint64(len(exact_lanes))):
                        y[i, column + lane] = exact[lane]
            if grams.shape[0] == 0:
                continue
            _add_products(start, stop, y, y, grams, block, total, lanes)
            for step in range(0, num_columns, len(lanes)):
                column = np.uint64(min(step, num_columns - len(lanes)))
                fill_row(total, 0.0, lanes)
                for i in range(np.uint64(start), np.uint64(stop)):
                    add_product(total, one, (rows, y), (i, i), column, lanes)
                for lane in range(np.uint64(step) - column, np.uint64(len(lanes))):
                    inner[block] += total[lane]


def combine_rows(factors: Sequence[Array], bits: Sequence[int]) -> Array:
    """See `Engine.combine_rows`; rows that stand for no indices are zero."""
    combined = factors[-1]
    for n in range(len(factors) - 2, -1, -1):
        factor, inner = _require(factors[n]), _require(combined)
        combined = np.empty((len(factor) << bits[n], factor.shape[1]), factor.dtype)
        arguments = (factor, inner, bits[n], combined, (0,) * count_lanes(combined))
        threads.launch(_combine, len(combined), *arguments, work_ns=combined.size / 2)
    return combined


@kernel
def _combine(
    first: int, last: int, outer: Array, inner: Array, num_bits: int, combined: Array, lanes: Any
) -> None:
    """Write row b of `inner` times row a of `outer` to row (a, b); b has `num_bits` bits."""
    num_columns, one = combined.shape[1], outer.dtype.type(1)
    bits, num_inner = np.uint64(num_bits), np.uint64(inner.shape[0])
    total = new_row_of_zeros(outer.dtype.type(0), lanes)
    for row in range(np.uint64(first), np.uint64(last)):
        a = row >> bits
        b = row - (a << bits)
        for step in range(0, num_columns, len(lanes)):
            column = np.uint64(min(step, num_columns - len(lanes)))
            fill_row(total, 0.0, lanes)
            if b < num_inner:
                add_product(total, one, (outer, inner), (a, b), column, lanes)
            store_row(total, combined, row, column, lanes)


def contract_rows(
    rows: Array, factors: Group, bits: Sequence[int], out: Array, weights: Array | None = None
) -> None:
    """See `Engine.contract_rows`."""
    place = list(map(type, factors)).index(type(None))
    before: Any = factors[:place]
    after: Any = factors[place + 1 :]
    ones = np.ones((1, out.shape[1]), out.dtype)
    outer = combine_rows(before, [b - bits[place - 1] for b in bits[:place]]) if before else ones
    inner = combine_rows(after, bits[place + 1 :]) if after else ones
    sizes = 1 << (bits[place - 1] - bits[place]) if before else out.shape[0], 1 << bits[place]
    arguments = (_require(rows), sizes, _require(outer), _require(inner), out)
    work_ns = rows.size / 2
    lanes = (0,) * count_lanes(out)
    threads.launch(_contract, out.shape[0], *arguments, lanes, work_ns=work_ns)
    if weights is not None:
        np.multiply(out, weights, out=out)


@kernel
def _contract(
    first: int,
    last: int,
    rows: Array,
    sizes: tuple[int, int],
    outer: Array,
    inner: Array,
    out: Array,
    lanes: Any,
) -> None:
    """Compute ``out[i] = sum over a and b of rows[a, i, b] * outer[a] * inner[b]``.

    `sizes` are those of i and b in the numbers of rows.
    """
    num_columns, one = out.shape[1], out.dtype.type(1)
    num_i, num_b = np.uint64(sizes[0]), np.uint64(sizes[1])
    factors, total = (rows, outer, inner), new_row_of_zeros(one, lanes)
    for i in range(np.uint64(first), np.uint64(last)):
        for step in range(0, num_columns, len(lanes)):
            column = np.uint64(min(step, num_columns - len(lanes)))
            fill_row(total, 0.0, lanes)
            for a in range(np.uint64(outer.shape[0])):
                start = (a * num_i + i) * num_b
                for b in range(np.uint64(inner.shape[0])):
                    add_product(total, one, factors, (start + b, a, b), column, lanes)
            store_row(total, out, i, column, lanes)
