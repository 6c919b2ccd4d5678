"""Products of tall matrices, and of the factors of a group of modes, compiled by numba.

NumPy's BLAS splits products among threads of its own, which spin for a while after each one
and take the cores from the engine's. Here a product's bits depend on no number of threads.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from ..narrow_rows import NARROW_FORMATS, NarrowRows
from ..protocol import Group
from . import threads
from .compiling import allocating_kernel, inlined, kernel
from .mttkrp import add_product, count_lanes, fill_row, new_row_of_zeros, store_row
from .narrow_rows import Rounding, find_largest, round_some
from .records import allocate_lines, list_places, make_readable, place_of
from .subnormals import begin_flushing, end_flushing
from .vectors import VECTOR_NBYTES, fused, load, multiply_block, spread, store

#: A block has at least so many rows, and for each column, lest the blocks' sums take as much memory
#: as the rows; more if there would be more blocks than that.
_MIN_BLOCK_ROWS = 256
_ROWS_PER_COLUMN = 16
_MAX_BLOCKS = 512

#: Rows that stay in the nearest cache while all is computed with them. Sums over them are in the
#: matrices' own precision, those over more rows in float64.
CACHED_ROWS = 64

#: A combined factor of so many bytes fills a good part of the second cache.
_FAR_NBYTES = 2**19

#: Time for a byte of a group's rows: most are in caches of other cores, written by their threads.
_BYTE_NS = 0.125

#: Rows of a product that are computed together, in registers; and those that are left over.
_BLOCK = (0,) * 8
_SINGLE = (0,)


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
    y = allocate_lines(rows.shape, rows.dtype)
    sums = _run(make_readable(rows), inverse, y, y, y.shape[1] + 1)
    return y, *_split_sums(sums, y.dtype)


def solve_and_round(rows: Array, inverse: Array) -> tuple[Array, Array, float, NarrowRows]:
    """Compute what `solve_rows` does, but for a y that is rounded; return its narrow rows too.

    They, and y, are what `find_scales` and `round_rows` make of the y of `solve_rows`.
    """
    y = allocate_lines(rows.shape, rows.dtype)
    rows = make_readable(rows)
    num_sums = y.shape[1] + 1
    _, num_blocks = _choose_blocks(y)
    scales = None
    # If 1 is a usual scale, one pass rounds by it, and finds whether that was right.
    if NARROW_FORMATS[y.dtype].usual_exponents:
        ones = np.ones(y.shape[1])
        rounding = Rounding.begin(y, num_blocks, ones)
        sums = _run(rows, inverse, y, y, num_sums, rounding)
        scales = rounding.choose_scales()
    if scales is None or (scales != 1).any():  # nan too
        rounding = Rounding.begin(y, num_blocks)
        _run(rows, inverse, y, y, 0, rounding)
        scales = rounding.choose_scales()
        rounding = Rounding.begin(y, num_blocks, scales)
        sums = _run(rows, inverse[:0], y, y, num_sums, rounding)
    return y, *_split_sums(sums, y.dtype), NarrowRows(rounding.rows, scales)


def _split_sums(sums: Array, dtype: np.dtype) -> tuple[Array, float]:
    """Return the Gram matrix and the inner product whose sums a pass has found, (R + 1, R)."""
    return sums[:-1].astype(dtype), float(sums[-1].sum())


def _choose_blocks(rows: Array) -> tuple[int, int]:
    """Return the rows of a block, and the number of blocks.

    They depend on the shape alone, so that sums do not depend on the number of threads.
    """
    num_rows, num_columns = rows.shape
    least = max(_MIN_BLOCK_ROWS, _ROWS_PER_COLUMN * num_columns)
    block_rows = max(least, -(-num_rows // _MAX_BLOCKS))
    return block_rows, -(-num_rows // block_rows)


def _run(
    rows: Array,
    matrix: Array,
    left: Array,
    right: Array,
    num_sums: int,
    rounding: Rounding | None = None,
) -> Array:
    """Run `_multiply_blocks`, and add up the sums of all blocks: (num_sums, K), in float64."""
    exact_matrix = make_readable(matrix.astype(float, copy=False))
    block_rows, num_blocks = _choose_blocks(right)
    sums = np.zeros((num_blocks, num_sums, right.shape[1]))
    threads.launch(
        _multiply_blocks,
        num_blocks,
        block_rows,
        rows,
        exact_matrix,
        left,
        right,
        rounding or _make_no_rounding(right.shape[1], right.dtype),
        sums,
        (0,) * count_lanes(exact_matrix, VECTOR_NBYTES),
        (0,) * count_lanes(right, VECTOR_NBYTES),
        work_ns=right.size * (matrix.shape[0] + num_sums) / 8,
    )
    return sums.sum(axis=0)


@functools.cache
def _make_no_rounding(rank: int, dtype: np.dtype) -> Rounding:
    """Return the `Rounding` of a pass that does not round; nobody writes to it."""
    return Rounding.begin(np.empty((0, rank), dtype), num_blocks=0)


@allocating_kernel
def _multiply_blocks(
    first: int,
    last: int,
    block_rows: int,
    rows: Array,
    matrix: Array,
    left: Array,
    right: Array,
    rounding: Rounding,
    sums: Array,
    exact_lanes: Any,
    lanes: Any,
) -> None:
    """Compute ``right = rows @ matrix`` and add ``left.T @ right`` to `sums`, for blocks of rows.

    An empty matrix leaves `right` as it is; else `right` is computed in float64, and `rounding` may
    want its largest magnitudes. If `rounding` has narrow rows, `right` is rounded before it is
    multiplied by `left`, which may be the same array. A block of `sums` has a row for each column
    of `left`; it may have one more, for the sums of the columns of ``rows * right``, or none.
    """
    num_rows, num_columns = right.shape
    left_columns = left.T
    num_products = min(sums.shape[1], left_columns.shape[0])
    all_terms = (np.uint64(0), np.uint64(matrix.shape[0]))
    exact_rows = np.empty((CACHED_ROWS, rows.shape[1]))
    # Of the rows that are cached, in the matrices' own precision.
    cached_sums = np.empty((sums.shape[1], num_columns), right.dtype)
    control = begin_flushing()
    for block in range(np.uint64(first), np.uint64(last)):
        end = min((block + 1) * block_rows, num_rows)
        for start in range(block * block_rows, end, CACHED_ROWS):
            cached = (np.uint64(start), np.uint64(min(start + CACHED_ROWS, end)))
            if matrix.shape[0] > 0:
                count = _widen_rows(rows, cached, exact_rows)
                _multiply(exact_rows, count, matrix, all_terms, right, cached[0], exact_lanes)
                if rounding.largest.shape[0] > 0:
                    find_largest(rounding, block, right, cached, lanes)
            if rounding.rows.shape[0] > 0:
                round_some(rounding, right, cached, lanes)
            if sums.shape[1] > 0:
                _multiply(
                    left_columns, num_products, right, cached, cached_sums, np.uint64(0), lanes
                )
            if sums.shape[1] > num_products:
                _sum_columns(rows, right, cached, cached_sums, num_products, lanes)
            for j in range(np.uint64(sums.shape[1])):
                for r in range(np.uint64(num_columns)):
                    sums[block, j, r] += cached_sums[j, r]
    end_flushing(control)


@inlined
def _widen_rows(rows: Array, cached: Any, exact_rows: Array) -> int:
    """Copy some rows to `exact_rows`, in float64; return their number."""
    first, end = cached
    for i in range(end - first):
        for r in range(np.uint64(rows.shape[1])):
            exact_rows[i, r] = rows[first + i, r]
    return int(end - first)


@inlined
def _multiply(
    left: Array, num_rows: int, right: Array, terms: Any, product: Array, target: Any, lanes: Any
) -> None:
    """Compute `num_rows` rows of ``left @ right``, and write them to `product` from `target` on.

    Of each sum only the terms ``terms[0]`` to ``terms[1] - 1`` are added up.
    """
    num_in_blocks = num_rows - num_rows % len(_BLOCK)
    for step in range(0, right.shape[1], len(lanes)):
        # The last step may overlap the one before: some columns get the same bits twice.
        column = np.uint64(min(step, right.shape[1] - len(lanes)))
        for start in range(0, num_in_blocks, len(_BLOCK)):
            i = np.uint64(start)
            multiply_block(left, i, right, column, terms, product, target + i, _BLOCK, lanes)
        for start in range(num_in_blocks, num_rows):
            i = np.uint64(start)
            multiply_block(left, i, right, column, terms, product, target + i, _SINGLE, lanes)


@inlined
def _sum_columns(
    rows: Array, right: Array, cached: Any, sums: Array, target: int, lanes: Any
) -> None:
    """Write the sums of the columns of ``rows * right``, of some rows, to a row of `sums`."""
    first, end = cached
    for step in range(0, right.shape[1], len(lanes)):
        column = np.uint64(min(step, right.shape[1] - len(lanes)))
        total = spread(right.dtype.type(0), lanes)
        for i in range(first, end):
            total = fused(load(rows, i, column, lanes), load(right, i, column, lanes), total)
        store(total, sums, np.uint64(target), column)


class GroupFactor(NamedTuple):
    """The factor of a group of modes, which a pass may read without combining it."""

    factors: Sequence[Array]  # of the modes
    bits: Sequence[int]  # as `combine_rows` takes them
    rows: Array | None  # those that passes read; None if they read all

    def combine(self) -> Array:
        """Return the factor; rows that no pass reads are arbitrary."""
        return combine_rows(self.factors, self.bits, self.rows)

    def is_read_apart(self) -> bool:
        """Say whether a pass that reads no other factor should read those of the modes.

        A product of two rows takes as long as a row from a cache that is not the nearest, and
        nothing has to be written before. A third row would take longer.
        """
        num_rows = len(self.factors[0]) << self.bits[0]
        if self.rows is not None:
            num_rows = self.rows.size
        row_nbytes = self.factors[0].shape[1] * self.factors[0].itemsize
        return len(self.factors) == 2 and num_rows * row_nbytes >= _FAR_NBYTES


def combine_rows(factors: Sequence[Array], bits: Sequence[int], rows: Array | None = None) -> Array:
    """See `Engine.combine_rows`; rows that stand for no indices are zero.

    If the numbers of some `rows` are given, the others are arbitrary.
    """
    combined = factors[-1]
    for n in range(len(factors) - 2, -1, -1):
        outer = make_readable(factors[n])
        inner = make_readable(combined)
        num_bits = bits[n]
        combined = allocate_lines((len(outer) << num_bits, outer.shape[1]), outer.dtype)
        is_last = n == 0
        wanted_rows = list_places(rows if is_last else None, len(combined))
        count = wanted_rows.size or len(combined)
        work_ns = count * combined.strides[0] * _BYTE_NS
        threads.launch(
            _combine, count, outer, inner, num_bits, wanted_rows, combined, work_ns=work_ns
        )
    return combined


@kernel
def _combine(
    first: int,
    last: int,
    outer: Array,
    inner: Array,
    num_bits: int,
    rows: Array,
    combined: Array,
) -> None:
    """Write row b of `inner` times row a of `outer` to row (a, b) of those in the list `rows`.

    The number b has `num_bits` bits.
    """
    bits = np.uint64(num_bits)
    for i in range(np.uint64(first), np.uint64(last)):
        row = place_of(rows, i)
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
    outer = inner = _make_ones(out.shape[1], out.dtype)
    outer_bits = 0  # bits below those of the modes before
    if before:
        outer_bits = bits[place - 1]
        outer = combine_rows(before, [b - outer_bits for b in bits[:place]])
    if after:
        inner = combine_rows(after, bits[place + 1 :])
    arrays = (make_readable(rows), make_readable(outer), make_readable(inner))
    bits_below = (outer_bits, bits[place])
    lanes = (0,) * count_lanes(out)
    work_ns = rows.nbytes * _BYTE_NS
    threads.launch(_contract, out.shape[0], arrays, bits_below, out, lanes, work_ns=work_ns)
    if weights is not None:
        np.multiply(out, weights, out=out)


@functools.cache
def _make_ones(rank: int, dtype: np.dtype) -> Array:
    """Return ones (1, R), which nobody may write to."""
    return np.ones((1, rank), dtype)


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
