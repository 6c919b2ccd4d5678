"""The loop of the CPU engine's TTMc, compiled by numba.

Each nonzero adds the Kronecker product of its factors' rows to an output row of many columns, which
stays in the nearest cache until the row's last nonzero.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba.core import cgutils, types
from numpy import ndarray as Array

from .compiling import allocating_kernel, subroutine
from .mttkrp import add_multiple, advance, point_at_row
from .records import (
    Fields,
    Storage,
    Tiles,
    find_places,
    intrinsic,
    place_of,
    point_at,
    pull,
    read_row,
    read_rows,
)

#: Bytes of a vector of columns.
_VECTOR_NBYTES = 64


class Kronecker(NamedTuple):
    """The factors of the other modes, ready to be multiplied out."""

    fields: Fields
    factors: tuple[Array, ...]  # C-contiguous; the last one padded with zeros to whole vectors
    ranks: tuple[np.uint64, ...]  # the columns of each factor, padding included
    num_columns: np.uint64  # of the last factor, without padding
    lanes: tuple[int, ...]  # a vector holds ``len(lanes)`` columns


def lay_out_factors(fields: Fields, factors: Sequence[Array]) -> Kronecker:
    """Make factors ready for `ttmc_tiles`."""
    ready = [np.require(factor, requirements=("C", "A", "W")) for factor in factors]
    last = ready[-1]
    num_columns = last.shape[1]
    least_lanes = 1 << (num_columns - 1).bit_length()  # that hold all columns
    num_lanes = min(_VECTOR_NBYTES // last.itemsize, least_lanes)
    padding = -num_columns % num_lanes
    if padding:
        ready[-1] = np.pad(last, [(0, 0), (0, padding)])
    return Kronecker(
        fields=fields,
        factors=tuple(ready),
        ranks=tuple(np.uint64(factor.shape[1]) for factor in ready),
        num_columns=np.uint64(num_columns),
        lanes=(0,) * num_lanes,
    )


@intrinsic
def _point_at_rows(typing_context: Any, factors: Any, indices: Any) -> Any:
    """Point at the row of each factor that a nonzero needs, without counting references."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        arrays = cgutils.unpack_tuple(builder, args[0])
        rows = cgutils.unpack_tuple(builder, args[1])
        pointers = [
            point_at(context, builder, factors.dtype, array, row)
            for array, row in zip(arrays, rows, strict=True)
        ]
        return context.make_tuple(builder, signature.return_type, pointers)

    pointer_type = types.CPointer(factors.dtype.dtype)
    return types.UniTuple(pointer_type, factors.count)(factors, indices), generate


@subroutine
def _multiply_out(prefixes: Array, value: Any, rows: Any, ranks: Any) -> None:
    """Fill `prefixes` with ``value`` times the Kronecker product of all rows but the last.

    In place, from the end: each product is stored at or after the place of the one it extends.
    """
    prefixes[0] = value
    size = np.uint64(1)
    for w in range(len(rows) - 1):
        row = rows[w]
        rank = ranks[w]
        for i in range(size):
            p = size - np.uint64(1) - i
            prefix = prefixes[p]
            for j in range(rank):
                k = rank - np.uint64(1) - j
                prefixes[p * rank + k] = prefix * row[k]
        size *= rank


@subroutine
def _add_outer_product(total: Array, prefixes: Array, row: Any, width: Any, lanes: Any) -> None:
    """Add the outer product of `prefixes` and a row of `width` columns to `total`."""
    step = np.uint64(len(lanes))
    target = point_at_row(total, np.uint64(0))
    for p in range(np.uint64(prefixes.shape[0])):
        for column in range(np.uint64(0), width, step):
            start = advance(target, p * width + column)
            add_multiple(start, prefixes[p], advance(row, column), lanes)


@subroutine
def _store_total(total: Array, width: Any, num_columns: Any, target: Array, row: Any) -> None:
    """Write `total` without padding to a row of `target`, and clear `total`.

    `total` is one row of blocks of `width` columns, a block per prefix; the first `num_columns` of
    a block are data, the others padding.
    """
    for p in range(np.uint64(total.shape[1]) // width):
        for column in range(width):
            if column < num_columns:
                target[row, p * num_columns + column] = total[0, p * width + column]
            total[0, p * width + column] = 0


@allocating_kernel
def ttmc_tiles(
    first_tile: int,
    last_tile: int,
    tiles: Tiles,
    storage: Storage,
    kronecker: Kronecker,
    output: tuple[Fields, Array, Array, Array],
) -> None:
    """Compute some tiles of TTMc: row i goes to row ``slots[i]``, or i if `slots` is empty."""
    records, values, value_slot, pull_ids, _, _, _ = storage
    fields, factors, ranks, num_columns, lanes = kronecker
    out_field, slots, out, partial_rows = output
    width = ranks[len(factors) - 1]
    num_prefixes = np.uint64(out.shape[1]) // num_columns
    prefixes = np.empty(num_prefixes, values.dtype)
    total = np.zeros((1, num_prefixes * width), values.dtype)
    for tile in range(first_tile, last_tile):
        first, last, bucket_start = find_places(tiles, tile, records.shape[0])
        inherits = tiles.carry_rows[tile] >= 0
        row = np.uint64(0)
        has_row = False
        for place in range(first, last):
            position = pull(records, pull_ids, bucket_start, place, last)
            new_row = read_row(records, position, out_field)
            if has_row and new_row != row:
                # The row before is complete.
                if inherits:
                    _store_total(total, width, num_columns, partial_rows, np.uint64(tile))
                else:
                    _store_total(total, width, num_columns, out, place_of(slots, row))
                inherits = False
            row = new_row
            has_row = True
            indices = read_rows(records, position, fields)
            rows = _point_at_rows(factors, indices)
            _multiply_out(prefixes, values[position, value_slot], rows, ranks)
            _add_outer_product(total, prefixes, rows[len(rows) - 1], width, lanes)
        if inherits:
            _store_total(total, width, num_columns, partial_rows, np.uint64(tile))
        else:
            _store_total(total, width, num_columns, out, place_of(slots, row))
