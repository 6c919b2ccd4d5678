"""Bring nonzeros into canonical order: sorted, without duplicates and zeros."""

import math

import numpy as np

from ..base.array_modules import Array, array_module, has_true
from .groups import find_groups, list_rest
from .packing import Cut, RecordFormat
from .primitives import Primitives, index_dtype

#: Number of records that are masked at a time.
_MASK_BLOCK = 2**30

#: Sums of squares between these are accurate in float64.
_SAFE_SQUARES = (1e-200, 1e200)


def make_canonical_records(
    coords: Array, values: Array, record_format: RecordFormat, primitives: Primitives
) -> Array:
    """Pack nonzeros sorted by coordinates (mode 0 first), duplicates summed, zeros dropped.

    Duplicates are added in a fixed order. If the nonzeros are already sorted, as in a `sparse.COO`,
    this costs one comparison of neighbours. Coords (ndim, nnz) outside the shape and values (nnz,)
    that are not finite raise a ValueError.
    """
    records, is_ascending, has_zeros = primitives.pack(coords, values, record_format)
    if has_zeros:
        records = drop_zeros(records, record_format)
    if is_ascending:
        return records
    records = sort_records(records, record_format, primitives)
    return merge_duplicates(records, record_format, primitives)


def sort_records(records: Array, record_format: RecordFormat, primitives: Primitives) -> Array:
    """Copy records in the order of their coordinates, duplicates in the given sequence."""
    merged = record_format.merged  # has fewer modes, and the same order
    modes = reversed(range(merged.ndim))
    return primitives.gather(records, primitives.sort_places(records, merged, modes))


def merge_duplicates(records: Array, record_format: RecordFormat, primitives: Primitives) -> Array:
    """Sum the duplicates of sorted records, and drop sums that are zero."""
    is_equal = primitives.find_duplicates(records, record_format)
    if not has_true(is_equal):
        return records
    records = sum_duplicates(records, record_format, is_equal, primitives)
    return drop_zeros(records, record_format)


def order_records(
    coords: Array, values: Array, cut: Cut, primitives: Primitives
) -> tuple[Array, Cut]:
    """Make canonical records, with numbered prefixes if `cut` says so; return the final cut too.

    If groups are still to be chosen, they are those for the number of canonical records.
    """
    count = cut.num_numbered
    records = make_canonical_records(coords, values, cut.record_format, primitives)
    if count is None and records.shape[0] < values.shape[0]:
        given = cut.record_format
        groups, count = find_groups("auto", given.shape, records.shape[0])
        if groups != given.groups:
            cut = primitives.choose_cut(given.shape, given.dtype, groups)
            records = pack_again(records, given, cut.record_format, primitives)
    return number_records(records, cut._replace(num_numbered=count), primitives)


def number_records(records: Array, cut: Cut, primitives: Primitives) -> tuple[Array, Cut]:
    """Number the prefixes of canonical records if `cut` says so; return the final cut too."""
    count = cut.num_numbered
    cut = cut._replace(num_numbered=0)
    if count == 0 or records.shape[0] == 0:
        return records, cut
    given = cut.record_format
    found = _find_prefixes(records, given, count, primitives)
    if found is None:
        return records, cut
    numbers, cut = found
    return pack_again(records, given, cut.record_format.flat, primitives, numbers[None]), cut


def pack_again(
    records: Array,
    given: RecordFormat,
    wanted: RecordFormat,
    primitives: Primitives,
    *numbers: Array,
    shift: tuple[int, int] = (0, 0),
) -> Array:
    """Convert records to a format that may have one more mode, with `numbers` (1, nnz).

    `shift` is a mode, and what is added to its rows.
    """
    xp = primitives.xp
    nnz = records.shape[0]
    packed = xp.empty((nnz, wanted.num_words), wanted.word_dtype)
    size = max(1, -(-nnz // 8))  # of a block: its coordinates take little beside the records
    for start in range(0, nnz, size):
        block = slice(start, start + size)
        own = xp.concatenate([given.coords(records[block], xp), *(n[:, block] for n in numbers)])
        own[shift[0]] += shift[1]
        packed[block] = primitives.pack(own, given.values(records[block]), wanted)[0]
    return packed


def _find_prefixes(
    records: Array, given: RecordFormat, count: int | None, primitives: Primitives
) -> tuple[Array, Cut] | None:
    """Number the combinations of the first `count` indices, and choose the cut with the numbers.

    By default of as many indices as have few combinations, if that makes fewer groups and no longer
    records; else None.
    """
    xp = primitives.xp
    nnz = records.shape[0]
    found = None
    is_new = xp.zeros(nnz, bool)
    for mode in range(count or given.ndim - 1):
        rows = primitives.read_rows(records, given, mode)
        is_new[1:] |= rows[1:] != rows[:-1]
        del rows
        numbers = xp.cumsum(is_new, dtype=index_dtype(nnz))
        num_prefixes = int(numbers[-1]) + 1
        if count is None and (num_prefixes - 1) * primitives.least_repeats >= nnz:
            break
        groups = (tuple(range(mode + 1)), *list_rest(given.groups, mode + 1))
        cut = primitives.choose_cut(given.shape, given.dtype, groups, num_prefixes)
        is_better = len(groups) < len(given.groups)
        is_better &= cut.record_format.num_words <= given.num_words
        if is_better if count is None else mode + 1 == count:
            found = (numbers, cut)
    return found


def drop_zeros(records: Array, record_format: RecordFormat) -> Array:
    """Keep the records whose values are not zero."""
    is_nonzero = record_format.values(records) != 0
    return take_marked(records, is_nonzero) if has_true(~is_nonzero) else records


def take_marked(records: Array, is_marked: Array) -> Array:
    """Copy the marked records."""
    # In blocks: CuPy counts the selected records in 32 bits.
    starts = range(0, records.shape[0], _MASK_BLOCK)
    blocks = [slice(start, start + _MASK_BLOCK) for start in starts]
    taken = [records[block][is_marked[block]] for block in blocks]
    if len(taken) == 1:
        return taken[0]
    return array_module(records).concatenate(taken) if taken else records


def count_canonical_nbytes(nnz: int, record_format: RecordFormat, primitives: Primitives) -> int:
    """Bound the bytes of `make_canonical_records`, its result included.

    Values must not contain zeros: dropping them copies the records once more.
    """
    records = nnz * record_format.record_nbytes
    flags = 3 * nnz
    places = 3 * nnz * index_dtype(nnz).itemsize
    sorting = primitives.sort_places_nbytes(nnz, record_format.merged)
    sorting = places + max(sorting, records)
    summing = records + primitives.sum_nbytes(nnz, record_format.dtype.itemsize)
    comparing = nnz * (2 * record_format.word_dtype.itemsize + 2)
    return flags + records + max(sorting, summing, comparing)


def compute_norm(values: Array, primitives: Primitives) -> float:
    """Compute the Frobenius norm in float64, in blocks: accurately and in little memory.

    Where squares could over- or underflow, all are scaled by a power of two. Beyond float64 it is
    inf.
    """
    starts = range(0, values.shape[0], primitives.block_size)
    exponent = 0
    blocks = [values[start : start + primitives.block_size] for start in starts]
    with np.errstate(over="ignore"):
        squares = [primitives.sum_squares(block) for block in blocks]
    if not all(_SAFE_SQUARES[0] < square < _SAFE_SQUARES[1] for square in squares):
        largest = max(max(float(block.max()), -float(block.min())) for block in blocks)
        if not math.isfinite(largest):
            return largest
        exponent = math.frexp(largest)[1]
        half = exponent // 2  # 2.0**exponent itself may overflow
        first = math.ldexp(1.0, -half)
        second = math.ldexp(1.0, half - exponent)
        doubles = (block.astype(np.float64) * first * second for block in blocks)
        squares = [primitives.sum_squares(block) for block in doubles]
    try:
        return math.ldexp(math.sqrt(math.fsum(squares)), exponent)
    except OverflowError:
        return math.inf


def sum_duplicates(
    records: Array, record_format: RecordFormat, is_equal: Array, primitives: Primitives
) -> Array:
    """Merge sorted records; `is_equal` marks those with the previous one's coordinates."""
    xp = primitives.xp
    starts = xp.flatnonzero(xp.concatenate([xp.ones(1, bool), ~is_equal]))
    merged = records[starts]
    record_format.values(merged)[...] = primitives.sum_groups(record_format.values(records), starts)
    return merged
