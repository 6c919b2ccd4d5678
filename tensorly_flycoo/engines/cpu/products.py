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
from .subnormals import begin_flushing, end_flushing

#: A block has at least so many rows, and for each column, lest the blocks' sums take as much memory
#: as the rows; more if there would be more blocks than that.
_MIN_BLOCK_ROWS = 256
_ROWS_PER_COLUMN = 16
_MAX_BLOCKS = 512

#: Rows that stay in the nearest cache while all is computed with them. Sums over them are in the
#: matrices' own precision, those over more rows in float64.
CACHED_ROWS = 64


def multiply_transposed(a: Array, b: Array) -> Array:
    """Compute ``a.T @ b`` of two tall matrices (I, J) and (I, K) of one dtype."""
    a = make_readable(a)
    b = make_readable(b)
    no_matrix = np.empty((0, b.shape[1]))
    return _run(a, no_matrix, a, b, a.shape[1]).astype(a.dtype)


def multiply_rows(rows: Array, matrix: Array) -> Array:
    """Compute ``rows @ matrix`` of a tall matrix (I, J) and a small one (J, K)."""
    product = np.empty((rows.shape[0], matrix.shape[1]), rows.dtype)
    _run(make_readable(rows), matrix, product, product, 0)
    return product


def solve_rows(rows: Array, inverse: Array) -> tuple[Array, Array, float]:
    """Compute ``y = rows @ inverse`` of tall rows (I, R) and a small matrix (R, R), in one pass.

    Returns y, in the dtype of `rows`; ``y.T @ y``, the same to the bit as by `multiply_transposed`;
    and the inner product of `rows` and y. So rows are read from memory once, and y is only written.
    """
    y = np.empty(rows.shape, rows.dtype)
    *gram_rows, products = _run(make_readable(rows), inverse, y, y, y.shape[1] + 1)
    return y, np.stack(gram_rows).astype(y.dtype), float(products.sum())


def make_readable(matrix: Array) -> Array:
    """Return a matrix as the kernels were compiled for; a copy only if need be."""
    if matrix.flags.carray:
        return matrix
    return np.require(matrix, requirements=("C", "A", "W"))


def _run(rows: Array, matrix: Array, left: Array, right: Array, num_sums: int) -> Array:
    """Run `_multiply_blocks`, and add up the sums of all blocks: (num_sums, K), in float64."""
    exact_matrix = make_readable(matrix.astype(float, copy=False))
    num_rows, num_columns = right.shape
    # Blocks depend on the shape alone, so that sums do not depend on the number of threads.
    least = max(_MIN_BLOCK_ROWS, _ROWS_PER_COLUMN * num_columns)
    block_rows = max(least, -(-num_rows // _MAX_BLOCKS))
    num_blocks = -(-num_rows // block_rows)
    sums = np.zeros((num_blocks, num_sums, num_columns))
    threads.launch(
        _multiply_blocks,
        num_blocks,
        block_rows,
        rows,
        exact_matrix,
        left,
        right,
        sums,
        (0,) * count_lanes(exact_matrix),
        (0,) * count_lanes(right),
        work_ns=right.size * (matrix.shape[0] + num_sums) / 4,
    )
    return sums.sum(axis=0)


@kernel
def _multiply_blocks(
    first: int,
    last: int,
    block_rows: int,
    rows: Array,
    matrix: Array,
    left: Array,
    right: Array,
    sums: Array,
    exact_lanes: Any,
    lanes: Any,
) -> None:
    """Compute ``right = rows @ matrix`` and add ``left.T @ right`` to `sums`, for blocks of rows.

    An empty matrix leaves `right` as it is; else `right` is computed in float64. A block of `sums`
    has a row for each column of `left`; it may have one more, for the sums of the columns of
    ``rows * right``, or none at all.
    """
    num_columns = right.shape[1]
    one = right.dtype.type(1)
    exact = new_row_of_zeros(1.0, exact_lanes)
    total = new_row_of_zeros(one, lanes)
    control = begin_flushing()
    for block in range(first, last):
        end = min((block + 1) * block_rows, right.shape[0])
        for start in range(block * block_rows, end, CACHED_ROWS):
            cached = range(np.uint64(start), np.uint64(min(start + CACHED_ROWS, end)))
            # right = rows @ matrix
            # The last step may overlap the one before: then some columns are computed twice, to the
            # same bits, but only the new ones are added up.
            num_computed = num_columns if len(matrix) > 0 else 0
            for step in range(0, num_computed, len(exact_lanes)):
                column = np.uint64(min(step, num_columns - len(exact_lanes)))
                for i in cached:
                    fill_row(exact, 0.0, exact_lanes)
                    for j in range(np.uint64(matrix.shape[0])):
                        value = np.float64(rows[i, j])
                        add_product(exact, value, (matrix,), (j,), column, exact_lanes)
                    for lane in range(np.uint64(len(exact_lanes))):
                        right[i, column + lane] = exact[lane]
            # sums += left.T @ right, and in a last row the sums of the columns of rows * right
            for j in range(np.uint64(sums.shape[1])):
                for step in range(0, num_columns, len(lanes)):
                    column = np.uint64(min(step, num_columns - len(lanes)))
                    fill_row(total, 0.0, lanes)
                    for i in cached:
                        if j < left.shape[1]:
                            add_product(total, left[i, j], (right,), (i,), column, lanes)
                        else:
                            add_product(total, one, (rows, right), (i, i), column, lanes)
                    for lane in range(np.uint64(step) - column, np.uint64(len(lanes))):
                        sums[block, j, column + lane] += total[lane]
    end_flushing(control)


def combine_rows(factors: Sequence[Array], bits: Sequence[int]) -> Array:
    """See `Engine.combine_rows`; rows that stand for no indices are zero."""
    combined = factors[-1]
    for n in range(len(factors) - 2, -1, -1):
        outer = make_readable(factors[n])
        inner = make_readable(combined)
        num_bits = bits[n]
        combined = np.empty((len(outer) << num_bits, outer.shape[1]), outer.dtype)
        # So many threads that the others do not wait for the cache of one when they read it.
        work_ns = combined.size
        threads.launch(_combine, len(combined), outer, inner, num_bits, combined, work_ns=work_ns)
    return combined


@kernel
def _combine(
    first: int, last: int, outer: Array, inner: Array, num_bits: int, combined: Array
) -> None:
    """Write row b of `inner` times row a of `outer` to row (a, b); b has `num_bits` bits."""
    bits = np.uint64(num_bits)
    for row in range(np.uint64(first), np.uint64(last)):
        a = row >> bits
        b = row - (a << bits)
        for r in range(np.uint64(combined.shape[1])):
            combined[row, r] = outer[a, r] * inner[b, r] if b < inner.shape[0] else 0


def contract_rows(
    rows: Array, factors: Group, bits: Sequence[int], out: Array, weights: Array | None = None
) -> None:
    """Implement `Engine.contract_rows`: merge the factors before and after the mode, then contract.

    A row's number has the bits of the modes before, of the mode, and of the modes after it.
    """
    (place,) = [n for n, factor in enumerate(factors) if factor is None]
    before: Any = factors[:place]
    after: Any = factors[place + 1 :]
    outer = inner = np.ones((1, out.shape[1]), out.dtype)
    outer_bits = 0  # bits below those of the modes before
    if before:
        outer_bits = bits[place - 1]
        outer = combine_rows(before, [b - outer_bits for b in bits[:place]])
    if after:
        inner = combine_rows(after, bits[place + 1 :])
    arrays = (make_readable(rows), make_readable(outer), make_readable(inner))
    bits_below = (outer_bits, bits[place])
    lanes = (0,) * count_lanes(out)
    threads.launch(_contract, out.shape[0], arrays, bits_below, out, lanes, work_ns=rows.size)
    if weights is not None:
        np.multiply(out, weights, out=out)


@kernel
def _contract(
    first: int, last: int, arrays: tuple[Array, ...], bits: Any, out: Array, lanes: Any
) -> None:
    """Compute ``out[i] = sum over a and b of rows[a, i, b] * outer[a] * inner[b]``.

    `arrays` are rows, outer and inner. Row (a, i, b) of `rows` has the number
    ``(a << bits[0]) + (i << bits[1]) + b``. This thread computes rows `first` to `last` of `out`.
    """
    _, outer, inner = arrays
    total = new_row_of_zeros(out.dtype.type(0), lanes)
    one = out.dtype.type(1)
    for i in range(np.uint64(first), np.uint64(last)):
        for step in range(0, out.shape[1], len(lanes)):
            # The last step may overlap the one before, to compute as many columns as there are
            # lanes: columns in both get the same bits twice.
            column = np.uint64(min(step, out.shape[1] - len(lanes)))
            fill_row(total, 0.0, lanes)
            for a in range(np.uint64(outer.shape[0])):
                start = (a << np.uint64(bits[0])) + (i << np.uint64(bits[1]))
                for b in range(np.uint64(inner.shape[0])):
                    add_product(total, one, arrays, (start + b, a, b), column, lanes)
            store_row(total, out, i, column, lanes)
