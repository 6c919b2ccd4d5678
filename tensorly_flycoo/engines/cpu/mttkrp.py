"""The loops that compute MTTKRP and remap or copy records, compiled by numba."""

import functools
import itertools
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numpy import ndarray as Array

from .compiling import allocating_kernel, hot_loop, inlined, kernel, subroutine
from .records import (
    CACHE_LINE_NBYTES,
    PREFETCH_DISTANCE,
    Fields,
    Storage,
    Tiles,
    clear_empty_rows,
    copy_record,
    find_places,
    intrinsic,
    place_of,
    point_at,
    position_of,
    prefetch,
    prefetch_record,
    pull,
    read_row,
    read_rows,
    smaller,
)

#: Bytes of a row of results that are computed at once: nearly all are in AVX2's registers.
ROW_NBYTES = 256

#: Nonzeros between prefetching narrow rows and reading them; less than between those of records.
#: On a Xeon 12 to 24 take as long, 6 up to 1.2 times.
_ROWS_AHEAD = 12

#: 256 as float32, whose mantissa ends at 2**-15.
_BITS_OF_256 = 0x43800000


class Operands(NamedTuple):
    """The arrays that MTTKRP reads and writes, and the columns that it computes together.

    A step computes ``len(lanes)`` columns, whose sums are in registers. The last step also computes
    the last ``len(tail_lanes)`` columns of a row, if columns are left over. Some of these may be
    columns of the step, which get the same bits twice.
    """

    fields: Fields  # of the other modes
    # Of the other modes, C-contiguous; or that of a group, a tuple of the factors of its modes.
    factors: tuple[Any, ...]
    out_field: Fields
    out: Array
    partial_rows: Array
    lanes: tuple[int, ...]
    tail_lanes: tuple[int, ...] | None  # None if steps compute all columns
    reads_ahead: bool | None  # True or, lest kernels have code for it, None


# LLVM's loop vectoriser gives up on the short, fixed loops over the columns of a factor (it unrolls
# them to scalar code first), which costs a factor of four. Each intrinsic for rows below is one
# operation on an LLVM vector, ``len(lanes)`` columns of a row. They multiply and add in one step
# (`multiply_add`), so a column's result depends neither on the lanes nor on the machine.


def make_vector_type(context: Any, dtype: Any, lanes: Any) -> Any:
    """Return the LLVM type of a vector of ``len(lanes)`` numbers."""
    return ir.VectorType(context.get_data_type(dtype), lanes.count)


def vector_pointer(
    context: Any, builder: Any, array_type: Any, array: Any, row: Any, column: Any, lanes: Any
) -> Any:
    """Point at ``array[row, column : column + lanes]`` of a C-contiguous matrix."""
    pointer = point_at(context, builder, array_type, array, row, column)
    return builder.bitcast(pointer, make_vector_type(context, array_type.dtype, lanes).as_pointer())


@intrinsic
def point_at_row(typing_context: Any, matrix: Any, row: Any) -> Any:
    """Point at the first column of a row of a C-contiguous matrix."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return point_at(context, builder, matrix, *args)

    return types.CPointer(matrix.dtype)(matrix, row), generate


@intrinsic
def advance(typing_context: Any, pointer: Any, offset: Any) -> Any:
    """Point `offset` items further."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.gep(args[0], [args[1]])

    return pointer(pointer, offset), generate


def splat(builder: Any, scalar: Any, vector_type: Any) -> Any:
    """Fill all lanes with one scalar."""
    undefined = ir.Constant(vector_type, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), vector_type.count), None)
    return builder.shuffle_vector(first, undefined, zeros)


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Return ``a * b + c`` of vectors, rounded once; slow on a machine without that instruction."""
    kind = ir.FunctionType(c.type, [c.type] * 3)
    name = f"llvm.fma.v{c.type.count}{c.type.element.intrinsic_name}"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [a, b, c])


def count_lanes(rows: Array, nbytes: int = ROW_NBYTES) -> int:
    """Return the largest power of two of columns that rows have and that take up to `nbytes`."""
    return _count_lanes(rows.shape[1], rows.dtype.itemsize, nbytes)


def _count_lanes(rank: int, itemsize: int, nbytes: int = ROW_NBYTES) -> int:
    """Return the lanes of `count_lanes` for so many columns."""
    return min(nbytes // itemsize, 1 << (max(rank, 1).bit_length() - 1))


@functools.cache
def choose_lanes(rank: int, itemsize: int) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Return the lanes of a step and of the columns that are left over, as `Operands` has them.

    >>> [len(lanes) for lanes in choose_lanes(35, itemsize=8)]
    [32, 4]
    >>> choose_lanes(2, itemsize=8)
    ((0, 0), None)
    """
    num_lanes = _count_lanes(rank, itemsize)
    num_left = rank % num_lanes
    if num_left == 0:
        return (0,) * num_lanes, None
    return (0,) * num_lanes, (0,) * (1 << (num_left - 1).bit_length())


@intrinsic
def new_row_of_zeros(typing_context: Any, zero: Any, lanes: Any) -> Any:
    """Make a row of zeros of the type of `zero`; it lives in registers.

    Without lanes it is one that nobody uses.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector_type = ir.VectorType(context.get_data_type(zero), 1)
        if not isinstance(lanes, types.NoneType):
            vector_type = make_vector_type(context, zero, lanes)
        row = cgutils.alloca_once(builder, vector_type)
        builder.store(ir.Constant(vector_type, None), row)
        return builder.bitcast(row, vector_type.element.as_pointer())

    return types.CPointer(zero)(zero, lanes), generate


@intrinsic
def fill_row(typing_context: Any, row: Any, number: Any, lanes: Any) -> Any:
    """Set all columns of `row` to a number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector_type = make_vector_type(context, row.dtype, lanes)
        pointer = builder.bitcast(args[0], vector_type.as_pointer())
        numbers = splat(builder, args[1], vector_type)
        builder.store(numbers, pointer, align=row.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(row, row.dtype, lanes), generate


def widen(builder: Any, numbers: Any, vector_type: Any) -> Any:
    """Return numbers of narrow rows as a wider vector, exactly; others as they are."""
    if numbers.type == vector_type:
        return numbers
    if not isinstance(numbers.type.element, ir.IntType):
        return builder.fpext(numbers, vector_type)
    # u in the mantissa of 2**8 makes 256 + u / 2**15; u stands for (u - 2**15) / 2**15.
    word_type = ir.VectorType(ir.IntType(32), vector_type.count)
    exponents = ir.Constant(word_type, [_BITS_OF_256] * vector_type.count)
    words = builder.or_(builder.zext(numbers, word_type), exponents)
    offsets = ir.Constant(vector_type, [257.0] * vector_type.count)
    return builder.fsub(builder.bitcast(words, vector_type), offsets)


def _list_places(factors: Any) -> tuple[list[list[Any]], Any]:
    """Return the places of arrays in the type of `Operands.factors`, by group, and their type.

    A factor that is an array is a group of one.
    """
    member_type = factors.dtype
    if isinstance(member_type, types.UniTuple):
        groups = [[(w, n) for n in range(member_type.count)] for w in range(factors.count)]
        return groups, member_type.dtype
    return [[w] for w in range(factors.count)], member_type


@intrinsic
def add_product(
    typing_context: Any, row: Any, value: Any, factors: Any, indices: Any, column: Any, lanes: Any
) -> Any:
    """Add ``value * prod_w factors[w][indices[w], column : column + lanes]`` to `row`.

    This is the elementwise computation of the paper (its Algorithm 2) for `lanes` columns. Factors
    that are narrower than the row are widened as they are read. Those of a group are multiplied as
    by `combine_rows`, and have an index each.
    """
    groups, array_type = _list_places(factors)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        row_, value_, factors_, indices_, column_, _ = args
        vector_type = make_vector_type(context, row.dtype, lanes)
        indices_left = iter(cgutils.unpack_tuple(builder, indices_))
        num_columns = None
        product = splat(builder, value_, vector_type)
        vector = ir.Constant(vector_type, [1.0] * lanes.count)
        for group in groups:
            product = builder.fmul(product, vector)
            rows = []
            for place in group:
                factor = builder.extract_value(factors_, place)
                array = context.make_array(array_type)(context, builder, factor)
                if num_columns is None:  # all factors have the same, which takes one register
                    num_columns = builder.extract_value(array.shape, 1)
                offset = builder.add(builder.mul(next(indices_left), num_columns), column_)
                stored_type = make_vector_type(context, array_type.dtype, lanes)
                start = builder.gep(array.data, [offset])
                pointer = builder.bitcast(start, stored_type.as_pointer())
                stored = builder.load(pointer, align=array_type.dtype.bitwidth // 8)
                rows.append(widen(builder, stored, vector_type))
            vector = rows.pop()
            while rows:
                vector = builder.fmul(rows.pop(), vector)
        pointer = builder.bitcast(row_, vector_type.as_pointer())
        builder.store(multiply_add(builder, product, vector, builder.load(pointer)), pointer)
        return context.get_dummy_value()

    return types.void(row, value, factors, indices, column, lanes), generate


@intrinsic
def prefetch_rows(typing_context: Any, factors: Any, indices: Any, column: Any, lanes: Any) -> Any:
    """Prefetch what `add_product` will read."""
    groups, array_type = _list_places(factors)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        factors_, indices_, column_, _ = args
        for w, place in enumerate(itertools.chain(*groups)):
            row_nbytes = lanes.count * array_type.dtype.bitwidth // 8
            factor = builder.extract_value(factors_, place)
            index = builder.extract_value(indices_, w)
            pointer = point_at(context, builder, array_type, factor, index, column_)
            prefetch(builder, pointer, -(-row_nbytes // CACHE_LINE_NBYTES))
        return context.get_dummy_value()

    return types.void(factors, indices, column, lanes), generate


@intrinsic
def store_row(
    typing_context: Any, row: Any, matrix: Any, index: Any, column: Any, lanes: Any
) -> Any:
    """Write `row` to ``matrix[index, column : column + lanes]``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        row_, matrix_, index_, column_, _ = args
        vector_type = make_vector_type(context, row.dtype, lanes)
        align = row.dtype.bitwidth // 8
        vector = builder.load(builder.bitcast(row_, vector_type.as_pointer()), align=align)
        pointer = vector_pointer(context, builder, matrix, matrix_, index_, column_, lanes)
        builder.store(vector, pointer, align=align)
        return context.get_dummy_value()

    return types.void(row, matrix, index, column, lanes), generate


@intrinsic
def add_multiple(typing_context: Any, row: Any, factor: Any, added_row: Any, lanes: Any) -> Any:
    """Add ``factor * added_row`` to `row`; both rows are pointers."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        row_, factor_, added_row_, _ = args
        vector_type = make_vector_type(context, row.dtype, lanes)
        align = row.dtype.bitwidth // 8
        pointer = builder.bitcast(row_, vector_type.as_pointer())
        added_pointer = builder.bitcast(added_row_, vector_type.as_pointer())
        total = builder.load(pointer, align=align)
        added = builder.load(added_pointer, align=align)
        total = multiply_add(builder, splat(builder, factor_, vector_type), added, total)
        builder.store(total, pointer, align=align)
        return context.get_dummy_value()

    return types.void(row, factor, added_row, lanes), generate


@subroutine
def move_record(
    records: Array, position: Any, spare: Any, remap_ids: Any, place: Any, record_words: Any
) -> None:
    """Copy a record to its remap id in `spare`; do nothing if `spare` is None."""
    if spare is not None:
        copy_record(records, position, spare, np.uint64(remap_ids[place]), record_words)


@inlined
def begin_sums(
    sums: Any, goes_on: bool, one: Any, target: Array, row: Any, column: Any, lanes: Any
) -> None:
    """Begin the sums of a row anew, or go on with those that `target` holds."""
    fill_row(sums, 0.0, lanes)
    if goes_on:
        fill_row(sums, -0.0, lanes)  # unlike 0.0, -0.0 + x is x for all x
        add_multiple(sums, one, advance(point_at_row(target, row), column), lanes)


# The columns that are left over; nothing is compiled where there are none.


@subroutine
def begin_tail(
    tail: Any, has_tail: bool, goes_on: bool, one: Any, target: Array, row: Any, lanes: Any
) -> None:
    """Begin the sums of the columns that are left over, as `begin_sums` does."""
    if lanes is not None and has_tail:
        column = np.uint64(target.shape[1] - len(lanes))
        begin_sums(tail, goes_on, one, target, row, column, lanes)


@subroutine
def add_to_tail(
    tail: Any, has_tail: bool, value: Any, factors: Any, indices: Any, rank: int, lanes: Any
) -> None:
    """Add the product of a nonzero to the sums of the columns that are left over."""
    if lanes is not None and has_tail:
        column = np.uint64(rank - len(lanes))
        add_product(tail, value, factors, indices, column, lanes)


@subroutine
def store_tail(tail: Any, has_tail: bool, target: Array, row: Any, lanes: Any) -> None:
    """Write the sums of the columns that are left over to a row of `target`."""
    if lanes is not None and has_tail:
        store_row(tail, target, row, np.uint64(target.shape[1] - len(lanes)), lanes)


@subroutine
def _prefetch_tail(has_tail: bool, factors: Any, indices: Any, rank: int, lanes: Any) -> None:
    """Prefetch what `add_to_tail` will read."""
    if lanes is not None and has_tail:
        prefetch_rows(factors, indices, np.uint64(rank - len(lanes)), lanes)


@subroutine
def _read_ahead(
    place: Any,
    last: Any,
    bucket_start: Any,
    column: Any,
    has_tail: bool,
    storage: Storage,
    operands: Operands,
    reads_ahead: Any,
) -> None:
    """Prefetch what a step will read of the factors for a later place, if `reads_ahead`."""
    if reads_ahead is not None:
        later = smaller(place + np.uint64(_ROWS_AHEAD), last - np.uint64(1))
        position = position_of(storage.pull_ids, bucket_start, later)
        indices = read_rows(storage.records, position, operands.fields)
        prefetch_rows(operands.factors, indices, column, operands.lanes)
        rank = operands.out.shape[1]
        _prefetch_tail(has_tail, operands.factors, indices, rank, operands.tail_lanes)


@hot_loop
def _compute_tile(
    tile: Any,
    first: int,
    last: int,
    bucket_start: Any,
    inherits: Any,
    moves: Any,
    column: Any,
    has_tail: bool,
    storage: Storage,
    operands: Operands,
) -> None:
    """Compute ``len(lanes)`` columns, from `column` on, of the rows of places `first` to `last`.

    If `has_tail`, the columns that are left over are computed too. The records are also remapped if
    `moves` is true and there is a `spare`.
    """
    # Unpacked here, since reading fields inside the loop would count references to arrays.
    records, values, value_slot, pull_ids, spare, remap_ids, record_words = storage
    fields, factors, out_field, out, partial_rows, lanes, tail_lanes, reads_ahead = operands
    one = values.dtype.type(1)
    row = np.uint64(0)
    has_row = False
    total = new_row_of_zeros(one, lanes)
    tail = new_row_of_zeros(one, tail_lanes)
    for place in range(first, last):
        position = pull(records, pull_ids, bucket_start, place, last)
        if moves:
            move_record(records, position, spare, remap_ids, place, record_words)
        new_row = read_row(records, position, out_field)
        indices = read_rows(records, position, fields)
        if not has_row or new_row != row:
            if has_row:  # the row before is complete
                if inherits:
                    store_row(total, partial_rows, tile, column, lanes)
                    store_tail(tail, has_tail, partial_rows, tile, tail_lanes)
                else:
                    store_row(total, out, row, column, lanes)
                    store_tail(tail, has_tail, out, row, tail_lanes)
                inherits = False
            row = new_row
            has_row = True
            fill_row(total, 0.0, lanes)
            goes_on = False
            begin_tail(tail, has_tail, goes_on, one, out, row, tail_lanes)
        value = values[position, value_slot]
        add_product(total, value, factors, indices, column, lanes)
        add_to_tail(tail, has_tail, value, factors, indices, out.shape[1], tail_lanes)
        _read_ahead(place, last, bucket_start, column, has_tail, storage, operands, reads_ahead)
    if inherits:
        store_row(total, partial_rows, tile, column, lanes)
        store_tail(tail, has_tail, partial_rows, tile, tail_lanes)
    else:
        store_row(total, out, row, column, lanes)
        store_tail(tail, has_tail, out, row, tail_lanes)


@kernel
def mttkrp_tiles(
    first_tile: int, last_tile: int, tiles: Tiles, storage: Storage, operands: Operands
) -> None:
    """Compute some tiles of MTTKRP, and remap their records if there is a `spare`."""
    carry_rows = tiles.carry_rows
    out = operands.out
    num_lanes = len(operands.lanes)
    num_steps = out.shape[1] // num_lanes
    for tile in range(first_tile, last_tile):
        first, last, bucket_start = find_places(tiles, tile, storage.records.shape[0])
        for step in range(num_steps):
            _compute_tile(
                np.uint64(tile),
                first,
                last,
                bucket_start,
                carry_rows[tile] >= 0,
                step == 0,
                np.uint64(step * num_lanes),
                step == num_steps - 1,
                storage,
                operands,
            )
        clear_empty_rows(tiles, tile, out)


@kernel
def add_partial_rows(carry_rows: Array, partial_rows: Array, out: Array) -> None:
    """Add the tiles' sums for the rows that they inherited, in the order of the tiles."""
    for tile in range(carry_rows.shape[0]):
        if carry_rows[tile] >= 0:
            for r in range(out.shape[1]):
                out[carry_rows[tile], r] += partial_rows[tile, r]


@kernel
def remap_tiles(first_tile: int, last_tile: int, tiles: Tiles, storage: Storage) -> None:
    """Remap some tiles without computing, when modes are visited out of turn."""
    records, _, _, pull_ids, spare, remap_ids, record_words = storage
    for tile in range(first_tile, last_tile):
        first, last, bucket_start = find_places(tiles, tile, records.shape[0])
        for place in range(first, last):
            position = bucket_start + np.uint64(pull_ids[place])
            move_record(records, position, spare, remap_ids, place, record_words)


@subroutine
def _prefetch_place(records: Array, places: Array, i: Any, end: Any) -> None:
    """Prefetch the record a few items after item i of the order `places`."""
    ahead = smaller(i + np.uint64(PREFETCH_DISTANCE), end - np.uint64(1))
    prefetch_record(records, place_of(places, ahead))


@kernel
def gather_records(
    first: int, last: int, records: Array, places: Array, target: Array, record_words: Any
) -> None:
    """Copy records in the order of `places`."""
    end = np.uint64(last)
    for i in range(np.uint64(first), end):
        _prefetch_place(records, places, i, end)
        copy_record(records, np.uint64(places[i]), target, i, record_words)


@kernel
def split_columns(
    first: int,
    last: int,
    places: Array,
    storage: Storage,
    field: Fields,
    column_bits: Any,
    columns: tuple[Array, ...],
) -> None:
    """Split records into three arrays: whether one begins a column, its row, and its value.

    `column_bits` masks the bits of all other modes: a column begins where one of them differs from
    that of the record before.
    """
    records = storage.records
    record_values = storage.values
    value_slot = storage.value_slot
    is_new, rows, values = columns
    end = np.uint64(last)
    for i in range(np.uint64(first), end):
        _prefetch_place(records, places, i, end)
        place = place_of(places, i)
        before = place_of(places, i - np.uint64(i > 0))  # the first is compared with itself
        difference = np.uint64(0)
        for w in range(len(column_bits)):
            difference |= (records[place, w] ^ records[before, w]) & column_bits[w]
        is_new[i] = i == 0 or difference != 0
        rows[i] = read_row(records, place, field)
        values[i] = record_values[place, value_slot]


@allocating_kernel
def add_gram(
    first_band: int,
    last_band: int,
    edges: Array,
    starts: Array,
    ids: Array,
    values: Array,
    gram: Array,
    diagonal: Array,
) -> None:
    """Add ``values[a] @ values[b]`` to ``gram[id_a, id_b]`` for the pairs of each group.

    The ids of a group ascend, and id_a > id_b. A band is the rows ``edges[band]`` to
    ``edges[band + 1]``. The first band also adds the squares to `diagonal`, which fits a cache.
    """
    if first_band == 0:
        for a in range(np.uint64(ids.shape[0])):
            for k in range(np.uint64(values.shape[1])):
                diagonal[np.uint64(ids[a])] += values[a, k] * values[a, k]
    first_row = edges[first_band]
    last_row = edges[last_band]
    sums = np.empty(gram.shape[0])
    columns = np.empty((values.shape[1], gram.shape[0]))  # a group's values, transposed
    for group in range(np.uint64(starts.shape[0] - 1)):
        start = np.uint64(starts[group])
        end = np.uint64(starts[group + np.uint64(1)])
        for a in range(start, end):
            for k in range(np.uint64(values.shape[1])):
                columns[k, a - start] = values[a, k]
        for a in range(start + np.uint64(1), end):
            row = np.uint64(ids[a])
            if first_row <= row < last_row:
                # First into memory that is contiguous, where the compiler uses vectors.
                products = sums[: a - start]
                products[:] = 0
                for k in range(np.uint64(values.shape[1])):
                    factor = values[a, k]
                    column = columns[k]
                    for b in range(np.uint64(products.shape[0])):
                        products[b] += factor * column[b]
                for b in range(np.uint64(products.shape[0])):
                    gram[row, np.uint64(ids[start + b])] += products[b]


@kernel
def hash_words(first: int, last: int, words: Array, block_size: int, hashes: Array) -> None:
    """Hash each block of unsigned words, and their places, to 64 bits.

    Each word is mixed with its place (as SplitMix64 mixes its state) before they are added up: a
    mere weighted sum would miss changes such as two flipped signs, which cancel modulo 2**64.
    """
    for block in range(first, last):
        start = block * block_size
        total = np.uint64(0)
        place = np.uint64(start) * np.uint64(0x9E3779B97F4A7C15)
        for i in range(start, smaller(start + block_size, words.shape[0])):
            place += np.uint64(0x9E3779B97F4A7C15)
            mixed = np.uint64(words[i]) ^ place
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            total += mixed ^ (mixed >> np.uint64(31))
        hashes[block] = total
