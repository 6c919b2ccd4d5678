"""The loops of building a tensor on a CPU, compiled by numba; `cpu` is their only caller.

What is here: packing, counting sorts, planning of remapping, and a look at rows. None calls a
compiled function of another file, for the reason that `cpu_kernels` gives.

Loops run over places `first` to `last`, or over parts: neighbouring places that have counters of
their own.
"""

import numpy as np
from numba import njit, types
from numba.extending import overload


@njit(cache=True, nogil=True, error_model="numpy")
def pack_records(
    first, last, coords, mode_stride, nonzero_stride, values, words, shifts, sizes, value_slot,
    records, record_values, falls, is_outside, is_infinite, has_zeros,
):  # fmt: skip
    """Pack nonzeros `first` to `last`, and note in four flags what they are like.

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
        if not abs(values[i]) < np.inf:
            is_infinite[0] = True
        if values[i] == 0:
            has_zeros[0] = True
        if not is_less:
            falls[0] = True


# A counting sort on several threads: each part counts its keys, `start_keys` makes of the counts
# where each part puts its first item of each key, and each part puts its own. There is one stable
# order, so neither the threads nor the parts can be seen in it.


@njit(cache=True, nogil=True, error_model="numpy")
def read_rows(first, last, records, field, rows):
    """Read the rows of the records."""
    word, shift, mask = field
    for i in range(np.uint64(first), np.uint64(last)):
        rows[i] = (records[i, word] >> shift) & mask


@njit(cache=True, nogil=True, error_model="numpy")
def count_rows(first_part, last_part, num_parts, rows, places, sorted_rows, counts):
    """Take the rows of some parts in the order of `places`, and count them in their counters."""
    for part in range(first_part, last_part):
        for i in range(*_part_range(part, num_parts, rows.shape[0])):
            row = rows[_place_of(places, i)]
            sorted_rows[i] = row
            counts[part, np.uint64(row)] += 1


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
def sort_parts(first_part, last_part, num_parts, starts, places, target, positions):
    """Sort the places of some parts; their rows come in `positions` and give way to these."""
    for part in range(first_part, last_part):
        for i in range(*_part_range(part, num_parts, positions.shape[0])):
            row = np.uint64(positions[i])
            position = starts[part, row]
            starts[part, row] = position + 1
            positions[i] = position
            target[np.uint64(position)] = _place_of(places, i)


# Remapping is planned with the two levels that it has itself: each part puts what it has to say of
# a position into the position's bucket, and each bucket is then put in order within a cache.


@njit(cache=True, nogil=True, error_model="numpy")
def count_buckets(first_part, last_part, num_parts, positions, bucket_size, counts):
    """Count the buckets of some parts' positions."""
    for part in range(first_part, last_part):
        for i in range(*_part_range(part, num_parts, positions.shape[0])):
            counts[part, np.uint64(positions[i]) // bucket_size] += 1


@njit(cache=True, nogil=True, error_model="numpy")
def count_buckets_of_rows(row_starts, nnz, bucket_size, counts):
    """Count the buckets of all parts' positions, from where each part's rows start."""
    end = np.uint64(nnz)
    for row in range(row_starts.shape[1] - 1, -1, -1):
        for part in range(row_starts.shape[0] - 1, -1, -1):
            start = np.uint64(row_starts[part, row])
            position = start
            while position < end:
                bucket = position // bucket_size
                bucket_end = min(end, (bucket + np.uint64(1)) * bucket_size)
                counts[part, bucket] += bucket_end - position
                position = bucket_end
            end = start


@njit(cache=True, nogil=True, error_model="numpy")
def split_sorted_parts(
    first_part, last_part, num_parts, row_starts, places, bucket_size, bucket_starts,
    target, remap_ids, pull_ids,
):  # fmt: skip
    """Sort as `sort_parts` does, and split the positions as `split_parts` does."""
    for part in range(first_part, last_part):
        for i in range(*_part_range(part, num_parts, remap_ids.shape[0])):
            row = np.uint64(remap_ids[i])
            position = np.uint64(row_starts[part, row])
            row_starts[part, row] = position + np.uint64(1)
            bucket = position // bucket_size
            stored = np.uint64(bucket_starts[part, bucket])
            bucket_starts[part, bucket] = stored + np.uint64(1)
            remap_ids[i] = stored
            pull_ids[stored] = position - bucket * bucket_size
            target[stored] = _place_of(places, i)


@njit(cache=True, nogil=True, error_model="numpy")
def split_parts(first_part, last_part, num_parts, positions, bucket_size, starts, stored, offsets):
    """Put the offsets of some parts' positions where they are stored, still in no order."""
    for part in range(first_part, last_part):
        for i in range(*_part_range(part, num_parts, positions.shape[0])):
            position = np.uint64(positions[i])
            bucket = position // bucket_size
            place = starts[part, bucket]
            starts[part, bucket] = place + 1
            stored[i] = place
            offsets[np.uint64(place)] = position - bucket * bucket_size


@njit(cache=True, nogil=True, error_model="numpy")
def order_buckets(first_bucket, last_bucket, bucket_size, target, offsets):
    """Bring `target` to the order of the offsets, and replace these by where it was."""
    most = min(bucket_size, offsets.shape[0])
    old_offsets = np.empty(most, offsets.dtype)
    old_target = np.empty(0 if target is None else most, np.uint64)
    for bucket in range(first_bucket, last_bucket):
        start = np.uint64(bucket * bucket_size)
        count = min(np.uint64(bucket_size), np.uint64(offsets.shape[0]) - start)
        for i in range(count):
            old_offsets[i] = offsets[start + i]
        if target is not None:
            for i in range(count):
                old_target[i] = target[start + i]
            for i in range(count):
                target[start + np.uint64(old_offsets[i])] = old_target[i]
        for i in range(count):
            offsets[start + np.uint64(old_offsets[i])] = i


@njit(cache=True, error_model="numpy")
def _part_range(part, num_parts, count):
    return np.uint64(count * part // num_parts), np.uint64(count * (part + 1) // num_parts)


def _place_of(places, i):
    """Return what the order `places` has at i; a stand-in for the overload below."""


@overload(_place_of)
def _overload_place_of(places, i):
    if isinstance(places, types.NoneType):
        return lambda places, i: i
    return lambda places, i: np.uint64(places[i])


@njit(cache=True, error_model="numpy")
def _copy_record(source, position, target, target_position, record_words):
    """Copy one record; the length of the tuple `record_words` is the words it has."""
    for word in range(len(record_words)):
        target[target_position, np.uint64(word)] = source[position, np.uint64(word)]


@njit(cache=True, nogil=True, error_model="numpy")
def scatter_in_buckets(first, last, source, offsets, bucket_size, target, record_words):
    """Copy records to their offsets in the buckets that they are in."""
    for i in range(np.uint64(first), np.uint64(last)):
        position = i // bucket_size * bucket_size + np.uint64(offsets[i])
        _copy_record(source, i, target, position, record_words)


@njit(cache=True, nogil=True, error_model="numpy")
def position_in_buckets(first, last, offsets, bucket_size, positions):
    """Turn offsets from the starts of buckets into positions."""
    for i in range(np.uint64(first), np.uint64(last)):
        positions[i] = i // bucket_size * bucket_size + np.uint64(offsets[i])


@njit(cache=True, nogil=True, error_model="numpy")
def mark_rows(first, last, records, field, is_empty):
    """Clear the mark of the records' rows."""
    word, shift, mask = field
    for i in range(np.uint64(first), np.uint64(last)):
        is_empty[(records[i, word] >> shift) & mask] = False
