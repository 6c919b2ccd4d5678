"""The macros that make a specialisation of each kernel; known without a GPU."""

import math

import numpy as np

from . import tuning

_TYPES = {
    np.dtype(np.float32): "float",
    np.dtype(np.float64): "double",
    np.dtype(np.uint16): "unsigned short",
    np.dtype(np.uint32): "unsigned",
    np.dtype(np.uint64): "unsigned long long",
}

_COORD_TYPES = {
    np.dtype(np.int8): "signed char",
    np.dtype(np.int16): "short",
    np.dtype(np.int32): "int",
    np.dtype(np.int64): "long long",
    np.dtype(np.uint8): "unsigned char",
    np.dtype(np.uint16): "unsigned short",
    np.dtype(np.uint32): "unsigned",
    np.dtype(np.uint64): "unsigned long long",
}


def mttkrp_macros(record_format, tile_size, cut, empty_dtype, pull_dtype=None, remap_dtype=None):
    """Specialise `mttkrp.cu`; without `pull_dtype` or `remap_dtype` it does not pull or remap."""
    num_inputs = record_format.ndim - 1
    occupancy = tuning.choose_occupancy(num_inputs)
    run = tile_size * cut.group_size // tuning.BLOCK_SIZE
    return {
        **_tile_macros(record_format, tile_size, pull_dtype, remap_dtype),
        "VALUE": _TYPES[record_format.dtype],
        "NUM_INPUTS": num_inputs,
        "MIN_BLOCKS": occupancy.min_blocks,
        "LOAD_COLUMNS": cut.load_columns,
        "STORE_COLUMNS": cut.store_columns,
        "LANE_LOADS": cut.lane_columns // cut.load_columns,
        "GROUP_SIZE": cut.group_size,
        "BATCH": min(run, occupancy.batch),
        "EMPTY_ROW": _TYPES[empty_dtype],
        "PULL": int(pull_dtype is not None),
        "REMAP": int(remap_dtype is not None),
    }


def remap_macros(record_format, tile_size, pull_dtype, remap_dtype):
    """Specialise `remap.cu`."""
    return _tile_macros(record_format, tile_size, pull_dtype, remap_dtype)


def order_writes_macros(tile_size, remap_dtype):
    """Specialise `order_writes.cu`."""
    return {
        "REMAP_ID": _TYPES[remap_dtype],
        "TILE_SIZE": tile_size,
        "BLOCK_SIZE": tuning.BLOCK_SIZE,
    }


def partial_rows_macros(dtype):
    """Specialise `partial_rows.cu`."""
    return {"VALUE": _TYPES[dtype], "SEGMENT": tuning.SEGMENT}


def pack_macros(record_format, coord_dtype):
    """Specialise `pack.cu`."""
    return {
        "COORD": _COORD_TYPES[coord_dtype],
        "VALUE": _TYPES[record_format.dtype],
        "NDIM": record_format.ndim,
        "NUM_WORDS": record_format.num_words,
    }


def sum_groups_macros(dtype):
    """Specialise `sum_groups.cu`."""
    return {"VALUE": _TYPES[dtype]}


def pad_rows_macros(dtype, num_columns):
    """Specialise `pad_rows.cu` for rows of `num_columns`, padding among them."""
    group_size = min(32, 1 << (num_columns - 1).bit_length())
    return {"VALUE": _TYPES[dtype], "GROUP_SIZE": group_size, "BATCH": 4}


def gram_macros(rank):
    """Specialise `gram.cu`."""
    return {
        "RANK": rank,
        "ROWS_PER_BLOCK": tuning.ROWS_PER_BLOCK,
        "BLOCK_SIZE": tuning.BLOCK_SIZE,
    }


def multiply_rows_macros(rank, alignment):
    """Specialise `multiply_rows.cu` for rows that begin at multiples of `alignment` numbers.

    Rows that it writes are aligned as MTTKRP wants them.
    """
    return {
        **gram_macros(rank),
        "ROWS_PER_BLOCK": tuning.ROWS_PER_SMALL_BLOCK,
        "ROW_NUMBERS": tuning.choose_row_nbytes(4 * rank) // 4,
        "LOAD": math.gcd(4, rank, alignment),
    }


def invert_macros(rank):
    """Specialise `invert.cu`."""
    return {"RANK": rank}


def inner_product_macros(dtype, rank):
    """Specialise `inner_product.cu`."""
    return {**gram_macros(rank), "VALUE": _TYPES[dtype]}


def sweep_nonnegative_macros(dtype, rank):
    """Specialise `sweep_nonnegative.cu`."""
    return {
        "VALUE": _TYPES[dtype],
        "RANK": rank,
        "LOAD": math.gcd(rank, 16 // dtype.itemsize),
        "BLOCK_SIZE": tuning.BLOCK_SIZE,
    }


def _tile_macros(record_format, tile_size, pull_dtype, remap_dtype):
    return {
        "NUM_WORDS": record_format.num_words,
        "TILE_SIZE": tile_size,
        "BLOCK_SIZE": tuning.BLOCK_SIZE,
        "PULL_ID": "unsigned" if pull_dtype is None else _TYPES[pull_dtype],
        "REMAP_ID": "unsigned" if remap_dtype is None else _TYPES[remap_dtype],
    }


def ttmc_macros(record_format, tile_size, cut, slot_dtype, pull_dtype=None):
    """Specialise `ttmc.cu`; without `pull_dtype` it does not pull."""
    return {
        **_tile_macros(record_format, tile_size, pull_dtype, None),
        "VALUE": _TYPES[record_format.dtype],
        "NUM_INPUTS": record_format.ndim - 1,
        "MIN_BLOCKS": tuning.choose_occupancy(record_format.ndim - 1).min_blocks,
        "GROUP_SIZE": cut.group_size,
        "LANE_COLUMNS": cut.lane_columns,
        "SLOT_ID": _TYPES[slot_dtype],
        "PULL": int(pull_dtype is not None),
    }
