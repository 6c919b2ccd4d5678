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
    modes = reversed(range(merged.ndim))  # stable sorts: that by mode 0 comes last and decides
    places = primitives.sort_places(records, merged, modes)
    return primitives.gather(records, places)


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
    record_format = cut.record_format
    num_numbered = cut.num_numbered
    records = make_canonical_records(coords, values, record_format, primitives)
    nnz = records.shape[0]
    has_shrunk = nnz < values.shape[0]
    if num_numbered is None and has_shrunk:
        groups, num_numbered = find_groups("auto", record_format.shape, nnz)
        if groups != record_format.groups:
            cut = primitives.choose_cut(record_format.shape, record_format.dtype, groups)
            records = pack_again(records, record_format, cut.record_format, primitives)
    cut = cut._replace(num_numbered=num_numbered)
    return number_records(records, cut, primitives)


def number_records(records: Array, cut: Cut, primitives: Primitives) -> tuple[Array, Cut]:
    """Number the prefixes of canonical records if `cut` says so; return the final cut too."""
    num_numbered = cut.num_numbered
    plain_cut = cut._replace(num_numbered=0)
    if num_numbered == 0 or records.shape[0] == 0:
        return records, plain_cut
    record_format = cut.record_format
    if num_numbered is None:
        prefixes = _choose_prefixes(records, record_format, primitives)
    else:
        prefixes = _number_prefixes(records, record_format, num_numbered, primitives)
    if prefixes is None:
        return records, plain_cut
    numbers, numbered_cut = prefixes
    numbered_format = numbered_cut.record_format.flat  # with the numbers as one more mode
    numbered = pack_again(records, record_format, numbered_format, primitives, numbers=numbers)
    return numbered, numbered_cut


def pack_again(
    records: Array,
    old: RecordFormat,
    new: RecordFormat,
    primitives: Primitives,
    *,
    numbers: Array | None = None,
    shift: tuple[int, int] = (0, 0),
) -> Array:
    """Convert records from one format to another, which has one more mode if `numbers` are given.

    `numbers` (nnz,) are the coordinates of that mode, the last one. `shift` is a mode, and a number
    that is added to its rows.
    """
    xp = primitives.xp
    nnz = records.shape[0]
    packed = xp.empty((nnz, new.num_words), new.word_dtype)
    # In eight blocks, so that the unpacked coordinates take little beside the records.
    block_size = max(1, -(-nnz // 8))
    shifted_mode, offset = shift
    for start in range(0, nnz, block_size):
        block = slice(start, start + block_size)
        old_records = records[block]
        coords = old.coords(old_records, xp)
        if numbers is not None:
            coords = xp.concatenate([coords, numbers[None, block]])
        coords[shifted_mode] += offset
        packed[block], *_ = primitives.pack(coords, old.values(old_records), new)
    return packed


def _number_prefixes(
    records: Array, record_format: RecordFormat, num_modes: int, primitives: Primitives
) -> tuple[Array, Cut]:
    """Number the combinations of the first `num_modes` indices; return also the cut with them."""
    is_new = primitives.xp.zeros(records.shape[0], bool)
    for mode in range(num_modes):
        _mark_changes(is_new, records, record_format, mode, primitives)
    numbers = _number_marks(is_new, primitives)
    cut = _cut_with_prefixes(record_format, num_modes, numbers, primitives)
    return numbers, cut


def _choose_prefixes(
    records: Array, record_format: RecordFormat, primitives: Primitives
) -> tuple[Array, Cut] | None:
    """Number the combinations of the first indices, of as many modes as have few combinations.

    None if that leaves as many groups, or makes longer records.
    """
    nnz = records.shape[0]
    best = None
    is_new = primitives.xp.zeros(nnz, bool)
    for mode in range(record_format.ndim - 1):
        _mark_changes(is_new, records, record_format, mode, primitives)
        numbers = _number_marks(is_new, primitives)
        largest_number = int(numbers[-1])
        if largest_number * primitives.least_repeats >= nnz:
            break  # longer prefixes have more combinations still
        num_modes = mode + 1
        cut = _cut_with_prefixes(record_format, num_modes, numbers, primitives)
        numbered_format = cut.record_format
        has_fewer_groups = len(numbered_format.groups) < len(record_format.groups)
        has_longer_records = numbered_format.num_words > record_format.num_words
        if has_fewer_groups and not has_longer_records:
            best = (numbers, cut)
    return best


def _mark_changes(
    is_new: Array, records: Array, record_format: RecordFormat, mode: int, primitives: Primitives
) -> None:
    """Mark also the records whose index in `mode` is not that of the previous record."""
    rows = primitives.read_rows(records, record_format, mode)
    is_new[1:] |= rows[1:] != rows[:-1]


def _number_marks(is_new: Array, primitives: Primitives) -> Array:
    """Number the runs of records (nnz,) that begin at marks, from 0.

    Records are sorted, so each run is a combination of indices.
    """
    nnz = is_new.shape[0]
    # The first record is not marked, so the number of marks so far is the number of its run.
    return primitives.xp.cumsum(is_new, dtype=index_dtype(nnz))


def _cut_with_prefixes(
    record_format: RecordFormat, num_modes: int, numbers: Array, primitives: Primitives
) -> Cut:
    """Choose the cut with the first `num_modes` modes as a group of numbered combinations."""
    numbered_modes = tuple(range(num_modes))
    other_groups = list_rest(record_format.groups, num_modes)
    groups = (numbered_modes, *other_groups)
    num_prefixes = int(numbers[-1]) + 1
    return primitives.choose_cut(record_format.shape, record_format.dtype, groups, num_prefixes)


def drop_zeros(records: Array, record_format: RecordFormat) -> Array:
    """Keep the records whose values are not zero."""
    is_nonzero = record_format.values(records) != 0
    if not has_true(~is_nonzero):
        return records
    return take_marked(records, is_nonzero)


def take_marked(records: Array, is_marked: Array) -> Array:
    """Copy the marked records."""
    # In blocks: CuPy counts the selected records in 32 bits.
    taken = []
    for start in range(0, records.shape[0], _MASK_BLOCK):
        block = slice(start, start + _MASK_BLOCK)
        block_records = records[block]
        taken.append(block_records[is_marked[block]])
    if not taken:
        return records
    if len(taken) == 1:
        return taken[0]
    return array_module(records).concatenate(taken)


def count_canonical_nbytes(nnz: int, record_format: RecordFormat, primitives: Primitives) -> int:
    """Bound the bytes of `make_canonical_records`, its result included.

    Values must not contain zeros: dropping them copies the records once more.
    """
    records = nnz * record_format.record_nbytes
    flags = 3 * nnz
    # First the places are sorted, then the records are copied in their order.
    places = 3 * nnz * index_dtype(nnz).itemsize  # two orders, and the positions
    sorting_places = primitives.sort_places_nbytes(nnz, record_format.merged)
    sorting = places + max(sorting_places, records)
    # Then neighbours are compared, word by word, and duplicates summed.
    words_and_flags = 2 * record_format.word_dtype.itemsize + 2
    comparing = nnz * words_and_flags
    summing = records + primitives.sum_nbytes(nnz, record_format.dtype.itemsize)
    return flags + records + max(sorting, summing, comparing)


def compute_norm(values: Array, primitives: Primitives) -> float:
    """Compute the Frobenius norm in float64, in blocks: accurately and in little memory.

    Where squares could over- or underflow, all are scaled by a power of two. Beyond float64 it is
    inf.
    """
    block_size = primitives.block_size
    starts = range(0, values.shape[0], block_size)
    blocks = [values[start : start + block_size] for start in starts]
    with np.errstate(over="ignore"):
        squares = [primitives.sum_squares(block) for block in blocks]
    least, most = _SAFE_SQUARES
    if all(least < square < most for square in squares):
        return math.sqrt(math.fsum(squares))

    # The largest absolute value, without an array of them.
    most_positive = max(float(block.max()) for block in blocks)
    most_negative = min(float(block.min()) for block in blocks)
    largest = max(most_positive, -most_negative)
    if not math.isfinite(largest):
        return largest
    _, exponent = math.frexp(largest)
    half = exponent // 2  # in two steps, since 2.0**exponent itself may overflow
    first_scale = math.ldexp(1.0, -half)
    second_scale = math.ldexp(1.0, half - exponent)
    scaled = (block.astype(np.float64) * first_scale * second_scale for block in blocks)
    scaled_squares = [primitives.sum_squares(block) for block in scaled]
    scaled_norm = math.sqrt(math.fsum(scaled_squares))
    try:
        return math.ldexp(scaled_norm, exponent)
    except OverflowError:
        return math.inf


def sum_duplicates(
    records: Array, record_format: RecordFormat, is_equal: Array, primitives: Primitives
) -> Array:
    """Merge sorted records; `is_equal` marks those with the previous one's coordinates."""
    xp = primitives.xp
    # `is_equal` is shorter by one: nothing comes before the first record, which is always kept.
    is_first = xp.concatenate([xp.ones(1, bool), ~is_equal])
    starts = xp.flatnonzero(is_first)
    sums = primitives.sum_groups(record_format.values(records), starts)
    merged = records[starts]
    record_format.values(merged)[...] = sums
    return merged
