"""The macros that specialise each kernel. This module needs no GPU."""

import functools
import math
from typing import Any, TypeAlias

import numpy as np

from ...format.packing import RecordFormat
from ...format.tree import Tree, express
from . import structs, tuning
from .id_bits import IdBits
from .tuning import ColumnCut, Occupancy, RankCut

#: Values by name: ints, or text such as a type.
Macros: TypeAlias = dict[str, Any]

_TYPES = {
    np.dtype(np.float32): "float",
    np.dtype(np.float64): "double",
    np.dtype(np.int8): "signed char",
    np.dtype(np.int16): "short",
    np.dtype(np.int32): "int",
    np.dtype(np.int64): "long long",
    np.dtype(np.uint8): "unsigned char",
    np.dtype(np.uint16): "unsigned short",
    np.dtype(np.uint32): "unsigned",
    np.dtype(np.uint64): "unsigned long long",
}


def mttkrp_macros(
    record_format: RecordFormat,
    tile_size: int,
    cut: RankCut,
    occupancy: Occupancy,
    empty_dtype: np.dtype,
    pull_bits: IdBits | None = None,
    remap_dtype: np.dtype | None = None,
    ratios: int = 0,
) -> Macros:
    """Specialise `mttkrp.cu`; without `pull_bits` or `remap_dtype` it does not pull or remap.

    With `ratios` it divides by a model; if that is 2, it adds up logarithms of the model too.
    """
    block_size = tuning.choose_block_size(tile_size)
    run = tile_size * cut.group_size // block_size
    carries = structs.carries_dtype(record_format.dtype, cut, block_size)
    itemsize = record_format.dtype.itemsize
    batch, num_threads = occupancy.batch, tuning.limit_threads(occupancy, itemsize)
    if ratios:
        sizes = (occupancy, record_format.ndim - 1, cut, itemsize)
        batch, num_threads = tuning.choose_ratio_occupancy(*sizes, adds_logs=ratios == 2)
    return {
        **_tile_macros(record_format, tile_size),
        **_operands_macros(record_format),
        "CARRIES_LAYOUT": structs.layout_macro(carries),
        "MIN_BLOCKS": max(1, num_threads // block_size),
        "LOAD_COLUMNS": cut.load_columns,
        "STORE_COLUMNS": cut.store_columns,
        "LANE_LOADS": cut.lane_columns // cut.load_columns,
        "GROUP_SIZE": cut.group_size,
        "NUM_PARTS": cut.num_parts if ratios else 1,
        "IS_WHOLE": int(cut.is_whole) if ratios else 0,
        "BATCH": min(run, batch),
        "EMPTY_ROW": _TYPES[empty_dtype],
        "PULL": _name_pull(pull_bits),
        **_pull_macros(pull_bits),
        "REMAP": int(remap_dtype is not None),
        **_target_macros(tile_size, remap_dtype),
        "RATIOS": ratios,
    }


def ttmc_macros(
    record_format: RecordFormat,
    tile_size: int,
    cut: ColumnCut,
    occupancy: Occupancy,
    slot_dtype: np.dtype,
    pull_bits: IdBits | None = None,
) -> Macros:
    """Specialise `ttmc.cu`; without `pull_bits` it does not pull."""
    ranks = structs.ranks_dtype(record_format.ndim - 1)
    num_threads = tuning.limit_threads(occupancy, record_format.dtype.itemsize)
    return {
        **_tile_macros(record_format, tile_size),
        **_operands_macros(record_format),
        "RANKS_LAYOUT": structs.layout_macro(ranks),
        "MIN_BLOCKS": num_threads // tuning.choose_block_size(tile_size),
        "GROUP_SIZE": cut.group_size,
        "LANE_COLUMNS": cut.lane_columns,
        "SLOT_ID": _TYPES[slot_dtype],
        "PULL": _name_pull(pull_bits),
        **_pull_macros(pull_bits),
    }


def remap_macros(
    record_format: RecordFormat, tile_size: int, pull_bits: IdBits, remap_dtype: np.dtype
) -> Macros:
    """Specialise `remap.cu`."""
    return {
        **_tile_macros(record_format, tile_size),
        **_pull_macros(pull_bits),
        **_target_macros(tile_size, remap_dtype),
    }


def order_writes_macros(tile_size: int, remap_dtype: np.dtype) -> Macros:
    """Specialise `order_writes.cu`."""
    return {
        "REMAP_ID": _TYPES[remap_dtype],
        "TILE_SIZE": tile_size,
        "BLOCK_SIZE": tuning.BLOCK_SIZE,
    }


def runs_macros(tile_size: int, remap_dtype: np.dtype) -> Macros:
    """Specialise `find_runs.cu`."""
    return {"REMAP_ID": _TYPES[remap_dtype], **_cut_macros(tile_size)}


def split_ids_macros(dtype: np.dtype, bits: IdBits, tile_size: int) -> Macros:
    """Specialise `split_ids.cu`."""
    return {
        "ID": _TYPES[dtype],
        "LOW": _TYPES[bits.low_dtype],
        "HIGH_BITS": bits.high_bits,
        **_cut_macros(tile_size),
    }


def partial_rows_macros(dtype: np.dtype, num_warps: int) -> Macros:
    """Specialise `partial_rows.cu` for blocks of `num_warps` warps."""
    return {"VALUE": _TYPES[dtype], "NUM_WARPS": num_warps}


def pack_macros(record_format: RecordFormat, coord_dtype: np.dtype) -> Macros:
    """Specialise `pack.cu`."""
    return {
        "COORD": _TYPES[coord_dtype],
        "VALUE": _TYPES[record_format.dtype],
        "NDIM": record_format.ndim,
        "NUM_WORDS": record_format.num_words,
        "PACKING_LAYOUT": structs.layout_macro(structs.packing_dtype(record_format.ndim)),
    }


def read_keys_macros(
    record_format: RecordFormat, num_fields: int, key_dtype: np.dtype, place_dtype: np.dtype
) -> Macros:
    """Specialise `read_keys.cu`."""
    return {
        **carry_rows_macros(record_format, place_dtype),
        "NUM_FIELDS": num_fields,
        "KEY": _TYPES[key_dtype],
        "KEY_FIELDS_LAYOUT": structs.layout_macro(structs.key_fields_dtype(num_fields)),
    }


def carry_rows_macros(record_format: RecordFormat, place_dtype: np.dtype) -> Macros:
    """Specialise `carry_rows.cu`."""
    return {
        "NUM_WORDS": record_format.num_words,
        "PLACE": _TYPES[place_dtype],
        "KEY_FIELDS_LAYOUT": structs.layout_macro(structs.key_fields_dtype(1)),
    }


def list_empty_rows_macros(row_dtype: np.dtype) -> Macros:
    """Specialise `list_empty_rows.cu`."""
    return {
        "ROW": _TYPES[row_dtype],
        "ROWS_PER_BLOCK": tuning.ROWS_PER_BLOCK,
        "BLOCK_SIZE": tuning.BLOCK_SIZE,
    }


def store_places_macros(place_dtype: np.dtype) -> Macros:
    """Specialise `store_places.cu`."""
    return {"PLACE": _TYPES[place_dtype]}


def number_buckets_macros(place_dtype: np.dtype, bucket_dtype: np.dtype) -> Macros:
    """Specialise `number_buckets.cu`."""
    return {"PLACE": _TYPES[place_dtype], "BUCKET": _TYPES[bucket_dtype]}


def offsets_macros(place_dtype: np.dtype, offset_dtype: np.dtype) -> Macros:
    """Specialise `store_offsets.cu`."""
    return {"PLACE": _TYPES[place_dtype], "OFFSET": _TYPES[offset_dtype]}


def position_macros(place_dtype: np.dtype, offset_bits: IdBits, tile_size: int) -> Macros:
    """Specialise `position_in_buckets.cu`."""
    return {
        **offsets_macros(place_dtype, offset_bits.low_dtype),
        "HIGH_BITS": offset_bits.high_bits,
        **_cut_macros(tile_size),
    }


def scatter_records_macros(num_words: int, offset_dtype: np.dtype) -> Macros:
    """Specialise `scatter_records.cu`."""
    return {"NUM_WORDS": num_words, "OFFSET": _TYPES[offset_dtype]}


def sum_squares_macros(dtype: np.dtype) -> Macros:
    """Specialise `sum_squares.cu`."""
    return {
        "VALUE": _TYPES[dtype],
        "VALUES_PER_BLOCK": tuning.ROWS_PER_BLOCK,
        "BLOCK_SIZE": tuning.BLOCK_SIZE,
    }


def sum_groups_macros(dtype: np.dtype) -> Macros:
    """Specialise `sum_groups.cu`."""
    return {"VALUE": _TYPES[dtype]}


def split_columns_macros(record_format: RecordFormat, place_dtype: np.dtype | None) -> Macros:
    """Specialise `split_columns.cu`; without `place_dtype` records are in order."""
    columns = structs.columns_dtype(record_format.num_words)
    return {
        "VALUE": _TYPES[record_format.dtype],
        "NUM_WORDS": record_format.num_words,
        "COLUMNS_LAYOUT": structs.layout_macro(columns),
        "HAS_PLACES": int(place_dtype is not None),
        "PLACE": _id_type(place_dtype),
    }


def list_shared_macros() -> Macros:
    """Specialise `list_shared.cu`."""
    return {"ENTRIES_PER_BLOCK": tuning.ROWS_PER_BLOCK, "BLOCK_SIZE": tuning.BLOCK_SIZE}


def place_vectors_macros(vector_dtype: np.dtype, placed_dtype: np.dtype) -> Macros:
    """Specialise `place_vectors.cu`."""
    return {
        "VECTOR": _TYPES[vector_dtype],
        "PLACED": _TYPES[placed_dtype],
        "BLOCK_SIZE": tuning.BLOCK_SIZE,
    }


def pad_rows_macros(dtype: np.dtype, num_columns: int) -> Macros:
    """Specialise `pad_rows.cu` for rows of `num_columns`, padding included."""
    group_size = min(32, 1 << (num_columns - 1).bit_length())
    return {"VALUE": _TYPES[dtype], "GROUP_SIZE": group_size, "BATCH": 4}


def gram_macros(rank: int) -> Macros:
    """Specialise `gram.cu`."""
    return {"RANK": rank, "BLOCK_SIZE": tuning.BLOCK_SIZE}


def add_grams_macros(rank: int) -> Macros:
    """Specialise `add_grams.cu`."""
    return {"RANK": rank, "SEGMENT": tuning.GRAM_SEGMENT}


def solve_rows_macros(rank: int, alignment: int) -> Macros:
    """Specialise `solve_rows.cu` for rows that begin at multiples of `alignment` numbers.

    The rows that it writes are aligned for MTTKRP.
    """
    return {
        **gram_macros(rank),
        "ROW_NUMBERS": tuning.choose_row_nbytes(4 * rank) // 4,
        "LOAD": math.gcd(4, rank, alignment),
    }


def product_macros(rank: int) -> Macros:
    """Specialise `invert.cu` and `fit.cu`."""
    return {"RANK": rank, "PRODUCT_LAYOUT": structs.layout_macro(structs.PRODUCT)}


def add_parts_macros(dtype: np.dtype, tree: Tree) -> Macros:
    """Specialise `add_parts.cu`."""
    return {"VALUE": _TYPES[dtype], "TREE": express(tree, "PART")}


def copies_macros() -> Macros:
    """Specialise `copy_blocks.cu`."""
    return {"COPIES_LAYOUT": structs.layout_macro(structs.copies_dtype())}


def inner_product_macros(dtype: np.dtype, rank: int) -> Macros:
    """Specialise `inner_product.cu`."""
    return {
        **gram_macros(rank),
        "ROWS_PER_BLOCK": tuning.ROWS_PER_BLOCK,
        "VALUE": _TYPES[dtype],
    }


def scale_rows_macros(dtype: np.dtype, rank: int) -> Macros:
    """Specialise `scale_rows.cu`."""
    return {
        "VALUE": _TYPES[dtype],
        "NUM_COLUMNS": min(tuning.BLOCK_SIZE, 1 << (rank - 1).bit_length()),
        "BLOCK_SIZE": tuning.BLOCK_SIZE,
    }


def sweep_nonnegative_macros(dtype: np.dtype, rank: int) -> Macros:
    """Specialise `sweep_nonnegative.cu`."""
    return {
        "VALUE": _TYPES[dtype],
        "RANK": rank,
        "LOAD": math.gcd(rank, 16 // dtype.itemsize),
        "BLOCK_SIZE": tuning.BLOCK_SIZE,
    }


def square_polynomial_macros() -> Macros:
    """Specialise `square_polynomial.cu`."""
    return {"EXPONENTS": ",".join(map(str, mersenne_twister_exponents()))}


def draw_uniform_macros(dtype: np.dtype) -> Macros:
    """Specialise `draw_uniform.cu`."""
    return {"VALUE": _TYPES[dtype]}


@functools.cache
def mersenne_twister_exponents() -> tuple[int, ...]:
    """List the terms of MT19937's characteristic polynomial, without the highest, t^19937.

    The polynomial is that of Matsumoto and Nishimura's appendix, with bits for coefficients.
    """
    num_words, middle, matrix = 624, 397, 0x9908B0DF
    polynomial = 1
    for bit in range(31):
        product = polynomial << num_words - 1 ^ polynomial << middle - 1
        polynomial = product ^ (matrix >> bit & 1)
    polynomial = polynomial << num_words ^ polynomial << middle ^ (matrix >> 31)
    *exponents, _ = (n for n, bit in enumerate(f"{polynomial:b}"[::-1]) if bit == "1")
    return tuple(exponents)


def _tile_macros(record_format: RecordFormat, tile_size: int) -> Macros:
    return {
        "NUM_WORDS": record_format.num_words,
        **_cut_macros(tile_size),
    }


def _cut_macros(tile_size: int) -> Macros:
    """Return the sizes of tiles, and of the blocks that compute or move them."""
    return {"TILE_SIZE": tile_size, "BLOCK_SIZE": tuning.choose_block_size(tile_size)}


def _operands_macros(record_format: RecordFormat) -> Macros:
    """Return the macros of kernels that unpack nonzeros and read factors."""
    num_inputs = record_format.ndim - 1
    return {
        "VALUE": _TYPES[record_format.dtype],
        "NUM_INPUTS": num_inputs,
        "SLOT_NBYTES": structs.slot_nbytes(record_format),
        "FIELD_LAYOUT": structs.layout_macro(structs.FIELD),
        "OPERANDS_LAYOUT": structs.layout_macro(structs.operands_dtype(num_inputs)),
    }


def _name_pull(bits: IdBits | None) -> str:
    """Name the pull ids, as `ids.cuh` does."""
    if bits is None:
        return "PLACES"
    return "PACKED" if bits.is_packed else "IN_ORDER"


def _pull_macros(bits: IdBits | None) -> Macros:
    """Return the macros of pull ids; without `bits`, any."""
    low_dtype, high_bits = (None, 0) if bits is None else (bits.low_dtype, bits.high_bits)
    return {"PULL_ID": _id_type(low_dtype), "PULL_HIGH_BITS": high_bits}


def _target_macros(tile_size: int, remap_dtype: np.dtype | None) -> Macros:
    """Return the macros of remap ids and of the write order; without a dtype, any."""
    bits = IdBits.of(tile_size, tile_size)
    return {
        "REMAP_ID": _id_type(remap_dtype),
        "WRITE": _TYPES[bits.low_dtype],
        "WRITE_HIGH_BITS": bits.high_bits,
    }


def _id_type(dtype: np.dtype | None) -> str:
    """Return the C type of ids, or any type if there are none."""
    return "unsigned" if dtype is None else _TYPES[dtype]
