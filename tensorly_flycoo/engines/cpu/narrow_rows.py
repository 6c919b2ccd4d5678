"""Factors rounded to numbers that fit narrow rows: the scales of columns, then rows and factor."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import from_dtype
from numpy import ndarray as Array
from numpy.typing import DTypeLike

from ..narrow_rows import FIXED_POINT_ONE, NARROW_FORMATS, NarrowRows
from . import threads
from .compiling import inlined, kernel
from .mttkrp import choose_lanes, count_lanes, widen
from .records import allocate_lines, intrinsic, make_readable
from .vectors import VECTOR_NBYTES, Vector, call_for_vector, larger_magnitude, load, store

#: Rows whose largest numbers are found together.
_BLOCK_SIZE = 1024

#: The largest number in fixed point, times `FIXED_POINT_ONE`.
_LARGEST_FIXED = float(FIXED_POINT_ONE - 1)

#: Float32 has subnormal numbers below it, which are slow; they are stored as 0.
_SMALLEST_FLOAT32 = float(np.finfo(np.float32).tiny)

# What narrow rows must save to pay: see `narrow_pays`.
_NEAR_CACHE_NBYTES = 2**17
_FAR_STEP = 16  # rows of a factor between two that are read
_LEAST_ROW_NBYTES = 32
_LEAST_READS = 48  # of each row of a factor, in a sweep
_LEAST_SCATTERED_NBYTES = 1.25 * 2**20


class Rounding(NamedTuple):
    """What a pass over blocks of rows finds of them, and how it rounds them."""

    # (num_blocks, R): the largest magnitude of each column, nan if there is one; (0, R) if nobody
    # asks for them.
    largest: Array
    # If nothing is rounded, all three are empty.
    reciprocals: Array  # (1, R), of what narrow rows count in
    scales: Array  # (1, R)
    rows: Array  # (I, R), the narrow rows

    @classmethod
    def begin(cls, factor: Array, num_blocks: int, scales: Array | None = None) -> "Rounding":
        """Prepare to round a factor by scales, if any, and to find its largest magnitudes."""
        num_rows, rank = factor.shape
        if scales is None:
            num_rows = 0
            scales = np.empty(0, factor.dtype)
        narrow_dtype = NARROW_FORMATS[factor.dtype].dtype
        units = scales
        if narrow_dtype == np.uint16:
            units = scales / np.float32(FIXED_POINT_ONE)
        return cls(
            largest=np.zeros((num_blocks, rank), factor.dtype),
            reciprocals=1 / units[None],
            scales=scales[None],
            rows=allocate_lines((num_rows, rank), narrow_dtype),
        )

    def choose_scales(self) -> Array:
        """Return the scales of `Engine.find_scales`, of the largest magnitudes that were found."""
        dtype = self.largest.dtype
        largest = self.largest.max(axis=0, initial=0)
        narrow_format = NARROW_FORMATS[dtype]
        _, exponents = np.frexp(largest)
        is_usual = np.isin(exponents, narrow_format.usual_exponents) | (largest == 0)
        exponents = np.maximum(exponents, narrow_format.least_exponent)
        with np.errstate(over="ignore"):
            scales = np.ldexp(dtype.type(1), np.where(is_usual, 0, exponents))
        is_finite = (largest < np.inf) & (scales < np.inf)
        return np.where(is_finite, scales, dtype.type(np.nan))


def find_scales(factor: Array) -> Array:
    """Implement `Engine.find_scales`."""
    factor = make_readable(factor)
    num_blocks = -(-len(factor) // _BLOCK_SIZE)
    rounding = Rounding.begin(factor, num_blocks)
    lanes = (0,) * count_lanes(factor, VECTOR_NBYTES)
    threads.launch(_find_largest, num_blocks, rounding, factor, lanes, work_ns=factor.size / 4)
    return rounding.choose_scales()


def round_rows(factor: Array, scales: Array) -> NarrowRows:
    """Implement `Engine.round_rows`."""
    rounded = make_readable(factor)
    rounding = Rounding.begin(factor, 0, scales)
    lanes = (0,) * count_lanes(factor, VECTOR_NBYTES)
    threads.launch(_round_rows, len(factor), rounding, rounded, lanes, work_ns=factor.size / 2)
    if rounded is not factor:
        factor[...] = rounded
    return NarrowRows(rounding.rows, scales)


def narrow_pays(shape: Sequence[int], nnz: int, rank: int, dtype: DTypeLike) -> bool:
    """Implement `Engine.narrow_pays`.

    A factor is scattered if it fits no near cache, and its rows are not read in order. On one
    thread of a Xeon with 2 MB of L2, sweeps with 1.25 MB of scattered factors a mode were faster;
    in smaller ones widening takes longer than is saved. Iterations, in which factors are rounded
    and their Gram matrices made again, took .9 to 1.2 of the time with 33 reads of each row, and .7
    to .8 with 67.

    >>> narrow_pays((12_092, 9_184, 28_818), nnz=76_879_419, rank=16, dtype="float64")
    True
    >>> narrow_pays((183, 24, 1_140, 1_717), nnz=3_309_490, rank=16, dtype="float64")
    False
    """
    row_nbytes = rank * np.dtype(dtype).itemsize
    narrow_nbytes = row_nbytes // 2
    scattered = _list_scattered(shape, nnz, _NEAR_CACHE_NBYTES // max(row_nbytes, 1))
    if narrow_nbytes < _LEAST_ROW_NBYTES or not scattered:
        return False
    reads_a_row = nnz * len(scattered) / sum(shape)
    # Columns that are left over are computed in one more vector, so that some are widened twice.
    lanes, tail_lanes = choose_lanes(rank, np.dtype(dtype).itemsize)
    num_computed = rank - rank % len(lanes) + len(tail_lanes or ())
    least_nbytes = _LEAST_SCATTERED_NBYTES * (num_computed / rank) ** 2
    scattered_nbytes = sum(scattered) * row_nbytes / len(shape)
    return reads_a_row >= _LEAST_READS and scattered_nbytes >= least_nbytes


def _list_scattered(shape: Sequence[int], nnz: int, most_near_rows: int) -> list[int]:
    """List the numbers of rows of the factors that are scattered, mode by mode of a sweep."""
    scattered = []
    for mode, size in enumerate(shape):
        ascending_mode = mode - 1 if mode else 1  # see `segments`
        for n, num_rows in enumerate(shape):
            steps_far = nnz * _FAR_STEP < size * num_rows
            is_in_order = n == ascending_mode and not steps_far
            if n != mode and num_rows > most_near_rows and not is_in_order:
                scattered.append(num_rows)
    return scattered


@kernel
def _find_largest(first: int, last: int, rounding: Rounding, factor: Array, lanes: Any) -> None:
    """Find the largest magnitude of each column in some blocks of rows."""
    for block in range(np.uint64(first), np.uint64(last)):
        start = block * np.uint64(_BLOCK_SIZE)
        end = min(start + np.uint64(_BLOCK_SIZE), np.uint64(factor.shape[0]))
        find_largest(rounding, block, factor, (start, end), lanes)


@kernel
def _round_rows(first: int, last: int, rounding: Rounding, factor: Array, lanes: Any) -> None:
    """Round some rows of a factor."""
    round_some(rounding, factor, (np.uint64(first), np.uint64(last)), lanes)


@inlined
def find_largest(rounding: Rounding, block: Any, factor: Array, some: Any, lanes: Any) -> None:
    """Find the largest magnitude of each column in rows ``some[0]`` to ``some[1] - 1`` of a block.

    If the rank is not a multiple of the lanes, the last columns overlap those before.
    """
    first, end = some
    rank = factor.shape[1]
    for step in range(0, rank, len(lanes)):
        column = np.uint64(min(step, rank - len(lanes)))
        largest = load(rounding.largest, block, column, lanes)
        for i in range(first, end):
            largest = larger_magnitude(largest, load(factor, i, column, lanes))
        store(largest, rounding.largest, block, column)


@inlined
def round_some(rounding: Rounding, factor: Array, some: Any, lanes: Any) -> None:
    """Round rows ``some[0]`` to ``some[1] - 1`` of a factor, and store the narrow rows.

    Columns may be rounded twice, which changes nothing.
    """
    _, reciprocals, scales, rows = rounding
    first, end = some
    rank = factor.shape[1]
    line = np.uint64(0)
    for step in range(0, rank, len(lanes)):
        column = np.uint64(min(step, rank - len(lanes)))
        reciprocal = load(reciprocals, line, column, lanes)
        scale = load(scales, line, column, lanes)
        for i in range(first, end):
            numbers = load(factor, i, column, lanes) * reciprocal
            narrow = _narrow(numbers)
            store(narrow, rows, i, column)
            store(_widen(narrow) * scale, factor, i, column)


@intrinsic
def _narrow(typing_context: Any, numbers: Any) -> Any:
    """Round a vector to the numbers of narrow rows."""
    to_dtype = NARROW_FORMATS[np.dtype(numbers.dtype.name)].dtype
    narrow = Vector(from_dtype(to_dtype), numbers.num_lanes)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        round_vector = _round_to_floats if to_dtype == np.float32 else _round_to_fixed
        return round_vector(builder, args[0], context.get_value_type(narrow))

    return narrow(numbers), generate


def _round_to_floats(builder: Any, numbers: Any, narrow_type: Any) -> Any:
    """Round to float32; what would be subnormal becomes 0."""
    magnitudes = call_for_vector(builder, "fabs", numbers)
    smallest = ir.Constant(numbers.type, [_SMALLEST_FLOAT32] * numbers.type.count)
    is_small = builder.fcmp_ordered("<", magnitudes, smallest)
    zeros = ir.Constant(narrow_type, None)
    return builder.select(is_small, zeros, builder.fptrunc(numbers, narrow_type))


def _round_to_fixed(builder: Any, numbers: Any, narrow_type: Any) -> Any:
    """Round to fixed point, in which numbers are counted."""
    largest, least, one = [
        ir.Constant(numbers.type, [number] * numbers.type.count)
        for number in (_LARGEST_FIXED, -_LARGEST_FIXED, float(FIXED_POINT_ONE))
    ]
    is_below = builder.fcmp_ordered("<", numbers, largest)
    numbers = builder.select(is_below, numbers, largest)  # so is nan
    is_above = builder.fcmp_ordered(">", numbers, least)
    numbers = builder.select(is_above, numbers, least)
    fixed = call_for_vector(builder, "rint", numbers)
    return builder.fptoui(builder.fadd(fixed, one), narrow_type)


@intrinsic
def _widen(typing_context: Any, narrow: Any) -> Any:
    """Return the numbers that narrow rows stand for, in the dtype that they are narrowed from."""
    wide_dtypes: dict[str, Any] = {to.dtype.name: dtype for dtype, to in NARROW_FORMATS.items()}
    wide = Vector(from_dtype(wide_dtypes[narrow.dtype.name]), narrow.num_lanes)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return widen(builder, args[0], context.get_value_type(wide))

    return wide(narrow), generate
