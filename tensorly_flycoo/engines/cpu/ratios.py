"""The loop of the CPU engine's MTTKRP of ratios, compiled by numba.

It divides each value by the CP model's value there, which is the product of the rows that MTTKRP
reads with the row that it writes. So both take one pass over the nonzeros.
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import types
from numba.np.numpy_support import as_dtype
from numpy import ndarray as Array

from .compiling import allocating_kernel, hot_loop, subroutine
from .mttkrp import (
    Operands,
    add_multiple,
    advance,
    fill_row,
    make_vector_type,
    move_record,
    multiply_add,
    new_row_of_zeros,
    point_at_row,
    splat,
    store_row,
    vector_pointer,
)
from .records import (
    Storage,
    Tiles,
    clear_empty_rows,
    find_places,
    intrinsic,
    overload,
    pull,
    read_row,
    read_rows,
    smaller,
)


class Model(NamedTuple):
    """The arrays that ratios need besides the other modes' factors."""

    factor: Array  # (I_mode, R), C-contiguous
    smallest: Any  # smaller values of the model divide as this one; None multiplies by all
    log_sums: Any  # an array that receives each tile's sum of value * log(model), or None


#: Sums that grow side by side: together they wait for one addition, not for each.
_NUM_SUMS = 8


@subroutine
def sum_logs(terms: Array, count: int) -> float:
    """Add up ``terms[0, i] * log(terms[1, i])`` in a fixed order; write to `terms`."""
    # Not in the loop over nonzeros, where a call saves all registers: 25 to 40 ns in place of 7.
    for i in range(count):
        terms[0, i] *= np.log(terms[1, i])
    for i in range(_NUM_SUMS, count):
        terms[0, i % _NUM_SUMS] += terms[0, i]
    total = 0.0
    for i in range(smaller(count, _NUM_SUMS)):
        total += terms[0, i]
    return total


# A row of results and a row of products lie one step after the other, a step in ``len(lanes)``
# numbers: in registers if there is one step, else in two rows of `scratch`. If the rank is not a
# multiple of the lanes, the last step overlaps the one before.


@subroutine
def _count_steps(scratch: Any, lanes: Any) -> int:
    """Count the steps of a row."""
    return 1 if scratch is None else scratch.shape[1] // len(lanes)


@subroutine
def _find_column(scratch: Any, start: int, last: int) -> Any:
    """Return the first column of the step that begins at place `start` of a row."""
    return np.int64(0) if scratch is None else np.int64(smaller(start, last))


@intrinsic
def _multiply_rows(
    typing_context: Any,
    row: Any,
    terms: Any,
    factors: Any,
    indices: Any,
    own: Any,
    own_row: Any,
    column: Any,
    overlap: Any,
    lanes: Any,
) -> Any:
    """Set `row` to the product of the factors' rows; add its product with the own row to `terms`.

    The first `overlap` lanes are left out of `terms`.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        row_, terms_, factors_, indices_, own_, own_row_, column_, overlap_, _ = args
        vector_type = make_vector_type(context, row.dtype, lanes)
        align = row.dtype.bitwidth // 8

        def load(array_type: Any, array: Any, index: Any) -> Any:
            pointer = vector_pointer(context, builder, array_type, array, index, column_, lanes)
            return builder.load(pointer, align=align)

        product = ir.Constant(vector_type, [1.0] * lanes.count)
        for w in range(factors.count):
            factor = builder.extract_value(factors_, w)
            index = builder.extract_value(indices_, w)
            vector = load(factors.dtype, factor, index)
            product = vector if w == 0 else builder.fmul(product, vector)
        builder.store(product, builder.bitcast(row_, vector_type.as_pointer()), align=align)
        pointer = builder.bitcast(terms_, vector_type.as_pointer())
        before = builder.load(pointer)
        after = multiply_add(builder, product, load(own, own_, own_row_), before)
        builder.store(after, pointer)
        # In the last step, which may overlap the one before: keep the terms of columns seen twice.
        with builder.if_then(builder.icmp_unsigned("!=", overlap_, overlap_.type(0)), likely=False):
            numbers = ir.Constant(ir.VectorType(overlap_.type, lanes.count), [*range(lanes.count)])
            is_new = builder.icmp_unsigned(">=", numbers, splat(builder, overlap_, numbers.type))
            builder.store(builder.select(is_new, after, before), pointer)
        return context.get_dummy_value()

    arguments = (row, terms, factors, indices, own, own_row, column, overlap, lanes)
    return types.void(*arguments), generate


@intrinsic
def _sum_row(typing_context: Any, row: Any, lanes: Any) -> Any:
    """Add up ``len(lanes)`` numbers, a power of two of them, by halving their number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector_type = make_vector_type(context, row.dtype, lanes)
        index_type = ir.IntType(32)
        vector = builder.load(builder.bitcast(args[0], vector_type.as_pointer()))
        count = lanes.count
        while count > 1:
            count //= 2
            halves = [
                builder.shuffle_vector(
                    vector,
                    vector,
                    ir.Constant(ir.VectorType(index_type, count), [*range(first, first + count)]),
                )
                for first in (0, count)
            ]
            vector = builder.fadd(*halves)
        return builder.extract_element(vector, ir.Constant(index_type, 0))

    return row.dtype(row, lanes), generate


# Inlined by numba: passed to a function, the address of `total` would keep it out of registers.
@njit(inline="always")
def _store_total(
    total: Any, scratch: Any, tile: Any, row: Any, inherits: Any, operands: Any
) -> None:
    """Write the sums of a row to the output, or to the tile's partial row if it inherits it."""
    _, _, _, out, partial_rows, lanes, _, _ = operands
    for step in range(_count_steps(scratch, lanes)):
        start = step * len(lanes)
        column = np.uint64(_find_column(scratch, start, out.shape[1] - len(lanes)))
        part = advance(total, start)
        if inherits:
            store_row(part, partial_rows, tile, column, lanes)
        else:
            store_row(part, out, row, column, lanes)


@subroutine
def _combine(value: Any, modelled: Any, smallest: Any) -> Any:
    """Divide a value by the model's, or multiply by it if `smallest` is None."""
    if smallest is None:
        return value * modelled
    return value / max(modelled, smallest)


@hot_loop
def _compute_tile(
    tile: Any,
    first: int,
    last: int,
    bucket_start: Any,
    inherits: Any,
    storage: Storage,
    operands: Operands,
    model: Model,
    scratch: Any,
    terms: Any,
) -> None:
    """Compute the rows of places `first` to `last`, and remap their records.

    For each nonzero: first the products of the other modes' rows, and with the row of `factor` the
    model's value; then the ratio, which multiplies the products and is added to the row's sums.
    """
    records, values, value_slot, pull_ids, spare, remap_ids, record_words = storage
    fields, factors, out_field, out, _, lanes, _, _ = operands
    factor, smallest, log_sums = model
    zero = values.dtype.type(0)
    row = np.uint64(0)
    has_row = False
    # The sums of a row of results, and a nonzero's products: in registers, or a step after the
    # other in memory.
    total = new_row_of_zeros(zero, lanes)
    products = new_row_of_zeros(zero, lanes)
    if scratch is not None:
        total = point_at_row(scratch, 0)
        products = point_at_row(scratch, 1)
    sums = new_row_of_zeros(zero, lanes)
    num_steps = _count_steps(scratch, lanes)
    last_column = out.shape[1] - len(lanes)
    for step in range(num_steps):
        fill_row(advance(total, step * len(lanes)), 0.0, lanes)
    for place in range(first, last):
        position = pull(records, pull_ids, bucket_start, place, last)
        move_record(records, position, spare, remap_ids, place, record_words)
        new_row = read_row(records, position, out_field)
        if has_row and new_row != row:
            # The row before is complete.
            _store_total(total, scratch, tile, row, inherits, operands)
            for step in range(num_steps):
                fill_row(advance(total, step * len(lanes)), 0.0, lanes)
            inherits = False
        row = new_row
        has_row = True
        indices = read_rows(records, position, fields)
        value = values[position, value_slot]
        # The products, and the model's value: the sum of their products with the row of `factor`.
        fill_row(sums, -0.0, lanes)  # unlike 0.0, -0.0 + x is x for all x: compilers drop the sum
        for step in range(num_steps):
            start = step * len(lanes)
            first_column = _find_column(scratch, start, last_column)
            _multiply_rows(
                advance(products, start),
                sums,
                factors,
                indices,
                factor,
                row,
                np.uint64(first_column),
                np.uint32(start - first_column),
                lanes,
            )
        modelled = _sum_row(sums, lanes)
        if terms is not None:
            terms[0, place - first] = value
            terms[1, place - first] = modelled
        # Add the products times the ratio to the sums of the row.
        ratio = _combine(value, modelled, smallest)
        for step in range(num_steps):
            part = advance(total, step * len(lanes))
            add_multiple(part, ratio, advance(products, step * len(lanes)), lanes)
    _store_total(total, scratch, tile, row, inherits, operands)
    if terms is not None:
        log_sums[tile] = sum_logs(terms, np.int64(last - first))


def _make_rows(wanted: Any, size: Any, zero: Any) -> Any:
    """Return two rows, not yet written to, or None if `wanted` is None."""


@overload(_make_rows, strict=False)
def _overload_make_rows(wanted: Any, size: Any, zero: Any) -> Any:
    if isinstance(wanted, types.NoneType):
        return lambda wanted, size, zero: None
    dtype = as_dtype(zero)
    return lambda wanted, size, zero: np.empty((2, size), dtype)


@allocating_kernel
def ratio_tiles(
    first_tile: int,
    last_tile: int,
    tiles: Tiles,
    storage: Storage,
    operands: Operands,
    model: Model,
    has_steps: Any,
) -> None:
    """Compute some tiles of the MTTKRP of ratios, and remap their records if there is a `spare`.

    `has_steps` is None if a row is one step.
    """
    out = operands.out
    num_lanes = len(operands.lanes)
    num_steps = (out.shape[1] + num_lanes - 1) // num_lanes
    length = num_steps * num_lanes
    scratch = _make_rows(has_steps, length, storage.values.dtype.type(0))
    # For the values and the model's values of a tile.
    terms = _make_rows(model.log_sums, tiles.size, 0.0)
    for tile in range(first_tile, last_tile):
        places = find_places(tiles, tile, storage.records.shape[0])
        inherits = tiles.carry_rows[tile] >= 0
        _compute_tile(np.uint64(tile), *places, inherits, storage, operands, model, scratch, terms)
        clear_empty_rows(tiles, tile, out)
