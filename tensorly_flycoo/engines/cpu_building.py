"""The loops of building a tensor on a CPU, compiled by numba; `cpu` is their only caller.

What is here: packing, counting sorts, scattering, and two looks at sorted records. None calls a
compiled function of another file, for the reason that `cpu_kernels` gives.

Loops run over places `first` to `last`, or over parts: neighbouring places that have counters of
their own.
"""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True, error_model="numpy")
def pack_records(
    first, last, coords, mode_stride, nonzero_stride, values, words, shifts, sizes, value_slot,
    records, record_values, falls, is_outside, has_zeros,
):  # fmt: skip
    """Pack nonzeros `first` to `last`, and note in three flags what they are like.

    ``falls[0]`` is set where one is not after the one before it. `coords` is flat, so that one
    function does for both orders of its axes; `record_values` is `records` in the type of the
    values.
    """
    for i in range(np.uint64(first), np.uint64(last)):
        for word in range(np.uint64(records.shape[1])):
            records[i, word] = 0
        is_undecided, is_less = i > 0, i == 0
        for n in range(len(words)):
            place = np.uint64(n) * mode_stride + i * nonzero_stride
            row = coords[place]
            if np.uint64(row) >= sizes[n]:  # negative ones are the largest
                is_outside[0] = True
            if is_undecided and row != coords[place - nonzero_stride]:
                is_undecided, is_less = False, row > coords[place - nonzero_stride]
            records[i, words[n]] |= np.uint64(row) << shifts[n]
        record_values[i, value_slot] = values[i]
        if values[i] == 0:
            has_zeros[0] = True
        if not is_less:
            falls[0] = True


# A counting sort on several threads: each part counts its keys, `start_keys` makes of the counts
# where each part puts its first nonzero of each key, and each part puts its own. There is one
# stable order, so neither the threads nor the parts can be seen in it.


@njit(cache=True, nogil=True, error_model="numpy")
def count_keys(first_part, last_part, num_parts, records, word, shift, mask, counts):
    """Count the keys of some parts in ``counts[part, key]``, which must come as zeros."""
    for part in range(first_part, last_part):
        for i in range(*_part_range(part, num_parts, records.shape[0])):
            counts[part, (np.uint64(records[i, word]) >> shift) & mask] += 1


@njit(cache=True, nogil=True, error_model="numpy")
def start_keys(counts):
    """Replace counts by where the items begin: key by key, and within a key part by part."""
    start = counts.dtype.type(0)
    for key in range(counts.shape[1]):
        for part in range(counts.shape[0]):
            count = counts[part, key]
            counts[part, key] = start
            start += count


@njit(cache=True, nogil=True, error_model="numpy")
def sort_parts(
    first_part, last_part, num_parts, records, word, shift, mask, starts, target, positions,
    record_words,
):  # fmt: skip
    """Put the records of some parts where they belong, and note where that is."""
    for part in range(first_part, last_part):
        for i in range(*_part_range(part, num_parts, records.shape[0])):
            key = (records[i, word] >> shift) & mask
            position = starts[part, key]
            starts[part, key] = position + 1
            positions[i] = position
            _copy_record(records, i, target, np.uint64(position), record_words)


@njit(cache=True, nogil=True, error_model="numpy")
def split_parts(first_part, last_part, num_parts, positions, shift, starts, stored, offsets):
    """Number the items of some parts bucket by bucket; see `Primitives.split_by_bucket`."""
    offset_mask = (np.uint64(1) << shift) - np.uint64(1)
    for part in range(first_part, last_part):
        for i in range(*_part_range(part, num_parts, positions.shape[0])):
            position = np.uint64(positions[i])
            place = starts[part, position >> shift]
            starts[part, position >> shift] = place + 1
            stored[i] = place
            offsets[position] = np.uint64(place) & offset_mask


@njit(cache=True, error_model="numpy")
def _part_range(part, num_parts, count):
    return np.uint64(count * part // num_parts), np.uint64(count * (part + 1) // num_parts)


@njit(cache=True, error_model="numpy")
def _copy_record(source, position, target, target_position, record_words):
    """Copy one record; the length of the tuple `record_words` is the words it has."""
    for word in range(len(record_words)):
        target[target_position, np.uint64(word)] = source[position, np.uint64(word)]


@njit(cache=True, nogil=True, error_model="numpy")
def scatter_items(first, last, source, positions, target):
    """Copy items to their positions in `target`."""
    for i in range(first, last):
        target[np.uint64(positions[i])] = source[i]


@njit(cache=True, nogil=True, error_model="numpy")
def scatter_records(first, last, source, positions, target, record_words):
    """Copy records to their positions in `target`."""
    for i in range(np.uint64(first), np.uint64(last)):
        _copy_record(source, i, target, np.uint64(positions[i]), record_words)


@njit(cache=True, nogil=True, error_model="numpy")
def mark_rows(first, last, records, word, shift, mask, is_empty):
    """Clear the mark of the records' rows."""
    for i in range(np.uint64(first), np.uint64(last)):
        is_empty[(records[i, word] >> shift) & mask] = False


@njit(cache=True, nogil=True, error_model="numpy")
def split_columns(
    first, last, records, record_values, value_slot, word, shift, mask, column_bits,
    is_new, rows, values,
):  # fmt: skip
    """Split records into three arrays; `column_bits` are the bits of all other modes."""
    for i in range(np.uint64(first), np.uint64(last)):
        before = i - np.uint64(i > 0)
        difference = np.uint64(0)
        for w in range(len(column_bits)):
            difference |= (records[i, w] ^ records[before, w]) & column_bits[w]
        is_new[i] = i == 0 or difference != 0
        rows[i] = (records[i, word] >> shift) & mask
        values[i] = record_values[i, value_slot]
