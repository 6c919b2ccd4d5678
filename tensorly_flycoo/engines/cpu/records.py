"""The arguments of compiled loops, in groups, and how loops read and copy records.

Sizes that a compiler must know (ndim, words of a record, columns in registers) are lengths of
tuples and so part of a kernel's type; nothing is compiled for one rank or shape. A field that is
None is part of the type too: the code for it is not compiled.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import extending
from numba.core import cgutils, types
from numpy import ndarray as Array

from ...format.packing import RecordFormat
from ...format.primitives import Step, index_dtype
from .compiling import subroutine

# mypy takes an intrinsic's arguments from the function that generates its code.
intrinsic: Any = extending.intrinsic
overload: Any = extending.overload

CACHE_LINE_NBYTES = 64

#: Nonzeros between prefetching a record and using it.
PREFETCH_DISTANCE = 16


class Fields(NamedTuple):
    """The places of some modes' coordinates in a record.

    Words are None if all coordinates are in the first: code for that reads it only once. The others
    are Python's integers, of which numba finds the type sooner than of NumPy's.
    """

    words: tuple[int, ...] | None
    shifts: tuple[int, ...]
    masks: tuple[int, ...]

    @classmethod
    def of(cls, record_format: RecordFormat, modes: Iterable[int]) -> "Fields":
        modes = list(modes)
        words = tuple([record_format.words[mode] for mode in modes])
        shifts = tuple([record_format.shifts[mode] for mode in modes])
        masks = tuple([record_format.masks[mode] for mode in modes])
        has_one_word = not any(record_format.words)
        return cls(None if has_one_word else words, shifts, masks)


class Storage(NamedTuple):
    """The arrays of a `Step`; `values` views the records in the values' type."""

    records: Array
    values: Array
    value_slot: np.uint64  # the values' column in `values`
    pull_ids: Array
    spare: Array
    remap_ids: Array
    record_words: tuple[int, ...]  # a record has ``len(record_words)`` words

    @classmethod
    def of(cls, step: Step, record_format: RecordFormat) -> "Storage":
        return cls(
            records=step.records,
            values=step.records.view(record_format.dtype),
            value_slot=np.uint64(record_format.value_slot),
            pull_ids=step.pull_ids,
            spare=step.spare,
            remap_ids=step.remap_ids,
            record_words=(0,) * record_format.num_words,
        )


class Tiles(NamedTuple):
    """The sizes of tiles and buckets, and the arrays of a mode's `RowTiling` if a loop needs it."""

    size: int
    bucket_size: int
    carry_rows: Any = None
    empty_rows: Any = None


def point_at(
    context: Any, builder: Any, array_type: Any, array: Any, row: Any, column: Any = None
) -> Any:
    """Point at an item of a C-contiguous matrix: by default the first of a row."""
    matrix = context.make_array(array_type)(context, builder, array)
    offset = builder.mul(row, builder.extract_value(matrix.shape, 1))
    if column is not None:
        offset = builder.add(offset, column)
    return builder.gep(matrix.data, [offset])


@intrinsic
def smaller(typing_context: Any, a: Any, b: Any) -> Any:
    """Return the smaller of two integers of one type; numba's `min` takes time to compile."""
    comparison = "icmp_signed" if a.signed else "icmp_unsigned"

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(getattr(builder, comparison)("<", *args), *args)

    return a(a, a), generate


@subroutine
def find_places(tiles: Tiles, tile: Any, nnz: Any) -> Any:
    """Return the first place of a tile, the end of its places, and the start of its bucket."""
    first = tile * tiles.size
    bucket_start = first // tiles.bucket_size * tiles.bucket_size
    return np.uint64(first), np.uint64(smaller(first + tiles.size, nnz)), np.uint64(bucket_start)


@subroutine
def clear_empty_rows(tiles: Tiles, tile: Any, out: Array) -> None:
    """Clear a tile's share of the rows without nonzeros."""
    num_tiles = tiles.carry_rows.shape[0]
    num_empty = tiles.empty_rows.shape[0]
    first = tile * num_empty // num_tiles
    last = (tile + 1) * num_empty // num_tiles
    for e in range(first, last):
        for r in range(out.shape[1]):
            out[tiles.empty_rows[e], r] = 0


@intrinsic
def _read_rows(
    typing_context: Any, records: Any, position: Any, words: Any, shifts: Any, masks: Any
) -> Any:
    """Unpack coordinates of one record into a tuple, by code of the tuple's length."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        records_, position_, words_, shifts_, masks_ = args
        if isinstance(words, types.NoneType):
            offsets = [position_.type(0)] * len(shifts)
        else:
            offsets = cgutils.unpack_tuple(builder, words_)
        shifts_of_modes = cgutils.unpack_tuple(builder, shifts_)
        masks_of_modes = cgutils.unpack_tuple(builder, masks_)
        rows = []
        for offset, shift, mask in zip(offsets, shifts_of_modes, masks_of_modes, strict=True):
            word = builder.load(point_at(context, builder, records, records_, position_, offset))
            shifted = builder.lshr(builder.zext(word, shift.type), shift)
            rows.append(builder.and_(shifted, mask))
        return context.make_tuple(builder, signature.return_type, rows)

    row_types = types.BaseTuple.from_types([types.uint64] * len(shifts))
    return row_types(records, position, words, shifts, masks), generate


@subroutine
def read_rows(records: Array, position: Any, fields: Fields) -> Any:
    """Unpack coordinates of one record into a tuple."""
    return _read_rows(records, position, fields.words, fields.shifts, fields.masks)


@subroutine
def read_row(records: Array, position: Any, field: Fields) -> Any:
    """Unpack the coordinate of one mode of one record."""
    return read_rows(records, position, field)[0]


@subroutine
def copy_record(
    source: Array, position: Any, target: Array, target_position: Any, record_words: Any
) -> None:
    """Copy one record of ``len(record_words)`` words."""
    for word in range(len(record_words)):
        target[target_position, np.uint64(word)] = source[position, np.uint64(word)]


def prefetch(builder: Any, pointer: Any, num_lines: int) -> None:
    """Prefetch some cache lines."""
    pointer = builder.bitcast(pointer, ir.IntType(8).as_pointer())
    int32 = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, int32, int32, int32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    for line in range(num_lines):
        line_pointer = builder.gep(pointer, [int32(line * CACHE_LINE_NBYTES)])
        builder.call(function, [line_pointer, int32(0), int32(3), int32(1)])


@intrinsic
def prefetch_record(typing_context: Any, records: Any, position: Any) -> Any:
    """Prefetch the cache line of a record."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        prefetch(builder, point_at(context, builder, records, *args), 1)
        return context.get_dummy_value()

    return types.void(records, position), generate


class _Memory(np.ndarray):
    """Bytes that an array is made of. NumPy's views have that array as their base, not these."""


def allocate_lines(shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Allocate an array that begins at a cache line; NumPy aligns to 16 bytes only."""
    nbytes = math.prod(shape) * dtype.itemsize
    memory = _Memory(nbytes + CACHE_LINE_NBYTES, np.uint8)
    start = -memory.__array_interface__["data"][0] % CACHE_LINE_NBYTES
    return np.ndarray(shape, dtype, memory, start)


def make_readable(matrix: Array) -> Array:
    """Return a matrix as the kernels were compiled for; a copy only if need be."""
    if matrix.flags.carray:
        return matrix
    return np.require(matrix, requirements=("C", "A", "W"))


def list_places(places: Array | None, count: int) -> Array:
    """Return the order of `count` items as loops read it; None is the order 0, 1, ..."""
    return np.empty(0, index_dtype(count)) if places is None else places


@subroutine
def place_of(places: Array, i: Any) -> Any:
    """Return item i of the order `places`; without items it is the order 0, 1, ..."""
    return np.uint64(places[i]) if places.shape[0] > 0 else i


@subroutine
def position_of(pull_ids: Array | None, bucket_start: Any, place: Any) -> Any:
    """Return the position of a place's record."""
    if pull_ids is None:
        return place
    return bucket_start + np.uint64(pull_ids[place])


@subroutine
def pull(records: Array, pull_ids: Array | None, bucket_start: Any, place: Any, last: Any) -> Any:
    """Return the position of a place's record; with `pull_ids`, also prefetch a later one."""
    if pull_ids is None:
        return place
    ahead = smaller(place + np.uint64(PREFETCH_DISTANCE), last - np.uint64(1))
    prefetch_record(records, position_of(pull_ids, bucket_start, ahead))
    return position_of(pull_ids, bucket_start, place)
