"""The structures that Python fills for the kernels: one dtype defines both sides of each.

Python fills a structure through its dtype. The kernel's `CHECK_LAYOUT` compares the dtype's
`layout_macro` with the structure in the CUDA source: its size, and the name, offset and size of
each member. If they differ, the kernel does not compile.
"""

import functools
import struct
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ...base.array_modules import GpuArray as Array
from ...format.bit_fields import BitFields
from ...format.packing import RecordFormat, round_up
from .tuning import MAX_ROW_STEPS, RankCut

#: Records and entries move in pieces of 8 or 16 bytes.
_PIECE_NBYTES = 8

#: `Field` in `operands.cuh`.
FIELD = np.dtype([("word", np.uint32), ("shift", np.uint32), ("mask", np.uint32)], align=True)

#: The most Gram matrices, and other matrices, of a `Product`.
MAX_GRAMS = 8
MAX_MATRICES = 4

#: `Product` in `products.cu`.
PRODUCT = np.dtype(
    [
        ("grams", np.uint64, MAX_GRAMS),
        ("num_blocks", np.int64, MAX_GRAMS),
        ("matrices", np.uint64, MAX_MATRICES),
        ("row_strides", np.int64, MAX_MATRICES),
        ("column_strides", np.int64, MAX_MATRICES),
        ("num_grams", np.int32),
        ("num_matrices", np.int32),
    ],
    align=True,
)

#: `RowUpdate` in `row_rules.cuh`.
ROW_UPDATE = np.dtype(
    [
        ("targets", np.uint64),
        ("rows", np.uint64),
        ("dual", np.uint64),
        ("matrix", np.uint64),
        ("penalty", np.uint64),
        ("new_rows", np.uint64),
        ("new_dual", np.uint64),
        ("workspace", np.uint64),
        ("block_sums", np.uint64),
        ("num_rows", np.int64),
        ("target_stride", np.int64),
        ("row_stride", np.int64),
        ("dual_stride", np.int64),
        ("low", np.float64),
        ("high", np.float64),
        ("scale", np.float64),
        ("strength", np.float64),
        ("rank", np.int32),
        ("new_stride", np.int32),
        ("rows_per_block", np.int32),
        ("num_steps", np.int32),
        ("num_again", np.uint64),
        ("levels", np.float64, MAX_ROW_STEPS),
        ("block_peaks", np.uint64),
    ],
    align=True,
)

#: `StepMeasures` in `add_measures.cu`.
STEP_MEASURES = np.dtype(
    [
        ("block_sums", np.uint64),
        ("measures", np.uint64),
        ("num_again", np.uint64),
        ("report", np.uint64),
        ("tolerance", np.float64),
        ("num_blocks", np.int32),
        ("num_steps", np.int32),
    ],
    align=True,
)

#: `NarrowCopy` in `narrow_rows.cu`.
NARROW_COPY = np.dtype(
    [
        ("matrix", np.uint64),
        ("rows", np.uint64),
        ("scales", np.uint64),
        ("largest", np.uint64),
        ("num_rows", np.int64),
        ("row_stride", np.int64),
        ("rows_per_block", np.int64),
        ("rank", np.int32),
        ("narrow_stride", np.int32),
    ],
    align=True,
)


@functools.cache
def operands_dtype(num_inputs: int) -> np.dtype:
    """Return the dtype of `Operands` (`operands.cuh`); a single unused input stands for none."""
    max_inputs = max(1, num_inputs)
    fields = [
        ("out_field", FIELD),
        ("input_fields", FIELD, max_inputs),
        ("value_slot", np.uint32),
        ("factors", np.uint64, max_inputs),
        ("row_nbytes", np.uint32, max_inputs),
        ("last_out_row", np.uint32),
        ("last_input_rows", np.uint32, max_inputs),
    ]
    return np.dtype(fields, align=True)


@functools.cache
def row_blocks_dtype(num_blocks: int) -> np.dtype:
    """Return the dtype of `RowBlocks` (`row_blocks.cuh`)."""
    return np.dtype([("blocks", np.uint64, (num_blocks,)), ("block_rows", np.uint32)], align=True)


@functools.cache
def launch_arguments_dtype(num_inputs: int, dtype: np.dtype, num_out_blocks: int = 1) -> np.dtype:
    """Return the dtype of `LaunchArguments` (`mttkrp_remap.cu`)."""
    numbers = ("first_tile", "nnz", "num_empty", "empty_share", "bucket_size")
    pointers = (
        "carry_rows",
        "empty_rows",
        "records",
        "pull_ids",
        "pull_highs",
        "spare",
        "run_starts",
        "run_counts",
        "run_shifts",
        "write_lows",
        "write_highs",
    )
    fields: list[tuple] = [
        ("operands", operands_dtype(num_inputs)),
        *[(name, np.int64) for name in numbers],
        *[(name, np.uint64) for name in pointers],
        ("out", row_blocks_dtype(num_out_blocks)),
        *[(name, np.uint64) for name in ("partial_rows", "model_factor", "log_sums")],
        ("max_runs", np.int32),
        ("rank", np.int32),
        ("model_row_nbytes", np.uint32),
        ("smallest", dtype),
    ]
    return np.dtype(fields, align=True)


@functools.cache
def ranks_dtype(num_inputs: int) -> np.dtype:
    """Return the dtype of `Ranks` (`ttmc.cu`); a single unused input stands for none."""
    return np.dtype([("at", np.int32, max(1, num_inputs))], align=True)


@functools.cache
def key_fields_dtype(num_fields: int) -> np.dtype:
    """Return the dtype of `KeyFields` (`read_keys.cu`)."""
    return np.dtype([("at", FIELD, (num_fields,))], align=True)


@functools.cache
def packing_dtype(ndim: int) -> np.dtype:
    """Return the dtype of `Packing` (`pack.cu`)."""
    fields = [
        ("mode_stride", np.int64),
        ("nonzero_stride", np.int64),
        ("sizes", np.uint64, ndim),
        ("words", np.uint32, ndim),
        ("shifts", np.uint32, ndim),
        ("value_slot", np.uint32),
    ]
    return np.dtype(fields, align=True)


@functools.cache
def columns_dtype(num_words: int) -> np.dtype:
    """Return the dtype of `Columns` (`split_columns.cu`)."""
    fields = [("row_field", FIELD), ("value_slot", np.uint32), ("masks", np.uint32, num_words)]
    return np.dtype(fields, align=True)


def carries_nbytes(dtype: np.dtype, cut: RankCut, block_size: int) -> int:
    """Return the bytes of `Carries` (`mttkrp.cuh`), in shared memory."""
    lane_nbytes = cut.lane_columns * dtype.itemsize
    num_groups = block_size // cut.group_size
    alignment = min(16, lane_nbytes)  # that of `Together`
    return round_up(block_size * lane_nbytes + 2 * num_groups, alignment)


def slot_nbytes(record_format: RecordFormat) -> int:
    """Return the bytes of a slot in shared memory, which holds a record and then its entry.

    An entry is the nonzero unpacked (`nonzeros.cuh`): the value, and a row for each mode.
    """
    entry_nbytes = record_format.dtype.itemsize + 4 * record_format.ndim
    return max(record_format.record_nbytes, round_up(entry_nbytes, _PIECE_NBYTES))


@functools.cache
def layout_macro(dtype: np.dtype) -> str:
    """Describe the memory layout of a structure for `CHECK_LAYOUT` (`layout.cuh`).

    >>> layout_macro(FIELD)
    'SIZE(12)MEMBER(word,0,4)MEMBER(shift,4,4)MEMBER(mask,8,4)'
    """
    assert dtype.fields is not None
    members = []
    for name, (member_dtype, offset, *_) in dtype.fields.items():
        members.append(f"MEMBER({name},{offset},{member_dtype.itemsize})")
    return f"SIZE({dtype.itemsize}){''.join(members)}"


def make_operands(
    record_format: RecordFormat, mode: int, inputs: Collection[int], arrays: Sequence[Array] = ()
) -> np.ndarray:
    """Fill in `Operands`: `arrays`, if known, are the factors of the modes `inputs`, on the GPU."""
    fields = record_format.fields
    operands = np.zeros((), operands_dtype(len(inputs)))
    operands["out_field"] = fields[mode]
    operands["value_slot"] = record_format.value_slot
    operands["last_out_row"] = record_format.shape[mode] - 1
    for place, n in enumerate(inputs):
        operands["input_fields"][place] = fields[n]
        operands["last_input_rows"][place] = record_format.shape[n] - 1
    for place, array in enumerate(arrays):
        operands["factors"][place] = array.data.ptr
        operands["row_nbytes"][place] = row_pitch(array)
    return _as_bytes(operands)


def make_launch_arguments(
    record_format: RecordFormat, mode: int, inputs: Collection[int], num_out_blocks: int = 1
) -> Any:
    """Return `LaunchArguments` with all operands but the factors, zero otherwise."""
    # Members are attributes: NumPy takes longer to set them.
    dtype = launch_arguments_dtype(len(inputs), record_format.dtype, num_out_blocks)
    arguments: Any = _as_ctypes(dtype)()
    operands = make_operands(record_format, mode, inputs)
    arguments.operands = type(arguments.operands).from_buffer_copy(operands.tobytes())
    return arguments


def make_row_blocks(blocks: Sequence[Array]) -> bytes:
    """Return the bytes of `RowBlocks`, which are padded to whole addresses."""
    addresses = [block.data.ptr for block in blocks]
    return struct.pack(f"{len(blocks)}QI0Q", *addresses, blocks[0].shape[0])


#: The structure of `ctypes` for a dtype.
_as_ctypes = functools.cache(np.ctypeslib.as_ctypes_type)


def make_ranks(arrays: Sequence[Array]) -> np.ndarray:
    """Fill in `Ranks`: the columns of each factor."""
    ranks = np.zeros((), ranks_dtype(len(arrays)))
    ranks["at"][: len(arrays)] = [array.shape[1] for array in arrays]
    return _as_bytes(ranks)


def make_key_fields(record_format: RecordFormat, modes: Sequence[int]) -> np.ndarray:
    """Fill in `KeyFields` for a key of the rows of `modes`, the most significant first."""
    fields = np.zeros((), key_fields_dtype(len(modes)))
    fields["at"] = [record_format.fields[mode] for mode in modes]
    return _as_bytes(fields)


def make_packing(record_format: RecordFormat, coords: Array) -> np.ndarray:
    """Fill in `Packing` for coords (ndim, nnz)."""
    packing = np.zeros((), packing_dtype(record_format.ndim))
    mode_nbytes, nonzero_nbytes = coords.strides
    packing["mode_stride"] = mode_nbytes // coords.itemsize
    packing["nonzero_stride"] = nonzero_nbytes // coords.itemsize
    packing["sizes"] = record_format.shape
    packing["words"] = record_format.words
    packing["shifts"] = record_format.shifts
    packing["value_slot"] = record_format.value_slot
    return _as_bytes(packing)


def make_columns(record_format: RecordFormat, mode: int) -> np.ndarray:
    """Fill in `Columns` for the unfolding along `mode`."""
    columns = np.zeros((), columns_dtype(record_format.num_words))
    columns["row_field"] = record_format.fields[mode]
    columns["value_slot"] = record_format.value_slot
    column_modes = (n for n in range(record_format.ndim) if n != mode)
    columns["masks"] = record_format.mask_words(column_modes)
    return _as_bytes(columns)


def row_pitch(array: Array) -> int:
    """Return the bytes from a row to the next."""
    if array.shape[0] > 1:
        return array.strides[0]
    return array.shape[1] * array.itemsize  # the stride of a single row is arbitrary


def _as_bytes(structure: np.ndarray) -> np.ndarray:
    """Hide the fields: CuPy would inspect each of them at every launch."""
    return structure.view(f"V{structure.itemsize}")


def list_bits_members(bits: BitFields) -> list[int]:
    """List the members of `Bits` in `packed_records.cu`."""
    words, shifts, widths = zip(*bits.fields, strict=True)
    row_word, row_shift, row_mask = bits.row_field or (0, 0, 0)
    return [
        *words,
        *shifts,
        *widths,
        row_word,
        row_shift,
        row_mask.bit_length(),
        bits.value_word,
        bits.num_codes,
        bits.code_bits,
        bits.record_bits,
    ]
