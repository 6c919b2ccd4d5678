"""Factors rounded to numbers that fit narrow rows: the scales of columns, then rows and factor."""

from collections.abc import Sequence

import numpy as np
from numpy import ndarray as Array
from numpy.typing import DTypeLike

from ..narrow_rows import FIXED_POINT_ONE, NARROW_FORMATS, NarrowRows
from . import threads
from .compiling import kernel
from .mttkrp import count_lanes
from .products import make_readable
from .records import allocate_lines

#: Rows whose largest numbers are found together.
_BLOCK_SIZE = 1024

#: The largest number in fixed point, times `FIXED_POINT_ONE`.
_LARGEST_FIXED = np.float32(FIXED_POINT_ONE - 1)
_FIXED_ONE = np.float32(FIXED_POINT_ONE)

#: Float32 has subnormal numbers below it, which are slow; they are stored as 0.
_SMALLEST_FLOAT32 = float(np.finfo(np.float32).tiny)

# What narrow rows must save to pay: see `narrow_pays`.
_NEAR_CACHE_NBYTES = 2**17
_FAR_STEP = 16  # rows of a factor between two that are read
_LEAST_ROW_NBYTES = 32
_LEAST_READS = 48  # of each row of a factor, in a sweep
_LEAST_SCATTERED_NBYTES = 1.25 * 2**20


def find_scales(factor: Array) -> Array:
    """Implement `Engine.find_scales`."""
    largest = _find_largest(make_readable(factor))
    narrow_format = NARROW_FORMATS[factor.dtype]
    _, exponents = np.frexp(largest)
    is_usual = np.isin(exponents, narrow_format.usual_exponents) | (largest == 0)
    exponents = np.maximum(exponents, narrow_format.least_exponent)
    one = factor.dtype.type(1)
    with np.errstate(over="ignore"):
        scales = np.ldexp(one, np.where(is_usual, 0, exponents))
    is_finite = (largest < np.inf) & (scales < np.inf)
    return np.where(is_finite, scales, factor.dtype.type(np.nan))


def round_rows(factor: Array, scales: Array) -> NarrowRows:
    """Implement `Engine.round_rows`."""
    rows = allocate_lines(factor.shape, NARROW_FORMATS[factor.dtype].dtype)
    round_some = _round_to_floats
    units = scales
    if factor.dtype == np.float32:
        round_some = _round_to_fixed
        units = scales / _FIXED_ONE
    threads.launch(round_some, len(rows), factor, units, 1 / units, rows, work_ns=rows.size)
    return NarrowRows(rows, scales)


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
    # Columns are computed in whole vectors, so that some are widened twice.
    num_lanes = count_lanes(np.empty((0, rank), dtype))
    num_computed = -(-rank // num_lanes) * num_lanes
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


def _find_largest(numbers: Array) -> Array:
    """Return the largest magnitude of each column; nan if there is one."""
    word = np.dtype(f"u{numbers.itemsize}")
    num_blocks = -(-len(numbers) // _BLOCK_SIZE)
    largest = np.zeros((num_blocks, numbers.shape[1]), word)
    # Bits of magnitudes ascend as these do; those of nan are above all others.
    magnitude_bits = word.type(np.iinfo(word).max // 2)
    words = numbers.view(word)
    work_ns = numbers.size / 2
    threads.launch(_find_largest_words, num_blocks, words, magnitude_bits, largest, work_ns=work_ns)
    return largest.max(axis=0, initial=0).view(numbers.dtype)


@kernel
def _find_largest_words(
    first: int, last: int, words: Array, magnitude_bits: int, largest: Array
) -> None:
    """Find the largest magnitude of each column, as bits, in some blocks of rows."""
    for block in range(np.uint64(first), np.uint64(last)):
        start = block * np.uint64(_BLOCK_SIZE)
        end = min(start + np.uint64(_BLOCK_SIZE), np.uint64(words.shape[0]))
        for i in range(start, end):
            for r in range(np.uint64(words.shape[1])):
                magnitude = words[i, r] & magnitude_bits
                largest[block, r] = max(largest[block, r], magnitude)


@kernel
def _round_to_floats(
    first: int, last: int, factor: Array, units: Array, reciprocals: Array, rows: Array
) -> None:
    """Round rows of float64 numbers to float32."""
    for i in range(np.uint64(first), np.uint64(last)):
        for r in range(np.uint64(factor.shape[1])):
            number = factor[i, r] * reciprocals[r]
            rounded = np.float32(0.0) if abs(number) < _SMALLEST_FLOAT32 else np.float32(number)
            rows[i, r] = rounded
            factor[i, r] = rounded * units[r]


@kernel
def _round_to_fixed(
    first: int, last: int, factor: Array, units: Array, reciprocals: Array, rows: Array
) -> None:
    """Round rows of float32 numbers to fixed point."""
    for i in range(np.uint64(first), np.uint64(last)):
        for r in range(np.uint64(factor.shape[1])):
            number = factor[i, r] * reciprocals[r]
            number = number if number < _LARGEST_FIXED else _LARGEST_FIXED  # so is nan
            number = number if number > -_LARGEST_FIXED else -_LARGEST_FIXED
            fixed = np.rint(number)
            rows[i, r] = np.uint16(fixed + _FIXED_ONE)
            factor[i, r] = (fixed + np.float32(0.0)) * units[r]  # 0, not -0, as it is stored
