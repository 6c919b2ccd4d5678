"""The loop of the CPU engine's TTMc, compiled by numba; `cpu` is its only caller.

A nonzero adds the Kronecker product of its factors' rows to a row of many columns, which stays in
the nearest cache while the nonzeros of that row last. Compiled functions call none of another file
(see `cpu_kernels`), so reading a coordinate and a vector is said here again.
"""

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import types
from numba.extending import intrinsic, overload

#: Bytes of a vector that is added at once.
_VECTOR_NBYTES = 64


def lay_out_factors(factors):
    """Make factors ready for `ttmc_tiles`: the last with columns for whole vectors.

    Returns
    -------
    factors : tuple of array (I_n, K_n)
        C-contiguous; the last padded with columns of zeros.
    ranks : tuple of uint64
        The columns of all, with the padding.
    num_columns : uint64
        The columns of the last one, without it.
    lanes : tuple
        As long as a vector has columns.
    """
    factors = [np.require(factor, requirements="CAW") for factor in factors]
    last = factors[-1]
    num_columns = last.shape[1]
    num_lanes = min(_VECTOR_NBYTES // last.itemsize, 1 << (num_columns - 1).bit_length())
    if num_columns % num_lanes:
        factors[-1] = np.pad(last, [(0, 0), (0, -num_columns % num_lanes)])
    ranks = tuple(np.uint64(factor.shape[1]) for factor in factors)
    return tuple(factors), ranks, np.uint64(num_columns), (0,) * num_lanes


@intrinsic
def _point_at_row(typing_context, matrix, row):
    """Point at the first column of a row of a C-contiguous matrix."""

    def generate(context, builder, signature, args):
        array = context.make_array(matrix)(context, builder, args[0])
        num_columns = builder.extract_value(array.shape, 1)
        return builder.gep(array.data, [builder.mul(args[1], num_columns)])

    return types.CPointer(matrix.dtype)(matrix, row), generate


@intrinsic
def _point_at_rows(typing_context, factors, indices):
    """Point at the row of each factor that a nonzero needs; counts no references of the arrays."""

    def generate(context, builder, signature, args):
        pointers = []
        for w in range(factors.count):
            factor = builder.extract_value(args[0], w)
            array = context.make_array(factors.dtype)(context, builder, factor)
            num_columns = builder.extract_value(array.shape, 1)
            index = builder.extract_value(args[1], w)
            pointers.append(builder.gep(array.data, [builder.mul(index, num_columns)]))
        return context.make_tuple(builder, signature.return_type, pointers)

    pointer_type = types.CPointer(factors.dtype.dtype)
    return types.UniTuple(pointer_type, factors.count)(factors, indices), generate


@intrinsic
def _add_scaled(typing_context, total, scale, row, lanes):
    """Add ``scale * row[:lanes]`` to ``total[:lanes]``, both pointers, as one vector each.

    Multiplication and addition stay apart, as everywhere in the CPU engine.
    """

    def generate(context, builder, signature, args):
        total_, scale_, row_, _ = args
        vector_type = ir.VectorType(context.get_data_type(total.dtype), lanes.count)
        align = total.dtype.bitwidth // 8
        undefined, int32 = ir.Constant(vector_type, ir.Undefined), ir.IntType(32)
        first = builder.insert_element(undefined, scale_, ir.Constant(int32, 0))
        zeros = ir.Constant(ir.VectorType(int32, lanes.count), None)
        scales = builder.shuffle_vector(first, undefined, zeros)
        target = builder.bitcast(total_, vector_type.as_pointer())
        source = builder.bitcast(row_, vector_type.as_pointer())
        product = builder.fmul(scales, builder.load(source, align=align))
        builder.store(builder.fadd(builder.load(target, align=align), product), target, align=align)
        return context.get_dummy_value()

    return types.void(total, scale, row, lanes), generate


@intrinsic
def _advance(typing_context, pointer, offset):
    """Point `offset` items further."""

    def generate(context, builder, signature, args):
        return builder.gep(args[0], [args[1]])

    return pointer(pointer, offset), generate


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
def _multiply_out(prefixes, value, rows, ranks):
    """Fill `prefixes` with ``value`` times the Kronecker product of all rows but the last.

    In place: the products with one more row lie after those that they are made of, or where these
    lie, so they are made from the end.
    """
    prefixes[0] = value
    size = np.uint64(1)
    for w in range(len(rows) - 1):
        row, rank = rows[w], ranks[w]
        for i in range(size):
            p = size - np.uint64(1) - i
            prefix = prefixes[p]
            for j in range(rank):
                k = rank - np.uint64(1) - j
                prefixes[p * rank + k] = prefix * row[k]
        size *= rank


@njit(cache=True, error_model="numpy")
def _add_outer_product(total, prefixes, row, width, lanes):
    """Add the outer product of `prefixes` and a row of `width` columns to `total`."""
    step = np.uint64(len(lanes))
    target = _point_at_row(total, np.uint64(0))
    for p in range(np.uint64(prefixes.shape[0])):
        for column in range(np.uint64(0), width, step):
            start = _advance(target, p * width + column)
            _add_scaled(start, prefixes[p], _advance(row, column), lanes)


@njit(cache=True, error_model="numpy")
def _store_total(total, width, num_columns, target, row):
    """Write the columns of `total` that are not padding to a row of `target`, and clear it."""
    for p in range(np.uint64(total.shape[1]) // width):
        for column in range(width):
            if column < num_columns:
                target[row, p * num_columns + column] = total[0, p * width + column]
            total[0, p * width + column] = 0


@njit(cache=True, nogil=True, error_model="numpy")
def ttmc_tiles(
    first_tile, last_tile, tile_size, bucket_size, carry_rows, slots,
    records, values, value_slot, pull_ids, out_field, words, shifts, masks,
    factors, ranks, num_columns, lanes, out, partial_rows,
):  # fmt: skip
    """Compute some tiles of TTMc into `out`, of a row into its slot where there are slots.

    Columns of the last factor are padded to a multiple of the lanes; `ranks` are the columns of all
    factors with the padding, `num_columns` those of the last one without it.
    """
    nnz = records.shape[0]
    width = ranks[len(factors) - 1]
    num_prefixes = np.uint64(out.shape[1]) // num_columns
    prefixes = np.empty(num_prefixes, values.dtype)
    total = np.zeros((1, num_prefixes * width), values.dtype)
    out_word, out_shift, out_mask = out_field
    for tile in range(first_tile, last_tile):
        first = np.uint64(tile * tile_size)
        last = np.uint64(min(tile * tile_size + tile_size, nnz))
        bucket_start = np.uint64(tile * tile_size // bucket_size * bucket_size)
        inherits = carry_rows[tile] >= 0
        row, has_row = np.uint64(0), False
        for place in range(first, last):
            position = place
            if pull_ids is not None:
                position = bucket_start + np.uint64(pull_ids[place])
            new_row = (records[position, out_word] >> out_shift) & out_mask
            if has_row and new_row != row:
                if inherits:
                    _store_total(total, width, num_columns, partial_rows, np.uint64(tile))
                else:
                    slot = row if slots is None else np.uint64(slots[row])
                    _store_total(total, width, num_columns, out, slot)
                inherits = False
            row, has_row = new_row, True
            indices = _read_rows(records, position, words, shifts, masks)
            rows = _point_at_rows(factors, indices)
            _multiply_out(prefixes, values[position, value_slot], rows, ranks)
            _add_outer_product(total, prefixes, rows[len(rows) - 1], width, lanes)
        if inherits:
            _store_total(total, width, num_columns, partial_rows, np.uint64(tile))
        else:
            slot = row if slots is None else np.uint64(slots[row])
            _store_total(total, width, num_columns, out, slot)
