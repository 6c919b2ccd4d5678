"""Sorted records with their bits packed, which stay on the host and are unpacked on a GPU.

A record is a few words, of which coordinates and value do not use all bits. Sorted by a mode, it
need not have that mode's index: one bit says whether it begins another row than the record before.
And where few values occur, as where they are counts, it has the number of its value among them. So
less has to pass the link, and what is unpacked has the bits of what was packed.
"""

from dataclasses import dataclass, replace
from typing import Any

import cupy
import numpy as np

from ...base.array_modules import GpuArray as Array
from ...format.packing import RecordFormat, RecordOrder
from ...format.primitives import list_nonempty_rows
from . import tuning
from .bit_fields import WORD_BITS, BitFields
from .launch import find_address, get_direct_kernel

#: Rows whose records have more nonzeros than this on average are known by where they begin: for
#: each, its index stays on the GPU.
_LEAST_ROW_NNZ = 4

#: Values that are looked at to see whether few occur; how many those are at most, and how often one
#: occurs at least on average.
_NUM_SAMPLED = 2**20
_MOST_CODES = 2**16
_LEAST_REPEATS = 16

#: Packed records take at most this share of the records, or these are not packed.
_MOST_SHARE = 0.95


@dataclass(frozen=True, eq=False)
class PackedRecords:
    """Records (nnz, num_words) that are packed, in the manner of an array.

    Their words are the first ranks of all blocks, and then the packed records: at first on the GPU.
    """

    words: Any
    record_format: RecordFormat
    shape: tuple[int, int]
    bits: BitFields
    rows: Array | None  # of all ranks
    values: Array | None  # of all codes, as words

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def dtype(self) -> np.dtype:
        return self.words.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the words, and of what stays on the GPU to unpack them."""
        tables = [table for table in (self.rows, self.values) if table is not None]
        return self.words.nbytes + sum(table.nbytes for table in tables)

    def on_host(self, words: np.ndarray) -> "PackedRecords":
        """Return the same with a copy of the words on the host."""
        return replace(self, words=words)

    def unpack(self, words: Array) -> Array:
        """Return the records, on the current GPU, from a copy of the words there."""
        records = cupy.empty(self.shape, self.dtype)
        num_blocks = _count_blocks(self.shape[0])
        launcher = _Launcher(self.bits, self.record_format, self.shape[0])
        arrays = (words[num_blocks:], words, self.rows, self.values, records)
        launcher.launch("unpack_bits", num_blocks, *arrays)
        return records


def pack(records: Array, order: RecordOrder) -> PackedRecords | None:
    """Pack records on the current GPU, whose order is that; None if little were gained.

    Beside the packed ones this takes a copy of the values, if few kinds of these occur.
    """
    nnz = records.shape[0]
    record_format = order.record_format
    values = _find_values(records, record_format)
    num_codes = 0
    if values is not None:
        num_codes = values.size * values.itemsize // record_format.dtype.itemsize
    mode_size = record_format.merged.shape[order.mode]
    has_rows = nnz >= _LEAST_ROW_NNZ * (mode_size - order.empty_rows.size)
    bits = BitFields.of(order, has_rows, num_codes)
    num_blocks = _count_blocks(nnz)
    num_groups = -(-nnz // WORD_BITS)
    num_words = num_groups * bits.record_bits
    words = cupy.empty(num_blocks + num_words + 1, records.dtype)
    if words.nbytes > _MOST_SHARE * records.nbytes:
        return None
    launcher = _Launcher(bits, record_format, nnz)
    rows = None
    if has_rows:
        rows = list_nonempty_rows(order.empty_rows, mode_size)
        counts = words[:num_blocks]
        launcher.launch("count_beginnings", num_blocks, records, counts)
        counts[...] = cupy.cumsum(counts, dtype=counts.dtype) - counts
    num_launched = -(-num_groups // tuning.BLOCK_SIZE)
    launcher.launch("pack_bits", num_launched, records, values, words[num_blocks:])
    return PackedRecords(words, record_format, records.shape, bits, rows, values)


def _find_values(records: Array, record_format: RecordFormat) -> Array | None:
    """Return the words of the values that occur, if these are few.

    They ascend as numbers without sign.
    """
    values = record_format.values(records).view(f"u{record_format.dtype.itemsize}")
    most = min(_MOST_CODES, values.size // _LEAST_REPEATS)
    found = cupy.unique(cupy.ascontiguousarray(values[:_NUM_SAMPLED]))
    if found.size <= most and values.size > _NUM_SAMPLED:
        found = cupy.unique(cupy.ascontiguousarray(values))
    return found.view(np.uint32) if found.size <= most else None


def _count_blocks(nnz: int) -> int:
    return -(-nnz // tuning.BLOCK_SIZE)


class _Launcher:
    """Launches the kernels of `packed_records.cu`."""

    def __init__(self, bits: BitFields, record_format: RecordFormat, nnz: int) -> None:
        self._macros = bits.list_macros(record_format)
        self._arguments = [nnz, *bits.list_members()]

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
        kernel((num_blocks, 1), tuning.BLOCK_SIZE, *self._arguments, *addresses)
