"""Sorted records with their bits packed: what streams to a GPU, from host memory or from a file.

A record is a few words, of which coordinates and value do not use all bits. Sorted by a mode, it
need not have that mode's index: one bit says whether it begins another row than the record before.
And where few values occur, as where they are counts, it has the number of its value among them. So
less has to pass the link, and what is unpacked has the bits of what was packed.

A GPU packs and unpacks them (`engines.cuda.packed_records`). Here they are unpacked on the host, to
be checked, or to build the tensor anew for a CPU.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Self

import numpy as np

from ..base.array_modules import Array, move
from ..base.host_threads import map_in_threads
from .bit_fields import WORD_BITS, BitFields
from .packing import RecordFormat, RecordOrder
from .primitives import list_nonempty_rows

#: Records of a block, for which one word tells how many rows begin before it.
BLOCK_NNZ = 128

#: Rows whose records have more nonzeros than this on average are known by where they begin.
_LEAST_ROW_NNZ = 4

#: The most values that are known by their numbers.
MOST_CODES = 2**16

#: Records that a thread unpacks at a time, whole blocks.
_PART_NNZ = 2**18


@dataclass(frozen=True, eq=False)
class PackedRecords:
    """Records (nnz, num_words) that are packed, in the manner of an array.

    Their words are the first ranks of all blocks, and then the packed records. The first rank of a
    block is the number of rows that begin before it, if `rows` are known by that.
    """

    words: Any  # uint32, of a GPU, the host or a file
    record_format: RecordFormat
    shape: tuple[int, int]
    bits: BitFields
    rows: Any  # of all ranks; None if each record has its own
    values: Any  # of all codes, as words; None if each record has its own

    @classmethod
    def of(
        cls,
        words: Array,
        order: RecordOrder,
        nnz: int,
        has_rows: bool,
        values: Array | None,
    ) -> Self:
        """Interpret words as `nnz` records in an order; `values` are those that have numbers."""
        record_format = order.record_format
        rows = None
        if has_rows:
            num_rows = record_format.merged.shape[order.mode]
            rows = list_nonempty_rows(order.empty_rows, num_rows)
        bits = choose_bits(order, has_rows, values)
        shape = (nnz, record_format.num_words)
        return cls(words, record_format, shape, bits, rows, values)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def dtype(self) -> np.dtype:
        return self.record_format.word_dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the words, and of what stays on the GPU to unpack them."""
        tables = [table for table in (self.rows, self.values) if table is not None]
        return self.words.nbytes + sum(table.nbytes for table in tables)

    def replace_words(self, words: np.ndarray) -> Self:
        """Return the same with another copy of the words."""
        return replace(self, words=words)

    def move_tables(self, xp: ModuleType) -> Self:
        """Return the same with the tables, not the words, as arrays of a module."""
        tables = {"rows": self.rows, "values": self.values}
        moved: dict[str, Any] = {
            name: move(table, xp) for name, table in tables.items() if table is not None
        }
        return replace(self, **moved)

    def unpack(self) -> np.ndarray:
        """Return the records, if all arrays are on the host.

        Raise a ValueError if a row or a value is not in its table. Costs about 30 ns a record on
        one core; threads share the work.
        """
        nnz, num_words = self.shape
        group_words = self.bits.record_bits
        num_groups = -(-nnz // WORD_BITS)
        packed = self.words[count_blocks(nnz) : -1]
        groups = packed.reshape(num_groups, group_words)
        records = np.zeros((nnz, num_words), self.dtype)

        def unpack_part(first: int) -> None:
            part = slice(first // WORD_BITS, (first + _PART_NNZ) // WORD_BITS)
            target = records[first : first + _PART_NNZ].view(np.uint32)
            self._unpack_groups(groups[part], first, target)

        map_in_threads(unpack_part, range(0, nnz, _PART_NNZ))
        return records

    def _unpack_groups(self, groups: np.ndarray, first: int, records: np.ndarray) -> None:
        """Unpack groups of 32 records to zeros; `first` is the number of the first record."""
        all_numbers = _read_numbers(groups, self._list_widths())
        # The last group may be longer than what is left.
        numbers = (numbers[: len(records)] for numbers in all_numbers)
        if self.bits.row_field is not None:
            ranks = self._find_ranks(next(numbers), first)
            word, shift, mask = self.bits.row_field
            rows = _look_up(self.rows, ranks, "row")
            _write_field(records, word, shift, mask.bit_length(), rows)
        for word, shift, width in self.bits.fields:
            _write_field(records, word, shift, width, next(numbers))
        if self.bits.code_words > 0:
            start = self.bits.value_word
            values = self.values.reshape(-1, self.bits.code_words)
            words = _look_up(values, next(numbers), "value")
            records[:, start : start + self.bits.code_words] = words

    def _list_widths(self) -> list[int]:
        """List the bits of the numbers of a packed record, in their order."""
        widths = [width for _, _, width in self.bits.fields]
        if self.bits.row_field is not None:
            widths.insert(0, 1)
        if self.bits.code_words > 0:
            widths.append(self.bits.code_bits)
        return widths

    def _find_ranks(self, begins: np.ndarray, first: int) -> np.ndarray:
        """Return the rank of each record's row, if rows begin at some of them."""
        start = first // BLOCK_NNZ
        first_ranks = self.words[start : start + count_blocks(begins.size)].astype(np.int64)
        num_begun = first_ranks[0] + np.cumsum(begins, dtype=np.int64)
        before_blocks = num_begun[::BLOCK_NNZ] - begins[::BLOCK_NNZ]
        if not np.array_equal(before_blocks, first_ranks):
            raise ValueError("the ranks of its rows are wrong")
        return num_begun - 1


def choose_bits(order: RecordOrder, has_rows: bool, values: Array | None) -> BitFields:
    """Choose what a packed record holds; `values` are the words of those that have numbers."""
    num_codes = 0
    if values is not None:
        num_codes = values.nbytes // order.record_format.dtype.itemsize
    return BitFields.of(order, has_rows, num_codes)


def has_long_rows(order: RecordOrder, nnz: int) -> bool:
    """Return whether rows have so many records that they are known by where they begin."""
    mode_size = order.record_format.merged.shape[order.mode]
    return nnz >= _LEAST_ROW_NNZ * (mode_size - order.empty_rows.size)


def count_blocks(nnz: int) -> int:
    """Count the blocks of records, each of which has a first rank."""
    return -(-nnz // BLOCK_NNZ)


def count_words(nnz: int, bits: BitFields) -> int:
    """Count the words of packed records; one more follows them, since kernels read pairs."""
    num_groups = -(-nnz // WORD_BITS)
    return count_blocks(nnz) + num_groups * bits.record_bits + 1


def _read_numbers(groups: np.ndarray, widths: list[int]) -> Iterator[np.ndarray]:
    """Yield arrays of numbers with some bits each, one of each packed record.

    A group of 32 records (num_groups, num_words) ends with a word.
    """
    num_groups, record_bits = groups.shape
    columns = np.ascontiguousarray(groups.T)
    start = 0
    for width in widths:
        numbers = np.zeros((num_groups, WORD_BITS), np.uint32)
        for record in range(WORD_BITS if width else 0):
            word, shift = divmod(record * record_bits + start, WORD_BITS)
            bits = columns[word] >> np.uint32(shift)
            if shift + width > WORD_BITS:
                bits |= columns[word + 1] << np.uint32(WORD_BITS - shift)
            numbers[:, record] = bits
        numbers &= np.uint32((1 << width) - 1)
        yield numbers.reshape(-1)
        start += width


def _write_field(
    records: np.ndarray, word: int, shift: int, width: int, numbers: np.ndarray
) -> None:
    """Write a field of records (n, num_words), whose bits are zeros."""
    records[:, word] |= numbers << np.uint32(shift)
    if shift + width > WORD_BITS:
        records[:, word + 1] |= numbers >> np.uint32(WORD_BITS - shift)


def _look_up(table: np.ndarray, numbers: np.ndarray, name: str) -> np.ndarray:
    """Return the rows of a table with some numbers; refuse numbers that it does not have."""
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(table):
        raise ValueError(f"the number of a {name} is not in its table")
    return table[numbers]
