"""The loops of the CPU engine, compiled by numba; `cpu` is their only caller.

What is here: rows of factors in vector registers, MTTKRP of one tile with or without remapping,
the pass that only remaps, and what the norm's and svd's callers need. Compiled functions call none
of another file, because numba's cache on disk knows a function by its own file: intrinsics in
another file could change and their old machine code would go on being used.

Sizes that a compiler must know (ndim, words of a record, columns in registers) are lengths of
tuples and so part of a kernel's type; nothing is compiled for a rank or a shape.
"""

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic, overload

#: Nonzeros between asking for a record and using it.
_PREFETCH_DISTANCE = 16

# LLVM's loop vectoriser gives up on the short, fixed loops over the columns of a factor (it unrolls
# them to scalar code first), which costs a factor of four. The four intrinsics below say the same
# as one operation on an LLVM vector, `lanes` columns of a row at once. Multiplication and addition
# stay apart (no fused multiply-add), so a column's result depends neither on the lanes nor on the
# instructions that a machine has.


def _vector_type(context, dtype, lanes):
    return ir.VectorType(context.get_data_type(dtype), lanes.count)


def _vector_pointer(context, builder, array_type, array, row, column, lanes):
    """Point at ``array[row, column : column + lanes]`` of a C-contiguous matrix."""
    matrix = context.make_array(array_type)(context, builder, array)
    num_columns = builder.extract_value(matrix.shape, 1)
    offset = builder.add(builder.mul(row, num_columns), column)
    pointer = builder.gep(matrix.data, [offset])
    return builder.bitcast(pointer, _vector_type(context, array_type.dtype, lanes).as_pointer())


def _splat(builder, scalar, vector_type):
    """Fill all lanes with one scalar."""
    undefined = ir.Constant(vector_type, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), vector_type.count), None)
    return builder.shuffle_vector(first, undefined, zeros)


@intrinsic
def _new_row(typing_context, zero, lanes):
    """Make a row of zeros of the type of `zero`; it lives in registers."""

    def generate(context, builder, signature, args):
        vector_type = _vector_type(context, zero, lanes)
        row = cgutils.alloca_once(builder, vector_type)
        builder.store(ir.Constant(vector_type, None), row)
        return builder.bitcast(row, vector_type.element.as_pointer())

    return types.CPointer(zero)(zero, lanes), generate


@intrinsic
def _clear_row(typing_context, row, lanes):
    """Set all columns of `row` to zero."""

    def generate(context, builder, signature, args):
        vector_type = _vector_type(context, row.dtype, lanes)
        pointer = builder.bitcast(args[0], vector_type.as_pointer())
        builder.store(ir.Constant(vector_type, None), pointer)
        return context.get_dummy_value()

    return types.void(row, lanes), generate


@intrinsic
def _add_product(typing_context, row, value, factors, indices, column, lanes):
    """Add ``value * prod_w factors[w][indices[w], column : column + lanes]`` to `row`.

    This is the elementwise computation of the paper (its Algorithm 2) for `lanes` columns.
    """

    def generate(context, builder, signature, args):
        row_, value_, factors_, indices_, column_, _ = args
        vector_type = _vector_type(context, row.dtype, lanes)
        product = _splat(builder, value_, vector_type)
        for w in range(factors.count):
            factor = builder.extract_value(factors_, w)
            index = builder.extract_value(indices_, w)
            pointer = _vector_pointer(
                context, builder, factors.dtype, factor, index, column_, lanes
            )
            vector = builder.load(pointer, align=row.dtype.bitwidth // 8)
            product = builder.fmul(product, vector)
        pointer = builder.bitcast(row_, vector_type.as_pointer())
        builder.store(builder.fadd(builder.load(pointer), product), pointer)
        return context.get_dummy_value()

    return types.void(row, value, factors, indices, column, lanes), generate


@intrinsic
def _store_row(typing_context, row, matrix, index, column, lanes):
    """Write `row` to ``matrix[index, column : column + lanes]``."""

    def generate(context, builder, signature, args):
        row_, matrix_, index_, column_, _ = args
        vector_type = _vector_type(context, row.dtype, lanes)
        vector = builder.load(builder.bitcast(row_, vector_type.as_pointer()))
        pointer = _vector_pointer(context, builder, matrix, matrix_, index_, column_, lanes)
        builder.store(vector, pointer, align=row.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(row, matrix, index, column, lanes), generate


@intrinsic
def _prefetch_record(typing_context, records, position):
    """Ask for the cache line of a record ahead of its use."""

    def generate(context, builder, signature, args):
        matrix = context.make_array(records)(context, builder, args[0])
        num_words = builder.extract_value(matrix.shape, 1)
        pointer = builder.gep(matrix.data, [builder.mul(args[1], num_words)])
        pointer = builder.bitcast(pointer, ir.IntType(8).as_pointer())
        int32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, int32, int32, int32])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(prefetch, [pointer, int32(0), int32(3), int32(1)])
        return context.get_dummy_value()

    return types.void(records, position), generate


def _read_rows(records, position, words, shifts, masks):
    """Unpack coordinates of one record into a tuple; a stand-in for the overload below."""


@overload(_read_rows, jit_options={"error_model": "numpy"})
def _overload_read_rows(records, position, words, shifts, masks):
    if len(words) == 0:
        return lambda records, position, words, shifts, masks: ()

    def read_rows(records, position, words, shifts, masks):
        row = (records[position, words[0]] >> shifts[0]) & masks[0]
        others = _read_rows(records, position, words[1:], shifts[1:], masks[1:])
        return (row,) + others  # noqa: RUF005 (numba does not unpack into a tuple)

    return read_rows


@njit(cache=True, error_model="numpy")
def _copy_record(source, position, target, target_position, record_words):
    """Copy one record; the length of the tuple `record_words` is the words it has."""
    for word in range(len(record_words)):
        target[target_position, np.uint64(word)] = source[position, np.uint64(word)]


@njit(cache=True, inline="never", error_model="numpy")
def _compute_tile(
    tile, first, last, bucket_start, inherits, remaps,
    records, values, value_slot, pull_ids, spare, remap_ids, record_words,
    out_field, words, shifts, masks, factors, column, lanes, out, partial_rows,
):  # fmt: skip
    """Add up `lanes` columns of the rows of one tile, places `first` to `last` of the order.

    `pull_ids` is None where places are positions (a sorted copy), `spare` and `remap_ids` are None
    where nothing is ever remapped; neither case is even compiled then.
    """
    row = np.uint64(0)
    has_row = False
    total = _new_row(values.dtype.type(0), lanes)
    out_word, out_shift, out_mask = out_field
    for place in range(first, last):
        if pull_ids is None:
            position = place
        else:
            position = bucket_start + np.uint64(pull_ids[place])
            ahead = min(place + np.uint64(_PREFETCH_DISTANCE), last - np.uint64(1))
            _prefetch_record(records, bucket_start + np.uint64(pull_ids[ahead]))
        if remap_ids is not None:  # noqa: SIM102 (only a bare test on None is decided by numba)
            if remaps:
                _copy_record(records, position, spare, np.uint64(remap_ids[place]), record_words)
        new_row = (records[position, out_word] >> out_shift) & out_mask
        if not has_row or new_row != row:
            if has_row:
                if inherits:
                    _store_row(total, partial_rows, tile, column, lanes)
                else:
                    _store_row(total, out, row, column, lanes)
                inherits = False
            row, has_row = new_row, True
            _clear_row(total, lanes)
        indices = _read_rows(records, position, words, shifts, masks)
        _add_product(total, values[position, value_slot], factors, indices, column, lanes)
    if inherits:
        _store_row(total, partial_rows, tile, column, lanes)
    else:
        _store_row(total, out, row, column, lanes)


@njit(cache=True, nogil=True, error_model="numpy")
def mttkrp_tiles(
    first_tile, last_tile, tile_size, bucket_size, carry_rows, empty_rows,
    records, values, value_slot, pull_ids, spare, remap_ids, record_words,
    out_field, words, shifts, masks, factors, lanes, out, partial_rows,
):  # fmt: skip
    """Compute some tiles of MTTKRP into `out`, remapping to `spare` where `remap_ids` is given."""
    nnz, num_tiles, num_empty = records.shape[0], carry_rows.shape[0], empty_rows.shape[0]
    rank, num_lanes = out.shape[1], len(lanes)
    for tile in range(first_tile, last_tile):
        first = tile * tile_size
        for step in range(0, rank, num_lanes):
            # The last columns overlap those before where the rank is no multiple of the lanes:
            # they are computed twice, to the same bits.
            _compute_tile(
                np.uint64(tile), np.uint64(first), np.uint64(min(first + tile_size, nnz)),
                np.uint64(first // bucket_size * bucket_size), carry_rows[tile] >= 0, step == 0,
                records, values, value_slot, pull_ids, spare, remap_ids, record_words,
                out_field, words, shifts, masks, factors,
                np.uint64(min(step, rank - num_lanes)), lanes, out, partial_rows,
            )  # fmt: skip
        for e in range(tile * num_empty // num_tiles, (tile + 1) * num_empty // num_tiles):
            out[empty_rows[e]] = 0


@njit(cache=True, nogil=True, error_model="numpy")
def add_partial_rows(carry_rows, partial_rows, out):
    """Add what tiles computed of the rows that they inherited, in the order of the tiles."""
    for tile in range(carry_rows.shape[0]):
        if carry_rows[tile] >= 0:
            for r in range(out.shape[1]):
                out[carry_rows[tile], r] += partial_rows[tile, r]


@njit(cache=True, nogil=True, error_model="numpy")
def remap_tiles(
    first_tile, last_tile, tile_size, bucket_size,
    records, pull_ids, spare, remap_ids, record_words,
):  # fmt: skip
    """Remap some tiles to `spare` without computing, for a mode out of turn."""
    for tile in range(first_tile, last_tile):
        first = tile * tile_size
        bucket_start = np.uint64(first // bucket_size * bucket_size)
        last = min(first + tile_size, records.shape[0])
        for place in range(np.uint64(first), np.uint64(last)):
            position = bucket_start + np.uint64(pull_ids[place])
            _copy_record(records, position, spare, np.uint64(remap_ids[place]), record_words)


def _place_of(places, i):
    """Return what the order `places` has at i; a stand-in for the overload below."""


@overload(_place_of)
def _overload_place_of(places, i):
    if isinstance(places, types.NoneType):
        return lambda places, i: i
    return lambda places, i: np.uint64(places[i])


@njit(cache=True, error_model="numpy")
def _prefetch_place(records, places, i, end):
    """Ask for the record that an order has a few places after i."""
    ahead = min(i + np.uint64(_PREFETCH_DISTANCE), end - np.uint64(1))
    _prefetch_record(records, _place_of(places, ahead))


@njit(cache=True, nogil=True, error_model="numpy")
def gather_records(first, last, source, places, target, record_words):
    """Copy records from their places."""
    end = np.uint64(last)
    for i in range(np.uint64(first), end):
        _prefetch_place(source, places, i, end)
        _copy_record(source, np.uint64(places[i]), target, i, record_words)


@njit(cache=True, nogil=True, error_model="numpy")
def split_columns(
    first, last, places, records, record_values, value_slot, field, column_bits,
    is_new, rows, values,
):  # fmt: skip
    """Split records into three arrays; `column_bits` are the bits of all other modes."""
    word, shift, mask = field
    end = np.uint64(last)
    for i in range(np.uint64(first), end):
        _prefetch_place(records, places, i, end)
        place, before = _place_of(places, i), _place_of(places, i - np.uint64(i > 0))
        difference = np.uint64(0)
        for w in range(len(column_bits)):
            difference |= (records[place, w] ^ records[before, w]) & column_bits[w]
        is_new[i] = i == 0 or difference != 0
        rows[i] = (records[place, word] >> shift) & mask
        values[i] = record_values[place, value_slot]


@njit(cache=True, nogil=True, error_model="numpy")
def add_gram(first_band, last_band, edges, starts, ids, values, gram, diagonal):
    """Add ``v_a * v_b`` to ``gram[id_a, id_b]`` for the pairs of each group, id_a > id_b.

    The ids of a group must rise. A band is the rows ``edges[band]`` to ``edges[band + 1]``. The
    pairs of each entry with itself go to `diagonal`, which a cache holds, in the first band.
    """
    if first_band == 0:
        for a in range(np.uint64(ids.shape[0])):
            diagonal[np.uint64(ids[a])] += values[a] * values[a]
    first_row, last_row = edges[first_band], edges[last_band]
    for group in range(np.uint64(starts.shape[0] - 1)):
        start, end = np.uint64(starts[group]), np.uint64(starts[group + np.uint64(1)])
        for a in range(start + np.uint64(1), end):
            row = np.uint64(ids[a])
            if first_row <= row < last_row:
                for b in range(start, a):
                    gram[row, np.uint64(ids[b])] += values[a] * values[b]


@njit(cache=True, nogil=True, error_model="numpy")
def hash_words(words):
    """Hash unsigned words and their places to 64 bits.

    Each word is mixed with its place (as SplitMix64 mixes its state) before they are added up: a
    mere weighted sum would miss changes such as two flipped signs, which cancel modulo 2**64.
    """
    total = np.uint64(0)
    place = np.uint64(0)
    for i in range(words.shape[0]):
        place += np.uint64(0x9E3779B97F4A7C15)
        mixed = np.uint64(words[i]) ^ place
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        total += mixed ^ (mixed >> np.uint64(31))
    return total
