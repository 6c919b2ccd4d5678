"""Packed records as their definition says, bit by bit: what the kernels must write."""

import numpy as np

from tensorly_flycoo.format.bit_fields import WORD_BITS
from tensorly_flycoo.format.packed_records import (
    BLOCK_NNZ,
    PackedRecords,
    choose_bits,
    count_words,
    has_long_rows,
)


def pack(records, order, most_codes=2**16):
    """Stand in for `engines.cuda.packed_records.pack`; all records are packed."""
    nnz, record_format = len(records), order.record_format
    of_values = record_format.values(records).view(f"u{record_format.dtype.itemsize}")
    kinds, codes = np.unique(of_values, return_inverse=True)
    values = kinds.view(np.uint32) if kinds.size <= most_codes else None
    has_rows = has_long_rows(order, nnz)
    bits = choose_bits(order, has_rows, values)
    rows = record_format.merged.rows(records, order.mode)
    begins = np.diff(rows, prepend=rows[:1] + 1) != 0
    numbers = [(begins, 1)] if has_rows else []
    words = records.view(np.uint32)
    for word, shift, width in bits.fields:
        low = words[:, word].astype(np.uint64)
        high = words[:, min(word + 1, words.shape[1] - 1)].astype(np.uint64)
        numbers.append(((low | high << np.uint64(32)) >> np.uint64(shift), width))
    if values is not None:
        numbers.append((codes, bits.code_bits))
    columns = [
        np.asarray(number, np.uint64)[:, None] >> np.arange(width, dtype=np.uint64) & np.uint64(1)
        for number, width in numbers
    ]
    packed_bits = np.concatenate(columns, axis=1).astype(np.uint8).reshape(-1)
    target = np.zeros(count_words(nnz, bits), np.uint32)
    starts = range(0, nnz, BLOCK_NNZ)
    if has_rows:
        target[: len(starts)] = [begins[:start].sum() for start in starts]
    in_bytes = np.packbits(packed_bits, bitorder="little")
    target.view(np.uint8)[4 * len(starts) :][: in_bytes.size] = in_bytes
    assert packed_bits.size == nnz * bits.record_bits <= WORD_BITS * target.size
    return PackedRecords.of(target, order, nnz, has_rows, values)
