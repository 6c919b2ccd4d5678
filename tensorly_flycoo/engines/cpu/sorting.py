"""The loops that build a tensor on a CPU: packing, and counting sorts.

Loops run over places `first` to `last`, or over parts: consecutive places with own counters.
"""

from typing import Any

import numpy as np
from numpy import ndarray as Array

from .compiling import kernel, subroutine
from .records import Fields, place_of, read_row


@kernel
def pack_records(
    first: int, last: int, nonzeros: Any, fields: Any, packed: Any, flags: tuple[Array, ...]
) -> None:
    """Pack some nonzeros, and set flags (1,); `descends` if they are unsorted or repeated.

    `coords` is flat, so that one kernel serves both orders of its axes. `record_values` views
    `records` in the type of the values.
    """
    coords, mode_stride, nonzero_stride, values = nonzeros
    words, shifts, sizes = fields
    records, record_values, value_slot = packed
    descends, is_outside, is_infinite, has_zeros = flags
    for i in range(np.uint64(first), np.uint64(last)):
        for word in range(np.uint64(records.shape[1])):
            records[i, word] = 0
        # Compare with the previous nonzero, mode by mode, until their indices differ.
        is_undecided = i > 0
        is_less = i == 0  # the previous one, if there is one
        for n in range(len(words)):
            place = np.uint64(n) * mode_stride + i * nonzero_stride
            row = coords[place]
            if np.uint64(row) >= sizes[n]:  # negative coordinates wrap to the largest
                is_outside[0] = True
            if is_undecided and row != coords[place - nonzero_stride]:
                is_undecided = False
                is_less = row > coords[place - nonzero_stride]
            records[i, words[n]] |= np.uint64(row) << shifts[n]
        record_values[i, value_slot] = values[i]
        if not abs(values[i]) < np.inf:
            is_infinite[0] = True
        if values[i] == 0:
            has_zeros[0] = True
        if not is_less:
            descends[0] = True


# A counting sort on several threads: each part counts its keys, `start_keys` turns the counts into
# the place of each part's first item of each key, and each part places its own items. There is only
# one stable order, so the result depends neither on the threads nor on the parts.


@kernel
def read_rows(first: int, last: int, records: Array, field: Fields, rows: Array) -> None:
    """Read the rows of the records."""
    for i in range(np.uint64(first), np.uint64(last)):
        rows[i] = read_row(records, i, field)


@kernel
def count_rows(
    first_part: int, last_part: int, rows: Array, places: Array, sorted_rows: Array, counts: Array
) -> None:
    """Gather the rows of some parts in the order of `places`, and count them part by part."""
    for part in range(first_part, last_part):
        for i in range(*_part_range(part, counts, rows.shape[0])):
            row = rows[place_of(places, i)]
            sorted_rows[i] = row
            counts[part, np.uint64(row)] += 1


@kernel
def start_keys(counts: Array) -> None:
    """Replace counts by the places of the first items: key by key, within a key part by part."""
    start = counts.dtype.type(0)
    for key in range(counts.shape[1]):
        for part in range(counts.shape[0]):
            count = counts[part, key]
            counts[part, key] = start
            start += count


@kernel
def sort_parts(
    first_part: int, last_part: int, starts: Array, places: Array, target: Array, positions: Array
) -> None:
    """Sort the places of some parts; positions replace the rows in `positions`."""
    for part in range(first_part, last_part):
        for i in range(*_part_range(part, starts, positions.shape[0])):
            row = np.uint64(positions[i])
            position = starts[part, row]
            starts[part, row] = position + 1
            positions[i] = position
            target[np.uint64(position)] = place_of(places, i)


@subroutine
def _part_range(part: Any, counters: Array, count: Any) -> Any:
    """Return the first and the last item of a part; each part has a row of the counters."""
    num_parts = counters.shape[0]
    return np.uint64(count * part // num_parts), np.uint64(count * (part + 1) // num_parts)


@kernel
def mark_rows(first: int, last: int, records: Array, field: Fields, is_empty: Array) -> None:
    """Clear the flag of each row that has a record."""
    for i in range(np.uint64(first), np.uint64(last)):
        is_empty[read_row(records, i, field)] = False
