"""The macros of kernels, and the bits of ids. This module needs no GPU, so tests compile all of it.

Macros that follow from nothing are given where `launch.get_kernel` is called.
"""

import enum
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ...format.bit_fields import WORD_BITS, BitFields
from ...format.packed_records import BLOCK_NNZ
from ...format.packing import RecordFormat
from ..narrow_rows import NARROW_FORMATS
from ..row_rules import Method
from . import structs, tuning
from .tuning import ColumnCut, Occupancy, RankCut, StepCut, SweepCut

#: Values by name, as `source.specialise` expresses them.
Macros: TypeAlias = dict[str, Any]

#: Types of the low bits of packed ids, and how many more bits an id may have.
_LOW_DTYPES = tuple(map(np.dtype, (np.uint8, np.uint16, np.uint32, np.uint64)))
_HIGH_BITS = (0, 1, 2, 4, 8)

#: The type of ids where there are none.
_NO_ID = np.dtype(np.uint32)


class Ratios(enum.IntEnum):
    """`RatioKind` in `ratios.cuh`: how MTTKRP uses the values of a model."""

    NONE, DIVIDE, DIVIDE_AND_LOG, MULTIPLY = range(4)


@dataclass(frozen=True)
class IdBits:
    """How ids are stored: low bits as a number each, high bits of several ids in one number.

    Packed ids are stored in the order in which threads read them, as `ids.cuh` says; others are in
    their own order, and have no high bits.
    """

    low_dtype: np.dtype  # of the number for the low bits
    high_bits: int = 0  # how many other bits there are
    is_packed: bool = False

    @classmethod
    def of(cls, limit: int, tile_size: int) -> "IdBits":
        """Choose the fewest bits for packed ids below `limit`.

        >>> bits = IdBits.of(2**18, tile_size=1024)
        >>> bits.low_dtype, bits.high_bits
        (dtype('uint16'), 2)
        """
        ids_per_thread = tile_size // tuning.choose_block_size(tile_size)
        candidates = []
        for low_dtype in _LOW_DTYPES:
            low_bits = 8 * low_dtype.itemsize
            high_choices = _HIGH_BITS if low_bits < 32 else (0,)
            for high_bits in high_choices:
                is_enough = 2 ** (low_bits + high_bits) >= limit
                is_whole = ids_per_thread * high_bits % 8 == 0  # bytes of a thread's high bits
                if is_enough and is_whole:
                    candidates.append((low_bits + high_bits, high_bits, low_dtype))
        _, high_bits, low_dtype = min(candidates)  # of equally many bits, the fewest high ones
        return cls(low_dtype, high_bits, is_packed=True)

    def count_nbytes(self, nnz: int, tile_size: int) -> int:
        """Count the bytes of packed ids; the last tile is stored whole.

        >>> IdBits.of(2**18, tile_size=1024).count_nbytes(2000, tile_size=1024)
        4608
        """
        num_tiles = -(-nnz // tile_size)
        num_places = num_tiles * tile_size
        return num_places * self.low_dtype.itemsize + num_places * self.high_bits // 8


def mttkrp_macros(
    record_format: RecordFormat,
    tile_size: int,
    cut: RankCut,
    occupancy: Occupancy,
    empty_dtype: np.dtype,
    pull_bits: IdBits | None = None,
    remap_dtype: np.dtype | None = None,
    ratios: Ratios = Ratios.NONE,
    is_narrow: bool = False,
    num_out_blocks: int = 1,
) -> Macros:
    """Specialise `mttkrp_remap.cu`.

    Without `pull_bits` it does not pull, without `remap_dtype` it does not remap. Factors may have
    narrow rows, and the result several blocks of rows.
    """
    block_size = tuning.choose_block_size(tile_size)
    run = tile_size * cut.group_size // block_size  # nonzeros of a group of threads
    num_inputs = record_format.ndim - 1
    dtype = record_format.dtype
    if ratios:
        batch, num_threads = tuning.choose_ratio_occupancy(
            occupancy,
            num_inputs,
            cut,
            dtype.itemsize,
            adds_logs=ratios is Ratios.DIVIDE_AND_LOG,
        )
    else:
        batch, num_threads = tuning.choose_work(
            occupancy, num_inputs, dtype.itemsize, cut, is_narrow
        )
    return {
        **remap_macros(record_format, tile_size, pull_bits, remap_dtype),
        **_operands_macros(record_format, pull_bits),
        "LAUNCH_ARGUMENTS_LAYOUT": structs.launch_arguments_dtype(
            num_inputs, dtype, num_out_blocks
        ),
        "ROW_BLOCKS_LAYOUT": structs.row_blocks_dtype(num_out_blocks),
        "CARRIES_NBYTES": structs.carries_nbytes(dtype, cut, block_size),
        "MIN_BLOCKS": max(1, num_threads // block_size),
        "LOAD_COLUMNS": cut.load_columns,
        "STORE_COLUMNS": cut.store_columns,
        "LANE_LOADS": cut.lane_columns // cut.load_columns,
        "GROUP_SIZE": cut.group_size,
        "NUM_PARTS": cut.num_parts if ratios else 1,
        "IS_WHOLE": bool(ratios) and cut.is_whole,
        "BATCH": min(run, batch),
        "OUT_BLOCKS": num_out_blocks,
        "EMPTY_ROW": empty_dtype,
        "REMAP": remap_dtype is not None,
        "RATIOS": ratios,
        "FACTOR": NARROW_FORMATS[dtype].dtype if is_narrow else dtype,
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
    num_threads = tuning.limit_threads(occupancy, record_format.dtype.itemsize)
    return {
        **_tile_macros(record_format, tile_size, pull_bits),
        **_operands_macros(record_format, pull_bits),
        "RANKS_LAYOUT": structs.ranks_dtype(record_format.ndim - 1),
        "MIN_BLOCKS": num_threads // tuning.choose_block_size(tile_size),
        "GROUP_SIZE": cut.group_size,
        "LANE_COLUMNS": cut.lane_columns,
        "SLOT_ID": slot_dtype,
    }


def remap_macros(
    record_format: RecordFormat,
    tile_size: int,
    pull_bits: IdBits | None,
    remap_dtype: np.dtype | None,
) -> Macros:
    """Specialise `remap_only.cu`."""
    write_bits = IdBits.of(tile_size, tile_size)
    return {
        **_tile_macros(record_format, tile_size, pull_bits),
        "REMAP_ID": _NO_ID if remap_dtype is None else remap_dtype,
        "WRITE": write_bits.low_dtype,
        "WRITE_HIGH_BITS": write_bits.high_bits,
    }


def cut_tile(tile_size: int) -> Macros:
    """Return the macros of kernels whose blocks have tiles."""
    return {"TILE_SIZE": tile_size, "BLOCK_SIZE": tuning.choose_block_size(tile_size)}


def _tile_macros(record_format: RecordFormat, tile_size: int, pull_bits: IdBits | None) -> Macros:
    """Return the macros of kernels that pull the records of tiles."""
    bits = pull_bits or IdBits(_NO_ID)
    return {
        **cut_tile(tile_size),
        "NUM_WORDS": record_format.num_words,
        "PULL_ID": bits.low_dtype,
        "PULL_HIGH_BITS": bits.high_bits,
    }


def _operands_macros(record_format: RecordFormat, pull_bits: IdBits | None) -> Macros:
    """Return the macros of kernels that may pull, unpack nonzeros, and read factors."""
    num_inputs = record_format.ndim - 1
    if pull_bits is None:
        pull = "PLACES"
    elif pull_bits.is_packed:
        pull = "PACKED"
    else:
        pull = "IN_ORDER"
    return {
        "VALUE": record_format.dtype,
        "NUM_INPUTS": num_inputs,
        "SLOT_NBYTES": structs.slot_nbytes(record_format),
        "FIELD_LAYOUT": structs.FIELD,
        "OPERANDS_LAYOUT": structs.operands_dtype(num_inputs),
        "PULL": pull,
    }


def split_ids_macros(dtype: np.dtype, bits: IdBits, tile_size: int) -> Macros:
    """Specialise `split_ids.cu` for ids of a dtype."""
    return {"ID": dtype, "LOW": bits.low_dtype, "HIGH_BITS": bits.high_bits, **cut_tile(tile_size)}


def pack_macros(record_format: RecordFormat, coord_dtype: np.dtype) -> Macros:
    """Specialise `pack.cu`."""
    return {
        "COORD": coord_dtype,
        "VALUE": record_format.dtype,
        "NDIM": record_format.ndim,
        "NUM_WORDS": record_format.num_words,
        "PACKING_LAYOUT": structs.packing_dtype(record_format.ndim),
    }


def read_keys_macros(
    record_format: RecordFormat, num_fields: int, key_dtype: np.dtype, place_dtype: np.dtype | None
) -> Macros:
    """Specialise `read_keys.cu`; without `place_dtype` it reads all records in order."""
    return {
        "NUM_WORDS": record_format.num_words,
        "NUM_FIELDS": num_fields,
        "KEY": key_dtype,
        "PLACE": place_dtype or _NO_ID,
        "KEY_FIELDS_LAYOUT": structs.key_fields_dtype(num_fields),
    }


def split_columns_macros(record_format: RecordFormat, place_dtype: np.dtype | None) -> Macros:
    """Specialise `split_columns.cu`; without `place_dtype` records are in order."""
    return {
        "VALUE": record_format.dtype,
        "NUM_WORDS": record_format.num_words,
        "COLUMNS_LAYOUT": structs.columns_dtype(record_format.num_words),
        "HAS_PLACES": place_dtype is not None,
        "PLACE": place_dtype or _NO_ID,
    }


def sweep_rows_macros(cut: SweepCut, dtype: np.dtype) -> Macros:
    """Specialise `sweep_rows.cu`, for a class of ranks."""
    return {
        "VALUE": dtype,
        "WIDTH": cut.width,
        "CHUNK": cut.chunk,
        "NUM_ROWS": cut.num_rows,
        "NUM_WARPS": cut.num_warps,
        "MIN_BLOCKS": cut.min_blocks,
        "MAX_STEPS": tuning.MAX_ROW_STEPS,
        "SHARED_NBYTES": cut.shared_nbytes,
        "ROW_UPDATE_LAYOUT": structs.ROW_UPDATE,
    }


def step_rows_macros(
    cut: StepCut,
    method: Method,
    is_group_lasso: bool,
    dtype: np.dtype,
    has_levels: bool = False,
) -> Macros:
    """Specialise `step_rows.cu`, for a class of ranks."""
    return {
        "VALUE": dtype,
        **_rule_macros(method, is_group_lasso),
        "HAS_LEVELS": has_levels,
        "WIDTH": cut.width,
        "NUM_GROUPS": cut.num_groups,
        "GROUP_ROWS": cut.group_rows,
        "MIN_BLOCKS": cut.min_blocks,
        "SHARED_NBYTES": cut.shared_nbytes,
    }


def wide_rows_macros(method: Method, is_group_lasso: bool, dtype: np.dtype) -> Macros:
    """Specialise `wide_rows.cu`."""
    return {
        "VALUE": dtype,
        **_rule_macros(method, is_group_lasso),
        "NUM_ROWS": tuning.WIDE_ROWS,
        "NUM_WARPS": tuning.WIDE_WARPS,
    }


def add_measures_macros(method: Method) -> Macros:
    """Specialise `add_measures.cu`."""
    return {
        "METHOD": int(method),
        "NUM_PARTS": tuning.NUM_MEASURE_PARTS,
        "MAX_STEPS": tuning.MAX_ROW_STEPS,
        "STEP_MEASURES_LAYOUT": structs.STEP_MEASURES,
    }


def _rule_macros(method: Method, is_group_lasso: bool) -> Macros:
    """Return the macros of kernels that serve several rules."""
    return {
        "METHOD": int(method),
        "IS_GROUP_LASSO": is_group_lasso,
        "MAX_STEPS": tuning.MAX_ROW_STEPS,
        "ROW_UPDATE_LAYOUT": structs.ROW_UPDATE,
    }


def narrow_rows_macros(rank: int, dtype: np.dtype) -> Macros:
    """Specialise `narrow_rows.cu` for a dtype and a class of ranks."""
    return {
        "VALUE": dtype,
        "NARROW": NARROW_FORMATS[dtype].dtype,
        "NUM_COLUMNS": min(tuning.BLOCK_SIZE, 1 << (rank - 1).bit_length()),
        "BLOCK_SIZE": tuning.BLOCK_SIZE,
        "NARROW_COPY_LAYOUT": structs.NARROW_COPY,
    }


def update_rows_macros(rank: int, dtype: np.dtype, is_narrowing: bool = False) -> Macros:
    """Specialise `update_rows.cu`, for a class of ranks."""
    cut = tuning.cut_tall(rank, dtype.itemsize)
    return {
        "VALUE": dtype,
        "NARROW": NARROW_FORMATS[dtype].dtype if is_narrowing else dtype,
        "WIDTH": cut.width,
        "NUM_GROUPS": cut.num_groups,
        "GROUP_ROWS": cut.group_rows,
    }


def products_macros(rank: int, dtype: np.dtype) -> Macros:
    """Specialise `products.cu`, for a class of ranks."""
    lane_rows = 1 << (-(-rank // 32) - 1).bit_length()  # a power of two
    return {
        "VALUE": dtype,
        "TILES": lane_rows,
        "NUM_WARPS": 32 if lane_rows == 1 else 16,
        "SEGMENT": tuning.GRAM_SEGMENT,
        "PRODUCT_LAYOUT": structs.PRODUCT,
    }


def packed_records_macros(bits: BitFields, record_format: RecordFormat) -> Macros:
    """Return the macros of the kernels that pack and unpack records."""
    return {
        "NUM_WORDS": record_format.record_nbytes * 8 // WORD_BITS,
        "NUM_FIELDS": len(bits.fields),
        "HAS_ROWS": bits.row_field is not None,
        "CODE_WORDS": bits.code_words,
        "BLOCK_SIZE": BLOCK_NNZ,
    }
