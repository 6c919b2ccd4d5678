"""Packing and unpacking sorted records on a GPU: see `format.packed_records`."""

import cupy
import numpy as np

from ...base.array_modules import GpuArray as Array
from ...format.bit_fields import WORD_BITS, BitFields
from ...format.packed_records import (
    BLOCK_NNZ,
    MOST_CODES,
    PackedRecords,
    choose_bits,
    count_blocks,
    count_words,
    has_long_rows,
)
from ...format.packing import RecordFormat, RecordOrder
from .launch import find_address, get_direct_kernel
from .macros import packed_records_macros
from .structs import list_bits_members

#: Values that are looked at to see whether few occur, and how often one occurs at least on average.
_NUM_SAMPLED = 2**20
_LEAST_REPEATS = 16

#: Packed records take at most this share of the records, or these are not packed.
_MOST_SHARE = 0.95


def pack(records: Array, order: RecordOrder) -> PackedRecords | None:
    """Pack records on the current GPU, whose order is that; None if little were gained.

    Beside the packed ones this takes a copy of the values, if few kinds of these occur.
    """
    nnz = records.shape[0]
    record_format = order.record_format
    values = _find_values(records, record_format)
    has_rows = has_long_rows(order, nnz)
    bits = choose_bits(order, has_rows, values)
    words = cupy.empty(count_words(nnz, bits), np.uint32)
    if words.nbytes > _MOST_SHARE * records.nbytes:
        return None
    words[-bits.record_bits - 1 :].fill(0)  # the last records may not fill them
    launcher = _Launcher(bits, record_format, nnz)
    num_blocks = count_blocks(nnz)
    counts = words[:num_blocks]
    if has_rows:
        launcher.launch("count_beginnings", num_blocks, records, counts)
        counts[...] = cupy.cumsum(counts, dtype=counts.dtype) - counts
    else:
        counts.fill(0)
    num_groups = -(-nnz // WORD_BITS)
    num_launched = -(-num_groups // BLOCK_NNZ)
    launcher.launch("pack_bits", num_launched, records, values, words[num_blocks:])
    return PackedRecords.of(words, order, nnz, has_rows, values)


def unpack(packed: PackedRecords, words: Array) -> Array:
    """Return the records, on the current GPU, from a copy of the words there."""
    records = cupy.empty(packed.shape, packed.dtype)
    nnz = len(packed)
    num_blocks = count_blocks(nnz)
    launcher = _Launcher(packed.bits, packed.record_format, nnz)
    arrays = (words[num_blocks:], words, packed.rows, packed.values, records)
    launcher.launch("unpack_bits", num_blocks, *arrays)
    return records


def _find_values(records: Array, record_format: RecordFormat) -> Array | None:
    """Return the words of the values that occur, if these are few.

    They ascend as numbers without sign.
    """
    values = record_format.values(records).view(f"u{record_format.dtype.itemsize}")
    most = min(MOST_CODES, values.size // _LEAST_REPEATS)
    found = cupy.unique(cupy.ascontiguousarray(values[:_NUM_SAMPLED]))
    if found.size <= most and values.size > _NUM_SAMPLED:
        found = cupy.unique(cupy.ascontiguousarray(values))
    return found.view(np.uint32) if found.size <= most else None


class _Launcher:
    """Launches the kernels of `packed_records.cu`."""

    def __init__(self, bits: BitFields, record_format: RecordFormat, nnz: int) -> None:
        self._macros = packed_records_macros(bits, record_format)
        self._arguments = [nnz, *list_bits_members(bits)]

    def launch(self, name: str, num_blocks: int, *arrays: Array | None) -> None:
        """Launch a kernel, whose last arguments are arrays, or None."""
        num_members = len(self._arguments) - 1
        kernel = get_direct_kernel(
            "packed_records.cu",
            name,
            f"q{num_members}i0Q{len(arrays)}Q",
            cupy.cuda.runtime.getDevice(),
            **self._macros,
        )
        addresses = map(find_address, arrays)
        kernel((num_blocks, 1), BLOCK_NNZ, *self._arguments, *addresses)
